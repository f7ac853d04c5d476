"""Several front ends on one database: nothing is lost, torn or repeated; stale maps are refused.

Each test that holds a rule has a sibling that breaks what keeps the rule, and must see it broken.
"""

import asyncio
import contextlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from conformance.table_store import putting
from partita.clock import ManualClock, SystemClock
from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    LimitExceededError,
    StoreBusyError,
    TableNotFoundError,
)
from partita.scaleout.catalog import staleness
from partita.scaleout.catalog.purge import fold_removed
from partita.scaleout.connections.link import Link
from partita.scaleout.connections.session import may_repeat, sqlstate_of
from partita.scaleout.schema.locks import RANGE_LOCKS
from partita.scaleout.tables import postgres_store, trips
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey, build
from partita.tables.expectations import ANYTHING
from partita.tables.filters import parse
from partita.tables.operations import (
    Delete,
    EntityGroup,
    Insert,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)
from partita.tables.paging import KeyRange
from partita.tables.store import Table
from support.front_ends import OwningStore, cut_ranges, forget_slots, whole_write
from support.repeats import repeat

STORES = 2
ROUNDS = repeat(40, 400, 4000)


BROKEN_ROUNDS_MAX = 20
"""How often a broken variant is tried until its fault shows: the windows are short."""


class Fronts:
    """Front ends with one account, and a table of it."""

    stores: list[OwningStore]
    table: Table

    @property
    def engines(self) -> list[TableEngine]:
        return [TableEngine(store) for store in self.stores]

    async def execute(self, statement: str, *values: object) -> Sequence[Any]:
        async with self.stores[0].fleet.pool.link() as link:
            return await link.write(statement, *values)


async def opened(count: int, clocks: Sequence[ManualClock] | None = None) -> Fronts:
    fronts = Fronts()
    account = f"fronts{uuid.uuid4().hex[:12]}"
    fronts.stores = [
        await OwningStore.open(account, clocks[n] if clocks else SystemClock())
        for n in range(count)
    ]
    fronts.table = await fronts.stores[0].create_table("Staff")
    for store in fronts.stores:
        assert await store.find_table("Staff") == fronts.table
    return fronts


@pytest.fixture
async def fronts() -> AsyncIterator[Fronts]:
    both = await opened(STORES)
    yield both
    for store in both.stores:
        await store.close()


# Tables and pages across front ends


async def test_what_one_writes_the_other_reads(fronts: Fronts) -> None:
    first, second = fronts.engines
    key = EntityKey("p", "r")
    written = await first.run("Staff", EntityGroup([Insert(key, {"Age": 1})]))

    found = await second.get("Staff", key)

    assert found.etag == written.entities[0].etag  # type: ignore[union-attr]
    await second.run("Staff", EntityGroup([Replace(key, {"Age": 2}, found.etag)]))
    with pytest.raises(ETagMismatchError):
        await first.run("Staff", EntityGroup([Merge(key, {"Age": 3}, found.etag)]))


async def test_a_table_that_the_other_dropped_is_not_found(fronts: Fronts) -> None:
    first, second = fronts.stores
    await second.get(fronts.table, EntityKey("p", "r"))
    await first.delete_table("Staff")

    # Not the engine: it would ask the catalog, which may know already.
    for call in (
        second.get(fronts.table, EntityKey("p", "r")),
        second.scan(fronts.table, KeyRange(), None, 5),
        second.change(fronts.table, "p", ["r"], lambda *_: [None]),
    ):
        with pytest.raises(TableNotFoundError):
            await call


async def test_a_page_goes_on_at_another_front_end(fronts: Fronts) -> None:
    await put(fronts.stores[0], fronts.table, [f"{n:03}" for n in range(50)])
    found: list[str] = []
    start = EntityKey("", "")
    for store in itertools.cycle(fronts.stores):
        page = await store.scan(fronts.table, KeyRange(start), parse("Age ge 0"), 7)
        found += [entity.row_key for entity in page.entities]
        if page.continuation is None:
            break
        start = page.continuation

    assert found == [f"{n:03}" for n in range(50)]


async def put(store: OwningStore, table: Table, row_keys: Sequence[str]) -> None:
    await store.change(table, "p", row_keys, putting("p", row_keys, Age=1))


# The same entities at once


async def count_up(engine: TableEngine, key: EntityKey, times: int) -> None:
    """Add one so many times, as a client with etags does."""
    for _ in range(times):
        while True:
            entity = await engine.get("Staff", key)
            count = int(entity.properties()["Count"])
            with contextlib.suppress(ETagMismatchError):
                await engine.run(
                    "Staff", EntityGroup([Replace(key, {"Count": count + 1}, entity.etag)])
                )
                break


async def test_conditional_increments_are_all_counted(fronts: Fronts) -> None:
    keys = [EntityKey("p", str(n)) for n in range(3)]
    for key in keys:
        await fronts.engines[0].run("Staff", EntityGroup([Insert(key, {"Count": 0})]))

    times = ROUNDS // 4
    await asyncio.gather(
        *(count_up(engine, key, times) for engine in fronts.engines for key in keys * 2)
    )

    for key in keys:
        entity = await fronts.engines[0].get("Staff", key)
        assert entity.properties()["Count"] == times * STORES * 2


async def test_decisions_are_made_on_what_is_stored(fronts: Fronts) -> None:
    await put(fronts.stores[0], fronts.table, ["a"])

    def add(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
        return [build(("p", "a"), now, {"Age": int(before["a"].properties()["Age"]) + 1})]

    await asyncio.gather(
        *(
            store.change(fronts.table, "p", ["a"], add)
            for store in fronts.stores
            for _ in range(ROUNDS)
        )
    )

    entity = await fronts.stores[0].get(fronts.table, EntityKey("p", "a"))
    assert entity is not None
    assert entity.properties()["Age"] == 1 + ROUNDS * STORES


async def test_only_one_of_many_inserts_wins(fronts: Fronts) -> None:
    for number in range(ROUNDS // 4):
        key = EntityKey("p", str(number))
        outcomes = await asyncio.gather(
            *(
                engine.run("Staff", EntityGroup([Insert(key, {"Who": who})]))
                for who, engine in enumerate(fronts.engines * 4)
            ),
            return_exceptions=True,
        )
        won = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        assert len(won) == 1
        assert sum(isinstance(outcome, EntityExistsError) for outcome in outcomes) == 7
        assert (await fronts.engines[0].get("Staff", key)).properties() == {"Who": won[0]}


async def test_readers_never_see_the_past(fronts: Fronts) -> None:
    """Linearizable per entity: a read that begins after a write was answered sees it or a later."""
    key = EntityKey("p", "r")
    written = 0
    is_over = False

    async def write(engine: TableEngine, numbers: "itertools.count[int]") -> None:
        nonlocal written
        for _ in range(ROUNDS):
            outcome = await engine.run(
                "Staff", EntityGroup([InsertOrReplace(key, {"Number": next(numbers)})])
            )
            assert outcome.entities[0] is not None
            written = max(written, outcome.entities[0].ticks)

    async def read(engine: TableEngine) -> int:
        looks = 0
        while not is_over:
            floor = written
            with contextlib.suppress(EntityNotFoundError):
                assert (await engine.get("Staff", key)).ticks >= floor
                looks += 1
        return looks

    readers = [asyncio.ensure_future(read(engine)) for engine in fronts.engines * 2]
    numbers = itertools.count()
    await asyncio.gather(*(write(engine, numbers) for engine in fronts.engines * 2))
    is_over = True
    assert min(await asyncio.gather(*readers)) > 0


async def change_hot_keys(fronts: Fronts, seed: int) -> tuple[int, int]:
    """Write pairs that always have the same number, some of them conditionally; return counts."""
    chance = random.Random(seed)
    done = refused = 0
    for number in range(ROUNDS):
        engine = chance.choice(fronts.engines)
        names = chance.sample([f"{n:02}" for n in range(12)], 3)
        operations: list[Operation] = [
            InsertOrReplace(EntityKey("p", name + half), {"Of": seed * 1_000_000 + number})
            for name in names
            for half in ("a", "b")
        ]
        if chance.random() < 0.3:  # refused after all the others could have been written
            operations.append(Delete(EntityKey("p", "missing")))
        elif chance.random() < 0.3:
            operations = [Delete(EntityKey("p", names[0] + half)) for half in ("a", "b")]
        try:
            await engine.run("Staff", EntityGroup(operations))
            done += 1
        except EntityNotFoundError:
            refused += 1
    return done, refused


async def halves(fronts: Fronts, number: int) -> dict[str, set[object]]:
    """Return what the two halves of each pair hold."""
    page = await fronts.stores[number].scan(
        fronts.table, KeyRange.of_partition("p"), parse("Of ge 0"), 1000
    )
    found: dict[str, set[object]] = {}
    for entity in page.entities:
        found.setdefault(entity.row_key[:2], set()).add((entity.ticks, entity.properties()["Of"]))
    counts: dict[str, int] = {}
    for entity in page.entities:
        counts[entity.row_key[:2]] = counts.get(entity.row_key[:2], 0) + 1
    return {name: each for name, each in found.items() if len(each) != 1 or counts[name] != 2}


async def count_torn_views(fronts: Fronts) -> int:
    """Change hot keys and look at them meanwhile; return how often a pair was not whole."""
    is_over = False
    torn = 0

    async def look(number: int) -> None:
        nonlocal torn
        while not is_over:
            torn += await halves(fronts, number) != {}
            await asyncio.sleep(0.001)

    lookers = [asyncio.ensure_future(look(number)) for number in range(STORES)]
    counts = await asyncio.gather(*(change_hot_keys(fronts, seed) for seed in range(8)))
    is_over = True
    await asyncio.gather(*lookers)
    assert sum(done for done, _ in counts) > 0
    assert sum(refused for _, refused in counts) > 0
    return torn


async def test_groups_on_hot_keys_are_whole(fronts: Fronts) -> None:
    assert await count_torn_views(fronts) == 0


@pytest.mark.proof
async def test_torn_groups_would_be_seen(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: changes of a group are written each by itself."""
    whole = trips.Trips.write

    async def torn(
        self: trips.Trips, item: trips.Change, keys: Sequence[Any]
    ) -> trips.Refused | staleness.Stale | None:
        answer: trips.Refused | staleness.Stale | None = None
        for row, key in zip(item.rows, keys, strict=True):
            answer = await whole(self, item._replace(rows=[row]), [key]) or answer
        return answer

    monkeypatch.setattr(trips.Trips, "write", torn)

    assert await count_torn_views(fronts) > 0


async def count_deadlocks(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send trips of 32 of 200 hot keys by several connections at once."""
    store, table = fronts.stores[0], fronts.table
    range_ = store.fleet.catalog.range_of(table.id, "p")
    assert range_ is not None
    chance = random.Random(8)
    count = 0

    def counted(error: BaseException) -> bool:
        nonlocal count
        # PostgreSQL looks for deadlocks when lock_timeout is over, too: either comes first.
        count += sqlstate_of(error) in ("40P01", "55P03")
        return may_repeat(error)

    async def send() -> None:
        async with store.fleet.pool.link() as link:
            for _ in range(ROUNDS // 2):
                names = chance.sample([f"{n:03}" for n in range(200)], 32)
                rows = [trips.Row(name, ANYTHING, 0, None, b"}") for name in names]
                stamp = store.fleet.clock.stamp(*names)
                items = [trips.Change(range_, table.id, "p", stamp, [row]) for row in rows]
                await trips.send_changes(link, items)

    monkeypatch.setattr(trips, "may_repeat", counted)
    await asyncio.gather(*(send() for _ in range(4)))
    return count


async def test_trips_never_deadlock(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await count_deadlocks(fronts, monkeypatch) == 0


@pytest.mark.proof
async def test_trips_in_the_order_of_arrival_would_deadlock(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: trips are not sorted by key."""
    monkeypatch.setattr(trips, "sorted", lambda lines: lines, raising=False)

    for _ in range(BROKEN_ROUNDS_MAX):
        if await count_deadlocks(fronts, monkeypatch) > 0:
            return
    pytest.fail("no trip met another in the opposite order")


# A trip with changes that fail


async def test_a_refused_group_leaves_its_neighbours_alone(fronts: Fronts) -> None:
    store, table = fronts.stores[0], fronts.table
    await put(store, table, ["old"])
    engine = fronts.engines[0]
    groups = [
        EntityGroup([Insert(EntityKey("p", "a"), {}), Insert(EntityKey("p", "old"), {})]),
        EntityGroup([Insert(EntityKey("p", "b"), {})]),
        EntityGroup([Insert(EntityKey("p", "c"), {}), Insert(EntityKey("p", "d"), {})]),
        EntityGroup([Delete(EntityKey("p", "e")), Insert(EntityKey("p", "f"), {})]),
        EntityGroup([Replace(EntityKey("p", "g"), {}), Insert(EntityKey("p", "h"), {})]),
        EntityGroup([Delete(EntityKey("q", "a"))]),
    ]

    outcomes = await asyncio.gather(
        *(engine.run("Staff", group) for group in groups), return_exceptions=True
    )

    page = await store.scan(table, KeyRange(), None, 100)
    assert [entity.row_key for entity in page.entities] == ["b", "c", "d", "old"]
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == [
        *("EntityExistsError", "Outcome", "Outcome"),
        *("EntityNotFoundError", "EntityNotFoundError", "EntityNotFoundError"),
    ]


async def test_a_change_that_the_database_refuses_fails_alone(fronts: Fronts) -> None:
    """A value that no check above the store would let through."""
    store, table = fronts.stores[0], fronts.table

    outcomes = await asyncio.gather(
        *(put(store, table, [row_key]) for row_key in ("a", "b\x00", "c", "d\ud800", "e")),
        return_exceptions=True,
    )

    assert [outcome is None for outcome in outcomes] == [True, False, True, False, True]
    page = await store.scan(table, KeyRange(), None, 100)
    assert [entity.row_key for entity in page.entities] == ["a", "c", "e"]


@pytest.mark.proof
async def test_a_row_that_somebody_locks_holds_up_only_its_own_changes(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = fronts.stores[0], fronts.table
    await put(store, table, ["a", "b", "c"])
    async with fronts.stores[1].fleet.pool.link() as link, link.transaction():
        await link.read(
            "SELECT FROM partita.entity WHERE tid = $1 AND rk = 'b' FOR UPDATE", table.id
        )
        outcomes = await asyncio.gather(
            *(put(store, table, [row_key]) for row_key in "abc"), return_exceptions=True
        )

    assert outcomes[0] is None
    assert isinstance(outcomes[1], StoreBusyError)
    assert outcomes[2] is None


async def test_a_lock_on_all_entities_ends_a_trip_at_its_time(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trips, "LOCKED_SECONDS_MAX", 0.0)
    attempts: list[int] = []
    write = trips._write

    async def counted(link: Link, items: Sequence[trips.Change]) -> list[trips.Answer]:
        attempts.append(len(items))
        return await write(link, items)

    monkeypatch.setattr(trips, "_write", counted)
    store, table = fronts.stores[0], fronts.table
    async with fronts.stores[1].fleet.pool.link() as link, link.transaction():
        await link.connection.execute("LOCK TABLE partita.entity IN EXCLUSIVE MODE")
        outcomes = await asyncio.gather(
            *(put(store, table, [f"{number}"]) for number in range(64)), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {StoreBusyError}
    assert len(attempts) < 8, attempts  # halved until each change is alone, it would be 127


async def test_keys_that_do_not_fit_the_index_are_refused(fronts: Fronts) -> None:
    store, table = fronts.stores[0], fronts.table
    long = "\u4e2d" * 512

    with pytest.raises(LimitExceededError) as refused:
        await store.change(table, long, [long], lambda *_: [None])

    assert refused.value.code == "PropertyValueTooLarge"
    fitting = "\u4e2d" * (postgres_store.KEY_BYTES_MAX // 3 - 512)
    await store.change(table, long, [fitting], lambda _, now: [build((long, fitting), now, {})])
    assert await store.get(table, EntityKey(long, fitting)) is not None
    assert await store.get(table, EntityKey(long, long)) is None


# Time

EARLIER, LATER = 17_000_000_000_000_000, 17_000_036_000_000_000
"""The clocks of two front ends: an hour apart."""
KEY = EntityKey("p", "r")


@pytest.fixture
async def apart() -> AsyncIterator[Fronts]:
    """Two front ends; the clock of the second is an hour behind."""
    forget_slots()
    both = await opened(2, [ManualClock(LATER), ManualClock(EARLIER)])
    yield both
    for store in both.stores:
        await store.close()


async def count_etags_that_go_back(apart: Fronts) -> int:
    """Write and delete an entity through both front ends; return how often its ticks fell."""
    chance = random.Random(5)
    seen: list[int] = []
    exists = False
    for _ in range(ROUNDS * 2):
        engine = chance.choice(apart.engines)
        if exists and chance.random() < 0.4:
            await engine.run("Staff", EntityGroup([Delete(KEY)]))
            exists = False
            continue
        write = InsertOrReplace(KEY, {}) if exists or chance.random() < 0.5 else Insert(KEY, {})
        outcome = await engine.run("Staff", EntityGroup([write]))
        assert outcome.entities[0] is not None
        seen.append(outcome.entities[0].ticks)
        exists = True
        if chance.random() < 0.2:
            clock = chance.choice(apart.stores).fleet.clock.clock
            assert isinstance(clock, ManualClock)
            clock.advance(0.001)
    assert len(set(seen)) == len(seen)
    return sum(after < before for before, after in itertools.pairwise(seen))


async def test_etags_rise_across_deletes_though_clocks_are_an_hour_apart(apart: Fronts) -> None:
    assert await count_etags_that_go_back(apart) == 0


async def test_etags_would_go_back_if_deletes_left_nothing_behind(
    apart: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the ticks of removed entities are not compared."""
    await break_write(apart, monkeypatch, "IF early IS NOT NULL THEN", "IF false THEN")

    assert await count_etags_that_go_back(apart) > 0


async def test_front_ends_of_version_1_1_leave_the_ticks_of_removed_entities(
    apart: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They call another function, and old and new ones work side by side."""
    earlier = trips._WRITE.replace("write_2", "write_1").replace("''), $12", "'')::jsonb[], $12")
    assert earlier.count("jsonb") == earlier.count("write_1") == 1
    monkeypatch.setattr(trips, "_WRITE", earlier)

    assert await count_etags_that_go_back(apart) == 0


async def insert_while_it_is_deleted(apart: Fronts) -> tuple[int, int]:
    """Insert an entity whose delete is not committed yet; return the ticks before and after."""
    first, second = apart.engines
    table = apart.table
    before = (await first.run("Staff", EntityGroup([Insert(KEY, {})]))).entities[0]
    range_ = apart.stores[0].fleet.catalog.range_of(table.id, KEY.partition_key)
    assert before is not None
    assert range_ is not None
    row = trips.Row(KEY.row_key, before.ticks, 0, None, None)
    delete = trips.Change(range_, table.id, KEY.partition_key, before.ticks + 1, [row])
    async with apart.stores[0].fleet.pool.link() as link:
        async with link.transaction():
            assert await trips.send_changes(link, [delete]) == [None]
            upsert = EntityGroup([InsertOrReplace(KEY, {})])
            inserting = asyncio.ensure_future(second.run("Staff", upsert))
            while not await apart.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND query LIKE '%partita.write%'"
            ):
                assert not inserting.done()
        after = (await inserting).entities[0]
    assert after is not None
    return before.ticks, after.ticks


async def test_an_insert_that_waited_for_a_delete_has_later_ticks(apart: Fronts) -> None:
    before, after = await insert_while_it_is_deleted(apart)

    assert after > before


async def test_a_look_at_removed_entities_before_the_write_would_be_seen(
    apart: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the snapshot is older than the write, which waits for a delete."""
    function = whole_write()
    start, end = function.index("  -- The keys are sorted"), function.index("  IF is_captured THEN")
    look, write = function[start:end], "  IF groups IS NULL THEN"
    await break_write(apart, monkeypatch, write, look + write, function.replace(look, ""))

    before, after = await insert_while_it_is_deleted(apart)

    assert after < before


async def test_entities_that_were_removed_long_ago_take_one_row(apart: Fronts) -> None:
    """By the clock of the database, all of these are old."""
    first, second = apart.engines
    names = [EntityKey("p", f"{number}") for number in range(5)]
    removed = []
    for key in names:
        outcome = await first.run("Staff", EntityGroup([Insert(key, {})]))
        removed += [entity.ticks for entity in outcome.entities if entity is not None]
        await first.run("Staff", EntityGroup([Delete(key)]))

    for _ in range(2):
        await fold_removed(apart.stores[0].fleet.pool)
        rows = await apart.execute(
            "SELECT ticks FROM partita.removed WHERE tid = $1", apart.table.id
        )
        assert [row["ticks"] for row in rows] == [max(removed)]
    for key in names:
        outcome = await second.run("Staff", EntityGroup([Insert(key, {})]))
        assert outcome.entities[0] is not None
        assert outcome.entities[0].ticks > max(removed)


async def test_what_a_dropped_table_removed_is_forgotten(fronts: Fronts) -> None:
    store, table = fronts.stores[0], fronts.table
    await put(store, table, ["a"])
    await store.change(table, "p", ["a"], lambda *_: [None])
    await store.delete_table("Staff")

    await store.purge()

    assert not await fronts.execute("SELECT FROM partita.removed WHERE tid = $1", table.id)


async def test_an_early_stamp_holds_up_only_its_own_change(apart: Fronts) -> None:
    """A trip is written without the changes whose stamps are early; those follow."""
    first, second = apart.engines
    await first.run("Staff", EntityGroup([Insert(KEY, {})]))
    await first.run("Staff", EntityGroup([Delete(KEY)]))
    groups = [
        EntityGroup([Insert(EntityKey("p", "a"), {})]),
        EntityGroup([Insert(KEY, {}), Insert(EntityKey("p", "s"), {})]),
        EntityGroup([InsertOrReplace(EntityKey("p", "z"), {})]),
    ]

    outcomes = await asyncio.gather(*(second.run("Staff", group) for group in groups))

    ticks = [[entity.ticks for entity in each.entities if entity] for each in outcomes]
    assert ticks[0][0] < LATER
    assert min(ticks[1]) > LATER
    assert ticks[2][0] < LATER


# Ranges that change


async def move(fronts: Fronts) -> None:
    """Give the range of the table a new epoch, as a move does, behind the front ends' backs."""
    await fronts.execute(
        "WITH e AS (SELECT nextval('partita.epoch') AS epoch),"
        " own AS (UPDATE partita.range_own SET epoch = e.epoch FROM e WHERE tid = $1)"
        " UPDATE partita.range SET epoch = e.epoch FROM e WHERE tid = $1",
        fronts.table.id,
    )


async def test_a_stale_map_costs_one_refresh(fronts: Fronts) -> None:
    store, table = fronts.stores[1], fronts.table
    await put(store, table, ["a"])
    await move(fronts)
    refreshes = 0
    renewed = store.fleet.catalog.renewed

    async def counted(account_id: int, known: Table) -> Table | None:
        nonlocal refreshes
        refreshes += 1
        return await renewed(account_id, known)

    store.fleet.catalog.renewed = counted  # type: ignore[method-assign, assignment]

    assert await store.get(table, EntityKey("p", "a")) is not None
    assert refreshes == 1
    await move(fronts)
    await put(store, table, ["b"])
    assert refreshes == 2
    await move(fronts)
    assert len((await store.scan(table, KeyRange(), None, 10)).entities) == 2
    assert refreshes == 3


async def test_a_fenced_range_is_refused_and_nothing_is_written(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staleness, "REPEAT_SECONDS_MAX", 0.05)
    store, table = fronts.stores[0], fronts.table
    await put(store, table, ["a"])
    other = await store.create_table("Other")
    await fronts.execute("UPDATE partita.range_own SET state = 'f' WHERE tid = $1", table.id)

    outcomes = await asyncio.gather(
        put(store, table, ["a", "b"]),
        put(store, other, ["a"]),
        store.get(table, EntityKey("p", "a")),
        store.get(other, EntityKey("p", "b")),
        store.scan(table, KeyRange(), None, 5),
        store.scan(table, KeyRange(), parse("Age eq 1"), 5),
        return_exceptions=True,
    )

    refused = [isinstance(outcome, StoreBusyError) for outcome in outcomes]
    assert refused == [True, False, True, False, True, True]
    await fronts.execute("UPDATE partita.range_own SET state = 'o' WHERE tid = $1", table.id)
    assert [e.row_key for e in (await store.scan(table, KeyRange(), None, 5)).entities] == ["a"]


async def test_a_range_that_is_being_changed_is_tried_again(fronts: Fronts) -> None:
    """Whoever changes a range has its lock: a writer does not wait for it, but comes back."""
    store, table = fronts.stores[0], fronts.table
    async with fronts.stores[1].fleet.pool.link() as link:
        async with link.transaction():
            await link.read(
                "SELECT pg_advisory_xact_lock($1, id) FROM partita.range_own WHERE tid = $2",
                RANGE_LOCKS,
                table.id,
            )
            writing = asyncio.ensure_future(put(store, table, ["a"]))
            await asyncio.sleep(0.05)
            assert not writing.done()
        await writing

    assert await store.get(table, EntityKey("p", "a")) is not None


async def break_write(
    fronts: Fronts,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    instead: str,
    function: str | None = None,
) -> None:
    """Let front ends write by a function that has a part replaced."""
    function = function or whole_write()
    assert what in function
    broken = function.replace(what, instead, 1).replace("partita.write_2", "partita.write_broken")
    async with fronts.stores[0].fleet.pool.link() as link:
        await link.connection.execute(broken)
    if "write_2" in trips._WRITE:
        monkeypatch.setattr(trips, "_WRITE", trips._WRITE.replace("write_2", "write_broken"))


async def write_while_it_moves(fronts: Fronts) -> int:
    """Fence and move the range again and again; return what was written behind a fence."""
    store, table = fronts.stores[0], fronts.table
    is_over = False
    late = 0

    async def write(number: int) -> None:
        while not is_over:
            await put(store, table, [f"{number}"])

    async def last_ticks(link: Link) -> list[Any]:
        rows = await link.read(
            "SELECT rk, ticks FROM partita.entity WHERE tid = $1 ORDER BY rk", table.id
        )
        return list(rows)

    writers = [asyncio.ensure_future(write(number)) for number in range(8)]
    async with fronts.stores[1].fleet.pool.link() as link:
        for _ in range(ROUNDS // 2):
            async with link.transaction():
                await link.read(
                    "SELECT pg_advisory_xact_lock($1, id) FROM partita.range_own WHERE tid = $2",
                    RANGE_LOCKS,
                    table.id,
                )
                await link.read("UPDATE partita.range_own SET state = 'f' WHERE tid = $1", table.id)
            behind_fence = await last_ticks(link)
            await asyncio.sleep(0.002)
            late += await last_ticks(link) != behind_fence
            await link.write(
                "WITH e AS (SELECT nextval('partita.epoch') AS epoch),"
                " own AS (UPDATE partita.range_own SET epoch = e.epoch, state = 'o' FROM e"
                "          WHERE tid = $1)"
                " UPDATE partita.range SET epoch = e.epoch FROM e WHERE tid = $1",
                table.id,
            )
            await asyncio.sleep(0.002)
    is_over = True
    await asyncio.gather(*writers)
    return late


async def test_nothing_is_written_behind_a_fence(fronts: Fronts) -> None:
    assert await write_while_it_moves(fronts) == 0


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        pytest.param("IF owned < cardinality(range_ids) THEN", "IF false THEN", id="no fence"),
        pytest.param("IF NOT pg_try_advisory_xact_lock_shared", "IF false", id="no lock"),
    ],
)
async def test_a_missing_fence_or_lock_would_be_seen(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch, what: str, instead: str
) -> None:
    """Broken: the function does not look, or looks without a lock and then pauses."""
    function = whole_write()
    if "lock" in what:
        what = f"{what}({RANGE_LOCKS}, range_ids[place])"
        instead = "IF false"
        function = function.replace(
            "  IF groups IS NULL THEN", "  PERFORM pg_sleep(0.003);\n  IF groups IS NULL THEN", 1
        )
    await break_write(fronts, monkeypatch, what, instead, function)

    # On a busy machine, one round may miss the short time between the look and the write.
    for _ in range(BROKEN_ROUNDS_MAX):
        if await write_while_it_moves(fronts) > 0:
            return
    pytest.fail("nothing was written behind the fence")


async def test_changes_are_captured_while_the_range_says_so(fronts: Fronts) -> None:
    store, table = fronts.stores[0], fronts.table
    await put(store, table, ["before"])
    await fronts.execute("UPDATE partita.range_own SET capture = true WHERE tid = $1", table.id)
    await put(store, table, ["a", "b"])
    await store.change(table, "p", ["a"], lambda *_: [None])
    await fronts.execute("UPDATE partita.range_own SET capture = false WHERE tid = $1", table.id)
    await put(store, table, ["after"])

    rows = await fronts.execute(
        "SELECT c.pk, c.rk FROM partita.change c JOIN partita.range_own r ON r.id = c.range_id"
        " WHERE r.tid = $1 ORDER BY rk",
        table.id,
    )
    assert [tuple(row) for row in rows] == [("p", "a"), ("p", "a"), ("p", "b")]


async def test_a_scan_goes_over_all_ranges_in_key_order(fronts: Fronts) -> None:
    store, table = fronts.stores[0], fronts.table
    for letter in "abcdef":
        await store.change(table, letter, ["1", "2"], putting(letter, ["1", "2"], Age=1))
    await cut_ranges(fronts.stores[0].fleet, fronts.table.id, ["c", "e"])

    for residual in (None, parse("Age eq 1"), parse("Age eq 2")):
        for limit in (1, 3, 100):
            found: list[tuple[str, str]] = []
            start: EntityKey | None = EntityKey("b", "2")
            while start is not None:
                page = await store.scan(
                    table, KeyRange(start, EntityKey("f", "2")), residual, limit
                )
                found += [entity.key for entity in page.entities]
                start = page.continuation
            expected = [("b", "2"), *((pk, rk) for pk in "cde" for rk in "12"), ("f", "1")]
            assert found == ([] if residual == parse("Age eq 2") else expected)
    assert (await store.statistics(table, KeyRange())).entities == 12


@pytest.mark.parametrize(("limit", "examined"), [(100, 60), (2, 13)])
async def test_a_long_filtered_page_counts_what_it_examined(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch, limit: int, examined: int
) -> None:
    store, table = fronts.stores[0], fronts.table
    rows = [f"{number:02}" for number in range(60)]
    for row in rows:
        await store.change(table, "p", [row], putting("p", [row], Age=int(row) % 6))

    page = await store.scan(table, KeyRange(), parse("Age eq 0"), limit)
    assert not page.is_counted or page.examined == examined
    monkeypatch.setattr(postgres_store, "UNCOUNTED_SECONDS_MAX", -1.0)
    page = await store.scan(table, KeyRange(), parse("Age eq 0"), limit)

    assert (page.examined, page.is_counted) == (examined, True)


async def test_trips_with_several_ranges_find_the_stale_one(fronts: Fronts) -> None:
    store, table = fronts.stores[1], fronts.table
    await cut_ranges(fronts.stores[0].fleet, fronts.table.id, ["m"])
    assert await store.get(table, EntityKey("a", "1")) is None
    await fronts.execute(
        "WITH e AS (SELECT nextval('partita.epoch') AS epoch),"
        " own AS (UPDATE partita.range_own SET epoch = e.epoch FROM e WHERE tid = $1 AND lo = 'm')"
        " UPDATE partita.range SET epoch = e.epoch FROM e WHERE tid = $1 AND lo = 'm'",
        table.id,
    )

    await asyncio.gather(
        *(store.change(table, pk, ["1"], putting(pk, ["1"])) for pk in ("a", "b", "x", "y"))
    )
    found = await asyncio.gather(*(store.get(table, EntityKey(pk, "1")) for pk in "abxyz"))

    assert [entity is not None for entity in found] == [True, True, True, True, False]
