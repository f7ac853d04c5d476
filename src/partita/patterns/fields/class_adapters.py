"""One interface to the five kinds of classes that can be entities.

A plain annotated class becomes a slotted, keyword-only dataclass. Dataclasses, msgspec Structs,
pydantic models and attrs classes are used unchanged. Objects are created by calling the class, so
that its own validation runs.
"""

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from partita.errors import DefinitionError
from partita.patterns.fields.load_state import can_hold

T = TypeVar("T")

_PYDANTIC_SET = "__pydantic_fields_set__"
"""The attribute in which pydantic stores `model_fields_set`."""


class ClassField(msgspec.Struct, frozen=True):
    """One field as the class declares it."""

    name: str
    annotation: Any
    argument: str
    """The name of its keyword argument: attrs and pydantic have aliases."""
    default: Callable[[], Any] | None = None


class ClassShape(msgspec.Struct, Generic[T], frozen=True):
    """How objects of a class are created and read."""

    cls: type[T]
    fields: tuple[ClassField, ...]
    arguments: dict[str, str]
    read: Callable[[T], tuple[Any, ...]]

    def build(self, values: Mapping[str, Any]) -> T:
        """Create an object; exceptions of the class are not caught."""
        return self.cls(**{self.arguments[name]: value for name, value in values.items()})

    def rebuild(self, obj: T, values: Mapping[str, Any], changes: Mapping[str, Any]) -> T:
        """Create an object from another one with these values, and some changes."""
        extra = getattr(obj, "__pydantic_extra__", None) or {}
        given = {self.arguments[name]: value for name, value in {**values, **changes}.items()}
        made = self.cls(**{**extra, **given})
        was_set = self.fields_set(obj)
        if was_set is not None:
            object.__setattr__(made, _PYDANTIC_SET, {*was_set, *changes})
        return made

    def fields_set(self, obj: T) -> Set[str] | None:
        """Return the fields that were given or assigned; None if the class does not record it."""
        was_set: Set[str] | None = getattr(obj, _PYDANTIC_SET, None)
        return was_set


def adopt(
    cls: type[T], names: Mapping[str, Any] | None = None, *, is_frozen: bool = False
) -> ClassShape[T]:
    """Return the shape of a class; a plain class is made a dataclass first.

    `names` is the scope of the class, for annotations given as strings.
    """
    if not isinstance(cls, type):
        raise _refused(cls, "Only a class can be an entity.", "Apply @entity(...) to a class.")
    own, find_fields = _kind_of(cls, is_frozen=is_frozen)
    if not can_hold(own):
        raise _refused(
            own,
            "Its objects support neither weak references nor new attributes, one of which is "
            "needed to track the stored version.",
            _WEAKREF_HINTS.get(find_fields, "Remove __slots__, or add '__weakref__' to it."),
        )
    if is_frozen and not _is_frozen_dataclass(own):
        raise _refused(
            own,
            "frozen= applies to plain classes only.",
            "Remove frozen=, and make the class frozen in its own declaration.",
        )
    hints = _hints_of(own, names or {})
    fields = tuple(find_fields(own, hints))
    for field in fields:
        if isinstance(field.annotation, dataclasses.InitVar):
            raise _refused(
                own, f"{field.name!r} is an InitVar, which is not stored.", "Make it a field."
            )
    return ClassShape(
        own, fields, {field.name: field.argument for field in fields}, _reader(fields)
    )


def _reader(fields: tuple[ClassField, ...]) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda obj: tuple(getattr(obj, name) for name in names)


_Finder = Callable[[Any, dict[str, Any]], Iterator[ClassField]]


def _is_frozen_dataclass(cls: type) -> bool:
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _kind_of(cls: type[T], *, is_frozen: bool) -> tuple[type[T], _Finder]:
    if issubclass(cls, msgspec.Struct):
        return cls, _struct_fields
    if _is_pydantic(cls):
        return cls, _pydantic_fields
    if "__attrs_attrs__" in cls.__dict__:
        return cls, _attrs_fields
    if "__dataclass_fields__" in cls.__dict__:
        return cls, _dataclass_fields
    return _make_dataclass(cls, is_frozen=is_frozen), _dataclass_fields


def _is_pydantic(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _hints_of(cls: type, names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        pass  # a local name of the function that defines the class
    try:
        return typing.get_type_hints(cls, localns=dict(names), include_extras=True)
    except NameError as error:
        raise DefinitionError(
            "AnnotationUnresolved",
            f"An annotation of {cls.__qualname__} uses {error.name!r}, which is not defined.",
            facts={"class": cls.__qualname__},
            hint="Define or import it before the entity, and not only under TYPE_CHECKING.",
        ) from error


def _refused(cls: object, reason: str, hint: str) -> DefinitionError:
    name = getattr(cls, "__qualname__", type(cls).__qualname__)
    return DefinitionError(
        "ClassRefused", f"{name} cannot be an entity. {reason}", facts={"class": name}, hint=hint
    )


# ---------------------------------------------------------------------------------------------
# Plain classes and dataclasses


def _make_dataclass(cls: type[T], *, is_frozen: bool) -> type[T]:
    if issubclass(cls, tuple | dict | BaseException) or hasattr(cls, "__attrs_attrs__"):
        raise _refused(
            cls,
            f"It is derived from {cls.__mro__[1].__name__}.",
            "Use a plain class, a dataclass, a msgspec Struct, a pydantic model or an attrs class.",
        )
    for name in ("__init__", "__slots__"):
        if name in cls.__dict__:
            raise _refused(
                cls,
                f"It defines {name}, which @entity would generate.",
                "Make it a dataclass explicitly: @entity(...) above @dataclass.",
            )
    try:
        made = dataclasses.dataclass(
            kw_only=True,
            slots=True,
            frozen=is_frozen or _is_frozen_dataclass(cls),
            weakref_slot=all(above.__weakrefoffset__ == 0 for above in cls.__bases__),
        )(cls)
    except (TypeError, ValueError) as error:
        raise _refused(cls, f"It cannot be made a dataclass: {error}.", "") from error
    _repair_super(cls, made)
    return made


def _repair_super(old: type, new: type) -> None:
    """Make `super()` in methods refer to the slotted class, which replaces the written one."""
    for member in vars(new).values():
        for function in _functions_of(member):
            for cell in function.__closure__ or ():
                if _content(cell) is old:
                    cell.cell_contents = new


def _functions_of(member: object) -> Iterator[types.FunctionType]:
    found: list[object]
    if isinstance(member, property):
        found = [member.fget, member.fset, member.fdel]
    else:
        found = [inspect.unwrap(getattr(member, "__func__", member))]  # type: ignore[arg-type]
    yield from (each for each in found if isinstance(each, types.FunctionType))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # an empty cell


def _dataclass_fields(cls: Any, hints: dict[str, Any]) -> Iterator[ClassField]:
    for name in cls.__dataclass_fields__:
        if isinstance(hints.get(name), dataclasses.InitVar):
            yield ClassField(name, hints[name], name)
    for field in dataclasses.fields(cls):
        if field.init:
            yield ClassField(field.name, hints[field.name], field.name, _dataclass_default(field))


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None if field.default is dataclasses.MISSING else _always(field.default)


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


# ---------------------------------------------------------------------------------------------
# msgspec, pydantic, attrs


def _struct_fields(cls: Any, hints: dict[str, Any]) -> Iterator[ClassField]:
    for field in msgspec.structs.fields(cls):
        default: Callable[[], Any] | None = None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory
        elif field.default is not msgspec.NODEFAULT:
            default = _always(field.default)
        yield ClassField(field.name, hints[field.name], field.name, default)


def _pydantic_fields(cls: Any, hints: dict[str, Any]) -> Iterator[ClassField]:
    for name, field in cls.model_fields.items():
        alias = field.validation_alias or field.alias or name
        if not isinstance(alias, str):
            raise _refused(cls, f"{name!r} has a compound alias.", "Use a plain string alias.")
        default: Callable[[], Any] | None = None
        if field.default_factory is None:
            default = None if field.is_required() else _always(field.default)
        elif not field.default_factory_takes_validated_data:
            default = field.default_factory
        yield ClassField(name, hints[name], alias, default)


def _attrs_fields(cls: Any, hints: dict[str, Any]) -> Iterator[ClassField]:
    for field in cls.__attrs_attrs__:
        if not field.init:
            continue
        if field.name not in hints:
            raise _refused(cls, f"{field.name!r} has no annotation.", "Annotate every field.")
        yield ClassField(field.name, hints[field.name], field.alias, _attrs_default(field))


def _attrs_default(field: Any) -> Callable[[], Any] | None:
    attrs = sys.modules["attr"]
    if field.default is attrs.NOTHING:
        return None
    if not isinstance(field.default, attrs.Factory):
        return _always(field.default)
    return None if field.default.takes_self else field.default.factory


_WEAKREF_HINTS: dict[_Finder, str] = {
    _struct_fields: "Declare it with weakref=True: class X(msgspec.Struct, weakref=True).",
    _attrs_fields: "Remove weakref_slot=False.",
    _dataclass_fields: "Use @dataclass(slots=True, weakref_slot=True), or remove slots=True.",
}
