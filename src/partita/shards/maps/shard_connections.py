"""Connections to a shard as a whole, without a key: validated, but not routed.

The shard is validated by its own row in the local catalog: a database that was replaced, restored
elsewhere or removed from the map does not have it. Mappings are not validated.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import URL, Connection, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from partita.errors import StaleMappingError
from partita.shards.catalog import local_catalog
from partita.shards.catalog.executor import unreachable
from partita.shards.keys.mapping import Shard
from partita.shards.maps import lookups
from partita.shards.maps.open_map import OpenMap, Where
from partita.shards.routing.router import login_of


def connect_shard(
    shard_map: OpenMap,
    where: Where,
    *,
    validate: bool = True,
    credentials: URL | str | None = None,
) -> Connection:
    """Return a connection to a shard of the map; use it in a `with` block.

    StaleMappingError if the database is not, or no longer, this shard.
    """
    shard = where if isinstance(where, Shard) else lookups.get_shard(shard_map, where)
    engine = shard_map.engines.for_location(shard.location, login=login_of(credentials))
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise unreachable(shard.location.text) from error
    try:
        if validate:
            _check(connection, shard_map, shard)
    except BaseException:
        connection.close()
        raise
    return connection


@asynccontextmanager
async def aconnect_shard(
    shard_map: OpenMap,
    where: Where,
    *,
    validate: bool = True,
    credentials: URL | str | None = None,
) -> AsyncIterator[AsyncConnection]:
    """Return an async connection to a shard as `connect_shard()` does."""
    shard = where
    if not isinstance(shard, Shard):
        # In a thread, because the catalog is read with the synchronous engine.
        shard = await asyncio.to_thread(lookups.get_shard, shard_map, shard)
    engine = shard_map.engines.async_for_location(shard.location, login=login_of(credentials))
    try:
        connection = await engine.connect()
    except (DBAPIError, OSError) as error:
        raise unreachable(shard.location.text) from error
    try:
        if validate:
            await connection.run_sync(_check, shard_map, shard)
        yield connection
    finally:
        await asyncio.shield(connection.close())


def _check(connection: Connection, shard_map: OpenMap, shard: Shard) -> None:
    rows = local_catalog.shards.c
    query = select(rows.shard_id).where(rows.map_id == shard_map.id)
    found = connection.scalar(query) if local_catalog.is_deployed(connection) else None
    connection.rollback()
    if found != shard.id:
        raise StaleMappingError(
            "NotThisShard",
            "The database is not this shard of the map: it was replaced, or removed from the map.",
            facts={"map": shard_map.name, "shard": shard.location.text},
            hint="Read the shard again with get_shard(); after a restore, call recovery.attach().",
        )
