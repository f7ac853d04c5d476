"""A learned index finds what a scan finds, and follows every change of its partition."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.storage.database import Database
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey
from partita.tables.filters import Comparison, Filter, all_of, parse, to_text
from partita.tables.operations import Delete, EntityGroup, Insert, InsertOrReplace
from partita.tables.paging import KeyRange, Page
from partita.tables.reading import learned_index
from partita.tables.reading.learned_index import Condition, LearnedIndexes, PropertyIndex
from partita.tables.sqlite_store import SqliteTableStore
from support.filter_strategies import NAMES, OPERATORS, comparisons, literals, many_entities
from support.reference_filter import build
from support.repeats import repeat

PARTITION = KeyRange.of_partition("p")
PLACE = (1, "p")


async def filled(folder: Path | None, count: int) -> tuple[TableEngine, SqliteTableStore]:
    """Return tables with a partition of entities whose `Bucket` is one of ten."""
    store = await SqliteTableStore.open(await Database.open(folder))
    engine = TableEngine(store)
    await engine.create_table("Staff")
    for first in range(0, count, 100):
        group = [
            Insert(EntityKey("p", f"{number:05}"), {"Bucket": number % 10, "Number": number})
            for number in range(first, min(count, first + 100))
        ]
        await engine.run("Staff", EntityGroup(group))
    return engine, store


async def ask(engine: TableEngine, text: str, **options: Any) -> Page:
    _, page = await engine.query("Staff", parse(text), within=PARTITION, **options)
    return page


def row_keys(page: Page) -> list[str]:
    return [entity.row_key for entity in page.entities]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work()

    asyncio.run(whole())


# What is found


@pytest.fixture(scope="module")
def stored() -> Sequence[Entity]:
    """Entities of one partition with every type under every name."""
    found = []
    for number, properties in enumerate(many_entities()):
        entity = build(properties)
        found.append(Entity("p", f"{number:03}", entity.ticks, b"", entity.properties()))
    return found


useful = st.one_of(
    comparisons(),
    st.builds(Comparison, st.sampled_from(NAMES), st.sampled_from(OPERATORS), literals()),
)


@pytest.mark.repeated
@settings(max_examples=repeat(6, 60, 200), deadline=None)
@given(data=st.data())
def test_an_index_finds_what_a_scan_finds(stored: Sequence[Entity], data: st.DataObject) -> None:
    async def check() -> None:
        engine, store = await filled(None, 0)
        for first in range(0, len(stored), 100):
            group = [Insert(each.key, each.properties()) for each in stored[first : first + 100]]
            await engine.run("Staff", EntityGroup(group))
        table = await engine.require_table("Staff")
        for tree in data.draw(
            st.lists(st.lists(useful, min_size=1, max_size=3), min_size=20, max_size=20)
        ):
            residual: Filter = all_of(list(tree))
            start = EntityKey("p", data.draw(st.sampled_from(["", "100", "1005"])))
            span, limit = PARTITION.starting_at(start), data.draw(st.sampled_from([1, 3, 1000]))
            scanned = await store.scan(table, span, residual, limit)
            for _ in range(4):
                again = await store.scan(table, span, residual, limit)
                assert row_keys(again) == row_keys(scanned), to_text(residual)
                assert again.continuation == scanned.continuation, to_text(residual)
                assert [each.document for each in again.entities] == [
                    each.document for each in scanned.entities
                ]
        await engine.close()

    run(check)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bucket eq 3", {"Bucket"}),
        ("Number ge 20 and Number lt 23", {"Number"}),
        ("Number gt 195 and Bucket ne 7", {"Number"}),
        ("Bucket eq 3 and Number gt 100", {"Bucket"}),
        ("Number lt 5", {""}),
        ("Number gt 20", {""}),
        ("Bucket ne 3", {""}),
        ("Bucket eq 3 or Number eq 5", {""}),
        ("not (Bucket eq 3)", {""}),
        ("PartitionKey eq 'p' and RowKey eq '00003' and Bucket eq 3", {""}),
        ("PartitionKey eq 'p' and RowKey ge '00003' and Bucket eq 3", {""}),
    ],
)
def test_an_index_is_used_from_the_second_scan_on(text: str, expected: set[str]) -> None:
    async def check() -> None:
        engine, _ = await filled(None, 200)
        first = await ask(engine, text)
        later = [await ask(engine, text) for _ in range(3)]
        assert first.index == ""
        assert {page.index for page in later} == expected
        assert {tuple(row_keys(page)) for page in later} == {tuple(row_keys(first))}
        if expected != {""}:
            assert all(page.examined <= 25 and page.is_counted for page in later)
        await engine.close()

    run(check)


def test_pages_by_an_index_continue_at_every_entity(tmp_path: Path) -> None:
    async def check() -> None:
        engine, _ = await filled(tmp_path, 300)
        page = await ask(engine, "Bucket eq 4")
        whole = row_keys(page)
        for limit in (1, 2, 7, 29, 30, 31):
            found: list[str] = []
            start: EntityKey | None = None
            while True:
                page = await ask(engine, "Bucket eq 4", limit=limit, start=start)
                found += row_keys(page)
                start = page.continuation
                if start is None:
                    break
            assert found == whole
            assert limit == 1 or page.index == "Bucket"
        await engine.close()

    run(check)


# Following changes


def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    async def check() -> None:
        engine, _ = await filled(tmp_path, 60)
        expected = {f"{number:05}" for number in range(3, 60, 10)}
        chance = random.Random(5)

        async def change(operation: Any, *others: Any) -> None:
            await engine.run("Staff", EntityGroup([operation, *others]))

        for number in range(40):
            for _ in range(chance.randrange(6)):
                assert set(row_keys(await ask(engine, "Bucket eq 3"))) == expected
            key = EntityKey("p", f"{chance.randrange(60):05}")
            bucket = chance.randrange(2, 4)
            if number % 10 == 9:  # so many properties that it runs in the commit thread
                many: dict[str, Any] = {f"P{each}": each for each in range(200)}
                others = [
                    InsertOrReplace(EntityKey("p", f"x{number}-{each}"), many) for each in range(99)
                ]
                await change(InsertOrReplace(key, {"Bucket": bucket}), *others)
            elif number % 3:
                await change(InsertOrReplace(key, {"Bucket": bucket}))
            elif key.row_key in expected:
                await change(Delete(key))
                bucket = 0
            else:
                continue
            expected = expected | {key.row_key} if bucket == 3 else expected - {key.row_key}
        await engine.delete_table("Staff")
        await engine.create_table("Staff")
        assert row_keys(await ask(engine, "Bucket eq 3")) == []
        await engine.close()

    run(check)


def test_a_group_is_seen_as_a_whole(tmp_path: Path) -> None:
    """One entity has the mark; groups move it while filters ask for it."""

    async def check() -> None:
        engine, _ = await filled(tmp_path, 200)
        await engine.run(
            "Staff", EntityGroup([InsertOrReplace(EntityKey("p", "00000"), {"Mark": 1})])
        )
        answers: list[tuple[str, int]] = []
        moves = 0

        async def move() -> None:
            nonlocal moves
            chance, at = random.Random(3), 0
            while moves < 60:
                moves += 1
                to = (at + 1) % 200
                await engine.run(
                    "Staff",
                    EntityGroup(
                        [
                            InsertOrReplace(EntityKey("p", f"{at:05}"), {"Mark": 0}),
                            InsertOrReplace(EntityKey("p", f"{to:05}"), {"Mark": 1}),
                        ]
                    ),
                )
                at = to
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                    await ask(engine, "Mark eq 1")

        async def look() -> None:
            while moves < 60:
                page = await ask(engine, "Mark eq 1")
                answers.append((page.index, len(page.entities)))
                await asyncio.sleep(0)

        await asyncio.gather(move(), look(), look(), look())
        assert {count for _, count in answers} == {1}
        assert "Mark" in {index for index, _ in answers}
        await engine.close()

    run(check)


def test_nothing_is_kept_that_was_read_before_a_commit(tmp_path: Path) -> None:
    async def check() -> None:
        engine, store = await filled(tmp_path, 20)
        await ask(engine, "Bucket eq 3")
        writing = asyncio.ensure_future(
            engine.run("Staff", EntityGroup([Insert(EntityKey("p", "x"), {"Bucket": 3})]))
        )
        await asyncio.sleep(0)  # it is applied, and not committed
        assert store.database.is_changing

        pages = await asyncio.gather(*[ask(engine, "Bucket eq 3") for _ in range(4)])
        await writing

        assert {page.index for page in pages} == {""}
        for _ in range(5):
            assert "x" in row_keys(await ask(engine, "Bucket eq 3"))
        await engine.close()

    run(check)


# When an index is made


def index_of(name: str = "A", size: int = 10) -> PropertyIndex:
    return PropertyIndex(name, [1], [], {1: (1, '["r"]')}, 10, size)


def touch(indexes: LearnedIndexes) -> None:
    indexes.touched.add(PLACE)
    indexes.drop(PLACE)


def make(indexes: LearnedIndexes, place: tuple[int, str] = PLACE, size: int = 10) -> int:
    """Scan until an index is made; return how many scans that took."""
    for count in range(1, 1000):
        mark = indexes.to_make(place, "A")
        if mark is not None:
            indexes.keep(place, mark, "A", index_of(size=size))
            return count
    raise AssertionError("no index was made")


def test_an_index_that_was_hardly_used_is_made_later() -> None:
    indexes = LearnedIndexes(lambda: False)
    counts = []
    for _ in range(8):
        counts.append(make(indexes))
        touch(indexes)

    assert counts == [2, 4, 8, 16, 32, 64, 64, 64]


def test_an_index_that_paid_is_made_early_again() -> None:
    indexes = LearnedIndexes(lambda: False)
    make(indexes)
    touch(indexes)
    make(indexes)
    for _ in range(learned_index.PAYING_LOOKUPS):
        assert indexes.find(PLACE, [Condition("A", 1, 1)]) is not None
    touch(indexes)

    assert make(indexes) == 2


def test_changes_between_the_scans_keep_it_from_being_made() -> None:
    indexes = LearnedIndexes(lambda: False)
    for _ in range(100):
        assert indexes.to_make(PLACE, "A") is None
        touch(indexes)


def test_an_index_that_was_touched_while_it_was_made_is_not_kept() -> None:
    indexes = LearnedIndexes(lambda: False)
    assert indexes.to_make(PLACE, "A") is None
    mark = indexes.to_make(PLACE, "A")
    touch(indexes)

    assert not indexes.keep(PLACE, mark, "A", index_of())
    assert indexes.find(PLACE, [Condition("A", 1, 1)]) is None


def test_a_partition_that_a_long_change_holds_is_not_learned() -> None:
    indexes = LearnedIndexes(lambda: True)
    indexes.hold(PLACE)
    assert [indexes.to_make(PLACE, "A") for _ in range(5)] == [None] * 5
    indexes.release(PLACE)
    assert [indexes.to_make(PLACE, "A") for _ in range(5)] == [None] * 5, "its commit runs"
    indexes.touched.clear()

    assert make(indexes) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_index, "INDEX_BYTES_MAX", 100)
    monkeypatch.setattr(learned_index, "PARTITIONS_MAX", 8)
    indexes = LearnedIndexes(lambda: False)
    for number in range(30):
        make(indexes, (1, str(number)), size=30)
    kept = [n for n in range(30) if indexes.find((1, str(n)), [Condition("A", 1, 1)]) is not None]

    assert kept == [27, 28, 29]
    assert indexes.to_make((2, "p"), "A") is None
    mark = indexes.to_make((2, "p"), "A")
    assert not indexes.keep((2, "p"), mark, "A", index_of(size=101))


def test_a_large_partition_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_index, "ENTITIES_MAX", 150)

    async def check() -> None:
        engine, _ = await filled(None, 200)
        pages = [await ask(engine, "Bucket eq 3") for _ in range(5)]
        assert {page.index for page in pages} == {""}
        assert {len(page.entities) for page in pages} == {20}
        await engine.close()

    run(check)
