"""PostgreSQL for the benchmarks, and front ends of Partita on it.

The server is the one of the wheel, durable: fsync and full_page_writes are on, checkpoints are rare
enough to fall into few rounds. Its processor time is that of the postmaster and of everything that
it has started, also of connections that have ended.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.tables.servers import Server, SetUpError, family_cpu_seconds

from partita.local_postgres import LocalPostgres
from partita.scaleout.schema.install import install

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "max_connections": "100",
}
"""Everything else is as PostgreSQL has it."""


@contextmanager
def started(folder: Path) -> Iterator[LocalPostgres]:
    """Start a server with the schema of Partita in its database `postgres`."""
    postgres = LocalPostgres(folder, settings=SETTINGS)
    postgres.start()
    try:
        asyncio.run(install(postgres.url()))
        yield postgres
    finally:
        postgres.stop(immediately=True)


def cpu_seconds(postgres: LocalPostgres) -> float:
    assert postgres.pid is not None
    return family_cpu_seconds(postgres.pid)


@dataclass
class FrontEnd(Server):
    """One `partita serve` on a database; `postgres` only where its time is counted with it."""

    postgres: LocalPostgres | None = None

    def store_cpu_seconds(self) -> float:
        return 0.0 if self.postgres is None else cpu_seconds(self.postgres)


def front_end(folder: Path, postgres: LocalPostgres, *, is_counted: bool = True) -> FrontEnd:
    """Return a front end; `is_counted` says whether its figures include those of PostgreSQL."""
    script = Path(sys.executable).with_name("partita")
    if not script.exists():
        message = f"{script} is missing: install the project"
        raise SetUpError(message)
    command = (
        f"{script} serve --store {postgres.url()} --table-port {{port}} --no-blobs --no-queues"
    )
    return FrontEnd("partita", command, folder, postgres=postgres if is_counted else None)
