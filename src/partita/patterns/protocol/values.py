"""What a property can hold, and a row: one stored entity as the service knows it.

A row is below the typed layer: two keys, properties by their stored names, an etag. The typed
layer turns entities into one or several rows and back (`rows.py`).
"""

from datetime import UTC, datetime
from uuid import UUID

import msgspec


class Int32(int):
    """A number stored as Edm.Int32; every other int is stored as Edm.Int64.

    `Annotated[int, Int32]` declares a field of this type that type checkers see as an int.
    """

    __slots__ = ()


class Instant(datetime):
    """A moment read from the service, with the text it came in: seven digits of a second.

    Python keeps six of them. Written back unchanged, it goes back as that text, to the digit.
    """

    text: str

    @classmethod
    def of(cls, moment: datetime, text: str) -> "Instant":
        made = cls.combine(moment.date(), moment.timetz())
        made.text = text
        return made

    @classmethod
    def read(cls, text: str) -> "Instant":
        """Read a moment as the service writes it; without a zone it is meant in UTC."""
        moment = cls.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment.text = text
        return moment


Value = str | bytes | bool | int | float | datetime | UUID
"""What a property holds. None is never stored: an absent property is None."""


class RowKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """The two keys of a row, in their order."""

    partition: str
    row: str


class Row(msgspec.Struct, frozen=True):
    """A stored entity; `properties` without keys, etag and timestamp."""

    key: RowKey
    properties: dict[str, Value]
    etag: str = ""
    timestamp: datetime | None = None


def measure(row: Row) -> int:
    """Return how many bytes the service counts for a row (limit: 1 MiB).

    >>> measure(Row(RowKey("a", "b"), {"Age": 7}))
    30
    """
    size = 4 + 2 * (_units(row.key.partition) + _units(row.key.row))
    for name, value in row.properties.items():
        # One flat loop: every row that is sent or received passes here.
        size += 8 + 2 * (len(name) if name.isascii() else _units(name))
        if type(value) is str:
            size += 4 + 2 * (len(value) if value.isascii() else _units(value))
        elif type(value) is int:
            size += 8
        else:
            size += _size(value)
    return size


def _units(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


def _size(value: Value) -> int:
    if isinstance(value, str):
        return 4 + 2 * _units(value)
    if isinstance(value, bytes):
        return 4 + len(value)
    if isinstance(value, bool):
        return 1
    if isinstance(value, UUID):
        return 16
    return 4 if isinstance(value, Int32) else 8
