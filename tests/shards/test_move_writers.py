"""Writer processes while ranges bounce between shards: every committed change is found, once.

Writers insert, update and delete rows of their own through routing and keep a ledger; what they
wrote last is what must be found, on the shard that the map names, and nowhere else. Readers look
at pairs of rows that change together: never at half a change, never at an older one than before.
The naive ways to validate a transaction must be caught by the same check.
"""

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update

from partita.errors import InDoubtError, PartitaError
from partita.shards.connections import validation
from partita.shards.keys.mapping import Shard
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from partita.shards.moving.move import MoveProgress, MoveReport, StopMove
from partita.shards.moving.move_plan import Step
from partita.shards.routing import router
from partita.shards.routing.retry import Retry
from partita.shards.routing.session import RoutedSession
from shards.mover_process import Killer, forked
from shards.moves import (
    Kept,
    Moving,
    assert_nothing_is_left,
    blog,
    content,
    kept,
    kept_postgres,
    kept_sqlite,
    mapping_of,
)
from support.catalogs import assert_catalogs_agree
from support.repeats import repeat

__all__ = ["kept", "kept_postgres", "kept_sqlite"]

WRITERS = 8
READERS = 2
SECONDS = repeat(7.0, 7.0, 60.0)
TENANTS = (5, 42, 150)
"""The first two are in the range that bounces, the third is a neighbour."""
IDS_PER_WRITER = 1_000_000
PAIR = (1, 2)
"""Ids of the two rows of each tenant that change together."""
PAUSES = (0, 0.02, 0.05)
"""Between two changes: the mover should have a share of the machine."""
PATIENT = Retry(longest=0.2, budget=120)


class Writer:
    """One process: what it changed, as far as it was told that the change was committed."""

    def __init__(self, catalog: str, number: int) -> None:
        self.manager = ShardMapManager.open(catalog)
        self.tenants = self.manager.get_map("tenants")
        self.chance = random.Random(number)
        self.next_id = number * IDS_PER_WRITER
        self.pair_of = TENANTS[number - 1] if number <= len(TENANTS) else None
        self.version = 0
        self.rows: dict[int, tuple[int, str | None]] = {}
        """Tenant and value by id; no value: deleted."""
        self.doubt: set[int] = set()
        self.failed: list[str] = []

    def step(self) -> None:
        living = [row for row, (_, value) in self.rows.items() if value and row not in self.doubt]
        kind = self.chance.randrange(4) if living else 0
        time.sleep(self.chance.choice(PAUSES))
        if self.pair_of is not None and kind == 3:
            self._change_pair(self.pair_of)
        elif kind == 3:
            self._read(self.chance.choice(living))
        else:
            self._change(kind, self.chance.choice(living) if kind else self._new())

    def _new(self) -> int:
        self.next_id += 1
        self.rows[self.next_id] = (self.chance.choice(TENANTS), None)
        return self.next_id

    def _change(self, kind: int, row: int) -> None:
        tenant, _ = self.rows[row]
        value = None if kind == 2 else f"{row} {self.chance.random()}"
        mine = (blog.c.tenant_id == tenant, blog.c.id == row)
        statement: Any = (
            insert(blog).values(tenant_id=tenant, id=row, slug=value),
            update(blog).where(*mine).values(slug=value),
            delete(blog).where(*mine),
        )[kind]
        pause = self.chance.choice((0, 0, 0, 0.01))

        def change(session: RoutedSession) -> None:
            changed: Any = session.execute(statement)
            time.sleep(pause)
            assert kind == 0 or changed.rowcount == 1, (kind, row)

        try:
            self.tenants.run(tenant, change, retry=PATIENT)
            self.rows[row] = (tenant, value)
        except InDoubtError:
            self.doubt.add(row)
        except (PartitaError, AssertionError) as error:
            self.failed.append(repr(error))
            self.doubt.add(row)

    def _change_pair(self, tenant: int) -> None:
        self.version += 1

        def change(session: RoutedSession) -> None:
            for row in PAIR:
                mine = (blog.c.tenant_id == tenant, blog.c.id == row)
                session.execute(update(blog).where(*mine).values(slug=f"{row} {self.version}"))

        try:
            self.tenants.run(tenant, change, retry=PATIENT)
        except InDoubtError:
            pass  # because the next one has a later version, whatever became of this
        except PartitaError as error:
            self.failed.append(repr(error))

    def _read(self, row: int) -> None:
        tenant, value = self.rows[row]
        query = select(blog.c.slug).where(blog.c.tenant_id == tenant, blog.c.id == row)
        found = self.tenants.run(tenant, lambda session: session.scalar(query), retry=PATIENT)
        if found != value:
            self.failed.append(f"read {found!r} for {value!r} of {row}")

    def ledger(self) -> dict[str, Any]:
        return {"rows": self.rows, "doubt": list(self.doubt), "failed": self.failed}


class Reader:
    """One process that looks at the pairs."""

    def __init__(self, catalog: str, number: int) -> None:
        self.manager = ShardMapManager.open(catalog)
        self.tenants = self.manager.get_map("tenants")
        self.chance = random.Random(number)
        self.versions = dict.fromkeys(TENANTS, 0)
        self.reads = 0
        self.failed: list[str] = []

    def step(self) -> None:
        tenant = self.chance.choice(TENANTS)
        query = select(blog.c.slug).where(blog.c.tenant_id == tenant, blog.c.id.in_(PAIR))
        found = self.tenants.run(
            tenant, lambda session: session.scalars(query).all(), retry=PATIENT
        )
        versions = [int(slug.split()[1]) for slug in found]
        self.reads += 1
        if len(versions) != 2 or versions[0] != versions[1] or versions[0] < self.versions[tenant]:
            self.failed.append(f"{versions} after {self.versions[tenant]}")
        self.versions[tenant] = max(versions, default=0)
        time.sleep(0.005)

    def ledger(self) -> dict[str, Any]:
        return {"rows": {}, "doubt": [], "failed": self.failed, "reads": self.reads}


@contextmanager
def clients(moving: Moving, folder: Path, ledgers: list[Any]) -> Iterator[None]:
    """Run writer and reader processes; their ledgers are there when they have ended."""
    stop = folder / "stop"
    moving.manager.close()
    sys.stdout.flush()
    kinds: list[tuple[type[Writer | Reader], int]] = [
        *((Writer, number) for number in range(1, WRITERS + 1)),
        *((Reader, number) for number in range(1, READERS + 1)),
    ]
    children = [_fork(kind, moving.catalog_url, number, stop) for kind, number in kinds]
    moving.reopen()
    try:
        yield
    finally:
        stop.touch()
        for child, reading in children:
            with os.fdopen(reading) as printed:
                found = printed.read()
            _, status = os.waitpid(child, 0)
            if status == 0:
                ledgers.append(json.loads(found))
    assert len(ledgers) == len(kinds)


def _fork(kind: type[Writer | Reader], catalog: str, number: int, stop: Path) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        client = kind(catalog, number)
        while not stop.exists():
            client.step()
        with os.fdopen(writing, "w") as printed:
            printed.write(json.dumps(client.ledger()))
        code = 0
    finally:
        os._exit(code)


def check(moving: Moving, ledgers: list[Any]) -> int:
    """Compare what lies where with all ledgers; return how many rows were found."""
    owners = {tenant: mapping_of(moving.tenants, tenant).shard for tenant in TENANTS}
    found: dict[int, list[tuple[int, str]]] = {}
    for shard in (moving.one, moving.two):
        for tenant, row, value, _ in content(shard)["blog"]:
            assert owners[tenant] == shard, f"{row} of {tenant} is on the wrong shard"
            if row not in PAIR:
                found.setdefault(row, []).append((tenant, value))
    for ledger in ledgers:
        assert ledger["failed"] == []
        for row, (tenant, value) in ledger["rows"].items():
            if int(row) not in ledger["doubt"]:
                expected = [] if value is None else [(tenant, value)]
                assert found.get(int(row), []) == expected
    known = {int(row) for ledger in ledgers for row in ledger["rows"]}
    assert set(found) <= known
    return len(found)


def fill_pairs(moving: Moving) -> None:
    moving.fill([])
    for shard in (moving.one, moving.two):
        with shard.connect() as connection:
            rows = [
                {"tenant_id": tenant, "id": row, "slug": f"{row} 0"}
                for tenant in TENANTS
                for row in PAIR
                if (tenant < 100) == (shard == moving.one)
            ]
            connection.execute(insert(blog), rows)
            connection.commit()


# --- movers, good and bad -------------------------------------------------------------------------


def bounce(moving: Moving, on_progress: move.OnProgress | None = None) -> MoveReport:
    mapping = mapping_of(moving.tenants, 42)
    to = moving.two if mapping.shard == moving.one else moving.one
    return move.move(moving.manager, mapping, to, batch_rows=50, grace=0.5, on_progress=on_progress)


def stopped_at(step: Step) -> move.OnProgress:
    def stop(progress: MoveProgress) -> None:
        if progress.step == step:
            raise StopMove

    return stop


def stop_and_resume(moving: Moving, step: Step) -> None:
    assert bounce(moving, stopped_at(step)).state == "paused"
    assert [report.state for report in move.resume(moving.manager)] == ["done"]


def stop_and_cancel(moving: Moving, step: Step) -> None:
    paused = bounce(moving, stopped_at(step))
    assert move.cancel(moving.manager, paused.job_id).state == "cancelled"


def kill_and_resume(moving: Moving, point: str) -> None:
    """Kill a mover of another process behind the fence."""
    mapping = mapping_of(moving.tenants, 42)
    to = moving.two if mapping.shard == moving.one else moving.one
    _, ended_by = forked(moving, lambda: move_and_die(moving, to, point))
    moving.reopen()
    assert ended_by == signal.SIGKILL
    assert [report.state for report in move.resume(moving.manager)] == ["done"]


def move_and_die(moving: Moving, to: Shard, point: str) -> None:
    manager = ShardMapManager.open(moving.catalog_url)
    manager.executor.fault = Killer(point, 1)
    move.move(manager, manager.get_map("tenants").get(42), to, grace=0.5)


DISTURBANCES: tuple[tuple[Callable[[Moving, Any], None], str], ...] = (
    (stop_and_cancel, "verify"),
    (kill_and_resume, "verify: move verify applied"),
    (stop_and_resume, "switch"),
    (stop_and_cancel, "copy"),
    (kill_and_resume, "switch: local 0 applied"),
    (stop_and_resume, "catch_up"),
    (stop_and_resume, "clean_up"),
)
DISTURBANCES_MIN = 3


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_writers_lose_nothing_while_ranges_bounce(
    kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers: list[Any] = []
    reports: list[MoveReport] = []
    with kept.whole() as moving:
        fill_pairs(moving)
        with clients(moving, tmp_path, ledgers):
            disturbances = itertools.cycle(DISTURBANCES)
            with ShardMapManager.open(moving.catalog_url) as asleep:
                sleeper = asleep.get_map("tenants")
                owner = sleeper.get(42).shard
                end = time.monotonic() + SECONDS
                turns = 0
                while time.monotonic() < end or turns < DISTURBANCES_MIN:
                    reports.append(bounce(moving))
                    disturb, where = next(disturbances)
                    disturb(moving, where)
                    turns += 1
                if mapping_of(moving.tenants, 42).shard == owner:
                    reports.append(bounce(moving))
                # It wakes with its old cache: the old shard refuses it, and it is rerouted.
                cached = sleeper.find_cached(42)
                assert cached is not None
                assert cached.shard == owner
                row = insert(blog).values(tenant_id=42, id=3, slug="asleep")
                sleeper.run(42, lambda session: session.execute(row))
                assert asleep.counters["reroutes"] == 1
        ledgers.append({"rows": {"3": [42, "asleep"]}, "doubt": [], "failed": []})

        rows = check(moving, ledgers)

        assert_nothing_is_left(moving)
        assert_catalogs_agree(moving.tenants)
    fences = sorted(report.fence_seconds for report in reports)
    written = sum(len(ledger["rows"]) for ledger in ledgers)
    reads = sum(ledger.get("reads", 0) for ledger in ledgers)
    with capsys.disabled():
        print(
            f"\n{len(reports)} moves, {turns} more disturbed, {written} rows written, {rows} found,"
            f" {reads} reads, {sum(report.terminated for report in reports)} sessions terminated,"
            f" fence median {fences[len(fences) // 2]:.3f} s, longest {fences[-1]:.3f} s"
        )
    assert written > len(reports)
    assert reads > len(reports)


# --- the naive ways are caught --------------------------------------------------------------------

GATE = 4711
# Each waits at a gate that stays closed for a whole move.
NO_LOCK = """
CREATE OR REPLACE FUNCTION partita_enter(mapping_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$ DECLARE found text; BEGIN
  SELECT status INTO found FROM partita_local_mappings WHERE id = mapping_id;
  PERFORM pg_advisory_xact_lock_shared({gate});
  RETURN coalesce(found, 'gone');
END $$"""
ONE_SNAPSHOT = """
CREATE OR REPLACE FUNCTION partita_enter(mapping_id text) RETURNS text LANGUAGE plpgsql STABLE
AS $$ DECLARE found text; BEGIN
  PERFORM pg_advisory_xact_lock_shared({gate});
  IF NOT pg_try_advisory_xact_lock_shared(
    {lock}, ('x' || substr(mapping_id, 1, 8))::bit(32)::int) THEN RETURN 'locked'; END IF;
  SELECT status INTO found FROM partita_local_mappings WHERE id = mapping_id;
  RETURN coalesce(found, 'gone');
END $$"""
LOCK_THEN_LOOK = ONE_SNAPSHOT.replace("STABLE", "VOLATILE")


@pytest.mark.parametrize(
    ("function", "is_right"),
    [(NO_LOCK, False), (ONE_SNAPSHOT, False), (LOCK_THEN_LOOK, True)],
    ids=["no lock", "lock and check under one snapshot", "lock, then check"],
)
def test_a_move_passes_a_writer_that_validates_naively(
    kept_postgres: Kept, function: str, is_right: bool
) -> None:
    with kept_postgres.whole() as moving:
        fill_pairs(moving)
        with replaced_enter(moving, function), closed_gate(moving) as gate:
            ledger = write_during_a_move(moving, gate.wait_until_somebody_waits, gate.open)

        if is_right:
            check(moving, [ledger])
        else:
            with pytest.raises(AssertionError, match="wrong shard"):
                check(moving, [ledger])


@pytest.mark.parametrize("is_right", [False, True], ids=["another snapshot", "the same snapshot"])
def test_a_move_passes_a_writer_that_checks_in_another_snapshot(
    kept_sqlite: Kept, monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    is_inside, is_open = threading.Event(), threading.Event()

    def naive(dialect: Any, pooled: Any, mapping_id: str) -> validation.Admission:
        """Check, and begin once more: what the check has seen is no fence for what follows."""
        entry = validation.validate(dialect, pooled, mapping_id)
        pooled.driver_connection.rollback()
        pooled.driver_connection.begin()
        pooled.driver_connection.entered_id = None  # so that a write does not check again
        return entry

    def wait(session: RoutedSession) -> None:
        driver: Any = session.connection().connection.driver_connection
        # As in another process: the mover of this one would end the transaction itself.
        driver.mapping_id = None
        is_inside.set()
        is_open.wait()

    if not is_right:
        monkeypatch.setitem(router._CHECKS, "always", naive)
    with kept_sqlite.whole() as moving:
        fill_pairs(moving)
        ledger = write_during_a_move(moving, is_inside.wait, is_open.set, inside=wait)

        if is_right:
            check(moving, [ledger])
        else:
            with pytest.raises(AssertionError, match="wrong shard"):
                check(moving, [ledger])


def write_during_a_move(
    moving: Moving,
    wait_until_inside: Callable[[], object],
    let_go: Callable[[], None],
    *,
    inside: Callable[[RoutedSession], None] = lambda _: None,
) -> dict[str, Any]:
    """Let another client validate before a move and write after it; return its ledger."""
    written: list[int] = []
    with ShardMapManager.open(moving.catalog_url) as other:
        tenants = other.get_map("tenants")
        tenants.get(42)

        def write(session: RoutedSession) -> None:
            inside(session)
            session.execute(insert(blog).values(tenant_id=42, id=9, slug="slow"))

        def run() -> None:
            tenants.run(42, write)
            written.append(9)

        writer = threading.Thread(target=run)
        writer.start()
        wait_until_inside()
        bounce(moving)
        let_go()
        writer.join()
    assert written == [9]
    return {"rows": {"9": [42, "slow"]}, "doubt": [], "failed": []}


class Gate:
    """An advisory lock that entries wait for."""

    def __init__(self, moving: Moving) -> None:
        admin = moving.manager.engines.admin(moving.one.location)
        self.connection = admin.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.connection.execute(text("SELECT pg_advisory_lock(:gate)"), {"gate": GATE})

    def wait_until_somebody_waits(self) -> None:
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        while not self.connection.scalar(query):
            time.sleep(0.005)

    def open(self) -> None:
        self.connection.execute(text("SELECT pg_advisory_unlock_all()"))


@contextmanager
def closed_gate(moving: Moving) -> Iterator[Gate]:
    gate = Gate(moving)
    try:
        yield gate
    finally:
        gate.connection.close()


@contextmanager
def replaced_enter(moving: Moving, function: str) -> Iterator[None]:
    """Deploy another partita_enter on the shards for a while."""
    deploy(moving, function.format(gate=GATE, lock=validation.LOCK_CLASS))
    try:
        yield
    finally:
        deploy(moving, validation.enter_sql())


def deploy(moving: Moving, function: str) -> None:
    for shard in (moving.one, moving.two):
        with shard.connect() as connection:
            connection.execute(text(function.replace(":", "\\:")))
            connection.commit()
