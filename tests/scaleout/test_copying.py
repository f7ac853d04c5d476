import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest

from partita.blobs.rules.model import BlobName, LeaseRequest
from partita.blobs.rules.stored_format import decode_blob
from partita.clock import ManualClock, SystemClock
from partita.errors import ConfigurationError, ConflictError, LimitExceededError
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.copying.copier import Report
from partita.scaleout.copying.parts import CopyPart
from partita.scaleout.copying.postgres_target import PostgresTarget
from partita.storage.durability import Durability
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert, Replace
from partita.ticks import TICKS_PER_SECOND
from support.copying import Place, copy
from support.object_stores import new_bucket, s3_server
from support.repeats import sample_pairs
from support.whole_accounts import (
    LARGE,
    LEASE,
    Engines,
    described,
    fill,
    folder_account,
    opened,
)


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(folder=str(tmp_path / "one"))


@pytest.fixture
def database() -> Place:
    return Place.in_database()


@pytest.fixture
def back(tmp_path: Path) -> Place:
    return Place(folder=str(tmp_path / "back"))


async def run(place: Place, statement: str, *values: object) -> list[Any]:
    link = await Connector(Location.parse(place.url), Durability.FAST).connect()
    rows: list[Any] = await link.connection.fetch(statement, *values)
    await link.close()
    return rows


def tables_and_queues(report: Report) -> dict[str, tuple[int, str]]:
    return {
        f"{part.kind} {part.name}": (part.rows, part.digest)
        for part in report.parts
        if part.kind in ("table", "queue", "settings")
    }


@pytest.fixture
async def filled(folder: Place) -> AsyncIterator[Engines]:
    """An account that stays open: copies read it beside its server."""
    async with opened(folder) as engines:
        await fill(engines)
        yield engines


async def test_a_round_trip_through_postgresql_changes_nothing(
    folder: Place, database: Place, back: Place
) -> None:
    async with opened(folder) as engines:
        received = await fill(engines)
        before = await described(engines)

    there = await copy(folder.source(), database.target())
    async with opened(database) as engines:
        in_postgres = await described(engines)
    again = await copy(database.source(), back.target())

    assert [*there.differences, *again.differences] == []
    assert in_postgres == before
    assert tables_and_queues(there) == tables_and_queues(again)
    async with opened(back) as engines:
        assert await described(engines) == before
        for message in received:
            await engines.queues.delete("jobs", message.id, message.receipt)


async def test_what_is_kept_of_deleted_blobs_and_containers_can_be_restored_in_a_copy(
    folder: Place, database: Place
) -> None:
    async with opened(folder) as engines:
        await fill(engines)

    await copy(folder.source(), database.target())

    async with opened(database) as engines:
        await engines.blobs.undelete_blob(BlobName("photos", "deleted"))
        listing = await engines.blobs.containers.list_containers(with_deleted=True)
        [version] = [each.version for each in listing.items if each.name == "deleted"]
        assert version is not None
        await engines.blobs.containers.restore_container("deleted", version)
        opened_blob = await engines.blobs.open_blob(BlobName("photos", "deleted"))
        assert b"".join([part async for part in opened_blob.content]) == LARGE + b"deleted"
        await opened_blob.content.close()
        found = await engines.blobs.searches.find_blobs("tag = 'value'", container="deleted")
        assert [each.name for each in found.items] == ["kept"]


@pytest.mark.proof
async def test_a_copy_of_postgresql_has_everything(database: Place, back: Place) -> None:
    async with opened(database) as engines:
        received = await fill(engines)
        before = await described(engines)

    report = await copy(database.source(), back.target())

    assert not report.differences
    async with opened(back) as engines:
        assert await described(engines) == before
        for message in received:
            await engines.queues.delete("jobs", message.id, message.receipt)


@pytest.mark.proof
async def test_a_copied_account_can_be_written(folder: Place, database: Place) -> None:
    async with opened(folder) as engines:
        received = await fill(engines)
    await copy(folder.source(), database.target())
    key = EntityKey("a", "0001")

    async with opened(database) as engines:
        old = await engines.tables.get("Orders", key)
        await engines.tables.run("Orders", EntityGroup([Replace(key, {"n": 1}, old.etag)]))
        new = await engines.tables.get("Orders", key)
        message = await engines.queues.put("jobs", "new")
        for each in received:
            await engines.queues.delete("jobs", each.id, each.receipt)
        await engines.blobs.put_blob(BlobName("photos", "new"), LARGE + b"new")

    assert new.ticks > old.ticks
    assert message.id not in {each.id for each in received}


@pytest.mark.proof
async def test_stamps_of_a_copy_are_later_than_those_of_a_source_that_is_ahead(
    folder: Place, database: Place, back: Place
) -> None:
    ahead = ManualClock(SystemClock().ticks() + 3600 * TICKS_PER_SECOND)
    key = EntityKey("a", "b")
    async with folder_account(Path(folder.folder), ahead) as engines:
        await engines.tables.create_table("Orders")
        await engines.tables.run("Orders", EntityGroup([Insert(key, {})]))
        old = await engines.tables.get("Orders", key)
    await copy(folder.source(), database.target())
    await copy(database.source(), back.target())

    for place in (database, back):
        async with opened(place) as engines:
            assert await engines.tables.get("Orders", key) == old
            await engines.tables.run("Orders", EntityGroup([Replace(key, {})]))
            assert (await engines.tables.get("Orders", key)).ticks > old.ticks


@pytest.mark.usefixtures("filled")
async def test_a_target_with_other_data_is_refused(
    folder: Place, database: Place, back: Place
) -> None:
    for place in (database, back):
        async with opened(place) as engines:
            await engines.queues.create_queue("other", {})

        with pytest.raises(ConfigurationError) as refused:
            await copy(folder.source(), place.target())

        assert refused.value.code == "CopyTargetNotEmpty"
        async with opened(place) as engines:
            assert (await engines.queues.get_queue("other")).name == "other"


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_an_empty_account_can_become_a_copy(
    folder: Place, database: Place, back: Place
) -> None:
    for place in (database, back):
        async with opened(place):
            pass

        report = await copy(folder.source(), place.target())

        assert not report.differences


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_a_target_that_front_ends_may_serve_is_refused(
    folder: Place, database: Place
) -> None:
    async with opened(database):
        with pytest.raises(ConfigurationError) as refused:
            await copy(folder.source(), database.target())

    assert refused.value.code == "CopyTargetServed"


async def test_what_changed_in_the_source_is_found_and_copied_again(
    filled: Engines, folder: Place, database: Place, back: Place
) -> None:
    for place in (database, back):
        target = place.target()
        completed = target.complete
        changed: list[CopyPart] = []

        async def complete(part: CopyPart) -> None:
            await completed(part)  # noqa: B023 - called in this round only
            if part.kind == "table" and not changed:  # noqa: B023
                changed.append(part)  # noqa: B023
                await _change(filled, place.account or "back")  # noqa: B023

        target.complete = complete  # type: ignore[method-assign]
        first = await copy(folder.source(), target)
        with pytest.raises(ConfigurationError) as refused:
            async with opened(place):
                pass
        second = await copy(folder.source(), place.target())

        assert first.is_source_changed
        assert any("table 'orders'" in each for each in first.differences)
        assert any("queue 'jobs'" in each for each in first.differences)
        assert refused.value.code == "CopyIncomplete"
        assert second.differences == []
        expected = await described(filled)
        async with opened(place) as engines:
            assert await described(engines) == expected


async def _change(engines: Engines, name: str) -> None:
    """Write something of every kind while a copy is running."""
    await engines.tables.run("Orders", EntityGroup([Insert(EntityKey("a", name), {})]))
    await engines.tables.create_table(f"New{name}")
    await engines.queues.put("jobs", name)
    await engines.queues.create_queue(f"new-{name}", {})
    await engines.blobs.put_blob(BlobName("photos", name), LARGE + name.encode())
    await engines.blobs.put_blob(BlobName("photos", "small"), name.encode())
    await engines.blobs.containers.create_container(f"new-{name}")


OF_COPY = (
    "IN (SELECT p.target FROM partita.copy_part p JOIN partita.account a ON a.id = p.account_id"
    " WHERE a.name = %s AND p.kind = '{}')"
)
OF_COPIED_IDS = (
    "IN (SELECT m.target FROM partita.copy_id m JOIN partita.account a ON a.id = m.account_id"
    " WHERE a.name = %s AND m.kind = 'e')"
)


@pytest.mark.parametrize(
    ("change", "where"),
    sample_pairs(
        [
            (
                (
                    "UPDATE partita.entity SET document = set_byte(document, 40, 63) WHERE pk = 'a'"
                    f" AND rk = '0005' AND tid {OF_COPY.format('table')}"
                ),
                "table 'orders': differs at EntityDamaged 'a', '0005'",
            ),
            (
                f"DELETE FROM partita.entity WHERE rk = '0005' AND tid {OF_COPY.format('table')}",
                "table 'orders': differs at '', '0005'",
            ),
            (
                (
                    "UPDATE partita.message SET dequeue_count = 9 WHERE dequeue_count = 0"
                    f" AND queue_id {OF_COPY.format('queue')}"
                ),
                "queue 'jobs': differs at ",
            ),
            (
                (
                    "UPDATE partita.extent SET bytes = 'Small content'"
                    f" WHERE bytes = 'small content' AND id {OF_COPIED_IDS}"
                ),
                "contents of blobs: differs at blob 'photos/small'",
            ),
            (
                (
                    "UPDATE partita.blob SET snapshot = snapshot - 1 WHERE name = 'small'"
                    f" AND container {OF_COPY.format('container')}"
                ),
                "container 'photos': differs at 'small', ",
            ),
        ],
        step=5,
    ),
)
async def test_a_changed_byte_in_postgresql_is_found_and_copied_again(
    filled: Engines, folder: Place, database: Place, change: str, where: str
) -> None:
    def do_change() -> None:
        with psycopg.connect(database.url) as connection:
            assert connection.execute(change, (database.account,)).rowcount

    first = await copy(folder.source(), database.target(), do_change)
    with pytest.raises(ConfigurationError) as refused:
        async with opened(database):
            pass
    second = await copy(folder.source(), database.target())

    assert [each[: len(where)] for each in first.differences] == [where]
    assert refused.value.code == "CopyIncomplete"
    assert second.differences == []
    expected = await described(filled)
    async with opened(database) as engines:
        assert await described(engines) == expected


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_a_changed_byte_of_a_large_content_is_found(
    folder: Place, database: Place, back: Place
) -> None:
    objects = Path(urlsplit(database.objects).path)
    for place, contents in ((database, objects), (back, Path(back.folder))):

        def change(contents: Path = contents) -> None:
            for path in contents.rglob("blobs/??/??/*"):
                path.write_bytes(b"?" + path.read_bytes()[1:])

        first = await copy(folder.source(), place.target(), change)
        for path in contents.rglob("blobs/??/??/*"):
            path.unlink()
        second = await copy(folder.source(), place.target())

        assert len(first.differences) == 1
        assert first.differences[0].startswith("contents of blobs: differs at blob ")
        assert second.differences == []


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_a_changed_byte_in_a_folder_is_found_and_copied_again(
    folder: Place, back: Place
) -> None:
    def change() -> None:
        with contextlib.closing(apsw.Connection(f"{back.folder}/account.sqlite")) as connection:
            connection.execute("UPDATE message SET receipt = zeroblob(24) WHERE sequence = 2")

    first = await copy(folder.source(), back.target(), change)
    second = await copy(folder.source(), back.target())

    assert first.differences == ["queue 'jobs': differs at 2"]
    assert second.differences == []


async def test_keys_that_postgresql_cannot_index_are_refused(
    folder: Place, database: Place
) -> None:
    async with opened(folder) as engines:
        await engines.tables.create_table("Orders")
        key = EntityKey("\N{SNOWMAN}" * 512, "\N{SNOWMAN}" * 512)
        await engines.tables.run("Orders", EntityGroup([Insert(key, {})]))

    with pytest.raises(LimitExceededError) as refused:
        await copy(folder.source(), database.target())

    assert refused.value.code == "CopyNotPossible"


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_large_contents_need_a_blob_store(folder: Place, database: Place) -> None:
    target = PostgresTarget(
        Location.parse(database.url),
        database.account,
        blob_store=None,
        durability=Durability.FAST,
        clock=SystemClock(),
    )

    with pytest.raises(ConfigurationError) as refused:
        await copy(folder.source(), target)

    assert refused.value.code == "BlobStoreMissing"


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_another_run_takes_a_copy_over(folder: Place, database: Place) -> None:
    forgotten = database.target()
    completed = forgotten.complete

    async def complete(part: CopyPart) -> None:
        await completed(part)
        assert not (await copy(folder.source(), database.target())).differences

    forgotten.complete = complete  # type: ignore[method-assign]

    with pytest.raises(ConflictError) as refused:
        await copy(folder.source(), forgotten)

    assert refused.value.code == "CopyTakenOver"


@pytest.mark.proof
@pytest.mark.usefixtures("filled")
async def test_a_target_continues_only_the_copy_that_it_began(
    folder: Place, database: Place, back: Place, tmp_path: Path
) -> None:
    other = Place(folder=str(tmp_path / "other"))
    async with opened(other) as engines:
        await fill(engines)
    for place in (database, back):
        target = place.target()
        await target.open()
        await target.begin(other.source().identity, 0)
        await target.close()

        with pytest.raises(ConfigurationError) as refused:
            await copy(folder.source(), place.target())

        assert refused.value.code == "CopyTargetNotEmpty"


@pytest.mark.proof
async def test_times_follow_the_clock_of_the_target(folder: Place, database: Place) -> None:
    """A folder whose clock is an hour ahead hides messages and leases blobs for as long."""
    hour = 3600 * TICKS_PER_SECOND
    ahead = ManualClock(SystemClock().ticks() + hour)
    async with folder_account(Path(folder.folder), ahead) as engines:
        await engines.queues.create_queue("jobs", {})
        await engines.queues.put("jobs", "hidden", hidden_seconds=60)
        await engines.blobs.containers.create_container("photos")
        name = BlobName("photos", "leased")
        await engines.blobs.put_blob(name, b"")
        await engines.blobs.lease_blob(
            name, LeaseRequest("acquire", proposed_id=LEASE, duration=60)
        )
        hidden_until, ends_at = ahead.ticks() + 60 * TICKS_PER_SECOND, ahead.ticks()
    await copy(folder.source(), database.target())

    ((visible_at,),) = await run(
        database,
        "SELECT m.visible_at FROM partita.message m JOIN partita.queue q ON q.id = m.queue_id"
        " JOIN partita.account a ON a.id = q.account_id WHERE a.name = $1",
        database.account,
    )
    ((facts,),) = await run(
        database,
        "SELECT b.facts FROM partita.blob b JOIN partita.container c ON c.id = b.container"
        " JOIN partita.account a ON a.id = c.account_id WHERE a.name = $1",
        database.account,
    )
    lease = decode_blob(facts).lease

    assert abs(visible_at + hour - hidden_until) < 60 * TICKS_PER_SECOND
    assert lease is not None
    assert lease.ends_at is not None
    assert lease.ends_at < ends_at


@pytest.mark.proof
async def test_large_contents_are_copied_to_s3_and_back(folder: Place, back: Place) -> None:
    async with opened(folder) as engines:
        await fill(engines)
        before = await described(engines)
    with s3_server():
        database = Place.in_database(await asyncio.to_thread(new_bucket))

        there = await copy(folder.source(), database.target())
        again = await copy(database.source(), back.target())

    assert [*there.differences, *again.differences] == []
    async with opened(back) as engines:
        assert await described(engines) == before
