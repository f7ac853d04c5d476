"""Entities as rows, and back: the only module that knows the storage layout of a type.

Writing: values → properties by stored names → one or several rows → sealed where required. Reading
reverses these steps and applies upcasters to old versions. Properties that the type does not know
are kept and written back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import (
    InvalidKeyError,
    InvalidPropertyError,
    LimitExceededError,
    NewerVersionError,
    TornReadError,
    UnknownTypeError,
)
from partita.patterns.encryption import sealing as encryption
from partita.patterns.encryption.keyring import Keyring
from partita.patterns.fields.codecs import edm_of
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.load_state import snapshot
from partita.patterns.protocol.values import Int32, Row, RowKey, Value, measure
from partita.patterns.types.decorators import EntityType, Field, Origin
from partita.patterns.types.row_layout import (
    GENERATION,
    PART_MARK,
    PARTS,
    STAMP,
    VERSION,
    WRITE,
    parse_manifest,
    part_key,
    print_manifest,
)
from partita.tables import edm, limits
from partita.ticks import Clock

SYSTEM = frozenset({GENERATION, PARTS, STAMP, WRITE, VERSION})
_NARROWER = {edm.INT64: {edm.INT32}, edm.DOUBLE: {edm.INT32, edm.INT64}}
"""By the type of a field: the narrower number types that its values are also read from."""
_DECLARED: Mapping[str, str] = {}
WRITES_KEPT = 4
"""The number of write ids that a row keeps, newest first."""

References = Mapping[str, LargeValue | None]
"""The blobs that hold the values of fields; None for a value that is None."""


class Sealing(msgspec.Struct, frozen=True):
    """What sealing and unsealing need."""

    clock: Clock
    keyring: Keyring | None = None
    accepts_unsealed: bool = False
    """Read encrypted fields that are stored unsealed, from before they were declared encrypted."""


class Stored(msgspec.Struct):
    """An entity as it was read: its actual type, its values, its origin."""

    model: EntityType[Any]
    values: dict[str, Any]
    origin: Origin

    def references(self) -> dict[str, LargeValue]:
        return {
            field.name: value
            for field in self.model.fields.values()
            if isinstance(value := self.values.get(field.name), LargeValue)
        }

    def unread(self) -> dict[str, LargeValue]:
        """Return the references whose values an object must hold."""
        return {
            name: each
            for name, each in self.references().items()
            if not self.model.fields[name].is_lazy
        }


# ---------------------------------------------------------------------------------------------
# Writing


def encode(
    model: EntityType[Any],
    values: Mapping[str, Any],
    references: References,
    number_types: Mapping[str, str] = _DECLARED,
) -> dict[str, Value]:
    """Return the properties of the fields that are not part of the keys.

    `number_types` are the stored number types to keep (see `narrower_types`).
    """
    properties: dict[str, Value] = {}
    for field in model.fields.values():
        if not field.is_key and field.name in values:
            properties.update(encode_field(field, values[field.name], references))
    return with_types(properties, number_types)


def narrower_types(model: EntityType[Any], properties: Mapping[str, Value]) -> dict[str, str]:
    """Return the number types of properties that are narrower than those of their fields.

    Other programs store small numbers as Int32, and whole numbers in fields that are declared
    float.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        if isinstance(value, int) and (field := model.field_of(name)) is not None:
            kind = edm_of(value)
            if kind in _NARROWER.get(field.codec.edm, ()):
                found[name] = kind
    return found


def with_types(properties: dict[str, Value], number_types: Mapping[str, str]) -> dict[str, Value]:
    """Return properties with numbers in their previous types, where these can hold the values."""
    for name, kind in number_types.items():
        value = properties.get(name)
        if not isinstance(value, int | float) or value != value // 1:
            continue
        if kind == edm.INT32 and edm.INT32_MIN <= value <= edm.INT32_MAX:
            properties[name] = Int32(value)
        elif kind == edm.INT64 and edm.INT64_MIN <= value <= edm.INT64_MAX:
            properties[name] = int(value)
    return properties


def encode_field(field: Field, value: Any, references: References) -> dict[str, Value]:
    """Return the properties of one field: none for None, several for a series."""
    if field.blob is not None:
        reference = references.get(field.name)
        return {} if reference is None else {field.property: reference.to_text()}
    if field.series is not None:
        return {slot_name(field, slot): encode_slot(field, each) for slot, each in value.items()}
    stored = field.codec.encode(value)
    return {} if stored is None else {field.property: stored}


def slot_name(field: Field, slot: int) -> str:
    """Return the property of one slot of a series."""
    series = field.series
    assert series is not None
    if not series.first <= slot <= series.last:
        raise InvalidPropertyError(
            "SlotOutOfRange",
            f"{field.name!r} has slots {series.first} to {series.last}.",
            facts={"field": field.name, "slot": slot},
        )
    return series.pattern.format(slot)


def encode_slot(field: Field, value: Any) -> Value:
    stored = field.codec.encode(value)
    if stored is None:
        raise InvalidPropertyError(
            "SlotAbsent",
            f"A slot of {field.name!r} cannot hold None.",
            facts={"field": field.name},
            hint="Leave the slot out of the dict instead.",
        )
    return stored


def marks_of(model: EntityType[Any], suffix: str = "") -> dict[str, Value]:
    """Return the properties that record the type and version of a row."""
    marks: dict[str, Value] = {}
    if model.type_property is not None:
        marks[model.type_property] = model.name + suffix
    if model.version > 1 and not suffix.startswith(PART_MARK):
        marks[VERSION] = Int32(model.version)
    return marks


def to_rows(  # noqa: PLR0913 - what a row is made of
    model: EntityType[Any],
    key: RowKey,
    properties: Mapping[str, Value],
    before: Origin | None,
    sealing: Sealing,
    *,
    stamp: int,
    system: Mapping[str, Value],
    also: frozenset[str] = frozenset(),
) -> list[Row]:
    """Return the rows of an entity with these properties, the first row first.

    Unchanged rows are left out, except for the first. `also` names properties to seal in addition
    to those that the type declares and those that were sealed before.
    """
    parts = split_rows(model, properties, before)
    etags = () if before is None else before.etags
    stamps = {}
    if before is not None and len(parts) > 1:
        stamps = parse_manifest(before.system.get(PARTS))
    rows: list[Row] = []
    for place in range(len(parts) - 1, 0, -1):
        if before is not None and before.parts.get(place) == parts[place] and place < len(etags):
            continue
        stamps[place] = stamp
        own = {**parts[place], **marks_of(model, PART_MARK), STAMP: stamp}
        rows.append(Row(part_key(key, place), own, etags[place] if place < len(etags) else ""))
    first = {**parts[0], **marks_of(model), **system}
    if len(parts) > 1:
        first[PARTS] = print_manifest(stamps, len(parts))
    rows.append(Row(key, first, etags[0] if etags else ""))
    rows.reverse()
    also |= frozenset() if before is None else before.sealed
    return [seal_row(model, row, sealing, of=key, also=also) for row in rows]


def note_write(write_id: str, before: Mapping[str, Value]) -> str:
    """Return the write ids that a row keeps, so that a retry can find its own.

    >>> note_write("b", {"_Write": note_write("a", {})})
    'b a'
    """
    known = before.get(WRITE)
    earlier = known.split() if isinstance(known, str) else []
    return " ".join([write_id, *earlier][:WRITES_KEPT])


def find_note(noted: str, now: object) -> bool | None:
    """Return whether a row holds the write id that is first in `noted`.

    None: later writes may have removed it.

    >>> find_note("b a", "c b a"), find_note("b a", "c a"), find_note("b a", "f e d c")
    (True, False, None)
    """
    own, *earlier = noted.split()
    known = now.split() if isinstance(now, str) else []
    if own in known:
        return True
    is_seen = earlier[0] in known if earlier else len(known) < WRITES_KEPT
    return False if is_seen else None


def is_noted(write_id: str, noted: object) -> bool:
    return isinstance(noted, str) and write_id in noted.split()


def split_rows(
    model: EntityType[Any], properties: Mapping[str, Value], before: Origin | None
) -> list[dict[str, Value]]:
    """Split properties into rows. Properties that the type does not know stay in their row.

    There may be more rows than the type has, if a wider type wrote the entity.
    """
    parts = model.layout.split(properties) if model.is_wide else [dict(properties)]
    if before is None:
        return parts
    parts += [{} for _ in range(len(parts), len(before.parts) + 1)]
    places = {name: place for place, part in before.parts.items() for name in part}
    for name, value in before.extra.items():
        if name not in properties:
            parts[places.get(name, 0)][name] = value
    return parts


def seal_row(
    model: EntityType[Any],
    row: Row,
    sealing: Sealing,
    *,
    of: RowKey,
    table: str | None = None,
    also: frozenset[str] = frozenset(),
) -> Row:
    """Seal the properties that must be encrypted, and check the size of the row.

    `of` is the entity that the row belongs to; copies in an index are sealed like the entity.
    `also` names properties that were sealed when they were read.
    """
    names = _names_to_seal(model, row, of) | {name for name in also if name in row.properties}
    if names:
        properties = encryption.seal(
            row.properties,
            names,
            table=table or model.table,
            key=row.key,
            keyring=sealing.keyring,
            clock=sealing.clock,
        )
        row = msgspec.structs.replace(row, properties=properties)
    check_row(model, row)
    return row


def check_row(model: EntityType[Any], row: Row) -> None:
    """Raise with advice for a row that the service would refuse."""
    if len(row.properties) > limits.PROPERTIES_MAX:
        raise LimitExceededError(
            "TooManyProperties",
            f"The entity has more than {limits.PROPERTIES_MAX} properties.",
            facts={"type": model.name, **row.key.facts},
            hint="Put fields into a nested value, or numbered ones into a Series.",
        )
    if (size := measure(row)) > limits.ENTITY_BYTES_MAX:
        raise LimitExceededError(
            "EntityTooLarge",
            f"The entity has {size} bytes; the service accepts {limits.ENTITY_BYTES_MAX}.",
            facts={"type": model.name, **row.key.facts},
            hint="Declare large fields InBlob.",
        )


def _names_to_seal(model: EntityType[Any], row: Row, of: RowKey) -> set[str]:
    names = {name for name in row.properties if name in model.sealed_properties}
    if model.encrypt is not None:
        # Bookkeeping properties and derived fields are stored unsealed.
        kept = {field.property for field in model.fields.values() if field.derived is not None}
        kept |= {name for name in (model.type_property, VERSION) if name is not None}
        names |= {
            name
            for name in row.properties
            if name not in kept
            and not name.startswith("_")
            and model.encrypt(of.partition, of.row, name)
        }
    return names


# ---------------------------------------------------------------------------------------------
# Reading


def type_of(model: EntityType[Any], row: Row) -> EntityType[Any]:
    """Return the type that a row names: `model` or a type derived from it."""
    if model.type_property is None:
        return model
    said = row.properties.get(model.type_property)
    for candidate in model.family():
        if candidate.name == said:
            return candidate
    facts = row.key.facts
    if said is None:
        raise UnknownTypeError(
            "UnknownType",
            f"The stored entity has no {model.type_property}, so its type is unknown.",
            facts=facts,
            hint="Read it with mixed(..., resolve=...) or raw(). If no entity has one, "
            "declare @entity(..., type_property=None).",
        )
    raise UnknownTypeError(
        "UnknownType",
        f"The stored entity is {said!r}, not {model.name!r}.",
        facts=facts,
        hint="Read it with raw(), or declare its type.",
    )


def open_row(
    row: Row,
    model: EntityType[Any],
    sealing: Sealing,
    *,
    table: str | None = None,
    is_projection: bool = False,
) -> Row:
    """Return the row with its sealed properties unsealed."""
    if not model.sealed_properties and not encryption.is_sealed(row.properties):
        return row
    required = () if sealing.accepts_unsealed else model.sealed_properties
    properties = encryption.unseal(
        row.properties,
        table=table or model.table,
        key=row.key,
        keyring=sealing.keyring,
        required=required,
        is_projection=is_projection,
    )
    return msgspec.structs.replace(row, properties=properties)


def from_rows(model: EntityType[Any], rows: Sequence[Row], sealing: Sealing) -> Stored:
    """Read an entity from its rows. Raises TornReadError if they were not written together."""
    model = type_of(model, rows[0])
    opened = [open_row(row, model, sealing) for row in rows]
    _check_stamps(model, opened)
    key = opened[0].key
    given = _fields_in(model, key)
    stored = _read(model, opened, given)
    stored.origin.sealed = frozenset().union(*(sealed_in(row.properties) for row in rows))
    return stored


def _fields_in(model: EntityType[Any], key: RowKey) -> dict[str, Any]:
    """Return the fields that are part of the keys."""
    try:
        return {**model.partition.parse(key.partition), **model.row.parse(key.row)}
    except InvalidKeyError as error:
        error.facts |= key.facts
        raise


def sealed_in(properties: Mapping[str, Value]) -> frozenset[str]:
    """Return which properties were sealed; all binary ones in the old format, which has no list."""
    names = encryption.sealed_names(properties)
    if names or not encryption.is_sealed(properties):
        return names
    return frozenset(name for name, value in properties.items() if isinstance(value, bytes))


def shows_secrets(row: Row, wanted: Row) -> bool:
    """Return whether a row stores properties unsealed that are now declared encrypted."""
    return bool(sealed_in(wanted.properties) & row.properties.keys() - sealed_in(row.properties))


def _check_stamps(model: EntityType[Any], rows: Sequence[Row]) -> None:
    expected = parse_manifest(rows[0].properties.get(PARTS))
    found = {place: row.properties.get(STAMP) for place, row in enumerate(rows) if place}
    if expected != found:
        raise TornReadError(
            "TornRead",
            f"The rows of a {model.name} were not written together.",
            facts=rows[0].key.facts,
            hint="Another program changed some of them, or the entity is written all the time.",
        )


def _read(model: EntityType[Any], rows: Sequence[Row], given: Mapping[str, Any]) -> Stored:
    first = rows[0]
    properties = {name: value for row in rows for name, value in row.properties.items()}
    version = _version_in(properties, first.key)
    known = _properties_now(model, properties, given, version, first.key)
    values = dict(given)
    extra = dict(known)
    for field in model.fields.values():
        if not field.is_key:
            values[field.name] = decode_field(field, extra)
    origin = Origin(
        key=first.key,
        etags=tuple(row.etag for row in rows),
        values=snapshot(values),
        extra=extra,
        version=version,
        timestamp=first.timestamp,
        system={name: value for name, value in first.properties.items() if name in SYSTEM},
        number_types=narrower_types(model, known),
        parts={
            place: {
                name: value
                for name, value in row.properties.items()
                if name not in SYSTEM and name != model.type_property
            }
            for place, row in enumerate(rows)
            if place
        },
    )
    return Stored(model, values, origin)


def _version_in(properties: Mapping[str, Value], key: RowKey) -> int:
    version = properties.get(VERSION, 1)
    if isinstance(version, int):
        return version
    raise InvalidPropertyError(
        "PropertyTypeMismatch",
        f"{VERSION} is not a number.",
        facts=key.facts,
        hint="Another program wrote it: read the entity with raw().",
    )


def _properties_now(
    model: EntityType[Any],
    properties: Mapping[str, Value],
    given: Mapping[str, Any],
    version: int,
    key: RowKey,
) -> dict[str, Value]:
    """Return the properties in the current version, without bookkeeping properties."""
    ours = {
        name: value
        for name, value in properties.items()
        if name not in {*SYSTEM, model.type_property, encryption.SEAL}
    }
    if version == model.version:
        return ours
    try:
        return model.upcast(ours, given, version)
    except NewerVersionError as error:
        error.facts |= key.facts
        raise


def decode_field(field: Field, properties: dict[str, Value]) -> Any:
    """Remove the properties of a field from `properties` and return its value."""
    if field.is_in_blob:
        stored = properties.pop(field.property, None)
        return None if stored is None else LargeValue.from_text(stored)
    if field.series is not None:
        series: dict[int, Any] = {}
        for slot, name in enumerate(field.slot_names, field.series.first):
            if name in properties:
                series[slot] = field.codec.decode(properties.pop(name))
        return series
    stored = properties.pop(field.property, None)
    if stored is None and field.default is not None and not field.codec.is_optional:
        return field.default()
    return field.codec.decode(stored)


def peek(model: EntityType[Any], row: Row, sealing: Sealing) -> dict[str, Any]:
    """Return the fields that are stored in the first row of an entity."""
    model = type_of(model, row)
    opened = open_row(row, model, sealing)
    key = opened.key
    given = _fields_in(model, key)
    version = _version_in(opened.properties, key)
    left = dict(_properties_now(model, opened.properties, given, version, key))
    for field in model.fields.values():
        if not field.is_key and model.layout.places.get(field.property, 0) == 0:
            given[field.name] = decode_field(field, left)
    return given


def read_some(
    model: EntityType[Any], row: Row, names: set[str], sealing: Sealing
) -> dict[str, Any]:
    """Return the named fields of an entity that was read with a projection."""
    model = type_of(model, row)
    opened = open_row(row, model, sealing, is_projection=True)
    key = opened.key
    values = _fields_in(model, key)
    version = _version_in(opened.properties, key)
    fields = [field for field in map(model.fields.__getitem__, names) if not field.is_key]
    if fields:  # else the version does not matter
        left = dict(_properties_now(model, opened.properties, values, version, key))
        values.update({field.name: decode_field(field, left) for field in fields})
    return values


def read_copy(
    index: Any, row: Row, sealing: Sealing, only: set[str] | None = None
) -> dict[str, Any]:
    """Return the fields that a copy in an index holds; `only` the selected ones."""
    model: EntityType[Any] = index.owner
    opened = open_row(row, model, sealing, table=index.table, is_projection=only is not None)
    left = dict(opened.properties)
    key = opened.key
    values = {**index.partition.parse(key.partition), **index.row.parse(key.row)}
    for name in index.copied:
        if only is not None and name not in only:
            continue
        field = model.fields[name]
        if field.is_key:
            values[name] = field.codec.decode(left.get(field.property))
        else:
            values[name] = decode_field(field, left)
    return values
