"""Power cuts at every event of the disk under a whole state, and states that are broken on purpose.

What a cut leaves must open, must be the model after a whole number of transactions (all that
were acknowledged, none that was not begun), and must go on.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
import pytest

from crash.state_run import (
    TAGS,
    Reference,
    Run,
    User,
    a_run,
    model_of,
    tags_of,
)
from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.reliable import ReliableDictionary, Transaction
from partita.reliable.committer import Committer, Pending
from partita.reliable.local_log import LocalLog
from partita.reliable.opening import open_local
from partita.reliable.records import FORMAT, Entry, Record, encode_record, record_hash
from partita.reliable.state import Collection, KeptOutcome, State
from partita.reliable.state_manager import StateManager
from partita.simulation.disk import CUTS, Cut, Medium, SimDisk, SimFile, boundaries

IS_SOAK = bool(os.environ.get("PARTITA_SOAK"))
SEEDS = range(10 if IS_SOAK else 1)
MIXED_CUTS = 8 if IS_SOAK else 1
"""How often chance decides at each boundary, beside the cuts that are the same every time."""
NEVER = 2**40
"""A state that is opened after a cut writes no checkpoint by itself."""
LONG_AGO = 1_000_000
"""Ticks of a clock that stands before the run: only what was kept makes the time rise."""


@cache
def honest_run(seed: int = 0) -> Run:
    return a_run(seed=seed)


class Examination:
    """Opens what cuts leave of one run, and tells what is wrong with it.

    Every `thorough`th find is also written to, cut again, and read by index and feed.
    """

    def __init__(self, run: Run, *, thorough: int = 1) -> None:
        self.run = run
        self.thorough = thorough
        self.references = run.references()
        self.known = run.known()
        self.opened = 0

    def everywhere(self, cuts: Iterable[Cut], *, step: int = 1) -> list[str]:
        """Cut the power at every event (or each `step`th), in every way."""
        return asyncio.run(self._everywhere(list(cuts), step))

    async def _everywhere(self, cuts: list[Cut], step: int) -> list[str]:
        wrong: list[str] = []
        for number, medium in boundaries(self.run.events):
            for kind, cut in enumerate(cuts if number % step == 0 else ()):
                fault = await self._fault(number, medium, cut, seed=number * 31 + kind)
                wrong += [f"event {number}, {cut} ({kind}): {fault}"] if fault else []
        return wrong

    async def _fault(self, number: int, medium: Medium, cut: Cut, seed: int) -> str:
        clock = ManualClock(ticks=LONG_AGO, seed=seed)
        disk = SimDisk(clock, medium.after_power_cut(cut, clock))
        self.opened += 1
        try:
            state = await open_local(disk, clock, checkpoint_bytes=NEVER)
        except PartitaError as error:
            return f"it does not open: {error}"
        try:
            fault = await self._difference(state, number)
            if not fault and self.opened % self.thorough == 0:
                fault = await _end_of(state, disk)
        except PartitaError as error:
            return f"it does not work: {error}"
        finally:
            await state.close()
        return fault

    async def _difference(self, state: StateManager, number: int) -> str:
        told, begun = self.known[number]
        sequence = state.sequence
        if sequence < told:
            return f"{told} was acknowledged, {sequence} is there"
        if sequence > begun:
            return f"{sequence} is there, {begun} was begun"
        reference = self.references[sequence]
        if state.state.digest() != reference.digest:
            return f"another state at {sequence}"
        return await _difference_from(state, reference)


async def _difference_from(state: StateManager, reference: Reference) -> str:
    found, wanted = await model_of(state), reference.model
    for name in ("accounts", "users", "outbox", "jobs", "temp", "outcomes"):
        if getattr(found, name) != getattr(wanted, name):
            return f"{name} at {state.sequence}: {getattr(found, name)}"
    if found.sessions_at(-1) != wanted.sessions_at(reference.ticks):
        return f"sessions at {state.sequence}: {found.sessions}"
    return ""


async def _end_of(state: StateManager, disk: SimDisk) -> str:
    """Commit once more, and look for it after a cut that takes all that can be taken."""
    users = await _users(state)

    async def write(tx: Transaction) -> int:
        await users.set(tx, "later", User("later", ("red", "late")))
        return await users.count(tx)

    committed = await state.run(write, idempotency_key="later")
    clock = ManualClock(ticks=LONG_AGO)
    kept = SimDisk(clock, disk._medium.after_power_cut("lost", clock))
    again = await open_local(kept, clock, checkpoint_bytes=NEVER)
    try:
        if again.state.digest() != state.state.digest():
            return "what was committed after the cut is lost"
        if await again.outcome("later", int) != committed:
            return "the outcome of what was committed after the cut is lost"
        return await _index_difference(again) or await _feed_difference(again)
    finally:
        await again.close()


async def _users(state: StateManager) -> ReliableDictionary[str, User]:
    return await state.dictionary("users", key=str, value=User, indexes={"tag": tags_of})


async def _index_difference(state: StateManager) -> str:
    users = await _users(state)
    async with state.snapshot() as snapshot:
        rows = {name: user async for name, user in users.items(snapshot)}
        for tag in (*TAGS, "done", "late"):
            found = {name async for name, _ in users.find(snapshot, tag=tag)}
            if found != {name for name, user in rows.items() if tag in user.tags}:
                return f"the index finds {found} for {tag}"
    return ""


async def _feed_difference(state: StateManager) -> str:
    users = await _users(state)
    told: dict[str | None, User | None] = {}
    async with users.changes(since=0) as feed:
        async for change in feed:
            match change.kind:
                case "rebuild" | "clear":
                    told.clear()
                case "delete":
                    del told[change.key]
                case _:
                    told[change.key] = change.new
            if change.key == "later" and change.is_last:
                break
    async with state.snapshot() as snapshot:
        rows = {name: user async for name, user in users.items(snapshot)}
    return "" if told == rows else f"the feed tells of {sorted(map(str, told))}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.timeout(1800)
def test_a_power_cut_at_any_event_leaves_whole_transactions_and_all_acknowledged(
    seed: int,
) -> None:
    run = honest_run(seed)
    assert len(run.records) > 200
    assert run.checkpoints > 2
    assert run.first_kept > 50, "the log was never cut"
    examination = Examination(run, thorough=1 if IS_SOAK else 7)

    wrong = examination.everywhere([*CUTS, *["mixed"] * (MIXED_CUTS - 1)])  # type: ignore[list-item]

    print(f"seed {seed}: {len(run.events)} events, {examination.opened} states opened")
    assert wrong == []
