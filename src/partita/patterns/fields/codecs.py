"""Codecs: how a field of an annotated type is stored and read.

Reading is strict: a stored value must have the annotated type. Writing is strict too, because
most Python classes do not check the types of their fields.

    bool Edm.Boolean, int Edm.Int64, Int32 Edm.Int32 (each is read from both), float Edm.Double
    (read from whole numbers too), str Edm.String, bytes Edm.Binary, UUID Edm.Guid
    datetime         Edm.DateTime, with a time zone, 1601 to 9999; an Instant keeps all its digits
    date, time       Edm.String in ISO 8601; a time has no time zone
    timedelta        Edm.Int64, ticks of 100 ns
    Decimal          Edm.String without trailing zeros: equal numbers have equal text
    Enum, Literal    as their values, all str or all int
    list, tuple, set, dict, TypedDict, NamedTuple, dataclass, Struct, attrs class, pydantic model,
    union of tagged Structs   Edm.String in JSON, members of dicts and sets sorted
    X | None         as X; None is an absent property
"""

import enum
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec

from partita.errors import DefinitionError, InvalidPropertyError
from partita.patterns.fields.annotations import admits_none, name_of, plain, union_members
from partita.patterns.fields.nested_json import json_functions
from partita.patterns.fields.scalars import UnfitError, fitting_text, scalar_for
from partita.patterns.protocol.values import Int32, Value
from partita.tables import edm, limits

_NOTHING_STORED = "Give the field a default, or raise the version of the type and add an upcaster."


class Codec(msgspec.Struct, frozen=True):
    """How one field is stored."""

    where: str
    """The field, for errors: `Employee.salary`."""
    expected: str
    """The expected type, in words. Part of the format of partita.lock: never change it."""
    edm: str
    to_stored: Callable[[Any], Value]
    from_stored: Callable[[Value], Any]
    is_optional: bool = False
    is_ordered: bool = True
    """Whether stored forms sort on the service as the values do in Python."""

    def encode(self, value: Any) -> Value | None:
        """Return the stored form; None for an absent property."""
        if value is None and self.is_optional:
            return None
        try:
            return self.to_stored(value)
        except UnfitError as error:
            given = type(value).__name__
            raise self._refusal(error, f"a value of type {given} was given") from error.__cause__

    def decode(self, stored: Value | None) -> Any:
        """Return the value; None if the field is optional and the property absent."""
        if stored is None and self.is_optional:
            return None
        if stored is None:
            raise self._refusal(UnfitError(hint=_NOTHING_STORED), "nothing is stored")
        try:
            return self.from_stored(stored)
        except UnfitError as error:
            raise self._refusal(error, f"{edm_of(stored)} is stored") from error.__cause__

    def _refusal(self, error: UnfitError, found: str) -> InvalidPropertyError:
        return InvalidPropertyError(
            error.code,
            f"{self.where} holds {self.expected}; {error.reason or found}.",
            facts={"field": self.where, "expected": self.edm},
            hint=error.hint,
        )


def edm_of(stored: Value) -> str:
    """Return the EDM type of a stored value."""
    if isinstance(stored, Int32):
        return edm.INT32
    for python, name in _EDM.items():
        if isinstance(stored, python):
            return name
    return type(stored).__name__


_EDM: dict[type, str] = {
    bool: edm.BOOLEAN,
    int: edm.INT64,
    float: edm.DOUBLE,
    str: edm.STRING,
    bytes: edm.BINARY,
    datetime: edm.DATETIME,
    UUID: edm.GUID,
}


def codec_for(
    annotation: object, *, where: str, bytes_max: int | None = limits.PROPERTY_BYTES_MAX
) -> Codec:
    """Return the codec of an annotated type; `bytes_max=None` is for values stored in a blob.

    >>> from decimal import Decimal
    >>> codec_for(Decimal, where="Expense.amount").encode(Decimal("9.50"))
    '9.5'
    """
    annotation = plain(annotation)
    if admits_none(annotation):
        inner = codec_for(_union(union_members(annotation)), where=where, bytes_max=bytes_max)
        return msgspec.structs.replace(
            inner, is_optional=True, expected=f"{inner.expected} or None"
        )
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            return _enum_codec(annotation, where)
        scalar = scalar_for(annotation, bytes_max)
        if scalar is not None:
            return Codec(
                where,
                scalar.expected,
                scalar.edm,
                scalar.to_stored,
                scalar.from_stored,
                is_ordered=scalar.is_ordered,
            )
    if get_origin(annotation) is Literal:
        return _literal_codec(get_args(annotation), where)
    return _json_codec(annotation, where, bytes_max)


def _union(members: tuple[Any, ...]) -> Any:
    return members[0] if len(members) == 1 else Union[members]  # noqa: UP007 - members at run time


def _codec_of_values(values: list[Any], where: str) -> Codec:
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    if kinds in ({str}, {int}):
        return codec_for(kinds.pop(), where=where)
    raise DefinitionError(
        "FieldTypeRefused",
        f"The values of {where} are not all str or all int.",
        facts={"field": where},
        hint="Use str values only, or int values only.",
    )


def _enum_codec(members: type[enum.Enum], where: str) -> Codec:
    inner = _codec_of_values([member.value for member in members], where)

    def to_stored(value: Any) -> Value:
        if not isinstance(value, members):
            raise UnfitError(hint=f"Give a member of {members.__name__}, not its value.")
        return inner.to_stored(value.value)

    def from_stored(stored: Value) -> enum.Enum:
        value = inner.from_stored(stored)
        try:
            return members(value)
        except ValueError as error:
            raise UnfitError("PropertyValueUnknown", "no member has the stored value") from error

    name = f"a member of {members.__name__}"
    return Codec(where, name, inner.edm, to_stored, from_stored, is_ordered=False)


def _literal_codec(values: tuple[Any, ...], where: str) -> Codec:
    given = [value for value in values if value is not None]
    inner = _codec_of_values(given, where)

    def checked(convert: Callable[[Any], Any], value: Any) -> Any:
        found = convert(value)
        if found not in given:
            raise UnfitError("PropertyValueUnknown", "the value is not one of them")
        return found

    return Codec(
        where,
        f"one of {len(given)} values",
        inner.edm,
        partial(checked, inner.to_stored),
        partial(checked, inner.from_stored),
        is_optional=len(given) < len(values),
    )


def _json_codec(annotation: Any, where: str, bytes_max: int | None) -> Codec:
    to_json, from_json = json_functions(annotation, where)

    def to_stored(value: Any) -> str:
        if value is None:
            raise UnfitError
        try:
            text = to_json(value)
            kept = from_json(text)
        except (
            TypeError,
            ValueError,
            OverflowError,
            msgspec.MsgspecError,
            RecursionError,
        ) as error:
            raise UnfitError from error
        # NaN would become null, and a tuple in a list[Any] a list.
        if kept != value:
            raise UnfitError("PropertyNotKept", "this value would be read back as another one")
        return fitting_text(bytes_max, text)

    def from_stored(stored: Value) -> Any:
        if not isinstance(stored, str):
            raise UnfitError
        try:
            return from_json(stored)
        except (ValueError, msgspec.MsgspecError) as error:
            raise UnfitError(reason="the stored text is not JSON of that type") from error

    return Codec(
        where,
        f"{name_of(annotation)} in JSON",
        edm.STRING,
        to_stored,
        from_stored,
        is_ordered=False,
    )
