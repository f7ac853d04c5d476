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

import msgspec
import psycopg
from psycopg import IsolationLevel, errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from partita.errors import MoveRefusedError
from partita.shards.connections.engines import Engines
from partita.shards.connections.session_probe import POOLER_HINT, keeps_session
from partita.shards.connections.validation import lock_number
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedTable, TableName
from partita.shards.moving import capture
from partita.shards.moving.blockers import Blocker, shortened
from partita.shards.moving.capture import listed, outbox, quote, quoted_name
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
  extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::pg_catalog.float8 AS age,
  coalesce(a.query, '')
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.relation = CAST(%s AS pg_catalog.regclass) AND l.granted
  AND l.pid <> pg_catalog.pg_backend_pid()
  AND l.database = (
    SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND pg_catalog.clock_timestamp() - a.xact_start > pg_catalog.make_interval(secs => %s)
ORDER BY age DESC
"""

# Set in every transaction, so that nothing of it is left in the session. The path has no schema in
# which others could define functions or operators that fit the arguments of a query better than
# PostgreSQL's own; tables are named with their schemas.
_SETTINGS = """
SET LOCAL DateStyle = 'ISO'; SET LOCAL IntervalStyle = 'postgres'; SET LOCAL TimeZone = 'UTC';
SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex';
SET LOCAL standard_conforming_strings = on; SET LOCAL row_security = off;
SET LOCAL client_encoding = 'UTF8'; SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL work_mem = '32MB'
"""
_REPLICATE = "SET LOCAL session_replication_role = replica"

# In the path of the role, where others may define operators: only exact types are compared.
_SCHEMA = """
SELECT n.nspname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = CAST(pg_catalog.to_regclass(%s) AS pg_catalog.oid)
"""
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
  a.atttypid < 16384,
  coalesce(CASE WHEN c.collname = 'default' THEN d.datcollate ELSE c.collname END, '')
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation, pg_catalog.pg_database d
WHERE a.attrelid = pg_catalog.to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped
  AND d.datname = pg_catalog.current_database() ORDER BY a.attnum
"""
_PRIMARY_KEY = """
SELECT a.attname FROM pg_catalog.pg_constraint c,
  pg_catalog.unnest(c.conkey) WITH ORDINALITY k(number, place)
JOIN pg_catalog.pg_attribute a ON a.attnum = k.number
WHERE c.conrelid = pg_catalog.to_regclass(%(name)s) AND c.contype = 'p'
  AND a.attrelid = c.conrelid ORDER BY k.place
"""
_FOREIGN_KEYS = """
SELECT c.conname,
  ARRAY(SELECT CAST(a.attname AS pg_catalog.text)
    FROM pg_catalog.unnest(c.conkey) WITH ORDINALITY k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number
    ORDER BY k.place),
  CASE WHEN n.nspname <> %(current)s THEN n.nspname END, r.relname,
  ARRAY(SELECT CAST(a.attname AS pg_catalog.text)
    FROM pg_catalog.unnest(c.confkey) WITH ORDINALITY k(number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number
    ORDER BY k.place)
FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_class r ON r.oid = c.confrelid
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
WHERE c.conrelid = pg_catalog.to_regclass(%(name)s) AND c.contype = 'f' AND c.conparentid = 0
"""
_REFERRING = """
SELECT DISTINCT CASE WHEN n.nspname <> %(current)s THEN n.nspname || '.' ELSE '' END || r.relname
FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_class r ON r.oid = c.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace
WHERE c.confrelid = pg_catalog.to_regclass(%(name)s) AND c.contype = 'f' AND c.conparentid = 0
"""
_TRIGGERS = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger
  WHERE tgrelid = pg_catalog.to_regclass(%(name)s) AND NOT tgisinternal
  AND NOT pg_catalog.starts_with(tgname, 'partita_'))
"""
_OPERATOR_SCHEMAS = """
SELECT DISTINCT n.nspname FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indclass) k(class)
JOIN pg_catalog.pg_opclass o ON o.oid = k.class
JOIN pg_catalog.pg_amop m ON m.amopfamily = o.opcfamily
JOIN pg_catalog.pg_operator p ON p.oid = m.amopopr
JOIN pg_catalog.pg_namespace n ON n.oid = p.oprnamespace
WHERE i.indrelid = pg_catalog.to_regclass(%s) AND i.indisprimary AND n.nspname <> 'pg_catalog'
"""
"""The schemas of the operators that compare a primary key of a type of an extension."""
_OWNED = """
SELECT c.relkind = 'r' AND c.relowner = u.oid AND p.proowner = u.oid
FROM pg_catalog.pg_class c, pg_catalog.pg_proc p, pg_catalog.pg_roles u
WHERE c.oid = CAST(%(outbox)s AS pg_catalog.regclass) AND p.proname = %(function)s
  AND p.pronamespace = c.relnamespace AND p.pronargs = 0 AND u.rolname = CURRENT_USER
"""
_HASHES = ", ".join(
    f'coalesce(sum(pg_catalog.hashtextextended(partita_row COLLATE pg_catalog."C", {seed})), 0)'
    for seed in (1, 2)
)
"""The sums of two hashes of the text of each row, which do not depend on the order of rows."""

_BYTE_ORDERS = frozenset(("C", "POSIX", "ucs_basic", "C.UTF-8", "C.utf8"))
"""Collations that compare text by its bytes, so that their indexes can be used for the range."""

_PATH = "pg_catalog, pg_temp"
_KEYS = f"pg_temp.{KEYS}"
_SIDES: tuple[Side, Side] = ("source", "target")

Driver = psycopg.Connection[Any]


class PostgresCopy(RangeCopy):
    """RowCopy between two PostgreSQL databases."""

    integrity_error = errors.IntegrityError

    def __init__(
        self, engines: Engines, source: Location, target: Location, shardlet: Shardlet
    ) -> None:
        super().__init__(engines, source, shardlet, literal=_literal, binary='pg_catalog."C"')
        self._is_taken = False
        self._schemas: dict[tuple[Side, str], str] = {}
        """The schemas of the tables that are named without one; by "", the current schema."""
        self._path: dict[Side, str] = {"source": _PATH, "target": _PATH}
        self._timeout_ms = 0
        self._hashed: set[Side] = set()
        """The sides whose table of keys is filled."""
        self._may_replicate = (False, False)
        try:
            self.source = self._open(engines, source)
            self.target = self._open(engines, target)
        except BaseException:
            self.close()
            raise
        self.source.isolation_level = IsolationLevel.REPEATABLE_READ
        self._may_replicate = (_may_replicate(self.source), _may_replicate(self.target))
        for side in _SIDES:
            with self._driver(side).transaction():
                schema = self._value(side, "SELECT pg_catalog.current_schema()")
            self._schemas[side, ""] = schema

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
        if not keeps_session(pooled, engines.admin(location).raw_connection):
            raise MoveRefusedError(
                "TransactionPooler",
                "A move needs a session of its own, and a pooler in transaction mode is between "
                "it and the shard.",
                facts={"shard": location.text},
                hint=POOLER_HINT,
            )
        return driver

    @contextlib.contextmanager
    def _transaction(self, side: Side) -> Iterator[Driver]:
        """Open a transaction with the settings of movers."""
        driver = self._driver(side)
        with driver.transaction():
            settings = [
                _SETTINGS,
                f"SET LOCAL search_path = {self._path[side]}",
                f"SET LOCAL statement_timeout = {self._timeout_ms}",
            ]
            if side == "target" and self._may_replicate[1]:
                settings.append(_REPLICATE)
            _run(driver, *settings)
            yield driver

    def take(self, job_id: str) -> bool:
        number = lock_number(job_id)
        with self._transaction("source"):
            query = f"SELECT pg_catalog.pg_try_advisory_lock(CAST({number} AS pg_catalog.int8))"
            self._is_taken = bool(self._value("source", query))
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
                _run(self.source, "SELECT pg_catalog.pg_advisory_unlock_all()")
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
        for side in _SIDES:
            driver = self._driver(side)
            with driver.transaction():
                for table in (*tables, *others):
                    name = quoted_name(table.schema, table.table)
                    found = driver.execute(_SCHEMA, (name,)).fetchone()
                    if found is not None:
                        self._schemas[side, table.name] = found[0]
        with self._transaction("source"), self._transaction("target"):
            return super().look(tables, others)

    def _shape(self, side: Side, table: TableName, sharding: tuple[str, ...]) -> TableShape | None:
        if (side, table.name) not in self._schemas:
            return None
        name = self._table_name(side, table.schema, table.table)
        return _shape(self._driver(side), name, self._schemas[side, ""], table, sharding)

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
        for side in _SIDES:
            self._path[side] = self._safe_path(side)

    def _safe_path(self, side: Side) -> str:
        """Return the path, with the schemas of extensions whose operators compare the keys."""
        schemas = set[str]()
        with self._transaction(side) as driver:
            for number, shape in enumerate(self._tables):
                if not shape.is_portable:
                    rows = driver.execute(_OPERATOR_SCHEMAS, (self._table(side, number),))
                    schemas.update(row[0] for row in rows)
        return ", ".join(("pg_catalog", *map(quote, sorted(schemas)), "pg_temp"))

    def _located(self, shape: TableShape) -> TableShape:
        """Return the shape with the schema that the table has on the source."""
        schema = self._schemas.get(("source", shape.name), self._schemas["source", ""])
        return msgspec.structs.replace(shape, schema=shape.schema or schema)

    # --- ranges -----------------------------------------------------------------------------------

    def _table_name(self, side: Side, schema: str | None, table: str) -> str:
        if schema is None:
            schema = self._schemas.get((side, table), self._schemas[side, ""])
        return quoted_name(schema, table)

    def _keys(self, side: Side) -> str:  # noqa: ARG002 - each session has its own
        return _KEYS

    def _fill_keys(self, side: Side) -> None:
        if side in self._hashed:
            return
        driver = self._driver(side)
        keys = []
        for number, shape in enumerate(self._tables):
            columns = ", ".join(_numbered(shape.sharding))
            keys.append(f"SELECT DISTINCT {columns} FROM {self._table(side, number)}")
        _run(driver, f"DROP TABLE IF EXISTS {_KEYS}")
        union = " UNION ".join(keys)
        _run(driver, f"CREATE TEMP TABLE {_KEYS} ON COMMIT DROP AS {union}")
        names = [f"k{number}" for number in range(len(self._tables[0].sharding))]
        self._delete_outside(driver, 0, _KEYS, names)
        _run(driver, f"ANALYZE {_KEYS}")
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
        try:
            with self._transaction(side) as driver:
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
                _run(driver, _REPLICATE)
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
            here, there = (self._table_name(side, shape.schema, shape.table) for side in _SIDES)
            _run(self.target, f"LOCK TABLE {there} IN SHARE ROW EXCLUSIVE MODE")
            if self._value("target", f"SELECT EXISTS (SELECT FROM {there})"):
                return 0
            return self._pipe(shape, f"SELECT {listed(shape.copied)} FROM {here}")

    def _pipe(self, shape: TableShape, query: str) -> int:
        name = self._table_name("target", shape.schema, shape.table)
        target = f"{name} ({listed(shape.copied)})"
        return _pipe(self.source, self.target, query, target, is_binary=shape.is_portable)

    # --- capture ----------------------------------------------------------------------------------

    def install_capture(self, installed: Callable[[int], None]) -> None:
        schema = self._schemas["source", ""]
        for number, shape in enumerate(self._tables):
            name, located = outbox(self._job, number), self._located(shape)
            conditions = self._capture_conditions(number)
            with self._transaction("source"):
                _run(self.source, *capture.postgres_outbox(located, name, schema))
                _run(self.source, *capture.postgres_function(located, name, schema, conditions))
                self._check_owner(number, name)
            self._execute_with_lock(shape, capture.postgres_triggers(located, name, schema))
            installed(number)

    def _check_owner(self, number: int, name: str) -> None:
        # Both may have existed. Those of another role would run its code with the permissions of
        # the mover, or of all writers.
        names = {"outbox": self._outbox(number), "function": name}
        if self.source.execute(_OWNED, names).fetchone() != (True,):
            raise MoveRefusedError(
                "MoveRefused",
                "The outbox of the move, or its function, belongs to another role.",
                facts={"outbox": self._outbox(number)},
                hint="Resume the job with the role that began it, or cancel the job and move again "
                "after you have revoked CREATE on the schema from other roles.",
            )

    def remove_capture(self) -> None:
        schema = self._schemas["source", ""]
        for number, shape in enumerate(self._tables):
            name, located = outbox(self._job, number), self._located(shape)
            self._execute_with_lock(shape, capture.postgres_removal(located, name, schema))

    def _execute_with_lock(self, shape: TableShape, statements: Sequence[str]) -> None:
        """Execute statements that lock a table, in many short attempts."""
        blockers: list[Blocker] = []
        for number in range(1, LOCK_TRIES + 1):
            try:
                with self._transaction("source"):
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
        with self._transaction("source"):
            name = self._table_name("source", shape.schema, shape.table)
            rows = self.source.execute(_BLOCKERS, (name, LOCK_TIMEOUT_MS / 1000))
            return [
                Blocker(pid, application, state, age, shortened(query))
                for pid, application, state, age, query in rows
            ]

    def _terminate(
        self, shape: TableShape, blockers: Sequence[Blocker], ended: Sequence[Blocker]
    ) -> None:
        for each in ended:
            try:
                with self._transaction("source"):
                    self.source.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (each.pid,))
            except errors.InsufficientPrivilege as error:
                raise tables_busy(shape.name, blockers) from error

    # --- batches ----------------------------------------------------------------------------------

    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        driver, shape = self._driver(side), self._tables[number]
        as_text = ", ".join(
            f"CAST(t.{quote(name)} AS pg_catalog.text)" for name in shape.primary_key
        )
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
        return quoted_name(self._schemas["source", ""], outbox(self._job, number))

    def _read_outboxes(self) -> Seen:
        # In one query, because most passes behind the fence find nothing.
        numbers = range(len(self._tables))
        filled = [f"EXISTS (SELECT FROM {self._outbox(number)})" for number in numbers]
        query = (
            f"SELECT CAST(pg_catalog.pg_current_snapshot() AS pg_catalog.text), {', '.join(filled)}"
        )
        snapshot, *found = _all(self.source, query)[0]
        return {number: snapshot for number in numbers if found[number]}

    def _list_changed(self, number: int) -> int:
        shape, name = self._tables[number], _changed_name(number)
        _run(
            self.source,
            f"DROP TABLE IF EXISTS {name}",
            f"CREATE TEMP TABLE {name} ON COMMIT DROP AS "
            f"SELECT DISTINCT {listed(shape.identity)} FROM {self._outbox(number)}",
        )
        if self._range.is_hashed:
            self._delete_outside(self.source, number, name, shape.sharding)
        return int(self._value("source", f"SELECT count(*) FROM {name}"))

    def _delete_changed(self, number: int) -> None:
        shape, name = self._tables[number], _changed_name(number)
        identity = listed(shape.identity)
        _run(
            self.target,
            f"DROP TABLE IF EXISTS {name}",
            f"CREATE TEMP TABLE {name} ON COMMIT DROP AS "
            f"SELECT {identity} FROM {self._table('target', number)} WITH NO DATA",
        )
        query = f"SELECT {identity} FROM {name}"
        target = f"{name} ({identity})"
        _pipe(self.source, self.target, query, target, is_binary=shape.is_portable)
        _run(self.target, f"ANALYZE {name}")
        table = self._table("target", number)
        _run(self.target, f"DELETE FROM {table} t USING {name} c WHERE {self._same(number)}")

    def _changed(self, side: Side, number: int) -> str:
        return (
            f"{self._table(side, number)} t, {_changed_name(number)} c WHERE {self._same(number)}"
        )

    def _forget(self, seen: Seen) -> None:
        if not seen:
            return
        with self._snapshot("source"):
            for number, snapshot in seen.items():
                until = f"CAST({_text(snapshot)} AS pg_catalog.pg_snapshot)"
                visible = f"pg_catalog.pg_visible_in_snapshot(partita_tx, {until})"
                _run(self.source, f"DELETE FROM {self._outbox(number)} WHERE {visible}")

    # --- comparing --------------------------------------------------------------------------------

    def _compare(self, number: int, source: str, target: str) -> int:
        shape = self._tables[number]
        row = f"CAST(ROW({listed(shape.copied, 't')}) AS pg_catalog.text) AS partita_row"
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
        self._timeout_ms = 0 if seconds is None else max(1, round(seconds * 1000))


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


def _shape(
    driver: Driver, name: str, current: str, table: TableName, sharding: tuple[str, ...]
) -> TableShape:
    questions = (_COLUMNS, _PRIMARY_KEY, _FOREIGN_KEYS, _REFERRING, _TRIGGERS)
    names = {"name": name, "current": current}
    with driver.pipeline():
        answers = [driver.execute(question, names) for question in questions]
    columns, primary, foreign, referring, triggers = (one.fetchall() for one in answers)
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
            _run(driver, _REPLICATE)
    except errors.InsufficientPrivilege:
        return False
    return True


def _changed_name(number: int) -> str:
    """Return the name of the temporary table of the changed rows."""
    return f"pg_temp.partita_changed_{number}"


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
        return f"'\\x{bytes(value).hex()}'::pg_catalog.bytea"
    if isinstance(value, UUID):
        return f"'{value}'::pg_catalog.uuid"
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::pg_catalog.timestamptz"
    if isinstance(value, date):
        return f"'{value.isoformat()}'::pg_catalog.date"
    if isinstance(value, timedelta):
        seconds = f"{value.seconds}.{value.microseconds:06}"
        return f"'{value.days} days {seconds} seconds'::pg_catalog.interval"
    if isinstance(value, Decimal):
        return f"'{value:f}'::pg_catalog.numeric"
    return _text(str(value))
