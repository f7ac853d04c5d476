"""A whole fleet on this machine: servers of PostgreSQL and front ends, in one folder.

    catalog, shard-1, …    the folder of each PostgreSQL server
    blobs                  blobs above 64 KiB
    front-end-1.log, …     what each front end prints on standard error
    fleet.json             the ports, which are used again if they are free

Ports are chosen below those that systems give to connections: a later start finds them free.

Every child ends with this process. One that ends earlier is restarted, at the same ports if they
are free; the catalog then gets the address of a shard that has moved to another port.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from partita.cli.kit.local_database import BLOBS_FOLDER
from partita.errors import ConfigurationError, PartitaError, UnavailableError
from partita.local_postgres import CLUSTER_FOLDER, LocalPostgres, is_free
from partita.processes import Restarts, end_with_parent, send_signal, wait_or_kill
from partita.scaleout.catalog.addresses import set_addresses
from partita.scaleout.control.control import Control
from partita.scaleout.schema.install import install
from partita.storage.folder import FolderLock, make_folder
from partita.ticks import Clock

CATALOG = "catalog"
"""The name of shard 0: the database of the catalog."""
READY_SECONDS = 60.0
"""How long a front end may take until it serves."""
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
PORTS = range(20_000, 30_000)
PORTS_FILE = "fleet.json"

_ACCOUNTS = "PARTITA_ACCOUNT"
"""The variables of this process that front ends get: those of accounts and their keys."""

Tell = Callable[[str], None]


class ServeStart(msgspec.Struct, frozen=True):
    """What a front end printed at its start."""

    connection_string: str
    table_endpoint: str
    queue_endpoint: str
    blob_endpoint: str

    @property
    def ports(self) -> list[int]:
        """The ports of tables, queues and blobs."""
        urls = (self.table_endpoint, self.queue_endpoint, self.blob_endpoint)
        return [int(url.split("/")[2].rpartition(":")[2]) for url in urls]


class FrontEndProcess:
    """One `partita serve` process."""

    def __init__(self, folder: Path, name: str, ports: list[int], clock: Clock) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        self.served: ServeStart | None = None
        self._answer = folder / f"{name}.json"
        self._ports = ports
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._start_again: Callable[[], None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self, catalog: str, blobs: Path) -> None:
        """Start the process; `wait` returns when it serves."""
        self._start_on([port if is_free(port) else 0 for port in self._ports], catalog, blobs)
        # Another program may take a port just before the process does.
        self._start_again = partial(self._start_on, [0, 0, 0], catalog, blobs)

    def _start_on(self, ports: list[int], catalog: str, blobs: Path) -> None:
        named = zip(("table", "queue", "blob"), ports, strict=True)
        flags = [f"--store={catalog}", f"--blob-store={blobs.as_uri()}"]
        flags += [f"--{service}-port={port}" for service, port in named]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PARTITA_") or name.startswith(_ACCOUNTS)
        }
        with self._answer.open("wb") as answer, self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "partita.cli.main", "serve", "--json", *flags],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=log,
                cwd=self.log_file.parent,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one libc call
            )

    def wait(self, is_stopping: Callable[[], bool]) -> None:
        """Return when the front end serves; raise if it ended or takes too long."""
        deadline = self._clock.monotonic() + READY_SECONDS
        while not is_stopping():
            if (line := self._answer.read_bytes()).endswith(b"\n"):
                self.served = msgspec.json.decode(line, type=ServeStart)
                self._ports = self.served.ports
                return
            if self.pid is None and self._start_again is not None:
                self._start_again()
                self._start_again = None
            elif self.pid is None or self._clock.monotonic() > deadline:
                raise UnavailableError(
                    "FrontEndNotStarted",
                    f"{self.name} does not serve.",
                    facts={"last": _last_line(self.log_file)},
                    hint=f"See {self.log_file}.",
                )
            time.sleep(LOOK_SECONDS)

    def begin_stop(self) -> None:
        if self._process is not None:
            send_signal(self._process, signal.SIGTERM)

    def end_stop(self) -> None:
        if self._process is not None:
            wait_or_kill(self._process, STOP_SECONDS)
        self._answer.unlink(missing_ok=True)


class LocalFleet:
    """The processes of a fleet, and the folder that they have alone.

    A folder that has more shards than `shards` keeps them: they have entities.
    """

    def __init__(
        self, folder: Path, *, shards: int, front_ends: int, clock: Clock, tell: Tell
    ) -> None:
        self.folder = folder.absolute()
        self._clock = clock
        self._tell = tell
        try:
            make_folder(self.folder)
            self._lock = FolderLock(self.folder, "fleet")
        except OSError as error:
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {folder} cannot be used: {error.strerror}.",
                hint="Check --path and its permissions.",
            ) from error
        ports = _read_ports(self.folder / PORTS_FILE)
        taken = {port for known in ports.values() for port in known}
        names = [CATALOG, *_shard_names(self.folder, shards)]
        fronts = [f"front-end-{number + 1}" for number in range(front_ends)]
        for name, count in [(name, 1) for name in names] + [(name, 3) for name in fronts]:
            if len(ports.get(name, ())) != count:
                ports[name] = _new_ports(count, clock, taken)
        self.databases = {
            name: LocalPostgres(self.folder / name, port=ports[name][0], settings=_SETTINGS)
            for name in names
        }
        """The catalog, then the shards, by name."""
        self.front_ends = [
            FrontEndProcess(self.folder, name, ports[name], clock) for name in fronts
        ]
        self._restarts: dict[str, Restarts] = {}
        self._is_stopping: Callable[[], bool] = lambda: False
        self._ports = ports

    @property
    def catalog(self) -> str:
        """The URL of the catalog."""
        return self.databases[CATALOG].url()

    @property
    def blobs(self) -> Path:
        return self.folder / BLOBS_FOLDER

    @property
    def shards(self) -> Iterator[tuple[str, LocalPostgres]]:
        """The names and servers of the shards that have tables."""
        return ((name, each) for name, each in self.databases.items() if name != CATALOG)

    def start(self, is_stopping: Callable[[], bool]) -> None:
        """Start everything; return when all front ends serve, or when it is stopping.

        Servers are started in this thread, not in another one: they end with the thread that
        started them.
        """
        self._is_stopping = is_stopping
        make_folder(self.blobs)
        for name, server in self.databases.items():
            if is_stopping():
                return
            self._tell(f"starting {name}")
            server.start()
        self._tell("connecting the catalog and the shards")
        asyncio.run(self._connect())
        for front_end in self.front_ends:
            front_end.start(self.catalog, self.blobs)
        for front_end in self.front_ends:
            self._tell(f"waiting for {front_end.name}")
            front_end.wait(is_stopping)
        now = self._clock.monotonic()
        names = [*self.databases, *(each.name for each in self.front_ends)]
        self._restarts = {name: Restarts(now) for name in names}
        self._write_ports()

    def look(self) -> str:
        """Restart children that ended; return the name of one that keeps ending, or nothing."""
        for name, server in self.databases.items():
            restart = partial(self._restart_server, server)
            if server.pid is None and not self._revive(name, None, restart, server.log_file):
                return name
        for each in self.front_ends:
            restart = partial(self._restart_front_end, each)
            status = each.exit_status
            if each.pid is None and not self._revive(each.name, status, restart, each.log_file):
                return each.name
        return ""

    def stop(self) -> None:
        """Stop the front ends, then the servers."""
        for each in self.front_ends:
            each.begin_stop()
        for each in self.front_ends:
            each.end_stop()
        # At the same time: each writes a checkpoint.
        with ThreadPoolExecutor(len(self.databases)) as threads:
            for stopping in [threads.submit(each.stop) for each in self.databases.values()]:
                stopping.result()
        self._lock.release()

    async def _connect(self) -> None:
        """Install or upgrade the schemas, and tell the catalog where each shard is."""
        await install(self.catalog)
        await set_addresses(self.catalog, {name: server.url() for name, server in self.shards})
        control = await Control.open(self.catalog)
        try:
            await control.upgrade()
            known = {each.name: each for each in await control.shards()}
            for name, server in self.shards:
                if name not in known:
                    await control.add_shard(server.url(), name=name)
            if known[CATALOG].state != "draining":
                await control.drain(CATALOG)
        finally:
            await control.close()

    def _revive(
        self, name: str, status: int | None, restart: Callable[[], None], log_file: Path
    ) -> bool:
        """Restart a child once its pause is over; return whether it is not given up."""
        restarts, now = self._restarts[name], self._clock.monotonic()
        if restarts.due is None:
            self._note_end(name, restarts, status, log_file)
        elif now >= restarts.due:
            restarts.start(now)
            try:
                restart()
            except PartitaError as error:
                self._tell(f"{name} was not restarted: {error.message}")
            else:
                self._tell(f"{name} was restarted (restart {restarts.count})")
        return not restarts.is_given_up

    def _note_end(self, name: str, restarts: Restarts, status: int | None, log_file: Path) -> None:
        pause = restarts.end(self._clock.monotonic(), status)
        what = f"it is restarted in {pause:g} s" if pause is not None else "it is given up"
        ended = "has ended" if status is None else f"has ended with status {status}"
        self._tell(f"{name} {ended}; {what}; see {log_file}")

    def _restart_server(self, server: LocalPostgres) -> None:
        server.stop(immediately=True)
        server.start()
        asyncio.run(set_addresses(self.catalog, {name: each.url() for name, each in self.shards}))
        self._write_ports()

    def _restart_front_end(self, front_end: FrontEndProcess) -> None:
        front_end.start(self.catalog, self.blobs)
        front_end.wait(self._is_stopping)

    def _write_ports(self) -> None:
        # Also those of front ends that this start does not have: a later one may.
        ports = self._ports | {name: [server.port] for name, server in self.databases.items()}
        ports |= {each.name: each.served.ports for each in self.front_ends if each.served}
        unfinished = self.folder / f"{PORTS_FILE}.new"
        unfinished.write_bytes(msgspec.json.encode(ports))
        unfinished.replace(self.folder / PORTS_FILE)


_SETTINGS = {"log_min_messages": "warning", "max_connections": "200"}
"""Of each server: every front end has several connections to each shard."""


def _shard_names(folder: Path, shards: int) -> list[str]:
    """Return the names of the shards of a folder: those that it has, and up to `shards` more."""
    found = [each.parent.name for each in folder.glob(f"shard-*/{CLUSTER_FOLDER}")]
    wanted = {f"shard-{number + 1}" for number in range(shards)}
    return sorted(wanted.union(found), key=lambda name: (len(name), name))


def _new_ports(count: int, clock: Clock, taken: set[int]) -> list[int]:
    """Return free ports, which are added to `taken`."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS[int.from_bytes(clock.random_bytes(4)) % len(PORTS)]
        if port not in taken and is_free(port):
            taken.add(port)
            found.append(port)
    return found


def _read_ports(file: Path) -> dict[str, list[int]]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[int]])
    return {}


def _last_line(file: Path) -> str:
    lines = file.read_text("utf-8", "replace").splitlines()
    return lines[-1] if lines else ""
