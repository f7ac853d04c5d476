"""The verbs on single entities, as steps: save, patch, upsert, delete, update, increment, move.

Every write is conditional on what was read, unless the caller passes `force`. A conflict on the
caller's own entity is raised; `update` retries it by calling a pure function again.
"""

import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar, get_args

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    StoreBusyError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.load_state import are_same, snapshot
from partita.patterns.fields.naming import did_you_mean
from partita.patterns.following.moving import (
    complete_move_of,
    finish_move,
    load_unmoving,
    start_move,
    unmarked,
)
from partita.patterns.planning.columns import find_field
from partita.patterns.protocol.calls import (
    GetRow,
    Invoke,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import EntityType, Field, Origin, entity_type
from partita.patterns.types.projections import refuse_partial
from partita.patterns.types.row_layout import (
    VERSION,
    WRITE,
    part_key,
)
from partita.patterns.writing.claims import is_claimed_elsewhere
from partita.patterns.writing.context import Context
from partita.patterns.writing.derived_fields import fields_needed
from partita.patterns.writing.load import find, find_any, locate
from partita.patterns.writing.merges import Merge, apply_merge, can_stand_alone, values_to_merge
from partita.patterns.writing.outbox_entry import entry_removal
from partita.patterns.writing.rows import (
    Stored,
    encode_slot,
    find_note,
    is_noted,
    narrower_types,
    note_write,
    slot_name,
    with_types,
)
from partita.patterns.writing.write import (
    Change,
    Written,
    too_many_conflicts,
    wait_before,
    write,
    write_in_doubt,
)

T = TypeVar("T")

_NUMBERS = (int, float, Decimal, timedelta)


def check_entity(model: EntityType[T], entity: T) -> EntityType[T]:
    """Return the actual type of an entity that is to be written to a table."""
    if not isinstance(entity, model.cls):
        refuse_partial(entity)
        raise UsageError(
            "TypeMismatch",
            f"An object of type {type(entity).__name__} was passed to the table of {model.name}.",
            facts={"type": model.name},
            hint="Use db.table() with the class of the object.",
        )
    own = entity_type(type(entity))
    if own.is_abstract:
        raise UsageError(
            "AbstractEntity",
            f"{own.name} is abstract: only types derived from it can be stored.",
            facts={"type": own.name},
        )
    return own.in_table(model.table)


def check_newest_first(model: EntityType[Any]) -> None:
    """Refuse a log tail of a type whose row key does not sort the newest first."""
    first = next(model.row.parts(), None)
    if first is None or not first.is_descending:
        raise UsageError(
            "NotALogTail",
            f"The row key of {model.name} does not sort the newest entities first.",
            facts={"type": model.name, "row": model.row.text},
            hint='Begin the row key with a descending part: row="{at:desc}_...". For the first '
            "entities in key order use all().limit(n).",
        )


def key_of(model: EntityType[Any], given: Mapping[str, Any]) -> RowKey:
    """Return the key for the given fields, which must be exactly the key fields."""
    missing = [name for name in model.key_fields if name not in given]
    unknown = [name for name in given if name not in model.key_fields]
    if missing or unknown:
        wrong = f"{unknown[0]!r} is not one of them" if unknown else f"{missing[0]!r} is missing"
        raise UsageError(
            "KeyFields",
            f"The key fields of {model.name} are {', '.join(model.key_fields)}; {wrong}.",
            facts={"type": model.name},
            hint="Pass every key field by name; for more than one entity use "
            "partition(...).range(...) or where(...)."
            f"{did_you_mean(unknown[0], missing or model.fields) if unknown else ''}",
        )
    return model.key(given)


def absent(model: EntityType[Any], key: RowKey) -> EntityNotFoundError:
    facts = {"table": model.table, **key.facts}
    return EntityNotFoundError("ResourceNotFound", f"The {model.name} does not exist.", facts=facts)


def not_loaded(model: EntityType[Any], hint: str) -> UsageError:
    message = f"This {model.name} was neither loaded nor saved."
    return UsageError("NotLoaded", message, hint=hint)


def get(context: Context, model: EntityType[T], given: Mapping[str, Any]) -> Steps[T]:
    key = key_of(model, given)
    entity = yield from find_any(context, model, key)
    if entity is None:
        raise absent(model, key)
    return entity


# ---------------------------------------------------------------------------------------------
# Save, patch, upsert


def change_of(model: EntityType[Any], entity: Any) -> Change:
    """Return the change of a save: insert a new entity, replace a loaded one."""
    own = check_entity(model, entity)
    values, origin = own.values(entity), own.origin(entity)
    if origin is not None and (key := own.key(values)) != origin.key:
        raise UsageError(
            "KeyChanged",
            f"A key field of this {own.name} was changed after it was loaded.",
            facts={"from": origin.key.row, "to": key.row, "partition_key": key.partition},
            hint="Use move(entity, ...) to change its keys, or a new object for a new entity.",
        )
    return Change(own, origin, values, entity)


def remember(entity: T, written: Written) -> T:
    """Set the origin of a written object; return a new object if fields changed on the way.

    These are derived fields, and large values that were copied from another entity.
    """
    model = entity_type(type(entity))
    model.set_origin(entity, written.origin)
    differing = {
        field.name: written.values[field.name]
        for field, _ in model.derived_fields
        if field.name in written.values
    }
    if written.origin is not None:
        known = written.origin.values
        differing |= {name: known[name] for name in model.lazy_fields if name in known}
    if not differing:
        return entity
    now = model.values(entity)
    if all(now[name] == value for name, value in differing.items()):
        return entity
    changed = model.rebuild(entity, snapshot(differing))
    model.set_origin(changed, written.origin)
    return changed


def save(context: Context, model: EntityType[T], entity: T, *, force: bool = False) -> Steps[T]:
    """Insert a new entity, or replace a loaded one that is unchanged in storage."""
    if force:
        return (yield from upsert(context, model, entity))
    change = change_of(model, entity)
    yield from find_etag(context, change)
    [written] = yield from write(context, [change])
    return remember(entity, written)


def find_etag(context: Context, change: Change) -> Steps[None]:
    """Find the etag of an entity that was read from a copy, if the copy is still current.

    A move that the entity is part of is completed first.
    """
    origin = change.before
    if origin is None:
        return
    if origin.etags:
        # A move in progress leaves marks in properties that the type does not know.
        if origin.extra and (yield from complete_move_of(context, change.model, origin)):
            raise _not_as_loaded(change, "was being moved when it was loaded")
        return
    stored = yield from load_unmoving(context, change.model, origin.key)
    if stored is None or not all(
        are_same(stored.values[name], value) for name, value in origin.values.items()
    ):
        raise _not_as_loaded(
            change, "was read from an index or merged, and differs from the stored entity"
        )
    change.before = stored.origin


def _not_as_loaded(change: Change, reason: str) -> ETagMismatchError:
    error = ETagMismatchError(
        "UpdateConditionNotSatisfied",
        f"This {change.model.name} {reason}.",
        facts=change.key.facts,
        hint="Load it by its keys and apply the change again.",
    )
    error.entity = change.entity
    return error


def upsert(context: Context, model: EntityType[T], entity: T, *, merge: Merge = False) -> Steps[T]:
    """Write an entity without a condition; with `merge` only the fields that the caller set."""
    own = check_entity(model, entity)
    is_there: bool | None = True
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        change = yield from upsert_of(context, model, entity, merge=merge, is_there=is_there)
        try:
            [written] = yield from write(context, [change])
        except (EntityExistsError, EntityNotFoundError, ETagMismatchError) as error:
            if change.is_blind and not change.must_exist:
                raise
            # Another writer changed it after the read, or there is nothing to merge with.
            is_there = not isinstance(error, EntityNotFoundError)
            continue
        return remember(entity, written)
    raise busy(own, own.key(own.values(entity)), context.options.attempts_max)


def upsert_of(
    context: Context,
    model: EntityType[Any],
    entity: Any,
    *,
    merge: Merge,
    is_there: bool | None = None,
) -> Steps[Change]:
    """Return the change of an upsert, based on the stored entity if the type has followers.

    `is_there` says whether a merge may assume that the entity exists; None: read it.
    """
    own = check_entity(model, entity)
    if merge is not False:
        return (yield from _merge_of(context, own, entity, merge, is_there=is_there))
    values, origin = own.values(entity), own.origin(entity)
    change = Change(own, None, values, entity)
    if origin is not None:
        change.extra, change.sealed = unmarked(origin.extra), origin.sealed
        change.number_types = origin.number_types
    if can_be_replaced_unread(own):
        change.is_blind = True
        return change
    stored = yield from load_own(context, own, change.key)
    if stored is not None:
        change.before = stored.origin
        change.before.extra = change.extra
    return change


def _merge_of(
    context: Context, own: EntityType[Any], entity: Any, merge: Merge, *, is_there: bool | None
) -> Steps[Change]:
    values, origin = own.values(entity), own.origin(entity)
    change = Change(own, None, values, entity)
    if origin is not None and origin.key != change.key:
        origin = None
    if origin is not None:
        change.number_types = origin.number_types
    written = values_to_merge(own, entity, origin, merge)
    if can_merge_unread(own, written, origin):
        stands_alone = can_stand_alone(own, entity, written)
        if stands_alone or is_there:
            change.is_merge, change.is_blind, change.given = True, True, written
            change.must_exist = not stands_alone
            return change
    stored = yield from load_own(context, own, change.key)
    if stored is not None:
        after = apply_merge(own, stored.values, written)
        return Change(own, stored.origin, after, entity, is_merge=True, given=written)
    if origin is not None:
        change.extra, change.sealed = unmarked(origin.extra), origin.sealed
    return change


def load_own(context: Context, own: EntityType[Any], key: RowKey) -> Steps[Stored | None]:
    stored = yield from load_unmoving(context, own, key)
    if stored is not None and stored.model is not own:
        raise _other_type_stored(own, stored.model, key)
    return stored


def can_merge_unread(
    model: EntityType[Any], written: Mapping[str, Any], origin: Origin | None
) -> bool:
    """Return whether one merge request has the right effect for any stored entity.

    A merge cannot remove a property, seal some of the sealed properties, or upcast an entity.
    """
    is_sealed = bool(model.sealed_properties or model.encrypt or (origin and origin.sealed))
    return (
        can_be_replaced_unread(model)
        and model.version == 1
        and not is_sealed
        and not any(value is None for value in written.values())
    )


def can_be_replaced_unread(model: EntityType[Any]) -> bool:
    """Return whether an entity can be replaced or deleted without reading it.

    Types of one family may share keys: the stored entity may be of another type of the family.
    """
    *_, root = model.lineage()
    return all(each.followers.is_plain for each in root.family())


def _other_type_stored(model: EntityType[Any], stored: EntityType[Any], key: RowKey) -> UsageError:
    return UsageError(
        "TypeMismatch",
        f"A {stored.name} has the keys of this {model.name}.",
        facts={"type": model.name, **key.facts},
        hint="Delete it first: the two types have different followers.",
    )


def patch(
    context: Context,
    model: EntityType[T],
    entity: T,
    changes: Mapping[str, Any],
    *,
    force: bool = False,
) -> Steps[T]:
    """Change some fields of a loaded entity, and send only these."""
    own = check_entity(model, entity)
    change = patch_of(own, entity, changes)
    if force:
        return (yield from update(context, own, change.key, lambda now: _evolved(now, changes)))
    yield from find_etag(context, change)
    [written] = yield from write(context, [change])
    changed: T = remember(change.entity, written)  # type: ignore[assignment]
    return changed


def patch_of(model: EntityType[Any], entity: Any, changes: Mapping[str, Any]) -> Change:
    """Return the change of a patch, with a new object that has the changes."""
    own = check_entity(model, entity)
    if own.origin(entity) is None:
        raise not_loaded(
            own,
            "Load it first, or write some fields without a condition: "
            'upsert(entity, merge=["text", "stars"]).',
        )
    for name in changes:
        if find_field(own, name).is_encrypted:
            raise UsageError(
                "EncryptedMerge",
                f"{name!r} is encrypted; the encrypted fields of an entity are written together.",
                hint="Use save(evolve(entity, ...)).",
            )
    change = change_of(model, _evolved(entity, changes))
    change.is_merge = True
    return change


def _evolved(entity: T, changes: Mapping[str, Any]) -> T:
    own = entity_type(type(entity))
    changed = own.rebuild(entity, changes)
    own.set_origin(changed, own.origin(entity))
    return changed


def update(
    context: Context, model: EntityType[T], key: RowKey, function: Callable[[T], T]
) -> Steps[T]:
    """Read, call a pure function, write; repeat if the entity changed in between."""
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        entity = yield from find(context, model, key)
        if entity is None:
            raise absent(model, key)
        decided: T | None = yield from ask(Invoke(function, (entity,)))
        if decided is None:
            raise UsageError(
                "NothingDecided",
                "The function passed to update() returned None.",
                hint="Return the changed entity: update(lambda e: evolve(e, ...), ...).",
            )
        own = check_entity(model, decided)
        if decided is not entity and own.values(decided) == own.values(entity):
            return entity
        own.set_origin(decided, own.origin(entity))
        try:
            return (yield from save(context, model, decided))
        except (EntityNotFoundError, ETagMismatchError):
            continue  # because it changed: call the function with the current entity
    raise busy(model, key, context.options.attempts_max)


def update_by(
    context: Context, model: EntityType[T], given: Mapping[str, Any], function: Callable[[T], T]
) -> Steps[T]:
    """Update the entity that has these key fields."""
    key = yield from locate(model, key_of(model, given))
    return (yield from update(context, model, key, function))


def busy(model: EntityType[Any], key: RowKey, attempts: int) -> StoreBusyError:
    return too_many_conflicts(
        f"The write of this {model.name} conflicted with other writers {attempts} times.",
        facts=key.facts,
        hint="Try later, or spread frequent writes over several entities.",
    )


# ---------------------------------------------------------------------------------------------
# Delete


def delete(
    context: Context, model: EntityType[Any], entity: Any, *, force: bool = False
) -> Steps[None]:
    """Delete a loaded entity that is unchanged in storage."""
    own = check_entity(model, entity)
    origin = own.origin(entity)
    if force or origin is None:
        key = own.key(own.values(entity)) if origin is None else origin.key
        if origin is None and not force:
            raise not_loaded(own, "Load it first, or delete it by key: delete_if_exists(...).")
        yield from delete_key(context, own, key)
        own.set_origin(entity, None)
        return
    change = Change(own, origin, None, entity)
    yield from find_etag(context, change)
    yield from write(context, [change])
    own.set_origin(entity, None)


def delete_by(context: Context, model: EntityType[Any], given: Mapping[str, Any]) -> Steps[bool]:
    """Delete the entity that has these key fields. False: there is none."""
    key = yield from locate(model, key_of(model, given))
    return (yield from delete_key(context, model, key))


def delete_key(context: Context, model: EntityType[Any], key: RowKey) -> Steps[bool]:
    """Delete the entity with a key. False: there is none."""
    if can_be_replaced_unread(model):
        operation = RowOperation(Verb.DELETE, Row(key, {}))
        try:
            yield from ask(WriteRows(model.table, (operation,)))
        except EntityNotFoundError as error:
            return bool(error.facts.get("answer_lost"))
        return True
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        stored = yield from load_unmoving(context, model, key)
        if stored is None:
            return False
        try:
            yield from write(context, [Change(stored.model, stored.origin, None)])
        except (EntityNotFoundError, ETagMismatchError):
            continue  # because it was changed or deleted: read it again
        return True
    raise busy(model, key, context.options.attempts_max)


# ---------------------------------------------------------------------------------------------
# Increment


class Addition(msgspec.Struct, frozen=True):
    """What an increment adds to: a number, or a slot of a series."""

    field: str
    slot: int | None
    by: Any

    def applied_to(self, entity: T) -> T:
        """Return a changed object that has no origin of its own."""
        value, slot = getattr(entity, self.field), self.slot
        if slot is None:
            after = self.by if value is None else value + self.by
        else:
            after = {**value, slot: value[slot] + self.by if slot in value else self.by}
        return entity_type(type(entity)).rebuild(entity, {self.field: after})

    def value_in(self, entity: Any) -> Any:
        value = getattr(entity, self.field)
        return value if self.slot is None else value[self.slot]


def increment(
    context: Context,
    model: EntityType[Any],
    entity: Any,
    addition: Addition,
    *,
    create: bool = False,
) -> Steps[Any]:
    """Add to one number by merging one property; return the sum.

    With `create`, an entity that does not exist is inserted: the object, with the sum.
    """
    while True:
        try:
            return (yield from _increment(context, model, entity, addition))
        except EntityNotFoundError:
            if not create:
                raise
        changed = addition.applied_to(entity)
        with contextlib.suppress(EntityExistsError):  # another writer inserted it: add to it
            yield from save(context, model, changed)
            return addition.value_in(changed)


def _increment(
    context: Context, model: EntityType[Any], entity: Any, addition: Addition
) -> Steps[Any]:
    own = check_entity(model, entity)
    slot = addition.slot
    field = _numeric_field(own, addition.field, slot)
    origin = own.origin(entity)
    key = own.key(own.values(entity)) if origin is None else origin.key
    property_name = field.property if slot is None else slot_name(field, slot)
    if _can_be_merged_alone(context, own, field) and (
        yield from _has_current_version(own, key, property_name)
    ):
        added = yield from _merge_sum(context, own, key, property_name, field, addition.by)
        if added is not None:
            return added
    changed = yield from update(context, own, key, addition.applied_to)
    return addition.value_in(changed)


def _has_current_version(model: EntityType[Any], key: RowKey, name: str) -> Steps[bool]:
    """Return whether an entity has the current version, if the row to merge does not have it."""
    if not model.upcasters or model.layout.places.get(name, 0) == 0:
        return True
    first = yield from ask(GetRow(model.table, key, (VERSION,)))
    return first is not None and first.properties.get(VERSION, 1) == model.version


def _merge_sum(
    context: Context,
    model: EntityType[Any],
    entity_key: RowKey,
    name: str,
    field: Field,
    by: Any,
) -> Steps[Any]:
    """Add by a merge; None if the row does not exist or has an older version."""
    place = model.layout.places.get(name, 0)
    key = part_key(entity_key, place)
    write_id = context.clock.random_bytes(8).hex()
    noted = ""
    lost: UnavailableError | None = None
    in_doubt: ConflictError | None = None
    for attempt in range(context.options.attempts_max):
        if lost is None:
            yield from wait_before(context, attempt)
        row = yield from ask(GetRow(model.table, key, (name, WRITE, VERSION)))
        if row is not None and is_noted(write_id, row.properties.get(WRITE)):
            return field.codec.decode(row.properties[name])  # only the answer was lost
        if lost is not None:
            raise lost
        if row is None or (place == 0 and row.properties.get(VERSION, 1) != model.version):
            return None
        if in_doubt is not None and _is_in_doubt(noted, row.properties.get(WRITE)):
            raise write_in_doubt(model.table, key) from in_doubt
        current = row.properties.get(name)
        if current is None and (yield from _is_elsewhere(model, entity_key, name)):
            return None
        if current is None and field.default is not None and field.series is None:
            current = field.codec.encode(field.default())
        value = by if current is None else field.codec.decode(current) + by
        added: dict[str, Value] = {name: encode_slot(field, value)}
        properties = with_types(added, narrower_types(model, row.properties))
        if not model.is_single_row:
            noted = properties[WRITE] = note_write(write_id, row.properties)
        operation = RowOperation(Verb.MERGE, Row(key, properties), row.etag)
        try:
            yield from ask(WriteRows(model.table, (operation,)))
        except (EntityNotFoundError, ETagMismatchError) as error:
            in_doubt = error if error.facts.get("answer_lost") else None
            continue  # because another writer changed the number
        except ThrottledError:
            raise
        except UnavailableError as error:
            lost = error
            continue
        return value
    raise busy(model, key, context.options.attempts_max)


def _is_in_doubt(noted: str, now: object) -> bool:
    """Return whether a row cannot show that a write was applied."""
    return not noted or find_note(noted, now) is None


def _is_elsewhere(model: EntityType[Any], key: RowKey, name: str) -> Steps[bool]:
    """Return whether a property is in the row where an older layout of the type had it."""
    own = model.layout.places.get(name, 0)
    for place in range(model.layout.rows):
        if place != own:
            row = yield from ask(GetRow(model.table, part_key(key, place), (name,)))
            if row is not None and name in row.properties:
                return True
    return False


def _numeric_field(model: EntityType[Any], name: str, slot: int | None) -> Field:
    field = model.fields.get(name)
    if field is None or field.is_key or field.derived is not None or not _is_number(field):
        raise UsageError(
            "NotANumber",
            f"{model.name}.{name} is not a number that can be incremented.",
            hint="Pass the name of a numeric field that is neither part of the keys nor derived.",
        )
    if (field.series is not None) != (slot is not None):
        raise UsageError(
            "SlotMissing" if slot is None else "NotASeries",
            f"{model.name}.{name} is {'a series' if slot is None else 'not a series'}.",
            hint='Use increment(entity, "series", slot) or increment(entity, "field").',
        )
    return field


def _is_number(field: Field) -> bool:
    held = get_args(field.annotation)[1] if field.series is not None else field.annotation
    return all(
        isinstance(kind, type) and issubclass(kind, _NUMBERS) and not issubclass(kind, bool | Enum)
        for kind in map(plain, union_members(plain(held)))
    )


def _can_be_merged_alone(context: Context, model: EntityType[Any], field: Field) -> bool:
    """Return whether a merge of this field alone affects no follower and no sealed property."""
    if field.is_in_blob or field.is_encrypted or model.encrypt is not None:
        return False
    if model.followers.views:
        return False
    return not (
        any(field.name in index.needed_fields for index in context.live_indexes(model))
        or any(field.name in fields_needed(each) for each in model.followers.dependents)
    )


# ---------------------------------------------------------------------------------------------
# Move


def _is_as_stored(model: EntityType[T], entity: T, origin: Origin) -> bool:
    """Return whether an object has no unsaved changes; large values are not compared."""
    values = model.values(entity)
    return all(
        are_same(values[field.name], origin.values.get(field.name))
        for field in model.fields.values()
        if not field.is_in_blob and field.name in origin.values
    )


def move(context: Context, model: EntityType[T], entity: T, changes: Mapping[str, Any]) -> Steps[T]:
    """Change the keys of a loaded entity; between partitions through the outbox."""
    own = check_entity(model, entity)
    origin = own.origin(entity)
    if origin is None:
        raise not_loaded(own, "Load it first.")
    for name in changes:
        find_field(own, name)
    moved = own.rebuild(entity, changes)
    target = own.key(own.values(moved))
    if target == origin.key:
        raise UsageError(
            "KeyUnchanged",
            "The move does not change the keys.",
            hint="Use save(evolve(entity, ...)) to change other fields.",
        )
    claimed = next(filter(is_claimed_elsewhere, context.live_indexes(own)), None)
    if claimed is not None:
        raise UsageError(
            "UniqueMove",
            f"A {own.name} cannot be moved: its value in the unique index {claimed.name!r} would "
            "be free for a moment.",
            facts={"type": own.name, "index": claimed.name},
            hint="Delete it, and save a new object with the other keys.",
        )
    leaving = Change(own, origin, None, entity)
    yield from find_etag(context, leaving)
    if target.partition == origin.key.partition:
        arriving = Change(own, None, own.values(moved), moved)
        source = origin if leaving.before is None else leaving.before
        arriving.extra, arriving.sealed = unmarked(source.extra), source.sealed
        arriving.number_types = source.number_types
        written = yield from write(context, [leaving, arriving])
        return remember(moved, written[1])
    if set(changes) - set(own.key_fields) or not _is_as_stored(own, entity, origin):
        raise UsageError(
            "MoveChangesFields",
            "A move to another partition can change key fields only.",
            hint="Move the stored entity, then save the other changes.",
        )
    assert leaving.before is not None
    try:
        reference, intent = yield from start_move(context, own, leaving.before, target)
        yield from finish_move(context, intent, reference)
    except ConflictError as error:
        error.entity = entity
        raise
    yield from entry_removal(reference)
    context.forget(reference)
    arrived = yield from find(context, own, target)
    if arrived is None:
        raise absent(own, target)
    return arrived
