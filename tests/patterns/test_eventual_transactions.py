"""Eventually consistent transactions: the guide's Current to Archive, and what else steps may do.

The guide counts six steps: a message is put (1), a worker takes it (2), reads the employee (3),
inserts it into the archive (4), deletes it from the current ones (5), deletes the message (6).
Whatever is stopped after any of them, everybody ends in exactly one of the two tables.
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.clock import ManualClock, SystemClock
from partita.errors import DefinitionError, UnavailableError, UsageError
from partita.patterns import connect, entity, eventual, idempotent, sync
from partita.patterns.faults import SHORT_RETRIES
from partita.patterns.following import worker
from partita.patterns.following.eventual_transactions import EventualTransaction, start_message
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.protocol.calls import DeleteMessage, PutMessage, Steps, ask
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing import load as reading
from partita.patterns.writing.context import Context
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import Crashed, FakeWorld, Fault
from support.simulated import (
    Face,
    begin,
    each_stop,
    encoded,
    outbox_rows,
    recover,
    rows_of,
)

QUEUE, POISON = "partita-outbox", "partita-poison"


@entity(table="current", partition="{dept}", row="{id:06d}")
class Current:
    dept: str
    id: int
    name: str


@entity(table="archive", partition="{dept}", row="{id:06d}")
class Archived:
    dept: str
    id: int
    name: str


CURRENT, ARCHIVED = entity_type(Current), entity_type(Archived)
KEY: dict[str, Any] = {"dept": "Sales", "id": 7}


@idempotent
def copy_to_archive(db: Face, key: dict[str, Any]) -> None:
    found = db.run(reading.find(db.context, CURRENT, CURRENT.key(key)))
    if found is not None:
        kept = Archived(dept=found.dept, id=found.id, name=found.name)
        db.run(verbs.upsert(db.context, ARCHIVED, kept))


@idempotent
def delete_from_current(db: Face, key: dict[str, Any]) -> None:
    db.run(verbs.delete_key(db.context, CURRENT, CURRENT.key(key)))


archive = eventual("archive", copy_to_archive, delete_from_current)


def start(world: FakeWorld, **options: Any) -> Context:
    context = begin(world, models=(CURRENT, ARCHIVED), **options)
    context.transactions[archive.name] = archive
    return context


def staffed() -> FakeWorld:
    world = FakeWorld()
    context = start(world)
    world.queues[QUEUE] = []
    world.run(verbs.save(context, CURRENT, Current(**KEY, name="Jun")))
    return world


def request(world: FakeWorld, context: Context) -> None:
    text = encoded(start_message(archive, KEY))
    world.run(ask(PutMessage(context.queue_of(text), text)))


def retire(world: FakeWorld, context: Context) -> Report:
    """Do all six steps."""
    request(world, context)
    return work(world, context, count=1)


def work(world: FakeWorld, context: Context, count: int = 16) -> Report:
    report = Report()
    world.run(worker.work(context, QUEUE, report, count))
    return report


def homes(world: FakeWorld) -> list[str]:
    return [
        table
        for table, name in (("current", "Current"), ("archive", "Archived"))
        if rows_of(world, table, name)
    ]


def test_after_a_crash_at_any_of_the_six_steps_there_is_exactly_one_home() -> None:
    seen = []
    for world, outcome, told in each_stop(staffed(), retire, start=start):
        assert isinstance(outcome, Crashed)
        if not told.endswith("Invoke"):  # which is no step of its own
            seen.append((*homes(world), len(world.queues[QUEUE])))
        assert homes(world), told
        world.clock.advance(31)
        context = start(world)
        work(world, context)
        assert homes(world) == ["archive"], told
        assert world.queues[QUEUE] == [], told

    assert seen == [
        ("current", 1),  # 1 the message is put
        ("current", 1),  # 2 taken
        ("current", 1),  # 3 read
        ("current", "archive", 1),  # 4 inserted
        ("archive", 1),  # 5 deleted
        ("archive", 0),  # 6 the message is deleted
    ]


def test_before_its_message_nothing_happens() -> None:
    world = staffed()
    context = start(world)
    world.fail(1, Fault.CRASH_BEFORE)

    with pytest.raises(Crashed):
        retire(world, context)

    recover(world, models=(CURRENT, ARCHIVED))
    assert homes(world) == ["current"]


def test_a_message_that_is_deleted_first_loses_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling of the first test, with the order broken: it must be caught."""

    def do_messages(context: Context, queue: str, messages: Any, report: Report) -> Steps[None]:
        for message in messages:
            yield from ask(DeleteMessage(queue, message))
            yield from worker._do_text(context, queue, message, report)

    monkeypatch.setattr(worker, "do_messages", do_messages)

    with pytest.raises(AssertionError):
        test_after_a_crash_at_any_of_the_six_steps_there_is_exactly_one_home()


def test_it_counts_its_message_once_however_often_it_is_delivered() -> None:
    world = staffed()
    context = start(world)
    for _ in range(3):
        request(world, context)

    report = work(world, context)

    assert report.transactions == 3
    assert homes(world) == ["archive"]
    assert world.queues[QUEUE] == []


@pytest.mark.parametrize("seed", range(20))
def test_two_workers_at_once_do_it_once(seed: int) -> None:
    base = staffed()
    world = FakeWorld(seed=seed, clock=base.clock)
    world.tables, world.queues, world.table_names = base.tables, base.queues, base.table_names
    contexts = [start(world), start(world)]
    request(world, contexts[0])
    taken = []
    for context in contexts:
        taken.append(world.run(worker.receive(context, QUEUE, 1)))
        world.clock.advance(31)

    outcomes = world.run_all(
        *(
            worker.do_messages(context, QUEUE, messages, Report())
            for context, messages in zip(contexts, taken, strict=True)
        )
    )

    assert outcomes == [None, None]
    assert homes(world) == ["archive"]


# ---------------------------------------------------------------------------------------------
# Started with a change


def leave(world: FakeWorld, context: Context) -> object:
    """Change an entity and start the transaction, in one group."""
    found = world.run(verbs.get(context, CURRENT, KEY))
    collected = Collected(context, CURRENT, "Sales")
    collected.save(Current(dept="Sales", id=8, name="Ken"))
    collected.start(archive, KEY)
    assert found.name == "Jun"
    return world.run(collected.commit())


def test_a_change_and_the_transaction_it_starts_happen_both_or_neither() -> None:
    outcomes = set()
    for world, _, told in each_stop(staffed(), leave, start=start):
        world.restart()
        world.clock.advance(120)
        context = start(world)
        world.run(worker.drain(context, Report()))
        names = [row.properties["Name"] for row in rows_of(world, "current", "Current")]
        outcomes.add((*names, *homes(world)))
        assert outbox_rows(world) == [], told
    assert outcomes == {("Jun", "current"), ("Ken", "current", "archive")}


def test_a_transaction_cannot_be_started_with_a_group_that_changes_nothing() -> None:
    world = staffed()
    context = start(world)
    collected = Collected(context, CURRENT, "Sales")
    collected.remove(CURRENT, CURRENT.key({"dept": "Sales", "id": 99}))
    collected.start(archive, KEY)

    with pytest.raises(UsageError, match="GroupEmpty"):
        world.run(collected.commit())


# ---------------------------------------------------------------------------------------------
# Declarations


def test_every_step_is_declared_idempotent() -> None:
    def careless(_db: object, _arguments: object) -> None:
        """Do who knows what."""

    with pytest.raises(DefinitionError, match="StepNotIdempotent"):
        eventual("careless", copy_to_archive, careless)
    with pytest.raises(DefinitionError, match="TransactionRefused"):
        eventual("nothing")
    with pytest.raises(UsageError, match="ArgumentsRefused"):
        start_message(archive, {"what": object()})


# ---------------------------------------------------------------------------------------------
# On real accounts: another account, a file, a search index


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().ticks())


@pytest.fixture
def account(clock: ManualClock) -> Iterator[LocalAccount]:
    with partita.open_account(None, clock=clock) as opened:
        opened.client_options = SHORT_RETRIES
        yield opened


@pytest.fixture
def other_account(clock: ManualClock) -> Iterator[LocalAccount]:
    with partita.open_account(None, clock=clock) as opened:
        opened.client_options = SHORT_RETRIES
        yield opened


class Places:
    """Where the steps of `leaving` write, and the trouble that one of them has."""

    def __init__(self, elsewhere: Any, folder: Path) -> None:
        self.elsewhere = elsewhere
        self.file = folder / "archive.json"
        self.search = sqlite3.connect(":memory:")
        self.search.execute("CREATE VIRTUAL TABLE found USING fts5(key UNINDEXED, name)")
        self.failures = 0
        self.calls: list[str] = []

    def note(self, step: str) -> None:
        self.calls.append(step)
        if self.failures:
            self.failures -= 1
            raise UnavailableError("OperationTimedOut", f"{step} is down.")


def leaving_through(places: Places) -> Any:
    @idempotent
    async def to_other_account(db: Any, key: dict[str, Any]) -> None:
        found = await db.table(Current).get_or_none(**key)
        if found is not None:
            kept = Archived(dept=found.dept, id=found.id, name=found.name)
            await places.elsewhere.table(Archived).upsert(kept)

    @idempotent
    async def to_file(_: Any, key: dict[str, Any]) -> None:
        kept = await places.elsewhere.table(Archived).get(**key)
        places.file.write_text(json.dumps({"name": kept.name} | key))

    @idempotent
    async def to_search(_: Any, key: dict[str, Any]) -> None:
        kept = await places.elsewhere.table(Archived).get(**key)
        places.note("search")
        with places.search:
            places.search.execute("DELETE FROM found WHERE key = ?", (json.dumps(key),))
            places.search.execute("INSERT INTO found VALUES (?, ?)", (json.dumps(key), kept.name))

    @idempotent
    async def from_current(db: Any, key: dict[str, Any]) -> None:
        places.note("delete")
        await db.table(Current).delete_if_exists(**key)

    return eventual("leaving", to_other_account, to_file, to_search, from_current)


async def test_steps_write_to_another_account_a_file_and_a_search_index(
    account: LocalAccount, other_account: LocalAccount, clock: ManualClock, tmp_path: Path
) -> None:
    async with connect(account, clock=clock) as db, connect(other_account, clock=clock) as other:
        other.table(Archived)
        staff = db.table(Current)
        await db.create_tables()
        await other.create_tables()
        await staff.save(Current(**KEY, name="Jun"))
        places = Places(other, tmp_path)
        leaving = leaving_through(places)
        places.failures = 2

        await db.start(leaving, **KEY)
        for _ in range(3):
            await db.work_once()
            clock.advance(31)

        assert places.calls == ["search", "search", "search", "delete"]
        assert await staff.get_or_none(**KEY) is None
        assert (await other.table(Archived).get(**KEY)).name == "Jun"
        assert json.loads(places.file.read_text())["name"] == "Jun"
        found = places.search.execute("SELECT name FROM found WHERE found MATCH 'jun'").fetchall()
        assert found == [("Jun",)]
        places.search.close()


async def test_poison_is_put_aside_after_its_deliveries_with_the_reason(
    account: LocalAccount, other_account: LocalAccount, clock: ManualClock, tmp_path: Path
) -> None:
    async with (
        connect(account, clock=clock, deliveries_max=3) as db,
        connect(other_account, clock=clock) as other,
    ):
        other.table(Archived)
        staff = db.table(Current)
        await db.create_tables()
        await other.create_tables()
        await staff.save(Current(**KEY, name="Jun"))
        places = Places(other, tmp_path)
        leaving = leaving_through(places)
        places.failures = 99

        await db.start(leaving, **KEY)
        reports = []
        for _ in range(4):
            reports.append(await db.work_once())
            clock.advance(31)

        assert [report.poisoned for report in reports] == [0, 0, 1, 0]
        (poison,) = await db.run(worker.receive(db.context, POISON, 16))
        told = json.loads(poison.text)
        assert json.loads(told["text"])["transaction"] == "leaving"
        assert told["deliveries"] == 3
        assert "search is down" in told["reason"]
        assert await staff.get_or_none(**KEY) is not None
        places.search.close()


# ---------------------------------------------------------------------------------------------
# Steps that fail beside steps that do not


@idempotent
def stumble(_db: Any, _arguments: dict[str, Any]) -> None:
    raise ZeroDivisionError


class Ran:
    """Counts what a good step was given."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def transaction(self) -> EventualTransaction:
        @idempotent
        def note(_db: Any, arguments: dict[str, Any]) -> None:
            self.numbers.append(arguments["number"])

        return eventual("note", note)


stumbling = eventual("stumbling", stumble)


async def test_a_good_step_beside_failing_ones_is_always_run(
    account: LocalAccount, clock: ManualClock
) -> None:
    ran = Ran()
    async with connect(account, clock=clock, deliveries_max=3) as db:
        for number in range(20):
            for _ in range(2):
                await db.start(stumbling)
            await db.start(ran.transaction(), number=number)
        for do in (db.work_once, db.work_once, db.drain, db.drain, db.drain, db.drain):
            with contextlib.suppress(ZeroDivisionError):
                await do()
            clock.advance(31)

        assert sorted(ran.numbers) == list(range(20))
        texts = [one.text for _ in range(2) for one in await poison_of(db)]
        assert len(texts) == 40
        assert {json.loads(text)["reason"] for text in texts} == {"ZeroDivisionError: "}


async def poison_of(db: Any) -> Any:
    return await db.run(worker.receive(db.context, POISON, 32))


def test_a_good_step_beside_failing_ones_is_always_run_without_a_loop(
    account: LocalAccount, clock: ManualClock
) -> None:
    ran = Ran()
    with sync.connect(account, clock=clock, deliveries_max=3) as db:
        for number in range(20):
            for _ in range(2):
                db.start(stumbling)
            db.start(ran.transaction(), number=number)
        for do in (db.work_once, db.work_once, db.drain, db.drain, db.drain, db.drain):
            with contextlib.suppress(ZeroDivisionError):
                do()
            clock.advance(31)

        assert sorted(ran.numbers) == list(range(20))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_work_that_was_not_tried_when_the_program_is_stopped_is_not_counted(
    account: LocalAccount, clock: ManualClock, error: type[BaseException]
) -> None:
    ran = Ran()

    @idempotent
    def stop(_db: Any, _arguments: dict[str, Any]) -> None:
        raise error

    with sync.connect(account, clock=clock, deliveries_max=2) as db:
        db.start(eventual("stop", stop))
        for number in range(5):
            db.start(ran.transaction(), number=number)
        with pytest.raises(error):
            db.work_once()
        taken = db.run(worker.receive(db.context, QUEUE, 32))

    assert [message.dequeue_count for message in taken] == [1] * 5


async def test_work_that_was_not_tried_when_the_worker_is_cancelled_is_not_counted(
    account: LocalAccount, clock: ManualClock
) -> None:
    ran = Ran()
    waiting = asyncio.Event()

    @idempotent
    async def wait(_db: Any, _arguments: dict[str, Any]) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with connect(account, clock=clock, deliveries_max=2) as db:
        await db.start(eventual("wait", wait))
        for number in range(5):
            await db.start(ran.transaction(), number=number)
        working = asyncio.ensure_future(db.work_once())
        await waiting.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        taken = await db.run(worker.receive(db.context, QUEUE, 32))

    assert [message.dequeue_count for message in taken] == [1] * 5
