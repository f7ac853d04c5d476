"""Reading the files of a state that nothing may change: the code that opens it, on a deaf disk.

`ReadingDisk` lets everything be read and keeps nothing that is written, so that what opening
would do (cut a torn tail, begin new marks, remove what crashes left) is done to nobody. The
folder is held meanwhile: only its lock file is touched.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from partita.cli.state.facts import TornTail
from partita.errors import ConfigurationError
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import RESTORE_FILE, Checkpoint, Checkpoints, read_file
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.local_log import MARKS_FILE, LocalLog
from partita.reliable.storage.os_disk import OsDisk

Count = Callable[[int], None]
"""Called with the number of bytes that were just read."""

_logger = logging.getLogger("partita.reliable")


class DeafFile:
    """A file that forgets what is written to it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)

    async def sync(self) -> None:
        """Nothing was kept."""

    def sync_now(self) -> None:
        """Nothing was kept."""

    def renew(self, start: int) -> None:
        """Nothing is to be synced."""

    def close(self) -> None:
        """Nothing was opened."""


class ReadingDisk:
    """A disk that can be read; changes go nowhere. It tells how far it has read."""

    def __init__(self, disk: Disk, count: Count = lambda _: None) -> None:
        self.torn_tail: TornTail | None = None
        """What opening would cut off the log, once LocalLog has opened it here."""
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

    def create(self, name: str) -> DeafFile:
        return DeafFile(name, 0)

    def grow(self, name: str, size: int) -> DeafFile:
        if is_segment(name) and name in self.names() and size < self.size(name):
            self.torn_tail = TornTail(name, size, self.size(name) - size)
        return DeafFile(name, size)

    def rename(self, name: str, new_name: str) -> None:
        """Keep the names as they are."""

    def remove(self, name: str) -> None:
        """Keep the file."""

    async def sync_folder(self) -> None:
        """Nothing was changed."""

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def close(self) -> None:
        self._disk.close()


class Found(msgspec.Struct):
    """A state as its files tell it."""

    state: State
    checkpoint: Checkpoint | None
    log: LocalLog | None
    """None where no log belongs to the files: a replica on NATS, or an unfinished restore."""


@contextlib.contextmanager
def reading(path: Path, count: Count = lambda _: None) -> Iterator[ReadingDisk]:
    """Hold the folder of a state for as long as it is read."""
    refuse_unless_state(path)
    level = _logger.level
    _logger.setLevel(logging.ERROR)  # its warnings tell of changes that are not made here
    disk = OsDisk(path)
    try:
        yield ReadingDisk(disk, count)
    finally:
        disk.close()
        _logger.setLevel(level)


def refuse_unless_state(path: Path) -> None:
    """Refuse what is no state before a lock file is left in it."""
    names = names_in(path)
    if any(is_part_of_state(name) for name in names):
        return
    is_backup = any(name.startswith("backup-") for name in names)
    raise ConfigurationError(
        "FolderUnusable",
        f"The folder {path} holds backups, not a state."
        if is_backup
        else f"The folder {path} holds no state.",
        hint=f"Bring one back: `partita state restore {path} --to FOLDER`."
        if is_backup
        else "Give the folder that the program passes to open_state.",
    )


def names_in(path: Path) -> list[str]:
    """List a folder that must be there."""
    try:
        return sorted(inner.name for inner in path.iterdir())
    except OSError as error:
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} cannot be read: {error.strerror}.",
            hint="Look at the path and at the rights.",
        ) from error


def is_part_of_state(name: str) -> bool:
    return name == RESTORE_FILE or name.startswith(("log-", "checkpoint-"))


def is_segment(name: str) -> bool:
    return name.startswith("log-") and name.endswith(".part")


async def read_state(disk: ReadingDisk) -> Found:
    """Recover the state in memory, every byte of it verified."""
    state = State()
    checkpoint = await load_checkpoint(disk, state)
    log = await open_log(disk, checkpoint)
    if log is not None:
        async for _, raw in log.read_from(state.sequence + 1):
            state.apply(decode_record(raw), record_hash(raw))
    return Found(state, checkpoint, log)


async def load_checkpoint(disk: ReadingDisk, state: State) -> Checkpoint | None:
    """Fill a state from what it would be opened from; a restore that was decided comes first."""
    if has_pending_restore(disk):
        return await read_file(disk, RESTORE_FILE, state)
    return await Checkpoints(disk).load(state)


async def open_log(disk: ReadingDisk, checkpoint: Checkpoint | None) -> LocalLog | None:
    """Verify the log from end to end, against the checkpoint too; None where there is none."""
    if has_pending_restore(disk) or is_replica(disk.names()):
        return None
    chain = None if checkpoint is None else (checkpoint.sequence, checkpoint.hash)
    return await LocalLog.open(disk, chain=chain)


def has_pending_restore(disk: ReadingDisk) -> bool:
    """Whether a restore was decided that the next opening will put in place."""
    return RESTORE_FILE in disk.names()


def is_replica(names: Iterable[str]) -> bool:
    """Whether a folder is a replica's: its checkpoints lie there, its log on NATS."""
    return not any(is_segment(name) or name in (MARKS_FILE, RESTORE_FILE) for name in names)
