"""Where `partita serve` keeps its accounts; with --local, in a PostgreSQL that it starts."""

import contextlib
from collections.abc import AsyncIterator

from partita.cli.config import Config
from partita.cli.kit.local_database import started_store
from partita.local_postgres import has_local_store
from partita.service.hosting.opening import Place


def local_store_warnings(config: Config) -> list[str]:
    """Return a warning if the data folder also has the database of --local, which is not served."""
    folder = config.folder
    if config.is_on_postgresql or folder is None or not has_local_store(folder):
        return []
    warning = (
        f"{folder} also has a PostgreSQL database, whose accounts are not served: give --store"
        " postgres --local to serve them."
    )
    return [warning]


@contextlib.asynccontextmanager
async def opened_place(config: Config) -> AsyncIterator[Place]:
    """Yield where the accounts of a server are; with --local, start PostgreSQL there."""
    blob_store = None if config.blob_store is None else config.blob_store.text
    rest = config.clock_check, config.heat
    if config.local:
        async with started_store(config.path) as (url, blobs):
            yield Place(url, config.durability, blob_store or blobs, *rest)
        return
    where = config.store.text if config.is_on_postgresql else config.folder
    yield Place(where, config.durability, blob_store, *rest)
