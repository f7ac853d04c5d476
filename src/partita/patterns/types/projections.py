"""Projections: entities of which only some fields were read.

No operation that writes accepts a partial entity, neither for a type checker nor at run time, so
that fields that were not read cannot be erased by mistake.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from partita.errors import NotSelectedError, ProjectionError

T = TypeVar("T")


class Partial(Generic[T]):
    """Some fields of a T, as attributes: those that were selected, and the key fields."""

    __slots__ = ("_keys", "_name", "_values")

    def __init__(
        self, name: str, values: Mapping[str, Any], keys: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._values = dict(values)
        self._keys = dict(keys or {})

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up methods before the values are set.
        if name.startswith("__") or name in Partial.__slots__:
            raise AttributeError(name)
        for known in (self._values, self._keys):
            if name in known:
                return known[name]
        raise NotSelectedError(
            "FieldNotSelected",
            f"{name!r} was not selected.",
            facts={"type": self._name, "selected": sorted(self._values)},
            hint=f"Add it to the projection: select(..., {name!r}).",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the selected fields."""
        return dict(self._values)

    def as_key(self) -> dict[str, Any]:
        """Return the key fields, which every answer contains: `get(**partial.as_key())`.

        It is empty if a key cannot be read back into its fields, because it has only a hash.
        """
        return dict(self._keys)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Partial)
            and self._name == other._name
            and self._values == other._values
        )

    def __hash__(self) -> int:
        return hash((self._name, tuple(sorted(self._values))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"Partial[{self._name}]({fields})"


def refuse_partial(entity: object) -> None:
    """Raise if an object is a projection; called before every write."""
    if isinstance(entity, Partial):
        name: str = object.__getattribute__(entity, "_name")
        raise ProjectionError(
            "PartialEntity",
            f"This {name} has only the selected fields: writing it would erase the others.",
            facts={"type": name},
            hint="Load the whole entity, or use update() or delete_if_exists() with its key.",
        )


def fields_of(cls: type[Any]) -> tuple[str, ...]:
    """Return the fields of a class for a projection, inherited ones first.

    >>> class Named:
    ...     name: str
    >>> class Aged(Named):
    ...     age: int
    >>> fields_of(Aged)
    ('name', 'age')
    """
    names: dict[str, None] = {}
    for each in reversed(cls.__mro__):
        names |= {
            name: None
            for name, said in inspect.get_annotations(each).items()
            # Annotations may be strings, so a ClassVar is recognized by its name.
            if not name.startswith("_") and "ClassVar" not in str(said)
        }
    return tuple(names)
