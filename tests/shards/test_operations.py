"""Changes of the catalogs that are cut off at every step, fail, meet each other or are killed."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from partita.errors import (
    CatalogMismatchError,
    ConflictError,
    MappingExistsError,
    OperationPendingError,
    PartitaError,
    ShardOfflineError,
    UsageError,
)
from partita.shards.catalog import executor as execution
from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.catalog.change_plans import ChangePlan, LocalChange, decode_plan, encode_plan
from partita.shards.keys.mapping import Mapping, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from shards import catalog_writer
from support import catalogs, postgres
from support.catalogs import (
    OFFLINE,
    ONLINE,
    Catalog,
    NewDatabase,
    a_catalog,
    an_empty_database,
    assert_catalogs_agree,
    pending,
)
from support.repeats import repeat, sample

both_urls, catalog_urls = catalogs.both_urls, catalogs.catalog_urls
soak = pytest.mark.soak
KILL_ROUNDS = repeat(1, 2, 60)
CHANGES = repeat(8, 40, 2_000)


class CrashError(BaseException):
    """The process is gone: nobody cleans up."""


class Scenario:
    """One kind of change, on keys of its own for each try."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.tenants = catalog.tenants
        self.blogs = catalog.manager.create_list_map("blogs", key=int)
        self.first, self.second = (
            self.blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two)
        )
        self.tries = 0

    def fresh(self, **options: object) -> Mapping:
        self.tries += 1
        low = self.tries * 100
        return self.tenants.create_mapping(Range(low, low + 100), self.catalog.one, **options)  # type: ignore[arg-type]

    def create_shard(self) -> Callable[[], object]:
        where = self.catalog.manager.location
        found = self.tenants.find_shard(where)
        if found is not None:
            self.tenants.delete_shard(found)
        return lambda: self.tenants.create_shard(where)

    def delete_shard(self) -> Callable[[], object]:
        where = self.catalog.manager.location
        shard = self.tenants.find_shard(where) or self.tenants.create_shard(where)
        return lambda: self.tenants.delete_shard(shard)

    def update_shard(self) -> Callable[[], object]:
        shard = self.tenants.get_shard(self.catalog.two)
        statuses = {
            ShardStatus.ONLINE: ShardStatus.OFFLINE,
            ShardStatus.OFFLINE: ShardStatus.ONLINE,
        }
        return lambda: self.tenants.update_shard(shard, status=statuses[shard.status])

    def create_range(self) -> Callable[[], object]:
        self.tries += 1
        keys = Range(self.tries * 100, self.tries * 100 + 100)
        return lambda: self.tenants.create_mapping(keys, self.catalog.one)

    def create_point(self) -> Callable[[], object]:
        self.tries += 1
        key = self.tries
        return lambda: self.blogs.create_mapping(key, self.first)

    def delete_range(self) -> Callable[[], object]:
        mapping = self.fresh(status=OFFLINE)
        return lambda: self.tenants.delete_mapping(mapping)

    def delete_point(self) -> Callable[[], object]:
        self.tries += 1
        mapping = self.blogs.create_mapping(self.tries, self.first, status=OFFLINE)
        return lambda: self.blogs.delete_mapping(mapping)

    def update_range(self) -> Callable[[], object]:
        mapping = self.fresh()
        return lambda: self.tenants.update_mapping(mapping, status=OFFLINE)

    def update_point(self) -> Callable[[], object]:
        self.tries += 1
        mapping = self.blogs.create_mapping(self.tries, self.first)
        return lambda: self.blogs.update_mapping(mapping, status=OFFLINE)

    def move_range(self) -> Callable[[], object]:
        mapping = self.fresh(status=OFFLINE)
        return lambda: self.tenants.update_mapping(mapping, shard=self.catalog.two, status=ONLINE)

    def move_point(self) -> Callable[[], object]:
        self.tries += 1
        mapping = self.blogs.create_mapping(self.tries, self.first, status=OFFLINE)
        return lambda: self.blogs.update_mapping(mapping, shard=self.second)

    def split(self) -> Callable[[], object]:
        mapping = self.fresh()
        return lambda: self.tenants.split(mapping, at=mapping.range.low + 7)

    def merge(self) -> Callable[[], object]:
        mapping = self.fresh()
        low, high = self.tenants.split(mapping, at=mapping.range.low + 7)
        return lambda: self.tenants.merge(low, high)

    def state(self) -> object:
        """What users see, without ids."""
        return [
            (
                [(m.range, m.shard.location, m.is_online) for m in shard_map.mappings()],
                [(shard.location, shard.status) for shard in shard_map.shards()],
            )
            for shard_map in (self.tenants, self.blogs)
        ]

    def assert_sound(self) -> None:
        assert_catalogs_agree(self.tenants)
        assert_catalogs_agree(self.blogs)


KINDS = [
    "create_shard",
    "delete_shard",
    "update_shard",
    "create_range",
    "create_point",
    "delete_range",
    "delete_point",
    "update_range",
    "update_point",
    "move_range",
    "move_point",
    "split",
    "merge",
]


@contextlib.contextmanager
def faults(manager: ShardMapManager, fault: Callable[[str], None]) -> Iterator[None]:
    manager.executor.fault = fault
    try:
        yield
    finally:
        manager.executor.fault = execution.no_fault


def crash_at(point: str) -> Callable[[str], None]:
    def fault(reached: str) -> None:
        if reached == point:
            raise CrashError(point)

    return fault


def points_of(manager: ShardMapManager, work: Callable[[], object]) -> list[str]:
    points: list[str] = []
    with faults(manager, points.append):
        work()
    return points


@contextlib.contextmanager
def a_scenario(urls: NewDatabase) -> Iterator[tuple[Scenario, ShardMapManager]]:
    with a_catalog(urls) as catalog, ShardMapManager.open(catalog.url) as repairer:
        yield Scenario(catalog), repairer


# --- the abort matrix -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sample(KINDS, 4))
def test_a_change_cut_off_at_any_step_is_undone_or_finished_by_another(
    catalog_urls: NewDatabase, kind: str
) -> None:
    _cut_off_at_every_step(catalog_urls, kind)


@pytest.mark.parametrize("kind", sample(["create_shard", "move_range"], 2))
def test_a_change_cut_off_on_postgresql_is_undone_or_finished_by_another(kind: str) -> None:
    _cut_off_at_every_step(an_empty_database, kind)


def _cut_off_at_every_step(urls: NewDatabase, kind: str) -> None:
    with a_scenario(urls) as (scenario, repairer):
        manager = scenario.catalog.manager
        points = points_of(manager, getattr(scenario, kind)())
        assert len(points) >= 6

        for point in points:
            work = getattr(scenario, kind)()
            before = scenario.state()
            with faults(manager, crash_at(point)), pytest.raises(CrashError):
                work()
            endings = set(repairer.repair().values())

            scenario.assert_sound()
            is_done = point == points[-1] or endings == {"finished"}
            assert (scenario.state() != before) == is_done, point
            if not is_done:
                work()
                assert scenario.state() != before
                scenario.assert_sound()


@pytest.mark.parametrize("kind", KINDS)
def test_readers_see_the_old_or_the_new_state_at_every_step(
    catalog_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        work = getattr(scenario, kind)()
        seen = [scenario.state()]

        with faults(scenario.catalog.manager, lambda _point: seen.append(scenario.state())):
            work()
        seen.append(scenario.state())

        changes = [index for index in range(1, len(seen)) if seen[index] != seen[index - 1]]
        assert len(changes) == 1


@pytest.mark.parametrize(
    "kind",
    [
        "create_shard",
        pytest.param("move_range", marks=pytest.mark.proof),
        pytest.param("split", marks=soak),
        pytest.param("delete_range", marks=soak),
    ],
)
def test_a_recovery_cut_off_at_any_step_is_ended_by_the_next(
    catalog_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, repairer):
        manager = scenario.catalog.manager
        for first in points_of(manager, getattr(scenario, kind)())[1:-1]:
            _crash(scenario, kind, first)
            for second in points_of(repairer, repairer.repair):
                _crash(scenario, kind, first)

                with faults(repairer, crash_at(second)), pytest.raises(CrashError):
                    repairer.repair()
                manager.repair()

                scenario.assert_sound()


def _crash(scenario: Scenario, kind: str, point: str) -> None:
    work = getattr(scenario, kind)()
    with faults(scenario.catalog.manager, crash_at(point)), pytest.raises(CrashError):
        work()


@pytest.mark.parametrize("kind", ["create_range", "move_range", "merge"])
def test_the_next_change_that_meets_an_unfinished_one_ends_it(
    catalog_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, other):
        manager = scenario.catalog.manager
        for point in points_of(manager, getattr(scenario, kind)())[1:-1]:
            _crash(scenario, kind, point)
            assert len(pending(manager)) == 1

            scenario.tries += 1
            low = scenario.tries * 100
            tenants = other.get_map("tenants")
            tenants.create_mapping(Range(low, low + 1), scenario.catalog.one)

            scenario.assert_sound()


@pytest.mark.parametrize("kind", sample(KINDS, 4))
def test_a_change_that_is_repeated_ends_its_unfinished_self_first(
    catalog_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        manager = scenario.catalog.manager
        for point in points_of(manager, getattr(scenario, kind)())[1:-1]:
            work = getattr(scenario, kind)()
            before = scenario.state()
            with faults(manager, crash_at(point)), pytest.raises(CrashError):
                work()

            # The unfinished change may be finished instead of undone: then this one is refused.
            with contextlib.suppress(ConflictError, UsageError):
                work()

            assert scenario.state() != before, point
            scenario.assert_sound()


def test_a_change_on_another_shard_does_not_wait(catalog_urls: NewDatabase) -> None:
    with a_scenario(catalog_urls) as (scenario, other):
        _crash(scenario, "create_range", "global prepared")

        other.get_map("tenants").create_mapping(Range(-10, 0), scenario.catalog.two)

        assert len(pending(other)) == 1


@pytest.mark.parametrize(
    ("point", "is_kept"), [("global prepared", False), ("local 0 applied", True)]
)
def test_keys_of_an_unfinished_change_are_not_given_to_another_shard(
    both_urls: NewDatabase, point: str, *, is_kept: bool
) -> None:
    with a_scenario(both_urls) as (scenario, other):
        one, two = scenario.catalog.one, scenario.catalog.two
        with faults(scenario.catalog.manager, crash_at(point)), pytest.raises(CrashError):
            scenario.tenants.create_mapping(Range(0, 100), one)

        with contextlib.suppress(MappingExistsError):
            other.get_map("tenants").create_mapping(Range(50, 150), two)

        owners = [(mapping.range, mapping.shard) for mapping in scenario.tenants.mappings()]
        assert owners == ([(Range(0, 100), one)] if is_kept else [(Range(50, 150), two)])
        scenario.assert_sound()


def test_locks_wait_for_an_unfinished_change_too(catalog_urls: NewDatabase) -> None:
    with a_scenario(catalog_urls) as (scenario, other):
        mapping = scenario.fresh()
        with (
            faults(scenario.catalog.manager, crash_at("global prepared")),
            pytest.raises(CrashError),
        ):
            scenario.tenants.update_mapping(mapping, status=OFFLINE)

        with other.get_map("tenants").lock(mapping):
            assert pending(other) == []


def test_a_map_is_not_deleted_under_an_unfinished_change(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        with faults(manager, crash_at("local 0 applied")), pytest.raises(CrashError):
            tenants.create_shard(catalog_urls("one"))

        with pytest.raises(Exception, match="ShardMapHasShards"):
            manager.delete_map("tenants")

        assert len(tenants.shards()) == 1
        assert_catalogs_agree(tenants)


# --- errors instead of crashes --------------------------------------------------------------------


def fail_at(point: str, times: int) -> Callable[[str], None]:
    left = [times]

    def fault(reached: str) -> None:
        if reached == point and left[0]:
            left[0] -= 1
            raise OperationalError("UPDATE", {}, Exception("the connection is gone"))

    return fault


@pytest.mark.parametrize("kind", ["create_point", "create_range", "move_range"])
@pytest.mark.parametrize("point", ["local 0 applying", "global finishing"])
def test_a_step_that_fails_once_is_repeated(
    catalog_urls: NewDatabase, kind: str, point: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        work = getattr(scenario, kind)()

        with faults(scenario.catalog.manager, fail_at(point, times=2)):
            work()

        scenario.assert_sound()


@pytest.mark.parametrize("kind", ["create_shard", "delete_point", "update_range", "split"])
def test_a_shard_that_keeps_failing_leaves_everything_as_it_was(
    catalog_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        work = getattr(scenario, kind)()
        before = scenario.state()

        with (
            faults(scenario.catalog.manager, fail_at("local 0 applying", times=4)),
            pytest.raises(ShardOfflineError) as refused,
        ):
            work()

        assert refused.value.code == "ShardUnreachable"
        assert scenario.state() == before
        scenario.assert_sound()
        work()


def test_a_target_that_keeps_failing_gives_the_mapping_back_to_its_source(
    both_urls: NewDatabase,
) -> None:
    with a_scenario(both_urls) as (scenario, _):
        work = scenario.move_range()
        before = scenario.state()

        with (
            faults(scenario.catalog.manager, fail_at("local 1 applying", times=4)),
            pytest.raises(ShardOfflineError),
        ):
            work()

        assert scenario.state() == before
        scenario.assert_sound()
        work()


@pytest.mark.parametrize("kind", ["create_range", "create_point"])
def test_a_catalog_that_keeps_failing_at_the_end_is_finished_later(
    both_urls: NewDatabase, kind: str
) -> None:
    with a_scenario(both_urls) as (scenario, repairer):
        work = getattr(scenario, kind)()

        with (
            faults(scenario.catalog.manager, fail_at("global finishing", times=4)),
            pytest.raises(OperationPendingError) as refused,
        ):
            work()

        assert refused.value.code == "OperationUnfinished"
        assert list(repairer.repair().values()) == ["finished"]
        assert repairer.counters["operations_finished"] == 1
        scenario.assert_sound()


DOUBLE_FAULTS = [
    ("create_point", "local 0 applying", "undo marking"),
    ("create_shard", "local 0 applying", "global reverting"),
    ("delete_shard", "local 0 applying", "local 0 undoing"),
    ("update_shard", "local 0 applying", "global reverting"),
    ("delete_range", "local 0 applying", "global reverting"),
    ("update_range", "local 0 applied", "global reverting"),
    ("move_range", "local 1 applied", "local 1 undoing"),
    ("move_point", "local 1 applying", "local 0 undoing"),
    ("split", "local 0 applied", "undo marked"),
    ("merge", "local 0 applying", "global reverting"),
]


@pytest.mark.parametrize(("kind", "first", "second"), DOUBLE_FAULTS)
def test_a_change_that_fails_and_cannot_be_taken_back_is_ended_by_the_next(
    catalog_urls: NewDatabase, kind: str, first: str, second: str
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        manager = scenario.catalog.manager
        work = getattr(scenario, kind)()
        before = scenario.state()
        one, two = fail_at(first, times=9), fail_at(second, times=9)

        def fail(point: str) -> None:
            one(point)
            two(point)

        with faults(manager, fail), pytest.raises(ShardOfflineError):
            work()

        assert len(pending(manager)) == 1
        assert scenario.state() == before
        manager.repair()
        if scenario.state() == before:  # else it was everywhere already, and was finished
            work()
        scenario.assert_sound()


def test_connections_that_died_in_the_pool_are_replaced_unnoticed() -> None:
    with a_catalog(an_empty_database) as catalog:
        tenants = catalog.tenants
        databases = [catalog.manager.location, catalog.one.location, catalog.two.location]
        for use in (
            lambda: tenants.find(5, lookup="store"),
            tenants.mappings,
            catalog.manager.list_maps,
            lambda: tenants.create_mapping(Range(0, 10), catalog.one),
            lambda: tenants.lock(tenants.get(5), token="mine"),
            lambda: tenants.unlock("mine"),
            catalog.manager.repair,
            lambda: catalog.manager.recovery.resolve(catalog.one, keep="global"),
        ):
            _end_all_sessions([str(location.database) for location in databases])
            use()

        catalog.manager.close()
        assert_catalogs_agree(tenants)


def _end_all_sessions(databases: list[str]) -> None:
    engine = create_engine(postgres.server().url("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = ANY(:names)"
            ),
            {"names": databases},
        )
    engine.dispose()


def test_a_local_catalog_that_was_set_back_is_noticed_before_it_is_changed(
    catalog_urls: NewDatabase,
) -> None:
    with a_scenario(catalog_urls) as (scenario, _):
        mapping = scenario.fresh()
        with scenario.catalog.one.connect() as connection:
            mine = local_catalog.shards.c.map_id == scenario.tenants.id
            connection.execute(
                update(local_catalog.shards).where(mine).values(last_operation="of a backup")
            )
            connection.commit()

        with pytest.raises(CatalogMismatchError) as refused:
            scenario.tenants.split(mapping, at=mapping.range.low + 1)

        assert refused.value.code == "LocalCatalogDiffers"
        assert pending(scenario.catalog.manager) == []
        assert scenario.tenants.mappings() == [mapping]


# --- doers that live ------------------------------------------------------------------------------


def test_a_live_doer_is_not_undone_and_others_wait_for_it(both_urls: NewDatabase) -> None:
    with a_scenario(both_urls) as (scenario, other):
        work = scenario.create_range()
        reached, go_on = threading.Event(), threading.Event()

        def pause(point: str) -> None:
            if point == "local 0 applied":
                reached.set()
                assert go_on.wait(60)

        with faults(scenario.catalog.manager, pause):
            doer = threading.Thread(target=work)
            doer.start()
            assert reached.wait(60)
            assert list(other.repair().values()) == ["alive"]
            waiter = threading.Thread(
                target=other.get_map("tenants").create_mapping,
                args=(Range(-10, 0), scenario.catalog.one),
            )
            waiter.start()
            go_on.set()
            doer.join(60)
            waiter.join(60)

        assert len(scenario.tenants.mappings()) == 2
        scenario.assert_sound()


def test_waiting_for_a_live_doer_ends(
    both_urls: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "WAIT_TRIES", 3)
    with a_scenario(both_urls) as (scenario, other):
        work = scenario.create_range()
        refused: list[str] = []

        def meet(point: str) -> None:
            if point == "global prepared":
                with pytest.raises(OperationPendingError) as error:
                    other.get_map("tenants").create_mapping(Range(-1, 0), scenario.catalog.one)
                refused.append(error.value.code)

        with faults(scenario.catalog.manager, meet):
            work()

        assert refused == ["OperationPending"]
        scenario.assert_sound()


def test_a_slow_doer_that_was_undone_changes_nothing_more(both_urls: NewDatabase) -> None:
    with a_scenario(both_urls) as (scenario, other):
        before_last = "local 0 applied"
        work = scenario.move_range()
        before = scenario.state()

        with (
            faults(scenario.catalog.manager, _overtaken(scenario, other, before_last)),
            pytest.raises(OperationPendingError) as refused,
        ):
            work()

        assert refused.value.code == "OperationTakenOver"
        assert scenario.state() == before
        scenario.assert_sound()
        work()


def test_a_slow_doer_finds_its_change_finished_by_another(both_urls: NewDatabase) -> None:
    with a_scenario(both_urls) as (scenario, other):
        work = scenario.move_range()
        before = scenario.state()

        with faults(scenario.catalog.manager, _overtaken(scenario, other, "local 1 applied")):
            work()

        assert other.counters["operations_finished"] == 1
        assert scenario.state() != before
        scenario.assert_sound()


def test_a_slow_creator_of_a_shard_leaves_nothing_that_hurts(both_urls: NewDatabase) -> None:
    with a_scenario(both_urls) as (scenario, other):
        work = scenario.create_shard()

        with (
            faults(scenario.catalog.manager, _overtaken(scenario, other, "global prepared")),
            pytest.raises(OperationPendingError),
        ):
            work()

        scenario.assert_sound()
        work()
        scenario.assert_sound()


def _overtaken(scenario: Scenario, other: ShardMapManager, where: str) -> Callable[[str], None]:
    """At this step the doer seems dead: its lock is lost, and another ends the change."""

    def fault(point: str) -> None:
        if point != where:
            return
        with other.executor.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks "
                        "WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
                    )
                )
            else:
                connection.execute(
                    update(global_catalog.operations).values(owner="elsewhere/1/1", beat_at=0)
                )
        assert "alive" not in other.repair().values()

    return fault


def test_a_doer_on_another_machine_has_a_lease(new_sqlite: NewDatabase) -> None:
    with a_scenario(new_sqlite) as (scenario, other):
        _crash(scenario, "create_range", "global prepared")
        with other.executor.engine.begin() as connection:
            connection.execute(update(global_catalog.operations).values(owner="elsewhere/1/1"))

        assert list(other.repair().values()) == ["alive"]
        with other.executor.engine.begin() as connection:
            old = other.clock.ticks() - 61 * 10_000_000
            connection.execute(update(global_catalog.operations).values(beat_at=old))
        assert list(other.repair().values()) == ["undone"]


def test_records_of_undone_changes_are_forgotten_in_the_end(new_sqlite: NewDatabase) -> None:
    with a_scenario(new_sqlite) as (scenario, other):
        _crash(scenario, "create_range", "global prepared")
        other.repair()
        assert _records(other) == 1
        with other.executor.engine.begin() as connection:
            connection.execute(update(global_catalog.operations).values(beat_at=0))

        scenario.create_range()()

        assert _records(other) == 0


def _records(manager: ShardMapManager) -> int:
    with manager.executor.engine.connect() as connection:
        return len(list(connection.execute(global_catalog.operations.select())))


# --- killed processes -----------------------------------------------------------------------------


@pytest.mark.repeated
def test_writers_that_are_killed_leave_catalogs_that_agree_after_repair(
    both_urls: NewDatabase,
) -> None:
    with a_catalog(both_urls) as catalog:
        catalog.tenants.create_mapping(Range(None, None), catalog.one)
        chance = random.Random(7)

        for _ in range(KILL_ROUNDS):
            writers = [_start_writer(catalog, str(chance.randrange(10**6))) for _ in range(2)]
            for writer in writers:
                _, errors = writer.communicate(timeout=100)
                assert writer.returncode == -signal.SIGKILL, errors.decode()

            assert "alive" not in _repaired(catalog.manager)
            _assert_every_key_has_one_shard(catalog)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("global preparing", marks=soak),
        pytest.param("global prepared", marks=pytest.mark.proof),
        pytest.param("local 0 applying", marks=soak),
        "local 0 applied",
        pytest.param("local 1 applying", marks=soak),
        "local 1 applied",
        pytest.param("global finishing", marks=pytest.mark.proof),
        pytest.param("global finished", marks=soak),
    ],
)
def test_a_writer_that_is_killed_at_a_step_leaves_the_old_or_the_new_state(
    catalog_urls: NewDatabase, point: str
) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(None, None), catalog.one, status=OFFLINE)
        writer = _start_writer(catalog, f"at {point}")
        _, errors = writer.communicate(timeout=100)
        assert writer.returncode == -signal.SIGKILL, errors.decode()

        before = [mapping.shard for mapping in catalog.tenants.mappings()]
        assert before == [catalog.two if point == "global finished" else catalog.one]
        assert "alive" not in _repaired(catalog.manager)

        is_done = point in {"local 1 applied", "global finishing", "global finished"}
        after = [mapping.shard for mapping in catalog.tenants.mappings()]
        assert after == [catalog.two if is_done else catalog.one]
        _assert_every_key_has_one_shard(catalog)


@pytest.mark.repeated
def test_changes_whose_sessions_are_ended_leave_catalogs_that_agree_after_repair(
    new_postgres: NewDatabase,
) -> None:
    with a_catalog(new_postgres) as catalog:
        catalog.tenants.create_mapping(Range(None, None), catalog.one)
        chance, is_over = random.Random(7), threading.Event()
        killer = threading.Thread(target=_end_sessions, args=(catalog, is_over))
        killer.start()
        try:
            for _ in range(CHANGES):
                with contextlib.suppress(PartitaError, DBAPIError):
                    catalog_writer.change(catalog.tenants, chance)
        finally:
            is_over.set()
            killer.join()

        assert "alive" not in _repaired(catalog.manager)
        _assert_every_key_has_one_shard(catalog)


def _start_writer(catalog: Catalog, how: str) -> subprocess.Popen[bytes]:
    writer = Path(catalog_writer.__file__)
    return subprocess.Popen(
        [sys.executable, writer, catalog.url, how],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _end_sessions(catalog: Catalog, is_over: threading.Event) -> None:
    """End a session of the catalog or of a shard every now and then, whatever it is doing."""
    databases = [str(shard.location.database) for shard in (catalog.one, catalog.two)]
    databases.append(str(catalog.manager.location.database))
    chance = random.Random(11)
    engine = create_engine(postgres.server().url("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        while not is_over.wait(chance.random() / 20):
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
                ),
                {"name": chance.choice(databases)},
            )
    engine.dispose()


def _repaired(manager: ShardMapManager) -> set[str]:
    # A server needs a moment to see that a killed client is gone; and pooled connections that
    # were ended from outside are found one by one.
    endings = {"alive"}
    for _ in range(1_200):
        with contextlib.suppress(ShardOfflineError, DBAPIError):
            endings = set(manager.repair().values())
        if "alive" not in endings:
            break
        threading.Event().wait(0.05)
    return endings


def _assert_every_key_has_one_shard(catalog: Catalog) -> None:
    catalog.manager.close()
    assert_catalogs_agree(catalog.tenants)
    owned = [mapping.key_range for mapping in catalog.tenants.mappings()]
    assert owned[0].low == b""
    assert owned[-1].high is None
    assert all(left.high == right.low for left, right in pairwise(owned))


# --- plans ----------------------------------------------------------------------------------------


def test_a_plan_is_read_back_as_it_was_written(new_sqlite: NewDatabase) -> None:
    with a_scenario(new_sqlite) as (scenario, _):
        plans: list[ChangePlan] = []
        original = scenario.tenants.executor.run

        def keep(*arguments: object) -> ChangePlan:
            plans.append(original(*arguments))  # type: ignore[arg-type]
            return plans[-1]

        scenario.tenants.executor.run = keep  # type: ignore[method-assign, assignment]
        for kind in [*KINDS[:2], *KINDS[3:], "update_shard"]:  # an offline shard gets no mapping
            getattr(scenario, kind)()()

        assert {plan.kind for plan in plans} == {
            "create_shard",
            "delete_shard",
            "update_shard",
            "create_mapping",
            "delete_mapping",
            "update_mapping",
            "move_mapping",
            "split_mapping",
            "merge_mappings",
        }
        for plan in plans:
            assert decode_plan(encode_plan(plan)) == plan
            assert all(isinstance(change, LocalChange) for change in plan.changes)
