"""Measure the typed layer beside the official SDK that it wraps, in this process.

`python bench/patterns/run.py` lets the sides take turns, prints medians and ratios beside the
targets and leaves JSON and a plot in bench/out. What is counted instead of timed (requests of a
lookup) is counted here too.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from azure.data.tables import UpdateMode
from bench.shards.neighbours import OTHER_CORES_MAX, noted
from bench.tables import report, servers

import partita
from partita.patterns import Database, connect, entity, index

TYPED_MAX = 1.15
DIRECT_MIN = 4.0
BULK_MIN = 10.0
TASKS = 16

Call = Callable[[int], Awaitable[object]]
Sides = dict[str, list[float]]
"""Microseconds a call, one figure a round of each side."""


@entity(table="bench", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    first: str
    last: str
    email: str
    age: int = 0


@entity(table="indexed", partition="{dept}", row="emp_{id:06d}")
class Indexed:
    dept: str
    id: int
    email: str


@entity(table="claims", partition="{owner}", row="{at:desc}")
class Claim:
    owner: str
    at: datetime


by_email = index(Indexed, row="email_{email}", unique=True)


@dataclass
class Figures:
    calls_us: dict[str, Sides] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    other_cores: dict[str, float] = field(default_factory=dict)


def an_employee(number: int, *, dept: str = "Sales0") -> Employee:
    return Employee(
        dept=dept,
        id=number,
        first="Jun",
        last="Cao",
        email=f"jun{number}@contoso.com",
        age=47,
    )


def as_the_sdk_takes_it(employee: Employee) -> dict[str, Any]:
    return {
        "PartitionKey": employee.dept,
        "RowKey": f"emp_{employee.id:06d}",
        "First": employee.first,
        "Last": employee.last,
        "Email": employee.email,
        "Age": (employee.age, "Edm.Int64"),
        "EntityType": "Employee",
        "_Write": "0123456789abcdef",
    }


async def timed(call: Call, count: int, tasks: int = 1) -> float:
    async def work(first: int) -> None:
        for number in range(first, count, tasks):
            await call(number)

    started = time.perf_counter()
    await asyncio.gather(*(work(first) for first in range(tasks)))
    return (time.perf_counter() - started) / count * 1e6


async def in_turns(sides: dict[str, Call], rounds: int, count: int, tasks: int = 1) -> Sides:
    """Let the sides take turns, and change who begins."""
    found: Sides = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            spent = await timed(sides[name], count, tasks)
            if number:  # the first round warms up
                found[name].append(spent)
    return found


async def measure(options: argparse.Namespace, folder: Path, figures: Figures) -> None:
    account = partita.open_account(folder)
    try:
        async with connect(account) as typed, connect(account, direct=True) as direct:
            typed.table(Employee)
            typed.table(Indexed)
            typed.table(Claim)
            await typed.create_tables()
            await measure_calls(options, account, typed, direct, figures)
            await measure_bulk(options, typed, figures)
            await count_requests(typed, figures)
    finally:
        account.close()


async def measure_calls(
    options: argparse.Namespace,
    account: Any,
    typed: Database,
    direct: Database,
    figures: Figures,
) -> None:
    count = 200
    client = account.aio.tables.get_table_client("bench")
    ours, near = typed.table(Employee), direct.table(Employee)
    await ours.upsert_all([an_employee(number) for number in range(count)])
    numbers = iter(range(10_000, 10_000_000))

    reads: dict[str, Call] = {
        "sdk": lambda number: client.get_entity("Sales0", f"emp_{number:06d}"),
        "typed": lambda number: ours.get(dept="Sales0", id=number),
        "direct": lambda number: near.get(dept="Sales0", id=number),
    }
    replaces: dict[str, Call] = {
        "sdk": lambda number: client.upsert_entity(
            as_the_sdk_takes_it(an_employee(number)), mode=UpdateMode.REPLACE
        ),
        "typed": lambda number: ours.upsert(an_employee(number)),
        "direct": lambda number: near.upsert(an_employee(number)),
    }
    inserts: dict[str, Call] = {
        "sdk": lambda _: client.create_entity(as_the_sdk_takes_it(an_employee(next(numbers)))),
        "typed": lambda _: ours.save(an_employee(next(numbers))),
        "direct": lambda _: near.save(an_employee(next(numbers))),
    }
    for name, sides, tasks in (
        ("get", reads, 1),
        ("upsert", replaces, 1),
        ("save", inserts, 1),
        (f"get at {TASKS} tasks", reads, TASKS),
        (f"save at {TASKS} tasks", inserts, TASKS),
    ):
        with noted(figures.other_cores, name):
            figures.calls_us[name] = await in_turns(sides, options.rounds, count, tasks)


async def measure_bulk(options: argparse.Namespace, typed: Database, figures: Figures) -> None:
    """Save many at once, and some one by one, in new partitions each time."""
    many = options.many
    batches = iter(range(1_000_000))
    table = typed.table(Employee)
    sides: Sides = {"one by one": [], "save_all": []}
    with noted(figures.other_cores, "bulk"):
        for _ in range(max(3, options.rounds // 4)):
            batch = next(batches)
            some = [an_employee(number, dept=f"{batch}-{number % 10}") for number in range(many)]
            started = time.perf_counter()
            outcome = await table.save_all(some)
            assert not outcome.failures
            sides["save_all"].append((time.perf_counter() - started) / many * 1e6)
            singles = [an_employee(number, dept=f"{batch}-one") for number in range(300)]
            started = time.perf_counter()
            for each in singles:
                await table.save(each)
            sides["one by one"].append((time.perf_counter() - started) / len(singles) * 1e6)
    figures.calls_us["bulk"] = sides


async def count_requests(typed: Database, figures: Figures) -> None:
    table = typed.table(Indexed)
    for number in range(20):
        await table.save(Indexed(dept="Sales", id=number, email=f"{number}@contoso.com"))
    with typed.measuring() as cost:
        await table.via(by_email).get(dept="Sales", email="7@contoso.com")
    figures.requests["index lookup"] = cost.requests
    moments = [datetime(2026, 1, 1, minute=minute, tzinfo=UTC) for minute in range(20)]
    await typed.table(Claim).save_all([Claim(owner="jun", at=moment) for moment in moments])
    mine = typed.table(Claim).partition(owner="jun")
    with typed.measuring() as cost:
        assert len(await mine.latest(10).list()) == 10
    figures.requests["latest(10)"] = cost.requests


# --- what it means --------------------------------------------------------------------------------


def ratio(sides: Sides, side: str, beside: str) -> float:
    return statistics.median(sides[side]) / statistics.median(sides[beside])


def judge(figures: Figures) -> list[tuple[str, str]]:
    verdicts: list[tuple[str, str]] = []

    def say(sentence: str, part: str, *, met: bool) -> None:
        busy = figures.other_cores.get(part, 0.0) > OTHER_CORES_MAX
        verdicts.append((sentence, report.verdict(met=met, busy=busy)))

    for name in ("get", "upsert", "save"):
        found = ratio(figures.calls_us[name], "typed", "sdk")
        sentence = f"typed {name} takes {found:.2f} x the SDK's call (max {TYPED_MAX})"
        say(sentence, name, met=found <= TYPED_MAX)
    for name in ("get", f"save at {TASKS} tasks"):
        found = ratio(figures.calls_us[name], "typed", "direct")
        sentence = f"direct {name} is {found:.1f} x as fast as through the SDK (min {DIRECT_MIN})"
        say(sentence, name, met=found >= DIRECT_MIN)
    found = ratio(figures.calls_us["bulk"], "one by one", "save_all")
    sentence = f"save_all is {found:.1f} x as fast as one by one (min {BULK_MIN})"
    say(sentence, "bulk", met=found >= BULK_MIN)
    for name, requests in figures.requests.items():
        say(f"{name} takes {requests} request (exactly 1)", name, met=requests == 1)
    return verdicts


def main() -> bool:
    """Run everything; return whether it failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--many", type=int, default=10_000, help="entities of the bulk writer")
    parser.add_argument("--quick", action="store_true", help="few rounds of everything")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.many = 4, 2_000
    figures = Figures()
    with servers.workspace("patterns") as folder:
        asyncio.run(measure(options, folder, figures))
    verdicts = judge(figures)
    for name, sides in figures.calls_us.items():
        print()
        medians = [[side, f"{statistics.median(found):.0f}"] for side, found in sides.items()]
        report.print_table([f"{name}, us a call", "median"], medians)
    print()
    report.print_verdicts(verdicts)
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
    draw(figures, report.save("patterns", document))
    return options.demand and report.has_missed(verdicts)


def draw(figures: Figures, beside: Path) -> None:
    """Plot the medians of all sides, ours in colour."""
    columns = 3
    made = report.figure(columns, -(-len(figures.calls_us) // columns))
    if made is None:
        return
    drawn, axes = made
    for (name, sides), axis in zip(figures.calls_us.items(), axes, strict=False):
        colors = ["tab:grey" if side in ("sdk", "one by one") else "tab:blue" for side in sides]
        axis.barh(list(sides), [statistics.median(found) for found in sides.values()], color=colors)
        axis.invert_yaxis()
        axis.set(title=f"{name}, us")
    for axis in axes[len(figures.calls_us) :]:
        axis.set_visible(False)
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
