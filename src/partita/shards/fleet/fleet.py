"""The shards of a manager as one fleet: add, adopt, remove, upgrade and check them.

Rule of add_shard: a database is registered, gets its schema, is verified, and only then mapped, so
that no key is routed to a shard that is not ready. Each step can be repeated; a record in
`partita_jobs` tells that tables in the database come from an unfinished call.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from alembic.config import Config
from sqlalchemy import URL, Connection, Executable, MetaData, text

from partita.clock import SystemClock
from partita.errors import (
    ConfigurationError,
    MappingExistsError,
    ShardExistsError,
    ShardInUseError,
    ShardNotFoundError,
    UsageError,
)
from partita.shards.catalog import jobs
from partita.shards.catalog.change_plans import mapping_exists, shard_has_mappings, shard_offline
from partita.shards.catalog.executor import no_fault
from partita.shards.connections.locations import file_of, location_of
from partita.shards.fleet import databases, existing_rows
from partita.shards.fleet.deployment import Deployment, Inspection
from partita.shards.fleet.drift import Difference
from partita.shards.fleet.migration_worker import Workers
from partita.shards.fleet.migrations import LOCK_TIMEOUT_SECONDS
from partita.shards.fleet.rollout import (
    ExecutionReport,
    ProgressOption,
    ShardExecution,
    ShardUpgrade,
    UpgradeReport,
    roll_out,
    shard_error,
    show_progress,
)
from partita.shards.fleet.shard_upgrades import ShardUpgrades, connect
from partita.shards.fleet.statements import execution
from partita.shards.keys.mapping import Location, Mapping, Shard, ShardStatus
from partita.shards.keys.ranges import KeyRange
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import ShardMap
from partita.shards.moving import move as moves
from partita.ticks import Clock

ADD_SHARD = "add_shard"
STATUS_WORKERS_MAX = 8


class ShardReport(msgspec.Struct, frozen=True):
    """The state of one shard."""

    shard: Shard
    revision: str | None = None
    """None without Alembic, or if the shard could not be read."""
    is_current: bool = False
    drift: list[Difference] = []
    error: Exception | None = None
    mappings: int = 0
    size_bytes: int | None = None


class FleetReport(msgspec.Struct, frozen=True):
    """The state of all shards."""

    shards: list[ShardReport]

    @property
    def is_healthy(self) -> bool:
        return all(
            each.is_current and not each.drift and each.error is None for each in self.shards
        )


class Fleet:
    """All shards of all maps of a manager; `metadata` or `alembic` defines their schema.

    `alembic` is a folder with env.py, an ini file or a Config. With both, Alembic deploys, and
    shards are compared with the metadata; without metadata, with the target_metadata of env.py.
    Tables in `ignore_tables` belong to others (extensions) and are ignored.
    """

    def __init__(
        self,
        manager: ShardMapManager,
        *,
        metadata: MetaData | None = None,
        alembic: str | Path | Config | None = None,
        clock: Clock | None = None,
        ignore_tables: Collection[str] = (),
    ) -> None:
        self.manager = manager
        self.clock = clock or SystemClock()
        self.fault: Callable[[str], None] = no_fault
        """Called with the name of each completed step; tests raise from it to simulate a crash."""
        # A declarative base is accepted in place of its MetaData.
        self._metadata = getattr(metadata, "metadata", metadata)
        self._alembic = alembic
        self._ignored = frozenset(ignore_tables)
        self._deployment()  # reports a wrong folder now, not at the first upgrade

    # --- adding and removing shards ---------------------------------------------------------------

    def add_shard(self, shard_map: ShardMap, url: URL | str, mappings: Iterable[Any] = ()) -> Shard:
        """Make an empty database a shard: register, deploy, verify, then map.

        `mappings` are ranges, or keys for a list map. After a crash, call it again: it continues.
        Called again after it was completed, it changes nothing.
        """
        deployment = self._deployment()
        deployment.check_given()
        location = self.manager.engines.remember(url)
        asked = shard_map.encode_ranges(mappings)
        shard = shard_map.find_shard(location)
        free = self._not_yet_mapped(shard_map, shard, asked)
        job = jobs.find(shard_map.executor, shard_map.id, ADD_SHARD, location.identity)
        if job is None:
            if shard is not None and not free:
                return shard
            self._check_new(deployment, shard_map, shard, location)
            job = jobs.start(shard_map.executor, shard_map.id, ADD_SHARD, location.identity)
        self.fault("checked")
        if shard is None:
            shard = _register(shard_map, url)
        self.fault("registered")
        with connect(self.manager.engines, shard.location) as connection:
            deployment.deploy(connection)
            self.fault("deployed")
            deployment.verify(connection)
        self.fault("verified")
        self._map(shard_map, shard, asked)
        self.fault("mapped")
        jobs.finish(shard_map.executor, job)
        return shard_map.get_shard(location)

    def adopt(self, shard_map: ShardMap, url: URL | str, mappings: Iterable[Any]) -> Shard:
        """Make a database with rows a shard, without changing its rows.

        Its schema must be current, and all rows of sharded tables must be inside the mappings, or
        they could not be reached. Writers that bypass the map are not kept out, neither during the
        check nor later: stop them, or make them use routing, before you adopt the database.
        """
        deployment = self._deployment()
        deployment.check_given()
        location = self.manager.engines.remember(url)
        asked = shard_map.encode_ranges(mappings)
        shard = shard_map.find_shard(location)
        self._not_yet_mapped(shard_map, shard, asked)
        with connect(self.manager.engines, location) as connection:
            deployment.verify(connection)
            existing_rows.check_rows(connection, shard_map, asked, self._metadata)
        self.fault("checked")
        if shard is None:
            shard = _register(shard_map, url)
        self.fault("registered")
        self._map(shard_map, shard, asked)
        self.fault("mapped")
        return shard_map.get_shard(location)

    def remove_shard(self, shard: Shard, moving_to: Shard | None = None) -> None:
        """Remove a shard from its map; with `moving_to`, its mappings are moved there first.

        The database itself is not deleted. After a crash, call it again.
        """
        shard_map = self.manager.get_map(shard.map_name)
        if moving_to is not None and (moving_to == shard or moving_to.map_name != shard.map_name):
            raise UsageError(
                "InvalidTarget",
                "Mappings can be moved only to another shard of the same map.",
                facts={"shard": shard.location.text, "moving_to": moving_to.location.text},
                hint="Pass another shard of this map.",
            )
        current = shard_map.get_shard(shard)
        if moving_to is not None and self._has_jobs(shard_map, current):
            self.resume()  # a crashed removal may have left a mapping locked by its move
        # Mappings may be split during a move: repeat until none is left.
        while left := shard_map.mappings(shard=current):
            if moving_to is None:
                raise shard_has_mappings(
                    {"shard": shard.location.text, "mappings": len(left)},
                    hint="Pass a shard to move them to: remove_shard(shard, moving_to=other).",
                )
            for mapping in left:
                self.move(mapping, to=moving_to)
        self._check_no_jobs(shard_map, current)
        self.fault("moved")
        shard_map.delete_shard(shard_map.get_shard(shard))
        self.fault("unregistered")
        jobs.forget(shard_map.executor, shard_map.id, ADD_SHARD, current.location.identity)

    def move(  # noqa: PLR0913 - options by name
        self,
        mapping: Any,
        *,
        to: Shard | Location | URL | str,
        on_progress: moves.OnProgress | None = None,
        batch_rows: int = moves.BATCH_ROWS,
        rate: float | None = None,
        grace: float = moves.GRACE_SECONDS,
        verify: bool = True,
        terminate_blockers: bool = False,
    ) -> moves.MoveReport:
        """Move a mapping and its rows to another shard while readers and writers continue.

        The mapping is given itself, by its range, or by one of its keys; then `to` is a shard, or
        there is one map. With `terminate_blockers`, transactions that block the move are
        terminated.
        """
        shard_map = self._map_of(mapping, to)
        target = to if isinstance(to, Shard) else shard_map.get_shard(to)
        found = shard_map.find_shard(target)
        if found is not None and found.status is ShardStatus.OFFLINE:
            raise shard_offline(shard_map.name, target.location.text)
        return moves.move(
            self.manager,
            shard_map.resolve(mapping),
            target,
            on_progress=on_progress,
            batch_rows=batch_rows,
            rate=rate,
            grace=grace,
            verify=verify,
            terminate_blockers=terminate_blockers,
        )

    def resume(
        self, *, on_progress: moves.OnProgress | None = None, terminate_blockers: bool = False
    ) -> list[moves.MoveReport]:
        """Continue the moves that a crash or a stop left unfinished."""
        return moves.resume(
            self.manager, on_progress=on_progress, terminate_blockers=terminate_blockers
        )

    def cancel(self, job_id: str) -> moves.MoveReport:
        """Undo a move that has not switched yet."""
        return moves.cancel(self.manager, job_id)

    def list_moves(self) -> list[moves.MoveReport]:
        """Return the unfinished moves."""
        return moves.list_moves(self.manager)

    # --- databases --------------------------------------------------------------------------------

    def create_database(self, url: URL | str) -> bool:
        """Create an empty database for a shard; return False if it exists."""
        return databases.create_database(self.manager.engines, self.manager.engines.remember(url))

    def drop_database(self, url: URL | str) -> bool:
        """Drop a database that is not a shard of any map; return False if it does not exist."""
        location = self.manager.engines.remember(url)
        used = {self.manager.location.identity}
        used |= {each.identity for each in self.manager.list_locations()}
        if location.identity in used:
            raise ShardInUseError(
                "DatabaseIsShard",
                "The database is a shard, or the global catalog, of this manager.",
                facts={"location": location.text},
                hint="Remove the shard with remove_shard() first.",
            )
        return databases.drop_database(self.manager.engines, location)

    # --- schema -----------------------------------------------------------------------------------

    def upgrade(  # noqa: PLR0913 - each a decision of the operator, with a safe default
        self,
        revision: str = "head",
        *,
        parallel: int = 1,
        canary: Sequence[Shard | Location | URL | str] = (),
        stop_after: int | None = 1,
        resume: bool = True,
        progress: ProgressOption = "auto",
        sql_folder: str | Path | None = None,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> UpgradeReport:
        """Upgrade every shard to a revision and report on each; failures do not raise.

        Canaries are upgraded first; if one fails, no other shard is upgraded. After `stop_after`
        failures (None: never) no further shard is started. With `resume`, shards at the target are
        skipped, so that the same call continues an upgrade; without it they are visited as well. A
        shard that is newer than the target has failed: an upgrade does not downgrade. `parallel` >
        1 uses processes, which pays off for many shards on servers. With `sql_folder` nothing is
        executed: one script per shard is written there. Refused while a move is unfinished,
        because its rows would not fit into the new schema.
        """
        deployment = self._deployment()
        deployment.check_given()
        _check_counts(parallel, stop_after)
        if sql_folder is None:
            self._check_no_moves()
        shards = self._one_shard_per_database()
        first = self._chosen(canary, shards)
        waves = first, [shard for shard in shards if shard not in first]
        upgrades = ShardUpgrades(self.manager.engines, self.clock)
        with show_progress(progress, len(shards)) as on_done, Workers() as workers:
            if deployment.migrations is None:
                _refuse_sql_folder(sql_folder)
                run = upgrades.by_creating_tables(deployment, lock_timeout)
            elif sql_folder is not None:
                run = upgrades.as_scripts(deployment.migrations, revision, Path(sql_folder))
            elif parallel > 1:
                run = upgrades.in_processes(deployment.migrations, workers, revision, lock_timeout)
            else:
                run = upgrades.in_this_process(
                    deployment.migrations, revision, lock_timeout, resume=resume
                )
            done = roll_out(
                waves,
                upgrades.timed(run),
                not_tried=_upgrade_not_tried,
                parallel=parallel,
                stop_after=stop_after,
                on_done=on_done,
            )
        return UpgradeReport(done, revision)

    def downgrade(
        self,
        revision: str,
        *,
        canary: Sequence[Shard | Location | URL | str] = (),
        stop_after: int | None = 1,
        progress: ProgressOption = "auto",
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> UpgradeReport:
        """Downgrade every shard to a revision by Alembic and report on each, as `upgrade()` does.

        Shards at the revision are skipped, so that the same call continues a downgrade. A shard
        that is older than the revision has failed.
        """
        deployment = self._deployment()
        if deployment.migrations is None:
            raise _not_versioned("downgrade()")
        _check_counts(1, stop_after)
        self._check_no_moves()
        shards = self._one_shard_per_database()
        first = self._chosen(canary, shards)
        upgrades = ShardUpgrades(self.manager.engines, self.clock)
        run = upgrades.backwards(deployment.migrations, revision, lock_timeout)
        with show_progress(progress, len(shards), "downgrade") as on_done:
            done = roll_out(
                (first, [shard for shard in shards if shard not in first]),
                upgrades.timed(run),
                not_tried=_upgrade_not_tried,
                stop_after=stop_after,
                on_done=on_done,
            )
        return UpgradeReport(done, revision)

    def execute_on_all(  # noqa: PLR0913 - each a decision of the operator, with a safe default
        self,
        statement: Executable | str,
        *,
        name: str | None = None,
        parallel: int = 1,
        canary: Sequence[Shard | Location | URL | str] = (),
        stop_after: int | None = 1,
        autocommit: bool = False,
        progress: ProgressOption = "auto",
    ) -> ExecutionReport:
        """Execute a statement on every shard, in a transaction each, and report on each.

        For DDL outside of migrations and for maintenance; failures do not raise. With a `name`,
        shards that have executed it are remembered: the same call continues after a crash or a
        failure. With `autocommit` no transaction is begun, as VACUUM needs it. Refused while a
        move is unfinished, whose copy would not have the change.
        """
        _check_counts(parallel, stop_after)
        self._check_no_moves()
        shards = self._one_shard_per_database()
        first = self._chosen(canary, shards)
        run = execution(self.manager, statement, name=name, autocommit=autocommit, clock=self.clock)
        with show_progress(progress, len(shards), "execute") as on_done:
            done = roll_out(
                (first, [shard for shard in shards if shard not in first]),
                run,
                not_tried=lambda shard: ShardExecution(shard, "not tried"),
                parallel=parallel,
                stop_after=stop_after,
                on_done=on_done,
            )
        return ExecutionReport(done)

    def status(self) -> FleetReport:
        """Return revision, drift, mappings, size and error of every shard."""
        deployment = self._deployment()
        maps = self.manager.list_maps()
        counts = Counter(mapping.shard.id for shard_map in maps for mapping in shard_map.mappings())
        shards = [shard for shard_map in maps for shard in shard_map.shards()]
        workers = max(1, min(len(shards), STATUS_WORKERS_MAX))
        with ThreadPoolExecutor(workers, "partita-status") as pool:
            looked = pool.map(lambda shard: self._look(deployment, shard, counts[shard.id]), shards)
            return FleetReport(list(looked))

    def check_drift(self) -> dict[Shard, list[Difference]]:
        """Return the differences from the schema, by shard, whatever its revision.

        Shards that could not be read are an error.
        """
        self._deployment().check_given()
        reports = self.status().shards
        errors = [each.error for each in reports if each.error is not None]
        if errors:
            raise ExceptionGroup("Some shards could not be read.", errors)
        return {each.shard: each.drift for each in reports if each.drift}

    # --- helpers: shards --------------------------------------------------------------------------

    def _map_of(self, mapping: Any, to: object) -> ShardMap:
        for given in (mapping, to):
            if isinstance(given, Mapping | Shard):
                return self.manager.get_map(given.map_name)
        maps = self.manager.list_maps()
        if len(maps) == 1:
            return maps[0]
        raise UsageError(
            "ShardMapUnclear",
            "A key or a range does not tell which of the maps is meant.",
            facts={"maps": [each.name for each in maps]},
            hint="Pass a mapping, or pass a shard of the map as to=.",
        )

    def _deployment(self) -> Deployment:
        # Read for each call: revisions may have been added since the last one.
        return Deployment(self._metadata, self._alembic, self._ignored)

    def _check_new(
        self, deployment: Deployment, shard_map: ShardMap, shard: Shard | None, location: Location
    ) -> None:
        file = file_of(location)
        if shard is None and file is not None and not file.exists():
            return  # create_shard() creates it
        with connect(self.manager.engines, location) as connection:
            try:
                deployment.check_empty(connection)
            except ShardInUseError as error:
                if shard is None:
                    raise
                raise ShardExistsError(
                    "ShardExists",
                    "The database is already a shard of the map and has tables.",
                    facts={"map": shard_map.name, "shard": location.text},
                    hint="Map more keys to it with create_mapping().",
                ) from error

    def _not_yet_mapped(
        self, shard_map: ShardMap, shard: Shard | None, asked: list[KeyRange]
    ) -> list[KeyRange]:
        """Return the ranges that are unmapped; refuse those of other shards."""
        taken = shard_map.mappings() if asked else []
        mine = {each.key_range for each in taken if shard is not None and each.shard == shard}
        free = [wanted for wanted in asked if wanted not in mine]
        for wanted in free:
            for each in taken:
                if each.key_range.intersects(wanted):
                    raise mapping_exists(shard_map.name, repr(each.range))
        return free

    def _map(self, shard_map: ShardMap, shard: Shard, asked: list[KeyRange]) -> None:
        for is_last in (False, True):
            free = self._not_yet_mapped(shard_map, shard, asked)
            try:
                shard_map.create_mappings([shard_map.decode_range(each) for each in free], shard)
            except MappingExistsError:
                # A crashed call may have left the change unfinished; this attempt has finished it,
                # and the next one finds the mappings.
                if is_last:
                    raise
            else:
                return

    def _has_jobs(self, shard_map: ShardMap, shard: Shard) -> bool:
        return jobs.is_busy(shard_map.executor, shard_map.id, shard.id, besides=ADD_SHARD)

    def _check_no_jobs(self, shard_map: ShardMap, shard: Shard) -> None:
        if self._has_jobs(shard_map, shard):
            raise ShardInUseError(
                "ShardHasJobs",
                "A move from or to the shard is unfinished.",
                facts={"shard": shard.location.text},
                hint="Complete it with fleet.resume(), then remove the shard.",
            )

    def _check_no_moves(self) -> None:
        unfinished = self.list_moves()
        if unfinished:
            raise ShardInUseError(
                "MovesUnfinished",
                "The schema cannot be upgraded while moves are unfinished.",
                facts={"moves": [each.job_id for each in unfinished]},
                hint="End the moves with fleet.resume() or fleet.cancel(), then upgrade.",
            )

    def _one_shard_per_database(self) -> list[Shard]:
        shards: dict[str, Shard] = {}
        for shard_map in self.manager.list_maps():
            for shard in shard_map.shards():
                shards.setdefault(shard.location.identity, shard)
        return [shards[identity] for identity in sorted(shards)]

    def _chosen(
        self, canary: Sequence[Shard | Location | URL | str], shards: list[Shard]
    ) -> list[Shard]:
        chosen: list[Shard] = []
        for name in canary:
            found = [shard for shard in shards if _is_named(shard, name)]
            if len(found) != 1:
                raise ShardNotFoundError(
                    "ShardNotFound",
                    f"{len(found)} shards match {_shown(name)!r}.",
                    facts={"canary": _shown(name)},
                    hint="Pass a canary as Shard, as URL or by the name of its database.",
                )
            chosen += [shard for shard in found if shard not in chosen]
        return chosen

    # --- helpers: status --------------------------------------------------------------------------

    def _look(self, deployment: Deployment, shard: Shard, mappings: int) -> ShardReport:
        try:
            with connect(self.manager.engines, shard.location) as connection:
                size = _size(connection)
                found = (
                    deployment.inspect(connection)
                    if deployment.migrations is not None or deployment.metadata is not None
                    else Inspection(None, is_current=True, drift=[])
                )
        except Exception as error:  # noqa: BLE001 - an error of one shard belongs to the report
            return ShardReport(shard, error=shard_error(shard, error), mappings=mappings)
        return ShardReport(
            shard, found.revision, found.is_current, found.drift, None, mappings, size
        )


def _register(shard_map: ShardMap, url: URL | str) -> Shard:
    try:
        return shard_map.create_shard(url)
    except ShardExistsError:
        # A crashed call may have left the change unfinished; this attempt has finished it.
        return shard_map.get_shard(url)


def _is_named(shard: Shard, name: Shard | Location | URL | str) -> bool:
    if isinstance(name, str) and "://" not in name:
        database = shard.location.database
        return name in (shard.id, database, Path(database).name)
    return shard.location.identity == _location(name).identity


def _shown(name: Shard | Location | URL | str) -> str:
    return name if isinstance(name, str) and "://" not in name else _location(name).text


def _location(name: Shard | Location | URL | str) -> Location:
    if isinstance(name, Shard):
        return name.location
    return name if isinstance(name, Location) else location_of(name)


def _check_counts(parallel: int, stop_after: int | None) -> None:
    if parallel < 1 or (stop_after is not None and stop_after < 1):
        raise UsageError(
            "InvalidCount",
            "parallel and stop_after must be 1 or more.",
            facts={"parallel": parallel, "stop_after": stop_after},
            hint="Pass stop_after=None to continue after every failure.",
        )


def _upgrade_not_tried(shard: Shard) -> ShardUpgrade:
    return ShardUpgrade(shard, "not tried")


def _refuse_sql_folder(sql_folder: str | Path | None) -> None:
    if sql_folder is not None:
        raise _not_versioned("sql_folder=")


def _not_versioned(what: str) -> ConfigurationError:
    return ConfigurationError(
        "SchemaNotVersioned",
        f"{what} needs Alembic: the fleet has no revisions.",
        hint="Create the fleet with Fleet(manager, alembic=…).",
    )


def _size(connection: Connection) -> int | None:
    queries = {
        "postgresql": "select pg_catalog.pg_database_size(pg_catalog.current_database())",
        "sqlite": "select page_count * page_size from pragma_page_count(), pragma_page_size()",
    }
    query = queries.get(connection.dialect.name)
    size = None if query is None else int(connection.execute(text(query)).scalar_one())
    connection.rollback()
    return size
