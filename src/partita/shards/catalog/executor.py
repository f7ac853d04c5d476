"""Carry out planned changes of the catalogs: global, then each shard, then global again.

Each step is one short transaction, so a crash leaves a record and stamped rows, but no half step.
The next change that finds a stamp finishes the stamped change (all shards have it) or undoes it.
Rule: the operation lock only protects running changes from being undone. The catalogs stay correct
because a shard applies a step only to the exact `last_operation` that the plan expects.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from partita.errors import (
    OperationPendingError,
    PartitaError,
    ShardOfflineError,
)
from partita.metrics.families import Histogram
from partita.shards.catalog import change_plans, global_catalog, local_catalog
from partita.shards.catalog.change_plans import ChangePlan, ChangeState, LocalChange
from partita.shards.catalog.global_catalog import ChangeRecord, LockedMap, StampedError
from partita.shards.connections.engines import Engines
from partita.shards.connections.locations import create_file
from partita.shards.connections.validation import lock_number
from partita.shards.keys.mapping import Location
from partita.ticks import TICKS_PER_SECOND, Clock

Outcome = TypeVar("Outcome")
FaultPoint = Callable[[str], None]
Build = Callable[[LockedMap, str], ChangePlan]
LocalWork = Callable[[Connection, ChangePlan, LocalChange], ChangeState]
Ending = Literal["finished", "undone", "alive"]

LEASE_SECONDS = 60
"""How long a process that cannot be checked counts as alive after its last heartbeat."""
BEAT_SECONDS = 15
WAIT_SECONDS = 0.02
WAIT_TRIES = 3_000
"""In all a minute: how long a change waits for another change."""
STEP_TRIES = 4
"""A step is repeated after a connection error; it detects whether it was done before."""
STEP_PAUSE_SECONDS = 0.05
UNDONE_KEPT_SECONDS = 3_600
"""How long the record of an undone change is kept for its process, which may be slow."""

_NO_TIMEOUT = text("SET LOCAL idle_in_transaction_session_timeout = 0")
_CLAIM = text("SELECT pg_catalog.pg_try_advisory_xact_lock(CAST(:number AS pg_catalog.int8))")
_live: set[str] = set()
"""The changes that this process is carrying out, of all managers."""


class Counters:
    """Counts of events in this process; threads may lose a few."""

    def __init__(self) -> None:
        self.reroutes = 0
        """Connections whose cached mapping was stale."""
        self.refused = 0
        """Connections that were refused because the mapping was offline."""
        self.retries = 0
        """Further attempts of run() and routed functions."""
        self.fan_outs = 0
        self.fan_out_shards = 0
        """Shards that fan-outs have read."""
        self.fan_out_failures = 0
        """Shards that failed in a fan-out, or were late."""
        self.moves = 0
        """Moves that were completed here."""
        self.move_rows = 0
        """Rows that moves have copied here."""
        self.operations = 0
        """Changes of the catalogs."""
        self.operations_undone = 0
        self.operations_finished = 0
        """Changes of other processes that were finished here."""


class MoveMeasures:
    """The moves of this process: where they are, and how long they refused transactions."""

    def __init__(self) -> None:
        self.steps: dict[str, str] = {}
        """The step of each running job."""
        self.fence_seconds = Histogram()


def no_fault(point: str) -> None:
    """Do nothing."""


class Executor:
    """Runs changes against one global catalog and its shards.

    `fault` is called with the name of each step before and after it; tests raise from it to
    simulate a crash.
    """

    def __init__(
        self, engines: Engines, catalog: Location, clock: Clock, fault: FaultPoint = no_fault
    ) -> None:
        self.engines = engines
        self.catalog = catalog
        self.clock = clock
        self.fault = fault
        self.counters = Counters()
        self.moves = MoveMeasures()

    @property
    def engine(self) -> Engine:
        return self.engines.for_location(self.catalog)

    # --- changes and reads ------------------------------------------------------------------------

    def run(self, map_id: str, map_name: str, build: Build) -> ChangePlan:
        """Plan under the lock of the map, then carry out the plan; undo it if a shard refuses."""
        operation = self.new_id()
        with self._claim(operation):
            plan = self.decide(
                map_id, map_name, lambda locked: self._prepare(locked, build, operation)
            )
            self.fault("global prepared")
            try:
                self._do_locals(plan)
            except DBAPIError as error:  # of the catalog: errors of shards have other types
                self._give_up(plan)
                raise catalog_unreachable(self.catalog) from error
            except Exception:
                self._give_up(plan)
                raise
            self._finish_own(plan)
        self.counters.operations += 1
        return plan

    def decide(self, map_id: str, map_name: str, change: Callable[[LockedMap], Outcome]) -> Outcome:
        """Run a change of the global catalog alone; unfinished changes that it meets end first."""
        for _ in range(WAIT_TRIES):
            is_locked = False
            try:
                with self.engine.begin() as connection:
                    row = global_catalog.lock_map(connection, map_id, map_name)
                    is_locked = True
                    return change(LockedMap(connection, row))
            except StampedError as stamped:
                if self.recover(stamped.operation_id) != "alive":
                    continue
            except DBAPIError as error:
                if is_locked or not error.connection_invalidated:
                    raise catalog_unreachable(self.catalog) from error
                # The pooled connection was broken and nothing was done: take another one.
                self.engine.dispose()
            time.sleep(WAIT_SECONDS)
        raise OperationPendingError(
            "OperationPending",
            "Another change of the catalog did not end in time.",
            facts={"map": map_name},
            hint="Try again later.",
        )

    def read(self, work: Callable[[Connection], Outcome]) -> Outcome:
        """Read from the global catalog; a broken pooled connection is replaced."""
        try:
            with self.engine.connect() as connection:
                return work(connection)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise catalog_unreachable(self.catalog) from error
        self.engine.dispose()  # usually all connections of the pool are broken
        try:
            with self.engine.connect() as connection:
                return work(connection)
        except DBAPIError as error:
            raise catalog_unreachable(self.catalog) from error

    def read_epoch(self, map_id: str) -> int | None:
        """Return the epoch of a map, read through the driver because each fan-out needs it."""
        dialect = self.engine.dialect
        try:
            pooled = self.engine.raw_connection()
            try:
                cursor = pooled.cursor()
                cursor.execute(global_catalog.epoch_query(dialect.paramstyle), (map_id,))
                row = cursor.fetchone()
                cursor.close()
            finally:
                pooled.close()
        except dialect.loaded_dbapi.Error:
            # read() replaces a broken connection and reports an unreachable catalog.
            return self.read(lambda connection: global_catalog.read_epoch(connection, map_id))
        return None if row is None else int(row[0])

    def new_id(self) -> str:
        return self.clock.new_id().replace("-", "")

    def _prepare(self, locked: LockedMap, build: Build, operation: str) -> ChangePlan:
        plan = build(locked, operation)
        self.fault("global preparing")
        now = self.clock.ticks()
        global_catalog.prepare(locked.connection, plan, owner=_owner(), now=now)
        old = now - UNDONE_KEPT_SECONDS * TICKS_PER_SECOND
        global_catalog.forget_undone(locked.connection, old)
        return plan

    def _do_locals(self, plan: ChangePlan) -> None:
        last_beat = self.clock.monotonic()
        for number, change in enumerate(plan.changes):
            if self.clock.monotonic() - last_beat > BEAT_SECONDS:
                last_beat = self.clock.monotonic()
                self._beat(plan)
            where = self._local(plan, change, local_catalog.do, f"local {number} applying")
            if where != "after":
                self._refuse(plan, change)
            self.fault(f"local {number} applied")

    def _beat(self, plan: ChangePlan) -> None:
        with self.engine.begin() as connection:
            global_catalog.beat(connection, plan.id, self.clock.ticks())

    def _refuse(self, plan: ChangePlan, change: LocalChange) -> None:
        record = self._find_record(plan.id)
        if record is None or record.step != "do":
            raise _taken_over(plan)
        raise change_plans.local_catalog_differs(plan.map.name, change.location)

    def _give_up(self, plan: ChangePlan) -> None:
        # Suppressed because the original error matters more. The record remains, so the next
        # change that finds it, or repair(), ends the change.
        with contextlib.suppress(PartitaError, DBAPIError):
            self._undo(plan, forget=True)

    def _finish_own(self, plan: ChangePlan) -> None:
        try:
            finished = self.step(lambda: self._finish(plan))
        except DBAPIError as error:
            raise OperationPendingError(
                "OperationUnfinished",
                "All shards have the change, but the global catalog cannot be reached.",
                facts={"map": plan.map.name, "operation": plan.id},
                hint="Call manager.repair() when the catalog is available.",
            ) from error
        if not finished:
            raise _taken_over(plan)
        self.fault("global finished")

    def _finish(self, plan: ChangePlan) -> bool:
        with self.engine.begin() as connection:
            global_catalog.lock_map(connection, plan.map.id, plan.map.name)
            record = global_catalog.find_record(connection, plan.id)
            if record is None:
                return True  # finished by another process: an undone change leaves its record
            if record.step != "do":
                return False
            global_catalog.finish(connection, plan)
            self.fault("global finishing")
        return True

    # --- recovering -------------------------------------------------------------------------------

    def repair(self) -> dict[str, Ending]:
        """End every change whose process has died; return how each ended."""
        pending = self.read(global_catalog.list_pending)
        return {operation: self.recover(operation) for operation in pending}

    def recover(self, operation: str, *, without: Collection[str] = ()) -> Ending:
        """Finish or undo a change whose process has died, without the shards in `without`."""
        try:
            return self._recover(operation, without)
        except DBAPIError as error:
            raise catalog_unreachable(self.catalog) from error

    def _recover(self, operation: str, without: Collection[str]) -> Ending:
        with self._take(operation) as taken:
            if not taken:
                return "alive"
            record = self._find_record(operation)
            if record is None or record.step == "undone":
                return "finished" if record is None else "undone"
            if record.step == "do" and not without and self._is_everywhere(record.plan):
                self._finish(record.plan)
                self.counters.operations_finished += 1
                return "finished"
            self._undo(record.plan, forget=False, without=without)
            return "undone"

    def _find_record(self, operation: str) -> ChangeRecord | None:
        with self.engine.connect() as connection:
            return global_catalog.find_record(connection, operation)

    def _is_everywhere(self, plan: ChangePlan) -> bool:
        return all(
            self._local_unless_new(plan, change, local_catalog.read_state, f"local {number} asking")
            == "after"
            for number, change in enumerate(plan.changes)
        )

    def _undo(self, plan: ChangePlan, *, forget: bool, without: Collection[str] = ()) -> None:
        self.fault("undo marking")
        with self.engine.begin() as connection:
            if not global_catalog.mark_undo(connection, plan.id):
                return
        self.fault("undo marked")
        foreign = set(without)
        for number, change in reversed(list(enumerate(plan.changes))):
            if change.shard_id in without:
                continue
            where = self._local_unless_new(
                plan, change, local_catalog.undo, f"local {number} undoing"
            )
            if where == "foreign":
                foreign.add(change.shard_id)
            self.fault(f"local {number} undone")
        self.step(lambda: self._revert(plan, foreign, forget=forget))
        self.counters.operations_undone += 1
        self.fault("global reverted")

    def _revert(self, plan: ChangePlan, foreign: set[str], *, forget: bool) -> None:
        with self.engine.begin() as connection:
            global_catalog.lock_map(connection, plan.map.id, plan.map.name)
            record = global_catalog.find_record(connection, plan.id)
            if record is None or record.step != "undo":
                return
            global_catalog.revert(connection, plan, foreign=foreign, forget=forget)
            self.fault("global reverting")

    # --- one step ---------------------------------------------------------------------------------

    def _local(
        self, plan: ChangePlan, change: LocalChange, work: LocalWork, point: str
    ) -> ChangeState:
        def step() -> ChangeState:
            if change.before is None and work is local_catalog.do:
                create_file(Location.from_text(change.location))
            with self.on_shard(change.location) as connection:
                where = work(connection, plan, change)
                self.fault(point)
            return where

        try:
            return self.step(step)
        except DBAPIError as error:
            raise unreachable(change.location) from error

    def _local_unless_new(
        self, plan: ChangePlan, change: LocalChange, work: LocalWork, point: str
    ) -> ChangeState:
        """Do the same, but ignore a new shard that cannot be reached.

        It holds at most one row without mappings, which the next create_shard() overwrites.
        """
        try:
            return self._local(plan, change, work, point)
        except ShardOfflineError:
            if change.before is not None:
                raise
            return "undone"

    @contextlib.contextmanager
    def on_shard(self, location: str) -> Iterator[Connection]:
        """Open a transaction on a shard, unrouted."""
        engine = self.engines.for_location(Location.from_text(location))
        with engine.begin() as connection:
            yield connection

    def step(self, work: Callable[[], Outcome]) -> Outcome:
        """Do repeatable work, again if the connection fails."""
        for number in range(1, STEP_TRIES):
            try:
                return work()
            except OperationalError:
                time.sleep(STEP_PAUSE_SECONDS * number)
        return work()

    # --- the operation lock -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _claim(self, operation: str) -> Iterator[None]:
        """Mark the change as running."""
        _live.add(operation)
        try:
            with self._advisory(operation):
                yield
        finally:
            _live.discard(operation)

    @contextlib.contextmanager
    def _take(self, operation: str) -> Iterator[bool]:
        """Take over a change if its process has died; yield whether it was taken."""
        if self._is_postgresql():
            with self._advisory(operation) as taken:
                yield taken
            return
        record = self._find_record(operation)
        yield record is None or not self._is_alive(operation, record)

    def _is_alive(self, operation: str, record: ChangeRecord) -> bool:
        host, process, born = record.owner.split("/")
        if host == socket.gethostname():
            if int(process) == os.getpid():
                return operation in _live
            if _birth(int(process)) != born:
                return False
        return self.clock.ticks() - record.beat_at < LEASE_SECONDS * TICKS_PER_SECOND

    def _is_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    @contextlib.contextmanager
    def _advisory(self, operation: str) -> Iterator[bool]:
        if not self._is_postgresql():
            yield True
            return
        # In a transaction of its own: the lock must outlive the transactions of the steps and end
        # with this process. A lock of the session would not: a pooler gives the session to others.
        try:
            connection = self.engines.admin(self.catalog).connect()
            connection.execution_options(isolation_level="READ COMMITTED")
            connection.execute(_NO_TIMEOUT)
            taken = bool(connection.scalar(_CLAIM, {"number": lock_number(operation)}))
        except DBAPIError as error:
            raise catalog_unreachable(self.catalog) from error
        try:
            yield taken
        finally:
            # If the connection is lost, so is the lock.
            with contextlib.suppress(DBAPIError):
                connection.close()


def catalog_unreachable(catalog: Location) -> ShardOfflineError:
    return ShardOfflineError(
        "CatalogUnreachable",
        "The catalog database cannot be reached or used.",
        facts={"catalog": catalog.text},
        hint="Check that it is running and that the URL and the credentials are correct.",
    )


def unreachable(location: str) -> ShardOfflineError:
    return ShardOfflineError(
        "ShardUnreachable",
        "The shard cannot be reached, or refused the change.",
        facts={"location": location},
        hint="Try again when it is available; recovery.detach() removes a lost shard.",
    )


def _taken_over(plan: ChangePlan) -> OperationPendingError:
    return OperationPendingError(
        "OperationTakenOver",
        "The change took so long that another process undid it.",
        facts={"map": plan.map.name, "operation": plan.id},
        hint="Read the map again and repeat the change.",
    )


def _owner() -> str:
    process = os.getpid()
    return f"{socket.gethostname()}/{process}/{_birth(process)}"


def _birth(process: int) -> str | None:
    """Return the start time of a process by the system's count; None if it has ended.

    A process id can be reused, and a killed process keeps its id until its parent collects it, so
    the id alone is not enough. Without /proc there is only the id.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _is_known(process)
    return None if fields[0] in "ZX" else fields[19]


def _is_known(process: int) -> str | None:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""
