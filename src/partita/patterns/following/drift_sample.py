"""Look for drift in a sample of a type's entities and index rows; nothing is changed.

`verify` of the index life cycle reads whole tables and so finds every orphan. A sample is bounded:
it reads the first entities of a type, and the first rows of each index, whose entities it looks up.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from partita.errors import ConflictError, TableNotFoundError
from partita.patterns.following.bring_up_to_date import (
    list_blob_key,
    list_blob_prefix,
    load_as,
    read_list_blob,
    version_of,
)
from partita.patterns.following.index_lifecycle import (
    Drift,
    check_entity,
    of_type,
    read_state,
    rows_filter,
    type_filter,
)
from partita.patterns.following.progress_counter import Progress, ProgressCounter
from partita.patterns.protocol.calls import ListBlobs, QueryRows, Steps, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, ListIndex, Storage
from partita.patterns.writing import index_rows
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import in_parallel

PAGES_MAX = 100
"""Pages that are read for a sample; those without a row of the type count, too."""
PAGE_ROWS = 200


class Sample(msgspec.Struct):
    """What was compared, and what differs."""

    entities: int = 0
    rows: int = 0
    """Rows of indexes, or lists, whose entities were looked up."""
    is_whole: bool = True
    """Whether the sample is everything."""
    drifts: list[Drift] = []


def sample_drift(
    context: Context, model: EntityType[Any], limit: int, progress: Progress
) -> Steps[Sample]:
    """Compare at most `limit` entities of a type, and as many rows of each of its indexes."""
    for index in model.indexes:
        yield from read_state(context, index)
    indexes = [each for each in model.indexes if each in context.live_indexes(model)]
    sample, counter = Sample(), ProgressCounter(progress)
    query = QueryRows(model.table, type_filter(model), ("PartitionKey", "RowKey"))
    rows = yield from _first_rows(query, limit, model, sample)
    sample.entities = len(rows)
    checks = [check_entity(context, model, row.key, indexes, counter) for row in rows]
    for checked in (yield from in_parallel(context, checks)):
        sample.drifts += checked.drifts
    for index in indexes:
        listed = yield from _members(context, index, limit, sample)
        sample.rows += len(listed)
        looks = [_is_orphan(context, index, *each, counter) for each in listed]
        orphans = yield from in_parallel(context, looks)
        sample.drifts += [
            Drift("orphan", index.name, index.table, key)
            for (key, _), is_orphan in zip(listed, orphans, strict=True)
            if is_orphan
        ]
    return sample


def _first_rows(
    query: QueryRows, limit: int, model: EntityType[Any] | None, sample: Sample
) -> Steps[list[Row]]:
    """Read the first rows of a query, those of a type if one is given."""
    rows: list[Row] = []
    for _ in range(PAGES_MAX):
        size = min(PAGE_ROWS, limit - len(rows))
        try:
            page = yield from ask(msgspec.structs.replace(query, size=size))
        except TableNotFoundError:
            return rows
        rows += page.rows if model is None else of_type(model, page.rows)
        if page.continuation is None:
            return rows
        if len(rows) >= limit:
            break
        query = msgspec.structs.replace(query, continuation=page.continuation)
    sample.is_whole = False
    return rows[:limit]


_Listed = tuple[RowKey, Sequence[RowKey]]
"""A row or a list of an index, and the entities that it names."""


def _members(
    context: Context, index: AnyIndex, limit: int, sample: Sample
) -> Steps[Sequence[_Listed]]:
    if isinstance(index, ListIndex) and index.storage is Storage.BLOB:
        keys = yield from _blob_keys(index, limit, sample)
        lists = yield from in_parallel(context, [read_list_blob(index, key) for key in keys])
        return [
            (key, [_owner(key, name) for name in listed.members])
            for key, listed in zip(keys, lists, strict=True)
        ]
    rows = yield from _first_rows(QueryRows(index.table, rows_filter(index)), limit, None, sample)
    if isinstance(index, ListIndex) and index.storage is not Storage.ROWS:
        return [
            (row.key, [_owner(row.key, name) for name in index_rows.members_in(row.properties)])
            for row in rows
        ]
    return [(row.key, [index_rows.member_of(row, is_local=index.is_local)]) for row in rows]


def _blob_keys(index: ListIndex[Any], limit: int, sample: Sample) -> Steps[list[RowKey]]:
    try:
        page = yield from ask(ListBlobs(index.container, list_blob_prefix(index)))
    except ConflictError as error:
        if error.code != "ContainerNotFound":
            raise
        return []
    if page.continuation or len(page.blobs) > limit:
        sample.is_whole = False
    return [list_blob_key(index, blob) for blob in page.blobs[:limit]]


def _owner(key: RowKey, name: Sequence[str]) -> RowKey:
    return RowKey(*name) if len(name) == 2 else RowKey(key.partition, name[0])


def _is_orphan(
    context: Context,
    index: AnyIndex,
    key: RowKey,
    members: Sequence[RowKey],
    counter: ProgressCounter,
) -> Steps[bool]:
    """Return whether a row or list of an index names an entity that does not belong there."""
    counter.add()
    for member in members:
        stored, _ = yield from load_as(context, index.owner, member)
        if index_rows.key_of(index, version_of(stored)) != key:
            return True
    return not members
