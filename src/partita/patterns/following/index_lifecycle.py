"""The life cycle of an index: write-only, rebuilt, readable, disabled; and its verification.

The state of an index is a row of the entity's own table:

    partition key  ~partita
    row key        ~ix_<type>@<index>
    State          write-only | readable | disabled
    Progress       where a rebuild continues (JSON)

An index that is declared when entities are already stored starts write-only: changes are written to
it, and it is not read until a rebuild has added the older entities.

The entities of a page are processed in parallel. The progress is stored when the page is done, so
that a continued rebuild misses none. Rebuilding and repairing share their steps, so they are one
module.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    IndexNotReadableError,
    InvalidPropertyError,
    NewerVersionError,
    TableNotFoundError,
    UniqueViolationError,
    UnknownTypeError,
    UsageError,
)
from partita.patterns.fields.load_state import are_same
from partita.patterns.fields.markers import CopiedFrom
from partita.patterns.following.bring_up_to_date import (
    call_view,
    list_blob_key,
    list_blob_prefix,
    load_as,
    read_list_blob,
    refers_to,
    remove_blob,
    settle_absent,
    settle_index,
    settle_owner,
    version_of,
)
from partita.patterns.following.progress_counter import Progress, ProgressCounter
from partita.patterns.planning.filter_text import bounds_text, quoted
from partita.patterns.protocol.calls import (
    Continuation,
    CreateContainer,
    CreateTable,
    DeleteBlob,
    DeleteTable,
    GetRow,
    ListBlobs,
    ListedBlob,
    QueryRows,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types import row_layout
from partita.patterns.types.blob_values import entity_of
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, ListIndex, Storage
from partita.patterns.types.row_layout import COPY_MARK, STATES_PARTITION, VERSION
from partita.patterns.writing import derived_fields, index_rows
from partita.patterns.writing.context import Context, IndexState
from partita.patterns.writing.load import in_parallel, load, read_all_rows, summarise
from partita.patterns.writing.rows import read_copy, shows_secrets
from partita.patterns.writing.write import Change, write
from partita.ticks import TICKS_PER_SECOND

T = TypeVar("T")

_STATE = row_layout.STATE
_PROGRESS = "Progress"


class Drift(msgspec.Struct, frozen=True):
    """One difference between an entity and what is derived from it."""

    kind: str
    """missing, stale, orphan, wrong (a derived field) or dangling (a reference)."""
    what: str
    """The index or the field."""
    table: str
    key: RowKey
    """The entity; of an orphan, the row itself."""


# ---------------------------------------------------------------------------------------------
# States


def state_key(index: AnyIndex) -> RowKey:
    return row_layout.state_key(index.owner.name, index.name)


def create_tables(context: Context) -> Steps[list[str]]:
    """Create the missing tables of all registered types, and read the states of indexes."""
    made: list[str] = []
    for table in tables_of(context):
        if (yield from ask(CreateTable(table))):
            made.append(table)  # noqa: PERF401 - a comprehension cannot yield
    if context.capabilities.has_blobs:
        for container in _containers(context):
            yield from ask(CreateContainer(container))
    for model in list(context.models.values()):
        for index in model.indexes:
            yield from _begin(context, index, is_new=model.table in made)
    return made


def drop_tables(context: Context) -> Steps[list[str]]:
    """Delete the tables of all registered types, with everything in them."""
    gone: list[str] = []
    for table in tables_of(context):
        if (yield from ask(DeleteTable(table))):
            gone.append(table)  # noqa: PERF401 - a comprehension cannot yield
    context.states.clear()
    for reference in list(context.pending):
        context.forget(reference)
    return gone


def tables_of(context: Context) -> list[str]:
    names = {model.table for model in context.models.values()}
    for model in context.models.values():
        names.update(
            index.table
            for index in model.indexes
            if not (isinstance(index, ListIndex) and index.storage is Storage.BLOB)
        )
    return sorted(names)


def _containers(context: Context) -> list[str]:
    names = {
        field.blob.container
        for model in context.models.values()
        for field in model.fields.values()
        if field.blob is not None
    }
    names.update(
        index.container
        for model in context.models.values()
        for index in model.indexes
        if isinstance(index, ListIndex) and index.storage is Storage.BLOB
    )
    return sorted(names)


def _begin(context: Context, index: AnyIndex, *, is_new: bool) -> Steps[None]:
    state = yield from read_state(context, index)
    if state is not None:
        return
    is_empty = is_new or not (yield from _has_entities(index.owner))
    first = IndexState.READABLE if is_empty else IndexState.WRITE_ONLY
    row = Row(state_key(index), _state_properties(first))
    try:
        yield from ask(WriteRows(index.owner.table, (RowOperation(Verb.INSERT, row),)))
        context.states[index.owner.name, index.name] = first
    except EntityExistsError:
        yield from read_state(context, index)


def _has_entities(model: EntityType[Any]) -> Steps[bool]:
    query = QueryRows(model.table, type_filter(model), ("PartitionKey", "RowKey"), 1)
    while True:
        page = yield from ask(query)
        if of_type(model, page.rows):
            return True
        if page.continuation is None:
            return False
        query = msgspec.structs.replace(query, continuation=page.continuation)


def type_filter(model: EntityType[Any]) -> str:
    """Return the filter that selects the first rows of a type's entities."""
    if model.type_property is None:
        return f"PartitionKey ne {quoted(STATES_PARTITION)}"
    names = (f"{model.type_property} eq {quoted(each.name)}" for each in model.family())
    return " or ".join(names)


def of_type(model: EntityType[Any], rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that are entities of a type; without a type property their keys decide."""
    if model.type_property is not None:
        return rows
    return [
        row
        for row in rows
        if model.partition.matches(row.key.partition) and model.row.matches(row.key.row)
    ]


def _state_properties(state: IndexState, progress: str = "") -> dict[str, Value]:
    return {"EntityType": "~index", _STATE: state.value, _PROGRESS: progress}


def read_state(context: Context, index: AnyIndex) -> Steps[IndexState | None]:
    """Read and remember the state of an index; None if it has none."""
    row = yield from ask(GetRow(index.owner.table, state_key(index)))
    if row is None:
        return None
    state = IndexState(str(row.properties[_STATE]))
    context.states[index.owner.name, index.name] = state
    return state


def write_state(
    context: Context, index: AnyIndex, state: IndexState, progress: str = ""
) -> Steps[None]:
    row = Row(state_key(index), _state_properties(state, progress))
    yield from ask(WriteRows(index.owner.table, (RowOperation(Verb.UPSERT_REPLACE, row),)))
    context.states[index.owner.name, index.name] = state


def require_readable(context: Context, index: AnyIndex) -> Steps[None]:
    """Raise unless an index may be read."""
    if context.state_of(index) is IndexState.READABLE:
        return
    state = yield from read_state(context, index)
    if state is IndexState.READABLE:
        return
    said = "has no state yet" if state is None else f"is {state.value}"
    raise IndexNotReadableError(
        "IndexNotReadable",
        f"The index {index.name!r} of {index.owner.name} {said}; entities may be missing in it.",
        facts={"index": index.name, "table": index.owner.table},
        hint="Call db.create_tables() once, and db.rebuild(index) if entities were stored before "
        "the index was declared. On the command line: partita patterns rebuild.",
    )


# ---------------------------------------------------------------------------------------------
# Rebuilding


def rebuild(context: Context, index: AnyIndex, progress: Progress) -> Steps[int]:
    """Add every stored entity to an index, then make it readable. A stopped rebuild continues.

    Writers need not stop: they keep the index up to date for the entities that they change.
    """
    row = yield from ask(GetRow(index.owner.table, state_key(index)))
    if row is not None and row.properties[_STATE] == IndexState.DISABLED.value:
        yield from _clear(context, index, ignore)  # its rows are not up to date
    stored = "" if row is None else str(row.properties.get(_PROGRESS, ""))
    start = msgspec.json.decode(stored, type=_Rebuilt) if stored else _Rebuilt()
    yield from write_state(context, index, IndexState.WRITE_ONLY, stored)
    counter, query = (
        ProgressCounter(progress, start.done),
        _entities(index.owner, start.continuation),
    )
    while True:
        page = yield from ask(query)
        keys = [row.key for row in of_type(index.owner, page.rows)]
        yield from _reindex_all(context, index, keys, counter)
        if page.continuation is None:
            break
        query = msgspec.structs.replace(query, continuation=page.continuation)
        # Store the progress now, when everything before it is done.
        kept = msgspec.json.encode(_Rebuilt(counter.done, page.continuation)).decode()
        yield from write_state(context, index, IndexState.WRITE_ONLY, kept)
    yield from write_state(context, index, IndexState.READABLE)
    return counter.done


class _Rebuilt(msgspec.Struct, frozen=True):
    done: int = 0
    continuation: Continuation | None = None


def _entities(model: EntityType[Any], continuation: Continuation | None = None) -> QueryRows:
    return QueryRows(
        model.table, type_filter(model), ("PartitionKey", "RowKey"), continuation=continuation
    )


def _reindex_all(
    context: Context, index: AnyIndex, keys: Sequence[RowKey], counter: ProgressCounter
) -> Steps[None]:
    """Add entities to an index that most likely lacks them, in parallel.

    Entities that share an index entity are added one after the other, to avoid conflicts.
    """
    lists: dict[object, list[tuple[RowKey, RowKey | None]]] = {}
    if is_shared(index):
        wanted_keys = yield from in_parallel(
            context, [_list_of(context, index, key) for key in keys]
        )
        for key, wanted in zip(keys, wanted_keys, strict=True):
            lists.setdefault(wanted, []).append((key, wanted))
    else:
        lists = {key: [(key, None)] for key in keys}
    chains = [_reindex_chain(context, index, each, counter) for each in lists.values()]
    yield from in_parallel(context, chains)


def is_shared(index: AnyIndex) -> bool:
    """Return whether one row or blob of an index holds several entities."""
    return isinstance(index, ListIndex) and index.storage is not Storage.ROWS


def _list_of(context: Context, index: AnyIndex, key: RowKey) -> Steps[RowKey | None]:
    """Return the key of the list that an entity belongs to."""
    stored, _ = yield from load_as(context, index.owner, key)
    return index_rows.key_of(index, version_of(stored))


def _reindex_chain(
    context: Context,
    index: AnyIndex,
    members: Sequence[tuple[RowKey, RowKey | None]],
    counter: ProgressCounter,
) -> Steps[None]:
    for key, known in members:
        if index.is_local or is_shared(index):
            yield from reindex(context, index, key, [] if known is None else [known])
        else:
            yield from settle_absent(context, index, key)
        counter.add()


def reindex(
    context: Context, index: AnyIndex, key: RowKey, known: Sequence[RowKey] = ()
) -> Steps[None]:
    """Add one entity to an index; `known` are keys where it may be already."""
    if not index.is_local:
        yield from settle_index(context, index.owner, index, key, known)
        return
    looked_at: RowKey | None = None
    while True:
        stored, _ = yield from load_as(context, index.owner, key)
        if stored is None:
            return
        change = Change(
            stored.model, stored.origin, dict(stored.values), is_merge=True, reindexed=index
        )
        try:
            yield from write(context, [change])
        except UniqueViolationError as error:
            taken = RowKey(str(error.facts["partition_key"]), str(error.facts["row_key"]))
            if taken == looked_at:
                error.facts["entity"] = key.row  # because there is no object of the caller
                raise
            looked_at = taken
            yield from _remove_orphan(context, index, taken)
            continue  # because the value may be free now
        except ConflictError:
            continue  # because the entity changed: add the current one
        return


def replay(context: Context, model: EntityType[Any], name: str, progress: Progress) -> Steps[int]:
    """Call one view of a type with every stored entity.

    Deleted entities are not reported: first remove what the view wrote.
    """
    view = next((each for each in model.followers.views if each.name == name), None)
    if view is None:
        raise UsageError(
            "ViewUnknown",
            f"{model.name} has no view {name!r}.",
            facts={"type": model.name},
            hint=f"Views: {', '.join(each.name for each in model.followers.views) or 'none'}.",
        )
    done, query = 0, _entities(model)
    while True:
        page = yield from ask(query)
        for row in page.rows:
            yield from call_view(context, model, view, row.key)
            done += 1
            progress(done)
        if page.continuation is None:
            return done
        query = msgspec.structs.replace(query, continuation=page.continuation)


def disable(context: Context, index: AnyIndex, progress: Progress) -> Steps[int]:
    """Disable an index and remove its rows. Other writers must have stopped using it before."""
    yield from write_state(context, index, IndexState.DISABLED)
    return (yield from _clear(context, index, progress))


def _clear(context: Context, index: AnyIndex, progress: Progress) -> Steps[int]:
    """Remove everything that an index stored; return the number of rows or blobs."""
    counter = ProgressCounter(progress)
    if isinstance(index, ListIndex) and index.storage is Storage.BLOB:
        blobs = yield from _list_blobs(index)
        removals = [_remove_list(index, blob.name, counter) for blob in blobs]
    else:
        rows = yield from _index_rows(index, ("PartitionKey", "RowKey"))
        removals = [_remove_row(index, row.key, counter) for row in rows]
    yield from in_parallel(context, removals)
    return counter.done


def _remove_list(index: ListIndex[Any], name: str, counter: ProgressCounter) -> Steps[None]:
    yield from ask(DeleteBlob(index.container, name))
    counter.add()


def _remove_row(index: AnyIndex, key: RowKey, counter: ProgressCounter) -> Steps[None]:
    with contextlib.suppress(EntityNotFoundError):
        yield from ask(WriteRows(index.table, (RowOperation(Verb.DELETE, Row(key, {})),)))
    counter.add()


def ignore(_: int) -> None:
    """Ignore progress."""


def _index_rows(index: AnyIndex, select: tuple[str, ...] | None) -> Steps[list[Row]]:
    try:
        return (yield from read_all_rows(QueryRows(index.table, rows_filter(index), select)))
    except TableNotFoundError:
        return []


def _list_blobs(index: ListIndex[Any]) -> Steps[list[ListedBlob]]:
    blobs: list[ListedBlob] = []
    call = ListBlobs(index.container, list_blob_prefix(index))
    try:
        while True:
            page = yield from ask(call)
            blobs += page.blobs
            if not page.continuation:
                return blobs
            call = msgspec.structs.replace(call, continuation=page.continuation)
    except ConflictError as error:
        if error.code != "ContainerNotFound":
            raise
        return blobs


def rows_filter(index: AnyIndex) -> str:
    """Return the filter that selects the rows of an index."""
    name = index.owner.type_property
    if name is None:
        bounds = index.row.bounds({})
        here = bounds_text("RowKey", bounds.lower, bounds.upper)
        return " and ".join(filter(None, (here, f"({index_rows.MEMBER_ROW} ge '' or Ids0 ge '')")))
    return f"{name} eq {quoted(index.owner.name + COPY_MARK + index.name)}"


# ---------------------------------------------------------------------------------------------
# Verifying and repairing


_Wanted = dict[str, dict[RowKey, set[tuple[str, ...]]]]
"""By index and key of a row or list: the members that belong there."""


def verify(context: Context, model: EntityType[Any], progress: Progress) -> Steps[list[Drift]]:
    """Compare the entities of a type with their indexes and derived fields. Scans the tables."""
    found: list[Drift] = []
    counter, query = ProgressCounter(progress), _entities(model)
    indexes = [each for each in model.indexes if each in context.live_indexes(model)]
    wanted: _Wanted = {index.name: {} for index in indexes}
    while True:
        page = yield from ask(query)
        checks = [
            check_entity(context, model, row.key, indexes, counter)
            for row in of_type(model, page.rows)
        ]
        for checked in (yield from in_parallel(context, checks)):
            found += checked.drifts
            for name, key, member in checked.wanted:
                wanted[name].setdefault(key, set()).add(member)
        if page.continuation is None:
            break
        query = msgspec.structs.replace(query, continuation=page.continuation)
    for index in indexes:
        found += yield from _orphans(context, index, wanted[index.name])
    return found


class Checked(msgspec.Struct):
    """The result of checking one entity: its drifts, and what its indexes should hold."""

    drifts: list[Drift] = []
    wanted: list[tuple[str, RowKey, tuple[str, ...]]] = []


def check_entity(
    context: Context,
    model: EntityType[Any],
    key: RowKey,
    indexes: Sequence[AnyIndex],
    counter: ProgressCounter,
) -> Steps[Checked]:
    """Compare one entity with its rows in indexes and with its derived fields."""
    checked = Checked()
    stored, _ = yield from load_as(context, model, key)
    version = version_of(stored)
    if stored is not None and version is not None:
        for index in indexes:
            place = index_rows.key_of(index, version)
            if place is None:
                continue
            member = index_rows.member_name(index, key) if isinstance(index, ListIndex) else ()
            checked.wanted.append((index.name, place, tuple(member)))
            kind = yield from _compare(context, index, place, version)
            if kind:
                checked.drifts.append(Drift(kind, index.name, model.table, key))
        for field in stored.model.fields.values():
            if field.derived is not None:
                is_right = yield from _is_derived(context, stored.model, field.name, stored.values)
                if not is_right:
                    checked.drifts.append(Drift("wrong", field.name, model.table, key))
    counter.add()
    return checked


def _compare(
    context: Context, index: AnyIndex, key: RowKey, version: index_rows.Version
) -> Steps[str]:
    if isinstance(index, ListIndex) and index.storage is not Storage.ROWS:
        if index.storage is Storage.BLOB:
            members = (yield from read_list_blob(index, key)).members
        else:
            row = yield from ask(GetRow(index.table, key))
            members = [] if row is None else index_rows.members_in(row.properties)
        return "" if index_rows.member_name(index, version.key) in members else "missing"
    there = yield from ask(GetRow(index.table, key))
    if there is None:
        return "missing"
    return "" if _has_same_values(context, index, there, version) else "stale"


def _has_same_values(
    context: Context, index: AnyIndex, there: Row, version: index_rows.Version
) -> bool:
    """Return whether a row of an index has the stored values of its entity.

    Values are compared, not properties: an absent property is read as the default of its field.
    """
    expected = index_rows.row_of(index, version, context.sealing)
    assert expected is not None
    ours, theirs = expected.properties, there.properties
    marks = [
        index_rows.MEMBER_PARTITION,
        index_rows.MEMBER_ROW,
        VERSION,
        index.owner.type_property or "",
    ]
    if any(ours.get(name) != theirs.get(name) for name in marks):
        return False
    if isinstance(index, ListIndex):
        return True
    if shows_secrets(there, expected):
        return False
    try:
        copied = read_copy(index, there, context.sealing)
    except InvalidPropertyError:
        return False
    return all(are_same(copied[name], version.values[name]) for name in index.copied)


def _is_derived(
    context: Context, model: EntityType[Any], name: str, values: dict[str, Any]
) -> Steps[bool]:
    field = model.fields[name]
    source, marker = model.source_of(field), field.derived
    if isinstance(marker, CopiedFrom):
        key = derived_fields.source_key(source, marker, values)
        found = None
        if key is not None:
            found, _ = yield from load_as(context, source, key)
        expected = None if found is None else found.values[marker.field]
    else:
        assert marker is not None
        expected = yield from summarise(context, source, marker, values)
    return are_same(values[name], expected)


def _orphans(
    context: Context, index: AnyIndex, wanted: Mapping[RowKey, set[tuple[str, ...]]]
) -> Steps[list[Drift]]:
    """Find rows of an index without an entity, and lists with a wrong member."""
    orphans: list[RowKey] = []
    if isinstance(index, ListIndex) and index.storage is not Storage.ROWS:
        for key, members in (yield from _lists(context, index)):
            if not members or not members <= wanted.get(key, set()):
                orphans.append(key)
    else:
        rows = yield from _index_rows(index, ("PartitionKey", "RowKey"))
        orphans = [row.key for row in rows if row.key not in wanted]
    return [Drift("orphan", index.name, index.table, key) for key in orphans]


def _lists(
    context: Context, index: ListIndex[Any]
) -> Steps[list[tuple[RowKey, set[tuple[str, ...]]]]]:
    """Return the keys of all lists of an index, and the members in each."""
    if index.storage is Storage.BLOB:
        blobs = yield from _list_blobs(index)
        keys = [list_blob_key(index, blob) for blob in blobs]
        reads = [read_list_blob(index, key) for key in keys]
        lists = yield from in_parallel(context, reads)
        return [
            (key, set(map(tuple, listed.members))) for key, listed in zip(keys, lists, strict=True)
        ]
    rows = yield from _index_rows(index, None)
    return [(row.key, set(map(tuple, index_rows.members_in(row.properties)))) for row in rows]


def repair(
    context: Context, model: EntityType[Any], drifts: Sequence[Drift], progress: Progress
) -> Steps[int]:
    """Repair what `verify` found; each difference is checked again first.

    Orphans are removed first: one may hold a unique value that the copy of an entity needs.
    """
    counter, indexes = ProgressCounter(progress), {each.name: each for each in model.indexes}
    orphans: dict[object, list[Drift]] = {}
    absent: dict[str, list[RowKey]] = {}
    wrong: dict[RowKey, list[Drift]] = {}
    for drift in drifts:
        index = indexes.get(drift.what)
        if index is None:
            wrong.setdefault(drift.key, []).append(drift)
        elif drift.kind == "orphan":
            # A member of an orphaned list may belong to another list, which has other members too.
            apart = drift.what if is_shared(index) else (drift.what, drift.key)
            orphans.setdefault(apart, []).append(drift)
        else:
            absent.setdefault(drift.what, []).append(drift.key)
    removals = [_remove_orphans(context, indexes, each, counter) for each in orphans.values()]
    yield from in_parallel(context, removals)
    for name, keys in absent.items():
        yield from _reindex_all(context, indexes[name], keys, counter)
    derivations = [_derive_again(context, model, each, counter) for each in wrong.values()]
    yield from in_parallel(context, derivations)
    return counter.done


def _remove_orphans(
    context: Context,
    indexes: Mapping[str, AnyIndex],
    drifts: Sequence[Drift],
    counter: ProgressCounter,
) -> Steps[None]:
    for drift in drifts:
        yield from _remove_orphan(context, indexes[drift.what], drift.key)
        counter.add()


def _derive_again(
    context: Context, model: EntityType[Any], drifts: Sequence[Drift], counter: ProgressCounter
) -> Steps[None]:
    """Derive the fields of one owner again, one after the other."""
    for drift in drifts:
        if drift.kind == "wrong":
            for dependent in derived_fields.dependents_of(model, drift.what):
                yield from settle_owner(context, dependent, drift.key)
        counter.add()


def _remove_orphan(context: Context, index: AnyIndex, key: RowKey) -> Steps[None]:
    """Settle an index row or a list for every entity that it refers to."""
    if isinstance(index, ListIndex) and index.storage is Storage.BLOB:
        names = (yield from read_list_blob(index, key)).members
    else:
        row = yield from ask(GetRow(index.table, key))
        if row is None:
            return
        if isinstance(index, ListIndex) and index.storage is not Storage.ROWS:
            names = index_rows.members_in(row.properties)
        else:
            member = index_rows.member_of(row, is_local=index.is_local)
            names = [[member.partition, member.row]]
    for name in names:
        owner = RowKey(*name) if len(name) == 2 else RowKey(key.partition, name[0])
        yield from settle_index(context, index.owner, index, owner, [key])


# ---------------------------------------------------------------------------------------------
# Blobs without an entity


def collect_blobs(context: Context, container: str, progress: Progress) -> Steps[int]:
    """Remove blobs that were written for an entity that was never stored.

    Younger blobs are kept: their entity may be about to be written.
    """
    before = context.clock.ticks() / TICKS_PER_SECOND - context.options.blob_grace
    done, continuation = 0, ""
    while True:
        page = yield from ask(ListBlobs(container, continuation=continuation))
        for blob in page.blobs:
            owner = entity_of(blob.metadata)
            if owner is None or blob.modified.timestamp() > before:
                continue
            table, key = owner
            if not (yield from _is_used(context, table, key, container, blob.name)):
                yield from remove_blob(container, blob.name, blob.etag)
                done += 1
                progress(done)
        if not page.continuation:
            return done
        continuation = page.continuation


def _is_used(context: Context, table: str, key: RowKey, container: str, name: str) -> Steps[bool]:
    """Return whether the entity that a blob was written for refers to it, or may do so.

    It may if the type of the entity, or its version, is not known to this program.
    """
    models = [
        model
        for model in context.models.values()
        if model.table.lower() == table.lower()
        and model.partition.matches(key.partition)
        and model.row.matches(key.row)
    ]
    is_known = False
    for model in models:
        try:
            stored = yield from load(context, model, key)
        except (UnknownTypeError, NewerVersionError):
            continue
        is_known = True
        if refers_to(stored, container, name):
            return True
    return not is_known
