"""A database that does not answer for a while."""

import contextlib
from collections.abc import Iterator

from psycopg import sql

from support import postgres


@contextlib.contextmanager
def away(url: str) -> Iterator[None]:
    """Refuse connections to a database, and end those that it has."""
    name, server = url.rpartition("/")[2], postgres.server()
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    server.execute(allow.format(sql.Identifier(name), sql.Literal(False)))
    server.execute(postgres.END_SESSIONS.format(sql.Literal(name)))
    try:
        yield
    finally:
        server.execute(allow.format(sql.Identifier(name), sql.Literal(True)))
