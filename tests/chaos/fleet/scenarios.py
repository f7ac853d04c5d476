"""Front ends on one PostgreSQL while it, they and the network fail."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.disks import a_small_disk
from chaos.fleet import broken_front_end
from chaos.fleet.faults import FAULTS, OF_DATABASE, OF_FRONT_END, OF_NETWORK, kill
from chaos.fleet.ledgers import Counts, Ledger, Versions
from chaos.fleet.world import (
    FRONT_ENDS,
    ROLE,
    SERVE,
    Fault,
    Postgres,
    World,
    a_database,
    check,
    front_ends_on,
    inject,
    ledgers,
    load,
)
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario
from crash.test_disk_full import fill_with_junk
from partita.scaleout.schema import entities
from support.pgbouncer import PATHS, pgbouncer

MINUTE_SECONDS = 60.0
HOUR_SECONDS = 3600.0
SKEWS = (0.0, HOUR_SECONDS, -HOUR_SECONDS)
"""By how much the clocks of the front ends are wrong."""
READY_SECONDS_MAX = 30.0
SMALL = {"max_wal_size": "32MB", "min_wal_size": "32MB"}
"""Settings of PostgreSQL on a small disk."""
POOLED = OF_NETWORK | {
    name: FAULTS[name]
    for name in (
        "restart of PostgreSQL (immediate)",
        "kill of a front end",
        "SIGSTOP of a front end",
    )
}
KILLS: dict[str, Fault] = {"kill of PostgreSQL": OF_DATABASE["kill of PostgreSQL"]}


def changed(variant: str) -> Sequence[str]:
    """Return the program of a front end with a part changed."""
    return (os.fspath(broken_front_end.__file__), variant)


def fleet(run: Run, faults: dict[str, Fault] | None = None) -> Outcome:
    """Inject faults; without given ones all, and one front end is stopped for a minute."""
    outcome, books = Outcome(), ledgers()
    program = changed("hasty") if run.is_broken else SERVE
    with a_database(run) as server, front_ends_on(server, run, (program,) * FRONT_ENDS) as world:
        with load(world, books):
            if run.is_broken or faults is not None:
                inject(run, world, faults or KILLS, books, outcome)
            else:
                _inject_all(run, world, books, outcome)
        check(run, world, books, outcome)
        outcome.violations += deadlocks(world)
    return outcome


def _inject_all(run: Run, world: World, books: Sequence[Ledger], outcome: Outcome) -> None:
    world.recovered(time.monotonic())
    frozen = world.front_ends[-1]
    frozen.freeze()
    inject(run, world, OF_DATABASE, books, outcome)
    time.sleep(max(0.0, frozen.frozen_at + MINUTE_SECONDS - time.monotonic()))
    frozen.thaw()
    seconds = world.recovered(time.monotonic())
    outcome.faults["SIGSTOP of a front end for a minute"] += 1
    if seconds is None:
        outcome.violations.append(f"no answer {RECOVERY_SECONDS_MAX:.0f} s after SIGSTOP")
        return
    outcome.recoveries.append(seconds)
    inject(run, world, OF_FRONT_END | OF_NETWORK, books, outcome)


def deadlocks(world: World) -> list[str]:
    """Return how many deadlocks PostgreSQL counted since it was started."""
    ((number,),) = world.server.ask(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return [f"{number} deadlocks"] if number else []


# --- clocks -----------------------------------------------------------------------------------


def clocks(run: Run) -> Outcome:
    """Give the front ends clocks that are hours apart and show whole seconds."""
    outcome = Outcome()
    books: list[Ledger] = [Counts(), *(Versions(f"v{number}") for number in range(3))]
    variant = "willful" if run.is_broken else "whole"
    programs = [changed(f"{variant}@{ahead:g}") for ahead in SKEWS]
    with a_database(run) as server, front_ends_on(server, run, programs) as world:
        if run.is_broken:
            _ignore_removed(server)
        ready = [each.is_ready() for each in world.front_ends]
        if ready != [ahead == 0.0 for ahead in SKEWS]:
            outcome.violations.append(f"ready are {ready} of clocks that are {SKEWS} s wrong")
        for each, ahead in zip(world.front_ends, SKEWS, strict=True):
            each.kill()
            each.flags, each.ahead = ("--no-clock-check",), ahead
            each.start()
            if not each.is_ready():
                outcome.violations.append(f"not ready without the check, {ahead} s wrong")
        with load(world, books):
            inject(run, world, {"kill of a front end, clocks 2 h apart": kill}, books, outcome)
        check(run, world, books, outcome)
    return outcome


def _ignore_removed(server: Postgres) -> None:
    """Let an entity that was deleted and inserted again have an earlier etag."""
    check = "IF early IS NOT NULL THEN"
    assert check in entities.FUNCTIONS
    with server.connect() as connection:
        connection.execute(entities.FUNCTIONS.replace(check, "IF false THEN").encode())


# --- a pooler ---------------------------------------------------------------------------------


def pooled(run: Run) -> Outcome:
    """Put PgBouncer in transaction mode before PostgreSQL."""
    outcome, books = Outcome(), ledgers()
    program = changed("hasty") if run.is_broken else SERVE
    with (
        a_database(run) as server,
        front_ends_on(
            server, run, (program,) * FRONT_ENDS, pooler=lambda port: pgbouncer(port, [ROLE])
        ) as world,
    ):
        with load(world, books):
            inject(run, world, KILLS if run.is_broken else POOLED, books, outcome)
        check(run, world, books, outcome)
        outcome.violations += deadlocks(world)
    return outcome


# --- a full disk ------------------------------------------------------------------------------


def full_disk(run: Run) -> Outcome:
    """Fill the disk of PostgreSQL for a while; the front ends are not restarted."""
    outcome, books = Outcome(), ledgers()
    program = changed("hasty") if run.is_broken else SERVE
    run.folder.mkdir()
    disk = run.folder / "disk"
    with a_small_disk(disk) as is_small:
        assert is_small, "Run this scenario as root."
        with (
            a_database(run, SMALL, disk / "postgres") as server,
            front_ends_on(server, run, (program,) * FRONT_ENDS) as world,
        ):

            def fill(world: World) -> float:
                return _fill(world, disk / "junk")

            faults: dict[str, Fault] = {"full disk": fill}
            with load(world, books):
                inject(run, world, KILLS if run.is_broken else faults, books, outcome)
            check(run, world, books, outcome)
    return outcome


def _fill(world: World, junk: Path) -> float:
    fill_with_junk(junk)
    time.sleep(world.chance.uniform(2.0, 5.0))
    junk.unlink()
    ended = time.monotonic()
    if not world.server.is_running:  # the log could not be written: its supervisor starts it
        world.server.restart()
        world.use(world.server)
    return ended


SCENARIOS = [
    Scenario("fleet, 3 front ends", "acknowledges before it commits", fleet),
    Scenario(
        "fleet, clocks 2 h apart", "stamps by its own clock, forgets deletes", clocks, share=0.7
    ),
    Scenario("fleet, full disk", "acknowledges before it commits", full_disk, share=0.7),
]
SKIPPED: dict[str, str] = {}
"""Scenarios that this machine cannot run, and why."""
if shutil.which("pgbouncer", path=PATHS) is not None:
    SCENARIOS.append(Scenario("fleet, PgBouncer", "acknowledges before it commits", pooled))
else:
    SKIPPED["fleet, PgBouncer"] = "PgBouncer is not installed: apt-get install pgbouncer"
