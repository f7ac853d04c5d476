"""The guide's "Design for data modification", as Partita does it: one test for each claim."""

from typing import Annotated, Any

import pytest

from partita.errors import EntityNotFoundError, ETagMismatchError, UsageError
from partita.patterns import (
    CountOf,
    Database,
    UniqueViolationError,
    entity,
    evolve,
    index,
    less_than,
    list_index,
)
from partita.patterns.faults import Faults


@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    topic: str
    number: int
    text: str = ""


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    email: str
    last: str = ""


by_email = index(Employee, row="email_{email}", unique=True)
by_last = list_index(Employee, row="last_{last}")
anywhere = index(Employee, table="staffbyemail", partition="{email}", row="{dept}")


def person(number: int, **other: Any) -> Employee:
    return Employee(**{"dept": "Sales", "id": number, "email": f"e{number}@contoso.com", **other})


@pytest.fixture
async def db(partita_db: Database) -> Database:
    for cls in (Note, Department, Employee):
        partita_db.table(cls)
    await partita_db.create_tables()
    return partita_db


class TestPerformanceOfInsertUpdateAndDelete:
    async def test_an_insert_an_update_and_a_delete_are_one_request_each(
        self, db: Database, partita_faults: Faults
    ) -> None:
        notes = db.table(Note)

        with db.measuring() as cost:
            saved = await notes.save(Note(topic="tables", number=1))
            saved = await notes.save(evolve(saved, text="changed"))
            saved = await notes.patch(saved, text="again")
            await notes.delete(saved)

        assert cost.requests == 4
        assert [line.split(" ")[0] for line in partita_faults.requests[-4:]] == [
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
        ]

    async def test_a_delete_by_key_needs_no_read(self, db: Database) -> None:
        notes = db.table(Note)
        await notes.save(Note(topic="tables", number=1))

        with db.measuring() as cost:
            assert await notes.delete_if_exists(topic="tables", number=1)
        assert cost.requests == 1
        assert not await notes.delete_if_exists(topic="tables", number=1)

    async def test_the_keys_that_an_entity_was_loaded_with_are_those_it_is_saved_with(
        self, db: Database
    ) -> None:
        notes = db.table(Note)
        saved = await notes.save(Note(topic="tables", number=1))

        with db.measuring() as cost, pytest.raises(UsageError, match=r"move\(entity") as refused:
            await notes.save(evolve(saved, number=2))

        assert refused.value.code == "KeyChanged"
        assert cost.requests == 0
        moved = await notes.move(saved, number=2)
        assert moved.number == 2
        assert await notes.get_or_none(topic="tables", number=1) is None

    async def test_what_a_query_finds_is_deleted_in_groups(self, db: Database) -> None:
        notes = db.table(Note)
        await notes.save_all([Note(topic="tables", number=n) for n in range(250)])
        old = notes.partition(topic="tables").range(number=less_than(200))

        with db.measuring() as cost:
            outcome = await old.delete()

        assert len(outcome.entities) == 200
        assert cost.requests <= 4  # one page, three groups
        assert await notes.partition(topic="tables").all().count() == 50

    async def test_many_entities_are_written_in_groups(self, db: Database) -> None:
        with db.measuring() as cost:
            outcome = await db.table(Note).save_all(
                [Note(topic=f"t{n % 2}", number=n) for n in range(180)]
            )

        assert len(outcome.entities) == 180
        assert cost.requests == 2

    async def test_one_bad_entity_does_not_keep_the_others_out(self, db: Database) -> None:
        notes = db.table(Note)
        await notes.save(Note(topic="tables", number=7, text="first"))

        outcome = await notes.save_all([Note(topic="tables", number=n) for n in range(20)])

        [failure] = outcome.failures
        assert failure.entity.number == 7
        assert failure.error.code == "EntityAlreadyExists"
        assert len(outcome.entities) == 19
        assert (await notes.get(topic="tables", number=7)).text == "first"


class TestConsistencyOfStoredEntities:
    async def test_an_entity_its_copies_its_lists_and_its_counter_change_together(
        self, db: Database, partita_faults: Faults
    ) -> None:
        await db.table(Department).save(Department(name="Sales"))
        partita_faults.fail_next("$batch")

        with pytest.raises(Exception, match="A test injected this fault"):
            await db.table(Employee).save(person(1))

        assert (await db.table(Department).get(name="Sales")).headcount == 0
        rows = [row.row_key async for row in db.raw("staff").query("PartitionKey eq 'Sales'")]
        assert [key for key in rows if not key.startswith("~")] == ["dept"]

    async def test_a_unique_value_cannot_be_taken_twice_in_a_partition(self, db: Database) -> None:
        employees = db.table(Employee)
        await employees.save(person(1))

        with pytest.raises(UniqueViolationError) as refused:
            await employees.save(person(2, email="e1@contoso.com"))

        assert refused.value.index is by_email
        assert await employees.get_or_none(dept="Sales", id=2) is None

    async def test_a_copy_in_another_partition_follows_and_is_never_newer(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)
        await employees.save(person(1, last="Cao"))
        assert (
            await employees.via(anywhere).get_or_none(email="e1@contoso.com", dept="Sales") is None
        )

        await db.drain()

        found = await employees.via(anywhere).get(email="e1@contoso.com", dept="Sales")
        assert found.last == "Cao"

    async def test_a_group_of_which_one_member_is_stale_changes_nothing(self, db: Database) -> None:
        notes = db.table(Note)
        first, second = [await notes.save(Note(topic="t", number=n)) for n in (1, 2)]
        await notes.save(evolve(second, text="somebody else"))

        async def together() -> None:
            async with notes.partition(topic="t").atomic() as group:
                group.save(evolve(first, text="mine"))
                group.save(evolve(second, text="mine"))

        with pytest.raises(ETagMismatchError):
            await together()

        assert [each.text for each in await notes.partition(topic="t").all().list()] == [
            "",
            "somebody else",
        ]

    async def test_an_update_of_what_is_gone_says_so(self, db: Database) -> None:
        notes = db.table(Note)
        saved = await notes.save(Note(topic="t", number=1))
        await notes.delete_if_exists(topic="t", number=1)

        with pytest.raises(EntityNotFoundError):
            await notes.save(evolve(saved, text="too late"))


class TestModificationsThatKeepQueriesEfficient:
    async def test_indexes_in_the_partition_cost_no_further_request(
        self, partita_db: Database
    ) -> None:
        @entity(table="tickets", partition="{dept}", row="id_{id:06d}")
        class Ticket:
            dept: str
            id: int
            email: str

        index(Ticket, row="email_{email:esc}_{id:06d}")
        list_index(Ticket, row="list_{email}")
        tickets = partita_db.table(Ticket)
        await partita_db.create_tables()

        with partita_db.measuring() as cost:
            saved = await tickets.save(Ticket(dept="Sales", id=1, email="a@contoso.com"))
            saved = await tickets.save(evolve(saved, email="b@contoso.com"))
            await tickets.delete(saved)

        assert cost.requests == 3

    async def test_a_counter_costs_one_read_and_an_index_elsewhere_one_message(
        self, db: Database
    ) -> None:
        await db.table(Department).save(Department(name="Sales"))
        saved = await db.table(Employee).save(person(1))  # the queue is made now, once

        with db.measuring() as cost:
            await db.table(Employee).save(person(2))
        assert cost.requests == 3  # the counter, the group, the hint

        with db.measuring() as again:
            await db.table(Employee).save(evolve(saved, last="Kwok"))
        assert again.requests == 2  # nothing that is counted has changed
