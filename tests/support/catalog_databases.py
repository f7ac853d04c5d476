"""Databases for tests of the schema, the catalog and front ends."""

import getpass

from partita.local_postgres import HOST
from partita.scaleout.schema import versions
from partita.scaleout.schema.install import install
from support import postgres
from support.weak_server import run_sql

KEPT_TABLES = {"schema_version", "catalog_version"}
_shared: list[str] = []


def empty_url(name: str = "catalog") -> str:
    """Create an empty database and return its URL."""
    return url_of(postgres.server().create_database(name))


async def shared_url() -> str:
    """Return the URL of a database with the schema and without rows, one for each process."""
    if not _shared:
        _shared.append(empty_url())
        await install(_shared[0])
    else:
        tables = sorted(set(versions.PRIVILEGES) - KEPT_TABLES - {"account"})
        run_sql(_shared[0], *(f"DELETE FROM partita.{name}" for name in [*tables, "account"]))
    return _shared[0]


def url_of(database: str, user: str | None = None) -> str:
    return f"postgresql://{user or getpass.getuser()}@{HOST}:{postgres.server().port}/{database}"
