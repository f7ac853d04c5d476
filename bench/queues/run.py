"""Measure queues beside Azurite, and alone as they grow to a million messages.

`python bench/queues/run.py` lets 16 clients put, get and delete a message of 512 bytes again and
again, in turns on both servers and on stores of several sizes, prints the ratio beside its target
and leaves JSON and a plot in bench/out. See bench/README.md.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.queues.workload import ACCOUNT, QUEUE, TEXT_BYTES, Requests, read_message
from bench.tables import report, servers
from bench.tables.connection import Answer, Connection
from bench.tables.measure import OTHER_CORES_MAX, CpuMeter, RunError
from bench.tables.servers import Server

from partita.clock import SystemClock
from partita.queues.engine import QueueEngine
from partita.queues.sqlite_store import SqliteQueueStore
from partita.storage.database import Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock

CLIENTS = 16
TARGET = 4.0
RATE_KEPT_MIN = 0.8
AZURITE_MESSAGES = 100
"""How many messages lie in both queues while they are compared."""
FILLERS = 500
_AZURITE_MAIN = servers.AZURITE_FOLDER / "node_modules/azurite/dist/src/queue/main.js"


@dataclass(frozen=True)
class Run:
    """What one run showed; a cycle is a put, a get and a delete."""

    cycles: float
    """Of all clients together, a second."""
    put_ms: float
    get_ms: float
    delete_ms: float
    p99_ms: float
    """Of all requests; the three before are medians."""
    server_cpu_us: float
    """Of one request."""
    server_cores: float
    client_cores: float
    other_cores: float

    @property
    def is_disturbed(self) -> bool:
        return self.other_cores > OTHER_CORES_MAX


@dataclass(frozen=True)
class Side:
    server: Server
    messages: int

    @property
    def name(self) -> str:
        return f"{self.server.name} {self.messages}"


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    sizes = [int(word) for word in options.sizes.split(",")]
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("queues"))
        sides = start_sides(sizes, work, stack, skip_azurite=options.skip_azurite)
        runs = run_rounds(sides, options.rounds, options.seconds)
    verdicts = judge(sides, runs)
    print_report(sides, runs, verdicts)
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "clients": CLIENTS,
        "text_bytes": TEXT_BYTES,
        "runs": runs,
        "verdicts": dict(verdicts),
    }
    draw(sides, runs, report.save("queues", document))
    return bool(options.demand) and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=f"{AZURITE_MESSAGES},10000,1000000")
    parser.add_argument("--seconds", type=float, default=8, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-azurite", action="store_true", help="ours alone, no ratio")
    return report.read_options(
        parser,
        "to 10,000, one round of 2 s",
        sizes=f"{AZURITE_MESSAGES},10000",
        seconds=2,
        rounds=1,
    )


def start_sides(
    sizes: list[int], work: Path, stack: ExitStack, *, skip_azurite: bool
) -> list[Side]:
    """Fill and start a store of each size, and Azurite with the smallest."""
    sides = []
    for size in sizes:
        folder = work / f"partita-{size}"
        started = time.perf_counter()
        uvloop.run(fill_ours(folder / ACCOUNT, size))
        seconds = time.perf_counter() - started
        server = Server("partita", _partita_command(), folder)
        stack.callback(server.stop)
        server.start()
        print(f"{size} messages in {seconds:.1f} s, {server.disk_bytes() >> 20} MB", flush=True)
        sides.append(Side(server, size))
    if not skip_azurite:
        server = azurite(work / "azurite")
        stack.callback(server.stop)
        server.start()
        uvloop.run(fill_over_http(server.port, AZURITE_MESSAGES))
        sides.append(Side(server, AZURITE_MESSAGES))
    return sides


def azurite(folder: Path) -> Server:
    """Return Azurite's queues with their store on disk, as most people run them."""
    servers.install_azurite()
    command = (
        f"{servers._node()} {_AZURITE_MAIN} --silent --skipApiVersionCheck --disableTelemetry"  # noqa: SLF001
        " --queueHost 127.0.0.1 --queuePort {port} --location {path}"
    )
    return Server("azurite", command, folder, quiet_seconds=6.0)


def _partita_command() -> str:
    script = Path(sys.executable).with_name("partita")
    return f"{script} serve --path {{path}} --queue-port {{port}} --no-blobs --no-tables"


async def fill_ours(folder: Path, messages: int) -> None:
    """Put messages through the engine: over HTTP a million would take longer than the rest."""
    database = await Database.open(folder, durability=Durability.FAST)
    store = await SqliteQueueStore.open(database, StoreClock(database, SystemClock()))
    engine, numbers = QueueEngine(store), iter(range(messages))
    await engine.create_queue(QUEUE, {})

    async def put_some() -> None:
        for number in numbers:
            await engine.put(QUEUE, f"{number:010}".ljust(TEXT_BYTES, "x"))

    await asyncio.gather(*(put_some() for _ in range(FILLERS)))
    await engine.close()
    await database.close()


async def fill_over_http(port: int, messages: int) -> None:
    connection = await Connection.open(port)
    requests = Requests(port)
    _demand(await connection.exchange(requests.create_queue()), 201)
    for number in range(messages):
        _demand(await connection.exchange(requests.put(number)), 201)
    connection.close()


# Runs


def run_rounds(sides: list[Side], rounds: int, seconds: float) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            run = measure(side, seconds)
            runs.setdefault(side.name, []).append(run)
            busy = "  <- others were busy" if run.is_disturbed else ""
            print(
                f"  {side.name:16} {run.cycles:7.0f} cycles/s  put {run.put_ms:.2f}"
                f" get {run.get_ms:.2f} delete {run.delete_ms:.2f} p99 {run.p99_ms:.1f} ms"
                f"  cpu {run.server_cpu_us:.0f} us each; cores: server {run.server_cores:.2f},"
                f" client {run.client_cores:.2f}, others {run.other_cores:.2f}{busy}",
                flush=True,
            )
            side.server.settle()
    return runs


def measure(side: Side, seconds: float) -> Run:
    meter = CpuMeter(side.server)
    times, elapsed = uvloop.run(cycle_all(side, seconds))
    usage = meter.read()
    everything = sorted(one for each in times for one in each)
    put, get, delete = (statistics.median(each) * 1000 for each in times)
    return Run(
        cycles=len(times[2]) / elapsed,
        put_ms=put,
        get_ms=get,
        delete_ms=delete,
        p99_ms=everything[len(everything) * 99 // 100] * 1000,
        server_cpu_us=usage.server * 1e6 / len(everything),
        server_cores=usage.server_cores,
        client_cores=usage.client_cores,
        other_cores=usage.other_cores,
    )


async def cycle_all(side: Side, seconds: float) -> tuple[list[list[float]], float]:
    """Let all clients work; return the seconds of each put, get, delete, and of the run."""
    port = side.server.port
    times: list[list[float]] = [[], [], []]
    started = time.perf_counter()
    numbers = count()
    clients = [cycle(port, started + seconds, numbers, times) for _ in range(CLIENTS)]
    await asyncio.gather(*clients)
    elapsed = time.perf_counter() - started
    await check_count(port, side.messages)
    return times, elapsed


async def cycle(port: int, until: float, numbers: Iterator[int], times: list[list[float]]) -> None:
    connection, requests = await Connection.open(port), Requests(port)
    put, get, delete = times
    while (begun := time.perf_counter()) < until:
        _demand(await connection.exchange(requests.put(next(numbers))), 201)
        put.append((then := time.perf_counter()) - begun)
        answer = await connection.exchange(requests.get())
        _demand(answer, 200)
        message_id, receipt, text = read_message(answer.body)
        if len(text) != TEXT_BYTES:
            raise RunError(f"a message of {len(text)} bytes")  # noqa: EM102
        got = time.perf_counter()
        get.append(got - then)
        _demand(await connection.exchange(requests.delete(message_id, receipt)), 204)
        delete.append(time.perf_counter() - got)
    connection.close()


async def check_count(port: int, messages: int) -> None:
    """Demand that every message that was put was deleted, and no other."""
    connection = await Connection.open(port)
    answer = await connection.exchange(Requests(port).count())
    connection.close()
    found = int(answer.header("x-ms-approximate-messages-count"))
    if found != messages:
        raise RunError(f"{found} messages are left of {messages}")  # noqa: EM102


def _demand(answer: Answer, status: int) -> None:
    if answer.status != status:
        raise RunError(f"{answer.status} {answer.body[:300]!r}")  # noqa: EM102


# The report


def median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.cycles)[len(runs) // 2]


def judge(sides: list[Side], runs: dict[str, list[Run]]) -> list[tuple[str, str]]:
    ours = [side for side in sides if side.server.name == "partita"]
    theirs = [side for side in sides if side.server.name == "azurite"]
    busy = any(median(found).is_disturbed for found in runs.values())
    rates = [median(runs[side.name]).cycles for side in ours]
    kept = min(rates) / rates[0]
    largest, smallest = ours[-1].messages, ours[0].messages
    sentence = f"{largest} messages keep {kept:.2f} of the rate of {smallest} (min {RATE_KEPT_MIN})"
    verdicts = [(sentence, report.verdict(met=kept >= RATE_KEPT_MIN, busy=busy))]
    if theirs:
        ratio = rates[0] / median(runs[theirs[0].name]).cycles
        sentence = f"{ratio:.1f} times Azurite at {CLIENTS} clients (min {TARGET:g})"
        verdicts.append((sentence, report.verdict(met=ratio >= TARGET, busy=busy)))
    return verdicts


def print_report(
    sides: list[Side], runs: dict[str, list[Run]], verdicts: list[tuple[str, str]]
) -> None:
    print()
    head = ["server, messages", "cycles/s", "requests/s", "put ms", "get ms", "delete ms", "p99"]
    rows = []
    for side in sides:
        run = median(runs[side.name])
        figures = (run.put_ms, run.get_ms, run.delete_ms, run.p99_ms)
        rates = [report.amount(run.cycles), report.amount(3 * run.cycles)]
        rows.append([side.name, *rates, *(f"{figure:.2f}" for figure in figures)])
    report.print_table(head, rows)
    report.print_verdicts(verdicts)


def draw(sides: list[Side], runs: dict[str, list[Run]], beside: Path) -> None:
    made = report.figure(2)
    if made is None:
        return
    drawn, (left, right) = made
    rates = [median(runs[side.name]).cycles for side in sides]
    colors = ["tab:blue" if side.server.name == "partita" else "tab:orange" for side in sides]
    left.bar([side.name.replace(" ", "\n") for side in sides], rates, color=colors)
    left.set(title=f"put + get + delete a second, {CLIENTS} clients")
    ours = [side for side in sides if side.server.name == "partita"]
    sizes = [side.messages for side in ours]
    right.plot(sizes, [median(runs[side.name]).cycles for side in ours], marker="o")
    right.set(xscale="log", ylim=(0, None), xlabel="messages in the queue", title="ours, by size")
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
