"""Reliable states that the console shows: a folder, the partitions on NATS, or one of this process.

A folder is read when it is first shown, and again when asked; a partition is followed. Observers
never take the lease of a partition.
"""

import asyncio
import contextlib
import os
from typing import Final

from partita.errors import UsageError
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.observing.observe import observe
from partita.reliable.observing.observers import Observer, OpenObserver
from partita.ticks import Clock

PARTITIONS_OPEN_MAX: Final = 8
"""Partitions that are followed at the same time; the one used least recently is closed."""
NATS_SECONDS_MAX: Final = 10.0
"""How long a question to NATS may take."""
_SERVICE_RECORDS: Final = "-service"
"""Partitions with this ending hold the records of services."""


class States:
    """The states at one place; used on one event loop."""

    def __init__(self, where: str, clock: Clock) -> None:
        self.where = where
        self.is_on_nats = "://" in where
        self._clock = clock
        self._turn = asyncio.Lock()
        self._open: dict[str, tuple[Observer, contextlib.AsyncExitStack]] = {}
        """By partition, the one used last at the end; a folder has the name ""."""

    async def list_partitions(self) -> list[str]:
        """Return the names of the partitions on NATS; a folder has none."""
        if not self.is_on_nats:
            return []
        from partita.reliable.observing.nats_observer import (  # noqa: PLC0415 - an extra
            list_partitions,
        )

        found = await list_partitions(self.where, timeout=NATS_SECONDS_MAX)
        return sorted(name for name in found if not name.endswith(_SERVICE_RECORDS))

    async def observer(self, partition: str) -> Observer:
        """Return the observer of a partition; of a folder, with the name ""."""
        if self.is_on_nats != bool(partition):
            raise _wrong_partition()
        async with self._turn:
            found = self._open.pop(partition, None) or await self._opened(partition)
            self._open[partition] = found
            while len(self._open) > PARTITIONS_OPEN_MAX:
                _, stack = self._open.pop(next(iter(self._open)))
                await stack.aclose()
        return found[0]

    async def _opened(self, partition: str) -> tuple[Observer, contextlib.AsyncExitStack]:
        async with contextlib.AsyncExitStack() as stack:
            observer = await stack.enter_async_context(
                observe(
                    self.where,
                    partition=partition or None,
                    timeout=NATS_SECONDS_MAX,
                    clock=self._clock,
                )
            )
            return observer, stack.pop_all()

    async def close(self) -> None:
        async with self._turn:
            while self._open:
                _, (_, stack) = self._open.popitem()
                await stack.aclose()


class OpenState:
    """A state that is open in this process, asked on its own event loop."""

    is_on_nats = False

    def __init__(self, state: StateManager) -> None:
        self.where = f"open in process {os.getpid()}"
        self._observer = OpenObserver(state, self.where)

    async def list_partitions(self) -> list[str]:
        return []

    async def observer(self, partition: str) -> Observer:
        if partition:
            raise _wrong_partition()
        return self._observer

    async def close(self) -> None:
        """Do nothing: the state belongs to the program."""


def _wrong_partition() -> UsageError:
    return UsageError(
        "InvalidStateAddress",
        "A state on NATS is named by its partition, a folder has none.",
        hint="Choose a partition of the list.",
    )
