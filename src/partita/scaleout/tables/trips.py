"""One round trip to the database for many reads or many changes of entities.

A read has the fence in its statement: rows come back only if all ranges of the trip are still
owned, in the snapshot of the rows. A write is one call of `partita.write_2`: it locks the ranges,
checks them, and writes in the order of keys, so that trips of several front ends never wait for
each other in a circle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from partita.errors import PartitaError
from partita.metrics.store_meter import StoreMeter
from partita.metrics.waits import WAITS
from partita.scaleout.catalog.ranges import Range
from partita.scaleout.catalog.staleness import STALE, Stale
from partita.scaleout.connections.lane import TRIP_BYTES_MAX, Lane
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import DriverError, may_repeat, sqlstate_of, translated
from partita.scaleout.schema.entities import EARLY, INSERTED, MERGED, UPSERTED
from partita.tables.expectations import ANYTHING, NOTHING

GATHERED_KEYS_MAX = 16
"""A read or change of more keys than this has a connection of the pool for itself ..."""
LOCKED_SECONDS_MAX = 10.0
"""For how long a trip is halved to find the changes that others lock: each attempt waits for
`lock_timeout`, and there are twice as many attempts as changes if another client locks all."""

# Arrays are sent as text, because that costs the driver a fifth as much as its own arrays, whose
# every item it checks. Texts are split at a character that none of them has, which is sent too;
# one before the first makes the array of one empty text have one item.
_ENTITIES = """
SELECT q.number, e.ticks, e.document
  FROM unnest($3::text::bigint[], (string_to_array($4::text, $6::text))[2:],
      (string_to_array($5::text, $6::text))[2:]) WITH ORDINALITY AS q (tid, pk, rk, number)
  LEFT JOIN partita.entity e ON e.tid = q.tid AND e.pk = q.pk AND e.rk = q.rk
 WHERE {fence}
"""
_READ = _ENTITIES.format(
    fence="""EXISTS (SELECT FROM partita.range_own r
   WHERE r.id = $1::int AND r.epoch = $2::bigint AND r.state = 'o')"""
)
_READ_OF_RANGES = _ENTITIES.format(
    fence="""(SELECT count(*)
    FROM unnest($1::text::int[], $2::text::bigint[]) AS o (id, epoch)
    JOIN partita.range_own r ON r.id = o.id AND r.epoch = o.epoch AND r.state = 'o'
  ) = cardinality($1::text::int[])"""
)
"""As `_READ`, for entities of several ranges: this fence costs three times as much."""
_WRITE = """
SELECT * FROM partita.write_2($1::text::int[], $2::text::bigint[], $3, $4::text::int[],
  $5::text::bigint[], (string_to_array($6::text, $13::text))[2:],
  (string_to_array($7::text, $13::text))[2:], $8::text::bigint[], $9::text::bigint[],
  $10::text::bigint[], string_to_array($11::text, E'\\n', ''), $12)
"""

SEPARATOR = "\x1f"
"""No key of a request has it."""

_ONES_FAULT = ("22", "23", "54")
"""Classes of errors that a value of one change causes; a ValueError is the driver's."""
_LOCKED = "55P03"
"""Another session has had the lock of a row for long."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """Entities of one partition to read."""

    range: Range
    tid: int
    partition_key: str
    row_keys: Sequence[str]


class Row(NamedTuple):
    """An entity to write, or to remove if `document` is None."""

    row_key: str
    expected: int
    """As in `partita.tables.expectations`."""
    marks: int
    short: str | None
    document: bytes | None


class Change(NamedTuple):
    """Entities of one partition to write together, if each is as expected."""

    range: Range
    tid: int
    partition_key: str
    stamp: int
    rows: Sequence[Row]

    @property
    def size(self) -> int:
        return sum([len(row.document) for row in self.rows if row.document is not None])


Found = Sequence[tuple[int, bytes] | None]
"""The ticks and document of each row key; None: there is no entity."""
Refused = Mapping[str, int | None]
"""The row keys whose entities are not as expected, or not older, and the ticks found there."""


Item = TypeVar("Item")
Result = TypeVar("Result")


class Trips:
    """The lanes of one front end to one shard, for entities of all accounts."""

    def __init__(self, connector: Connector, pool: Pool, meter: StoreMeter | None = None) -> None:
        self._pool = pool
        self._meter = meter or StoreMeter()
        self._reads: Lane[Read, Found | Stale] = Lane(connector, send_reads)
        self._writes: Lane[Change, Refused | Stale | None] = Lane(connector, self._send_changes)

    @property
    def waiting(self) -> int:
        """How many changes wait for a trip."""
        return len(self._writes)

    async def read(self, item: Read) -> Found | Stale:
        if len(item.row_keys) <= GATHERED_KEYS_MAX:
            return await self._reads.ask(item)
        async with self._pool.link() as link:
            (answer,) = await send_reads(link, [item])
        if isinstance(answer, PartitaError):
            raise answer
        return answer

    async def _send_changes(self, link: Link, items: Sequence[Change]) -> "list[Answer]":
        """Send the changes of one trip, and measure it."""
        started = asyncio.get_running_loop().time()
        try:
            return await send_changes(link, items)
        finally:
            self._meter.commit_seconds.observe(asyncio.get_running_loop().time() - started)
            self._meter.commit_changes.observe(len(items))

    async def write(self, item: Change, keys: Sequence[Hashable]) -> Refused | Stale | None:
        """Return None when the change is durable, or why it was refused."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        size = item.size
        if size > TRIP_BYTES_MAX or len(keys) > GATHERED_KEYS_MAX:
            # Not cancelled with the caller: a change that was begun is finished.
            answer = await asyncio.shield(asyncio.ensure_future(self._write_alone(item)))
        else:
            answer = await self._writes.ask(item, keys=keys, size=size)
        waits = WAITS.get()  # only after the wait: until then, the request has no task of its own
        if waits is not None:
            waits.commit_seconds += loop.time() - started
        return answer

    async def _write_alone(self, item: Change) -> Refused | Stale | None:
        async with self._pool.link() as link:
            (answer,) = await self._send_changes(link, [item])
        if isinstance(answer, PartitaError):
            raise answer
        return answer

    async def close(self) -> None:
        """Finish accepted changes, then close the connections."""
        await self._writes.close()
        await self._reads.close()


def _array(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _texts(partition_keys: Sequence[str], row_keys: Sequence[str]) -> tuple[str, str, str]:
    """Return the keys as two texts, and the separator that is before each key in them."""
    separator = SEPARATOR
    while True:
        partitions, rows = separator.join(["", *partition_keys]), separator.join(["", *row_keys])
        if partitions.count(separator) == len(row_keys) == rows.count(separator):
            return partitions, rows, separator
        keys = {*"".join(partition_keys), *"".join(row_keys)}
        separator = next(chr(code) for code in range(1, 0xD800) if chr(code) not in keys)


async def _in_halves(
    send: Callable[[Link, Sequence[Item]], Awaitable[list[Result]]],
    link: Link,
    items: Sequence[Item],
) -> list[Result | PartitaError]:
    """Send a trip in which something is wrong with one item, so that the others succeed."""
    middle = len(items) // 2
    answers: list[Result | PartitaError] = []
    for half in (items[:middle], items[middle:]):
        try:
            answers += await send(link, half)
        except PartitaError as failure:
            answers += [failure] * len(half)
    return answers


# ---------------------------------------------------------------------------------------------
# Reads


async def send_reads(link: Link, items: Sequence[Read]) -> "list[Found | Stale | PartitaError]":
    """Read all entities of the items in one snapshot."""
    # Most reads of a trip have the range of their neighbour, and one key.
    ranges = {
        (each.id, each.epoch) for each in {id(item.range): item.range for item in items}.values()
    }
    row_keys = [row_key for item in items for row_key in item.row_keys]
    if len(row_keys) == len(items):
        tids = [item.tid for item in items]
        partition_keys = [item.partition_key for item in items]
    else:
        tids = [item.tid for item in items for _ in item.row_keys]
        partition_keys = [item.partition_key for item in items for _ in item.row_keys]
    try:
        keys = _array(tids), *_texts(partition_keys, row_keys)
        if len(ranges) == 1:
            rows = await link.read(_READ, *ranges.pop(), *keys)
        else:
            range_ids, epochs = zip(*ranges, strict=True)
            rows = await link.read(_READ_OF_RANGES, _array(range_ids), _array(epochs), *keys)
    except PartitaError as error:
        if error.code != "StoreFailed":
            raise
        return [error] if len(items) == 1 else await _in_halves(send_reads, link, items)
    if not rows:
        return await _read_apart(link, items)
    found: list[Any] = [None] * len(tids)
    for number, ticks, document in rows:
        if ticks is not None:
            found[number - 1] = ticks, document
    if len(found) == len(items):
        return [[each] for each in found]
    answers: list[Found | Stale | PartitaError] = []
    place = 0
    for item in items:
        answers.append(found[place : place + len(item.row_keys)])
        place += len(item.row_keys)
    return answers


async def _read_apart(link: Link, items: Sequence[Read]) -> "list[Found | Stale | PartitaError]":
    """Find out which ranges are stale: read each by itself."""
    by_range: dict[tuple[int, int], list[int]] = {}
    for place, item in enumerate(items):
        by_range.setdefault((item.range.id, item.range.epoch), []).append(place)
    answers: list[Found | Stale | PartitaError] = [STALE] * len(items)
    if len(by_range) > 1:
        for places in by_range.values():
            found = await send_reads(link, [items[place] for place in places])
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
    return answers


# ---------------------------------------------------------------------------------------------
# Changes

Answer = Refused | Stale | PartitaError | None


async def send_changes(
    link: Link, items: Sequence[Change], ends: float | None = None
) -> list[Answer]:
    """Write the changes, each wholly or not at all.

    From `ends` on, by the time of the loop, what others lock is not tried again.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + LOCKED_SECONDS_MAX if ends is None else ends
    try:
        return await _write(link, items)
    except DriverError as error:
        if not (may_repeat(error) or _is_ones_fault(error)):
            raise translated(error) from error
        if may_repeat(error):
            try:
                return await _write(link, items)
            except DriverError as again:
                error = again
        is_over = sqlstate_of(error) == _LOCKED and loop.time() >= ends
        if len(items) == 1 or is_over:
            return [translated(error) for _ in items]
    return await _in_halves(partial(send_changes, ends=ends), link, items)


def _is_ones_fault(error: BaseException) -> bool:
    state = sqlstate_of(error) or ""
    return state == _LOCKED or state[:2] in _ONES_FAULT or isinstance(error, ValueError)


async def _write(link: Link, items: Sequence[Change]) -> list[Answer]:
    ranges: dict[tuple[int, int], int] = {}
    """The place of each range of the trip, from 1, by id and epoch."""
    lines: list[Any] = []
    has_groups = False
    for place, (range_, tid, partition_key, stamp, rows) in enumerate(items):
        ranges.setdefault((range_.id, range_.epoch), len(ranges) + 1)
        if len(rows) > 1:
            has_groups = True
        for row_key, expected, marks, short, document in rows:
            lines.append(
                (tid, partition_key, row_key, expected, stamp, marks, short, document, place)
            )
    lines = sorted(lines)
    columns: list[Any] = list(zip(*lines, strict=True))
    groups = None
    if has_groups:
        groups = _array([place + 1 if len(items[place].rows) > 1 else 0 for place in columns[8]])
    tids, partition_keys, row_keys, expected, stamps, marks, shorts, documents, _ = columns
    how = _how(expected, documents)
    partition_keys, row_keys, separator = _texts(partition_keys, row_keys)
    values = (
        _array([range_id for range_id, _ in ranges]),
        _array([epoch for _, epoch in ranges]),
        how,
        groups,
        _array(tids),
        partition_keys,
        row_keys,
        _array(expected) if how == MERGED else None,
        _array(stamps),
        _array(marks),
        "\n".join([short or "" for short in shorts]),  # JSON has no line ends that are not escaped
        documents,
        separator,
    )
    try:
        refusals = await link.write(_WRITE, *values)
    except DriverError as error:
        if sqlstate_of(error) != EARLY:
            raise
        return await _write_others(link, items, _by_item(lines, _early_of(error)))
    if refusals and refusals[0]["number"] < 0:
        stale = {-row["number"] for row in refusals}
        places = [ranges[item.range.id, item.range.epoch] for item in items]
        answered = {n: STALE for n, place in enumerate(places) if place in stale}
        return await _write_others(link, items, answered)
    refused = _by_item(lines, refusals)
    return [refused.get(place) for place in range(len(items))]


def _by_item(
    lines: Sequence[Any], refusals: Iterable[tuple[int, int | None]]
) -> dict[int, Refused]:
    """Return what was refused by the place of the item; refusals have numbers of lines, from 1."""
    refused: dict[int, dict[str, int | None]] = {}
    for number, ticks in refusals:
        line = lines[number - 1]
        refused.setdefault(line[8], {})[line[2]] = ticks
    return dict(refused)


def _early_of(error: BaseException) -> Iterator[tuple[int, int]]:
    """Yield the numbers of lines with an early stamp, and the ticks of removed entities."""
    for pair in error.detail.split(","):  # type: ignore[attr-defined]  # of an error with a state
        number, ticks = pair.split()
        yield int(number), int(ticks)


def _how(expected: Sequence[int], documents: Sequence[bytes | None]) -> int:
    if None not in documents:
        kinds = set(expected)
        if kinds == {ANYTHING}:
            return UPSERTED
        if kinds == {NOTHING}:
            return INSERTED
    return MERGED


async def _write_others(
    link: Link, items: Sequence[Change], answered: Mapping[int, Answer]
) -> list[Answer]:
    """Write the changes that have no answer yet: nothing of the trip was written."""
    others = [place for place in range(len(items)) if place not in answered]
    written = await _write(link, [items[place] for place in others]) if others else []
    answers = {**answered, **dict(zip(others, written, strict=True))}
    return [answers[place] for place in range(len(items))]
