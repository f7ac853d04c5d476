"""What a verb reports while it works; the command line draws it, other callers may ignore it."""

from collections.abc import Callable

import msgspec


class Observer(msgspec.Struct, frozen=True):
    """Functions that a verb calls."""

    advance: Callable[[int], None] = lambda _count: None
    """Entities are done."""
    share: Callable[[float], None] = lambda _share: None
    """How much of the source is read, from 0 to 1."""
    tell: Callable[[str], None] = lambda _text: None
    """Something that a person should read."""


SILENT = Observer()
