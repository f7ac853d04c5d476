"""Measure reliable dictionaries beside diskcache, sqlitedict, ZODB and plain SQLite.

`python bench/reliable/run.py` lets all of them take turns on the disk of the project, every
write durable, prints medians beside the targets and leaves JSON and a plot in bench/out.
"""

import argparse
import asyncio
import os
import platform
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop
from bench.reliable import ours
from bench.reliable.ours import Latencies, Opened, Rate
from bench.reliable.peers import PEERS, Peer
from bench.reliable.workload import Syncs, items, key_of, new_item, payload_bytes, quantile
from bench.tables import report, servers

WRITERS = 64
HOT_KEYS = 1_000
SIDE_KEYS = 100_000
TARGET_KEYS = 1_000_000
OTHER_CORES_MAX = 0.25

GET_US_MAX = 5
SET_US_MAX = 25
COMMIT_RATIO_MAX = 2.5
GROUPED_MIN = 20_000
GROUPED_RATIO_MIN = 5
REPLAY_MIN = 100_000
OPEN_SECONDS_MAX = 10
SCAN_MIN = 300_000
OVERHEAD_BYTES_MAX = 300
COUNT_GROWTH_MAX = 2


@dataclass
class Figures:
    """Everything one run found; lists hold one figure a round, by side where there are peers."""

    get_us: dict[str, list[float]] = field(default_factory=dict)
    set_us: list[float] = field(default_factory=list)
    commits: list[Latencies] = field(default_factory=list)
    peer_commit_us: dict[str, list[float]] = field(default_factory=dict)
    grouped: list[Rate] = field(default_factory=list)
    grouped_uvloop: list[Rate] = field(default_factory=list)
    peer_writes: dict[str, list[float]] = field(default_factory=dict)
    """Durable writes a second by 64 threads."""
    peer_writes_alone: dict[str, list[float]] = field(default_factory=dict)
    """By one thread: where threads only get in each other's way, this is the better figure."""
    scans: dict[str, list[float]] = field(default_factory=dict)
    """Rows a second over SIDE_KEYS rows."""
    replays: list[float] = field(default_factory=list)
    opened: dict[str, list[Opened]] = field(default_factory=dict)
    other_cores: dict[str, float] = field(default_factory=dict)


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    figures = Figures()
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("reliable"))
        peers = [_made(make, work / f"peer-{number}") for number, make in enumerate(PEERS)]
        for peer in peers:
            stack.callback(peer.close)
            peer.load(items(options.side_keys))
            print(f"{peer.name}: {peer.settings}", flush=True)
        asyncio.run(measure_beside(options, work, peers, figures))
        measure_writers(options, work, peers, figures)
        asyncio.run(measure_replay(options, work, figures))
        measure_opening(options, work, figures)
    verdicts = judge(options, figures)
    print_report(figures, verdicts)
    save_report(options, peers, figures, verdicts)
    return options.demand and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=TARGET_KEYS, help="of the large state")
    parser.add_argument("--side-keys", type=int, default=SIDE_KEYS, help="beside the peers")
    parser.add_argument("--replayed", type=int, default=200_000, help="operations in the log")
    parser.add_argument("--commits", type=int, default=400, help="single ones, in each round")
    parser.add_argument("--seconds", type=float, default=3, help="length of one grouped run")
    parser.add_argument("--rounds", type=int, default=5)
    return report.read_options(
        parser,
        "100,000 keys, two short rounds",
        keys=100_000,
        side_keys=20_000,
        replayed=50_000,
        commits=100,
        seconds=1,
        rounds=2,
    )


def _made(make: Callable[[Path], Peer], folder: Path) -> Peer:
    folder.mkdir(parents=True)
    return make(folder)


# --- beside the peers, one caller -------------------------------------------------------------


async def measure_beside(
    options: argparse.Namespace, work: Path, peers: list[Peer], figures: Figures
) -> None:
    """Read, write and scan with one caller; ours and the peers take turns in every round."""
    keys = [key_of(number) for number in range(HOT_KEYS)]
    syncs = Syncs(work / "syncs")
    async with ours.opened(work / "ours") as (state, dictionary):
        await ours.load(state, dictionary, options.side_keys)
        with _others(figures, "get, set"):
            for _ in range(options.rounds):
                _note(figures.get_us, "partita", await ours.get_us(state, dictionary, keys))
                figures.set_us.append(await ours.set_us(state, dictionary, keys))
                for peer in peers:
                    _note(figures.get_us, peer.name, _peer_get_us(peer, keys))
        print_line("get us", figures.get_us)
        print_line("set us", {"partita": figures.set_us})
        with _others(figures, "commit"):
            for _ in range(options.rounds):
                found = await ours.commit_latencies(state, dictionary, syncs, options.commits)
                figures.commits.append(found)
                for peer in peers:
                    _note(figures.peer_commit_us, peer.name, _peer_commit_us(peer, keys))
        print_line("commit us", figures.peer_commit_us)
        with _others(figures, "scan"):
            for _ in range(options.rounds):
                _note(figures.scans, "partita", await ours.scan_rows(state, dictionary))
                for peer in peers:
                    _note(figures.scans, peer.name, _peer_scan_rows(peer))
        print_line("scan rows/s", figures.scans)
    syncs.close()


def _peer_get_us(peer: Peer, keys: list[str]) -> float:
    with peer.reader() as read:
        for key in keys:
            read(key)
        started = time.perf_counter()
        for key in keys:
            read(key)
        return (time.perf_counter() - started) / len(keys) * 1e6


def _peer_commit_us(peer: Peer, keys: list[str], writes: int = 60) -> float:
    times = []
    with peer.writer(0) as write:
        for number in range(writes):
            item = new_item()
            started = time.perf_counter()
            write(keys[number], item)
            times.append(time.perf_counter() - started)
    return quantile(times, 0.5) * 1e6


def _peer_scan_rows(peer: Peer) -> float:
    started = time.perf_counter()
    return peer.scan() / (time.perf_counter() - started)


# --- beside the peers, many writers -----------------------------------------------------------


def measure_writers(
    options: argparse.Namespace, work: Path, peers: list[Peer], figures: Figures
) -> None:
    """Durable transactions of one key: 64 tasks of ours, 64 threads of each peer, and one."""
    folder = work / "writers"
    with _others(figures, "grouped"):
        for _ in range(options.rounds):
            figures.grouped.append(asyncio.run(_grouped(folder, options.seconds)))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures.grouped_uvloop.append(runner.run(_grouped(folder, options.seconds)))
            for peer in peers:
                _note(figures.peer_writes, peer.name, _peer_writes(peer, WRITERS, options.seconds))
                alone = _peer_writes(peer, 1, options.seconds)
                _note(figures.peer_writes_alone, peer.name, alone)
    print_line("grouped tx/s", {"partita": [run.a_second for run in figures.grouped]})
    print_line("  64 threads", figures.peer_writes)
    print_line("  one thread", figures.peer_writes_alone)


async def _grouped(folder: Path, seconds: float) -> Rate:
    async with ours.opened(folder) as (state, dictionary):
        await ours.grouped(state, dictionary, WRITERS, 0.2)
        return await ours.grouped(state, dictionary, WRITERS, seconds)


def _peer_writes(peer: Peer, threads: int, seconds: float) -> float:
    """Count what was answered in time; a thread that never gets its turn counts nothing."""
    counts = [0] * threads
    ready, done = threading.Barrier(threads + 1), threading.Event()

    def work(number: int) -> None:
        with peer.writer(number) as write:
            ready.wait()
            while not done.is_set():
                write(key_of(number * 100 + counts[number] % 100), new_item())
                counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    done.wait(seconds)
    written, elapsed = sum(counts), time.perf_counter() - started
    done.set()
    for worker in workers:
        worker.join()
    return written / elapsed


# --- ours alone -------------------------------------------------------------------------------


async def measure_replay(options: argparse.Namespace, work: Path, figures: Figures) -> None:
    with _others(figures, "replay"):
        for turn in range(options.rounds):
            folder = work / f"replay-{turn}"
            figures.replays.append(await ours.replay_operations(folder, options.replayed))
    print_line("replay operations/s", {"partita": figures.replays})


def measure_opening(options: argparse.Namespace, work: Path, figures: Figures) -> None:
    """Open states of several sizes in fresh processes, in turns."""
    sizes = sorted({1_000, 100_000, options.keys})
    states = {f"{size}": (size, True) for size in sizes}
    states[f"{options.replayed} from the log"] = (options.replayed, False)
    for name, (size, checkpoint) in states.items():
        asyncio.run(ours.prepare(work / f"open-{name}", size, checkpoint=checkpoint))
    with _others(figures, "open"):
        for _ in range(options.rounds):
            for name in states:
                found = ours.open_in_child(work / f"open-{name}")
                assert found.keys == states[name][0]
                figures.opened.setdefault(name, []).append(found)
    print_line("open s", {name: [o.seconds for o in f] for name, f in figures.opened.items()})


# --- what it means ----------------------------------------------------------------------------


def judge(options: argparse.Namespace, figures: Figures) -> list[tuple[str, str]]:
    """Say of each target whether it was met; those for a million keys need a million."""
    verdicts = []

    def say(sentence: str, what: str, *, met: bool) -> None:
        busy = figures.other_cores[what] > OTHER_CORES_MAX
        verdicts.append((sentence, report.verdict(met=met, busy=busy)))

    get, put = median(figures.get_us["partita"]), median(figures.set_us)
    say(f"get in a transaction {get:.1f} us (max {GET_US_MAX})", "get, set", met=get <= GET_US_MAX)
    say(f"set before commit {put:.1f} us (max {SET_US_MAX})", "get, set", met=put <= SET_US_MAX)
    ratio = median([found.ratio for found in figures.commits])
    say(
        f"single commit {ratio:.2f} x one fdatasync (max {COMMIT_RATIO_MAX})",
        "commit",
        met=ratio <= COMMIT_RATIO_MAX,
    )
    rate = median([found.a_second for found in figures.grouped])
    say(
        f"{rate:.0f} grouped transactions/s by {WRITERS} tasks (min {GROUPED_MIN})",
        "grouped",
        met=rate >= GROUPED_MIN,
    )
    for name in ("diskcache", "sqlitedict"):
        times = rate / median(figures.peer_writes[name])
        alone = rate / median(figures.peer_writes_alone[name])
        say(
            f"{times:.1f} x {name} with {WRITERS} threads (min {GROUPED_RATIO_MIN}),"
            f" {alone:.1f} x {name} with one",
            "grouped",
            met=times >= GROUPED_RATIO_MIN,
        )
    replay = median(figures.replays)
    say(f"replay {replay:.0f} operations/s (min {REPLAY_MIN})", "replay", met=replay >= REPLAY_MIN)
    small, large = (figures.opened[str(size)] for size in (1_000, options.keys))
    growth = min(found.count_us for found in large) / min(found.count_us for found in small)
    say(
        f"count at {options.keys} keys takes {growth:.2f} of what it takes at 1000"
        f" (max {COUNT_GROWTH_MAX})",
        "open",
        met=growth <= COUNT_GROWTH_MAX,
    )
    if options.keys >= TARGET_KEYS:
        verdicts += _judge_large(options, figures, large)
    return verdicts


def _judge_large(
    options: argparse.Namespace, figures: Figures, large: list[Opened]
) -> list[tuple[str, str]]:
    busy = figures.other_cores["open"] > OTHER_CORES_MAX
    seconds = median([found.seconds for found in large])
    rows = median([found.scan_rows for found in large])
    overhead = overhead_bytes(options.keys, large)
    return [
        (
            f"{options.keys} keys open in {seconds:.1f} s (max {OPEN_SECONDS_MAX})",
            report.verdict(met=seconds <= OPEN_SECONDS_MAX, busy=busy),
        ),
        (
            f"ordered scan {rows:.0f} rows/s (min {SCAN_MIN})",
            report.verdict(met=rows >= SCAN_MIN, busy=busy),
        ),
        (  # neighbours do not change it
            f"{overhead:.0f} bytes of overhead a key (max {OVERHEAD_BYTES_MAX})",
            report.verdict(met=overhead <= OVERHEAD_BYTES_MAX),
        ),
    ]


def overhead_bytes(keys: int, found: list[Opened]) -> float:
    """Return what a key takes in memory beyond its own bytes and those of its value."""
    return (median([one.rss_bytes for one in found]) - payload_bytes(keys)) / keys


def print_report(figures: Figures, verdicts: list[tuple[str, str]]) -> None:
    names = ["partita", *figures.peer_writes]
    commits = {name: median(times) for name, times in figures.peer_commit_us.items()}
    commits["partita"] = median([found.commit_p50_us for found in figures.commits])
    writes = {name: median(rates) for name, rates in figures.peer_writes.items()}
    alone = {name: median(rates) for name, rates in figures.peer_writes_alone.items()}
    writes["partita"] = median([found.a_second for found in figures.grouped])
    rows = [
        ["get, us", *(f"{median(figures.get_us[name]):.1f}" for name in names)],
        ["durable commit p50, us", *(f"{commits[name]:.0f}" for name in names)],
        [f"durable writes/s, {WRITERS} at once", *(report.amount(writes[name]) for name in names)],
        ["  a peer's single thread", "-", *(report.amount(alone[name]) for name in names[1:])],
        ["scan, rows/s", *(report.amount(median(figures.scans[name])) for name in names)],
    ]
    print()
    report.print_table(["medians", *names], rows)
    p99 = median([found.commit_p99_us for found in figures.commits])
    bare = [median([getattr(one, f"sync_{at}_us") for one in figures.commits]) for at in _TAILS]
    print(f"single commit p99 {p99:.0f} us; fdatasync p50 {bare[0]:.0f}, p99 {bare[1]:.0f} us")
    for name, runs in (("asyncio", figures.grouped), ("uvloop", figures.grouped_uvloop)):
        print(
            f"grouped on {name}: {median([run.a_second for run in runs]):.0f}/s,"
            f" p50 {median([run.p50_ms for run in runs]):.2f},"
            f" p99 {median([run.p99_ms for run in runs]):.2f} ms,"
            f" {median([run.group for run in runs]):.0f} to a record"
        )
    for name, found in figures.opened.items():
        print(
            f"{name} keys: open {median([one.seconds for one in found]):.2f} s,"
            f" {overhead_bytes(found[0].keys, found):.0f} bytes of overhead a key,"
            f" scan {report.amount(median([one.scan_rows for one in found]))} rows/s,"
            f" keys alone {report.amount(median([one.key_scan_rows for one in found]))}/s,"
            f" count {min(one.count_us for one in found):.2f} us"
        )
    report.print_verdicts(verdicts)


_TAILS = ("p50", "p99")


def print_line(what: str, found: dict[str, list[float]]) -> None:
    cells = [f"{name} {report.amount(median(values))}" for name, values in found.items()]
    if all(median(values) < 1000 for values in found.values()):
        cells = [f"{name} {median(values):.1f}" for name, values in found.items()]
    print(f"  {what}: {', '.join(cells)}", flush=True)


def save_report(
    options: argparse.Namespace,
    peers: list[Peer],
    figures: Figures,
    verdicts: list[tuple[str, str]],
) -> None:
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
        },
        "options": vars(options),
        "settings": {peer.name: peer.settings for peer in peers},
        "figures": figures,
        "verdicts": dict(verdicts),
    }
    draw(figures, report.save("reliable", document))


def draw(figures: Figures, beside: Path) -> None:
    """Plot durable writes, single commits and reads of all, on logarithmic scales."""
    made = report.figure(3)
    if made is None:
        return
    drawn, (writes, commits, reads) = made
    names = ["partita", *figures.peer_writes]
    colors = ["tab:blue", *["tab:grey"] * (len(names) - 1)]
    rates = [median([found.a_second for found in figures.grouped])]
    rates += [median(figures.peer_writes[name]) for name in names[1:]]
    writes.bar(names, rates, color=colors)
    writes.set(yscale="log", title=f"durable writes a second, {WRITERS} writers")
    times = [median([found.commit_p50_us for found in figures.commits])]
    commits.bar(
        names, times + [median(figures.peer_commit_us[name]) for name in names[1:]], color=colors
    )
    sync = median([found.sync_p50_us for found in figures.commits])
    commits.axhline(sync, color="tab:red", linestyle=":", label="one fdatasync")
    commits.set(yscale="log", title="one durable commit, us (p50)")
    commits.legend()
    reads.bar(names, [median(figures.get_us[name]) for name in names], color=colors)
    reads.set(yscale="log", title="one hot read, us")
    report.save_figure(drawn, beside)


def median(values: list[float] | list[int]) -> float:
    return statistics.median(values)


def _note(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


@contextmanager
def _others(figures: Figures, what: str) -> Iterator[None]:
    """Note how many cores others took meanwhile: they spoil a figure more than code does."""

    def own() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    before, machine, started = own(), servers.machine_cpu_seconds(), time.perf_counter()
    yield
    elapsed = time.perf_counter() - started
    others = servers.machine_cpu_seconds() - machine - (own() - before)
    figures.other_cores[what] = max(0.0, others) / elapsed


if __name__ == "__main__":
    report.run_script(main)
