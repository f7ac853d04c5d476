"""Index entities: the members that share a value, in each of the four storages."""

import asyncio
from typing import Any

import pytest

from partita.errors import LimitExceededError, UsageError
from partita.patterns import (
    Database,
    DefinitionError,
    ListIndex,
    RawEntity,
    Table,
    entity,
    evolve,
    list_index,
)
from partita.patterns.following.bring_up_to_date import list_blob_name
from partita.patterns.protocol.calls import GetBlob, PutBlob, ask
from partita.patterns.protocol.split_text import cut
from partita.patterns.protocol.values import RowKey
from partita.patterns.writing.index_rows import members_in
from support.staff import keys_of, rows_of


@entity(table="crew", partition="{ship}", row="crew_{id:06d}")
class Sailor:
    ship: str
    id: int
    last: str | None = None
    rank: str = "x"
    note: str = ""


in_rows = list_index(Sailor, row="last_{last}")
in_partition = list_index(Sailor, row="name_{last}", store="partition")
in_table = list_index(
    Sailor, table="crewlists", partition="{last}", row="list_{ship}", store="table"
)
in_blob = list_index(Sailor, row="blob_{last}", store="blob")
in_far_rows = list_index(Sailor, table="crewrows", partition="{last}", row="{ship}")

LOCAL = (in_rows, in_partition)
ALL = (in_rows, in_partition, in_table, in_blob, in_far_rows)


@pytest.fixture
async def sailors(db: Database) -> Table[Sailor]:
    table = db.table(Sailor)
    await db.create_tables()
    return table


def sailor(number: int, last: str | None = "Cao", **other: Any) -> Sailor:
    return Sailor(**{"ship": "Argo", "id": number, "last": last, **other})


async def ids(table: Table[Sailor], index: ListIndex[Sailor], last: str = "Cao") -> list[int]:
    return [each.id for each in await table.via(index).range(ship="Argo", last=last).list()]


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.storage.value)
async def test_a_list_holds_each_member_once_and_in_order(
    db: Database, sailors: Table[Sailor], index: ListIndex[Sailor]
) -> None:
    saved = {n: await sailors.save(sailor(n)) for n in (3, 1, 2)}
    await sailors.save(sailor(9, "Other"))
    await sailors.save(evolve(saved[3], note="changed"))
    await sailors.save(sailor(2, ship="Beagle"))
    await db.drain()
    await db.drain()

    assert await ids(sailors, index) == [1, 2, 3]
    assert await ids(sailors, index, "Other") == [9]
    assert await ids(sailors, index, "Nobody") == []
    assert await db.verify(Sailor) == []


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.storage.value)
async def test_another_value_moves_a_member(
    db: Database, sailors: Table[Sailor], index: ListIndex[Sailor]
) -> None:
    saved = await sailors.save(sailor(1))
    await sailors.save(sailor(2))
    saved = await sailors.save(evolve(saved, last="Jones"))
    await db.drain()
    assert (await ids(sailors, index), await ids(sailors, index, "Jones")) == ([2], [1])

    saved = await sailors.patch(saved, last=None)
    await db.drain()
    assert (await ids(sailors, index), await ids(sailors, index, "Jones")) == ([2], [])
    await sailors.delete(await sailors.get(ship="Argo", id=2))
    await db.drain()
    assert await ids(sailors, index) == []


@pytest.mark.parametrize("index", ALL, ids=lambda index: index.storage.value)
async def test_a_moved_entity_is_listed_where_it_is(
    db: Database, sailors: Table[Sailor], index: ListIndex[Sailor]
) -> None:
    saved = await sailors.save(sailor(1))

    moved = await sailors.move(saved, id=5)
    await db.drain()
    assert await ids(sailors, index) == [5]
    await sailors.move(moved, ship="Beagle")
    await db.drain()

    assert await ids(sailors, index) == []
    found = await sailors.via(index).range(ship="Beagle", last="Cao").list()
    assert [(each.ship, each.id) for each in found] == [("Beagle", 5)]


async def test_an_empty_list_leaves_nothing_behind(db: Database, sailors: Table[Sailor]) -> None:
    saved = await sailors.save(sailor(1))
    await sailors.delete(saved)
    await db.drain()

    assert await keys_of(db, "crew") == []
    assert await keys_of(db, "crewlists") == []
    assert await keys_of(db, "crewrows") == []


async def test_a_rename_touches_the_lists_of_both_values_and_no_other(
    db: Database, sailors: Table[Sailor]
) -> None:
    await sailors.save_all([sailor(n, last) for n, last in enumerate(["A", "A", "B", "C"])])
    before = {row.row_key: row.etag for row in await rows_of(db, "crew")}

    await sailors.update(lambda old: evolve(old, last="B"), ship="Argo", id=0)

    changed = {
        row.row_key
        for row in await rows_of(db, "crew")
        if before.get(row.row_key) != row.etag and not row.row_key.startswith("~")
    }
    assert changed == {"crew_000000", "last_B~crew_000000", "name_A", "name_B"}
    after = {row.row_key for row in await rows_of(db, "crew")}
    assert set(before) - after == {"last_A~crew_000000"}


async def test_8_adders_at_once_are_all_listed(any_db: Database) -> None:
    table = any_db.table(Sailor)
    await any_db.create_tables()

    await asyncio.gather(*(table.save(sailor(n)) for n in range(8)))
    await any_db.drain()

    for index in ALL:
        assert await ids(table, index) == list(range(8))
    assert await any_db.verify(Sailor) == []


async def test_a_group_lists_all_its_members(db: Database, sailors: Table[Sailor]) -> None:
    old = await sailors.save(sailor(0))

    async with sailors.partition(ship="Argo").atomic() as group:
        group.save(sailor(1))
        group.save(sailor(2))
        group.save(sailor(3, "Jones"))
        group.delete(old)
    await db.drain()

    for index in ALL:
        assert await ids(sailors, index) == [1, 2]
        assert await ids(sailors, index, "Jones") == [3]


async def test_members_are_read_in_pages_and_up_to_a_limit(
    db: Database, sailors: Table[Sailor]
) -> None:
    await sailors.save_all([sailor(n) for n in range(10)])
    await sailors.save_all([sailor(n, "Cox") for n in range(10, 14)])
    await db.drain()

    for index in ALL:
        query = sailors.via(index).range(ship="Argo", last="Cao")
        assert [each.id for each in await query.limit(3).list()] == [0, 1, 2]
        pages: list[list[int]] = []
        continuation = None
        while True:
            page = await query.page(size=4, continuation=continuation)
            pages.append([each.id for each in page.entities])
            continuation = page.continuation
            if continuation is None:
                break
        assert [each for page in pages for each in page] == list(range(10))
        assert max(map(len, pages)) == 4
    for index in LOCAL:
        pages, continuation = [], None
        while True:
            page = (
                await sailors.via(index)
                .prefix(ship="Argo", last="C")
                .page(size=4, continuation=continuation)
            )
            pages.append([each.id for each in page.entities])
            continuation = page.continuation
            if continuation is None:
                break
        assert [each for page in pages for each in page] == list(range(14))
        assert max(map(len, pages)) == 4


async def test_a_member_that_went_is_left_out(db: Database, sailors: Table[Sailor]) -> None:
    await sailors.save_all([sailor(1), sailor(2)])
    await db.drain()
    await sailors.update(lambda old: evolve(old, last="Jones"), ship="Argo", id=1)
    await sailors.delete_if_exists(ship="Argo", id=2)

    for index in ALL:  # those elsewhere still name both
        assert await ids(sailors, index) == []


async def test_conditions_and_projections_apply_to_members(
    db: Database, sailors: Table[Sailor]
) -> None:
    await sailors.save_all([sailor(n, rank="captain" if n % 3 == 0 else "mate") for n in range(7)])
    await db.drain()

    for index in ALL:
        query = sailors.via(index).range(ship="Argo", last="Cao")
        captains = query.where(sailors.c.rank == "captain")
        assert [each.id for each in await captains.list()] == [0, 3, 6]
        assert [each.as_dict() for each in await captains.limit(1).select("rank").list()] == [
            {"rank": "captain"}
        ]


HOSTILE = [
    ".",
    "..",
    " ",
    "a b",
    "O'Hara",
    "Ümlaut ß",
    "日本語",
    "😀",
    "%2e%2e%2f",
    "a+b&c=d",
    "a.b.",
    "CON",
    "~1",
    "x" * 300,
    "é" * 300,
    "-_-",
    "\u200b",
    '"',
    "<&>",
]


async def test_hostile_values_are_values_like_others(db: Database, sailors: Table[Sailor]) -> None:
    named = {n: last for n, last in enumerate(HOSTILE) if "~" not in last}
    await sailors.save_all([sailor(n, last) for n, last in named.items()])

    await db.drain()

    for index in ALL:
        for number, last in named.items():
            assert await ids(sailors, index, last) == [number], (index, last)
    assert await db.verify(Sailor) == []


# ---------------------------------------------------------------------------------------------
# Size


def index_entity(members: int, width: int) -> RawEntity:
    """Return an index entity of option 2 with made-up members, as the library writes it."""
    names = ",".join(f'["crew_{n:0{width}d}"]' for n in range(members))
    properties = {"EntityType": f"Sailor@{in_partition.name}", **cut("Ids", f"[{names}]")}
    return RawEntity("Argo", "name_Cao", properties)


async def test_a_list_is_cut_over_several_properties(db: Database, sailors: Table[Sailor]) -> None:
    full = index_entity(2_500, 20)  # 75,000 characters, in pieces of 16,384
    await db.raw("crew").save(full)

    await sailors.save(sailor(7))

    stored = await db.raw("crew").get("Argo", "name_Cao")
    chunks = [name for name in stored.properties if name.startswith("Ids")]
    assert len(chunks) == 5
    assert members_in(stored.properties) == [*members_in(full.properties), ["crew_000007"]]
    found = await sailors.get(ship="Argo", id=7)
    await sailors.delete(found)
    assert (await db.raw("crew").get("Argo", "name_Cao")).properties == full.properties


async def test_a_list_that_does_not_fit_into_an_entity_is_refused_with_advice(
    db: Database, sailors: Table[Sailor]
) -> None:
    room = 1_048_576 // 2 - 400
    members = room // 210
    await db.raw("crew").save(index_entity(members, 200))
    saved: list[Sailor] = []

    async def fill() -> None:
        for number in range(40):
            saved.append(await sailors.save(sailor(number)))  # noqa: PERF401

    with pytest.raises(LimitExceededError) as refused:
        await fill()

    assert refused.value.code == "IndexEntityTooLarge"
    assert 'store="rows"' in refused.value.hint
    stored = await db.raw("crew").get("Argo", "name_Cao")
    kept = {name for [name] in members_in(stored.properties)}
    assert len(kept) == members + len(saved)
    assert {f"crew_{each.id:06d}" for each in saved} <= kept
    assert await sailors.get_or_none(ship="Argo", id=len(saved)) is None


async def test_a_list_in_a_blob_has_no_such_limit(db: Database, sailors: Table[Sailor]) -> None:
    names = ",".join(f'["Argo","crew_{n:0500d}"]' for n in range(2_200))
    name = list_blob_name(in_blob, RowKey("Argo", "blob_Cao"))
    await db.run(ask(PutBlob(in_blob.container, name, f"[{names}]".encode(), {})))

    await sailors.save(sailor(2))
    await db.drain()

    blob = await db.run(ask(GetBlob(in_blob.container, name)))
    assert blob is not None
    assert len(blob.content) > 1_048_576
    assert blob.content.endswith(b'["Argo","crew_000002"]]')


# ---------------------------------------------------------------------------------------------
# Declarations


async def test_get_needs_an_index_with_one_entity_a_value(sailors: Table[Sailor]) -> None:
    with pytest.raises(UsageError, match="get"):
        await sailors.via(in_rows).get(ship="Argo", last="Cao")


async def test_a_blob_for_each_value_needs_every_value(sailors: Table[Sailor]) -> None:
    with pytest.raises(UsageError, match="is stored in blobs"):
        await sailors.via(in_blob).range(ship="Argo").list()


def test_storages_that_contradict_their_place_are_refused() -> None:
    @entity(table="crew", partition="{ship}", row="crew_{id:06d}", name="Other")
    class Other:
        ship: str
        id: int
        last: str

    with pytest.raises(DefinitionError, match="own partition"):
        list_index(Other, table="else", partition="{last}", row="x", store="partition")
    with pytest.raises(DefinitionError, match="another partition or table"):
        list_index(Other, row="last_{last}", store="table")
