"""Read one shard in a fan-out: a read-only transaction, the statement, batches of rows.

It works on a connection of the caller, in a worker thread or in the greenlet of an async
connection. Rule: nothing is committed; the transaction ends with a rollback.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import (
    Connection,
    Executable,
    Result,
    Row,
    Select,
    Table,
    select,
)
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.orm import Session

from partita.shards.catalog import local_catalog
from partita.shards.connections.engines import SINGLE, sqlite_connection
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.fan_out.owned_rows import OwnedRows
from partita.shards.fan_out.shard_statement import (
    KEYS_PARAMETER,
    Facts,
    ShardStatement,
    not_a_select,
)
from partita.shards.keys.mapping import Shard

BATCH_ROWS = 500
"""The number of rows fetched from a shard at a time."""
FIRST_BATCH_ROWS = 50
"""A smaller first batch, so that the first row arrives early."""

AnyRow = Row[*tuple[Any, ...]]
AnyResult = Result[*tuple[Any, ...]]


class Shape(msgspec.Struct, frozen=True):
    """The names of the columns of an answer, and their types by the database."""

    names: tuple[str, ...]
    dialect: str
    types: tuple[object, ...]

    def fits(self, other: "Shape") -> bool:
        """Return whether both can be in one result; types are compared within one dialect."""
        is_comparable = self.dialect == other.dialect
        return self.names == other.names and (not is_comparable or self.types == other.types)


class ShardReader:
    """Reads from one shard; used by one thread at a time."""

    def __init__(self, plan: ShardStatement, shard: Shard, keys: Sequence[object] = ()) -> None:
        self.shard = shard
        self.rows = 0
        """The number of rows fetched."""
        self._plan = plan
        self._keys = tuple(keys)
        self._connection: Connection | None = None
        self._session: Session | None = None
        self._result: AnyResult | None = None

    def begin(self, connection: Connection, *, snapshot: bool = False) -> None:
        """Begin the read-only transaction; with `snapshot`, all statements see one state."""
        self._connection = connection
        if connection.dialect.name == "postgresql":
            options: dict[str, Any] = {"postgresql_readonly": True}
            if snapshot:
                options["isolation_level"] = "REPEATABLE READ"
            connection.execution_options(**options)
        elif not snapshot and self._plan.is_single:
            if connection.in_transaction():
                return  # kept open since the last fan-out
            connection.info[SINGLE] = True
        connection.begin()

    def local_mappings(self, map_id: str) -> frozenset[str]:
        """Return the ids of the mappings that the shard owns in this transaction."""
        ids = local_catalog.mappings.c
        query = select(ids.id).where(ids.map_id == map_id)
        return frozenset(self._open.scalars(query))

    def execute(self, owned: OwnedRows | None = None) -> Shape:
        """Execute the statement; with `owned`, only over rows that the shard owns."""
        connection = self._open
        dialect = connection.dialect.name
        marker = "" if self._plan.shard_column is None else self.shard.location.text
        statement = self._plan.on(dialect, marker)
        types = _declared_types(connection, self._plan.facts) if dialect == "sqlite" else ()
        if owned is not None:
            statement = owned.restrict(statement, connection)
        parameters = {KEYS_PARAMETER: list(self._keys)} if self._plan.facts.wants_keys else {}
        self._result = self._run(cast("Executable", statement), parameters)
        cursor: Any = getattr(self._result, "raw", self._result)
        if not cursor.returns_rows:
            raise not_a_select("a text that returns no rows")
        description = cursor.cursor.description
        codes = tuple(column[1] for column in description)
        return Shape(tuple(self._result.keys()), dialect, (*codes, *types))

    def fetch(self) -> tuple[list[AnyRow], bool]:
        """Return the next rows, and whether they are the last."""
        assert self._result is not None
        is_first = self.rows == 0 and self._session is None
        wanted = FIRST_BATCH_ROWS if is_first else BATCH_ROWS
        rows = list(self._result.fetchmany(wanted))
        self.rows += len(rows)
        if self._session is None:
            return rows, len(rows) < wanted
        # Entities are detached, because the session ends with the transaction. Not by
        # expunge_all(), which would close the result.
        for entity in list(self._session):
            if entity in self._session:
                self._session.expunge(entity)
        return rows, not rows

    def leave(self) -> None:
        """Close the result; closing the connection ends the transaction."""
        self._connection = None
        if self._result is not None:
            self._result.close()
        if self._session is not None:
            self._session.close()
        self._result = self._session = None

    def finish(self) -> None:
        """Roll back the transaction; the connection stays open."""
        connection = self._connection
        self.leave()
        if connection is not None and connection.in_transaction():
            connection.rollback()

    @property
    def is_executing(self) -> bool:
        return self._result is not None

    @property
    def _open(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _run(self, statement: Executable, parameters: dict[str, Any]) -> AnyResult:
        if not self._plan.facts.has_entities:
            return self._run_core(statement, parameters)
        self._session = Session(self._open, autoflush=False)
        return self._session.execute(
            statement,
            parameters,
            execution_options={
                "yield_per": BATCH_ROWS,
                "identity_token": self.shard.location.text,
            },
        )

    def _run_core(self, statement: Executable, parameters: dict[str, Any]) -> AnyResult:
        # A server-side cursor costs four round trips, so small results are read without one.
        connection = self._open
        if connection.dialect.name == "sqlite" or _is_short(statement):
            return connection.execute(statement, parameters or None)
        if isinstance(statement, Select) and _may_be_cut(statement):
            some = statement.limit(BATCH_ROWS + 1)
            result = connection.execute(some, parameters or None)
            found: Any = result
            if 0 <= found.cursor.rowcount <= BATCH_ROWS:
                return result
            result.close()
        options = {"stream_results": True, "max_row_buffer": BATCH_ROWS}
        return connection.execute(statement, parameters or None, execution_options=options)


def _is_short(statement: Executable) -> bool:
    """Return whether the statement has a limit of at most one batch."""
    limit = statement._limit_clause if isinstance(statement, Select) else None  # noqa: SLF001
    value = getattr(limit, "value", None)
    return isinstance(value, int) and value <= BATCH_ROWS


def _may_be_cut(statement: Select[Any]) -> bool:
    """Return whether adding a limit to the statement is possible and saves work.

    With grouping or DISTINCT, a limit does not reduce the rows read, so the work would double.
    """
    clauses = (statement._limit_clause, statement._offset_clause, statement._fetch_clause)  # noqa: SLF001
    reads_all = statement._group_by_clauses or statement._distinct  # noqa: SLF001
    return not reads_all and all(clause is None for clause in clauses)


def _declared_types(connection: Connection, facts: Facts) -> tuple[object, ...]:
    """Return the declared types of the selected columns: cursors of SQLite have none."""
    known: dict[Table, dict[str, str]] = {}
    found: list[object] = []
    for name, table in facts.table_columns:
        if table not in known:
            known[table] = _columns_of(connection, table)
        found.append((name, known[table].get(name)))
    return tuple(found)


def _columns_of(connection: Connection, table: Table) -> dict[str, str]:
    """Return the columns of a table; the connection caches them until the schema changes."""
    driver = sqlite_connection(connection.connection)
    version = _schema_version(connection, driver)
    if driver.columns_at != version:
        driver.columns_at, driver.columns = version, {}
    found = driver.columns.get(table.fullname)
    if found is None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        prefix = f"{quote(table.schema)}." if table.schema else ""
        rows = connection.exec_driver_sql(f"PRAGMA {prefix}table_info({quote(table.name)})")
        found = {row.name: _affinity(row.type) for row in rows}
        if table.schema is None:  # schema_version is that of the main schema
            driver.columns[table.fullname] = found
    return found


def _schema_version(connection: Connection, driver: RevocableConnection) -> int:
    if connection.dialect.is_async:
        return int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())
    return int(driver.find_one("PRAGMA schema_version", ())[0])


def _affinity(declared: str) -> str:
    # The rules of https://sqlite.org/datatype3.html, section 3.1.
    written = declared.upper()
    if "INT" in written:
        return "INTEGER"
    if any(part in written for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in written or not written:
        return "BLOB"
    return "REAL" if any(part in written for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def rows_of(names: Sequence[str], values: Sequence[Sequence[Any]]) -> list[AnyRow]:
    """Return SQLAlchemy rows of plain values."""
    metadata = SimpleResultMetaData(list(names))
    return list(IteratorResult(metadata, iter(values)))
