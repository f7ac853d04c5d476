"""What every verb of `partita shards` needs first: the catalog, the map, a shard, the schema.

Rule: URLs as they were given go to SQLAlchemy and nowhere else; what is printed is a Location.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, make_url
from sqlalchemy.exc import ArgumentError

from partita.cli.kit.imports import import_name, look_here
from partita.cli.shards.secrets import CATALOG_VARIABLE
from partita.errors import ConfigurationError, ShardMapNotFoundError, ShardNotFoundError
from partita.shards.connections.engines import location_of
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import Shard
from partita.shards.maps.manager import AnyShardMap, ShardMapManager


def catalog_url(given: str | None) -> str:
    """Return the URL of the catalog: the flag, else the variable."""
    url = given or os.environ.get(CATALOG_VARIABLE, "")
    if url:
        return checked_url(url)
    raise ConfigurationError(
        "Configuration",
        "The catalog is not named.",
        hint=f"Give --catalog URL, or set {CATALOG_VARIABLE}.",
    )


def checked_url(url: str) -> str:
    """Refuse a URL that SQLAlchemy cannot read, without repeating it."""
    try:
        make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "InvalidLocation",
            "The URL of the database cannot be read.",
            hint="Write dialect+driver://host:port/database, or sqlite:///file.db.",
        ) from error
    return url


def open_catalog(given: argparse.Namespace) -> ShardMapManager:
    """Open the catalog that the flags or the variable name."""
    return ShardMapManager.open(
        catalog_url(given.catalog), credentials=import_credentials(given.credentials)
    )


def choose_map(manager: ShardMapManager, name: str | None) -> AnyShardMap:
    """Return the map of this name; without a name the only one."""
    if name is not None:
        return manager.get_map(name)
    maps = manager.list_maps()
    if len(maps) == 1:
        return maps[0]
    names = ", ".join(one.name for one in maps)
    raise ShardMapNotFoundError(
        "ShardMapNotNamed" if maps else "ShardMapNotFound",
        f"The catalog has several shard maps: {names}."
        if maps
        else "The catalog has no shard map yet.",
        hint="Name one with --map." if maps else "Make one with `partita shards create-map`.",
    )


def chosen_maps(manager: ShardMapManager, name: str | None) -> list[AnyShardMap]:
    """Return the map of this name; without a name all of them."""
    return manager.list_maps() if name is None else [manager.get_map(name)]


def choose_shard(shards: Iterable[Shard], name: str) -> Shard:
    """Return the shard that is called by its URL, its id, its database or its file's name."""
    if "://" in name:
        checked_url(name)
    found = {shard.id: shard for shard in shards if _is_called(shard, name)}
    if len(found) == 1:
        return next(iter(found.values()))
    raise ShardNotFoundError(
        "ShardNotFound",
        f"{len(found)} shards are called {_shown(name)!r}."
        if found
        else f"No shard is called {_shown(name)!r}.",
        hint="Name it by its URL, its id or its database; `partita shards shards` lists them.",
    )


def _is_called(shard: Shard, name: str) -> bool:
    if "://" in name:
        return shard.location.identity == location_of(name).identity
    database = shard.location.database
    return name in (shard.id, database, Path(database).name, Path(database).stem)


def _shown(name: str) -> str:
    return location_of(name).text if "://" in name else name


def make_fleet(
    manager: ShardMapManager, given: argparse.Namespace, *, is_needed: bool = True
) -> Fleet:
    """Make the fleet with the schema of --metadata and --alembic."""
    metadata = import_metadata(given.metadata)
    if is_needed and metadata is None and given.alembic is None:
        raise ConfigurationError(
            "SchemaNotGiven",
            "The schema of the shards is not named.",
            hint="Give --metadata module:attribute, --alembic FOLDER, or both.",
        )
    return Fleet(manager, metadata=metadata, alembic=given.alembic)


def import_metadata(name: str | None) -> MetaData | None:
    """Import the application's MetaData, or a declarative class that has one."""
    look_here()  # for the imports of env.py too
    if name is None:
        return None
    found = import_name(name, "--metadata app.models:name", form="module:attribute")
    found = found if isinstance(found, MetaData) else getattr(found, "metadata", None)
    if isinstance(found, MetaData):
        return found
    raise ConfigurationError(
        "Configuration",
        f"{name} is no MetaData and has none.",
        hint="Name the MetaData or the declarative base: --metadata app.models:Base.metadata.",
    )


def import_credentials(name: str | None) -> Any:
    """Import the application's resolver of credentials."""
    if name is None:
        return None
    found = import_name(name, "--credentials app.models:name", form="module:attribute")
    if callable(found):
        return found
    raise ConfigurationError(
        "Configuration",
        f"{name} cannot be called.",
        hint="Name a function that takes a location and returns a URL with user and password.",
    )
