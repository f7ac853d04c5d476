"""A disk in memory that loses, tears and corrupts unsynced writes: a Disk for tests.

A file has a durable image and the writes since its last sync; the folder has durable names and
the creations, renames and removals since its last sync. A power cut decides for each of them:
lost, kept, or torn at sectors, in any order. The same seed gives the same decisions. Every event
is recorded, so that a test can cut the power after each event of a run.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

from partita.errors import StoreFullError, StoreStoppedError

T = TypeVar("T")

SECTOR_BYTES = 512

Cut = Literal["lost", "kept", "torn", "reversed", "mixed"]
"""What a power cut does to unsynced changes: all lost; all kept; the first half of the sectors of
every write; only the newest write and the names; each change at random."""
CUTS: Sequence[Cut] = ("lost", "kept", "torn", "reversed", "mixed")


class Chance(Protocol):
    """The source of the disk's decisions: any seeded Clock."""

    def random_bytes(self, count: int) -> bytes: ...


class Create(NamedTuple):
    """An empty file of this name is created."""

    name: str


class Write(NamedTuple):
    """Bytes are written at a place of a file."""

    name: str
    place: int
    chunk: bytes


class Cutting(NamedTuple):
    """A file is truncated to this size."""

    name: str
    size: int


class Sync(NamedTuple):
    """A file becomes durable up to its change of this number."""

    name: str
    number: int


class Drop(NamedTuple):
    """A sync failed: the kernel drops the changes of the file up to this number."""

    name: str
    number: int


class Rename(NamedTuple):
    """A file is renamed."""

    name: str
    new_name: str


class Remove(NamedTuple):
    """A file is removed."""

    name: str


class SyncFolder(NamedTuple):
    """The names become durable up to their change of this number."""

    number: int


Event = Create | Write | Cutting | Sync | Drop | Rename | Remove | SyncFolder


class _File:
    """The content of a file, its durable part, and the changes between them."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[Write | Cutting] = []
        self.changes = 0
        """The number of all changes; the pending ones are the last of them."""

    def change(self, event: Write | Cutting) -> None:
        _change(self.content, event)
        self.pending.append(event)
        self.changes += 1

    def sync(self, number: int) -> None:
        for event in self.drop(number):
            _change(self.durable, event)

    def drop(self, number: int) -> list[Write | Cutting]:
        """Remove and return the pending changes up to a number."""
        count = max(number - (self.changes - len(self.pending)), 0)
        dropped = self.pending[:count]
        del self.pending[:count]
        return dropped


class _NameChange(NamedTuple):
    removed: str | None
    name: str | None
    file: _File


class Medium:
    """The files and names of one simulated folder; events change it, a power cut copies it."""

    def __init__(self) -> None:
        self.names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._pending_names: list[_NameChange] = []
        self.name_changes = 0

    def apply(self, event: Event) -> None:
        match event:
            case Create(name):
                self._rename(None, name, _File())
            case Write(name) | Cutting(name):
                self.names[name].change(event)
            case Sync(name, number):
                self.names[name].sync(number)
            case Drop(name, number):
                self.names[name].drop(number)
            case Rename(name, new_name):
                self._rename(name, new_name, self.names[name])
            case Remove(name):
                self._rename(name, None, self.names[name])
            case SyncFolder(number):
                count = max(number - (self.name_changes - len(self._pending_names)), 0)
                for change in self._pending_names[:count]:
                    _change_names(self._durable_names, change)
                del self._pending_names[:count]

    def after_power_cut(self, cut: Cut, chance: Chance) -> "Medium":
        """Return the content after a power cut; this medium is not changed."""
        found = Medium()
        names = dict(self._durable_names)
        for change in self._pending_names:
            if cut in ("kept", "torn", "reversed") or (cut == "mixed" and _coin(chance)):
                _change_names(names, change)
        # In the order of the names, so that the same seed gives the same decisions per file.
        for name in sorted(names):
            found.names[name] = _File(_content_after(names[name], cut, chance))
        found._durable_names = dict(found.names)
        return found

    def _rename(self, removed: str | None, name: str | None, file: _File) -> None:
        change = _NameChange(removed, name, file)
        _change_names(self.names, change)
        self._pending_names.append(change)
        self.name_changes += 1


class SimDisk:
    """A simulated folder as one process uses it; implements Disk.

    `events` are all changes since this object was created; `room` is the number of bytes that can
    still be written; `sync_seconds` is how long a sync takes on the loop's clock.
    """

    def __init__(self, chance: Chance, medium: Medium | None = None) -> None:
        self.events: list[Event] = []
        self.room: int | None = None
        self.sync_seconds = 0.0
        self._chance = chance
        self._medium = medium or Medium()
        self._syncs_until_failure: int | None = None
        self._is_released = False

    # Faults

    def power_cut(self, cut: Cut = "mixed") -> "SimDisk":
        """Return the disk after a power cut; this object can no longer be used."""
        self._is_released = True
        return SimDisk(self._chance, self._medium.after_power_cut(cut, self._chance))

    def restart(self) -> "SimDisk":
        """Return the disk for the next process, with unsynced writes."""
        self._is_released = True
        return SimDisk(self._chance, self._medium)

    def fail_sync(self, after: int = 0) -> None:
        """Fail one sync after this many successful ones, and drop its changes."""
        self._syncs_until_failure = after

    def flip(self, name: str, place: int, bit: int = 0) -> None:
        """Change one bit on the medium."""
        file = self._medium.names[name]
        for image in (file.content, file.durable):
            if place < len(image):
                image[place] ^= 1 << bit

    # The contract

    def names(self) -> list[str]:
        self._check_in_use()
        return sorted(self._medium.names)

    def size(self, name: str) -> int:
        return len(self._file(name).content)

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        content = self._file(name).content
        return bytes(content[start:] if count < 0 else content[start : start + count])

    def create(self, name: str, *, is_apart: bool = False) -> "SimFile":
        del is_apart
        self._check_in_use()
        self._record(Create(name))
        return SimFile(self, self._file(name), name, 0)

    def grow(self, name: str, size: int) -> "SimFile":
        file = self._file(name)
        if len(file.content) != size:
            self._record(Cutting(name, size))
        return SimFile(self, file, name, size)

    def rename(self, name: str, new_name: str) -> None:
        self._file(name)
        self._record(Rename(name, new_name))

    def remove(self, name: str) -> None:
        self._file(name)
        self._record(Remove(name))

    async def aside(self, call: Callable[[], T]) -> T:
        return call()

    async def sync_folder(self) -> None:
        self._check_in_use()
        number = self._medium.name_changes
        await asyncio.sleep(self.sync_seconds)
        self._check_in_use()
        if self._sync_fails():
            raise _stopped("sync of the folder failed")
        self._record(SyncFolder(number))

    def free_bytes(self) -> int:
        return 2**40 if self.room is None else self.room

    def close(self) -> None:
        self._is_released = True

    # Used by its files

    def write(self, file: _File, name: str, place: int, chunk: bytes) -> None:
        self._refuse_unless_same(file, name)
        if self.room is not None:
            if len(chunk) > self.room:
                raise StoreFullError(
                    "StoreFull", "The simulated disk is full.", facts={"file": name}
                )
            self.room -= len(chunk)
        self._record(Write(name, place, chunk))

    def renew(self, file: _File, name: str, start: int) -> None:
        """Write in place, which needs no space."""
        self._refuse_unless_same(file, name)
        self._record(Write(name, start, bytes(file.content[start:])))

    def sync(self, file: _File, name: str, number: int) -> None:
        """Make the changes up to a number durable, or fail and drop them like a kernel."""
        self._refuse_unless_same(file, name)
        if self._sync_fails():
            self._record(Drop(name, number))
            raise _stopped("sync failed", name)
        self._record(Sync(name, number))

    def _sync_fails(self) -> bool:
        if self._syncs_until_failure is None:
            return False
        self._syncs_until_failure -= 1
        if self._syncs_until_failure >= 0:
            return False
        self._syncs_until_failure = None
        return True

    def _record(self, event: Event) -> None:
        self._medium.apply(event)
        self.events.append(event)

    def _file(self, name: str) -> _File:
        assert "/" not in name, name
        self._check_in_use()
        if name not in self._medium.names:
            raise _stopped("no such file", name)
        return self._medium.names[name]

    def _refuse_unless_same(self, file: _File, name: str) -> None:
        """Check that the file was not renamed or removed while it is open."""
        assert self._file(name) is file, name

    def _check_in_use(self) -> None:
        if self._is_released:
            raise _stopped("it is used by another process")


class SimFile:
    """An open file; implements GrowingFile. It must not be used after a failed sync."""

    def __init__(self, disk: SimDisk, file: _File, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._disk = disk
        self._file = file

    def write(self, chunk: bytes) -> None:
        self._disk.write(self._file, self.name, self.size, bytes(chunk))
        self.size += len(chunk)

    async def sync(self) -> None:
        number = self._file.changes
        await asyncio.sleep(self._disk.sync_seconds)
        self._disk.sync(self._file, self.name, number)

    def sync_now(self) -> None:
        self._disk.sync(self._file, self.name, self._file.changes)

    def renew(self, start: int) -> None:
        self._disk.renew(self._file, self.name, start)

    def close(self) -> None:
        pass


def boundaries(events: Sequence[Event]) -> Iterator[tuple[int, Medium]]:
    """Yield the medium before the first event and after each one, with their number.

    The same medium is changed at each step: call `after_power_cut` before the next step.
    """
    medium = Medium()
    yield 0, medium
    for number, event in enumerate(events, 1):
        medium.apply(event)
        yield number, medium


def _change(image: bytearray, event: Write | Cutting) -> None:
    match event:
        case Cutting(_, size):
            del image[size:]
        case Write(_, place, chunk):
            image.extend(bytes(max(place - len(image), 0)))
            image[place : place + len(chunk)] = chunk


def _change_names(names: dict[str, _File], change: _NameChange) -> None:
    if change.removed is not None:
        names.pop(change.removed, None)
    if change.name is not None:
        names[change.name] = change.file


def _content_after(file: _File, cut: Cut, chance: Chance) -> bytes:
    image = bytearray(file.durable)
    pending: Sequence[Write | Cutting] = []
    match cut:
        case "lost":
            pass
        case "kept":
            pending = file.pending
        case "reversed":
            pending = file.pending[-1:]
        case "torn":
            pending = [_first_half(event) for event in file.pending]
        case "mixed":
            pending = [part for event in file.pending for part in _some_of(event, chance)]
    for event in pending:
        _change(image, event)
    return bytes(image)


def _first_half(event: Write | Cutting) -> Write | Cutting:
    """Keep the first half of the sectors that a write touches."""
    if isinstance(event, Cutting):
        return event
    first = event.place // SECTOR_BYTES
    last = (event.place + len(event.chunk) - 1) // SECTOR_BYTES
    border = (first + (last - first + 1) // 2) * SECTOR_BYTES
    return event._replace(chunk=event.chunk[: max(border - event.place, 0)])


def _some_of(event: Write | Cutting, chance: Chance) -> Iterator[Write | Cutting]:
    """Yield nothing of a change, all of it, or some of its sectors."""
    decision = chance.random_bytes(1)[0] % 3
    if decision == 0:
        return
    if decision == 1 or isinstance(event, Cutting):
        yield event
        return
    at = 0
    while at < len(event.chunk):
        place = event.place + at
        count = SECTOR_BYTES - place % SECTOR_BYTES
        if _coin(chance):
            yield Write(event.name, place, event.chunk[at : at + count])
        at += count


def _coin(chance: Chance) -> bool:
    return chance.random_bytes(1)[0] % 2 == 0


def _stopped(reason: str, name: str = "") -> StoreStoppedError:
    return StoreStoppedError(
        "StoreStopped", f"The simulated disk stopped: {reason}.", facts={"file": name}
    )
