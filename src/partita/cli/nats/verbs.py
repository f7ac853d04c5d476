"""The verbs of `partita nats`; a cluster runs in the foreground until a signal comes."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, show
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.reliable.nats.cluster import (
    LocalCluster,
    Node,
    Passwords,
    cluster_config,
    nodes_of,
    url_of,
)
from partita.reliable.nats.supervising import Supervisor
from partita.ticks import Clock

LOOK_SECONDS = 0.5
URL_FILE = "nats-url"
"""The file with the address of the cluster, password included."""


class StartedNode(msgspec.Struct, frozen=True):
    """One node of a started cluster."""

    name: str
    url: str
    monitor: str
    pid: int
    log: str


class ClusterStarted(Facts, frozen=True):
    """A cluster that was started."""

    url: str
    path: str
    nodes: list[StartedNode]

    def lines(self) -> Iterator[Line]:
        yield f"A NATS cluster of {len(self.nodes)} nodes runs, for development on this machine."
        for node in self.nodes:
            yield f"  {node.name}  {node.url}  monitor {node.monitor}  pid {node.pid}"
        yield f"  folder {self.path} (streams, configuration and log of each node)"
        yield ""
        yield f'  async with partita.open_state("{self.url}", partition="demo") as state: ...'
        yield ""
        yield (
            f"  kill -9 {self.nodes[0].pid} ends a node, which is then restarted. Ctrl-C or"
            " `partita nats down` stops all."
        )


class Written(Facts, frozen=True):
    """A configuration that was written."""

    url: str
    """Without the password."""
    url_file: str
    files: dict[str, str]
    """By node, `host:port`."""

    def lines(self) -> Iterator[Line]:
        yield "Copy each file to its machine and start the node there:"
        for address, file in self.files.items():
            yield f"  on {address}: nats-server -c {Path(file).name}    ({file})"
        yield ""
        yield f"Then, on the machines that run Partita, with the address in {self.url_file}, which"
        yield "contains the password:"
        yield f'  partita.open_state(Path("{URL_FILE}").read_text().strip(), partition="...")'
        yield ""
        yield "Every node syncs before it acknowledges; Partita checks this at each start, on the"
        yield "monitoring port (client port + 4000). Only the owner can read the files. Keep the"
        yield "ports away from other machines; the end of each file shows how to use TLS."


def write(given: Given) -> int:
    written = write_config(given.nodes.split(","), given.folder, Path(given.out))
    show(written, is_json=given.json)
    return 0


def run_up(given: Given) -> int:
    cluster = LocalCluster(Path(given.path), port=given.port)
    return _run_cluster(cluster, is_json=given.json)


def write_config(
    addresses: list[str], folder: str, out: Path, clock: Clock | None = None
) -> Written:
    """Write one file per node; an existing file with other content is not overwritten.

    The passwords are those of files that exist, otherwise new ones.
    """
    nodes = nodes_of(addresses)
    if len(nodes) not in (3, 5):
        raise ConfigurationError(
            "Configuration",
            f"A cluster has three or five nodes, not {len(nodes)}: a majority must survive.",
            hint="Give --nodes host1,host2,host3.",
        )
    names = {out / f"{node.name}.conf": node for node in nodes}
    try:
        passwords = _passwords_in(names) or Passwords.random(clock or SystemClock())
        texts = {
            file: cluster_config(node, nodes, Path(folder) / node.name, passwords=passwords)
            for file, node in names.items()
        }
        _write_all(out, {**texts, out / URL_FILE: url_of(nodes, passwords) + "\n"})
    except OSError as error:
        message = f"{out} cannot be written: {error.strerror}."
        raise ConfigurationError(
            "Configuration", message, hint="Give another folder with --out."
        ) from error
    files = {node.address: os.fspath(file) for file, node in names.items()}
    return Written(url_of(nodes), os.fspath(out / URL_FILE), files)


def _passwords_in(files: Iterable[Path]) -> Passwords | None:
    """Return the passwords of the first file that exists and has some."""
    texts = (file.read_text("utf-8") for file in files if file.exists())
    return next(filter(None, map(Passwords.found_in, texts)), None)


def _write_all(out: Path, texts: Mapping[Path, str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        if file.exists() and file.read_text("utf-8") != text:
            message = f"{file} exists and has other content."
            raise ConfigurationError(
                "Configuration", message, hint="Move it, or give another folder with --out."
            )
    for file, text in texts.items():
        file.touch(mode=0o600)
        file.chmod(0o600)  # also a file that was written before
        file.write_text(text, encoding="utf-8")


def _run_cluster(cluster: LocalCluster, *, is_json: bool) -> int:
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopping.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        cluster.start()
        supervisor = Supervisor(cluster, SystemClock(), _tell)
        show(started_of(cluster), is_json=is_json)
        return _watch(cluster, supervisor, stopping)
    finally:
        cluster.stop()
        for number, previous in before.items():
            signal.signal(number, previous)


def _watch(cluster: LocalCluster, supervisor: Supervisor, stopping: threading.Event) -> int:
    """Restart nodes that end, until a signal comes or all nodes were given up.

    It raises if the lock of the folder was removed: a second cluster would write the same files.
    """
    while not stopping.wait(LOOK_SECONDS):
        cluster.check_lock()
        supervisor.look()
        if supervisor.has_given_up:
            return 1
    return 0


def _tell(text: str) -> None:
    print(f"partita: {text}", file=sys.stderr, flush=True)


def started_of(cluster: LocalCluster) -> ClusterStarted:
    """Return what is printed about a started cluster."""
    nodes = [_started_node(cluster, index, node) for index, node in enumerate(cluster.nodes)]
    return ClusterStarted(cluster.url, os.fspath(cluster.folder), nodes)


def _started_node(cluster: LocalCluster, index: int, node: Node) -> StartedNode:
    return StartedNode(
        name=node.name,
        url=f"nats://{node.address}",
        monitor=f"http://{node.monitor}",
        pid=cluster.pid(index) or 0,
        log=os.fspath(cluster.log_file(index)),
    )
