"""The decisions of one round of the balancer: what to split, move and merge, and why; pure.

The same picture and memory always give the same actions. A round divides hot ranges first, then
relieves shards, then merges cold neighbours; a range or shard takes part in one action of a round.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from partita.scaleout.balancing import limits
from partita.scaleout.balancing.picture import Picture, RangeLoad


class SplitRange(msgspec.Struct, frozen=True, tag="split"):
    """Divide a range in two, on its shard."""

    range_id: int
    account: str
    table: str
    at: str
    """The first partition key of the second range."""
    reason: str

    @property
    def title(self) -> str:
        return f"split range {self.range_id} of {self.table} at {self.at!r}"


class MoveRange(msgspec.Struct, frozen=True, tag="move"):
    """Carry a range to another shard."""

    range_id: int
    source: str
    to: str
    reason: str

    @property
    def title(self) -> str:
        return f"move range {self.range_id} from {self.source} to {self.to}"


class MergeRanges(msgspec.Struct, frozen=True, tag="merge"):
    """Join two neighbours of one shard."""

    first: int
    second: int
    reason: str

    @property
    def title(self) -> str:
        return f"merge ranges {self.first} and {self.second}"


Action = SplitRange | MoveRange | MergeRanges


class Notice(msgspec.Struct, frozen=True):
    """What the balancer cannot help, or does not do yet, and why."""

    kind: str
    """hot-partition, append-only, full, waiting, unreachable"""
    subject: str
    text: str


class Decision(msgspec.Struct, frozen=True):
    """What one round decided."""

    actions: list[Action]
    notices: list[Notice]


class Memory:
    """What the balancer remembers between rounds; another process begins with none."""

    def __init__(self) -> None:
        self.busy_rounds: dict[str, int] = {}
        """By shard: in how many rounds it was busy without a break."""
        self.cold_since: dict[int, float] = {}
        """By range: since when its load is low."""

        self.halves: set[int] = set()
        """Ranges that were made by a split, and need no rest before they are moved."""

    def note_split(self, halves: Sequence[int]) -> None:
        """Note the ranges that a split of this process has made."""
        self.halves.update(halves)

    def note(self, picture: Picture, now: float) -> None:
        """Add what a round sees."""
        loads = _loads(picture)
        busy = limits.BUSY_LOAD * picture.capacity
        self.busy_rounds = {
            name: self.busy_rounds.get(name, 0) + 1 for name, load in loads.items() if load > busy
        }
        self.halves &= {each.id for each in picture.ranges}
        cold = limits.COLD_LOAD * picture.capacity
        self.cold_since = {
            each.id: self.cold_since.get(each.id, now)
            for each in picture.ranges
            if each.load < cold
        }


def decide(picture: Picture, memory: Memory, now: float) -> Decision:
    """Return what to do; `memory` must have noted this picture."""
    return _Deciding(picture, memory, now).decide()


def _loads(picture: Picture) -> dict[str, float]:
    loads = {shard.name: 0.0 for shard in picture.shards}
    for each in picture.ranges:
        loads[each.shard] = loads.get(each.shard, 0.0) + each.load
    return loads


class _Deciding:
    """One round; `loads` follows the moves that it decides."""

    def __init__(self, picture: Picture, memory: Memory, now: float) -> None:
        self._picture = picture
        self._memory = memory
        self._now = now
        self._capacity = picture.capacity
        self.loads = _loads(picture)
        self._ranges_on: dict[str, list[RangeLoad]] = {each.name: [] for each in picture.shards}
        for found in picture.ranges:
            self._ranges_on[found.shard].append(found)
        self._shards = {each.name: each for each in picture.shards}
        self._taken_shards = {each.name for each in picture.shards if each.is_busy}
        self._taken_ranges = {each.id for each in picture.ranges if each.is_busy}
        self._taken_ranges |= {
            each.id for each in picture.ranges if not self._shards[each.shard].is_reachable
        }
        self.actions: list[Action] = []
        self.notices: list[Notice] = []

    def decide(self) -> Decision:
        self._note_unreachable()
        for each in self._picture.ranges:
            self._split(each)
        moves = max(limits.MOVES_MIN, len(self._shards) // limits.SHARDS_PER_MOVE)
        self._moves_left = moves - self._picture.moves_running
        for name in sorted(self._shards, key=lambda name: -self.loads[name]):
            self._relieve(name)
        self._merge()
        return Decision(self.actions, self.notices)

    # Splits

    def _split(self, each: RangeLoad) -> None:
        if (reason := self._why_split(each)) is None or each.id in self._taken_ranges:
            return
        what = f"Range {each.title} has {reason}"
        if each.is_appending and each.bytes <= limits.SPLIT_BYTES:
            text = f"{what}, but its writes go to its end: a split would help only for a moment."
            advice = " Put a spread value before the time in the partition key."
            self._notice("append-only", each.title, text + advice)
        elif each.hot_key is not None and each.hot_share > limits.HOT_KEY_SHARE:
            text = f"{what}, {each.hot_share:.0%} of it in partition {each.hot_key!r}."
            advice = " A partition is not divided: divide its entities over several keys."
            self._notice("hot-partition", each.title, text + advice)
        elif each.middle is None or not each.lower < each.middle:
            self._notice("waiting", each.title, f"{what}, but no key divides it.")
        else:
            self._taken_ranges.add(each.id)
            self.actions.append(SplitRange(each.id, each.account, each.table, each.middle, reason))

    def _why_split(self, each: RangeLoad) -> str | None:
        if each.load > limits.SPLIT_LOAD * self._capacity:
            return f"{self._part(each.load)} of the capacity of a shard"
        if each.bytes > limits.SPLIT_BYTES:
            return f"{each.bytes / 1024**3:.1f} GiB"
        return None

    # Moves

    def _relieve(self, source: str) -> None:
        load, shard = self.loads[source], self._shards[source]
        if not shard.is_reachable or not self._ranges_on[source]:
            return
        if shard.is_open and load <= limits.BUSY_LOAD * self._capacity:
            return
        is_full = load > limits.FULL_LOAD * self._capacity
        rounds = self._memory.busy_rounds.get(source, 0)
        what = f"{source} has {self._part(load)} of its capacity"
        if source in self._taken_shards:
            self._notice("waiting", source, f"{what}; a move from or to it is under way.")
        elif self._moves_left <= 0:
            self._notice("waiting", source, f"{what}; as many moves as allowed are under way.")
        elif shard.is_open and not is_full and rounds < limits.BUSY_ROUNDS:
            self._notice("waiting", source, f"{what}, in {rounds} of {limits.BUSY_ROUNDS} rounds.")
        elif (found := self._best(source, is_full=is_full)) is None:
            kind = "full" if is_full else "waiting"
            self._notice(kind, source, f"{what}; {self._why_not(source)}.")
        else:
            each, to = found
            why = what if shard.is_open else f"{source} is drained"
            after = self._part(self.loads[to] + each.load)
            reason = f"{why}; the range has {self._part(each.load)}; {to} has {after} then"
            self._move(each, to, reason)

    def _best(self, source: str, *, is_full: bool) -> tuple[RangeLoad, str] | None:
        """Return the range to move, and where; the one with the fewest bytes for its load."""
        target = self._coolest(source)
        if target is None:
            return None
        fitting = [each for each in self._movable(source) if self._fits(each, target, is_full)]
        if not fitting:
            return None
        excess = self.loads[source] - limits.TARGET_LOAD * self._capacity
        enough = [each for each in fitting if each.load >= excess]
        if enough and self._shards[source].is_open:
            # One range that is enough costs less than several.
            return min(enough, key=lambda each: (each.bytes, -each.load, each.id)), target
        return max(fitting, key=lambda each: (each.load / (each.bytes + 1), -each.id)), target

    def _coolest(self, source: str) -> str | None:
        open_shards = (
            name
            for name, each in self._shards.items()
            if each.is_open and each.is_reachable and name not in self._taken_shards
        )
        others = [name for name in open_shards if name != source]
        return min(others, key=lambda name: (self.loads[name], name), default=None)

    def _movable(self, source: str) -> Iterator[RangeLoad]:
        is_drained = not self._shards[source].is_open
        is_full = self.loads[source] > limits.FULL_LOAD * self._capacity
        for each in self._ranges_on[source]:
            is_half = each.id in self._memory.halves
            has_rested = is_half or each.rested_seconds >= limits.REST_SECONDS
            if each.id not in self._taken_ranges and (has_rested or is_full or is_drained):
                yield each

    def _fits(self, each: RangeLoad, target: str, is_full: bool) -> bool:  # noqa: FBT001 - its rule
        source, after = self.loads[each.shard], self.loads[target] + each.load
        if not self._shards[each.shard].is_open:
            return True
        if is_full:
            return each.load > 0 and after < source
        gains = source - after >= limits.GAIN_LOAD * self._capacity
        return each.load > 0 and after <= limits.TARGET_LOAD * self._capacity and gains

    def _why_not(self, source: str) -> str:
        if self._coolest(source) is None:
            return "no other shard can get ranges now: add one with `partita fleet add`"
        if not any(self._movable(source)):
            return "its ranges were moved or split a short time ago, or are being changed"
        if not any(each.load for each in self._movable(source)):
            return "the ranges that can be moved have no load"
        return "no other shard has room for one of its ranges: add one with `partita fleet add`"

    def _move(self, each: RangeLoad, to: str, reason: str) -> None:
        self.actions.append(MoveRange(each.id, each.shard, to, reason))
        self.loads[each.shard] -= each.load
        self.loads[to] += each.load
        self._taken_ranges.add(each.id)
        self._taken_shards |= {each.shard, to}
        self._moves_left -= 1

    # Merges

    def _merge(self) -> None:
        merges = 0
        ranges = self._picture.ranges
        ordered = sorted(ranges, key=lambda each: (each.account, each.table, each.lower))
        for one, other in pairwise(ordered):
            if merges < limits.MERGES_MAX and self._are_cold_neighbours(one, other):
                merges += 1
                self._taken_ranges |= {one.id, other.id}
                hours = limits.COLD_SECONDS / 3600
                reason = f"both had less than {limits.COLD_LOAD:.0%} of a shard for {hours:g} h"
                self.actions.append(MergeRanges(one.id, other.id, reason))

    def _are_cold_neighbours(self, one: RangeLoad, other: RangeLoad) -> bool:
        is_next = (one.account, one.table) == (other.account, other.table)
        if not is_next or one.upper != other.lower or one.shard != other.shard:
            return False
        if one.bytes + other.bytes > limits.MERGED_BYTES or one.shard in self._taken_shards:
            return False
        both = (one, other)
        return all(each.id not in self._taken_ranges and self._is_cold(each) for each in both)

    def _is_cold(self, each: RangeLoad) -> bool:
        since = self._memory.cold_since.get(each.id, self._now)
        rested = min(self._now - since, each.rested_seconds)
        return rested >= limits.COLD_SECONDS

    # Notices

    def _note_unreachable(self) -> None:
        for name, each in self._shards.items():
            if not each.is_reachable:
                text = f"{name} does not answer; its ranges stay where they are."
                self._notice("unreachable", name, text)

    def _notice(self, kind: str, subject: str, text: str) -> None:
        self.notices.append(Notice(kind, subject, text))

    def _part(self, load: float) -> str:
        return f"{load / self._capacity:.0%}"
