"""Power cuts at every event of the disk under a whole state, and states that are broken on purpose.

What a cut leaves must open, must be the model after a whole number of transactions (all that
were acknowledged, none that was not begun), and must go on.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

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
from partita.reliable.collections.committer import Committer, Pending
from partita.reliable.manager import housekeeping
from partita.reliable.manager.backup import restore
from partita.reliable.manager.housekeeping import CheckpointWriter
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.records import FORMAT, Entry, Record, encode_record, record_hash
from partita.reliable.state.state import Collection, KeptOutcome, State, Touched
from partita.reliable.storage import checkpoint as checkpoint_module
from partita.reliable.storage import increments as increments_module
from partita.reliable.storage.checkpoint import (
    Checkpoint,
    Checkpoints,
    Progress,
    is_checkpoint,
    read_file,
)
from partita.reliable.storage.local_log import LocalLog
from partita.simulation.disk import (
    CUTS,
    Cut,
    Medium,
    Remove,
    Rename,
    SimDisk,
    SimFile,
    SyncFolder,
    boundaries,
)
from partita.simulation.loop import Ran, run
from support.repeats import repeat

T = TypeVar("T")

SEEDS = range(repeat(1, 1, 6))
MIXED_CUTS = repeat(1, 1, 8)
"""How often chance decides at each boundary, beside the cuts that are the same every time."""
NEVER = 2**40
"""A state that is opened after a cut writes no checkpoint by itself."""
LONG_AGO = 1_000_000
"""Ticks of a clock that stands before the run: only what was kept makes the time rise."""

pytestmark = pytest.mark.timeout(1800)


@cache
def honest_run(seed: int = 0) -> Run:
    return a_run(seed=seed)


def played(examination: Coroutine[Any, Any, T]) -> Ran[T]:
    """Run it on a virtual loop: a busy machine changes nothing."""
    return run(examination, seed=0)


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
        return played(self._everywhere(list(cuts), step)).value

    async def _everywhere(self, cuts: list[Cut], step: int) -> list[str]:
        wrong: list[str] = []
        for number, medium in boundaries(self.run.events):
            for kind, cut in enumerate(cuts if number % step == 0 else ()):
                fault = await self._fault(number, medium, cut, seed=number * 31 + kind)
                wrong += [f"event {number}, {cut} ({kind}): {fault}"] if fault else []
        return wrong

    async def _fault(self, number: int, medium: Medium, cut: Cut, seed: int) -> str:
        clock = ManualClock(ticks=LONG_AGO, seed=seed)
        found = medium.after_power_cut(cut, clock)
        self.opened += 1
        # The model is read without the index, and what follows needs it: each opens its own copy.
        kept = copy.deepcopy(found) if self.opened % self.thorough == 0 else None
        fault = await _fault_in(
            SimDisk(clock, found), clock, lambda state, _: self._difference(state, number)
        )
        if fault or kept is None:
            return fault
        return await _fault_in(SimDisk(clock, kept), clock, _end_of)

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


async def _fault_in(
    disk: SimDisk, clock: ManualClock, examine: Callable[[StateManager, SimDisk], Awaitable[str]]
) -> str:
    try:
        state = await open_local(disk, clock, checkpoint_bytes=NEVER)
    except PartitaError as error:
        return f"it does not open: {error}"
    try:
        return await examine(state, disk)
    except PartitaError as error:
        return f"it does not work: {error}"
    finally:
        await state.close()


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
    async with asyncio.timeout(60), users.changes(since=0) as feed:
        async for change in feed:
            match change.kind:
                case "rebuild" | "clear":
                    told.clear()
                case "delete":
                    del told[change.key]
                case _:
                    told[change.key] = change.new
            if change.sequence == state.sequence and change.is_last:
                break
    async with state.snapshot() as snapshot:
        rows = {name: user async for name, user in users.items(snapshot)}
    return "" if told == rows else f"the feed tells of {sorted(map(str, told))}"


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_any_event_leaves_whole_transactions_and_all_acknowledged(
    seed: int,
) -> None:
    run = honest_run(seed)
    assert len(run.records) > 200
    assert run.checkpoints > 2
    assert run.first_kept > 50, "the log was never cut"
    examination = Examination(run, thorough=repeat(5, 5, 1))

    wrong = examination.everywhere([*CUTS, *["mixed"] * (MIXED_CUTS - 1)], step=repeat(11, 3, 1))  # type: ignore[list-item]

    print(f"seed {seed}: {len(run.events)} events, {examination.opened} states opened")
    assert wrong == []


@pytest.mark.repeated
def test_a_recovery_that_is_cut_short_is_made_good_by_the_next_one() -> None:
    run = honest_run()
    examination = Examination(run, thorough=NEVER)
    wrong: list[str] = []
    for number, medium in boundaries(run.events):
        if number % repeat(91, 9, 1) == 0:
            wrong += played(_cut_while_it_opens(examination, number, medium)).value
    assert wrong == []


async def _cut_while_it_opens(examination: Examination, number: int, medium: Medium) -> list[str]:
    clock = ManualClock(ticks=LONG_AGO, seed=number)
    found = medium.after_power_cut("mixed", clock)
    again = found.after_power_cut("kept", clock)
    disk = SimDisk(clock, found)
    state = await open_local(disk, clock, checkpoint_bytes=NEVER)
    opening = list(disk.events)
    await state.close()
    wrong = []
    for seed, event in enumerate(opening):
        again.apply(event)
        fault = await examination._fault(number, again, "mixed", seed)
        wrong += [f"event {number}, then {seed}: {fault}"] if fault else []
    return wrong


@pytest.mark.repeated
def test_a_power_cut_after_a_kill_finds_what_the_next_process_has_read() -> None:
    """The next process reads what the kernel holds, synced or not, and goes on from there."""
    assert list(_faults_after_kills(honest_run())) == []


def _faults_after_kills(run: Run) -> Iterator[str]:
    examination = Examination(run, thorough=NEVER)
    for number, medium in boundaries(run.events):
        event = run.events[number - 1] if number else None
        is_of_names = isinstance(event, Rename | Remove | SyncFolder)
        if number % repeat(137, 13, 1) == 0 or (is_of_names and number % repeat(9, 1, 1) == 0):
            cut = _cut_after_a_kill(examination, number, copy.deepcopy(medium))
            fault = played(cut).value
            yield from [f"event {number}: {fault}"] if fault else []


async def _cut_after_a_kill(examination: Examination, number: int, medium: Medium) -> str:
    clock = ManualClock(ticks=LONG_AGO, seed=number)
    before = copy.deepcopy(medium)
    disk = SimDisk(clock, medium)
    state = await open_local(disk, clock, checkpoint_bytes=NEVER)
    digest = state.state.digest()
    try:
        fault = await examination._difference(state, number)
        for cut in () if fault else (*CUTS, "mixed", "mixed"):
            kept = SimDisk(clock, medium.after_power_cut(cut, clock))
            again = await open_local(kept, clock, checkpoint_bytes=NEVER)
            if again.state.digest() != digest:
                fault = f"{cut}: {state.sequence} was read, {again.sequence} is there"
            await again.close()
    finally:
        await state.close()
    for seed, event in enumerate(disk.events):
        before.apply(event)
        fault = fault or await examination._fault(number, before, "mixed", seed)
    return fault


@pytest.mark.proof
def test_a_power_cut_after_a_killed_restore_leaves_one_of_two_states() -> None:
    assert played(_restore_faults()).value == []


async def _restore_faults() -> list[str]:
    """Kill a restore at each of its events, open, and cut the power at each event of that."""
    clock, folder = ManualClock(), SimDisk(ManualClock())
    other = await open_local(SimDisk(clock), clock, checkpoint_bytes=NEVER)
    await _write_users(other, 5)
    await other.backup(folder)
    await other.close()
    disk = SimDisk(clock)
    state = await open_local(disk, clock, checkpoint_bytes=NEVER)
    await _write_users(state, 9)
    await state.checkpoint()
    await _write_users(state, 3)
    await state.close()
    disk = disk.restart()
    medium = copy.deepcopy(disk._medium)
    await restore(folder, disk, clock, force=True)
    allowed = [state.state.digest(), await _digest(disk.restart())]
    wrong = []
    for number, event in enumerate(disk.events):
        medium.apply(event)
        faults = await _restore_faults_at(copy.deepcopy(medium), allowed)
        wrong += [f"event {number}: {fault}" for fault in faults]
    return wrong


async def _restore_faults_at(medium: Medium, allowed: list[str]) -> list[str]:
    before = copy.deepcopy(medium)
    clock = ManualClock(ticks=LONG_AGO)
    disk = SimDisk(clock, medium)
    digest = await _digest(disk)
    if digest not in allowed:
        return [f"killed: {digest}"]
    wrong = []
    for number, event in enumerate(disk.events, 1):
        before.apply(event)
        for seed in range(6):
            clock = ManualClock(seed=seed)
            found = await _digest(SimDisk(clock, before.after_power_cut("mixed", clock)))
            if found not in ([digest] if number == len(disk.events) else allowed):
                wrong.append(f"killed, then cut at {number} with seed {seed}: {found}")
    return wrong


async def _write_users(state: StateManager, count: int) -> None:
    users = await _users(state)
    for number in range(count):
        async with state.transaction() as tx:
            await users.set(tx, f"{number}", User(f"{number}", ("red",)))


async def _digest(disk: SimDisk) -> str:
    clock = ManualClock()
    try:
        state = await open_local(disk, clock, checkpoint_bytes=NEVER)
    except PartitaError as error:
        return str(error)
    digest = state.state.digest()
    await state.close()
    return digest


@pytest.mark.parametrize("pace", [0.001, 0.5])
def test_the_same_seed_gives_the_same_trace_however_busy_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    """A quick pace makes housekeeping due in each examination, as a busy machine does."""
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_SECONDS", pace)
    examination = Examination(honest_run(), thorough=NEVER)
    number, medium = next(
        (number, medium) for number, medium in boundaries(examination.run.events) if number == 286
    )

    first, second = (
        played(_cut_after_a_kill(examination, number, copy.deepcopy(medium))) for _ in range(2)
    )

    assert first == second
    assert first.value == ""


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = honest_run(0), a_run(seed=0), a_run(seed=1)

    assert (first.events, first.records) == (second.events, second.records)
    assert (first.acknowledged, first.begun) == (second.acknowledged, second.begun)
    assert first.events != other.events


# The same cuts must find states that are broken on purpose.


@pytest.mark.proof
def test_a_recovery_that_removes_the_older_checkpoint_too_soon_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load(
        checkpoints: Checkpoints, state: State, *, progress: Progress | None = None
    ) -> Checkpoint | None:
        names = checkpoints._disk.names()
        whole = [name for name in names if is_checkpoint(name)]
        if whole:
            checkpoints.newest = await read_file(checkpoints._disk, whole[-1], state)
        await checkpoints._remove(name for name in names if name.startswith("checkpoint-"))
        return checkpoints.newest

    run = honest_run()
    monkeypatch.setattr(Checkpoints, "load", load)

    wrong = next(_faults_after_kills(run))

    assert "there is no checkpoint of the records before it" in wrong


@pytest.mark.proof
def test_the_fast_mode_is_found_losing_the_newest_and_nothing_else() -> None:
    run = a_run(durability="fast", segment_bytes=NEVER)

    wrong = Examination(run, thorough=20).everywhere(CUTS, step=2)

    assert any("was acknowledged" in fault for fault in wrong)
    assert [fault for fault in wrong if "was acknowledged" not in fault] == []


@pytest.mark.proof
def test_a_log_that_acknowledges_before_its_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count_at_once(log: LocalLog, tip: object) -> None:
        log._acknowledge(tip)  # type: ignore[arg-type]

    with monkeypatch.context() as broken:
        broken.setattr(LocalLog, "_sync_and_acknowledge", count_at_once)
        broken.setattr(SimFile, "sync_now", lambda _: None)
        run = a_run(steps=20)

    wrong = Examination(run).everywhere(["lost"])

    assert any("was acknowledged" in fault for fault in wrong)


@pytest.mark.proof
def test_a_committer_that_tells_before_the_log_has_it_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell_first(committer: Committer, group: list[tuple[Entry, int, Pending]]) -> None:
        state = committer._state
        ticks = max(committer._clock.ticks(), state.ticks)
        entries = [entry for entry, _, _ in group]
        record = Record(FORMAT, state.epoch, state.sequence + 1, state.hash, ticks, "", entries)
        raw = encode_record(record)
        state.apply(record, record_hash(raw))
        for _, _, pending in group:
            pending.committed(record.sequence)
        await asyncio.sleep(0)
        await committer._log.append(record.sequence, raw, alone=False)

    with monkeypatch.context() as broken:
        broken.setattr(Committer, "_commit", tell_first)
        run = a_run(steps=20)

    wrong = Examination(run).everywhere(["lost"])

    assert any("was acknowledged" in fault for fault in wrong)


@pytest.mark.proof
def test_a_checkpoint_that_outlives_its_records_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_sync(_: LocalLog) -> None:
        await asyncio.sleep(0)

    with monkeypatch.context() as broken:
        broken.setattr(LocalLog, "sync", no_sync)
        run = a_run(durability="fast", segment_bytes=NEVER)

    wrong = Examination(run, thorough=NEVER).everywhere(["lost"])

    assert any("it does not open" in fault and "LogIncomplete" in fault for fault in wrong)


@pytest.mark.proof
def test_a_log_that_is_cut_before_its_checkpoint_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_first(writer: CheckpointWriter) -> int:
        writer._progress.bytes_since_checkpoint = 0
        await writer._log.truncate(writer._core.state.sequence + 1)
        return (await writer._checkpoints.write(writer._core.state)).sequence

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointWriter, "write", cut_first)
        run = a_run()

    wrong = Examination(run, thorough=NEVER).everywhere(["lost"], step=2)

    assert any("it does not open" in fault or "was acknowledged" in fault for fault in wrong)


def run_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Let commits come between the blocks of one checkpoint."""
    with monkeypatch.context() as small:
        small.setattr(blocks_module, "FULL_ROWS", 1)
        small.setattr(checkpoint_module, "TURN_BYTES", 1)
        small.setattr(checkpoint_module, "SYNC_BYTES", 50)
        return a_run()


@pytest.mark.proof
def test_a_checkpoint_in_small_steps_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in_small_steps(monkeypatch)

    assert Examination(run, thorough=NEVER).everywhere(["kept"], step=3) == []


@pytest.mark.proof
def test_a_checkpoint_of_two_moments_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Collection.pieces

    def newest(collection: Collection, _: int) -> Iterator[dict[bytes, bytes]]:
        return pieces(collection, NEVER)

    with monkeypatch.context() as broken:
        broken.setattr(Collection, "pieces", newest)
        run = run_in_small_steps(monkeypatch)

    wrong = Examination(run, thorough=NEVER).everywhere(["kept"], step=3)

    assert wrong != []


def run_with_increments(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Let a small state write increments between its checkpoints."""
    with monkeypatch.context() as eager:
        eager.setattr(increments_module, "CHECKPOINT_SHARE", 0)
        eager.setattr(increments_module, "_is_smaller", lambda _: True)
        eager.setattr(housekeeping, "HOUSEKEEPING_SECONDS", 0.05)
        eager.setattr(Checkpoints, "is_due", lambda _, log_bytes, __: log_bytes > 4_000)
        return a_run(checkpoint_bytes=500)


def increments_of(run: Run) -> list[Rename]:
    renames = [event for event in run.events if isinstance(event, Rename)]
    return [event for event in renames if event.new_name.startswith("increment-")]


@pytest.mark.proof
def test_a_power_cut_beside_increments_leaves_whole_transactions_and_all_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_with_increments(monkeypatch)
    assert len(increments_of(run)) > 3

    assert Examination(run, thorough=9).everywhere(CUTS, step=3) == []


@pytest.mark.proof
def test_an_increment_that_misses_rows_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Collection.touched_pieces

    def some(
        collection: Collection, sequence: int, since: int, touched: Touched
    ) -> Iterator[dict[bytes, bytes]]:
        for piece in pieces(collection, sequence, since, touched):
            yield dict(list(piece.items())[1:])

    with monkeypatch.context() as broken:
        broken.setattr(Collection, "touched_pieces", some)
        run = run_with_increments(monkeypatch)

    assert Examination(run, thorough=NEVER).everywhere(["kept"], step=3) != []


@pytest.mark.proof
def test_a_recovery_that_applies_a_group_in_another_order_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examination = Examination(honest_run(), thorough=NEVER)
    apply = State.apply

    def backwards(state: State, record: Record, new_hash: bytes) -> bool:
        entries = list(reversed(record.entries))
        return apply(state, msgspec.structs.replace(record, entries=entries), new_hash)

    monkeypatch.setattr(State, "apply", backwards)

    wrong = examination.everywhere(["kept"], step=3)

    assert any("another state" in fault for fault in wrong)


@pytest.mark.proof
def test_a_recovery_that_forgets_idempotency_keys_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examination = Examination(honest_run(), thorough=NEVER)
    restore = State.restore

    def forgetful(
        state: State, collections: Iterable[Collection], _: Iterable[tuple[str, KeptOutcome]]
    ) -> None:
        restore(state, collections, [])

    monkeypatch.setattr(State, "restore", forgetful)

    wrong = examination.everywhere(["kept"], step=3)

    assert any("another state" in fault for fault in wrong)


@pytest.mark.proof
def test_an_apply_that_loses_updates_everywhere_alike_is_found_by_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = State._put

    def forgetful(
        state: State, collection: Collection, key: bytes, value: bytes, sequence: int
    ) -> None:
        if sequence % 10 or key not in collection.rows.values:
            put(state, collection, key, value, sequence)

    run = a_run(checkpoint_bytes=NEVER)  # a checkpoint would hold what an honest apply left
    monkeypatch.setattr(State, "_put", forgetful)

    wrong = Examination(run, thorough=NEVER).everywhere(["kept"], step=5)

    assert any(": users at" in fault or ": accounts at" in fault for fault in wrong)
    assert not any("another state" in fault for fault in wrong), "the digests are of that apply"
