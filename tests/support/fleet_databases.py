"""Databases for servers on PostgreSQL: each is a copy of one with the schema installed."""

import asyncio
import functools
import getpass
from concurrent.futures import ThreadPoolExecutor

from partita.local_postgres import HOST
from partita.service.hosting.opening import import_scaleout
from support import postgres


def create_fleet_database(name: str) -> str:
    """Create a database with the schema and without accounts; return its URL."""
    server = postgres.server()
    made = server.create_database(name, template=_template(server))
    return _url(server, made)


@functools.cache
def _template(server: postgres.PostgresServer) -> str:
    name = server.create_database("fleet_template")
    install = import_scaleout("schema.install").install
    # In a thread of its own: the caller may be in an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(install(_url(server, name)))).result()
    return name


def _url(server: postgres.PostgresServer, database: str) -> str:
    return f"postgresql://{getpass.getuser()}@{HOST}:{server.port}/{database}"
