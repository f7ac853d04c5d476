"""The addresses of shards in the catalog: changed when a server of a shard has moved."""

from collections.abc import Mapping

from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.storage.durability import Durability

_SET_URL = """
UPDATE partita.shard SET url = $2 WHERE name = $1 AND url IS DISTINCT FROM $2 RETURNING id
"""
_CHANGED = "SELECT partita.catalog_changed_1() AS version"
_SET_VERSION = "UPDATE partita.shard SET version = $2 WHERE id = ANY ($1)"


async def set_addresses(catalog: str, urls: Mapping[str, str]) -> None:
    """Set the URLs of shards by name; a name that the catalog does not have is left out.

    Front ends find the new address by the next change of the catalog that they notice. They refuse
    a database at it that has another identity than the shard.
    """
    link = await Connector(Location.parse(catalog), Durability.FAST).connect()
    try:
        async with link.transaction():
            changed = [
                row["id"]
                for name, url in urls.items()
                for row in await link.read(_SET_URL, name, url)
            ]
            if changed:
                ((version,),) = await link.read(_CHANGED)
                await link.read(_SET_VERSION, changed, version)
    finally:
        await link.close()
