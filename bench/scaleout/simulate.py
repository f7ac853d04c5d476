"""Simulate fleets of 1 to 1,000 shards under the balancer that the product runs.

`python bench/scaleout/simulate.py` lets loads of four kinds act for hours on fleets of several
sizes: keys with a Zipf distribution, a hot spot that moves, tables that only grow at their end, and
tenants with a daily rhythm. The balancer, its limits and its pauses are the ones of the product
(partita.scaleout.balancing); service times are those that bench/scaleout/run.py has measured
(--figures FILE, by default the newest in bench/out); time, copying and queues are simulated.

It prints latencies, the part of requests that find their shard full, moves per day, and the
processor cost of a million requests, and leaves JSON and a plot in bench/out. `--measured FILE`
compares the cost and the rate of requests with a real run of four shards. See bench/README.md.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.scaleout.shards import JUDGED
from bench.scaleout.store import OURS
from bench.tables import report

from partita.scaleout.balancing.limits import ROUND_SECONDS
from partita.simulation.balanced_fleet import SimulatedFleet

CELLS = 16
"""Partition keys of a range at the start."""
RANGES_PER_SHARD = 10
SIZES = (1, 4, 10, 100, 1000)
TENANT_MAX = 0.4
"""The load of the largest tenants: a larger one would be alone in an account of its own."""
HALF = 0.5
"""The mean load of a shard."""
WRITES_SHARE = 0.1
"""Of all requests, as in the mixed workload W8."""
SECONDS_PER_DAY = 86_400
SHARD_HOURS_MAX = 2000
"""Large fleets are simulated for fewer hours: they show as much in each."""
ROUNDS_PER_HOUR = int(3600 / ROUND_SECONDS)
PAPER_MOVES_PER_DAY = 200
"""Of one stamp of Azure Storage, with about 200 to 400 partition servers (the paper of 2011)."""


@dataclass(frozen=True)
class Service:
    """Processor seconds of one request of the mix."""

    front_end: float
    store: float
    source: str

    @property
    def capacity(self) -> float:
        """Requests per second of a shard with one processor."""
        return 1 / self.store


MEASURED = Service(
    *((0.9 * 26 + 0.1 * 96) * 1e-6, (0.9 * 22 + 0.1 * 100) * 1e-6), "gathered, 16 clients"
)
"""Without a file: 26 + 22 us for a get and 96 + 100 us for an upsert."""


@dataclass(frozen=True)
class Outcome:
    """What one fleet has gone through."""

    load: str
    shards: int
    hours: float
    p50_ms: float
    p99_ms: float
    """Over all requests: in the queue of their shard, and served."""
    full_share: float
    """The part of requests beyond the capacity of their shard: they are refused, and wait."""
    moves_per_day: float
    moves_back: int
    splits: int
    merges: int
    dollars_per_million: float
    hottest: float
    """The mean, over time, of the load of the busiest shard."""


Act = Callable[[SimulatedFleet, int], None]
"""What happens to the loads before a round."""


def main() -> bool:
    options = read_options()
    service = service_of(options.figures)
    print(
        f"service times: {service.front_end * 1e6:.0f} us at the front end,"
        f" {service.store * 1e6:.0f} us at the shard ({service.source})"
    )
    outcomes = []
    for name, shards in itertools.product(options.loads, options.sizes):
        outcome = run(name, shards, options.hours, options.seed, service, options.core_hour)
        outcomes.append(outcome)
        print(row_of(outcome), flush=True)
    told, troubles = compare(options.measured or options.figures, service)
    document = {
        "machine": report.machine(),
        "options": {name: str(value) for name, value in vars(options).items()},
        "service": service,
        "outcomes": outcomes,
        "paper_moves_per_day": PAPER_MOVES_PER_DAY,
        "compared": told,
        "troubles": troubles,
    }
    draw(outcomes, report.save("simulated", document), options.svg)
    missed = [each for each in outcomes if each.moves_back]
    for line in told:
        print(line)
    for trouble in troubles:
        print(f"differs by more than 25 %: {trouble}")
    return options.demand and bool(missed or troubles)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of shards")
    parser.add_argument("--loads", default=",".join(LOADS), help="for example zipf,tenants")
    parser.add_argument("--hours", type=float, default=6, help="simulated, after one to settle")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--figures", type=Path, help="JSON of bench/scaleout/run.py")
    parser.add_argument(
        "--measured", type=Path, help="JSON of a real run of four shards, by default that"
    )
    parser.add_argument("--core-hour", type=float, default=0.04, help="dollars per processor hour")
    parser.add_argument("--svg", type=Path, help="where to write the plot, too")
    parser.add_argument("--quick", action="store_true", help="one hour, small fleets")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    options.loads = options.loads.split(",")
    if options.quick:
        options.hours, options.sizes = 1, [1, 4, 10]
    if unknown := set(options.loads) - set(LOADS):
        parser.error(f"no such load: {', '.join(sorted(unknown))}; there are {', '.join(LOADS)}")
    return options


def service_of(file: Path | None) -> Service:
    """Return the service times of a run of the benchmark, or the ones that are known."""
    found = file or max(report.OUT.glob("scaleout-*.json"), default=None)
    if found is None:
        return MEASURED
    document = json.loads(found.read_text("utf-8"))
    # The mix costs more than its parts: the few writes are gathered less than writes alone.
    if mixed := times_of(document.get("shards", {}), f"{JUDGED} 1"):
        return Service(mixed[0], mixed[1], found.name)
    store = document["store"]
    times = {kind: times_of(store, f"{kind} {OURS}") for kind in ("get", "upsert")}
    if not all(times.values()):
        return MEASURED
    front_end, shard = (
        (1 - WRITES_SHARE) * times["get"][side] + WRITES_SHARE * times["upsert"][side]
        for side in (0, 1)
    )
    return Service(front_end, shard, found.name)


def times_of(part: dict[str, Any], name: str) -> tuple[float, ...]:
    """Return the medians of the processor seconds of a request, or nothing."""
    slices = part.get(name, [])
    return tuple(
        statistics.median(each[side] / max(1, each["requests"]) for each in slices)
        for side in (("client_cpu", "store_cpu") if slices else ())
    )


# The loads


def zipf(shards: int, random_: random.Random) -> tuple[list[float], Act]:
    """Keys whose load falls as 1 / rank, in random order; it drifts."""
    count = cells(shards)
    # The hottest key has at most a tenth of a shard: hotter ones cannot be divided by anything.
    heats = [1 / (rank + 10 + count / 50) for rank in range(count)]
    random_.shuffle(heats)
    return scaled(heats, shards), drifting(random_, shards)


def hot_spot(shards: int, random_: random.Random) -> tuple[list[float], Act]:
    """Even keys, and 0.8 of a shard on top of one range, another one every hour."""
    loads = scaled([random_.paretovariate(2.5) for _ in range(cells(shards))], shards, 0.4)
    spot: list[int] = []

    def act(fleet: SimulatedFleet, round_: int) -> None:
        if round_ % ROUNDS_PER_HOUR == 0 and shards > 1:
            for cell in spot:
                fleet.set_load(cell, fleet.loads[cell] - 0.8 / CELLS)
            start = random_.randrange(len(fleet.loads) - CELLS)
            spot[:] = range(start, start + CELLS)
            for cell in spot:
                fleet.set_load(cell, fleet.loads[cell] + 0.8 / CELLS)

    return loads, act


def append_only(shards: int, random_: random.Random) -> tuple[list[float], Act]:
    """Tables whose writes go to their newest key, which is another one every ten minutes."""
    count = cells(shards)
    loads = scaled([random_.paretovariate(2.5) for _ in range(count)], shards, 0.3)
    length = RANGES_PER_SHARD * CELLS
    ends = [start + random_.randrange(length) for start in range(0, count, length)]

    def act(fleet: SimulatedFleet, round_: int) -> None:
        if round_ % (ROUNDS_PER_HOUR // 6):
            return
        for number, cell in enumerate(ends):
            if round_:
                fleet.set_load(cell, fleet.loads[cell] - 0.2)
                cell = cell // length * length + (cell + 1) % length  # noqa: PLW2901
                ends[number] = cell
            fleet.set_load(cell, fleet.loads[cell] + 0.2)

    return loads, act


def tenants(shards: int, random_: random.Random) -> tuple[list[float], Act]:
    """Tenants with a heavy tail, each busy at another time of the day."""
    heats = [random_.paretovariate(1.6) for _ in range(cells(shards))]
    loads = [min(TENANT_MAX, load) for load in scaled(heats, shards)]
    phases = [random_.random() for _ in loads]
    turn = itertools.cycle(range(len(loads)))

    def act(fleet: SimulatedFleet, round_: int) -> None:
        now = round_ * ROUND_SECONDS / SECONDS_PER_DAY
        for cell in itertools.islice(turn, max(1, len(loads) // 40)):
            wave = 1 + 0.8 * math.sin(2 * math.pi * (now + phases[cell]))
            fleet.set_load(cell, min(TENANT_MAX, loads[cell] * wave))

    return loads, act


LOADS = {"zipf": zipf, "hot-spot": hot_spot, "append-only": append_only, "tenants": tenants}


def cells(shards: int) -> int:
    return shards * RANGES_PER_SHARD * CELLS


def scaled(heats: list[float], shards: int, mean: float = HALF) -> list[float]:
    factor = mean * shards / sum(heats)
    return [heat * factor for heat in heats]


def drifting(random_: random.Random, shards: int) -> Act:
    def act(fleet: SimulatedFleet, _round: int) -> None:
        for _ in range(max(1, shards // 4)):
            cell = random_.randrange(len(fleet.loads))
            fleet.set_load(cell, min(0.1, fleet.loads[cell] * random_.uniform(0.8, 1.25)))

    return act


# One fleet


def run(
    name: str, shards: int, hours: float, seed: int, service: Service, core_hour: float
) -> Outcome:
    loads, act = LOADS[name](shards, random.Random(seed * 1000 + shards))
    fleet = SimulatedFleet(loads, shards=shards, ranges=shards * RANGES_PER_SHARD)
    for _ in range(ROUNDS_PER_HOUR):
        fleet.step()
    moves, back = fleet.moves, fleet.moves_back
    hours = min(hours, SHARD_HOURS_MAX / shards)
    waits: list[tuple[float, float]] = []
    """The time in the queue of a shard, and the requests that meet it."""
    asked = refused = 0.0
    hottest: list[float] = []
    for round_ in range(int(hours * ROUNDS_PER_HOUR)):
        act(fleet, round_)
        fleet.step()
        hottest.append(max(fleet.shard_loads))
        asked += sum(fleet.shard_loads)
        refused += sum(max(0.0, load - 1) for load in fleet.shard_loads)
        if round_ % 4 == 0:
            waits += [(min(load, 0.99), load) for load in fleet.shard_loads]
    days = hours * 3600 / SECONDS_PER_DAY
    return Outcome(
        name,
        shards,
        hours,
        p50_ms=1000 * quantile(waits, service, 0.5),
        p99_ms=1000 * quantile(waits, service, 0.99),
        full_share=refused / asked,
        moves_per_day=(fleet.moves - moves) / days,
        moves_back=fleet.moves_back - back,
        splits=fleet.splits,
        merges=fleet.merges,
        dollars_per_million=dollars(waits, service, core_hour),
        hottest=statistics.mean(hottest),
    )


def sum_of_served(waits: list[tuple[float, float]]) -> float:
    return sum(min(1.0, load) for _busy, load in waits)


def quantile(waits: list[tuple[float, float]], service: Service, part: float) -> float:
    """Return the time that a part of all requests need less than.

    A shard is a queue M/M/1: a request takes longer than t with the probability
    exp(-t (1 - load) / service).
    """
    total = sum(load for _busy, load in waits)
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        later = sum(load * math.exp(-middle * (1 - busy) / service.store) for busy, load in waits)
        low, high = (middle, high) if later / total > 1 - part else (low, middle)
    return high + service.front_end


def dollars(waits: list[tuple[float, float]], service: Service, core_hour: float) -> float:
    """Return what the processors of a million requests cost: front ends as needed, whole shards."""
    mean = sum_of_served(waits) / len(waits)
    seconds = service.front_end + service.store / max(mean, 0.01)
    return 1e6 * seconds / 3600 * core_hour


def row_of(each: Outcome) -> str:
    return (
        f"{each.load:<12}{each.shards:>6} shards  p50 {each.p50_ms:6.3f} ms  p99"
        f" {each.p99_ms:7.3f} ms  full {each.full_share:7.4%}  {each.moves_per_day:7.0f} moves/day"
        f"  {each.moves_back} back  {each.splits:>4} splits"
        f"  {each.dollars_per_million:.4f} $/million  hottest {each.hottest:.2f}"
    )


def compare(file: Path | None, service: Service) -> tuple[list[str], list[str]]:
    """Compare a real run of four shards with what is simulated by the times of one.

    Return what was compared, and what differs by more than 25 %: the processor time of a request,
    and how many requests are answered in a second with the processor time that was used.
    """
    told: list[str] = []
    troubles: list[str] = []
    document = {} if file is None else json.loads(file.read_text("utf-8"))
    for name, found in document.get("shards", {}).items():
        kind, count = name.split()
        if kind != JUDGED or count == "1":
            continue
        costs = [(each["client_cpu"] + each["store_cpu"]) / each["requests"] for each in found]
        used = [(each["client_cpu"] + each["store_cpu"]) / each["seconds"] for each in found]
        rates = [each["requests"] / each["seconds"] for each in found]
        cost = service.front_end + service.store
        rate = min(statistics.median(used) / cost, 1 / service.front_end)
        for what, simulated, measured in (
            ("us of processor time per request", cost * 1e6, statistics.median(costs) * 1e6),
            ("requests per second", rate, statistics.median(rates)),
        ):
            line = f"{count} shards, {what}: {measured:,.0f} measured, {simulated:,.0f} simulated"
            told.append(f"{line} ({simulated / measured:.2f})")
            if not 0.75 <= simulated / measured <= 1.25:
                troubles.append(told[-1])
    return told, troubles


def draw(outcomes: list[Outcome], beside: Path, svg: Path | None) -> None:
    made = report.figure(3, 1)
    if made is None:
        return
    drawn, axes = made
    drawn.set_size_inches(13, 4)
    for name, of_load in grouped(outcomes):
        shards = [each.shards for each in of_load]
        for axis, values in zip(
            axes,
            (
                [each.p99_ms for each in of_load],
                [each.moves_per_day / each.shards for each in of_load],
                [each.hottest for each in of_load],
            ),
            strict=True,
        ):
            axis.plot(shards, values, marker="o", label=name)
    titles = ("p99 at the shard (ms)", "moves per shard and day", "load of the busiest shard")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="shards", xscale="log")
        axis.set_ylim(bottom=0)
    axes[2].axhline(1.0, color="grey", linewidth=0.8)
    axes[0].legend()
    report.save_figure(drawn, beside)
    if svg is not None:
        drawn.savefig(svg, metadata={"Date": None})


def grouped(outcomes: list[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
    for name, found in itertools.groupby(outcomes, lambda each: each.load):
        yield name, [*found]


if __name__ == "__main__":
    report.run_script(main)
