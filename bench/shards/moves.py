"""Measure what a move costs: rows a second of its copy phase, and how long its fence is closed.

`python bench/shards/moves.py` moves rows of 200 bytes between two PostgreSQL databases and two
SQLite files, in turns with one bare COPY (INSERT … SELECT on SQLite) and with select and
executemany. Then a small range bounces while writer processes work on it. It prints medians
beside the targets and leaves JSON and a plot in bench/out.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests"))

import psycopg
from bench.tables import report, servers
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    func,
    insert,
    make_url,
    select,
    text,
    update,
)

from partita.errors import PartitaError
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from support import postgres

ROW_BYTES = 200
TENANTS = 100
COPY_MIN = 150_000
FENCE_P99_MAX = 1.0
OTHER_CORES_MAX = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")

metadata = MetaData()
event = Table(
    "event",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("number", Integer),
    Column("body", String(ROW_BYTES)),
)
NewDatabase = Callable[[str], str]


@dataclass
class Figures:
    """Everything one run found; lists hold one figure a round or a move."""

    copy_rows: dict[str, list[float]] = field(default_factory=dict)
    """Rows a second, by who copied."""
    steps: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Seconds of each step of each move, by kind of database."""
    fences: list[float] = field(default_factory=list)
    """Seconds that the fence was closed while processes wrote."""
    writes_a_second: float = 0.0
    terminated: int = 0
    other_cores: dict[str, float] = field(default_factory=dict)


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    figures = Figures()
    try:
        measure_copies(options, figures)
        measure_fences(options, figures)
    finally:
        postgres.stop_server()
    verdicts = judge(options, figures)
    print_report(figures, verdicts)
    save_report(options, figures, verdicts)
    return options.demand and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--moves", type=int, default=100, help="while processes write")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="fewer rows, rounds and moves")
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds, options.moves = 150_000, 2, 12
    return options


class Bench:
    """Two shards; all rows begin on the first one."""

    def __init__(self, new: NewDatabase, rows: int) -> None:
        self.catalog = new("catalog")
        self.manager = ShardMapManager.create(self.catalog)
        schema = ShardedSchema(metadata, keys={"event": "tenant_id"})
        self.tenants = self.manager.create_range_map("tenants", key=int, schema=schema)
        self.one, self.two = (self.tenants.create_shard(new(name)) for name in ("one", "two"))
        for shard in (self.one, self.two):
            with shard.connect() as connection:
                metadata.create_all(connection)
                connection.commit()
        self.tenants.create_mapping(Range(0, TENANTS), self.one)
        self.rows = rows
        self._fill()

    def _fill(self) -> None:
        # With the columns of numbers and the lengths, a row takes ROW_BYTES.
        body = "x" * (ROW_BYTES - 16)
        with self.one.connect() as connection:
            for start in range(0, self.rows, 20_000):
                numbers = range(start, min(start + 20_000, self.rows))
                values = [
                    {"tenant_id": n % TENANTS, "id": n, "number": n, "body": body} for n in numbers
                ]
                connection.execute(insert(event), values)
            connection.commit()

    def vacuum(self) -> None:
        """Forget the rows of the last round, as autovacuum would have done by tomorrow."""
        if self.one.location.backend == "postgresql":
            for shard in (self.one, self.two):
                with _connect(shard) as connection:
                    connection.autocommit = True
                    connection.execute("VACUUM (ANALYZE) event")

    @property
    def mapping(self) -> Mapping:
        return self.tenants.get(1, lookup="store")

    def other(self, mapping: Mapping) -> Shard:
        return self.two if mapping.shard == self.one else self.one


# --- the copy -------------------------------------------------------------------------------------


def measure_copies(options: argparse.Namespace, figures: Figures) -> None:
    """Let a move, the bare way and executemany take turns, on both kinds of databases."""
    with servers.workspace("shards") as folder, _others(figures, "copy"):
        kinds: dict[str, tuple[Bench, Callable[[Bench], float]]] = {
            "postgresql": (Bench(postgres.postgres_url, options.rows), bare_copy),
            "sqlite": (
                Bench(lambda name: f"sqlite:///{folder / name}.db", options.rows),
                bare_insert,
            ),
        }
        for _ in range(options.rounds):
            for kind, (bench, bare) in kinds.items():
                note(figures.copy_rows, f"bare, {kind}", bare(bench))
                note(figures.copy_rows, f"executemany, {kind}", executemany(bench))
                steps = move_all(bench)
                figures.steps.setdefault(kind, []).append(steps)
                note(figures.copy_rows, f"move, {kind}", bench.rows / steps["copy"])
        for bench, _ in kinds.values():
            bench.manager.close()
    for name, rates in figures.copy_rows.items():
        print(f"  {name}: {report.amount(statistics.median(rates))} rows/s", flush=True)


def move_all(bench: Bench) -> dict[str, float]:
    """Move everything and return the seconds of each step."""
    bench.vacuum()
    marks: dict[str, float] = {}

    def on_progress(progress: move.MoveProgress) -> None:
        marks.setdefault(progress.step, time.perf_counter())

    mapping = bench.mapping
    done = move.move(bench.manager, mapping, bench.other(mapping), on_progress=on_progress)
    assert done.rows == bench.rows
    ends = [*list(marks.values())[1:], time.perf_counter()]
    seconds = {step: end - marks[step] for step, end in zip(marks, ends, strict=True)}
    return seconds | {"fence closed": done.fence_seconds}


def bare_copy(bench: Bench) -> float:
    """Return rows a second of one COPY from the shard with the rows to a scratch table."""
    mapping = bench.mapping
    with _connect(mapping.shard) as source, _connect(bench.other(mapping)) as target:
        target.execute("CREATE TABLE scratch (LIKE event INCLUDING ALL)")
        target.commit()
        started = time.perf_counter()
        with (
            source.cursor().copy(b"COPY event TO STDOUT (FORMAT binary)") as reading,
            target.cursor().copy(b"COPY scratch FROM STDIN (FORMAT binary)") as writing,
        ):
            for block in reading:
                writing.write(block)
        target.commit()
        seconds = time.perf_counter() - started
        target.execute("DROP TABLE scratch")
    return bench.rows / seconds


def bare_insert(bench: Bench) -> float:
    """Return rows a second of one INSERT … SELECT from file to file."""
    mapping = bench.mapping
    with bench.other(mapping).connect() as target:
        path = mapping.shard.location.identity.removeprefix("sqlite://")
        # Outside of a transaction: SQLAlchemy has begun one already.
        driver: Any = target.connection.driver_connection
        driver.rollback()
        driver.execute("ATTACH DATABASE ? AS source", (path,))
        driver.execute(
            "CREATE TABLE scratch (tenant_id INTEGER, id BIGINT, number INTEGER, body TEXT,"
            " PRIMARY KEY (tenant_id, id))"
        )
        started = time.perf_counter()
        driver.execute("INSERT INTO scratch SELECT * FROM source.event")
        seconds = time.perf_counter() - started
        driver.execute("DROP TABLE scratch")
        driver.execute("DETACH DATABASE source")
    return bench.rows / seconds


def executemany(bench: Bench, rows: int = 20_000) -> float:
    """Return rows a second of select and executemany."""
    mapping = bench.mapping
    with mapping.shard.connect() as source, bench.other(mapping).connect() as target:
        target.execute(text("CREATE TABLE scratch AS SELECT * FROM event WHERE 1 = 0"))
        scratch = Table("scratch", MetaData(), *(Column(c.name, c.type) for c in event.columns))
        started = time.perf_counter()
        read = source.execute(select(event).limit(rows)).all()
        for start in range(0, len(read), 1_000):
            target.execute(insert(scratch), [row._asdict() for row in read[start : start + 1_000]])
        target.commit()
        seconds = time.perf_counter() - started
        target.execute(text("DROP TABLE scratch"))
        target.commit()
    return len(read) / seconds


def _connect(shard: Shard) -> psycopg.Connection[Any]:
    url = make_url(shard.location.text)
    return psycopg.connect(host=url.host, port=url.port, dbname=url.database)


# --- the fence ------------------------------------------------------------------------------------


def measure_fences(options: argparse.Namespace, figures: Figures) -> None:
    """Bounce a range while processes write to it."""
    bench = Bench(postgres.postgres_url, 5_000)
    bench.manager.close()
    with tempfile.TemporaryDirectory() as folder, _others(figures, "fence"):
        stop = Path(folder) / "stop"
        children = [
            _fork(lambda n=n: write(bench.catalog, n, stop))  # type: ignore[misc]
            for n in range(options.writers)
        ]
        started = time.perf_counter()
        try:
            with ShardMapManager.open(bench.catalog) as manager:
                for _ in range(options.moves):
                    bounce(manager, figures)
        finally:
            stop.touch()
            for child in children:
                os.waitpid(child, 0)
        seconds = time.perf_counter() - started
        with ShardMapManager.open(bench.catalog) as manager:
            figures.writes_a_second = 2 * (count(manager) - bench.rows) / seconds


def bounce(manager: ShardMapManager, figures: Figures) -> None:
    tenants = manager.get_map("tenants")
    mapping = tenants.get(1, lookup="store")
    (to,) = (shard for shard in tenants.shards() if shard != mapping.shard)
    done = move.move(manager, mapping, to)
    figures.fences.append(done.fence_seconds)
    figures.terminated += done.terminated


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def write(catalog: str, number: int, stop: Path) -> None:
    """Insert rows and change each once, as fast as it goes."""
    tenants = ShardMapManager.open(catalog).get_map("tenants")
    row = (number + 1) * 10_000_000
    while not stop.exists():
        row += 1
        tenant = row % TENANTS
        new = insert(event).values(tenant_id=tenant, id=row, number=0, body="y")
        again = update(event).where(event.c.tenant_id == tenant, event.c.id == row)
        try:
            for statement in (new, again.values(number=1)):
                tenants.run(tenant, lambda session, one=statement: session.execute(one))  # type: ignore[misc]
        except PartitaError as error:
            print("writer:", error, file=sys.stderr)


def count(manager: ShardMapManager) -> int:
    total = 0
    for shard in manager.get_map("tenants").shards():
        with shard.connect() as connection:
            total += connection.scalar(select(func.count()).select_from(event)) or 0
    return total


# --- what it means --------------------------------------------------------------------------------


def judge(options: argparse.Namespace, figures: Figures) -> list[tuple[str, str]]:
    """Say of each target whether it was met."""
    rate = statistics.median(figures.copy_rows["move, postgresql"])
    p99 = quantile(figures.fences, 0.99)
    beside = f"beside {options.writers} writers"
    busy = {what: cores > OTHER_CORES_MAX for what, cores in figures.other_cores.items()}
    return [
        (
            f"copy phase {rate:.0f} rows/s of {ROW_BYTES} bytes (min {COPY_MIN})",
            report.verdict(met=rate >= COPY_MIN, busy=busy["copy"]),
        ),
        (
            f"fence closed {p99:.3f} s at p99 {beside} (max {FENCE_P99_MAX})",
            report.verdict(met=p99 <= FENCE_P99_MAX, busy=busy["fence"]),
        ),
    ]


def print_report(figures: Figures, verdicts: list[tuple[str, str]]) -> None:
    names = list(figures.steps)
    rows = [
        [f"{step}, s", *(f"{_step(figures, name, step):.3f}" for name in names)]
        for step in figures.steps[names[0]][0]
    ]
    print()
    report.print_table(["medians of a whole move", *names], rows)
    print(
        f"fence beside writers: median {statistics.median(figures.fences):.3f} s, longest"
        f" {max(figures.fences):.3f} s, {figures.terminated} sessions terminated,"
        f" {figures.writes_a_second:.0f} writes/s meanwhile"
    )
    report.print_verdicts(verdicts)


def _step(figures: Figures, kind: str, step: str) -> float:
    return statistics.median(seconds[step] for seconds in figures.steps[kind])


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
        "row_bytes": ROW_BYTES,
        "figures": figures,
        "verdicts": dict(verdicts),
    }
    draw(figures, report.save("shards-moves", document))


def draw(figures: Figures, beside: Path) -> None:
    """Plot rows a second of all ways, and how long fences were closed."""
    made = report.figure(2)
    if made is None:
        return
    drawn, (rates, fences) = made
    names = list(figures.copy_rows)
    colors = ["tab:blue" if name.startswith("move") else "tab:grey" for name in names]
    medians = [statistics.median(figures.copy_rows[name]) for name in names]
    rates.barh(names, medians, color=colors)
    rates.axvline(COPY_MIN, color="tab:red", linestyle=":", label="target")
    rates.set(title=f"rows of {ROW_BYTES} bytes a second")
    rates.legend()
    ordered = sorted(figures.fences)
    fences.plot(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))])
    fences.axvline(FENCE_P99_MAX, color="tab:red", linestyle=":", label="target of p99")
    fences.set(title="share of fences closed for at most so many seconds", xlim=(0, None))
    fences.legend()
    report.save_figure(drawn, beside)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def note(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


@contextmanager
def _others(figures: Figures, what: str) -> Iterator[None]:
    """Note how many cores others took meanwhile: they spoil a figure more than code does."""
    postgres.server()
    before, machine, started = _own(), servers.machine_cpu_seconds(), time.perf_counter()
    yield
    elapsed = time.perf_counter() - started
    others = servers.machine_cpu_seconds() - machine - (_own() - before)
    figures.other_cores[what] = max(0.0, others) / elapsed


def _own() -> float:
    """Return processor seconds of this process and all below it, the server's sessions too."""
    seconds: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # because it has just ended
            continue
        seconds[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in seconds.items() if parent in family} - family:
        family |= more
    return sum(seconds[pid][1] for pid in family)


if __name__ == "__main__":
    report.run_script(main)
