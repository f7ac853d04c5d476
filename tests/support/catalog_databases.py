"""Databases for tests of the schema, the catalog and front ends."""

import getpass

from partita.local_postgres import HOST
from partita.scaleout.schema.install import install
from support import postgres


def empty_url(name: str = "catalog") -> str:
    """Create an empty database and return its URL."""
    server = postgres.server()
    return url_of(server.create_database(name))


async def installed_url(name: str = "catalog") -> str:
    """Create a database with the schema and return its URL."""
    url = empty_url(name)
    await install(url)
    return url


def url_of(database: str, user: str | None = None) -> str:
    return f"postgresql://{user or getpass.getuser()}@{HOST}:{postgres.server().port}/{database}"
