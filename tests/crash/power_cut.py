"""What a disk may hold after a power cut, rebuilt from a trace.

A file keeps what was synced. Of what was written since, a cut leaves nothing, all, some writes
or some sectors of some writes, in any choice. Names in the folder become durable with the first
sync of a new log or journal, since SQLite then syncs the folder.
"""

import random
from collections.abc import Iterator, Sequence

from crash.recording_vfs import Delete, Event, Open, Sync, Truncate, Write

SECTOR_BYTES = 512

STATES_PER_POSITION = 2.4
"""At least so many different images a position gives on average."""

Image = dict[str, bytes]
"""Content by kind of file; a file that is not there is absent."""


class Disk:
    """The state of the disk at a position of the trace. Feed it the events in order."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._ghosts: dict[str, _File] = {}
        """Deleted files whose deletion is not durable yet."""
        self._position = 0

    def advance(self, event: Event) -> None:
        match event:
            case Open(name):
                self._files.setdefault(name, _File())
            case Write(name) | Truncate(name):
                self._files[name].pending.append((self._position, event))
            case Sync(name, began):
                self._sync(name, began)
            case Delete(name):
                self._ghosts[name] = self._files.pop(name)
        self._position += 1

    def _sync(self, name: str, began: int) -> None:
        if name not in self._files:
            return  # another connection has deleted it meanwhile
        file = self._files[name]
        while file.pending and file.pending[0][0] < began:
            _apply(file.synced, file.pending.pop(0)[1])
        if not file.is_durable and name != "main":
            for other in self._files.values():
                other.is_durable = True
            self._ghosts.clear()

    def after_cut(self, choose: "Choose") -> Image:
        """Return what one power cut leaves."""
        image: Image = {}
        for name, file in self._ghosts.items():
            if choose.keeps_ghost():
                image[name] = bytes(file.synced)
        for name, file in self._files.items():
            content = bytearray(file.synced)
            for _, event in file.pending:
                for part in choose.parts(event):
                    _apply(content, part)
            if file.is_durable or content:
                image[name] = bytes(content)
        return image


class _File:
    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[tuple[int, Write | Truncate]] = []
        self.is_durable = False
        """True when its name is surely in the folder."""


class Choose:
    """Which of the writes in the air reach the disk."""

    def __init__(self, chance: random.Random, *, share: float, is_torn: bool = False) -> None:
        self._chance = chance
        self._share = share
        self._is_torn = is_torn

    def keeps_ghost(self) -> bool:
        return self._chance.random() >= self._share

    def parts(self, event: Write | Truncate) -> Sequence[Write | Truncate]:
        if self._is_torn and isinstance(event, Write):
            return [part for part in _sectors(event) if self._chance.random() < self._share]
        return [event] if self._chance.random() < self._share else []


def choices(chance: random.Random) -> list[Choose]:
    """Nothing, all, some writes, some sectors."""
    return [
        Choose(chance, share=0.0),
        Choose(chance, share=1.0),
        Choose(chance, share=chance.choice((0.3, 0.5, 0.8))),
        Choose(chance, share=chance.choice((0.5, 0.9, 0.97)), is_torn=True),
    ]


def power_cuts(
    events: Sequence[Event], wanted: int, chance: random.Random
) -> Iterator[tuple[int, Image]]:
    """Yield positions of the trace in order, each with what a cut there may leave."""
    disk = Disk()
    share = wanted / len(events) / STATES_PER_POSITION
    for position, event in enumerate(events, start=1):
        disk.advance(event)
        if chance.random() >= share:
            continue
        seen: list[Image] = []
        for choose in choices(chance):
            image = disk.after_cut(choose)
            if image not in seen:
                seen.append(image)
                yield position, image


def _apply(content: bytearray, event: Write | Truncate) -> None:
    if isinstance(event, Truncate):
        if len(content) > event.size:
            del content[event.size :]
        else:
            content.extend(bytes(event.size - len(content)))
        return
    if len(content) < event.offset:
        content.extend(bytes(event.offset - len(content)))
    content[event.offset : event.offset + len(event.content)] = event.content


def _sectors(event: Write) -> Iterator[Write]:
    start, end = event.offset, event.offset + len(event.content)
    while start < end:
        until = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield Write(event.file, start, event.content[start - event.offset : until - event.offset])
        start = until
