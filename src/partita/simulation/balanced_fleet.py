"""A simulated fleet for the balancer: ranges of weighted keys on shards, and moves that take time.

The keys of all tables are numbered cells; a cell is one partition key, with a load and bytes. The
balancer is the real one; time, copying and the loads are simulated. Loads are parts of the capacity
of a shard.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from partita.scaleout.balancing.deciding import (
    Decision,
    Memory,
    MergeRanges,
    MoveRange,
    SplitRange,
    decide,
)
from partita.scaleout.balancing.limits import REST_SECONDS, ROUND_SECONDS, SPLIT_LOAD
from partita.scaleout.balancing.picture import Picture, RangeLoad, ShardLoad

COPY_BYTES_PER_SECOND = 40_000_000
BACK_SECONDS = 1800
"""A range that returns within this time, three times the rest after a move, has moved back; later,
the load is another one."""


class SimulatedRange:
    """The cells from `start` on, before `end`."""

    def __init__(self, identity: int, start: int, end: int, shard: int, load: float) -> None:
        self.id = identity
        self.start, self.end = start, end
        self.shard = shard
        self.load = load
        self.moved_at = float("-inf")
        self.came_from: int | None = None
        """The shard that it was moved from last."""
        self.seen: RangeLoad | None = None
        """As the balancer saw it last."""


class SimulatedFleet:
    """Shards, ranges and a balancer, in steps of `ROUND_SECONDS`."""

    def __init__(
        self, loads: Sequence[float], *, shards: int, ranges: int, bytes_per_cell: int = 16_000_000
    ) -> None:
        self.loads = list(loads)
        self.now = 0.0
        self.shards = shards
        self.moves = self.moves_back = self.splits = self.merges = 0
        self.last: Decision = Decision([], [])
        self._bytes_per_cell = bytes_per_cell
        self._memory = Memory()
        self._next_id = 1
        self._arrivals: list[tuple[float, int, int]] = []
        """Of each move: when it ends, the range, its target."""
        cells = len(self.loads)
        bounds = [number * cells // ranges for number in range(ranges + 1)]
        self.ranges = [
            self._new_range(start, end, number % shards)
            for number, (start, end) in enumerate(pairwise(bounds))
        ]
        self.shard_loads = [0.0] * shards
        for each in self.ranges:
            self.shard_loads[each.shard] += each.load

    def set_load(self, cell: int, load: float) -> None:
        """Change the load of one partition key."""
        change = load - self.loads[cell]
        self.loads[cell] = load
        found = self.range_of(cell)
        found.load += change
        self.shard_loads[found.shard] += change

    def range_of(self, cell: int) -> SimulatedRange:
        return self.ranges[bisect_right(self.ranges, cell, key=lambda each: each.start) - 1]

    def add_shard(self) -> None:
        self.shards += 1
        self.shard_loads.append(0.0)

    def step(self) -> Decision:
        """Let the time of one round pass; return what the balancer decided at its end."""
        self.now += ROUND_SECONDS
        self._finish_moves()
        picture = self.picture()
        self._memory.note(picture, self.now)
        self.last = decide(picture, self._memory, self.now)
        for action in self.last.actions:
            self._apply(action)
        return self.last

    def picture(self) -> Picture:
        """Return what the balancer sees."""
        moving = {identity for _end, identity, _to in self._arrivals}
        sources = {each.shard for each in self.ranges if each.id in moving}
        busy = sources | {to for _end, _identity, to in self._arrivals}
        shards = [ShardLoad(_name(number), is_busy=number in busy) for number in range(self.shards)]
        ranges = [self._seen(each, is_busy=each.id in moving) for each in self.ranges]
        return Picture(shards, ranges, 1.0, len(self._arrivals))

    def _seen(self, each: SimulatedRange, *, is_busy: bool) -> RangeLoad:
        # Most ranges look as in the round before; this makes a large fleet twice as fast.
        has_rested = self.now - each.moved_at > REST_SECONDS + ROUND_SECONDS
        if each.seen is None or is_busy or each.seen.load != each.load or not has_rested:
            each.seen = self._look(each, is_busy=is_busy)
        return each.seen

    def _look(self, each: SimulatedRange, *, is_busy: bool) -> RangeLoad:
        middle, hot_share = None, 0.0
        if each.load > SPLIT_LOAD:
            middle = self._middle(each)
            hot_share = max(self.loads[each.start : each.end]) / each.load
        return RangeLoad(
            id=each.id,
            account="simulated",
            table="T",
            lower=_key(each.start),
            upper=_key(each.end),
            shard=_name(each.shard),
            load=each.load,
            bytes=(each.end - each.start) * self._bytes_per_cell,
            middle=middle,
            hot_key=_key(each.start) if hot_share else None,
            hot_share=hot_share,
            rested_seconds=self.now - each.moved_at,
            is_busy=is_busy,
        )

    def _middle(self, each: SimulatedRange) -> str | None:
        if each.end - each.start < 2:
            return None
        sums = list(accumulate(self.loads[each.start : each.end]))
        place = min(range(len(sums) - 1), key=lambda number: abs(sums[-1] - 2 * sums[number]))
        return _key(each.start + place + 1)

    def _apply(self, action: SplitRange | MoveRange | MergeRanges) -> None:
        places = {each.id: place for place, each in enumerate(self.ranges)}
        if isinstance(action, SplitRange):
            self._split(places[action.range_id], int(action.at))
        elif isinstance(action, MergeRanges):
            self._merge(places[action.first])
        else:
            each = self.ranges[places[action.range_id]]
            seconds = (each.end - each.start) * self._bytes_per_cell / COPY_BYTES_PER_SECOND
            self._arrivals.append((self.now + seconds, each.id, int(action.to)))

    def _split(self, place: int, cell: int) -> None:
        old = self.ranges[place]
        halves = [self._new_range(*ends, old.shard) for ends in _halves(old, cell)]
        for each in halves:
            each.moved_at, each.came_from = old.moved_at, old.came_from
        self.ranges[place : place + 1] = halves
        self.splits += 1

    def _merge(self, place: int) -> None:
        one, other = self.ranges[place : place + 2]
        joined = self._new_range(one.start, other.end, one.shard)
        joined.moved_at = max(one.moved_at, other.moved_at)
        self.ranges[place : place + 2] = [joined]
        self.merges += 1

    def _finish_moves(self) -> None:
        ended = {identity: to for end, identity, to in self._arrivals if end <= self.now}
        self._arrivals = [each for each in self._arrivals if each[0] > self.now]
        if not ended:
            return
        for each in self.ranges:
            if (to := ended.get(each.id)) is not None:
                self.moves += 1
                is_soon = self.now - each.moved_at < BACK_SECONDS
                self.moves_back += is_soon and to == each.came_from
                self.shard_loads[each.shard] -= each.load
                self.shard_loads[to] += each.load
                each.came_from, each.shard, each.moved_at = each.shard, to, self.now
                each.seen = None

    def _new_range(self, start: int, end: int, shard: int) -> SimulatedRange:
        identity, self._next_id = self._next_id, self._next_id + 1
        return SimulatedRange(identity, start, end, shard, sum(self.loads[start:end]))


def _halves(old: SimulatedRange, cell: int) -> list[tuple[int, int]]:
    return [(old.start, cell), (cell, old.end)]


def _key(cell: int) -> str:
    return f"{cell:09}"


def _name(shard: int) -> str:
    return f"{shard:06}"
