"""Learned indexes on PostgreSQL: each front end finds what a scan finds, whoever has written.

Each rule that keeps an index from being used too long has a sibling that breaks it.
"""

import asyncio
import random
import re
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from partita.scaleout.schema.entities import VERSIONS
from partita.scaleout.tables import learned, trips
from partita.scaleout.tables.bounds import numbered, where_of
from partita.scaleout.tables.learned import PartitionIndexes
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.filters import Comparison, Literal, all_of, parse, to_text
from partita.tables.operations import Delete, EntityGroup, Insert, InsertOrReplace
from partita.tables.paging import KeyRange, Page
from partita.tables.store import Table
from support.filter_strategies import NAMES, OPERATORS, POOLS, many_entities
from support.front_ends import OwningStore, cut_ranges, whole_write
from support.reference_filter import build
from support.repeats import repeat

PARTITION = KeyRange.of_partition("p")
SCANS_MAX = 50
"""An index is made when all transactions that ran at the first scans have ended: other tests have
some of them."""


class Fronts:
    """Two front ends with the table Staff, whose `Bucket` is one of ten."""

    def __init__(self, stores: list[OwningStore]) -> None:
        self.stores = stores
        self.engines = [TableEngine(store) for store in stores]

    @property
    def table(self) -> Awaitable[Table]:
        return self.engines[0].require_table("Staff")

    async def fill(self, count: int) -> None:
        for first in range(0, count, 100):
            numbers = range(first, min(count, first + 100))
            await self.write(
                *[
                    Insert(key(number), {"Bucket": number % 10, "Number": number})
                    for number in numbers
                ]
            )

    async def write(self, *operations: Any, by: int = 1) -> None:
        await self.engines[by].run("Staff", EntityGroup(list(operations)))

    async def ask(self, text: str, **options: Any) -> Page:
        _, page = await self.engines[0].query("Staff", parse(text), within=PARTITION, **options)
        return page

    async def learn(self, text: str) -> Page:
        """Ask until an index answers."""
        for _ in range(SCANS_MAX):
            page = await self.ask(text)
            if page.index:
                return page
        raise AssertionError("no index was made")


def key(number: int) -> EntityKey:
    return EntityKey("p", f"{number:05}")


def a_comparison(chance: random.Random) -> Comparison:
    kind = chance.choice(list(POOLS))
    operator = chance.choice(["eq", "eq", "eq", *OPERATORS])
    return Comparison(chance.choice(NAMES), operator, Literal(kind, chance.choice(POOLS[kind])))


def row_keys(page: Page) -> list[str]:
    return [entity.row_key for entity in page.entities]


@pytest.fixture(autouse=True)
def every_scan_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "SCAN_SECONDS_MIN", 0.0)


@pytest.fixture
async def fronts() -> AsyncIterator[Fronts]:
    account = f"indexes{uuid.uuid4().hex[:12]}"
    both = Fronts([await OwningStore.open(account) for _ in range(2)])
    await both.engines[0].create_table("Staff")
    yield both
    for store in both.stores:
        await store.close()


# What is found


@pytest.mark.parametrize(
    "text",
    [
        "Bucket eq 3",
        "Number ge 20 and Number lt 23",
        "Number gt 95L",
        "Bucket eq 3 and Number gt 50",
        "Number eq 5.0",
        "Missing eq 1",
    ],
)
async def test_an_index_finds_what_the_first_scan_has_found(fronts: Fronts, text: str) -> None:
    await fronts.fill(100)
    first = await fronts.ask(text)

    later = await fronts.learn(text)

    assert first.index == ""
    assert row_keys(later) == row_keys(first)
    assert later.examined <= 20
    assert later.is_counted


async def test_an_index_finds_what_a_scan_finds(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "CHOSEN_ALWAYS", 200)
    stored = [build(properties) for properties in many_entities()]
    for first in range(0, len(stored), 100):
        await fronts.write(
            *[
                Insert(key(number), stored[number].properties())
                for number in range(first, first + 100)
            ]
        )
    store, table = fronts.stores[0], await fronts.table
    chance = random.Random(11)
    used = 0
    for _ in range(repeat(60, 600, 6000)):
        residual = all_of([a_comparison(chance) for _ in range(chance.choice([1, 1, 2, 3]))])
        limit = chance.choice([1, 3, 1000])
        span = PARTITION.starting_at(EntityKey("p", chance.choice(["", "", "00100", "001005"])))
        fronts.stores[0]._indexes = PartitionIndexes()
        scanned = await store.scan(table, span, residual, limit)
        for _ in range(4):
            await store.scan(table, PARTITION, residual, limit)
        again = await store.scan(table, span, residual, limit)
        used += again.index != ""
        assert row_keys(again) == row_keys(scanned), to_text(residual)
        assert again.continuation == scanned.continuation, to_text(residual)
    assert used


async def test_pages_by_an_index_continue_at_every_entity(fronts: Fronts) -> None:
    await fronts.fill(300)
    whole = row_keys(await fronts.learn("Number gt 290"))
    assert len(whole) == 9
    for limit in (1, 2, 8, 9, 10):
        found: list[str] = []
        start: EntityKey | None = None
        while True:
            page = await fronts.ask("Number gt 290", limit=limit, start=start)
            assert page.index == "Number"
            found += row_keys(page)
            start = page.continuation
            if start is None:
                break
        assert found == whole


async def test_entities_are_found_by_their_keys(fronts: Fronts) -> None:
    """Without statistics, PostgreSQL would compare each entity of the partition with each key."""
    await fronts.fill(100)
    tid = (await fronts.table).id
    where, keys = where_of(PARTITION)
    statement = numbered(learned._CHOSEN.format(where=where))
    values = "p", tid, '["00001","00002"]', tid, *keys, 0, 1000, 1000, 0, 0
    async with fronts.stores[0].fleet.pool.link() as link:
        rows = await link.read(f"EXPLAIN {statement}", *values)
    plan = "\n".join([row[0] for row in rows])

    assert re.search(r"Index Cond: .*rk = k\.chosen", plan), plan
    assert "Join Filter" not in plan


async def test_many_entities_are_not_read_one_by_one(fronts: Fronts) -> None:
    await fronts.fill(600)
    await fronts.learn("Number ge 0 and Number lt 5")

    page = await fronts.ask("Number ge 0 and Number lt 60")

    assert (len(page.entities), page.index) == (60, "")


# Following the changes of other front ends


async def every_kind_of_change_is_seen(fronts: Fronts, rounds: int) -> None:
    await fronts.fill(60)
    expected = {f"{number:05}" for number in range(3, 60, 10)}
    chance = random.Random(5)
    used = 0
    for number in range(rounds):
        for _ in range(chance.randrange(8)):
            page = await fronts.ask("Bucket eq 3")
            used += page.index != ""
            assert set(row_keys(page)) == expected
        changed, bucket = key(chance.randrange(60)), chance.randrange(2, 4)
        if number % 3:
            by = chance.randrange(2)
            operations = [InsertOrReplace(changed, {"Bucket": bucket})]
            if number % 5 == 0:
                operations.append(InsertOrReplace(EntityKey("p", "x"), {"Bucket": 0}))
            await fronts.write(*operations, by=by)
        elif changed.row_key in expected:
            await fronts.write(Delete(changed))
            bucket = 0
        else:
            continue
        expected = expected | {changed.row_key} if bucket == 3 else expected - {changed.row_key}
    assert used


async def test_every_kind_of_change_is_seen(fronts: Fronts) -> None:
    await every_kind_of_change_is_seen(fronts, repeat(40, 400, 4000))


async def test_a_write_that_counts_nothing_up_would_be_seen(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = "PERFORM nextval(('partita.version_' || v.number)::regclass) FROM ("
    assert counting in whole_write()
    broken = whole_write().replace(counting, "PERFORM v.number FROM (")
    await define(fronts, broken.replace("partita.write_2", "partita.write_uncounted"))
    monkeypatch.setattr(trips, "_WRITE", trips._WRITE.replace("write_2", "write_uncounted"))

    with pytest.raises(AssertionError):
        await every_kind_of_change_is_seen(fronts, 400)


async def a_write_is_seen_that_began_before_the_index(fronts: Fronts) -> bool:
    """Let a write count up, and commit after an index might have been made without it."""
    await fronts.fill(20)
    tid = (await fronts.table).id
    async with fronts.stores[1].fleet.pool.link() as link:
        async with link.transaction():
            await link.read(learned._BOUND)
            (row,) = await link.read(learned._LOOK, "p", tid)
            await link.read(_COUNT_UP, "p", tid)
            (after,) = await link.read(learned._LOOK, "p", tid)
            assert after["version"] == row["version"] + 1
            pages = [await fronts.ask("Bucket eq 3") for _ in range(6)]
            await link.read(
                "UPDATE partita.entity SET rk = '00099' WHERE tid = $1 AND rk = '00003'", tid
            )
        was_learned = any(page.index for page in pages)
    found = [row_keys(await fronts.ask("Bucket eq 3")) for _ in range(3)]
    if all(each == ["00013", "00099"] for each in found):
        assert not was_learned
        assert (await fronts.learn("Bucket eq 3")).index == "Bucket"
        return True
    return False


_COUNT_UP = learned._LOOK.replace("pg_sequence_last_value", "nextval")


async def test_no_index_is_made_while_a_write_of_the_partition_is_running(fronts: Fronts) -> None:
    assert await a_write_is_seen_that_began_before_the_index(fronts)


async def test_an_index_without_the_writes_that_are_running_would_be_seen(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = PartitionIndexes._look

    async def hasty(indexes: PartitionIndexes, link: Any, range_: Any, place: Any) -> bool:
        await look(indexes, link, range_, place)
        return True

    monkeypatch.setattr(PartitionIndexes, "_look", hasty)

    assert not await a_write_is_seen_that_began_before_the_index(fronts)


async def test_nothing_is_learned_from_short_scans(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "SCAN_SECONDS_MIN", 60.0)
    await fronts.fill(20)

    assert {(await fronts.ask("Bucket eq 3")).index for _ in range(6)} == {""}


async def test_a_look_that_was_sent_before_another_one_ended_settles_nothing(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks at once: the second one's bound may be lower than a write that the first counts."""
    await fronts.fill(20)
    indexes = fronts.stores[0]._indexes
    table = await fronts.table
    range_ = fronts.stores[0]._catalog.range_of(table.id, "p")
    assert range_ is not None
    async with (
        fronts.stores[0].fleet.pool.link() as link,
        fronts.stores[1].fleet.pool.link() as other,
    ):
        place = table.id, "p"
        both = await asyncio.gather(*[indexes._look(each, range_, place) for each in (link, other)])
        bound = indexes._seen[place].bound

    assert (both, bound) == ([False, False], None)


async def test_a_group_is_seen_as_a_whole(fronts: Fronts) -> None:
    """One entity has the mark; groups move it while filters ask for it."""
    await fronts.fill(100)
    await fronts.write(InsertOrReplace(key(0), {"Mark": 1}))
    answers: list[tuple[str, int]] = []
    moves, rounds = 0, repeat(30, 300, 3000)

    async def move() -> None:
        nonlocal moves
        while moves < rounds:
            at, moves = moves % 100, moves + 1
            await fronts.write(
                InsertOrReplace(key(at), {"Mark": 0}),
                InsertOrReplace(key((at + 1) % 100), {"Mark": 1}),
            )
            for _ in range(random.Random(moves).randrange(12)):
                await fronts.ask("Mark eq 1")

    async def look() -> None:
        while moves < rounds:
            page = await fronts.ask("Mark eq 1")
            answers.append((page.index, len(page.entities)))

    await asyncio.gather(move(), look(), look())

    assert {count for _, count in answers} == {1}


async def test_a_range_that_was_changed_has_no_index(fronts: Fronts) -> None:
    await fronts.fill(60)
    await fronts.learn("Bucket eq 3")
    await cut_ranges(fronts.stores[1].fleet, (await fronts.table).id, ["a", "q"])

    page = await fronts.ask("Bucket eq 3")

    assert (page.index, len(page.entities)) == ("", 6)
    assert len((await fronts.learn("Bucket eq 3")).entities) == 6


async def test_a_server_that_was_restarted_has_no_index(fronts: Fronts) -> None:
    """A commit that did not wait for its log may be undone by a crash."""
    await fronts.fill(60)
    await fronts.learn("Bucket eq 3")
    for seen in fronts.stores[0]._indexes._seen.values():
        range_id, epoch, _ = seen.source
        seen.source = range_id, epoch, "another start"

    assert (await fronts.ask("Bucket eq 3")).index == ""


async def test_a_table_of_the_same_name_has_no_index(fronts: Fronts) -> None:
    await fronts.fill(60)
    await fronts.learn("Bucket eq 3")
    await fronts.engines[1].delete_table("Staff")
    await fronts.engines[1].create_table("Staff")

    assert row_keys(await fronts.ask("Bucket eq 3")) == []


async def test_every_version_has_its_sequence(fronts: Fronts) -> None:
    async with fronts.stores[0].fleet.pool.link() as link:
        (row,) = await link.read(
            "SELECT count(*) AS found FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'partita' AND c.relkind = 'S' AND c.relname ~ '^version_[0-9]+$'"
        )

    assert row["found"] == VERSIONS


async def define(fronts: Fronts, function: str) -> None:
    async with fronts.stores[0].fleet.pool.link() as link:
        await link.connection.execute(function)
