"""Writers while mappings bounce between shards: what was committed is found, once, in its place.

The naive ways to validate must fail the same check: without a lock, and with lock and read under
one snapshot.
"""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from partita.errors import PartitaError, StaleMappingError
from partita.shards.connections import validation
from partita.shards.connections.locations import file_of
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.connections.writing_turns import turns_of
from partita.shards.routing.retry import Retry
from partita.shards.routing.session import RoutedSession
from support.repeats import IS_SOAK
from support.routed import (
    NewDatabase,
    Note,
    Routed,
    a_routed_map,
    another_client,
    count_notes,
)

WRITERS = 8 if IS_SOAK else 4
MOVES = 200 if IS_SOAK else 8
HELD_TENANTS = (5, 150, 250)
"""The first one bounces; the second is its neighbour, the third lives on the other shard."""
GATE = 4711
PATIENT = Retry(longest=0.2, budget=120)
"""On a busy machine a key may be offline at many tries in a row."""

# Each waits at a gate that stays closed for a whole move. Only the last two are the real order.
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
LATE_LOCK = ONE_SNAPSHOT.replace("STABLE", "VOLATILE")
EARLY_LOCK = """
CREATE OR REPLACE FUNCTION partita_enter(mapping_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$ DECLARE found text; BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(
    {lock}, ('x' || substr(mapping_id, 1, 8))::bit(32)::int) THEN RETURN 'locked'; END IF;
  PERFORM pg_advisory_xact_lock_shared({gate});
  SELECT status INTO found FROM partita_local_mappings WHERE id = mapping_id;
  RETURN coalesce(found, 'gone');
END $$"""


@pytest.fixture
def routed(database_urls: NewDatabase) -> Iterator[Routed]:
    with a_routed_map(database_urls) as made:
        yield made


@pytest.fixture
def on_postgres(new_postgres: NewDatabase) -> Iterator[Routed]:
    with a_routed_map(new_postgres) as made:
        yield made


class Ledger:
    """What writers say they did, and what the shards hold."""

    def __init__(self) -> None:
        self.done: set[tuple[int, int]] = set()
        self.doubt: set[tuple[int, int]] = set()
        self.failed: list[str] = []

    def read(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "failed":
            self.failed.append(rest)
        elif word in {"done", "doubt"}:
            tenant, number = rest.split()
            (self.done if word == "done" else self.doubt).add((int(tenant), int(number)))

    def lost(self, routed: Routed) -> set[tuple[int, int]]:
        """Return what was committed and is not where routing would look for it."""
        found = {shard.id: set(routed.notes(shard)) for shard in (routed.one, routed.two)}
        return {
            (tenant, number)
            for tenant, number in self.done
            if (tenant, number) not in found[routed.tenants.get(tenant).shard.id]
        }

    def check(self, routed: Routed) -> None:
        assert self.failed == []
        assert self.lost(routed) == set()
        found = Counter(routed.notes(routed.one) + routed.notes(routed.two))
        assert [note for note, times in found.items() if times > 1] == []
        assert set(found) - self.done <= self.doubt
        for shard in (routed.one, routed.two):
            for tenant, _ in routed.notes(shard):
                assert routed.tenants.get(tenant).shard == shard


@contextlib.contextmanager
def writer_processes(routed: Routed, validate: str, ledger: Ledger) -> Iterator[None]:
    tests = Path(__file__).parent.parent
    script = tests / "shards" / "writer_process.py"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(script),
                routed.urls[0],
                str(number),
                validate,
                ",".join(str(tenant) for tenant in HELD_TENANTS),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests)},
        )
        for number in range(1, WRITERS + 1)
    ]
    # Read as it comes: a full pipe would stop the writer in the middle of its work.
    readers = [threading.Thread(target=_read_all, args=(one, ledger)) for one in processes]
    try:
        for one in processes:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for reader in readers:
            reader.start()
        yield
    finally:
        for one in processes:
            assert one.stdin is not None
            one.stdin.close()
        for one, reader in zip(processes, readers, strict=True):
            if reader.ident is not None:
                reader.join()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


def _read_all(process: "subprocess.Popen[str]", ledger: Ledger) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        ledger.read(line)


@pytest.mark.proof
@pytest.mark.parametrize("validate", [pytest.param("always", marks=pytest.mark.soak), "lease"])
@pytest.mark.timeout(1800 if IS_SOAK else 240)
def test_processes_that_write_while_a_mapping_bounces_lose_nothing(
    on_postgres: Routed, validate: str
) -> None:
    check_processes(on_postgres, validate)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_processes_that_write_to_files_while_a_mapping_bounces_lose_nothing(
    new_sqlite: NewDatabase,
) -> None:
    # Without leases: SQLite has no session locks.
    with a_routed_map(new_sqlite) as routed:
        check_processes(routed, "always")


def check_processes(routed: Routed, validate: str) -> None:
    ledger = Ledger()
    with writer_processes(routed, validate, ledger):
        for _ in range(MOVES):
            routed.move(5)
            time.sleep(0.1)
        while len(ledger.done) <= MOVES:  # they are slower than the moves on a busy machine
            time.sleep(0.01)
    ledger.check(routed)


@pytest.mark.soak  # because the gated test below shows the same for certain
@pytest.mark.parametrize("function", ["NO_LOCK", "ONE_SNAPSHOT"])
@pytest.mark.timeout(600)
def test_processes_that_validate_naively_lose_notes(on_postgres: Routed, function: str) -> None:
    slow = globals()[function].replace(
        "pg_advisory_xact_lock_shared({gate})", "pg_sleep(1.5 * random())"
    )
    replace_enter(on_postgres, slow)
    ledger = Ledger()
    with writer_processes(on_postgres, "always", ledger):
        for _ in range(60):
            on_postgres.move(5)
            time.sleep(0.3)
    assert ledger.lost(on_postgres) != set()


@pytest.mark.timeout(600 if IS_SOAK else 300)
def test_threads_that_write_while_a_mapping_bounces_lose_nothing(routed: Routed) -> None:
    ledger, ended = Ledger(), threading.Event()

    def write(client: Routed, number: int) -> None:
        while not ended.is_set():
            number += 1
            tenant = HELD_TENANTS[number % 3]

            def add(session: RoutedSession, note: tuple[int, int] = (tenant, number)) -> None:
                session.add(Note(tenant_id=note[0], id=note[1]))

            try:
                client.tenants.run(tenant, add, retry=PATIENT)
                ledger.read(f"done {tenant} {number}")
            except PartitaError as error:
                word = "doubt" if error.code == "CommitInDoubt" else f"failed {error.code}"
                ledger.read(f"{word} {tenant} {number}")

    with another_client(routed) as other:
        threads = [
            threading.Thread(target=write, args=(client, number * 1_000_000))
            for number, client in enumerate((routed, routed, other, other), start=1)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(MOVES // 2):
                routed.move(5)
                time.sleep(0.1)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    ledger.check(routed)


@pytest.mark.parametrize(
    ("function", "is_right"),
    [(NO_LOCK, False), (ONE_SNAPSHOT, False), (LATE_LOCK, True), (EARLY_LOCK, True)],
    ids=["no lock", "lock and check under one snapshot", "slow before the lock", "slow after it"],
)
def test_only_a_lock_before_the_read_keeps_a_slow_writer_out(
    on_postgres: Routed, function: str, is_right: bool
) -> None:
    replace_enter(on_postgres, function)
    ledger = Ledger()
    with another_client(on_postgres) as slow, closed_gate(on_postgres) as gate:
        slow.tenants.get(5)

        def write() -> None:
            slow.tenants.run(5, lambda session: session.add(Note(tenant_id=5, id=1)))
            ledger.read("done 5 1")

        writer = threading.Thread(target=write)
        writer.start()
        gate.wait_until_somebody_waits()
        on_postgres.move(5)
        gate.open()
        writer.join()

    assert (ledger.lost(on_postgres) == set()) is is_right


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_slow_writer_with_one_snapshot_is_kept_out_too(on_postgres: Routed, level: str) -> None:
    ledger = Ledger()
    with another_client(on_postgres) as slow, closed_gate(on_postgres) as gate:
        slow.tenants.get(5)

        def write(session: RoutedSession) -> None:
            session.execute(text("SELECT pg_advisory_xact_lock_shared(:gate)"), {"gate": GATE})
            session.add(Note(tenant_id=5, id=1))

        def run() -> None:
            slow.tenants.run(5, write, isolation_level=level)
            ledger.read("done 5 1")

        writer = threading.Thread(target=run)
        writer.start()
        gate.wait_until_somebody_waits()
        on_postgres.move(5)
        gate.open()
        writer.join()
    assert len(ledger.done) == 1
    ledger.check(on_postgres)


def test_a_transaction_from_before_a_split_is_drained_when_a_half_moves(
    on_postgres: Routed,
) -> None:
    with another_client(on_postgres) as other:
        with other.tenants.connect(80) as connection:
            low, high = on_postgres.tenants.split(at=50)
            assert low.range.high == high.range.low == 50
            on_postgres.move(80, grace=0.0)
            with contextlib.suppress(Exception):
                connection.execute(text("INSERT INTO note VALUES (80, 1, '')"))
                connection.commit()
        assert on_postgres.notes(on_postgres.one) == []


def test_a_sqlite_writer_from_before_a_split_is_refused(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed, another_client(routed) as other:
        with other.tenants.connect(80) as connection:
            routed.tenants.split(at=50)
            routed.move(80, grace=0.0)
            with contextlib.suppress(Exception):
                connection.execute(text("INSERT INTO note VALUES (80, 1, '')"))
                connection.commit()
        assert routed.notes(routed.one) == []


WRITING_THREADS, WRITING_PROCESSES, COMMITS = 8, 4, 25


def add_notes(routed: Routed, writer: int, *, in_run: bool, says_so: bool) -> list[Exception]:
    """Commit so many notes, one per transaction; return the errors."""
    errors: list[Exception] = []
    make = routed.tenants.sessionmaker(writes=says_so)
    for number in range(writer * 1_000, writer * 1_000 + COMMITS):

        def write(session: RoutedSession, number: int = number) -> None:
            if says_so or in_run:
                session.scalar(count_notes)
            session.add(Note(tenant_id=5, id=number))

        try:
            if in_run:
                routed.tenants.run(5, write, retry=PATIENT)
            else:
                with make.begin(5) as session:
                    write(session)
        except DBAPIError as error:
            errors.append(error)
    return errors


@pytest.mark.parametrize(
    ("in_run", "says_so"),
    [(False, False), (False, True), (True, False)],
    ids=["write first", "said to write", "run that reads first"],
)
def test_every_thread_that_writes_to_one_file_makes_its_commits(
    new_sqlite: NewDatabase, in_run: bool, says_so: bool
) -> None:
    with a_routed_map(new_sqlite) as routed, ThreadPoolExecutor(WRITING_THREADS) as pool:
        work = partial(add_notes, routed, in_run=in_run, says_so=says_so)
        errors = list(pool.map(work, range(1, WRITING_THREADS + 1)))
        assert errors == [[]] * WRITING_THREADS
        assert len(routed.notes(routed.one)) == WRITING_THREADS * COMMITS
        if not in_run:
            assert routed.tenants.counters.retries == 0


@pytest.mark.parametrize("says_so", [False, True], ids=["write first", "said to write"])
async def test_every_task_that_writes_to_one_file_makes_its_commits(
    new_sqlite: NewDatabase, says_so: bool
) -> None:
    with a_routed_map(new_sqlite) as routed:
        make = routed.tenants.async_sessionmaker(writes=says_so)

        async def write(writer: int) -> None:
            for number in range(writer * 1_000, writer * 1_000 + COMMITS):
                async with make.begin(5) as session:
                    if says_so:
                        await session.scalar(count_notes)
                    session.add(Note(tenant_id=5, id=number))

        await asyncio.gather(*(write(writer) for writer in range(1, WRITING_THREADS + 1)))
        assert len(routed.notes(routed.one)) == WRITING_THREADS * COMMITS
        await routed.manager.aclose()


@pytest.mark.proof
def test_every_process_that_writes_to_one_file_makes_its_commits(new_sqlite: NewDatabase) -> None:
    tests = Path(__file__).parent.parent
    script = str(tests / "shards" / "note_process.py")
    with a_routed_map(new_sqlite) as routed:
        processes = [
            subprocess.Popen(
                [sys.executable, script, routed.urls[0], str(number), str(COMMITS)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(tests)},
            )
            for number in range(1, WRITING_PROCESSES + 1)
        ]
        assert [one.communicate()[0] for one in processes] == ["errors 0\n"] * WRITING_PROCESSES
        assert len(routed.notes(routed.one)) == WRITING_PROCESSES * COMMITS


def test_a_writer_waits_for_another_one_that_holds_the_file(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed:
        order: list[str] = []
        with routed.tenants.connect(5, writes=True) as first:
            first.execute(text("INSERT INTO note VALUES (5, 1, '')"))

            def write() -> None:
                with routed.tenants.sessionmaker().begin(5) as session:
                    session.add(Note(tenant_id=5, id=2))
                    session.flush()
                    order.append("second writes")

            second = threading.Thread(target=write)
            second.start()
            wait_for_writers(routed, 1)
            order.append("first commits")
            first.commit()
            first.close()
            second.join()
        assert order == ["first commits", "second writes"]


def test_writers_of_one_process_take_turns_in_the_order_they_came(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed:
        order: list[int] = []

        def write(number: int) -> None:
            with routed.tenants.connect(5, writes=True):
                order.append(number)

        with routed.tenants.connect(5, writes=True):
            threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for number, thread in enumerate(threads, start=1):
                thread.start()
                wait_for_writers(routed, number)
        for thread in threads:
            thread.join()
        assert order == [0, 1, 2, 3]


def test_a_reader_does_not_wait_for_a_writer(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed, routed.tenants.connect(5, writes=True) as writer:
        writer.execute(text("INSERT INTO note VALUES (5, 1, '')"))
        with routed.tenants.connect(5) as reader:
            assert reader.scalar(count_notes) == 0


def test_a_write_after_a_read_of_an_old_snapshot_is_refused(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed, routed.tenants.connect(5) as reader:
        assert reader.scalar(count_notes) == 0
        with routed.tenants.connect(5) as other:
            other.execute(text("INSERT INTO note VALUES (5, 1, '')"))
            other.commit()
        with pytest.raises(OperationalError, match="locked"):
            reader.execute(text("INSERT INTO note VALUES (5, 2, '')"))


def test_a_first_write_is_validated_in_the_transaction_that_writes(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed, another_client(routed) as other:
        with other.tenants.connect(5) as connection:
            # As in another process, where the mover cannot end the transaction.
            connection.connection.driver_connection.mapping_id = None  # type: ignore[union-attr]
            routed.move(5)
            with pytest.raises(StaleMappingError):
                connection.execute(text("INSERT INTO note VALUES (5, 1, '')"))
        assert routed.notes(routed.one) == []


def test_a_connection_that_is_lost_gives_its_turn_back(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed:
        driver = sqlite3.connect(
            new_sqlite("one")[len("sqlite:///") :], factory=RevocableConnection
        )
        driver.begin_to_write()
        driver.close()
        assert add_notes(routed, 1, in_run=False, says_so=False) == []


def wait_for_writers(routed: Routed, count: int) -> None:
    """Wait until so many threads queue for the file of the first shard."""
    turns = turns_of(str(file_of(routed.one.location)))
    while turns.waiting != count:
        time.sleep(0.001)


class Gate:
    """An advisory lock that entries wait for."""

    def __init__(self, routed: Routed) -> None:
        admin = routed.manager.engines.admin(routed.one.location)
        self.connection = admin.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.connection.execute(text("SELECT pg_advisory_lock(:gate)"), {"gate": GATE})

    def wait_until_somebody_waits(self) -> None:
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        while not self.connection.scalar(query):
            time.sleep(0.005)

    def open(self) -> None:
        self.connection.execute(text("SELECT pg_advisory_unlock_all()"))


@contextlib.contextmanager
def closed_gate(routed: Routed) -> Iterator[Gate]:
    gate = Gate(routed)
    try:
        yield gate
    finally:
        gate.connection.close()


def replace_enter(routed: Routed, function: str) -> None:
    """Deploy another partita_enter on the shards."""
    for shard in (routed.one, routed.two):
        with shard.connect() as connection:
            connection.execute(text(function.format(gate=GATE, lock=validation.LOCK_CLASS)))
            connection.commit()
