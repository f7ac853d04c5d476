"""Histories of concurrent transactions on a virtual loop, and a checker that knows the anomalies.

Clients append to lists and write registers, in three dictionaries; every value is written once,
so that a read names its writer. The log gives the order of commits. From these follow the edges
write-write, write-read and read-write between transactions: a circle is an anomaly (G0, G1c,
G-single, lost update), as is a read of what no commit left (G1a, G1b) or a snapshot that shows
no moment of the log. Each broken variant must be caught.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import NoReturn

import msgspec
import pytest

from partita.errors import LockTimeoutError
from partita.reliable import LockMode, ReliableDictionary, Transaction
from partita.reliable.collections.transaction import Workspace
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.reliable.state.locks import LockTable, Resource, Waiter
from partita.reliable.state.records import decode_record
from partita.reliable.state.state import Collection, Rows, State
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from support.repeats import repeat

HISTORIES = repeat(12, 100, 200)
TRANSACTIONS = repeat(300, 300, 1_000)
CLIENTS = 8
KEYS = 3
VARIANT_SEEDS = 10
"""A broken variant must be caught by at least one of so many."""

Place = tuple[int, int]
"""Dictionary and key. In dictionary 0 lie lists, in the others registers."""
Version = tuple[int, ...]


class AnomalyError(AssertionError):
    """What a history shows and must not."""


def report(what: str) -> NoReturn:
    raise AnomalyError(what)


class Done(msgspec.Struct):
    """What a client knows about a transaction it ran."""

    id: str
    client: int
    reads: dict[Place, Version]
    writes: dict[Place, Version]
    sequence: int | None = None
    is_committed: bool = False


class Looked(msgspec.Struct):
    """What a client saw in one snapshot."""

    rows: dict[Place, Version]
    at_least: int
    """The newest sequence that the client knew to be committed."""


class World:
    """One history: the clients, and what they were told."""

    def __init__(self, state: StateManager, seed: int) -> None:
        self.state = state
        self.seed = seed
        self.dictionaries: list[ReliableDictionary[int, Version]] = []
        self.done: list[Done] = []
        self.looked: list[Looked] = []
        self.left = TRANSACTIONS
        self._written = 0

    async def play(self) -> None:
        for name in ("lists", "registers", "others"):
            self.dictionaries.append(
                await self.state.dictionary(name, key=int, value=tuple[int, ...])
            )
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))

    async def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}")
        known = 0
        while self.left > 0:
            self.left -= 1
            if chance.random() < 0.2:
                await self._look(chance, known)
                continue
            done = await self._transact(number, chance)
            if done.sequence is not None:
                known = done.sequence

    async def _look(self, chance: random.Random, known: int) -> None:
        async with self.state.snapshot() as snapshot:
            rows: dict[Place, Version] = {}
            for place, dictionary in enumerate(self.dictionaries):
                await _pause(chance)
                if chance.random() < 0.5:
                    found = {key: row async for key, row in dictionary.items(snapshot)}
                else:
                    found = await dictionary.get_many(snapshot, range(KEYS))
                rows |= {(place, key): row for key, row in found.items()}
                if len(found) != await dictionary.count(snapshot):
                    report("a count that is not of the snapshot")
        self.looked.append(Looked(rows, known))

    async def _transact(self, client: int, chance: random.Random) -> Done:
        async with self.state.transaction(timeout=0.05) as tx:
            done = Done(tx.id, client, {}, {})
            self.done.append(done)
            try:
                for _ in range(chance.randrange(1, 6)):
                    await _pause(chance)
                    await self._operate(tx, done, chance)
                await _pause(chance)
            except LockTimeoutError:
                await tx.abort()
                return done
            if chance.random() < 0.1:
                await tx.abort()
                return done
        done.is_committed, done.sequence = True, tx.commit_sequence
        return done

    async def _operate(self, tx: Transaction, done: Done, chance: random.Random) -> None:
        place = (chance.randrange(3), chance.randrange(KEYS))
        dictionary, key = self.dictionaries[place[0]], place[1]
        if chance.random() < 0.4:
            self._note_read(done, place, await dictionary.get(tx, key, ()))
        elif place[0] == 0:
            lock = LockMode.UPDATE if chance.random() < 0.7 else LockMode.SHARED
            before = await dictionary.get(tx, key, (), lock=lock)
            self._note_read(done, place, before)
            await _pause(chance)
            await self._write(tx, done, place, (*before, self._new()))
        else:
            await self._write(tx, done, place, (self._new(),))

    async def _write(self, tx: Transaction, done: Done, place: Place, version: Version) -> None:
        await self.dictionaries[place[0]].set(tx, place[1], version)
        done.writes[place] = version

    def _note_read(self, done: Done, place: Place, version: Version) -> None:
        if place in done.writes:
            if version != done.writes[place]:
                report(f"{done.id} did not read its own write at {place}")
        elif done.reads.setdefault(place, version) != version:
            report(f"{done.id} read {place} twice and saw two versions")

    def _new(self) -> int:
        self._written += 1
        return self._written


async def _pause(chance: random.Random) -> None:
    if chance.random() < 0.6:
        await asyncio.sleep(chance.random() / 500)


class Checker:
    """Judges a history by the order of the log."""

    def __init__(self, world: World, log_order: list[tuple[int, str]]) -> None:
        self.world = world
        self.by_id = {done.id: done for done in world.done}
        self.order = [
            (sequence, self.by_id[name]) for sequence, name in log_order if name in self.by_id
        ]
        self.edges: dict[str, set[str]] = {done.id: set() for done in world.done}

    def check(self) -> None:
        self._check_outcomes()
        versions = self._versions()
        for place, chain in versions.items():
            self._check_chain(place, chain)
        for done in self.world.done:
            if done.is_committed:
                self._add_reads(done, versions)
        self._check_circles()
        self._check_snapshots()

    def _check_outcomes(self) -> None:
        appended = [done.id for _, done in self.order]
        expected = {done.id for done in self.world.done if done.is_committed and done.writes}
        if len(appended) != len(set(appended)) or set(appended) != expected:
            report("the log holds other transactions than were committed")

    def _versions(self) -> dict[Place, list[tuple[str, Version]]]:
        """Return who left what at each place, in the order of commits; nobody left nothing."""
        chains: dict[Place, list[tuple[str, Version]]] = {}
        for _, done in self.order:
            for place, version in done.writes.items():
                chains.setdefault(place, [("", ())]).append((done.id, version))
        return chains

    def _check_chain(self, place: Place, chain: list[tuple[str, Version]]) -> None:
        for (earlier, before), (later, after) in itertools.pairwise(chain):
            if place[0] == 0 and after[: len(before)] != before:
                report(f"lost update at {place}: {later} wrote over {earlier}")
            self._add_edge(earlier, later)

    def _add_reads(self, done: Done, versions: dict[Place, list[tuple[str, Version]]]) -> None:
        for place, version in done.reads.items():
            chain = versions.get(place, [("", ())])
            at = next((n for n, (_, left) in enumerate(chain) if left == version), None)
            if at is None:
                report(f"{done.id} read at {place} what no commit left (G1a, G1b)")
            self._add_edge(chain[at][0], done.id)
            if at + 1 < len(chain):
                self._add_edge(done.id, chain[at + 1][0])

    def _add_edge(self, earlier: str, later: str) -> None:
        if earlier and earlier != later:
            self.edges[earlier].add(later)

    def _check_circles(self) -> None:
        waiting = dict.fromkeys(self.edges, 0)
        for followers in self.edges.values():
            for follower in followers:
                waiting[follower] += 1
        free = [name for name, count in waiting.items() if not count]
        for name in free:
            for follower in self.edges[name]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    free.append(follower)
        if len(free) < len(waiting):
            stuck = sorted(name for name, count in waiting.items() if count)
            report(f"a circle of dependencies among {stuck}")

    def _check_snapshots(self) -> None:
        rows: dict[Place, Version] = {}
        moments: dict[frozenset[tuple[Place, Version]], list[int]] = {frozenset(): [0]}
        for number, (sequence, done) in enumerate(self.order):
            rows |= done.writes
            is_last = number + 1 == len(self.order) or self.order[number + 1][0] != sequence
            if is_last:  # what lies between two records is no moment
                moments.setdefault(frozenset(rows.items()), []).append(sequence)
        for looked in self.world.looked:
            found = moments.get(frozenset(looked.rows.items()))
            if found is None:
                report("a snapshot shows no moment of the log")
            following = [sequence for sequence, _ in self.order if sequence > found[-1]]
            if min(following, default=looked.at_least + 1) <= looked.at_least:
                report("a snapshot is older than a commit that its client knew")


Breakage = Callable[[StateManager, pytest.MonkeyPatch], None]


def play(
    seed: int, patch: pytest.MonkeyPatch | None = None, breakage: Breakage | None = None
) -> int:
    """Run one history and check it; return how many transactions it committed."""

    async def main() -> int:
        clock = SimClock(running_loop())
        disk = SimDisk(clock)
        state = await open_local(disk, clock)
        disk.sync_seconds = 0.001
        if breakage is not None and patch is not None:
            breakage(state, patch)
        world = World(state, seed)
        await world.play()
        log_order = [
            (sequence, entry.transaction_id)
            async for sequence, raw in state.log.read_from(1)
            for entry in decode_record(raw).entries
        ]
        await state.close()
        Checker(world, log_order).check()
        if breakage is None:
            assert state._core.locks.is_empty(), "a lock was left behind"
            assert not state.state._snapshots, "a snapshot was left behind"
        return sum(done.is_committed for done in world.done)

    return run(main(), seed=seed).value


@pytest.mark.repeated
@pytest.mark.parametrize("batch", range(4))
def test_no_history_shows_an_anomaly(batch: int) -> None:
    for seed in range(batch * HISTORIES // 4, (batch + 1) * HISTORIES // 4):
        try:
            committed = play(seed)
        except Exception as error:
            message = f"seed {seed}: {error}"
            raise AssertionError(message) from error
        assert committed > TRANSACTIONS / 4, f"seed {seed}: too little was committed to show much"


def test_the_same_seed_is_the_same_history() -> None:
    assert play(3) == play(3)


class FreeForAll(LockTable):
    """Grants everything."""

    def acquire(self, owner: str, resource: Resource, mode: LockMode) -> Waiter | None:
        return None

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> bool:
        return True


class ForgetfulReaders(LockTable):
    """Releases a read lock as soon as it is granted."""

    def acquire(self, owner: str, resource: Resource, mode: LockMode) -> Waiter | None:
        waiter = super().acquire(owner, resource, mode)
        if waiter is None and mode is not LockMode.EXCLUSIVE:
            self.release_shared(owner)
        return waiter


class HastyWriters(LockTable):
    """Releases everything when the commit begins, not when it is applied."""

    def release_shared(self, owner: str) -> None:
        self.release_all(owner)


def no_locks(state: StateManager, _: pytest.MonkeyPatch) -> None:
    state._core.locks = FreeForAll()


def short_read_locks(state: StateManager, _: pytest.MonkeyPatch) -> None:
    state._core.locks = ForgetfulReaders()


def early_release(state: StateManager, _: pytest.MonkeyPatch) -> None:
    state._core.locks = HastyWriters()


def writes_in_place(_: StateManager, patch: pytest.MonkeyPatch) -> None:
    """Let a write be seen before its commit, and after its abort."""
    stage = Transaction.stage

    def dirty(tx: Transaction, space: Workspace, key: bytes, value: bytes | None) -> None:
        stage(tx, space, key, value)
        if value is not None:
            space.collection.rows.values.put(key, value, 0)

    patch.setattr(Transaction, "stage", dirty)


def snapshots_without_history(_: StateManager, patch: pytest.MonkeyPatch) -> None:
    def forget(
        self: State, rows: Rows, key: bytes, old: bytes | None, sequence: int, count: int
    ) -> None:
        pass

    patch.setattr(State, "_keep", forget)


def applies_half_of_a_transaction_later(_: StateManager, patch: pytest.MonkeyPatch) -> None:
    """Let a commit reach the second and third dictionary one record late."""
    late: list[tuple[int, Collection, bytes, bytes]] = []
    put = State._put

    def tear(self: State, collection: Collection, key: bytes, value: bytes, sequence: int) -> None:
        while late and late[0][0] < sequence:
            _, torn, torn_key, torn_value = late.pop(0)
            put(self, torn, torn_key, torn_value, sequence)
        if collection.id > 1:
            late.append((sequence, collection, key, value))
        else:
            put(self, collection, key, value, sequence)

    patch.setattr(State, "_put", tear)


@pytest.mark.parametrize(
    "breakage",
    [
        no_locks,
        short_read_locks,
        early_release,
        writes_in_place,
        snapshots_without_history,
        applies_half_of_a_transaction_later,
    ],
)
def test_a_broken_variant_is_caught(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(VARIANT_SEEDS):
        with monkeypatch.context() as patch:
            try:
                play(seed, patch, breakage)
            except AnomalyError:
                return
    pytest.fail("no history showed it")
