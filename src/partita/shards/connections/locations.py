"""Locations of databases: parse URLs, check drivers and options, find SQLite files."""

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from sqlalchemy import URL, make_url
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import ArgumentError

from partita.errors import ConfigurationError
from partita.shards.keys.mapping import Location

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
FILE_MODE = 0o600
"""The permissions of new SQLite files."""
_SQLITE_OPTIONS = {
    *("cache", "immutable", "mode", "nolock", "psow", "uri", "vfs"),
    *("cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout"),
}
_SYNC_DRIVERS = {"aiosqlite": "sqlite", "asyncpg": "postgresql+psycopg"}


def location_of(url: str | URL) -> Location:
    """Return the location of the URL, without its secrets.

    The path of an SQLite file is resolved, so that two names of one file are one database.
    """
    location = Location.from_url(parsed_url(url), relative_to=str(Path.cwd()))
    return _resolved(location) if location.backend == "sqlite" else location


def parsed_url(url: str | URL) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # Neither the URL nor the cause is shown: they may contain part of a password.
        raise ConfigurationError(
            "InvalidLocation",
            "The database URL cannot be parsed.",
            hint="Write dialect+driver://host:port/database, or sqlite:///file.db.",
        ) from None


def _resolved(location: Location) -> Location:
    path = os.path.realpath(location.identity.removeprefix("sqlite://"))
    database = "file:" + quote(path) if location.database.startswith("file:") else path
    return msgspec.structs.replace(location, database=database)


def check_driver(location: Location) -> None:
    """Refuse a location for which no engine can be created."""
    if location.backend not in ASYNC_DRIVERS:
        raise ConfigurationError(
            "DialectNotSupported",
            "Only PostgreSQL and SQLite databases can hold catalogs and shards.",
            facts={"dialect": location.dialect},
            hint="Write postgresql+psycopg://host:port/database, or sqlite:///file.db.",
        )
    url = sync_url(location)
    try:
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except (ArgumentError, ImportError) as error:
        raise ConfigurationError(
            "DriverNotInstalled",
            "The driver named in the URL is not installed.",
            facts={"dialect": location.dialect},
            hint="Install the driver, or name another one: postgresql+psycopg://… needs psycopg.",
        ) from error
    _check_options(location, url, dialect)


def _check_options(location: Location, url: URL, dialect: type[Dialect]) -> None:
    # A server rejects unknown options itself; SQLite ignores them.
    names = {name for name, _ in location.options}
    unknown = names - _SQLITE_OPTIONS if location.backend == "sqlite" else set[str]()
    if not unknown:
        try:
            dialect().create_connect_args(url)
        except (ArgumentError, ValueError):
            unknown = names
    if unknown:
        raise ConfigurationError(
            "InvalidLocation",
            "The URL has options that the driver does not accept.",
            facts={"options": sorted(unknown)},
            hint="Remove the options, or correct their values.",
        )


def sync_url(location: Location) -> URL:
    url = make_url(location.text)
    if url.get_driver_name() in _SYNC_DRIVERS:
        url = url.set(drivername=_SYNC_DRIVERS[url.get_driver_name()])
    return url


def file_of(location: Location) -> Path | None:
    """Return the file of an SQLite database; None for a database on a server."""
    if location.backend != "sqlite":
        return None
    return Path(location.identity.removeprefix("sqlite://"))


def create_file(location: Location) -> None:
    """Create the empty file of an empty SQLite database, unless it exists; only its owner reads it.

    SQLite gives the files beside it, `-wal` and `-shm`, the same permissions. Connecting never
    creates a file: a shard whose file was lost must not come back empty.
    """
    file = file_of(location)
    if file is not None:
        # If it cannot be created, the next connection fails and reports why.
        with suppress(OSError):
            file.touch(FILE_MODE)
