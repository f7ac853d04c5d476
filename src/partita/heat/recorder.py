"""Recorder: the meters of all accounts of a process; closes their minutes in the background.

An error of a store stops the heat of that account with one warning; requests are not affected.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from partita.errors import DamageError, PartitaError
from partita.heat.kept import Column, KeptHeat, TableTotal, with_open
from partita.heat.limits import LIVE_SECONDS, MINUTE_SECONDS
from partita.heat.meter import Meter
from partita.heat.minutes import Axes, close
from partita.ticks import TICKS_PER_SECOND, Clock

logger = logging.getLogger("partita.heat")

TICK_SECONDS = 1.0
"""How often the rate is measured, and the time looked at."""


class Live(Protocol):
    """Where a front end stores the load of the last seconds."""

    async def write(self, axes: Mapping[str, Axes], seconds: float, now: int) -> None:
        """Store the axes by account."""
        ...


class Reading(msgspec.Struct, frozen=True):
    """What was read of one account: one table, or which tables there are."""

    account: str
    table: str | None
    since: int
    to: int
    tables: list[TableTotal]
    """The hottest first; only without a table."""
    columns: list[Column]


class _Account:
    def __init__(self, meter: Meter, kept: KeptHeat) -> None:
        self.meter = meter
        self.kept = kept
        self.is_stopped = False


class Heat:
    """The heat of the accounts of one process; `start` it after they were added, `close` it."""

    def __init__(self, clock: Clock, live: Live | None = None) -> None:
        self._clock = clock
        self._live = live
        self._accounts: dict[str, _Account] = {}
        self._minute = self._now() // MINUTE_SECONDS
        self._flushed = clock.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None
        """Why the last minute was not stored in a database."""

    def add(self, account: str, kept: KeptHeat) -> Meter:
        """Return the meter of an account, whose heat is kept in `kept`; `close` closes it."""
        meter = Meter(self._clock)
        self._accounts[account] = _Account(meter, kept)
        return meter

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Store the open minute and close the stores."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._close_minute()
        for account in self._accounts.values():
            await account.kept.close()

    async def tick(self) -> None:
        """Adapt the meters; close the minute if it is over."""
        for account in self._accounts.values():
            account.meter.adapt()
        if self._now() // MINUTE_SECONDS != self._minute:
            await self._close_minute()
        seconds = self._clock.monotonic() - self._flushed
        if self._live is not None and seconds >= LIVE_SECONDS:
            await self._flush(self._live, seconds)

    async def read(self, account: str, table: str | None, since: int, to: int) -> Reading | None:
        """Return the heat of a table from `since` to `to` (outside), in seconds since 1970.

        Without a table, which tables there are; None if the account is not measured.
        """
        found = self._accounts.get(account)
        if found is None or found.is_stopped:
            return None
        try:
            return await self._read(found, account, table, since, to)
        except DamageError as error:
            self._failed(account, found, error)
            return None

    async def _read(
        self, found: _Account, account: str, table: str | None, since: int, to: int
    ) -> Reading:
        opened = await self._open_minute(found, since, to)
        if table is None:
            tables = await found.kept.tables(since, to)
            return Reading(account, None, since, to, with_open(tables, opened), [])
        columns = await found.kept.read(table.lower(), since, to)
        if table.lower() in opened:
            start = self._minute * MINUTE_SECONDS
            axis = opened[table.lower()].axis
            columns.append(Column(start, MINUTE_SECONDS, axis, is_open=True))
        return Reading(account, table, since, to, [], columns)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.tick()
            except Exception:  # heat must never stop the server
                logger.exception("heat: a minute was lost")

    async def _open_minute(self, account: _Account, since: int, to: int) -> Axes:
        start = self._minute * MINUTE_SECONDS
        if account.kept.is_shared or not since < start + MINUTE_SECONDS or start >= to:
            return {}
        return await asyncio.to_thread(close, list(account.meter.samples))

    async def _close_minute(self) -> None:
        start, self._minute = self._minute * MINUTE_SECONDS, self._now() // MINUTE_SECONDS
        for name, account in self._accounts.items():
            samples = account.meter.cut()
            if account.is_stopped or not samples:
                continue
            axes = await asyncio.to_thread(close, samples)
            try:
                await account.kept.add(start, axes, self._now())
                self._trouble = None
            except PartitaError as error:
                self._failed(name, account, error)

    async def _flush(self, live: Live, seconds: float) -> None:
        self._flushed = self._clock.monotonic()
        fresh = {name: account.meter.fresh() for name, account in self._accounts.items()}
        axes = {
            name: await asyncio.to_thread(close, samples)
            for name, samples in fresh.items()
            if samples
        }
        try:
            await live.write(axes, seconds, self._now())
        except PartitaError as error:
            self._lose(error)

    def _failed(self, name: str, account: _Account, error: PartitaError) -> None:
        if account.kept.is_shared:
            self._lose(error)  # a database comes back
            return
        account.is_stopped = True
        account.meter.stop()
        logger.warning(
            "heat of account %s is not measured any more: %s %s", name, error.message, error.hint
        )

    def _lose(self, error: PartitaError) -> None:
        """Warn once that heat is lost, until a minute is stored again."""
        if self._trouble is None:
            logger.warning("heat is lost until it can be stored again: %s", error.message)
        self._trouble = error.code

    def _now(self) -> int:
        return self._clock.ticks() // TICKS_PER_SECOND
