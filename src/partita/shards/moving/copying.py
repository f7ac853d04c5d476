"""The contract of copying a range between two shards, and the range as SQL.

`RowCopy` is implemented in copying_postgres.py and copying_sqlite.py. Rule: only rows of the range
that were read from the source are written to the target. Sequences and identity columns are not
changed: those of the target do not account for moved rows.
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
"""The temporary table with the keys of the range, for hashed keys."""


class Shardlet(msgspec.Struct, frozen=True):
    """The range that moves, and how its keys are encoded."""

    key_range: KeyRange
    range: Range | None
    """The range as values; None for hash maps, whose ranges are of buckets."""
    key_type: KeyType
    encode_key: Callable[[Any], bytes]
    schema: ShardedSchema

    def types_of(self, table: ShardedTable) -> list[TypeEngine[Any]]:
        """Return the types of the sharding columns, as declared or by the key type."""
        metadata = self.schema.metadata
        known = None if metadata is None else metadata.tables.get(table.name)
        declared = {} if known is None else {each.name: each.type for each in known.columns}
        return [
            declared.get(name, COLUMN_TYPES[part])
            for name, part in zip(table.columns, self.key_type.parts, strict=True)
        ]


class Batch(msgspec.Struct, frozen=True):
    """The number of rows of a batch, and its last position; None: the table is complete."""

    rows: int
    end: Position | None


class Replay(msgspec.Struct, frozen=True):
    """One pass over the outboxes: the number of changed rows that it copied."""

    rows: int


class RowCopy(Protocol):
    """Both sides of a move, each with a connection of its own."""

    @property
    def driver_error(self) -> type[Exception]:
        """The base class of the errors of the driver."""
        ...

    def take(self, job_id: str) -> bool:
        """Lock the job for this mover; return False if another mover holds it."""
        ...

    def release(self) -> None:
        """Remove the lock of a job that has ended."""
        ...

    def close(self) -> None: ...

    def look(self, tables: Sequence[ShardedTable], others: Sequence[Any]) -> tuple[Sides, Sides]:
        """Describe the sharded and the reference tables on both sides."""
        ...

    def obstacles(self, sharded: Sides) -> list[str]:
        """Return the obstacles that only this kind of database has."""
        ...

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        """Set the tables of the job, parents before children."""
        ...

    def count(self, side: Side) -> int:
        """Count the rows of the range in all tables."""
        ...

    def has_rows(self, side: Side) -> bool:
        """Return whether there is any row of the range."""
        ...

    def find_open_reference(self, side: Side) -> str | None:
        """Return a foreign key by which a row of the range refers to a missing row."""
        ...

    def copy_reference(self, shape: TableShape) -> int:
        """Copy a whole table in one transaction if it is empty on the target."""
        ...

    def install_capture(self, installed: Callable[[int], None]) -> None:
        """Create triggers on the tables of the source; call `installed` after each."""
        ...

    def remove_capture(self) -> None: ...

    def delete_after(self, number: int, after: Position | None) -> None:
        """Delete the rows of the target after a position: their copy is in doubt."""
        ...

    def copy_batch(self, number: int, after: Position | None, limit: int) -> Batch: ...

    def pending(self) -> bool:
        """Return whether there are changes that were not copied."""
        ...

    def replay(self, applied: Callable[[], None], *, verify: bool, whole: bool = False) -> Replay:
        """Copy all changes of one snapshot; compare them with `verify`, or all rows with `whole`.

        `applied` is called after the commit on the target, before the entries are deleted.
        """
        ...

    def compare_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        """Compare up to `limit` rows by count and hash, in one snapshot with a replay."""
        ...

    def delete_batch(self, side: Side, number: int, after: Position | None, limit: int) -> Batch:
        """Delete up to `limit` rows of the range, in the order of their keys."""
        ...

    def watch(self, held_up: HeldUp) -> None:
        """Report blockers to `held_up`, and terminate those that it returns."""
        ...

    def wait_for_writers(self) -> None:
        """Wait until no open transaction would block a change of the catalogs."""
        ...

    def bound_time(self, seconds: float | None) -> None:
        """Set a time-out of statements; None removes it."""
        ...


# --- the range as SQL -----------------------------------------------------------------------------


class RangeText:
    """Writes the condition "this row is in the range" for one dialect."""

    def __init__(
        self, shardlet: Shardlet, dialect: Dialect, literal: Callable[[Any], str], binary: str
    ) -> None:
        self._shardlet = shardlet
        self._dialect = dialect
        self._literal = literal
        self._binary = binary
        """The collation that compares text by its bytes, as encoded keys are compared."""
        self.plain: set[tuple[str, str]] = set()
        """Columns, by table and name, whose own collation compares bytes."""

    @property
    def is_hashed(self) -> bool:
        return self._shardlet.range is None

    def condition(self, table: ShardedTable, alias: str = "", *, keys: str | None = KEYS) -> str:
        """Return the condition; hashed keys are in the table `keys`, without which all match."""
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
        # A bound may consist of the first parts of a composite key only.
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
        """Return whether sharding columns, as the driver returns them, are in the range."""
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
            return loaded.replace(tzinfo=UTC)  # SQLite stores no time zone; stored values are UTC
        return loaded


def sharded_table(shape: TableShape) -> ShardedTable:
    return ShardedTable(shape.schema, shape.table, shape.sharding)


# --- errors ---------------------------------------------------------------------------------------


def rows_differ(name: str, source: object, target: object) -> CatalogMismatchError:
    return CatalogMismatchError(
        "MoveRowsDiffer",
        "The rows on the target differ from those on the source.",
        facts={"table": name, "source": source, "target": target},
        hint="The mapping was not switched. Find what writes to the target, cancel the job and "
        "move again.",
    )


def rows_collide(name: str, error: Exception) -> MoveRefusedError:
    refused = MoveRefusedError(
        "MoveRowsCollide",
        "A row of the range conflicts with a row on the target.",
        facts={"table": name, "reason": str(error).splitlines()[0]},
        hint="Primary and unique keys must include the sharding column or be unique across all "
        "shards. Cancel the job.",
    )
    refused.__cause__ = error
    return refused


def rows_dangle(reference: str) -> MoveRefusedError:
    return MoveRefusedError(
        "MoveRowsDangle",
        "Since the move began, a row of the range refers to a row that does not move with it.",
        facts={"reference": reference},
        hint="Rows may refer to their own shardlet and to reference tables. Correct the row and "
        "resume the job, or cancel it.",
    )


def tables_busy(name: str, blockers: Sequence[Blocker] = ()) -> UnavailableError:
    said = "; ".join(str(each) for each in blockers)
    return UnavailableError(
        "MoveTableBusy",
        "A long transaction blocks the move" + (f": {said}." if said else "."),
        facts={"held": name, "pids": [each.pid for each in blockers]},
        hint="End the transaction and resume the job, or resume it with terminate_blockers=True "
        "(--terminate-blockers).",
    )
