"""Secondary indexes: copies in the entity's own partition, atomic, and elsewhere, eventual."""

import asyncio
from dataclasses import field
from typing import Annotated

import pytest

from partita.errors import UsageError
from partita.patterns import (
    CountOf,
    Database,
    DefinitionError,
    EntityNotFoundError,
    ETagMismatchError,
    IndexNotReadableError,
    RawEntity,
    Table,
    UniqueViolationError,
    between,
    connect,
    entity,
    evolve,
    index,
    list_index,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount
from support.staff import (
    KEYRING,
    Department,
    Employee,
    Grade,
    anywhere,
    by_email,
    keys_of,
    person,
    rows_of,
)


@entity(table="books", partition="{shelf}", row="book_{id:04d}")
class Book:
    shelf: str
    id: int
    isbn: str | None = None
    title: str = ""
    price: int = 0
    tags: list[str] = field(default_factory=list)


by_isbn = index(Book, row="isbn_{isbn}", unique=True)
by_title = index(Book, row="title_{title:esc}_{id:04d}", copy=["price"])
by_price = index(Book, row="price_{price:06d}_{id:04d}")
dear = index(Book, row="dear_{id:04d}", copy=[], where=lambda book: book.price > 100)
by_isbn_anywhere = index(Book, table="isbns", partition="{isbn}", row="{shelf}")


@pytest.fixture
async def books(db: Database) -> Table[Book]:
    table = db.table(Book)
    await db.create_tables()
    return table


def book(number: int, **other: object) -> Book:
    return Book(**{"shelf": "A", "id": number, **other})  # type: ignore[arg-type]


async def copies(db: Database, prefix: str) -> list[RawEntity]:
    return [row for row in await rows_of(db, "books") if row.row_key.startswith(prefix)]


# ---------------------------------------------------------------------------------------------
# In the same partition: atomic


async def test_a_copy_is_written_in_the_same_group(
    db: Database, employees: Table[Employee], partita_faults: Faults
) -> None:
    before = len(partita_faults.requests)

    await employees.save(person(1))

    writes = [line for line in partita_faults.requests[before:] if not line.startswith("GET")]
    assert [line.partition("?")[0].rpartition("/")[2] for line in writes[:1]] == ["$batch"]
    copy = next(row for row in await rows_of(db) if row.row_key == "email_e1@contoso.com")
    assert copy.properties["EntityType"] == "Employee@email_email"
    assert (copy.properties["First"], copy.properties["_Row"]) == ("First1", "emp_000001")


async def test_a_lookup_by_a_whole_copy_is_one_request(db: Database, books: Table[Book]) -> None:
    await books.save(book(1, isbn="111", title="One"))

    with db.measuring() as cost:
        found = await books.via(by_isbn).get(shelf="A", isbn="111")

    assert found == book(1, isbn="111", title="One")
    assert (cost.requests, cost.entities) == (1, 1)


async def test_a_lookup_by_a_partial_copy_follows_to_the_entity(
    db: Database, books: Table[Book]
) -> None:
    await books.save(book(1, title="One", price=7, tags=["old"]))

    with db.measuring() as cost:
        found = await books.via(by_title).get(shelf="A", title="One", id=1)

    assert found == book(1, title="One", price=7, tags=["old"])
    assert cost.requests == 2
    [copy] = await copies(db, "title_")
    assert set(copy.properties) == {"EntityType", "_Row", "Price"}


async def test_a_projection_that_a_partial_copy_holds_is_one_request(
    db: Database, books: Table[Book]
) -> None:
    await books.save_all([book(n, title="Same", price=n) for n in range(5)])

    with db.measuring() as cost:
        found = (
            await books.via(by_title).range(shelf="A", title="Same").select("price", "id").list()
        )

    assert [(each.id, each.price) for each in found] == [(n, n) for n in range(5)]
    assert cost.requests == 1


async def test_a_value_that_is_taken_names_the_index_and_changes_nothing(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=2))
    await employees.save(person(1, email="same@contoso.com"))
    await any_db.drain()
    before = await rows_of(any_db)
    second = person(2, email="same@contoso.com")

    with pytest.raises(UniqueViolationError) as refused:
        await employees.save(second)

    assert refused.value.index is by_email
    assert refused.value.entity is second
    assert refused.value.facts["index"] == "email_email"
    assert await rows_of(any_db) == before


async def test_a_change_to_a_value_that_is_taken_changes_nothing(
    db: Database, employees: Table[Employee]
) -> None:
    await employees.save(person(1))
    second = await employees.save(person(2))
    await db.drain()
    before = await rows_of(db)

    for attempt in (
        employees.save(evolve(second, email="e1@contoso.com")),
        employees.patch(second, email="e1@contoso.com"),
        employees.update(lambda old: evolve(old, email="e1@contoso.com"), dept="Sales", id=2),
    ):
        with pytest.raises(UniqueViolationError):
            await attempt

    assert await rows_of(db) == before


async def test_a_value_is_unique_in_its_partition_only(employees: Table[Employee]) -> None:
    await employees.save(person(1, email="same@contoso.com"))
    await employees.save(person(1, dept="Marketing", email="same@contoso.com"))

    found = await employees.via(by_email).get(dept="Marketing", email="same@contoso.com")
    assert found.dept == "Marketing"


async def test_of_many_that_want_one_value_one_gets_it(any_db: Database) -> None:
    employees = any_db.table(Employee)

    outcomes = await asyncio.gather(
        *(employees.save(person(n, email="same@contoso.com")) for n in range(8)),
        return_exceptions=True,
    )

    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert len(refused) == 7
    assert all(isinstance(each, UniqueViolationError) for each in refused)
    assert len(await employees.partition(dept="Sales").all().list()) == 1


async def test_another_value_moves_the_copy_and_frees_the_old_one(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1))

    await employees.save(evolve(saved, email="new@contoso.com"))
    await employees.save(person(2, email="e1@contoso.com"))

    via = employees.via(by_email)
    assert (await via.get(dept="Sales", email="new@contoso.com")).id == 1
    assert (await via.get(dept="Sales", email="e1@contoso.com")).id == 2


async def test_two_entities_swap_a_unique_value_in_one_group(books: Table[Book]) -> None:
    one = await books.save(book(1, isbn="111"))
    two = await books.save(book(2, isbn="222"))

    async with books.partition(shelf="A").atomic() as group:
        group.save(evolve(one, isbn="222"))
        group.save(evolve(two, isbn="111"))

    assert (await books.via(by_isbn).get(shelf="A", isbn="222")).id == 1
    assert (await books.via(by_isbn).get(shelf="A", isbn="111")).id == 2


async def test_two_entities_of_one_group_cannot_have_one_value(books: Table[Book]) -> None:
    async def save_both() -> None:
        async with books.partition(shelf="A").atomic() as group:
            group.save(book(1, isbn="111"))
            group.save(book(2, isbn="111"))

    with pytest.raises(UniqueViolationError) as refused:
        await save_both()
    assert refused.value.index is by_isbn
    assert isinstance(refused.value.entity, Book)
    assert refused.value.entity.id == 2

    assert await books.partition(shelf="A").all().list() == []


async def test_an_entity_without_a_value_has_no_copy(db: Database, books: Table[Book]) -> None:
    bare = await books.save(book(1))
    await books.save(book(2))
    assert await copies(db, "isbn_") == []

    with_isbn = await books.save(evolve(bare, isbn="111"))
    assert len(await copies(db, "isbn_")) == 1
    await books.save(evolve(with_isbn, isbn=None))
    assert await copies(db, "isbn_") == []


async def test_a_condition_leaves_entities_out(db: Database, books: Table[Book]) -> None:
    saved = await books.save(book(1, price=50))
    await books.save(book(2, price=500))

    assert [each.id for each in await books.via(dear).range(shelf="A").list()] == [2]
    saved = await books.patch(saved, price=101)
    assert [each.id for each in await books.via(dear).range(shelf="A").list()] == [1, 2]
    await books.increment(saved, "price", by=-60)
    assert [each.id for each in await books.via(dear).range(shelf="A").list()] == [2]


async def test_every_index_of_a_type_follows(db: Database, books: Table[Book]) -> None:
    saved = await books.save(book(1, isbn="111", title="One", price=200))
    saved = await books.save(evolve(saved, isbn="222", title="Two", price=300))

    assert [row.row_key for row in await copies(db, "")][:5] == [
        "book_0001",
        "dear_0001",
        "isbn_222",
        "price_000300_0001",
        "title_Two_0001",
    ]
    await books.delete(saved)
    await db.drain()
    assert await keys_of(db, "books") == []


async def test_a_list_that_is_changed_in_place_reaches_the_copies(
    db: Database, books: Table[Book]
) -> None:
    saved = await books.save(book(1, isbn="111", tags=["a"]))
    saved.tags.append("b")
    await books.save(saved)
    loaded = await books.get(shelf="A", id=1)
    loaded.tags.append("c")
    await books.save(loaded)
    await db.drain()

    assert (await books.via(by_isbn).get(shelf="A", isbn="111")).tags == ["a", "b", "c"]
    assert (await books.via(by_isbn_anywhere).get(shelf="A", isbn="111")).tags == ["a", "b", "c"]


async def test_an_index_is_read_by_range_and_prefix(books: Table[Book]) -> None:
    await books.save_all([book(n, title=f"T{n % 3}", price=n * 10) for n in range(30)])

    ranged = await books.via(by_price).range(shelf="A", price=between(50, 90)).list()
    prefixed = await books.via(by_title).prefix(shelf="A", title="T1").list()

    assert [each.id for each in ranged] == [5, 6, 7, 8, 9]
    assert [each.id for each in prefixed] == list(range(1, 30, 3))


async def test_an_entity_read_from_a_copy_is_saved_if_it_has_not_changed(
    books: Table[Book],
) -> None:
    await books.save(book(1, isbn="111"))
    fresh = await books.via(by_isbn).get(shelf="A", isbn="111")

    saved = await books.save(evolve(fresh, title="changed"))
    await books.save(evolve(saved, title="again"))

    assert (await books.get(shelf="A", id=1)).title == "again"
    assert (await books.via(by_isbn).get(shelf="A", isbn="111")).title == "again"


async def test_an_entity_read_from_a_copy_is_refused_if_it_is_stale(books: Table[Book]) -> None:
    await books.save(book(1, isbn="111"))
    stale = await books.via(by_isbn).get(shelf="A", isbn="111")
    await books.update(lambda old: evolve(old, price=5), shelf="A", id=1)

    changed = evolve(stale, title="changed")
    for verb in (books.save, books.delete):
        with pytest.raises(ETagMismatchError) as refused:
            await verb(changed)
        assert refused.value.entity is changed
    with pytest.raises(ETagMismatchError):
        await books.patch(stale, title="changed")
    assert (await books.get(shelf="A", id=1)).title == ""


async def test_an_entity_read_from_a_copy_can_be_deleted_and_moved(books: Table[Book]) -> None:
    await books.save_all([book(1, isbn="111"), book(2, isbn="222")])

    await books.delete(await books.via(by_isbn).get(shelf="A", isbn="111"))
    moved = await books.move(await books.via(by_isbn).get(shelf="A", isbn="222"), id=3)

    assert moved.id == 3
    assert [each.id for each in await books.partition(shelf="A").all().list()] == [3]


async def test_nothing_under_an_index_is_not_found(employees: Table[Employee]) -> None:
    via = employees.via(by_email)

    assert await via.get_or_none(dept="Sales", email="nobody@contoso.com") is None
    with pytest.raises(EntityNotFoundError):
        await via.get(dept="Sales", email="nobody@contoso.com")
    with pytest.raises(UsageError, match="needs every field"):
        await via.get(dept="Sales")


async def test_copies_hold_hostile_text(any_db: Database) -> None:
    employees = any_db.table(Employee)
    values = ["o'hara@x", "a b+c=d&e@x", "ümläut@ß", "😀@x", "%2F@x", "'' or true", "x" * 200]

    for number, email in enumerate(values):
        await employees.save(person(number, email=email))
    await any_db.drain()

    for number, email in enumerate(values):
        assert (await employees.via(by_email).get(dept="Sales", email=email)).id == number
        assert (await employees.via(anywhere).get(dept="Sales", email=email)).id == number
    assert await any_db.verify(Employee) == []


# ---------------------------------------------------------------------------------------------
# Derived fields in copies


async def test_copies_of_an_owner_follow_its_derived_fields(
    partita_account: LocalAccount,
) -> None:

    @entity(table="teams", partition="{name}", row="mem_{id:04d}", name="TeamMember")
    class Member:
        name: str
        id: int

    @entity(table="teams", partition="{name}", row="team")
    class Team:
        name: str
        city: str = ""
        size: Annotated[int, CountOf(Member, where={"name": "name"})] = 0

    by_city = index(Team, row="city_{city}", unique=True)
    cities = index(Team, table="cities", partition="{city}", row="{name}")
    by_size = list_index(Team, table="sizes", partition="size", row="{city}", store="rows")

    async with connect(partita_account) as db:
        teams, members = db.table(Team), db.table(Member)
        await db.create_tables()
        await teams.save(Team(name="red", city="Bonn"))
        await db.drain()
        await members.save(Member(name="red", id=1))
        await members.save(Member(name="red", id=2))
        assert (await teams.via(by_city).get(name="red", city="Bonn")).size == 2
        await db.drain()

        assert (await teams.via(cities).get(name="red", city="Bonn")).size == 2
        assert len(await teams.via(by_size).range(city="Bonn").list()) == 1
        async with teams.partition(name="red").atomic() as group:
            group.save(evolve(await teams.get(name="red"), city="Köln"))
            group.delete_if_exists(Member, name="red", id=1)
        await db.drain()

        assert (await teams.via(by_city).get(name="red", city="Köln")).size == 1
        assert (await teams.via(cities).get(name="red", city="Köln")).size == 1
        assert await db.verify(Team) == []


# ---------------------------------------------------------------------------------------------
# In other partitions and tables


async def test_an_index_elsewhere_follows_after_a_drain(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1))
    via = employees.via(anywhere)
    assert await via.get_or_none(email="e1@contoso.com", dept="Sales") is None

    await any_db.drain()
    assert (await via.get(email="e1@contoso.com", dept="Sales")).id == 1
    saved = await employees.save(evolve(saved, email="new@contoso.com", grade=Grade.SENIOR))
    await any_db.drain()

    assert await via.get_or_none(email="e1@contoso.com", dept="Sales") is None
    assert (await via.get(email="new@contoso.com", dept="Sales")).grade is Grade.SENIOR
    await employees.delete(saved)
    await any_db.drain()
    assert await keys_of(any_db, "staffbyemail") == []


async def test_many_changes_and_one_drain_end_at_the_last_state(any_db: Database) -> None:
    employees = any_db.table(Employee)
    for number in range(6):
        saved = await employees.save(person(number))
        for age in range(3):
            saved = await employees.save(evolve(saved, age=age, email=f"{number}.{age}@x"))
    await employees.delete_if_exists(dept="Sales", id=0)
    await employees.save(person(9, email="1.2@y"))

    await any_db.drain()

    assert sorted(row.partition_key for row in await rows_of(any_db, "staffbyemail")) == [
        "1.2@x",
        "1.2@y",
        "2.2@x",
        "3.2@x",
        "4.2@x",
        "5.2@x",
    ]
    assert await any_db.verify(Employee) == []


async def test_a_value_that_went_to_another_entity_stays_with_it(any_db: Database) -> None:
    employees = any_db.table(Employee)
    first = await employees.save(person(1, email="shared@x"))
    await any_db.drain()
    await employees.delete(first)
    await employees.save(person(2, email="shared@x"))

    await any_db.drain()

    assert (await employees.via(anywhere).get(email="shared@x", dept="Sales")).id == 2
    assert await any_db.verify(Employee) == []


async def test_verify_leaves_out_what_an_index_does_not_know_yet(
    db: Database, books: Table[Book]
) -> None:
    saved = await books.save(book(1, isbn="111"))
    await db.drain()
    await books.save(evolve(saved, isbn="222"))

    stale = await books.via(by_isbn_anywhere).get(isbn="111", shelf="A")
    checked = await books.via(by_isbn_anywhere, verify=True).get_or_none(isbn="111", shelf="A")

    assert stale.id == 1
    assert checked is None
    with pytest.raises(ETagMismatchError):
        await books.save(evolve(stale, title="from a stale copy"))


async def test_a_worker_of_another_process_does_the_same(partita_account: LocalAccount) -> None:
    async with connect(partita_account, keyring=KEYRING) as writer:
        employees = writer.table(Employee)
        await writer.create_tables()
        await employees.save(person(1))

        async with connect(partita_account, keyring=KEYRING) as worker:
            worker.table(Employee)
            report = await worker.work_once()

        assert report.entries == 1
        assert (await employees.via(anywhere).get(email="e1@contoso.com", dept="Sales")).id == 1


async def test_workers_at_once_and_twice_do_no_harm(partita_account: LocalAccount) -> None:
    async with connect(partita_account, keyring=KEYRING) as db:
        employees = db.table(Employee)
        await db.create_tables()
        saved = [await employees.save(person(n)) for n in range(6)]
        await asyncio.gather(
            *(employees.save(evolve(each, email=f"new{each.id}@x")) for each in saved),
            *(db.drain() for _ in range(3)),
        )
        await db.drain()

        assert len(await rows_of(db, "staffbyemail")) == 6
        assert await db.verify(Employee) == []


# ---------------------------------------------------------------------------------------------
# Declarations and states


async def test_an_index_over_stored_entities_is_not_read_before_it_is_rebuilt(
    partita_account: LocalAccount,
) -> None:
    @entity(table="cars", partition="{make}", row="car_{id:04d}")
    class Car:
        make: str
        id: int
        plate: str

    async with connect(partita_account) as db:
        cars = db.table(Car)
        await db.create_tables()
        await cars.save_all([Car(make="vw", id=n, plate=f"P{n}") for n in range(5)])

    by_plate = index(Car, row="plate_{plate}", unique=True)
    async with connect(partita_account) as db:
        cars = db.table(Car)
        await db.create_tables()
        with pytest.raises(IndexNotReadableError, match="write-only"):
            await cars.via(by_plate).get(make="vw", plate="P1")
        await cars.update(lambda old: evolve(old, plate="P9"), make="vw", id=1)
        assert await db.rebuild(by_plate) == 5

        assert (await cars.via(by_plate).get(make="vw", plate="P9")).id == 1
        assert (await cars.via(by_plate).get(make="vw", plate="P2")).id == 2
        assert await db.verify(Car) == []


def test_an_index_elsewhere_is_not_taken_for_unique_by_one_that_leaves_entities_out() -> None:
    @entity(table="cars", partition="{make}", row="car_{id:04d}")
    class Car:
        make: str
        id: int
        plate: str
        sold: bool = False

    index(Car, row="plate_{plate}", unique=True, where=lambda car: not car.sold)

    with pytest.raises(DefinitionError, match="could have the same key"):
        index(Car, table="plates", partition="{plate}", row="{make}")


async def test_the_index_of_another_type_is_refused(employees: Table[Employee]) -> None:
    with pytest.raises(UsageError, match="not an index of Employee"):
        employees.via(by_isbn)  # type: ignore[arg-type]
