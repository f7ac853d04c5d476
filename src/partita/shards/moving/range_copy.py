"""The part of a RowCopy that is the same in all databases: which rows are copied when.

A subclass executes the statements of its database. Rules: a pass over the outboxes deletes its rows
on the target before it inserts any, so that unique values which changed owners never collide; and
the source forgets entries only after the target has committed.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from partita.shards.connections.engines import Engines
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedTable, TableName
from partita.shards.moving.blockers import HeldUp, terminate_none
from partita.shards.moving.capture import quote
from partita.shards.moving.copying import (
    Batch,
    RangeText,
    Replay,
    Shardlet,
    Side,
    rows_collide,
    rows_dangle,
    sharded_table,
)
from partita.shards.moving.move_plan import (
    ForeignKey,
    Position,
    Sides,
    TableShape,
    open_foreign_keys,
)

if TYPE_CHECKING:
    from sqlalchemy.pool import PoolProxiedConnection

Seen = dict[int, str]
"""The outboxes with entries, by number of their table, and up to where a pass has read each."""


class RangeCopy(ABC):
    """Copies, compares and deletes the rows of one range in batches by primary key."""

    integrity_error: type[Exception]
    """Raised by the driver if a row does not fit into the target."""

    def __init__(
        self,
        engines: Engines,
        source: Location,
        shardlet: Shardlet,
        *,
        literal: Callable[[Any], str],
        binary: str,
    ) -> None:
        self._range = RangeText(shardlet, engines.admin(source).dialect, literal, binary)
        self._opened: list[PoolProxiedConnection] = []
        self._tables: list[TableShape] = []
        self._texts: list[ShardedTable] = []
        self._job = ""
        self._held_up: HeldUp = terminate_none
        self._may_replicate = (True, True)
        """Whether triggers and foreign keys can be disabled, on the source and the target."""

    # --- what each database does differently ------------------------------------------------------

    @abstractmethod
    def _reading(self, side: Side) -> AbstractContextManager[object]:
        """Open a transaction that reads one side."""

    @abstractmethod
    def _copying(self) -> AbstractContextManager[object]:
        """Open a transaction that reads one snapshot of the source and writes to the target."""

    @abstractmethod
    def _deleting(self, side: Side) -> AbstractContextManager[object]:
        """Open a transaction that deletes rows on one side."""

    @abstractmethod
    def _value(self, side: Side, query: str) -> Any:
        """Return the first value of a query."""

    @abstractmethod
    def _delete(self, side: Side, rows: str) -> int:
        """Delete `table WHERE condition` and return the number of rows."""

    @abstractmethod
    def _insert(self, number: int, rows: str, alias: str = "") -> int:
        """Copy `table WHERE condition` of the source to the target; return the number of rows."""

    @abstractmethod
    def _shape(
        self, side: Side, table: TableName, sharding: tuple[str, ...]
    ) -> TableShape | None: ...

    @abstractmethod
    def _table_name(self, side: Side, schema: str | None, table: str) -> str: ...

    @abstractmethod
    def _keys(self, side: Side) -> str:
        """Return the name of the temporary table of keys, for hash maps."""

    @abstractmethod
    def _fill_keys(self, side: Side) -> None:
        """Fill the table of keys, unless this transaction has done so."""

    @abstractmethod
    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        """Return the primary key of the last row of a batch; None if fewer rows are left."""

    @abstractmethod
    def _against(self, number: int, operator: str, position: Position) -> str:
        """Return the comparison of the primary key with a position."""

    @abstractmethod
    def _compare(self, number: int, source: str, target: str) -> int:
        """Compare rows of both sides by count and hash; return the count or raise."""

    @abstractmethod
    def _read_outboxes(self) -> Seen: ...

    @abstractmethod
    def _list_changed(self, number: int) -> int:
        """List the changed rows of the range in a temporary table; return their number."""

    @abstractmethod
    def _changed(self, side: Side, number: int) -> str:
        """Return the changed rows, with alias t, as they are now; all are in the range."""

    @abstractmethod
    def _delete_changed(self, number: int) -> None:
        """Delete the changed rows on the target."""

    @abstractmethod
    def _forget(self, seen: Seen) -> None:
        """Delete the entries that a pass has read."""

    # --- looking ----------------------------------------------------------------------------------

    def look(
        self, tables: Sequence[ShardedTable], others: Sequence[TableName]
    ) -> tuple[Sides, Sides]:
        sharding = {table.name: table.columns for table in tables}
        return self._look(tables, sharding), self._look(others, {})

    def _look(self, tables: Sequence[TableName], sharding: dict[str, tuple[str, ...]]) -> Sides:
        sides: tuple[Side, Side] = ("source", "target")
        source, target = (
            tuple(self._shape(side, table, sharding.get(table.name, ())) for table in tables)
            for side in sides
        )
        names = tuple(table.name for table in tables)
        return Sides(names, source, target, self._may_replicate)

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        self._tables = list(sharded)
        self._texts = [sharded_table(shape) for shape in sharded]
        self._job = job_id

    def watch(self, held_up: HeldUp) -> None:
        self._held_up = held_up

    def count(self, side: Side) -> int:
        with self._reading(side):
            return sum(
                int(self._value(side, f"SELECT count(*) FROM {self._rows(side, number)}"))
                for number in range(len(self._tables))
            )

    def has_rows(self, side: Side) -> bool:
        with self._reading(side):
            return any(
                self._value(side, f"SELECT EXISTS (SELECT 1 FROM {self._rows(side, number)})")
                for number in range(len(self._tables))
            )

    def find_open_reference(self, side: Side) -> str | None:
        with self._reading(side):
            return self._find_open_reference(side)

    def _find_open_reference(self, side: Side) -> str | None:
        for number in range(len(self._tables)):
            found = self._find_dangling(side, number, self._rows(side, number, "t"), in_range=True)
            if found is not None:
                return found
        return None

    def _find_dangling(self, side: Side, number: int, rows: str, *, in_range: bool) -> str | None:
        """Return a foreign key of one of the rows whose parent is missing, or not in the range."""
        shape = self._tables[number]
        for key in open_foreign_keys(shape, self._tables):
            present = [f"t.{quote(name)} IS NOT NULL" for name in key.columns]
            missing = self._missing_parent(side, key, in_range=in_range)
            query = f"SELECT 1 FROM {rows} AND {' AND '.join(present)} AND {missing}"
            if self._value(side, f"SELECT EXISTS ({query})"):
                return f"{shape.name} ({', '.join(key.columns)}) to {key.table}"
        return None

    def _missing_parent(self, side: Side, key: ForeignKey, *, in_range: bool) -> str:
        pairs = zip(key.columns, key.referred, strict=True)
        same = [f"t.{quote(mine)} = p.{quote(theirs)}" for mine, theirs in pairs]
        for number, shape in enumerate(self._tables):
            if in_range and (shape.schema, shape.table) == (key.schema, key.table):
                same.append(self._condition(side, number, "p"))
        parent = self._table_name(side, key.schema, key.table)
        return f"NOT EXISTS (SELECT 1 FROM {parent} p WHERE {' AND '.join(same)})"

    # --- the range and its batches as SQL ---------------------------------------------------------

    def _table(self, side: Side, number: int) -> str:
        shape = self._tables[number]
        return self._table_name(side, shape.schema, shape.table)

    def _condition(self, side: Side, number: int, alias: str = "") -> str:
        return self._range.condition(self._texts[number], alias, keys=self._keys(side))

    def _capture_conditions(self, number: int) -> tuple[str, str]:
        """Return the conditions of the row before and after a change, for triggers."""
        table = self._texts[number]
        return (
            self._range.condition(table, "OLD", keys=None),
            self._range.condition(table, "NEW", keys=None),
        )

    def _rows(self, side: Side, number: int, alias: str = "") -> str:
        """Return `table WHERE row is in the range`."""
        if self._range.is_hashed:
            self._fill_keys(side)
        name = f" AS {alias}" if alias else ""
        return f"{self._table(side, number)}{name} WHERE {self._condition(side, number, alias)}"

    def _after(self, number: int, after: Position | None) -> str:
        return "" if after is None else f" AND {self._against(number, '>', after)}"

    def _between(self, number: int, after: Position | None, end: Position | None) -> str:
        until = "" if end is None else f" AND {self._against(number, '<=', end)}"
        return self._after(number, after) + until

    def _same(self, number: int) -> str:
        """Return the condition that rows t and c have the same identity."""
        names = self._tables[number].identity
        return " AND ".join(f"t.{quote(name)} = c.{quote(name)}" for name in names)

    # --- copying and deleting ---------------------------------------------------------------------

    def delete_after(self, number: int, after: Position | None) -> None:
        with self._deleting("target"):
            self._delete_after(number, after)

    def _delete_after(self, number: int, after: Position | None) -> None:
        self._delete("target", self._rows("target", number) + self._after(number, after))

    def copy_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        try:
            with self._copying():
                return self._copy(number, after, limit)
        except self.integrity_error:
            # Batches have different snapshots: a unique value may have passed from a copied row to
            # this one, or a parent may be younger than its copied table. After all changes of this
            # snapshot have been applied, the target is a subset of the source.
            pass
        try:
            with self._copying():
                self._apply(verify=False)
                self._delete_after(number, after)
                return self._copy(number, after, limit)
        except self.integrity_error as error:
            raise rows_collide(self._tables[number].name, error) from error

    def _copy(self, number: int, after: Position | None, limit: int) -> Batch:
        end = self._end("source", number, after, limit)
        rows = self._rows("source", number) + self._between(number, after, end)
        return Batch(self._insert(number, rows), end)

    def delete_batch(self, side: Side, number: int, after: Position | None, limit: int) -> Batch:
        with self._deleting(side):
            end = self._end(side, number, after, limit)
            rows = self._rows(side, number) + self._between(number, after, end)
            return Batch(self._delete(side, rows), end)

    # --- replaying and comparing ------------------------------------------------------------------

    def pending(self) -> bool:
        with self._reading("source"):
            return bool(self._read_outboxes())

    def replay(self, applied: Callable[[], None], *, verify: bool, whole: bool = False) -> Replay:
        try:
            with self._copying():
                rows, seen = self._apply(verify=verify)
                if whole:
                    self._compare_whole()
        except self.integrity_error as error:
            raise rows_collide(self._tables[0].name, error) from error
        applied()
        self._forget(seen)
        return Replay(rows)

    def _apply(self, *, verify: bool) -> tuple[int, Seen]:
        """Bring the target to the snapshot of the source; return the number of changed rows."""
        seen = self._read_outboxes()
        counts = {number: self._list_changed(number) for number in seen}
        changed = [number for number, rows in counts.items() if rows]
        for number in reversed(changed):
            self._delete_changed(number)
        for number in changed:
            self._insert(number, self._changed("source", number), "t")
        for number in changed if verify else ():
            target = self._changed("target", number)
            self._compare(number, self._changed("source", number), target)
            # Only the changed rows: all others were checked before.
            dangling = self._find_dangling("target", number, target, in_range=False)
            if dangling is not None:
                raise rows_dangle(dangling)
        return sum(counts.values()), seen

    def compare_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        with self._copying():
            _, seen = self._apply(verify=True)
            end = self._end("source", number, after, limit)
            between = self._between(number, after, end)
            rows = self._compare(
                number,
                self._rows("source", number, "t") + between,
                self._rows("target", number, "t") + between,
            )
        self._forget(seen)
        return Batch(rows, end)

    def _compare_whole(self) -> None:
        for number in range(len(self._tables)):
            self._compare(
                number, self._rows("source", number, "t"), self._rows("target", number, "t")
            )
        if (dangling := self._find_open_reference("target")) is not None:
            raise rows_dangle(dangling)
