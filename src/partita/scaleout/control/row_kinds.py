"""What a range has, for those who copy, compare, count and delete it: entities or messages.

Parameters of a condition are $1 the number of the table or queue, $2 and $3 the bounds of the
range; those of a key follow. `change` has a key as two texts.
"""

# ruff: noqa: S608 - only our own columns and conditions

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from partita.scaleout.catalog.kinds import Kind


class RowKind(msgspec.Struct, frozen=True):
    """The rows of one kind of range."""

    kind: Kind
    table: str
    columns: tuple[str, ...]
    in_range: str
    keys: tuple[str, ...]
    first: tuple[str | int, ...] | None
    """The first possible key; None: the lower bound of the range and an empty text."""
    changed: str
    """Whether a row has the key of a row `k` of `change`; {tid} is the number of the table."""
    version: str
    """A number that is another one after each change of the row."""
    size: str
    erase: str
    """Deletes rows from a key on: the interval, the key, how many; returns the last key."""

    @property
    def rows(self) -> str:
        columns = ", ".join(f"e.{name}" for name in self.columns)
        return f"SELECT {columns} FROM partita.{self.table} e"

    @property
    def key(self) -> str:
        return ", ".join(f"e.{name}" for name in self.keys)

    def first_key(self, lower: str) -> tuple[str | int, ...]:
        """Return the first key of a range."""
        return (lower, "") if self.first is None else self.first

    def interval(self, after: str) -> str:
        """Return the statement that reads rows from a key on (>=), or after it (>)."""
        places = [f"${number}" for number in range(4, 4 + len(self.keys))]
        return (
            f"{self.rows} WHERE {self.in_range} AND ({self.key}) {after} ({', '.join(places)})"
            f" ORDER BY {self.key} LIMIT ${4 + len(self.keys)}"
        )

    @property
    def last(self) -> str:
        """The statement that reads the last key."""
        backwards = ", ".join(f"e.{name} DESC" for name in self.keys)
        return (
            f"SELECT {self.key} FROM partita.{self.table} e WHERE {self.in_range}"
            f" ORDER BY {backwards} LIMIT 1"
        )

    @property
    def sums(self) -> str:
        """The statement that compares two copies of a range."""
        return (
            f"SELECT count(*) AS entities, coalesce(sum({self.version}), 0)::text AS versions,"
            f" coalesce(sum({self.size}), 0)::text AS bytes"
            f" FROM partita.{self.table} e WHERE {self.in_range}"
        )


ROW_KINDS: Mapping[Kind, RowKind] = MappingProxyType(
    {
        Kind.TABLE: RowKind(
            kind=Kind.TABLE,
            table="entity",
            columns=("tid", "pk", "rk", "ticks", "marks", "short", "document"),
            in_range="e.tid = $1 AND e.pk >= $2 AND ($3::text IS NULL OR e.pk < $3)",
            keys=("pk", "rk"),
            first=None,
            changed="e.tid = {tid} AND e.pk = k.pk AND e.rk = k.rk",
            # The ticks of a key name its version: no two writes of a key have the same.
            version="hashtextextended(e.rk, hashtextextended(e.pk, e.ticks))",
            size="octet_length(e.document)",
            erase="SELECT last_pk, last_rk FROM partita.erase_keys_1($1, $2, $3, $4, $5, $6)",
        ),
        Kind.QUEUE: RowKind(
            kind=Kind.QUEUE,
            table="message",
            columns=(
                *("queue_id", "sequence", "nonce", "inserted_at", "expires_at", "visible_at"),
                *("dequeue_count", "receipt", "text"),
            ),
            in_range="e.queue_id = $1 AND $2::text = '' AND $3::text IS NULL",
            keys=("sequence",),
            first=(-(2**63),),
            changed="e.queue_id = {tid} AND e.sequence = k.pk::bigint",
            # A claim and an update make a new receipt; what hides a damaged message makes none.
            version="hashtextextended(encode(e.receipt, 'hex'), e.sequence)"
            " + e.visible_at::numeric",
            size="octet_length(e.text)",
            erase="SELECT last_sequence FROM partita.erase_messages_1($1, $2, $3, $4, $5)",
        ),
    }
)
