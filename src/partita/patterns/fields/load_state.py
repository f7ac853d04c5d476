"""What is remembered of an entity beside it: where and as which version it was read or written.

An origin is never part of the object: `==`, `hash`, `repr`, `vars`, `copy` and `pickle` do not
see it. A copy and an unpickled object are therefore new ones, without an origin; `evolve` is
the way to a changed object that is still the same entity.
"""

import copy
import math
import weakref
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from partita.patterns.protocol.values import RowKey, Value


class Origin(msgspec.Struct):
    """How an entity was stored when it was last read or written."""

    key: RowKey
    etags: tuple[str, ...]
    """Of the first row, and of each further row of a wide entity."""
    values: dict[str, Any]
    """The fields as they were: what has changed since, and which index rows there are."""
    extra: dict[str, Value] = msgspec.field(default_factory=dict)
    """Properties that the type does not know; they are written back."""
    version: int = 1
    timestamp: datetime | None = None
    system: dict[str, Value] = msgspec.field(default_factory=dict)
    """Our own properties of the first row."""
    sealed: frozenset[str] = frozenset()
    """Properties that were sealed when they were read."""
    number_types: dict[str, str] = msgspec.field(default_factory=dict)
    """Number properties that are stored in a narrower type than their field is declared with."""
    parts: dict[int, dict[str, Value]] = msgspec.field(default_factory=dict)
    """Properties of the further rows, by their place, to see which of them change."""


_FIXED = frozenset(
    {str, bytes, bool, int, float, type(None), datetime, date, time, timedelta, Decimal, UUID}
)


def snapshot(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are now: what the caller does to a list or dict later is a change."""
    return {name: _as_it_is(value) for name, value in values.items()}


def _as_it_is(value: Any) -> Any:
    if type(value) in _FIXED or isinstance(value, Enum):
        return value
    if type(value) is dict:
        return {key: _as_it_is(each) for key, each in value.items()}
    if type(value) is list:
        return [_as_it_is(each) for each in value]
    return copy.deepcopy(value)


def are_same(one: object, other: object) -> bool:
    """Tell whether two values of a field are the same; what is no number is, to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


class _Memory(weakref.ref[Any]):
    """A weak reference that carries the origin of what it refers to."""

    __slots__ = ("address", "origin")

    address: int
    origin: Origin


_memories: dict[int, _Memory] = {}
"""By the address of the object: entities need neither a hash nor a place for an attribute. An
entry goes with its object, before the address can be that of another one."""

_PLACE = "_partita_origin"
"""Where a msgspec Struct with `dict=True` alone, which has no weak references, keeps it."""


def can_hold(cls: type) -> bool:
    """Tell whether objects of a class can have an origin."""
    return cls.__weakrefoffset__ != 0 or cls.__dictoffset__ != 0


def find_origin(obj: object) -> Origin | None:
    if type(obj).__weakrefoffset__ == 0:
        found: Origin | None = obj.__dict__.get(_PLACE)
        return found
    memory = _memories.get(id(obj))
    return memory.origin if memory is not None and memory() is obj else None


def set_origin(obj: object, origin: Origin | None) -> None:
    """Remember where an entity comes from; None forgets it."""
    if type(obj).__weakrefoffset__ == 0:
        if origin is None:
            obj.__dict__.pop(_PLACE, None)
        else:
            obj.__dict__[_PLACE] = origin
    elif origin is None:
        _memories.pop(id(obj), None)
    else:
        memory = _Memory(obj, _forget)
        memory.address, memory.origin = id(obj), origin
        _memories[id(obj)] = memory


def _forget(memory: weakref.ref[Any]) -> None:
    assert isinstance(memory, _Memory)
    if _memories.get(memory.address) is memory:
        del _memories[memory.address]
