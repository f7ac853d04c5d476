"""Create and drop the databases of shards: databases of a PostgreSQL server, or SQLite files."""

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from partita.errors import ShardInUseError, ShardOfflineError
from partita.shards.connections.engines import Engines
from partita.shards.connections.locations import create_file, file_of
from partita.shards.keys.mapping import Location

MAINTENANCE_DATABASE = "postgres"
"""The database of a PostgreSQL server from which others are created and dropped."""
_EXISTS, _MISSING, _IN_USE = "42P04", "3D000", "55006"
"""SQLSTATEs of CREATE DATABASE and DROP DATABASE."""


def create_database(engines: Engines, location: Location) -> bool:
    """Create an empty database; return False if it exists."""
    file = file_of(location)
    if file is not None:
        existed = file.exists()
        create_file(location)
        return not existed
    # Keys are compared in byte order, which the encoding must not change.
    return _run(engines, location, "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'", _EXISTS)


def drop_database(engines: Engines, location: Location) -> bool:
    """Drop a database with everything in it; return False if it does not exist."""
    file = file_of(location)
    if file is None:
        return _run(engines, location, "DROP DATABASE {}", _MISSING)
    engines.dispose()  # an open connection would keep the deleted file
    if not file.exists():
        return False
    for suffix in ("-wal", "-shm", ""):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return True


def _run(engines: Engines, location: Location, statement: str, unchanged: str) -> bool:
    """Run a statement on the server of a database; return False for the SQLSTATE `unchanged`."""
    maintenance = msgspec.structs.replace(location, database=MAINTENANCE_DATABASE)
    engine = engines.admin(maintenance)
    name = engine.dialect.identifier_preparer.quote_identifier(location.database)
    try:
        with engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.execute(text(statement.format(name).replace(":", r"\:")))
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None)
        if state == unchanged:
            return False
        if state == _IN_USE:
            raise ShardInUseError(
                "DatabaseInUse",
                "Other sessions are connected to the database.",
                facts={"location": location.text},
                hint="End them, or close the managers that use it, and try again.",
            ) from error
        raise ShardOfflineError(
            "ShardUnreachable",
            "The server refused to create or drop the database, or cannot be reached.",
            facts={"location": location.text},
            hint="Check that the server is running and that the user has the CREATEDB attribute.",
        ) from error
    return True
