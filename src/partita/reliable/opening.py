"""Opening a state: a folder of this machine, or a partition that NATS replicates."""

import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from partita.addresses import without_password
from partita.clock import SystemClock
from partita.errors import ConfigurationError, DamageError, UsageError
from partita.reliable.manager.backup import RestoreContext, finish_restore
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.observing.answering import Answering, subject_of
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.replication.replica import Replica, Timing
from partita.reliable.replication.stream import Stream
from partita.reliable.state.records import NO_HASH
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import RESTORE_FILE, Checkpoints
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.increments import IncrementalCheckpoints
from partita.reliable.storage.local_log import LocalLog
from partita.reliable.storage.memory_disk import MemoryDisk
from partita.reliable.storage.os_disk import OsDisk
from partita.reliable.values.arguments import checked_mutation_check
from partita.reliable.values.limits import Sizes
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

ANSWERS_SECONDS = 1.0
"""How long closing a replica waits for its answers to observers."""
READY_SECONDS = 30.0
"""How long opening a replica waits for the log and for a primary."""

MEMORY = ":memory:"
"""The address of a state that is not stored."""

Durability = Literal["full", "fast"]
OnDataLoss = Callable[[RestoreContext], Awaitable[None]]


@contextlib.asynccontextmanager
async def open_state(  # noqa: PLR0913 - by keyword
    where: str | os.PathLike[str] | Sequence[str],
    *,
    partition: str | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    durability: Durability = "full",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    on_data_loss: OnDataLoss | None = None,
    address: str = "",
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
    clock: Clock | None = None,
) -> AsyncIterator[StateManager]:
    """Open the state in a folder, or one partition on NATS ("nats://host:4222", or several).

    ":memory:" opens a new, empty state that ends when it is closed, for tests.

    On NATS, `partition` is its name, `replicas` the number of nodes that store each record, and
    `folder` is where this replica stores its checkpoints (without one it starts with a full copy).
    `durability="fast"` returns before the disk has synced: a power failure may lose the last
    commits. `on_data_loss` is called to restore a backup if the stored state is damaged. `address`
    is the address of this replica in the errors of other replicas; `monitor` has the monitoring
    addresses of the nodes if they are not at the client port + 4000; `connect_options` are passed
    to nats-py. `sizes` are the largest records and transactions.
    """
    clock = clock or SystemClock()
    addresses = nats_addresses(where)
    if addresses is None:
        _refuse_nats_arguments(partition, folder)
        assert isinstance(where, str | os.PathLike)
        state = await open_local(
            MemoryDisk() if where == MEMORY else OsDisk(Path(where)),
            clock,
            durability=durability,
            checkpoint_bytes=checkpoint_bytes,
            on_data_loss=on_data_loss,
            sizes=sizes,
        )
        state.measure(os.fspath(where))
    else:
        if on_data_loss is not None:
            raise UsageError(
                "InvalidStateAddress",
                "on_data_loss= is only for a state in a folder.",
                hint="On NATS, restore a backup as a new partition with restore_state(...).",
            )
        state = await open_on_nats(
            addresses,
            clock,
            partition=partition,
            replicas=replicas,
            folder=folder,
            address=address,
            monitor=monitor,
            connect_options=connect_options,
            checkpoint_bytes=checkpoint_bytes,
            sizes=sizes,
        )
    try:
        yield state
    finally:
        await state.close()


async def connect_stream(  # noqa: PLR0913 - by keyword
    addresses: str | list[str],
    *,
    partition: str | None,
    replicas: int,
    clock: Clock,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    first_sequence: int = 1,
) -> Stream:
    """Connect to a partition's stream; a new one starts at `first_sequence`."""
    if partition is None:
        raise UsageError(
            "InvalidStateAddress",
            "A state on NATS needs the name of its partition.",
            hint='Pass it: open_state("nats://...", partition="carts-0").',
        )
    from partita.reliable.nats.jetstream import JetStream  # noqa: PLC0415 - an extra

    return await JetStream.connect(
        addresses,
        partition=partition,
        replicas=replicas,
        monitor=monitor,
        connect_options=connect_options,
        first_sequence=first_sequence,
        clock=clock,
    )


async def open_on_nats(  # noqa: PLR0913 - by keyword
    addresses: str | list[str],
    clock: Clock,
    *,
    partition: str | None,
    replicas: int,
    folder: str | os.PathLike[str] | None,
    address: str,
    monitor: Sequence[str] | None,
    connect_options: Mapping[str, Any] | None,
    checkpoint_bytes: int,
    patience: float = 0.0,
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
) -> StateManager:
    """Open a replica of one partition, with a connection of its own."""
    mode = checked_mutation_check(os.environ.get("PARTITA_CHECK_MUTATION", "on"))
    stack = contextlib.ExitStack()
    if folder is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="partita-"))
    disk = OsDisk(Path(folder))
    stack.callback(disk.close)
    try:
        stream = await connect_stream(
            addresses,
            partition=partition,
            replicas=replicas,
            monitor=monitor,
            connect_options=connect_options,
            clock=clock,
        )
        manager = await open_replicated(
            stream,
            disk,
            clock,
            address=address,
            checkpoint_bytes=checkpoint_bytes,
            patience=patience,
            sizes=sizes,
        )
    except BaseException:
        stack.close()
        raise
    manager.on_close = stack.close
    manager.set_mutation_check(mode)
    manager.measure(str(partition))
    try:
        await _answer_observers(manager, stream)
    except BaseException:
        await manager.close()
        raise
    return manager


async def _answer_observers(manager: StateManager, stream: Stream) -> None:
    """Answer what observers ask of this replica, until it is closed."""
    from partita.reliable.nats.jetstream import JetStream  # noqa: PLC0415 - an extra
    from partita.reliable.nats.request_transport import NatsRequestTransport  # noqa: PLC0415

    assert isinstance(stream, JetStream)
    subject = subject_of(stream.partition, manager.replica_id)
    transport = NatsRequestTransport(stream.link, is_member=True)
    listening = await transport.listen(subject, Answering(manager).answer)
    manager.before_close = lambda: listening.close(ANSWERS_SECONDS)


async def open_replicated(  # noqa: PLR0913 - by keyword
    stream: Stream,
    disk: Disk,
    clock: Clock,
    *,
    address: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    timing: Timing | None = None,
    ready_seconds: float = READY_SECONDS,
    patience: float = 0.0,
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
) -> StateManager:
    """Open a replica on a stream, which it owns from now on, and wait until it can be read.

    `patience` is the seconds for which it leaves a free lease to other replicas.
    """
    replica_id = clock.random_bytes(5).hex()
    checkpoints = Checkpoints(disk)
    try:
        state = await _loaded(checkpoints)
        log = await QuorumLog.open(stream, clock)
    except BaseException:
        await stream.close()
        raise
    manager = StateManager(
        state,
        log,
        clock,
        checkpoints,
        name=replica_id,
        checkpoint_bytes=checkpoint_bytes,
        sizes=sizes.checked(),
    )
    replica = Replica(
        manager, log, stream, address=address or replica_id, timing=timing or Timing()
    )
    manager.replica = replica
    replica.patience = patience
    try:
        await replica.check_place()
        replica.start()
        await replica.ready(ready_seconds)
    except BaseException:
        await manager.close()
        raise
    manager.start_housekeeping()
    return manager


async def _loaded(checkpoints: Checkpoints) -> State:
    """Load this replica's own checkpoint; a damaged one is ignored, other replicas have it."""
    state = State()
    try:
        await checkpoints.load(state)
    except DamageError as error:
        logger.warning("the replica starts with a full copy: %s", error)
        return State()
    return state


async def open_local(
    disk: Disk,
    clock: Clock,
    *,
    durability: Durability = "full",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    on_data_loss: OnDataLoss | None = None,
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
) -> StateManager:
    """Open the state on a disk, and close the disk if that fails."""
    try:
        mode = checked_mutation_check(os.environ.get("PARTITA_CHECK_MUTATION", "on"))
        sizes.checked()
        try:
            manager = await _recovered(disk, clock, durability, checkpoint_bytes, sizes)
        except DamageError as error:
            if on_data_loss is None:
                raise
            await on_data_loss(RestoreContext(disk, clock, error))
            manager = await _recovered(disk, clock, durability, checkpoint_bytes, sizes)
    except BaseException:
        disk.close()
        raise
    manager.on_close = disk.close
    manager.set_mutation_check(mode)
    manager.promote()
    manager.start_housekeeping()
    return manager


async def _recovered(
    disk: Disk, clock: Clock, durability: Durability, checkpoint_bytes: int, sizes: Sizes
) -> StateManager:
    _refuse_if_foreign(disk.names())
    await finish_restore(disk)
    state, checkpoints = State(), IncrementalCheckpoints(disk)
    found = await checkpoints.load(state)
    # Without a checkpoint the log must start at the first record.
    chain = (0, NO_HASH) if found is None else (state.sequence, state.hash)
    log = await LocalLog.open(disk, chain=chain, durability=durability)
    log.record_bytes_max = sizes.record_bytes_max
    state.epoch = max(state.epoch, 1)
    manager = StateManager(
        state,
        log,
        clock,
        checkpoints,
        name=clock.random_bytes(4).hex(),
        checkpoint_bytes=checkpoint_bytes,
        sizes=sizes,
    )
    try:
        await manager.recover()
    except BaseException:
        await log.close()
        raise
    return manager


def _refuse_if_foreign(names: list[str]) -> None:
    """Raise if the folder contains a table account or backups instead of a state."""
    if any(name.startswith(("log-", "checkpoint-")) or name == RESTORE_FILE for name in names):
        return
    found = {
        "a table account": "account.sqlite" in names,
        "backups": any(name.startswith("backup-") for name in names),
    }
    for what in (what for what, is_there in found.items() if is_there):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder cannot be used: it contains {what} and no state.",
            facts={"names": names[:3]},
            hint="Choose a folder of its own for the state.",
        )


def nats_addresses(where: object) -> str | list[str] | None:
    """Return the addresses of NATS servers, None for a folder."""
    if isinstance(where, str) and "://" not in where and not where.startswith(("nats:", "tls:")):
        return None
    if isinstance(where, os.PathLike):
        return None
    addresses = [where] if isinstance(where, str) else where
    schemes = ("nats://", "tls://")
    if (
        not isinstance(addresses, Sequence)
        or not addresses
        or not all(isinstance(one, str) and one.startswith(schemes) for one in addresses)
    ):
        shown = _shown(addresses)
        raise UsageError(
            "InvalidStateAddress",
            f"The address of a state must be a folder or nats://host:port, not {shown}.",
            hint='Use open_state("./state") or open_state("nats://host:4222", partition="p0").',
        )
    return where if isinstance(where, str) else list(addresses)


def _shown(addresses: object) -> str:
    """Return what was given as address, without passwords."""
    if not isinstance(addresses, Sequence):
        return repr(addresses)
    given = [without_password(one) if isinstance(one, str) else one for one in addresses]
    return repr(given[0] if len(given) == 1 else given)


def _refuse_nats_arguments(partition: object, folder: object) -> None:
    if partition is not None or folder is not None:
        raise UsageError(
            "InvalidStateAddress",
            "partition= and folder= are only for a state on NATS; this one is in a folder.",
            hint='Omit them, or use open_state("nats://...", partition=...).',
        )
