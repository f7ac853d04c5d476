"""Measure Partita on PostgreSQL: beside Azurite, beside pgbench, and what its fence costs.

`python bench/scaleout/run.py` runs the eight workloads of tables beside Azurite; gets and upserts
through the store beside pgbench and beside a store without its fence; one front end beside two on
one database; one shard beside four; and moves of ranges while clients work. It prints processor
times (front end + PostgreSQL) beside rates and targets, and leaves JSON and a plot in bench/out.
See bench/README.md.
"""

import argparse
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scaleout import database, front_ends, moves, shards, store
from bench.scaleout.figures import Slice, median_us, ratio
from bench.tables import checks, report, servers
from bench.tables import run as tables
from bench.tables.workload import PARTITION_ENTITIES

PARTS = ("store", "front-ends", "shards", "moves", *tables.ORDER)
# Ours over Azurite on disk, at 16 clients and 100,000 entities.
TARGETS = {"W1": 8, "W2": 3, "W3": 3, "W4": 3, "W5": 5, "W6": 4, "W7": 6, "W8": 6}
STORE_ENTITIES = 30_000
"""Entities of each side of the parts `store` and `front-ends`: they fit into PostgreSQL's cache."""


@dataclass
class Figures:
    """Everything one run found."""

    rows: list[tables.Row] = field(default_factory=list)
    through_store: store.Slices = field(default_factory=dict)
    by_front_ends: front_ends.Slices = field(default_factory=dict)
    by_shards: shards.Slices = field(default_factory=dict)
    of_moves: moves.MoveFigures | None = None
    troubles: list[str] = field(default_factory=list)


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    figures = Figures()
    with servers.workspace("scaleout") as folder:
        measure(options, folder, figures)
    verdicts = judge(figures)
    has_missed = print_report(figures, verdicts)
    save_report(options, figures, verdicts)
    return bool(figures.troubles) or (options.demand and has_missed)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entities", type=int, default=tables.TARGET_ENTITIES, help="of W1 to W8")
    parser.add_argument("--seconds", type=float, default=8, help="length of one run of W1 to W8")
    parser.add_argument("--rounds", type=int, default=3, help="of W1 to W8")
    parser.add_argument("--slices", type=int, default=7, help="rounds of the other parts, of 3 s")
    parser.add_argument("--moves", type=int, default=200, help="of the part moves")
    parser.add_argument("--move-entities", type=int, default=1_000_000, help="of its large range")
    parser.add_argument("--only", default=",".join(PARTS), help="for example store,W1,W5")
    parser.add_argument("--quick", action="store_true", help="few entities, few and short rounds")
    parser.add_argument("--skip-azurite", action="store_true", help="ours alone, no ratios")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    options.slice_seconds, options.store_entities = 3, STORE_ENTITIES
    if options.quick:
        options.entities = options.store_entities = PARTITION_ENTITIES
        options.seconds, options.rounds, options.slice_seconds, options.slices = 2, 1, 1, 2
        options.moves, options.move_entities = 10, 20_000
    if options.entities % PARTITION_ENTITIES:
        parser.error(f"--entities must be a multiple of {PARTITION_ENTITIES}")
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def measure(options: argparse.Namespace, folder: Path, figures: Figures) -> None:
    """Run the parts one after the other, each on a new PostgreSQL."""
    slices = {
        "entities": options.store_entities,
        "rounds": options.slices,
        "seconds": options.slice_seconds,
    }
    if "store" in options.only:
        print(f"store: {store.CLIENTS} clients in one process, no HTTP")
        with database.started(folder / "store") as postgres:
            figures.through_store = store.measure(postgres, folder, **slices)
    if "front-ends" in options.only:
        print(f"front ends: {front_ends.CLIENTS} clients each")
        with database.started(folder / "front-ends") as postgres:
            figures.by_front_ends = front_ends.measure(postgres, folder, **slices)
    if "shards" in options.only:
        print(f"shards: {shards.CLIENTS_PER_SHARD} clients for each, in one process, no HTTP")
        entities = shards.rounded(options.store_entities)
        figures.by_shards = shards.measure(folder / "shards", **slices | {"entities": entities})
    if "moves" in options.only:
        print(f"moves: {options.moves} of a small range, one of {options.move_entities} entities")
        figures.of_moves = moves.measure(
            folder / "moves", moves=options.moves, entities=options.move_entities
        )
        if figures.of_moves.violations:
            figures.troubles.append(f"{figures.of_moves.violations} reads of a wrong version")
    if any(workload in options.only for workload in tables.ORDER):
        measure_workloads(options, folder, figures)


def measure_workloads(options: argparse.Namespace, folder: Path, figures: Figures) -> None:
    chosen = tables.Options(
        entities=options.entities,
        seconds=options.seconds,
        rounds=options.rounds,
        clients=[tables.TARGET_CLIENTS],
        workloads=[workload for workload in tables.ORDER if workload in options.only],
        ours_command="",
        skip_azurite=options.skip_azurite,
        demand=options.demand,
        targets=TARGETS,
    )
    servers.wrk()  # stop here if it is missing
    with ExitStack() as stack:
        postgres = stack.enter_context(database.started(folder / "workloads"))
        ours = database.front_end(folder / "workloads", postgres)
        sides = tables.load_sides(chosen, folder, stack, ours)
        figures.troubles += [trouble for side in sides for trouble in checks.check_reads(side)]
        figures.rows = tables.run_workloads(chosen, sides, figures.troubles)


# The report


def judge(figures: Figures) -> list[tuple[str, str]]:
    """Say of each ratio of processor times whether it met its target."""
    verdicts: list[tuple[str, str]] = []
    for (kind, side), most in store.TARGETS.items():
        if not figures.through_store:
            continue
        name = f"{kind}: CPU of the store / {side}"
        if (kind, side) not in figures.through_store:
            verdicts.append((f"{name} was not measured (max {most:g})", "-"))
            continue
        found = ratio(figures.through_store[kind, store.OURS], figures.through_store[kind, side])
        verdicts.append((f"{name} {found:.2f} (max {most:g})", report.verdict(met=found <= most)))
    most = front_ends.RATIO_MAX
    for workload in front_ends.WORKLOADS if figures.by_front_ends else ():
        one, two = (figures.by_front_ends[workload, count] for count in front_ends.COUNTS)
        found = ratio(two, one)
        sentence = f"{workload}: CPU of a request, two front ends / one {found:.2f} (max {most:g})"
        verdicts.append((sentence, report.verdict(met=found <= most)))
    if figures.by_shards:
        one, four = (figures.by_shards[shards.JUDGED, count] for count in shards.COUNTS)
        found, most = ratio(four, one), shards.RATIO_MAX
        sentence = f"nine gets to one upsert: CPU of a request, four shards / one {found:.2f}"
        verdicts.append((f"{sentence} (max {most:g})", report.verdict(met=found <= most)))
    for name, value in {} if figures.of_moves is None else figures.of_moves.found().items():
        side = "min" if name.startswith("entities") else "max"
        sentence = f"moves: {name} {value:.4g} ({side} {moves.TARGETS[name]:g})"
        verdicts.append((sentence, report.verdict(met=moves.is_met(name, value))))
    return verdicts


def print_report(figures: Figures, verdicts: list[tuple[str, str]]) -> bool:
    """Print everything; return whether a target was missed, or not shown to be met."""
    has_missed = report.has_missed(verdicts)
    named = {f"{kind}, {side}": found for (kind, side), found in figures.through_store.items()}
    named |= {f"{w}, {n} front end(s)": found for (w, n), found in figures.by_front_ends.items()}
    named |= {f"{kind}, {n} shard(s)": found for (kind, n), found in figures.by_shards.items()}
    if named:
        print()
        head = ["CPU us per request", "front end", "PostgreSQL", "all", "quartiles", "requests/s"]
        report.print_table(head, [[name, *_cells(found)] for name, found in named.items()])
    if named or figures.of_moves is not None:
        report.print_verdicts(verdicts)
    if figures.of_moves is not None:
        found = figures.of_moves
        print(f"{found.requests} requests meanwhile, the slowest {found.slowest:.2f} s")
    if figures.rows or figures.troubles:
        has_missed = tables.print_report(figures.rows, None, figures.troubles) or has_missed
    return has_missed


def _cells(slices: list[Slice]) -> list[str]:
    front_end, postgres, both = median_us(slices)
    low, _, high = statistics.quantiles([each.us for each in slices], n=4, method="inclusive")
    rate = statistics.median(each.rate for each in slices)
    return [
        *(f"{figure:.0f}" for figure in (front_end, postgres, both)),
        f"{low:.0f}-{high:.0f}",
        report.amount(rate),
    ]


def save_report(
    options: argparse.Namespace, figures: Figures, verdicts: list[tuple[str, str]]
) -> None:
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "postgres_settings": database.SETTINGS,
        "rows": [tables.document_of(row) for row in figures.rows],
        "store": {" ".join(names): found for names, found in figures.through_store.items()},
        "front_ends": {
            f"{w} {count}": found for (w, count), found in figures.by_front_ends.items()
        },
        "shards": {f"{kind} {n}": found for (kind, n), found in figures.by_shards.items()},
        "moves": figures.of_moves,
        "verdicts": dict(verdicts),
        "troubles": figures.troubles,
    }
    draw(options, figures, report.save("scaleout", document))


def draw(options: argparse.Namespace, figures: Figures, beside: Path) -> None:
    """Plot ratios and rates of the workloads, and the processor times of the other parts."""
    made = report.figure(2, 2)
    if made is None:
        return
    drawn, axes = made
    if any(row.ratio is not None for row in figures.rows):
        tables.draw(figures.rows, options.entities, axes[0], axes[1])
    bars = {f"{kind}\n{side}": found for (kind, side), found in figures.through_store.items()}
    front = {f"{w}\n{n} FE": found for (w, n), found in figures.by_front_ends.items()}
    titles = ("CPU us per request through the store", "CPU us per request, front ends (FE)")
    for axis, named, title in zip(axes[2:], (bars, front), titles, strict=True):
        medians = [median_us(found) for found in named.values()]
        axis.bar(list(named), [each[0] for each in medians], label="front end, or pgbench")
        bottoms = [each[0] for each in medians]
        axis.bar(list(named), [each[1] for each in medians], bottom=bottoms, label="PostgreSQL")
        axis.set(title=title)
        if named:
            axis.legend()
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
