"""Encrypted fields from end to end: what is stored, rotated, and refused."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any

import pytest

from partita.errors import EncryptionKeyError, SealBrokenError
from partita.patterns import (
    AesKey,
    Database,
    DefinitionError,
    Encrypted,
    Keyring,
    RawEntity,
    Table,
    connect,
    entity,
    evolve,
    index,
    list_index,
)
from partita.patterns.aio import PeriodTables
from partita.patterns.faults import Faults
from partita.patterns.following import rotate_keys as rotating
from partita.patterns.protocol.calls import Call, CreateTable, ListBlobs, WriteRows, ask
from partita.patterns.protocol.utc import utc_now
from partita.patterns.series.periods import Periods
from partita.patterns.types.decorators import entity_type
from partita.patterns.types.table_series import TableSeries
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import FakeWorld
from support.simulated import begin, ignore
from support.staff import KEYRING, Employee, anywhere, by_email, person, rows_of

SECRET = 918_273_645
OLD = AesKey("2023", bytes(32))
NEW = AesKey("2024", bytes(range(32)))


@entity(table="patients", partition="{ward}", row="patient_{id:04d}")
class Patient:
    ward: str
    id: int
    name: str = ""
    illness: Annotated[str | None, Encrypted] = None
    visits: Annotated[list[str] | None, Encrypted] = None


by_name = index(Patient, row="name_{name}", unique=True)
wards = index(Patient, table="wards", partition="{name}", row="{ward}")
names = list_index(Patient, row="list_{name}")


def patient(number: int, **other: Any) -> Patient:
    given = {"ward": "w", "id": number, "name": f"n{number}", "illness": f"illness {number}"}
    return Patient(**{**given, **other})


async def everything(db: Database, *tables: str) -> str:
    """Return all that is stored in tables, with bytes as they are and as text."""
    return repr([(row.row_key, row.properties) for t in tables for row in await rows_of(db, t)])


def traces(secret: int) -> list[str]:
    """Return what would be seen of a number in the clear, in any coding."""
    raw = secret.to_bytes(8, "big")
    return [str(secret), repr(raw)[2:-1], repr(raw[::-1])[2:-1]]


# ---------------------------------------------------------------------------------------------
# At rest


async def test_a_salary_is_nowhere_in_the_clear(any_db: Database) -> None:
    employees = any_db.table(Employee)
    saved = await employees.save(person(1, salary=SECRET, photo=b"face"))
    saved = await employees.save(evolve(saved, email="new@contoso.com"))
    saved = await employees.patch(saved, age=50)
    saved = await employees.move(saved, id=2)
    saved = await employees.move(saved, dept="Marketing")
    await employees.update(lambda old: evolve(old, age=51), dept="Marketing", id=2)
    await employees.increment(saved, "messages", 17)
    await any_db.drain()

    stored = await everything(any_db, "staff", "staffbyemail")

    assert (await employees.get(dept="Marketing", id=2)).salary == SECRET
    assert [trace for trace in traces(SECRET) if trace in stored] == []
    sealed = [row for row in await rows_of(any_db) if "_PartitaEnc" in row.properties]
    assert [row.row_key for row in sealed] == ["email_new@contoso.com", "emp_000002"]


async def test_nothing_in_the_clear_leaves_the_process(
    db: Database, employees: Table[Employee], partita_account: LocalAccount
) -> None:
    bodies: list[bytes] = []

    async def around(_: Any, request: Any, respond: Any) -> Any:
        bodies.append(bytes(request.body or b""))
        return await respond(request)

    partita_account.around = around
    saved = await employees.save(person(1, salary=SECRET))
    await employees.save(evolve(saved, salary=SECRET + 1))
    await db.drain()

    assert bodies
    for trace in traces(SECRET) + traces(SECRET + 1):
        assert not any(trace.encode() in body for body in bodies)


async def test_copies_are_sealed_on_their_own(db: Database, employees: Table[Employee]) -> None:
    await employees.save(person(1, salary=SECRET))
    await db.drain()

    rows = [*await rows_of(db), *await rows_of(db, "staffbyemail")]
    sealed = [row.properties["Salary"] for row in rows if "Salary" in row.properties]

    assert len(sealed) == 3
    assert len({bytes(value) for value in sealed if isinstance(value, bytes)}) == 3
    assert (await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")).salary
    found = await employees.via(anywhere).get(dept="Sales", email="e1@contoso.com")
    assert found.salary == SECRET


async def test_none_is_not_sealed(db: Database, employees: Table[Employee]) -> None:
    saved = await employees.save(person(1, salary=SECRET))

    await employees.save(evolve(saved, salary=None))

    [row] = await rows_of(db, filter_text="RowKey eq 'emp_000001'")
    assert "Salary" not in row.properties
    assert "_PartitaEnc" not in row.properties
    assert (await employees.get(dept="Sales", id=1)).salary is None


async def test_every_write_has_a_key_of_its_own(db: Database, employees: Table[Employee]) -> None:
    saved = await employees.save(person(1, salary=SECRET))
    [before] = await rows_of(db, filter_text="RowKey eq 'emp_000001'")
    await employees.save(evolve(saved, age=9))
    [after] = await rows_of(db, filter_text="RowKey eq 'emp_000001'")

    assert before.properties["Salary"] != after.properties["Salary"]
    assert before.properties["_PartitaEnc"] != after.properties["_PartitaEnc"]


# ---------------------------------------------------------------------------------------------
# A resolver


async def test_a_resolver_is_asked_about_the_entity_for_its_copies_too(
    any_db: Database,
) -> None:
    @entity(
        table="vault",
        partition="{room}",
        row="box_{id:04d}",
        encrypt=lambda _, row, name: row.startswith("box_") and name == "Content",
    )
    class Box:
        room: str
        id: int
        label: str
        content: str = ""

    by_label = index(Box, row="label_{label}", unique=True)
    labels = index(Box, table="labels", partition="{label}", row="{room}")

    boxes = any_db.table(Box)
    await any_db.create_tables()
    saved = await boxes.save(Box(room="r", id=1, label="a", content="plainly seen"))
    await boxes.patch(saved, label="b")
    await any_db.drain()

    assert "plainly seen" not in await everything(any_db, "vault", "labels")
    assert (await boxes.via(by_label).get(room="r", label="b")).content == "plainly seen"
    assert (await boxes.via(labels).get(room="r", label="b")).content == "plainly seen"
    assert await any_db.verify(Box) == []


async def test_a_resolver_that_seals_everything_leaves_the_library_its_own(
    any_db: Database,
) -> None:
    @entity(table="vault", partition="{room}", row="sack_{id:04d}", encrypt=lambda *_: True)
    class Sack:
        room: str
        id: int
        label: str
        weight: int = 0

    by_number = index(Sack, row="no_{id:04d}")
    listed = list_index(Sack, row="list_{id:04d}", store="partition")
    numbers = index(Sack, table="numbers", partition="{id:04d}", row="{room}")

    sacks = any_db.table(Sack)
    await any_db.create_tables()
    saved = await sacks.save(Sack(room="r", id=1, label="a", weight=SECRET))
    saved = await sacks.patch(saved, label="seen plainly")
    await sacks.increment(saved, "weight")
    moved = await sacks.move(await sacks.get(room="r", id=1), room="s")
    await any_db.drain()

    assert moved == Sack(room="s", id=1, label="seen plainly", weight=SECRET + 1)
    assert await sacks.via(by_number).get(room="s", id=1) == moved
    assert await sacks.via(numbers).get(room="s", id=1) == moved
    assert await sacks.via(listed).range(room="s", id=1).list() == [moved]
    stored = await everything(any_db, "vault", "numbers")
    hidden = ["seen plainly", *traces(SECRET), *traces(SECRET + 1)]
    assert [each for each in hidden if each in stored] == []
    assert await any_db.verify(Sack) == []


# ---------------------------------------------------------------------------------------------
# Keys


Ward = Callable[[Keyring | None], Awaitable[Database]]


@pytest.fixture
async def ward(partita_account: LocalAccount) -> AsyncIterator[Ward]:
    """Return what opens the account of the test with a keyring."""
    async with AsyncExitStack() as stack:

        async def open_with(keyring: Keyring | None) -> Database:
            db = await stack.enter_async_context(connect(partita_account, keyring=keyring))
            db.table(Patient)
            await db.create_tables()
            return db

        yield open_with


def kids(rows: list[RawEntity]) -> set[str]:
    return {
        str(row.properties["_PartitaEnc"]).split('"kid":"')[1][:4]
        for row in rows
        if "_PartitaEnc" in row.properties
    }


async def illnesses(db: Database) -> dict[str, Any]:
    """Return the sealed values of a ward as they are stored."""
    return {row.row_key: row.properties.get("Illness") for row in await rows_of(db, "patients")}


async def test_rotation_wraps_anew_and_leaves_what_is_sealed(
    ward: Ward,
) -> None:
    before = await ward(Keyring([OLD]))
    await before.table(Patient).save_all([patient(n) for n in range(20)])
    await before.drain()
    sealed = {
        row.row_key: row.properties.get("Illness") for row in await rows_of(before, "patients")
    }
    both = await ward(Keyring([OLD, NEW], "2024"))
    done: list[int] = []

    assert await both.rotate(Patient, progress=done.append) == 60
    assert done[-1] == 60
    assert await both.rotate(Patient) == 0

    rows = await rows_of(both, "patients")
    assert kids([*rows, *await rows_of(both, "wards")]) == {"2024"}
    assert await illnesses(both) == sealed
    after = await ward(Keyring([NEW]))
    found = await after.table(Patient).partition(ward="w").all().list()
    assert [each.illness for each in found] == [f"illness {n}" for n in range(20)]
    assert await after.verify(Patient) == []
    with pytest.raises(EncryptionKeyError, match="The key '2024' is not in the keyring"):
        await before.table(Patient).get(ward="w", id=1)


@entity(table="visits", partition="{ward}", row="{day:asc}_{number:04d}", allow_hot=True)
class Visit:
    ward: str
    day: dt.date
    number: int
    notes: Annotated[str, Encrypted] = ""


SERIES = TableSeries("visits", "day", keep=5)
DAY = dt.timedelta(days=1)


def visits_of(db: Database) -> PeriodTables[Visit]:
    return db.periods(Visit, SERIES, at="day")


@pytest.mark.parametrize("way", ["by the type", "by its periods"])
async def test_rotation_reaches_the_tables_of_all_periods(ward: Ward, way: str) -> None:
    before = await ward(Keyring([OLD]))
    today = utc_now(before.context.clock).date()
    written = [Visit(ward="w", day=today - n * DAY, number=n, notes=f"note {n}") for n in range(3)]
    await visits_of(before).save_all(written)
    await before.run(ask(CreateTable("visitsofnobody")))  # begins like a table of the series
    both = await ward(Keyring([OLD, NEW], "2024"))
    periods = visits_of(both)

    rotate = partial(both.rotate, Visit) if way == "by the type" else periods.rotate
    done: list[int] = []
    assert await rotate(progress=done.append) == 3
    assert done == [1, 2, 3]
    assert await rotate() == 0

    after = visits_of(await ward(Keyring([NEW])))
    found = [each async for each in after.between(today - 2 * DAY, today, ward="w")]
    assert sorted(each.notes for each in found) == ["note 0", "note 1", "note 2"]
    with pytest.raises(EncryptionKeyError):
        await visits_of(before).get(ward="w", day=today, number=0)


async def test_a_series_is_still_known_after_a_database_was_opened_again(ward: Ward) -> None:
    before = await ward(Keyring([OLD]))
    today = utc_now(before.context.clock).date()
    await visits_of(before).save(Visit(ward="w", day=today, number=1))
    both = await ward(Keyring([OLD, NEW], "2024"))
    visits_of(both)
    await both.close()
    await both.open()

    assert await both.rotate(Visit) == 1


def test_rotation_goes_on_where_a_table_of_a_period_is_dropped_meanwhile() -> None:
    world = FakeWorld()
    model = entity_type(Visit)
    old = begin(world, models=(), keyring=Keyring([OLD]))
    today = utc_now(world.clock).date()
    periods = Periods(model, SERIES, "day")
    for number in range(3):
        visit = Visit(ward="w", day=today - number * DAY, number=number, notes="x")
        world.run(periods.save(old, visit))
    dropped = SERIES.table_for(today - DAY)
    context = begin(world, models=(), keyring=Keyring([OLD, NEW], "2024"))

    def drop(call: Call[Any]) -> None:
        if isinstance(call, WriteRows) and call.table == dropped:
            world.tables.pop(dropped, None)

    world.before = drop

    assert world.run(rotating.rotate_series(context, SERIES, ignore)) == 2


async def test_rotation_under_writers_loses_nothing(ward: Ward) -> None:
    writer = await ward(Keyring([OLD, NEW], "2023"))
    patients = writer.table(Patient)
    await patients.save_all([patient(n, visits=[]) for n in range(8)])
    await writer.drain()
    rotator = await ward(Keyring([OLD, NEW], "2024"))

    async def visit(number: int) -> None:
        for day in range(6):
            await patients.update(
                lambda old, day=day: evolve(  # type: ignore[misc]
                    old, visits=[*(old.visits or []), f"day {day}"]
                ),
                ward="w",
                id=number,
            )

    async def rotate() -> None:
        for _ in range(6):
            await rotator.rotate(Patient)

    await asyncio.gather(*(visit(number) for number in range(4)), rotate())
    await writer.drain()
    await rotator.rotate(Patient)

    after = await ward(Keyring([NEW]))
    found = await after.table(Patient).partition(ward="w").all().list()
    whole = [f"day {day}" for day in range(6)]
    assert [each.visits for each in found] == [whole] * 4 + [[]] * 4
    assert await after.verify(Patient) == []


async def test_a_wrong_keyring_opens_nothing_and_changes_nothing(
    ward: Ward,
) -> None:
    right = await ward(Keyring([OLD]))
    await right.table(Patient).save(patient(1))
    await right.drain()
    before = await rows_of(right, "patients")
    impostor = AesKey("2023", bytes(range(1, 33)))

    for keyring, kind in (
        (Keyring([NEW]), EncryptionKeyError),
        (Keyring([impostor]), SealBrokenError),
        (None, EncryptionKeyError),
    ):
        wrong = await ward(keyring)
        patients = wrong.table(Patient)
        for attempt in (
            patients.get(ward="w", id=1),
            patients.via(by_name).get(ward="w", name="n1"),
            patients.partition(ward="w").all().list(),
            patients.update(lambda old: evolve(old, name="x"), ward="w", id=1),
            patients.upsert(patient(1, illness=None)),
            patients.delete_if_exists(ward="w", id=1),
        ):
            with pytest.raises(kind):
                await attempt
    assert await rows_of(right, "patients") == before


async def test_what_is_not_sealed_is_read_without_a_keyring(
    ward: Ward,
) -> None:
    right = await ward(Keyring([OLD]))
    await right.table(Patient).save(patient(1))
    bare = (await ward(None)).table(Patient).partition(ward="w").all()

    assert [each.name for each in await bare.select("name").list()] == ["n1"]
    assert await bare.count() == 1
    with pytest.raises(EncryptionKeyError):
        await bare.select("illness").list()


async def test_tampering_is_seen(ward: Ward) -> None:
    db = await ward(Keyring([OLD]))
    patients, raw = db.table(Patient), db.raw("patients")
    await patients.save_all([patient(1), patient(2)])
    one, two = [await raw.get("w", f"patient_000{n}") for n in (1, 2)]

    async def change(**properties: Any) -> None:
        there = await raw.get("w", "patient_0001")
        kept = {**one.properties, **properties}
        given = {name: value for name, value in kept.items() if value is not None}
        await raw.save(RawEntity("w", "patient_0001", given, there.etag))

    sealed = one.properties["Illness"]
    assert isinstance(sealed, bytes)
    flipped = bytes([*sealed[:-1], sealed[-1] ^ 1])
    for tampered in (
        {"Illness": flipped},
        {"Illness": two.properties["Illness"]},
        {"Illness": two.properties["Illness"], "_PartitaEnc": two.properties["_PartitaEnc"]},
        {"Illness": "in the clear"},
        {"Illness": "in the clear", "_PartitaEnc": None},
        {"Illness": None},
        {"_PartitaEnc": "{}"},
    ):
        await change(**tampered)
        with pytest.raises(SealBrokenError):
            await patients.get(ward="w", id=1)
    await change()

    assert (await patients.get(ward="w", id=1)).illness == "illness 1"


async def test_fields_that_were_stored_before_they_were_declared_are_read_by_permission(
    partita_account: LocalAccount, ward: Ward
) -> None:
    db = await ward(Keyring([OLD]))
    properties = {"EntityType": "Patient", "Name": "n", "Illness": "in the clear"}
    await db.raw("patients").save(RawEntity("w", "patient_0001", dict(properties)))

    with pytest.raises(SealBrokenError, match="is stored unencrypted"):
        await db.table(Patient).get(ward="w", id=1)
    async with connect(partita_account, keyring=Keyring([OLD]), accepts_unsealed=True) as other:
        patients = other.table(Patient)
        await other.create_tables()
        await patients.save(await patients.get(ward="w", id=1), force=True)

    assert (await db.table(Patient).get(ward="w", id=1)).illness == "in the clear"
    assert "in the clear" not in await everything(db, "patients")


async def test_encrypted_fields_are_neither_filtered_nor_indexed() -> None:
    with pytest.raises(DefinitionError, match="encrypted"):
        index(Patient, row="illness_{illness:esc}_{id:04d}")
    with pytest.raises(DefinitionError, match="encrypted"):
        list_index(Patient, row="illness_{illness}")


async def test_a_blob_says_nothing_of_what_is_encrypted(
    db: Database, employees: Table[Employee], partita_faults: Faults
) -> None:
    await employees.save(person(1, salary=SECRET, photo=b"face"))

    page = await db.run(ask(ListBlobs("partita-large")))

    assert [trace for blob in page.blobs for trace in traces(SECRET) if trace in repr(blob)] == []
    assert [
        trace for line in partita_faults.requests for trace in traces(SECRET) if trace in line
    ] == []


async def test_an_entity_without_secrets_needs_no_keyring(partita_account: LocalAccount) -> None:
    async with connect(partita_account) as db:
        employees = db.table(Employee)
        await db.create_tables()
        await employees.save(person(1))
        with pytest.raises(EncryptionKeyError) as refused:
            await employees.save(person(2, salary=1))

    assert "keyring=" in refused.value.hint
    async with connect(partita_account, keyring=KEYRING) as db:
        assert (await db.table(Employee).get(dept="Sales", id=1)).salary is None
