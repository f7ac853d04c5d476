"""What a property can hold, and a row: one stored entity as the service knows it.

A row is below the typed layer: two keys, properties by their stored names, an etag. The typed
layer turns entities into one or several rows and back (`rows.py`).
"""

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from partita.errors import InvalidPropertyError
from partita.tables.edm import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN


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


def text_of_moment(name: str, moment: datetime) -> str:
    """Print a moment as the service stores it; one that was read goes back as it came."""
    if isinstance(moment, Instant) and hasattr(moment, "text"):
        return moment.text
    if moment.tzinfo is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"The moment in {name!r} has no zone, so that it names none.",
            facts={"property": name},
            hint="Make it with a zone: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The moment in {name!r} is not within 1601 to 9999.",
            facts={"property": name},
        ) from error


def check_integer(name: str, value: int) -> None:
    """Raise for an integer that its stored type cannot hold."""
    is_short = isinstance(value, Int32)
    lower, upper = (INT32_MIN, INT32_MAX) if is_short else (INT64_MIN, INT64_MAX)
    if not lower <= value <= upper:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The number in {name!r} does not fit in {32 if is_short else 64} bits.",
            facts={"property": name},
            hint="Keep it as a Decimal or as text.",
        )


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
