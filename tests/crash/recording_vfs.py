"""The trace of everything that a run did to its files, in the order in which it happened.

A position is a place between two events: position p lies behind the first p events. What the
run tells its clients is noted by position too, so that a crash can be put before or after it.
"""

from typing import NamedTuple

from crash.shim_vfs import Watcher


class Write(NamedTuple):
    file: str
    offset: int
    content: bytes


class Truncate(NamedTuple):
    file: str
    size: int


class Sync(NamedTuple):
    """A sync that has ended: it made durable what was written before it began."""

    file: str
    began: int


class Open(NamedTuple):
    file: str


class Delete(NamedTuple):
    file: str


Event = Write | Truncate | Sync | Open | Delete


class Trace(Watcher):
    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def position(self) -> int:
        return len(self.events)

    def after_write(self, file: str, offset: int, content: bytes) -> None:
        self.events.append(Write(file, offset, content))

    def after_truncate(self, file: str, size: int) -> None:
        self.events.append(Truncate(file, size))

    def before_sync(self, file: str) -> int:
        return len(self.events)

    def after_sync(self, file: str, mark: int) -> None:
        self.events.append(Sync(file, mark))

    def after_open(self, file: str) -> None:
        self.events.append(Open(file))

    def after_delete(self, file: str) -> None:
        self.events.append(Delete(file))
