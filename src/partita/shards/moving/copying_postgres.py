"""Rows from one PostgreSQL database to another: COPY to COPY, in batches by primary key.

One batch or pass is one transaction on the target, read in one snapshot of the source. Rule: a
pass of the outboxes deletes all its rows on the target before it inserts any, so that unique
values which changed owners on the source never meet; triggers and foreign keys of the target are
off (session_replication_role), because the source has done their work already.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import msgspec
import psycopg
from psycopg import IsolationLevel, errors
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from sqlalchemy.engine import Dialect

from partita.errors import MoveRefusedError
from partita.shards.connections.engines import Engines
from partita.shards.connections.validation import lock_number
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedTable, TableName
from partita.shards.moving import capture
from partita.shards.moving.blockers import Blocker, HeldUp, nobody_is_ended, shortened
from partita.shards.moving.capture import listed, outbox, quote, table_name
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

LOCK_TRIES = 120
LOCK_PAUSE_SECONDS = 0.25
LOCK_TIMEOUT_MS = 250
"""Writers queue behind a lock that waits, so it waits briefly and often: a minute in all."""
ROWS_PER_BLOCK = 128
# Sessions that hold the table for longer than a try lasts. Readers count: triggers are removed
# with a lock that waits for them too.
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
"""Two hashes of the text of each row, added up: the order of the rows does not matter."""

_BYTE_ORDERS = frozenset(("C", "POSIX", "ucs_basic", "C.UTF-8", "C.utf8"))
"""Collations that compare text by its bytes: their indexes serve the range."""

Driver = psycopg.Connection[Any]


class _Seen(msgspec.Struct, frozen=True):
    """Which entries a pass has seen: all that the snapshot shows in these outboxes."""

    snapshot: str
    outboxes: list[int]


class PostgresCopy:
    """RowCopy between two PostgreSQL databases."""

    def __init__(
        self, engines: Engines, source: Location, target: Location, shardlet: Shardlet
    ) -> None:
        self._shardlet = shardlet
        self._opened: list[PoolProxiedConnection] = []
        self._tables: list[TableShape] = []
        self._texts: list[ShardedTable] = []
        self._job = ""
        self._held_up: HeldUp = nobody_is_ended
        self._is_taken = False
        self._schema = ""
        self._hashed: set[Side] = set()
        """Sides whose table of keys is filled."""
        try:
            self.source = self._open(engines, source)
            self.target = self._open(engines, target)
        except BaseException:
            self.close()
            raise
        self._range = RangeText(shardlet, _dialect(engines, source), _literal, '"C"')
        self.source.isolation_level = IsolationLevel.REPEATABLE_READ
        self._may_replicate = tuple(map(_may_replicate, (self.source, self.target)))
        if self._may_replicate[1]:
            _run(self.target, _REPLICATE)
        self.target.commit()
        self._schema = _value(self.source, "SELECT current_schema()")
        self.source.commit()

    def _open(self, engines: Engines, location: Location) -> Driver:
        pooled = engines.admin(location).raw_connection()
        self._opened.append(pooled)
        driver = pooled.driver_connection
        if not isinstance(driver, psycopg.Connection):
            raise MoveRefusedError(
                "MoveRefused",
                "Rows of PostgreSQL are moved by COPY through psycopg 3.",
                facts={"shard": location.text},
                hint="Write the location as postgresql+psycopg://.",
            )
        _run(driver, _SETTINGS)
        driver.commit()
        return driver

    def take(self, job_id: str) -> bool:
        taken = _value(self.source, f"SELECT pg_try_advisory_lock({lock_number(job_id)}::bigint)")
        self.source.commit()
        self._is_taken = bool(taken)
        return self._is_taken

    @property
    def driver_error(self) -> type[Exception]:
        return psycopg.Error

    def release(self) -> None:
        """Do nothing: the lock goes with its session."""

    def close(self) -> None:
        if self._is_taken and self.source.info.transaction_status != TransactionStatus.ACTIVE:
            # A session ends some time after its connection: whoever goes on with the move now
            # would meet its lock.
            with contextlib.suppress(psycopg.Error):
                self.source.rollback()
                _run(self.source, "SELECT pg_advisory_unlock_all()")
                self.source.commit()
        for pooled in self._opened:
            # The connection may be broken, and its session locks go with it.
            with contextlib.suppress(psycopg.Error):
                pooled.invalidate()
            pooled.close()
        self._opened.clear()

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
        self.source.rollback()
        self.target.rollback()
        return Sides(names, source, target, cast("tuple[bool, bool]", self._may_replicate))

    def obstacles(self, sharded: Sides) -> list[str]:  # noqa: ARG002 - the contract's
        return []

    def use(self, sharded: Sequence[TableShape], job_id: str) -> None:
        self._tables = list(sharded)
        self._texts = [sharded_table(shape) for shape in sharded]
        self._job = job_id
        self._range.plain = {
            (shape.name, column.name)
            for shape in sharded
            for column in shape.columns
            if column.collation in _BYTE_ORDERS
        }

    def count(self, side: Side) -> int:
        with self._snapshot(side) as driver:
            return sum(
                int(_value(driver, f"SELECT count(*) FROM {self._rows(side, number)}"))
                for number in range(len(self._tables))
            )

    def has_rows(self, side: Side) -> bool:
        with self._snapshot(side) as driver:
            return any(
                _value(driver, f"SELECT EXISTS (SELECT FROM {self._rows(side, number)})")
                for number in range(len(self._tables))
            )

    def find_open_reference(self, side: Side) -> str | None:
        with self._snapshot(side):
            return self._find_open_reference(side)

    def _find_open_reference(self, side: Side) -> str | None:
        for number, shape in enumerate(self._tables):
            for key in open_foreign_keys(shape, self._tables):
                child = self._rows(side, number, "t")
                if _value(self._driver(side), self._dangling(child, key, in_range=True)):
                    return _described(shape, key)
        return None

    def _dangling(self, child: str, key: ForeignKey, *, in_range: bool) -> str:
        """Return a query for a row whose parent is not there, or not in the range."""
        there = [f"t.{quote(name)} IS NOT NULL" for name in key.columns]
        pairs = zip(key.columns, key.referred, strict=True)
        same = [f"t.{quote(mine)} = p.{quote(theirs)}" for mine, theirs in pairs]
        for other, shape in enumerate(self._tables):
            if in_range and (shape.schema, shape.table) == (key.schema, key.table):
                same.append(self._range.condition(self._texts[other], "p"))
        parent = table_name(TableShape(key.schema, key.table, (), ()))
        missing = f"NOT EXISTS (SELECT FROM {parent} p WHERE {' AND '.join(same)})"
        return f"SELECT EXISTS (SELECT FROM {child} AND {' AND '.join(there)} AND {missing})"

    # --- ranges -----------------------------------------------------------------------------------

    def _rows(self, side: Side, number: int, alias: str = "") -> str:
        """Return `table WHERE row lies in the range`; fills the table of keys where one is used."""
        if self._range.is_hashed and side not in self._hashed:
            self._fill_keys(side)
        condition = self._range.condition(self._texts[number], alias)
        return f"{table_name(self._tables[number])} {alias} WHERE {condition}"

    def _fill_keys(self, side: Side) -> None:
        driver = self._driver(side)
        keys = [
            f"SELECT DISTINCT {', '.join(_numbered(shape.sharding))} FROM {table_name(shape)}"
            for shape in self._tables
        ]
        _run(driver, f"DROP TABLE IF EXISTS {KEYS}")
        union = " UNION ".join(keys)
        _run(driver, f"CREATE TEMP TABLE {KEYS} ON COMMIT DROP AS {union}")
        outside = [
            row
            for row in _all(driver, f"SELECT * FROM {KEYS}")
            if not self._range.contains(self._texts[0], row)
        ]
        same = " AND ".join(
            f"k{number} IS NOT DISTINCT FROM %s" for number in range(len(self._tables[0].sharding))
        )
        with driver.cursor() as cursor:
            cursor.executemany(f"DELETE FROM {KEYS} WHERE {same}".encode(), outside)
        _run(driver, f"ANALYZE {KEYS}")
        self._hashed.add(side)

    def _driver(self, side: Side) -> Driver:
        return self.source if side == "source" else self.target

    @contextlib.contextmanager
    def _snapshot(self, side: Side) -> Iterator[Driver]:
        """One transaction on one side; the table of keys lives as long as it."""
        driver = self._driver(side)
        try:
            with driver.transaction():
                yield driver
        finally:
            self._hashed.discard(side)

    @contextlib.contextmanager
    def _both(self) -> Iterator[None]:
        """One snapshot of the source, one transaction on the target, which commits first."""
        with self._snapshot("source"), self._snapshot("target"):
            yield

    # --- reference tables -------------------------------------------------------------------------

    def copy_reference(self, shape: TableShape) -> int:
        with self._both():
            name = table_name(shape)
            _run(self.target, f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE")
            if _value(self.target, f"SELECT EXISTS (SELECT FROM {name})"):
                return 0
            return self._pipe(shape, f"SELECT {listed(shape.copied)} FROM {name}")

    def _pipe(self, shape: TableShape, query: str) -> int:
        target = f"{table_name(shape)} ({listed(shape.copied)})"
        return _pipe(self.source, self.target, query, target, is_binary=shape.is_portable)

    # --- capture ----------------------------------------------------------------------------------

    def install_capture(self, installed: Callable[[int], None]) -> None:
        for number, shape in enumerate(self._tables):
            name = outbox(self._job, number)
            table = self._texts[number]
            conditions = (
                self._range.condition(table, "OLD", keys=None),
                self._range.condition(table, "NEW", keys=None),
            )
            with self.source.transaction():
                _run(self.source, *capture.postgres_outbox(shape, name, self._schema))
                function = capture.postgres_function(shape, name, self._schema, conditions)
                _run(self.source, *function)
            self._patiently(shape, capture.postgres_triggers(shape, name, self._schema))
            installed(number)

    def remove_capture(self) -> None:
        for number, shape in enumerate(self._tables):
            name = outbox(self._job, number)
            self._patiently(shape, capture.postgres_removal(shape, name, self._schema))

    def _patiently(self, shape: TableShape, statements: Sequence[str]) -> None:
        blockers: list[Blocker] = []
        for number in range(1, LOCK_TRIES + 1):
            try:
                with self.source.transaction():
                    _run(self.source, f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}", *statements)
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                blockers = self._blockers(shape)
                seconds = number * (LOCK_TIMEOUT_MS / 1000 + LOCK_PAUSE_SECONDS)
                self._terminate(shape, blockers, self._held_up(shape.name, blockers, seconds))
                # Because writers queue behind a waiting lock, they get their turn in between.
                time.sleep(LOCK_PAUSE_SECONDS)
            else:
                return
        raise tables_busy(shape.name, blockers)

    def _blockers(self, shape: TableShape) -> list[Blocker]:
        # In a transaction that ends here: in one that stayed open, what follows would see the rows
        # of this moment.
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

    def watch(self, held_up: HeldUp) -> None:
        self._held_up = held_up

    # --- copying ----------------------------------------------------------------------------------

    def delete_after(self, number: int, after: Position | None) -> None:
        with self._snapshot("target"):
            behind = self._behind(number, after)
            _run(self.target, f"DELETE FROM {self._rows('target', number)}{behind}")

    def copy_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        try:
            with self._both():
                return self._copy(number, after, limit)
        except errors.IntegrityError:
            # Because batches are of different snapshots: a unique value may have gone from a
            # copied row to this one, or a parent may be younger than its copied table. With all
            # changes of this very snapshot applied, the target is a part of the source.
            pass
        try:
            with self._both():
                self._apply(verify=False)
                behind = self._behind(number, after)
                _run(self.target, f"DELETE FROM {self._rows('target', number)}{behind}")
                return self._copy(number, after, limit)
        except errors.IntegrityError as error:
            raise rows_collide(self._tables[number].name, error) from error

    def _copy(self, number: int, after: Position | None, limit: int) -> Batch:
        shape = self._tables[number]
        rows = self._rows("source", number)
        end = self._end("source", number, after, limit)
        until = self._behind(number, after) + self._until(number, end)
        order = listed(shape.primary_key)
        columns = listed(shape.copied)
        copied = self._pipe(shape, f"SELECT {columns} FROM {rows}{until} ORDER BY {order}")
        return Batch(copied, end)

    def _end(self, side: Side, number: int, after: Position | None, limit: int) -> Position | None:
        """Return the primary key of the row that ends a batch; None where fewer rows are left."""
        driver, shape = self._driver(side), self._tables[number]
        as_text = ", ".join(f"t.{quote(name)}::text" for name in shape.primary_key)
        rows = self._rows(side, number, "t") + self._behind(number, after)
        # The key's own index has the order; reading and sorting the table again for each batch
        # would cost more the larger it is.
        _run(driver, "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        # With the alias, because a plain name would mean the text that was selected.
        order = listed(shape.primary_key, "t")
        found = _all(
            driver, f"SELECT {as_text} FROM {rows} ORDER BY {order} OFFSET {limit - 1} LIMIT 1"
        )
        return tuple(found[0]) if found else None

    def _behind(self, number: int, after: Position | None) -> str:
        return "" if after is None else f" AND {self._against(number, '>', after)}"

    def _until(self, number: int, end: Position | None) -> str:
        return "" if end is None else f" AND {self._against(number, '<=', end)}"

    def _against(self, number: int, operator: str, position: Position) -> str:
        shape = self._tables[number]
        types = {column.name: column.type for column in shape.columns}
        values = ", ".join(
            f"{_text(value)}::{types[name]}"
            for name, value in zip(shape.primary_key, position, strict=True)
        )
        return f"({listed(shape.primary_key)}) {operator} ({values})"

    # --- replaying --------------------------------------------------------------------------------

    def pending(self) -> bool:
        with self._snapshot("source"):
            return bool(self._look_into_outboxes().outboxes)

    def replay(self, applied: Callable[[], None], *, verify: bool, whole: bool = False) -> Replay:
        try:
            with self._both():
                rows, seen = self._apply(verify=verify)
                if whole:
                    self._compare_whole()
        except errors.IntegrityError as error:
            raise rows_collide(self._tables[0].name, error) from error
        applied()
        self._forget(seen)
        return Replay(rows)

    def _outbox(self, number: int) -> str:
        return f"{quote(self._schema)}.{quote(outbox(self._job, number))}"

    def _apply(self, *, verify: bool) -> tuple[int, _Seen]:
        """Bring the target to the source's snapshot; return changed rows and seen entries."""
        seen = self._look_into_outboxes()
        noted = {number: self._note(number) for number in seen.outboxes}
        changed = [number for number, rows in noted.items() if rows]
        for number in reversed(changed):
            self._delete_changed(number)
        for number in changed:
            shape = self._tables[number]
            columns = listed(shape.copied, "t")
            self._pipe(shape, f"SELECT {columns} FROM {self._changed(number)}")
        for number in changed if verify else ():
            self._compare(number, self._changed(number), self._changed(number))
            self._check_references(number)
        return sum(noted.values()), seen

    def _check_references(self, number: int) -> None:
        """Look at the changed rows only: they are few, all others were looked at before."""
        shape = self._tables[number]
        for key in open_foreign_keys(shape, self._tables):
            if _value(self.target, self._dangling(self._changed(number), key, in_range=False)):
                raise rows_dangle(_described(shape, key))

    def _look_into_outboxes(self) -> _Seen:
        # In one question, because most passes behind the fence find nothing.
        numbers = range(len(self._tables))
        filled = [f"EXISTS (SELECT FROM {self._outbox(number)})" for number in numbers]
        query = f"SELECT pg_current_snapshot()::text, {', '.join(filled)}"
        snapshot, *found = _all(self.source, query)[0]
        return _Seen(snapshot, [number for number in numbers if found[number]])

    def _note(self, number: int) -> int:
        """Make the list of changed rows of the range on the source."""
        shape, name = self._tables[number], f"partita_changed_{number}"
        _run(
            self.source,
            f"DROP TABLE IF EXISTS pg_temp.{name}",
            f"CREATE TEMP TABLE {name} ON COMMIT DROP AS "
            f"SELECT DISTINCT {listed(shape.identity)} FROM {self._outbox(number)}",
        )
        if self._range.is_hashed:
            self._drop_foreign(number, name)
        return int(_value(self.source, f"SELECT count(*) FROM {name}"))

    def _drop_foreign(self, number: int, name: str) -> None:
        shape = self._tables[number]
        keys = _all(self.source, f"SELECT DISTINCT {listed(shape.sharding)} FROM {name}")
        outside = [row for row in keys if not self._range.contains(self._texts[number], row)]
        # A percent sign in a name would be read as a placeholder.
        names = [quote(column).replace("%", "%%") for column in shape.sharding]
        same = " AND ".join(f"{column} IS NOT DISTINCT FROM %s" for column in names)
        with self.source.cursor() as cursor:
            cursor.executemany(f"DELETE FROM {name} WHERE {same}".encode(), outside)

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
            f"DELETE FROM {table_name(shape)} t USING {name} c WHERE {self._same(shape)}",
        )

    def _changed(self, number: int) -> str:
        """Return `changed rows as they are now`, on either side; all of them lie in the range."""
        shape = self._tables[number]
        return f"{table_name(shape)} t, partita_changed_{number} c WHERE {self._same(shape)}"

    def _same(self, shape: TableShape) -> str:
        return " AND ".join(f"t.{quote(name)} = c.{quote(name)}" for name in shape.identity)

    def _forget(self, seen: _Seen) -> None:
        """Delete the entries that the pass has seen: those of transactions in its snapshot."""
        if not seen.outboxes:
            return
        visible = f"pg_visible_in_snapshot(partita_tx, {_text(seen.snapshot)}::pg_snapshot)"
        with self._snapshot("source"):
            for number in seen.outboxes:
                _run(self.source, f"DELETE FROM {self._outbox(number)} WHERE {visible}")

    # --- comparing --------------------------------------------------------------------------------

    def compare_batch(self, number: int, after: Position | None, limit: int) -> Batch:
        with self._both():
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
        row = f"ROW({listed(shape.copied, 't')})::text AS partita_row"
        # OFFSET 0 keeps the text from being made once for each hash.
        here, there = (
            _all(driver, f"SELECT count(*), {_HASHES} FROM (SELECT {row} FROM {rows} OFFSET 0) q")
            for driver, rows in ((self.source, source), (self.target, target))
        )
        if here != there:
            raise rows_differ(shape.name, here[0][0], there[0][0])
        return int(here[0][0])

    # --- deleting ---------------------------------------------------------------------------------

    def delete_batch(self, side: Side, number: int, after: Position | None, limit: int) -> Batch:
        with self._snapshot(side) as driver:
            if side == "source" and self._may_replicate[0]:
                _run(driver, _REPLICATE.replace("SET", "SET LOCAL", 1))
            end = self._end(side, number, after, limit)
            interval = self._behind(number, after) + self._until(number, end)
            with driver.cursor() as cursor:
                cursor.execute(f"DELETE FROM {self._rows(side, number)}{interval}".encode())
                return Batch(cursor.rowcount, end)

    def wait_for_writers(self) -> None:
        """Do nothing: transactions of other mappings do not lock the catalogs."""

    def bound_time(self, seconds: float | None) -> None:
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        for driver in (self.source, self.target):
            _run(driver, f"SET statement_timeout = {milliseconds}")
            driver.commit()


# --- statements: without parameters, because COPY and triggers take none --------------------------


def _run(driver: Driver, *statements: str) -> None:
    # As one message; several statements in one cannot be prepared.
    driver.execute("; ".join(statements).encode(), prepare=False)


def _all(driver: Driver, statement: str) -> list[tuple[Any, ...]]:
    return driver.execute(statement.encode()).fetchall()


def _value(driver: Driver, statement: str) -> Any:
    return _all(driver, statement)[0][0]


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
    """Give what a COPY TO sends, many rows at a time.

    Straight from libpq, which hands out rows one by one: the way through the cursor takes three
    times as long for each, more than the two databases together.
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
    name = (table_name(TableShape(table.schema, table.table, (), ())),)
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


def _described(shape: TableShape, key: ForeignKey) -> str:
    return f"{shape.name} ({', '.join(key.columns)}) to {key.table}"


def _may_replicate(driver: Driver) -> bool:
    try:
        with driver.transaction():
            _run(driver, _REPLICATE.replace("SET", "SET LOCAL", 1))
    except errors.InsufficientPrivilege:
        return False
    return True


def _numbered(columns: Sequence[str]) -> list[str]:
    return [f"{quote(name)} AS k{number}" for number, name in enumerate(columns)]


def _dialect(engines: Engines, location: Location) -> Dialect:
    return engines.admin(location).dialect


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(value: Any) -> str:  # noqa: PLR0911 - one honest switch
    if isinstance(value, bool) or value is None:
        msg = f"no sharding key: {value!r}"
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
