"""The version of the schema, and the steps from each earlier version.

A front end works with its own major version and the same or a later minor one: within a major
version tables only gain columns, and functions have their version in the name. So upgrade the
database first, then the front ends one by one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from partita.errors import FormatVersionError
from partita.scaleout.schema import (
    blobs,
    catalog,
    control,
    copying,
    entities,
    fleet,
    heat,
    kinds,
    messages,
    tagged_blobs,
)

MAJOR = 1
MINOR = 6

UPGRADES: Mapping[int, str] = MappingProxyType(
    {
        0: heat.TABLES,
        1: entities.REMOVED_TABLES,
        2: fleet.FLEET_TABLES,
        3: blobs.UPGRADE,
        4: entities.VERSION_SEQUENCES,
        5: kinds.KIND_TABLES,
    }
)
"""By minor version: the statements that change the tables from it to the next one."""

PASSES: Mapping[int, Callable[[Any], Awaitable[None]]] = MappingProxyType(
    {3: tagged_blobs.mark_tagged}
)
"""What a step does to the rows after its statements, with the connection of the transaction."""

PARTS = (catalog, entities, messages, blobs, copying, heat, fleet, control, kinds)
VERSION_TABLE = """
CREATE TABLE partita.schema_version (
  id int PRIMARY KEY CHECK (id = 1), major int NOT NULL, minor int NOT NULL
);
"""
TABLES = VERSION_TABLE + "".join(part.TABLES for part in PARTS)
FUNCTIONS = "".join(part.FUNCTIONS for part in PARTS)
PRIVILEGES: Mapping[str, str] = {
    table: privileges for part in PARTS for table, privileges in part.PRIVILEGES.items()
}


def steps(found: tuple[int, int]) -> Sequence[str]:
    """Return the statements that bring a database up to date; refuse a newer one."""
    major, minor = found
    if major != MAJOR or minor > MINOR:
        raise unknown_version(found)
    return [UPGRADES[number] for number in range(minor, MINOR)]


def is_usable(found: tuple[int, int]) -> bool:
    """Return whether front ends of this version may use a database."""
    return found[0] == MAJOR and found[1] >= MINOR


def unknown_version(found: tuple[int, int]) -> FormatVersionError:
    return FormatVersionError(
        "FormatVersion",
        f"The database has version {found[0]}.{found[1]} of the schema; this Partita has"
        f" {MAJOR}.{MINOR}.",
        hint="Upgrade the older one: Partita with pip install --upgrade partita, the database with"
        " partita fleet init. Nothing was changed.",
    )
