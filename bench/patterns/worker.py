"""Measure the processor time of indexes in other partitions over HTTP: worker, bulk, rebuild.

`python bench/patterns/worker.py --against FOLDER` lets this checkout and the one in FOLDER take
turns, each in a process of its own, against one server that keeps nothing on disk. What counts is
the processor time of the client: the same on a busy machine, but for the caches that it shares.
"""

import argparse
import asyncio
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables import report, servers

from partita.patterns import Database, Table, connect, entity, evolve, index

PROJECT = Path(__file__).resolve().parents[2]
ENTRIES_PER_SECOND_MIN = 500
TASKS = 16
ENTRY = f"entry, {TASKS} at a time"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

Side = dict[str, float]
"""Milliseconds of processor time an entity, by what was done."""


@entity(table="workerbench", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    email: str
    age: int = 0


by_email = index(Employee, table="workerbenchemail", partition="{email}", row="{id:06d}_{dept}")


async def spent(work: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.process_time()
    await work()
    return (time.process_time() - started) / count * 1000


async def measure(where: str, count: int) -> Side:
    """Do everything once, with new entities, on the code that this process imported."""
    async with connect(where) as db:
        employees = db.table(Employee)
        await db.create_tables()
        await employees.all().allow_scan().delete()
        await db.drain()
        some = [
            Employee(dept=f"{os.getpid()}-{number % 10}", id=number, email=f"{number}@contoso.com")
            for number in range(count)
        ]
        more = [Employee(dept="bulk", id=each.id, email=f"b{each.email}") for each in some]
        figures = {"save": await spent(lambda: _save_each(employees, some), count)}
        figures["entry, one at a time"] = await spent(lambda: _work(db, 1), count)
        await _save_each(employees, [evolve(each, email=f"c{each.email}") for each in some])
        figures[ENTRY] = await spent(lambda: _work(db, TASKS), count)
        figures["upsert_all"] = await spent(lambda: employees.upsert_all(more), count)
        await db.drain()
        await db.disable(by_email)
        figures["rebuild"] = await spent(lambda: db.rebuild(by_email), 2 * count)
        return figures


async def _work(db: Database, tasks: int) -> None:
    """Process all messages with several tasks, as `partita patterns worker --tasks N` does."""

    async def take() -> None:
        while not (await db.work_once()).is_idle:
            pass

    await asyncio.gather(*(take() for _ in range(tasks)))


async def _save_each(employees: Table[Employee], some: list[Employee]) -> None:
    for each in some:
        await employees.save(each)


def measured(source: Path, where: str, count: int) -> Side:
    """Measure the code of a checkout in a new process."""
    words = [sys.executable, __file__, "--measure", where, "--count", str(count)]
    path = os.pathsep.join([str(source / "src"), str(PROJECT)])
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise servers.SetUpError(done.stderr)
    found: Side = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> bool:
    """Run everything; return whether it failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, to take turns with")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few rounds of everything")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(asyncio.run(measure(options.measure, options.count))))
        return False
    if options.quick:
        options.count, options.rounds = 200, 2
    checkouts = {"before": options.against, "now": PROJECT}
    sides = {name: path for name, path in checkouts.items() if path is not None}
    found: dict[str, list[Side]] = {name: [] for name in sides}
    with servers.workspace("worker") as folder:
        queue_port = servers.free_port()
        flags = f"--in-memory --no-blobs --table-port {{port}} --queue-port {queue_port}"
        program = shlex.quote(str(Path(sys.executable).with_name("partita")))
        server = servers.partita(folder, f"{program} serve {flags}")
        server.start()
        where = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"TableEndpoint=http://127.0.0.1:{server.port}/{ACCOUNT};"
            f"QueueEndpoint=http://127.0.0.1:{queue_port}/{ACCOUNT}"
        )
        try:
            for _ in range(options.rounds):
                for name, path in sides.items():
                    found[name].append(measured(path, where, options.count))
        finally:
            server.stop()
    return judge(found, is_demanded=options.demand)


def judge(found: dict[str, list[Side]], *, is_demanded: bool) -> bool:
    names = list(found["now"][0])
    medians = {
        side: {name: statistics.median(each[name] for each in rounds) for name in names}
        for side, rounds in found.items()
    }
    rows = [[name, *(f"{medians[side][name]:.2f}" for side in medians)] for name in names]
    report.print_table(["processor ms an entity", *medians], rows)
    rate = 1000 / medians["now"][ENTRY]
    sentence = f"{rate:.0f} outbox entries a second a core (min {ENTRIES_PER_SECOND_MIN})"
    verdicts = [(sentence, report.verdict(met=rate >= ENTRIES_PER_SECOND_MIN))]
    report.print_verdicts(verdicts)
    report.save("worker", {"machine": report.machine(), "rounds": found, "medians": medians})
    return is_demanded and report.has_missed(verdicts)


if __name__ == "__main__":
    report.run_script(main)
