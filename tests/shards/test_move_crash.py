"""The mover killed at each of its steps: the next run finishes the move, or takes it back.

A point is a place in the code, named with the step of the move: before and after each step, inside
the long ones, and inside the catalog's own operations that a step consists of.
"""

import os
import signal
import sys
from collections.abc import Callable

import pytest

from partita.errors import MoveRefusedError
from partita.shards import move
from partita.shards.manager import ShardMapManager
from partita.shards.move_plan import STEPS
from shards import mover_process
from shards.catalogs import assert_catalogs_agree
from shards.moves import (
    Content,
    Moving,
    NewDatabase,
    assert_nothing_is_left,
    content,
    jobs,
    mapping_of,
    of_tenants,
    together,
    two_shards,
)

IS_SOAK = bool(os.environ.get("PARTITA_SOAK"))
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
ON_POSTGRESQL = [
    point for point in POINTS if IS_SOAK or not point.endswith(("done", "begins", "preparing"))
]
TAKEN_BACK = [point for point in POINTS if not point.startswith("clean_up")]
CANCEL_POINTS = (
    "cancel begins",
    "cancel reopened",
    "cancel capture removed",
    "cancel batch",
    "cancel recorded",
    "cancel unlocked",
)
AFTER_SWITCH = ("local 1 applied", "global finishing", "global finished", "committed", "done")


def run_mover(moving: Moving, point: str, time: int = 1) -> tuple[list[str], int]:
    """Return what a mover in a process of its own printed, and the signal that ended it."""
    return forked(
        moving,
        lambda: mover_process.main(moving.catalog_url, moving.two.location.text, point, time),
    )


def forked(moving: Moving, work: Callable[[], None]) -> tuple[list[str], int]:
    """Run something in a fork: a new interpreter would take longer than the move."""
    moving.manager.close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            sys.stdout = os.fdopen(writing, "w")
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as printed:
        lines = printed.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, lines
    return lines, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def rows_written(lines: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith("done ")}


def without_new(found: Content) -> Content:
    return found | {"blog": [row for row in found["blog"] if row[1] < 1_000]}


def new_rows(found: Content) -> list[int]:
    return sorted(row[1] for row in found["blog"] if row[1] >= 1_000)


def test_the_points_of_these_tests_are_those_that_a_move_passes(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as moving:
        lines, ended_by = run_mover(moving, "")

    passed = {line.removeprefix("point ") for line in lines if line.startswith("point ")}
    assert ended_by == 0
    assert set(POINTS) <= passed
    assert {point for point in passed if ": move" in point} <= set(POINTS)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("point", POINTS)
def test_a_mover_killed_at_any_point_is_followed_by_one_that_finishes(
    new_sqlite: NewDatabase, point: str, time: int
) -> None:
    check_kill_and_resume(new_sqlite, point, time)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("point", ON_POSTGRESQL)
def test_a_mover_killed_at_any_point_on_postgresql_is_followed_by_one_that_finishes(
    new_postgres: NewDatabase, point: str, time: int
) -> None:
    check_kill_and_resume(new_postgres, point, time)


def check_kill_and_resume(urls: NewDatabase, point: str, time: int) -> None:
    with two_shards(urls) as moving:
        before = together(content(moving.one), content(moving.two))
        lines, ended_by = run_mover(moving, point, time)
        if ended_by == 0:
            assert time > 1  # there are not so many occurrences
            return
        moving.reopen()

        reports = move.resume(moving.manager)

        assert [report.state for report in reports] == ["done"]
        check_whole(moving, before, rows_written(lines), left=moving.one, owner=moving.two)
        assert {state for _, state in jobs(moving.manager)} == {"done"}


@pytest.mark.parametrize("point", TAKEN_BACK if IS_SOAK else TAKEN_BACK[::2])
def test_a_mover_killed_before_the_switch_can_be_taken_back(
    new_sqlite: NewDatabase, point: str
) -> None:
    with two_shards(new_sqlite) as moving:
        before = together(content(moving.one), content(moving.two))
        lines, _ = run_mover(moving, point)
        moving.reopen()
        (job,) = move.list_moves(moving.manager)
        if point.startswith("switch") and point.endswith(AFTER_SWITCH):
            with pytest.raises(MoveRefusedError, match="MoveSwitched"):
                move.cancel(moving.manager, job.job_id)
            return

        report = move.cancel(moving.manager, job.job_id)

        assert report.state == "cancelled"
        check_whole(moving, before, rows_written(lines), left=moving.two, owner=moving.one)


@pytest.mark.parametrize("point", CANCEL_POINTS)
def test_a_cancellation_that_is_killed_is_finished_by_the_next_run(
    database_urls: NewDatabase, point: str
) -> None:
    with two_shards(database_urls) as moving:
        before = together(content(moving.one), content(moving.two))
        lines, _ = run_mover(moving, "verify: move verify applied")
        moving.reopen()
        (job,) = move.list_moves(moving.manager)

        _, ended_by = forked(moving, lambda: cancel_and_die(moving.catalog_url, job.job_id, point))

        moving.reopen()
        assert ended_by == signal.SIGKILL
        assert [report.state for report in move.resume(moving.manager)] == ["cancelled"]
        check_whole(moving, before, rows_written(lines), left=moving.two, owner=moving.one)


def cancel_and_die(catalog: str, job_id: str, point: str) -> None:
    manager = ShardMapManager.open(catalog)
    killer = mover_process.Killer(f"none: move {point}", 1)
    manager.executor.fault = killer
    move.cancel(manager, job_id)


def check_whole(
    moving: Moving, before: Content, written: set[int], *, left: object, owner: object
) -> None:
    """Every row is there, once, on the shard that the map names, and nothing else is left."""
    one, two = content(moving.one), content(moving.two)
    found = together(one, two)
    assert without_new(found) == before
    # The last commit may have come before its line.
    rows = new_rows(found)
    assert rows == sorted(set(rows))
    assert written <= set(rows)
    assert len(set(rows) - written) <= 1
    moved = of_tenants(one if left == moving.one else two, range(100))
    assert moved == {name: [] for name in before}
    assert mapping_of(moving.tenants, 42).shard == owner
    assert mapping_of(moving.tenants, 150).shard == moving.two
    assert_nothing_is_left(moving)
    assert_catalogs_agree(moving.tenants)
