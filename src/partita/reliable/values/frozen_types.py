"""Which types a collection may contain, and their names, from type graphs.

A value that can be changed in place could be changed without a record in the log, so only frozen
types are accepted; the graph of a type is walked once, when its collection is opened.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect

from partita.errors import MutableTypeError, SchemaError
from partita.reliable.values.foreign_types import (
    FrozenMapType,
    how_to_freeze,
    is_attrs,
    is_frozen,
    resolve,
)

Classlike = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
"""Types that are encoded as a map of their fields."""

_COPY = 'pass mutable="copy"'
_SCALARS: dict[type[inspect.Type], str] = {
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "UUID",
    inspect.DecimalType: "Decimal",
    inspect.AnyType: "Any",
    inspect.ByteArrayType: "bytearray",
    inspect.MemoryViewType: "memoryview",
    inspect.RawType: "Raw",
    inspect.ExtType: "Ext",
}
_GENERICS: dict[type[inspect.Type], str] = {
    inspect.ListType: "list[{}]",
    inspect.SetType: "set[{}]",
    inspect.FrozenSetType: "frozenset[{}]",
    inspect.VarTupleType: "tuple[{}, ...]",
}


def type_node(declared: object) -> inspect.Type:
    """Return msgspec's description of a declared type; SchemaError if there is none."""
    try:
        msgspec.msgpack.Decoder(declared)  # some unions are refused only here
        node = inspect.type_info(declared)
        if any(isinstance(inner, inspect.CustomType) for _, inner in places(node)):
            node = resolve(node, declared)
        return plain(node)
    except (TypeError, NameError) as error:
        raise SchemaError(
            "UnsupportedType",
            f"{_declared_text(declared)} cannot be stored: {error}.",
            facts={"type": _declared_text(declared)},
            hint="Use frozen msgspec Structs, with tag= if a union has several, other frozen "
            "classes alone or with None, named tuples, scalars, tuples and frozensets.",
        ) from error


def plain(node: inspect.Type) -> inspect.Type:
    """Return the type below Annotated."""
    return plain(node.type) if isinstance(node, inspect.Metadata) else node


def class_of(node: Any) -> type[Any]:
    """Return the class of a Struct, dataclass, ...; for Box[int] it is Box."""
    cls: type[Any] = get_origin(node.cls) or node.cls
    return cls


def type_text(node: inspect.Type) -> str:  # noqa: PLR0911 - one switch
    """Return a type as text, as its user would write it."""
    match plain(node):
        case (
            inspect.ListType(item)
            | inspect.SetType(item)
            | inspect.FrozenSetType(item)
            | inspect.VarTupleType(item)
        ) as items:
            return _GENERICS[type(items)].format(type_text(item))
        case inspect.TupleType(items):
            return f"tuple[{', '.join(map(type_text, items)) or '()'}]"
        case inspect.DictType(key, value) as pairs:
            name = pairs.cls.__name__ if isinstance(pairs, FrozenMapType) else "dict"
            return f"{name}[{type_text(key)}, {type_text(value)}]"
        case inspect.UnionType(members):
            return " | ".join(map(type_text, members))
        case inspect.LiteralType(values):
            return f"Literal[{', '.join(map(repr, values))}]"
        case scalar if type(scalar) in _SCALARS:
            return _SCALARS[type(scalar)]
        case other:
            return _declared_text(other.cls)  # type: ignore[attr-defined] # all others have one


def places(root: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
    """Yield every type in the graph with its path from the root; each class is entered once."""
    opened: set[object] = set()

    def walk(path: str, node: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
        node = plain(node)
        if not isinstance(node, inspect.UnionType):
            yield path, node
        if isinstance(node, Classlike | inspect.NamedTupleType):
            if node.cls in opened:
                return
            opened.add(node.cls)
        for step, inner in _steps(node):
            yield from walk(path + step, inner)

    yield from walk(type_text(root), root)


def _steps(node: inspect.Type) -> list[tuple[str, inspect.Type]]:
    match node:
        case (
            inspect.StructType()
            | inspect.DataclassType()
            | inspect.TypedDictType()
            | inspect.NamedTupleType()
        ):
            return [(f".{field.name}", field.type) for field in node.fields]
        case (
            inspect.ListType(item)
            | inspect.SetType(item)
            | inspect.FrozenSetType(item)
            | inspect.VarTupleType(item)
        ):
            return [("[...]", item)]
        case inspect.TupleType(items):
            return [(f"[{index}]", item) for index, item in enumerate(items)]
        case inspect.DictType(key, value):
            return [("[key]", key), ("[...]", value)]
        case inspect.UnionType(members):
            return [("", member) for member in members]
        case _:
            return []


def at(root: inspect.Type, path: str, node: inspect.Type) -> str:
    """Return the place of a type: `User.bids: list[Bid]`, or only the type for the root."""
    text = type_text(node)
    return text if path == type_text(root) else f"{path}: {text}"


def check_frozen(value_type: object) -> None:
    """Raise MutableTypeError, with the path, if values can be changed in place."""
    root = type_node(value_type)
    for path, node in places(root):
        fault = _mutable(node)
        if fault is None:
            continue
        reason, remedy = fault
        where = at(root, path, node)
        raise MutableTypeError(
            "MutableType",
            f"{where} cannot be stored: {reason}.",
            facts={"path": where},
            hint=f"{remedy}."
            if isinstance(node, inspect.CustomType)
            else f"{remedy}, or {_COPY} when the collection is opened.",
        )


_FROZEN_CLASSES = "Use a frozen Struct, dataclass, attrs class or pydantic model"


def _mutable(node: inspect.Type) -> tuple[str, str] | None:  # noqa: PLR0911 - one switch
    match node:
        case inspect.ListType():
            return "a list can be changed in place", f"Use {_frozen_text(node)}"
        case inspect.SetType():
            return "a set can be changed in place", f"Use {_frozen_text(node)}"
        case FrozenMapType():
            return None
        case inspect.DictType():
            remedy = f"Use {_frozen_text(node)}, an immutable mapping, or a frozen Struct"
            return "a dict can be changed in place", remedy
        case inspect.TypedDictType():
            return "a TypedDict is a dict and can be changed in place", "Use a frozen Struct"
        case inspect.ByteArrayType() | inspect.MemoryViewType():
            return "its bytes can be changed in place", "Use bytes"
        case inspect.StructType() | inspect.DataclassType() if not is_frozen(class_of(node)):
            kind, remedy = how_to_freeze(class_of(node))
            return f"the {kind} is not frozen", remedy
        case inspect.AnyType():
            return "its values may be mutable", "Declare a specific type"
        case inspect.CustomType() | inspect.RawType() | inspect.ExtType():
            return "its encoding is unknown, and it may be mutable", _FROZEN_CLASSES
        case _:
            return None


def _frozen_text(node: inspect.Type) -> str:  # noqa: PLR0911 - one switch
    """Return the immutable type for the same values."""
    match plain(node):
        case inspect.ListType(item) | inspect.VarTupleType(item):
            return f"tuple[{_frozen_text(item)}, ...]"
        case inspect.SetType(item) | inspect.FrozenSetType(item):
            return f"frozenset[{_frozen_text(item)}]"
        case inspect.TupleType(items):
            return f"tuple[{', '.join(map(_frozen_text, items)) or '()'}]"
        case FrozenMapType():
            return type_text(node)
        case inspect.DictType(key, value):
            return f"tuple[tuple[{_frozen_text(key)}, {_frozen_text(value)}], ...]"
        case inspect.ByteArrayType() | inspect.MemoryViewType():
            return "bytes"
        case inspect.UnionType(members):
            return " | ".join(map(_frozen_text, members))
        case other:
            return type_text(other)


def check_storable(root: inspect.Type) -> None:
    """Raise SchemaError if older or newer code could not read the type, frozen or not."""
    for path, node in places(root):
        reason, remedy = "", ""
        if isinstance(node, inspect.CustomType):
            reason, remedy = "its encoding is unknown", _FROZEN_CLASSES
        elif isinstance(node, inspect.StructType) and node.array_like:
            reason = "an array has no field names, so no field could be added or removed later"
            remedy = "Remove array_like=True"
        elif isinstance(node, inspect.StructType) and node.forbid_unknown_fields:
            reason = "this code could not read a row to which newer code added a field"
            remedy = "Remove forbid_unknown_fields=True"
        elif isinstance(node, inspect.DataclassType) and is_attrs(class_of(node)):
            private = [field.name for field in node.fields if field.name.startswith("_")]
            if private:
                reason = (
                    f"a field whose name starts with an underscore is not encoded: {private[0]}"
                )
                remedy = f"Rename it to {private[0].lstrip('_')}"
        if reason:
            where = at(root, path, node)
            raise SchemaError(
                "UnsupportedType",
                f"{where} cannot be stored: {reason}.",
                facts={"path": where},
                hint=f"{remedy}.",
            )


def has_lookalikes(root: inspect.Type) -> bool:
    """Return whether a frozen type in the graph can equal a mutable one, as a frozenset a set."""
    lookalikes = inspect.FrozenSetType | inspect.BytesType | FrozenMapType
    return any(isinstance(node, lookalikes) for _, node in places(root))


def fingerprint(root: inspect.Type) -> str:
    """Return the hash of the encoding: field names, types, and which have defaults.

    Classes are compared by their fields: renaming or moving a class changes nothing.
    """
    numbers: dict[object, int] = {}

    def fields_text(node: Any) -> str:
        if node.cls in numbers:
            return f"#{numbers[node.cls]}"
        number = numbers[node.cls] = len(numbers) + 1
        is_array = isinstance(node, inspect.NamedTupleType)
        fields = node.fields if is_array else sorted(node.fields, key=lambda one: one.encode_name)
        inside = ",".join(
            f"{field.encode_name}{'' if field.required else '?'}:{text(field.type)}"
            for field in fields
        )
        tag = f"@{node.tag_field}={node.tag}" if getattr(node, "tag_field", None) else ""
        return f"#{number}{tag}{'[' if is_array else '{'}{inside}{']' if is_array else '}'}"

    def text(node: inspect.Type) -> str:
        node = plain(node)
        match node:
            case inspect.UnionType(members):
                return "|".join(map(text, sorted(members, key=union_order)))
            case inspect.EnumType(cls):
                return f"enum({','.join(sorted(repr(member.value) for member in cls))})"
            case inspect.LiteralType(values):
                return f"literal({','.join(sorted(map(repr, values)))})"
            case _ if isinstance(node, Classlike | inspect.NamedTupleType):
                return fields_text(node)
            case _ if _steps(node):
                inside = ",".join(text(inner) for _, inner in _steps(node))
                return f"{type(node).__name__}<{inside}>"
            case _:
                return type_text(node)

    return hashlib.blake2b(text(root).encode(), digest_size=16).hexdigest()


def union_order(node: inspect.Type) -> tuple[str, str]:
    """Return a sort key for the members of a union, whose order is not significant."""
    return str(getattr(plain(node), "tag", "")), type_text(node)


def _declared_text(declared: object) -> str:
    origin, arguments = get_origin(declared), get_args(declared)
    if isinstance(origin, type) and arguments:
        return f"{origin.__name__}[{', '.join(map(_declared_text, arguments))}]"
    return declared.__name__ if isinstance(declared, type) else str(declared)
