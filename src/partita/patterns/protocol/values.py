"""Property values and rows: one stored entity as the service represents it.

A row has two keys, properties by their stored names, and an etag. `writing/rows.py` converts
typed entities to one or several rows and back.
"""

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from partita.errors import InvalidPropertyError
from partita.tables.edm import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN


class Int32(int):
    """An int stored as Edm.Int32; every other int is stored as Edm.Int64.

    `Annotated[int, Int32]` declares a field of this type that type checkers treat as an int.
    """

    __slots__ = ()


class Instant(datetime):
    """A time read from the service, with its original text.

    The service stores seven digits of a second, Python six. Written back unchanged, the original
    text is sent, so that no digit is lost.
    """

    text: str

    @classmethod
    def of(cls, moment: datetime, text: str) -> "Instant":
        made = cls.combine(moment.date(), moment.timetz())
        made.text = text
        return made

    @classmethod
    def read(cls, text: str) -> "Instant":
        """Parse a time as the service formats it; without a time zone it is in UTC."""
        moment = cls.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment.text = text
        return moment


Value = str | bytes | bool | int | float | datetime | UUID
"""The value of a property. None is never stored: it means that the property is absent."""


class RowKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """The partition key and row key of a row; instances sort in key order."""

    partition: str
    row: str

    @property
    def facts(self) -> dict[str, object]:
        """The two keys as facts of an error."""
        return {"partition_key": self.partition, "row_key": self.row}


class Row(msgspec.Struct, frozen=True):
    """A stored entity; `properties` excludes keys, etag and timestamp."""

    key: RowKey
    properties: dict[str, Value]
    etag: str = ""
    timestamp: datetime | None = None


def text_of_moment(name: str, moment: datetime) -> str:
    """Format a time as the service stores it; an Instant keeps the text it was read from."""
    if isinstance(moment, Instant) and hasattr(moment, "text"):
        return moment.text
    if moment.tzinfo is None:
        raise InvalidPropertyError(
            "NaiveDatetime",
            f"The datetime in {name!r} has no time zone.",
            facts={"property": name},
            hint="Add one: datetime(..., tzinfo=UTC).",
        )
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The datetime in {name!r} is not within the years 1601 to 9999.",
            facts={"property": name},
        ) from error


def check_integer(name: str, value: int) -> None:
    """Raise if an integer does not fit into its stored type."""
    is_short = isinstance(value, Int32)
    lower, upper = (INT32_MIN, INT32_MAX) if is_short else (INT64_MIN, INT64_MAX)
    if not lower <= value <= upper:
        raise InvalidPropertyError(
            "PropertyOutOfRange",
            f"The number in {name!r} does not fit in {32 if is_short else 64} bits.",
            facts={"property": name},
            hint="Store it as a Decimal or as text.",
        )


def measure(row: Row) -> int:
    """Return the size of a row in bytes as the service counts it (limit: 1 MiB).

    >>> measure(Row(RowKey("a", "b"), {"Age": 7}))
    30
    """
    size = 4 + 2 * (_units(row.key.partition) + _units(row.key.row))
    for name, value in row.properties.items():
        # A single flat loop, because this runs for every row that is sent or received.
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
