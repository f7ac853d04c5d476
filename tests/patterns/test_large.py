"""Large values in blobs: written before the entity, verified, removed after it."""

import asyncio
from typing import Annotated, Any

import pytest

from partita.clock import ManualClock
from partita.errors import BlobMissingError, ChecksumError, InvalidPropertyError
from partita.patterns import (
    Database,
    Encrypted,
    ETagMismatchError,
    InBlob,
    Table,
    UniqueViolationError,
    connect,
    entity,
    evolve,
    index,
)
from partita.patterns.faults import Faults
from partita.patterns.protocol.calls import DeleteBlob, GetBlob, ListBlobs, PutBlob, ask
from partita.patterns.protocol.utc import utc_now
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from partita.ticks import TICKS_PER_SECOND
from support.staff import KEYRING, Employee, by_email, person, rows_of

PHOTO = bytes(range(256)) * 400


@entity(table="papers", partition="{shelf}", row="{title}")
class Paper:
    shelf: str
    title: str
    text: Annotated[str, InBlob] = ""
    scan: Annotated[bytes | None, InBlob("scans")] = None
    figures: Annotated[dict[str, list[float]] | None, InBlob] = None
    secret: Annotated[str | None, Encrypted] = None


in_order = index(Paper, table="papersbytitle", partition="{title}", row="{shelf}")


@pytest.fixture
async def papers(db: Database) -> Table[Paper]:
    table = db.table(Paper)
    await db.create_tables()
    return table


def paper(**other: Any) -> Paper:
    return Paper(**{"shelf": "A", "title": "One", **other})


async def blobs(db: Database, container: str = "partita-large") -> list[str]:
    page = await db.run(ask(ListBlobs(container)))
    return [blob.name for blob in page.blobs]


# ---------------------------------------------------------------------------------------------
# Values


async def test_a_photo_lies_in_a_blob_and_the_entity_names_it(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1, photo=PHOTO))

    assert (await employees.get(dept="Sales", id=1)).photo == PHOTO
    [row] = await rows_of(any_db, filter_text="RowKey eq 'emp_000001'")
    assert isinstance(row.properties["Photo"], str)
    assert '"length":102400' in row.properties["Photo"]
    [name] = await blobs(any_db)
    assert name.startswith("staff/Sales/emp_000001/Photo/")


async def test_texts_bytes_and_nested_values_come_back(papers: Table[Paper]) -> None:
    figures = {"a": [1.0, 2.5], "ü": []}
    whole = paper(text="ä" * 70_000, scan=b"", figures=figures, secret="s")

    await papers.save(whole)

    assert await papers.get(shelf="A", title="One") == whole


async def test_nothing_is_not_an_empty_value(db: Database, papers: Table[Paper]) -> None:
    await papers.save(paper(title="empty", scan=b""))
    await papers.save(paper(title="none", scan=None))

    assert (await papers.get(shelf="A", title="empty")).scan == b""
    assert (await papers.get(shelf="A", title="none")).scan is None
    assert len(await blobs(db, "scans")) == 1


@pytest.mark.parametrize("title", [".", "..", "a b", "ü/x".replace("/", "|"), "x" * 200, "é" * 200])
async def test_hostile_keys_make_legal_names(
    db: Database, papers: Table[Paper], title: str
) -> None:
    saved = await papers.save(paper(title=title, scan=b"1"))
    saved = await papers.save(evolve(saved, scan=b"2"))
    await db.drain()

    assert (await papers.get(shelf="A", title=title)).scan == b"2"
    assert len(await blobs(db, "scans")) == 1
    await papers.delete(saved)
    await db.drain()
    assert await blobs(db, "scans") == []


# ---------------------------------------------------------------------------------------------
# Hashes


async def test_a_blob_that_was_changed_is_not_handed_out(
    db: Database, papers: Table[Paper]
) -> None:
    await papers.save(paper(scan=b"original"))
    [name] = await blobs(db, "scans")
    await db.run(ask(PutBlob("scans", name, b"tampered", {})))

    with pytest.raises(ChecksumError, match="not what was written"):
        await papers.get(shelf="A", title="One")


async def test_a_blob_that_is_gone_is_told(db: Database, papers: Table[Paper]) -> None:
    await papers.save(paper(scan=b"original"))
    [name] = await blobs(db, "scans")
    await db.run(ask(DeleteBlob("scans", name)))

    with pytest.raises(BlobMissingError) as refused:
        await papers.get(shelf="A", title="One")

    assert refused.value.facts["blob"] == name


async def test_a_read_that_met_a_replacement_is_made_again(
    partita_account: LocalAccount, db: Database, papers: Table[Paper]
) -> None:
    """The reader gets the entity, its blob is replaced and removed, then it asks for the blob."""
    await papers.save(paper(scan=b"old"))
    loop = asyncio.get_running_loop()
    replaced: list[str] = []

    async def replace() -> None:
        await papers.update(lambda old: evolve(old, scan=b"new"), shelf="A", title="One")
        await db.drain()

    async def around(_: ServiceKind, request: Request, respond: Respond) -> Response:
        if request.method == "GET" and "/scans/" in request.path and not replaced:
            replaced.append(request.path)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(replace(), loop))
        return await respond(request)

    partita_account.around = around
    async with connect(partita_account, keyring=KEYRING) as reader:
        found = await reader.table(Paper).get(shelf="A", title="One")

    assert len(replaced) == 1
    assert found.scan == b"new"


# ---------------------------------------------------------------------------------------------
# Replacing and deleting


async def test_a_replaced_value_is_removed_after_a_drain(any_db: Database) -> None:
    papers = any_db.table(Paper)
    await any_db.create_tables()
    saved = await papers.save(paper(scan=b"old"))
    old = await blobs(any_db, "scans")

    saved = await papers.save(evolve(saved, scan=b"new"))
    assert len(await blobs(any_db, "scans")) == 2
    await any_db.drain()

    [new] = await blobs(any_db, "scans")
    assert new not in old
    assert (await papers.get(shelf="A", title="One")).scan == b"new"
    saved = await papers.save(evolve(saved, scan=None))
    await any_db.drain()
    assert await blobs(any_db, "scans") == []


async def test_a_value_that_stays_is_not_written_again(
    papers: Table[Paper], partita_faults: Faults
) -> None:
    saved = await papers.save(paper(scan=PHOTO, text="text"))
    before = len(partita_faults.requests)

    saved = await papers.save(evolve(saved, secret="changed"))
    loaded = await papers.get(shelf="A", title="One")
    await papers.patch(loaded, figures={"a": [1.0]})

    puts = [line for line in partita_faults.requests[before:] if line.startswith("PUT")]
    assert len([line for line in puts if "/partita-large/" in line]) == 1
    assert [line for line in puts if "/scans/" in line] == []


async def test_a_deleted_entity_takes_its_blobs_along_after_a_drain(any_db: Database) -> None:
    papers = any_db.table(Paper)
    await any_db.create_tables()
    saved = await papers.save(paper(scan=b"scan"))

    await papers.delete(saved)
    assert len(await blobs(any_db, "scans")) == 1
    await any_db.drain()

    assert await blobs(any_db, "scans") == []


async def test_an_entity_that_comes_back_keeps_its_value(any_db: Database) -> None:
    papers = any_db.table(Paper)
    await any_db.create_tables()
    saved = await papers.save(paper(scan=b"same"))

    await papers.delete(saved)
    await papers.save(paper(scan=b"same"))
    await any_db.drain()

    assert (await papers.get(shelf="A", title="One")).scan == b"same"
    assert len(await blobs(any_db, "scans")) == 1


async def test_moves_carry_the_value_along(db: Database, papers: Table[Paper]) -> None:
    saved = await papers.save(paper(scan=PHOTO))

    moved = await papers.move(saved, title="Two")
    there = await papers.move(moved, shelf="B")
    await db.drain()

    assert there.scan == PHOTO
    assert (await papers.get(shelf="B", title="Two")).scan == PHOTO
    assert len(await blobs(db, "scans")) == 1


async def test_writers_at_once_leave_the_value_of_one(any_db: Database) -> None:
    papers = any_db.table(Paper)
    await any_db.create_tables()
    saved = await papers.save(paper())

    outcomes = await asyncio.gather(
        *(papers.save(evolve(saved, scan=bytes([n]) * 10)) for n in range(6)),
        return_exceptions=True,
    )
    await any_db.drain()

    assert sum(isinstance(each, ETagMismatchError) for each in outcomes) == 5
    found = await papers.get(shelf="A", title="One")
    [winner] = [each for each in outcomes if isinstance(each, Paper)]
    assert found.scan == winner.scan


# ---------------------------------------------------------------------------------------------
# Indexes


async def test_an_entity_is_read_whole_by_its_indexes(db: Database, papers: Table[Paper]) -> None:
    await papers.save(paper(scan=PHOTO))
    await papers.save(paper(title="Two"))
    await db.drain()

    assert (await papers.via(in_order).get(title="One", shelf="A")).scan == PHOTO
    assert (await papers.via(in_order).get(title="Two", shelf="A")).scan is None
    found = await papers.partition(shelf="A").all().list()
    assert [each.scan for each in found] == [PHOTO, None]


async def test_a_value_in_a_blob_can_be_changed_through_a_copy(
    db: Database, employees: Table[Employee]
) -> None:
    await employees.save(person(1, photo=b"old"))
    found = await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")

    await employees.save(evolve(found, photo=b"new"))
    await db.drain()

    assert (await employees.get(dept="Sales", id=1)).photo == b"new"
    assert await db.verify(Employee) == []


# ---------------------------------------------------------------------------------------------
# Orphans


async def test_orphans_are_removed_after_the_grace_only(partita_account: LocalAccount) -> None:
    clock = ManualClock()
    async with connect(partita_account, keyring=KEYRING, clock=clock, blob_grace=600) as db:
        employees = db.table(Employee)
        await db.create_tables()
        await employees.save(person(1, photo=b"kept"))
        with pytest.raises(UniqueViolationError):
            await employees.save(person(2, email="e1@contoso.com", photo=b"orphan"))
        assert len(await blobs(db)) == 2
        page = await db.run(ask(ListBlobs("partita-large")))
        written = max(blob.modified for blob in page.blobs)
        clock.advance((written - utc_now(clock)).total_seconds() + 599)

        assert await db.collect_blobs() == 0
        clock.advance(2)
        assert await db.collect_blobs() == 1

        [left] = await blobs(db)
        assert "emp_000001" in left
        assert (await employees.get(dept="Sales", id=1)).photo == b"kept"
        assert clock.ticks() / TICKS_PER_SECOND > written.timestamp()


async def test_collecting_leaves_the_blobs_of_strangers(partita_account: LocalAccount) -> None:
    clock = ManualClock()
    clock.advance(10 * 365 * 86_400)
    async with connect(partita_account, keyring=KEYRING, clock=clock) as db:
        papers = db.table(Paper)
        await db.create_tables()
        await papers.save(paper(text="kept", scan=b"kept"))
        await db.run(ask(PutBlob("partita-large", "somebody/else.txt", b"theirs", {})))

        assert await db.collect_blobs() == 0
        assert await db.collect_blobs("scans") == 0
        assert await db.run(ask(GetBlob("partita-large", "somebody/else.txt"))) is not None
        assert (await papers.get(shelf="A", title="One")).text == "kept"


async def test_a_property_that_holds_no_reference_is_told(
    db: Database, papers: Table[Paper]
) -> None:
    await papers.save(paper())
    raw = await db.raw("papers").get("A", "One")
    raw.properties["Scan"] = "plain text"
    await db.raw("papers").save(raw)

    with pytest.raises(InvalidPropertyError, match="not a reference"):
        await papers.get(shelf="A", title="One")
