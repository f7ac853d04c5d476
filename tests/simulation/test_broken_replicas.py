"""The simulation can fail: each of these replicas is broken in one way, and is caught."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from partita.reliable.collections.committer import Committer
from partita.reliable.manager import state_manager
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.replication.replica import Replica
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.state.locks import LockTable
from partita.reliable.state.records import Outcome
from partita.reliable.state.state import State
from partita.reliable.storage import checkpoint
from partita.simulation.stream import SimCluster
from simulation.replicas import Plan, simulate

SEEDS = 12

Break = Callable[[pytest.MonkeyPatch], None]


def acknowledges_before_the_log(patch: pytest.MonkeyPatch) -> None:
    def submit(self: Any, entry: Any, size: int, pending: Any) -> None:
        pending.committed(self._state.sequence + 1)
        original(self, entry, size, Told())

    class Told:
        def committed(self, sequence: int) -> None: ...

        def failed(self, error: Exception) -> None: ...

    original = Committer.submit
    patch.setattr(Committer, "submit", submit)


def takes_silence_for_yes(patch: pytest.MonkeyPatch) -> None:
    async def publish(self: Any, flight: Any) -> None:
        try:
            await original(self, flight)
        except NoAnswer:
            self._settle(flight, is_stored=True)

    original = QuorumLog._publish
    patch.setattr(QuorumLog, "_publish", publish)


def takes_silence_for_no(patch: pytest.MonkeyPatch) -> None:
    """A commit in doubt is done again under no key: the ledger counts two."""

    async def run(self: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        options.pop("idempotency_key", None)
        return await original(self, function, *arguments, **options)

    original = state_manager.StateManager.run
    patch.setattr(state_manager.StateManager, "run", run)


def has_no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimCluster, "check_fence", lambda self, expected: None)


def forgets_outcomes_in_checkpoints(patch: pytest.MonkeyPatch) -> None:
    def restore(self: Any, collections: Any, outcomes: Any) -> None:
        original(self, collections, ())

    original = State.restore
    patch.setattr(State, "restore", restore)


def forgets_outcomes_in_the_log(patch: pytest.MonkeyPatch) -> None:
    def apply(self: Any, operation: Any, sequence: int) -> None:
        if not isinstance(operation, Outcome):
            original(self, operation, sequence)

    original = State._apply
    patch.setattr(State, "_apply", apply)


def leaks_locks(patch: pytest.MonkeyPatch) -> None:
    def release_all(self: Any, owner: str) -> None:
        if not owner.endswith("7"):
            original(self, owner)

    original = LockTable.release_all
    patch.setattr(LockTable, "release_all", release_all)


def takes_no_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockTable, "acquire", lambda self, owner, resource, mode: None)
    patch.setattr(LockTable, "try_acquire", lambda self, owner, resource, mode: True)


def applies_by_its_own_mind(patch: pytest.MonkeyPatch) -> None:
    """A queue's position depends on who applies it."""

    def apply(self: Any, record: Any, new_hash: bytes) -> bool:
        result = original(self, record, new_hash)
        mind = self.__dict__.setdefault("mind", next(minds))
        for collection in self.collections.values():
            if collection.description.kind == "queue":
                collection.tail += mind % 2
        return bool(result)

    minds = itertools.count()
    original = State.apply
    patch.setattr(State, "apply", apply)


def purges_what_others_need(patch: pytest.MonkeyPatch) -> None:
    async def purge_limit(self: Any) -> int:
        return int(self._manager.sequence) + 1

    async def publish_checkpoint(self: Any) -> None: ...

    patch.setattr(Replica, "_purge_limit", purge_limit)
    patch.setattr(Replica, "_publish_checkpoint", publish_checkpoint)


def applies_twice_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint says that it is one record older than it is."""

    async def load(self: Any, state: Any) -> Any:
        found = await original(self, state)
        if state.sequence:
            state.sequence -= 1
        return found

    original = checkpoint.Checkpoints.load
    patch.setattr(checkpoint.Checkpoints, "load", load)


def shows_half_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """The two halves of a commit go into the log as two entries, in two records."""

    def submit(self: Any, entry: Any, size: int, pending: Any) -> None:
        class Half:
            def committed(self, sequence: int) -> None: ...

            def failed(self, error: Exception) -> None: ...

        if len(entry.operations) < 2 or entry.transaction_id.endswith(("0", "1", "2", "3")):
            original(self, entry, size, pending)
            return
        kind = type(entry)
        first, rest = entry.operations[:1], entry.operations[1:]
        original(self, kind(entry.transaction_id, first), size, Half())
        original(self, kind(entry.transaction_id, rest), size, pending)

    original = Committer.submit
    patch.setattr(Committer, "submit", submit)
    patch.setattr(Committer, "_next_group", lambda self: [self._waiting.popleft()])


VARIANTS: list[Break] = [
    acknowledges_before_the_log,
    takes_silence_for_yes,
    takes_silence_for_no,
    has_no_fence,
    forgets_outcomes_in_checkpoints,
    forgets_outcomes_in_the_log,
    leaks_locks,
    takes_no_locks,
    applies_by_its_own_mind,
    purges_what_others_need,
    applies_twice_after_a_restart,
    shows_half_a_transaction,
]


@pytest.mark.proof
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_a_broken_replica_is_caught(variant: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    variant(monkeypatch)
    for seed in range(SEEDS):
        try:
            simulate(seed, Plan(operations=400, steps_max=150_000))
        except Exception:  # noqa: BLE001 - whatever it is, it was noticed
            return
    pytest.fail(f"{variant.__name__} survived {SEEDS} seeds")
