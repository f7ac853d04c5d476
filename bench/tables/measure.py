"""One measured run: a workload on a server, by wrk or by the paging client.

Every run also says how much CPU the server, the load generator and everybody else took,
because on a small machine a neighbour spoils a figure more often than a change in the
code does.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from bench.tables import servers
from bench.tables.connection import Answer, BlockingConnection, BrokenExchangeError
from bench.tables.servers import Server
from bench.tables.workload import READS, Load, Requests, Versions, generate, write_presigned

# Requests a second to prepare for; a side that proves faster gets a larger file and a second try.
_RATE_GUESS = {
    "azurite": {"W2": 2000, "W3": 900, "W4": 120, "W8": 2000},
    "partita": {"W2": 8000, "W3": 8000, "W4": 500, "W8": 20_000},
}
_READ_REQUESTS = {"W1": 60_000, "W5": 10_000, "W6": 2_000}
OTHER_CORES_MAX = 0.25
_HEADROOM = 1.5
_TRIES = 3
_SCAN_SECONDS_MIN = 2.0


class RunError(Exception):
    """A run that must not be reported: errors in it, or its requests ran out."""


@dataclass(frozen=True)
class Run:
    """What one run showed; `rate` counts requests a second, for W7 entities a second."""

    rate: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    answered: int
    server_cpu_us: float
    store_cpu_us: float
    """The part of `server_cpu_us` that the processes of a database used."""
    server_cores: float
    client_cores: float
    other_cores: float

    @property
    def is_disturbed(self) -> bool:
        """Say whether others took so much of the machine that the figure proves nothing."""
        return self.other_cores > OTHER_CORES_MAX


@dataclass
class Side:
    """A server under test with what it holds."""

    server: Server
    load: Load
    rates: dict[str, float] = field(default_factory=dict)  # fastest so far, by workload
    drawn_from: int = 0  # the first new number in the latest file of requests

    @classmethod
    def of(cls, server: Server, entities: int) -> "Side":
        return cls(server, Load(entities, Versions(next_new=entities)))

    def requests_for(self, workload: str, seconds: float) -> int:
        if workload in READS:
            return _READ_REQUESTS[workload]
        guess = _RATE_GUESS.get(self.server.name, _RATE_GUESS["partita"])[workload]
        rate = max(self.rates.get(workload, 0.0), guess)
        return int(rate * seconds * _HEADROOM) + 200


class Usage(NamedTuple):
    """CPU time over a run."""

    elapsed: float
    server: float
    """Seconds of the server, with its database."""
    store: float
    """Those of the database alone."""
    client: float
    machine: float

    @property
    def server_cores(self) -> float:
        return self.server / self.elapsed

    @property
    def client_cores(self) -> float:
        return self.client / self.elapsed

    @property
    def other_cores(self) -> float:
        return max(0.0, self.machine - self.server - self.client) / self.elapsed


class CpuMeter:
    """CPU time of servers, of our own process with its children, and of the machine, over a run."""

    def __init__(self, *measured: Server) -> None:
        self._measured = measured
        self._before = self._read()

    def _read(self) -> Usage:
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Usage(
            time.perf_counter(),
            sum(server.cpu_seconds() for server in self._measured),
            sum(server.store_cpu_seconds() for server in self._measured),
            own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
            servers.machine_cpu_seconds(),
        )

    def read(self) -> Usage:
        return Usage(*(now - then for now, then in zip(self._read(), self._before, strict=True)))


def measure(side: Side, workload: str, clients: int, seconds: float) -> Run:
    """Run one workload; after writes wait until the server is idle, so that nobody else pays."""
    if workload == "W7":
        return scan_all(side)
    for _ in range(_TRIES):
        with presigned(side, workload, seconds) as path:
            meter = CpuMeter(side.server)
            found = run_wrk(side.server.port, path, clients, seconds)
            run = _run_of(found, meter)
        if workload not in READS:
            side.server.settle()
        side.rates[workload] = max(run.rate, side.rates.get(workload, 0.0))
        if found["wrapped"] == 0 or workload in READS:
            _demand_clean(side, workload, found)
            return run
        side.rates[workload] *= 2
    message = f"{workload} on {side.server.name}: requests ran out {_TRIES} times"
    raise RunError(message)


@contextmanager
def presigned(side: Side, workload: str, seconds: float) -> Iterator[Path]:
    """Write the signed requests of one run to memory, not to the disk the servers sync to."""
    memory = Path("/dev/shm")
    folder = memory if os.access(memory, os.W_OK) else None
    requests, count = Requests(side.server.port), side.requests_for(workload, seconds)
    side.drawn_from = side.load.versions.next_new
    with tempfile.NamedTemporaryFile(dir=folder, prefix="partita-bench-") as file:
        path = Path(file.name)
        write_presigned(path, generate(workload, requests, side.load, count, random.Random()))
        yield path


def run_wrk(port: int, presigned_path: Path, clients: int, seconds: float) -> dict[str, int]:
    script = Path(__file__).with_name("presigned.lua")
    words = [servers.wrk(), "--threads", "1", "--connections", str(clients)]
    words += ["--duration", f"{max(1, round(seconds))}s", "--timeout", "60s", "--latency"]
    words += ["--script", str(script), f"http://127.0.0.1:{port}/"]
    environment = os.environ | {"PRESIGNED": str(presigned_path)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if ended.returncode != 0 or not lines:
        message = f"wrk failed: {ended.stdout[-500:]} {ended.stderr[-500:]}"
        raise RunError(message)
    found: dict[str, int] = json.loads(lines[0].removeprefix("RESULT "))
    return found


def _run_of(found: dict[str, int], meter: CpuMeter) -> Run:
    usage, answered = meter.read(), found["requests"]
    return Run(
        rate=answered / (found["duration_us"] / 1e6),
        p50_ms=found["p50_us"] / 1000,
        p99_ms=found["p99_us"] / 1000,
        max_ms=found["max_us"] / 1000,
        answered=answered,
        server_cpu_us=usage.server * 1e6 / max(1, answered),
        store_cpu_us=usage.store * 1e6 / max(1, answered),
        server_cores=usage.server_cores,
        client_cores=usage.client_cores,
        other_cores=usage.other_cores,
    )


def _demand_clean(side: Side, workload: str, found: dict[str, int]) -> None:
    troubles = {name: found[name] for name in ("bad_status", "broken", "timeouts") if found[name]}
    if troubles or found["requests"] == 0:
        message = f"{workload} on {side.server.name}: {troubles or 'no answer at all'}"
        raise RunError(message)


def scan_all(side: Side) -> Run:
    """W7: page through the whole table, again and again until the time is worth a figure.

    The rate is entities over the time spent waiting for pages; counting them is ours.
    """
    meter = CpuMeter(side.server)
    pages: list[float] = []
    entities = 0
    with BlockingConnection(side.server.port) as connection:
        while sum(pages) < _SCAN_SECONDS_MIN:
            found = scan_once(side.server.port, connection, pages)
            if found != side.load.entities:
                message = f"W7 on {side.server.name}: {found} of {side.load.entities} entities"
                raise RunError(message)
            entities += found
    usage = meter.read()
    cuts = statistics.quantiles(pages, n=100, method="inclusive") if len(pages) > 1 else pages * 99
    return Run(
        rate=entities / sum(pages),
        p50_ms=cuts[49] * 1000,
        p99_ms=cuts[98] * 1000,
        max_ms=max(pages) * 1000,
        answered=entities,
        server_cpu_us=usage.server * 1e6 / max(1, entities),
        store_cpu_us=usage.store * 1e6 / max(1, entities),
        server_cores=usage.server_cores,
        client_cores=usage.client_cores,
        other_cores=usage.other_cores,
    )


def scan_once(
    port: int, connection: BlockingConnection, pages: list[float], filter_text: str = ""
) -> int:
    """Follow the continuation to the end, add the time of each page, return the entities seen."""
    requests, continuation, entities = Requests(port), "", 0
    while True:
        request = requests.query(filter_text, continuation)
        started = time.perf_counter()
        answer = connection.exchange(request)
        pages.append(time.perf_counter() - started)
        if answer.status != 200:
            message = f"page: {answer.status} {answer.body[:300]!r}"
            raise BrokenExchangeError(message)
        entities += answer.body.count(b'"RowKey":"')
        continuation = next_page(answer)
        if not continuation:
            return entities


def next_page(answer: Answer) -> str:
    """Return the query options that ask for the next page, or an empty string at the end."""
    names = ("NextPartitionKey", "NextRowKey")
    values = {name: answer.header(f"x-ms-continuation-{name}") for name in names}
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in values.items() if value)


def median_run(runs: list[Run]) -> Run:
    """Return the run with the median rate (the lower of two middles), whole and unmixed."""
    return sorted(runs, key=lambda run: run.rate)[(len(runs) - 1) // 2]
