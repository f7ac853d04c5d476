"""Nested values as JSON: which types are supported, and how they are encoded and decoded.

msgspec encodes and decodes strictly; pydantic handles types that contain its models. Equal values
give equal text: members of dicts and sets are sorted.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import name_of, union_members

_NESTED = (
    msgspec.inspect.ListType,
    msgspec.inspect.TupleType,
    msgspec.inspect.VarTupleType,
    msgspec.inspect.SetType,
    msgspec.inspect.FrozenSetType,
    msgspec.inspect.DictType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.StructType,
    msgspec.inspect.UnionType,
)

_encode_json = msgspec.json.Encoder(order="deterministic").encode


def json_functions(
    annotation: Any, where: str
) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """Return the functions that encode and decode values of a type, or raise."""
    hint = "Use a type that can be stored, and convert it in a property of the class."
    if annotation in (Any, object):
        raise _refused(where, f"{where} can hold any type, so it cannot be stored.", hint)
    members = union_members(annotation)
    if len(members) > 1 and not all(_is_struct(member) for member in members):
        raise _refused(
            where,
            f"{where} is a union whose members cannot be told apart when they are stored.",
            "Use X | None, or a union of msgspec Structs with tags.",
        )
    try:
        shape = msgspec.inspect.type_info(annotation)
        decoder = msgspec.json.Decoder(annotation)
    except (TypeError, NameError) as error:
        raise _refused(where, f"{where} cannot be stored: {error}.", hint) from error
    unknown = {part.cls for part in _parts(shape) if isinstance(part, msgspec.inspect.CustomType)}
    if unknown and all(_is_model(cls) for cls in unknown):
        return _model_functions(annotation)
    if unknown or not isinstance(shape, _NESTED):
        raise _refused(where, f"{where} is {name_of(annotation)}, which cannot be stored.", hint)
    return _json_text, decoder.decode


def _json_text(value: Any) -> str:
    try:
        return _encode_json(value).decode()
    except TypeError:  # msgspec sorts dicts only if their keys are strings
        builtin = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        return _encode_json(builtin).decode()


def _model_functions(annotation: Any) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional: installed if models are used

    adapter = TypeAdapter(annotation)

    def to_json(value: Any) -> str:
        checked = adapter.validate_python(value, strict=True)
        return _json_text(adapter.dump_python(checked, mode="json", by_alias=True))

    return to_json, adapter.validate_json


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _is_model(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _parts(shape: object, seen: set[int] | None = None) -> Iterator[msgspec.inspect.Type]:
    """Yield all types that a type consists of; types may be recursive."""
    seen = set() if seen is None else seen
    if id(shape) in seen:
        return
    seen.add(id(shape))
    if isinstance(shape, msgspec.inspect.Type):
        yield shape
    if isinstance(shape, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in shape.__struct_fields__:
            inner = getattr(shape, name)
            for part in inner if isinstance(inner, tuple) else (inner,):
                yield from _parts(part, seen)


def _refused(where: str, reason: str, hint: str) -> DefinitionError:
    return DefinitionError("FieldTypeRefused", reason, facts={"field": where}, hint=hint)
