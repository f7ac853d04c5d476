"""Loads: how many entities a type has, and how often each of its accesses and writes happens.

[Employee]
entities = 500_000
partitions = 200
busiest = 0.05              # share of the largest partition; otherwise all are equal

[Employee.writes]           # per second
insert = 2
update = 20

[Employee.access]
"one employee" = { rate = 300 }
"a department" = { rate = 5, returns = 2_500 }

[Employee.indexes.by_email]
partitions = 500_000
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from partita.errors import UsageError
from partita.patterns.types.decorators import EntityType


class AccessLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a declared access happens."""

    rate: float
    """Calls per second."""
    returns: float | None = None
    """Entities that a call returns; otherwise derived from the plan."""


class WriteLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Writes per second."""

    insert: float = 0.0
    update: float = 0.0
    delete: float = 0.0

    @property
    def total(self) -> float:
        return self.insert + self.update + self.delete


class PlaceLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the rows of an index are distributed."""

    partitions: int
    busiest: float | None = None


class TypeLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is expected of one type."""

    entities: int
    partitions: int | None = None
    """Partition keys in use; derived if the keys decide it."""
    busiest: float | None = None
    """The share of the largest partition in entities and requests."""
    bytes: int | None = None
    """The size of an entity; otherwise estimated from its fields."""
    writes: WriteLoad = WriteLoad()
    access: dict[str, AccessLoad] = {}
    indexes: dict[str, PlaceLoad] = {}


Loads = Mapping[str, TypeLoad]


def read_loads(given: Mapping[str, Any] | str) -> dict[str, TypeLoad]:
    """Read loads from TOML, or from the same as a dict.

    >>> read_loads("Employee = { entities = 5 }")["Employee"].entities
    5
    """
    try:
        if isinstance(given, str):
            return msgspec.toml.decode(given, type=dict[str, TypeLoad])
        return msgspec.convert(dict(given), dict[str, TypeLoad], strict=False)
    except msgspec.MsgspecError as error:
        raise refused("they cannot be read", str(error)) from error


def load_of(model: EntityType[Any], loads: Loads) -> TypeLoad:
    """Return the load of a type; the indexes that it names must be declared."""
    load = loads.get(model.name)
    if load is None:
        raise refused("there is none of a type", model.name)
    if load.entities < 0 or not 0 <= (load.busiest or 0) <= 1:
        raise refused("entities is negative, or busiest is not between 0 and 1", model.name)
    unknown = sorted(set(load.indexes) - {each.name for each in model.indexes})
    if unknown:
        raise refused("the index is not declared", f"{model.name}: {unknown[0]}")
    return load


def refused(reason: str, what: str) -> UsageError:
    return UsageError(
        "LoadsRefused",
        f"The loads are invalid: {reason}: {what}.",
        hint="Give for each type: entities, partitions, writes, and a rate for each access.",
    )
