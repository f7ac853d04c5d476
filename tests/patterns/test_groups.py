"""Atomic groups: checked before they are sent, and told in terms of the caller's objects."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from partita.errors import GroupRuleError, LimitExceededError, UsageError
from partita.patterns import (
    Database,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    Group,
    PartitaError,
    ProjectionError,
    Table,
    entity,
    evolve,
)
from partita.patterns.faults import Faults
from support.staff import Department, Employee, Note, by_email, keys_of, note, person


async def send(table: Table[Any], fill: Callable[[Group], None], **given: Any) -> Group:
    """Send one group that `fill` fills."""
    async with table.partition(**(given or {"topic": "tables"})).atomic() as group:
        fill(group)
    return group


def saves(*entities: Any) -> Callable[[Group], None]:
    def fill(group: Group) -> None:
        for each in entities:
            group.save(each)

    return fill


async def test_everything_in_a_group_happens(any_db: Database) -> None:
    notes = any_db.table(Note)
    old, gone, _ = [await notes.save(note(number)) for number in (1, 2, 3)]

    def fill(group: Group) -> None:
        group.save(evolve(old, text="changed"))
        group.delete(gone)
        group.delete_if_exists(number=3)
        group.delete_if_exists(number=4)
        group.save(note(5))

    group = await send(notes, fill)

    found = await notes.partition(topic="tables").all().list()
    assert [(each.number, each.text) for each in found] == [(1, "changed"), (5, "")]
    assert group.entities == found


async def test_what_a_group_saved_can_be_saved_again(any_db: Database) -> None:
    employees = any_db.table(Employee)

    group = await send(employees, saves(person(1), person(2)), dept="Sales")
    for each in group.entities:
        await employees.save(evolve(each, age=9))

    assert [each.age async for each in employees.partition(dept="Sales")] == [9, 9]


async def test_a_group_is_one_request(
    db: Database, notes: Table[Note], partita_faults: Faults
) -> None:
    before = partita_faults.count

    await send(notes, saves(*map(note, range(50))))

    assert partita_faults.count == before + 1


async def test_100_operations_fit_and_101_are_refused_before_they_are_sent(
    any_db: Database,
) -> None:
    notes = any_db.table(Note)

    await send(notes, saves(*map(note, range(100))))
    assert await notes.partition(topic="tables").all().count() == 100
    with any_db.measuring() as cost, pytest.raises(LimitExceededError) as refused:
        await send(
            notes,
            saves(*(note(n, topic="x") for n in range(101))),
            topic="x",
        )

    assert cost.requests == 0
    assert refused.value.code == "GroupTooLarge"
    assert "save_all" in refused.value.hint
    assert await notes.partition(topic="x").all().list() == []


async def test_rows_of_indexes_and_counters_are_counted(
    db: Database, employees: Table[Employee]
) -> None:
    # An employee is two rows, two index rows; with the guard and the outbox entry 24 fit.
    with pytest.raises(LimitExceededError, match="including indexes and counters"):
        await send(employees, saves(*map(person, range(25))), dept="Sales")
    assert [key for key in await keys_of(db) if key.startswith("emp_")] == []
    await send(employees, saves(*map(person, range(24))), dept="Sales")

    assert len(await employees.partition(dept="Sales").all().list()) == 24


async def test_a_group_of_too_many_bytes_is_refused_before_it_is_sent(
    db: Database, notes: Table[Note]
) -> None:
    text = "ü" * 32_000

    with db.measuring() as cost, pytest.raises(LimitExceededError, match="bytes"):
        await send(notes, saves(*(note(n, text=text) for n in range(80))))

    assert cost.requests == 0


async def test_entities_of_other_partitions_are_refused(
    notes: Table[Note], employees: Table[Employee]
) -> None:
    with pytest.raises(GroupRuleError) as refused:
        await send(notes, lambda group: group.save(note(1, topic="other")))
    assert refused.value.code == "PartitionMismatch"
    with pytest.raises(GroupRuleError):
        await send(notes, lambda group: group.save(person(1, dept="tables")))

    assert await notes.partition(topic="tables").all().list() == []


async def test_one_key_twice_is_refused(notes: Table[Note]) -> None:
    saved = await notes.save(note(1))

    def twice(group: Group) -> None:
        group.save(evolve(saved, text="a"))
        group.delete(saved)

    with pytest.raises(GroupRuleError) as refused:
        await send(notes, twice)

    assert refused.value.code == "InvalidDuplicateRow"
    assert await notes.get(topic="tables", number=1) == note(1)


@pytest.mark.parametrize("failing", range(12))
async def test_the_operation_that_fails_names_its_own_object(
    employees: Table[Employee], failing: int
) -> None:
    await employees.save(person(failing))
    fresh = [person(n, email=f"other{n}@contoso.com") for n in range(12)]

    with pytest.raises(EntityExistsError) as refused:
        await send(employees, saves(*fresh), dept="Sales")

    assert refused.value.entity is fresh[failing]
    assert refused.value.facts["index"] == failing
    assert refused.value.facts["row_key"] == f"emp_{failing:06d}"
    found = await employees.partition(dept="Sales").all().list()
    assert [each.id for each in found] == [failing]


@pytest.mark.parametrize("failing", [0, 5, 11])
async def test_the_stale_object_of_a_group_is_named(any_db: Database, failing: int) -> None:
    notes = any_db.table(Note)
    saved = (await notes.save_all([note(n) for n in range(12)])).entities
    await notes.update(lambda old: evolve(old, text="theirs"), topic="tables", number=failing)
    changed = [evolve(each, text="mine") for each in saved]

    def fill(group: Group) -> None:
        group.delete_if_exists(number=99)
        for each in changed:
            group.save(each)

    with pytest.raises(ETagMismatchError) as refused:
        await send(notes, fill)

    assert refused.value.entity is changed[failing]
    texts = {each.text async for each in notes.partition(topic="tables")}
    assert texts == {"", "theirs"}


async def test_a_deleted_object_of_a_group_is_named(notes: Table[Note]) -> None:
    kept, gone = [await notes.save(note(number)) for number in (1, 2)]
    await notes.delete_if_exists(topic="tables", number=2)

    def fill(group: Group) -> None:
        group.save(evolve(kept, text="changed"))
        group.delete(gone)

    with pytest.raises(EntityNotFoundError) as refused:
        await send(notes, fill)

    assert refused.value.entity is gone
    assert (await notes.get(topic="tables", number=1)).text == ""


async def test_an_error_inside_the_context_sends_nothing(
    db: Database, notes: Table[Note], partita_faults: Faults
) -> None:
    before = partita_faults.count

    def fill(group: Group) -> None:
        group.save(note(1))
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        await send(notes, fill)

    assert partita_faults.count == before


async def test_an_empty_group_sends_nothing(db: Database, notes: Table[Note]) -> None:
    with db.measuring() as cost:
        group = await send(notes, lambda _: None)

    assert (cost.requests, group.entities) == (0, [])


async def test_delete_if_exists_of_nothing_is_not_a_failure(notes: Table[Note]) -> None:
    await send(notes, lambda group: group.delete_if_exists(number=1))

    assert await notes.partition(topic="tables").all().list() == []


async def test_delete_if_exists_looks_again_if_somebody_was_faster(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save(note(1, stars=0))

    async def busy() -> None:
        for _ in range(6):
            await notes.upsert(note(1))

    async def remove() -> None:
        for number in range(6):
            async with notes.partition(topic="tables").atomic() as group:
                group.delete_if_exists(number=1)
                group.save(note(100 + number))

    await asyncio.gather(busy(), remove())

    found = await notes.partition(topic="tables").range().list()
    assert [each.number for each in found if each.number >= 100] == list(range(100, 106))


async def test_a_group_patches_and_upserts(any_db: Database) -> None:
    notes = any_db.table(Note)
    old, _, other = [await notes.save(note(number, text="old")) for number in (1, 2, 3)]
    await notes.patch(other, stars=5)

    def fill(group: Group) -> None:
        group.patch(old, stars=7)
        group.upsert(note(2, text="new"))
        group.save(evolve(other, text="forced"), force=True)
        group.upsert(note(4, text="first"))

    group = await send(notes, fill)

    found = await notes.partition(topic="tables").all().list()
    assert [(each.number, each.text, each.stars) for each in found] == [
        (1, "old", 7), (2, "new", None), (3, "forced", None), (4, "first", None),
    ]  # fmt: skip
    assert group.entities == found
    await notes.save(evolve(group.entities[0], text="again"))  # with the etag that the group left


async def test_upserts_of_a_group_move_the_copies_of_indexes(any_db: Database) -> None:
    departments, employees = any_db.table(Department), any_db.table(Employee)
    await departments.save(Department(name="Sales", manager_id=1))
    await employees.save(person(1, email="old@contoso.com"))

    def fill(group: Group) -> None:
        group.upsert(person(1, email="new@contoso.com"))
        group.upsert(person(2))

    await send(employees, fill, dept="Sales")

    by = employees.via(by_email)
    assert (await by.get(dept="Sales", email="new@contoso.com")).id == 1
    assert await by.get_or_none(dept="Sales", email="old@contoso.com") is None
    assert (await departments.get(name="Sales")).headcount == 2


async def test_an_upsert_of_a_group_looks_again_if_somebody_was_faster(any_db: Database) -> None:
    employees = any_db.table(Employee)

    async def write(first: int) -> None:
        for number in range(6):
            async with employees.partition(dept="Sales").atomic() as group:
                group.upsert(person(1, first=f"{first}-{number}"))
                group.save(person(first + number))

    await asyncio.gather(write(100), write(200))

    assert await employees.partition(dept="Sales").all().count() == 13


async def test_a_patch_of_a_group_wants_what_was_loaded(notes: Table[Note]) -> None:
    stale = await notes.save(note(1))
    await notes.patch(stale, stars=1)

    with pytest.raises(ETagMismatchError) as refused:
        await send(notes, lambda group: group.patch(stale, stars=2))
    assert refused.value.entity == evolve(stale, stars=2)
    with pytest.raises(UsageError, match="neither loaded nor saved"):
        await send(notes, lambda group: group.patch(note(9), stars=2))
    with pytest.raises(UsageError, match="no field 'colour'"):
        await send(notes, lambda group: group.patch(stale, colour=2))
    assert (await notes.get(topic="tables", number=1)).stars == 1


async def test_several_types_of_one_partition_change_together(any_db: Database) -> None:
    departments, employees = any_db.table(Department), any_db.table(Employee)

    def fill(group: Group) -> None:
        group.save(Department(name="Sales", manager_id=1))
        group.save(person(1))
        group.delete_if_exists(Employee, dept="Sales", id=9)

    await send(departments, fill, name="Sales")

    sales = await departments.get(name="Sales")
    assert (sales.headcount, sales.manager_email) == (1, "e1@contoso.com")
    assert (await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")).id == 1


async def test_a_lost_answer_of_a_group_is_found_out(
    notes: Table[Note], partita_faults: Faults
) -> None:
    partita_faults.lose_answers(times=1, match="$batch")

    group = await send(notes, saves(*map(note, range(3))))
    for each in group.entities:
        await notes.save(evolve(each, text="again"))

    assert {each.text async for each in notes.partition(topic="tables")} == {"again"}


async def test_groups_take_whole_and_known_entities_only(notes: Table[Note]) -> None:
    await notes.save(note(1))
    [partial] = await notes.partition(topic="tables").all().select("text").list()

    for wrong in (
        lambda group: group.save(partial),
        lambda group: group.delete(note(1)),
        lambda group: group.save("text"),
        lambda group: group.delete_if_exists(topic="tables"),
    ):
        with pytest.raises((UsageError, ProjectionError, GroupRuleError)) as refused:
            await send(notes, wrong)
        assert isinstance(refused.value, PartitaError)


async def test_a_partition_names_all_fields_of_its_key(db: Database) -> None:
    @entity(table="rooms", partition="{city:esc}_{house:04d}", row="{room}")
    class Room:
        city: str
        house: int
        room: str

    rooms = db.table(Room)

    with pytest.raises(PartitaError):
        rooms.partition(city="Bonn").atomic()
    with pytest.raises(UsageError, match="'room' is not in the partition key"):
        rooms.partition(city="Bonn", house=1, room="x")
