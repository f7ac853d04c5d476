"""Materialised views: functions that are called, eventually, for every entity that changed.

A view is given the key fields and the entity as it is now (None: it is gone), and writes what
it likes. It may be called twice, late, and by two workers at once; since it is told the state
and not the change, and called again if that changed meanwhile, its last word is the right one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from partita.errors import DefinitionError
from partita.patterns.types.decorators import entity_type

F = TypeVar("F", bound=Callable[..., Any])


class View(msgspec.Struct, frozen=True):
    """A function that follows a type."""

    name: str
    function: Callable[..., Any]


def view(cls: type[Any], *, name: str | None = None) -> Callable[[F], F]:
    """Declare a function `(db, key, entity)` that follows the entities of a type.

    `key` is a dict of the key fields; `entity` is None when it was deleted.
    """
    model = entity_type(cls)

    def register(function: F) -> F:
        own = name or function.__name__
        if any(each.name == own for each in model.views):
            raise DefinitionError(
                "ViewRefused",
                f"{model.name} has a view {own!r} already.",
                hint="Give it another name: @view(..., name=...).",
            )
        model.declare(views=(*model.views, View(own, function)))
        return function

    return register
