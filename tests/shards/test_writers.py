"""Writers while mappings bounce between shards: what was committed is found, once, in its place.

The naive ways to validate must fail the same check: without a lock, and with lock and read under
one snapshot.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from partita.errors import PartitaError
from partita.shards import validation
from partita.shards.retry import Retry
from partita.shards.session import RoutedSession
from shards.routed import NewDatabase, Note, Routed, a_routed_map, another_client

IS_SOAK = bool(os.environ.get("PARTITA_SOAK"))
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
