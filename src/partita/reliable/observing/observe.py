"""One way to observe any state: a folder, or a partition on NATS."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from partita.errors import UsageError
from partita.reliable.observing.observers import FolderObserver, Observer
from partita.ticks import Clock


@contextlib.asynccontextmanager
async def observe(
    where: str | os.PathLike[str],
    *,
    partition: str | None = None,
    timeout: float = 30.0,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Observer]:
    """Observe the state in a folder, or a partition on NATS ("nats://host:4222")."""
    if not isinstance(where, str) or "://" not in where:
        yield await FolderObserver.open(where, clock)
        return
    if partition is None:
        raise UsageError(
            "InvalidStateAddress",
            "A state on NATS needs the name of its partition.",
            hint="Pass partition=...; list_partitions() returns the names.",
        )
    from partita.reliable.observing.nats_observer import observe_partition  # noqa: PLC0415 - extra

    async with observe_partition(
        where, partition, timeout=timeout, connect_options=connect_options, clock=clock
    ) as observer:
        yield observer
