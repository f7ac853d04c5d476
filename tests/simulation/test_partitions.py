"""A service of four processes and four partitions under random trouble: one seed, one history."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache

import msgspec
import pytest

from partita.errors import PartitaError
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.reliable.replication.replica import Timing
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.service.held_partition import PartitionContext
from partita.reliable.service.membership import Membership
from partita.reliable.service.service import Pace, Service
from partita.simulation.disk import SimDisk
from partita.simulation.loop import Ran, SimClock, SimLoop, running_loop
from partita.simulation.stream import NO_FAULTS, Faults, SimCluster
from replicated.serve_counts import count, open_counts
from support.repeats import repeat

SEEDS = repeat(1, 6, 60)
PARTITIONS = 4
REPLICAS = 3
OPERATIONS = 150
CLIENTS = 4
KILL_SECONDS = 20.0
LIVENESS_SECONDS = 120.0
FAULTS = Faults(trouble_seconds=30.0)
CALM = msgspec.structs.replace(NO_FAULTS, delay_seconds_max=0.05)
"""Nothing goes wrong, but everything takes its time."""

Answering = Callable[[bytes], Awaitable[bytes]]


def key_of(operation: int) -> str:
    return f"user-{operation % 17}"


class Switch:
    """Who listens on what; requests and answers may get lost on the way."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.random = random.Random(f"{loop.seed}/switch")
        self.loss = 0.03
        self.listeners: dict[str, list[SimListening]] = {}

    def drop(self, node: str) -> None:
        for listeners in self.listeners.values():
            listeners[:] = [one for one in listeners if one.node != node]


class SimListening:
    def __init__(self, switch: Switch, subject: str, node: str, answering: Answering) -> None:
        self.node = node
        self.answering = answering
        self._others = switch.listeners.setdefault(subject, [])
        self._others.append(self)

    async def close(self, seconds: float) -> None:
        del seconds
        if self in self._others:
            self._others.remove(self)


class SimPost:
    """One process's way to the others."""

    def __init__(self, switch: Switch, node: str) -> None:
        self._switch = switch
        self._node = node

    async def ask(self, subject: str, raw: bytes, *, timeout: float) -> bytes:
        loop, chance = self._switch.loop, self._switch.random
        answer: asyncio.Future[bytes] = loop.create_future()

        async def answered(listening: SimListening) -> None:
            told = await listening.answering(raw)
            if not answer.done() and chance.random() >= self._switch.loss:
                answer.set_result(told)

        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(chance.uniform(0.0, 0.01))
                while not self._switch.listeners.get(subject):  # noqa: ASYNC110 - as NATS is asked
                    await asyncio.sleep(0.1)
                listening = chance.choice(self._switch.listeners[subject])
                if chance.random() >= self._switch.loss:
                    loop.spawn(listening.node, answered(listening))
                return await answer
        except TimeoutError:
            raise NoAnswer from None

    async def listen(self, subject: str, answering: Answering) -> SimListening:
        return SimListening(self._switch, subject, self._node, answering)

    async def close(self) -> None:
        return


class Node:
    """One process of the service: killed, and started again on what its disks kept."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimClock(world.loop, name, drift=1e-4)
        self.disks = [SimDisk(self.clock) for _ in range(PARTITIONS)]
        self.service: Service | None = None
        self.is_running = False

    def start(self) -> None:
        self.is_running = True
        self.world.loop.spawn(self.name, self._live())

    def kill(self) -> None:
        self.world.loop.trace(f"kill {self.name}")
        self.world.loop.kill(self.name)
        self.is_running = False
        self.world.switch.drop(self.name)
        self.disks = [disk.power_cut() for disk in self.disks]
        self.service = None

    async def _live(self) -> None:
        while True:
            service = self.world.service(self.name, self.clock, self._open_state)
            try:
                await service._membership.open(PARTITIONS, REPLICAS)
                await service.join()
            except PartitaError as error:
                self.world.loop.trace(f"{self.name} did not join: {error.code}")
                await service.close()
            else:
                self.service = service
                await asyncio.get_running_loop().create_future()

    async def _open_state(self, partition: int, patience: float) -> StateManager:
        return await open_replicated(
            self.world.clusters[partition].connect(self.name),
            self.disks[partition],
            self.clock,
            address=self.name,
            timing=Timing(),
            checkpoint_bytes=5_000,
            patience=patience,
        )


class World:
    def __init__(self, loop: SimLoop, faults: Faults = FAULTS) -> None:
        self.loop = loop
        self.random = random.Random(f"{loop.seed}/world")
        self.switch = Switch(loop)
        self.control = SimCluster(
            seed=loop.seed * 100, faults=faults, register_seconds=Pace().member_seconds
        )
        self.clusters = [
            SimCluster(seed=loop.seed * 100 + 1 + n, faults=faults) for n in range(PARTITIONS)
        ]
        self.nodes = [Node(self, name) for name in "abcd"]
        self.next_operation = 0
        self.kills = 0

    def service(
        self,
        name: str,
        clock: SimClock,
        open_state: Callable[[int, float], Awaitable[StateManager]],
    ) -> Service:
        membership = Membership(self.control.connect(name), clock, "counts")
        post = SimPost(self.switch, name)
        context = PartitionContext(open_state, post, lambda p: f"counts.{p}", open_counts, count)
        return Service("counts", membership, context, clock, address=name)

    async def run(self) -> dict[str, int]:
        clock = SimClock(self.loop, "client")
        client = self.service("client", clock, lambda *_: pytest.fail("it holds nothing"))
        for node in self.nodes:
            node.start()
        while not client._membership._sequence:
            await asyncio.sleep(0.5)
            try:
                await client._membership.refresh()
            except NoAnswer:
                continue
        trouble = [asyncio.create_task(each.trouble()) for each in (self.control, *self.clusters)]
        trouble.append(asyncio.create_task(self._kill()))
        clients = [asyncio.create_task(self._ask(client)) for _ in range(CLIENTS)]
        while self.next_operation < OPERATIONS * 0.9:
            await asyncio.wait(clients, timeout=5.0)
        for task in trouble:
            task.cancel()
        await asyncio.gather(*trouble, return_exceptions=True)
        self._heal()
        async with asyncio.timeout(LIVENESS_SECONDS):
            await asyncio.gather(*clients)
            while not self._are_shares_even():  # noqa: ASYNC110 - many processes are watched
                await asyncio.sleep(0.5)
        await self._stay_even()
        keys = sorted(set(map(key_of, range(OPERATIONS))))
        counted = {key: int(await client.request(key, b"0")) for key in keys}
        for node in self.nodes:
            self.loop.kill(node.name)
        return counted

    async def _stay_even(self) -> None:
        """Nobody takes anything from anybody while nothing happens."""
        epochs = self._epochs()
        await asyncio.sleep(60.0)
        assert self._epochs() == epochs
        assert self._are_shares_even()

    async def run_calmly(self) -> Counter[int]:
        """Let one process begin alone and three join it; return the epochs."""
        self.switch.loss = 0.0
        async with asyncio.timeout(LIVENESS_SECONDS):
            self.nodes[0].start()
            while self.nodes[0].service is None:  # noqa: ASYNC110 - a process is watched
                await asyncio.sleep(0.5)
            for node in self.nodes[1:]:
                node.start()
            while not self._are_shares_even():  # noqa: ASYNC110 - many processes are watched
                await asyncio.sleep(0.5)
        await self._stay_even()
        epochs = self._epochs()
        for node in self.nodes:
            self.loop.kill(node.name)
        return epochs

    def _epochs(self) -> Counter[int]:
        """The highest epoch of every partition."""
        highest: Counter[int] = Counter()
        for node in self.nodes:
            assert node.service is not None
            for partition, state in node.service.states().items():
                highest[partition] = max(highest[partition], state.epoch)
        return highest

    def _heal(self) -> None:
        self.switch.loss = 0.0
        for cluster in (self.control, *self.clusters):
            cluster.heal()
        for node in self.nodes:
            if not node.is_running:
                node.start()

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / KILL_SECONDS))
            node = self.random.choice(self.nodes)
            self.kills += 1
            node.kill()
            await asyncio.sleep(self.random.uniform(0.0, 12.0))
            node.start()

    async def _ask(self, client: Service) -> None:
        """Count once under one id, however often it takes."""
        while self.next_operation < OPERATIONS:
            number = self.next_operation
            self.next_operation += 1
            while True:
                try:
                    told = await client.request(
                        key_of(number), b"1", idempotency_key=f"operation-{number}"
                    )
                except PartitaError as error:
                    self.loop.trace(f"operation {number}: {error.code}")
                    continue
                self.loop.trace(f"operation {number} {told.decode()}")
                break
            await asyncio.sleep(self.random.uniform(0.0, 3.0))

    def _are_shares_even(self) -> bool:
        services = [node.service for node in self.nodes if node.service is not None]
        states = [service.states() for service in services]
        primaries = [sum(state.is_primary for state in held.values()) for held in states]
        return (
            len(services) == len(self.nodes)
            and [len(held) for held in states] == [PARTITIONS * REPLICAS // len(self.nodes)] * 4
            and primaries == [PARTITIONS // len(self.nodes)] * len(self.nodes)
        )


def simulate(seed: int) -> Ran[tuple[World, dict[str, int]]]:
    loop = SimLoop(seed=seed)

    async def main() -> tuple[World, dict[str, int]]:
        world = World(running_loop())
        return world, await world.run()

    try:
        value = loop.run(main())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return Ran(value, loop.trace_hash, loop.steps, loop.time())


run_of = cache(simulate)


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_request_counts_once_and_shares_become_even(seed: int) -> None:
    _, counted = run_of(seed).value

    assert counted == Counter(map(key_of, range(OPERATIONS)))


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(repeat(1, 4, 4)))
def test_who_should_have_a_partition_gets_it_at_the_first_hand_over(seed: int) -> None:
    async def main() -> Counter[int]:
        return await World(running_loop(), CALM).run_calmly()

    epochs = SimLoop(seed=seed).run(main())

    assert sorted(epochs.values()) == [1, 2, 2, 2]


def test_the_same_seed_gives_the_same_history() -> None:
    assert simulate(3).trace_hash == simulate(3).trace_hash


def test_processes_are_killed_in_the_runs() -> None:
    assert sum(simulate(seed).value[0].kills for seed in range(2)) > 2
