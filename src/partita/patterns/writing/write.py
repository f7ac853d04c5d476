"""The one road of every write: one or many changes of one partition, as one group.

1 large values go to blobs          (before the entity names them)
2 what must be known is read        (owners of counters, index rows that may be missing)
3 a draft collects every row        (entity, copies, members, counters, outbox entry)
4 the group is sent                 (all or nothing)
5 a refusal is told or tried again  (a conflict on our own rows is nobody's business)
6 workers get a hint                (a lost hint only delays: the sweeper finds the entry)

The file is long because the six are one story: each is a section, and none has another reader.
"""

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
    UniqueViolationError,
    UsageError,
)
from partita.patterns.fields.load_state import snapshot
from partita.patterns.fields.markers import CopiedFrom
from partita.patterns.protocol.calls import (
    CreateContainer,
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
    BlobReference,
    blob_metadata,
    folder_of,
    reference_to,
    to_content,
)
from partita.patterns.types.decorators import Dependent, EntityType, Origin
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
from partita.patterns.writing import derived_fields as derived
from partita.patterns.writing import index_rows as copies
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing.context import Context, IndexState, OutboxReference
from partita.patterns.writing.group_draft import Draft, Place, Reason
from partita.patterns.writing.index_rows import Version
from partita.patterns.writing.load import count_sources, find_rows, load, query_between
from partita.patterns.writing.rows import (
    SYSTEM,
    deal,
    encode,
    encode_field,
    find_note,
    is_noted,
    narrower_types,
    note_write,
    peek,
    to_rows,
    type_of,
    with_types,
)

OWNERS_LOOKED_MAX = 1_000
"""Entities of a partition that are read to find those with a copy of what changes."""
ENTRY_OPERATIONS = 2
"""Operations of a group that are left for the outbox entry and what is written beside it."""
ENTRY_BYTES = 65_536
"""Bytes of a group that are left for what surrounds the outbox entry."""
BACKOFF_SECONDS = 0.005
BACKOFF_SECONDS_MAX = 0.5


class Change(msgspec.Struct):
    """One entity from what it was (None: it must not exist) to what it shall be (None: gone)."""

    model: EntityType[Any]
    before: Origin | None
    after: dict[str, Any] | None
    entity: object = None
    """The caller's object, for what is told of it."""
    is_merge: bool = False
    """Send only what changed, where that says the same."""
    given: dict[str, Any] | None = None
    """What the caller set, if the rest of the object says nothing about what is stored."""
    is_blind: bool = False
    """Write whatever is stored: only for types that nothing follows."""
    must_exist: bool = False
    """A blind merge of fields that do not make an entity by themselves."""
    reindexed: AnyIndex | None = None
    """An index to bring the entity into, whatever is there."""
    extra: dict[str, Value] = {}
    """Properties beyond the type's fields to write besides those that are kept."""
    sealed: frozenset[str] = frozenset()
    """Of these, the ones that were sealed where they come from."""
    number_types: dict[str, str] = {}
    """Number types to keep besides those that are stored (see `rows.narrower_types`)."""
    derived: dict[str, Any] = {}
    """Derived fields whose values are known, from whoever looked them up."""

    key: RowKey = RowKey("", "")
    """Where the entity lies; found out when the change is made."""

    def __post_init__(self) -> None:
        if self.before is not None:
            self.key = self.before.key
        else:
            assert self.after is not None
            self.key = self.model.key(self.after)


class Written(msgspec.Struct):
    """What became of a change: values with derived fields as stored, and what to remember."""

    values: dict[str, Any]
    origin: Origin | None


class _Prepared(msgspec.Struct):
    """A change with everything that does not depend on what is stored elsewhere."""

    change: Change
    number: int
    references: dict[str, BlobReference | None]
    values: dict[str, Any] = {}
    before: Version | None = None
    after: Version | None = None
    properties: dict[str, Value] = {}
    written: list[Row] = []
    reached: set[tuple[str, str, str, str | None]] = set()
    """Fields derived from it, and ranges of owners that are brought up to date in the group."""


def write(
    context: Context,
    changes: Sequence[Change],
    *,
    started: Sequence[outbox.Step] = (),
    beside: Sequence[RowOperation] = (),
) -> Steps[list[Written]]:
    """Apply changes of one partition of one table: all of them, or nothing.

    `beside` is what an outbox entry of the partition remembers of it.
    """
    table = changes[0].model.table
    yield from _see_disabled(context, changes)
    write_id = context.clock.random_bytes(8).hex()
    prepared: list[_Prepared] = []
    for number, change in enumerate(changes):
        _check_period(context, change)
        references = yield from _put_blobs(change, write_id)
        prepared.append(_Prepared(change, number, references))
    is_careful = False
    for attempt in range(context.options.attempts_max):
        if attempt:
            yield from ask(Sleep(pause(context, attempt)))
        draft, entry = yield from _compose(context, prepared, write_id, is_careful=is_careful)
        reference = _put_entry(context, draft, entry, started)
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
            # The answer is lost: whether the group was committed is read from its rows.
            if not (yield from _is_applied(table, draft)):
                raise
        except ConflictError as error:
            is_in_doubt = bool(error.facts.get("answer_lost"))
            is_applied = (yield from _is_applied(table, draft)) if is_in_doubt else False
            if is_applied is None:
                raise write_in_doubt(table, prepared[0].change.key) from error
            if not is_applied:
                is_careful |= yield from _decide(error, table, draft, prepared)
                continue
        if reference is not None:
            yield from _tell(context, reference)
        return _finish(draft, prepared, etags, write_id)
    raise StoreBusyError(
        "TooManyConflicts",
        f"Other writers were faster {context.options.attempts_max} times.",
        facts={"table": table, "partition_key": prepared[0].change.key.partition},
        hint="Try later; a counter or index entity that everybody writes may need to be spread.",
    )


def _check_period(context: Context, change: Change) -> None:
    """Refuse an entity in the table of a period that is not its own: no reader looks there."""
    model, values = change.model, change.after
    if model.table == model.declaration.table or values is None:
        return
    for each in model.lineage():
        for series, at in context.series.get(each.name, {}).items():
            own = series.table_for(values[at])
            if own != model.table and series.start_of(model.table) is not None:
                raise UsageError(
                    "WrongPeriod",
                    f"By its {at!r} this {model.name} belongs to the table of another period.",
                    facts={"type": model.name, "table": model.table, "wanted": own},
                    hint="Save it through db.periods(...), which finds its table; one that was "
                    "stored under another moment is deleted after.",
                )


def _see_disabled(context: Context, changes: Sequence[Change]) -> Steps[None]:
    """Look whether indexes are still disabled: another process may have begun to rebuild one."""
    indexes = {id(index): index for change in changes for index in change.model.all_indexes()}
    for index in indexes.values():
        if context.state_of(index) is IndexState.DISABLED:
            key = state_key(index.owner.name, index.name)
            row = yield from ask(GetRow(index.owner.table, key, (STATE,)))
            if row is not None:
                state = IndexState(str(row.properties[STATE]))
                context.states[index.owner.name, index.name] = state


# ---------------------------------------------------------------------------------------------
# 1 Blobs


def _put_blobs(change: Change, write_id: str) -> Steps[dict[str, BlobReference | None]]:
    references: dict[str, BlobReference | None] = {}
    if change.after is None:
        return references
    for field in change.model.fields.values():
        if field.blob is None:
            continue
        value = change.after[field.name]
        if isinstance(value, BlobReference):
            references[field.name] = value
            continue
        content = to_content(field, value)
        if content is None:
            references[field.name] = None
            continue
        before = None if change.before is None else change.before.values.get(field.name)
        if isinstance(before, BlobReference) and before.is_of(content):
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
        yield from _put_blob(reference, content, blob_metadata(table, key))
    return references


def _check_blob(model: EntityType[Any], key: RowKey, name: str) -> None:
    if model.encrypt is not None and model.encrypt(key.partition, key.row, name):
        raise UsageError(
            "EncryptedBlob",
            f"The resolver of {model.name} encrypts {name!r}, which lies in a blob in the clear.",
            facts={"type": model.name, "property": name},
            hint="Let the resolver leave it out, or keep the value in the entity.",
        )


def _put_blob(reference: BlobReference, content: bytes, metadata: dict[str, str]) -> Steps[None]:
    put = PutBlob(reference.container, reference.name, content, metadata)
    try:
        yield from ask(put)
    except ConflictError as error:
        if error.code != "ContainerNotFound":
            raise
        yield from ask(CreateContainer(reference.container))
        yield from ask(put)


# ---------------------------------------------------------------------------------------------
# 2 and 3 The draft


def _compose(
    context: Context, prepared: Sequence[_Prepared], write_id: str, *, is_careful: bool
) -> Steps[tuple[Draft, outbox.Entry]]:
    """Return the rows of a group, with owners of ranges if they fit into it."""
    table = prepared[0].change.model.table
    draft = Draft(table)
    entry = yield from _fill(
        context, draft, prepared, write_id, is_careful=is_careful, with_many=True
    )
    if not any(each.reached for each in prepared):
        return draft, entry
    # As text in JSON the entry takes twice its bytes at most.
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
) -> Steps[outbox.Entry]:
    """Put everything into the draft; without `with_many` owners of ranges are left to workers."""
    stamp = context.clock.ticks()
    for each in prepared:
        yield from _prepare(context, draft, each, stamp)
    for each in prepared:
        _put_entity(context, draft, each, write_id, stamp)
    if all(each.change.model.is_plain for each in prepared):
        return outbox.Entry()
    kept = {each.change.key: each for each in prepared if each.change.after is not None}
    for each in prepared:
        yield from _put_owners(context, draft, each, kept, stamp, with_many=with_many)
    followed = [*prepared, *_changed_owners(prepared, kept)]
    for each in followed:
        yield from _put_indexes(context, draft, each, is_careful=is_careful)
    touched = [_touched(context, draft.table, each) for each in followed]
    return outbox.Entry([each for each in touched if not each.is_idle])


def _changed_owners(
    prepared: Sequence[_Prepared], kept: Mapping[RowKey, _Prepared]
) -> Iterator[_Prepared]:
    """Yield owners that no change of the caller is about, and whose derived fields change."""
    own = {id(each) for each in prepared}
    for owner in kept.values():
        assert owner.after is not None
        if id(owner) not in own and owner.before and owner.before.values != owner.after.values:
            yield owner


def _prepare(context: Context, draft: Draft, each: _Prepared, stamp: int) -> Steps[None]:
    """Fill in derived fields, and say what the entity is before and after."""
    change, model = each.change, each.change.model
    before = change.before
    each.before = None
    if before is not None:
        each.before = Version(before.key, before.values, _references(before.values))
    each.after = None
    if change.after is not None:
        # As they are now: what the caller does to a list meanwhile is not what is written.
        own = {name: value for name, value in change.after.items() if name not in each.references}
        each.values = {**change.after, **snapshot(own)}
        if model.derived_fields:
            yield from _derive_own(context, draft, each, stamp)
        each.after = Version(change.key, each.values, each.references, _generation(before, stamp))
        _check_public(context, model, each.after)
        kept = {**change.number_types, **({} if before is None else before.number_types)}
        written = each.values
        if change.is_blind and change.given is not None:
            written = snapshot(change.given)
        encoded = encode(model, written, each.references, kept)
        each.properties = {**change.extra, **encoded}
    elif model.derived_fields:
        yield from _guard(draft, change.key, each.number, stamp)


def _check_public(context: Context, model: EntityType[Any], version: Version) -> None:
    if model.encrypt is not None:
        for index in context.live_indexes(model):
            copies.check_public(index, version)
        for dependent in model.watchers():
            derived.check_public(model, dependent.marker, version.key)


def _references(values: Mapping[str, Any]) -> dict[str, BlobReference | None]:
    return {name: value for name, value in values.items() if isinstance(value, BlobReference)}


def _generation(before: Origin | None, stamp: int) -> int:
    last = 0 if before is None else before.system.get(GENERATION, 0)
    return max(stamp, int(str(last)) + 1)


def _derive_own(context: Context, draft: Draft, each: _Prepared, stamp: int) -> Steps[None]:
    """Derived fields are nobody's to set: take them from storage, or from their source."""
    change, before = each.change, each.change.before
    if before is None:
        yield from _guard(draft, change.key, each.number, stamp)
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
            key = derived.source_key(source, marker, each.values)
            stored = None
            if key is not None:
                derived.check_public(source, marker, key)
                stored = yield from load(context, source, key)
            each.values[field.name] = None if stored is None else stored.values[marker.field]
        else:
            each.values[field.name] = yield from count_sources(
                context, change.model.source_of(field), marker, each.values
            )


def _guard(draft: Draft, owner: RowKey, number: int, stamp: int) -> Steps[None]:
    key = derived.guard_key(owner)
    yield from _look(draft, [key])
    derived.write_guard(draft, owner, draft.found[key], stamp, number)


def _look(draft: Draft, keys: Sequence[RowKey]) -> Steps[None]:
    """Read rows of the partition once for an attempt."""
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
    if not model.is_plain and context.is_followed(model):
        assert each.after is not None
        system[GENERATION] = each.after.generation
    if model.type_property is not None:  # tables of strangers get no property of ours
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
            operation = RowOperation(_blind_verb(change), row)
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
    """Return the row of a merge; None if only a replacement says what is meant."""
    before, model = change.before, change.model
    if before is None or before.version != model.version or model.is_wide or before.parts:
        return None
    if model.encrypt is not None:
        return None  # because whatever is sealed of an entity is sealed together
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
        is_touched = is_forced or copies.is_touched(index, each.before, each.after)
        if not index.is_local or not is_touched:
            continue
        if isinstance(index, ListIndex) and index.storage is Storage.PARTITION:
            yield from _put_member(draft, index, each)
            continue
        if is_careful or is_forced or context.state_of(index) is not IndexState.READABLE:
            keys = (copies.key_of(index, each.before), copies.key_of(index, each.after))
            yield from _look(draft, [key for key in keys if key is not None])
            operations = copies.careful_operations(
                index, each.before, each.after, draft.found, context.sealing
            )
        else:
            operations = copies.expected_operations(index, each.before, each.after, context.sealing)
        reason = Reason.MEMBER if isinstance(index, ListIndex) else Reason.COPY
        for operation in operations:
            planned = draft.places.get(operation.row.key)
            if planned is not None and planned.index is index and _are_two(planned, operation):
                raise _taken(index, operation.row.key, each.change.entity)
            draft.put(operation, reason, each.number, index)


def _are_two(planned: Place, operation: RowOperation) -> bool:
    """Tell whether two entities of one group want the same copy."""
    return Verb.DELETE not in (planned.operation.verb, operation.verb)


def _put_member(draft: Draft, index: ListIndex[Any], each: _Prepared) -> Steps[None]:
    """Keep the index entities of the values before and after (the guide's option 2)."""
    old, new = copies.key_of(index, each.before), copies.key_of(index, each.after)
    is_same = old == new and each.before and each.after and each.before.key == each.after.key
    if is_same and each.change.reindexed is not index:
        return
    for key, version, is_member in ((old, each.before, False), (new, each.after, True)):
        if key is None or version is None:
            continue
        planned = draft.find(key)
        row = planned
        if row is None:
            yield from _look(draft, [key])
            row = draft.found[key]
        members = [] if row is None else copies.members_in(row.properties)
        name = copies.member_name(index, version.key)
        kept = [each_name for each_name in members if each_name != name]
        if is_member:
            kept.append(name)
        etag = "" if row is None else row.etag
        listed = copies.list_row(index, key, kept, etag)
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
    """Keep copies and counts in owners of the same partition; `kept` are those known so far."""
    model = each.change.model
    for watch in derived.watches(model, draft.table, each.before, each.after):
        yield from _put_owner(context, draft, each, watch, kept, stamp)
    each.reached = set()
    if not with_many:
        return
    for dependent, place in derived.ranges_here(model, draft.table, each.before, each.after):
        keys = yield from _owners_between(context, draft, each, dependent, place, kept)
        if keys is not None:
            each.reached.add((dependent.name, *place))
            for key in keys:
                watch = derived.Watch(dependent, key, key)
                yield from _put_owner(context, draft, each, watch, kept, stamp)


def _put_owner(
    context: Context,
    draft: Draft,
    each: _Prepared,
    watch: derived.Watch,
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
    value = derived.derive(watch, owner.values, current, each.before, each.after)
    if value != current:
        owner.values[field.name] = field.codec.decode(value)
        if value is None or draft.find(watch.row_key) is None:
            yield from _look(draft, [watch.row_key])
        derived.write_owner(draft, watch.row_key, field, value, each.number)
        if context.is_followed(owner.change.model) and owner.after is not None:
            draft.adjust(watch.owner_key, GENERATION, owner.after.generation)


def _owners_between(
    context: Context,
    draft: Draft,
    each: _Prepared,
    dependent: Dependent,
    place: derived.Range,
    kept: Mapping[RowKey, _Prepared],
) -> Steps[list[RowKey] | None]:
    """Return the owners of a range that a change concerns; None: leave them to the outbox.

    Those are left that are too many, and those that a merge of one property would not put right.
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
            return None  # because a copy that cannot be read must not prevent the change
        draft.found[row.key] = row
    return [
        key
        for key, values in found.items()
        if derived.matches(dependent, values, each.before)
        or derived.matches(dependent, values, each.after)
    ]


def _rows_between(owner: EntityType[Any], place: derived.Range) -> Steps[list[Row] | None]:
    """Return the first rows of a type's entities in a range; None: they are too many."""
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
    context: Context, draft: Draft, watch: derived.Watch, number: int, stamp: int
) -> Steps[_Prepared | None]:
    """Read an owner that no change of the caller is about, and hold it by its etag.

    Whatever is written of it, it must not change under this group; nor may one be made.
    """
    yield from _look(draft, [watch.owner_key])
    if draft.found[watch.owner_key] is None:
        yield from _guard_absent(draft, watch.owner_key, number, stamp)
        # One that was made since the first look was made before the guard was read.
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


def _guard_absent(draft: Draft, owner: RowKey, number: int, stamp: int) -> Steps[None]:
    if draft.find(derived.guard_key(owner)) is None:
        yield from _guard(draft, owner, number, stamp)


def _touched(context: Context, table: str, each: _Prepared) -> outbox.Touched:
    """Say what elsewhere this change puts out of date."""
    model, versions = each.change.model, [one for one in (each.before, each.after) if one]
    indexes: dict[str, list[tuple[str, str]]] = {}
    for index in context.live_indexes(model):
        if not index.is_local and copies.is_touched(index, each.before, each.after):
            keys = [copies.key_of(index, version) for version in versions]
            indexes[index.name] = [(key.partition, key.row) for key in keys if key is not None]
    owners: list[tuple[str, str, str, str | None]] = []
    for dependent in model.watchers():
        if not derived.is_touched(dependent, each.before, each.after):
            continue
        for version in versions:
            if derived.is_remote(dependent, table, version):
                place = derived.owner_range(dependent, version.values)
                told = None if place is None else (dependent.name, *place)
                if told is not None and told not in owners and told not in each.reached:
                    owners.append(told)
    before = {} if each.before is None else each.before.references
    after = {} if each.after is None else each.after.references
    gone = {one for one in before.values() if one} - {one for one in after.values() if one}
    return outbox.Touched(
        type=model.name,
        partition=each.change.key.partition,
        row=each.change.key.row,
        indexes=indexes,
        owners=owners,
        derived=_derived_elsewhere(each),
        blobs=sorted((one.container, one.name) for one in gone),
        views=[view.name for view in model.all_views()],
    )


def _derived_elsewhere(each: _Prepared) -> list[str]:
    """Name fields that were looked up elsewhere: their sources may have changed since the look.

    Who changes a source while an owner is being made does not find it, and tells nobody.
    """
    after, before, model = each.after, each.before, each.change.model
    if after is None:
        return []
    return [
        field.name
        for field, marker in model.derived_fields
        if not derived.is_kept_here(model, field, after)
        and (
            before is None
            or any(before.values[name] != after.values[name] for name in marker.where.values())
        )
    ]


def _put_entry(
    context: Context, draft: Draft, entry: outbox.Entry, started: Sequence[outbox.Step]
) -> OutboxReference | None:
    if not entry.touched and not started:
        return None
    entry = outbox.Entry(entry.touched, list(started))
    partition = next(iter(draft.places)).partition
    key = outbox.new_key(partition, context.clock)
    draft.put(outbox.entry_operation(key, entry), Reason.OUTBOX, 0)
    return OutboxReference(draft.table, key)


# ---------------------------------------------------------------------------------------------
# 5 Refusals


def _is_applied(table: str, draft: Draft) -> Steps[bool | None]:
    """Tell whether a group was committed whose answer was lost, or that the client sent twice.

    An entity remembers who wrote it last, and a few before; None: more have written it since. Of
    a group that only deletes nothing is left but that all is gone, whoever did it.
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
        "The answer to a write was lost, and too many have written since to tell whether it was "
        "performed.",
        facts={"table": table, "partition_key": key.partition, "row_key": key.row},
        hint="Load the entity and look whether it has what was written.",
    )


def _decide(
    error: ConflictError, table: str, draft: Draft, prepared: Sequence[_Prepared]
) -> Steps[bool]:
    """Raise what the caller must know; else tell whether to look before the next attempt."""
    places = list(draft.places.values())
    number = error.facts.get("index", 0)
    place = places[number if isinstance(number, int) and number < len(places) else 0]
    if not isinstance(error, EntityExistsError | EntityNotFoundError | ETagMismatchError):
        raise error
    if place.reason is Reason.ENTITY:
        raise _of_entity(error, place, prepared)
    if place.reason is Reason.COPY and isinstance(error, EntityExistsError):
        index = place.index
        assert index is not None
        row = yield from ask(GetRow(table, place.operation.row.key))
        owner = prepared[place.change].change.key
        if row is not None and copies.member_of(row, is_local=True) != owner:
            key, entity = place.operation.row.key, prepared[place.change].change.entity
            raise _taken(index, key, entity) from error
    return place.reason in (Reason.COPY, Reason.MEMBER)


def _of_entity(error: ConflictError, place: Place, prepared: Sequence[_Prepared]) -> ConflictError:
    change = prepared[place.change].change
    error.entity = change.entity
    error.facts = {
        "type": change.model.name,
        "table": change.model.table,
        "partition_key": change.key.partition,
        "row_key": change.key.row,
    } | ({"index": place.change} if len(prepared) > 1 else {})
    error.hint = {
        EntityExistsError: "Load it and change it, or say upsert() or save(..., force=True).",
        ETagMismatchError: "Load it again and decide again; update() does both.",
    }.get(type(error), error.hint)
    return error


def _taken(index: AnyIndex, key: RowKey, entity: object) -> UniqueViolationError:
    error = UniqueViolationError(
        "UniqueViolation",
        f"Another {index.owner.name} has this value already.",
        facts={"index": index.name, "partition_key": key.partition, "row_key": key.row},
        hint="Choose another value, or change the other entity first.",
    )
    error.index = index
    error.entity = entity
    return error


def pause(context: Context, attempt: int) -> float:
    """Return how long to wait before trying again: random, and longer each time."""
    longest: float = min(BACKOFF_SECONDS * 2.0**attempt, BACKOFF_SECONDS_MAX)
    return longest * int.from_bytes(context.clock.random_bytes(2)) / 0xFFFF


# ---------------------------------------------------------------------------------------------
# 6 Hints, and what the caller remembers


def _tell(context: Context, reference: OutboxReference) -> Steps[None]:
    context.remember(reference)
    if not context.capabilities.has_queues:
        return
    queue = context.queue_of(reference.key.partition)
    message = PutMessage(queue, outbox.hint(reference))
    try:
        try:
            yield from ask(message)
        except QueueNotFoundError:
            yield from ask(CreateQueue(queue))
            yield from ask(message)
    except (ConflictError, UnavailableError):
        return  # because the entry is stored: a sweep finds what no hint tells


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
    dealt = deal(model, each.properties, before)
    rows = len(dealt)
    etags_before = () if before is None else before.etags
    # Where the answer was lost, others may have written since: the next save looks first.
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
        # The object may differ from what is stored: the next save looks first, and compares.
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
        parts={place: dealt[place] for place in range(1, rows)},
    )
    assert PARTS in system or rows == 1
    assert WRITE not in system or is_noted(write_id, system[WRITE])
    return Written(values, origin)


def _known_after_merge(change: Change, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as the object has them, with blobs that it set and derived fields."""
    model, given = change.model, change.given or {}
    told = {
        field.name: stored[field.name]
        for field in model.fields.values()
        if field.derived is not None or (field.is_in_blob and field.name in given)
    }
    return {**snapshot(model.values(change.entity)), **told}
