"""Measure Partita beside Azurite: the eight workloads, interleaved, on fresh stores.

`python bench/tables/run.py` starts both servers, loads the same entities, runs the
workloads in the order reads, mixed, writes (writes make the stores grow), prints the
ratios beside their targets and leaves JSON and a plot in bench/out. See bench/README.md.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables import checks, load, report, servers
from bench.tables.measure import Run, RunError, Side, measure, median_run
from bench.tables.servers import Server
from bench.tables.workload import PARTITION_ENTITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER = ("W1", "W5", "W6", "W7", "W8", "W3", "W2", "W4")
TITLES = {
    "W1": "get",
    "W2": "insert",
    "W3": "upsert",
    "W4": "batch of 100",
    "W5": "range of 100",
    "W6": "filter 1% of 10k",
    "W7": "scan, entities/s",
    "W8": "nine W1, one W3",
}
# Ours over Azurite on disk, at 16 clients and 100,000 entities.
TARGETS = {"W1": 10, "W2": 3, "W3": 7, "W4": 3, "W5": 25, "W6": 4, "W7": 14, "W8": 8}
TARGET_CLIENTS = 16
TARGET_ENTITIES = 100_000
BARE_CLIENTS = 64
BARE_TARGET, BARE_AIM = 0.22, 0.30


@dataclass(frozen=True)
class Options:
    entities: int
    seconds: float
    rounds: int
    clients: list[int]
    workloads: list[str]
    ours_command: str
    skip_azurite: bool
    demand: bool
    targets: Mapping[str, float] = field(default_factory=lambda: TARGETS)

    def target(self, workload: str, clients: int) -> float | None:
        """Return the target ratio, which holds for one size of store and number of clients."""
        applies = self.entities == TARGET_ENTITIES and clients == _clients_of(workload)
        return self.targets[workload] if applies else None


@dataclass
class Row:
    """All rounds of one workload at one number of clients."""

    workload: str
    clients: int
    target: float | None
    azurite: list[Run] = field(default_factory=list)
    partita: list[Run] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        if not self.azurite or not self.partita:
            return None
        return median_run(self.partita).rate / median_run(self.azurite).rate

    @property
    def cpu_ratio(self) -> float | None:
        """How many times less processor time a request takes on ours."""
        if not self.azurite or not self.partita:
            return None
        ours = median_run(self.partita).server_cpu_us
        return median_run(self.azurite).server_cpu_us / ours if ours else None


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("run"))
        sides = start_sides(options, work, stack)
        troubles = [trouble for side in sides for trouble in checks.check_reads(side)]
        bare = measure_bare(options, sides[-1], work, stack)
        rows = run_workloads(options, sides, troubles)
        has_missed = print_report(rows, bare, troubles)
        save_report(options, rows, bare, troubles)
    return bool(troubles) or (options.demand and has_missed)


def read_options() -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entities", type=int, default=TARGET_ENTITIES)
    parser.add_argument("--seconds", type=float, default=8, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="16", help="one number or several: 1,16,64")
    parser.add_argument("--only", default="", help="workloads, for example W1,W5")
    parser.add_argument("--quick", action="store_true", help="10,000 entities, one round of 2 s")
    parser.add_argument(
        "--ours-command", default="", help="another server; names {path} and {port}"
    )
    parser.add_argument("--skip-azurite", action="store_true", help="ours alone, no ratios")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    given = parser.parse_args()
    if given.quick:
        given.entities, given.seconds, given.rounds = PARTITION_ENTITIES, 2, 1
    if given.entities % PARTITION_ENTITIES:
        parser.error(f"--entities must be a multiple of {PARTITION_ENTITIES}")
    wanted = given.only.split(",") if given.only else list(ORDER)
    if not set(wanted) <= set(ORDER):
        parser.error(f"--only takes some of {','.join(ORDER)}")
    return Options(
        entities=given.entities,
        seconds=given.seconds,
        rounds=given.rounds,
        clients=[int(word) for word in given.clients.split(",")],
        workloads=[workload for workload in ORDER if workload in wanted],
        ours_command=given.ours_command,
        skip_azurite=given.skip_azurite,
        demand=given.demand,
    )


def start_sides(options: Options, work: Path, stack: ExitStack) -> list[Side]:
    """Start the servers on empty folders and load them; ours is the last of the list."""
    servers.wrk()  # stop here if it is missing
    ours = servers.partita(work / "partita", options.ours_command)
    return load_sides(options, work, stack, ours)


def load_sides(options: Options, work: Path, stack: ExitStack, ours: Server) -> list[Side]:
    """Start and load Azurite, unless it is skipped, and ours."""
    started = [] if options.skip_azurite else [servers.azurite(work / "azurite")]
    started.append(ours)
    for server in started:
        stack.callback(server.stop)
        server.start()
        seconds = asyncio.run(load.fill(server.port, options.entities))
        server.settle()
        print(
            f"{server.name}: {options.entities} entities in {seconds:.1f} s,"
            f" {server.rss_bytes() >> 20} MB of memory, {server.disk_bytes() >> 20} MB on disk"
        )
    return [Side.of(server, options.entities) for server in started]


def run_workloads(options: Options, sides: list[Side], troubles: list[str]) -> list[Row]:
    """Run workload by workload; inside one, the sides take turns and change who begins."""
    rows = []
    writes_checked = False
    for workload in options.workloads:
        if workload in ("W8", "W3", "W2", "W4") and not writes_checked:
            troubles += [trouble for side in sides for trouble in checks.check_writes(side)]
            writes_checked = True
        for clients in [1] if workload == "W7" else options.clients:
            row = Row(workload, clients, options.target(workload, clients))
            rows.append(row)
            for turn in range(options.rounds):
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    run_one(options, side, row, troubles)
    return rows


def run_one(options: Options, side: Side, row: Row, troubles: list[str]) -> None:
    try:
        run = measure(side, row.workload, row.clients, options.seconds)
    except RunError as error:
        troubles.append(str(error))
        print(f"  {error}")
        return
    (row.azurite if side.server.name == "azurite" else row.partita).append(run)
    print_run(side.server.name, row.workload, row.clients, run)
    if row.workload in ("W2", "W4"):
        troubles += checks.check_inserted(side, row.workload, run, row.clients)


def measure_bare(
    options: Options, ours: Side, work: Path, stack: ExitStack
) -> tuple[list[Run], list[Run]] | None:
    """Point reads at 64 clients on ours and on the bare HTTP loop, in turns: (bare, ours)."""
    if "W1" not in options.workloads:
        return None
    server = servers.bare_http(work / "bare")
    if server is None:
        print(f"no {servers.BARE_HTTP.name}: the ceiling of HTTP is not measured")
        return None
    stack.callback(server.stop)
    server.start()
    bare = Side(server, ours.load)
    runs: tuple[list[Run], list[Run]] = ([], [])
    for _ in range(options.rounds):
        for side, found in zip((bare, ours), runs, strict=True):
            found.append(measure(side, "W1", BARE_CLIENTS, options.seconds))
            print_run(side.server.name, "W1", BARE_CLIENTS, found[-1])
    return runs


def print_run(name: str, workload: str, clients: int, run: Run) -> None:
    busy = "  <- others were busy" if run.is_disturbed else ""
    print(
        f"  {workload} c={clients:<2} {name:8} {report.amount(run.rate):>7}/s"
        f"  p50 {run.p50_ms:.2f} p99 {run.p99_ms:.1f} max {run.max_ms:.0f} ms"
        f"  cpu {_cpu_us(run)} us each; cores: server {run.server_cores:.2f},"
        f" client {run.client_cores:.2f}, others {run.other_cores:.2f}{busy}",
        flush=True,
    )


def print_report(
    rows: list[Row],
    bare: tuple[list[Run], list[Run]] | None,
    troubles: list[str],
) -> bool:
    """Print the ratios; return whether a target was missed, or not shown to be met."""
    head = ["workload", "c", "azurite", "ours", "ratio", "target", "met"]
    head += ["azurite cpu us", "ours cpu us", "cpu ratio", "azurite p50/p99 ms", "ours p50/p99 ms"]
    print()
    report.print_table(head, [_cells(row) for row in rows])
    verdicts = [verdict(row) for row in rows]
    if bare is not None:
        verdicts.append(bare_verdict(bare))
        print(
            f"point reads over the bare HTTP loop at {BARE_CLIENTS} clients: {ratio_of(bare):.2f}"
            f" (target {BARE_TARGET}, aim {BARE_AIM}): {verdicts[-1]}"
        )
    if "busy" in verdicts:
        print("busy: others used the machine during the median round, so there is no verdict")
    for trouble in troubles:
        print(f"CHECK FAILED: {trouble}")
    return "NO" in verdicts or "busy" in verdicts


def ratio_of(bare: tuple[list[Run], list[Run]]) -> float:
    return median_run(bare[1]).rate / median_run(bare[0]).rate


def save_report(
    options: Options,
    rows: list[Row],
    bare: tuple[list[Run], list[Run]] | None,
    troubles: list[str],
) -> None:
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "rows": [document_of(row) for row in rows],
        "bare": None if bare is None else {"bare": bare[0], "ours": bare[1]},
        "bare_ratio": None if bare is None else ratio_of(bare),
        "troubles": troubles,
    }
    path = report.save("tables", document)
    if any(row.ratio is not None for row in rows) and (made := report.figure(2)):
        drawn, (left, right) = made
        draw(rows, options.entities, left, right)
        report.save_figure(drawn, path)


def draw(rows: list[Row], entities: int, left: "Axes", right: "Axes") -> None:
    """Plot the ratios with their targets, and the rates of both, on logarithmic scales."""
    shown = [row for row in rows if row.ratio is not None]
    names = [f"{row.workload}\nc={row.clients}" for row in shown]
    # Disturbed rounds are drawn in grey whether or not a target applies to them.
    colors = ["lightgrey" if is_busy(row) else "tab:blue" for row in shown]
    left.bar(names, [row.ratio or 0 for row in shown], color=colors)
    left.axhline(1, color="black", linewidth=0.8)
    for at, row in enumerate(shown):
        if row.target is not None:
            left.plot([at - 0.4, at + 0.4], [row.target, row.target], color="tab:red")
    title = f"ours / Azurite, {entities} entities (red: target, grey: others were busy)"
    left.set(yscale="log", ylim=(0.5, None), title=title)
    places = range(len(shown))
    azurite_rates = [median_run(row.azurite).rate for row in shown]
    our_rates = [median_run(row.partita).rate for row in shown]
    right.bar([at - 0.2 for at in places], azurite_rates, width=0.4, label="Azurite")
    right.bar([at + 0.2 for at in places], our_rates, width=0.4, label="Partita")
    right.set(yscale="log", title="requests a second (W7: entities)")
    right.set_xticks(list(places), names)
    right.legend()


def _clients_of(workload: str) -> int:
    return 1 if workload == "W7" else TARGET_CLIENTS


def verdict(row: Row) -> str:
    """Say yes, NO, busy (disturbed: no verdict) or - (no target applies)."""
    if row.target is None or row.ratio is None:
        return "-"
    return report.verdict(met=row.ratio >= row.target, busy=is_busy(row))


def is_busy(row: Row) -> bool:
    return any(median_run(runs).is_disturbed for runs in (row.azurite, row.partita) if runs)


def bare_verdict(bare: tuple[list[Run], list[Run]]) -> str:
    busy = any(median_run(runs).is_disturbed for runs in bare)
    return report.verdict(met=ratio_of(bare) >= BARE_TARGET, busy=busy)


def _cells(row: Row) -> list[str]:
    ratio, target = row.ratio, row.target
    return [
        f"{row.workload} {TITLES[row.workload]}",
        str(row.clients),
        report.amount(median_run(row.azurite).rate) if row.azurite else "-",
        report.amount(median_run(row.partita).rate) if row.partita else "-",
        "-" if ratio is None else f"{ratio:.1f}",
        "-" if target is None else f"{target:g}",
        verdict(row),
        _cpu(row.azurite),
        _cpu(row.partita),
        "-" if row.cpu_ratio is None else f"{row.cpu_ratio:.1f}",
        _latency(row.azurite),
        _latency(row.partita),
    ]


def _cpu(runs: list[Run]) -> str:
    return _cpu_us(median_run(runs)) if runs else "-"


def _cpu_us(run: Run) -> str:
    """Return the CPU time of a request; with a database: of the front end, and of the database."""
    if not run.store_cpu_us:
        return f"{run.server_cpu_us:.0f}"
    return f"{run.server_cpu_us - run.store_cpu_us:.0f} + {run.store_cpu_us:.0f}"


def _latency(runs: list[Run]) -> str:
    if not runs:
        return "-"
    run = median_run(runs)
    return f"{run.p50_ms:.2f} / {run.p99_ms:.1f}"


def document_of(row: Row) -> dict[str, object]:
    return {
        "workload": row.workload,
        "clients": row.clients,
        "ratio": row.ratio,
        "cpu_ratio": row.cpu_ratio,
        "target": row.target,
        "met": verdict(row),
        "azurite": row.azurite,
        "partita": row.partita,
    }


if __name__ == "__main__":
    report.run_script(main)
