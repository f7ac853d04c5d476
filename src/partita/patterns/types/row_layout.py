"""Which physical row holds which property of an entity (the guide's wide entities pattern).

An entity of up to `ROW_PROPERTIES` properties is one row. More go into rows beside it, whose
keys are that of the first row with `~1`, `~2`, ... behind: one range query reads them all, in
order. Row 0 holds a manifest: the stamp that each further row had when several were written
together. A reader that meets another stamp has read while that write went on.
"""

from collections.abc import Iterator, Mapping

import msgspec

from partita.patterns.protocol.values import RowKey, Value
from partita.tables import limits

RESERVED_PROPERTIES = 6
"""Of the 252 properties of a row: type, version, generation, manifest or stamp, write, seal."""
ROW_PROPERTIES = limits.PROPERTIES_MAX - RESERVED_PROPERTIES
ROWS_MAX = limits.GROUP_OPERATIONS_MAX
"""The rows of one entity are written in one group."""

PARTS = "_Parts"
STAMP = "_Stamp"
GENERATION = "_Generation"
WRITE = "_Write"
VERSION = "EntityVersion"
PART_MARK = "~"
"""Stands between a row key and the number of a further row, and behind the type of such a row."""
COPY_MARK = "@"
"""Separates the type and the index in the type property of an index row."""
HIDDEN_MARK = "~"
"""Row keys that begin with it are ours: outbox, guards, states of indexes."""
LAST_TEXT = "\uffff"
STATES_PARTITION = HIDDEN_MARK + "partita"
STATE_PREFIX = HIDDEN_MARK + "ix_"
STATE = "State"
SWEPT_KEY = RowKey(STATES_PARTITION, HIDDEN_MARK + "sw")
"""Of the row in a table that says how far its outbox was swept."""


class Layout(msgspec.Struct, frozen=True):
    """The place of every property that a type may store."""

    places: Mapping[str, int]
    rows: int = 1

    def split(self, properties: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Deal properties out to their rows; what is not known goes to the first."""
        dealt: list[dict[str, Value]] = [{} for _ in range(self.rows)]
        for name, value in properties.items():
            dealt[self.places.get(name, 0)][name] = value
        return dealt


def lay_out(names: Iterator[str]) -> Layout:
    """Deal names out in order, each row filled before the next.

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
    """Return where the state of an index is kept, in the table of its type."""
    return RowKey(STATES_PARTITION, f"{STATE_PREFIX}{type_name}@{index_name}")


def place_of(row_key: str) -> tuple[str, int]:
    """Return the row key of the entity, and which of its rows this is."""
    first, mark, number = row_key.rpartition(PART_MARK)
    return (first, int(number)) if mark and number.isdigit() else (row_key, 0)


def print_manifest(stamps: Mapping[int, int], rows: int) -> str:
    return ",".join(str(stamps.get(place, 0)) for place in range(1, rows))


def parse_manifest(text: object) -> dict[int, int]:
    if not isinstance(text, str) or not text:
        return {}
    return {place: int(stamp) for place, stamp in enumerate(text.split(","), start=1)}
