"""Fields kept from other entities: copies (`CopiedFrom`) and counts (`CountOf`).

Where owner and source share a partition, both change in one group. What keeps the two from
passing each other is the owner's row, which every such group writes under its etag; while there
is no owner, a guard row (`~g_` and the owner's row key) stands in for it. Owners elsewhere
follow by the outbox.

Where a source is copied into many owners of its partition, those that are stored change in its
group if they fit into one; else they follow by the outbox. An owner that is made meanwhile names
the field in an outbox entry of its own, so that it is derived once more.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from partita.errors import DefinitionError
from partita.patterns.fields.markers import CopiedFrom, CountOf
from partita.patterns.keys.key_text import fits
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import Dependent, EntityType, Field
from partita.patterns.types.row_layout import HIDDEN_MARK, STAMP, part_key
from partita.patterns.writing.group_draft import Draft, Reason
from partita.patterns.writing.index_rows import Version

GUARD_PREFIX = HIDDEN_MARK + "g_"
GUARD_TYPE = "~guard"

Range = tuple[str, str, str | None]
"""A partition key, and the bounds of row keys in it."""


class Watch(msgspec.Struct, frozen=True):
    """A derived field of one owner that a change of its source may change."""

    dependent: Dependent
    owner_key: RowKey
    row_key: RowKey
    """The row of the owner that holds the field."""


def guard_key(owner: RowKey) -> RowKey:
    row = GUARD_PREFIX + owner.row
    if not fits(row):  # no row key of an owner begins with the mark
        row = GUARD_PREFIX + HIDDEN_MARK + sha256(owner.row.encode()).hexdigest()
    return RowKey(owner.partition, row)


def owner_values(dependent: Dependent, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of owners that an entity of the source tells."""
    where = dependent.marker.where
    return {owner_field: source[source_field] for source_field, owner_field in where.items()}


def owner_range(dependent: Dependent, source: Mapping[str, Any]) -> Range | None:
    """Return partition key and bounds of row keys of all owners that a source can have.

    None: it has none, for it names no partition of them.
    """
    known = owner_values(dependent, source)
    if any(known[name] is None for name in dependent.owner.partition.fields):
        return None
    known = {name: value for name, value in known.items() if value is not None}
    bounds = dependent.owner.row.bounds(
        {name: value for name, value in known.items() if name in dependent.owner.row.fields}
    )
    return dependent.owner.partition.format(known), bounds.lower, bounds.upper


def find_owner(dependent: Dependent, source: Mapping[str, Any]) -> RowKey | None:
    """Return the one owner that a source can have; None if there may be many."""
    known = owner_values(dependent, source)
    keys = {name for name, field in dependent.owner.fields.items() if field.is_key}
    if not keys <= set(known) or any(known[name] is None for name in keys):
        return None
    return dependent.owner.key(known)


def watches(
    model: EntityType[Any], table: str, before: Version | None, after: Version | None
) -> Iterator[Watch]:
    """Yield the fields of owners in the same partition that a change may touch."""
    for dependent in model.watchers():
        if dependent.owner.table != table or not is_touched(dependent, before, after):
            continue
        seen: set[RowKey] = set()
        for version in (before, after):
            key = None if version is None else find_owner(dependent, version.values)
            if version and key and key.partition == version.key.partition and key not in seen:
                seen.add(key)
                place = dependent.owner.layout.places.get(dependent.field.property, 0)
                yield Watch(dependent, key, part_key(key, place))


def ranges_here(
    model: EntityType[Any], table: str, before: Version | None, after: Version | None
) -> Iterator[tuple[Dependent, Range]]:
    """Yield where in the same partition many owners may lie whose copies a change may touch."""
    for dependent in model.watchers():
        owner = dependent.owner
        if owner.table != table or owner.is_wide or owner.type_property is None:
            continue
        if not isinstance(dependent.marker, CopiedFrom) or not is_touched(dependent, before, after):
            continue
        places: set[Range] = set()
        for version in (before, after):
            if version is not None and find_owner(dependent, version.values) is None:
                place = owner_range(dependent, version.values)
                if place is not None and place[0] == version.key.partition:
                    places.add(place)
        yield from ((dependent, place) for place in sorted(places, key=str))


def is_remote(dependent: Dependent, table: str, version: Version) -> bool:
    """Tell whether owners must be told by the outbox."""
    if dependent.owner.table != table:
        return True
    key = find_owner(dependent, version.values)
    return key is None or key.partition != version.key.partition


def is_touched(dependent: Dependent, before: Version | None, after: Version | None) -> bool:
    """Tell whether a change of a source can change what is derived from it."""
    if before is None or after is None:
        return True
    names = set(dependent.marker.where)
    if isinstance(dependent.marker, CopiedFrom):
        names.add(dependent.marker.field)
    return any(before.values[name] != after.values[name] for name in names)


def matches(dependent: Dependent, owner: Mapping[str, Any], source: Version | None) -> bool:
    """Tell whether a source belongs to an owner."""
    return source is not None and all(
        owner[owner_field] == source.values[source_field]
        for source_field, owner_field in dependent.marker.where.items()
    )


def derive(
    watch: Watch,
    owner: Mapping[str, Any],
    current: Value | None,
    before: Version | None,
    after: Version | None,
) -> Value | None:
    """Return what the owner's property becomes: pure."""
    dependent = watch.dependent
    was, now = matches(dependent, owner, before), matches(dependent, owner, after)
    if isinstance(dependent.marker, CountOf):
        count = current if isinstance(current, int) else 0
        return dependent.field.codec.encode(count + int(now) - int(was))
    if now:
        assert after is not None
        return dependent.field.codec.encode(after.values[dependent.marker.field])
    return None if was else current


def write_owner(draft: Draft, key: RowKey, field: Field, value: Value | None, change: int) -> None:
    """Put the new value of a derived field into the group."""
    if draft.adjust(key, field.property, value):
        return
    row = draft.found[key]
    assert row is not None
    properties = {**row.properties}
    if value is None:
        properties.pop(field.property, None)
        whole = msgspec.structs.replace(row, properties=properties)
        draft.put(RowOperation(Verb.REPLACE, whole, row.etag), Reason.DERIVED, change)
        return
    part = msgspec.structs.replace(row, properties={field.property: value})
    draft.put(RowOperation(Verb.MERGE, part, row.etag), Reason.DERIVED, change)


def write_guard(draft: Draft, owner: RowKey, found: Row | None, stamp: int, change: int) -> None:
    """Make this group collide with every other one that finds the owner absent, or makes it."""
    key = guard_key(owner)
    if draft.find(key) is not None:
        return
    row = Row(key, {"EntityType": GUARD_TYPE, STAMP: stamp})
    if found is None:
        draft.put(RowOperation(Verb.INSERT, row), Reason.DERIVED, change)
    else:
        draft.put(RowOperation(Verb.REPLACE, row, found.etag), Reason.DERIVED, change)


def check_public(source: EntityType[Any], marker: CopiedFrom | CountOf, key: RowKey) -> None:
    """Refuse to show elsewhere what the resolver of the source has encrypted."""
    encrypt = source.encrypt
    if encrypt is None:
        return
    names = {*marker.where, *([marker.field] if isinstance(marker, CopiedFrom) else [])}
    for name in sorted(names):
        field = source.fields[name]
        if not field.is_key and encrypt(key.partition, key.row, field.property):
            raise DefinitionError(
                "DerivedRefused",
                f"{source.name}.{name} is encrypted: what is derived from it would show it.",
                facts={"type": source.name, "field": name},
                hint="Derive from another field, or let the resolver leave this one out.",
            )


def source_key(
    source: EntityType[Any], marker: CopiedFrom, owner: Mapping[str, Any]
) -> RowKey | None:
    """Return the entity that a field is copied from; None if the owner names none."""
    values = {
        source_field: owner[owner_field] for source_field, owner_field in marker.where.items()
    }
    return None if any(value is None for value in values.values()) else source.key(values)


def dependents_of(model: EntityType[Any], name: str) -> Iterator[Dependent]:
    """Yield how the source of a derived field sees it, for the type and those below it."""
    for each in model.family():
        field = each.fields.get(name)
        if field is not None and field.derived is not None:
            source = each.source_of(field)
            yield from (
                one for one in source.dependents if one.owner is each and one.field == field
            )


def is_kept_here(model: EntityType[Any], field: Field, version: Version) -> bool:
    """Tell whether the groups of its sources keep a derived field of an owner, not the outbox."""
    source, marker = model.source_of(field), field.derived
    assert marker is not None
    given = {theirs: version.values[ours] for theirs, ours in marker.where.items()}
    if source.table != model.table or not set(model.key_fields) <= set(marker.where.values()):
        return False
    if any(given.get(name) is None for name in source.partition.fields):
        return False
    return source.partition.format(given) == version.key.partition
