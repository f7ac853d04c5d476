import time
import uuid

import pytest

from partita.clock import ManualClock, SystemClock
from partita.ticks import TICKS_PER_SECOND, Clock


def test_the_system_clock_counts_ticks_of_100_ns_since_1970() -> None:
    before = time.time_ns()
    ticks = SystemClock().ticks()

    assert before // 100 <= ticks <= time.time_ns() // 100


def test_the_system_clock_does_not_go_back() -> None:
    clock = SystemClock()

    seen = [clock.monotonic() for _ in range(100)]

    assert seen == sorted(seen)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_every_id_is_a_fresh_random_uuid(clock: Clock) -> None:
    first, second = clock.new_id(), clock.new_id()

    assert first != second
    assert uuid.UUID(first).version == 4
    assert str(uuid.UUID(first)) == first


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_random_bytes_are_as_many_as_asked(clock: Clock) -> None:
    assert [len(clock.random_bytes(count)) for count in (0, 1, 16)] == [0, 1, 16]
    assert clock.random_bytes(16) != clock.random_bytes(16)


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(5)

    assert [clock.ticks(), clock.ticks()] == [5, 5]
    assert clock.monotonic() == clock.monotonic()


def test_advancing_moves_both_clocks() -> None:
    clock = ManualClock()
    ticks, seconds = clock.ticks(), clock.monotonic()

    clock.advance(2.5)

    assert clock.ticks() - ticks == 2.5 * TICKS_PER_SECOND
    assert clock.monotonic() - seconds == 2.5


def test_a_jump_moves_the_wall_clock_only() -> None:
    clock = ManualClock()
    ticks, seconds = clock.ticks(), clock.monotonic()

    clock.jump(-3600)

    assert clock.ticks() - ticks == -3600 * TICKS_PER_SECOND
    assert clock.monotonic() == seconds


def test_one_seed_gives_one_sequence() -> None:
    def draw(seed: int) -> tuple[bytes, str]:
        clock = ManualClock(seed=seed)
        return clock.random_bytes(8), clock.new_id()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
