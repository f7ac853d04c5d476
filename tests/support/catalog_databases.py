"""Databases for tests of the schema, the catalog and front ends."""

import getpass

from partita.local_postgres import HOST
from partita.scaleout.schema import versions
from partita.scaleout.schema.entities import VERSIONS
from partita.scaleout.schema.install import install
from support import postgres
from support.weak_server import run_sql

KEPT_TABLES = {"schema_version", "catalog_version", "shard", "shard_own"}
TO_1_5 = (
    *(f"DROP TRIGGER follow_{done} ON partita.queue" for done in ("created", "cleared", "dropped")),
    *(f"DELETE FROM partita.{name} WHERE kind = 'q'" for name in ("range", "range_own")),
    *(f"ALTER TABLE partita.{name} DROP kind" for name in ("range", "range_own")),
    "ALTER TABLE partita.queue DROP tid, DROP version",
    "ALTER TABLE partita.dropped_queue DROP version",
)
"""Statements that make the tables of version 1.5 of those of 1.6, ..."""
TO_1_4 = (*TO_1_5, *(f"DROP SEQUENCE partita.version_{number}" for number in range(VERSIONS)))
"""... of version 1.4, ..."""
TO_1_3 = (*TO_1_4, "ALTER TABLE partita.blob DROP COLUMN state, DROP COLUMN expires_at")
"""... of version 1.3, ..."""
TO_1_2 = (
    *TO_1_3,
    "DROP TABLE partita.shard, partita.shard_own, partita.job",
    "DROP SEQUENCE partita.shard_id",
    "ALTER TABLE partita.range DROP changed_at",
)
"""... and of version 1.2."""
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
