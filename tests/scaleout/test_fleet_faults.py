"""Short forms of the scenarios of `make chaos` on PostgreSQL, and broken siblings of the store."""

import random
from pathlib import Path

import pytest

from chaos.fleet import scenarios
from chaos.fleet.faults import FAULTS
from chaos.fleet.standby import standby
from chaos.report import Outcome
from chaos.scenario import Run
from partita.clock import ManualClock
from partita.scaleout.catalog.fleet_clock import SLOTS_MAX, FleetClock
from partita.scaleout.schema.locks import RANGE_LOCKS
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, Insert
from scaleout.test_two_front_ends import (
    BROKEN_ROUNDS_MAX,
    Fronts,
    break_write,
    fronts,
    opened,
    write_while_it_moves,
)
from support.front_ends import forget_slots, whole_write

__all__ = ["fronts"]

SHORT = (
    "restart of PostgreSQL (immediate)",
    "kill of a front end",
    "blackhole of results",
    "reset",
)


def a_run(folder: Path, *, is_broken: bool = False) -> Run:
    return Run(folder / "run", random.Random(7), 0, is_broken)


def assert_whole(outcome: Outcome) -> None:
    assert outcome.violations == []
    assert outcome.acknowledged > 0
    assert outcome.faults


@pytest.mark.proof
def test_clients_of_three_front_ends_lose_nothing(tmp_path: Path) -> None:
    assert_whole(scenarios.fleet(a_run(tmp_path), {name: FAULTS[name] for name in SHORT}))


@pytest.mark.proof
def test_a_front_end_that_acknowledges_before_it_commits_is_caught(tmp_path: Path) -> None:
    assert scenarios.fleet(a_run(tmp_path, is_broken=True)).violations


@pytest.mark.proof
def test_clocks_hours_apart_are_not_ready_and_not_in_the_etags(tmp_path: Path) -> None:
    assert_whole(scenarios.clocks(a_run(tmp_path)))


@pytest.mark.soak
def test_stamps_by_wrong_clocks_are_caught(tmp_path: Path) -> None:
    assert scenarios.clocks(a_run(tmp_path, is_broken=True)).violations


@pytest.mark.proof
def test_what_was_acknowledged_is_on_the_standby(tmp_path: Path) -> None:
    assert_whole(standby(a_run(tmp_path), is_short=True))


@pytest.mark.proof
def test_an_acknowledged_wait_that_was_cancelled_is_caught(tmp_path: Path) -> None:
    assert standby(a_run(tmp_path, is_broken=True)).violations


@pytest.mark.soak
def test_nothing_is_lost_behind_pgbouncer(tmp_path: Path) -> None:
    for name, reason in scenarios.SKIPPED.items():
        pytest.skip(f"{name}: {reason}")
    assert_whole(scenarios.pooled(a_run(tmp_path)))


# Broken siblings of the store


async def repeated_etags(monkeypatch: pytest.MonkeyPatch) -> int:
    """Insert, delete and insert again elsewhere, while two clocks stand still.

    The ticks of removed entities, which the database keeps, are not compared.
    """
    forget_slots()
    here, there = ManualClock(17_000_000_000_000_000), ManualClock(17_000_000_000_000_000)
    fronts = await opened(2, [here, there])
    await break_write(fronts, monkeypatch, "IF early IS NOT NULL THEN", "IF false THEN")
    one, two = fronts.engines
    seen: list[str] = []
    for number in range(8):
        key = EntityKey("p", f"{number}")
        for engine in (one, two):
            outcome = await engine.run("Staff", EntityGroup([Insert(key, {})]))
            seen += [entity.etag for entity in outcome.entities if entity is not None]
            await engine.run("Staff", EntityGroup([Delete(key)]))
        assert len(seen) == 2 * (number + 1)
    for store in fronts.stores:
        await store.close()
    return sum(seen[place] == seen[place + 1] for place in range(0, len(seen), 2))


async def test_front_ends_whose_clocks_are_equal_make_different_etags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await repeated_etags(monkeypatch) == 0


async def test_etags_without_the_slot_would_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = FleetClock.stamp
    monkeypatch.setattr(
        FleetClock, "stamp", lambda self, *keys: stamp(self, *keys) & ~(SLOTS_MAX - 1)
    )

    assert await repeated_etags(monkeypatch) > 0


async def test_a_look_in_the_statement_of_the_lock_would_be_seen(
    fronts: Fronts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken: the snapshot of the look is older than the lock; it pauses in between."""
    whole = whole_write()
    start, end = whole.index("  -- Try, not wait"), whole.index("  IF owned < cardinality")
    look = f"""
      WITH pause AS MATERIALIZED (SELECT 1 AS one FROM pg_sleep(0.003))
      SELECT count(*), bool_or(r.capture) INTO owned, is_captured
        FROM pause CROSS JOIN unnest(range_ids, epochs) AS q (id, epoch)
        JOIN partita.range_own r ON r.id = q.id AND r.epoch = q.epoch AND r.state = 'o'
       WHERE pg_try_advisory_xact_lock_shared({RANGE_LOCKS}, q.id * pause.one);
    """
    await break_write(fronts, monkeypatch, whole[start:end], look)

    # On a busy machine, one round may miss the short time between the look and the write.
    for _ in range(BROKEN_ROUNDS_MAX):
        if await write_while_it_moves(fronts) > 0:
            return
    pytest.fail("nothing was written behind the fence")
