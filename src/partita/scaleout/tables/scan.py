"""Reading a page of entities in key order, from one range of the table after the other.

Each part of a page comes from one range, in one statement that has the fence, and never leaves the
range. The continuation is the next key, and nothing else: any front end can go on with it. A
filtered part looks at a limited number of entities, of which the database rules out what it can; in
a partition that is asked again, it reads only those that a learned index has found.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict, cast

import msgspec

from partita.errors import PartitaError
from partita.scaleout.catalog.ranges import Range
from partita.scaleout.catalog.staleness import STALE, Stale
from partita.scaleout.connections.link import Link
from partita.scaleout.tables import dialect, learned
from partita.scaleout.tables.bounds import numbered, where_of
from partita.scaleout.tables.learned import PartitionIndexes
from partita.tables import pushdown
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.entity import Entity, EntityKey, stored_entity
from partita.tables.filters import Filter, Predicate, compile_filter, names_in
from partita.tables.paging import KeyRange, after
from partita.tables.reading.learned_index import Candidates, conditions_of
from partita.ticks import Clock

LOOK_ENTITIES_MAX = 12_000
"""Entities that one statement of a filtered page looks at."""
LOOK_END_SECONDS_MAX = 5.0
"""How long the key where such a statement ends is used again for the same keys, ..."""
LOOK_ENDS_KEPT = 1024
"""... and for how many ranges of keys it is kept."""
CANDIDATES_MIN = 1000
"""Entities that a further statement of a filtered page may select: the exact filter refused those
of the first one."""
UNCHECKED_ENTITIES_MAX = 4
"""So many entities cannot exceed the byte budget of a page."""
LOOP_CANDIDATES_MAX = 500
"""More candidates than this are decoded in a thread."""

_FENCED = """
SELECT e.* FROM partita.range_own r LEFT JOIN LATERAL (
{}
) e ON true WHERE r.id = ? AND r.epoch = ? AND r.state = 'o'
"""
_PLAIN = """
SELECT pk, rk, ticks, document FROM partita.entity WHERE tid = ? AND {where}
ORDER BY pk, rk LIMIT ?
"""
_IF_IT_FITS = """
SELECT e.pk, e.rk, coalesce(e.ticks, CASE WHEN s.bytes >= ? THEN 0 END) AS ticks, e.document
FROM partita.range_own r
CROSS JOIN LATERAL (
  SELECT coalesce(sum(octet_length(document)), 0) AS bytes FROM (
    SELECT document FROM partita.entity WHERE tid = ? AND {where} ORDER BY pk, rk LIMIT ?
  ) looked
) s
LEFT JOIN LATERAL (
  SELECT pk, rk, ticks, document FROM partita.entity
   WHERE tid = ? AND {where} AND s.bytes < ? ORDER BY pk, rk LIMIT ?
) e ON true
WHERE r.id = ? AND r.epoch = ? AND r.state = 'o'
"""
"""If it exceeds the byte budget, one row without keys. The sum costs a fifth of the statement; a
running sum over all rows that are sent costs two thirds."""
_CUT_TO_FIT = """
SELECT pk, rk, ticks, document FROM (
  SELECT pk, rk, ticks, document, sum(octet_length(document)) OVER (ORDER BY pk, rk
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM partita.entity WHERE tid = ? AND {where} ORDER BY pk, rk LIMIT ?
) w WHERE before IS NULL OR before < ?
"""
_NEXT = """
SELECT pk, rk FROM partita.entity WHERE tid = ? AND {where} ORDER BY pk, rk OFFSET ? LIMIT 1
"""
"""The first entity beyond those that are looked at. It is read from the index alone, and before the
others: a limit inside the filtered statement costs more than this one does."""
_FILTERED = """
SELECT pk, rk, ticks, document FROM (
  SELECT pk, rk, ticks, document, sum(octet_length(document)) OVER (ORDER BY pk, rk
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT pk, rk, ticks, document FROM partita.entity
           WHERE tid = ? AND {where} AND ({condition}) ORDER BY pk, rk LIMIT ?) chosen
) w WHERE before IS NULL OR before < ?
"""

Candidate = tuple[str, str, int, bytes]


class LookEnds:
    """The keys where filtered statements end, by table and range of keys.

    To find such a key costs a third of a filtered statement, and a key of some seconds ago is as
    good: entities that were added since only make the statement look at more of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[int, KeyRange], tuple[float, EntityKey | None]] = {}

    async def find(self, link: Link, tid: int, span: KeyRange) -> EntityKey | None:
        """Return the first key beyond those to look at; None: look at the whole range."""
        now = self._clock.monotonic()
        kept = self._kept.get((tid, span))
        if kept is not None and now - kept[0] <= LOOK_END_SECONDS_MAX:
            return kept[1]
        where, values = where_of(span)
        rows = await link.read(numbered(_NEXT.format(where=where)), tid, *values, LOOK_ENTITIES_MAX)
        end = EntityKey(*rows[0]) if rows else None
        if len(self._kept) >= LOOK_ENDS_KEPT:
            self._kept.clear()
        self._kept[tid, span] = now, end
        return end


class Budget(NamedTuple):
    """What a part of a page may hold."""

    entities: int
    bytes: int


class Part(NamedTuple):
    """What one statement found of a range."""

    entities: Sequence[Entity]
    examined: int
    """Entities that were looked at; at least so many if there is an `uncounted`."""
    rest: KeyRange | None
    """What of the span was not read; None: it was read to its end."""
    uncounted: KeyRange | None = None
    """The keys that were looked at, if the entities were not counted."""
    learned: str = ""
    """The property whose learned index found the entities, if one did."""


class Selection:
    """A filter, as a condition of the database and as the exact test."""

    def __init__(self, residual: Filter) -> None:
        self._residual = residual
        self._matches: Predicate = compile_filter(residual)
        self._decode = _decoder_of(names_in(residual))
        self.conditions = conditions_of(residual)
        """What an index can find."""

    def condition(self, link: Link) -> pushdown.Sql:
        by_bytes = link.facts.sorts_by_bytes
        chosen = dialect.BY_BYTES if by_bytes else dialect.BY_COLLATION
        return pushdown.translate(self._residual, chosen) or ("true", ())

    def select(self, candidates: Sequence[Candidate]) -> list[Entity]:
        matches, decode = self._matches, self._decode
        entities = [stored_entity(*candidate) for candidate in candidates]
        return [each for each in entities if matches(decode(b"{" + each.document))]


async def read_part(
    link: Link, tid: int, range_: Range, span: KeyRange, budget: Budget
) -> Part | Stale:
    """Read entities of a span within one range."""
    where, values = where_of(span)
    limited = tid, *values, budget.entities
    own = range_.id, range_.epoch
    if budget.entities <= UNCHECKED_ENTITIES_MAX:
        rows = await link.read(_fenced(_PLAIN, where), *limited, *own)
    else:
        limit, most = budget
        statement = numbered(_IF_IT_FITS.format(where=where))
        rows = await link.read(statement, most, *limited, tid, *values, most, limit, *own)
        if rows and rows[0]["pk"] is None and rows[0]["ticks"] is not None:
            rows = await link.read(_fenced(_CUT_TO_FIT, where), *limited, most, *own)
    if not rows:
        return STALE
    if rows[0]["pk"] is None:
        return Part([], 0, None)
    is_cut = len(rows) == budget.entities or _size_of(rows) >= budget.bytes
    rest = _behind(span, rows[-1]) if is_cut else None
    return Part([stored_entity(*row) for row in rows], len(rows), rest)


def _fenced(statement: str, where: str, condition: str = "") -> str:
    return numbered(_FENCED.format(statement.format(where=where, condition=condition)))


async def read_selected(  # noqa: PLR0913 - as read_part, and what to select
    link: Link,
    tid: int,
    range_: Range,
    span: KeyRange,
    budget: Budget,
    *,
    selection: Selection,
    ends: LookEnds,
) -> Part | Stale:
    """Look at some entities of a span within one range, and select from them."""
    end = await ends.find(link, tid, span)
    rest = None if end is None else KeyRange(end, span.upper)
    where, values = where_of(span if end is None else KeyRange(span.lower, end))
    condition, literals = selection.condition(link)
    rows = await link.read(
        _fenced(_FILTERED, where, condition),
        *(tid, *values, *literals, budget.entities, budget.bytes, range_.id, range_.epoch),
    )
    if not rows:
        return STALE
    candidates = [] if rows[0]["pk"] is None else rows
    if len(candidates) > LOOP_CANDIDATES_MAX:
        entities = await asyncio.to_thread(selection.select, candidates)
    else:
        entities = selection.select(candidates)
    if len(candidates) == budget.entities or _size_of(candidates) >= budget.bytes:
        left = _behind(span, candidates[-1])
        read = KeyRange(span.lower, left.lower if left else span.upper)
        return Part(entities, len(candidates), left, read)
    if rest is None:
        return Part(entities, len(candidates), None, span)
    return Part(entities, LOOK_ENTITIES_MAX, rest)


async def read_learned(  # noqa: PLR0913 - as read_selected
    link: Link,
    tid: int,
    range_: Range,
    span: KeyRange,
    budget: Budget,
    *,
    selection: Selection,
    ends: LookEnds,
    indexes: PartitionIndexes,
) -> Part | Stale:
    """Select entities by a learned index if one helps; else as `read_selected`, and learn."""
    partition_key = span.single_partition()
    place = tid, partition_key or ""
    whole = KeyRange.of_partition(partition_key or "")
    # A range of row keys may be so short that reading it is cheaper.
    is_learned = bool(selection.conditions) and partition_key is not None
    is_learned = is_learned and span.upper == whole.upper
    candidates = indexes.find(link, range_, place, selection.conditions) if is_learned else None
    if candidates is not None:
        rows = await indexes.read(
            link, range_, span, place, candidates, limit=budget.entities, bytes_max=budget.bytes
        )
        if rows is not None:
            return _part_of(rows, span, budget, selection, candidates) if rows else STALE
    clock = asyncio.get_running_loop().time
    started = clock()
    part = await read_selected(link, tid, range_, span, budget, selection=selection, ends=ends)
    is_slow = clock() - started >= learned.SCAN_SECONDS_MIN
    if is_learned and is_slow and span == whole and part is not STALE:
        with contextlib.suppress(PartitaError):  # the page is complete
            await indexes.learn(link, range_, place, selection.conditions[0].name)
    return part


def _part_of(
    rows: Sequence[Any],
    span: KeyRange,
    budget: Budget,
    selection: Selection,
    candidates: Candidates,
) -> Part:
    """Return the part of a page that was read by an index."""
    index = candidates.index
    if rows[0]["pk"] is None:
        return Part([], 0, None, learned=index.name)
    if candidates.is_exact:
        entities = [stored_entity(*row[:4]) for row in rows]
    else:
        entities = selection.select([row[:4] for row in rows])
        if candidates.alone is not None and len(entities) == candidates.count:
            index.exact.add(candidates.alone)
    is_cut = len(rows) == budget.entities or _size_of(rows) >= budget.bytes
    return Part(
        entities, len(rows), _behind(span, rows[-1]) if is_cut else None, learned=index.name
    )


def _size_of(rows: Sequence[Any]) -> int:
    return sum([len(row["document"]) for row in rows])


def _behind(span: KeyRange, row: Any) -> KeyRange | None:
    rest = KeyRange(EntityKey(row["pk"], after(row["rk"])), span.upper)
    return None if rest.is_empty else rest


@lru_cache(maxsize=256)
def _decoder_of(names: frozenset[str]) -> Callable[[bytes], dict[str, Any]]:
    """Return a decoder that builds only the members that a filter uses."""
    members = dict.fromkeys(names, Any) | {name + TYPE_SUFFIX: Any for name in names}
    shape = TypedDict("Members", members, total=False)  # type: ignore[misc]  # made at run time
    return cast("Callable[[bytes], dict[str, Any]]", msgspec.json.Decoder(shape).decode)
