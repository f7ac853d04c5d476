"""What the verbs of `partita shards` start with: the catalog, the map, a shard, the schema.

Rule: a URL as it was given is passed to SQLAlchemy only; what is printed is a Location.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, make_url
from sqlalchemy.exc import ArgumentError

from partita.cli.kit.commands import Given, note
from partita.cli.kit.facts import Facts
from partita.cli.kit.imports import import_name, look_here
from partita.cli.kit.target import CONNECT_VARIABLE, find_target, get_target
from partita.cli.shards.facts import Initialized
from partita.cli.shards.names import Names
from partita.errors import (
    ConfigurationError,
    ShardMapNotFoundError,
    ShardNotFoundError,
    ShardOfflineError,
)
from partita.shards.connections.locations import location_of
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import Location, Shard
from partita.shards.maps.manager import AnyShardMap, ShardMapManager

OLD_VARIABLE = "PARTITA_CATALOG"
"""The variable of the past that names the catalog."""


def run(verb: Callable[..., Facts], given: Given) -> tuple[Facts, Names]:
    """Run a verb on the catalog; return its result and the names of the shards."""
    if verb is initialize:
        return initialize(given), Names([])
    with open_catalog(given) as manager:
        before = manager.list_locations()
        facts = verb(manager, given)
        return facts, Names([*before, *manager.list_locations()])


def initialize(given: Given) -> Initialized:
    """Make a catalog; an existing one is kept."""
    url, credentials = catalog_url(given), import_credentials(given.credentials)
    opened = ShardMapManager.try_open(url, credentials=credentials)
    is_new = opened is None
    manager = opened or ShardMapManager.create(url, if_exists="keep", credentials=credentials)
    with manager:
        return Initialized(manager.location.text, is_new)


def catalog_url(given: Given) -> str:
    """Return the URL of the catalog: the flag, else the variable."""
    connect = given.connect
    if find_target(connect) is None and os.environ.get(OLD_VARIABLE):
        note(f"The variable {OLD_VARIABLE}", CONNECT_VARIABLE)
        connect = os.environ[OLD_VARIABLE]
    return checked_url(get_target(connect, subject="The catalog", forms="URL"))


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


def open_catalog(given: Given) -> ShardMapManager:
    """Open the catalog that the flag or the variable names."""
    return ShardMapManager.open(
        catalog_url(given), credentials=import_credentials(given.credentials)
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
    """Return the shard that has this short name, location, id, database or file name."""
    if "://" in name:
        checked_url(name)
    candidates = list(shards)
    names = Names(shard.location for shard in candidates)
    found = {
        shard.id: shard
        for shard in candidates
        if _is_called(shard, name) or names.of(shard.location.text) == name
    }
    if len(found) == 1:
        return next(iter(found.values()))
    raise ShardNotFoundError(
        "ShardNotFound",
        f"{len(found)} shards are called {_shown(name)!r}."
        if found
        else f"No shard is called {_shown(name)!r}.",
        hint="Give a short name, location or id; `partita shards list` shows them.",
    )


def _is_called(shard: Shard, name: str) -> bool:
    if "://" in name:
        return shard.location.identity == location_of(name).identity
    database = shard.location.database
    return name in (shard.id, database, Path(database).name, Path(database).stem)


def _shown(name: str) -> str:
    return location_of(name).text if "://" in name else name


def make_fleet(manager: ShardMapManager, given: Given, *, is_needed: bool = True) -> Fleet:
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
        f"{name} is not a MetaData and has none.",
        hint="Name the MetaData or the declarative base: --metadata app.models:Base.metadata.",
    )


def import_credentials(name: str | None) -> Any:
    """Import the application's function that returns credentials."""
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


def connect_shard(manager: ShardMapManager, location: Location) -> Connection:
    """Connect to a shard; a SQLite file that does not exist is not made."""
    if location.backend == "sqlite":
        path = Path(location.identity.removeprefix("sqlite://"))
        if not path.exists():
            raise ShardOfflineError(
                "ShardUnreachable", "The file does not exist.", facts={"shard": location.text}
            )
    return manager.engines.admin(location).connect()
