"""Upgrade one shard: in this process, in a worker process, by creating tables, or as a script."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from partita.errors import ShardOfflineError
from partita.shards.connections.engines import Engines
from partita.shards.fleet.deployment import Deployment, drift_error
from partita.shards.fleet.migration_worker import Project, Request, Workers
from partita.shards.fleet.migrations import Migrations, revision_text
from partita.shards.fleet.rollout import ShardUpgrade, UpgradeState, shard_error
from partita.shards.keys.mapping import Location, Shard
from partita.ticks import Clock

Upgrade = Callable[[Shard], ShardUpgrade]


class ShardUpgrades:
    """The ways to upgrade one shard; each returns a function for `roll_out`."""

    def __init__(self, engines: Engines, clock: Clock) -> None:
        self._engines = engines
        self._clock = clock

    def timed(self, run: Upgrade) -> Upgrade:
        """Return the upgrade with its duration and, instead of an exception, its error."""

        def run_timed(shard: Shard) -> ShardUpgrade:
            began = self._clock.monotonic()
            try:
                done = run(shard)
            except Exception as error:  # noqa: BLE001 - an error of one shard belongs to the report
                done = ShardUpgrade(shard, "failed", error=shard_error(shard, error))
            return msgspec.structs.replace(done, seconds=self._clock.monotonic() - began)

        return run_timed

    def in_this_process(
        self, migrations: Migrations, target: str, lock_timeout: float, *, resume: bool
    ) -> Upgrade:
        def run(shard: Shard) -> ShardUpgrade:
            with connect(self._engines, shard.location) as connection:
                heads = migrations.read(connection).heads
                before = revision_text(heads)
                try:
                    if resume and not migrations.pending(heads, target):
                        return ShardUpgrade(shard, "current", before, before)
                    after = migrations.upgrade(connection, target, lock_timeout=lock_timeout)
                except Exception as error:  # noqa: BLE001 - as above, with the revision reached
                    stopped = revision_text(migrations.read(connection).heads)
                    failure = shard_error(shard, error)
                    return ShardUpgrade(shard, "failed", before, stopped, failure)
            return _upgraded(shard, before, revision_text(after))

        return run

    def backwards(self, migrations: Migrations, target: str, lock_timeout: float) -> Upgrade:
        def run(shard: Shard) -> ShardUpgrade:
            with connect(self._engines, shard.location) as connection:
                before = revision_text(migrations.read(connection).heads)
                try:
                    after = migrations.downgrade(connection, target, lock_timeout=lock_timeout)
                except Exception as error:  # noqa: BLE001 - as above, with the revision reached
                    stopped = revision_text(migrations.read(connection).heads)
                    failure = shard_error(shard, error)
                    return ShardUpgrade(shard, "failed", before, stopped, failure)
            reached = revision_text(after)
            state: UpgradeState = "current" if reached == before else "downgraded"
            return ShardUpgrade(shard, state, before, reached)

        return run

    def in_processes(
        self, migrations: Migrations, workers: Workers, target: str, lock_timeout: float
    ) -> Upgrade:
        project = Project.of(migrations.config)

        def run(shard: Shard) -> ShardUpgrade:
            login = self._engines.login(shard.location)
            text_of_login = None if login is None else login.render_as_string(hide_password=False)
            reply = workers.run(
                Request(project, shard.location, text_of_login, target, lock_timeout)
            )
            if reply.failure is not None:
                error = shard_error(shard, reply.failure.error())
                return ShardUpgrade(shard, "failed", reply.before, reply.after, error)
            return _upgraded(shard, reply.before, reply.after)

        return run

    def by_creating_tables(self, deployment: Deployment, lock_timeout: float) -> Upgrade:
        def run(shard: Shard) -> ShardUpgrade:
            with connect(self._engines, shard.location) as connection:
                changed = deployment.create_tables(connection, lock_timeout)
                drift = deployment.inspect(connection).drift
            if drift:
                failure = shard_error(shard, drift_error(drift))
                return ShardUpgrade(shard, "failed", error=failure)
            return ShardUpgrade(shard, "upgraded" if changed else "current")

        return run

    def as_scripts(self, migrations: Migrations, target: str, folder: Path) -> Upgrade:
        folder.mkdir(parents=True, exist_ok=True)

        def run(shard: Shard) -> ShardUpgrade:
            with connect(self._engines, shard.location) as connection:
                heads = migrations.read(connection).heads
            before = revision_text(heads)
            script = migrations.script(heads, target, url=shard.location.text)
            if not script:
                return ShardUpgrade(shard, "current", before, before)
            path = folder / _script_name(shard)
            path.write_text(_script_heading(shard, before, target) + script, encoding="utf-8")
            return ShardUpgrade(shard, "written", before, before, script=path)

        return run


@contextmanager
def connect(engines: Engines, location: Location) -> Iterator[Connection]:
    """Connect to a shard without routing."""
    try:
        connection = engines.admin(location).connect()
    except DBAPIError as error:
        raise ShardOfflineError(
            "ShardUnreachable",
            f"The shard cannot be reached: {_reason(error)}.",
            facts={"shard": location.text},
            hint="Check that the database is running and that the credentials are correct.",
        ) from error
    with connection:
        yield connection


def _script_name(shard: Shard) -> str:
    """Return a recognizable and unique file name."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(shard.location.database).name)[:60]
    return f"{readable}-{shard.id[:8]}.sql"


def _script_heading(shard: Shard, before: str, target: str) -> str:
    tool = {
        "postgresql": "psql -v ON_ERROR_STOP=1 -f",
        "sqlite": "sqlite3 -bail DATABASE <",
    }.get(shard.location.backend, "run")
    return (
        f"-- {shard.location.text}\n-- from {before} to {target}, one transaction: {tool} this\n\n"
    )


def _upgraded(shard: Shard, before: str | None, after: str | None) -> ShardUpgrade:
    return ShardUpgrade(shard, "current" if before == after else "upgraded", before, after)


def _reason(error: DBAPIError) -> str:
    # The first line of the server's message, without the user: errors contain no credentials.
    first = str(error.orig).strip().partition("\n")[0].rstrip(".")
    return re.sub(r'\b(user|role) "[^"]*"', "the user", first)
