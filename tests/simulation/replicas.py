"""Three replicas, clients and trouble on a simulated loop: one seed, one history.

Clients send work under idempotency keys to whichever replica they believe in, give up when no
answer comes, and try elsewhere under the same key. At the end everything heals, and what the
replicas hold is compared with what was acknowledged.
"""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from partita.errors import DamageError, PartitaError
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.reliable.replication.replica import Replica, Timing
from partita.reliable.state.records import decode_record
from partita.simulation.disk import SimDisk
from partita.simulation.loop import Ran, SimClock, SimLoop, running_loop
from partita.simulation.stream import Faults, SimCluster

ACCOUNTS = 8
OPENING_BALANCE = 100
LIVENESS_SECONDS = 60.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what one run does."""

    operations: int = 2_000
    clients: int = 6
    faults: Faults = Faults()
    kill_seconds: float = 15.0
    """Mean time between kills of a node; 0: none."""
    disk_lost_chance: float = 0.25
    """Of a killed node: it comes back with an empty disk."""
    checkpoint_bytes: int = 20_000
    steps_max: int = 1_000_000
    """Far above what an honest run takes."""
    open_replica: Callable[..., Awaitable[StateManager]] = open_replicated


class Collections:
    """The collections of one replica, opened."""

    def __init__(self, manager: StateManager, opened: tuple[Any, ...]) -> None:
        self.manager = manager
        self.ledger, self.accounts, self.outbox, self.done = opened


class Node:
    """One replica's life: it is opened, killed, and opened again on what its disk kept."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimClock(
            world.loop, name, skew_seconds=world.random.uniform(-5, 5), drift=1e-4
        )
        self.disk = SimDisk(self.clock)
        self.here: Collections | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self.world.loop.spawn(self.name, self._live())

    async def _live(self) -> None:
        manager: StateManager | None = None
        while manager is None:
            try:
                manager = await self.world.plan.open_replica(
                    self.world.cluster.connect(self.name),
                    self.disk,
                    self.clock,
                    address=self.name,
                    timing=Timing(),
                    checkpoint_bytes=self.world.plan.checkpoint_bytes,
                )
            except DamageError as error:
                self.world.damage = error
                await asyncio.sleep(1.0)
            except PartitaError as error:
                self.world.loop.trace(f"{self.name} not open: {error.code}")
                await asyncio.sleep(1.0)
        opened = None
        while opened is None:
            try:
                opened = (
                    await manager.dictionary("ledger", key=int, value=int),
                    await manager.dictionary("accounts", key=int, value=int),
                    await manager.queue("outbox", value=int),
                    await manager.dictionary(
                        "done", key=int, value=int, indexes={"value": lambda value: value}
                    ),
                )
            except PartitaError:
                await asyncio.sleep(0.5)
        self.here = Collections(manager, opened)
        await asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        self.world.loop.trace(f"kill {self.name}")
        self.world.note_copies(self)
        self.world.loop.kill(self.name)
        self.here = None
        self.disk = self.disk.power_cut()
        if self.world.random.random() < self.world.plan.disk_lost_chance:
            self.disk = SimDisk(self.clock)

    async def call(self, work: Callable[[Collections], Awaitable[Any]], seconds: float) -> Any:
        """Run work on the node; None when no answer comes in time."""
        here = self.here
        if here is None:
            await asyncio.sleep(0.05)
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def answered() -> None:
            result = None
            try:
                result = await work(here)
            except DamageError as error:
                self.world.damage = error
            except PartitaError as error:
                result = error
            except AssertionError as error:
                self.world.damage = error
            if not answer.done():
                answer.set_result(result)

        self.world.loop.spawn(self.name, answered())
        done, _ = await asyncio.wait([answer], timeout=seconds)
        return answer.result() if done else None


class World:
    """One run."""

    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.random = random.Random(f"{loop.seed}/world")
        self.cluster = SimCluster(seed=loop.seed, faults=plan.faults)
        self.nodes = [Node(self, name) for name in ("a", "b", "c")]
        self.acknowledged: dict[int, int] = {}
        self.hashes: dict[int, bytes] = {}
        self.next_operation = 0
        self.full_copies = 0
        self.first_in_trouble = 1
        """Where the log began when the trouble ended."""
        self.damage: Exception | None = None
        """What no honest run meets."""

    @property
    def epochs(self) -> int:
        """How many primaries there were."""
        return max(decode_record(stored.raw).epoch for stored in self.cluster.messages)

    def note_copies(self, node: Node) -> None:
        if node.here is not None and isinstance(node.here.manager.replica, Replica):
            self.full_copies += node.here.manager.replica.copies

    async def run(self) -> None:
        for node in self.nodes:
            node.start()
        trouble = [asyncio.create_task(self.cluster.trouble())]
        if self.plan.kill_seconds:
            trouble.append(asyncio.create_task(self._kill()))
        clients = [asyncio.create_task(self._client()) for _ in range(self.plan.clients)]
        watching = asyncio.create_task(self._watch())
        await self._healed_after(clients, trouble)
        await self._compare()
        self.first_in_trouble = self.cluster.first
        await self._truncate()
        if not watching.cancel():
            watching.result()
        await asyncio.gather(watching, return_exceptions=True)
        for node in self.nodes:
            self.note_copies(node)
            self.loop.kill(node.name)

    async def _healed_after(
        self, clients: list[asyncio.Task[None]], trouble: list[asyncio.Task[None]]
    ) -> None:
        while self.next_operation < self.plan.operations * 0.9:
            await asyncio.wait(clients, timeout=5.0)
            for client in clients:
                if client.done():
                    client.result()
        for task in trouble:
            task.cancel()
        await asyncio.gather(*trouble, return_exceptions=True)
        self.cluster.heal()
        for node in self.nodes:
            if node.here is None and node.starts == 0:
                node.start()
        async with asyncio.timeout(LIVENESS_SECONDS * 5):
            await asyncio.gather(*clients)

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self.plan.kill_seconds))
            node = self.random.choice(self.nodes)
            if self.random.random() < 0.2:
                node.clock.jump(self.random.uniform(-30, 30))
            node.kill()
            node.start()

    async def _client(self) -> None:
        believed = self.random.choice(self.nodes)
        while self.next_operation < self.plan.operations:
            number = self.next_operation
            self.next_operation += 1
            kind = self.random.choice(("note", "move", "send", "take", "look"))
            picked = self.random.randrange(ACCOUNTS), self.random.randrange(ACCOUNTS)
            while True:
                answer = await believed.call(
                    functools.partial(operate, kind=kind, number=number, picked=picked),
                    seconds=8.0,
                )
                if self.damage is not None:
                    raise self.damage
                if answer is not None and not isinstance(answer, PartitaError):
                    break
                believed = self.random.choice(self.nodes)
                await asyncio.sleep(self.random.uniform(0.0, 0.3))
            if kind != "look":
                assert self.acknowledged.setdefault(number, answer) == answer
            self.loop.trace(f"op {number} {answer}")

    async def _watch(self) -> None:
        """Compare the chain of the replicas at every sequence that is seen."""
        while True:
            for node in self.nodes:
                if node.here is not None:
                    state = node.here.manager.state
                    known = self.hashes.setdefault(state.sequence, state.hash)
                    assert known == state.hash, f"replicas differ at {state.sequence}"
                    replica = node.here.manager.replica
                    if isinstance(replica, Replica) and replica.failure is not None:
                        self.damage = replica.failure
            await asyncio.sleep(0.05)

    async def _compare(self) -> None:
        """All replicas hold the same, and what was acknowledged is in it exactly once."""
        async with asyncio.timeout(LIVENESS_SECONDS):
            while True:
                here = [node.here for node in self.nodes if node.here is not None]
                sequences = {one.manager.sequence for one in here}
                if len(here) == len(self.nodes) and sequences == {self.cluster.last}:
                    break
                await asyncio.sleep(0.1)
        digests = {one.manager.state.digest() for one in here}
        assert len(digests) == 1, "replicas hold different states"
        await self._check(here[0])

    async def _truncate(self) -> None:
        """Once every live replica has a checkpoint, the log below it is truncated."""
        sequence = self.cluster.last
        async with asyncio.timeout(LIVENESS_SECONDS):
            while self.cluster.first <= sequence:
                for node in self.nodes:
                    await node.call(lambda here: here.manager.checkpoint(), seconds=8.0)
                await asyncio.sleep(1.0)

    async def _check(self, here: Collections) -> None:
        async with here.manager.snapshot() as snapshot:
            ledger = {key: value async for key, value in here.ledger.items(snapshot)}
            balances = [value async for value in here.accounts.values(snapshot)]
            queued = [value async for value in here.outbox.items(snapshot)]
            done = {key: value async for key, value in here.done.items(snapshot)}
            found = [key async for key, _ in here.done.find(snapshot, value=1)]
        lost = sorted(number for number in self.acknowledged if number not in ledger)
        assert not lost, f"acknowledged and lost: {lost}"
        doubled = sorted(number for number, count in ledger.items() if count != 1)
        assert not doubled, f"done twice: {doubled}"
        assert sum(balances) == (ACCOUNTS * OPENING_BALANCE if balances else 0), "money was made"
        assert len(queued) == len(set(queued)), "queued twice"
        assert not set(queued) & set(done), "taken, and still there"
        assert sorted(found) == sorted(key for key, value in done.items() if value == 1)


async def operate(here: Collections, kind: str, number: int, picked: tuple[int, int]) -> int:
    """Do one operation exactly once; its answer depends on its number alone."""
    if kind == "look":
        return await look(here)
    work = {"note": note, "move": move, "send": send, "take": take}[kind]
    committed = await here.manager.run(
        work, here, number, picked, idempotency_key=f"operation-{number}", attempts=20
    )
    return committed.value


async def note(tx: Transaction, here: Collections, number: int, _picked: object) -> int:
    count = await here.ledger.get(tx, number, 0)
    await here.ledger.set(tx, number, count + 1)
    return number


async def move(tx: Transaction, here: Collections, number: int, picked: tuple[int, int]) -> int:
    first, second = picked
    for account in sorted(set(picked)):
        await here.accounts.get(tx, account, None, lock=2)
    for account in range(ACCOUNTS):
        await here.accounts.get_or_add(tx, account, OPENING_BALANCE)
    if first != second:
        await here.accounts.upsert(tx, first, 0, lambda balance: balance - 1)
        await here.accounts.upsert(tx, second, 0, lambda balance: balance + 1)
    return await note(tx, here, number, picked)


async def send(tx: Transaction, here: Collections, number: int, picked: object) -> int:
    await here.outbox.enqueue(tx, number)
    return await note(tx, here, number, picked)


async def take(tx: Transaction, here: Collections, number: int, picked: object) -> int:
    for value in await here.outbox.dequeue_many(tx, 3):
        await here.done.add(tx, value, value % 3)
    return await note(tx, here, number, picked)


async def look(here: Collections) -> int:
    """Read a snapshot on whatever role: it is consistent over the collections."""
    async with here.manager.snapshot() as snapshot:
        balances = [value async for value in here.accounts.values(snapshot)]
        queued = {value async for value in here.outbox.items(snapshot)}
        done = {key async for key in here.done.keys(snapshot)}
        count = await here.done.count(snapshot)
    assert sum(balances) == (ACCOUNTS * OPENING_BALANCE if balances else 0), "half a transfer seen"
    assert not queued & done, "seen in two places"
    assert count == len(done)
    return 0


def simulate(seed: int, plan: Plan) -> Ran[World]:
    """Run one seed to its end; an error says which."""
    loop = SimLoop(seed=seed, steps_max=plan.steps_max)
    world: list[World] = []

    async def main() -> World:
        world.append(World(running_loop(), plan))
        await world[0].run()
        return world[0]

    try:
        value = loop.run(main())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return Ran(value, loop.trace_hash, loop.steps, loop.time())
