"""Front ends on one PostgreSQL while it, they and the network fail."""

import contextlib
import os
import time
from collections.abc import Sequence

from chaos.fleet import broken_front_end
from chaos.fleet.faults import FAULTS, OF_DATABASE, OF_FRONT_END, OF_NETWORK
from chaos.fleet.world import (
    SERVE,
    Fault,
    World,
    check,
    create,
    front_ends_on,
    inject,
    ledgers,
    load,
)
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario

MINUTE_SECONDS = 60.0


def broken(variant: str) -> Sequence[str]:
    """Return the program of a broken front end."""
    return (os.fspath(broken_front_end.__file__), variant)


def fleet(run: Run, faults: dict[str, Fault] | None = None) -> Outcome:
    """Inject all faults; one front end is stopped for a minute while the database fails."""
    outcome, books = Outcome(), ledgers()
    run.folder.mkdir()
    program = broken("hasty") if run.is_broken else SERVE
    server = create(run.folder / "postgres")
    with contextlib.closing(_Stopped(server)), front_ends_on(server, run, program) as world:
        with load(world, books):
            if run.is_broken:
                inject(run, world, {"kill": OF_DATABASE["kill of PostgreSQL"]}, books, outcome)
            elif faults is not None:
                inject(run, world, faults, books, outcome)
            else:
                _all(run, world, outcome, books)
        check(run, world, books, outcome)
        outcome.violations += deadlocks(world)
    return outcome


def _all(run: Run, world: World, outcome: Outcome, books: Sequence[object]) -> None:
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


class _Stopped:
    def __init__(self, server: object) -> None:
        self._server = server

    def close(self) -> None:
        self._server.stop(immediately=True)


def deadlocks(world: World) -> list[str]:
    """Return how many deadlocks PostgreSQL counted since it was started."""
    ((number,),) = world.server.ask(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return [f"{number} deadlocks"] if number else []


SCENARIOS = [Scenario("fleet, 3 front ends", "acknowledges before it commits", fleet)]
