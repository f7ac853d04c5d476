"""Types without a type property, in tables that hold rows of others too."""

import enum
from typing import Any

import pytest

from partita.errors import InvalidKeyError, UsageError
from partita.patterns import Database, Int32, RawEntity, Table, entity, sync
from partita.patterns.planning.plans import QueryKind
from partita.patterns.protocol.values import Value
from partita.service.hosting.in_process import LocalAccount


class Kind(enum.StrEnum):
    CAR = "car"
    VAN = "van"


@entity(table="guide", partition="{dept}", row="{id:05d}", type_property=None)
class Clerk:
    dept: str
    id: int
    first_name: str = ""
    age: int = 0


@entity(table="guide", partition="{dept}", row="Department", type_property=None)
class Office:
    dept: str
    employee_count: int = 0


@entity(table="guide", partition="{dept}", row="{kind}_{id:03d}", type_property=None)
class Vehicle:
    dept: str
    kind: Kind
    id: int


CLERKS: dict[str, dict[str, Value]] = {
    "00001": {"FirstName": "Don", "Age": Int32(34)},
    "00002": {"FirstName": "Jun", "Age": Int32(47)},
}
OFFICE: dict[str, Value] = {"EmployeeCount": Int32(2)}


async def guide(db: Database, others: dict[str, dict[str, Value]] | None = None) -> Table[Clerk]:
    """Return the clerks of the guide's first table: a department and its employees together."""
    clerks, _ = db.table(Clerk), db.table(Office)
    await db.create_tables()
    rows = {**CLERKS, "Department": OFFICE, **(others or {})}
    for row_key, properties in rows.items():
        await db.raw("guide").save(RawEntity("Sales", row_key, dict(properties)))
    return clerks


def names(found: list[Any]) -> list[str]:
    return [each.row_key if isinstance(each, RawEntity) else f"{each.id:05d}" for each in found]


async def test_the_first_table_of_the_guide_is_read_by_its_types(any_db: Database) -> None:
    clerks = await guide(any_db)
    sales = clerks.partition(dept="Sales")

    assert [each.first_name for each in await sales.all().list()] == ["Don", "Jun"]
    assert [each async for each in sales] == await sales.all().list()
    assert await sales.all().count() == 2
    assert [each.id for each in await sales.where(clerks.c.age > 40).list()] == [2]
    assert len(await clerks.all().allow_scan().list()) == 2
    assert (await any_db.table(Office).get(dept="Sales")).employee_count == 2


async def test_the_request_is_narrowed_by_what_the_template_proves(any_db: Database) -> None:
    clerks, vehicles = await guide(any_db), any_db.table(Vehicle)

    clerk_plan = clerks.partition(dept="Sales").all().plan
    vehicle_plan = vehicles.partition(dept="Sales").all().plan
    with any_db.measuring() as cost:
        await clerks.partition(dept="Sales").all().list()

    assert clerk_plan.kind is QueryKind.RANGE
    assert clerk_plan.filter_of(clerk_plan.requests[0]) == (
        "PartitionKey eq 'Sales' and RowKey ge '00000' and RowKey lt '9999:'"
    )
    assert vehicle_plan.filter_of(vehicle_plan.requests[0]) == (
        "PartitionKey eq 'Sales' and RowKey ge 'car_' and RowKey lt 'van`'"
    )
    assert (cost.requests, cost.entities) == (1, 2)


async def test_a_row_that_does_not_fit_is_refused_with_the_policies(any_db: Database) -> None:
    clerks = await guide(any_db, {"00001_2024": {"Rating": 3}})

    with pytest.raises(InvalidKeyError) as caught:
        await clerks.partition(dept="Sales").all().list()

    assert caught.value.code == "KeyNotOfTemplate"
    assert caught.value.facts["row_key"] == "00001_2024"
    assert 'misfits("skip")' in caught.value.hint


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", ["00001", "00002"]), ("raw", ["00001", "00001_2024", "00002"])],
)
async def test_the_caller_chooses_what_becomes_of_rows_that_do_not_fit(
    any_db: Database, policy: Any, expected: list[str]
) -> None:
    clerks = await guide(any_db, {"00001_2024": {"Rating": 3}})
    query = clerks.partition(dept="Sales").all().misfits(policy)

    assert names(await query.list()) == expected
    assert await query.count() == len(expected)
    assert names(await query.limit(2).list()) == expected[:2]
    found: list[Any] = []
    continuation = None
    while True:
        page = await query.page(size=1, continuation=continuation)
        found += page.entities
        continuation = page.continuation
        if continuation is None:
            break
    assert names(found) == expected


async def test_raw_rows_come_as_they_are_stored(any_db: Database) -> None:
    clerks = await guide(any_db, {"00001_2024": {"Rating": Int32(3), "Age": Int32(50)}})
    query = clerks.partition(dept="Sales").where(clerks.c.age > 40).misfits("raw")

    raws = [each for each in await query.list() if isinstance(each, RawEntity)]
    selected = [each for each in await query.select("age").list() if isinstance(each, RawEntity)]

    assert [each.properties for each in raws] == [{"Rating": 3, "Age": 50}]
    assert [each.properties for each in selected] == [{"Age": 50}]
    assert raws[0].etag


async def test_skipped_rows_are_not_deleted(any_db: Database) -> None:
    clerks = await guide(any_db, {"00001_2024": {"Rating": 3}})

    outcome = await clerks.partition(dept="Sales").all().misfits("skip").delete()

    assert len(outcome.entities) == 2
    left = [each.row_key async for each in any_db.raw("guide").query()]
    assert left == ["00001_2024", "Department"]


async def test_a_policy_that_does_not_exist_is_refused(any_db: Database) -> None:
    clerks = await guide(any_db)
    wrong: Any = "ignore"

    with pytest.raises(UsageError) as caught:
        clerks.all().misfits(wrong)

    assert caught.value.code == "UnknownOption"


def test_the_synchronous_face_has_the_policies(partita_account: LocalAccount) -> None:
    with sync.connect(partita_account) as db:
        clerks = db.table(Clerk)
        db.create_tables()
        for row_key in ("00001", "00001_2024", "Department"):
            db.raw("guide").save(RawEntity("Sales", row_key, {}))
        query = clerks.partition(dept="Sales").all()

        assert names(query.misfits("skip").list()) == ["00001"]
        assert names(query.misfits("raw").list()) == ["00001", "00001_2024"]
