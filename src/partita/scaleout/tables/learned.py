"""Learned indexes of partitions that any front end changes.

An index (`partita.tables.reading.learned_index`) is valid as long as the version of its partition,
a sequence that `write_2` counts up before it writes. To read by an index is one statement, which
compares the version: if it is the same, no write has begun since, so the entities of its snapshot
are those of the index.

An index is made of a partition whose version is settled: each transaction that counted it up has
ended. A look reads the version. A later look that finds the same one takes a bound, the number of a
transaction of its own: every one that counted has a lower number, because it took that first. When
no lower one is running, each snapshot from then on has all writes of the version.
"""

# ruff: noqa: S608 - only our own text

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from partita.scaleout.catalog.ranges import Range
from partita.scaleout.connections.link import Link, Rows
from partita.scaleout.schema.entities import VERSION_NUMBER
from partita.scaleout.tables.bounds import numbered, where_of
from partita.tables.paging import KeyRange
from partita.tables.reading.learned_index import (
    ENTITIES_MAX,
    PARTITIONS_MAX,
    VALUE_BYTES,
    Candidates,
    Condition,
    LearnedIndexes,
    Place,
    PropertyIndex,
)

SCAN_SECONDS_MIN = 0.001
"""After a scan that took less, nothing is learned: the look would cost a good part of it."""
CHOSEN_ALWAYS, CHOSEN_SHARE = 16, 32
"""Reading more entities by their keys, and more than this part, is not faster than the scan."""

_VERSION = (
    "coalesce(pg_sequence_last_value(('partita.version_' || ({}))::regclass), 0)::bigint".format(
        VERSION_NUMBER.format(pk="?::text", tid="?::bigint")
    )
)
_LOOK = numbered(f"""
SELECT {_VERSION} AS version, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS running
""")
_BOUND = "SELECT pg_current_xact_id()::text::bigint AS bound"
"""Not the end of a snapshot: transactions with higher numbers may be running already."""
_COUNT = "SELECT count(*) FROM (SELECT FROM partita.entity WHERE tid = $1 AND pk = $2 LIMIT $3) e"
_READ = """
SELECT short -> $3::text AS value, count(*) AS entities, json_agg(rk)::text AS row_keys
  FROM partita.entity
 WHERE tid = $1 AND pk = $2 AND (short IS NULL OR short -> $3::text IS NOT NULL) GROUP BY 1
"""
_CHOSEN = f"""
SELECT e.*, v.version FROM partita.range_own r
CROSS JOIN LATERAL (SELECT {_VERSION} AS version) v
LEFT JOIN LATERAL (
  SELECT pk, rk, ticks, document FROM (
    SELECT pk, rk, ticks, document, sum(octet_length(document)) OVER (ORDER BY rk
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM json_array_elements_text(?::json) AS k (chosen) CROSS JOIN LATERAL (
        SELECT pk, rk, ticks, document FROM partita.entity
         WHERE rk = k.chosen AND tid = ? AND {{where}} OFFSET 0
      ) chosen
     WHERE v.version = ? ORDER BY rk LIMIT ?
  ) w WHERE before IS NULL OR before < ?
) e ON true
WHERE r.id = ? AND r.epoch = ? AND r.state = 'o'
"""

"""OFFSET keeps the planner from reading the partition and comparing each entity with all keys: it
takes a partition for one row if statistics are old."""

_decode = msgspec.json.decode


class _Seen(msgspec.Struct):
    """The version that a partition was seen with."""

    source: tuple[int, int, str]
    """The range with its epoch, and when the server was started: a version is one of these."""
    version: int
    bound: int | None = None
    """The transactions that counted up to the version have lower numbers."""


class PartitionIndexes:
    """The indexes of one front end for one account."""

    def __init__(self) -> None:
        # Other front ends change partitions: no change is followed, each use compares versions.
        self._indexes = LearnedIndexes(lambda: False)
        self._seen: dict[Place, _Seen] = {}

    def find(
        self, link: Link, range_: Range, place: Place, conditions: Sequence[Condition]
    ) -> Candidates | None:
        """Return the entities that satisfy a condition; None without an index that helps."""
        seen = self._seen.get(place)
        if seen is None or seen.source != _source_of(link, range_):
            return None
        found = self._indexes.find(place, conditions)
        if found is None or found.count > max(CHOSEN_ALWAYS, found.index.entities // CHOSEN_SHARE):
            return None
        return found

    async def read(  # noqa: PLR0913 - what to read, and how much
        self,
        link: Link,
        range_: Range,
        span: KeyRange,
        place: Place,
        candidates: Candidates,
        *,
        limit: int,
        bytes_max: int,
    ) -> Rows | None:
        """Read what `find` has found; None if the partition was changed since.

        No rows: the range is stale. One row without a key: there are no entities.
        """
        seen = self._seen[place]
        where, values = where_of(span)
        tid, partition_key = place
        rows = await link.read(
            numbered(_CHOSEN.format(where=where)),
            *(partition_key, tid, candidates.row_keys, tid, *values, seen.version),
            *(limit, bytes_max, range_.id, range_.epoch),
        )
        if rows and rows[0]["version"] != seen.version:
            if self._seen.get(place) is seen:
                self._forget(place)
            return None
        return rows

    async def learn(self, link: Link, range_: Range, place: Place, name: str) -> None:
        """Look at a partition that was scanned, and make an index if it is worth it."""
        if not await self._look(link, range_, place):
            return
        mark = self._indexes.to_make(place, name)
        if mark is None:
            return
        try:
            index = await _read_index(link, place, name)
        except BaseException:
            self._indexes.give_up(place, mark, name)
            raise
        # Not if the partition was found to be changed meanwhile: it was then forgotten.
        self._indexes.keep(place, mark, name, index)

    async def _look(self, link: Link, range_: Range, place: Place) -> bool:
        """Return whether the version of a partition is settled."""
        before = self._seen.get(place)
        (row,) = await link.read(_LOOK, place[1], place[0])
        source = _source_of(link, range_)
        if before is None or (before.source, before.version) != (source, row["version"]):
            self._forget(place)
            while len(self._seen) >= PARTITIONS_MAX:
                self._forget(next(iter(self._seen)))
            self._seen[place] = _Seen(source, row["version"])
            return False
        if before.bound is None:
            (bound,) = await link.read(_BOUND)
            before.bound = bound["bound"]
            (row,) = await link.read(_LOOK, place[1], place[0])
        is_same = self._seen.get(place) is before and row["version"] == before.version
        return is_same and row["running"] >= before.bound

    def _forget(self, place: Place) -> None:
        self._indexes.drop(place)
        self._seen.pop(place, None)


def _source_of(link: Link, range_: Range) -> tuple[int, int, str]:
    return range_.id, range_.epoch, link.facts.started


async def _read_index(link: Link, place: Place, name: str) -> PropertyIndex | None:
    """Read an index; None if the partition has too many entities."""
    ((entities,),) = await link.read(_COUNT, *place, ENTITIES_MAX + 1)
    if entities > ENTITIES_MAX:
        return None
    rows = await link.read(_READ, *place, name)
    return await asyncio.to_thread(_index_of, name, rows, entities)


def _index_of(name: str, rows: Rows, entities: int) -> PropertyIndex:
    row_keys: dict[Any, tuple[int, str]] = {}
    size = 0
    for value, count, text in rows:
        row_keys[None if value is None else _decode(value)] = count, text
        size += len(text) + VALUE_BYTES
    values = [value for value in row_keys if value is not None]
    values.sort(key=lambda value: (isinstance(value, str), value))
    first_text = bisect_left(values, 1, key=lambda value: isinstance(value, str))
    return PropertyIndex(name, values[:first_text], values[first_text:], row_keys, entities, size)
