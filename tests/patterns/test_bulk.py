"""Many entities at once: grouped, at a rate, with each failure told apart."""

import asyncio
import time
from typing import Any

import pytest

from partita.errors import ThrottledError, UsageError
from partita.patterns import (
    Database,
    EntityExistsError,
    ETagMismatchError,
    Table,
    UniqueViolationError,
    entity,
    entity_type,
    evolve,
    index,
)
from partita.patterns.faults import Faults
from partita.patterns.operations import bulk, verbs
from partita.patterns.protocol.calls import Parallel, Steps, WriteRows
from support.staff import Department, Employee, Note, by_email, note, person


@entity(table="indexed", partition="{dept}", row="{id:06d}")
class Indexed:
    dept: str
    id: int
    email: str


anywhere = index(Indexed, table="indexedemail", partition="{email}", row="{id:06d}_{dept}")


async def test_many_entities_go_in_few_groups(any_db: Database) -> None:
    notes = any_db.table(Note)

    with any_db.measuring() as cost:
        outcome = await notes.save_all(
            [note(n, topic=topic) for topic in ("a", "b") for n in range(150)]
        )

    assert cost.requests <= 6
    assert len(outcome.entities) == 300
    assert outcome.failures == []
    for topic in ("a", "b"):
        found = await notes.partition(topic=topic).all().list()
        assert [each.number for each in found] == list(range(150))


async def test_what_follows_the_entities_follows(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=3))

    outcome = await employees.save_all([person(n) for n in range(60)])
    await any_db.drain()

    assert outcome.failures == []
    sales = await departments.get(name="Sales")
    assert (sales.headcount, sales.manager_email) == (60, "e3@contoso.com")
    assert (await employees.via(by_email).get(dept="Sales", email="e59@contoso.com")).id == 59
    assert await any_db.verify(Employee) == []


async def test_only_the_guilty_fail_and_are_named(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(5))
    entities = [person(n) for n in range(20)]
    entities[11] = person(11, email="e5@contoso.com")

    outcome = await employees.save_all(entities)

    assert [each.id for each in outcome.entities] == [n for n in range(20) if n not in (5, 11)]
    assert [failure.entity for failure in outcome.failures] == [entities[5], entities[11]]
    assert isinstance(outcome.failures[0].error, EntityExistsError)
    assert isinstance(outcome.failures[1].error, UniqueViolationError)
    assert len(await employees.partition(dept="Sales").all().list()) == 19


async def test_what_was_saved_can_be_changed_and_saved(any_db: Database) -> None:
    notes = any_db.table(Note)
    saved = (await notes.save_all([note(n) for n in range(30)])).entities
    stale = saved[7]
    await notes.update(lambda old: evolve(old, text="theirs"), topic="tables", number=7)

    outcome = await notes.save_all([evolve(each, text="mine") for each in saved])

    [failure] = outcome.failures
    assert isinstance(failure.error, ETagMismatchError)
    assert failure.entity == evolve(stale, text="mine")
    texts = [each.text async for each in notes.partition(topic="tables")]
    assert texts == ["mine"] * 7 + ["theirs"] + ["mine"] * 22


async def test_the_same_key_twice_is_written_in_its_order(notes: Table[Note]) -> None:
    outcome = await notes.upsert_all([note(1, text="first"), note(2), note(1, text="second")])

    assert outcome.failures == []
    assert (await notes.get(topic="tables", number=1)).text == "second"


async def test_upsert_all_writes_whatever_is_stored(any_db: Database) -> None:
    employees, notes = any_db.table(Employee), any_db.table(Note)
    await employees.save(person(1))
    await notes.save(note(1))

    first = await employees.upsert_all([person(n, age=7) for n in range(4)])
    second = await notes.upsert_all([note(n, text="new") for n in range(4)])
    await any_db.drain()

    assert first.failures == second.failures == []
    assert {each.age async for each in employees.partition(dept="Sales")} == {7}
    assert {each.text async for each in notes.partition(topic="tables")} == {"new"}
    assert await any_db.verify(Employee) == []


async def test_delete_all_deletes_what_was_loaded(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=1))
    await employees.save_all([person(n) for n in range(30)])
    loaded = await employees.partition(dept="Sales").all().list()
    await employees.update(lambda old: evolve(old, age=99), dept="Sales", id=4)

    outcome = await employees.delete_all(loaded)
    await any_db.drain()

    [failure] = outcome.failures
    assert failure.entity is loaded[4]
    assert [each.id async for each in employees.partition(dept="Sales")] == [4]
    assert (await departments.get(name="Sales")).headcount == 1
    assert await any_db.verify(Employee) == []


async def test_delete_all_takes_loaded_entities_only(notes: Table[Note]) -> None:
    await notes.save(note(1))

    outcome = await notes.delete_all([note(1)])

    [failure] = outcome.failures
    assert failure.error.code == "NotLoaded"
    assert await notes.get_or_none(topic="tables", number=1) is not None


async def test_progress_counts_to_the_end(notes: Table[Note]) -> None:
    seen: list[int] = []

    await notes.save_all([note(n) for n in range(250)], progress=seen.append)

    assert seen == sorted(seen)
    assert seen[-1] == 250


async def test_a_rate_smooths_the_traffic(notes: Table[Note]) -> None:
    start = time.monotonic()

    await notes.save_all([note(n, topic=f"t{n % 4}") for n in range(260)], max_rate=200)

    assert time.monotonic() - start >= 0.3  # a burst of 200, then the rate


async def test_a_busy_service_is_asked_again(
    db: Database, notes: Table[Note], partita_faults: Faults
) -> None:
    partita_faults.answer_503(times=9, retry_after=0.001, match="$batch")

    outcome = await notes.save_all([note(n) for n in range(150)])

    assert outcome.failures == []
    assert await notes.partition(topic="tables").all().count() == 150


async def test_a_busy_service_is_reported_to_the_caller_of_save(
    notes: Table[Note], partita_faults: Faults
) -> None:
    partita_faults.answer_503(times=100, retry_after=0.001)

    with pytest.raises(ThrottledError) as refused:
        await notes.save(note(1))

    assert refused.value.retry_after == 0.001


async def test_writers_of_one_partition_do_not_lose_each_other(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=1))

    outcomes = await asyncio.gather(
        *(employees.save_all([person(n) for n in range(at, at + 10)]) for at in (0, 10, 20))
    )

    assert [outcome.failures for outcome in outcomes] == [[], [], []]
    assert (await departments.get(name="Sales")).headcount == 30


async def test_an_entity_of_another_type_stops_everything(notes: Table[Note]) -> None:
    with pytest.raises(UsageError, match="was passed to the table"):
        await notes.save_all([note(1), person(1)])  # type: ignore[list-item]

    assert await notes.partition(topic="tables").all().list() == []


async def test_upsert_all_writes_entities_with_followers_in_groups(db: Database) -> None:
    table = db.table(Indexed)
    await db.create_tables()
    some = [Indexed(dept="Sales", id=number, email=f"{number}@x") for number in range(40)]

    with db.measuring() as new:
        await table.upsert_all(some)
    again = [Indexed(dept="Sales", id=each.id, email=f"new-{each.email}") for each in some]
    with db.measuring() as overwritten:
        outcome = await table.upsert_all(again)
    report = await db.drain()

    assert not outcome.failures
    assert new.requests <= len(some) + 4  # the reads, one group, one hint, and its queue
    assert overwritten.requests <= len(some) + 2
    assert report.entries == 2
    assert await db.verify(Indexed) == []
    assert (await table.via(anywhere).range(email="new-7@x").list()) == [again[7]]
    assert await table.via(anywhere).range(email="7@x").list() == []


async def test_upsert_all_overwrites_what_another_writer_changes_between_read_and_write(
    db: Database,
) -> None:
    table = db.table(Indexed)
    await db.create_tables()
    some = [Indexed(dept="Sales", id=number, email=f"{number}@x") for number in range(4)]
    model = entity_type(Indexed)
    interfered: list[Steps[Any]] = [
        verbs.upsert(db.context, model, Indexed(dept="Sales", id=2, email="other@x"))
    ]

    def interfering(steps: Steps[Any]) -> Steps[Any]:
        """Run steps, and let another writer write before their first write."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                call = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            if isinstance(call, Parallel):
                call = Parallel(tuple(map(interfering, call.steps)), call.limit)
            if isinstance(call, WriteRows) and interfered:
                yield from interfered.pop()
            answer, error = None, None
            try:
                answer = yield call
            except Exception as caught:  # noqa: BLE001 - raised in the steps
                error = caught

    writing = bulk.write_all(
        db.context, model, some, "upsert", rate=None, concurrency=1, progress=lambda _: None
    )
    outcome = await db.run(interfering(writing))
    await db.drain()

    assert not outcome.failures
    assert await table.partition(dept="Sales").all().list() == some
    assert await db.verify(Indexed) == []
