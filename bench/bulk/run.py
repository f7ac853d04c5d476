"""Measure the bulk verbs beside the official SDK, against one `partita serve`.

`python bench/bulk/run.py` imports, exports and counts the same entities as W4 writes, with the
verbs and with the loops that users of the SDK write, and prints ratios beside their targets: of
processor time, client and server together, which other load changes little, and of rates. What W4
allows is measured in the same run: ready batches of 100 on 16 connections. JSON and a plot are left
in bench/out. See bench/README.md.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableServiceClient
from bench.tables import report, servers
from bench.tables.connection import Connection
from bench.tables.load import check_batch
from bench.tables.measure import OTHER_CORES_MAX, CpuMeter
from bench.tables.servers import Server
from bench.tables.workload import ACCOUNT, ACCOUNT_KEY, GROUP_OPERATIONS, TABLE, Requests, entity

CONNECTIONS = 16
LOOP_ENTITIES = 2_000
"""How many entities the loop of upserts writes: its rate does not depend on their number."""
TARGETS = {
    "import / SDK upsert loop": 25.0,
    "import / W4": 1 / 1.5,
    "export / SDK list_entities": 10.0,
    "count / SDK list_entities": 20.0,
}
MEMORY_BYTES_MAX = 200_000_000


def main() -> bool:
    """Run everything; return whether it failed."""
    options = read_options()
    with ExitStack() as stack:
        work = stack.enter_context(servers.workspace("bulk"))
        server = servers.partita(work / "partita")
        stack.callback(server.stop)
        server.start()
        rounds = [
            Round(server, work, options.entities, number).run() for number in range(options.rounds)
        ]
    steps = [name for name in rounds[0] if isinstance(rounds[0][name], Step)]
    rates = {name: statistics.median(each[name].rate for each in rounds) for name in steps}
    costs = {name: statistics.median(each[name].cost_us for each in rounds) for name in steps}
    is_busy = any(each[name].other_cores > OTHER_CORES_MAX for each in rounds for name in steps)
    memory = max(each["peak_bytes"] for each in rounds)
    by_rate = ratios_of(rates)
    by_cost = ratios_of({name: 1 / cost for name, cost in costs.items()})
    verdicts = judge(by_rate, by_cost, memory, is_busy=is_busy)
    report.print_table(
        ("", "entities/s", "client us", "server us"),
        [
            (
                name,
                report.amount(rates[name]),
                *(
                    f"{statistics.median(getattr(each[name], part) for each in rounds):.1f}"
                    for part in ("client_us", "server_us")
                ),
            )
            for name in steps
        ],
    )
    report.print_verdicts(verdicts)
    document = {
        "machine": report.machine(),
        "options": vars(options),
        "rounds": [
            {name: asdict(each[name]) if name in steps else each[name] for name in each}
            for each in rounds
        ],
        "rates": rates,
        "cost_us": costs,
        "ratios": by_rate,
        "ratios_by_processor_time": by_cost,
        "peak_bytes": memory,
        "verdicts": dict(verdicts),
    }
    draw(rates, report.save("bulk", document))
    return bool(options.demand) and report.has_missed(verdicts)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entities", type=int, default=200_000, help="a multiple of 10,000")
    parser.add_argument("--rounds", type=int, default=3)
    return report.read_options(parser, "20,000 entities, one round", entities=20_000, rounds=1)


@dataclass(frozen=True)
class Step:
    """One measurement: entities per second, and processor time per entity."""

    rate: float
    client_us: float
    """The start of a verb is part of it."""
    server_us: float
    other_cores: float

    @property
    def cost_us(self) -> float:
        return self.client_us + self.server_us


class Round:
    """Each measurement once, one after the other, on tables of its own."""

    def __init__(self, server: Server, work: Path, entities: int, number: int) -> None:
        self._server = server
        self._work = work
        self._entities = entities
        self._first = number * entities
        self._table = f"bulk{number}"
        self._peak_bytes = 0
        endpoint = f"http://127.0.0.1:{server.port}/{ACCOUNT}"
        self._where = f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};TableEndpoint={endpoint}"
        # As an installed program: its modules are compiled once, not at every start.
        self._environment = os.environ | {
            "PARTITA_CONNECT": self._where,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(work / "compiled"),
        }
        self._service = TableServiceClient(
            endpoint, credential=AzureNamedKeyCredential(ACCOUNT, ACCOUNT_KEY)
        )

    def run(self) -> dict[str, Any]:
        rows = self._work / f"{self._table}.jsonl"
        with rows.open("wb") as file:
            file.writelines(entity(self._first + n) + b"\n" for n in range(self._entities))
        ready = self._ready_batches()
        self._start_each_verb()
        steps: dict[str, tuple[int, Callable[[], float]]] = {
            "W4": (len(ready) * GROUP_OPERATIONS, lambda: self._batches(ready)),
            "SDK upsert loop": (LOOP_ENTITIES, self._upserts),
            "import": (self._entities, lambda: self._verb("import", self._table, str(rows))),
            "SDK list_entities": (self._entities, self._listed),
            "export": (
                self._entities,
                lambda: self._verb("export", self._table, "--to", f"{rows}.out.jsonl"),
            ),
            "count": (self._entities, lambda: self._verb("count", self._table)),
        }
        found: dict[str, Any] = {}
        for name, (entities, step) in steps.items():
            self._server.settle()
            meter = CpuMeter(self._server)
            rate = step()
            usage = meter.read()
            client, server = usage.client * 1e6 / entities, usage.server * 1e6 / entities
            found[name] = Step(rate, client, server, usage.other_cores)
            print(
                f"{self._table}: {name} {report.amount(rate)}/s, "
                f"client {client:.1f} us, server {server:.1f} us per entity",
                flush=True,
            )
        for path in self._work.glob(f"{self._table}*"):
            path.unlink()
        return {**found, "peak_bytes": self._peak_bytes}

    def _ready_batches(self) -> list[tuple[int, bytes]]:
        requests = Requests(self._server.port)
        end = self._first + self._entities // 4
        return [
            (first, requests.batch(first)) for first in range(self._first, end, GROUP_OPERATIONS)
        ]

    def _batches(self, ready: list[tuple[int, bytes]]) -> float:
        """Send ready batches, as W4 does."""
        self._service.create_table_if_not_exists(TABLE)
        started = time.perf_counter()
        asyncio.run(_send(self._server.port, iter(ready)))
        return len(ready) * GROUP_OPERATIONS / (time.perf_counter() - started)

    def _upserts(self) -> float:
        table = self._service.create_table_if_not_exists(f"{self._table}sdk")
        found = [json.loads(entity(self._first + number)) for number in range(LOOP_ENTITIES)]
        started = time.perf_counter()
        for each in found:
            table.upsert_entity({name: v for name, v in each.items() if "@" not in name})
        return LOOP_ENTITIES / (time.perf_counter() - started)

    def _listed(self) -> float:
        table = self._service.get_table_client(self._table)
        started = time.perf_counter()
        count = 0
        with (self._work / f"{self._table}.sdk.jsonl").open("w") as file:
            for each in table.list_entities():
                file.write(json.dumps(each, default=str) + "\n")
                count += 1
        assert count == self._entities, count
        return count / (time.perf_counter() - started)

    def _start_each_verb(self) -> None:
        for words in (
            ["import", "Missing", "missing.jsonl"],
            ["export", "Missing", "--to", "-"],
            ["count", "Missing"],
        ):
            subprocess.run(
                [sys.executable, "-m", "partita.cli.main", *words],
                env=self._environment,
                capture_output=True,
                check=False,
            )

    def _verb(self, *words: str) -> float:
        """Run a verb as a process; its start is part of the time."""
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "partita.cli.main", *words, "--json"],
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        assert process.stdout is not None
        facts = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        assert process.returncode == 0, facts
        self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * 1024)
        assert _entities_of(facts) == self._entities, facts
        return self._entities / seconds


def _entities_of(facts: dict[str, Any]) -> int:
    return int(facts["files"][0]["written"] if "files" in facts else facts["entities"])


async def _send(port: int, ready: Iterator[tuple[int, bytes]]) -> None:
    async def work() -> None:
        connection = await Connection.open(port)
        for first, request in ready:
            check_batch(await connection.exchange(request), first)
        connection.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


def ratios_of(rates: dict[str, float]) -> dict[str, float]:
    found = {}
    for name in TARGETS:
        one, _, other = name.partition(" / ")
        found[name] = rates[one] / rates[other]
    return found


def judge(
    by_rate: dict[str, float], by_cost: dict[str, float], memory: float, *, is_busy: bool
) -> list[tuple[str, str]]:
    verdicts = [
        (
            f"{name}, {what}: {ratios[name]:.2f}, at least {target:.2f}",
            report.verdict(met=ratios[name] >= target, busy=is_disturbed),
        )
        for what, ratios, is_disturbed in (
            ("by processor time", by_cost, False),
            ("by rate", by_rate, is_busy),
        )
        for name, target in TARGETS.items()
    ]
    sentence = f"peak memory of a verb: {memory / 1e6:.0f} MB, at most {MEMORY_BYTES_MAX / 1e6:.0f}"
    return [*verdicts, (sentence, report.verdict(met=memory <= MEMORY_BYTES_MAX))]


def draw(rates: dict[str, float], beside: Path) -> None:
    made = report.figure(1)
    if made is None:
        return
    drawn, (axes,) = made
    axes.barh(list(rates), list(rates.values()), color="#3b6ea5")
    axes.set_xscale("log")
    axes.set_xlabel("entities per second")
    axes.set_title("Bulk verbs and the SDK, one server")
    report.save_figure(drawn, beside)


if __name__ == "__main__":
    report.run_script(main)
