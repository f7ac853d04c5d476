"""Whole replicas under random trouble: what was acknowledged stays, once, on all of them."""

from functools import cache

import msgspec
import pytest

from partita.simulation.stream import NO_FAULTS
from simulation.replicas import Plan, World, simulate
from support.repeats import repeat

SEEDS = repeat(3, 20, 1_000)
BLOCK = repeat(3, 5, 5)


@cache
def run_of(seed: int) -> World:
    return simulate(seed, Plan()).value


@pytest.mark.repeated
@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_nothing_acknowledged_is_lost_or_doubled(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = run_of(seed)

        assert world.acknowledged


def test_the_same_seed_gives_the_same_history() -> None:
    plan = Plan(operations=400)

    first, second, other = (simulate(seed, plan).trace_hash for seed in (7, 7, 8))

    assert first == second
    assert first != other


def test_the_runs_meet_what_they_are_for() -> None:
    """Epochs change, logs are cut, and replicas come back by a full copy."""
    worlds = [run_of(seed) for seed in range(3)]

    assert all(world.cluster.messages[-1] for world in worlds)
    assert sum(world.epochs for world in worlds) > 20
    # Beside the trouble the log is truncated when all live replicas happen to have a checkpoint;
    # after it always (World._truncate).
    assert any(world.first_in_trouble > 1 for world in worlds)
    assert all(world.cluster.first > world.first_in_trouble for world in worlds)
    assert sum(world.full_copies for world in worlds) > 0


def test_without_trouble_one_epoch_is_enough() -> None:
    world = simulate(1, Plan(operations=400, faults=NO_FAULTS, kill_seconds=0.0)).value

    assert world.epochs == 1


def test_a_primary_is_elected_although_every_answer_takes_a_second() -> None:
    """Half a second each way: a read, a write and a renewal would not fit into one lease."""
    far = msgspec.structs.replace(NO_FAULTS, delay_seconds_min=0.5)

    world = simulate(1, Plan(operations=40, faults=far, kill_seconds=0.0)).value

    assert world.epochs == 1
    assert world.acknowledged
