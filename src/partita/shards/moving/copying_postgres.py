"""Copy rows from one PostgreSQL database to another with COPY, in batches by primary key.

One batch or pass is one transaction on the target, read in one snapshot of the source. Triggers and
foreign keys of the target are disabled (session_replication_role): they took effect on the source.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from partita.errors import MoveRefusedError
from partita.shards.connections.engines import Engines
from partita.shards.connections.validation import lock_number
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedTable, TableName
from partita.shards.moving import capture
from partita.shards.moving.blockers import Blocker, shortened
from partita.shards.moving.capture import listed, outbox, quote, quoted_name, table_name
from partita.shards.moving.copying import KEYS, Shardlet, Side, rows_differ, tables_busy
from partita.shards.moving.move_plan import ColumnShape, ForeignKey, Position, Sides, TableShape
from partita.shards.moving.range_copy import RangeCopy, Seen

LOCK_TRIES = 120
LOCK_PAUSE_SECONDS = 0.25
LOCK_TIMEOUT_MS = 250
"""Writers queue behind a waiting lock, so it waits briefly and often: a minute in all."""
ROWS_PER_BLOCK = 128
# The sessions that have locked the table for longer than one attempt. Readers count: the lock that
# removes triggers conflicts with them as well.
_BLOCKERS = """
SELECT DISTINCT a.pid, coalesce(a.application_name, ''), coalesce(a.state, ''),
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age, coalesce(a.query, '')
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.relation = CAST(%s AS regclass) AND l.granted AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND clock_timestamp() - a.xact_start > make_interval(secs => %s)
ORDER BY age DESC
"""

_SETTINGS = """
SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC';
SET extra_float_digits = 1; SET bytea_output = 'hex'; SET standard_conforming_strings = on;
SET row_security = off; SET client_encoding = 'UTF8'; SET idle_in_transaction_session_timeout = 0;
SET max_parallel_workers_per_gather = 0; SET work_mem = '32MB'
"""
_REPLICATE = "SET session_replication_role = replica"

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '', a.atttypid < 16384,
  coalesce(CASE WHEN c.collname = 'default' THEN d.datcollate ELSE c.collname END, '')
FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation,
  pg_database d
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
  AND d.datname = current_database() ORDER BY a.attnum
"""
_PRIMARY_KEY = """
SELECT a.attname FROM pg_constraint c, unnest(c.conkey) WITH ORDINALITY k(number, place)
JOIN pg_attribute a ON a.attnum = k.number
WHERE c.conrelid = to_regclass(%s) AND c.contype = 'p' AND a.attrelid = c.conrelid ORDER BY k.place
"""
_FOREIGN_KEYS = """
SELECT c.conname,
  ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY k(number, place)
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number ORDER BY k.place),
  CASE WHEN n.nspname <> current_schema() THEN n.nspname END, r.relname,
  ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY k(number, place)
    JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number ORDER BY k.place)
FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid
JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE c.conrelid = to_regclass(%s) AND c.contype = 'f' AND c.conparentid = 0
"""
_REFERRING = """
SELECT DISTINCT CASE WHEN n.nspname <> current_schema() THEN n.nspname || '.' ELSE '' END
  || r.relname
FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE c.confrelid = to_regclass(%s) AND c.contype = 'f' AND c.conparentid = 0
"""
_TRIGGERS = """
SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal
  AND NOT starts_with(tgname, 'partita_'))
"""
_HASHES = ", ".join(
    f'coalesce(sum(hashtextextended(partita_row COLLATE "C", {seed})), 0)' for seed in (1, 2)
)
"""The sums of two hashes of the text of each row, which do not depend on the order of rows."""

_BYTE_ORDERS = frozenset(("C", "POSIX", "ucs_basic", "C.UTF-8", "C.utf8"))
"""Collations that compare text by its bytes, so that their indexes can be used for the range."""

Driver = psycopg.Connection[Any]


class PostgresCopy(RangeCopy):
    """RowCopy between two PostgreSQL databases."""

    integrity_error = errors.IntegrityError

    def __init__(
        self, engines: Engines, source: Location, target: Location, shardlet: Shardlet
    ) -> None:
        super().__init__(engines, source, shardlet, literal=_literal, binary='"C"')
        self._is_taken = False
        self._schema = ""
        self._hashed: set[Side] = set()
        """The sides whose table of keys is filled."""
        try:
            self.source = self._open(engines, source)
            self.target = self._open(engines, target)
        except BaseException:
            self.close()
            raise
        self.source.isolation_level = IsolationLevel.REPEATABLE_READ
        self._may_replicate = (_may_replicate(self.source), _may_replicate(self.target))
        if self._may_replicate[1]:
            _run(self.target, _REPLICATE)
        self.target.commit()
        self._schema = self._value("source", "SELECT current_schema()")
        self.source.commit()

    def _open(self, engines: Engines, location: Location) -> Driver:
        pooled = engines.admin(location).raw_connection()
        self._opened.append(pooled)
        driver = pooled.driver_connection
        if not isinstance(driver, psycopg.Connection):
            raise MoveRefusedError(
                "MoveRefused",
                "Moves between PostgreSQL databases need the driver psycopg 3.",
                facts={"shard": location.text},
                hint="Write the location as postgresql+psycopg://.",
            )
        _run(driver, _SETTINGS)
        driver.commit()
        return driver

    def take(self, job_id: str) -> bool:
        query = f"SELECT pg_try_advisory_lock({lock_number(job_id)}::bigint)"
        taken = self._value("source", query)
        self.source.commit()
        self._is_taken = bool(taken)
        return self._is_taken

    @property
    def driver_error(self) -> type[Exception]:
        return psycopg.Error

    def release(self) -> None:
        """Do nothing: the lock ends with its session."""

    def close(self) -> None:
        if self._is_taken and self.source.info.transaction_status != TransactionStatus.ACTIVE:
            # The server ends a session some time after its connection is closed; until then its
            # lock would block the next mover.
            with contextlib.suppress(psycopg.Error):
                self.source.rollback()
                _run(self.source, "SELECT pg_advisory_unlock_all()")
                self.source.commit()
        for pooled in self._opened:
            # The connection may be broken; its session locks end with it.
            with contextlib.suppress(psycopg.Error):
                pooled.invalidate()
            pooled.close()
        self._opened.clear()

    # --- looking ----------------------------------------------------------------------------------

    def look(
        self, tables: Sequence[ShardedTable], others: Sequence[TableName]
    ) -> tuple[Sides, Sides]:
        try:
            return super().look(tables, others)
        finally:
            self.source.rollback()
            self.target.rollback()

    def _shape(self, side: Side, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
        return _shape(self._driver(side), table, sharding)

    def obstacles(self, sharded: Sides) -> list[str]:  # noqa: ARG002 - the contract's
        return []

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        super().use(sharded, job_id)
        self._range.plain = {
            (shape.name, column.name)
            for shape in sharded
            for column in shape.columns
            if column.collation in _BYTE_ORDERS
        }

    # --- ranges -----------------------------------------------------------------------------------

    def _table_name(self, side: Side, schema: str | None, table: str) -> str:  # noqa: ARG002 - the same
        return quoted_name(schema, table)

    def _keys(self, side: Side) -> str:  # noqa: ARG002 - each session has its own
        return KEYS

    def _fill_keys(self, side: Side) -> None:
        if side in self._hashed:
            return
        driver = self._driver(side)
        keys = [
            f"SELECT DISTINCT {', '.join(_numbered(shape.sharding))} FROM {table_name(shape)}"
            for shape in self._tables
        ]
        _run(driver, f"DROP TABLE IF EXISTS {KEYS}")
        union = " UNION ".join(keys)
        _run(driver, f"CREATE TEMP TABLE {KEYS} ON COMMIT DROP AS {union}")
        names = [f"k{number}" for number in range(len(self._tables[0].sharding))]
        self._delete_outside(driver, 0, KEYS, names)
        _run(driver, f"ANALYZE {KEYS}")
        self._hashed.add(side)

    def _delete_outside(
        self, driver: Driver, number: int, name: str, columns: Sequence[str]
    ) -> None:
        """Delete the rows of a temporary table whose keys are not in the range."""
        keys = _all(driver, f"SELECT DISTINCT {listed(columns)} FROM {name}")
        outside = [row for row in keys if not self._range.contains(self._texts[number], row)]
        # A percent sign in a name would be read as a placeholder.
        names = [quote(column).replace("%", "%%") for column in columns]
        same = " AND ".join(f"{column} IS NOT DISTINCT FROM %s" for column in names)
        with driver.cursor() as cursor:
            cursor.executemany(f"DELETE FROM {name} WHERE {same}".encode(), outside)

    def _driver(self, side: Side) -> Driver:
        return self.source if side == "source" else self.target

    @contextlib.contextmanager
    def _snapshot(self, side: Side) -> Iterator[Driver]:
        """Open a transaction on one side; the table of keys is dropped at its end."""
        driver = self._driver(side)
        try:
            with driver.transaction():
                yield driver
        finally:
            self._hashed.discard(side)

    def _reading(self, side: Side) -> contextlib.AbstractContextManager[Driver]:
        return self._snapshot(side)

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        # The target commits first.
        with self._snapshot("source"), self._snapshot("target"):
            yield

    @contextlib.contextmanager
    def _deleting(self, side: Side) -> Iterator[None]:
        with self._snapshot(side) as driver:
            if side == "source" and self._may_replicate[0]:
                _run(driver, _REPLICATE.replace("SET", "SET LOCAL", 1))
            yield

    def _value(self, side: Side, query: str) -> Any:
        return _all(self._driver(side), query)[0][0]

    def _delete(self, side: Side, rows: str) -> int:
        return self._driver(side).execute(f"DELETE FROM {rows}".encode()).rowcount

    def _insert(self, number: int, rows: str, alias: str = "") -> int:
        shape = self._tables[number]
        columns, order = listed(shape.copied, alias), listed(shape.primary_key, alias)
        return self._pipe(shape, f"SELECT {columns} FROM {rows} ORDER BY {order}")

    # --- reference tables -------------------------------------------------------------------------

    def copy_reference(self, shape: TableShape) -> int:
        with self._copying():
            name = table_name(shape)
            _run(self.target, f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE")
            if self._value("target", f"SELECT EXISTS (SELECT FROM {name})"):
                return 0
            return self._pipe(shape, f"SELECT {listed(shape.copied)} FROM {name}")

    def _pipe(self, shape: TableShape, query: str) -> int:
        target = f"{table_name(shape)} ({listed(shape.copied)})"
        return _pipe(self.source, self.target, query, target, is_binary=shape.is_portable)

    # --- capture ----------------------------------------------------------------------------------

    def install_capture(self, installed: Callable[[int], None]) -> None:
        for number, shape in enumerate(self._tables):
            name = outbox(self._job, number)
            conditions = self._capture_conditions(number)
            with self.source.transaction():
                _run(self.source, *capture.postgres_outbox(shape, name, self._schema))
                function = capture.postgres_function(shape, name, self._schema, conditions)
                _run(self.source, *function)
            self._execute_with_lock(shape, capture.postgres_triggers(shape, name, self._schema))
            installed(number)

    def remove_capture(self) -> None:
        for number, shape in enumerate(self._tables):
            name = outbox(self._job, number)
            self._execute_with_lock(shape, capture.postgres_removal(shape, name, self._schema))

    def _execute_with_lock(self, shape: TableShape, statements: Sequence[str]) -> None:
        """Execute statements that lock a table, in many short attempts."""
        blockers: list[Blocker] = []
        for number in range(1, LOCK_TRIES + 1):
            try:
                with self.source.transaction():
                    _run(self.source, f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}", *statements)
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                blockers = self._blockers(shape)
                seconds = number * (LOCK_TIMEOUT_MS / 1000 + LOCK_PAUSE_SECONDS)
                self._terminate(shape, blockers, self._held_up(shape.name, blockers, seconds))
                # Writers that queued behind the waiting lock continue in this pause.
                time.sleep(LOCK_PAUSE_SECONDS)
            else:
                return
        raise tables_busy(shape.name, blockers)

    def _blockers(self, shape: TableShape) -> list[Blocker]:
        # The transaction ends here: later statements in it would have the same snapshot.
        with self.source.transaction():
            rows = self.source.execute(_BLOCKERS, (table_name(shape), LOCK_TIMEOUT_MS / 1000))
            return [
                Blocker(pid, application, state, age, shortened(query))
                for pid, application, state, age, query in rows
            ]

    def _terminate(
        self, shape: TableShape, blockers: Sequence[Blocker], ended: Sequence[Blocker]
    ) -> None:
        for each in ended:
            try:
                with self.source.transaction():
                    self.source.execute("SELECT pg_terminate_backend(%s)", (each.pid,))
            except errors.InsufficientPrivilege as error:
                raise tables_busy(shape.name, blockers) from error

    # --- batches ----------------------------------------------------------------------------------

    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        driver, shape = self._driver(side), self._tables[number]
        as_text = ", ".join(f"t.{quote(name)}::text" for name in shape.primary_key)
        rows = self._rows(side, number, "t") + self._after(number, after)
        # Use the index of the primary key: sorting the table for each batch would be expensive.
        _run(driver, "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        # With the alias, because a plain name would refer to the selected text.
        order = listed(shape.primary_key, "t")
        found = _all(
            driver, f"SELECT {as_text} FROM {rows} ORDER BY {order} OFFSET {limit - 1} LIMIT 1"
        )
        return tuple(found[0]) if found else None

    def _against(self, number: int, operator: str, position: Position) -> str:
        shape = self._tables[number]
        types = {column.name: column.type for column in shape.columns}
        values = ", ".join(
            f"{_text(value)}::{types[name]}"
            for name, value in zip(shape.primary_key, position, strict=True)
        )
        return f"({listed(shape.primary_key)}) {operator} ({values})"

    # --- replaying --------------------------------------------------------------------------------

    def _outbox(self, number: int) -> str:
        return f"{quote(self._schema)}.{quote(outbox(self._job, number))}"

    def _read_outboxes(self) -> Seen:
        # In one query, because most passes behind the fence find nothing.
        numbers = range(len(self._tables))
        filled = [f"EXISTS (SELECT FROM {self._outbox(number)})" for number in numbers]
        query = f"SELECT pg_current_snapshot()::text, {', '.join(filled)}"
        snapshot, *found = _all(self.source, query)[0]
        return {number: snapshot for number in numbers if found[number]}

    def _list_changed(self, number: int) -> int:
        shape, name = self._tables[number], f"partita_changed_{number}"
        _run(
            self.source,
            f"DROP TABLE IF EXISTS pg_temp.{name}",
            f"CREATE TEMP TABLE {name} ON COMMIT DROP AS "
            f"SELECT DISTINCT {listed(shape.identity)} FROM {self._outbox(number)}",
        )
        if self._range.is_hashed:
            self._delete_outside(self.source, number, name, shape.sharding)
        return int(self._value("source", f"SELECT count(*) FROM {name}"))

    def _delete_changed(self, number: int) -> None:
        shape, name = self._tables[number], f"partita_changed_{number}"
        identity = listed(shape.identity)
        _run(
            self.target,
            f"DROP TABLE IF EXISTS pg_temp.{name}",
            f"CREATE TEMP TABLE {name} ON COMMIT DROP AS "
            f"SELECT {identity} FROM {table_name(shape)} WITH NO DATA",
        )
        query = f"SELECT {identity} FROM {name}"
        target = f"{name} ({identity})"
        _pipe(self.source, self.target, query, target, is_binary=shape.is_portable)
        _run(self.target, f"ANALYZE {name}")
        _run(
            self.target,
            f"DELETE FROM {table_name(shape)} t USING {name} c WHERE {self._same(number)}",
        )

    def _changed(self, side: Side, number: int) -> str:
        table, changed = self._table(side, number), f"partita_changed_{number}"
        return f"{table} t, {changed} c WHERE {self._same(number)}"

    def _forget(self, seen: Seen) -> None:
        if not seen:
            return
        with self._snapshot("source"):
            for number, snapshot in seen.items():
                visible = f"pg_visible_in_snapshot(partita_tx, {_text(snapshot)}::pg_snapshot)"
                _run(self.source, f"DELETE FROM {self._outbox(number)} WHERE {visible}")

    # --- comparing --------------------------------------------------------------------------------

    def _compare(self, number: int, source: str, target: str) -> int:
        shape = self._tables[number]
        row = f"ROW({listed(shape.copied, 't')})::text AS partita_row"
        # OFFSET 0 prevents PostgreSQL from building the text once per hash.
        here, there = (
            _all(driver, f"SELECT count(*), {_HASHES} FROM (SELECT {row} FROM {rows} OFFSET 0) q")
            for driver, rows in ((self.source, source), (self.target, target))
        )
        if here != there:
            raise rows_differ(shape.name, here[0][0], there[0][0])
        return int(here[0][0])

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for_writers(self) -> None:
        """Do nothing: transactions of other mappings do not lock the catalogs."""

    def bound_time(self, seconds: float | None) -> None:
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        for driver in (self.source, self.target):
            _run(driver, f"SET statement_timeout = {milliseconds}")
            driver.commit()


# --- statements: without parameters, which COPY and triggers do not support -----------------------


def _run(driver: Driver, *statements: str) -> None:
    # In one message, which cannot be prepared.
    driver.execute("; ".join(statements).encode(), prepare=False)


def _all(driver: Driver, statement: str) -> list[tuple[Any, ...]]:
    return driver.execute(statement.encode()).fetchall()


def _pipe(source: Driver, target: Driver, query: str, into: str, *, is_binary: bool) -> int:
    form = "(FORMAT binary)" if is_binary else ""
    with source.cursor() as reader, target.cursor() as writer:
        with (
            reader.copy(f"COPY ({query}) TO STDOUT {form}".encode()),
            writer.copy(f"COPY {into} FROM STDIN {form}".encode()) as writing,
        ):
            for block in _blocks(source.pgconn):
                writing.write(block)
        return writer.rowcount


def _blocks(source: PGconn) -> Iterator[bytes]:
    """Yield the data of a COPY TO, many rows at a time.

    Read from libpq, which returns single rows: through the cursor each row takes three times as
    long, more than the work of both databases.
    """
    rows: list[memoryview] = []
    poll = select.poll()
    poll.register(source.socket, select.POLLIN)
    while (size := (answer := source.get_copy_data(1))[0]) >= 0:
        if size:
            rows.append(answer[1])
        else:
            poll.poll()
            source.consume_input()
        if len(rows) == ROWS_PER_BLOCK:
            yield b"".join(rows)
            rows.clear()
    if rows:
        yield b"".join(rows)
    ended = source.get_result()
    if ended is not None and ended.status != ExecStatus.COMMAND_OK:
        raise errors.error_from_result(ended)
    while source.get_result() is not None:
        pass


def _shape(driver: Driver, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
    name = (quoted_name(table.schema, table.table),)
    questions = (_EXISTS, _COLUMNS, _PRIMARY_KEY, _FOREIGN_KEYS, _REFERRING, _TRIGGERS)
    with driver.pipeline():
        answers = [driver.execute(question, name) for question in questions]
    exists, columns, primary, foreign, referring, triggers = (one.fetchall() for one in answers)
    if not exists[0][0]:
        return None
    return TableShape(
        table.schema,
        table.table,
        tuple(ColumnShape(*row) for row in columns),
        tuple(row[0] for row in primary),
        sharding,
        tuple(ForeignKey(tuple(row[1]), row[2], row[3], tuple(row[4])) for row in foreign),
        tuple(row[0] for row in referring),
        bool(triggers[0][0]),
    )


def _may_replicate(driver: Driver) -> bool:
    try:
        with driver.transaction():
            _run(driver, _REPLICATE.replace("SET", "SET LOCAL", 1))
    except errors.InsufficientPrivilege:
        return False
    return True


def _numbered(columns: Sequence[str]) -> list[str]:
    return [f"{quote(name)} AS k{number}" for number, name in enumerate(columns)]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(value: Any) -> str:  # noqa: PLR0911 - one case per type
    if isinstance(value, bool) or value is None:
        msg = f"not a sharding key: {value!r}"
        raise TypeError(msg)
    if isinstance(value, int):
        return f"({value})"
    if isinstance(value, psycopg.Binary):
        value = value.obj
    if isinstance(value, bytes | bytearray | memoryview):
        return f"'\\x{bytes(value).hex()}'::bytea"
    if isinstance(value, UUID):
        return f"'{value}'::uuid"
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::timestamptz"
    if isinstance(value, date):
        return f"'{value.isoformat()}'::date"
    if isinstance(value, timedelta):
        seconds = f"{value.seconds}.{value.microseconds:06}"
        return f"'{value.days} days {seconds} seconds'::interval"
    if isinstance(value, Decimal):
        return f"'{value:f}'::numeric"
    return _text(str(value))
