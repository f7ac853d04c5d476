"""Two front ends on one database beside one, each under the load of 16 clients over HTTP.

What a second front end adds to the processor time of a request is what the two cost each other:
trips that are gathered apart, locks, commits that wait for each other.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bench.scaleout import database
from bench.scaleout.figures import Slice
from bench.tables import load
from bench.tables.measure import CpuMeter, RunError, Side, presigned, run_wrk

from partita.local_postgres import LocalPostgres

CLIENTS = 16
WORKLOADS = ("W1", "W3", "W8")
RATIO_MAX = 1.15
"""CPU of a request on two front ends over that on one."""
COUNTS = (1, 2)

Slices = dict[tuple[str, int], list[Slice]]
"""By workload and number of front ends, one of each round."""


def measure(
    postgres: LocalPostgres, folder: Path, *, entities: int, rounds: int, seconds: float
) -> Slices:
    """Let one and two front ends take turns."""
    slices: Slices = {}
    with ExitStack() as stack:
        sides: list[Side] = []
        for number in range(max(COUNTS)):
            # The time of PostgreSQL is counted once, with the first.
            server = database.front_end(
                folder / f"front-end-{number}", postgres, is_counted=number == 0
            )
            stack.callback(server.stop)
            server.start()
            sides.append(Side.of(server, entities))
        asyncio.run(load.fill(sides[0].server.port, entities))
        for workload in WORKLOADS:
            for turn in range(rounds):
                for count in COUNTS if turn % 2 == 0 else COUNTS[::-1]:
                    sides[0].server.settle()
                    found = _run(sides[:count], workload, seconds)
                    slices.setdefault((workload, count), []).append(found)
                    print(
                        f"  {workload} {count} front ends {found.rate:7.0f}/s  cpu"
                        f" {found.client_us:.0f} + {found.store_us:.0f} = {found.us:.0f} us each",
                        flush=True,
                    )
    return slices


def _run(sides: list[Side], workload: str, seconds: float) -> Slice:
    """Load all front ends at the same time."""
    with ExitStack() as stack, ThreadPoolExecutor(len(sides)) as threads:
        paths = [stack.enter_context(presigned(side, workload, seconds)) for side in sides]
        meter = CpuMeter(*(side.server for side in sides))
        running = [
            threads.submit(run_wrk, side.server.port, path, CLIENTS, seconds)
            for side, path in zip(sides, paths, strict=True)
        ]
        found = [each.result() for each in running]
        usage = meter.read()
    for each in found:
        if bad := {name: each[name] for name in ("bad_status", "broken", "timeouts") if each[name]}:
            message = f"{workload} on {len(sides)} front ends: {bad}"
            raise RunError(message)
    requests = sum(each["requests"] for each in found)
    return Slice(requests, usage.elapsed, usage.server - usage.store, usage.store)
