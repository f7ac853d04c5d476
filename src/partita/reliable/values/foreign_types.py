"""Classes of other libraries as values and keys: attrs, pydantic, and immutable mappings.

msgspec encodes attrs classes itself. Models and mappings are converted to plain maps for it and
created again from them. No library is imported: a class is recognized by its attributes.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import inspect


class FrozenMapType(inspect.DictType):
    """An immutable mapping in a type graph; `cls` is its class."""

    cls: type = dict


def is_model(cls: type) -> bool:
    """Return whether a class is a pydantic model."""
    return any(
        one.__name__ == "BaseModel" and one.__module__ == "pydantic.main" for one in cls.__mro__
    )


def is_attrs(cls: type) -> bool:
    """Return whether a class was created by attrs."""
    return hasattr(cls, "__attrs_attrs__")


def is_frozen_mapping(cls: type) -> bool:
    """Return whether a class is a hashable mapping whose values cannot be changed."""
    if not issubclass(cls, Mapping) or getattr(cls, "__hash__", None) is None:
        return False
    if issubclass(cls, dict):
        return cls.__setitem__ is not dict.__setitem__ and cls.update is not dict.update
    return not issubclass(cls, MutableMapping) and cls is not types.MappingProxyType


def is_frozen(cls: type) -> bool:
    """Return whether the fields of an object cannot be set after its creation."""
    if issubclass(cls, tuple):
        return True
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_config__.frozen
    if is_model(cls):
        return bool(cls.model_config.get("frozen"))  # type: ignore[attr-defined]
    if is_attrs(cls):
        return getattr(cls.__setattr__, "__name__", "") == "_frozen_setattrs"
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def how_to_freeze(cls: type) -> tuple[str, str]:
    """Return the kind of a class that is not frozen, and how to declare it frozen."""
    if issubclass(cls, msgspec.Struct):
        return "Struct", "Declare it with frozen=True"
    if is_model(cls):
        return "model", "Declare it with model_config = ConfigDict(frozen=True)"
    if is_attrs(cls):
        return "attrs class", "Declare it with @attrs.frozen"
    return "dataclass", "Declare it with @dataclass(frozen=True)"


def field_names(value: object) -> Iterable[str] | None:
    """Return the names of the fields of a value, None if it has no fields."""
    cls: Any = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return getattr(cls, "_fields", None)
    if is_attrs(cls):
        return [field.name for field in cls.__attrs_attrs__]
    return list(cls.model_fields) if is_model(cls) else None


def fields_without_argument(cls: Any) -> list[str]:
    """Return the fields that the constructor of a class does not accept."""
    if is_attrs(cls):
        return [field.name for field in cls.__attrs_attrs__ if not field.init]
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if not field.init]
    return []


def maker(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that creates an object of a class from its fields."""
    if is_model(cls):
        return lambda fields: cls.model_construct(**fields)
    if is_attrs(cls):
        aliases = {field.name: field.alias for field in cls.__attrs_attrs__}
        return lambda fields: cls(**{aliases[name]: value for name, value in fields.items()})
    return lambda fields: cls(**fields)


# --- both ways between objects and plain maps ----------------------------------------------


def written(value: object) -> object:
    """Convert an object for msgspec, as its `enc_hook`."""
    cls: Any = type(value)
    if is_model(cls):
        return {name: getattr(value, name) for name in cls.model_fields}
    if is_frozen_mapping(cls):
        return dict(value)  # type: ignore[call-overload]
    raise NotImplementedError(cls.__name__)


def read(declared: Any, plain: object) -> object:
    """Return the object of a declared type from its plain map, as msgspec's `dec_hook`."""
    return _reader(declared)(plain)


@functools.lru_cache(maxsize=1024)
def _reader(declared: Any) -> Callable[[object], object]:
    cls = get_origin(declared) or declared
    if is_model(cls):
        fields, make = _typed_dict(cls), maker(cls)
        return lambda plain: make(msgspec.convert(plain, fields, dec_hook=read))
    if is_frozen_mapping(cls):
        pairs = types.GenericAlias(dict, get_args(declared) or (Any, Any))
        return lambda plain: cls(msgspec.convert(plain, pairs, dec_hook=read))
    raise NotImplementedError(str(declared))


def _typed_dict(cls: Any) -> Any:
    """Return a TypedDict with the fields of a model."""
    cls.model_rebuild()
    make: Any = TypedDict
    return make(
        cls.__name__,
        {
            name: field.annotation if field.is_required() else NotRequired[field.annotation]
            for name, field in cls.model_fields.items()
        },
    )


# --- the type graph ------------------------------------------------------------------------


def resolve(node: inspect.Type, declared: Any) -> inspect.Type:
    """Return a type graph in which models have fields and immutable mappings their types.

    msgspec describes both as custom types without inner types, which `declared` contains.
    """
    resolved: inspect.Type = _Resolver().resolve(node, declared)
    return resolved


class _Resolver:
    def __init__(self) -> None:
        self._opened: set[object] = set()
        self._models: dict[type, inspect.DataclassType] = {}

    def resolve(self, node: Any, declared: Any) -> Any:
        if get_origin(declared) is Annotated:
            declared = get_args(declared)[0]
        match node:
            case inspect.Metadata():
                node.type = self.resolve(node.type, declared)
            case inspect.CustomType():
                return self._custom(node, declared)
            case (
                inspect.StructType()
                | inspect.DataclassType()
                | inspect.TypedDictType()
                | inspect.NamedTupleType()
            ):
                self._fields(node)
            case inspect.TupleType():
                node.item_types = tuple(
                    map(self.resolve, node.item_types, _arguments(declared, len(node.item_types)))
                )
            case inspect.DictType():
                key, value = _arguments(declared, 2)
                node.key_type = self.resolve(node.key_type, key)
                node.value_type = self.resolve(node.value_type, value)
            case inspect.UnionType():
                # In a union with a custom type msgspec allows only None.
                others = [one for one in get_args(declared) if one is not type(None)]
                inner = others[0] if len(others) == 1 else None
                node.types = tuple(self.resolve(member, inner) for member in node.types)
            case _ if hasattr(node, "item_type"):
                node.item_type = self.resolve(node.item_type, _arguments(declared, 1)[0])
        return node

    def _fields(self, node: Any) -> None:
        if node.cls in self._opened:
            return
        self._opened.add(node.cls)
        hints = _hints(node.cls)
        for field in node.fields:
            field.type = self.resolve(field.type, hints.get(field.name))

    def _custom(self, node: inspect.CustomType, declared: Any) -> inspect.Type:
        cls = get_origin(declared) or declared
        if not isinstance(cls, type) or cls is not node.cls:
            cls = declared = node.cls
        if is_model(cls):
            return self._model(cls)
        if not is_frozen_mapping(cls):
            return node
        key, value = get_args(declared) or (Any, Any)
        return FrozenMapType(
            self.resolve(inspect.type_info(key), key),
            self.resolve(inspect.type_info(value), value),
            cls=cls,
        )

    def _model(self, cls: Any) -> inspect.DataclassType:
        if cls not in self._models:
            described = self._models[cls] = inspect.DataclassType(cls, ())
            node: Any = inspect.type_info(_typed_dict(cls))
            for field in node.fields:
                field.type = self.resolve(field.type, cls.model_fields[field.name].annotation)
            order = list(cls.model_fields)
            described.fields = tuple(sorted(node.fields, key=lambda one: order.index(one.name)))
        return self._models[cls]


def _arguments(declared: Any, count: int) -> tuple[Any, ...]:
    found = tuple(one for one in get_args(declared) if one is not Ellipsis)
    return found if len(found) == count else (None,) * count


def _hints(declared: Any) -> dict[str, Any]:
    """Return the declared types of the fields of a class, with the arguments of a generic one."""
    cls = get_origin(declared) or declared
    given = dict(zip(getattr(cls, "__parameters__", ()), get_args(declared), strict=False))
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: given.get(hint, hint) if isinstance(hint, TypeVar) else _required(hint)
        for name, hint in hints.items()
    }


def _required(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in (NotRequired, Required) else hint
