"""Assignment of properties to the rows of an entity (the guide's wide entities pattern).

An entity of up to `ROW_PROPERTIES` properties is one row. A wide entity has additional rows, whose
keys are that of the first row with the suffix `~1`, `~2`, ...: one range query reads all of them
in order. Row 0 has a manifest: the stamp of each additional row when several were written
together. A reader that finds another stamp has read during a write.
"""

from collections.abc import Iterator, Mapping

import msgspec

from partita.patterns.protocol.values import RowKey, Value
from partita.tables import limits

RESERVED_PROPERTIES = 6
"""The library's own properties: type, version, generation, manifest or stamp, write, seal."""
ROW_PROPERTIES = limits.PROPERTIES_MAX - RESERVED_PROPERTIES
ROWS_MAX = limits.GROUP_OPERATIONS_MAX
"""The rows of one entity are written in one group."""

PARTS = "_Parts"
STAMP = "_Stamp"
GENERATION = "_Generation"
WRITE = "_Write"
VERSION = "EntityVersion"
PART_MARK = "~"
"""Separates a row key from the number of an additional row, and ends the type of such a row."""
COPY_MARK = "@"
"""Separates the type and the index in the type property of an index row."""
HIDDEN_MARK = "~"
"""Begins the row keys of hidden rows: outbox, guards, states of indexes."""
LAST_TEXT = "\uffff"
STATES_PARTITION = HIDDEN_MARK + "partita"
STATE_PREFIX = HIDDEN_MARK + "ix_"
STATE = "State"
SWEPT_KEY = RowKey(STATES_PARTITION, HIDDEN_MARK + "sw")
"""The key of the row that records how far the outbox of a table was swept."""


class Layout(msgspec.Struct, frozen=True):
    """The row number of every property that a type can store."""

    places: Mapping[str, int]
    rows: int = 1

    def split(self, properties: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Return the properties of each row; undeclared ones are in the first row."""
        rows: list[dict[str, Value]] = [{} for _ in range(self.rows)]
        for name, value in properties.items():
            rows[self.places.get(name, 0)][name] = value
        return rows


def lay_out(names: Iterator[str]) -> Layout:
    """Assign names to rows in order, filling each row before the next.

    >>> lay_out(iter(f"P{n}" for n in range(300))).rows
    2
    """
    places = {name: place // ROW_PROPERTIES for place, name in enumerate(names)}
    rows = max(places.values(), default=0) + 1
    return Layout(places if rows > 1 else {}, rows)


def part_key(key: RowKey, place: int) -> RowKey:
    """Return the key of one of the rows of an entity."""
    return key if place == 0 else RowKey(key.partition, f"{key.row}{PART_MARK}{place}")


def state_key(type_name: str, index_name: str) -> RowKey:
    """Return the key of the row with the state of an index, in the table of its type."""
    return RowKey(STATES_PARTITION, f"{STATE_PREFIX}{type_name}@{index_name}")


def place_of(row_key: str) -> tuple[str, int]:
    """Return the row key of the entity and the number of this row."""
    first, mark, number = row_key.rpartition(PART_MARK)
    return (first, int(number)) if mark and number.isdigit() else (row_key, 0)


def print_manifest(stamps: Mapping[int, int], rows: int) -> str:
    return ",".join(str(stamps.get(place, 0)) for place in range(1, rows))


def parse_manifest(text: object) -> dict[int, int]:
    if not isinstance(text, str) or not text:
        return {}
    return {place: int(stamp) for place, stamp in enumerate(text.split(","), start=1)}
