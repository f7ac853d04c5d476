"""Helpers for type annotations: unwrapping, unions, names. Pure."""

import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

from partita.patterns.protocol.values import Int32


def plain(annotation: object) -> Any:
    """Remove the wrappers that do not affect storage: Annotated, NewType, type aliases."""
    while True:
        if get_origin(annotation) is Annotated:
            inner, *metadata = get_args(annotation)
            annotation = narrowed(inner, tuple(metadata))
        elif (meant := meaning_of(annotation)) is not annotation:
            annotation = meant
        else:
            return annotation


def narrowed(annotation: object, metadata: tuple[Any, ...]) -> Any:
    """Return the type that `Annotated[annotation, *metadata]` is stored as.

    >>> narrowed(int | None, (Int32,))
    partita.patterns.protocol.values.Int32 | None
    """
    if Int32 not in metadata:
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        members = tuple(narrowed(member, (Int32,)) for member in get_args(annotation))
        return Union[members]  # noqa: UP007 - members at run time
    return Int32 if plain(annotation) is int else annotation


def meaning_of(annotation: object) -> Any:
    """Return the type that a NewType or an alias stands for; anything else unchanged."""
    if isinstance(annotation, typing.NewType):
        return annotation.__supertype__
    if type(annotation).__name__ == "TypeAliasType":
        return getattr(annotation, "__value__")  # noqa: B009 - absent from the oldest Python
    return annotation


def union_members(annotation: object) -> tuple[Any, ...]:
    """Return the members of a union except None; for any other type, the type alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for member in get_args(annotation) if member is not type(None))
    return (annotation,)


def admits_none(annotation: object) -> bool:
    """Return whether a type is a union with None."""
    return len(union_members(annotation)) < len(get_args(annotation)) and get_origin(
        annotation
    ) in (Union, types.UnionType)


def name_of(annotation: Any) -> str:
    """Return a type as it is written in source code, for messages."""
    return annotation.__name__ if type(annotation) is type else str(annotation)
