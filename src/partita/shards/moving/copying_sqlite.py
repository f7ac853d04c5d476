"""Copy rows from one SQLite file to another with INSERT … SELECT, in batches by primary key.

The connection of the target attaches the source as `partita_source`, so that one transaction has
one snapshot of the source and locks one file only. Rules: the first statement writes, because a
snapshot taken by a read may be too old to write; and the transaction does not begin with BEGIN
IMMEDIATE, which would also lock out the writers of the source.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

import contextlib
import fcntl
import functools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, cast

from partita.errors import OperationPendingError
from partita.shards.connections import writing_turns
from partita.shards.connections.engines import BUSY_TIMEOUT_SECONDS, Engines
from partita.shards.connections.locations import FILE_MODE
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.connections.writing_turns import WritingTurns
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import TableName
from partita.shards.moving import capture
from partita.shards.moving.blockers import SqliteBlocker, find_sqlite_blockers
from partita.shards.moving.capture import listed, outbox, quote
from partita.shards.moving.copying import KEYS, Shardlet, Side, rows_differ, tables_busy
from partita.shards.moving.move_plan import ColumnShape, ForeignKey, Position, Sides, TableShape
from partita.shards.moving.range_copy import RangeCopy, Seen

LOCK_SECONDS_MAX = 60.0
"""How long a move waits for the write lock of a file."""
LOOK_SECONDS = 0.5
"""The pause between two checks of which transaction holds the lock."""
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


class SqliteCopy(RangeCopy):
    """RowCopy between two SQLite files."""

    integrity_error = sqlite3.IntegrityError

    def __init__(
        self, engines: Engines, source: Location, target: Location, shardlet: Shardlet
    ) -> None:
        super().__init__(engines, source, shardlet, literal=_literal, binary="BINARY")
        self._wait_seconds = LOCK_SECONDS_MAX
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

    def _open(self, engines: Engines, location: Location) -> Driver:
        pooled = engines.admin(location).raw_connection()
        self._opened.append(pooled)
        driver = cast("Driver", pooled.driver_connection)
        # The actions of foreign keys were taken on the source and must not be repeated.
        driver.execute("PRAGMA foreign_keys = OFF")
        return driver

    def take(self, job_id: str) -> bool:
        # The operating system releases the lock when this process ends.
        path = Path(f"{self._path}-partita-{job_id[:12]}")
        path.touch(FILE_MODE)
        self._lock = path.open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self._holds_lock()  # a mover that has just ended may have removed the file

    def _holds_lock(self) -> bool:
        assert self._lock is not None
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._lock.fileno()), Path(self._lock.name).stat())
        return False

    def _check_lock(self) -> None:
        """Raise if the lock file was removed or replaced, because another mover may have locked it.

        It is called before each commit, while the file of the shard is locked: the transactions
        of that mover on the file come later. The shard itself cannot have the lock: closing a
        second descriptor of a database would release the locks of SQLite.
        """
        if self._lock is not None and not self._holds_lock():
            raise OperationPendingError(
                "MoveRunning",
                "The lock file of the move was removed or replaced; another process may run it.",
                facts={"file": self._lock.name},
                hint="Stop other processes that run the move, then continue it with resume().",
            )

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
        """Remove the lock file."""
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)

    # --- looking ----------------------------------------------------------------------------------

    def _shape(self, side: Side, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
        return _shape(self._driver(side), table, sharding)

    def obstacles(self, sharded: Sides) -> list[str]:
        found = [shape for shape in (*sharded.source, *sharded.target) if shape is not None]
        return [
            f"table {shape.name} has triggers, which SQLite cannot disable"
            for shape in found
            if shape.has_triggers
        ]

    # --- ranges and transactions ------------------------------------------------------------------

    def _table_name(self, side: Side, schema: str | None, table: str) -> str:  # noqa: ARG002 - none here
        return f"{_SCHEMAS[side]}.{quote(table)}"

    def _keys(self, side: Side) -> str:
        return f"temp.{KEYS}_{side}"

    def _fill_keys(self, side: Side) -> None:
        name = f"{KEYS}_{side}"
        if self._all(f"SELECT 1 FROM temp.sqlite_master WHERE name = '{name}'"):
            return
        queries = [
            "SELECT DISTINCT "
            + ", ".join(f"{quote(name)} AS k{place}" for place, name in enumerate(shape.sharding))
            + f" FROM {self._table(side, number)}"
            for number, shape in enumerate(self._tables)
        ]
        self._run(f"CREATE TEMP TABLE {name} AS {' UNION '.join(queries)}")
        self._delete_outside(0, f"temp.{name}", "*")

    def _delete_outside(self, number: int, name: str, columns: str) -> None:
        """Delete the rows of a temporary table whose keys are not in the range."""
        found = self._all(f"SELECT rowid, {columns} FROM {name}")
        table = self._texts[number]
        outside = [(row[0],) for row in found if not self._range.contains(table, row[1:])]
        self.target.executemany(f"DELETE FROM {name} WHERE rowid = ?", outside)

    @contextlib.contextmanager
    def _transaction(self, side: Side | None) -> Iterator[None]:
        """Open a transaction that writes to one file (None: none) with one snapshot of both."""
        with self._locked(side, lambda: self._begin(side)):
            try:
                yield
                self._drop_temporary()
                self._check_lock()
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
        """Wait for the write lock of a file, which `take()` takes; without a side, do not wait."""
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

    def _reading(self, side: Side) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002 - sees both
        return self._transaction(None)

    def _copying(self) -> contextlib.AbstractContextManager[None]:
        return self._transaction("target")

    def _deleting(self, side: Side) -> contextlib.AbstractContextManager[None]:
        return self._transaction(side)

    def _drop_temporary(self) -> None:
        for (name,) in self._all("SELECT name FROM temp.sqlite_master WHERE type = 'table'"):
            self._run(f"DROP TABLE temp.{quote(name)}")

    def _run(self, *statements: str) -> None:
        for statement in statements:
            self.target.execute(statement)

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        return self.target.execute(statement).fetchall()

    def _value(self, side: Side, query: str) -> Any:  # noqa: ARG002 - the query names it
        return self._all(query)[0][0]

    def _delete(self, side: Side, rows: str) -> int:  # noqa: ARG002 - `rows` names it
        return self.target.execute(f"DELETE FROM {rows}").rowcount

    def _insert(self, number: int, rows: str, alias: str = "") -> int:
        names = self._tables[number].copied
        return self.target.execute(
            f"INSERT INTO {self._table('target', number)} ({listed(names)}) "
            f"SELECT {listed(names, alias)} FROM {rows}"
        ).rowcount

    # --- reference tables -------------------------------------------------------------------------

    def copy_reference(self, shape: TableShape) -> int:
        with self._transaction("target"):
            name, columns = quote(shape.table), listed(shape.copied)
            if self._value("target", f"SELECT EXISTS (SELECT 1 FROM main.{name})"):
                return 0
            return self.target.execute(
                f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM {ATTACHED}.{name}"
            ).rowcount

    # --- capture ----------------------------------------------------------------------------------

    def install_capture(self, installed: Callable[[int], None]) -> None:
        for number, shape in enumerate(self._tables):
            statements = capture.sqlite_capture(
                shape,
                outbox(self._job, number),
                self._capture_conditions(number),
                _unique(self.source, shape),
                self._range.condition(self._texts[number], keys=None),
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
                self._check_lock()
                self.source.execute("COMMIT")
            except BaseException:
                self.source.execute("ROLLBACK")
                raise

    # --- batches ----------------------------------------------------------------------------------

    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        order = listed(self._tables[number].primary_key)
        found = self._all(
            f"SELECT {order} FROM {self._rows(side, number)}{self._after(number, after)} "
            f"ORDER BY {order} LIMIT 1 OFFSET {limit - 1}"
        )
        return tuple(_literal(value) for value in found[0]) if found else None

    def _against(self, number: int, operator: str, position: Position) -> str:
        order = listed(self._tables[number].primary_key)
        return f"({order}) {operator} ({', '.join(position)})"

    # --- replaying --------------------------------------------------------------------------------

    def _outbox(self, number: int) -> str:
        return f"{ATTACHED}.{quote(outbox(self._job, number))}"

    def _read_outboxes(self) -> Seen:
        # Writers are serial, so entries up to the greatest number are complete.
        numbers = range(len(self._tables))
        return {number: str(last) for number in numbers if (last := self._last(number))}

    def _last(self, number: int) -> int:
        """Return the number of the last entry of an outbox; 0 if it is empty."""
        last = self._value("source", f"SELECT max(partita_number) FROM {self._outbox(number)}")
        return 0 if last is None else int(last)

    def _list_changed(self, number: int) -> int:
        shape, name = self._tables[number], f"temp.partita_changed_{number}"
        self._run(
            f"CREATE TEMP TABLE partita_changed_{number} AS "
            f"SELECT DISTINCT {listed(shape.identity)} FROM {self._outbox(number)}"
        )
        if self._range.is_hashed:
            self._delete_outside(number, name, listed(shape.sharding))
        return int(self._value("target", f"SELECT count(*) FROM {name}"))

    def _delete_changed(self, number: int) -> None:
        names = listed(self._tables[number].identity)
        changed = f"SELECT {names} FROM temp.partita_changed_{number}"
        self._delete("target", f"{self._table('target', number)} WHERE ({names}) IN ({changed})")

    def _changed(self, side: Side, number: int) -> str:
        # CROSS JOIN fixes the order: a few changed rows, each found by its primary key.
        changed = f"temp.partita_changed_{number} AS c"
        return f"{changed} CROSS JOIN {self._table(side, number)} AS t WHERE {self._same(number)}"

    def _forget(self, seen: Seen) -> None:
        for number, last in seen.items():
            done = f"DELETE FROM {self._outbox(number)} WHERE partita_number <= {last}"
            self._check_lock()
            with self._locked("source", functools.partial(self._run, done)):
                pass

    # --- comparing --------------------------------------------------------------------------------

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

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for_writers(self) -> None:
        # A file has one writer, whatever its mapping.
        for side in _SCHEMAS:
            with self._transaction(side):
                pass

    def bound_time(self, seconds: float | None) -> None:
        self._wait_seconds = LOCK_SECONDS_MAX if seconds is None else max(seconds, 0.001)
        for driver in (self.source, self.target):
            driver.busy_seconds = min(self._wait_seconds, BUSY_TIMEOUT_SECONDS)


def _digest(rows: sqlite3.Cursor) -> tuple[int, str]:
    digest, count = blake2b(digest_size=16), 0
    while block := rows.fetchmany(1_000):
        count += len(block)
        digest.update("".join(map(repr, block)).encode("utf-8", "surrogatepass"))
    return count, digest.hexdigest()


def _shape(driver: Driver, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
    if table.schema is not None:
        return None  # a shard is one file; schemas are attached files
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
        if None in referred:  # the primary key of the parent
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
