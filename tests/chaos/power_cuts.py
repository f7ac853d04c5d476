"""Power cuts of the store of tables: what a disk may hold after each is opened and compared.

The clients and their memory are those of the crash tests. A cut leaves nothing, all, some writes
or some sectors of what was not synced. A recovery is the time until the store is open and read.
"""

import asyncio
import shutil
import time

from chaos.report import Outcome
from chaos.scenario import Run, Scenario
from crash.power_cut import power_cuts
from crash.recording_vfs import Trace
from crash.shim_vfs import registered
from crash.workload import examine, run_clients, write_image
from partita.storage import database
from partita.storage.durability import Durability

STEPS = 100
STATES_PER_TRACE = 200
LOG_BYTES = 128 * 1024
"""Small, so that checkpoints are frequent."""


async def cut_power(run: Run, outcome: Outcome, seed: int, end: float) -> None:
    """Record one run of the clients, and cut the power at many moments of it."""
    trace, place = Trace(), run.folder / str(seed)
    durability = Durability.FAST if run.is_broken else Durability.FULL
    with registered(trace) as vfs:
        memory = await run_clients(
            place, vfs, lambda: trace.position, steps=STEPS, seed=seed, durability=durability
        )
    histories = memory.histories.values()
    outcome.acknowledged += sum(each.told is not None for history in histories for each in history)
    for position, image in power_cuts(trace.events, STATES_PER_TRACE, run.chance):
        write_image(place / "image", image)
        began = time.monotonic()
        finding = await examine(place / "image", memory, position)
        outcome.recoveries.append(time.monotonic() - began)
        outcome.faults["power cut"] += 1
        shutil.rmtree(place / "image")
        if not finding.is_well:
            outcome.violations.append(f"seed {seed}, position {position}: {finding}")
        if time.monotonic() > end or (run.is_broken and outcome.violations):
            return


def tables(run: Run) -> Outcome:
    outcome = Outcome()
    database.WAL_CHECKPOINT_BYTES = LOG_BYTES
    database.WAL_HOLD_BYTES = 4 * LOG_BYTES
    database.RESERVE_BYTES = 4096  # type: ignore[attr-defined]
    end = time.monotonic() + run.seconds
    while True:
        asyncio.run(cut_power(run, outcome, run.chance.randrange(2**32), end))
        if time.monotonic() > end or (run.is_broken and outcome.violations):
            return outcome


SCENARIOS = [Scenario("tables, power cuts", "a log without sync", tables, 0.7)]
