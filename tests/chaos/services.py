"""The server with many connections over tables, queues and blobs together.

The clients and their ledgers live in this process and reach the server through proxies. A client
whose connection broke reads its ledger again if the server is another process: then no request of
its own is under way. Otherwise such a request may still be executed; the client then goes on
under new names, and the old ones are checked at the end.
"""

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chaos.blob_client import BlobLedger, BlobWireClient
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario
from crash import hasty_server
from crash.live import GoneError, Ledger, WireClient
from crash.queue_live import QueueLedger, QueueWireClient
from support.live import ANY_PORTS
from support.proxy import Direction, Proxies, Proxy

SERVE = ("-m", "partita.cli.main")
HASTY = (str(Path(hasty_server.__file__)),)
SERVICES = ("blob", "queue", "table")
CLIENTS = {"table": 100, "queue": 50, "blob": 50}
CHECKERS = 8
NAMES_PER_CLIENT = 1_000
PATIENCE_SECONDS = 60


class ServerProcess:
    """`partita serve` on a folder, or a broken sibling of it."""

    def __init__(
        self, folder: Path, program: Sequence[str] = SERVE, prefix: Sequence[str] = ()
    ) -> None:
        flags = ["--path", str(folder), *ANY_PORTS, "--json", "--no-request-log"]
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *program, "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server ended before it served"
        self.announced: dict[str, Any] = json.loads(line)

    def port(self, service: str) -> int:
        return int(self.announced[f"{service}_endpoint"].rpartition(":")[2].partition("/")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_SECONDS)


class World:
    """A server that is killed and started again, behind proxies with ports that stay."""

    def __init__(self, folder: Path, proxies: Proxies, program: Sequence[str]) -> None:
        self.folder = folder
        self._program = program
        self.server = ServerProcess(folder, program)
        self.proxies: dict[str, Proxy] = {
            service: proxies.to(self.server.port(service)) for service in SERVICES
        }
        self.lives = 1
        """Processes that have served; the number changes while none does."""
        self.is_over = threading.Event()
        self.may_refuse = False
        """Whether refused writes are expected: the disk fails."""
        self.is_held = threading.Event()
        """Set: clients begin no operation."""
        self.held: set[Client] = set()
        self.clients = sum(CLIENTS.values())
        self._began: dict[str, float] = dict.fromkeys(SERVICES, 0.0)
        self._is_told = threading.Condition()

    def kill(self) -> None:
        self.server.kill()
        self.lives += 1

    def restart(self, prefix: Sequence[str] = ()) -> None:
        self.server = ServerProcess(self.folder, self._program, prefix)
        for service, proxy in self.proxies.items():
            proxy.target = self.server.port(service)

    def told(self, service: str, began: float) -> None:
        """Record that an operation which began at a time was acknowledged."""
        with self._is_told:
            self._began[service] = max(self._began[service], began)
            self._is_told.notify_all()

    def recovered(self, since: float) -> float | None:
        """Wait until each service acknowledged an operation that began later; return for how long.

        None: not within the limit.
        """
        with self._is_told:
            is_back = self._is_told.wait_for(
                lambda: all(began > since for began in self._began.values()), RECOVERY_SECONDS_MAX
            )
        return time.monotonic() - since if is_back else None

    def close(self) -> None:
        self.is_over.set()
        if self.server.process.poll() is None:
            self.server.kill()


class Client(threading.Thread, ABC):
    """One connection that works until the world is over, and connects again when it breaks."""

    service: str

    def __init__(self, world: World, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.number = number
        self.seed = seed
        self.wrong: list[str] = []
        self._life = 0

    def run(self) -> None:
        while not self.world.is_over.is_set():
            life = self.world.lives
            try:
                self._connected(life)
            except GoneError:
                time.sleep(0.05)
            except AssertionError as error:
                if not self.world.may_refuse:
                    self.wrong.append(f"{self.service} client {self.number} was refused: {error}")
                    return
                time.sleep(0.2)

    def _connected(self, life: int) -> None:
        client = self.connect(self.world.proxies[self.service].port)
        try:
            if life != self._life:
                self.resume(client)
            else:
                self.number += NAMES_PER_CLIENT
                self.renew(client)
            self._life = life
            while not self.world.is_over.is_set():
                began = time.monotonic()
                self.step(client)
                self.world.told(self.service, began)
                if self.world.is_held.is_set():
                    self._hold()
        finally:
            client.close()

    def _hold(self) -> None:
        self.world.held.add(self)
        while self.world.is_held.is_set() and not self.world.is_over.is_set():
            time.sleep(0.05)
        self.world.held.discard(self)

    @property
    @abstractmethod
    def acknowledged(self) -> int: ...

    @abstractmethod
    def connect(self, port: int) -> Any: ...

    @abstractmethod
    def resume(self, client: Any) -> None:
        """Check the ledger against a new process."""

    @abstractmethod
    def renew(self, client: Any) -> None:
        """Go on under new names."""

    @abstractmethod
    def step(self, client: Any) -> None:
        """Do one operation."""

    @abstractmethod
    def check(self, port: int) -> list[str]:
        """Check everything at the end."""


class TableClient(Client):
    service = "table"

    def __init__(self, world: World, number: int, seed: int) -> None:
        super().__init__(world, number, seed)
        self.ledger = Ledger()

    @property
    def acknowledged(self) -> int:
        return self.ledger.acknowledged

    def connect(self, port: int) -> WireClient:
        return WireClient(port)

    def resume(self, client: WireClient) -> None:
        client.create_table()
        self.wrong += self.ledger.check(client)

    def renew(self, client: WireClient) -> None:
        pass

    def step(self, client: WireClient) -> None:
        assert self.ledger.work(client, self.number), "a write"

    def check(self, port: int) -> list[str]:
        with contextlib.closing(WireClient(port)) as client:
            return self.wrong + self.ledger.check(client)


class QueueClient(Client):
    service = "queue"

    def __init__(self, world: World, number: int, seed: int) -> None:
        super().__init__(world, number, seed)
        self.ledgers: dict[str, QueueLedger] = {}

    @property
    def _queue(self) -> str:
        return f"work-{self.number}"

    @property
    def acknowledged(self) -> int:
        return sum(ledger.acknowledged for ledger in self.ledgers.values())

    def connect(self, port: int) -> QueueWireClient:
        return QueueWireClient(port, self._queue)

    def resume(self, client: QueueWireClient) -> None:
        client.create()
        self.ledgers.setdefault(self._queue, QueueLedger(self.seed)).settle(client)

    def renew(self, client: QueueWireClient) -> None:
        """Leave: the next connection is to the new queue, as to a new process."""
        self._life = 0
        raise GoneError

    def step(self, client: QueueWireClient) -> None:
        self.ledgers[self._queue].step(client)

    def check(self, port: int) -> list[str]:
        wrong = list(self.wrong)
        for queue, ledger in self.ledgers.items():
            with contextlib.closing(QueueWireClient(port, queue)) as client:
                ledger.settle(client)
                wrong += [f"{queue}: {line}" for line in ledger.drain(client)]
        return wrong


class BlobClient(Client):
    service = "blob"

    def __init__(self, world: World, number: int, seed: int) -> None:
        super().__init__(world, number, seed)
        self.ledger = BlobLedger(seed)

    @property
    def acknowledged(self) -> int:
        return self.ledger.acknowledged

    def connect(self, port: int) -> BlobWireClient:
        return BlobWireClient(port)

    def resume(self, client: BlobWireClient) -> None:
        client.create_container()
        self.wrong += self.ledger.check(client)

    def renew(self, client: BlobWireClient) -> None:
        pass

    def step(self, client: BlobWireClient) -> None:
        self.ledger.step(client, f"b{self.number}")

    def check(self, port: int) -> list[str]:
        with contextlib.closing(BlobWireClient(port)) as client:
            return self.wrong + self.ledger.check(client)


KINDS: dict[str, type[Client]] = {"table": TableClient, "queue": QueueClient, "blob": BlobClient}


# --- faults ---------------------------------------------------------------------------------


def kill(world: World, chance: random.Random) -> float:
    world.kill()
    ended = time.monotonic()
    world.restart()
    return ended


def freeze(world: World, chance: random.Random) -> float:
    world.server.process.send_signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0.2, 2.5))
    world.server.process.send_signal(signal.SIGCONT)
    return time.monotonic()


def delay(world: World, chance: random.Random) -> float:
    for proxy in world.proxies.values():
        proxy.delay(chance.uniform(0.02, 0.3))
    time.sleep(chance.uniform(0.5, 2.0))
    return heal(world)


def reset(world: World, chance: random.Random) -> float:
    for proxy in world.proxies.values():
        proxy.drop()
    time.sleep(chance.uniform(0.1, 0.5))
    return heal(world)


def lose_requests(world: World, chance: random.Random) -> float:
    return blackhole(world, chance, Direction.REQUESTS)


def lose_answers(world: World, chance: random.Random) -> float:
    return blackhole(world, chance, Direction.ANSWERS)


def kill_unheard(world: World, chance: random.Random) -> float:
    """Kill the server while none of its answers arrive: what it committed is not known."""
    for proxy in world.proxies.values():
        proxy.blackhole(Direction.ANSWERS)
    time.sleep(chance.uniform(0.1, 0.5))
    world.kill()
    ended = heal(world)
    world.restart()
    return ended


def blackhole(world: World, chance: random.Random, direction: Direction) -> float:
    for proxy in world.proxies.values():
        proxy.blackhole(direction)
    time.sleep(chance.uniform(0.3, 2.0))
    return heal(world)


def heal(world: World) -> float:
    for proxy in world.proxies.values():
        proxy.heal()
    return time.monotonic()


Fault = Callable[[World, random.Random], float]
"""Inject a fault and end it; return the time of its end. The start of a new process comes later."""
FAULTS: dict[str, Fault] = {
    "kill": kill,
    "kill with lost answers": kill_unheard,
    "SIGSTOP": freeze,
    "delay": delay,
    "reset": reset,
    "blackhole of requests": lose_requests,
    "blackhole of answers": lose_answers,
}
KILLS: dict[str, Fault] = {"kill": kill}


@contextlib.contextmanager
def load(world: World, chance: random.Random) -> Iterator[list[Client]]:
    """Run the clients; at the end of the block they have stopped."""
    clients = [
        KINDS[service](world, number, chance.randrange(2**32))
        for service, count in CLIENTS.items()
        for number in range(count)
    ]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        world.is_over.set()
        for client in clients:
            client.join()


def inject(
    run: Run, world: World, faults: dict[str, Fault], outcome: Outcome, clients: list[Client]
) -> None:
    """Inject faults one after the other, and wait after each until all services answer."""
    for name in run.faults(list(faults)):
        if run.is_broken and any(client.wrong for client in clients):
            return
        time.sleep(run.chance.uniform(0.3, 1.5))
        seconds = world.recovered(faults[name](world, run.chance))
        outcome.faults[name] += 1
        if seconds is None:
            outcome.violations.append(f"no answer {RECOVERY_SECONDS_MAX:.0f} s after {name}")
            return
        outcome.recoveries.append(seconds)


def check(run: Run, world: World, clients: list[Client], outcome: Outcome) -> None:
    """Compare every ledger with the server; not if a broken sibling is caught already."""
    outcome.acknowledged += sum(client.acknowledged for client in clients)
    if run.is_broken and any(client.wrong for client in clients):
        outcome.violations += [line for client in clients for line in client.wrong]
        return
    with ThreadPoolExecutor(CHECKERS) as pool:
        for wrong in pool.map(lambda each: each.check(world.server.port(each.service)), clients):
            outcome.violations += wrong


def run_faults(
    run: Run, program: Sequence[str], faults: dict[str, Fault], *, folder: Path | None = None
) -> Outcome:
    outcome, place = Outcome(), folder or run.folder
    with Proxies() as proxies, contextlib.closing(World(place, proxies, program)) as world:
        with load(world, run.chance) as clients:
            inject(run, world, faults, outcome, clients)
        check(run, world, clients, outcome)
    return outcome


def services(run: Run) -> Outcome:
    if run.is_broken:
        return run_faults(run, HASTY, KILLS)
    return run_faults(run, SERVE, FAULTS)


SCENARIOS = [Scenario("services, 200 connections", "acknowledges before it commits", services)]
