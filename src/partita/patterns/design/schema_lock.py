"""`partita.lock`: a file, kept with the code, that records how entities are stored and read.

`write_lock` returns its text; `compare_lock` finds changes in the code that do not fit the stored
entities: a changed key, a narrower type, a version without upcaster, a more expensive query. The
file is TOML, sorted by name, so that a change is a readable difference:

    [Employee]
    table = "staff"
    partition = "{dept}"
    row = "emp_{id:06d}"
    version = 2

    [Employee.fields.age]
    property = "Age"
    type = "Edm.Int64"

    [Employee.access]
    "employees of a department" = "range staff by dept"
"""

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from partita.errors import UsageError
from partita.patterns.design.access_patterns import check_access
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import plain_type
from partita.patterns.planning.requests import QueryKind
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, Index
from partita.tables import edm


class LockedField(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a field is stored."""

    type: str
    holds: str
    """The type in words, which distinguishes types with the same stored form."""
    property: str = ""
    """Empty for key fields."""
    optional: bool = False
    default: bool = False
    choices: tuple[str, ...] = ()
    way: str = ""
    """Encrypted, in a blob or as a series."""


class LockedIndex(msgspec.Struct, frozen=True, omit_defaults=True):
    table: str
    partition: str
    row: str
    way: str
    """A copy, or the storage of a list."""
    unique: bool = False


class LockedEntity(msgspec.Struct, frozen=True):
    table: str
    partition: str
    row: str
    version: int
    fields: dict[str, LockedField]
    indexes: dict[str, LockedIndex] = {}
    access: dict[str, str] = {}


class Difference(msgspec.Struct, frozen=True):
    """A change in the code that does not fit the lock file."""

    code: str
    subject: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.code} {self.subject}: {self.message} {self.hint}"


# ---------------------------------------------------------------------------------------------
# Writing


def write_lock(models: Iterable[EntityType[Any]]) -> str:
    """Return the text of the file for these types."""
    lines = ["# How entities are stored and read. Written by Partita; keep it with the code."]
    for model in sorted(models, key=lambda each: each.name):
        plain = msgspec.to_builtins(lock(model))
        lines += _table((model.name,), plain)
    return "\n".join(lines) + "\n"


def lock(model: EntityType[Any]) -> LockedEntity:
    """Return the entry of one type."""
    return LockedEntity(
        table=model.table,
        partition=model.partition.text,
        row=model.row.text,
        version=model.version,
        fields={name: _field(model.fields[name]) for name in sorted(model.fields)},
        indexes={
            each.name: _index(each) for each in sorted(model.indexes, key=lambda each: each.name)
        },
        access={each.access.name: each.plan.summary for each in check_access(model)},
    )


def _field(field: Field) -> LockedField:
    return LockedField(
        type=field.codec.edm,
        holds=field.codec.expected.removesuffix(" or None"),
        property="" if field.is_key or field.slot_names else field.property,
        optional=field.codec.is_optional,
        default=field.has_default,
        choices=_choices(field),
        way=_way(field),
    )


def _choices(field: Field) -> tuple[str, ...]:
    kind = plain_type(field)
    if get_origin(kind) is Literal:
        return tuple(sorted(str(value) for value in get_args(kind) if value is not None))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(sorted(str(member.value) for member in kind))
    return ()


def _way(field: Field) -> str:
    if field.series is not None and field.slot_names:
        return f"series {field.series.pattern}"
    if field.blob is not None:
        return f"blob in {field.blob.container}"
    return "encrypted" if field.is_encrypted else ""


def _index(index: AnyIndex) -> LockedIndex:
    return LockedIndex(
        table=index.table,
        partition=index.partition.text,
        row=index.row.text,
        way="copy" if isinstance(index, Index) else index.storage.value,
        unique=isinstance(index, Index) and index.is_unique,
    )


def _table(path: tuple[str, ...], members: Mapping[str, Any]) -> Iterator[str]:
    scalars = {name: value for name, value in members.items() if not isinstance(value, dict)}
    if scalars:
        yield ""
        yield f"[{'.'.join(map(_key, path))}]"
    for name, value in scalars.items():
        yield f"{_key(name)} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in members.items():
        if isinstance(value, dict):
            yield from _table((*path, name), value)


def _key(name: str) -> str:
    is_bare = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if is_bare else json.dumps(name, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------
# Comparing


def compare_lock(text: str, models: Iterable[EntityType[Any]]) -> list[Difference]:
    """Return the changes that do not fit the file, in its order."""
    try:
        kept = msgspec.toml.decode(text, type=dict[str, LockedEntity])
    except msgspec.MsgspecError as error:
        raise UsageError(
            "LockUnreadable",
            f"The lock file is malformed: {error}.",
            hint="Write it again with write_lock(), and review the difference.",
        ) from error
    known = {model.name: model for model in models}
    found: list[Difference] = []
    for name, old in kept.items():
        if name in known:
            found += _compare(name, old, known[name])
        else:
            found.append(
                Difference(
                    "EntityRemoved",
                    name,
                    "The type was removed, but its entities may still be stored.",
                    "Delete them first, or give the new class its name: @entity(..., name=...).",
                )
            )
    return found


def _compare(name: str, old: LockedEntity, model: EntityType[Any]) -> Iterator[Difference]:
    new = lock(model)
    yield from _compare_keys(name, old, new)
    missing = [each for each in range(old.version, new.version) if each not in model.upcasters]
    for version in missing:
        yield Difference(
            "UpcasterMissing",
            name,
            f"Entities of version {version} may be stored, and there is no upcaster from it.",
            f"Add @upcast({model.cls.__name__}, from_version={version}).",
        )
    if new.version < old.version:
        yield Difference(
            "VersionLowered",
            name,
            f"The version was {old.version} and is {new.version}.",
            "Keep the version: entities of newer versions cannot be read.",
        )
    if new.version == old.version:
        yield from _compare_fields(name, old, new)
    yield from _compare_indexes(name, old, new)
    yield from _compare_access(name, old, new)


def _compare_keys(name: str, old: LockedEntity, new: LockedEntity) -> Iterator[Difference]:
    for what in ("table", "partition", "row"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield Difference(
                "KeyTemplateChanged",
                f"{name}.{what}",
                f"It was {before!r} and is {after!r}: stored entities are no longer found.",
                "Restore it, or declare a new type and move the entities.",
            )
    for field, kept in old.fields.items():
        now = new.fields.get(field)
        if now is not None and not kept.property and not kept.way and kept.type != now.type:
            yield _narrowed(name, field, kept, now)


def _compare_fields(name: str, old: LockedEntity, new: LockedEntity) -> Iterator[Difference]:
    for field, kept in old.fields.items():
        now = new.fields.get(field)
        if now is None or not (kept.property or kept.way):
            continue
        if (kept.property, kept.way) != (now.property, now.way):
            yield Difference(
                "StorageChanged",
                f"{name}.{field}",
                f"It was stored as {_place(kept)} and is stored as {_place(now)}.",
                "Raise the version and add an upcaster, or name the property with Named(...).",
            )
        elif not _fits(kept, now):
            yield _narrowed(name, field, kept, now)
    for field, now in new.fields.items():
        if field not in old.fields and not now.default and not now.optional and not now.way:
            yield Difference(
                "FieldWithoutDefault",
                f"{name}.{field}",
                "Stored entities do not have this field.",
                "Give it a default, or raise the version and add an upcaster.",
            )


def _place(field: LockedField) -> str:
    return " ".join(filter(None, (field.property, field.way)))


def _narrowed(name: str, field: str, kept: LockedField, now: LockedField) -> Difference:
    return Difference(
        "TypeNarrowed",
        f"{name}.{field}",
        f"It was {_words(kept)} and is {_words(now)}: stored values may not fit.",
        "Raise the version and add an upcaster.",
    )


def _words(field: LockedField) -> str:
    choices = f" of {', '.join(field.choices)}" if field.choices else ""
    return f"{field.holds}{choices}{' or None' if field.optional else ''}"


_READ_FROM = {
    edm.INT64: (edm.INT32, edm.INT64),
    edm.DOUBLE: (edm.INT32, edm.INT64, edm.DOUBLE),
}
"""The stored types from which a field of each type can be read."""


def _fits(kept: LockedField, now: LockedField) -> bool:
    """Return whether all values that may be stored can still be read."""
    if kept.optional and not now.optional and not now.default:
        return False
    if now.choices:
        return bool(kept.choices) and set(kept.choices) <= set(now.choices)
    if kept.choices:
        return kept.type == now.type
    if kept.holds == now.holds:
        return kept.type == now.type
    # The same stored type is not enough: Decimal and date are both texts.
    return kept.type != now.type and kept.type in _READ_FROM.get(now.type, ())


def _compare_indexes(name: str, old: LockedEntity, new: LockedEntity) -> Iterator[Difference]:
    for index, kept in old.indexes.items():
        now = new.indexes.get(index)
        if now is None:
            yield Difference(
                "IndexRemoved",
                f"{name}.{index}",
                "Its rows may still be stored.",
                "Disable the index first, and remove its rows.",
            )
        elif now != kept:
            yield Difference(
                "IndexChanged",
                f"{name}.{index}",
                "Its rows are stored under the earlier declaration.",
                "Give the new index another name, and remove the old one once the new is readable.",
            )


def _compare_access(name: str, old: LockedEntity, new: LockedEntity) -> Iterator[Difference]:
    for pattern, kept in old.access.items():
        now = new.access.get(pattern)
        if now is not None and _cost(now) > _cost(kept):
            yield Difference(
                "PlanWorse",
                f"{name}: {pattern}",
                f"It was read as {kept!r} and is read as {now!r}.",
                "Restore the keys that it used, or add an index.",
            )


def _cost(summary: str) -> tuple[int, bool]:
    kinds = {each.value: each.rank for each in QueryKind}
    # A newer version of Partita may write a kind that is unknown here and not comparable.
    return kinds.get(summary.split(" ", maxsplit=1)[0], len(kinds)), " residual " in summary
