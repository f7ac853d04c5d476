"""Rows from one SQLite file to another: INSERT … SELECT over ATTACH, in batches by primary key.

The connection belongs to the target and reads the source as `partita_source`, so one transaction
has one snapshot of the source and the lock of one file only. Rule: its first statement writes,
because a snapshot that is read first may be too old to write after; and it never begins with
BEGIN IMMEDIATE, which would lock the writers of the source out as well.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

import contextlib
import fcntl
import functools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from partita.shards.connections import writing_turns
from partita.shards.connections.engines import BUSY_TIMEOUT_SECONDS, Engines
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.connections.writing_turns import WritingTurns
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedTable, TableName
from partita.shards.moving import capture
from partita.shards.moving.blockers import (
    HeldUp,
    SqliteBlocker,
    find_sqlite_blockers,
    nobody_is_ended,
)
from partita.shards.moving.capture import listed, outbox, quote
from partita.shards.moving.copying import (
    KEYS,
    Batch,
    RangeText,
    Replay,
    Shardlet,
    Side,
    rows_collide,
    rows_dangle,
    rows_differ,
    sharded_table,
    tables_busy,
)
from partita.shards.moving.move_plan import (
    ColumnShape,
    ForeignKey,
    Position,
    Sides,
    TableShape,
    open_foreign_keys,
)

if TYPE_CHECKING:
    from sqlalchemy.pool import PoolProxiedConnection

LOCK_SECONDS_MAX = 60.0
"""How long a move waits for the write lock of a file."""
LOOK_SECONDS = 0.5
"""How often it looks who holds the lock."""
ATTACHED = "partita_source"
_SCHEMAS: dict[Side, str] = {"source": ATTACHED, "target": "main"}

_REFERRING = """
SELECT DISTINCT m.name FROM sqlite_master m, pragma_foreign_key_list(m.name, 'main') f
WHERE m.type = 'table' AND lower(f."table") = lower(?)
"""
_TRIGGERS = """
SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)
  AND name NOT LIKE 'partita\\_%' ESCAPE '\\')
"""
_UNIQUE = """
SELECT l.name FROM pragma_index_list(?, 'main') l
WHERE l."unique" AND l.origin <> 'pk' AND NOT l.partial
"""

Driver = RevocableConnection


class SqliteCopy:
    """RowCopy between two SQLite files."""

    def __init__(
        self, engines: Engines, source: Location, target: Location, shardlet: Shardlet
    ) -> None:
        self._opened: list[PoolProxiedConnection] = []
        self._tables: list[TableShape] = []
        self._texts: list[ShardedTable] = []
        self._job = ""
        self._wait_seconds = LOCK_SECONDS_MAX
        self._held_up: HeldUp = nobody_is_ended
        self._lock: IO[bytes] | None = None
        self._path = source.identity.removeprefix("sqlite://")
        self._files: dict[Side, str] = {
            "source": self._path,
            "target": target.identity.removeprefix("sqlite://"),
        }
        try:
            self.source = self._open(engines, source)
            self.target = self._open(engines, target)
            self.target.execute(f"ATTACH DATABASE ? AS {ATTACHED}", (self._path,))
        except BaseException:
            self.close()
            raise
        dialect = engines.admin(source).dialect
        self._range = RangeText(shardlet, dialect, _literal, "BINARY")

    def _open(self, engines: Engines, location: Location) -> Driver:
        pooled = engines.admin(location).raw_connection()
        self._opened.append(pooled)
        driver = cast("Driver", pooled.driver_connection)
        # The source has done the work of its foreign keys; the target must not do it again.
        driver.execute("PRAGMA foreign_keys = OFF")
        return driver

    def take(self, job_id: str) -> bool:
        # The operating system gives the lock back when this process ends, however it ends.
        path = Path(f"{self._path}-partita-{job_id[:12]}")
        self._lock = path.open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def driver_error(self) -> type[Exception]:
        return sqlite3.Error

    def close(self) -> None:
        for pooled in self._opened:
            pooled.invalidate()
            pooled.close()
        self._opened.clear()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def release(self) -> None:
        """Remove the lock's file."""
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)

    # --- looking ----------------------------------------------------------------------------------

    def look(
        self, tables: Sequence[ShardedTable], others: Sequence[TableName]
    ) -> tuple[Sides, Sides]:
        sharded = self._look(tables, {table.name: table.columns for table in tables})
        return sharded, self._look(others, {})

    def _look(self, tables: Sequence[TableName], sharding: dict[str, tuple[str, ...]]) -> Sides:
        names = tuple(table.name for table in tables)
        source, target = (
            tuple(_shape(driver, table, sharding.get(table.name, ())) for table in tables)
            for driver in (self.source, self.target)
        )
        return Sides(names, source, target)

    def obstacles(self, sharded: Sides) -> list[str]:
        found = [shape for shape in (*sharded.source, *sharded.target) if shape is not None]
        return [
            f"table {shape.name} has triggers, which SQLite cannot switch off"
            for shape in found
            if shape.has_triggers
        ]

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        self._tables = list(sharded)
        self._texts = [sharded_table(shape) for shape in sharded]
        self._job = job_id

    def count(self, side: Side) -> int:
        with self._reading():
            return sum(
                int(self._value(f"SELECT count(*) FROM {self._rows(side, number)}"))
                for number in range(len(self._tables))
            )

    def has_rows(self, side: Side) -> bool:
        with self._reading():
            return any(
                self._value(f"SELECT EXISTS (SELECT 1 FROM {self._rows(side, number)})")
                for number in range(len(self._tables))
            )

    def find_open_reference(self, side: Side) -> str | None:
        with self._reading():
            return self._find_open_reference(side)

    def _find_open_reference(self, side: Side) -> str | None:
        for number, shape in enumerate(self._tables):
            for key in open_foreign_keys(shape, self._tables):
                child = self._rows(side, number, "t")
                if self._value(self._dangling(side, child, key, in_range=True)):
                    return _described(shape, key)
        return None

    def _dangling(self, side: Side, child: str, key: ForeignKey, *, in_range: bool) -> str:
        """Return a query for a row whose parent is not there, or not in the range."""
        there = [f"t.{quote(name)} IS NOT NULL" for name in key.columns]
        pairs = zip(key.columns, key.referred, strict=True)
        same = [f"t.{quote(mine)} = p.{quote(theirs)}" for mine, theirs in pairs]
        for other, shape in enumerate(self._tables):
            if in_range and shape.table == key.table:
                same.append(self._range.condition(self._texts[other], "p", keys=_keys(side)))
        parent = f"{_SCHEMAS[side]}.{quote(key.table)}"
        missing = f"NOT EXISTS (SELECT 1 FROM {parent} p WHERE {' AND '.join(same)})"
        return f"SELECT EXISTS (SELECT 1 FROM {child} AND {' AND '.join(there)} AND {missing})"

    # --- ranges and transactions ------------------------------------------------------------------

    def _table(self, side: Side, number: int) -> str:
        return f"{_SCHEMAS[side]}.{quote(self._tables[number].table)}"

    def _rows(self, side: Side, number: int, alias: str = "") -> str:
        """Return `table WHERE row lies in the range`; fills the table of keys where one is used."""
        if self._range.is_hashed and not self._has_keys(side):
            self._fill_keys(side)
        condition = self._range.condition(self._texts[number], alias, keys=_keys(side))
        name = f" AS {alias}" if alias else ""
        return f"{self._table(side, number)}{name} WHERE {condition}"

    def _has_keys(self, side: Side) -> bool:
        query = f"SELECT EXISTS (SELECT 1 FROM temp.sqlite_master WHERE name = '{KEYS}_{side}')"
        return bool(self._value(query))

    def _fill_keys(self, side: Side) -> None:
        queries = [
            "SELECT DISTINCT "
            + ", ".join(f"{quote(name)} AS k{place}" for place, name in enumerate(shape.sharding))
            + f" FROM {self._table(side, number)}"
            for number, shape in enumerate(self._tables)
        ]
        self._run(f"CREATE TEMP TABLE {KEYS}_{side} AS {' UNION '.join(queries)}")
        found = self._all(f"SELECT rowid, * FROM temp.{KEYS}_{side}")
        outside = [(row[0],) for row in found if not self._range.contains(self._texts[0], row[1:])]
        self.target.executemany(f"DELETE FROM temp.{KEYS}_{side} WHERE rowid = ?", outside)

    @contextlib.contextmanager
    def _transaction(self, side: Side | None) -> Iterator[None]:
        """One transaction that writes to one file (None: to none) and has one snapshot of both."""
        with self._locked(side, lambda: self._begin(side)):
            try:
                yield
                self._drop_temporary()
                self._run("COMMIT")
            except BaseException:
                if self.target.in_transaction:
                    self._run("ROLLBACK")
                raise

    def _begin(self, side: Side | None) -> None:
        self._run("BEGIN")
        if side is None:
            return
        try:
            self._run(
                f"UPDATE {_SCHEMAS[side]}.partita_local_shards "
                "SET map_id = map_id WHERE map_id = ''"
            )
        except BaseException:
            self._run("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _locked(self, side: Side | None, take: Callable[[], object]) -> Iterator[None]:
        """Wait for the write lock of a file, which `take()` takes; None: there is none to take."""
        if side is None:
            take()
            yield
            return
        turns = self._driver(side).turns
        self._wait_for(side, turns, take)
        try:
            yield
        finally:
            turns.give_back(self)

    def _wait_for(self, side: Side, turns: WritingTurns, take: Callable[[], object]) -> None:
        tries = max(1, round(self._wait_seconds / LOOK_SECONDS))
        blockers: list[SqliteBlocker] = []
        for number in range(1, tries + 1):
            if turns.take(self, LOOK_SECONDS):
                try:
                    writing_turns.retry_while_busy(take, LOOK_SECONDS)
                except BaseException as error:
                    turns.give_back(self)
                    if not writing_turns.is_busy(error):
                        raise
                else:
                    return
            blockers = find_sqlite_blockers(self._files[side], turns)
            ended = self._held_up(
                self._files[side], [each.blocker for each in blockers], number * LOOK_SECONDS
            )
            for each in blockers:
                if each.blocker in ended:
                    each.end()
        raise tables_busy(self._files[side], [each.blocker for each in blockers])

    def _driver(self, side: Side) -> Driver:
        return self.source if side == "source" else self.target

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return self._transaction(None)

    def _drop_temporary(self) -> None:
        for (name,) in self._all("SELECT name FROM temp.sqlite_master WHERE type = 'table'"):
            self._run(f"DROP TABLE temp.{quote(name)}")

    def _run(self, *statements: str) -> None:
        for statement in statements:
            self.target.execute(statement)

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        return self.target.execute(statement).fetchall()

    def _value(self, statement: str) -> Any:
        return self._all(statement)[0][0]

    # --- reference tables -------------------------------------------------------------------------

    def copy_reference(self, shape: TableShape) -> int:
        with self._transaction("target"):
            name, columns = quote(shape.table), listed(shape.copied)
            if self._value(f"SELECT EXISTS (SELECT 1 FROM main.{name})"):
                return 0
            return self.target.execute(
                f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM {ATTACHED}.{name}"
            ).rowcount

    # --- capture ----------------------------------------------------------------------------------

    def install_capture(self, installed: Callable[[int], None]) -> None:
        for number, shape in enumerate(self._tables):
            table = self._texts[number]
            statements = capture.sqlite_capture(
                shape,
                outbox(self._job, number),
                (
                    self._range.condition(table, "OLD", keys=None),
                    self._range.condition(table, "NEW", keys=None),
                ),
                _unique(self.source, shape),
                self._range.condition(table, keys=None),
            )
            self._change_source(statements)
            installed(number)

    def remove_capture(self) -> None:
        for number in range(len(self._tables)):
            self._change_source(capture.sqlite_removal(outbox(self._job, number)))

    def _change_source(self, statements: Sequence[str]) -> None:
        with self._locked("source", lambda: self.source.execute("BEGIN IMMEDIATE")):
            try:
                for statement in statements:
                    self.source.execute(statement)
                self.source.execute("COMMIT")
            except BaseException:
                self.source.execute("ROLLBACK")
                raise

    # --- copying ----------------------------------------------------------------------------------

    def delete_after(self, number: int, after: Position | None) -> None:
        with self._transaction("target"):
            self._delete_after(number, after)

    def _delete_after(self, number: int, after: Position | None) -> None:
        behind = self._behind(number, after)
        self._run(f"DELETE FROM {self._rows('target', number)}{behind}")

    def copy_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        try:
            with self._transaction("target"):
                return self._copy(number, after, limit)
        except sqlite3.IntegrityError:
            # Because batches are of different snapshots: a unique value may have gone from a
            # copied row to this one. With all changes of this very snapshot applied, the target
            # is a part of the source.
            pass
        try:
            with self._transaction("target"):
                self._apply(verify=False)
                self._delete_after(number, after)
                return self._copy(number, after, limit)
        except sqlite3.IntegrityError as error:
            raise rows_collide(self._tables[number].name, error) from error

    def _copy(self, number: int, after: Position | None, limit: int) -> Batch:
        shape, end = self._tables[number], self._end("source", number, after, limit)
        interval = self._behind(number, after) + self._until(number, end)
        columns = listed(shape.copied)
        copied = self.target.execute(
            f"INSERT INTO {self._table('target', number)} ({columns}) "
            f"SELECT {columns} FROM {self._rows('source', number)}{interval}"
        ).rowcount
        return Batch(copied, end)

    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        """Return the primary key of the row that ends a batch; None where fewer rows are left."""
        order = listed(self._tables[number].primary_key)
        found = self._all(
            f"SELECT {order} FROM {self._rows(side, number)}{self._behind(number, after)} "
            f"ORDER BY {order} LIMIT 1 OFFSET {limit - 1}"
        )
        return tuple(_literal(value) for value in found[0]) if found else None

    def _behind(self, number: int, after: Position | None) -> str:
        return "" if after is None else f" AND {self._against(number, '>', after)}"

    def _until(self, number: int, end: Position | None) -> str:
        return "" if end is None else f" AND {self._against(number, '<=', end)}"

    def _against(self, number: int, operator: str, position: Position) -> str:
        order = listed(self._tables[number].primary_key)
        return f"({order}) {operator} ({', '.join(position)})"

    # --- replaying --------------------------------------------------------------------------------

    def pending(self) -> bool:
        with self._reading():
            return any(self._last(number) for number in range(len(self._tables)))

    def replay(self, applied: Callable[[], None], *, verify: bool, whole: bool = False) -> Replay:
        try:
            with self._transaction("target"):
                rows, seen = self._apply(verify=verify)
                if whole:
                    self._compare_whole()
        except sqlite3.IntegrityError as error:
            raise rows_collide(self._tables[0].name, error) from error
        applied()
        self._forget(seen)
        return Replay(rows)

    def _outbox(self, number: int) -> str:
        return f"{ATTACHED}.{quote(outbox(self._job, number))}"

    def _apply(self, *, verify: bool) -> tuple[int, dict[int, int]]:
        """Bring the target to the source's snapshot; return changed rows and last entries."""
        seen = {number: last for number in range(len(self._tables)) if (last := self._last(number))}
        rows = sum(self._note(number) for number in seen)
        for number in reversed(seen):
            name = listed(self._tables[number].identity)
            self._run(
                f"DELETE FROM {self._table('target', number)} WHERE ({name}) IN "
                f"(SELECT {name} FROM temp.partita_changed_{number})"
            )
        for number in seen:
            shape = self._tables[number]
            self._run(
                f"INSERT INTO {self._table('target', number)} ({listed(shape.copied)}) "
                f"SELECT {listed(shape.copied, 't')} FROM {self._changed('source', number)}"
            )
        for number in seen if verify else ():
            self._compare(number, self._changed("source", number), self._changed("target", number))
            self._check_references(number)
        return rows, seen

    def _check_references(self, number: int) -> None:
        """Look at the changed rows only: they are few, all others were looked at before."""
        shape, child = self._tables[number], self._changed("target", number)
        for key in open_foreign_keys(shape, self._tables):
            if self._value(self._dangling("target", child, key, in_range=False)):
                raise rows_dangle(_described(shape, key))

    def _last(self, number: int) -> int:
        """Return the number of the last entry of an outbox; 0 where there is none."""
        last = self._value(f"SELECT max(partita_number) FROM {self._outbox(number)}")
        return 0 if last is None else int(last)

    def _note(self, number: int) -> int:
        """Make the list of changed rows of the range."""
        shape, name = self._tables[number], f"temp.partita_changed_{number}"
        self._run(
            f"CREATE TEMP TABLE partita_changed_{number} AS "
            f"SELECT DISTINCT {listed(shape.identity)} FROM {self._outbox(number)}"
        )
        if self._range.is_hashed:
            found = self._all(f"SELECT rowid, {listed(shape.sharding)} FROM {name}")
            texts = self._texts[number]
            outside = [(row[0],) for row in found if not self._range.contains(texts, row[1:])]
            self.target.executemany(f"DELETE FROM {name} WHERE rowid = ?", outside)
        return int(self._value(f"SELECT count(*) FROM {name}"))

    def _changed(self, side: Side, number: int) -> str:
        """Return `changed rows as they are now`; all of them lie in the range."""
        same = " AND ".join(
            f"t.{quote(name)} = c.{quote(name)}" for name in self._tables[number].identity
        )
        # CROSS JOIN keeps the order: a few changed rows, each found by its primary key.
        changed = f"temp.partita_changed_{number} AS c"
        return f"{changed} CROSS JOIN {self._table(side, number)} AS t WHERE {same}"

    def _forget(self, seen: dict[int, int]) -> None:
        for number, last in seen.items():
            done = f"DELETE FROM {self._outbox(number)} WHERE partita_number <= {last}"
            with self._locked("source", functools.partial(self._run, done)):
                pass

    # --- comparing --------------------------------------------------------------------------------

    def compare_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        with self._transaction("target"):
            _, seen = self._apply(verify=True)
            end = self._end("source", number, after, limit)
            interval = self._behind(number, after) + self._until(number, end)
            rows = self._compare(
                number,
                self._rows("source", number, "t") + interval,
                self._rows("target", number, "t") + interval,
            )
        self._forget(seen)
        return Batch(rows, end)

    def _compare_whole(self) -> None:
        for number in range(len(self._tables)):
            sides = self._rows("source", number, "t"), self._rows("target", number, "t")
            self._compare(number, *sides)
        if (dangling := self._find_open_reference("target")) is not None:
            raise rows_dangle(dangling)

    def _compare(self, number: int, source: str, target: str) -> int:
        shape = self._tables[number]
        columns, order = listed(shape.copied, "t"), listed(shape.primary_key, "t")
        here, there = (
            _digest(self.target.execute(f"SELECT {columns} FROM {side} ORDER BY {order}"))
            for side in (source, target)
        )
        if here != there:
            raise rows_differ(shape.name, here[0], there[0])
        return here[0]

    # --- deleting ---------------------------------------------------------------------------------

    def delete_batch(self, side: Side, number: int, after: Position | None, limit: int) -> Batch:
        with self._transaction(side):
            end = self._end(side, number, after, limit)
            interval = self._behind(number, after) + self._until(number, end)
            rows = self.target.execute(f"DELETE FROM {self._rows(side, number)}{interval}").rowcount
            return Batch(rows, end)

    def wait_for_writers(self) -> None:
        # A file has one writer, whatever mapping it writes to.
        for side in _SCHEMAS:
            with self._transaction(side):
                pass

    def bound_time(self, seconds: float | None) -> None:
        self._wait_seconds = LOCK_SECONDS_MAX if seconds is None else max(seconds, 0.001)
        for driver in (self.source, self.target):
            driver.busy_seconds = min(self._wait_seconds, BUSY_TIMEOUT_SECONDS)

    def watch(self, held_up: HeldUp) -> None:
        self._held_up = held_up


def _described(shape: TableShape, key: ForeignKey) -> str:
    return f"{shape.name} ({', '.join(key.columns)}) to {key.table}"


def _keys(side: Side) -> str:
    return f"temp.{KEYS}_{side}"


def _digest(rows: sqlite3.Cursor) -> tuple[int, str]:
    digest, count = blake2b(digest_size=16), 0
    while block := rows.fetchmany(1_000):
        count += len(block)
        digest.update("".join(map(repr, block)).encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


def _shape(driver: Driver, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
    if table.schema is not None:
        return None  # a shard is one file: attached ones are not its own
    name = table.table
    found = driver.execute("SELECT * FROM pragma_table_xinfo(?, 'main')", (name,)).fetchall()
    if not found:
        return None
    columns = tuple(ColumnShape(row[1], row[2].upper(), row[6] in {2, 3}) for row in found)
    primary = sorted((row[5], row[1]) for row in found if row[5])
    return TableShape(
        None,
        name,
        columns,
        tuple(column for _, column in primary),
        sharding,
        tuple(_foreign_keys(driver, name)),
        tuple(row[0] for row in driver.execute(_REFERRING, (name,))),
        bool(driver.execute(_TRIGGERS, (name,)).fetchone()[0]),
    )


def _foreign_keys(driver: Driver, name: str) -> Iterator[ForeignKey]:
    pairs: dict[int, list[tuple[Any, ...]]] = {}
    listed_keys = "SELECT * FROM pragma_foreign_key_list(?, 'main') ORDER BY id, seq"
    for row in driver.execute(listed_keys, (name,)):
        pairs.setdefault(row[0], []).append(row)
    for rows in pairs.values():
        referred = tuple(row[4] for row in rows)
        if None in referred:  # SQLite's way to say: its primary key
            found = driver.execute("SELECT * FROM pragma_table_xinfo(?, 'main')", (rows[0][2],))
            referred = tuple(column for _, column in sorted((r[5], r[1]) for r in found if r[5]))
        yield ForeignKey(tuple(row[3] for row in rows), None, rows[0][2], referred)


def _unique(driver: Driver, shape: TableShape) -> list[list[str]]:
    found = driver.execute(_UNIQUE, (shape.table,)).fetchall()
    indexes = [
        [row[2] for row in driver.execute("SELECT * FROM pragma_index_info(?, 'main')", (name,))]
        for (name,) in found
    ]
    return [columns for columns in indexes if None not in columns]


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"x'{bytes(value).hex()}'"
    if isinstance(value, int | float):
        return repr(value).replace("inf", "9e999")
    text = str(value)
    if "\0" in text:
        return f"CAST(x'{text.encode().hex()}' AS TEXT)"
    return "'" + text.replace("'", "''") + "'"
