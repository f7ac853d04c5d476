"""Answers that get lost on the way back: work under an idempotency key is done exactly once.

The log loses the answers to its appends, its leases lose theirs, and the client loses those of
the replica that it asked. Whoever does not know tries again, at any replica, under the same key.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from partita.errors import PartitaError, UnavailableError
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import NO_FAULTS, Cut, SimCluster
from support.repeats import IS_SOAK, repeat

if TYPE_CHECKING:
    from partita.reliable.collections.dictionary import ReliableDictionary

TRIALS = repeat(200, 2_000, 10_000)
TRIALS_BROKEN = repeat(200, 500, 500)
SEED = 1
CLIENTS = 20
SHARES = 64
LOST_CHANCE = 0.2
CUT_SECONDS = 4.0
"""Longer than a primary believes in its lease: what is in flight then ends in doubt."""


class Seen(msgspec.Struct):
    """What a run came to, and what it met on the way."""

    acknowledged: dict[int, int] = {}
    """Results by trial."""
    counts: dict[int, int] = {}
    """How often each trial is in the state."""
    total: int = 0
    lost: int = 0
    """Answers that the clients did not get."""
    errors: Counter[str] = msgspec.field(default_factory=Counter)


class World:
    """Three replicas whose log loses answers, and clients who lose them too."""

    def __init__(self, seed: int, *, has_key: bool, lost_chance: float) -> None:
        self.seen = Seen()
        self._has_key = has_key
        self._lost_chance = lost_chance
        """Of an answer of a replica to a client."""
        self._random = random.Random(f"{seed}/in doubt")
        faults = msgspec.structs.replace(
            NO_FAULTS, answer_lost_chance=LOST_CHANCE, delay_seconds_max=0.005
        )
        self._cluster = SimCluster(seed=seed, faults=faults)
        self._states: list[StateManager] = []
        self._trials: list[ReliableDictionary[int, int]] = []
        self._shares: list[ReliableDictionary[int, int]] = []
        self._believed = 0

    async def run(self, trials: int) -> Seen:
        await self._open()
        left = iter(range(trials))
        cutting = asyncio.create_task(self._cut())
        await asyncio.gather(*(self._client(left) for _ in range(CLIENTS)))
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        self._cluster.heal()
        await self._compare()
        for state in self._states:
            await state.close()
        return self.seen

    async def _open(self) -> None:
        for name in ("a", "b", "c"):
            clock = SimClock(running_loop(), name)
            state = await open_replicated(self._cluster.connect(name), SimDisk(clock), clock)
            self._states.append(state)
        for state in self._states:
            await self._open_collections(state)

    async def _open_collections(self, state: StateManager) -> None:
        while True:
            try:
                trials = await state.dictionary("trials", key=int, value=int)
                shares = await state.dictionary("shares", key=int, value=int)
            except UnavailableError:
                await asyncio.sleep(0.1)
            else:
                self._trials.append(trials)
                self._shares.append(shares)
                return

    async def _cut(self) -> None:
        """Cut the primary's answers off from time to time, so that it falls in mid-commit."""
        while True:
            await asyncio.sleep(self._random.expovariate(1 / 10.0))
            number = next((n for n, state in enumerate(self._states) if state.is_primary), 0)
            self._cluster.clients[number].cut_off(Cut.ANSWERS, CUT_SECONDS)

    async def _client(self, left: Iterator[int]) -> None:
        for trial in left:
            while True:
                number = self._believed
                try:
                    value = await self._ask(number, trial)
                except PartitaError as error:
                    self.seen.errors[error.code] += 1
                    self._believed = self._random.randrange(3)
                    await asyncio.sleep(self._random.uniform(0.0, 0.2))
                    continue
                if self._random.random() >= self._lost_chance:
                    self.seen.acknowledged[trial] = value
                    break
                self.seen.lost += 1
                self._believed = self._random.randrange(3)

    async def _ask(self, number: int, trial: int) -> int:
        async def count(tx: Transaction) -> int:
            await self._shares[number].upsert(tx, trial % SHARES, 1, lambda total: total + 1)
            return await self._trials[number].upsert(tx, trial, 1, lambda times: times + 1)

        key = f"trial-{trial}" if self._has_key else None
        committed = await self._states[number].run(count, idempotency_key=key, attempts=30)
        return committed.value

    async def _compare(self) -> None:
        async with asyncio.timeout(60.0):
            while {state.sequence for state in self._states} != {self._cluster.last}:  # noqa: ASYNC110 - replicas are watched
                await asyncio.sleep(0.1)
        assert len({state.state.digest() for state in self._states}) == 1
        async with self._states[0].snapshot() as snapshot:
            self.seen.counts = {key: times async for key, times in self._trials[0].items(snapshot)}
            self.seen.total = sum([share async for share in self._shares[0].values(snapshot)])


def simulate(trials: int, *, has_key: bool, lost_chance: float = LOST_CHANCE) -> Seen:
    async def main() -> Seen:
        return await World(SEED, has_key=has_key, lost_chance=lost_chance).run(trials)

    return run(main(), seed=SEED).value


@pytest.mark.repeated
@pytest.mark.timeout(1200 if IS_SOAK else 300)
def test_work_under_a_key_is_done_exactly_once_however_many_answers_are_lost() -> None:
    seen = simulate(TRIALS, has_key=True)

    assert seen.acknowledged == dict.fromkeys(range(TRIALS), 1)
    assert seen.counts == dict.fromkeys(range(TRIALS), 1)
    assert seen.total == TRIALS
    assert seen.lost > TRIALS * LOST_CHANCE / 2
    assert seen.errors.total() > 0


@pytest.mark.repeated
@pytest.mark.parametrize("lost_chance", [LOST_CHANCE, 0.0])
def test_without_a_key_some_of_the_same_work_is_done_twice(lost_chance: float) -> None:
    """Where the clients lose nothing, it is the commits in doubt alone that are doubled."""
    seen = simulate(TRIALS_BROKEN, has_key=False, lost_chance=lost_chance)

    assert set(seen.counts) == set(range(TRIALS_BROKEN))
    assert seen.total > TRIALS_BROKEN
    assert max(seen.counts.values()) > 1
    assert seen.errors["InDoubt"] > 0
