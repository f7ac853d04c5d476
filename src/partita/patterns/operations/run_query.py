"""Run the plan of a query, page by page.

An empty page is not the end; only a missing continuation is.

Where conditions are decided in the client, pages of the service are read ahead, and the last one is
cut after the last entity that was requested. The service has no continuation for such a position:
in one partition the next page is bounded by the last row key; over several partitions the cut page
is read again from its start, and the entities before the cut are left out.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

import msgspec

from partita.errors import ScanRefusedError, TornReadError
from partita.patterns.design.explain import explain
from partita.patterns.encryption import sealing
from partita.patterns.fields.load_state import snapshot
from partita.patterns.following.bring_up_to_date import read_list_blob
from partita.patterns.following.index_lifecycle import require_readable
from partita.patterns.keys.key_text import just_above
from partita.patterns.operations.continuations import (
    PAGE_SIZE_MAX,
    Position,
    Reader,
    Slice,
    fingerprint,
)
from partita.patterns.operations.raw import to_raw
from partita.patterns.planning.columns import Condition, fields_in
from partita.patterns.planning.filter_text import evaluate, evaluate_values
from partita.patterns.planning.plans import (
    PointRead,
    QueryKind,
    QueryPlan,
    RangeRead,
    Read,
    ScanRead,
)
from partita.patterns.protocol.calls import Continuation, GetRow, Parallel, QueryRows, Steps, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType, Origin
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex, Storage, list_of
from partita.patterns.types.projections import Partial
from partita.patterns.types.row_layout import HIDDEN_MARK, PARTS, STAMP, VERSION, place_of
from partita.patterns.writing import index_rows
from partita.patterns.writing.claims import CLAIM
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find, in_parallel, to_entity
from partita.patterns.writing.rows import Stored, from_rows, read_copy, read_some

READ_AHEAD = 4
"""The factor by which more rows are requested as long as some of them do not match."""


Misfits = Literal["raise", "skip", "raw"]
"""What to do with a stored entity whose keys do not fit the templates of the type."""


class Ask(msgspec.Struct, frozen=True):
    """A query to run."""

    plan: QueryPlan
    is_scan_allowed: bool = False
    selected: tuple[str, ...] | None = None
    """The fields of a projection; None for whole entities."""
    is_verified: bool = False
    """Read each entity that an index refers to, and leave out those that have changed."""
    make: Callable[[dict[str, Any]], Any] | None = None
    """Creates the objects of a projection."""
    misfits: Misfits = "raise"

    @property
    def model(self) -> EntityType[Any]:
        return self.plan.asked.model


class QueryTerms(msgspec.Struct, frozen=True):
    """What a query was built from, before it is planned."""

    given: Mapping[str, Any]
    """Values or intervals of key fields."""
    condition: Condition | None = None
    via: AnyIndex | None = None
    is_scan_allowed: bool = False
    selected: tuple[str, ...] | None = None
    make: Callable[[dict[str, Any]], Any] | None = None
    count_max: int | None = None
    verify: bool = False
    misfits: Misfits = "raise"
    is_latest: bool = False


def fingerprint_of(query: Ask) -> str:
    """Return the fingerprint of a query."""
    described = [query.plan.table, query.plan.filter]
    described += [request.bounds_text() for request in query.plan.requests]
    described += [",".join(query.selected or ()), repr(query.plan.client)]
    described += [] if query.misfits == "raise" else [query.misfits]
    return fingerprint(described)


def check_allowed(query: Ask) -> None:
    """Refuse a scan that was not allowed, with advice."""
    if query.plan.is_refused and not query.is_scan_allowed:
        raise ScanRefusedError(
            "ScanRefused",
            f"This query reads the whole table {query.plan.table!r} or many of its partitions.",
            facts={"type": query.model.name, "table": query.plan.table},
            hint=f"Call allow_scan() to run it anyway.\n{explain(query.plan)}",
        )


def reader_of(context: Context, query: Ask, count_max: int | None = None) -> Reader:
    """Return how a query is read; refuse a scan that was not allowed."""
    check_allowed(query)
    return Reader(
        partial(read_slice, context, query),
        partial(fingerprint_of, query),
        count_max,
        # If a filter is applied here, a small page may hold no match: read full pages then.
        is_counted=query.plan.client is None,
    )


def read_slice(context: Context, query: Ask, position: Position, size: int | None) -> Steps[Slice]:
    """Read up to `size` entities (None: one page of the service) from a position on."""
    check_allowed(query)
    via = query.plan.asked.via
    if via is not None:
        yield from require_readable(context, via)
    if query.plan.is_merged:
        context.capabilities.require_ordered("Reading a spread partition in order")
        return (yield from _read_merged(context, query, position, size))
    is_points = query.plan.kind is QueryKind.POINTS and via is None
    found: list[Any] = []
    at: Position | None = position
    ahead = 1
    while at is not None and (size is None or len(found) < size):
        wanted = None if size is None else size - len(found)
        if is_points:
            piece = yield from _read_points(context, query, at, wanted or PAGE_SIZE_MAX)
        else:
            piece = yield from _read_request(context, query, at, wanted, ahead)
        found += piece.entities
        at = piece.position
        if size is None and found:
            break
        if piece.has_misses and context.capabilities.is_ordered:  # else a page cannot be cut
            ahead = min(ahead * READ_AHEAD, PAGE_SIZE_MAX)
    return Slice(found, at)


def read_all(context: Context, query: Ask) -> Steps[list[Any]]:
    """Read all entities of a query."""
    found: list[Any] = []
    position: Position | None = Position()
    while position is not None:
        piece = yield from read_slice(context, query, position, None)
        found += piece.entities
        position = piece.position
    return found


def read_each(context: Context, queries: Sequence[Ask], limit: int) -> Steps[list[list[Any]]]:
    """Run several queries in parallel; return their answers in order, or the first error."""
    answers = yield from ask(Parallel(tuple(read_all(context, query) for query in queries), limit))
    return list(answers)


def _read_request(
    context: Context, query: Ask, position: Position, size: int | None, ahead: int
) -> Steps[Slice]:
    """Send one request of the plan, for `ahead` times as many rows as wanted entities."""
    requests = query.plan.requests
    if position.request >= len(requests):
        return Slice([])
    read = requests[position.request]
    following = position.request + 1
    after = Position(following) if following < len(requests) else None
    via = query.plan.asked.via
    if isinstance(via, ListIndex) and via.storage is not Storage.ROWS:
        return (yield from _read_lists(context, query, position, size, after))
    if isinstance(read, PointRead):
        found = yield from _read_point(context, query, read.key)
        return Slice(found, after)
    page = yield from ask(_query_page(context, query, read, position, size, ahead))
    passed = position.passed
    rows: Sequence[Row] = page.rows
    if isinstance(read, ScanRead) and passed is not None:
        rows, passed = _rows_after(rows, passed)
    entities = yield from _entities(context, query, rows)
    has_misses = len(entities) < len(rows)
    if size is not None and len(entities) > size:
        last = list(entities)[size - 1]
        return Slice(list(entities.values())[:size], _cut_after(last, read, position, page.rows))
    if page.continuation is not None:
        at = page.continuation
        after = Position(position.request, at.partition, at.row, passed=passed)
    return Slice(list(entities.values()), after, has_misses)


def _query_page(
    context: Context,
    query: Ask,
    read: RangeRead | ScanRead,
    position: Position,
    size: int | None,
    ahead: int,
) -> QueryRows:
    is_rest = position.partition is not None
    if isinstance(read, RangeRead) and position.passed is not None:
        read = _after(read, position.passed.row)
    return QueryRows(
        query.plan.table,
        query.plan.filter_of(read),
        _select(context, query),
        None if size is None else min(size * ahead + position.seen, PAGE_SIZE_MAX),
        Continuation(position.partition or "", position.row) if is_rest else None,
    )


def _cut_after(
    last: RowKey, read: RangeRead | ScanRead, position: Position, rows: Sequence[Row]
) -> Position:
    """Return the position in a page that had more entities than requested."""
    if isinstance(read, RangeRead):
        return Position(position.request, passed=last)
    seen = next(place for place, row in enumerate(rows, 1) if row.key == last)
    return msgspec.structs.replace(position, passed=last, seen=seen)


def _rows_after(rows: Sequence[Row], passed: RowKey) -> tuple[Sequence[Row], RowKey | None]:
    """Return the rows after the last returned one, and that one if it was not met."""
    for place, row in enumerate(rows, 1):
        if row.key == passed:
            return rows[place:], None
    # It is in a later page, or was deleted. Services sort by code points or by UTF-16 units: only a
    # row that precedes it in both orders was certainly returned.
    before = [_are_ordered(row.key, passed) for row in rows]
    return [row for row, is_before in zip(rows, before, strict=True) if not is_before], passed


def _are_ordered(this: RowKey, that: RowKey) -> bool:
    return this < that and _units(this) < _units(that)


def _units(key: RowKey) -> tuple[bytes, bytes]:
    return key.partition.encode("utf-16-be"), key.row.encode("utf-16-be")


def _read_points(context: Context, query: Ask, position: Position, size: int) -> Steps[Slice]:
    """Read several points in parallel, in the order of their keys."""
    requests = query.plan.requests[position.request : position.request + size]
    keys = [read.key for read in requests if isinstance(read, PointRead)]
    answers = yield from in_parallel(context, (_read_point(context, query, key) for key in keys))
    end = position.request + len(requests)
    after = Position(end) if end < len(query.plan.requests) else None
    return Slice([entity for found in answers for entity in found], after)


def _read_point(context: Context, query: Ask, key: RowKey) -> Steps[list[Any]]:
    via = query.plan.asked.via
    if via is None and query.selected is None:
        entity = yield from find(context, query.model, key)
        return [entity] if entity is not None and _is_wanted(query, entity) else []
    row = yield from ask(GetRow(query.plan.table, key, _select(context, query)))
    if row is None:
        return []
    return list((yield from _entities(context, query, [row])).values())


def _is_wanted(query: Ask, entity: Any) -> bool:
    return _holds(query, query.model.values(entity))


def _select(context: Context, query: Ask) -> tuple[str, ...] | None:
    """Return the properties to request, with the keys, the type and the seal."""
    if query.selected is None or (query.plan.asked.via is None and not _is_enough(query)):
        return None
    model, via = query.model, query.plan.asked.via
    needed = _needed(query)
    if via is not None:
        needed &= set(via.copied) if isinstance(via, Index) else set()  # else the entity is read
    names = [name for each in sorted(needed) for name in model.fields[each].property_names]
    ours = [model.type_property, VERSION] if model.type_property else [VERSION]
    if via is not None:
        keys = [model.fields[name].property for name in model.key_fields]
        names += [*keys, index_rows.MEMBER_ROW, index_rows.MEMBER_PARTITION, CLAIM]
    selected = ["PartitionKey", "RowKey", *names, *(name for name in ours if name)]
    if model.encrypt is not None or any(model.fields[each].is_encrypted for each in needed):
        # Request the seal even without a keyring: unsealed properties can be read without one.
        selected += sealing.needed_for(selected, context.keyring)
    return tuple(dict.fromkeys(selected))


def _is_enough(query: Ask) -> bool:
    """Return whether the properties of a projection are sufficient to read its fields.

    An upcaster may need other properties, and a wide entity has further rows.
    """
    return not any(
        each.upcasters or each.layout.places.get(stored, 0)
        for each in query.model.family()
        for name in _needed(query)
        for stored in each.fields[name].property_names
    )


# ---------------------------------------------------------------------------------------------
# Rows to entities


def _entities(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[dict[RowKey, Any]]:
    """Return the matching entities, by the key of their row or of the first row of a wide one."""
    via = query.plan.asked.via
    is_wide = any(each.is_wide for each in query.model.family())
    if (
        via is None and query.model.type_property is None
    ):  # then hidden rows are known by their keys
        rows = [row for row in rows if not _is_library_row(row, is_wide=is_wide)]
    if isinstance(via, Index):
        return (yield from _from_copies(context, query, via, rows))
    if isinstance(via, ListIndex):
        return (yield from _members(context, query, via, rows))
    fitting = rows if query.misfits == "raise" else [row for row in rows if _fits(query, row)]
    entities = yield from _typed(context, query, fitting)
    if query.misfits != "raw" or len(fitting) == len(rows):
        return entities
    typed = {row.key for row in fitting}
    raws = {
        row.key: to_raw(row) for row in rows if row.key not in typed and _is_raw_wanted(query, row)
    }
    found = entities | raws
    return {row.key: found[row.key] for row in rows if row.key in found}


def _fits(query: Ask, row: Row) -> bool:
    """Return whether the keys of a row fit the type or a derived type."""
    return any(
        each.partition.matches(row.key.partition) and each.row.matches(row.key.row)
        for each in query.model.family()
    )


def _is_raw_wanted(query: Ask, row: Row) -> bool:
    client = query.plan.client
    return client is None or evaluate(client, row.properties)


def _typed(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[dict[RowKey, Any]]:
    is_wide = any(each.is_wide for each in query.model.family())
    is_parted = any(PARTS in row.properties for row in rows)
    if query.selected is not None:
        if not is_parted:
            return _partials(context, query, rows)
        entities = yield from _from_wide(context, query, rows)
        return {
            key: _partial(query, query.model.values(entity)) for key, entity in entities.items()
        }
    if is_wide or is_parted:
        return (yield from _from_wide(context, query, rows))
    stored = [from_rows(query.model, [row], context.sealing) for row in rows]
    return (yield from _filled(context, query, stored))


def _is_library_row(row: Row, *, is_wide: bool) -> bool:
    """Return whether a row, by its keys, is hidden or a further row of a wide entity."""
    is_hidden = HIDDEN_MARK in (row.key.partition[:1], row.key.row[:1])
    return is_hidden or (is_wide and place_of(row.key.row)[1] > 0)


def _from_wide(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[dict[RowKey, Any]]:
    """Join the rows of wide entities; an entity that was cut by a page is read again."""
    grouped: dict[RowKey, list[Row]] = {}
    for row in rows:
        first, place = place_of(row.key.row) if STAMP in row.properties else (row.key.row, 0)
        key = RowKey(row.key.partition, first)
        if place == 0 or key in grouped:  # the first rows of others were in the previous page
            grouped.setdefault(key, []).append(row)
    found = yield from in_parallel(
        context, (_whole(context, query, key, parts) for key, parts in grouped.items())
    )
    return {key: entity for entities in found for key, entity in entities.items()}


def _whole(context: Context, query: Ask, key: RowKey, parts: list[Row]) -> Steps[dict[RowKey, Any]]:
    parts.sort(key=lambda row: place_of(row.key.row)[1])
    try:
        stored = from_rows(query.model, parts, context.sealing)
    except TornReadError:
        return (yield from _find_all(context, query, [key]))
    return (yield from _filled(context, query, [stored]))


def _filled(context: Context, query: Ask, stored: Sequence[Stored]) -> Steps[dict[RowKey, Any]]:
    """Create objects, and read their large values in parallel."""
    if any(each.unread() for each in stored):
        keys = [each.origin.key for each in stored]
        return (yield from _find_all(context, query, keys))
    entities = {each.origin.key: to_entity(each, each.values) for each in stored}
    return _wanted(query, entities)


def _find_all(context: Context, query: Ask, keys: Sequence[RowKey]) -> Steps[dict[RowKey, Any]]:
    found = yield from in_parallel(context, (find(context, query.model, key) for key in keys))
    return _wanted(query, dict(zip(keys, found, strict=True)))


def _wanted(query: Ask, entities: Mapping[RowKey, Any]) -> dict[RowKey, Any]:
    return {
        key: entity
        for key, entity in entities.items()
        if entity is not None and _is_wanted(query, entity)
    }


def _partials(context: Context, query: Ask, rows: Sequence[Row]) -> dict[RowKey, Any]:
    made: dict[RowKey, Any] = {}
    for row in rows:
        values = read_some(query.model, row, _needed(query), context.sealing)
        if _holds(query, values):
            made[row.key] = _partial(query, values)
    return made


def _needed(query: Ask) -> set[str]:
    names = set(query.selected or ())
    if query.plan.client is not None:
        names |= {field.name for field in fields_in(query.plan.client)}
    return names


def _partial(query: Ask, values: Mapping[str, Any]) -> Any:
    selected = {name: values[name] for name in query.selected or () if name in values}
    if query.make:
        return query.make(selected)
    keys = query.model.key_fields
    known = {name: values[name] for name in keys} if all(name in values for name in keys) else {}
    return Partial(query.model.name, selected, known)


# ---------------------------------------------------------------------------------------------
# Indexes


def _from_copies(
    context: Context, query: Ask, via: Index[Any], rows: Sequence[Row]
) -> Steps[dict[RowKey, Any]]:
    if query.is_verified or not _have_copies_all_fields(query, via, rows):
        return (yield from _members(context, query, via, rows))
    only = None if query.selected is None else _needed(query) | set(query.model.key_fields)
    copied = {row.key: read_copy(via, row, context.sealing, only) for row in rows}
    if query.selected is not None:
        return {key: _partial(query, one) for key, one in copied.items() if _holds(query, one)}
    stored = {
        row.key: Stored(query.model, copied[row.key], _origin(via, row, copied[row.key]))
        for row in rows
    }
    if any(each.unread() for each in stored.values()):
        return (yield from _members(context, query, via, rows))
    return _wanted(query, {key: to_entity(each, each.values) for key, each in stored.items()})


def _have_copies_all_fields(query: Ask, via: Index[Any], rows: Sequence[Row]) -> bool:
    """Return whether copies have all requested fields, in the current version of the type."""
    if query.model is not via.owner:
        return False  # because a copy does not record a derived type
    if any(row.properties.get(VERSION, 1) != via.owner.version for row in rows):
        return False
    if any(CLAIM in row.properties for row in rows):
        return False  # because a claim is not a copy: the entity may not exist
    if query.selected is None:
        return via.is_complete
    return _needed(query) <= {*via.key_fields, *via.copied}


def _holds(query: Ask, values: Mapping[str, Any]) -> bool:
    client = query.plan.client
    return client is None or evaluate_values(client, values)


def _origin(via: Index[Any], row: Row, values: Mapping[str, Any]) -> Origin:
    """Return the origin of an entity that was read from a copy; it has no etag."""
    member = index_rows.member_of(row, is_local=via.is_local)
    return Origin(key=member, etags=(), values=snapshot(values), timestamp=row.timestamp)


class _Member(msgspec.Struct, frozen=True):
    """A member of an index entity: its place there, and its key."""

    listed_in: RowKey
    place: int
    key: RowKey


def _read_lists(
    context: Context, query: Ask, position: Position, size: int | None, after: Position | None
) -> Steps[Slice]:
    """Read the members of index entities; a page may start and end inside one."""
    via, read = query.plan.asked.via, query.plan.requests[position.request]
    assert isinstance(via, ListIndex)
    position = _with_listed(position)
    if isinstance(read, PointRead):
        listed = yield from _listed(via, query.plan.table, read.key)
    else:
        page = yield from ask(_query_lists(query, read, position))
        listed = [(row.key, index_rows.members_in(row.properties)) for row in page.rows]
        if page.continuation is not None:
            at = page.continuation
            after = Position(position.request, at.partition, at.row)
            if all(key != position.listed for key, _ in listed):  # it is in a later page
                after = _cut_inside(after, position.listed, position.member, position.passed)
    members = _members_from(
        [
            _Member(key, place, RowKey(key.partition, name[0]) if via.is_local else RowKey(*name))
            for key, names in listed
            for place, name in enumerate(names)
        ],
        position,
    )
    is_from_keys = _have_lists_all_fields(query, via)
    taken, found = 0, list[Any]()
    while taken < len(members) and (size is None or len(found) < size):
        chunk = members[taken:]
        if size is not None and not is_from_keys:
            # If some members did not match, read as many as are read in parallel.
            count = size - len(found)
            chunk = chunk[: max(count, context.options.parallel) if taken else count]
        if is_from_keys:
            answers = [_from_keys(query, via, one.listed_in, one.key) for one in chunk]
        else:
            answers = yield from _each_member(context, query, [one.key for one in chunk])
        for entity in answers:
            taken += 1
            found += [] if entity is None else [entity]
            if size is not None and len(found) == size:
                break
    if taken < len(members):
        first = members[taken]
        # Over several partitions the page is read again, from its start.
        start = position if isinstance(read, ScanRead) else Position(position.request)
        after = _cut_inside(start, first.listed_in, first.place, first.key)
    return Slice(found, after)


def _with_listed(position: Position) -> Position:
    """Return a position in the current form: an older version stored the list as the start."""
    if position.member is None or position.listed is not None:
        return position
    listed = RowKey(position.partition or "", position.row or "")
    return Position(position.request, member=position.member, listed=listed)


def _cut_inside(
    start: Position, listed: RowKey | None, member: int | None, following: RowKey | None
) -> Position:
    return msgspec.structs.replace(start, member=member, passed=following, listed=listed)


def _members_from(members: Sequence[_Member], position: Position) -> Sequence[_Member]:
    """Return the members not returned yet; members may have been added and removed since."""
    cut = [one.key for one in members if one.listed_in == position.listed]
    if position.listed is None:
        return members
    if not cut:
        return [one for one in members if not _are_ordered(one.listed_in, position.listed)]
    start = next(i for i, one in enumerate(members) if one.listed_in == position.listed)
    if position.passed is None:
        place = min(position.member or 0, len(cut))
    elif position.passed in cut:
        place = cut.index(position.passed)
    else:
        place = sum(key < position.passed for key in cut)
    return members[start + place :]


def _query_lists(query: Ask, read: Read, position: Position) -> QueryRows:
    """Return the query for index entities, with full pages, because most have few members."""
    if isinstance(read, RangeRead) and position.listed is not None:
        read = msgspec.structs.replace(read, lower=max(read.lower, position.listed.row))
    continuation = None
    if position.partition is not None:
        continuation = Continuation(position.partition, position.row)
    return QueryRows(query.plan.table, query.plan.filter_of(read), continuation=continuation)


def _listed(
    via: ListIndex[Any], table: str, key: RowKey
) -> Steps[list[tuple[RowKey, list[list[str]]]]]:
    if via.storage is Storage.BLOB:
        return [(key, (yield from read_list_blob(via, key)).members)]
    row = yield from ask(GetRow(table, key))
    return [] if row is None else [(key, index_rows.members_in(row.properties))]


def _members(
    context: Context, query: Ask, via: AnyIndex, rows: Sequence[Row]
) -> Steps[dict[RowKey, Any]]:
    """Read the entities that rows of an index refer to, without those that do not match any more.

    If the rows of a list index have all requested fields, no entity is read.
    """
    members = [index_rows.member_of(row, is_local=via.is_local) for row in rows]
    if isinstance(via, ListIndex) and _have_lists_all_fields(query, via, rows):
        lists = [RowKey(row.key.partition, list_of(row.key.row)) for row in rows]
        found = [_from_keys(query, via, *pair) for pair in zip(lists, members, strict=True)]
    else:
        found = yield from _each_member(context, query, members)
    return {row.key: entity for row, entity in zip(rows, found, strict=True) if entity is not None}


def _have_lists_all_fields(
    query: Ask, via: ListIndex[Any], rows: Sequence[Row] | None = None
) -> bool:
    """Return whether the keys of a list index and of its members have all requested fields.

    An entity of an older version must be read itself to get its fields, and a list of several
    members does not record their versions.
    """
    owner = via.owner
    if query.selected is None or query.is_verified or query.model is not owner or owner.children:
        return False
    if rows is None and owner.upcasters:
        return False
    if any(row.properties.get(VERSION, 1) != owner.version for row in rows or ()):
        return False
    parts = (*via.partition.parts(), *via.row.parts())
    return _needed(query) <= {*owner.key_fields, *(part.field for part in parts if part.is_full)}


def _from_keys(query: Ask, via: ListIndex[Any], listed_in: RowKey, member: RowKey) -> Any:
    """Return the projection of a member, from the keys alone; None if it does not match."""
    values: dict[str, Any] = {}
    for keyed, key in ((via, listed_in), (via.owner, member)):
        values |= keyed.partition.parse(key.partition) | keyed.row.parse(key.row)
    return _partial(query, values) if _holds(query, values) else None


def _each_member(context: Context, query: Ask, members: Sequence[RowKey]) -> Steps[list[Any]]:
    """Return the entity or projection of each member; None for one that does not match."""
    via = query.plan.asked.via
    model = query.model if via is None else via.owner
    found = yield from in_parallel(context, (find(context, model, key) for key in members))
    return [_wanted_of(query, entity) for entity in found]


def _wanted_of(query: Ask, entity: Any) -> Any:
    if not isinstance(entity, query.model.cls) or not _is_wanted(query, entity):
        return None
    values = query.model.values(entity)
    is_still = all(
        limit.holds(values[name]) if hasattr(limit, "holds") else values[name] == limit
        for name, limit in query.plan.asked.given.items()
    )
    if not is_still:
        return None
    return entity if query.selected is None else _partial(query, values)


# ---------------------------------------------------------------------------------------------
# Partitions spread by a hash


def _read_merged(
    context: Context, query: Ask, position: Position, size: int | None
) -> Steps[Slice]:
    """Read the first rows of every part and merge them by row key.

    The rows of a part are taken in the order of the service, and each part continues after its own
    last row: none is left out, whatever order the service has.
    """
    passed = dict(position.parts)
    found: list[Any] = []
    ahead = 1
    while True:
        wanted = PAGE_SIZE_MAX if size is None else size - len(found)
        count = max(wanted, min(wanted * ahead, PAGE_SIZE_MAX))
        taken = yield from _first_of_all(context, query, passed, count)
        entities = yield from _entities(context, query, [row for _, row in taken])
        is_cut = len(entities) > wanted
        if is_cut:
            last = list(entities)[wanted - 1]
            end = next(place for place, (_, row) in enumerate(taken, 1) if row.key == last)
            taken = taken[:end]
        passed |= {place: row.key.row for place, row in taken}
        found += list(entities.values())[:wanted]
        if not is_cut and len(taken) < count:
            return Slice(found)
        if len(found) == size or (size is None and found):
            return Slice(found, Position(parts=passed))
        ahead = min(ahead * READ_AHEAD, PAGE_SIZE_MAX)


def _first_of_all(
    context: Context, query: Ask, passed: Mapping[int, str], count: int
) -> Steps[list[tuple[int, Row]]]:
    """Return the next rows of all parts together, each with the number of its part."""
    reads = [read for read in query.plan.requests if isinstance(read, RangeRead)]
    starts = [_after(read, passed.get(place)) for place, read in enumerate(reads)]
    parts = yield from in_parallel(
        context, (_first_rows(context, query, start, count) for start in starts)
    )
    heads = [[(place, row) for row in part] for place, part in enumerate(parts)]
    merged = heapq.merge(*heads, key=lambda head: (head[1].key.row, head[1].key.partition))
    return list(islice(merged, count))


def _after(read: RangeRead, passed: str | None) -> RangeRead:
    """Return the rest of a part after a row."""
    if passed is None:
        return read
    lower = just_above(passed)
    if lower is None:
        return msgspec.structs.replace(read, lower=passed, upper=passed)
    return msgspec.structs.replace(read, lower=lower)


def _first_rows(context: Context, query: Ask, read: Read, size: int) -> Steps[list[Row]]:
    rows: list[Row] = []
    call = QueryRows(
        query.plan.table,
        query.plan.filter_of(read),
        _select(context, query),
        min(size, PAGE_SIZE_MAX),
    )
    while True:
        page = yield from ask(call)
        rows += page.rows
        if page.continuation is None or len(rows) >= size:
            return rows[:size]
        call = msgspec.structs.replace(call, continuation=page.continuation)
