"""Clients of three front ends through many moves, splits and merges: a ledger of what was answered.

Each variant of the protocol that lacks one part is caught by the same ledger.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from partita.errors import ConflictError, PartitaError
from partita.scaleout.control import moving, range_copy
from partita.scaleout.control.control import Control
from partita.scaleout.schema.locks import RANGE_LOCKS
from partita.scaleout.tables import trips
from support.control_fleets import Session, other, session, urls
from support.front_ends import OwningStore, whole_write
from support.many_shards import execute
from support.range_ledger import Ledger, change_ranges
from support.repeats import repeat

__all__ = ["other", "session"]

FRONT_ENDS = 3
MOVES = repeat(4, 40, 200)
BROKEN_MOVES_MAX = 60
"""How many moves of a broken variant are tried until its fault shows: the windows are short."""


@pytest.fixture
async def stores(session: Session) -> AsyncIterator[Sequence[OwningStore]]:
    others = [await session.front_end() for _ in range(FRONT_ENDS - 1)]
    yield [session.store, *others]
    for store in others:
        await store.close()


@pytest.mark.repeated
async def test_nothing_is_lost_torn_or_seen_twice_through_many_moves(
    session: Session, stores: Sequence[OwningStore]
) -> None:
    chance, closed = random.Random(3), []
    ledger = Ledger(stores, session.table, seed=3)
    async with ledger.running():
        for _ in range(MOVES):
            seconds = await change_ranges(session.control, session.account, chance)
            assert seconds is not None
            closed.append(seconds)

    print(f"{sum(ledger.done.values())} operations; closed at most {max(closed):.3f} s")
    assert ledger.violations == []
    assert min(ledger.done[kind.__name__] for kind in (ledger._count_up, ledger._scan)) > 0
    assert await session.control.jobs() == []


@pytest.mark.proof
async def test_nothing_is_lost_while_two_movers_meet(
    session: Session, other: Control, stores: Sequence[OwningStore]
) -> None:
    ledger = Ledger(stores, session.table, seed=5)

    async def change(control: Control, seed: int) -> None:
        """Try MOVES changes, and more until one was done: a refusal takes less time than a move."""
        chance, moves, attempts = random.Random(seed), 0, 0
        while attempts < MOVES or moves == 0:
            attempts += 1
            with contextlib.suppress(ConflictError):  # the range was replaced by the other one
                moves += await change_ranges(control, session.account, chance) is not None

    async with ledger.running(), asyncio.TaskGroup() as movers:
        movers.create_task(change(session.control, 1))
        movers.create_task(change(other, 2))

    assert ledger.violations == []
    assert await session.control.jobs() == []


# Broken variants


async def violations_of(
    session: Session, stores: Sequence[OwningStore], *, seed: int = 11
) -> list[str]:
    """Change ranges until something is wrong; return what."""
    chance, ledger = random.Random(seed), Ledger(stores, session.table, seed)
    async with ledger.running():
        for _ in range(BROKEN_MOVES_MAX):
            try:
                await change_ranges(session.control, session.account, chance)
            except PartitaError as error:
                ledger.violations.append(str(error))
            if ledger.violations:
                break
    return ledger.violations


def break_writes(monkeypatch: pytest.MonkeyPatch, start: str, end: str, instead: str) -> None:
    """Let front ends write by a function that has a part replaced, on all shards."""
    whole = whole_write()
    what = whole[whole.index(start) : whole.index(end)]
    broken = whole.replace(what, instead, 1).replace("partita.write_2", "partita.write_broken")
    for url in urls():
        execute(url, broken.replace("%", "%%"))
    monkeypatch.setattr(trips, "_WRITE", trips._WRITE.replace("write_2", "write_broken"))


@pytest.mark.proof
async def test_a_move_without_the_fence_is_caught(
    session: Session, stores: Sequence[OwningStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL AND $3::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_FENCE", f"SELECT {true} AS is_done")
    leave = "DELETE FROM partita.range_own WHERE id = $1"
    monkeypatch.setattr(moving, "_LEAVE", leave)

    assert await violations_of(session, stores)


@pytest.mark.proof
async def test_a_move_without_capture_is_caught(
    session: Session, stores: Sequence[OwningStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def equal(_: range_copy.RangeCopy) -> None:
        """Broken, too: the comparison would end the move before anything is lost."""

    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_CAPTURE", f"SELECT {true} AS is_done")
    monkeypatch.setattr(range_copy.RangeCopy, "_compare", equal)

    assert await violations_of(session, stores)


@pytest.mark.proof
async def test_the_comparison_ends_a_move_without_capture(
    session: Session, stores: Sequence[OwningStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_CAPTURE", f"SELECT {true} AS is_done")

    assert "MoveRowsDiffer" in "".join(await violations_of(session, stores))


@pytest.mark.proof
async def test_a_look_without_the_lock_is_caught(
    session: Session, stores: Sequence[OwningStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the range is not locked; it pauses between the look and the write."""
    break_writes(monkeypatch, "  -- Try, not wait", "  -- A new statement", "")
    text = trips._WRITE
    assert "write_broken" in text
    for url in urls():
        ((definition,),) = execute(
            url, "SELECT pg_get_functiondef('partita.write_broken'::regproc)"
        )
        paused = str(definition).replace(
            "  IF groups IS NULL THEN", "  PERFORM pg_sleep(0.03);\n  IF groups IS NULL THEN", 1
        )
        assert paused != definition
        execute(url, paused.replace("%", "%%"))

    assert await violations_of(session, stores)


@pytest.mark.proof
async def test_a_look_in_the_statement_of_the_lock_is_caught(
    session: Session, stores: Sequence[OwningStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the snapshot of the look is older than the lock; it pauses in between."""
    look = f"""
      WITH pause AS MATERIALIZED (SELECT 1 AS one FROM pg_sleep(0.003))
      SELECT count(*), bool_or(r.capture) INTO owned, is_captured
        FROM pause CROSS JOIN unnest(range_ids, epochs) AS q (id, epoch)
        JOIN partita.range_own r ON r.id = q.id AND r.epoch = q.epoch AND r.state = 'o'
       WHERE pg_try_advisory_xact_lock_shared({RANGE_LOCKS}, q.id * pause.one);
    """
    break_writes(monkeypatch, "  -- Try, not wait", "  IF owned < cardinality", look)

    assert await violations_of(session, stores)
