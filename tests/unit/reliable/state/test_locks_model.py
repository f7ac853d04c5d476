"""The lock table beside a slow, obvious model, through random histories.

The model keeps every grant and reads the rules off the matrix; circles are found by walking all
paths. Where one request closes several circles, the model accepts any shortest one.
"""

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from partita.reliable.state.locks import LockMode, LockTable, Resource, Waiter
from support.repeats import IS_SOAK, repeat

HISTORIES = repeat(2_000, 8_000, 200_000)
BLOCKS = 10
STEPS = 30

S, U, X = LockMode.SHARED, LockMode.UPDATE, LockMode.EXCLUSIVE
MAY_JOIN = {
    (S, S): True,
    (S, U): True,
    (S, X): False,
    (U, S): False,
    (U, U): False,
    (U, X): False,
    (X, S): False,
    (X, U): False,
    (X, X): False,
}
"""(granted, requested)."""

OWNERS = ("a", "b", "c", "d", "e")
RESOURCES: tuple[Resource, ...] = ((1, None), (1, b"k"), (2, b"k"))

Holders = dict[str, LockMode]
Edges = dict[str, list[str]]
Ending = tuple[str, bool, str]
"""How a wait ended: owner, granted, deadlock with."""


class Request(msgspec.Struct, frozen=True):
    owner: str
    resource: Resource
    mode: LockMode
    is_upgrade: bool


def allows(holders: Holders, request: Request | Waiter) -> bool:
    return all(
        MAY_JOIN[mode, request.mode] for owner, mode in holders.items() if owner != request.owner
    )


def waits_for(holders: Holders, queue: list[Request] | list[Waiter]) -> Edges:
    """Return whom each in a queue waits for: holders and those ahead that it may not join."""
    edges: Edges = {}
    claims = list(holders.items())
    for request in queue:
        edges[request.owner] = [
            owner
            for owner, mode in claims
            if owner != request.owner and not MAY_JOIN[mode, request.mode]
        ]
        claims.append((request.owner, request.mode))
    return edges


def circles_through(start: str, edges: Edges) -> Iterator[list[str]]:
    def walk(path: list[str]) -> Iterator[list[str]]:
        for owner in edges.get(path[-1], []):
            if owner == start:
                yield path
            elif owner not in path:
                yield from walk([*path, owner])

    return walk([start])


class SlowTable:
    """What should happen, by the rules alone."""

    def __init__(self) -> None:
        self.grants: list[tuple[str, Resource, LockMode]] = []
        self.arrivals: list[Request] = []
        self.ages: list[str] = []

    def holders(self, resource: Resource) -> Holders:
        found: Holders = {}
        for owner, held, mode in self.grants:
            if held == resource:
                found[owner] = max(mode, found.get(owner, mode))
        return found

    def queue(self, resource: Resource) -> list[Request]:
        waiting = [request for request in self.arrivals if request.resource == resource]
        return sorted(waiting, key=lambda request: not request.is_upgrade)

    def acquire(
        self,
        owner: str,
        resource: Resource,
        mode: LockMode,
        choose: Callable[[list[tuple[str, str]]], tuple[str, str]],
    ) -> list[Ending]:
        if self.try_acquire(owner, resource, mode):
            return [(owner, True, "")]
        is_upgrade = owner in self.holders(resource)
        request = Request(owner, resource, mode, is_upgrade)
        self.arrivals.append(request)
        return self._break_circles(request, choose)

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> bool:
        if owner not in self.ages:
            self.ages.append(owner)
        holders = self.holders(resource)
        if owner in holders and holders[owner] >= mode:
            return True
        if owner not in holders and self.queue(resource):
            return False
        if not allows(holders, Request(owner, resource, mode, owner in holders)):
            return False
        self.grants.append((owner, resource, mode))
        return True

    def _break_circles(
        self, request: Request, choose: Callable[[list[tuple[str, str]]], tuple[str, str]]
    ) -> list[Ending]:
        endings: list[Ending] = []
        while request in self.arrivals and (options := self._victims(request.owner)):
            victim, blocker = choose(options)
            endings.append((victim, False, blocker))
            endings += self.withdraw(victim)
        return endings

    def _victims(self, start: str) -> list[tuple[str, str]]:
        edges: Edges = {}
        for resource in RESOURCES:
            edges |= waits_for(self.holders(resource), self.queue(resource))
        circles = list(circles_through(start, edges))
        shortest = min(map(len, circles), default=0)
        victims = []
        for circle in circles:
            if len(circle) == shortest:
                youngest = max(circle, key=self.ages.index)
                after = circle.index(youngest) + 1
                victims.append((youngest, circle[after % len(circle)]))
        return victims

    def withdraw(self, owner: str) -> list[Ending]:
        gone = [request for request in self.arrivals if request.owner == owner]
        self.arrivals = [request for request in self.arrivals if request.owner != owner]
        return [ending for request in gone for ending in self._grant(request.resource)]

    def release(self, owner: str, modes: tuple[LockMode, ...]) -> list[Ending]:
        freed = [
            resource
            for held_by, resource, _ in self.grants
            if held_by == owner and self.holders(resource)[owner] in modes
        ]
        freed = list(dict.fromkeys(freed))
        self.grants = [g for g in self.grants if g[0] != owner or g[1] not in freed]
        return [ending for resource in freed for ending in self._grant(resource)]

    def release_all(self, owner: str) -> list[Ending]:
        withdrawn = [(owner, False, "") for request in self.arrivals if request.owner == owner]
        endings = withdrawn + self.withdraw(owner) + self.release(owner, (S, U, X))
        self.ages = [other for other in self.ages if other != owner]
        return endings

    def _grant(self, resource: Resource) -> list[Ending]:
        endings: list[Ending] = []
        for request in self.queue(resource):
            if not allows(self.holders(resource), request):
                break
            self.arrivals.remove(request)
            self.grants.append((request.owner, resource, request.mode))
            endings.append((request.owner, True, ""))
        return endings


def check_rules(table: LockTable) -> None:
    """Hold what the table shows against the rules, whatever led to it."""
    edges: Edges = {}
    for resource in RESOURCES:
        holders, queue = table.holders(resource), table.queue(resource)
        strong = [mode for mode in holders.values() if mode is not S]
        assert len(strong) <= 1, "two hold what only one may"
        assert X not in strong or len(holders) == 1, "an exclusive holder is not alone"
        assert not queue or not allows(holders, queue[0]), "the next could be granted"
        edges |= waits_for(holders, queue)
    for owner in edges:
        assert next(circles_through(owner, edges), None) is None, "a circle is left"


class Lockstep:
    """Takes each step in the table and in the model, and compares."""

    def __init__(self, table: LockTable) -> None:
        self.table = table
        self.model = SlowTable()
        self.waiting: dict[str, Waiter] = {}
        self.endings: list[Ending] = []
        self.deadlocks = 0

    def acquire(self, owner: str, resource: Resource, mode: LockMode) -> None:
        self.endings = []
        waiter = self.table.acquire(owner, resource, mode)
        observed = self.endings
        if waiter is None:
            observed = [*observed, (owner, True, "")]
        elif waiter.is_waiting:
            waiter.wake = self.wake
            self.waiting[owner] = waiter
        else:
            observed = [*observed, (owner, waiter.granted, waiter.deadlock_with)]
        victims = iter([(ended, blocker) for ended, _, blocker in observed if blocker])

        def choose(options: list[tuple[str, str]]) -> tuple[str, str]:
            victim = next(victims, None)
            assert victim in options, "a circle is left, or its victim is wrong"
            self.deadlocks += 1
            return victim

        expected = self.model.acquire(owner, resource, mode, choose)

        # The request's own end is the answer of the call, so its place among the others is free.
        assert [e for e in observed if e[0] == owner] == [e for e in expected if e[0] == owner], (
            "the request is answered wrongly"
        )
        self.compare([e for e in observed if e[0] != owner], [e for e in expected if e[0] != owner])

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> None:
        self.endings = []
        is_granted = self.table.try_acquire(owner, resource, mode)
        assert is_granted == self.model.try_acquire(owner, resource, mode)
        self.compare(self.endings, [])

    def give_up(self, owner: str) -> None:
        self.endings = []
        self.table.give_up(self.waiting.pop(owner))
        self.compare(self.endings, self.model.withdraw(owner))

    def release_shared(self, owner: str) -> None:
        self.endings = []
        self.table.release_shared(owner)
        self.compare(self.endings, self.model.release(owner, (S, U)))

    def release_all(self, owner: str) -> None:
        self.endings = []
        self.table.release_all(owner)
        self.compare(self.endings, self.model.release_all(owner))

    def compare(self, observed: list[Ending], expected: list[Ending]) -> None:
        assert observed == expected, "the wrong waits ended"

    def wake(self, waiter: Waiter) -> None:
        assert self.waiting.pop(waiter.owner) is waiter
        self.endings.append((waiter.owner, waiter.granted, waiter.deadlock_with))

    def check(self) -> None:
        check_rules(self.table)
        for resource in RESOURCES:
            holders, queue = self.table.holders(resource), self.table.queue(resource)
            assert list(holders.items()) == list(self.model.holders(resource).items())
            expected = [(request.owner, request.mode) for request in self.model.queue(resource)]
            assert [(waiter.owner, waiter.mode) for waiter in queue] == expected, (
                "the queue is in the wrong order"
            )
        assert sorted(self.waiting) == sorted(request.owner for request in self.model.arrivals)

    def finish(self) -> None:
        for owner in OWNERS:
            self.release_all(owner)
        assert self.table.is_empty(), "something is left"
        assert not self.waiting


class LockMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.steps = Lockstep(LockTable())

    @rule(
        owner=st.sampled_from(OWNERS),
        resource=st.sampled_from(RESOURCES),
        mode=st.sampled_from([S, U, X]),
    )
    def acquire_or_give_up(self, owner: str, resource: Resource, mode: LockMode) -> None:
        if owner in self.steps.waiting:
            self.steps.give_up(owner)
        else:
            self.steps.acquire(owner, resource, mode)

    @rule(
        owner=st.sampled_from(OWNERS),
        resource=st.sampled_from(RESOURCES),
        mode=st.sampled_from([S, U, X]),
    )
    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> None:
        if owner not in self.steps.waiting:
            self.steps.try_acquire(owner, resource, mode)

    @rule(owner=st.sampled_from(OWNERS))
    def release_shared(self, owner: str) -> None:
        if owner not in self.steps.waiting:
            self.steps.release_shared(owner)

    @rule(owner=st.sampled_from(OWNERS))
    def release_all(self, owner: str) -> None:
        self.steps.release_all(owner)

    @invariant()
    def rules_hold(self) -> None:
        self.steps.check()

    def teardown(self) -> None:
        self.steps.finish()


LockMachine.TestCase.settings = settings(
    max_examples=repeat(60, 300, 3_000), stateful_step_count=40, deadline=None
)
TestLockMachine = pytest.mark.repeated(LockMachine.TestCase)


def run_history(table: LockTable, seed: int) -> int:
    """Take the random steps of one seed; return how many deadlocks it had."""
    chance = random.Random(seed)
    steps = Lockstep(table)
    owners = OWNERS[: chance.randint(2, len(OWNERS))]
    resources = RESOURCES[: chance.randint(1, len(RESOURCES))]
    for _ in range(STEPS):
        owner, draw = chance.choice(owners), chance.random()
        if draw < 0.06:
            steps.release_all(owner)
        elif owner in steps.waiting:
            if draw > 0.3:
                continue
            steps.give_up(owner)
        elif draw < 0.1:
            steps.release_shared(owner)
        else:
            steps.acquire(owner, chance.choice(resources), chance.choice((S, S, U, X)))
        steps.check()
    steps.finish()
    return steps.deadlocks


def run_histories(make_table: Callable[[], LockTable], seeds: range) -> int:
    deadlocks = 0
    for seed in seeds:
        try:
            deadlocks += run_history(make_table(), seed)
        except (AssertionError, KeyError) as error:
            error.add_note(f"seed {seed}")
            raise
    return deadlocks


@pytest.mark.repeated
@pytest.mark.timeout(1200 if IS_SOAK else 300)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_histories_follow_the_rules_and_leave_nothing(block: int) -> None:
    size = HISTORIES // BLOCKS

    deadlocks = run_histories(LockTable, range(block * size, (block + 1) * size))

    assert deadlocks > size // 10


def run_with_busy_callbacks(seed: int) -> int:
    """Let each callback use the table too: end its transaction, or ask for something else."""
    chance = random.Random(seed)
    table = LockTable()
    woken = 0

    def acquire(owner: str) -> None:
        waiter = table.acquire(owner, chance.choice(RESOURCES), chance.choice((S, U, X)))
        if waiter is not None and waiter.is_waiting:
            waiter.wake = wake

    def wake(waiter: Waiter) -> None:
        nonlocal woken
        woken += 1
        check_rules(table)
        waiting = [other.owner for resource in RESOURCES for other in table.queue(resource)]
        assert waiter.owner not in waiting
        is_withdrawn = not waiter.granted and not waiter.deadlock_with
        if is_withdrawn or chance.random() < 0.5:
            table.release_all(waiter.owner)
        else:
            acquire(waiter.owner)

    for _ in range(STEPS):
        waiters = [waiter for resource in RESOURCES for waiter in table.queue(resource)]
        owner, draw = chance.choice(OWNERS), chance.random()
        waiter = next((waiter for waiter in waiters if waiter.owner == owner), None)
        if draw < 0.1:
            table.release_all(owner)
        elif waiter is None:
            acquire(owner)
        elif draw < 0.3:
            table.give_up(waiter)
        check_rules(table)
    for owner in OWNERS:
        table.release_all(owner)
    assert table.is_empty()
    return woken


def test_callbacks_that_use_the_table_leave_it_in_order() -> None:
    woken = sum(run_with_busy_callbacks(seed) for seed in range(HISTORIES // 20))

    assert woken > HISTORIES // 20


# The checks see what they should: each broken table is caught


class LeakingTable(LockTable):
    """Forgets to leave a lock that others hold too."""

    def release_all(self, owner: str) -> None:
        party = self._owners.get(owner)
        if party is not None and party.waiter is None:
            party.held = [lock for lock in party.held if len(lock.holders) == 1]
        super().release_all(owner)


class UnfairTable(LockTable):
    """Lets a compatible newcomer pass those who wait."""

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> bool:
        lock = self._locks.get(resource)
        if lock is None:
            return super().try_acquire(owner, resource, mode)
        queue, lock.queue = lock.queue, None
        is_granted = super().try_acquire(owner, resource, mode)
        lock.queue = queue
        return is_granted


class SleepyTable(LockTable):
    """Does not look at the queue again when one gives up."""

    def give_up(self, waiter: Waiter) -> None:
        lock = self._locks[waiter.resource]
        assert lock.queue is not None
        lock.queue.remove(waiter)
        waiter.is_waiting = False
        self._owners[waiter.owner].waiter = None


class TrustingTable(LockTable):
    """Looks for no circle."""

    def _find_cycle(self, start: str) -> list[str]:
        return []


class HastyTable(LockTable):
    """Looks for circles of upgrades only."""

    def _may_close_cycle(self, waiter: Waiter) -> bool:
        return waiter.is_upgrade


class CruelTable(LockTable):
    """Ends the wait of the oldest."""

    def _choose_victim(self, circle: list[str]) -> int:
        return min(range(len(circle)), key=lambda place: self._owners[circle[place]].age)


class PatientTable(LockTable):
    """Puts an upgrade behind those who hold nothing."""

    def _enqueue(self, owner: str, resource: Resource, mode: LockMode) -> Waiter:
        waiter = super()._enqueue(owner, resource, mode)
        queue = self._locks[resource].queue
        assert queue is not None
        queue.remove(waiter)
        queue.append(waiter)
        return waiter


class CarelessTable(LockTable):
    """Lets exclusive locks go with the read locks."""

    def release_shared(self, owner: str) -> None:
        party = self._owners.get(owner)
        if party is not None:
            for lock in party.held:
                lock.holders[owner] = S
        super().release_shared(owner)


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        (LeakingTable, "something is left"),
        (UnfairTable, "the request is answered wrongly"),
        (SleepyTable, "the wrong waits ended"),
        (TrustingTable, "a circle is left"),
        (HastyTable, "a circle is left"),
        (CruelTable, "its victim is wrong"),
        (PatientTable, "the queue is in the wrong order"),
        (CarelessTable, "the wrong waits ended"),
    ],
)
def test_a_broken_table_is_caught(broken: type[LockTable], finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        run_histories(broken, range(1_000))
