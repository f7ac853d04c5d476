"""A real three-node NATS cluster for tests: free ports, faults on demand, gone afterwards."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from partita.reliable.nats.cluster import ROUTE_OFFSET, LocalCluster, ask, is_free
from partita.reliable.nats.monitor import MONITOR_OFFSET
from support.proxy import Proxies, Proxy

ELECTION_SECONDS = 60.0
"""NATS elects within 4 to 9 seconds; a busy machine takes its time."""

PORTS_PER_CLUSTER = 8
"""One that marks the others as taken, and up to seven nodes."""


class Cluster(LocalCluster):
    """The cluster of `partita nats up`, with what tests ask of it."""

    def node_named(self, name: str) -> int:
        return next(n for n, node in enumerate(self.nodes) if node.name == name)

    def meta_leader(self) -> int:
        """The node that leads the group that places streams."""
        for index in range(len(self.nodes)):
            status = ask(self.nodes[index]) if self.pid(index) else None
            if status is not None and status.jetstream.meta and status.jetstream.meta.leader:
                return self.node_named(status.jetstream.meta.leader)
        raise AssertionError("no node knows a leader")

    def heal(self) -> None:
        """Bring every node back and wait until all follow one leader."""
        for index in range(len(self.nodes)):
            if self.pid(index) is None:
                self.restart(index)
            else:
                self.resume(index)
        self.wait_ready()

    def url_of(self, index: int) -> str:
        return f"nats://{self.nodes[index].address}"

    def addresses_but(self, index: int) -> list[str]:
        return [self.url_of(n) for n in range(len(self.nodes)) if n != index]


_taken: list[socket.socket] = []
"""Held until this process ends: what was chosen here, nobody else chooses."""


def free_port(count: int = 3) -> int:
    """Take a client port whose neighbours, route and monitoring ports are free too.

    Other processes that choose in this way leave it alone, also while its nodes are down: the
    port before it is bound here. All lie below the range from which the kernel hands out ports.
    """
    chance = random.Random(os.getpid() * 1_000_003 + time.monotonic_ns())
    for _ in range(1_000):
        mark = chance.randrange(12_000, 12_000 + ROUTE_OFFSET, PORTS_PER_CLUSTER)
        ports = [mark + 1 + n for n in range(count)]
        wanted = [port + offset for port in ports for offset in (0, ROUTE_OFFSET, MONITOR_OFFSET)]
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", mark))
        except OSError:
            held.close()
            continue
        _taken.append(held)
        if all(is_free("127.0.0.1", each) for each in wanted):
            return ports[0]
    raise AssertionError("no free ports")


class ProxiedCluster(Cluster):
    """A cluster whose clients and routes go through proxies.

    `clients[n]` is in front of the client port of node n. `routes[m, n]` has the connections that
    node m opens to node n; the nodes know no other way to each other.
    """

    def __init__(self, folder: Path, proxies: Proxies, *, count: int = 3) -> None:
        super().__init__(folder, count=count, port=free_port(count))
        ports = [node.port for node in self.nodes]
        self.clients = [proxies.to(port) for port in ports]
        self.routes = {
            (m, n): proxies.to(port + ROUTE_OFFSET)
            for n, port in enumerate(ports)
            for m in range(count)
            if m != n
        }

    @property
    def url(self) -> str:
        return "nats://" + ",".join(proxy.address for proxy in self.clients)

    @property
    def monitor(self) -> list[str]:
        return [f"http://{node.monitor}" for node in self.nodes]

    def routes_of(self, index: int) -> list[Proxy]:
        """The proxies between one node and the others, in both directions."""
        return [proxy for pair, proxy in self.routes.items() if index in pair]

    def config(self, index: int) -> str:
        """Later settings replace earlier ones; the advertised route is a port nobody answers."""
        listen = f"127.0.0.1:{self.nodes[index].port + ROUTE_OFFSET}"
        others = [n for n in range(len(self.nodes)) if n != index]
        routes = ", ".join(f'"nats-route://{self.routes[index, n].address}"' for n in others)
        return (
            super().config(index)
            + f"""
client_advertise: "{self.clients[index].address}"
cluster {{ name: partita, listen: "{listen}", advertise: "127.0.0.1:1", routes: [{routes}] }}
"""
        )


@contextlib.contextmanager
def proxied_cluster(folder: Path) -> Iterator[ProxiedCluster]:
    with Proxies() as proxies:
        cluster = ProxiedCluster(folder, proxies)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


@contextlib.contextmanager
def running_cluster(
    folder: Path, *, count: int = 3, sync_interval: str = "always", extra: str = ""
) -> Iterator[Cluster]:
    cluster = Cluster(
        folder, count=count, port=free_port(count), sync_interval=sync_interval, extra=extra
    )
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
