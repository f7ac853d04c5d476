"""Simulated hours of a fleet under the balancer: hot spots go away, and ranges do not oscillate."""

import random

import pytest

from partita.scaleout.balancing.limits import ROUND_SECONDS
from partita.simulation.balanced_fleet import SimulatedFleet

CELLS = 16
"""Partition keys per range at the start."""
SPOT_SECONDS_MAX = 150
"""The bound of the design for the time that a new hot spot lasts."""
ROUNDS_PER_HOUR = int(3600 / ROUND_SECONDS)


def a_fleet(shards: int, random_: random.Random) -> SimulatedFleet:
    """Return a fleet at half its capacity, ten ranges a shard, whose heat has a heavy tail."""
    ranges = 10 * shards
    heats = [random_.paretovariate(1.6) for _ in range(ranges) for _ in range(CELLS)]
    loads = [each / sum(heats) * 0.5 * shards for each in heats]
    return SimulatedFleet(loads, shards=shards, ranges=ranges)


@pytest.mark.parametrize(("shards", "seed"), [(4, 1), (4, 2), (10, 3), (10, 4)])
def test_a_hot_spot_goes_away_in_time_and_nothing_moves_back(shards: int, seed: int) -> None:
    random_ = random.Random(seed)
    fleet = a_fleet(shards, random_)
    for _ in range(ROUNDS_PER_HOUR):
        fleet.step()

    start = random_.randrange(10 * shards) * CELLS
    spot = range(start, start + CELLS)
    for cell in spot:
        fleet.set_load(cell, fleet.loads[cell] + 0.8 / CELLS)
    began, ended = fleet.now, None
    for _ in range(2 * ROUNDS_PER_HOUR):
        for _ in range(shards):  # the load drifts
            cell = random_.randrange(len(fleet.loads))
            fleet.set_load(cell, fleet.loads[cell] * random_.uniform(0.8, 1.25))
        fleet.step()
        on = {fleet.range_of(cell).shard for cell in spot}
        if ended is None and all(fleet.shard_loads[shard] <= 1.0 for shard in on):
            ended = fleet.now

    assert ended is not None
    assert ended - began <= SPOT_SECONDS_MAX
    assert fleet.moves_back == 0
    assert max(fleet.shard_loads) <= 1.0


def test_an_even_fleet_changes_nothing() -> None:
    fleet = SimulatedFleet([0.5 / 160] * 640, shards=4, ranges=40)

    for _ in range(100):
        fleet.step()

    assert (fleet.moves, fleet.splits, fleet.merges) == (0, 0, 0)


def test_new_shards_are_filled() -> None:
    fleet = SimulatedFleet([0.95 / 16] * 64, shards=4, ranges=64)
    fleet.add_shard()
    fleet.add_shard()

    for _ in range(2 * ROUNDS_PER_HOUR):
        fleet.step()

    assert max(fleet.shard_loads) <= 0.75
    assert fleet.moves_back == 0


def test_a_table_that_cools_is_merged() -> None:
    fleet = SimulatedFleet([1.5 / 64] * 64, shards=1, ranges=1)
    for _ in range(20):
        fleet.step()
    assert len(fleet.ranges) >= 3

    for cell in range(64):
        fleet.set_load(cell, 0.001 / 64)
    for _ in range(4 * ROUNDS_PER_HOUR):
        fleet.step()

    assert len(fleet.ranges) == 1
    assert fleet.last.actions == []
