"""Read the files of a state without changing them: the opening code, on a read-only disk.

`ReadingDisk` passes reads through and discards writes, so that the changes that opening makes (cut
a torn tail, start new marks, remove files that a crash left) have no effect. The folder is locked
meanwhile: only its lock file is written.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from partita.errors import ConfigurationError
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import RESTORE_FILE, Checkpoint, Checkpoints, read_file
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.local_log import MARKS_FILE, LocalLog
from partita.reliable.storage.os_disk import OsDisk

T = TypeVar("T")

Count = Callable[[int], None]
"""Called with the number of bytes that were just read."""

_logger = logging.getLogger("partita.reliable")


class TornTail(msgspec.Struct, frozen=True):
    """The rest of records that a crash interrupted before they were acknowledged."""

    file: str
    offset: int
    bytes: int


class DiscardingFile:
    """A file that discards writes."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)

    async def sync(self) -> None:
        """Do nothing: nothing was written."""

    def sync_now(self) -> None:
        """Do nothing: nothing was written."""

    def renew(self, start: int) -> None:
        """Do nothing: nothing is synced."""

    def close(self) -> None:
        """Do nothing: nothing was opened."""


class ReadingDisk:
    """A disk that can be read and discards changes; it reports how much was read."""

    def __init__(self, disk: Disk, count: Count = lambda _: None) -> None:
        self.torn_tail: TornTail | None = None
        """What opening would cut off the log; set when LocalLog has opened it."""
        self._disk = disk
        self._count = count

    def names(self) -> list[str]:
        return self._disk.names()

    def size(self, name: str) -> int:
        return self._disk.size(name)

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        chunk = self._disk.read(name, start, count)
        self._count(len(chunk))
        return chunk

    def create(self, name: str, *, is_apart: bool = False) -> DiscardingFile:
        del is_apart
        return DiscardingFile(name, 0)

    def grow(self, name: str, size: int) -> DiscardingFile:
        if is_segment(name) and name in self.names() and size < self.size(name):
            self.torn_tail = TornTail(name, size, self.size(name) - size)
        return DiscardingFile(name, size)

    def rename(self, name: str, new_name: str) -> None:
        """Keep the names as they are."""

    def remove(self, name: str) -> None:
        """Keep the file."""

    async def sync_folder(self) -> None:
        """Do nothing: nothing was changed."""

    async def aside(self, call: Callable[[], T]) -> T:
        return call()  # here, because it may report how much was read

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def close(self) -> None:
        self._disk.close()


class FoundState(msgspec.Struct):
    """A state, read from its files."""

    state: State
    checkpoint: Checkpoint | None
    log: LocalLog | None
    """None without a log in the folder: a replica on NATS, or an unfinished restore."""


@contextlib.contextmanager
def reading(path: Path, count: Count = lambda _: None) -> Iterator[ReadingDisk]:
    """Lock the folder of a state while it is read."""
    refuse_unless_state(path)
    level = _logger.level
    _logger.setLevel(logging.ERROR)  # its warnings are about changes that are not made here
    disk = OsDisk(path)
    try:
        yield ReadingDisk(disk, count)
    finally:
        disk.close()
        _logger.setLevel(level)


def refuse_unless_state(path: Path) -> None:
    """Refuse a folder that holds no state, before a lock file is made in it."""
    names = names_in(path)
    if any(is_part_of_state(name) for name in names):
        return
    is_backup = any(name.startswith("backup-") for name in names)
    raise ConfigurationError(
        "FolderUnusable",
        f"The folder {path} holds backups, not a state."
        if is_backup
        else f"The folder {path} holds no state.",
        hint=f"Restore them: `partita state restore {path} --to FOLDER`."
        if is_backup
        else "Give the folder that the program passes to open_state.",
    )


def names_in(path: Path) -> list[str]:
    """Return the names in a folder; ConfigurationError if it cannot be read."""
    try:
        return sorted(inner.name for inner in path.iterdir())
    except OSError as error:
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} cannot be read: {error.strerror}.",
            hint="Check the path and its permissions.",
        ) from error


def is_part_of_state(name: str) -> bool:
    return name == RESTORE_FILE or name.startswith(("log-", "checkpoint-"))


def is_segment(name: str) -> bool:
    return name.startswith("log-") and name.endswith(".part")


async def read_state(disk: ReadingDisk) -> FoundState:
    """Recover the state in memory, every byte of it verified."""
    state = State()
    checkpoint = await load_checkpoint(disk, state)
    log = await open_log(disk, checkpoint)
    if log is not None:
        async for _, raw in log.read_from(state.sequence + 1):
            state.apply(decode_record(raw), record_hash(raw))
    return FoundState(state, checkpoint, log)


async def load_checkpoint(disk: ReadingDisk, state: State) -> Checkpoint | None:
    """Fill a state from its checkpoint; an unfinished restore comes first."""
    if has_pending_restore(disk):
        return await read_file(disk, RESTORE_FILE, state)
    return await Checkpoints(disk).load(state)


async def open_log(disk: ReadingDisk, checkpoint: Checkpoint | None) -> LocalLog | None:
    """Verify the whole log, also against the checkpoint; None without a log."""
    if has_pending_restore(disk) or is_replica(disk.names()):
        return None
    chain = None if checkpoint is None else (checkpoint.sequence, checkpoint.hash)
    return await LocalLog.open(disk, chain=chain)


def has_pending_restore(disk: ReadingDisk) -> bool:
    """Return whether the next opening will finish a restore."""
    return RESTORE_FILE in disk.names()


def is_replica(names: Iterable[str]) -> bool:
    """Return whether a folder belongs to a replica: checkpoints here, the log on NATS."""
    return not any(is_segment(name) or name in (MARKS_FILE, RESTORE_FILE) for name in names)
