"""`partita nats status` and `down`: clusters that run."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from partita.addresses import without_password
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table, show
from partita.cli.kit.text import size_text
from partita.clock import SystemClock
from partita.errors import ConfigurationError, UnavailableError
from partita.reliable.nats.monitor import NodeStatus, ask_all, monitor_urls
from partita.reliable.nats.supervising import ClusterFile, RunningNode, find_cluster
from partita.storage.folder import is_locked

DOWN_SECONDS = 30.0
"""How long `down` waits: nodes that do not end within 10 s are killed by `up`."""
LOOK_SECONDS = 0.1


class NatsNode(msgspec.Struct, frozen=True):
    """One node; most fields are None if it does not answer."""

    monitor: str
    name: str | None
    is_up: bool
    is_leader: bool
    syncs: bool | None
    version: str | None
    uptime: str | None
    connections: int | None
    storage_bytes: int | None
    pid: int | None = None
    restarts: int | None = None
    last_exit: int | None = None


class NatsStatus(Facts, frozen=True):
    """The nodes of a cluster."""

    where: str
    pid: int | None
    """The process of `partita nats up`; None for another cluster."""
    nodes: list[NatsNode]

    @property
    def exit_status(self) -> int:
        is_sound = all(node.is_up and node.syncs for node in self.nodes)
        return int(not (is_sound and any(node.is_leader for node in self.nodes)))

    def lines(self) -> Iterator[Line]:
        yield self.where + ("" if self.pid is None else f", run by process {self.pid}")
        yield Table(
            ("node", "monitor", "up", "leader", "syncs", "version", "uptime", "clients", "stored")
            + (("restarts", "last exit") if self.pid is not None else ()),
            (
                (
                    node.name,
                    node.monitor,
                    node.is_up,
                    node.is_leader,
                    node.syncs,
                    node.version,
                    node.uptime,
                    node.connections,
                    None if node.storage_bytes is None else size_text(node.storage_bytes),
                    *((node.restarts, node.last_exit) if self.pid is not None else ()),
                )
                for node in self.nodes
            ),
        )
        if not any(node.is_leader for node in self.nodes):
            yield "No leader answers: nothing can be committed without a majority of the nodes."
        for node in self.nodes:
            if node.syncs is False:
                yield f"{node.name} acknowledges before it syncs: set sync_interval: always."


class NatsStopped(Facts, frozen=True):
    """A cluster that was stopped."""

    path: str
    pid: int
    seconds: float

    def lines(self) -> Iterator[Line]:
        yield f"Stopped the cluster in {self.path} (process {self.pid}) in {self.seconds:.1f} s."


def status(given: Given) -> int:
    if given.connect:
        urls = _monitors(given.connect, given.monitor)
        found = NatsStatus(without_password(given.connect), None, _nodes(urls, None))
    else:
        folder, running = _running(given)
        urls = _monitors(running.url, given.monitor)
        found = NatsStatus(os.fspath(folder), running.pid, _nodes(urls, running))
    show(found, is_json=given.json)
    return found.exit_status


def down(given: Given) -> int:
    folder, running = _running(given)
    clock = SystemClock()
    began = clock.monotonic()
    try:
        os.kill(running.pid, signal.SIGTERM)
    except OSError as error:
        raise ConfigurationError(
            "ClusterNotStopped",
            f"Process {running.pid} cannot be stopped: {error.strerror}.",
            hint="Stop it as the user that started it.",
        ) from error
    while is_locked(folder):
        if clock.monotonic() - began > DOWN_SECONDS:
            raise UnavailableError(
                "ClusterNotStopped",
                f"Process {running.pid} has not ended within {DOWN_SECONDS:.0f} s.",
                facts={"folder": os.fspath(folder), "pid": running.pid},
                hint="Check the process; its nodes end with it.",
            )
        time.sleep(LOOK_SECONDS)
    seconds = round(clock.monotonic() - began, 1)
    show(NatsStopped(os.fspath(folder), running.pid, seconds), is_json=given.json)
    return 0


def _running(given: Given) -> tuple[Path, ClusterFile]:
    folder = Path(given.path).absolute()
    found = find_cluster(folder)
    if found is None or not is_locked(folder):
        raise ConfigurationError(
            "ClusterNotRunning",
            f"No cluster of `partita nats up` is running in {folder}.",
            hint="Give its folder with --path"
            + (", or another cluster with --connect." if given.verb == "status" else "."),
        )
    return folder, found


def _monitors(url: str, given: tuple[str, ...]) -> list[str]:
    from partita.reliable.nats.link import server_urls  # noqa: PLC0415 - an extra

    return list(given) or monitor_urls(server_urls(url), is_tls=url.startswith("tls://"))


def _nodes(urls: list[str], running: ClusterFile | None) -> list[NatsNode]:
    async def ask() -> list[NodeStatus | None]:
        answers = await asyncio.gather(*(ask_all([url]) for url in urls))
        return [each[0] if each else None for each in answers]

    known: dict[int, RunningNode] = dict(enumerate(running.nodes if running else ()))
    answers = asyncio.run(ask())
    return [
        _node(url, found, known.get(n))
        for n, (url, found) in enumerate(zip(urls, answers, strict=True))
    ]


def _node(url: str, found: NodeStatus | None, known: RunningNode | None) -> NatsNode:
    return NatsNode(
        monitor=url,
        name=found.server_name if found else known.name if known else None,
        is_up=found is not None,
        is_leader=found is not None and found.has_jetstream and found.leads,
        syncs=None if found is None else found.syncs,
        version=None if found is None else found.version,
        uptime=None if found is None else found.uptime,
        connections=None if found is None else found.connections,
        storage_bytes=None if found is None else found.jetstream.stats.storage,
        pid=known.pid if known else None,
        restarts=known.restarts if known else None,
        last_exit=known.last_exit if known else None,
    )
