"""Shard maps: shards, mappings and jobs of a catalog. Nothing here changes one."""

from partita.console.calls import Answer, Call, Route
from partita.errors import ConfigurationError


async def show(call: Call) -> Answer:
    """Return the maps of the catalog, and its last jobs."""
    catalog = call.services.catalog
    if catalog is None:
        raise ConfigurationError(
            "ConsoleShardsMissing",
            "This console has no catalog of shard maps to show.",
            hint="Start it with `partita console --shards URL`, the URL of the catalog.",
        )
    return await catalog.read()


ROUTES = (Route("GET", "/api/v1/shards", show),)
