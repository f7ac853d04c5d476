"""Whole replicas under random trouble: what was acknowledged stays, once, on all of them."""

import os

import pytest

from partita.simulation.stream import NO_FAULTS
from simulation.replicas import Plan, simulate

SOAK = bool(os.environ.get("PARTITA_SOAK"))
SEEDS = 1_000 if SOAK else 60
BLOCK = 5


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_nothing_acknowledged_is_lost_or_doubled(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = simulate(seed, Plan()).value

        assert world.acknowledged


def test_the_same_seed_gives_the_same_history() -> None:
    plan = Plan(operations=400)

    first, second, other = (simulate(seed, plan).trace_hash for seed in (7, 7, 8))

    assert first == second
    assert first != other


def test_the_runs_meet_what_they_are_for() -> None:
    """Epochs change, logs are cut, and replicas come back by a full copy."""
    worlds = [simulate(seed, Plan()).value for seed in range(3)]

    assert all(world.cluster.messages[-1] for world in worlds)
    assert sum(world.epochs for world in worlds) > 20
    assert all(world.cluster.first > 1 for world in worlds)
    assert sum(world.full_copies for world in worlds) > 0


def test_without_trouble_one_epoch_is_enough() -> None:
    world = simulate(1, Plan(operations=400, faults=NO_FAULTS, kill_seconds=0.0)).value

    assert world.epochs == 1
