"""An older worker leaves indexes and views that it does not know to a newer one."""

import contextlib
from typing import Any

import pytest

from partita.errors import PartitaError
from partita.patterns import Database, connect, entity, index, view
from partita.service.hosting.in_process import LocalAccount
from support.entities import rows


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


async def test_an_older_worker_leaves_what_it_does_not_know_to_a_newer_one(
    partita_account: LocalAccount,
) -> None:
    def older() -> type[Any]:
        @entity(table="goods", partition="{shop}", row="g_{id:04d}")
        class Good:
            shop: str
            id: int
            name: str

        return Good

    def newer() -> tuple[type[Any], Any]:
        good = older()
        made = index(
            good, table="goodsbyname", partition="{name}", row="{shop:esc}_{id:04d}", name="by_name"
        )
        return good, made

    good, by_name = newer()
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.create_tables()
        await goods.save(good(shop="s", id=1, name="n"))
    async with connect(partita_account, direct=True) as old:
        old.table(older())
        with contextlib.suppress(PartitaError):
            await old.drain()
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.drain()
        assert [each.id for each in await goods.via(by_name).range(name="n").list()] == [1]


async def test_an_index_that_is_no_longer_declared_does_not_hold_up_the_outbox(
    partita_account: LocalAccount,
) -> None:
    def declared(*, with_index: bool) -> tuple[type[Any], Any]:
        @entity(table="goods", partition="{shop}", row="g_{id:04d}")
        class Good:
            shop: str
            id: int
            name: str

        if not with_index:
            return Good, None
        return Good, index(
            Good, table="goodsbyname", partition="{name}", row="{shop:esc}_{id:04d}", name="by_name"
        )

    good, by_name = declared(with_index=True)
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.create_tables()
        await goods.save(good(shop="s", id=1, name="n"))
        await db.disable(by_name)
    async with connect(partita_account, direct=True) as new:
        new.table(declared(with_index=False)[0])
        await new.drain()

        assert [row.row_key for row in await rows(new, "goods")] == ["g_0001"]


async def test_an_older_worker_leaves_a_view_that_it_does_not_know_to_a_newer_one(
    partita_account: LocalAccount,
) -> None:
    shown: list[Any] = []

    def declared() -> type[Any]:
        @entity(table="events", partition="{room}", row="{id:04d}")
        class Event:
            room: str
            id: int

        return Event

    event = declared()

    @view(event)
    def show(_db: Any, _key: Any, entity: Any) -> None:
        shown.append(entity)

    async with connect(partita_account, direct=True) as db:
        events = db.table(event)
        await db.create_tables()
        await events.save(event(room="r", id=1))
    async with connect(partita_account, direct=True) as old:
        old.table(declared())
        with contextlib.suppress(PartitaError):
            await old.drain()
    async with connect(partita_account, direct=True) as db:
        db.table(event)
        await db.drain()

    assert len(shown) == 1
