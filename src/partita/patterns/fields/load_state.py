"""The origin of a loaded object: its key, etags and values when it was last read or written.

An origin is kept outside the object: `==`, `hash`, `repr`, `vars`, `copy` and `pickle` do not
include it. A copied or unpickled object is therefore a new entity without an origin; `evolve`
makes a changed object that keeps its origin.
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
    """The stored form of an entity when it was last read or written."""

    key: RowKey
    etags: tuple[str, ...]
    """The etags of the first row and of each additional row of a wide entity."""
    values: dict[str, Any]
    """The fields as stored: used to find changes and the existing index rows."""
    extra: dict[str, Value] = msgspec.field(default_factory=dict)
    """Properties that the type does not declare; they are written back."""
    version: int = 1
    timestamp: datetime | None = None
    system: dict[str, Value] = msgspec.field(default_factory=dict)
    """The library's own properties of the first row."""
    sealed: frozenset[str] = frozenset()
    """Properties that were sealed when they were read."""
    number_types: dict[str, str] = msgspec.field(default_factory=dict)
    """Number properties that are stored in a narrower type than their field declares."""
    parts: dict[int, dict[str, Value]] = msgspec.field(default_factory=dict)
    """Properties of the additional rows, by row number, used to find changed rows."""


_FIXED = frozenset(
    {str, bytes, bool, int, float, type(None), datetime, date, time, timedelta, Decimal, UUID}
)


def snapshot(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of values, so that later changes of a list or dict are detected."""
    return {name: _copied(value) for name, value in values.items()}


def _copied(value: Any) -> Any:
    if type(value) in _FIXED or isinstance(value, Enum):
        return value
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    if type(value) is list:
        return [_copied(each) for each in value]
    return copy.deepcopy(value)


def are_same(one: object, other: object) -> bool:
    """Return whether two values of a field are equal; NaN equals NaN here."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


class _OriginReference(weakref.ref[Any]):
    """A weak reference to an object that carries the object's origin."""

    __slots__ = ("address", "origin")

    address: int
    origin: Origin


_references: dict[int, _OriginReference] = {}
"""By the address of the object, because entities need not be hashable or accept attributes. An
entry is removed with its object, before the address can be reused."""

_ATTRIBUTE = "_partita_origin"
"""Holds the origin of a msgspec Struct with `dict=True`, which has no weak references."""


def can_hold(cls: type) -> bool:
    """Return whether objects of a class can have an origin."""
    return cls.__weakrefoffset__ != 0 or cls.__dictoffset__ != 0


def find_origin(obj: object) -> Origin | None:
    if type(obj).__weakrefoffset__ == 0:
        found: Origin | None = obj.__dict__.get(_ATTRIBUTE)
        return found
    reference = _references.get(id(obj))
    return reference.origin if reference is not None and reference() is obj else None


def set_origin(obj: object, origin: Origin | None) -> None:
    """Set the origin of an entity; None removes it."""
    if type(obj).__weakrefoffset__ == 0:
        if origin is None:
            obj.__dict__.pop(_ATTRIBUTE, None)
        else:
            obj.__dict__[_ATTRIBUTE] = origin
    elif origin is None:
        _references.pop(id(obj), None)
    else:
        reference = _OriginReference(obj, _remove)
        reference.address, reference.origin = id(obj), origin
        _references[id(obj)] = reference


def _remove(reference: weakref.ref[Any]) -> None:
    assert isinstance(reference, _OriginReference)
    if _references.get(reference.address) is reference:
        del _references[reference.address]
