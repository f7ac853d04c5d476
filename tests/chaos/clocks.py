"""The same server and clients with a wall clock that leaps and is corrected later.

Clients send nothing while the clock is wrong: their requests would be refused by their dates.
"""

import os
import random
import time
from pathlib import Path

from chaos import leaping_server
from chaos.report import Outcome
from chaos.scenario import Run, Scenario
from chaos.services import PATIENCE_SECONDS, Fault, World, run_faults

DAY_SECONDS = 24 * 3600
OFFSET = "offset"


def set_offset(folder: Path, seconds: int) -> None:
    """Replace the file in one step: the server reads it at any time."""
    new = folder / "offset.new"
    new.write_text(str(seconds))
    new.replace(folder / OFFSET)


def leap(world: World, chance: random.Random, seconds: int) -> float:
    """Set the wall clock wrong while no request is under way, for several sweeps."""
    world.is_held.set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(world.held) < world.clients and time.monotonic() < deadline:
        time.sleep(0.05)
    set_offset(world.folder.parent, seconds)
    time.sleep(chance.uniform(4, 8) * leaping_server.SWEEP_SECONDS)
    set_offset(world.folder.parent, 0)
    world.is_held.clear()
    return time.monotonic()


def leap_ahead(world: World, chance: random.Random) -> float:
    return leap(world, chance, chance.randint(20, 400) * DAY_SECONDS)


def leap_back(world: World, chance: random.Random) -> float:
    return leap(world, chance, -chance.randint(1, 48) * 3600)


def clocks(run: Run) -> Outcome:
    run.folder.mkdir()
    set_offset(run.folder, 0)
    mode = "follow" if run.is_broken else "check"
    program = (os.fspath(leaping_server.__file__), str(run.folder / OFFSET), mode)
    faults: dict[str, Fault] = {"leap ahead": leap_ahead}
    if not run.is_broken:
        faults["leap back"] = leap_back
    return run_faults(run, program, faults, folder=run.folder / "account")


SCENARIOS = [
    Scenario("services, leaping clock", "follows every leap of the wall clock", clocks, share=0.7),
]
