"""Databases for servers on PostgreSQL: each is a copy of one with the schema installed.

PARTITA_TEST_POOLER=pgbouncer puts PgBouncer between the servers and PostgreSQL.
"""

import asyncio
import atexit
import contextlib
import functools
import getpass
import os
from concurrent.futures import ThreadPoolExecutor

from psycopg import sql

from partita.local_postgres import HOST
from partita.service.hosting.opening import import_scaleout
from support import postgres
from support.pgbouncer import pgbouncer

IS_POOLED = os.environ.get("PARTITA_TEST_POOLER", "") == "pgbouncer"
ROLE = "pooled_front_end"
"""A pooler keeps no settings of a session: those of the role count."""
SESSIONS = 20
_LOGIN = sql.SQL("ALTER ROLE {} LOGIN").format(sql.Identifier(ROLE))

_opened = contextlib.ExitStack()

def create_fleet_database(name: str) -> str:
    """Create a database with the schema and without accounts; return its URL."""
    server = postgres.server()
    made = server.create_database(name, template=_template(server))
    url = _url(server, made)
    if not IS_POOLED:
        return url
    _install(url, ROLE)
    server.execute(_LOGIN)
    return f"postgresql://{ROLE}@{HOST}:{_pooler(server)}/{made}"


@functools.cache
def _template(server: postgres.PostgresServer) -> str:
    name = server.create_database("fleet_template")
    _install(_url(server, name), None)
    return name


@functools.cache
def _pooler(server: postgres.PostgresServer) -> int:
    """Start PgBouncer once; return its port."""
    atexit.register(_opened.close)
    return _opened.enter_context(pgbouncer(server.port, [ROLE], SESSIONS))


def _install(url: str, role: str | None) -> None:
    install = import_scaleout("schema.install").install
    # In a thread of its own: the caller may be in an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(install(url, role=role))).result()


def _url(server: postgres.PostgresServer, database: str) -> str:
    return f"postgresql://{getpass.getuser()}@{HOST}:{server.port}/{database}"
