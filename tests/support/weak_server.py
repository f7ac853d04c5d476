"""A PostgreSQL of its own for tests that weaken, freeze or restart the server."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from partita.local_postgres import LocalPostgres


@contextmanager
def own_server(settings: Mapping[str, str] | None = None) -> Iterator[LocalPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="partita-postgres-"))
    server = LocalPostgres(folder, settings={"log_min_messages": "fatal", **(settings or {})})
    try:
        server.start()
        yield server
    finally:
        server.stop(immediately=True)
        shutil.rmtree(folder, ignore_errors=True)


def run_sql(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements one by one; return the rows of the last."""
    with psycopg.connect(url, autocommit=True, connect_timeout=30) as connection:
        rows: list[tuple[object, ...]] = []
        for statement in statements:
            found = connection.execute(statement.encode())
            rows = found.fetchall() if found.description else []
    return rows
