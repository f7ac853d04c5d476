"""Measure shards beside plain SQLAlchemy and bare Alembic: routing, lookups, fan-out, upgrades.

`python bench/shards/run.py` lets the sides take turns, prints medians and ratios beside the
targets and leaves JSON and a plot in bench/out; then it runs moves.py, which does the same for
moves.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

from bench.shards import fan_out, lookup, routing, upgrade, writers
from bench.shards.neighbours import OTHER_CORES_MAX, noted
from bench.tables import report, servers

from support import postgres

PARTS = ("routing", "lookup", "writers", "fan_out", "upgrade", "moves")
DRIVERS = ("psycopg", "asyncpg")
Sides = dict[str, list[float]]
"""One figure a round of each side."""


@dataclass
class Figures:
    """Everything one run found."""

    routing_us: dict[str, Sides] = field(default_factory=dict)
    """By dialect."""
    lookup_us: dict[str, Sides] = field(default_factory=dict)
    """By the number of mappings."""
    fan_out_ms: dict[str, Sides] = field(default_factory=dict)
    """By the driver of the async side."""
    writers_a_second: dict[str, Sides] = field(default_factory=dict)
    """By the number of writers."""
    small_fan_out_ms: dict[str, Sides] = field(default_factory=dict)
    """By dialect."""
    upgrade_seconds: Sides = field(default_factory=dict)
    other_cores: dict[str, float] = field(default_factory=dict)


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    figures = Figures()
    try:
        with servers.workspace("shards") as folder:
            measure(options, folder, figures)
    finally:
        postgres.stop_server()
    verdicts = judge(figures)
    print_report(figures)
    report.print_verdicts(verdicts)
    save_report(options, figures, verdicts)
    have_moves_failed = "moves" in options.only and run_moves(options)
    return have_moves_failed or (options.demand and report.has_missed(verdicts))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="of routing; others are fewer")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--quick", action="store_true", help="few rounds of everything")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.quick:
        options.rounds = 12
    return options


def measure(options: argparse.Namespace, folder: Path, figures: Figures) -> None:
    rounds, cores = options.rounds, figures.other_cores
    if "lookup" in options.only:
        for count in lookup.US_MAX:
            with noted(cores, f"lookup {count}"):
                found = lookup.measure(folder / f"lookup-{count}", count, max(5, rounds // 4))
            figures.lookup_us[str(count)] = found
    if "routing" in options.only:
        with noted(cores, "routing sqlite"):
            catalog, shard = (f"sqlite:///{folder / name}.db" for name in ("catalog", "one"))
            figures.routing_us["sqlite"] = routing.measure(catalog, shard, rounds)
        postgres.server()
        with noted(cores, "routing postgresql"):
            catalog, shard = postgres.postgres_url("catalog"), postgres.postgres_url("one")
            figures.routing_us["postgresql"] = routing.measure(catalog, shard, rounds)
    if "writers" in options.only:
        for count in writers.WRITERS:
            with noted(cores, f"writers {count}"):
                found = writers.measure(folder / f"writers-{count}", count, max(5, rounds // 6))
            figures.writers_a_second[str(count)] = found
    if "fan_out" in options.only:
        postgres.server()
        for driver in DRIVERS:
            with noted(cores, f"fan_out {driver}"):
                found = fan_out.measure(postgres.postgres_url, driver, max(5, rounds // 3))
            figures.fan_out_ms[driver] = found
        for dialect in fan_out.SMALL_SHARDS:
            new = postgres.postgres_url if dialect == "postgresql" else in_folder(folder)
            with noted(cores, f"small fan_out {dialect}"):
                found = fan_out.measure_small(new, dialect, max(5, rounds // 2))
            figures.small_fan_out_ms[dialect] = found
    if "upgrade" in options.only:
        with noted(cores, "upgrade"):
            figures.upgrade_seconds = upgrade.measure(max(1, rounds // 20))


def in_folder(folder: Path) -> fan_out.NewDatabase:
    """Return a maker of SQLite files."""
    folder = folder / "fan_out"
    folder.mkdir()
    return lambda name: f"sqlite:///{folder / name}.db"


def run_moves(options: argparse.Namespace) -> bool:
    """Run the other script; say whether it failed."""
    flags = [f"--{name}" for name in ("quick", "demand") if getattr(options, name)]
    script = Path(__file__).with_name("moves.py")
    return subprocess.run([sys.executable, str(script), *flags], check=False).returncode != 0


# --- what it means --------------------------------------------------------------------------------


def ratio(sides: Sides, side: str, beside: str) -> float:
    """Return the median over rounds of what a side took beside another in the same round."""
    return statistics.median(a / b for a, b in zip(sides[side], sides[beside], strict=True))


def judge(figures: Figures) -> list[tuple[str, str]]:
    """Say of each target whether it was met."""
    verdicts: list[tuple[str, str]] = []

    def say(sentence: str, found: float, most: float, part: str) -> None:
        busy = figures.other_cores[part] > OTHER_CORES_MAX
        verdicts.append((sentence, report.verdict(met=found <= most, busy=busy)))

    for dialect, sides in figures.routing_us.items():
        for side, most in routing.RATIOS_MAX[dialect].items():
            beside = "plain session" if side == "session" else "plain"
            found = ratio(sides, side, beside)
            sentence = f"{dialect}: {side} takes {found:.2f} x {beside} (max {most})"
            say(sentence, found, most, f"routing {dialect}")
    for count, sides in figures.lookup_us.items():
        most = lookup.US_MAX[int(count)]
        hot, found = (statistics.median(sides[name]) for name in ("hot", "any"))
        sentence = f"lookup among {count}: {found:.2f} us (max {most}), a hot key {hot:.2f} us"
        say(sentence, found, most, f"lookup {count}")
    for count, sides in figures.writers_a_second.items():
        for side in ("session", "run"):
            found, failed = ratio(sides, side, "plain"), sum(sides[f"{side} errors"])
            sentence = f"{count} writers of one file: {side} commits {found:.2f} x plain's rate"
            sentence += f" (min {writers.RATIO_MIN}), {failed:.0f} errors"
            say(sentence, -found + failed, -writers.RATIO_MIN, f"writers {count}")
    for driver, sides in figures.fan_out_ms.items():
        for side in ("fan_out", "afan_out"):
            if side == "fan_out" and driver != DRIVERS[0]:
                continue  # the synchronous side is the same
            found = ratio(sides, side, "slowest alone")
            name = side if side == "fan_out" else f"{side} with {driver}"
            sentence = f"{name} over {fan_out.SHARDS} databases takes {found:.2f} x the slowest"
            say(f"{sentence} (max {fan_out.RATIO_MAX})", found, fan_out.RATIO_MAX, _part(driver))
    for dialect, sides in figures.small_fan_out_ms.items():
        shards, most = fan_out.SMALL_SHARDS[dialect], fan_out.SMALL_RATIO_MAX
        for what in ("count", "rows"):
            for side, beside in (("fan_out", "pool"), ("afan_out", "gather")):
                found = ratio(sides, f"{side}, {what}", f"{beside}, {what}")
                sentence = f"{dialect}: {side} of small queries ({what}) over {shards} shards"
                sentence += f" takes {found:.2f} x {beside} by hand (max {most})"
                say(sentence, found, most, f"small fan_out {dialect}")
    if figures.upgrade_seconds:
        found = statistics.median(figures.upgrade_seconds["fleet"])
        sentence = f"upgrade of {upgrade.SHARDS} SQLite shards {found:.2f} s"
        say(f"{sentence} (max {upgrade.SECONDS_MAX})", found, upgrade.SECONDS_MAX, "upgrade")
    return verdicts


def _part(driver: str) -> str:
    return f"fan_out {driver}"


def print_report(figures: Figures) -> None:
    parts = [
        *((f"connect and SELECT 1, {name}, us", each) for name, each in figures.routing_us.items()),
        *((f"lookup among {count}, us", each) for count, each in figures.lookup_us.items()),
        *((f"{n} writers, commits/s", each) for n, each in figures.writers_a_second.items()),
        *((f"fan-out, {driver}, ms", each) for driver, each in figures.fan_out_ms.items()),
        *((f"small fan-out, {n}, ms", each) for n, each in figures.small_fan_out_ms.items()),
        ("upgrade, s", figures.upgrade_seconds),
    ]
    for name, sides in parts:
        if sides:
            print()
            medians = [[side, f"{statistics.median(found):.2f}"] for side, found in sides.items()]
            report.print_table([name, "median"], medians)
    if "sqlite" in figures.routing_us:
        sides = figures.routing_us["sqlite"]
        over = [f"{side} {ratio(sides, side, 'bare'):.2f}" for side in ("plain", "always", "never")]
        print(f"sqlite, over the driver's own mode: {', '.join(over)}")
    print()


def save_report(
    options: argparse.Namespace, figures: Figures, verdicts: list[tuple[str, str]]
) -> None:
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
        },
        "options": vars(options),
        "figures": figures,
        "verdicts": dict(verdicts),
    }
    draw(figures, report.save("shards", document))


def draw(figures: Figures, beside: Path) -> None:
    """Plot the medians of all sides, ours in colour."""
    parts = {
        **{f"connect and SELECT 1, {name}, us": each for name, each in figures.routing_us.items()},
        **{f"fan-out, {name}, ms": each for name, each in figures.fan_out_ms.items()},
        **{f"small fan-out, {n}, ms": each for n, each in figures.small_fan_out_ms.items()},
        "upgrade, s": figures.upgrade_seconds,
    }
    for count, sides in figures.writers_a_second.items():
        rates = {side: sides[side] for side in ("plain", "session", "run")}
        parts[f"{count} writers, commits/s"] = rates
    parts |= {f"lookup among {count}, us": each for count, each in figures.lookup_us.items()}
    parts = {name: sides for name, sides in parts.items() if sides}
    columns = 3
    made = report.figure(columns, -(-len(parts) // columns))
    if made is None:
        return
    drawn, axes = made
    for (name, sides), axis in zip(parts.items(), axes, strict=False):
        plain = ("plain", "bare", "slowest", "pool", "gather")
        colors = ["tab:grey" if side.startswith(plain) else "tab:blue" for side in sides]
        axis.barh(list(sides), [statistics.median(found) for found in sides.values()], color=colors)
        axis.invert_yaxis()
        axis.set(title=name)
    for axis in axes[len(parts) :]:
        axis.set_visible(False)
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
