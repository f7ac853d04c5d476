"""Three front ends on one PostgreSQL, proxies between them, and clients with their ledgers."""

import contextlib
import getpass
import http.client
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from chaos.fleet.ledgers import Blobs, Counts, Groups, Ledger, Messages, Versions
from chaos.fleet.wire import ANSWER_SECONDS_MAX, Fate, HungError, Wire
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run
from crash.live import GoneError
from partita.errors import UnavailableError
from partita.local_postgres import HOST, LocalPostgres
from support.live import ANY_PORTS
from support.proxy import Proxies, Proxy

SERVE = ("-m", "partita.cli.main")
DATABASE, ROLE = "partita", "front_end"
FRONT_ENDS = 3
SERVICES = ("table", "queue", "blob")
START_SECONDS = 60.0
POLL_SECONDS = 0.05
SETTLE_SECONDS = 30.0
PAUSE_SECONDS = 0.1
"""Before a client tries again that was refused for lack of a database."""
GONE_SECONDS = 0.3
"""Before a client connects again."""
SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "32MB",
    "max_wal_size": "128MB",
    "restart_after_crash": "on",
    "wal_level": "replica",
}


class Postgres(LocalPostgres):
    """A server that is killed and started again."""

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    def kill(self) -> None:
        """Kill the server's first process; the others notice it and end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it again, as its supervisor does: until processes from before have ended."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.start()
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return

    def connect(self, database: str = DATABASE) -> "psycopg.Connection[Any]":
        return psycopg.connect(
            host=HOST,
            port=self.port,
            dbname=database,
            user=getpass.getuser(),
            autocommit=True,
            connect_timeout=10,
            application_name="chaos",
        )

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(statement.encode()).fetchall()


def install(server: Postgres) -> None:
    """Create the database of the fleet."""
    with server.connect("postgres") as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    command = [sys.executable, *SERVE, "fleet", "init", server.url(DATABASE), "--role", ROLE]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with server.connect() as connection:
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN").format(sql.Identifier(ROLE)))


class FrontEnd:
    """`partita serve` on the database, behind a proxy of its own; or a broken sibling of it."""

    def __init__(
        self,
        number: int,
        proxy: Proxy,
        blobs: Path,
        program: Sequence[str] = SERVE,
        flags: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.proxy = proxy
        self.ahead = 0.0
        """By how many seconds its clock is wrong."""
        self._blobs = blobs
        self.log = blobs.parent / f"front-end-{number}.log"
        self._program = program
        self.flags = flags
        self._ports: dict[str, int] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.frozen_at = 0.0
        """When it was last stopped or continued; by monotonic time."""
        self.is_frozen = False

    def start(self) -> None:
        blobs = ("--blob-store", self._blobs.absolute().as_uri())
        store = f"postgresql://{ROLE}@{self.proxy.address}/{DATABASE}"
        given = ["--store", store, *blobs, *ANY_PORTS, "--json", "--no-request-log", *self.flags]
        deadline = time.monotonic() + START_SECONDS
        while True:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, *self._program, "serve", *given],
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            assert self.process.stdout is not None
            if line := self.process.stdout.readline():
                break
            self.process.communicate()
            assert time.monotonic() < deadline, "the front end did not start"
        announced = json.loads(line)
        for service in SERVICES:
            endpoint = announced[f"{service}_endpoint"]
            self._ports[service] = int(endpoint.rpartition(":")[2].partition("/")[0])

    def connect(self, service: str) -> Wire:
        if service not in self._ports:
            raise GoneError
        return Wire(service, self._ports[service], self.ahead)

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._ports["table"], timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def freeze(self) -> None:
        assert self.process is not None
        self.is_frozen, self.frozen_at = True, time.monotonic()
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.is_frozen, self.frozen_at = False, time.monotonic()


class World:
    """What a scenario injects faults into."""

    def __init__(
        self, server: Postgres, front_ends: Sequence[FrontEnd], way: Sequence[Proxy], run: Run
    ) -> None:
        self.server = server
        self.front_ends = front_ends
        self._way = way
        """The proxies before the server, whose port changes."""
        self.chance = run.chance
        self.services: set[str] = set()
        """Those that the clients use."""
        self.is_over = threading.Event()
        self.books: Sequence[Ledger] = ()
        self.hung: list[str] = []
        self._began: dict[tuple[int, str], float] = {}
        self._is_told = threading.Condition()

    def use(self, server: Postgres) -> None:
        """Lead all connections to a server."""
        self.server = server
        for proxy in self._way:
            proxy.target = server.port

    @property
    def changed_at(self) -> float:
        """When the change was sent that was sent last of those acknowledged; monotonic time."""
        return max(book.changed_at for book in self.books)

    def told(self, front_end: FrontEnd, service: str, began: float) -> None:
        with self._is_told:
            self._began[front_end.number, service] = began
            self._is_told.notify_all()

    def recovered(self, since: float) -> float | None:
        """Wait until every front end that runs acknowledged an operation of each service later.

        Return after how long; None: not within the limit.
        """
        wanted = [
            (each.number, service)
            for each in self.front_ends
            if not each.is_frozen
            for service in self.services
        ]
        with self._is_told:
            is_back = self._is_told.wait_for(
                lambda: all(self._began.get(place, 0.0) > since for place in wanted),
                RECOVERY_SECONDS_MAX,
            )
        return time.monotonic() - since if is_back else None


class Client(threading.Thread):
    """One connection to one front end, and operations of one ledger."""

    def __init__(
        self, world: World, front_end: FrontEnd, number: int, ledger: Ledger, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._front_end = front_end
        self._number = number
        self._ledger = ledger
        self._chance = random.Random(seed)

    def run(self) -> None:
        while not self._world.is_over.is_set():
            try:
                with contextlib.closing(self._front_end.connect(self._ledger.service)) as wire:
                    self._work(wire)
            except HungError:
                # A front end that was stopped meanwhile cannot answer.
                end = self._front_end
                if not end.is_frozen and end.frozen_at < time.monotonic() - ANSWER_SECONDS_MAX:
                    self._world.hung.append(
                        f"{self._ledger.service} of front end {end.number} had no answer"
                    )
            except GoneError:
                time.sleep(GONE_SECONDS)

    def _work(self, wire: Wire) -> None:
        while not self._world.is_over.is_set():
            began = time.monotonic()
            fate = self._ledger.step(wire, self._number, self._chance)
            if fate is Fate.DONE:
                self._world.told(self._front_end, self._ledger.service, began)
            elif fate is not Fate.REFUSED:
                time.sleep(PAUSE_SECONDS)


def ledgers() -> list[Ledger]:
    """Return the ledgers of all clients: one client of each at each front end."""
    return [Counts(), Versions(), Groups(), Messages(), Blobs()]


@contextlib.contextmanager
def load(world: World, books: Sequence[Ledger], clients_each: int = 2) -> Iterator[None]:
    """Run the clients; at the end of the block they have stopped."""
    for ledger in books:
        with contextlib.closing(world.front_ends[0].connect(ledger.service)) as wire:
            assert ledger.prepare(wire), f"{ledger.service}: {ledger.answers}"
        ledger.acknowledged = 0
    world.books = books
    world.services = {ledger.service for ledger in books}
    numbers = itertools.count()
    clients = [
        Client(world, front_end, next(numbers), ledger, world.chance.randrange(2**32))
        for front_end in world.front_ends
        for ledger in books
        for _ in range(clients_each)
    ]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        world.is_over.set()
        for client in clients:
            client.join(2 * ANSWER_SECONDS_MAX)
            if client.is_alive():
                world.hung.append("a client did not end")


Fault = Callable[[World], float]
"""Injects a fault and ends it; returns the time of its end. A restart may come later."""


def inject(
    run: Run, world: World, faults: dict[str, Fault], books: Sequence[Ledger], outcome: Outcome
) -> None:
    """Inject faults one after the other; after each wait until all front ends answer."""
    for name in run.faults(list(faults)):
        if run.is_broken and any(book.wrong for book in books):
            return
        time.sleep(run.chance.uniform(0.3, 1.5))
        seconds = world.recovered(faults[name](world))
        outcome.faults[name] += 1
        if seconds is None:
            outcome.violations.append(f"no answer {RECOVERY_SECONDS_MAX:.0f} s after {name}")
            return
        outcome.recoveries.append(seconds)
        if not run.is_broken:
            print(f"{name}: {seconds:.2f} s", file=sys.stderr, flush=True)


def settle(world: World) -> None:
    """Wait until the database works on nothing that was sent before."""
    deadline = time.monotonic() + SETTLE_SECONDS
    busy = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND state <> 'idle' AND pid <> pg_backend_pid()"
    )
    while world.server.ask(busy)[0][0] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def check(run: Run, world: World, books: Sequence[Ledger], outcome: Outcome) -> None:
    """Compare every ledger with what each front end tells."""
    outcome.acknowledged += sum(book.acknowledged for book in books)
    outcome.violations += world.hung
    if run.is_broken and any(book.wrong for book in books):
        outcome.violations += [line for book in books for line in book.wrong]
        return
    settle(world)

    def compare(place: tuple[int, Ledger]) -> list[str]:
        number, book = place
        front_end = world.front_ends[number % len(world.front_ends)]
        with contextlib.closing(front_end.connect(book.service)) as wire:
            return book.check(wire)

    with ThreadPoolExecutor(len(books)) as pool:
        for wrong in pool.map(compare, enumerate(books)):
            outcome.violations += wrong
    if not run.is_broken:
        answers: Counter[str] = sum((book.answers for book in books), Counter())
        print(f"failures: {dict(answers)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def front_ends_on(
    server: Postgres,
    run: Run,
    programs: Sequence[Sequence[str]] = (SERVE,) * FRONT_ENDS,
    *,
    pooler: Callable[[int], contextlib.AbstractContextManager[int]] | None = None,
    flags: Sequence[str] = (),
) -> Iterator[World]:
    """Start a front end for each program; a pooler gets the port of the server, yields its own."""
    blobs = run.folder / "blobs"
    blobs.mkdir(exist_ok=True)
    with Proxies() as proxies, contextlib.ExitStack() as stack:
        port, way = server.port, []
        if pooler is not None:
            way = [proxies.to(port)]
            port = stack.enter_context(pooler(way[0].port))
        ends = [
            FrontEnd(number, proxies.to(port), blobs, program, flags)
            for number, program in enumerate(programs)
        ]
        for end in ends:
            stack.callback(end.kill)
            end.start()
        yield World(server, ends, way or [end.proxy for end in ends], run)


@contextlib.contextmanager
def a_database(
    run: Run, settings: dict[str, str] | None = None, folder: Path | None = None
) -> Iterator[Postgres]:
    """Start a server with the schema; stop it at the end."""
    run.folder.mkdir(exist_ok=True)
    place = folder or run.folder / "postgres"
    server = Postgres(place, settings=SETTINGS | (settings or {}))
    try:
        server.start()
        install(server)
        yield server
    finally:
        server.stop(immediately=True)
