"""The only write path: one or many changes of one partition, written as one group.

0. Reserve values that are unique across partitions (claims.py).
1. Write large values to blobs, before an entity refers to them.
2. Read what the group depends on: owners of counters, index rows that may be missing.
3. Collect every row in a draft: entity, index rows, counters, outbox entry.
4. Send the group. It is atomic.
5. Report a refusal to the caller, or retry: a conflict on a row of the library is retried.
6. Send a hint to the workers. A lost hint only causes a delay, because a sweep finds the entry.

The six steps share their state and have no other caller, so they are the sections of one file.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    PartitaError,
    QueueNotFoundError,
    StoreBusyError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.load_state import snapshot
from partita.patterns.fields.markers import CopiedFrom, MaxOf, MinOf
from partita.patterns.protocol.calls import (
    CreateQueue,
    GetRow,
    PutBlob,
    PutMessage,
    RowOperation,
    Sleep,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.blob_values import (
    blob_metadata,
    folder_of,
    reference_to,
    to_content,
)
from partita.patterns.types.decorators import Dependent, EntityType, Field, Origin
from partita.patterns.types.indexes import AnyIndex, ListIndex, Storage
from partita.patterns.types.row_layout import (
    GENERATION,
    PARTS,
    STATE,
    VERSION,
    WRITE,
    part_key,
    state_key,
)
from partita.patterns.writing import derived_fields, index_rows, outbox_entry
from partita.patterns.writing.chunks import Download, Upload, put_blob
from partita.patterns.writing.claims import Claim, claims_of, release, reserve, unique_violation
from partita.patterns.writing.context import Context, IndexState, OutboxReference
from partita.patterns.writing.group_draft import Draft, PlannedOperation, Reason
from partita.patterns.writing.index_rows import Version
from partita.patterns.writing.load import (
    find_rows,
    load,
    query_between,
    summarise,
    values_of_sources,
)
from partita.patterns.writing.rows import (
    SYSTEM,
    encode,
    encode_field,
    find_note,
    is_noted,
    narrower_types,
    note_write,
    peek,
    split_rows,
    to_rows,
    type_of,
    with_types,
)

OWNERS_LOOKED_MAX = 1_000
"""The most entities of a partition that are read to find the owners of a copied field."""
ENTRY_OPERATIONS = 2
"""Operations of a group that are reserved for the outbox entry."""
ENTRY_BYTES = 65_536
"""Bytes of a group that are reserved around the outbox entry."""
BACKOFF_SECONDS = 0.005
BACKOFF_SECONDS_MAX = 0.5


class Change(msgspec.Struct):
    """One entity `before` (None: it must not exist) and `after` (None: it is deleted) a change."""

    model: EntityType[Any]
    before: Origin | None
    after: dict[str, Any] | None
    entity: object = None
    """The caller's object, for error reports."""
    is_merge: bool = False
    """Send only the changed properties, where a merge has the same effect."""
    given: dict[str, Any] | None = None
    """The fields that the caller set, if the others say nothing about the stored entity."""
    is_blind: bool = False
    """Write without a condition; only for types without followers."""
    must_exist: bool = False
    """Whether a blind merge requires a stored entity, because its fields do not make a whole
    one."""
    if_match: str = "*"
    """The etag that a blind merge requires."""
    uploaded: LargeValue | None = None
    """A large value that was written for this change, and that no entity refers to yet."""
    reindexed: AnyIndex | None = None
    """An index whose row for the entity must be written in any case."""
    extra: dict[str, Value] = {}
    """Properties that are not fields of the type, written in addition to the stored ones."""
    sealed: frozenset[str] = frozenset()
    """The names in `extra` that were sealed when they were read."""
    number_types: dict[str, str] = {}
    """Number types to keep in addition to the stored ones (see `rows.narrower_types`)."""
    derived: dict[str, Any] = {}
    """Values of derived fields that the caller already looked up."""

    key: RowKey = RowKey("", "")
    """The key of the entity, computed from `before` or `after`."""

    def __post_init__(self) -> None:
        if self.before is not None:
            self.key = self.before.key
        else:
            assert self.after is not None
            self.key = self.model.key(self.after)


class Written(msgspec.Struct):
    """The outcome of a change: the stored values, and the new origin of the object."""

    values: dict[str, Any]
    origin: Origin | None
    etag: str = ""
    """The new etag of the first row; empty after a delete or a lost answer."""


class _Prepared(msgspec.Struct):
    """A change with everything that can be computed before the group is composed."""

    change: Change
    number: int
    references: dict[str, LargeValue | None]
    values: dict[str, Any] = {}
    before: Version | None = None
    after: Version | None = None
    properties: dict[str, Value] = {}
    written: list[Row] = []
    reached: set[tuple[str, str, str, str | None]] = set()
    """Derived fields and ranges of owners that this group updates."""


def write(
    context: Context,
    changes: Sequence[Change],
    *,
    started: Sequence[outbox_entry.Step] = (),
    beside: Sequence[RowOperation] = (),
) -> Steps[list[Written]]:
    """Apply changes of one partition of one table atomically.

    `beside` are operations on outbox entries of the same partition, written in the same group.
    """
    yield from _refresh_disabled_indexes(context, changes)
    is_indexed = any(change.model.followers.indexes for change in changes)
    claims = claims_of(context, changes) if is_indexed else []
    try:
        return (yield from _write(context, changes, claims, started=started, beside=beside))
    except UnavailableError:
        raise  # a claim is left: the write may have been performed
    except PartitaError:
        if claims:
            yield from release(context, claims)
        raise


def _write(
    context: Context,
    changes: Sequence[Change],
    claims: Sequence[Claim],
    *,
    started: Sequence[outbox_entry.Step],
    beside: Sequence[RowOperation],
) -> Steps[list[Written]]:
    table = changes[0].model.table
    write_id = context.clock.random_bytes(8).hex()
    prepared: list[_Prepared] = []
    for number, change in enumerate(changes):
        _check_period(context, change)
        references = yield from _put_blobs(change, write_id)
        prepared.append(_Prepared(change, number, references))
    is_careful = False
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        entry_key = None
        if claims:
            entry_key = outbox_entry.new_key(changes[0].key.partition, context.clock)
            yield from reserve(context, claims, entry_key)
        draft, entry = yield from _compose(context, prepared, write_id, is_careful=is_careful)
        reference = _put_entry(context, draft, entry, started, entry_key)
        for operation in beside:
            draft.put(operation, Reason.OUTBOX, 0)
        if not draft.places:
            return [Written({}, None) for _ in prepared]
        etags: tuple[str, ...] = ()
        try:
            etags = yield from ask(WriteRows(table, draft.operations()))
        except ThrottledError:
            raise
        except UnavailableError:
            # The answer is lost: read the rows to find out whether the group was committed.
            if not (yield from _is_applied(table, draft)):
                raise
        except ConflictError as error:
            is_in_doubt = bool(error.facts.get("answer_lost"))
            is_applied = (yield from _is_applied(table, draft)) if is_in_doubt else False
            if is_applied is None:
                raise write_in_doubt(table, prepared[0].change.key) from error
            if not is_applied:
                is_careful |= yield from _handle_conflict(error, table, draft, prepared)
                continue
        if reference is not None:
            yield from _send_hint(context, reference)
        return _finish(draft, prepared, etags, write_id)
    message = f"The write conflicted with other writers {context.options.attempts_max} times."
    facts = {"table": table, "partition_key": prepared[0].change.key.partition}
    hint = "Try later; spread a counter or index entity that all writers update."
    raise too_many_conflicts(message, facts, hint)


def _check_period(context: Context, change: Change) -> None:
    """Refuse an entity in the table of another period, where no query would find it."""
    model, values = change.model, change.after
    if model.table == model.declaration.table or values is None:
        return
    for each in model.lineage():
        for series, at in context.series.get(each.name, {}).items():
            if at not in values:
                continue  # because a merge by key does not change it
            own = series.table_for(values[at])
            if own != model.table and series.start_of(model.table) is not None:
                raise UsageError(
                    "WrongPeriod",
                    f"The value of {at!r} puts this {model.name} into the table of another period.",
                    facts={"type": model.name, "table": model.table, "wanted": own},
                    hint=f"Save it through db.periods(...), which finds its table. If {at!r} was "
                    "changed, delete the entity from the old table afterwards.",
                )


def _refresh_disabled_indexes(context: Context, changes: Sequence[Change]) -> Steps[None]:
    """Read the state of disabled indexes again: another process may be rebuilding one."""
    indexes = {id(index): index for change in changes for index in change.model.followers.indexes}
    for index in indexes.values():
        if context.state_of(index) is IndexState.DISABLED:
            key = state_key(index.owner.name, index.name)
            row = yield from ask(GetRow(index.owner.table, key, (STATE,)))
            if row is not None:
                state = IndexState(str(row.properties[STATE]))
                context.states[index.owner.name, index.name] = state


# ---------------------------------------------------------------------------------------------
# 1 Blobs


def _put_blobs(change: Change, write_id: str) -> Steps[dict[str, LargeValue | None]]:
    references: dict[str, LargeValue | None] = {}
    if change.after is None:
        return references
    for field in change.model.fields.values():
        if field.blob is None:
            continue
        value = change.after[field.name]
        before = None if change.before is None else change.before.values.get(field.name)
        if isinstance(value, LargeValue):
            if value not in (before, change.uploaded):
                value = yield from _copy_blob(change, field, value, write_id)
            references[field.name] = value
            continue
        content = to_content(field, value)
        if content is None:
            references[field.name] = None
            continue
        if isinstance(before, LargeValue) and before.is_of(content):
            references[field.name] = before
            continue
        table, key = change.model.table, change.key
        _check_blob(change.model, key, field.property)
        reference = references[field.name] = reference_to(
            content,
            folder=folder_of(table, key),
            property_name=field.property,
            container=field.blob.container,
            write_id=write_id,
        )
        metadata = blob_metadata(table, key)
        yield from put_blob(PutBlob(reference.container, reference.name, content, metadata))
    return references


def _copy_blob(change: Change, field: Field, value: LargeValue, write_id: str) -> Steps[LargeValue]:
    """Copy the blob of another entity: each blob belongs to one, which removes it."""
    upload = Upload(change.model.table, change.key, field, write_id)
    download = Download(value)
    while chunk := (yield from download.read()):
        yield from upload.put(chunk)
    return (yield from upload.finish())


def _check_blob(model: EntityType[Any], key: RowKey, name: str) -> None:
    if model.encrypt is not None and model.encrypt(key.partition, key.row, name):
        raise UsageError(
            "EncryptedBlob",
            f"The resolver of {model.name} encrypts {name!r}, which is stored in a blob. Blobs are "
            "not encrypted.",
            facts={"type": model.name, "property": name},
            hint="Exclude it in the resolver, or store the value in the entity.",
        )


# ---------------------------------------------------------------------------------------------
# 2 and 3 The draft


def _compose(
    context: Context, prepared: Sequence[_Prepared], write_id: str, *, is_careful: bool
) -> Steps[tuple[Draft, outbox_entry.Entry]]:
    """Return the rows of a group, including owners of ranges if they fit."""
    table = prepared[0].change.model.table
    draft = Draft(table)
    entry = yield from _fill(
        context, draft, prepared, write_id, is_careful=is_careful, with_many=True
    )
    if not any(each.reached for each in prepared):
        return draft, entry
    # Encoded in JSON, the entry needs at most twice its bytes.
    room = ENTRY_BYTES + 2 * len(msgspec.json.encode(entry))
    if not draft.fits(ENTRY_OPERATIONS, room):
        draft = Draft(table)
        entry = yield from _fill(
            context, draft, prepared, write_id, is_careful=is_careful, with_many=False
        )
    return draft, entry


def _fill(
    context: Context,
    draft: Draft,
    prepared: Sequence[_Prepared],
    write_id: str,
    *,
    is_careful: bool,
    with_many: bool,
) -> Steps[outbox_entry.Entry]:
    """Fill the draft. Without `with_many`, owners of ranges are left to workers."""
    stamp = context.clock.ticks()
    for each in prepared:
        yield from _prepare(context, draft, each, stamp)
    for each in prepared:
        _put_entity(context, draft, each, write_id, stamp)
    if all(each.change.model.followers.is_plain for each in prepared):
        return outbox_entry.Entry()
    kept = {each.change.key: each for each in prepared if each.change.after is not None}
    for each in prepared:
        yield from _put_owners(context, draft, each, kept, stamp, with_many=with_many)
    followed = [*prepared, *_changed_owners(prepared, kept)]
    for each in followed:
        yield from _put_indexes(context, draft, each, is_careful=is_careful)
    touched = [_touched(context, draft.table, each) for each in followed]
    return outbox_entry.Entry(
        [each for each in touched if not each.is_idle],
        followers=outbox_entry.followers_of_changed(context, _written_later(followed, touched)),
    )


def _changed_owners(
    prepared: Sequence[_Prepared], kept: Mapping[RowKey, _Prepared]
) -> Iterator[_Prepared]:
    """Yield owners that the caller does not change and whose derived fields change."""
    own = {id(each) for each in prepared}
    for owner in kept.values():
        assert owner.after is not None
        if id(owner) not in own and owner.before and owner.before.values != owner.after.values:
            yield owner


def _prepare(context: Context, draft: Draft, each: _Prepared, stamp: int) -> Steps[None]:
    """Fill in derived fields, and set the versions before and after the change."""
    change, model = each.change, each.change.model
    before = change.before
    each.before = None
    if before is not None:
        each.before = Version(before.key, before.values, _references(before.values))
    each.after = None
    if change.after is not None:
        # Copy the values: the caller may change a list while the write is in progress.
        own = {name: value for name, value in change.after.items() if name not in each.references}
        each.values = {**change.after, **snapshot(own)}
        if model.derived_fields:
            yield from _set_derived_fields(context, draft, each, stamp)
        each.after = Version(change.key, each.values, each.references, _generation(before, stamp))
        _check_public(context, model, each.after)
        kept = {**change.number_types, **({} if before is None else before.number_types)}
        written = each.values
        if change.is_blind and change.given is not None:
            written = snapshot(change.given)
        encoded = encode(model, written, each.references, kept)
        each.properties = {**change.extra, **encoded}
    elif model.derived_fields:
        yield from _put_guard(draft, change.key, each.number, stamp)


def _check_public(context: Context, model: EntityType[Any], version: Version) -> None:
    if model.encrypt is not None:
        for index in context.live_indexes(model):
            index_rows.check_public(index, version)
        for dependent in model.followers.dependents:
            derived_fields.check_public(model, dependent.marker, version.key)


def _references(values: Mapping[str, Any]) -> dict[str, LargeValue | None]:
    return {name: value for name, value in values.items() if isinstance(value, LargeValue)}


def _generation(before: Origin | None, stamp: int) -> int:
    last = 0 if before is None else before.system.get(GENERATION, 0)
    return max(stamp, int(str(last)) + 1)


def _set_derived_fields(context: Context, draft: Draft, each: _Prepared, stamp: int) -> Steps[None]:
    """Set derived fields from storage or from their sources, whatever the object has."""
    change, before = each.change, each.change.before
    if before is None:
        yield from _put_guard(draft, change.key, each.number, stamp)
    for field, marker in change.model.derived_fields:
        is_known = before is not None and all(
            before.values[name] == each.values[name] for name in marker.where.values()
        )
        if field.name in change.derived:
            each.values[field.name] = change.derived[field.name]
        elif before is not None and is_known:
            each.values[field.name] = before.values[field.name]
        elif isinstance(marker, CopiedFrom):
            source = change.model.source_of(field)
            key = derived_fields.source_key(source, marker, each.values)
            stored = None
            if key is not None:
                derived_fields.check_public(source, marker, key)
                stored = yield from load(context, source, key)
            each.values[field.name] = None if stored is None else stored.values[marker.field]
        else:
            each.values[field.name] = yield from summarise(
                context, change.model.source_of(field), marker, each.values
            )


def _put_guard(draft: Draft, owner: RowKey, number: int, stamp: int) -> Steps[None]:
    key = derived_fields.guard_key(owner)
    yield from _read_rows(draft, [key])
    derived_fields.write_guard(draft, owner, draft.found[key], stamp, number)


def _read_rows(draft: Draft, keys: Sequence[RowKey]) -> Steps[None]:
    """Read rows of the partition, once per attempt."""
    missing = [key for key in dict.fromkeys(keys) if key not in draft.found]
    if missing:
        draft.found.update((yield from find_rows(draft.table, missing)))


def _put_entity(context: Context, draft: Draft, each: _Prepared, write_id: str, stamp: int) -> None:
    change, before, model = each.change, each.change.before, each.change.model
    if change.after is None:
        assert before is not None
        each.written = [
            Row(part_key(before.key, place), {}, etag) for place, etag in enumerate(before.etags)
        ]
        for row in each.written:
            draft.put(RowOperation(Verb.DELETE, row, row.etag), Reason.ENTITY, each.number)
        return
    system: dict[str, Value] = {}
    if not model.followers.is_plain and context.is_followed(model):
        assert each.after is not None
        system[GENERATION] = each.after.generation
    # Foreign tables get no bookkeeping properties.
    if model.type_property is not None and not model.is_single_row:
        system[WRITE] = note_write(write_id, {} if before is None else before.system)
    merged = _merged(change, each, system) if change.is_merge and before else None
    if merged is not None:
        each.written = [merged]
        draft.put(RowOperation(Verb.MERGE, merged, merged.etag), Reason.ENTITY, each.number)
        return
    each.written = to_rows(
        model,
        change.key,
        each.properties,
        before,
        context.sealing,
        stamp=stamp,
        system=system,
        also=change.sealed,
    )
    for row in each.written:
        if change.is_blind:
            operation = RowOperation(_blind_verb(change), row, change.if_match)
        elif row.etag:
            operation = RowOperation(Verb.REPLACE, row, row.etag)
        else:
            operation = RowOperation(Verb.INSERT, row)
        draft.put(operation, Reason.ENTITY, each.number)


def _blind_verb(change: Change) -> Verb:
    if not change.is_merge:
        return Verb.UPSERT_REPLACE
    return Verb.MERGE if change.must_exist else Verb.UPSERT_MERGE


def _merged(change: Change, each: _Prepared, system: Mapping[str, Value]) -> Row | None:
    """Return the row of a merge; None if only a replacement has the right effect."""
    before, model = change.before, change.model
    if before is None or before.version != model.version or model.is_wide or before.parts:
        return None
    if model.encrypt is not None:
        return None  # because the sealed properties of an entity are sealed together
    properties: dict[str, Value] = {}
    for field in model.fields.values():
        if field.is_key or each.values[field.name] == before.values[field.name]:
            continue
        if field.is_encrypted:
            return None
        now = encode_field(field, each.values[field.name], each.references)
        was = encode_field(field, before.values[field.name], _references(before.values))
        if set(was) - set(now):
            return None
        properties.update(now)
    properties = with_types(properties, before.number_types)
    return Row(change.key, {**properties, **system}, before.etags[0])


def _put_indexes(
    context: Context, draft: Draft, each: _Prepared, *, is_careful: bool
) -> Steps[None]:
    for index in context.live_indexes(each.change.model):
        is_forced = each.change.reindexed is index
        is_touched = is_forced or index_rows.is_touched(index, each.before, each.after)
        if not index.is_local or not is_touched:
            continue
        if isinstance(index, ListIndex) and index.storage is Storage.PARTITION:
            yield from _put_member(draft, index, each)
            continue
        if is_careful or is_forced or context.state_of(index) is not IndexState.READABLE:
            keys = (index_rows.key_of(index, each.before), index_rows.key_of(index, each.after))
            yield from _read_rows(draft, [key for key in keys if key is not None])
            operations = index_rows.careful_operations(
                index, each.before, each.after, draft.found, context.sealing
            )
        else:
            operations = index_rows.expected_operations(
                index, each.before, each.after, context.sealing
            )
        reason = Reason.MEMBER if isinstance(index, ListIndex) else Reason.COPY
        for operation in operations:
            planned = draft.places.get(operation.row.key)
            if (
                planned is not None
                and planned.index is index
                and _write_the_same_row(planned, operation)
            ):
                raise unique_violation(index, operation.row.key, each.change.entity)
            draft.put(operation, reason, each.number, index)


def _write_the_same_row(planned: PlannedOperation, operation: RowOperation) -> bool:
    """Return whether two entities of one group write the same index row."""
    return Verb.DELETE not in (planned.operation.verb, operation.verb)


def _put_member(draft: Draft, index: ListIndex[Any], each: _Prepared) -> Steps[None]:
    """Update the index entities of the values before and after (the guide's option 2)."""
    old, new = index_rows.key_of(index, each.before), index_rows.key_of(index, each.after)
    is_same = old == new and each.before and each.after and each.before.key == each.after.key
    if is_same and each.change.reindexed is not index:
        return
    for key, version, is_member in ((old, each.before, False), (new, each.after, True)):
        if key is None or version is None:
            continue
        planned = draft.find(key)
        row = planned
        if row is None:
            yield from _read_rows(draft, [key])
            row = draft.found[key]
        members = [] if row is None else index_rows.members_in(row.properties)
        name = index_rows.member_name(index, version.key)
        kept = [each_name for each_name in members if each_name != name]
        if is_member:
            kept.append(name)
        etag = "" if row is None else row.etag
        listed = index_rows.list_row(index, key, kept, etag)
        if planned is not None:
            draft.replace_row(key, listed, is_empty=not kept)
        elif etag:
            verb = Verb.REPLACE if kept else Verb.DELETE
            draft.put(RowOperation(verb, listed, etag), Reason.MEMBER, each.number, index)
        elif kept:
            draft.put(RowOperation(Verb.INSERT, listed), Reason.MEMBER, each.number, index)


def _put_owners(
    context: Context,
    draft: Draft,
    each: _Prepared,
    kept: dict[RowKey, _Prepared],
    stamp: int,
    *,
    with_many: bool,
) -> Steps[None]:
    """Update copies and counts in owners of the partition; `kept` are the owners read so far."""
    model = each.change.model
    for watch in derived_fields.watches(model, draft.table, each.before, each.after):
        yield from _put_owner(context, draft, each, watch, kept, stamp)
    each.reached = set()
    if not with_many:
        return
    for dependent, place in derived_fields.ranges_here(model, draft.table, each.before, each.after):
        keys = yield from _owners_between(context, draft, each, dependent, place, kept)
        if keys is not None:
            each.reached.add((dependent.name, *place))
            for key in keys:
                watch = derived_fields.Watch(dependent, key, key)
                yield from _put_owner(context, draft, each, watch, kept, stamp)


def _put_owner(
    context: Context,
    draft: Draft,
    each: _Prepared,
    watch: derived_fields.Watch,
    kept: dict[RowKey, _Prepared],
    stamp: int,
) -> Steps[None]:
    field = watch.dependent.field
    if draft.deletes(watch.owner_key):
        return
    if watch.owner_key not in kept:
        owner = yield from _find_owner(context, draft, watch, each.number, stamp)
        if owner is None:
            return
        kept[watch.owner_key] = owner
    owner = kept[watch.owner_key]
    current = field.codec.encode(owner.values[field.name])
    versions = (each.before, each.after)
    if derived_fields.needs_sources(watch, owner.values, current, *versions):
        value = yield from _extreme_of_group(context, draft, watch, kept)
    else:
        value = derived_fields.derive(watch, owner.values, current, *versions)
    if value != current:
        owner.values[field.name] = field.codec.decode(value)
        if value is None or draft.find(watch.row_key) is None:
            yield from _read_rows(draft, [watch.row_key])
        derived_fields.write_owner(draft, watch.row_key, field, value, each.number)
        if context.is_followed(owner.change.model) and owner.after is not None:
            draft.adjust(watch.owner_key, GENERATION, owner.after.generation)


def _extreme_of_group(
    context: Context, draft: Draft, watch: derived_fields.Watch, kept: Mapping[RowKey, _Prepared]
) -> Steps[Value | None]:
    """Return the least or greatest source of an owner after the group.

    The owner was read before and is written under its etag: no other group changes a source.
    """
    dependent = watch.dependent
    marker, owner = dependent.marker, kept[watch.owner_key].values
    assert isinstance(marker, MinOf | MaxOf)
    source = dependent.owner.source_of(dependent.field)
    stored = yield from values_of_sources(context, source, marker, owner)
    values = [value for key, value in stored.items() if key not in kept and not draft.deletes(key)]
    names = {each.name for each in source.family()}
    values += [
        each.values[marker.field]
        for each in kept.values()
        if each.change.model.name in names and derived_fields.matches(dependent, owner, each.after)
    ]
    return dependent.field.codec.encode(derived_fields.extreme(marker, values))


def _owners_between(
    context: Context,
    draft: Draft,
    each: _Prepared,
    dependent: Dependent,
    place: derived_fields.Range,
    kept: Mapping[RowKey, _Prepared],
) -> Steps[list[RowKey] | None]:
    """Return the owners of a range that a change affects; None: leave them to the outbox_entry.

    They are left to the outbox if there are too many, or if a merge of one property cannot update
    them.
    """
    owner = dependent.owner
    if (owner.name, place) not in draft.ranges:
        draft.ranges[owner.name, place] = yield from _rows_between(owner, place)
    rows = draft.ranges[owner.name, place]
    if rows is None:
        return None
    found = {
        key: one.values
        for key, one in kept.items()
        if any(model.name == one.change.model.name for model in owner.family())
    }
    for row in rows:
        if row.key in found or not owner.row.matches(row.key.row):
            continue
        if PARTS in row.properties or row.properties.get(VERSION, 1) != type_of(owner, row).version:
            return None
        try:
            found[row.key] = peek(owner, row, context.sealing)
        except PartitaError:
            return None  # because an unreadable owner must not prevent the change
        draft.found[row.key] = row
    return [
        key
        for key, values in found.items()
        if derived_fields.matches(dependent, values, each.before)
        or derived_fields.matches(dependent, values, each.after)
    ]


def _rows_between(owner: EntityType[Any], place: derived_fields.Range) -> Steps[list[Row] | None]:
    """Return the rows of a type's entities in a range; None if there are too many."""
    query, rows = query_between(owner, *place), list[Row]()
    while True:
        page = yield from ask(query)
        rows += page.rows
        if page.continuation is None:
            return rows
        if len(rows) >= OWNERS_LOOKED_MAX:
            return None
        query = msgspec.structs.replace(query, continuation=page.continuation)


def _find_owner(
    context: Context, draft: Draft, watch: derived_fields.Watch, number: int, stamp: int
) -> Steps[_Prepared | None]:
    """Read an owner that the caller does not change, and make the group conditional on its etag.

    The owner must not be changed, created or deleted by others before this group commits.
    """
    yield from _read_rows(draft, [watch.owner_key])
    if draft.found[watch.owner_key] is None:
        yield from _put_absent_guard(draft, watch.owner_key, number, stamp)
        # An owner created since the first read was created before the guard was read.
        draft.found[watch.owner_key] = yield from ask(GetRow(draft.table, watch.owner_key))
    first = draft.found[watch.owner_key]
    if first is None:
        return None
    draft.put(
        RowOperation(Verb.MERGE, Row(first.key, {}, first.etag), first.etag), Reason.DERIVED, number
    )
    model = type_of(watch.dependent.owner, first)
    if model.is_wide or PARTS in first.properties:
        stored = yield from load(context, model, first.key)
        if stored is None:
            return None
        values = stored.values
    else:
        values = peek(model, first, context.sealing)
    last = first.properties.get(GENERATION, 0)
    references = _references(values)
    return _Prepared(
        Change(model, None, values),
        number,
        references,
        values,
        Version(first.key, dict(values), references),
        Version(first.key, values, references, max(stamp, int(str(last)) + 1)),
    )


def _put_absent_guard(draft: Draft, owner: RowKey, number: int, stamp: int) -> Steps[None]:
    if draft.find(derived_fields.guard_key(owner)) is None:
        yield from _put_guard(draft, owner, number, stamp)


def _touched(context: Context, table: str, each: _Prepared) -> outbox_entry.Touched:
    """Return which rows elsewhere this change makes stale."""
    model, versions = each.change.model, [one for one in (each.before, each.after) if one]
    indexes: dict[str, list[tuple[str, str]]] = {}
    for index in context.live_indexes(model):
        if not index.is_local and index_rows.is_touched(index, each.before, each.after):
            keys = [index_rows.key_of(index, version) for version in versions]
            indexes[index.name] = [(key.partition, key.row) for key in keys if key is not None]
    owners: list[tuple[str, str, str, str | None]] = []
    for dependent in model.followers.dependents:
        if not derived_fields.is_touched(dependent, each.before, each.after):
            continue
        for version in versions:
            if derived_fields.is_remote(dependent, table, version):
                place = derived_fields.owner_range(dependent, version.values)
                told = None if place is None else (dependent.name, *place)
                if told is not None and told not in owners and told not in each.reached:
                    owners.append(told)
    before = {} if each.before is None else each.before.references
    after = {} if each.after is None else each.after.references
    gone = {one for one in before.values() if one} - {one for one in after.values() if one}
    return outbox_entry.Touched(
        type=model.name,
        partition=each.change.key.partition,
        row=each.change.key.row,
        indexes=indexes,
        owners=owners,
        derived=_derived_elsewhere(each),
        blobs=sorted((one.container, one.name) for one in gone),
        views=[view.name for view in model.followers.views],
    )


def _written_later(
    followed: Sequence[_Prepared], touched: Sequence[outbox_entry.Touched]
) -> Iterator[EntityType[Any]]:
    """Yield the types of the owners that workers write because of these changes."""
    for each, told in zip(followed, touched, strict=True):
        if told.derived:
            yield each.change.model
        names = {name for name, *_ in told.owners}
        for dependent in each.change.model.followers.dependents:
            if dependent.name in names:
                yield dependent.owner


def _derived_elsewhere(each: _Prepared) -> list[str]:
    """Return the derived fields whose sources are elsewhere and may have changed since the read.

    A writer of a source does not find an owner that is being created at the same time.
    """
    after, before, model = each.after, each.before, each.change.model
    if after is None:
        return []
    return [
        field.name
        for field, marker in model.derived_fields
        if not derived_fields.is_kept_here(model, field, after)
        and (
            before is None
            or any(before.values[name] != after.values[name] for name in marker.where.values())
        )
    ]


def _put_entry(
    context: Context,
    draft: Draft,
    entry: outbox_entry.Entry,
    started: Sequence[outbox_entry.Step],
    key: RowKey | None,
) -> OutboxReference | None:
    if not entry.touched and not started:
        return None
    entry = outbox_entry.Entry(entry.touched, list(started), followers=entry.followers)
    if key is None:
        key = outbox_entry.new_key(next(iter(draft.places)).partition, context.clock)
    draft.put(outbox_entry.entry_operation(key, entry), Reason.OUTBOX, 0)
    return OutboxReference(draft.table, key)


# ---------------------------------------------------------------------------------------------
# 5 Refusals


def _is_applied(table: str, draft: Draft) -> Steps[bool | None]:
    """Return whether a group was committed whose answer was lost or that the client sent twice.

    An entity keeps the ids of its last few writes. None: it was overwritten too often to tell. A
    group of deletes counts as committed if none of its rows is left.
    """
    rows = [place.operation.row for place in draft.places.values() if place.reason is Reason.ENTITY]
    probe = next((row for row in rows if not draft.deletes(row.key)), None)
    if probe is None:
        found = yield from find_rows(table, [row.key for row in rows])
        return not any(found.values())
    there = yield from ask(GetRow(table, probe.key))
    if there is None:
        return False
    if WRITE in probe.properties:
        return find_note(str(probe.properties[WRITE]), there.properties.get(WRITE))
    return there.etag != probe.etag and probe.properties.items() <= there.properties.items()


def write_in_doubt(table: str, key: RowKey) -> UnavailableError:
    return UnavailableError(
        "WriteInDoubt",
        "The answer to a write was lost, and later writes make it impossible to tell whether it "
        "was performed.",
        facts={"table": table, **key.facts},
        hint="Load the entity and compare it with what was to be written.",
    )


def _handle_conflict(
    error: ConflictError, table: str, draft: Draft, prepared: Sequence[_Prepared]
) -> Steps[bool]:
    """Raise a conflict that concerns the caller; else return whether to read before the retry."""
    places = list(draft.places.values())
    number = error.facts.get("index", 0)
    place = places[number if isinstance(number, int) and number < len(places) else 0]
    if not isinstance(error, EntityExistsError | EntityNotFoundError | ETagMismatchError):
        raise error
    if place.reason is Reason.ENTITY:
        raise _with_entity_facts(error, place, prepared)
    if place.reason is Reason.COPY and isinstance(error, EntityExistsError):
        index = place.index
        assert index is not None
        row = yield from ask(GetRow(table, place.operation.row.key))
        owner = prepared[place.change].change.key
        if row is not None and index_rows.member_of(row, is_local=True) != owner:
            key, entity = place.operation.row.key, prepared[place.change].change.entity
            raise unique_violation(index, key, entity) from error
    return place.reason in (Reason.COPY, Reason.MEMBER)


def _with_entity_facts(
    error: ConflictError, place: PlannedOperation, prepared: Sequence[_Prepared]
) -> ConflictError:
    change = prepared[place.change].change
    error.entity = change.entity
    error.facts = {
        "type": change.model.name,
        "table": change.model.table,
        "partition_key": change.key.partition,
        "row_key": change.key.row,
    } | ({"index": place.change} if len(prepared) > 1 else {})
    error.hint = {
        EntityExistsError: "Load it and change it, or use upsert() or save(..., force=True).",
        ETagMismatchError: "Load it and apply the change again; update() does both.",
    }.get(type(error), error.hint)
    return error


def wait_before(context: Context, attempt: int) -> Steps[None]:
    """Wait before a retry, for a random time that is longer after each attempt."""
    if attempt:
        longest: float = min(BACKOFF_SECONDS * 2.0**attempt, BACKOFF_SECONDS_MAX)
        share = int.from_bytes(context.clock.random_bytes(2)) / 0xFFFF
        yield from ask(Sleep(longest * share))


def too_many_conflicts(message: str, facts: Mapping[str, object], hint: str = "") -> StoreBusyError:
    return StoreBusyError("TooManyConflicts", message, facts=facts, hint=hint)


# ---------------------------------------------------------------------------------------------
# 6 Hints, and what the caller remembers


def _send_hint(context: Context, reference: OutboxReference) -> Steps[None]:
    context.remember(reference)
    if not context.capabilities.has_queues:
        return
    queue = context.queue_of(reference.key.partition)
    # The entry is stored: a sweep finds it without a hint.
    with contextlib.suppress(ConflictError, UnavailableError):
        yield from put_message(PutMessage(queue, outbox_entry.hint(reference)))


def put_message(message: PutMessage) -> Steps[None]:
    """Put a message; create its queue if it does not exist."""
    try:
        yield from ask(message)
    except QueueNotFoundError:
        yield from ask(CreateQueue(message.queue))
        yield from ask(message)


def _finish(
    draft: Draft, prepared: Sequence[_Prepared], etags: Sequence[str], write_id: str
) -> list[Written]:
    by_key = dict(zip(draft.places, etags, strict=True)) if etags else {}
    return [_written(draft, each, by_key, write_id) for each in prepared]


def _written(draft: Draft, each: _Prepared, etags: Mapping[RowKey, str], write_id: str) -> Written:
    change, model = each.change, each.change.model
    if change.after is None:
        return Written({}, None)
    before = change.before
    parts = split_rows(model, each.properties, before)
    rows = len(parts)
    etags_before = () if before is None else before.etags
    # If the answer was lost, others may have written since: the next save reads first.
    keys = [change.key, *(part_key(change.key, place) for place in range(1, rows))]
    now = [
        etags.get(key) or (etags_before[place] if place < len(etags_before) else "")
        for place, key in enumerate(keys if etags else ())
    ]
    values = dict(each.values)
    first = draft.find(change.key)
    stored = {} if first is None else first.properties
    for field, _ in model.derived_fields:
        if field.property in stored:
            values[field.name] = field.codec.decode(stored[field.property])
    known = {**values, **each.references}
    if change.given is not None:
        # The object may differ from the stored entity: the next save reads and compares first.
        now, known = [], _known_after_merge(change, known)
    extra = {**({} if before is None else before.extra), **change.extra}
    system = {} if before is None else dict(before.system)
    system.update({name: value for name, value in stored.items() if name in SYSTEM})
    origin = Origin(
        key=change.key,
        etags=tuple(now),
        values=known,
        extra=extra,
        version=model.version,
        timestamp=None,
        system=system,
        sealed=change.sealed | (frozenset() if before is None else before.sealed),
        number_types=narrower_types(model, each.properties),
        parts={place: parts[place] for place in range(1, rows)},
    )
    assert PARTS in system or rows == 1
    assert WRITE not in system or is_noted(write_id, system[WRITE])
    return Written(values, origin, etags.get(change.key, ""))


def _known_after_merge(change: Change, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object's values, with stored values of derived fields and changed blobs."""
    model, given = change.model, change.given or {}
    told = {
        field.name: stored[field.name]
        for field in model.fields.values()
        if field.derived is not None or (field.is_in_blob and field.name in given)
    }
    own = given if change.entity is None else model.values(change.entity)
    return {**snapshot(own), **told}
