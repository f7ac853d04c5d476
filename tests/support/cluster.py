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
