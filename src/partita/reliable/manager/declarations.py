"""The types and options with which a collection is opened, and how two openings differ."""

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_origin

import msgspec

from partita.errors import CollectionMismatchError, UsageError
from partita.reliable.collections.indexes import Index, IndexFunction
from partita.reliable.values.arguments import checked_index_name
from partita.reliable.values.schema import Schema, Step

NO_INDEXES: Mapping[str, Index] = types.MappingProxyType({})


class Declaration(msgspec.Struct, frozen=True):
    """The arguments of one call of `dictionary`, `queue` or `concurrent_queue`."""

    value: Any
    schema: Schema
    upcasts: tuple[Step, ...]
    mutable: Literal["refuse", "copy"]
    key: Any = None
    preserve_unknown: bool = True
    ttl: float | None = None
    indexes: Mapping[str, Index] = NO_INDEXES
    every_change: bool = False
    serializer: Any = None


def refuse_other(name: str, opened: Declaration, given: Declaration) -> None:
    """Raise if an open collection is opened with other options: all callers share it."""
    found = list(_differences(opened, given))
    if not found:
        return
    is_open = ", ".join(f"{option}={before}" for option, before, _ in found)
    is_given = ", ".join(f"{option}={after}" for option, _, after in found)
    raise CollectionMismatchError(
        "CollectionOptionsDiffer",
        f"{name!r} is open with {is_open} and cannot also be opened with {is_given}.",
        facts={"collection": name, "options": [option for option, _, _ in found]},
        hint="Use the same types and options everywhere; to change them, close the state and open "
        "it again.",
    )


def _differences(opened: Declaration, given: Declaration) -> Iterator[tuple[str, str, str]]:
    for option in ("key", "value"):
        before, after = getattr(opened, option), getattr(given, option)
        if before != after:
            yield option, _type_text(before), _type_text(after)
    versions = [(one.schema.version, one.schema.written) for one in (opened, given)]
    if versions[0] != versions[1]:
        yield "version", _schema_text(opened.schema), _schema_text(given.schema)
    for option in ("ttl", "mutable", "preserve_unknown", "every_change"):
        before, after = getattr(opened, option), getattr(given, option)
        if before != after:
            yield option, repr(before), repr(after)
    names = [getattr(one.serializer, "name", None) for one in (opened, given)]
    if names[0] != names[1]:
        yield "serializer", repr(names[0]), repr(names[1])
    if not _is_same_all(opened.upcasts, given.upcasts):
        yield "upcasts", _functions_text(opened.upcasts), _functions_text(given.upcasts)
    for name in sorted({*opened.indexes, *given.indexes}):
        one, other = opened.indexes.get(name), given.indexes.get(name)
        if one is None or other is None or not _is_same_index(one, other):
            yield f"indexes[{name!r}]", _index_text(one), _index_text(other)


def _is_same_index(one: Index, other: Index) -> bool:
    return one.version == other.version and _is_same(one.function, other.function)


def _is_same_all(ones: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(ones) == len(others) and all(map(_is_same, ones, others))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two functions have the same code: a lambda is a new object each time."""
    if one == other:
        return True
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        return (one.args, one.keywords) == (other.args, other.keywords) and _is_same(
            one.func, other.func
        )
    if not isinstance(one, types.FunctionType) or not isinstance(other, types.FunctionType):
        return False
    left, right = one.__code__, other.__code__
    return (
        one.__globals__ is other.__globals__
        and (left.co_code, left.co_names, left.co_freevars, _constants(left))
        == (right.co_code, right.co_names, right.co_freevars, _constants(right))
        and (one.__defaults__, one.__kwdefaults__) == (other.__defaults__, other.__kwdefaults__)
        and _closure_values(one) == _closure_values(other)
    )


def _constants(code: types.CodeType) -> list[tuple[type, object]]:
    return [(type(constant), constant) for constant in code.co_consts]


def _closure_values(function: types.FunctionType) -> list[object]:
    """Return the values of a function's closure; an empty cell has none yet."""
    return [
        cell.cell_contents if cell != types.CellType() else None
        for cell in function.__closure__ or ()
    ]


def _type_text(declared: Any) -> str:
    if get_origin(declared) is not None or not isinstance(declared, type):
        return str(declared)
    is_builtin = declared.__module__ == "builtins"
    return declared.__name__ if is_builtin else f"{declared.__module__}.{declared.__qualname__}"


def _schema_text(schema: Schema) -> str:
    if schema.written == schema.version:
        return str(schema.version)
    return f"Schema(version={schema.version}, write={schema.written})"


def _functions_text(functions: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(_function_text, functions))}]"


def _function_text(function: Any) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return name if code is None else f"{name} (line {code.co_firstlineno})"


def _index_text(index: Index | None) -> str:
    if index is None:
        return "None"
    return f"Index({_function_text(index.function)}, version={index.version})"


def checked_indexes(indexes: Mapping[str, IndexFunction | Index] | None) -> dict[str, Index]:
    """Return the declared indexes by name."""
    given: object = indexes or {}
    if not isinstance(given, Mapping):
        raise _not_callable("indexes= takes functions by name", given)
    return {checked_index_name(name): _checked_index(name, one) for name, one in given.items()}


def _checked_index(name: str, given: IndexFunction | Index) -> Index:
    index = given if isinstance(given, Index) else Index(given)
    function: object = index.function
    if not callable(function):
        rule = f"The index {name!r} must be a function"
        raise _not_callable(rule, function)
    return index


def _not_callable(rule: str, given: object) -> UsageError:
    return UsageError(
        "IndexNotCallable",
        f"{rule}, not {type(given).__name__}.",
        hint='Pass a function by name, as in indexes={"item": lambda value: value.item}.',
    )
