"""Ours alone, for minutes: does a write ever stall, does the WAL stay bounded?

A client of our own drives W8 and keeps the latency of every write, because a percentile
hides the one second that hurts. A second part measures point reads alone and beside a
long filtered scan.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop
from bench.tables import load, report, servers
from bench.tables.connection import BlockingConnection, BrokenExchangeError, Connection
from bench.tables.measure import OTHER_CORES_MAX, CpuMeter, RunError, Side, measure, scan_once
from bench.tables.servers import Server
from bench.tables.workload import PARTITION_ENTITIES, Requests

STALL_SECONDS = 0.5
SCAN_KEEPS_MIN = 0.5
CLIENTS = 16
SAMPLE_SECONDS = 0.25
_SIGNED_SECONDS_MAX = 300


@dataclass(frozen=True)
class Sample:
    at: float
    wal_bytes: int
    rss_bytes: int
    client_lag: float  # how late our own client woke: a stall of ours, not of the server


@dataclass
class Soak:
    """Everything seen; times count from the start."""

    started: float
    writes: list[tuple[float, float]] = field(default_factory=list)  # (ended at, seconds)
    reads: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    refused: int = 0


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(servers.workspace("soak"))
        server = servers.partita(work / "partita", options.ours_command)
        stack.callback(server.stop)
        server.start()
        asyncio.run(load.fill(server.port, options.entities))
        server.settle()
        side = Side.of(server, options.entities)
        beside = scan_beside_reads(side, options.scan_seconds, options.rounds, options.filter)
        print(f"W8 for {options.seconds:.0f} s", flush=True)
        meter = CpuMeter(server)
        soak = uvloop.run(mixed_load(side, options.seconds))
        usage = meter.read()
    summary = summarise(soak, options.seconds) | {"other_cores": usage.other_cores}
    verdicts = judge(summary, beside)
    print_report(summary, beside, verdicts)
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "summary": summary,
        "scan_beside_reads": beside,
        "by_second": by_second(soak),
        "samples": soak.samples,
        "verdicts": dict(verdicts),
    }
    draw(soak, report.save("soak", document))
    return summary["refused"] > 0 or (options.demand and report.has_missed(verdicts))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="length of the W8 run")
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--scan-seconds", type=float, default=5, help="length of one W1 run")
    parser.add_argument("--rounds", type=int, default=3, help="W1 runs alone and beside the scan")
    parser.add_argument("--filter", default="Bucket eq 17", help="of the scan beside W1")
    parser.add_argument("--quick", action="store_true", help="10,000 entities, 10 s, one round")
    parser.add_argument(
        "--ours-command", default="", help="another server; names {path} and {port}"
    )
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.entities = 10, PARTITION_ENTITIES
        options.scan_seconds, options.rounds = 2, 1
    return options


async def mixed_load(side: Side, seconds: float) -> Soak:
    """Nine reads to one upsert from 16 connections, each as fast as its answers come."""
    soak = Soak(time.perf_counter())
    until = soak.started + seconds
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_sample(side.server, soak, until))
        for _ in range(CLIENTS):
            tasks.create_task(_client(side, soak, until))
    return soak


async def _client(side: Side, soak: Soak, until: float) -> None:
    port, source, clock = side.server.port, random.Random(), time.perf_counter
    connection = await Connection.open(port)
    requests, signed_at = Requests(port), clock()
    while (sent_at := clock()) < until:
        if sent_at - signed_at > _SIGNED_SECONDS_MAX:
            requests, signed_at = Requests(port), sent_at
        number, is_write = source.randrange(side.load.entities), source.random() < 0.1
        if is_write:
            request = requests.upsert(number, side.load.versions.version())
        else:
            request = requests.get(number)
        sent_at = clock()
        answer = await connection.exchange(request)
        ended = clock()
        (soak.writes if is_write else soak.reads).append((ended - soak.started, ended - sent_at))
        soak.refused += answer.status != (204 if is_write else 200)
    connection.close()


async def _sample(server: Server, soak: Soak, until: float) -> None:
    while (before := time.perf_counter()) < until:
        await asyncio.sleep(SAMPLE_SECONDS)
        now = time.perf_counter()
        soak.samples.append(
            Sample(
                now - soak.started,
                server.disk_bytes("-wal"),
                server.rss_bytes(),
                now - before - SAMPLE_SECONDS,
            )
        )


def scan_beside_reads(
    side: Side, seconds: float, rounds: int, filter_text: str
) -> dict[str, list[float]]:
    """Measure W1 alone and beside one client that scans the table over and over, in turns."""
    found: dict[str, list[float]] = {
        "alone": [],
        "beside": [],
        "scans_per_second": [],
        "other_cores": [],
    }
    for _ in range(rounds):
        alone = measure(side, "W1", CLIENTS, seconds)
        with _scanning(side.server.port, filter_text) as passes:
            started = time.perf_counter()
            beside = measure(side, "W1", CLIENTS, seconds)
            found["scans_per_second"].append(len(passes) / (time.perf_counter() - started))
        found["alone"].append(alone.rate)
        found["beside"].append(beside.rate)
        found["other_cores"].append(max(alone.other_cores, beside.other_cores))
        if len(set(passes)) != 1:
            message = f"the scans beside W1 do not agree: {sorted(set(passes))} entities"
            raise RunError(message)
        print(
            f"  W1 alone {report.amount(found['alone'][-1])}/s,"
            f" beside a scan {report.amount(found['beside'][-1])}/s"
            f" ({found['scans_per_second'][-1]:.2f} whole scans/s)",
            flush=True,
        )
    return found


@contextlib.contextmanager
def _scanning(port: int, filter_text: str) -> Iterator[list[int]]:
    """Scan in a thread while the block runs; yield the entities found by each whole scan."""
    passes: list[int] = []
    failures: list[BrokenExchangeError] = []
    ending = threading.Event()

    def scan_on() -> None:
        try:
            with BlockingConnection(port) as connection:
                while not ending.is_set():
                    passes.append(scan_once(port, connection, [], filter_text))
        except BrokenExchangeError as error:
            failures.append(error)

    thread = threading.Thread(target=scan_on, name="scan")
    thread.start()
    try:
        yield passes
    finally:
        ending.set()
        thread.join()
    if failures:
        raise failures[0]


def summarise(soak: Soak, seconds: float) -> dict[str, float]:
    writes = sorted(latency for _, latency in soak.writes)
    reads = [latency for _, latency in soak.reads]
    return {
        "requests_per_second": (len(writes) + len(reads)) / seconds,
        "writes": len(writes),
        "refused": soak.refused,
        "write_p50_ms": statistics.median(writes) * 1000,
        "write_p99_ms": writes[int(len(writes) * 0.99)] * 1000,
        "write_max_ms": writes[-1] * 1000,
        "writes_over_half_a_second": sum(latency > STALL_SECONDS for latency in writes),
        "read_max_ms": max(reads) * 1000,
        "client_lag_max_ms": max(sample.client_lag for sample in soak.samples) * 1000,
        "wal_max_bytes": max(sample.wal_bytes for sample in soak.samples),
        "rss_first_bytes": soak.samples[0].rss_bytes,
        "rss_max_bytes": max(sample.rss_bytes for sample in soak.samples),
        "rss_last_bytes": soak.samples[-1].rss_bytes,
    }


def judge(summary: dict[str, float], beside: dict[str, list[float]]) -> list[tuple[str, str]]:
    kept = statistics.median(beside["beside"]) / statistics.median(beside["alone"])
    worst = summary["write_max_ms"]
    is_calm = worst <= STALL_SECONDS * 1000
    # A neighbour can cause a stall but cannot hide one.
    may_be_theirs = not is_calm and summary["other_cores"] > OTHER_CORES_MAX
    return [
        ("every request was answered as it should", report.verdict(met=summary["refused"] == 0)),
        (
            f"slowest write {worst:.0f} ms (max 500)",
            report.verdict(met=is_calm, busy=may_be_theirs),
        ),
        (
            f"W1 beside a scan keeps {kept:.2f} of its rate (min {SCAN_KEEPS_MIN})",
            report.verdict(
                met=kept >= SCAN_KEEPS_MIN, busy=max(beside["other_cores"]) > OTHER_CORES_MAX
            ),
        ),
    ]


def by_second(soak: Soak) -> list[dict[str, float]]:
    """Return for each second: requests answered, slowest write."""
    seconds: dict[int, dict[str, float]] = {}
    for is_write, exchanges in ((True, soak.writes), (False, soak.reads)):
        for ended, latency in exchanges:
            cell = seconds.setdefault(
                int(ended), {"second": int(ended), "answered": 0, "write_max_ms": 0.0}
            )
            cell["answered"] += 1
            if is_write:
                cell["write_max_ms"] = max(cell["write_max_ms"], latency * 1000)
    return [seconds[second] for second in sorted(seconds)]


def print_report(
    summary: dict[str, float],
    beside: dict[str, list[float]],
    verdicts: list[tuple[str, str]],
) -> None:
    print()
    for name, value in summary.items():
        is_size = name.endswith("_bytes")
        print(f"{name:28} {value / 1e6 if is_size else value:12,.1f}{' MB' if is_size else ''}")
    for name, rates in beside.items():
        print(f"W1 {name:25} {statistics.median(rates):12,.1f}")
    report.print_verdicts(verdicts)


def draw(soak: Soak, beside: Path) -> None:
    made = report.figure(1, rows=4)
    if made is None:
        return
    drawn, (rate, stall, wal, rss) = made
    seconds = by_second(soak)[:-1]  # the last one is not whole
    times = [sample.at for sample in soak.samples]
    rate.plot([cell["second"] for cell in seconds], [cell["answered"] for cell in seconds])
    rate.set(title="requests answered in each second", ylim=(0, None))
    stall.plot([cell["second"] for cell in seconds], [cell["write_max_ms"] for cell in seconds])
    stall.axhline(STALL_SECONDS * 1000, color="tab:red", linestyle=":")
    stall.set(title="slowest write of each second, ms")
    wal.plot(times, [sample.wal_bytes / 1e6 for sample in soak.samples])
    wal.set(title="WAL, MB")
    rss.plot(times, [sample.rss_bytes / 1e6 for sample in soak.samples])
    top = max(sample.rss_bytes for sample in soak.samples) / 1e6 * 1.1
    rss.set(title="memory, MB", xlabel="seconds", ylim=(0, top))
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
