from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from partita.blobs.rules.model import BlobName
from partita.clock import ManualClock, SystemClock
from partita.errors import ConfigurationError
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.copying.copier import Report
from partita.scaleout.copying.parts import Part
from partita.storage.durability import Durability
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert, Replace
from partita.ticks import TICKS_PER_SECOND
from support.copying import Place, copy
from support.front_ends import installed_url
from support.whole_accounts import LARGE, Engines, described, fill, folder_account, postgres_account


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder of large contents of the database."""
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(folder=str(tmp_path / "one"))


@pytest.fixture
def database(objects: Path) -> Place:
    return Place.in_database(installed_url(), objects)


@pytest.fixture
def back(tmp_path: Path) -> Place:
    return Place(folder=str(tmp_path / "back"))


def opened(place: Place) -> AbstractAsyncContextManager[Engines]:
    if place.folder:
        return folder_account(Path(place.folder))
    return postgres_account(place.url, place.account, place.objects)


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


@pytest.mark.usefixtures("filled")
async def test_an_empty_account_can_become_a_copy(
    folder: Place, database: Place, back: Place
) -> None:
    for place in (database, back):
        async with opened(place):
            pass

        report = await copy(folder.source(), place.target())

        assert not report.differences


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
        changed: list[Part] = []

        async def complete(part: Part) -> None:
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


async def test_a_changed_byte_in_postgresql_is_found(
    filled: Engines, folder: Place, database: Place
) -> None:
    rows = "SELECT target FROM partita.copy_part p JOIN partita.account a ON a.id = p.account_id"
    of_account = f"{rows} WHERE a.name = $1 AND p.kind ="
    for statement, where in (
        (f"UPDATE partita.entity SET ticks = ticks + 1 WHERE tid IN ({of_account} 'table')", "''"),
    ):
        assert statement
        assert where
    del filled
