"""Typed entities with an outbox, beside workers of an older and of a newer program.

Writers, workers and the server are processes that are killed and stopped; the ledger of what the
writers were told is here. At the end the newer program does all waiting work, and then the rows of
every index must be those of the entities, and each entity must be in a state that was told last or
asked for later.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.data.tables import TableServiceClient

from chaos import guest_writer, guests_newer, guests_older, heedless_worker
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario
from chaos.services import FAULTS as SERVER_FAULTS
from chaos.services import SERVE, SERVICES, Fault, World
from crash.live import ACCOUNT
from partita.patterns.sync import connect
from partita.service.accounts.account import DEVELOPMENT_KEY
from support.proxy import Proxies

WRITERS = 3
NUMBERS_PER_WRITER = 100_000
FLAGS = ("--visibility", "3", "--poll", "0.2", "--sweep-every", "3", "--sweep-age", "3")
PATIENT = ("--deliveries", "1000", "--json", "--quiet")
"""Kills count as deliveries: nothing here is poison."""
BROKEN_SECONDS = 20.0
"""How long waiting work may take in the sibling, where some of it was ended too early."""

State = tuple[str, str, str] | None
"""Hotel, mail and code of a guest; None: it does not exist."""


class GuestLedger:
    """The states that each guest may have, and who must be greeted."""

    def __init__(self) -> None:
        self.allowed: dict[int, list[State]] = {}
        self.greeted: set[int] = set()
        self.greetings_asked: set[int] = set()
        self.acknowledged = 0

    def take(self, word: str, number: int, state: Sequence[str] | None, is_greeted: bool) -> None:
        if is_greeted:
            self.greetings_asked.add(number)
            if word == "told":
                self.greeted.add(number)
        found: State = None if state is None else (state[0], state[1], state[2])
        if word == "told":
            self.allowed[number] = [found]
            self.acknowledged += 1
        else:
            self.allowed.setdefault(number, [None]).append(found)

    def check(self, rows: "Rows") -> list[str]:
        """Return what is wrong with the stored rows."""
        wrong = [f"guest {n} is stored twice: {s}" for n, s in rows.guests.items() if len(s) > 1]
        for number, states in self.allowed.items():
            found = next(iter(rows.guests.get(number, [])), None)
            if found not in states:
                wrong.append(f"guest {number} is {found}, allowed are {states}")
        wrong += [f"guest {number} was never saved" for number in rows.guests.keys() - self.allowed]
        wrong += [f"guest {number} was not greeted" for number in self.greeted - rows.greetings]
        wrong += rows.differences()
        return wrong


@dataclass
class Rows:
    """All stored rows, read past our own code."""

    guests: dict[int, list[State]] = field(default_factory=dict)
    indexes: set[tuple[str, str]] = field(default_factory=set)
    """Keys of index rows, in the partitions of the guests and in a table of their own."""
    greetings: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, connection: str) -> "Rows":
        rows = cls()
        with TableServiceClient.from_connection_string(connection) as service:
            for table in ("guests", "mails", "greetings"):
                for row in service.get_table_client(table).list_entities():
                    rows.take(table, row)
        return rows

    def take(self, table: str, row: Mapping[str, Any]) -> None:
        partition, key = row["PartitionKey"], row["RowKey"]
        if key.startswith("~"):
            return  # states of indexes, and work that waits
        if table == "greetings":
            self.greetings.add(int(key))
        elif table == "guests" and key.startswith("g_"):
            state = (partition, row["Mail"], row["Code"])
            self.guests.setdefault(int(key[2:]), []).append(state)
        else:
            self.indexes.add((partition, key))

    def differences(self) -> list[str]:
        """Compare the rows of the indexes with those that the guests demand."""
        wanted = set()
        for number, states in self.guests.items():
            for hotel, mail, code in filter(None, states):
                wanted |= {
                    (hotel, f"code_{code}_{number:08d}"),
                    (hotel, f"mail_{mail}"),
                    (mail, f"{hotel}_{number:08d}"),
                }
        missing = [f"index row {key} is missing" for key in sorted(wanted - self.indexes)]
        return missing + [f"index row {key} is an orphan" for key in sorted(self.indexes - wanted)]


class Hotel:
    """The server behind proxies, the writers and the workers."""

    def __init__(self, world: World, ledger: GuestLedger, chance: random.Random) -> None:
        self.world = world
        self.ledger = ledger
        self.chance = chance
        ports = {service: world.proxies[service].port for service in SERVICES}
        endpoints = ";".join(
            f"{service.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT}"
            for service, port in ports.items()
        )
        self.connection = f"AccountName={ACCOUNT};AccountKey={DEVELOPMENT_KEY};{endpoints}"
        self._first = 0
        self.writers: list[subprocess.Popen[str]] = []
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def create(self) -> None:
        with connect(self.connection) as db:
            db.table(guests_newer.Guest)
            db.table(guests_newer.Greeting)
            db.create_tables()

    def start_writer(self) -> None:
        self._first += NUMBERS_PER_WRITER
        seed = self.chance.randrange(2**32)
        command = [guest_writer.__file__, self.connection, str(self._first), str(seed)]
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.writers.append(process)
        self._threads.append(threading.Thread(target=self._listen, args=(process,), daemon=True))
        self._threads[-1].start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        """Take a writer's lines into the ledger; half a line was printed by a killed one."""
        assert process.stdout is not None
        asked = 0.0
        with process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return
                word, number, state, is_greeted = json.loads(line)
                self.ledger.take(word, number, state, is_greeted)
                if word == "asked":
                    asked = time.monotonic()
                else:
                    for service in SERVICES:
                        self.world.told(service, asked)

    def start_worker(self, module: str, program: Sequence[str] = SERVE) -> None:
        self.workers[module] = subprocess.Popen(
            [sys.executable, *program, "patterns", "worker", module, *FLAGS, *PATIENT],
            env={**os.environ, "PARTITA_CONNECT": self.connection},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_writer(self) -> None:
        index = self.chance.randrange(len(self.writers))
        process = self.writers.pop(index)
        process.kill()
        process.wait()
        self.start_writer()

    def close(self) -> None:
        processes: list[subprocess.Popen[Any]] = [*self.writers, *self.workers.values()]
        for process in processes:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()
        self.writers, self._threads = [], []


OLDER, NEWER = guests_older.__name__, guests_newer.__name__


def faults_of(hotel: Hotel, older: Sequence[str]) -> dict[str, Fault]:
    """Return the faults: of the server and its network, and of the processes beside it."""

    def kill_writer(world: World, chance: random.Random) -> float:
        hotel.kill_writer()
        return time.monotonic()

    def kill_worker(world: World, chance: random.Random) -> float:
        module = chance.choice((OLDER, NEWER))
        hotel.workers[module].kill()
        hotel.workers[module].wait()
        hotel.start_worker(module, older if module == OLDER else SERVE)
        return time.monotonic()

    def freeze_worker(world: World, chance: random.Random) -> float:
        """Stop a worker until its claims have ended."""
        process = hotel.workers[chance.choice((OLDER, NEWER))]
        process.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 4.5))
        process.send_signal(signal.SIGCONT)
        return time.monotonic()

    names = ("kill", "SIGSTOP", "reset", "blackhole of answers")
    beside = {
        "kill of a writer": kill_writer,
        "kill of a worker": kill_worker,
        "SIGSTOP of a worker": freeze_worker,
    }
    return beside | {f"{name} (server)": SERVER_FAULTS[name] for name in names}


@contextlib.contextmanager
def a_hotel(run: Run, older: Sequence[str]) -> Iterator[Hotel]:
    with Proxies() as proxies, contextlib.closing(World(run.folder, proxies, SERVE)) as world:
        hotel = Hotel(world, GuestLedger(), run.chance)
        with contextlib.closing(hotel):
            hotel.create()
            hotel.start_worker(NEWER)
            hotel.start_worker(OLDER, older)
            for _ in range(WRITERS):
                hotel.start_writer()
            yield hotel


def settle(hotel: Hotel, seconds: float) -> list[str]:
    """Let a worker of the newer program do all waiting work; return what is wrong after that."""
    hotel.close()
    hotel.start_worker(NEWER)
    deadline = time.monotonic() + seconds
    while wrong := hotel.ledger.check(Rows.read(hotel.connection)):
        if time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return wrong


def outbox(run: Run) -> Outcome:
    outcome = Outcome()
    older = (str(Path(heedless_worker.__file__)),) if run.is_broken else SERVE
    with a_hotel(run, older) as hotel:
        faults = faults_of(hotel, older)
        hotel.world.recovered(time.monotonic())
        for name in run.faults(list(faults)):
            time.sleep(run.chance.uniform(0.5, 2.0))
            seconds = hotel.world.recovered(faults[name](hotel.world, run.chance))
            outcome.faults[name] += 1
            if seconds is None:
                late = f"no answer {RECOVERY_SECONDS_MAX:.0f} s after {name}"
                outcome.violations.append(late)
                break
            outcome.recoveries.append(seconds)
        patience = BROKEN_SECONDS if run.is_broken else RECOVERY_SECONDS_MAX
        outcome.violations += settle(hotel, patience)
        outcome.acknowledged = hotel.ledger.acknowledged
    return outcome


SCENARIOS = [
    Scenario("outbox, workers of two ages", "an older worker ends entries it does not know", outbox)
]
