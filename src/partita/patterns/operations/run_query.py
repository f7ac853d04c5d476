"""Performing the plan of a query, page by page.

A position says where the next page starts, and nothing else: it can be stored, and used by
another process after a restart. It carries a mark of its query, so that it cannot be used with
another one. An empty page is not the end; only a missing continuation is.

Where conditions are decided here, pages of the service are read ahead, and the last one is cut
behind the last entity that was asked for. The service has no continuation for such a place: in
one partition the next page is bounded by the last row key, over several the cut page is read
once more, from its own start, and what was given is left out.
"""

import base64
import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec

from partita.errors import ContinuationError, ScanRefusedError, TornReadError
from partita.patterns.design.explain import explain
from partita.patterns.encryption import sealing as encryption
from partita.patterns.fields.load_state import snapshot
from partita.patterns.following.bring_up_to_date import read_list_blob
from partita.patterns.following.index_lifecycle import require_readable
from partita.patterns.keys.key_text import just_above
from partita.patterns.operations.raw import to_raw
from partita.patterns.planning.columns import fields_in
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
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType, Origin
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex, Storage, list_of
from partita.patterns.types.projections import Partial
from partita.patterns.types.row_layout import HIDDEN_MARK, PARTS, STAMP, VERSION, place_of
from partita.patterns.writing import index_rows as copies
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find, to_entity
from partita.patterns.writing.rows import Stored, from_rows, read_copy, read_some

PAGE_SIZE_MAX = 1000
READ_AHEAD = 4
"""So many times more rows are asked for than before, as long as some that come are not wanted."""
_FORMAT = 1
_FORMAT_CUT = 2
"""Of a page that was cut. Who knows only the first would go on at the start of the query."""


Misfits = Literal["raise", "skip", "raw"]
"""What becomes of a stored entity whose keys do not fit the templates of the type."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which of the plan's requests comes next, and where in it."""

    request: int = 0
    partition: str | None = None
    row: str | None = None
    member: int | None = None
    """Where in an index entity the next page starts."""
    left: int | None = None
    """How many entities are left of the query's limit."""
    parts: dict[int, str] = {}
    """Of a merged query, the last row key that was taken from each of its parts."""
    passed: RowKey | None = None
    """The last row that was given of a page that was cut; of a list, the member that comes next."""
    seen: int = 0
    """How many rows of that page lie before the cut, where it must be read once more."""
    listed: RowKey | None = None
    """The index entity in which a page was cut."""


class Kept(msgspec.Struct, frozen=True):
    """A continuation as it is handed out."""

    version: int
    query: str
    position: Position


class Slice(msgspec.Struct, frozen=True):
    """Part of an answer; no position: that was all."""

    entities: list[Any]
    position: Position | None = None
    is_thin: bool = False
    """Rows were read that are not wanted: to find as many as asked for takes more of them."""


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
    misfits: Misfits = "raise"

    @property
    def model(self) -> EntityType[Any]:
        return self.plan.asked.model


def mark_of(query: Ask) -> str:
    """Return what tells a query from others."""
    told = [query.plan.table, query.plan.filter]
    told += [request.bounds_text() for request in query.plan.requests]
    told += [",".join(query.selected or ()), repr(query.plan.client)]
    told += [] if query.misfits == "raise" else [query.misfits]
    return hashlib.blake2b("\0".join(told).encode(), digest_size=8).hexdigest()


def print_continuation(query: Ask, position: Position | None) -> str | None:
    if position is None:
        return None
    version = _FORMAT if position.passed is None else _FORMAT_CUT
    kept = msgspec.json.encode(Kept(version, mark_of(query), position))
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
    if kept.version not in (_FORMAT, _FORMAT_CUT) or kept.query != mark_of(query):
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
        if piece.is_thin and context.capabilities.is_ordered:  # else no page can be cut
            ahead = min(ahead * READ_AHEAD, PAGE_SIZE_MAX)
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
    context: Context, query: Ask, position: Position, size: int | None, ahead: int
) -> Steps[Slice]:
    """Send one request of the plan, for `ahead` times as many rows as entities are wanted."""
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
        rows, passed = _rows_behind(rows, passed)
    entities = yield from _entities(context, query, rows)
    is_thin = len(entities) < len(rows)
    if size is not None and len(entities) > size:
        last = list(entities)[size - 1]
        return Slice(list(entities.values())[:size], _cut_behind(last, read, position, page.rows))
    if page.continuation is not None:
        at = page.continuation
        after = Position(position.request, at.partition, at.row, passed=passed)
    return Slice(list(entities.values()), after, is_thin)


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
        read = _behind(read, position.passed.row)
    return QueryRows(
        query.plan.table,
        query.plan.filter_of(read),
        _select(context, query),
        None if size is None else min(size * ahead + position.seen, PAGE_SIZE_MAX),
        Continuation(position.partition or "", position.row) if is_rest else None,
    )


def _cut_behind(
    last: RowKey, read: RangeRead | ScanRead, position: Position, rows: Sequence[Row]
) -> Position:
    """Return where to go on in a page that held more than was asked for."""
    if isinstance(read, RangeRead):
        return Position(position.request, passed=last)
    seen = next(place for place, row in enumerate(rows, 1) if row.key == last)
    return msgspec.structs.replace(position, passed=last, seen=seen)


def _rows_behind(rows: Sequence[Row], passed: RowKey) -> tuple[Sequence[Row], RowKey | None]:
    """Return the rows behind one that was given, and that one as long as it was not met."""
    for place, row in enumerate(rows, 1):
        if row.key == passed:
            return rows[place:], None
    # It is in a page to come, or was deleted. Services sort by code points or by UTF-16 units:
    # only a row that lies before it in both orders was certainly given.
    before = [_are_ordered(row.key, passed) for row in rows]
    return [row for row, is_before in zip(rows, before, strict=True) if not is_before], passed


def _are_ordered(this: RowKey, that: RowKey) -> bool:
    return this < that and _units(this) < _units(that)


def _units(key: RowKey) -> tuple[bytes, bytes]:
    return key.partition.encode("utf-16-be"), key.row.encode("utf-16-be")


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
    row = yield from ask(GetRow(query.plan.table, key, _select(context, query)))
    if row is None:
        return []
    return list((yield from _entities(context, query, [row])).values())


def _is_wanted(query: Ask, entity: Any) -> bool:
    client = query.plan.client
    return client is None or evaluate_values(client, query.model.values(entity))


def _select(context: Context, query: Ask) -> tuple[str, ...] | None:
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
        # Without a keyring the seal is asked for all the same: what lies in the clear needs none.
        selected += encryption.needed_for(selected, context.keyring)
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


def _entities(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[dict[RowKey, Any]]:
    """Make what the query wants of rows: by the key of the row, or of the first of a wide one."""
    via = query.plan.asked.via
    is_wide = any(each.is_wide for each in query.model.family())
    if via is None and query.model.type_property is None:  # then only keys tell our own rows
        rows = [row for row in rows if not _is_ours(row, is_wide=is_wide)]
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
    """Return whether the keys of a row are those of the type, or of one below it."""
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


def _is_ours(row: Row, *, is_wide: bool) -> bool:
    """Tell by its keys whether a row is hidden, or a further one of a wide entity."""
    is_hidden = HIDDEN_MARK in (row.key.partition[:1], row.key.row[:1])
    return is_hidden or (is_wide and place_of(row.key.row)[1] > 0)


def _from_wide(context: Context, query: Ask, rows: Sequence[Row]) -> Steps[dict[RowKey, Any]]:
    """Put the rows of wide entities together; one that a page cut in two is read again."""
    grouped: dict[RowKey, list[Row]] = {}
    for row in rows:
        first, place = place_of(row.key.row) if STAMP in row.properties else (row.key.row, 0)
        key = RowKey(row.key.partition, first)
        if place == 0 or key in grouped:  # the first rows of others were in the page before
            grouped.setdefault(key, []).append(row)
    wholes = tuple(_whole(context, query, key, parts) for key, parts in grouped.items())
    found = yield from ask(Parallel(wholes, context.options.parallel))
    return {key: entity for entities in found for key, entity in entities.items()}


def _whole(context: Context, query: Ask, key: RowKey, parts: list[Row]) -> Steps[dict[RowKey, Any]]:
    parts.sort(key=lambda row: place_of(row.key.row)[1])
    try:
        stored = from_rows(query.model, parts, context.sealing)
    except TornReadError:
        return (yield from _find_all(context, query, [key]))
    return (yield from _filled(context, query, [stored]))


def _filled(context: Context, query: Ask, stored: Sequence[Stored]) -> Steps[dict[RowKey, Any]]:
    """Make objects, with their large values read at once."""
    if any(each.references() for each in stored):
        keys = [each.origin.key for each in stored]
        return (yield from _find_all(context, query, keys))
    entities = {each.origin.key: to_entity(each, each.values) for each in stored}
    return _wanted(query, entities)


def _find_all(context: Context, query: Ask, keys: Sequence[RowKey]) -> Steps[dict[RowKey, Any]]:
    if not keys:
        return {}
    found = yield from ask(
        Parallel(tuple(find(context, query.model, key) for key in keys), context.options.parallel)
    )
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
        if query.plan.client is None or evaluate_values(query.plan.client, values):
            made[row.key] = _partial(query, values)
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
) -> Steps[dict[RowKey, Any]]:
    if query.is_verified or not _do_copies_tell(query, via, rows):
        return (yield from _members(context, query, via, rows))
    only = None if query.selected is None else _needed(query)
    copied = {row.key: read_copy(via, row, context.sealing, only) for row in rows}
    if query.selected is not None:
        return {key: _partial(query, one) for key, one in copied.items() if _holds(query, one)}
    stored = {
        row.key: Stored(query.model, copied[row.key], _origin(via, row, copied[row.key]))
        for row in rows
    }
    if any(each.references() for each in stored.values()):
        return (yield from _members(context, query, via, rows))
    return _wanted(query, {key: to_entity(each, each.values) for key, each in stored.items()})


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


def _origin(via: Index[Any], row: Row, values: Mapping[str, Any]) -> Origin:
    """Return the origin of an entity that was read from a copy: it knows no etag."""
    member = copies.member_of(row, is_local=via.is_local)
    return Origin(key=member, etags=(), values=snapshot(values), timestamp=row.timestamp)


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
    position = _with_listed(position)
    if isinstance(read, PointRead):
        listed = yield from _listed(via, query.plan.table, read.key)
    else:
        page = yield from ask(_query_lists(query, read, position))
        listed = [(row.key, copies.members_in(row.properties)) for row in page.rows]
        if page.continuation is not None:
            at = page.continuation
            after = Position(position.request, at.partition, at.row)
            if all(key != position.listed for key, _ in listed):  # it is in a page to come
                after = _cut_inside(after, position.listed, position.member, position.passed)
    members = _members_from(
        [
            _Member(key, place, RowKey(key.partition, name[0]) if via.is_local else RowKey(*name))
            for key, names in listed
            for place, name in enumerate(names)
        ],
        position,
    )
    is_told = _do_lists_tell(query, via)
    taken, found = 0, list[Any]()
    while taken < len(members) and (size is None or len(found) < size):
        chunk = members[taken:]
        if size is not None and not is_told:
            # Where members were left out, more may be: then as many as are read at once.
            count = size - len(found)
            chunk = chunk[: max(count, context.options.parallel) if taken else count]
        if is_told:
            answers = [_told(query, via, one.listed_in, one.key) for one in chunk]
        else:
            answers = yield from _each_member(context, query, [one.key for one in chunk])
        for entity in answers:
            taken += 1
            found += [] if entity is None else [entity]
            if size is not None and len(found) == size:
                break
    if taken < len(members):
        first = members[taken]
        # Over several partitions the page is read once more, from its own start.
        start = position if isinstance(read, ScanRead) else Position(position.request)
        after = _cut_inside(start, first.listed_in, first.place, first.key)
    return Slice(found, after)


def _with_listed(position: Position) -> Position:
    """Return a position as it is told now: an older version told the list in place of a start."""
    if position.member is None or position.listed is not None:
        return position
    listed = RowKey(position.partition or "", position.row or "")
    return Position(position.request, member=position.member, listed=listed)


def _cut_inside(
    start: Position, listed: RowKey | None, member: int | None, following: RowKey | None
) -> Position:
    return msgspec.structs.replace(start, member=member, passed=following, listed=listed)


def _members_from(members: Sequence[_Member], position: Position) -> Sequence[_Member]:
    """Return the members that were not given: meanwhile some may have come, and others gone."""
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
    """Ask for index entities: as many as a page holds, for most of them hold few members."""
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
    return [] if row is None else [(key, copies.members_in(row.properties))]


def _members(
    context: Context, query: Ask, via: AnyIndex, rows: Sequence[Row]
) -> Steps[dict[RowKey, Any]]:
    """Read the entities that rows of an index name; what has moved away since is left out.

    Where the rows of a list index say all that is asked, no entity is read.
    """
    members = [copies.member_of(row, is_local=via.is_local) for row in rows]
    if isinstance(via, ListIndex) and _do_lists_tell(query, via, rows):
        lists = [RowKey(row.key.partition, list_of(row.key.row)) for row in rows]
        found = [_told(query, via, *pair) for pair in zip(lists, members, strict=True)]
    else:
        found = yield from _each_member(context, query, members)
    return {row.key: entity for row, entity in zip(rows, found, strict=True) if entity is not None}


def _do_lists_tell(query: Ask, via: ListIndex[Any], rows: Sequence[Row] | None = None) -> bool:
    """Return whether a list index says all that is asked: fields of its keys and of the members'.

    Of an entity that an older version has written, only the entity itself tells the fields; a
    list of many members does not say which versions have written them.
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


def _told(query: Ask, via: ListIndex[Any], listed_in: RowKey, member: RowKey) -> Any:
    """Return what the query wants of a member, by the keys alone; None if it does not want it."""
    values: dict[str, Any] = {}
    for keyed, key in ((via, listed_in), (via.owner, member)):
        values |= keyed.partition.parse(key.partition) | keyed.row.parse(key.row)
    return _partial(query, values) if _holds(query, values) else None


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


def _read_merged(
    context: Context, query: Ask, position: Position, size: int | None
) -> Steps[Slice]:
    """Read the first rows of every part and merge them by row key.

    Of each part the rows are taken in the order in which the service gave them, and each part
    goes on behind its own last row: whatever order the service keeps, none is left out.
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
    """Return the next rows of all parts together, each with the place of its part."""
    reads = [read for read in query.plan.requests if isinstance(read, RangeRead)]
    starts = [_behind(read, passed.get(place)) for place, read in enumerate(reads)]
    parts = yield from ask(
        Parallel(
            tuple(_first_rows(context, query, start, count) for start in starts),
            context.options.parallel,
        )
    )
    heads = [[(place, row) for row in part] for place, part in enumerate(parts)]
    merged = heapq.merge(*heads, key=lambda head: (head[1].key.row, head[1].key.partition))
    return list(islice(merged, count))


def _behind(read: RangeRead, passed: str | None) -> RangeRead:
    """Return what of a part comes behind a row."""
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
