"""Restoring a backup into a folder, or as a new partition on NATS."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.clock import SystemClock
from partita.errors import BackupOrderError, QuorumLostError
from partita.reliable.manager.backup import Restored, restore
from partita.reliable.opening import connect_stream, nats_addresses
from partita.reliable.replication.replica import CHECKPOINT_FILE
from partita.reliable.replication.stream import NoAnswer, Stream
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import Checkpoints, Progress
from partita.reliable.storage.os_disk import OsDisk
from partita.ticks import Clock

ANSWER_SECONDS = 10.0
FILE_SECONDS = 120.0


async def restore_state(  # noqa: PLR0913 - by keyword
    backups: str | os.PathLike[str],
    where: str | os.PathLike[str] | Sequence[str],
    *,
    partition: str | None = None,
    replicas: int = 3,
    force: bool = False,
    up_to: int | None = None,
    progress: Progress | None = None,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Restored:
    """Restore the newest state of a folder of backups, or an older one (`up_to`).

    An existing state in a folder is replaced only if the backup continues it, or with `force`; it
    must not be open in any process. On NATS the state becomes a new partition: an existing one is
    never changed, so that its replicas cannot see two histories.
    """
    clock = clock or SystemClock()
    addresses = nats_addresses(where)
    async with _disk(Path(backups)) as source:
        if addresses is None:
            assert isinstance(where, str | os.PathLike)
            async with _disk(Path(where)) as target:
                return await restore(
                    source, target, clock, force=force, up_to=up_to, progress=progress
                )
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            async with _disk(Path(folder)) as target:
                restored = await restore(source, target, clock, up_to=up_to, progress=progress)
                content = await _content(target)
    stream = await connect_stream(
        addresses,
        partition=partition,
        replicas=replicas,
        clock=clock,
        monitor=monitor,
        connect_options=connect_options,
        first_sequence=restored.sequence + 1,
    )
    try:
        await _publish(stream, restored, content)
    finally:
        await stream.close()
    return restored


async def _publish(stream: Stream, restored: Restored, content: bytes) -> None:
    """Store the state where replicas of an empty log look for a full copy."""
    try:
        bounds = await stream.bounds(timeout=ANSWER_SECONDS)
        found = await stream.get_file(CHECKPOINT_FILE, timeout=ANSWER_SECONDS)
        if bounds != (restored.sequence + 1, restored.sequence) or found is not None:
            raise BackupOrderError(
                "PartitionExists",
                "A partition of this name has a state already; it was not changed.",
                facts={"first": bounds[0], "last": bounds[1]},
                hint="Restore it with another partition name, and open that partition.",
            )
        await stream.put_file(CHECKPOINT_FILE, content, timeout=FILE_SECONDS)
    except NoAnswer as error:
        raise QuorumLostError(
            "QuorumLost",
            "The NATS cluster did not accept the restored state in time.",
            hint="Start the nodes that are down, then restore with another partition name.",
        ) from error


async def _content(target: OsDisk) -> bytes:
    checkpoints = Checkpoints(target)
    found = await checkpoints.load(State())
    assert found is not None, "a restore leaves a checkpoint"
    return checkpoints.read(found)


@contextlib.asynccontextmanager
async def _disk(folder: Path) -> AsyncIterator[OsDisk]:
    disk = OsDisk(folder)
    try:
        yield disk
    finally:
        disk.close()
