"""Observers of folders and of open states: bounded pages, locks, and nothing changed."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import partita
from partita.errors import CollectionNotFoundError, PartitaError, StoreLockedError, UsageError
from partita.reliable import StateManager
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.observing.facts import (
    KEY_CHARACTERS_MAX,
    LOCKS_PER_PAGE_MAX,
    ROW_BYTES_MAX,
    ROW_PAGE_BYTES_MAX,
    ROWS_PER_PAGE_MAX,
    WAITERS_PER_LOCK_MAX,
)
from partita.reliable.observing.observers import FolderObserver, Observer, OpenObserver


async def fill(state: StateManager, count: int = 5) -> ReliableDictionary[str, str]:
    texts = await state.dictionary("texts", key=str, value=str, indexes={"length": len})
    jobs = await state.queue("jobs", value=datetime)
    async with state.transaction() as tx:
        for number in range(count):
            await texts.set(tx, f"key-{number:05}", f"value {number}")
        await jobs.enqueue(tx, datetime(2026, 1, 2, tzinfo=UTC))
    return texts


async def all_rows(observer: Observer, collection: str, limit: int) -> list[list[object]]:
    """Return the keys of each page."""
    pages, after = [], None
    while True:
        page = await observer.rows(collection, after=after, limit=limit)
        pages.append([row.key for row in page.rows])
        after = page.next
        if after is None:
            return pages


async def test_a_folder_is_paged_in_the_order_of_its_keys(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        await fill(state)
    before = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()}

    observer = await FolderObserver.open(tmp_path / "state")
    pages = await all_rows(observer, "texts", limit=2)
    (job,) = (await observer.rows("jobs")).rows
    collections = await observer.collections()
    facts = await observer.status()
    locks = await observer.locks()

    keys = [f"key-{number:05}" for number in range(5)]
    assert pages == [keys[:2], keys[2:4], keys[4:]]
    assert (job.key, job.value) == (0, {"$datetime": "2026-01-02T00:00:00+00:00"})
    assert [(each.name, each.count, len(each.indexes)) for each in collections] == [
        ("jobs", 1, 0),
        ("texts", 5, 1),
    ]
    assert (facts.kind, facts.replicas, facts.lease, locks.count) == ("folder", [], None, 0)
    assert facts.log is not None
    assert facts.log.last == facts.sequence
    after = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()}
    assert {name for name in before if before[name] != after[name]} <= {"lock"}


async def test_a_folder_that_is_open_elsewhere_is_refused_and_one_that_was_read_is_free(
    tmp_path: Path,
) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        await fill(state)
        with pytest.raises(StoreLockedError):
            await FolderObserver.open(tmp_path / "state")
    observer = await FolderObserver.open(tmp_path / "state")

    async with partita.open_state(tmp_path / "state") as state:
        await fill(state, 6)
        old = await observer.rows("texts")
    await observer.refresh()

    assert len(old.rows) == 5
    assert len((await observer.rows("texts")).rows) == 6


async def test_an_open_state_is_observed_as_it_is(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        texts = await fill(state)
        observer = OpenObserver(state, where="here")
        async with state.transaction() as tx:
            await texts.set(tx, "key-00000", "new")
        await state.backup(tmp_path / "backups")

        page = await observer.rows("texts", start="key-00003")
        facts = await observer.status()
        first = (await observer.rows("texts", limit=1)).rows[0]

    assert [row.key for row in page.rows] == ["key-00003", "key-00004"]
    assert first.value == "new"
    assert facts.primary is not None
    assert (facts.primary.role, facts.primary.applied) == ("primary", facts.sequence)
    assert facts.log is not None
    assert facts.log.bytes
    assert facts.backup is not None
    assert facts.backup.sequence == facts.sequence
    with pytest.raises(PartitaError):
        await observer.rows("texts")  # it was closed


async def test_pages_and_rows_are_bounded(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        large = await state.dictionary("large", key=str, value=bytes)
        for number in range(40):
            async with state.transaction() as tx:
                await large.set(tx, f"{number:03}", bytes(ROW_BYTES_MAX - 1000))
        async with state.transaction() as tx:
            await large.set(tx, "z", bytes(ROW_BYTES_MAX + 1))
            await large.set(tx, "zz" * KEY_CHARACTERS_MAX, bytes(ROW_BYTES_MAX + 1))
        observer = OpenObserver(state)

        pages = await all_rows(observer, "large", limit=10 * ROWS_PER_PAGE_MAX)
        page = await observer.rows("large", limit=10**9)
        huge = (await observer.rows("large", start="z")).rows

    assert sum(map(len, pages)) == 42
    assert len(pages) > 2
    assert sum(row.bytes for row in page.rows) <= ROW_PAGE_BYTES_MAX
    assert [(row.is_cut, row.value) for row in huge] == [(True, None)] * 2
    assert len(str(huge[1].key)) == KEY_CHARACTERS_MAX + 1
    assert huge[0].bytes > ROW_BYTES_MAX


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"after": "not base64!"}, "InvalidContinuation"),
        ({"start": {"a": 1}}, "InvalidKey"),
        ({"start": [[None]]}, "InvalidKey"),
    ],
)
async def test_places_that_are_none_are_refused(
    tmp_path: Path, wanted: dict[str, object], code: str
) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        await fill(state)
        observer = OpenObserver(state)

        with pytest.raises(UsageError) as caught:
            await observer.rows("texts", **wanted)  # type: ignore[arg-type]
        with pytest.raises(CollectionNotFoundError):
            await observer.rows("others")

    assert caught.value.code == code


async def test_any_start_is_a_place_and_nothing_is_after_the_last(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        pairs = await state.dictionary("pairs", key=tuple[str, int], value=int)
        jobs = await state.queue("jobs", value=int)
        async with state.transaction() as tx:
            for number in range(4):
                await pairs.set(tx, ("a", number), number)
                await jobs.enqueue(tx, number)
        observer = OpenObserver(state)

        found = [row.key for row in (await observer.rows("pairs", start=["a", 2])).rows]
        positions = [row.key for row in (await observer.rows("jobs", start=3)).rows]
        beyond = [
            (await observer.rows("jobs", start=2**70)).rows,
            (await observer.rows("pairs", start="x")).rows,
        ]

    assert found == [["a", 2], ["a", 3]]
    assert positions == [3]
    assert beyond[0] == []


async def test_a_damaged_row_does_not_hide_the_others(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        await fill(state, 2)
        collection = state.state.find("texts")
        assert collection is not None
        values = collection.rows.values
        key = next(iter(values))
        values.put(key, b"\x00", 0)
        observer = OpenObserver(state)

        rows = (await observer.rows("texts")).rows

    assert [(row.key, row.is_unreadable) for row in rows] == [
        ("key-00000", True),
        ("key-00001", False),
    ]


async def test_locks_that_are_waited_for_come_first_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    async with partita.open_state(tmp_path / "state") as state:
        texts = await fill(state)
        observer = OpenObserver(state)
        async with state.transaction() as many:
            for number in range(LOCKS_PER_PAGE_MAX + 10):
                await texts.set(many, f"new-{number}", "x")

            async def want() -> None:
                async with state.transaction() as tx:
                    await texts.set(tx, "new-300", "y")

            waiting = [asyncio.create_task(want()) for _ in range(WAITERS_PER_LOCK_MAX + 5)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            report = await observer.locks(limit=10**6)
            short = await observer.locks(limit=1)
        await asyncio.gather(*waiting)

    assert len(report.locks) == LOCKS_PER_PAGE_MAX
    assert report.count == LOCKS_PER_PAGE_MAX + 11, "the keys, and the collection"
    assert (report.waiting, report.transactions) == (25, 26)
    first = short.locks[0]
    assert (first.key, len(first.waiters), len(short.locks)) == ("new-300", 20, 1)
    assert msgspec.json.encode(report)
