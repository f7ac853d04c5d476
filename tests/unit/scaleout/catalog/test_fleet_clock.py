"""Stamps of several front ends whose clocks are apart, go back, and start again."""

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from partita.clock import ManualClock
from partita.errors import StoreStoppedError
from partita.scaleout.catalog import fleet_clock
from partita.scaleout.catalog.fleet_clock import KEYS_KEPT, SLOT_BITS, FleetClock, Lease
from partita.ticks import TICKS_PER_SECOND

FRONT_ENDS = 3
HOUR = 3600.0
KEYS = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, FRONT_ENDS - 1)


def a_lease(slot: int = 0, floor: int = 0, seconds: float = 1e9) -> Lease:
    return Lease(slot, floor, seconds, 1 << 62)


def a_clock(source: ManualClock | None = None, slot: int = 0) -> FleetClock:
    clock = FleetClock(source or ManualClock())
    clock.use(a_lease(slot))
    return clock


class Stamping(RuleBasedStateMachine):
    """Front ends that write, delete and restart; the shard refuses stamps as the store does."""

    @initialize(apart=st.lists(st.floats(-HOUR, HOUR), min_size=FRONT_ENDS, max_size=FRONT_ENDS))
    def start(self, apart: list[float]) -> None:
        self.sources = [ManualClock() for _ in range(FRONT_ENDS)]
        for source, seconds in zip(self.sources, apart, strict=True):
            source.jump(seconds)
        self.clocks = [a_clock(source, slot) for slot, source in enumerate(self.sources)]
        self.stored: dict[str, int] = {}
        self.stamps: defaultdict[str, list[int]] = defaultdict(list)

    @rule(number=NUMBERS, keys=st.sets(KEYS, min_size=1))
    def write(self, number: int, keys: set[str]) -> None:
        clock = self.clocks[number]
        stamp = clock.stamp(*keys)
        for _ in range(len(keys) + 1):
            refused = [key for key in keys if self.stored.get(key, 0) >= stamp]
            if not refused:
                break
            for key in refused:
                clock.observe(self.stored[key], key)
            stamp = clock.stamp(*keys)
        for key in keys:
            assert self.stored.get(key, 0) < stamp
            self.stored[key] = stamp
            self.stamps[key].append(stamp)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.stored.pop(key, None)

    @rule(number=NUMBERS, seconds=st.sampled_from([0.0001, 0.001, 0.7, 60.0, HOUR]))
    def wait(self, number: int, seconds: float) -> None:
        self.sources[number].advance(seconds)

    @rule(number=NUMBERS, seconds=st.floats(-HOUR, HOUR))
    def set_the_clock(self, number: int, seconds: float) -> None:
        self.sources[number].jump(seconds)

    @rule(number=NUMBERS, seconds=st.floats(-HOUR, HOUR))
    def restart(self, number: int, seconds: float) -> None:
        floor = self.clocks[number].last_stamp
        self.sources[number].jump(seconds)
        self.clocks[number] = FleetClock(self.sources[number])
        self.clocks[number].use(a_lease(number, floor))

    @invariant()
    def no_stamp_of_a_key_repeats(self) -> None:
        for stamps in getattr(self, "stamps", {}).values():
            assert len(set(stamps)) == len(stamps)


Stamping.TestCase.settings = settings(stateful_step_count=40)
test_stamps_of_a_key_do_not_repeat_or_go_back = Stamping.TestCase


def test_a_stamp_has_the_slot_in_its_low_bits_and_is_close_to_the_wall_clock() -> None:
    source = ManualClock()
    stamp = a_clock(source, slot=4711).stamp("a")

    assert stamp % (1 << SLOT_BITS) == 4711
    assert abs(stamp - source.ticks()) < 1 << SLOT_BITS


def test_a_key_gets_each_quantum_once_and_other_keys_share_it() -> None:
    clock = a_clock()
    first, second, other = clock.stamp("a"), clock.stamp("a"), clock.stamp("b")

    assert second == first + (1 << SLOT_BITS)
    assert other == first


def test_a_group_is_later_than_all_its_keys() -> None:
    clock = a_clock()
    clock.stamp("a")
    last = clock.stamp("a")

    assert clock.stamp("a", "b") > last
    assert clock.stamp("b") > last


def test_ticks_far_ahead_move_only_their_key() -> None:
    source = ManualClock()
    clock = a_clock(source)
    ahead = source.ticks() + 3600 * TICKS_PER_SECOND

    clock.observe(ahead, "a")

    assert clock.stamp("a") > ahead
    assert clock.stamp("b") < source.ticks() + TICKS_PER_SECOND


def test_ticks_a_little_ahead_move_the_front_end() -> None:
    source = ManualClock()
    clock = a_clock(source)
    ahead = source.ticks() + TICKS_PER_SECOND // 2

    clock.observe(ahead, "a")

    assert clock.stamp("b") > ahead


def test_a_clock_that_was_set_back_goes_on_at_half_speed() -> None:
    source = ManualClock()
    clock = a_clock(source)
    first = clock.stamp("a")
    source.jump(-HOUR)
    source.advance(10.0)

    assert clock.stamp("a") - first == pytest.approx(5 * TICKS_PER_SECOND, abs=3 << SLOT_BITS)


def test_keys_in_the_past_are_forgotten() -> None:
    source = ManualClock()
    clock = a_clock(source)
    clock.observe(source.ticks() + 3600 * TICKS_PER_SECOND, "ahead")
    for number in range(3 * KEYS_KEPT):
        clock.stamp(number)
        source.advance(0.01)

    assert len(clock._stamped) <= KEYS_KEPT + 1
    assert "ahead" in clock._stamped


def test_many_keys_ahead_move_the_whole_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_clock, "KEYS_AHEAD_MAX", KEYS_KEPT)
    source = ManualClock()
    clock = a_clock(source)
    ahead = source.ticks() + 3600 * TICKS_PER_SECOND
    for number in range(KEYS_KEPT + 1):
        clock.observe(ahead, number)

    assert clock.stamp("other") > ahead
    assert len(clock._stamped) < KEYS_KEPT


def test_without_a_slot_there_are_no_stamps() -> None:
    source = ManualClock()
    clock = FleetClock(source)
    with pytest.raises(StoreStoppedError, match="slot"):
        clock.stamp("a")

    clock.use(Lease(1, 0, source.monotonic() + 10.0, 1 << 62))
    clock.stamp("a")
    source.advance(10.0)

    with pytest.raises(StoreStoppedError) as caught:
        clock.stamp("a")
    assert caught.value.code == "StoreSlotLost"
    assert not clock.has_slot


def test_a_machine_that_was_suspended_beyond_its_lease_makes_no_stamps() -> None:
    source = ManualClock()
    clock = FleetClock(source)
    clock.use(Lease(1, 0, 1e9, source.ticks() + 10 * TICKS_PER_SECOND))
    source.jump(11.0)

    assert not clock.has_slot


def test_the_next_holder_of_a_slot_starts_after_its_floor() -> None:
    source = ManualClock()
    earlier = a_clock(source, slot=3)
    stamp = earlier.stamp("a")
    source.jump(-HOUR)
    later = FleetClock(source)
    later.use(a_lease(3, earlier.last_stamp))

    assert earlier.last_stamp >= stamp
    assert later.stamp("a") > stamp


def test_the_catalog_s_time_is_that_of_the_middle_of_a_comparison() -> None:
    source = ManualClock()
    clock = FleetClock(source)
    catalog = source.ticks() + 5 * TICKS_PER_SECOND
    before = clock.reading()
    source.advance(0.5)
    clock.compare(before, clock.reading(catalog))

    assert clock.now() == catalog + TICKS_PER_SECOND // 4
    assert clock.seconds_apart == pytest.approx(-4.75)
    assert not clock.is_close


def test_the_catalog_s_time_does_not_go_back() -> None:
    source = ManualClock()
    clock = FleetClock(source)
    clock.compare(clock.reading(), clock.reading(2 * TICKS_PER_SECOND))
    before = clock.now()
    clock.compare(clock.reading(), clock.reading(TICKS_PER_SECOND))

    assert clock.now() == before


def test_a_slow_answer_does_not_replace_a_comparison() -> None:
    source = ManualClock()
    clock = FleetClock(source)
    clock.compare(clock.reading(), clock.reading(source.ticks()))
    before = clock.reading()
    source.advance(5.0)
    clock.compare(before, clock.reading(source.ticks()))

    assert clock.is_close


def test_an_unchecked_clock_is_always_close() -> None:
    clock = FleetClock(ManualClock(), checks_clock=False)
    clock.compare(clock.reading(), clock.reading(1))

    assert clock.is_close
