"""Projections: entities of which only some fields were read.

A partial entity is no entity: nothing that writes takes one, neither for a type checker nor at
run time, so that the fields that were not read cannot be erased by mistake.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from partita.errors import ProjectionError

T = TypeVar("T")


class Partial(Generic[T]):
    """Some fields of a T, as attributes."""

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self._name = name
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            if name.startswith("__"):
                raise AttributeError(name) from None
            raise ProjectionError(
                "FieldNotSelected",
                f"{name!r} was not selected.",
                facts={"type": self._name, "selected": sorted(self._values)},
                hint=f"Add it: select(..., {name!r}).",
            ) from None

    def as_dict(self) -> dict[str, Any]:
        return dict(self._values)

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
