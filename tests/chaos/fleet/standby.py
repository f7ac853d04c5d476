"""A synchronous standby that is lost, waits that an operator cancels, and a failover to it.

While the standby is away no change may be acknowledged. At the end the primary is killed and the
standby is promoted: it has everything that was acknowledged.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from chaos.fleet.scenarios import changed
from chaos.fleet.world import (
    FRONT_ENDS,
    POLL_SECONDS,
    SERVE,
    SETTINGS,
    START_SECONDS,
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
from partita.local_postgres import HOST
from partita.scaleout.connections.link import WRITE_SECONDS_MAX

NAME = "standby"
CANCEL_SECONDS = 5.0
_SET_STANDBY = f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'"
_IS_SYNCHRONOUS = (
    "SELECT count(*) FROM pg_stat_replication"
    f" WHERE application_name = '{NAME}' AND sync_state = 'sync' AND state = 'streaming'"
)
_CANCEL = (
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
    " WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()"
)


class Standby(Postgres):
    """A copy of a server that follows it."""

    def copy(self, primary: Postgres) -> None:
        """Take a base backup of the primary."""
        programs = self._programs()
        cluster = self.folder / "cluster"
        cluster.mkdir(parents=True, mode=0o700)
        if self._owner is not None:
            os.chown(cluster, self._owner.pw_uid, self._owner.pw_gid)
        with self._opened(cluster) as (path, inherited):
            place = ("-h", HOST, "-p", str(primary.port), "-U", self.superuser, "-D", str(path))
            flags = (*place, "--checkpoint=fast", "--write-recovery-conf", "--wal-method=stream")
            done = self._call(programs / "pg_basebackup", *flags, pass_fds=inherited)
        assert done.returncode == 0, done.stderr

    def promote(self) -> None:
        with self.connect() as connection:
            connection.execute("SELECT pg_promote()")


class Pair:
    """The primary is `world.server`."""

    def __init__(self, standby: Standby) -> None:
        self.standby = standby
        self.wrong: list[str] = []

    def wait(self, world: World) -> None:
        """Wait until the standby follows."""
        deadline = time.monotonic() + START_SECONDS
        while world.server.ask(_IS_SYNCHRONOUS) != [(1,)]:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    def away(self, world: World) -> Iterator[None]:
        """Stop the standby for the block; note a change that was acknowledged meanwhile."""
        self.standby.stop(immediately=True)
        gone = time.monotonic()
        yield
        if world.changed_at > gone:
            self.wrong.append("a change was acknowledged while the standby was away")
        self.standby.restart()
        self.wait(world)

    def lose(self, world: World) -> float:
        """Writes wait, and are done when the standby is back."""
        with self.away(world):
            time.sleep(world.chance.uniform(1.0, 4.0))
        return time.monotonic()

    def lose_for_long(self, world: World) -> float:
        """Writes wait until their time is over."""
        with self.away(world):
            time.sleep(WRITE_SECONDS_MAX + 3.0)
        return time.monotonic()

    def cancel(self, world: World) -> float:
        """An operator cancels all that waits: it is committed here, and only here."""
        with self.away(world):
            end = time.monotonic() + CANCEL_SECONDS
            while time.monotonic() < end:
                world.server.ask(_CANCEL)
                time.sleep(0.2)
        return time.monotonic()

    def fail_over(self, world: World) -> float:
        """Kill the primary for good; the standby takes its place."""
        world.server.kill()
        ended = time.monotonic()
        self.standby.promote()
        for each in world.front_ends:
            each.proxy.drop()
        world.use(self.standby)
        for each in world.front_ends:
            each.proxy.heal()
        return ended


@contextlib.contextmanager
def a_pair(run: Run, server: Postgres) -> Iterator[Pair]:
    standby = Standby(run.folder / NAME, settings=SETTINGS | {"cluster_name": NAME})
    try:
        standby.copy(server)
        standby.start()
        with server.connect() as connection:
            connection.execute(_SET_STANDBY)
            connection.execute("SELECT pg_reload_conf()")
        yield Pair(standby)
    finally:
        standby.stop(immediately=True)


def standby(run: Run, *, is_short: bool = False) -> Outcome:
    """Inject faults, and fail over; a short run leaves out a loss for longer than a write waits."""
    outcome, books = Outcome(), ledgers()
    program = changed("heedless") if run.is_broken else SERVE
    with (
        a_database(run) as server,
        a_pair(run, server) as pair,
        front_ends_on(server, run, (program,) * FRONT_ENDS) as world,
    ):
        pair.wait(world)
        faults: dict[str, Fault] = {"cancelled waits for the standby": pair.cancel}
        if not run.is_broken:
            faults["standby lost"] = pair.lose
        if not (run.is_broken or is_short):
            faults["standby lost for long"] = pair.lose_for_long
        with load(world, books):
            inject(run, world, faults, books, outcome)
            seconds = world.recovered(pair.fail_over(world))
            outcome.faults["failover to the standby"] += 1
            if seconds is None:
                late = f"no answer {RECOVERY_SECONDS_MAX:.0f} s after the failover"
                outcome.violations.append(late)
            else:
                outcome.recoveries.append(seconds)
        outcome.violations += pair.wrong
        check(run, world, books, outcome)
    return outcome


SCENARIOS = [Scenario("fleet, standby lost", "acknowledges a cancelled wait", standby, share=0.7)]
