"""The mover killed at each of its steps: the next run finishes the move, or takes it back.

A point is a place in the code, named with the step of the move: before and after each step, inside
the long ones, and inside the catalog's own operations that a step consists of.
"""

import random
import signal

import pytest

from partita.errors import MoveRefusedError
from partita.shards.keys.mapping import Shard
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from partita.shards.moving.move_plan import STEPS
from shards import mover_process
from shards.mover_process import forked
from shards.moves import (
    Content,
    Kept,
    Moving,
    content,
    jobs,
    kept,
    kept_postgres,
    kept_sqlite,
    mapping_of,
    of_tenants,
    on_both,
    together,
)
from support.catalogs import assert_catalogs_agree, local_rows
from support.repeats import IS_SOAK, repeat, sample, sample_pairs

__all__ = ["kept", "kept_postgres", "kept_sqlite"]

TIMES = (1, 2, 3) if IS_SOAK else (1,)
"""Which occurrences of a point are the last ones."""

OPERATION = (
    "global preparing",
    "global prepared",
    "local 0 applying",
    "local 0 applied",
    "global finishing",
    "global finished",
)
TWO_SHARDS = (*OPERATION[:4], "local 1 applying", "local 1 applied", *OPERATION[4:])
INSIDE = {
    "capture": ("capture table 0", "capture table 1", "capture table 2"),
    "reference": ("reference table 0",),
    "copy": ("copy batch of 0", "copy batch of 1", "copy batch of 2"),
    "catch_up": ("catch_up applied", "catch_up compared"),
    "fence": ("fence recorded",),
    "verify": ("verify applied",),
    "switch": ("switch committed",),
    "clean_up": ("clean_up capture removed", "clean_up batch", "clean_up recorded"),
}
POINTS = [
    *(f"{step}: move {step} begins" for step in STEPS),
    *(f"{step}: move {step} done" for step in STEPS),
    *(f"{step}: move {point}" for step, points in INSIDE.items() for point in points),
    *(f"fence: {point}" for point in OPERATION),
    *(f"switch: {point}" for point in TWO_SHARDS),
]
MOST_POINTS = [point for point in POINTS if IS_SOAK or not point.endswith(("done", "ing"))]
"""The end of one step and the beginning of the next differ by nothing but the record."""
MOMENTS = repeat(1, 2, 40)
TAKEN_BACK = [point for point in POINTS if not point.startswith("clean_up")]
CANCEL_POINTS = (
    "cancel begins",
    "cancel reopened",
    "cancel capture removed",
    "cancel batch",
    "cancel recorded",
    "cancel unlocked",
)
NEW = mover_process.FIRST_NEW
AFTER_SWITCH = ("local 1 applied", "global finishing", "global finished", "committed", "done")


def run_mover(
    moving: Moving, point: str, times: int = 1, *, first: int = NEW, seconds: float | None = None
) -> tuple[list[str], int]:
    """Return what a mover in a process of its own printed, and the signal that ended it."""
    target = moving.two.location.text
    return forked(
        moving,
        lambda: mover_process.main(moving.catalog_url, target, point, times, first),
        seconds=seconds,
    )


def rows_written(lines: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith("done ")}


def without_new(found: Content) -> Content:
    return found | {"blog": [row for row in found["blog"] if row[1] < NEW]}


def new_rows(found: Content) -> list[int]:
    return sorted(row[1] for row in found["blog"] if row[1] >= NEW)


def test_the_points_of_these_tests_are_those_that_a_move_passes(kept_sqlite: Kept) -> None:
    with kept_sqlite.whole() as moving:
        lines, ended_by = run_mover(moving, "")
        moving.reopen()

    passed = {line.removeprefix("point ") for line in lines if line.startswith("point ")}
    assert ended_by == 0
    assert set(POINTS) <= passed
    assert {point for point in passed if ": move" in point} <= set(POINTS)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("point", sample(POINTS, 9))
def test_a_mover_killed_at_any_point_is_followed_by_one_that_finishes(
    kept_sqlite: Kept, point: str, times: int
) -> None:
    check_kill_and_resume(kept_sqlite, point, times)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("point", sample(MOST_POINTS, 11))
def test_a_mover_killed_at_any_point_on_postgresql_is_followed_by_one_that_finishes(
    kept_postgres: Kept, point: str, times: int
) -> None:
    check_kill_and_resume(kept_postgres, point, times)


def check_kill_and_resume(kept: Kept, point: str, times: int) -> None:
    with kept.whole() as moving:
        before = Before(moving)
        lines, ended_by = run_mover(moving, point, times)
        moving.reopen()
        if ended_by == 0:
            assert times > 1  # there are not so many occurrences
            return
        assert_one_owner(moving)

        reports = move.resume(moving.manager)

        assert [report.state for report in reports] == ["done"]
        before.check(rows_written(lines), left=moving.one, owner=moving.two)
        assert {state for _, state in jobs(moving.manager)} == {"done"}


@pytest.mark.repeated
def test_movers_killed_at_any_moment_are_followed_by_one_that_finishes(kept: Kept) -> None:
    chance = random.Random(4)
    for _ in range(MOMENTS):
        with kept.whole() as moving:
            before, written = Before(moving), set[int]()
            for turn in range(1, 4):
                seconds = chance.expovariate(4)
                lines, _ = run_mover(moving, "never", first=turn * NEW, seconds=seconds)
                written |= rows_written(lines)
                moving.reopen()
                assert_one_owner(moving)
                if not move.list_moves(moving.manager):
                    break

            reports = move.resume(moving.manager)

            is_moved = mapping_of(moving.tenants, 42).shard == moving.two
            assert all(report.state == "done" for report in reports)
            ends = (moving.one, moving.two) if is_moved else (moving.two, moving.one)
            before.check(written, left=ends[0], owner=ends[1], unknown=3)


@pytest.mark.parametrize("point", sample(TAKEN_BACK if IS_SOAK else TAKEN_BACK[::3], 7))
def test_a_mover_killed_before_the_switch_can_be_taken_back(kept_sqlite: Kept, point: str) -> None:
    check_kill_and_cancel(kept_sqlite, point)


@pytest.mark.parametrize("point", sample(TAKEN_BACK if IS_SOAK else TAKEN_BACK[::8], 4))
def test_a_mover_killed_before_the_switch_on_postgresql_can_be_taken_back(
    kept_postgres: Kept, point: str
) -> None:
    check_kill_and_cancel(kept_postgres, point)


def check_kill_and_cancel(kept: Kept, point: str) -> None:
    with kept.whole() as moving:
        before = Before(moving)
        lines, _ = run_mover(moving, point)
        moving.reopen()
        (job,) = move.list_moves(moving.manager)
        if point.startswith("switch") and point.endswith(AFTER_SWITCH):
            with pytest.raises(MoveRefusedError, match="MoveSwitched"):
                move.cancel(moving.manager, job.job_id)
            assert [report.state for report in move.resume(moving.manager)] == ["done"]
            before.check(rows_written(lines), left=moving.one, owner=moving.two)
            return

        report = move.cancel(moving.manager, job.job_id)

        assert report.state == "cancelled"
        before.check(rows_written(lines), left=moving.two, owner=moving.one)


@pytest.mark.parametrize(
    ("kept", "point"),
    sample_pairs(on_both(CANCEL_POINTS, CANCEL_POINTS[1::2]), 3),
    indirect=["kept"],
)
def test_a_cancellation_that_is_killed_is_finished_by_the_next_run(kept: Kept, point: str) -> None:
    with kept.whole() as moving:
        before = Before(moving)
        lines, _ = run_mover(moving, "verify: move verify applied")
        moving.reopen()
        (job,) = move.list_moves(moving.manager)

        _, ended_by = forked(moving, lambda: cancel_and_die(moving.catalog_url, job.job_id, point))

        moving.reopen()
        assert ended_by == signal.SIGKILL
        assert [report.state for report in move.resume(moving.manager)] == ["cancelled"]
        before.check(rows_written(lines), left=moving.two, owner=moving.one)


def cancel_and_die(catalog: str, job_id: str, point: str) -> None:
    manager = ShardMapManager.open(catalog)
    killer = mover_process.Killer(f"none: move {point}", 1)
    manager.executor.fault = killer
    move.cancel(manager, job_id)


class Before:
    """What was there before a move, to be found again after it."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.content = together(content(moving.one), content(moving.two))

    def check(self, written: set[int], *, left: Shard, owner: Shard, unknown: int = 1) -> None:
        """Every row is there, once, on the shard that the map names, and nothing else is left.

        `unknown` commits may have come before their line was printed.
        """
        moving = self.moving
        one, two = content(moving.one), content(moving.two)
        found = together(one, two)
        assert without_new(found) == self.content
        rows = new_rows(found)
        assert rows == sorted(set(rows))
        assert written <= set(rows)
        assert len(set(rows) - written) <= unknown
        moved = of_tenants(one if left == moving.one else two, range(100))
        assert moved == {name: [] for name in self.content}
        assert mapping_of(moving.tenants, 42).shard == owner
        assert mapping_of(moving.tenants, 150).shard == moving.two
        assert_catalogs_agree(moving.tenants)


def assert_one_owner(moving: Moving) -> None:
    """Whatever was killed: the map names one shard for each key, and the shards do not both."""
    assert [mapping.range for mapping in moving.tenants.mappings()] == [
        Range(0, 100),
        Range(100, 200),
    ]
    owners = []
    for shard in (moving.one, moving.two):
        rows = local_rows(moving.tenants, shard)
        owners += [shard for _, low, _, _ in rows if low == moving.low.key_range.low]
    assert len(owners) <= 1
