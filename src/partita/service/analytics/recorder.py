"""Recorder: writes the logs and metrics of Storage Analytics, for services that ask for it.

It listens to the meters of the services, only while something is switched on, and writes with the
engines of the account: its own requests are neither logged nor counted as those of users. It is
best effort, as on Azure: a crash loses what is not written yet. Its errors are logged, never
raised.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from partita.errors import PartitaError
from partita.service.accounts.account import Account
from partita.service.accounts.system_places import SERVICES, make_places
from partita.service.analytics.log_blobs import Log, hour_of
from partita.service.analytics.log_store import put_log
from partita.service.analytics.metric_rows import adding
from partita.service.analytics.recording import Recording, Rows
from partita.service.analytics.upkeep import remove_old, write_capacity
from partita.service.http.request import Request, Response
from partita.service.observing.meter import Listener, ServiceMeter
from partita.ticks import TICKS_PER_DAY, Clock

logger = logging.getLogger("partita.analytics")

TICK_SECONDS: Final = 1.0
"""How often the recorder looks whether something is due, while something is switched on."""
WARNING_SECONDS: Final = 60
"""How often failures of the recorder are logged."""
NEVER: Final = -1
_METERS: Final = {"blobs": "b", "queues": "q", "tables": "t"}


class Recorder:
    """The background task that writes the logs and metrics of all accounts."""

    def __init__(
        self,
        accounts: Iterable[Account],
        meters: Mapping[str, ServiceMeter],
        clock: Clock,
        *,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._accounts = {account.name: account for account in accounts}
        self._meters = {_METERS[name]: meter for name, meter in meters.items()}
        self._recordings = {
            letter: {name: Recording(SERVICES[letter]) for name in self._accounts}
            for letter in self._meters
        }
        """By the letter of the service, then by account."""
        self._listeners = {letter: self._listener_of(letter) for letter in self._meters}
        self._task: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_closing = False
        self._swept_hour = NEVER
        """The last hour in which everything that was too old was removed."""
        self._measured_days: dict[str, int] = {}
        """By account: the last day on which its capacity was measured."""
        self._warn_again_at = 0.0

    def start(self) -> None:
        """Follow the properties of the accounts, now and whenever they change."""
        for name, account in self._accounts.items():
            account.on_properties.append(partial(self._follow, name))
            self._follow(name)

    async def close(self) -> None:
        """Write everything that was recorded, and stop."""
        for letter, meter in self._meters.items():
            with contextlib.suppress(ValueError):  # it does not listen
                meter.listeners.remove(self._listeners[letter])
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])  # it is not cancelled: it may be writing a log
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait([self._measuring])
        await self._write_due(is_last=True)

    # Following the properties

    def _follow(self, name: str) -> None:
        account, ticks = self._accounts[name], self._clock.ticks()
        for letter, recordings in self._recordings.items():
            recording = recordings[name]
            was_logging = recording.logging.is_on
            if not recording.follow(account.properties[letter], ticks):
                continue
            if recording.logging.is_on and not was_logging:
                _warn_of_volume(name, recording)
            self._listen(letter)
            self._swept_hour = NEVER  # the retention may have changed
        if self._task is None and self._has_work():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _listen(self, letter: str) -> None:
        """Listen to the requests of a service while they are recorded for some account."""
        listeners, listener = self._meters[letter].listeners, self._listeners[letter]
        is_wanted = any(each.is_on for each in self._recordings[letter].values())
        if is_wanted and listener not in listeners:
            listeners.append(listener)
        elif not is_wanted and listener in listeners:
            listeners.remove(listener)

    def _listener_of(self, letter: str) -> Listener:
        recordings, clock = self._recordings[letter], self._clock

        def listen(request: Request, response: Response, seconds: float, outcome: int) -> None:
            recording = recordings.get(request.observed.account)
            if recording is None or not recording.is_on:
                return
            now = clock.monotonic()
            try:
                recording.note(request, response, seconds, outcome, ticks=clock.ticks(), now=now)
            except Exception as error:  # noqa: BLE001 - the request was answered
                self._warn("A request could not be recorded", error)
            if recording.has_full_log:
                self._wake.set()

        return listen

    def _has_work(self) -> bool:
        return any(each.is_on or each.has_retention for _, _, each in self._all())

    def _all(self) -> Iterator[tuple[Account, str, Recording]]:
        for letter, recordings in self._recordings.items():
            for name, recording in recordings.items():
                yield self._accounts[name], letter, recording

    # Writing

    async def _run(self) -> None:
        while self._has_work():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._wake.wait()
            if self._is_closing:
                return
            self._wake.clear()
            try:
                await self.tick()
            except Exception as error:  # noqa: BLE001 - the next tick may succeed
                self._warn("Storage Analytics failed", error)
        self._task = None
        await self._write_due(is_last=True)

    async def tick(self) -> None:
        """Write what is due, remove what is too old."""
        await self._write_due()
        ticks = self._clock.ticks()
        hour = hour_of(ticks)
        if hour != self._swept_hour:
            self._swept_hour = hour if await self._sweep() else NEVER
        if self._measuring is None or self._measuring.done():
            self._measure_if_due(ticks)

    async def _write_due(self, *, is_last: bool = False) -> None:
        for account, letter, recording in self._all():
            ticks, now = self._clock.ticks(), self._clock.monotonic()
            logs = recording.take_logs(ticks, now, is_last=is_last)
            rows = recording.take_rows(ticks, is_last=is_last)
            if not logs and not rows:
                continue
            try:
                # The properties may be older than these tables, in a restored account.
                await make_places(
                    account.tables.store, account.blobs, letter, account.properties[letter]
                )
            except Exception as error:  # noqa: BLE001 - writing fails, too, and keeps what is due
                self._warn("Storage Analytics could not write", error)
            for log in logs:
                await self._write_log(account, recording, log)
            for each in rows:
                await self._write_rows(account, recording, each)

    async def _write_log(self, account: Account, recording: Recording, log: Log) -> None:
        try:
            await put_log(account.blobs, recording, log)
        except Exception as error:  # noqa: BLE001 - it is tried again, and no client waits
            recording.keep_log(log)
            self._warn("A log could not be written", error)
            return
        recording.wrote(log)
        self._note_own(account, "b", log.size)
        if recording.dropped_lines:
            logger.warning(
                "account %s: %d lines of the %s log were dropped, because the store was too slow",
                account.name,
                recording.dropped_lines,
                recording.service,
            )
            recording.dropped_lines = 0

    async def _write_rows(self, account: Account, recording: Recording, rows: Rows) -> None:
        store, keys = account.tables.store, list(rows.counts)
        try:
            table = await store.find_table(rows.table) or await store.create_table(rows.table)
            change = adding(rows.partition_key, rows.counts)
            written = await store.change(table, rows.partition_key, keys, change)
        except Exception as error:  # noqa: BLE001 - it is tried again, and no client waits
            recording.keep_rows(rows)
            self._warn("Metrics could not be written", error)
            return
        self._note_own(account, "t", sum(len(each.document) for each in written if each))

    def _note_own(self, account: Account, letter: str, size: int) -> None:
        if letter in self._recordings:
            self._recordings[letter][account.name].note_own(size)

    async def _sweep(self) -> bool:
        """Remove what is too old; return whether all of it is removed."""
        is_complete = True
        for account, _, recording in self._all():
            try:
                is_complete = await remove_old(account, recording) and is_complete
            except Exception as error:  # noqa: BLE001 - the next hour tries again
                self._warn("Old logs or metrics could not be removed", error)
        return is_complete

    def _measure_if_due(self, ticks: int) -> None:
        """Write the capacity of the day, beside the other work: it reads all names."""
        day = ticks // TICKS_PER_DAY
        for account, letter, recording in self._all():
            is_wanted = letter == "b" and recording.hours.settings.enabled
            if is_wanted and self._measured_days.get(account.name) != day:
                self._measured_days[account.name] = day
                measuring = self._measure(account, ticks)
                self._measuring = asyncio.get_running_loop().create_task(measuring)
                return

    async def _measure(self, account: Account, ticks: int) -> None:
        try:
            await write_capacity(account, ticks)
        except Exception as error:  # noqa: BLE001 - the next day has its own
            self._warn("The capacity could not be written", error)

    def _warn(self, message: str, error: Exception) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_again_at:
            self._warn_again_at = now + WARNING_SECONDS
            logger.warning("%s: %s", message, error, exc_info=not isinstance(error, PartitaError))


def _warn_of_volume(account: str, recording: Recording) -> None:
    days = recording.logging.retention_days
    logger.warning(
        "account %s: requests to the %s service are logged in $logs, %s: about 0.5 KiB each,"
        " which is 40 GiB per day at 1,000 requests per second",
        account,
        recording.service,
        "and kept until they are deleted" if days is None else f"and kept for {days} days",
    )
