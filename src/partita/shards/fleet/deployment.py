"""The schema that every shard must have, and its deployment to one database.

With Alembic a schema is a revision, and the metadata is only compared; with metadata alone, missing
tables are created and nothing is altered. Rule: connections are unrouted and belong to the caller.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from alembic.config import Config
from sqlalchemy import Connection, MetaData, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from partita.errors import ConfigurationError, SchemaMismatchError, ShardInUseError
from partita.shards.fleet.drift import CATALOG_PREFIX, Difference, find_differences
from partita.shards.fleet.migrations import (
    LOCK_TIMEOUT_SECONDS,
    Heads,
    Migrations,
    revision_text,
    upgrade_lock,
)

DIFFERENCES_SHOWN_MAX = 20


class Inspection(msgspec.Struct, frozen=True):
    """The schema state of one database."""

    revision: str | None
    """None without Alembic."""
    is_current: bool
    """At the newest revision; without Alembic, without drift."""
    drift: list[Difference]


class Deployment:
    """The required schema of all shards, read from the project when it is created."""

    def __init__(
        self,
        metadata: MetaData | None,
        alembic: str | Path | Config | None,
        ignore_tables: Collection[str] = (),
    ) -> None:
        self.metadata = metadata
        self.migrations = None if alembic is None else Migrations(alembic)
        self._ignored = frozenset(ignore_tables)

    def check_given(self) -> None:
        """Refuse to continue without a schema."""
        if self.metadata is None and self.migrations is None:
            raise ConfigurationError(
                "SchemaNotGiven",
                "The fleet does not know the schema of its shards.",
                hint="Create it with Fleet(manager, metadata=…) or Fleet(manager, alembic=…).",
            )

    def check_empty(self, connection: Connection) -> None:
        """Refuse a database that has tables."""
        found = [name for name in self._tables(connection) if name not in self._ignored]
        if found:
            raise ShardInUseError(
                "DatabaseNotEmpty",
                f"The database already has tables: {', '.join(found[:DIFFERENCES_SHOWN_MAX])}.",
                facts={"tables": len(found)},
                hint="Use fleet.adopt() for a database with rows, or pass an empty database.",
            )

    def deploy(self, connection: Connection) -> None:
        """Upgrade the database to the newest schema."""
        self.check_given()
        if self.migrations is not None:
            self.migrations.upgrade(connection, "heads")
        else:
            self.create_tables(connection)

    def create_tables(
        self, connection: Connection, lock_timeout: float = LOCK_TIMEOUT_SECONDS
    ) -> bool:
        """Create the missing tables of the metadata; return whether there were any."""
        assert self.metadata is not None
        try:
            with upgrade_lock(connection, lock_timeout), connection.begin():
                before = self._tables(connection)
                self._create_schemas(connection)
                self.metadata.create_all(connection)
                return before != self._tables(connection)
        except DBAPIError as error:
            raise SchemaMismatchError(
                "TablesNotCreated",
                f"The missing tables could not be created, and none was: {error.orig}",
                hint="Check fleet.check_drift(): existing tables may conflict with them.",
            ) from error

    def inspect(self, connection: Connection) -> Inspection:
        """Read the revision and compare the database with the metadata; nothing is changed."""
        metadata: MetaData | Sequence[MetaData] | None = self.metadata
        heads: Heads | None = None
        options = None
        if self.migrations is not None:
            read = self.migrations.read(connection)
            heads, options = read.heads, read.options
            metadata = metadata if metadata is not None else read.metadata
        drift: list[Difference] = []
        if metadata is not None:
            drift = find_differences(
                connection, metadata, ignore_tables=self._ignored, options=options
            )
        connection.rollback()
        if self.migrations is None or heads is None:
            return Inspection(None, not drift, drift)
        is_current = set(heads) == set(self.migrations.heads)
        return Inspection(revision_text(heads), is_current, drift)

    def verify(self, connection: Connection) -> None:
        """Refuse a database whose revision or actual schema is not current."""
        found = self.inspect(connection)
        if found.revision is not None and not found.is_current:
            assert self.migrations is not None
            raise SchemaMismatchError(
                "ShardNotCurrent",
                "The database is not at the newest revision.",
                facts={
                    "revision": found.revision,
                    "newest": revision_text(self.migrations.heads),
                },
                hint="Upgrade it with `alembic upgrade`, then try again.",
            )
        if found.drift:
            raise drift_error(found.drift)

    def _create_schemas(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            for schema in sorted(str(name) for name in self._schemas if name is not None):
                connection.execute(CreateSchema(schema, if_not_exists=True))

    def _tables(self, connection: Connection) -> list[str]:
        inspector = inspect(connection)
        schemas = self._schemas & {None, *inspector.get_schema_names()}
        return [
            name if schema is None else f"{schema}.{name}"
            for schema in sorted(schemas, key=str)
            for name in sorted(inspector.get_table_names(schema))
            if not name.startswith(CATALOG_PREFIX)
        ]

    @property
    def _schemas(self) -> set[str | None]:
        tables = () if self.metadata is None else self.metadata.tables.values()
        return {None, *(table.schema for table in tables)}


def drift_error(drift: Sequence[Difference]) -> SchemaMismatchError:
    """Return the error that lists the differences."""
    shown = "; ".join(str(each) for each in drift[:DIFFERENCES_SHOWN_MAX])
    return SchemaMismatchError(
        "SchemaDrift",
        f"The database differs from the schema: {shown}.",
        facts={"differences": len(drift)},
        hint="Write a migration, or correct the database manually.",
    )
