"""Fields derived from other entities: copies (`CopiedFrom`), counts, sums and extremes.

If owner and source share a partition, both change in one group. Every such group writes the owner's
row under its etag, so that concurrent changes conflict. While the owner does not exist, a guard row
(`~g_` and the owner's row key) takes its place. Owners elsewhere are updated through the outbox.

If a source is copied into many owners of its partition, they change in the same group if they fit
into it, else through the outbox. An owner that is created at the same time names the field in an
outbox entry of its own, so that the field is derived again.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from partita.errors import DefinitionError
from partita.patterns.fields.markers import (
    CopiedFrom,
    CountOf,
    Derived,
    MaxOf,
    MinOf,
    Summary,
    SumOf,
    field_read,
)
from partita.patterns.keys.key_text import fits
from partita.patterns.planning.columns import Columns, Condition, fields_in
from partita.patterns.planning.filter_text import evaluate_values
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import Dependent, EntityType, Field
from partita.patterns.types.row_layout import HIDDEN_MARK, STAMP, part_key
from partita.patterns.writing.group_draft import Draft, Reason
from partita.patterns.writing.index_rows import Version

GUARD_PREFIX = HIDDEN_MARK + "g_"
GUARD_TYPE = "~guard"

Range = tuple[str, str, str | None]
"""A partition key, and the bounds of row keys in the partition."""


class Watch(msgspec.Struct, frozen=True):
    """A derived field of one owner that a change of its source may affect."""

    dependent: Dependent
    owner_key: RowKey
    row_key: RowKey
    """The row of the owner that holds the field."""


def guard_key(owner: RowKey) -> RowKey:
    row = GUARD_PREFIX + owner.row
    if not fits(row):  # row keys of owners do not begin with the mark
        row = GUARD_PREFIX + HIDDEN_MARK + sha256(owner.row.encode()).hexdigest()
    return RowKey(owner.partition, row)


def owner_values(dependent: Dependent, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the owners that an entity of the source determines."""
    where = dependent.marker.where
    return {owner_field: source[source_field] for source_field, owner_field in where.items()}


def owner_range(dependent: Dependent, source: Mapping[str, Any]) -> Range | None:
    """Return the partition key and the bounds of row keys of all possible owners of a source.

    None: there are none, because the source does not determine their partition.
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
    """Return the key of the only possible owner of a source; None if there may be many."""
    known = owner_values(dependent, source)
    keys = {name for name, field in dependent.owner.fields.items() if field.is_key}
    if not keys <= set(known) or any(known[name] is None for name in keys):
        return None
    return dependent.owner.key(known)


def watches(
    model: EntityType[Any], table: str, before: Version | None, after: Version | None
) -> Iterator[Watch]:
    """Yield the derived fields of single owners in the same partition that a change may affect."""
    for dependent in model.followers.dependents:
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
    """Yield the ranges of the same partition with owners whose copies a change may affect."""
    for dependent in model.followers.dependents:
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
    """Return whether owners must be updated through the outbox."""
    if dependent.owner.table != table:
        return True
    key = find_owner(dependent, version.values)
    return key is None or key.partition != version.key.partition


def is_touched(dependent: Dependent, before: Version | None, after: Version | None) -> bool:
    """Return whether a change of a source can change a field derived from it."""
    if before is None or after is None:
        return True
    names = fields_needed(dependent)
    return any(before.values[name] != after.values[name] for name in names)


def fields_needed(dependent: Dependent) -> set[str]:
    """Return the fields of the source whose change can change the derived field."""
    marker = dependent.marker
    names = set(marker.where)
    if (read := field_read(marker)) is not None:
        names.add(read)
    condition = condition_of(dependent)
    if condition is not None:
        names |= {field.name for field in fields_in(condition)}
    return names


def condition_of(dependent: Dependent) -> Condition | None:
    """Return the condition on the source of a summary."""
    if isinstance(dependent.marker, CopiedFrom):
        return None
    return condition_on(dependent.owner.source_of(dependent.field), dependent.marker)


def condition_on(source: EntityType[Any], marker: Summary) -> Condition | None:
    if marker.when is None:
        return None
    condition = marker.when(Columns(source))
    if isinstance(condition, Condition):
        return condition
    raise DefinitionError(
        "DerivedRefused",
        f"when= of a field that is derived from {source.name} does not return a condition.",
        facts={"type": source.name},
        hint='Compare a column: when=lambda order: order.status == "open".',
    )


def matches(dependent: Dependent, owner: Mapping[str, Any], source: Version | None) -> bool:
    """Return whether a source belongs to an owner."""
    if source is None or any(
        owner[owner_field] != source.values[source_field]
        for source_field, owner_field in dependent.marker.where.items()
    ):
        return False
    condition = condition_of(dependent)
    return condition is None or evaluate_values(condition, source.values)


def derive(
    watch: Watch,
    owner: Mapping[str, Any],
    current: Value | None,
    before: Version | None,
    after: Version | None,
) -> Value | None:
    """Return the new stored value of the derived field. Pure."""
    dependent = watch.dependent
    was, now = matches(dependent, owner, before), matches(dependent, owner, after)
    codec = dependent.field.codec
    if isinstance(dependent.marker, CountOf):
        count = current if isinstance(current, int) else 0
        return codec.encode(count + int(now) - int(was))
    if isinstance(dependent.marker, CopiedFrom):
        if now:
            assert after is not None
            return codec.encode(after.values[dependent.marker.field])
        return None if was else current
    old, new = _value_in(dependent, before, is_in=was), _value_in(dependent, after, is_in=now)
    known = codec.decode(current)
    if isinstance(dependent.marker, SumOf):
        return codec.encode(added(known, new, old))
    return codec.encode(extreme(dependent.marker, [known, new]))


def added(total: Any, new: Any, old: Any = None) -> Any:
    """Return a sum after one of its values changed; None counts as nothing."""
    if new is not None:
        total = total + new
    return total if old is None else total - old


def extreme(marker: MinOf | MaxOf, values: Iterable[Any]) -> Any:
    """Return the least or greatest value that is not None, or None."""
    present = [value for value in values if value is not None]
    choose = min if isinstance(marker, MinOf) else max
    return choose(present, default=None)


def _value_in(dependent: Dependent, version: Version | None, *, is_in: bool) -> Any:
    name = field_read(dependent.marker)
    return version.values[name] if is_in and version is not None and name is not None else None


def needs_sources(
    watch: Watch,
    owner: Mapping[str, Any],
    current: Value | None,
    before: Version | None,
    after: Version | None,
) -> bool:
    """Return whether the greatest or least source was removed, so that the others decide."""
    dependent, marker = watch.dependent, watch.dependent.marker
    if not isinstance(marker, MinOf | MaxOf):
        return False
    was, now = matches(dependent, owner, before), matches(dependent, owner, after)
    old, new = _value_in(dependent, before, is_in=was), _value_in(dependent, after, is_in=now)
    known = dependent.field.codec.decode(current)
    return old is not None and old == known and extreme(marker, [known, new]) != new


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
    """Make this group conflict with every other group that creates the owner or finds it absent."""
    key = guard_key(owner)
    if draft.find(key) is not None:
        return
    row = Row(key, {"EntityType": GUARD_TYPE, STAMP: stamp})
    if found is None:
        draft.put(RowOperation(Verb.INSERT, row), Reason.DERIVED, change)
    else:
        draft.put(RowOperation(Verb.REPLACE, row, found.etag), Reason.DERIVED, change)


def check_public(source: EntityType[Any], marker: Derived, key: RowKey) -> None:
    """Refuse to derive a field from one that the resolver of the source encrypts."""
    encrypt = source.encrypt
    if encrypt is None:
        return
    names = {*marker.where, *filter(None, [field_read(marker)])}
    for name in sorted(names):
        field = source.fields[name]
        if not field.is_key and encrypt(key.partition, key.row, field.property):
            raise DefinitionError(
                "DerivedRefused",
                f"{source.name}.{name} is encrypted; a field derived from it would reveal it.",
                facts={"type": source.name, "field": name},
                hint="Derive from another field, or exclude this one in the resolver.",
            )


def source_key(
    source: EntityType[Any], marker: CopiedFrom, owner: Mapping[str, Any]
) -> RowKey | None:
    """Return the key of the source of a copied field; None if the owner does not name one."""
    values = {
        source_field: owner[owner_field] for source_field, owner_field in marker.where.items()
    }
    return None if any(value is None for value in values.values()) else source.key(values)


def dependents_of(model: EntityType[Any], name: str) -> Iterator[Dependent]:
    """Yield the dependents of the source of a derived field, for the type and its derived types."""
    for each in model.family():
        field = each.fields.get(name)
        if field is not None and field.derived is not None:
            source = each.source_of(field)
            yield from (
                one for one in source.dependents if one.owner is each and one.field == field
            )


def is_kept_here(model: EntityType[Any], field: Field, version: Version) -> bool:
    """Return whether a derived field is updated in the groups of its sources, not by the outbox."""
    source, marker = model.source_of(field), field.derived
    assert marker is not None
    given = {theirs: version.values[ours] for theirs, ours in marker.where.items()}
    if source.table != model.table or not set(model.key_fields) <= set(marker.where.values()):
        return False
    if any(given.get(name) is None for name in source.partition.fields):
        return False
    return source.partition.format(given) == version.key.partition
