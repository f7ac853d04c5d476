"""Point reads of an account on disk with direct=True: in the caller's thread, past its loop."""

import asyncio
import contextlib
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import partita
from partita.errors import PartitaError, StoreBusyError, TableNotFoundError, UsageError
from partita.patterns import connect, entity, sync
from partita.service.hosting.in_process import LocalAccount, open_account
from support.entities import Room

THREADS = 4
WRITES = 60


@entity(table="meters", partition="{site}", row="{id:04d}")
class Meter:
    site: str
    id: int
    reading: int = 0
    note: str | None = None


@pytest.fixture
def account(tmp_path: Path) -> Iterator[LocalAccount]:
    with partita.open_account(tmp_path / "account") as opened:
        yield opened


async def test_a_read_sees_every_write_that_was_acknowledged(account: LocalAccount) -> None:
    async with connect(account) as db, connect(account, direct=True) as near:
        meters, read = db.table(Meter), near.table(Meter)
        await db.create_tables()
        assert await read.get_or_none(site="a", id=1) is None

        meter = await meters.save(Meter(site="a", id=1, note="new"))
        for reading in range(1, 20):
            meter.reading = reading
            await meters.save(meter)
            assert (await read.get(site="a", id=1)).reading == reading
        meter = await read.get(site="a", id=1)
        meter.note = None
        await read.save(meter)  # with the etag of what was read here
        assert (await meters.get(site="a", id=1)).note is None
        await meters.delete(meter)
        assert await read.get_or_none(site="a", id=1) is None


async def test_it_costs_one_request_and_says_the_size(account: LocalAccount) -> None:
    async with connect(account) as db, connect(account, direct=True) as near:
        db.table(Meter)
        await db.create_tables()
        await db.table(Meter).save(Meter(site="a", id=1))
        costs = []
        for one in (db, near):
            with one.measuring() as cost:
                await one.table(Meter).get(site="a", id=1)
            costs.append(cost)

    assert costs[0] == costs[1]
    assert costs[0].requests == 1


async def test_a_table_that_is_not_there_is_said(account: LocalAccount) -> None:
    async with connect(account, direct=True) as near:
        with pytest.raises(TableNotFoundError) as caught:
            await near.table(Meter).get(site="a", id=1)

    assert caught.value.facts["table"] == "meters"
    assert "create_tables" in caught.value.hint


def test_threads_read_beside_a_writer_and_never_see_the_past(account: LocalAccount) -> None:
    acknowledged = 0
    failures: list[str] = []
    is_over = threading.Event()

    def read() -> None:
        with sync.connect(account, direct=True) as near:
            last = 0
            while not is_over.is_set():
                known = acknowledged
                found = near.table(Meter).get(site="a", id=1).reading
                if found < max(known, last):
                    failures.append(f"{found} after {known} was acknowledged and {last} was seen")
                last = found

    with sync.connect(account) as db:
        db.table(Meter)
        db.create_tables()
        meter = db.table(Meter).save(Meter(site="a", id=1))
        threads = [threading.Thread(target=read) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for reading in range(1, WRITES):
                meter.reading = reading
                db.table(Meter).save(meter)
                acknowledged = reading
        finally:
            is_over.set()
            for thread in threads:
                thread.join()

    assert failures == []


def test_an_account_that_closes_beside_readers_leaves_nothing_open(tmp_path: Path) -> None:
    account = partita.open_account(tmp_path)
    with sync.connect(account) as db:
        db.table(Meter)
        db.create_tables()
        db.table(Meter).save(Meter(site="a", id=1))
    started = threading.Barrier(THREADS + 1)
    ends: list[PartitaError] = []

    def read() -> None:
        with sync.connect(account, direct=True) as near:
            meters = near.table(Meter)
            meters.get(site="a", id=1)
            started.wait()
            try:
                while True:
                    assert meters.get(site="a", id=1).reading == 0
            except PartitaError as error:
                ends.append(error)

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    started.wait()
    account.close()
    for thread in threads:
        thread.join()

    assert len(ends) == THREADS
    assert {type(error) for error in ends} <= {StoreBusyError, UsageError}
    assert open_files_in(tmp_path) == []
    with partita.open_account(tmp_path):
        pass


def open_files_in(folder: Path) -> list[str]:
    """Return what this process holds open there; Linux tells."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            targets.append(str(link.readlink()))
    return [target for target in targets if target.startswith(str(folder))]


@contextmanager
def no_further_file() -> Iterator[None]:
    """Let the process open none."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    free = next(number for number in range(before[0]) if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_who_reads_and_reads_lets_others_have_their_turn(tmp_path: Path) -> None:
    with open_account(tmp_path) as account:
        async with connect(account, direct=True) as db:
            rooms = db.table(Room)
            await db.create_tables()
            writing = asyncio.create_task(rooms.save(Room(house="h", id=1)))

            for _ in range(100_000):
                if await rooms.get_or_none(house="h", id=1) is not None:
                    break

            assert await rooms.get(house="h", id=1) == await writing


async def test_a_near_read_that_can_open_no_file_is_refused_and_may_come_again(
    tmp_path: Path,
) -> None:
    with open_account(tmp_path) as account:
        async with connect(account, direct=True) as db:
            rooms = db.table(Room)
            await db.create_tables()

            with no_further_file(), pytest.raises(StoreBusyError, match="ServerBusy"):
                await rooms.get(house="h", id=1)

            assert await rooms.get_or_none(house="h", id=1) is None
