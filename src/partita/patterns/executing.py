"""Performing the plan of a query, page by page.

A position says where the next page starts, and nothing else: it can be stored, and used by
another process after a restart. It carries a mark of its query, so that it cannot be used with
another one. An empty page is not the end; only a missing continuation is.
"""

import base64
import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from partita.errors import ContinuationError, ScanRefusedError, TornReadError
from partita.patterns import copies, encryption
from partita.patterns.calls import Continuation, GetRow, Parallel, QueryRows, Steps, ask
from partita.patterns.columns import fields_in
from partita.patterns.context import Context
from partita.patterns.explaining import explain
from partita.patterns.filter_text import evaluate_values
from partita.patterns.foreign_json import decode
from partita.patterns.indexes import Index, ListIndex, Storage
from partita.patterns.key_text import just_above
from partita.patterns.layout import HIDDEN_MARK, PARTS, STAMP, VERSION, place_of
from partita.patterns.lifecycle import require_readable
from partita.patterns.model import EntityType, Origin
from partita.patterns.origins import snapshot
from partita.patterns.plans import PointRead, QueryKind, QueryPlan, RangeRead, Read, ScanRead
from partita.patterns.projections import Partial
from partita.patterns.reading import find, to_entity
from partita.patterns.rows import Stored, from_rows, read_copy, read_some
from partita.patterns.settling import read_list_blob
from partita.patterns.values import Row, RowKey

PAGE_SIZE_MAX = 1000
_FORMAT = 1


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which of the plan's requests comes next, and where in it."""

    request: int = 0
    partition: str | None = None
    row: str | None = None
    member: int | None = None
    """Where in the index entity of these keys the next page starts; None: the service said."""
    left: int | None = None
    """How many entities are left of the query's limit."""
    parts: dict[int, str] = {}
    """Of a merged query, the last row key that was taken from each of its parts."""


class Kept(msgspec.Struct, frozen=True):
    """A continuation as it is handed out."""

    version: int
    query: str
    position: Position


class Slice(msgspec.Struct, frozen=True):
    """Part of an answer; no position: that was all."""

    entities: list[Any]
    position: Position | None = None


class Ask(msgspec.Struct, frozen=True):
    """A query as it is performed."""

    plan: QueryPlan
    is_scan_allowed: bool = False
    selected: tuple[str, ...] | None = None
    """The fields of a projection; None for whole entities."""
    is_verified: bool = False
    """Read each entity itself that an index names, and leave out what has changed since."""
    make: Callable[[dict[str, Any]], Any] | None = None
    """Makes the objects of a projection."""

    @property
    def model(self) -> EntityType[Any]:
        return self.plan.asked.model


def mark_of(query: Ask) -> str:
    """Return what tells a query from others."""
    told = [query.plan.table, query.plan.filter]
    told += [request.bounds_text() for request in query.plan.requests]
    told += [",".join(query.selected or ()), repr(query.plan.client)]
    return hashlib.blake2b("\0".join(told).encode(), digest_size=8).hexdigest()


def print_continuation(query: Ask, position: Position | None) -> str | None:
    if position is None:
        return None
    kept = msgspec.json.encode(Kept(_FORMAT, mark_of(query), position))
    return base64.urlsafe_b64encode(kept).decode().rstrip("=")


def parse_continuation(query: Ask, text: str | None) -> Position:
    """Read a continuation that was handed out for this query."""
    if text is None:
        return Position()
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        kept = decode(raw, Kept)
    except (ValueError, AttributeError, TypeError) as error:
        raise ContinuationError(
            "ContinuationDamaged",
            "The continuation cannot be read.",
            hint="Give what page.continuation was, unchanged.",
        ) from error
    if kept.version != _FORMAT or kept.query != mark_of(query):
        raise ContinuationError(
            "ContinuationMismatch",
            "The continuation belongs to another query.",
            hint="Use the same type, keys, conditions and selection as for the page before.",
        )
    return kept.position


def check_allowed(query: Ask) -> None:
    """Refuse a scan that nobody asked for, with what would help."""
    if query.plan.is_refused and not query.is_scan_allowed:
        raise ScanRefusedError(
            "ScanRefused",
            f"This query reads the whole table {query.plan.table!r} or many of its partitions.",
            facts={"type": query.model.name, "table": query.plan.table},
            hint=f"Say allow_scan() if that is meant.\n{explain(query.plan)}",
        )


def read_page(
    context: Context, query: Ask, continuation: str | None, size: int, limit: int | None
) -> Steps[Slice]:
    """Read up to `size` entities from a continuation on, and all pages together `limit`."""
    start = parse_continuation(query, continuation)
    left = limit if continuation is None else start.left
    if left == 0:
        return Slice([])
    found = yield from read_slice(context, query, start, size if left is None else min(size, left))
    if left is None or found.position is None:
        return found
    left -= len(found.entities)
    following = msgspec.structs.replace(found.position, left=left)
    return Slice(found.entities, following if left > 0 else None)


def read_slice(context: Context, query: Ask, position: Position, size: int | None) -> Steps[Slice]:
    """Read up to `size` entities (None: one page of the service) from a position on."""
    check_allowed(query)
    via = query.plan.asked.via
    if via is not None:
        yield from require_readable(context, via)
    if query.plan.is_merged:
        context.capabilities.require_ordered("Reading a spread partition in order")
        return (yield from _read_merged(context, query, position, size or PAGE_SIZE_MAX))
    if query.plan.kind is QueryKind.POINTS and via is None:
        return (yield from _read_points(context, query, position, size or PAGE_SIZE_MAX))
    found: list[Any] = []
    at: Position | None = position
    while at is not None and (size is None or len(found) < size):
        wanted = None if size is None else size - len(found)
        piece = yield from _read_request(context, query, at, wanted)
        found += piece.entities
        at = piece.position
        if size is None and found:
            break
    return Slice(found, at)


def read_all(context: Context, query: Ask) -> Steps[list[Any]]:
    """Read everything that a query finds."""
    found: list[Any] = []
    position: Position | None = Position()
    while position is not None:
        piece = yield from read_slice(context, query, position, None)
        found += piece.entities
        position = piece.position
    return found


def read_each(context: Context, queries: Sequence[Ask], limit: int) -> Steps[list[list[Any]]]:
    """Read several queries at once, and answer in their order; the first error stops the rest."""
    answers = yield from ask(Parallel(tuple(read_all(context, query) for query in queries), limit))
    return list(answers)


def _read_request(
    context: Context, query: Ask, position: Position, size: int | None
) -> Steps[Slice]:
    """Send one request of the plan."""
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
    is_rest = position.partition is not None
    page = yield from ask(
        QueryRows(
            query.plan.table,
            query.plan.filter_of(read),
            _select(query),
            None if size is None else min(size, PAGE_SIZE_MAX),
            Continuation(position.partition or "", position.row) if is_rest else None,
        )
    )
    entities = yield from _entities(context, query, page.rows)
    if page.continuation is not None:
        at = page.continuation
        after = Position(position.request, at.partition, at.row)
    return Slice(entities, after)


def _read_points(context: Context, query: Ask, position: Position, size: int) -> Steps[Slice]:
    """Read several points at once, in the order of their keys."""
    requests = query.plan.requests[position.request : position.request + size]
    answers = yield from ask(
        Parallel(
            tuple(
                _read_point(context, query, read.key)
                for read in requests
                if isinstance(read, PointRead)
            ),
            context.options.parallel,
        )
    )
    end = position.request + len(requests)
    after = Position(end) if end < len(query.plan.requests) else None
    return Slice([entity for found in answers for entity in found], after)


def _read_point(context: Context, query: Ask, key: RowKey) -> Steps[list[Any]]:
    via = query.plan.asked.via
    if via is None and query.selected is None:
        entity = yield from find(context, query.model, key)
        return [entity] if entity is not None and _is_wanted(query, entity) else []
    row = yield from ask(GetRow(query.plan.table, key, _select(query)))
    return [] if row is None else (yield from _entities(context, query, [row]))


def _is_wanted(query: Ask, entity: Any) -> bool:
    client = query.plan.client
    return client is None or evaluate_values(client, query.model.values(entity))


def _select(query: Ask) -> tuple[str, ...] | None:
    """Return the properties to ask for: the keys, the type and the seal come along."""
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
        names += [*keys, copies.MEMBER_ROW, copies.MEMBER_PARTITION]
    selected = ["PartitionKey", "RowKey", *names, *(name for name in ours if name)]
    if model.encrypt is not None or any(model.fields[each].is_encrypted for each in needed):
        selected += encryption.needed_for(selected)  # what lies in the clear needs no keyring
    return tuple(dict.fromkeys(selected))


def _is_enough(query: Ask) -> bool:
    """Tell whether the properties of a projection alone say what it asks for.

    An upcaster makes fields of others that only it knows; a wide entity has further rows.
    """
    return not any(
        each.upcasters or each.layout.places.get(stored, 0)
        for each in query.model.family()
        for name in _needed(query)
        for stored in each.fields[name].property_names
    )


# ---------------------------------------------------------------------------------------------
# Rows to entities


def _entities(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[list[Any]]:
    via = query.plan.asked.via
    is_wide = any(each.is_wide for each in query.model.family())
    if via is None and query.model.type_property is None:  # then only keys tell our own rows
        rows = [row for row in rows if not _is_ours(row, is_wide=is_wide)]
    if isinstance(via, Index):
        return (yield from _from_copies(context, query, via, rows))
    if isinstance(via, ListIndex):
        return (yield from _from_lists(context, query, via, rows))
    is_parted = any(PARTS in row.properties for row in rows)
    if query.selected is not None:
        if not is_parted:
            return _partials(context, query, rows)
        entities = yield from _from_wide(context, query, rows)
        return [_partial(query, query.model.values(entity)) for entity in entities]
    if is_wide or is_parted:
        return (yield from _from_wide(context, query, rows))
    stored = [from_rows(query.model, [row], context.sealing) for row in rows]
    return (yield from _filled(context, query, stored))


def _is_ours(row: Row, *, is_wide: bool) -> bool:
    """Tell by its keys whether a row is hidden, or a further one of a wide entity."""
    is_hidden = HIDDEN_MARK in (row.key.partition[:1], row.key.row[:1])
    return is_hidden or (is_wide and place_of(row.key.row)[1] > 0)


def _from_wide(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[list[Any]]:
    """Put the rows of wide entities together; one that a page cut in two is read again."""
    grouped: dict[RowKey, list[Row]] = {}
    for row in rows:
        first, place = place_of(row.key.row) if STAMP in row.properties else (row.key.row, 0)
        key = RowKey(row.key.partition, first)
        if place == 0 or key in grouped:  # the first rows of others were in the page before
            grouped.setdefault(key, []).append(row)
    wholes = tuple(_whole(context, query, key, parts) for key, parts in grouped.items())
    found = yield from ask(Parallel(wholes, context.options.parallel))
    return [entity for entities in found for entity in entities]


def _whole(context: Context, query: Ask, key: RowKey, parts: list[Row]) -> Steps[list[Any]]:
    parts.sort(key=lambda row: place_of(row.key.row)[1])
    try:
        stored = from_rows(query.model, parts, context.sealing)
    except TornReadError:
        return (yield from _find_all(context, query, [key]))
    return (yield from _filled(context, query, [stored]))


def _filled(context: Context, query: Ask, stored: Sequence[Stored]) -> Steps[list[Any]]:
    """Make objects, with their large values read at once."""
    if any(each.references() for each in stored):
        keys = [each.origin.key for each in stored]
        return (yield from _find_all(context, query, keys))
    entities = [to_entity(each, each.values) for each in stored]
    return [entity for entity in entities if _is_wanted(query, entity)]


def _find_all(context: Context, query: Ask, keys: Sequence[RowKey]) -> Steps[list[Any]]:
    if not keys:
        return []
    found = yield from ask(
        Parallel(tuple(find(context, query.model, key) for key in keys), context.options.parallel)
    )
    return [entity for entity in found if entity is not None and _is_wanted(query, entity)]


def _partials(context: Context, query: Ask, rows: Sequence[Row]) -> list[Any]:
    made: list[Any] = []
    for row in rows:
        values = read_some(query.model, row, _needed(query), context.sealing)
        if query.plan.client is None or evaluate_values(query.plan.client, values):
            made.append(_partial(query, values))
    return made


def _needed(query: Ask) -> set[str]:
    names = set(query.selected or ())
    if query.plan.client is not None:
        names |= {field.name for field in fields_in(query.plan.client)}
    return names


def _partial(query: Ask, values: Mapping[str, Any]) -> Any:
    selected = {name: values[name] for name in query.selected or () if name in values}
    return query.make(selected) if query.make else Partial(query.model.name, selected)


# ---------------------------------------------------------------------------------------------
# Indexes


def _from_copies(
    context: Context, query: Ask, via: Index[Any], rows: Sequence[Row]
) -> Steps[list[Any]]:
    members = [copies.member_of(row, is_local=via.is_local) for row in rows]
    if query.is_verified or not _do_copies_tell(query, via, rows):
        return (yield from _members(context, query, members))
    only = None if query.selected is None else _needed(query)
    copied = [read_copy(via, row, context.sealing, only) for row in rows]
    if query.selected is not None:
        return [_partial(query, one) for one in copied if _holds(query, one)]
    stored = [
        Stored(query.model, values, _origin(member, row, values))
        for values, member, row in zip(copied, members, rows, strict=True)
    ]
    if any(each.references() for each in stored):
        return (yield from _members(context, query, members))
    entities = [to_entity(each, each.values) for each in stored]
    return [entity for entity in entities if _is_wanted(query, entity)]


def _do_copies_tell(query: Ask, via: Index[Any], rows: Sequence[Row]) -> bool:
    """Tell whether copies say all that is asked, as this version of the type says it."""
    if query.model is not via.owner:
        return False  # because a copy does not say of which type below the owner's it is
    if any(row.properties.get(VERSION, 1) != via.owner.version for row in rows):
        return False
    if query.selected is None:
        return via.is_complete
    return _needed(query) <= {*via.key_fields, *via.copied}


def _holds(query: Ask, values: Mapping[str, Any]) -> bool:
    client = query.plan.client
    return client is None or evaluate_values(client, values)


def _origin(member: RowKey, row: Row, values: Mapping[str, Any]) -> Origin:
    """Return the origin of an entity that was read from a copy: it knows no etag."""
    return Origin(key=member, etags=(), values=snapshot(values), timestamp=row.timestamp)


def _from_lists(
    context: Context, query: Ask, via: ListIndex[Any], rows: Sequence[Row]
) -> Steps[list[Any]]:
    members = [copies.member_of(row, is_local=via.is_local) for row in rows]
    return (yield from _members(context, query, members))


class _Member(msgspec.Struct, frozen=True):
    """An entity that an index entity names: where it stands there, and its key."""

    listed_in: RowKey
    place: int
    key: RowKey


def _read_lists(
    context: Context, query: Ask, position: Position, size: int | None, after: Position | None
) -> Steps[Slice]:
    """Read the members of index entities; a page may end and begin inside of one."""
    via, read = query.plan.asked.via, query.plan.requests[position.request]
    assert isinstance(via, ListIndex)
    if isinstance(read, PointRead):
        listed = yield from _listed(via, query.plan.table, read.key)
    else:
        page = yield from ask(_query_lists(query, read, position))
        listed = [(row.key, copies.members_in(row.properties)) for row in page.rows]
        if page.continuation is not None:
            at = page.continuation
            after = Position(position.request, at.partition, at.row)
    members = [
        _Member(key, place, RowKey(key.partition, name[0]) if via.is_local else RowKey(*name))
        for key, names in listed
        for place, name in enumerate(names)
        if position.member is None or place >= position.member or key.row != position.row
    ]
    # Between partitions only the service can say where it goes on: such a page is not cut.
    room = None if isinstance(read, ScanRead) else size
    taken, found = 0, list[Any]()
    while taken < len(members) and (room is None or len(found) < room):
        count = len(members) if room is None else max(room - len(found), context.options.parallel)
        chunk = members[taken : taken + count]
        for entity in (yield from _each_member(context, query, [one.key for one in chunk])):
            taken += 1
            found += [] if entity is None else [entity]
            if room is not None and len(found) == room:
                break
    if taken < len(members):
        first = members[taken]
        key = first.listed_in
        after = Position(position.request, key.partition, key.row, first.place)
    return Slice(found, after)


def _query_lists(query: Ask, read: Read, position: Position) -> QueryRows:
    """Ask for index entities: as many as a page holds, for most of them hold few members."""
    continuation = None
    if position.member is not None and isinstance(read, RangeRead) and position.row is not None:
        read = msgspec.structs.replace(read, lower=max(read.lower, position.row))
    elif position.partition is not None:
        continuation = Continuation(position.partition, position.row)
    return QueryRows(query.plan.table, query.plan.filter_of(read), continuation=continuation)


def _listed(
    via: ListIndex[Any], table: str, key: RowKey
) -> Steps[list[tuple[RowKey, list[list[str]]]]]:
    if via.storage is Storage.BLOB:
        return [(key, (yield from read_list_blob(via, key)).members)]
    row = yield from ask(GetRow(table, key))
    return [] if row is None else [(key, copies.members_in(row.properties))]


def _members(context: Context, query: Ask, members: Sequence[RowKey]) -> Steps[list[Any]]:
    """Read the entities that an index names; what has moved away since is left out."""
    found = yield from _each_member(context, query, members)
    return [entity for entity in found if entity is not None]


def _each_member(context: Context, query: Ask, members: Sequence[RowKey]) -> Steps[list[Any]]:
    """Return for each member what the query wants of it; None for one that is not meant."""
    if not members:
        return []
    via = query.plan.asked.via
    model = query.model if via is None else via.owner
    finds = tuple(find(context, model, key) for key in members)
    found = yield from ask(Parallel(finds, context.options.parallel))
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
# A partition that was spread


def _read_merged(context: Context, query: Ask, position: Position, size: int) -> Steps[Slice]:
    """Read the first rows of every part and merge them by row key.

    Of each part the rows are taken in the order in which the service gave them, and each part
    goes on behind its own last row: whatever order the service keeps, none is left out.
    """
    reads = [read for read in query.plan.requests if isinstance(read, RangeRead)]
    starts = [_behind(read, position.parts.get(place)) for place, read in enumerate(reads)]
    parts = yield from ask(
        Parallel(
            tuple(_first_rows(query, start, size) for start in starts), context.options.parallel
        )
    )
    heads = [[(place, row) for row in part] for place, part in enumerate(parts)]
    merged = heapq.merge(*heads, key=lambda head: (head[1].key.row, head[1].key.partition))
    taken = list(islice(merged, size))
    entities = yield from _entities(context, query, [row for _, row in taken])
    if len(taken) < size:
        return Slice(entities)
    passed = {place: row.key.row for place, row in taken}
    return Slice(entities, Position(parts=position.parts | passed))


def _behind(read: RangeRead, passed: str | None) -> RangeRead:
    """Return what of a part comes behind a row."""
    if passed is None:
        return read
    lower = just_above(passed)
    if lower is None:
        return msgspec.structs.replace(read, lower=passed, upper=passed)
    return msgspec.structs.replace(read, lower=lower)


def _first_rows(query: Ask, read: Read, size: int) -> Steps[list[Row]]:
    rows: list[Row] = []
    call = QueryRows(
        query.plan.table,
        query.plan.filter_of(read),
        _select(query),
        min(size, PAGE_SIZE_MAX),
    )
    while True:
        page = yield from ask(call)
        rows += page.rows
        if page.continuation is None or len(rows) >= size:
            return rows[:size]
        call = msgspec.structs.replace(call, continuation=page.continuation)
