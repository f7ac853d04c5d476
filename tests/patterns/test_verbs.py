"""Save, patch, upsert, update, delete, increment, move and get, through the public face.

One file, long, because the verbs are one table of rules: what each does to a stale object.
"""

import asyncio
import copy
import dataclasses
from typing import Annotated, Any

import attrs
import msgspec
import pydantic
import pytest

from partita.errors import (
    EncryptionKeyError,
    InvalidPropertyError,
    NewerVersionError,
    StoreBusyError,
    TableNotFoundError,
    UsageError,
)
from partita.patterns import (
    Database,
    Encrypted,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    ProjectionError,
    RawEntity,
    Table,
    UniqueViolationError,
    connect,
    entity,
    evolve,
    index,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount
from support.staff import (
    KEYRING,
    Department,
    Employee,
    Grade,
    Note,
    by_email,
    keys_of,
    note,
    person,
    rows_of,
)


async def row(db: Database, partition_key: str, row_key: str, table: str = "staff") -> RawEntity:
    return await db.raw(table).get(partition_key, row_key)


# ---------------------------------------------------------------------------------------------
# Save


async def test_save_inserts_a_new_entity_and_replaces_a_loaded_one(any_db: Database) -> None:
    notes = any_db.table(Note)

    saved = await notes.save(note(1, text="draft", stars=3))
    loaded = await notes.get(topic="tables", number=1)
    await notes.save(evolve(loaded, text="done", stars=None))

    assert saved == loaded == note(1, text="draft", stars=3)
    assert await notes.get(topic="tables", number=1) == note(1, text="done")
    assert "Stars" not in (await row(any_db, "tables", "000001", "notes")).properties


async def test_what_was_saved_can_be_saved_again(any_db: Database) -> None:
    employees = any_db.table(Employee)

    saved = await employees.save(person(1))
    again = await employees.save(evolve(saved, age=40))
    await employees.save(evolve(again, age=41))

    assert (await employees.get(dept="Sales", id=1)).age == 41


async def test_a_stale_save_is_refused_and_names_the_object(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1))
    mine = await employees.get(dept="Sales", id=1)
    theirs = await employees.get(dept="Sales", id=1)
    await employees.save(evolve(theirs, age=30))
    changed = evolve(mine, age=50)

    with pytest.raises(ETagMismatchError) as refused:
        await employees.save(changed)

    assert refused.value.entity is changed
    assert refused.value.facts["row_key"] == "emp_000001"
    assert "update()" in refused.value.hint
    assert (await employees.get(dept="Sales", id=1)).age == 30


@pytest.mark.parametrize("cls", [Note, Employee])
async def test_an_entity_that_is_there_is_not_inserted_again(
    any_db: Database, cls: type[Any]
) -> None:
    table: Table[Any] = any_db.table(cls)
    first = await table.save(note(1) if cls is Note else person(1))
    second = copy.copy(first)

    with pytest.raises(EntityExistsError) as refused:
        await table.save(second)

    assert refused.value.entity is second
    assert "upsert" in refused.value.hint


async def test_two_writers_that_write_the_same_are_not_taken_for_one(notes: Table[Note]) -> None:
    await notes.save(note(1, text="free"))
    mine = await notes.get(topic="tables", number=1)
    theirs = await notes.get(topic="tables", number=1)
    await notes.save(evolve(mine, text="taken"))

    with pytest.raises(ETagMismatchError):
        await notes.save(evolve(theirs, text="taken"))


async def test_one_of_many_writers_wins_at_a_time(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save(note(1, stars=0))

    async def add_star() -> bool:
        loaded = await notes.get(topic="tables", number=1)
        try:
            await notes.save(evolve(loaded, stars=(loaded.stars or 0) + 1))
        except ETagMismatchError:
            return False
        return True

    won = await asyncio.gather(*(add_star() for _ in range(12)))

    assert (await notes.get(topic="tables", number=1)).stars == sum(won) >= 1


async def test_force_writes_whatever_is_stored(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1))
    stale = await employees.get(dept="Sales", id=1)
    await employees.save(evolve(stale, email="new@contoso.com"))

    await employees.save(evolve(stale, age=50), force=True)

    loaded = await employees.get(dept="Sales", id=1)
    assert (loaded.age, loaded.email) == (50, "e1@contoso.com")
    await any_db.drain()
    assert await any_db.verify(Employee) == []


async def test_a_deleted_entity_is_not_saved_back(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1))
    mine = await employees.get(dept="Sales", id=1)
    await employees.delete_if_exists(dept="Sales", id=1)

    with pytest.raises(EntityNotFoundError) as refused:
        await employees.save(evolve(mine, age=50))

    assert refused.value.entity is not None
    assert await employees.get_or_none(dept="Sales", id=1) is None
    assert await any_db.table(Employee).via(by_email).range(dept="Sales").list() == []


async def test_a_key_that_was_changed_in_memory_is_refused_with_the_way_to_go(
    employees: Table[Employee],
) -> None:
    await employees.save(person(1))
    loaded = await employees.get(dept="Sales", id=1)

    with pytest.raises(UsageError, match="was changed") as refused:
        await employees.save(evolve(loaded, id=2))

    assert refused.value.code == "KeyChanged"
    assert "move(" in refused.value.hint


async def test_what_was_mutated_in_place_is_saved(employees: Table[Employee]) -> None:
    await employees.save(person(1))
    loaded = await employees.get(dept="Sales", id=1)
    loaded.email = "mutated@contoso.com"
    loaded.messages[300] = 7

    await employees.save(loaded)

    found = await employees.via(by_email).get(dept="Sales", email="mutated@contoso.com")
    assert found.messages == {300: 7}
    assert await employees.via(by_email).get_or_none(dept="Sales", email="e1@contoso.com") is None


async def test_an_entity_of_another_type_is_refused(db: Database, notes: Table[Note]) -> None:
    with pytest.raises(UsageError, match="was passed to the table of Note"):
        await notes.save(person(1))  # type: ignore[arg-type]


async def test_a_copy_of_an_object_is_a_new_entity(notes: Table[Note]) -> None:
    saved = await notes.save(note(1))

    with pytest.raises(EntityExistsError):
        await notes.save(copy.copy(saved))


async def test_an_answer_that_is_lost_after_the_commit_is_found_out(
    db: Database, employees: Table[Employee], partita_faults: Faults
) -> None:
    partita_faults.lose_answers(times=1, match="$batch")

    saved = await employees.save(person(1))
    await employees.save(evolve(saved, age=50))

    assert (await employees.get(dept="Sales", id=1)).age == 50
    assert [key for key in await keys_of(db) if key.startswith("emp_")] == [
        "emp_000001",
        "emp_000001~1",
    ]


async def test_a_lost_answer_of_a_plain_insert_is_found_out(
    notes: Table[Note], partita_faults: Faults
) -> None:
    partita_faults.lose_answers(times=1, match="POST")

    saved = await notes.save(note(1, text="once"))
    await notes.save(evolve(saved, text="twice"))

    assert (await notes.get(topic="tables", number=1)).text == "twice"


# ---------------------------------------------------------------------------------------------
# What an older class does not know


@entity(table="people", partition="{team}", row="{id:04d}", name="Person")
class PersonV1:
    team: str
    id: int
    name: str = ""


@entity(table="people", partition="{team}", row="{id:04d}", name="Person")
class PersonV2:
    team: str
    id: int
    name: str = ""
    nickname: str | None = None
    bonus: Annotated[int | None, Encrypted] = None


async def stored_by_v2(account: LocalAccount) -> PersonV2:
    async with connect(account, keyring=KEYRING) as db:
        table = db.table(PersonV2)
        await db.create_tables()
        return await table.save(PersonV2(team="A", id=1, name="Jun", nickname="J", bonus=12345))


async def read_by_v2(account: LocalAccount, **key: Any) -> PersonV2:
    async with connect(account, keyring=KEYRING) as db:
        return await db.table(PersonV2).get(**key)


async def clear_texts(account: LocalAccount) -> str:
    async with connect(account, keyring=KEYRING) as db:
        return repr([row.properties async for row in db.raw("people").query()])


@pytest.mark.parametrize("verb", ["save", "patch", "update", "force", "merge"])
async def test_properties_that_a_class_does_not_know_are_kept(
    partita_account: LocalAccount, verb: str
) -> None:
    await stored_by_v2(partita_account)

    async with connect(partita_account, keyring=KEYRING) as db:
        table = db.table(PersonV1)
        loaded = await table.get(team="A", id=1)
        match verb:
            case "save":
                await table.save(evolve(loaded, name="Changed"))
            case "patch":
                await table.patch(loaded, name="Changed")
            case "update":
                await table.update(lambda old: evolve(old, name="Changed"), team="A", id=1)
            case "force":
                await table.save(evolve(loaded, name="Changed"), force=True)
            case _:
                await table.upsert(PersonV1(team="A", id=1, name="Changed"), merge=True)

    kept = await read_by_v2(partita_account, team="A", id=1)
    assert kept == PersonV2(team="A", id=1, name="Changed", nickname="J", bonus=12345)
    assert "12345" not in await clear_texts(partita_account)


@pytest.mark.parametrize("target", [{"id": 2}, {"team": "B"}])
async def test_a_move_keeps_what_a_class_does_not_know_and_keeps_it_sealed(
    partita_account: LocalAccount, target: dict[str, Any]
) -> None:
    await stored_by_v2(partita_account)

    async with connect(partita_account, keyring=KEYRING) as db:
        table = db.table(PersonV1)
        await table.move(await table.get(team="A", id=1), **target)
        await db.drain()

    moved = await read_by_v2(partita_account, **({"team": "A", "id": 1} | target))
    assert (moved.nickname, moved.bonus) == ("J", 12345)
    assert "12345" not in await clear_texts(partita_account)


# ---------------------------------------------------------------------------------------------
# Patch


async def test_patch_sends_only_what_changes(
    db: Database, notes: Table[Note], partita_faults: Faults
) -> None:
    saved = await notes.save(note(1, text="long " * 1000))

    with db.measuring() as cost:
        patched = await notes.patch(saved, stars=5)

    assert cost.requests == 1
    assert cost.bytes < 200
    assert partita_faults.requests[-1].startswith(("PATCH", "MERGE"))
    assert patched == await notes.get(topic="tables", number=1)
    assert (patched.stars, patched.text) == (5, "long " * 1000)


async def test_a_patch_leaves_what_others_wrote_beside_it(db: Database, notes: Table[Note]) -> None:
    saved = await notes.save(note(1))
    raw = await row(db, "tables", "000001", "notes")
    await db.raw("notes").save(
        RawEntity("tables", "000001", {**raw.properties, "Color": "red"}, raw.etag)
    )

    with pytest.raises(ETagMismatchError):
        await notes.patch(saved, stars=1)
    await notes.patch(await notes.get(topic="tables", number=1), stars=2)

    properties = (await row(db, "tables", "000001", "notes")).properties
    assert (properties["Color"], properties["Stars"]) == ("red", 2)


async def test_patch_to_none_removes_the_property(any_db: Database) -> None:
    notes = any_db.table(Note)
    saved = await notes.save(note(1, stars=4, text="kept"))

    patched = await notes.patch(saved, stars=None)

    assert patched.stars is None
    assert await notes.get(topic="tables", number=1) == note(1, text="kept")


async def test_patch_keeps_the_indexes(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1))

    await employees.patch(saved, email="new@contoso.com", grade=Grade.SENIOR)

    via = employees.via(by_email)
    assert (await via.get(dept="Sales", email="new@contoso.com")).grade is Grade.SENIOR
    assert await via.get_or_none(dept="Sales", email="e1@contoso.com") is None


async def test_a_stale_patch_is_refused_unless_it_is_forced(employees: Table[Employee]) -> None:
    stale = await employees.save(person(1))
    await employees.update(lambda old: evolve(old, age=33), dept="Sales", id=1)

    with pytest.raises(ETagMismatchError):
        await employees.patch(stale, grade=Grade.SENIOR)
    forced = await employees.patch(stale, force=True, grade=Grade.SENIOR)

    assert (forced.age, forced.grade) == (33, Grade.SENIOR)


async def test_patch_of_an_encrypted_field_is_refused(employees: Table[Employee]) -> None:
    saved = await employees.save(person(1, salary=70_000))

    with pytest.raises(UsageError, match="encrypted") as refused:
        await employees.patch(saved, salary=80_000)

    assert refused.value.code == "EncryptedMerge"
    assert "save(evolve" in refused.value.hint


async def test_patch_beside_an_encrypted_field_that_was_mutated_leaks_nothing(
    partita_account: LocalAccount,
) -> None:
    saved = await stored_by_v2(partita_account)

    async with connect(partita_account, keyring=KEYRING) as db:
        table = db.table(PersonV2)
        saved = await table.get(team="A", id=1)
        saved.bonus = 99_999
        await table.patch(saved, name="Changed")

    stored = await read_by_v2(partita_account, team="A", id=1)
    assert stored.name == "Changed"
    assert "99999" not in await clear_texts(partita_account)


async def test_patch_of_a_type_that_a_resolver_encrypts_leaks_nothing(
    partita_account: LocalAccount,
) -> None:
    @entity(
        table="people",
        partition="{team}",
        row="{id:04d}",
        encrypt=lambda _, __, name: name == "Bonus",
    )
    class Paid:
        team: str
        id: int
        bonus: int = 0
        name: str = ""

    async with connect(partita_account, keyring=KEYRING) as db:
        table = db.table(Paid)
        await db.create_tables()
        saved = await table.save(Paid(team="A", id=1, bonus=11111))
        patched = await table.patch(saved, bonus=22222)
        await table.patch(patched, name="Jun")

        assert await table.get(team="A", id=1) == Paid(team="A", id=1, bonus=22222, name="Jun")
    stored = await clear_texts(partita_account)
    assert "11111" not in stored
    assert "22222" not in stored


async def test_a_move_by_an_unknown_field_is_refused_with_the_fields(db: Database) -> None:
    notes = db.table(Note)
    saved = await notes.save(note(1))

    with pytest.raises(UsageError) as caught:
        await notes.move(saved, nonsense=1)

    assert caught.value.code == "UnknownField"
    assert "'nonsense'" in caught.value.message
    assert caught.value.hint == "Use one of topic, number, text, stars."


async def test_patch_of_an_unknown_field_or_of_a_new_object_is_refused(
    notes: Table[Note],
) -> None:
    saved = await notes.save(note(1))

    with pytest.raises(UsageError, match="no field 'color'"):
        await notes.patch(saved, color="red")
    with pytest.raises(UsageError) as refused:
        await notes.patch(note(2), stars=1)

    assert refused.value.code == "NotLoaded"


# ---------------------------------------------------------------------------------------------
# Upsert


async def test_upsert_inserts_and_replaces(any_db: Database) -> None:
    employees, notes = any_db.table(Employee), any_db.table(Note)

    for age in (30, 31):
        await employees.upsert(person(1, age=age, email=f"mail{age}@contoso.com"))
        await notes.upsert(note(1, stars=age))

    assert (await employees.get(dept="Sales", id=1)).age == 31
    via = employees.via(by_email)
    assert await via.get_or_none(dept="Sales", email="mail30@contoso.com") is None
    assert (await via.get(dept="Sales", email="mail31@contoso.com")).id == 1
    assert (await notes.get(topic="tables", number=1)).stars == 31


async def test_upsert_replaces_unknown_properties_and_merge_keeps_them(
    db: Database, notes: Table[Note]
) -> None:
    raw = RawEntity("tables", "000001", {"EntityType": "Note", "Text": "old", "Color": "red"})
    await db.raw("notes").save(raw)

    await notes.upsert(note(1, text="merged"), merge=True)
    merged = (await row(db, "tables", "000001", "notes")).properties
    await notes.upsert(note(1, text="replaced"))
    replaced = (await row(db, "tables", "000001", "notes")).properties

    assert (merged["Text"], merged["Color"]) == ("merged", "red")
    assert replaced["Text"] == "replaced"
    assert "Color" not in replaced


async def test_a_field_that_was_not_set_stays_after_an_upsert_with_merge(
    notes: Table[Note],
) -> None:
    await notes.save(note(1, stars=4))

    await notes.upsert(note(1, text="still four stars"), merge=True)

    assert await notes.get(topic="tables", number=1) == note(1, text="still four stars", stars=4)


async def test_upserts_at_once_leave_one_of_them_whole(any_db: Database) -> None:
    employees = any_db.table(Employee)

    await asyncio.gather(
        *(employees.upsert(person(1, age=n, email=f"{n}@contoso.com")) for n in range(8))
    )

    found = await employees.get(dept="Sales", id=1)
    assert found.email == f"{found.age}@contoso.com"
    copies = await employees.via(by_email).range(dept="Sales").list()
    assert [copy.email for copy in copies] == [found.email]


async def test_an_upsert_of_a_plain_type_is_one_request_whatever_its_fields(
    any_db: Database,
) -> None:
    notes, employees = any_db.table(Note), any_db.table(Employee)
    costs: list[int] = []

    for stars in (None, 3):
        with any_db.measuring() as cost:
            await notes.upsert(note(1, stars=stars))
        costs.append(cost.requests)
    with any_db.measuring() as followed:
        await employees.upsert(person(1))

    assert costs == [1, 1]
    assert followed.requests > 1


async def test_upsert_respects_unique_indexes(employees: Table[Employee]) -> None:
    await employees.save(person(1, email="same@contoso.com"))

    with pytest.raises(UniqueViolationError):
        await employees.upsert(person(2, email="same@contoso.com"))


# ---------------------------------------------------------------------------------------------
# Update


async def test_update_asks_the_function_again_until_nobody_was_faster(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save(note(1, stars=0))

    await asyncio.gather(
        *(
            notes.update(
                lambda old: evolve(old, stars=(old.stars or 0) + 1), topic="tables", number=1
            )
            for _ in range(10)
        )
    )

    assert (await notes.get(topic="tables", number=1)).stars == 10


async def test_update_of_an_object_in_place_is_written_too(notes: Table[Note]) -> None:
    await notes.save(note(1))

    def mutate(old: Note) -> Note:
        old.text = "mutated"
        return old

    await notes.update(mutate, topic="tables", number=1)

    assert (await notes.get(topic="tables", number=1)).text == "mutated"


async def test_update_that_changes_nothing_writes_nothing(db: Database, notes: Table[Note]) -> None:
    await notes.save(note(1))

    with db.measuring() as cost:
        await notes.update(lambda old: evolve(old, text=old.text), topic="tables", number=1)

    assert cost.requests == 1


async def test_update_awaits_a_function_that_must_be(notes: Table[Note]) -> None:
    await notes.save(note(1))

    async def decide(old: Note) -> Note:
        await asyncio.sleep(0)
        return evolve(old, text="decided")

    await notes.update(decide, topic="tables", number=1)  # type: ignore[arg-type]

    assert (await notes.get(topic="tables", number=1)).text == "decided"


async def test_update_of_nothing_and_by_nothing_are_refused(notes: Table[Note]) -> None:
    await notes.save(note(1))

    with pytest.raises(EntityNotFoundError):
        await notes.update(lambda old: old, topic="tables", number=2)
    with pytest.raises(UsageError, match="returned None"):
        await notes.update(lambda _: None, topic="tables", number=1)  # type: ignore[arg-type, return-value]


async def test_update_gives_up_with_what_happened(partita_account: LocalAccount) -> None:
    async with connect(partita_account, attempts_max=3) as db:
        notes = db.table(Note)
        await db.create_tables()
        await notes.save(note(1))
        calls = 0

        async def slow(old: Note) -> Note:
            nonlocal calls
            calls += 1
            await notes.save(note(1, text=f"other {calls}"), force=True)
            return evolve(old, stars=1)

        with pytest.raises(StoreBusyError) as refused:
            await notes.update(slow, topic="tables", number=1)  # type: ignore[arg-type]

    assert refused.value.code == "TooManyConflicts"
    assert calls == 3


# ---------------------------------------------------------------------------------------------
# Delete


async def test_delete_removes_the_entity_and_what_follows_it(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1, photo=b"face"))

    await employees.delete(saved)
    await any_db.drain()

    assert await employees.get_or_none(dept="Sales", id=1) is None
    assert [key for key in await keys_of(any_db) if not key.startswith("~g_")] == []
    assert await keys_of(any_db, "staffbyemail") == []


async def test_a_stale_delete_is_refused_unless_it_is_forced(employees: Table[Employee]) -> None:
    stale = await employees.save(person(1))
    await employees.update(lambda old: evolve(old, age=33), dept="Sales", id=1)

    with pytest.raises(ETagMismatchError) as refused:
        await employees.delete(stale)
    await employees.delete(stale, force=True)

    assert refused.value.entity is stale
    assert await employees.get_or_none(dept="Sales", id=1) is None


async def test_delete_if_exists_says_whether_there_was_anything(any_db: Database) -> None:
    employees, notes = any_db.table(Employee), any_db.table(Note)
    await employees.save(person(1))
    await notes.save(note(1))

    assert await employees.delete_if_exists(dept="Sales", id=1)
    assert not await employees.delete_if_exists(dept="Sales", id=1)
    assert await notes.delete_if_exists(topic="tables", number=1)
    assert not await notes.delete_if_exists(topic="tables", number=1)


async def test_a_deleted_object_can_be_inserted_again(employees: Table[Employee]) -> None:
    saved = await employees.save(person(1))
    await employees.delete(saved)

    await employees.save(saved)

    assert await employees.get(dept="Sales", id=1) == saved


async def test_deletes_at_once_delete_once(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.table(Department).save(Department(name="Sales", manager_id=1))
    await employees.save(person(1))

    gone = await asyncio.gather(*(employees.delete_if_exists(dept="Sales", id=1) for _ in range(6)))

    assert sorted(gone) == [False] * 5 + [True]
    assert (await any_db.table(Department).get(name="Sales")).headcount == 0


# ---------------------------------------------------------------------------------------------
# Increment


async def test_24_writers_to_different_slots_lose_nothing(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1))

    await asyncio.gather(
        *(employees.increment(saved, "messages", slot) for slot in range(0, 360, 15))
    )

    assert (await employees.get(dept="Sales", id=1)).messages == dict.fromkeys(range(0, 360, 15), 1)


async def test_many_writers_to_one_slot_lose_nothing(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1))

    became = await asyncio.gather(
        *(employees.increment(saved, "messages", 300, by=2) for _ in range(12))
    )

    assert sorted(became) == list(range(2, 26, 2))
    assert (await employees.get(dept="Sales", id=1)).messages == {300: 24}


async def test_increment_of_a_slot_is_a_read_and_a_merge_of_one_property(
    db: Database, employees: Table[Employee], partita_faults: Faults
) -> None:
    saved = await employees.save(person(1, messages=dict.fromkeys(range(365), 1)))
    before = len(partita_faults.requests)

    with db.measuring() as cost:
        assert await employees.increment(saved, "messages", 17) == 2

    assert cost.requests == 2
    assert cost.bytes < 500
    assert partita_faults.requests[before + 1].startswith(("PATCH", "MERGE"))


async def test_increment_of_a_plain_number(any_db: Database) -> None:
    notes = any_db.table(Note)
    saved = await notes.save(note(1))

    became = await asyncio.gather(*(notes.increment(saved, "stars", by=3) for _ in range(8)))

    assert sorted(became) == list(range(3, 27, 3))
    assert (await notes.get(topic="tables", number=1)).stars == 24


async def test_increment_of_a_number_that_an_index_holds_reaches_its_copies(
    any_db: Database,
) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1, age=40))

    await asyncio.gather(*(employees.increment(saved, "age") for _ in range(5)))
    await any_db.drain()

    assert (await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")).age == 45
    assert await any_db.verify(Employee) == []


async def test_an_increment_whose_answer_was_lost_counts_once(
    employees: Table[Employee], partita_faults: Faults
) -> None:
    saved = await employees.save(person(1))
    partita_faults.lose_answers(times=1, match="PATCH")

    assert await employees.increment(saved, "messages", 5) == 1

    assert (await employees.get(dept="Sales", id=1)).messages == {5: 1}


async def test_increments_that_cannot_work_are_refused(employees: Table[Employee]) -> None:
    saved = await employees.save(person(1))

    for arguments, code in (
        (("first",), "NotANumber"),
        (("id",), "NotANumber"),
        (("nothing",), "NotANumber"),
        (("messages",), "SlotMissing"),
        (("age", 3), "NotASeries"),
    ):
        with pytest.raises(UsageError) as refused:
            await employees.increment(saved, *arguments)
        assert refused.value.code == code
    with pytest.raises(InvalidPropertyError):
        await employees.increment(saved, "messages", 365)
    with pytest.raises(EntityNotFoundError):
        await employees.increment(person(2), "messages", 3)


# ---------------------------------------------------------------------------------------------
# Move


async def test_move_inside_a_partition_is_one_group(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=1))
    saved = await employees.save(person(1, salary=70_000, photo=b"face", messages={300: 4}))

    moved = await employees.move(saved, id=2, age=50)
    await any_db.drain()

    assert await employees.get_or_none(dept="Sales", id=1) is None
    found = await employees.get(dept="Sales", id=2)
    assert found == moved
    assert (found.age, found.salary, found.photo, found.messages) == (
        50,
        70_000,
        b"face",
        {300: 4},
    )
    assert (await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")).id == 2
    sales = await departments.get(name="Sales")
    assert (sales.headcount, sales.manager_email) == (1, None)
    assert await any_db.verify(Employee) == []


async def test_move_to_another_partition(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    for name in ("Sales", "Marketing"):
        await departments.save(Department(name=name, manager_id=1))
    saved = await employees.save(person(1, salary=70_000, photo=b"face", messages={300: 4}))

    moved = await employees.move(saved, dept="Marketing")
    await any_db.drain()

    assert await employees.get_or_none(dept="Sales", id=1) is None
    assert await employees.get(dept="Marketing", id=1) == moved
    assert (moved.salary, moved.photo, moved.messages) == (70_000, b"face", {300: 4})
    assert (await departments.get(name="Sales")).headcount == 0
    assert (await departments.get(name="Sales")).manager_email is None
    assert (await departments.get(name="Marketing")).manager_email == "e1@contoso.com"
    assert await any_db.verify(Employee) == []
    assert await any_db.verify(Department) == []


async def test_a_moved_entity_can_be_changed_and_moved_back(
    db: Database, employees: Table[Employee]
) -> None:
    saved = await employees.save(person(1))

    there = await employees.move(saved, dept="Marketing")
    changed = await employees.save(evolve(there, age=44))
    back = await employees.move(changed, dept="Sales")
    await db.drain()

    assert back.age == 44
    assert [e.dept for e in await employees.all().allow_scan().list()] == ["Sales"]
    assert await db.verify(Employee) == []


@pytest.mark.parametrize("target", [{"id": 2}, {"dept": "Marketing", "id": 2}])
async def test_a_move_onto_another_entity_changes_nothing(
    db: Database, employees: Table[Employee], target: dict[str, Any]
) -> None:
    await employees.save(person(2, dept=target.get("dept", "Sales")))
    saved = await employees.save(person(1))

    with pytest.raises(EntityExistsError):
        await employees.move(saved, **target)
    await db.drain()

    assert await employees.get(dept="Sales", id=1) == person(1)
    assert await employees.get(**({"dept": "Sales"} | target)) is not None
    assert await db.verify(Employee) == []


@pytest.mark.parametrize("target", [{"id": 3}, {"dept": "Marketing"}])
async def test_a_move_onto_a_value_that_is_taken_there_changes_nothing(
    db: Database, employees: Table[Employee], target: dict[str, Any]
) -> None:
    await employees.save(person(7, dept=target.get("dept", "Sales"), email="same@contoso.com"))
    saved = await employees.save(person(1))
    if "id" in target:
        target = target | {"email": "same@contoso.com"}
    else:
        saved = await employees.save(evolve(saved, email="same@contoso.com"))

    with pytest.raises(UniqueViolationError) as refused:
        await employees.move(saved, **target)
    await db.drain()

    assert refused.value.index is by_email
    there = await employees.get(dept="Sales", id=1)
    await employees.save(evolve(there, age=20))
    await db.drain()
    assert sorted(e.id for e in await employees.all().allow_scan().list()) == [1, 7]
    assert await db.verify(Employee) == []


async def test_a_stale_move_is_refused(employees: Table[Employee]) -> None:
    stale = await employees.save(person(1))
    await employees.update(lambda old: evolve(old, age=33), dept="Sales", id=1)

    for target in ({"id": 2}, {"dept": "Marketing"}):
        with pytest.raises(ETagMismatchError) as refused:
            await employees.move(stale, **target)
        assert refused.value.entity is stale
    assert (await employees.get(dept="Sales", id=1)).age == 33


async def test_moves_that_cannot_work_are_refused(employees: Table[Employee]) -> None:
    saved = await employees.save(person(1))

    for entity_, target, code in (
        (person(2), {"id": 3}, "NotLoaded"),
        (saved, {"id": 1}, "KeyUnchanged"),
        (saved, {"dept": "Marketing", "age": 3}, "MoveChangesFields"),
    ):
        with pytest.raises(UsageError) as refused:
            await employees.move(entity_, **target)
        assert refused.value.code == code


# ---------------------------------------------------------------------------------------------
# Get


async def test_get_is_one_request(any_db: Database) -> None:
    notes, employees = any_db.table(Note), any_db.table(Employee)
    await notes.save(note(1))
    await employees.save(person(1))

    with any_db.measuring() as cost:
        await notes.get(topic="tables", number=1)
    assert (cost.requests, cost.entities) == (1, 1)
    with any_db.measuring() as cost:
        await employees.get(dept="Sales", id=1)
    assert (cost.requests, cost.entities) == (1, 2)  # two rows, in one range


async def test_a_missing_entity_is_not_a_missing_table(any_db: Database) -> None:
    @entity(table="nowhere", partition="{a}", row="b")
    class Lost:
        a: str

    notes, lost = any_db.table(Note), any_db.table(Lost)

    with pytest.raises(EntityNotFoundError) as refused:
        await notes.get(topic="tables", number=9)
    assert refused.value.facts["row_key"] == "000009"
    assert await notes.get_or_none(topic="tables", number=9) is None
    with pytest.raises(TableNotFoundError):
        await lost.get(a="x")
    with pytest.raises(TableNotFoundError):
        await lost.get_or_none(a="x")
    with pytest.raises(TableNotFoundError):
        await lost.save(Lost(a="x"))


async def test_get_takes_every_field_of_the_keys_and_no_other(employees: Table[Employee]) -> None:
    with pytest.raises(UsageError, match="'id' is missing"):
        await employees.get(dept="Sales")
    with pytest.raises(UsageError, match="'age' is not one of them"):
        await employees.get(dept="Sales", id=1, age=2)
    with pytest.raises(UsageError, match=r"'dep' is not one of them.* Did you mean 'dept'\?"):
        await employees.get(dep="Sales", id=1)


async def test_get_many_reads_each_distinct_key_once(db: Database, notes: Table[Note]) -> None:
    await notes.save_all([note(number) for number in range(5)])
    keys = [{"topic": "tables", "number": number % 6} for number in range(12)]

    with db.measuring() as cost:
        found = await notes.get_many(keys)

    assert cost.requests == 6
    assert [None if each is None else each.number for each in found] == [0, 1, 2, 3, 4, None] * 2


# ---------------------------------------------------------------------------------------------
# Projections


async def test_a_projection_is_not_saved_back(db: Database, employees: Table[Employee]) -> None:
    await employees.save(person(1))
    [partial] = await employees.partition(dept="Sales").all().select("first", "id").list()

    assert (partial.first, partial.id) == ("First1", 1)
    with pytest.raises(ProjectionError, match="'age' was not selected"):
        _ = partial.age
    for verb in (employees.save, employees.upsert, employees.delete):
        with pytest.raises(ProjectionError):
            await verb(partial)  # type: ignore[arg-type]
    with pytest.raises(ProjectionError):
        await employees.patch(partial, age=3)  # type: ignore[arg-type]


async def test_every_error_of_a_missing_keyring_names_it(partita_account: LocalAccount) -> None:
    async with connect(partita_account) as db:
        table = db.table(PersonV2)
        await db.create_tables()
        with pytest.raises(EncryptionKeyError, match="no keyring"):
            await table.save(PersonV2(team="A", id=1, bonus=1))
        await table.save(PersonV2(team="A", id=1))


async def test_newer_data_is_not_overwritten_by_older_code(db: Database) -> None:
    @entity(table="notes", partition="{topic}", row="{number:06d}", name="Note", version=3)
    class NewNote:
        topic: str
        number: int

    async with connect(db._where, keyring=KEYRING) as other:
        await other.table(NewNote).save(NewNote(topic="tables", number=1))
    notes = db.table(Note)

    with pytest.raises(NewerVersionError):
        await notes.get(topic="tables", number=1)
    with pytest.raises(EntityExistsError):
        await notes.save(note(1))


async def test_an_index_that_leaves_entities_out_by_a_field_it_does_not_copy(
    partita_account: LocalAccount,
) -> None:
    @entity(table="jobs", partition="{queue}", row="job_{id:04d}")
    class Job:
        queue: str
        id: int
        is_open: bool = True

    open_jobs = index(Job, row="open_{id:04d}", copy=[], where=lambda job: job.is_open)

    async with connect(partita_account) as db:
        jobs = db.table(Job)
        await db.create_tables()
        saved = await jobs.save(Job(queue="a", id=1))
        await jobs.patch(saved, is_open=False)

        assert await jobs.via(open_jobs).range(queue="a").list() == []
        await jobs.update(lambda old: evolve(old, is_open=True), queue="a", id=1)
        assert [job.id for job in await jobs.via(open_jobs).range(queue="a").list()] == [1]


async def test_rows_hold_what_the_format_says(db: Database, employees: Table[Employee]) -> None:
    await employees.save(person(1, age=47, messages={0: 1, 364: 2}))

    first, second = (r for r in await rows_of(db) if r.row_key.startswith("emp_"))

    assert first.properties["EntityType"] == "Employee"
    assert first.properties["EntityVersion"] == 2
    assert (first.properties["Age"], first.properties["m000"]) == (47, 1)
    assert second.row_key == "emp_000001~1"
    assert second.properties["m364"] == 2
    assert second.properties["EntityType"] == "Employee~"


# ---------------------------------------------------------------------------------------------
# Every kind of class


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True)
class FrozenCity:
    country: str
    code: str
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)


class StructCity(msgspec.Struct, weakref=True):
    country: str
    code: str
    name: str
    tags: list[str] = []


class PydanticCity(pydantic.BaseModel):
    country: str
    code: str
    name: str
    tags: list[str] = []


@attrs.frozen
class AttrsCity:
    country: str
    code: str
    name: str
    tags: list[str] = attrs.field(factory=list)


class PlainCity:
    country: str
    code: str
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("cls", [FrozenCity, StructCity, PydanticCity, AttrsCity, PlainCity])
async def test_every_kind_of_class_goes_every_way(
    partita_account: LocalAccount, cls: type[Any]
) -> None:
    city = entity(table="cities", partition="{country}", row="city_{code}", name="City")(cls)
    by_name = index(city, row="name_{name}", unique=True)
    far = index(city, table="names", partition="{name}", row="{country}")

    async with connect(partita_account) as db:
        cities = db.table(city)
        await db.create_tables()
        saved = await cities.save(city(country="de", code="bn", name="Bonn", tags=["a"]))
        saved = await cities.save(evolve(saved, tags=[*saved.tags, "b"]))
        saved = await cities.patch(saved, name="Beuel")
        moved = await cities.move(saved, code="be")
        moved = await cities.move(moved, country="eu")
        await cities.update(lambda old: evolve(old, tags=[*old.tags, "c"]), country="eu", code="be")
        await db.drain()

        found = await cities.get(country="eu", code="be")
        assert type(found) is city
        assert found == city(country="eu", code="be", name="Beuel", tags=["a", "b", "c"])
        assert await cities.via(by_name).get(country="eu", name="Beuel") == found
        assert await cities.via(far).get(country="eu", name="Beuel") == found
        assert await db.verify(city) == []
        with pytest.raises(ETagMismatchError):
            await cities.delete(moved)
        await cities.delete(found)
        await db.drain()
        assert await keys_of(db, "cities") == await keys_of(db, "names") == []


# ---------------------------------------------------------------------------------------------
# Cancelling


async def test_a_verb_that_is_cancelled_happened_or_not(
    db: Database, employees: Table[Employee], departments: Table[Department]
) -> None:
    await departments.save(Department(name="Sales", manager_id=0))

    for turns in range(24):
        task = asyncio.ensure_future(employees.upsert(person(turns % 3, age=turns, photo=b"x")))
        for _ in range(turns * 2):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await departments.update(lambda old: evolve(old, manager_id=1), name="Sales")
    await db.drain()

    members = await employees.partition(dept="Sales").all().list()
    assert (await departments.get(name="Sales")).headcount == len(members)
    assert await db.verify(Employee) == []
    assert await db.verify(Department) == []
