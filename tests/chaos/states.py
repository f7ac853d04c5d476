"""A state on three real NATS nodes, its replicas three processes.

Nodes, processes and networks fail; the operations and their ledger are in this process. A fault
lasts until an operation that began after it was acknowledged: the time to this is the recovery.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from chaos import hasty_replica
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario
from replicated.test_replicas import REPLICA, Processes, leader_of, lease_stream, log_stream, whole
from support.cluster import ProxiedCluster, proxied_cluster
from support.proxy import Direction, Proxy

OPERATIONS_BETWEEN = 60
"""Acknowledged operations between two faults."""
DELAY_SECONDS = 0.5

Cut = Callable[[Proxy], None]


class States:
    """The replicas of one partition, and the faults."""

    def __init__(
        self, cluster: ProxiedCluster, processes: Processes, chance: random.Random
    ) -> None:
        self.cluster = cluster
        self.processes = processes
        self.chance = chance

    @contextlib.asynccontextmanager
    async def killed_primary(self) -> AsyncIterator[None]:
        primary = await self.processes.primary()
        self.processes.replicas[primary].process.kill()
        yield
        await self.processes.restart(primary)

    @contextlib.asynccontextmanager
    async def frozen_primary(self) -> AsyncIterator[None]:
        process = self.processes.replicas[await self.processes.primary()].process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def killed_node(self) -> AsyncIterator[None]:
        node = await self._leader()
        self.cluster.kill(node)
        yield
        self.cluster.restart(node)

    @contextlib.asynccontextmanager
    async def frozen_node(self) -> AsyncIterator[None]:
        node = await self._leader()
        self.cluster.pause(node)
        try:
            yield
        finally:
            self.cluster.resume(node)

    @contextlib.asynccontextmanager
    async def restarted_nodes(self) -> AsyncIterator[None]:
        """Kill all nodes at once and start them again at once."""
        for node in range(3):
            self.cluster.kill(node)
        for node in range(3):
            self.cluster.restart(node)
        yield

    @contextlib.asynccontextmanager
    async def isolated_node(self) -> AsyncIterator[None]:
        """Cut a node off from its peers; its clients still reach it."""
        cut = self.chance.choice((Proxy.drop, Proxy.blackhole))
        with self._cut(self.cluster.routes_of(await self._leader()), cut):
            yield

    @contextlib.asynccontextmanager
    async def half_route(self) -> AsyncIterator[None]:
        """Lose what one node sends to another; the other direction works."""
        route = self.chance.choice(list(self.cluster.routes.values()))
        with self._cut([route], lambda proxy: proxy.blackhole(Direction.REQUESTS)):
            yield

    @contextlib.asynccontextmanager
    async def silent_node(self) -> AsyncIterator[None]:
        """Lose the answers of one node to all its clients."""
        proxy = self.cluster.clients[await self._leader()]
        with self._cut([proxy], lambda each: each.blackhole(Direction.ANSWERS)):
            yield

    @contextlib.asynccontextmanager
    async def delayed_clients(self) -> AsyncIterator[None]:
        with self._cut(self.cluster.clients, lambda proxy: proxy.delay(DELAY_SECONDS)):
            yield

    @contextlib.asynccontextmanager
    async def reset_clients(self) -> AsyncIterator[None]:
        with self._cut(self.cluster.clients, Proxy.drop):
            await asyncio.sleep(self.chance.uniform(0.2, 1.0))
        yield

    @contextlib.contextmanager
    def _cut(self, proxies: list[Proxy], cut: Cut) -> Iterator[None]:
        try:
            for proxy in proxies:
                cut(proxy)
            yield
        finally:
            for proxy in proxies:
                proxy.heal()

    async def _leader(self) -> int:
        """Return the node that leads the log or the lease."""
        stream = self.chance.choice((log_stream, lease_stream))(self.processes.partition)
        return await leader_of(self.cluster, stream)


FAULTS = {
    "kill of the primary": States.killed_primary,
    "SIGSTOP of the primary": States.frozen_primary,
    "kill of a leading node": States.killed_node,
    "SIGSTOP of a leading node": States.frozen_node,
    "kill of all nodes": States.restarted_nodes,
    "isolated node": States.isolated_node,
    "one-way route": States.half_route,
    "silent node": States.silent_node,
    "delay": States.delayed_clients,
    "reset": States.reset_clients,
}
KILLS = ["kill of the primary"]


async def inject(run: Run, states: States, outcome: Outcome) -> None:
    operations = states.processes.operations
    for name in run.faults(KILLS if run.is_broken else list(FAULTS)):
        await operations.work(OPERATIONS_BETWEEN)
        async with FAULTS[name](states):
            outcome.faults[name] += 1
            outcome.recoveries.append(await operations.write_again(name))
        states.cluster.wait_ready()
        await whole(states.cluster, states.processes.partition)


async def run_states(run: Run, outcome: Outcome, cluster: ProxiedCluster) -> None:
    program = Path(hasty_replica.__file__) if run.is_broken else REPLICA
    folder = run.folder / "replicas"
    async with Processes(cluster, folder, program, tuple(cluster.monitor)) as processes:
        processes.operations.start()
        try:
            await inject(run, States(cluster, processes, run.chance), outcome)
            await processes.operations.work(OPERATIONS_BETWEEN)
            await processes.settled()
        except TimeoutError:
            late = f"no answer {RECOVERY_SECONDS_MAX:.0f} s after {list(outcome.faults)[-1:]}"
            outcome.violations.append(late)
        except AssertionError as error:
            outcome.violations.append(str(error))
        outcome.acknowledged = len(processes.operations.acknowledged)


def states(run: Run) -> Outcome:
    outcome = Outcome()
    with proxied_cluster(run.folder / "nats") as cluster:
        asyncio.run(run_states(run, outcome, cluster))
    return outcome


SCENARIOS = [Scenario("states on NATS", "a primary acknowledges before it commits", states, 2.0)]
