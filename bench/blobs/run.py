"""Measure blobs beside Azurite, and a large download beside a plain copy loop.

`python bench/blobs/run.py` lets 16 clients put and get blobs of 4 KiB and list 1,000 of many by
their prefix, in turns on both servers; then it downloads one of 64 MiB, in turns with a loop that
only copies. It prints each ratio beside its target and leaves JSON and a plot in bench/out.
"""

import argparse
import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.blobs import copy_loop
from bench.blobs.workload import Requests
from bench.tables import report, servers
from bench.tables.connection import Answer, BlockingConnection, Connection
from bench.tables.measure import OTHER_CORES_MAX, CpuMeter, RunError
from bench.tables.servers import Server

CLIENTS = 16
SMALL_BYTES = 4096
LARGE_MEBIBYTES = 64
PAGE = 1000
TARGETS = {"put": 2.0, "get": 6.0, "list": 10.0}
COPY_TARGET = 0.6
_AZURITE_MAIN = servers.AZURITE_FOLDER / "node_modules/azurite/dist/src/blob/main.js"
_PREFIX = "fill/0"

Make = Callable[[Requests], bytes]


@dataclass(frozen=True)
class Run:
    """What one run of one kind of request showed on one server."""

    rate: float
    p50_ms: float
    p99_ms: float
    server_cores: float
    client_cores: float
    other_cores: float

    @property
    def is_disturbed(self) -> bool:
        return self.other_cores > OTHER_CORES_MAX


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("blobs"))
        sides = start_sides(work, stack, options.blobs)
        runs = run_rounds(sides, options.rounds, options.seconds)
        copies = run_copies(sides[0], work, options.rounds)
    verdicts = judge(runs, copies)
    print_report(runs, copies, verdicts)
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "clients": CLIENTS,
        "runs": runs,
        "copies_mebibytes_a_second": copies,
        "verdicts": dict(verdicts),
    }
    draw(runs, copies, report.save("blobs", document))
    return bool(options.demand) and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--blobs", type=int, default=100_000, help="how many lie there to be listed"
    )
    parser.add_argument("--seconds", type=float, default=5, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    return report.read_options(
        parser, "5,000 blobs, one round of 2 s", blobs=5000, seconds=2, rounds=1
    )


def start_sides(work: Path, stack: ExitStack, blobs: int) -> list[Server]:
    """Start both servers and fill both over HTTP."""
    servers.install_azurite()
    script = Path(sys.executable).with_name("partita")
    ours = Server(
        "partita",
        f"{script} serve --path {{path}} --blob-port {{port}} --no-queues --no-tables",
        work / "partita",
    )
    azurite = Server(
        "azurite",
        f"{servers._node()} {_AZURITE_MAIN} --silent --skipApiVersionCheck --disableTelemetry"  # noqa: SLF001
        " --blobHost 127.0.0.1 --blobPort {port} --location {path}",
        work / "azurite",
        quiet_seconds=6.0,
    )
    for server in (ours, azurite):
        stack.callback(server.stop)
        server.start()
        started = time.perf_counter()
        uvloop.run(fill(server.port, blobs))
        seconds = time.perf_counter() - started
        print(f"{server.name}: {blobs} blobs in {seconds:.1f} s", flush=True)
        server.settle()
    return [ours, azurite]


async def fill(port: int, blobs: int) -> None:
    first = await Connection.open(port)
    _demand(await first.exchange(Requests(port).create_container()), 201)
    first.close()
    numbers = iter(range(blobs))

    async def put_some() -> None:
        connection = await Connection.open(port)
        for number in numbers:
            request = Requests(port).put(f"fill/{number:07}", b"x" * 64)
            _demand(await connection.exchange(request), 201)
        connection.close()

    await asyncio.gather(*(put_some() for _ in range(4 * CLIENTS)))


# Small blobs


def run_rounds(sides: list[Server], rounds: int, seconds: float) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    numbers = count()
    for turn in range(rounds):
        for kind in TARGETS:
            for server in sides if turn % 2 == 0 else sides[::-1]:
                run = measure(server, kind, seconds, numbers)
                runs.setdefault(f"{kind} {server.name}", []).append(run)
                busy = "  <- others were busy" if run.is_disturbed else ""
                print(
                    f"  {kind:4} {server.name:8} {run.rate:7.0f}/s  p50 {run.p50_ms:.2f}"
                    f" p99 {run.p99_ms:.1f} ms; cores: server {run.server_cores:.2f},"
                    f" client {run.client_cores:.2f}, others {run.other_cores:.2f}{busy}",
                    flush=True,
                )
                server.settle()
    return runs


def measure(server: Server, kind: str, seconds: float, numbers: Iterator[int]) -> Run:
    meter = CpuMeter(server)
    times, elapsed = uvloop.run(ask_all(server.port, kind, seconds, numbers))
    usage = meter.read()
    times.sort()
    return Run(
        rate=len(times) / elapsed,
        p50_ms=times[len(times) // 2] * 1000,
        p99_ms=times[len(times) * 99 // 100] * 1000,
        server_cores=usage.server_cores,
        client_cores=usage.client_cores,
        other_cores=usage.other_cores,
    )


async def ask_all(
    port: int, kind: str, seconds: float, numbers: Iterator[int]
) -> tuple[list[float], float]:
    times: list[float] = []
    content = os.urandom(SMALL_BYTES)
    if kind == "get":
        connection = await Connection.open(port)
        _demand(await connection.exchange(Requests(port).put("get", content)), 201)
        connection.close()
    clients = 1 if kind == "list" else CLIENTS
    started = time.perf_counter()
    until = started + seconds

    async def ask() -> None:
        connection, requests = await Connection.open(port), Requests(port)
        while (begun := time.perf_counter()) < until:
            answer = await connection.exchange(_request(requests, kind, content, numbers))
            _demand(answer, 201 if kind == "put" else 200)
            times.append(time.perf_counter() - begun)
            if kind == "get" and answer.body != content:
                raise RunError("other bytes came back")
        connection.close()

    await asyncio.gather(*(ask() for _ in range(clients)))
    return times, time.perf_counter() - started


def _request(requests: Requests, kind: str, content: bytes, numbers: Iterator[int]) -> bytes:
    if kind == "put":
        return requests.put(f"put/{next(numbers)}", content)
    return requests.get("get") if kind == "get" else requests.list(_PREFIX, PAGE)


def _demand(answer: Answer, status: int) -> None:
    if answer.status != status:
        raise RunError(f"{answer.status} {answer.body[:300]!r}")  # noqa: EM102


# One large blob


def run_copies(ours: Server, work: Path, rounds: int) -> dict[str, list[float]]:
    """Download one large blob and a plain file of the same bytes in turns."""
    content = os.urandom(copy_loop.MEBIBYTE) * LARGE_MEBIBYTES
    plain = work / "plain"
    plain.write_bytes(content)
    with BlockingConnection(ours.port) as connection:
        _demand(connection.exchange(Requests(ours.port).put("large", content)), 201)
    rates: dict[str, list[float]] = {"partita": [], "copy loop": []}
    with copy_loop.serving("serve", plain) as port:
        for turn in range(3 * rounds + 1):
            found = {"partita": _download(ours.port), "copy loop": _copy(port)}
            if turn:  # the first warms both up
                for name, rate in found.items():
                    rates[name].append(rate)
    return rates


def _download(port: int) -> float:
    request = Requests(port).get("large")
    path = request.split(b" ", 2)[1].decode()
    headers = b"\r\n".join(
        line for line in request.split(b"\r\n")[1:] if line and not line.startswith(b"Host")
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return copy_loop.fetch(connection, path, headers + b"\r\n")


def _copy(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return copy_loop.fetch(connection, "/")


# The report


def median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


def judge(runs: dict[str, list[Run]], copies: dict[str, list[float]]) -> list[tuple[str, str]]:
    verdicts = []
    for kind, target in TARGETS.items():
        ours, theirs = median(runs[f"{kind} partita"]), median(runs[f"{kind} azurite"])
        ratio = ours.rate / theirs.rate
        busy = ours.is_disturbed or theirs.is_disturbed
        sentence = f"{kind}: {ratio:.1f} times Azurite (min {target:g})"
        verdicts.append((sentence, report.verdict(met=ratio >= target, busy=busy)))
    kept = statistics.median(copies["partita"]) / statistics.median(copies["copy loop"])
    sentence = f"{LARGE_MEBIBYTES} MiB: {kept:.2f} of a plain copy loop (min {COPY_TARGET})"
    verdicts.append((sentence, report.verdict(met=kept >= COPY_TARGET, busy=False)))
    return verdicts


def print_report(
    runs: dict[str, list[Run]], copies: dict[str, list[float]], verdicts: list[tuple[str, str]]
) -> None:
    print()
    rows = []
    for name, found in runs.items():
        run = median(found)
        rows.append([name, report.amount(run.rate), f"{run.p50_ms:.2f}", f"{run.p99_ms:.2f}"])
    report.print_table(["request, server", "a second", "p50 ms", "p99 ms"], rows)
    for name, rates in copies.items():
        print(f"{LARGE_MEBIBYTES} MiB by {name}: {statistics.median(rates):.0f} MiB/s")
    report.print_verdicts(verdicts)


def draw(runs: dict[str, list[Run]], copies: dict[str, list[float]], beside: Path) -> None:
    made = report.figure(2)
    if made is None:
        return
    drawn, (left, right) = made
    names = list(runs)
    colors = ["tab:blue" if name.endswith("partita") else "tab:orange" for name in names]
    rates = [median(runs[name]).rate for name in names]
    left.bar([name.replace(" ", "\n") for name in names], rates, color=colors)
    left.set(title=f"requests a second, {SMALL_BYTES} bytes, {CLIENTS} clients", yscale="log")
    right.bar(list(copies), [statistics.median(rates) for rates in copies.values()])
    right.set(title=f"{LARGE_MEBIBYTES} MiB download, MiB/s")
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
