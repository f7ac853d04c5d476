"""Fields of an entity class: how each one is stored, and checks of their declarations."""

import builtins
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from partita.blobs.rules.names import check_container_name
from partita.errors import DefinitionError, PartitaError
from partita.patterns.fields.annotations import (
    admits_none,
    meaning_of,
    narrowed,
    plain,
    union_members,
)
from partita.patterns.fields.class_adapters import ClassField
from partita.patterns.fields.codecs import Codec, codec_for
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.markers import (
    BlobMark,
    CopiedFrom,
    CountOf,
    Derived,
    EncryptedMark,
    MaxOf,
    MinOf,
    Named,
    Series,
    SumOf,
)
from partita.patterns.protocol.values import Int32
from partita.tables import edm
from partita.tables.entity import check_property_name

SLOTS_MAX = 5_000
"""The maximum number of slots of one series."""

_DERIVED = (CopiedFrom, CountOf, SumOf, MinOf, MaxOf)
_MARKERS = (Named, EncryptedMark, BlobMark, Series, *_DERIVED)
_Marker = Named | EncryptedMark | BlobMark | Series | Derived


class Field(msgspec.Struct, frozen=True):
    """One field of an entity class."""

    name: str
    property: str
    """The stored name. A series has one name per slot instead: `slot_names`."""
    annotation: Any
    """The type, without Annotated."""
    codec: Codec
    """The codec of the value; for a series, of the value of one slot."""
    is_key: bool = False
    """Whether the field is part of the partition key or row key, and not a property."""
    is_encrypted: bool = False
    blob: BlobMark | None = None
    is_lazy: bool = False
    """Whether objects hold a reference to the value in the blob, and not the value."""
    series: Series | None = None
    derived: Derived | None = None
    default: Callable[[], Any] | None = None
    slot_names: tuple[str, ...] = ()

    @builtins.property
    def has_default(self) -> bool:
        return self.default is not None

    @builtins.property
    def is_in_blob(self) -> bool:
        """Whether the value is in a blob: declared InBlob, or a series with store="blob"."""
        return self.blob is not None

    @builtins.property
    def property_names(self) -> tuple[str, ...]:
        """All properties that can hold a part of this field."""
        if self.is_key:
            return ()
        return self.slot_names or (self.property,)


def make_field(
    declared: ClassField, *, owner: str, is_key: bool, naming: Callable[[str], str]
) -> Field:
    """Return how a declared field is stored, or raise if it cannot be stored."""
    where = f"{owner}.{declared.name}"
    annotation, marks = _peel(declared.annotation, where)
    named = _one(marks, Named)
    blob, series = _one(marks, BlobMark), _one(marks, Series)
    derived = next((mark for mark in marks if isinstance(mark, Derived)), None)
    _check_marks(marks, where)
    if is_key:
        _check_key(annotation, marks, where)
    slot_names: tuple[str, ...] = ()
    if series is not None:
        _check_series(series, annotation, where)
        if series.store == "blob":
            blob = BlobMark()
        else:
            slot_names = _slot_names(series, where)
    codec = (
        codec_for(get_args(annotation)[1] if slot_names else annotation, where=where)
        if blob is None
        else codec_for(annotation, where=where, bytes_max=None)
    )
    if blob is not None:
        _check_blob(blob, codec, where)
    elif LargeValue in union_members(annotation):
        hint = "Use Annotated[LargeValue | None, InBlob]."
        raise _refused(where, "A large value is stored in a blob.", hint)
    _check_derived(derived, annotation, codec, where)
    return Field(
        name=declared.name,
        property=naming(declared.name) if named is None else named.name,
        annotation=annotation,
        codec=codec,
        is_key=is_key,
        is_encrypted=_one(marks, EncryptedMark) is not None,
        blob=blob,
        is_lazy=LargeValue in union_members(annotation),
        series=series,
        derived=derived,
        default=declared.default,
        slot_names=slot_names,
    )


def _check_derived(derived: Derived | None, annotation: Any, codec: Codec, where: str) -> None:
    is_int = codec.edm in (edm.INT32, edm.INT64)
    if isinstance(derived, CountOf) and (not is_int or codec.is_optional):
        raise _refused(where, "A count must be an int.", "Use Annotated[int, CountOf(...)] = 0.")
    if isinstance(derived, SumOf) and plain(annotation) not in (int, Decimal, timedelta):
        raise _refused(
            where,
            "A sum must be an int, a Decimal or a timedelta. A sum of floats would depend on the "
            "order of the additions.",
            "Use Annotated[int, SumOf(...)] = 0, or Decimal.",
        )
    if isinstance(derived, MinOf | MaxOf) and not codec.is_optional:
        raise _refused(where, "There may be no source.", "Annotate it `| None`.")


def _refused(where: str, reason: str, hint: str) -> DefinitionError:
    return DefinitionError("FieldRefused", f"{where}: {reason}", facts={"field": where}, hint=hint)


# ---------------------------------------------------------------------------------------------
# Markers


def _peel(annotation: Any, where: str) -> tuple[Any, list[_Marker]]:
    """Split an annotation into type and markers; markers may be inside `| None`, but not deeper."""
    if get_origin(annotation) is Annotated:
        inner, marks = _peel(get_args(annotation)[0], where)
        metadata = annotation.__metadata__
        if Int32 in metadata and not any(
            plain(each) in (int, Int32) for each in union_members(inner)
        ):
            raise _refused(where, "Int32 applies to an int only.", "Use Annotated[int, Int32].")
        return narrowed(inner, metadata), _markers_in(metadata, where) + marks
    if (meant := meaning_of(annotation)) is not annotation:
        return _peel(meant, where)
    if get_origin(annotation) in (Union, types.UnionType):
        members = [_peel(member, where) for member in get_args(annotation)]
        union: Any = Union[tuple(member for member, _ in members)]  # noqa: UP007 - at run time
        return union, [mark for _, found in members for mark in found]
    if any(_markers_in(inner.__metadata__, where) for inner in _annotations_within(annotation)):
        raise _refused(
            where,
            "A marker inside the type has no effect.",
            "Apply it to the whole type: Annotated[list[str], Encrypted].",
        )
    return annotation, []


def _markers_in(metadata: tuple[Any, ...], where: str) -> list[_Marker]:
    for item in metadata:
        if isinstance(item, type) and item in _MARKERS:
            raise _refused(
                where,
                f"{item.__name__} is the class of a marker, not a marker.",
                f"Use an instance: {item.__name__}(...), Encrypted or InBlob.",
            )
    return [item for item in metadata if isinstance(item, _MARKERS)]


def _annotations_within(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        return
    for argument in get_args(annotation):
        while (meant := meaning_of(argument)) is not argument:
            argument = meant  # noqa: PLW2901 - unwrap aliases
        if get_origin(argument) is Annotated:
            yield argument
        yield from _annotations_within(argument)


def _one(marks: list[_Marker], kind: type[Any]) -> Any:
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _check_marks(marks: list[_Marker], where: str) -> None:
    storing = [mark for mark in marks if not isinstance(mark, Named)]
    if len(storing) > 1 or len(marks) - len(storing) > 1:
        raise _refused(where, *_reason_against(marks))


def _reason_against(marks: list[_Marker]) -> tuple[str, str]:
    kinds = {type(mark) for mark in marks}
    if kinds >= {EncryptedMark, BlobMark}:
        return (
            "The name of a blob contains the hash of its content, which would not be encrypted.",
            "Encrypt the bytes in the application, or use Encrypted without InBlob.",
        )
    if EncryptedMark in kinds and kinds & set(_DERIVED):
        return "A derived value is stored unencrypted in its source.", "Remove Encrypted."
    if EncryptedMark in kinds and Series in kinds:
        return (
            "Slots are merged one by one, and a merge cannot encrypt.",
            "Use an Encrypted dict field, or a Series without Encrypted.",
        )
    if kinds >= {BlobMark, Series}:
        return "Series and InBlob cannot be combined.", 'Use Series(..., store="blob") alone.'
    return "It has two markers that exclude each other.", "Remove one of them."


def _check_key(annotation: Any, marks: list[_Marker], where: str) -> None:
    if admits_none(annotation):
        raise _refused(where, "A key field cannot be None.", "Remove `| None`.")
    for mark in marks:
        raise _refused(where, *_reason_against_key(mark))


def _reason_against_key(mark: _Marker) -> tuple[str, str]:
    if isinstance(mark, Named):
        return "A key field is not a property.", "Remove Named(...)."
    if isinstance(mark, EncryptedMark):
        return "Keys are never encrypted.", "Use a key without secrets, such as a UUID."
    if isinstance(mark, Derived):
        return "A key field cannot be derived.", "Use another field in the key template."
    return "A key field cannot be stored outside the entity.", "Use another field."


# ---------------------------------------------------------------------------------------------
# Series and blobs


def _check_series(series: Series, annotation: Any, where: str) -> None:
    if get_origin(annotation) is not dict or get_args(annotation)[0] is not int:
        raise _refused(where, "A series is a dict from slot to value.", "Annotate it dict[int, V].")
    if not 1 <= series.slots <= SLOTS_MAX or series.first < 0:
        reason = f"A series has 1 to {SLOTS_MAX} slots, numbered from 0 or a greater number on."
        raise _refused(where, reason, "Use one entity per period, or InBlob.")
    if admits_none(get_args(annotation)[1]):
        raise _refused(where, "A slot cannot hold None.", "Leave empty slots out of the dict.")


def _slot_names(series: Series, where: str) -> tuple[str, ...]:
    try:
        names = tuple(series.pattern.format(slot) for slot in range(series.first, series.last + 1))
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise _refused(
            where,
            f"The pattern {series.pattern!r} cannot be formatted with a slot.",
            'Use one placeholder for the number: "h{:02d}".',
        ) from error
    if len(set(names)) < len(names):
        raise _refused(
            where,
            f"The pattern {series.pattern!r} gives two slots the same name.",
            'Use one placeholder for the number: "h{:02d}".',
        )
    return names


def _check_blob(blob: BlobMark, codec: Codec, where: str) -> None:
    if codec.edm not in (edm.BINARY, edm.STRING):
        raise _refused(
            where, "Only bytes, text and nested values can be in a blob.", "Remove InBlob."
        )
    try:
        check_container_name(blob.container)
    except PartitaError as error:
        raise _refused(
            where,
            f"{blob.container!r} is not a valid container name.",
            error.hint or "Use a name of 3 to 63 characters.",
        ) from error


# ---------------------------------------------------------------------------------------------
# Names of properties

SYSTEM_NAMES = frozenset({"PartitionKey", "RowKey", "Timestamp"})


def check_names(fields: dict[str, Field], owner: str, reserved: frozenset[str]) -> None:
    """Raise for property names that are invalid, reserved or used twice."""
    taken: dict[str, str] = {}
    for field in fields.values():
        where = f"{owner}.{field.name}"
        for name in field.property_names:
            _check_name(name, where, reserved)
            if name in taken:
                raise _name_refused(
                    where,
                    f"{name!r} is also the property of {taken[name]!r}.",
                    'Rename one of them: Annotated[..., Named("...")].',
                )
            taken[name] = field.name


def _check_name(name: str, where: str, reserved: frozenset[str]) -> None:
    try:
        check_property_name(name)
    except PartitaError as error:
        hint = error.hint or "Use a name of at most 255 characters."
        raise _name_refused(where, f"{name!r} is not a valid property name.", hint) from error
    reason = ""
    if name in SYSTEM_NAMES or name in reserved:
        owner = "service" if name in SYSTEM_NAMES else "library"
        reason = f"{name!r} is a reserved property of the {owner}."
    elif name.startswith("_"):
        reason = f"{name!r} begins with '_', which is reserved for properties of the library."
    if reason:
        raise _name_refused(where, reason, 'Use another name: Annotated[..., Named("...")].')


def _name_refused(where: str, reason: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "PropertyNameRefused", f"{where}: {reason}", facts={"field": where}, hint=hint
    )
