"""EntityType: the definition of one entity class.

A type is made by `@entity`. What is declared later and elsewhere (indexes, views, upcasters,
derived types, derived fields of other types) is added to it; everything else is fixed.
"""

import copy
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from partita.errors import (
    DefinitionError,
    InvalidPropertyError,
    NewerVersionError,
    PartitaError,
    SchemaError,
)
from partita.patterns.fields.class_adapters import ClassShape
from partita.patterns.fields.fields import SYSTEM_NAMES, Field, check_names, make_field
from partita.patterns.fields.load_state import Origin, find_origin, set_origin
from partita.patterns.fields.markers import Derived
from partita.patterns.fields.naming import snake_case
from partita.patterns.keys.templates import KeyTemplate, Role
from partita.patterns.protocol.values import Instant, Int32, RowKey, Value
from partita.patterns.types.row_layout import ROWS_MAX, VERSION, Layout, lay_out
from partita.tables import limits
from partita.tables.entity import check_table_name

T = TypeVar("T")

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
Resolver = Callable[[str, str, str], bool]
"""Decides by partition key, row key and property name whether a property is encrypted."""

_RAW = frozenset({str, bytes, bool, int, float, Instant, Int32})
"""Types that an upcaster may return in stored form; other values are encoded by the field."""

PLACE = "__partita_entity__"


class Declaration(msgspec.Struct, frozen=True):
    """The arguments of `@entity`."""

    table: str
    partition: str
    row: str
    name: str
    naming: Callable[[str], str]
    version: int = 1
    type_property: str | None = "EntityType"
    encrypt: Resolver | None = None
    access: Any = ()
    allow_hot: bool = False
    is_abstract: bool = False
    is_single_row: bool = False


class Dependent(msgspec.Struct, frozen=True):
    """A derived field of another type whose source is this type."""

    owner: "EntityType[Any]"
    field: Field
    marker: Derived

    @property
    def name(self) -> str:
        return f"{self.owner.name}.{self.field.name}"


class Followers(msgspec.Struct, frozen=True):
    """Everything that must be updated when an entity of one type changes."""

    indexes: tuple[Any, ...]
    """The indexes of the type and of the types it is derived from."""
    views: tuple[Any, ...]
    """The views of the type and of the types it is derived from."""
    dependents: tuple[Dependent, ...]
    """The derived fields of other types that read this type or a type it is derived from."""
    is_plain: bool
    """Whether an entity is one row without followers, derived fields and blobs."""


class EntityType(Generic[T]):
    """One entity class: its keys, fields and version, and its indexes, views and relatives."""

    _declarations: ClassVar[int] = 0
    """Counts the calls of `declare` for all types; older answers of `followers` are stale."""

    def __init__(
        self,
        shape: ClassShape[T],
        declaration: Declaration,
        parent: "EntityType[Any] | None" = None,
    ) -> None:
        self.cls = shape.cls
        self.declaration = declaration
        self.name = declaration.name
        self.table = declaration.table
        self.version = declaration.version
        self.type_property = declaration.type_property
        self.encrypt = declaration.encrypt
        self.access = declaration.access
        self.allow_hot = declaration.allow_hot
        self.is_abstract = declaration.is_abstract
        self.is_single_row = declaration.is_single_row
        """Whether the properties are in one row, without room for those of the library."""
        self.parent = parent
        self.children: list[EntityType[Any]] = []
        self.indexes: tuple[Any, ...] = ()
        self.views: tuple[Any, ...] = ()
        self.dependents: tuple[Dependent, ...] = ()
        self.sources: dict[str, EntityType[Any]] = {}
        """The source types of the derived fields, by field, as far as they are defined."""
        self.upcasters: dict[int, Upcaster] = {}
        self._shape = shape
        _check_declaration(declaration)
        self.fields = _fields_of(shape, declaration)
        self.layout = _layout_of(self.fields, declaration)
        self.partition, self.row = _templates_of(self.fields, declaration, self.layout)
        self.sealed_properties = frozenset(
            field.property for field in self.fields.values() if field.is_encrypted
        )
        self.derived_fields = tuple(
            (field, field.derived) for field in self.fields.values() if field.derived is not None
        )
        """The fields that are computed from other entities, with their markers."""
        self.lazy_fields = tuple(field.name for field in self.fields.values() if field.is_lazy)
        """The fields whose large values are read on request."""
        self.key_fields = tuple(dict.fromkeys(self.partition.fields + self.row.fields))
        """The fields of both keys, in the order of the templates."""
        self._by_property = {
            name: field for field in self.fields.values() for name in field.property_names
        }
        self._followers: tuple[int, Followers] | None = None

    def field_of(self, stored_name: str) -> Field | None:
        """Return the field of a property; None if the type does not declare it."""
        return self._by_property.get(stored_name)

    @property
    def is_wide(self) -> bool:
        """Whether an entity takes several rows."""
        return self.layout.rows > 1

    # -- objects

    def values(self, obj: T) -> dict[str, Any]:
        """Return the fields of an object by their names."""
        return dict(zip(self._shape.arguments, self._shape.read(obj), strict=True))

    def build(self, values: Mapping[str, Any]) -> T:
        """Create an object; the class validates it and fills in defaults."""
        try:
            return self._shape.build(values)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidPropertyError(
                "EntityNotAccepted",
                f"The class {self.name} rejected the stored values: {_summary(error)}.",
                facts={"type": self.name},
                hint="Relax the validation of the class, or raise its version and add an upcaster.",
            ) from error

    def rebuild(self, obj: T, changes: Mapping[str, Any]) -> T:
        """Create a changed object; exceptions of the class are not caught."""
        return self._shape.rebuild(obj, self.values(obj), changes)

    def fields_set(self, obj: T) -> Set[str] | None:
        """Return the fields that were given or assigned; None if the class does not record it."""
        return self._shape.fields_set(obj)

    def key(self, values: Mapping[str, Any]) -> RowKey:
        return RowKey(self.partition.format(values), self.row.format(values))

    def origin(self, obj: T) -> Origin | None:
        return find_origin(obj)

    def set_origin(self, obj: T, origin: Origin | None) -> None:
        set_origin(obj, origin)

    # -- relatives

    def lineage(self) -> "Iterator[EntityType[Any]]":
        """Yield this type and the types it is derived from, nearest first."""
        yield self
        if self.parent is not None:
            yield from self.parent.lineage()

    def family(self) -> "Iterator[EntityType[Any]]":
        """Yield this type and all types derived from it."""
        yield self
        for child in self.children:
            yield from child.family()

    def declare(
        self,
        *,
        indexes: Iterable[Any] | None = None,
        views: Iterable[Any] | None = None,
        dependents: Iterable[Dependent] | None = None,
    ) -> None:
        """Replace the indexes, views or dependents of this type."""
        if indexes is not None:
            self.indexes = tuple(indexes)
        if views is not None:
            self.views = tuple(views)
        if dependents is not None:
            self.dependents = tuple(dependents)
        EntityType._declarations += 1

    @property
    def followers(self) -> Followers:
        """What must be updated when an entity changes; computed again after a declaration."""
        if self._followers is None or self._followers[0] != EntityType._declarations:
            # Read the count first: a declaration in another thread makes the answer stale.
            count = EntityType._declarations
            self._followers = (count, self._find_followers())
        return self._followers[1]

    def _find_followers(self) -> Followers:
        lineage = tuple(self.lineage())
        indexes = tuple(index for each in lineage for index in each.indexes)
        views = tuple(view for each in lineage for view in each.views)
        dependents = tuple(dependent for each in lineage for dependent in each.dependents)
        is_plain = not (
            self.is_wide
            or indexes
            or views
            or dependents
            or any(field.derived or field.is_in_blob for field in self.fields.values())
        )
        return Followers(indexes, views, dependents, is_plain)

    def in_table(self, table: str) -> "EntityType[T]":
        """Return this type for another table, such as the table of a period."""
        if table == self.table:
            return self
        other = copy.copy(self)
        other.table = table
        other.children = [child.in_table(table) for child in self.children]
        return other

    def related(self) -> "Iterator[EntityType[Any]]":
        """Yield the types that a write or a read of this type can involve."""
        yield from self.lineage()
        yield from self.family()
        yield from (dependent.owner for dependent in self.followers.dependents)
        yield from (self.source_of(field) for field in self.fields.values() if field.derived)

    def source_of(self, field: Field) -> "EntityType[Any]":
        """Return the source type of a derived field."""
        found = self.sources.get(field.name)
        if found is None:
            assert field.derived is not None
            raise DefinitionError(
                "SourceMissing",
                f"The source {field.derived.source!r} of {self.name}.{field.name} is not a known "
                "entity class.",
                facts={"type": self.name, "field": field.name},
                hint="Define it in the same module, or give the class instead of its name.",
            )
        return found

    # -- versions

    def check_upcasters(self) -> None:
        """Raise if the chain of upcasters has a gap."""
        if not self.upcasters:
            return
        for version in range(min(self.upcasters), self.version):
            if version not in self.upcasters:
                raise DefinitionError(
                    "UpcasterMissing",
                    f"{self.name} has an upcaster from version {min(self.upcasters)}, but none "
                    f"from version {version}.",
                    facts={"type": self.name, "version": version},
                    hint=f"Add @upcast({self.cls.__name__}, from_version={version}).",
                )

    def upcast(
        self, properties: Mapping[str, Value], keys: Mapping[str, Any], version: int
    ) -> dict[str, Value]:
        """Return properties that an older version stored, converted to the current version."""
        self.check_upcasters()
        if version > self.version:
            raise NewerVersionError(
                "NewerVersion",
                f"This {self.name} was stored by version {version}, newer than version "
                f"{self.version} of this program.",
                facts={"type": self.name, "version": version},
                hint="Update this program, or read the entity with raw().",
            )
        stored_names = self._stored_names(properties, keys)
        old = {name: properties[stored] for name, stored in stored_names.items()} | dict(keys)
        for each in range(version, self.version):
            upcaster = self.upcasters.get(each)
            if upcaster is None:
                raise SchemaError(
                    "UpcasterMissing",
                    f"A stored {self.name} has version {version}, and there is no upcaster from "
                    f"version {each}.",
                    facts={"type": self.name, "version": each},
                    hint=f"Add @upcast({self.cls.__name__}, from_version={each}).",
                )
            old = upcaster(dict(old))
        self._check_keys_kept(old, keys)
        return dict(self._properties_of(old, keys, stored_names))

    def _stored_names(
        self, properties: Mapping[str, Value], keys: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the property name of each name that upcasters see."""
        names: dict[str, str] = {}
        for stored in properties:
            field = self._by_property.get(stored)
            if field is not None and not field.slot_names:
                names[field.name] = stored
        for stored in properties:
            if stored not in names.values():
                name = stored if stored in self._by_property else snake_case(stored)
                is_free = name not in names and name not in keys
                names[name if is_free else stored] = stored
        return names

    def _check_keys_kept(self, upcast: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
        for name, value in keys.items():
            if name not in upcast or upcast[name] != value:
                raise SchemaError(
                    "UpcasterChangedKey",
                    f"An upcaster of {self.name} changed or removed the key field {name!r}.",
                    facts={"type": self.name, "field": name},
                    hint="Return key fields unchanged; use move() to change the key of an entity.",
                )

    def _properties_of(
        self, upcast: Mapping[str, Any], keys: Mapping[str, Any], stored_names: Mapping[str, str]
    ) -> Iterator[tuple[str, Value]]:
        for name, value in upcast.items():
            if name in keys or value is None:
                continue
            field = self.fields.get(name)
            if field is not None and not field.slot_names:
                stored = value if type(value) in _RAW else field.codec.encode(value)
                assert stored is not None
                yield field.property, stored
            elif isinstance(value, Value):
                yield stored_names.get(name) or self.declaration.naming(name), value
            else:
                raise SchemaError(
                    "UpcasterUnknownField",
                    f"An upcaster of {self.name} returned {name!r}, which is not a field.",
                    facts={"type": self.name, "name": name},
                    hint=f"Return only the fields {', '.join(self.fields)}.",
                )

    def __repr__(self) -> str:
        return f"<entity type {self.name} of table {self.table}>"


def entity_type(cls: type[T]) -> EntityType[T]:
    """Return the type of an entity class."""
    found: EntityType[T] | None = getattr(cls, "__dict__", {}).get(PLACE)
    if found is None or found.cls is not cls:
        name = getattr(cls, "__qualname__", type(cls).__qualname__)
        raise DefinitionError(
            "NotAnEntity",
            f"{name} is not an entity class.",
            facts={"class": name},
            hint="Apply @entity(...) above every other decorator of the class."
            if found is not None
            else "Apply @entity(table=..., partition=..., row=...) to the class.",
        )
    return found


def type_of_given(given: type[T] | EntityType[T]) -> EntityType[T]:
    """Return the type of a class; a type is returned unchanged."""
    return given if isinstance(given, EntityType) else entity_type(given)


def _summary(error: Exception) -> str:
    """Summarize a validation error without the values that pydantic would include."""
    details = getattr(error, "errors", None)
    if callable(details):
        places = [".".join(map(str, each["loc"])) or "the object" for each in details()]
        return f"{type(error).__name__} in {', '.join(places)}"
    return type(error).__name__


# ---------------------------------------------------------------------------------------------
# Making a type


def _refused(name: str, reason: str, hint: str) -> DefinitionError:
    return DefinitionError("EntityRefused", f"{name}: {reason}", facts={"type": name}, hint=hint)


def _check_declaration(declaration: Declaration) -> None:
    name = declaration.name
    try:
        check_table_name(declaration.table)
    except PartitaError as error:
        raise _refused(
            name,
            f"{declaration.table!r} is not a valid table name.",
            "Use 3 to 63 letters and digits, beginning with a letter.",
        ) from error
    if not 1 <= declaration.version < 2**31:
        raise _refused(name, "Versions start at 1.", "Remove version=, or raise it by one.")
    if not name or "@" in name or "~" in name:
        raise _refused(
            name or "''",
            "The name of a type must not be empty or contain '@' or '~', which are reserved.",
            "Set another name: name=...",
        )
    if declaration.type_property is not None and (
        not declaration.type_property.isidentifier()
        or declaration.type_property.startswith("_")
        or declaration.type_property in SYSTEM_NAMES | {VERSION}
    ):
        raise _refused(
            name,
            f"{declaration.type_property!r} is not a valid type_property.",
            "Use a name of letters and digits that is not reserved.",
        )


def _fields_of(shape: ClassShape[Any], declaration: Declaration) -> dict[str, Field]:
    keys = {*_names_in(declaration.partition), *_names_in(declaration.row)}
    fields = {
        declared.name: make_field(
            declared,
            owner=declaration.name,
            is_key=declared.name in keys,
            naming=declaration.naming,
        )
        for declared in shape.fields
    }
    reserved = frozenset(filter(None, (declaration.type_property, VERSION)))
    check_names(fields, declaration.name, reserved)
    return fields


def _names_in(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name}
    except ValueError:
        return set()  # compiling the template reports the error


def _layout_of(fields: Mapping[str, Field], declaration: Declaration) -> Layout:
    name = declaration.name
    stored = [stored for field in fields.values() for stored in field.property_names]
    if declaration.is_single_row and len(stored) <= limits.PROPERTIES_MAX:
        return Layout({})
    layout = lay_out(iter(stored))
    if declaration.is_single_row:
        raise DefinitionError(
            "EntityTooWide",
            f"{name} has {len(stored)} properties; the limit of a row is {limits.PROPERTIES_MAX}.",
            facts={"type": name, "properties": len(stored)},
            hint="Remove single_row=True.",
        )
    if layout.rows > ROWS_MAX:
        raise DefinitionError(
            "EntityTooWide",
            f"{name} needs {layout.rows} rows; the limit of a group is {ROWS_MAX}.",
            facts={"type": name, "rows": layout.rows},
            hint='Store series in a blob, with Series(..., store="blob"), or use nested values.',
        )
    return layout


def _templates_of(
    fields: Mapping[str, Field], declaration: Declaration, layout: Layout
) -> tuple[KeyTemplate, KeyTemplate]:
    annotations = {name: field.annotation for name, field in fields.items()}

    def compiled(text: str, role: Role, *, no_tilde: bool = False) -> KeyTemplate:
        return KeyTemplate.compile(
            text, annotations, role=role, owner=declaration.name, no_tilde=no_tilde
        )

    partition = compiled(declaration.partition, "partition")
    # Additional rows of a wide entity have a '~' and a number after its row key.
    row = compiled(declaration.row, "row", no_tilde=layout.rows > 1)
    return KeyTemplate.check_pair(partition, row)
