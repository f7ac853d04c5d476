"""`partita nats`: write the configuration of a cluster, or run one of three nodes here.

`config` writes one file a node and says how to start it. `up` runs a cluster for development in
the foreground: its nodes end with it, however it ends.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from partita.errors import ConfigurationError
from partita.reliable.nats.cluster import LocalCluster, Node, cluster_config, nodes_of, url_of
from partita.reliable.nats.monitor import CLIENT_PORT

if TYPE_CHECKING:
    import argparse

LOCAL_FOLDER = Path("partita-nats")
NODES_FOLDER = "/var/lib/partita-nats"
LOOK_SECONDS = 0.5


class StartedNode(msgspec.Struct, frozen=True):
    """One node as it is announced."""

    name: str
    url: str
    monitor: str
    pid: int
    log: str


class Started(msgspec.Struct, frozen=True):
    """The facts of a started cluster."""

    url: str
    path: str
    nodes: list[StartedNode]


class Written(msgspec.Struct, frozen=True):
    """The facts of a written configuration."""

    url: str
    files: dict[str, str]
    """By node, `host:port`."""


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `nats config` and `nats up` to the command line."""
    nats = verbs.add_parser("nats", help="the NATS cluster under a state", allow_abbrev=False)
    actions = nats.add_subparsers(required=True, metavar="config|up")
    writing = actions.add_parser(
        "config", help="write the configuration of a cluster", allow_abbrev=False
    )
    writing.set_defaults(verb="nats", action="config")
    writing.add_argument(
        "--nodes", required=True, metavar="HOST,HOST,HOST", help="three or five nodes: host[:port]"
    )
    writing.add_argument(
        "--folder",
        default=NODES_FOLDER,
        metavar="DIR",
        help=f"where each node keeps its streams, on its own machine ({NODES_FOLDER})",
    )
    writing.add_argument(
        "--out", default=".", metavar="DIR", help="where to write the files (this folder)"
    )
    writing.add_argument("--json", action="store_true", help="print JSON")
    running = actions.add_parser(
        "up", help="run three nodes on this machine, for development", allow_abbrev=False
    )
    running.set_defaults(verb="nats", action="up")
    running.add_argument(
        "--path", default=LOCAL_FOLDER, metavar="DIR", help=f"folder (./{LOCAL_FOLDER})"
    )
    running.add_argument(
        "--port",
        default=CLIENT_PORT,
        metavar="N",
        help=f"client port of the first node ({CLIENT_PORT}); the others follow it",
    )
    running.add_argument("--json", action="store_true", help="announce the start as one JSON line")


def run(given: Mapping[str, object]) -> int:
    """Run `nats config` or `nats up` and return the exit status."""
    as_json = bool(given.get("json"))
    if given["action"] == "config":
        written = write_config(
            str(given["nodes"]).split(","), str(given["folder"]), Path(str(given["out"]))
        )
        print(_as_line(written) if as_json else written_text(written))
        return 0
    cluster = LocalCluster(Path(str(given["path"])), port=_port(given["port"]))
    return _run_cluster(cluster, as_json=as_json)


def write_config(addresses: list[str], folder: str, out: Path) -> Written:
    """Write one file a node; a file that is there with other content is left alone."""
    nodes = nodes_of(addresses)
    if len(nodes) not in (3, 5):
        raise ConfigurationError(
            "Configuration",
            f"A cluster has three or five nodes, not {len(nodes)}: a majority must survive.",
            hint="Give --nodes host1,host2,host3.",
        )
    texts = {
        out / f"{node.name}.conf": cluster_config(node, nodes, Path(folder) / node.name)
        for node in nodes
    }
    try:
        _write_all(out, texts)
    except OSError as error:
        message = f"{out} cannot be written: {error.strerror}."
        raise ConfigurationError(
            "Configuration", message, hint="Give another folder with --out."
        ) from error
    files = zip(nodes, texts, strict=True)
    return Written(url_of(nodes), {node.address: os.fspath(file) for node, file in files})


def _write_all(out: Path, texts: Mapping[Path, str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        if file.exists() and file.read_text("utf-8") != text:
            message = f"{file} exists and says something else."
            raise ConfigurationError(
                "Configuration", message, hint="Move it away, or give another folder with --out."
            )
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")


def written_text(written: Written) -> str:
    """Say what to do with the files."""
    rows = [
        f"  on {address}: nats-server -c {Path(file).name}    ({file})"
        for address, file in written.files.items()
    ]
    return "\n".join(
        [
            "Copy each file to its machine and start the node there:",
            *rows,
            "",
            "Then, on the machines that run Partita:",
            f'  partita.open_state("{written.url}", partition="…")',
            "",
            "Every node syncs before it acknowledges; Partita checks it at each start, on the",
            "monitoring port (client port + 4000). Nobody else should reach these ports: see the",
            "end of the files for users and TLS.",
        ]
    )


def _run_cluster(cluster: LocalCluster, *, as_json: bool) -> int:
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopping.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        cluster.start()
        started = started_of(cluster)
        print(_as_line(started) if as_json else started_text(started), flush=True)
        return _watch(cluster, stopping)
    finally:
        cluster.stop()
        for number, previous in before.items():
            signal.signal(number, previous)


def _watch(cluster: LocalCluster, stopping: threading.Event) -> int:
    """Wait for a signal; say when a node ends, and end when none is left."""
    running = set(range(len(cluster.nodes)))
    while not stopping.wait(LOOK_SECONDS):
        for index in sorted(n for n in running if cluster.pid(n) is None):
            running.discard(index)
            name, log = cluster.nodes[index].name, cluster.log_file(index)
            print(f"partita: {name} has ended; see {log}", file=sys.stderr, flush=True)
        if not running:
            return 1
    return 0


def started_of(cluster: LocalCluster) -> Started:
    """Collect what is to be announced."""
    nodes = [_started_node(cluster, index, node) for index, node in enumerate(cluster.nodes)]
    return Started(cluster.url, os.fspath(cluster.folder), nodes)


def _started_node(cluster: LocalCluster, index: int, node: Node) -> StartedNode:
    return StartedNode(
        name=node.name,
        url=f"nats://{node.address}",
        monitor=f"http://{node.monitor}",
        pid=cluster.pid(index) or 0,
        log=os.fspath(cluster.log_file(index)),
    )


def started_text(started: Started) -> str:
    """What a person needs next: what to pass, who runs, how to end it."""
    rows = [
        f"  {node.name}  {node.url}  monitor {node.monitor}  pid {node.pid}"
        for node in started.nodes
    ]
    return "\n".join(
        [
            f"A NATS cluster of {len(started.nodes)} nodes runs, for development on this machine.",
            *rows,
            f"  folder {started.path} (streams, configuration and log of each node)",
            "",
            f'  async with partita.open_state("{started.url}", partition="demo") as state: ...',
            "",
            f"  kill -9 {started.nodes[0].pid} takes a node away. Ctrl-C stops all.",
        ]
    )


def _as_line(facts: Started | Written) -> str:
    return msgspec.json.encode(facts).decode()


def _port(raw: object) -> int:
    text = str(raw)
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            "Configuration", f"{text!r} is not a port.", hint="Give a number, such as 4222."
        )
    return int(text)
