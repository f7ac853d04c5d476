"""What runs beside the program: workers of the same process, and the timed flush of a log."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from partita.clock import ManualClock
from partita.errors import UsageError
from partita.patterns import (
    Database,
    LogBuffering,
    LogHandler,
    LogPlace,
    connect,
    entity,
    eventual,
    idempotent,
    index,
    sync,
)
from partita.patterns.background import AsyncLoops, ThreadLoops
from partita.patterns.protocol.utc import utc_now
from partita.service.hosting.in_process import LocalAccount

PLACE = LogPlace("logs", "web")
AT_ONCE = LogBuffering(seconds_max=0.02)


@entity(table="worked", partition="{team}", row="{id:04d}")
class Member:
    team: str
    id: int
    email: str


by_email = index(Member, table="workedbyemail", partition="{email}", row="{team:esc}_{id:04d}")


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


async def test_workers_of_the_same_process_bring_an_index_up_to_date(tmp_path: Path) -> None:
    async with connect(f"partita:{tmp_path}") as db:
        members = db.table(Member)
        await db.create_tables()

        async with db.worker(tasks=2, poll=0.01) as worker:
            for number in range(5):
                await members.save(Member(team="a", id=number, email=f"{number}@x"))
            await worker.settled()

            found = await members.via(by_email).range(email="3@x").first()

    assert found is not None
    assert found.id == 3
    assert worker.report.entries == 5


def test_threads_are_the_workers_of_the_synchronous_api(partita_account: LocalAccount) -> None:
    with sync.connect(partita_account) as db:
        members = db.table(Member)
        db.create_tables()
        with db.worker(tasks=2, poll=0.01) as worker:
            members.save(Member(team="a", id=1, email="1@x"))
            worker.settled()
            found = members.via(by_email).range(email="1@x").first()

    assert found is not None


async def test_a_worker_runs_started_transactions_and_reports_failures(
    partita_account: LocalAccount,
) -> None:
    done, failed = asyncio.Event(), asyncio.Event()

    @idempotent
    async def run(_: Database, arguments: dict[str, str]) -> None:
        if arguments["what"] == "bad":
            failed.set()
            message = "it does not work"
            raise RuntimeError(message)
        done.set()

    archive = eventual("archive", run)
    async with connect(partita_account) as db, db.worker(tasks=1, poll=0.01) as worker:
        await db.start(archive, what="bad")
        await db.start(archive, what="good")
        await asyncio.gather(done.wait(), failed.wait())

    assert worker.report.transactions == 1
    assert "it does not work" in worker.report.troubles[0].reason


async def test_the_first_sweep_finds_an_entry_whose_message_was_lost(
    partita_account: LocalAccount,
) -> None:
    clock = ManualClock(17_000_000_000_000_000)
    async with connect(partita_account, clock=clock, queues=("lost-hints",)) as db:
        members = db.table(Member)
        await db.create_tables()
        await members.save(Member(team="a", id=1, email="1@x"))
    clock.advance(3600)

    async with connect(partita_account, clock=clock) as db:
        members = db.table(Member)
        async with db.worker(tasks=1) as worker:
            await until(lambda: worker.report.entries == 1)
        assert await members.via(by_email).range(email="1@x").first() is not None


async def test_a_worker_needs_a_task(partita_account: LocalAccount) -> None:
    async with connect(partita_account) as db:
        with pytest.raises(UsageError):
            db.worker(tasks=0)


async def test_the_error_of_a_turn_is_raised_at_the_end() -> None:
    async def fail() -> float:
        raise ZeroDivisionError

    def fail_too() -> float:
        raise ZeroDivisionError

    loops, threads = AsyncLoops("test"), ThreadLoops("test")
    loops.start(fail)
    threads.start(fail_too)

    with pytest.raises(ZeroDivisionError):
        await loops.stop()
    with pytest.raises(ZeroDivisionError):
        threads.stop()


# ---------------------------------------------------------------------------------------------
# Logs


async def test_a_log_is_flushed_while_the_program_is_silent(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account) as db, db.log_writer(PLACE, AT_ONCE) as log:
        ticket = log.add("the last line for a while")
        await until(lambda: log.acknowledged == ticket)

    assert log.acknowledged == 1


def test_a_log_of_the_synchronous_api_is_flushed_by_a_thread(
    partita_account: LocalAccount,
) -> None:
    with sync.connect(partita_account) as db, db.log_writer(PLACE, AT_ONCE) as log:
        ticket = log.add("the last line for a while")
        waiting = threading.Event()
        while log.acknowledged < ticket:
            waiting.wait(0.001)

    assert log.acknowledged == 1


def test_records_of_logging_are_lines_of_a_log(partita_account: LocalAccount) -> None:
    logger = logging.getLogger("shop.orders")
    with sync.connect(partita_account) as db:
        with db.log_writer(PLACE) as log:
            handler = LogHandler(log)
            handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
            logger.addHandler(handler)
            logging.getLogger("azure").addHandler(handler)
            logger.warning("order %d is late", 7)
            logging.getLogger("azure").removeHandler(handler)
            logger.removeHandler(handler)
        now = utc_now(db.context.clock)
        lines = list(db.log_lines(PLACE, now - timedelta(hours=1), now + timedelta(hours=1)))

    assert [line.text for line in lines] == ["WARNING order 7 is late"]


def test_a_log_that_is_closed_does_not_fail_the_program(
    partita_account: LocalAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with sync.connect(partita_account) as db:
        with db.log_writer(PLACE) as log:
            handler = LogHandler(log)
        handler.emit(logging.makeLogRecord({"name": "shop", "msg": "too late"}))

    assert log.acknowledged == 0
