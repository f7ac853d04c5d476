"""Materialised views: functions that are called, eventually, for every entity that changed.

A view receives the key fields and the current entity (None if it was deleted). It may be called
twice, late, and by two workers at once. Since it receives the state and not the change, and is
called again if the state changed in the meantime, its last call has the current state.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from partita.errors import DefinitionError
from partita.patterns.types.decorators import entity_type

F = TypeVar("F", bound=Callable[..., Any])


class View(msgspec.Struct, frozen=True):
    """A function that is called for changed entities of a type."""

    name: str
    function: Callable[..., Any]


def view(cls: type[Any], *, name: str | None = None) -> Callable[[F], F]:
    """Declare a function `(db, key, entity)` that is called for changed entities of a type.

    `key` is a dict of the key fields; `entity` is None if it was deleted.
    """
    model = entity_type(cls)

    def register(function: F) -> F:
        own = name or function.__name__
        if any(each.name == own for each in model.views):
            raise DefinitionError(
                "ViewRefused",
                f"{model.name} already has a view {own!r}.",
                hint="Set another name: @view(..., name=...).",
            )
        model.declare(views=(*model.views, View(own, function)))
        return function

    return register
