"""The rows of one range on two shards: what a move asks of a database, and the range as SQL.

`RowCopy` is the contract; copying_postgres.py and copying_sqlite.py keep it. Rule: whatever
writes to the target writes rows of the range only, and nothing that was not read from the source.
Sequences and identities stay as they are on each shard: the target's do not know moved rows.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec
from sqlalchemy import Dialect
from sqlalchemy.types import TypeEngine

from partita.errors import CatalogMismatchError, MoveRefusedError, UnavailableError
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.keys.schema import COLUMN_TYPES, ShardedSchema, ShardedTable
from partita.shards.keys.shard_key import KeyType
from partita.shards.moving.blockers import Blocker, HeldUp
from partita.shards.moving.capture import quote
from partita.shards.moving.move_plan import Position, Sides, TableShape

Side = Literal["source", "target"]
KEYS = "partita_keys"
"""The temporary table with the keys of the range, where no comparison can tell them."""


class Shardlet(msgspec.Struct, frozen=True):
    """The range that moves, and how to tell whether a row belongs to it."""

    key_range: KeyRange
    range: Range | None
    """The range as values; None where keys are hashed: the range is of buckets then."""
    key_type: KeyType
    encode_key: Callable[[Any], bytes]
    schema: ShardedSchema

    def types_of(self, table: ShardedTable) -> list[TypeEngine[Any]]:
        """Return the types of the sharding columns, as declared or as usual for the key."""
        metadata = self.schema.metadata
        known = None if metadata is None else metadata.tables.get(table.name)
        declared = {} if known is None else {each.name: each.type for each in known.columns}
        return [
            declared.get(name, COLUMN_TYPES[part])
            for name, part in zip(table.columns, self.key_type.parts, strict=True)
        ]


class Batch(msgspec.Struct, frozen=True):
    """Rows that were handled together, and where they ended; no end: the table is done."""

    rows: int
    end: Position | None


class Replay(msgspec.Struct, frozen=True):
    """One pass over the outboxes: how many changed rows it carried over."""

    rows: int


class RowCopy(Protocol):
    """Both sides of a move, each by one connection of its own that nobody else uses."""

    @property
    def driver_error(self) -> type[Exception]:
        """The root of what the driver raises."""
        ...

    def take(self, job_id: str) -> bool:
        """Become the only mover of the job, until closed or dead; False if somebody else is."""
        ...

    def release(self) -> None:
        """Give up the job for good: it has ended."""
        ...

    def close(self) -> None: ...

    def look(self, tables: Sequence[ShardedTable], others: Sequence[Any]) -> tuple[Sides, Sides]:
        """Describe the sharded and the reference tables on both sides."""
        ...

    def obstacles(self, sharded: Sides) -> list[str]:
        """Return what speaks against a move in this kind of database only."""
        ...

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        """Work on these tables from now on, parents before children."""
        ...

    def count(self, side: Side) -> int:
        """Count the rows of the range in all tables."""
        ...

    def has_rows(self, side: Side) -> bool:
        """Tell whether there is any row of the range."""
        ...

    def find_open_reference(self, side: Side) -> str | None:
        """Return a foreign key by which a row of the range points to what is not there."""
        ...

    def copy_reference(self, shape: TableShape) -> int:
        """Copy a whole table in one transaction if it is empty on the target."""
        ...

    def install_capture(self, installed: Callable[[int], None]) -> None:
        """Put triggers on every table of the source; `installed` is called after each."""
        ...

    def remove_capture(self) -> None: ...

    def delete_after(self, number: int, after: Position | None) -> None:
        """Delete the target's rows of a table behind a position: their copy is in doubt."""
        ...

    def copy_batch(self, number: int, after: Position | None, limit: int) -> Batch: ...

    def pending(self) -> bool:
        """Tell whether there are changes that were not carried over."""
        ...

    def replay(self, applied: Callable[[], None], *, verify: bool, whole: bool = False) -> Replay:
        """Carry over every change of one snapshot, and compare those rows if asked, or all.

        `applied` is called when the target has them and the source has not forgotten them yet.
        """
        ...

    def compare_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        """Compare so many rows of a table by count and hash, in one snapshot with a replay."""
        ...

    def delete_batch(self, side: Side, number: int, after: Position | None, limit: int) -> Batch:
        """Delete so many rows of the range, in the order of their keys."""
        ...

    def watch(self, held_up: HeldUp) -> None:
        """Report from now on who keeps the move waiting, and end whom the answer names."""
        ...

    def wait_for_writers(self) -> None:
        """Return when no open transaction would keep a change of the catalogs waiting."""
        ...

    def bound_time(self, seconds: float | None) -> None:
        """Let statements that take longer fail; None takes the bound away."""
        ...


# --- the range as SQL -----------------------------------------------------------------------------


class RangeText:
    """Writes the condition "this row lies in the range" for one dialect."""

    def __init__(
        self, shardlet: Shardlet, dialect: Dialect, literal: Callable[[Any], str], binary: str
    ) -> None:
        self._shardlet = shardlet
        self._dialect = dialect
        self._literal = literal
        self._binary = binary
        """The collation that compares text by its bytes, as encoded keys do."""
        self.plain: set[tuple[str, str]] = set()
        """Columns, by table and name, that compare by their bytes anyway."""

    @property
    def is_hashed(self) -> bool:
        return self._shardlet.range is None

    def condition(self, table: ShardedTable, alias: str = "", *, keys: str | None = KEYS) -> str:
        """Return the condition; of hashed keys only the table `keys` can tell, else all fit."""
        dot = f"{alias}." if alias else ""
        columns = [dot + quote(name) for name in table.columns]
        wanted = self._shardlet.range
        if wanted is None:
            if keys is None:
                return "1 = 1"
            parts = ", ".join(f"k{number}" for number in range(len(columns)))
            return f"({', '.join(columns)}) IN (SELECT {parts} FROM {keys})"  # noqa: S608 - quoted
        types = self._shardlet.types_of(table)
        if wanted.is_point:
            return self._compare(columns, types, "=", wanted.low)
        columns = [
            column
            if (table.name, name) in self.plain or part is not str
            else f"{column} COLLATE {self._binary}"
            for column, name, part in zip(
                columns, table.columns, self._shardlet.key_type.parts, strict=True
            )
        ]
        limits = [f"{column} IS NOT NULL" for column in columns]
        if wanted.low is not None:
            limits.append(self._compare(columns, types, ">=", wanted.low))
        if wanted.high is not None:
            limits.append(self._compare(columns, types, "<", wanted.high))
        return "(" + " AND ".join(limits) + ")"

    def _compare(
        self, columns: list[str], types: list[TypeEngine[Any]], operator: str, bound: Any
    ) -> str:
        values = bound if isinstance(bound, tuple) else (bound,)
        # A bound may be the first parts of a composite key only: the other columns do not matter.
        left = columns[: len(values)]
        right = [
            self._literal(self._stored(type_, value))
            for type_, value in zip(types, values, strict=False)
        ]
        if len(values) == 1:
            return f"{left[0]} {operator} {right[0]}"
        return f"({', '.join(left)}) {operator} ({', '.join(right)})"

    def _stored(self, type_: TypeEngine[Any], value: Any) -> Any:
        if isinstance(value, datetime):
            value = value.astimezone(UTC)
        processor = type_.dialect_impl(self._dialect).bind_processor(self._dialect)
        return value if processor is None else processor(value)

    def contains(self, table: ShardedTable, row: Sequence[Any]) -> bool:
        """Tell whether sharding columns as the driver gives them lie in the range."""
        if None in row:
            return False
        values = [
            self._loaded(type_, value)
            for type_, value in zip(self._shardlet.types_of(table), row, strict=True)
        ]
        key = tuple(values) if self._shardlet.key_type.is_composite else values[0]
        return self._shardlet.key_range.contains(self._shardlet.encode_key(key))

    def _loaded(self, type_: TypeEngine[Any], value: Any) -> Any:
        processor = type_.dialect_impl(self._dialect).result_processor(self._dialect, None)
        loaded = value if processor is None else processor(value)
        if isinstance(loaded, datetime) and loaded.tzinfo is None:
            return loaded.replace(tzinfo=UTC)  # SQLite keeps no zone; what it was given was UTC
        return loaded


def sharded_table(shape: TableShape) -> ShardedTable:
    return ShardedTable(shape.schema, shape.table, shape.sharding)


# --- what can go wrong on the way -----------------------------------------------------------------


def rows_differ(name: str, source: object, target: object) -> CatalogMismatchError:
    return CatalogMismatchError(
        "MoveRowsDiffer",
        "The rows on the target are not those of the source.",
        facts={"table": name, "source": source, "target": target},
        hint="Nothing was switched. Find out who writes to the target, cancel the job and move "
        "again.",
    )


def rows_collide(name: str, error: Exception) -> MoveRefusedError:
    refused = MoveRefusedError(
        "MoveRowsCollide",
        "A row of the range does not fit into the target: a key of it is taken there.",
        facts={"table": name, "reason": str(error).splitlines()[0]},
        hint="Primary and unique keys must include the sharding column or be unique over all "
        "shards. Cancel the job.",
    )
    refused.__cause__ = error
    return refused


def rows_dangle(reference: str) -> MoveRefusedError:
    return MoveRefusedError(
        "MoveRowsDangle",
        "Since the move began, a row of the range points to one that does not move with it.",
        facts={"reference": reference},
        hint="Rows may refer to their own shardlet and to reference tables. Mend the row and "
        "resume the job, or cancel it.",
    )


def tables_busy(name: str, blockers: Sequence[Blocker] = ()) -> UnavailableError:
    said = "; ".join(str(each) for each in blockers)
    return UnavailableError(
        "MoveTableBusy",
        "A long transaction keeps the move from going on" + (f": {said}." if said else "."),
        facts={"held": name, "pids": [each.pid for each in blockers]},
        hint="End the transaction and resume the job, or resume it with terminate_blockers=True "
        "(--terminate-blockers).",
    )
