"""Ours alone, from ten thousand to a million entities: rates, disk, memory, restart.

Stores of all sizes run side by side and take turns, so that a noisy minute touches all of
them alike; comparing one size measured now with another measured later would not do.
"""

import argparse
import asyncio
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables import load, report, servers
from bench.tables.connection import BlockingConnection, BrokenExchangeError
from bench.tables.measure import Run, Side, measure, median_run, presigned, run_wrk
from bench.tables.servers import Server
from bench.tables.workload import PARTITION_ENTITIES, Requests

WORKLOADS = ("W1", "W5", "W3")
RATE_KEPT_MIN = 0.8
DISK_BYTES_MAX = 1_600_000_000  # both for a million entities
RSS_BYTES_MAX = 600_000_000
RESTART_SECONDS_MAX = 1.0
LIMITS_ENTITIES = 1_000_000
RESTARTS = 3


@dataclass(frozen=True)
class Weight:
    """What a store weighs after its load."""

    load_seconds: float
    disk_bytes: int
    wal_bytes: int
    rss_bytes: int


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    sizes = [int(word) for word in options.sizes.split(",")]
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("growth"))
        weights: dict[int, Weight] = {}
        sides = []
        for size in sizes:
            server = servers.partita(work / str(size), options.ours_command)
            stack.callback(server.stop)
            weights[size] = weigh(server, size)
            sides.append(Side.of(server, size))
        runs = run_rounds(sides, options.rounds, options.seconds)
        largest = sides[-1]
        peak = largest.server.peak_rss_bytes()
        restarts = {"stopped": restart_after_stop(largest), "killed": restart_after_kill(largest)}
    for how, seconds in restarts.items():
        print(f"{how}, started and read after {', '.join(f'{one:.2f}' for one in seconds)} s")
    verdicts = judge(sizes, runs, weights[sizes[-1]], peak, restarts)
    print_report(sizes, runs, verdicts)
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "weights": weights,
        "peak_rss_bytes": peak,
        "restart_seconds": restarts,
        "rates": {workload: {str(n): runs[workload, n] for n in sizes} for workload in WORKLOADS},
        "verdicts": dict(verdicts),
    }
    draw(sizes, runs, report.save("growth", document))
    return bool(options.demand) and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--seconds", type=float, default=5, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="to 100,000 entities, one round of 2 s"
    )
    parser.add_argument(
        "--ours-command", default="", help="another server; names {path} and {port}"
    )
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.seconds, options.rounds = "10000,100000", 2, 1
    if any(int(size) % PARTITION_ENTITIES for size in options.sizes.split(",")):
        parser.error(f"sizes must be multiples of {PARTITION_ENTITIES}")
    return options


def weigh(server: Server, entities: int) -> Weight:
    """Start and fill one store, and look at it once it is idle."""
    server.start()
    seconds = asyncio.run(load.fill(server.port, entities))
    server.settle()
    weight = Weight(seconds, server.disk_bytes(), server.disk_bytes("-wal"), server.rss_bytes())
    print(
        f"{entities} entities in {seconds:.1f} s ({entities / seconds:.0f}/s):"
        f" {weight.disk_bytes / 1e6:.0f} MB on disk, of it {weight.wal_bytes / 1e6:.0f} MB WAL,"
        f" {weight.rss_bytes / 1e6:.0f} MB of memory",
        flush=True,
    )
    return weight


def run_rounds(sides: list[Side], rounds: int, seconds: float) -> dict[tuple[str, int], list[Run]]:
    runs: dict[tuple[str, int], list[Run]] = {}
    for workload in WORKLOADS:
        for turn in range(rounds):
            for side in sides if turn % 2 == 0 else sides[::-1]:
                run = measure(side, workload, 16, seconds)
                runs.setdefault((workload, side.load.entities), []).append(run)
                print(
                    f"  {workload} {side.load.entities:>8} {report.amount(run.rate):>7}/s"
                    f"  p99 {run.p99_ms:.1f} ms  cpu {run.server_cpu_us:.0f} us each"
                    f"  others {run.other_cores:.2f} cores",
                    flush=True,
                )
    return runs


def restart_after_stop(side: Side) -> list[float]:
    """Seconds from the start of the process to the first answered read, after a clean stop."""
    found = []
    for _ in range(RESTARTS):
        side.server.stop()
        found.append(_start_and_read(side.server))
    return found


def restart_after_kill(side: Side) -> list[float]:
    """The same after kill -9 just behind a burst of upserts, so that there is a WAL to recover."""
    found = []
    for _ in range(RESTARTS):
        with presigned(side, "W3", 2) as path:
            run_wrk(side.server.port, path, 16, 2)
        side.server.kill()  # at once: given a moment, the server would empty its WAL
        found.append(_start_and_read(side.server))
    return found


def _start_and_read(server: Server) -> float:
    server.start(wait=False)
    return server.wait_until(lambda: _reads(server.port), timeout=120)


def _reads(port: int) -> bool:
    try:
        with BlockingConnection(port, timeout=10) as connection:
            return connection.exchange(Requests(port).get(0)).status == 200
    except (OSError, BrokenExchangeError):
        return False


def judge(
    sizes: list[int],
    runs: dict[tuple[str, int], list[Run]],
    weight: Weight,
    peak_rss: int,
    restarts: dict[str, list[float]],
) -> list[tuple[str, str]]:
    """Say of each promise whether it was kept; those for a million need a million."""
    verdicts = []
    for workload in WORKLOADS:
        kept = min(rate_kept(workload, sizes, runs))
        busy = any(median_run(runs[workload, size]).is_disturbed for size in sizes)
        word = report.verdict(met=kept >= RATE_KEPT_MIN, busy=busy)
        verdicts.append((f"{workload} keeps {kept:.2f} of its rate (min {RATE_KEPT_MIN})", word))
    if sizes[-1] < LIMITS_ENTITIES:
        return verdicts
    rss = max(weight.rss_bytes, peak_rss)
    return [
        *verdicts,
        _within("GB on disk", weight.disk_bytes / 1e9, DISK_BYTES_MAX / 1e9),
        _within("MB of memory at its peak", rss / 1e6, RSS_BYTES_MAX / 1e6),
        _within("s to restart after a stop", max(restarts["stopped"]), RESTART_SECONDS_MAX),
        _within("s to restart after kill -9", max(restarts["killed"]), RESTART_SECONDS_MAX),
    ]


def _within(what: str, found: float, limit: float) -> tuple[str, str]:
    return f"{found:.2f} {what} (max {limit:g})", report.verdict(met=found <= limit)


def rate_kept(
    workload: str, sizes: list[int], runs: dict[tuple[str, int], list[Run]]
) -> list[float]:
    """Return the median rate at each size over that at the smallest."""
    smallest = median_run(runs[workload, sizes[0]]).rate
    return [median_run(runs[workload, size]).rate / smallest for size in sizes]


def print_report(
    sizes: list[int],
    runs: dict[tuple[str, int], list[Run]],
    verdicts: list[tuple[str, str]],
) -> None:
    print()
    rows = [
        [workload, *(report.amount(median_run(runs[workload, size]).rate) for size in sizes)]
        for workload in WORKLOADS
    ]
    report.print_table(["requests/s, 16 clients", *(str(size) for size in sizes)], rows)
    report.print_verdicts(verdicts)


def draw(sizes: list[int], runs: dict[tuple[str, int], list[Run]], beside: Path) -> None:
    made = report.figure(1)
    if made is None:
        return
    drawn, (axes,) = made
    for workload in WORKLOADS:
        axes.plot(sizes, rate_kept(workload, sizes, runs), marker="o", label=workload)
    axes.axhline(RATE_KEPT_MIN, color="tab:red", linestyle=":")
    axes.set(xscale="log", ylim=(0, 1.5), xlabel="entities", title="rate, smallest store = 1")
    axes.legend()
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
