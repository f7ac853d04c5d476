"""Rows whose sharding key lies outside the mapping of their session are refused when stored."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from partita.errors import WrongShardKeyError
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.routing.session import RoutedSession
from shards.conftest import NewDatabase
from support.routed import ASYNC, SYNC, Base, Note, Routed, a_shared_map, count_notes

note = Base.metadata.tables["note"]
ELSEWHERE = 205
"""A tenant of the other shard; a session of tenant 5 is used."""
NEIGHBOUR = 150
"""A tenant of another mapping on the same shard."""
SAME = 7
"""Another tenant of the same mapping."""


def row(tenant: int, number: int = 1) -> dict[str, Any]:
    return {"tenant_id": tenant, "id": number, "said": ""}


def _routed(driver: str) -> Iterator[Routed]:
    with a_shared_map(driver) as made:
        made.tenants.adopt_schema(ShardedSchema(Base.metadata, keys={"note": "tenant_id"}))
        yield made


@pytest.fixture(params=SYNC)
def routed(request: pytest.FixtureRequest) -> Iterator[Routed]:
    yield from _routed(request.param)


@pytest.fixture(params=ASYNC)
def arouted(request: pytest.FixtureRequest) -> Iterator[Routed]:
    yield from _routed(request.param)


@pytest.fixture
def on_sqlite() -> Iterator[Routed]:
    yield from _routed("sqlite")


STORES: dict[str, Callable[[Session], object]] = {
    "an object": lambda s: s.add(Note(tenant_id=ELSEWHERE, id=1)),
    "an object of another mapping of the shard": lambda s: s.add(Note(tenant_id=NEIGHBOUR, id=1)),
    "one of many objects": lambda s: s.add_all(
        [Note(tenant_id=5, id=1), Note(tenant_id=ELSEWHERE, id=1)]
    ),
    "a merged object": lambda s: s.merge(Note(tenant_id=ELSEWHERE, id=1)),
    "objects in bulk": lambda s: s.bulk_save_objects([Note(tenant_id=ELSEWHERE, id=1)]),
    "an insert of the ORM": lambda s: s.execute(insert(Note), [row(5), row(ELSEWHERE)]),
    "an insert of Core": lambda s: s.execute(insert(note).values(row(ELSEWHERE))),
    "a literal": lambda s: s.execute(insert(note).values(tenant_id=literal(ELSEWHERE), id=1)),
    "a row of a list": lambda s: s.execute(insert(note), [row(5), row(ELSEWHERE)]),
    "a row of VALUES": lambda s: s.execute(insert(note).values([row(5), row(ELSEWHERE)])),
    "a row of RETURNING": lambda s: s.execute(
        insert(note).returning(note.c.id), [row(5), row(ELSEWHERE)]
    ),
    "an update of Core": lambda s: s.execute(update(note).values(tenant_id=ELSEWHERE)),
    "an update of the ORM": lambda s: s.execute(
        update(Note).where(Note.tenant_id == 5).values(tenant_id=ELSEWHERE)
    ),
}


def _store_and_flush(session: Session, store: Callable[[Session], object]) -> None:
    store(session)
    session.flush()


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_row_of_another_key_is_refused(
    routed: Routed, store: Callable[[Session], object]
) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        with pytest.raises(WrongShardKeyError) as raised:
            _store_and_flush(session, store)
        session.rollback()
        assert session.scalar(count_notes) == 0

    assert raised.value.code == "WrongShardKey"
    assert raised.value.facts["key"] in (ELSEWHERE, NEIGHBOUR)
    assert raised.value.facts["mapping"] == Range(0, 100)
    assert routed.notes(routed.one) == routed.notes(routed.two) == []


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
async def test_a_row_of_another_key_is_refused_by_async_sessions(
    arouted: Routed, store: Callable[[Session], object]
) -> None:
    async with arouted.tenants.async_sessionmaker()(5) as session:
        with pytest.raises(WrongShardKeyError):
            await session.run_sync(_store_and_flush, store)
        await session.rollback()
        assert await session.scalar(count_notes) == 0
    await arouted.manager.aclose()


def test_an_object_whose_key_is_changed_is_refused(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        session.add(Note(tenant_id=5, id=1))
        session.commit()
        session.get_one(Note, (5, 1)).tenant_id = ELSEWHERE

        with pytest.raises(WrongShardKeyError):
            session.commit()

    assert routed.notes(routed.one) == [(5, 1)]


def test_rows_of_the_same_mapping_are_stored(routed: Routed) -> None:
    with routed.tenants.sessionmaker().begin(5) as session:
        session.add_all([Note(tenant_id=5, id=1), Note(tenant_id=SAME, id=2)])
        session.execute(insert(note), [row(5, 3), row(SAME, 4)])
        session.execute(insert(note).values([row(5, 5), row(SAME, 6)]))
        session.execute(update(note).where(note.c.id == 3).values(tenant_id=SAME))
        session.execute(update(note).where(note.c.tenant_id == ELSEWHERE).values(said="x"))

    assert [key for key, _ in routed.notes(routed.one)] == [5, SAME, SAME, SAME, 5, SAME]


def test_what_the_database_computes_is_not_checked(routed: Routed) -> None:
    with routed.tenants.sessionmaker().begin(5) as session:
        session.execute(text("INSERT INTO note VALUES (205, 1, '')"))
        session.execute(insert(note).values(tenant_id=func.abs(-205), id=2, said=""))
        keys = ["tenant_id", "id", "said"]
        moved = select(note.c.tenant_id, note.c.id + 2, note.c.said)
        session.execute(insert(note).from_select(keys, moved))

    assert len(routed.notes(routed.one)) == 4


@pytest.mark.parametrize("validate", ["always", "lease", "never"])
def test_connections_are_checked_too(routed: Routed, validate: Any) -> None:
    with routed.tenants.connect(5, validate=validate) as connection:
        with pytest.raises(WrongShardKeyError):
            connection.execute(insert(note).values(row(ELSEWHERE)))
        connection.rollback()
        connection.execute(insert(note).values(row(5)))
        connection.commit()
    assert routed.notes(routed.one) == [(5, 1)]


async def test_async_connections_are_checked_too(arouted: Routed) -> None:
    async with arouted.tenants.aconnect(5) as connection:
        with pytest.raises(WrongShardKeyError):
            await connection.execute(insert(note).values(row(ELSEWHERE)))
    async with arouted.tenants.aconnect(5, check_keys=False) as connection:
        await connection.execute(insert(note).values(row(ELSEWHERE)))
    await arouted.manager.aclose()


def test_adopted_sessions_are_checked_as_their_connection_is(routed: Routed) -> None:
    for check_keys in (True, False):
        with routed.tenants.connect(5, check_keys=check_keys) as connection:
            session = RoutedSession.adopt(routed.tenants, connection)
            session.add(Note(tenant_id=ELSEWHERE, id=1))
            if check_keys:
                with pytest.raises(WrongShardKeyError):
                    session.flush()
            else:
                session.flush()
            session.close()


async def test_adopted_async_sessions_are_checked(arouted: Routed) -> None:
    make = arouted.tenants.async_sessionmaker()
    async with arouted.tenants.aconnect(5) as connection, make.adopt(connection) as session:
        session.add(Note(tenant_id=ELSEWHERE, id=1))
        with pytest.raises(WrongShardKeyError):
            await session.flush()
    await arouted.manager.aclose()


def test_the_check_can_be_left_out(routed: Routed) -> None:
    tenants = routed.tenants
    with tenants.sessionmaker(check_keys=False).begin(5) as session:
        session.add(Note(tenant_id=ELSEWHERE, id=1))
    with tenants.sessionmaker()(5, check_keys=False) as session, session.begin():
        session.add(Note(tenant_id=ELSEWHERE, id=2))
    with tenants.connect(5, check_keys=False) as connection, connection.begin_nested():
        connection.execute(insert(note).values(row(ELSEWHERE, 3)))
        connection.commit()
    tenants.run(5, lambda s: s.add(Note(tenant_id=ELSEWHERE, id=4)), check_keys=False)

    assert routed.notes(routed.one) == [(ELSEWHERE, number) for number in (1, 2, 3, 4)]


async def test_async_sessions_can_leave_the_check_out(arouted: Routed) -> None:
    async def store(session: AsyncSession) -> None:
        session.add(Note(tenant_id=ELSEWHERE, id=1))

    with pytest.raises(WrongShardKeyError):
        await arouted.tenants.arun(5, store)
    await arouted.tenants.arun(5, store, check_keys=False)
    await arouted.manager.aclose()
    assert await asyncio.to_thread(arouted.notes, arouted.one) == [(ELSEWHERE, 1)]


def test_units_of_work_are_not_tried_again(on_sqlite: Routed) -> None:
    tries: list[None] = []

    def store(session: RoutedSession) -> None:
        tries.append(None)
        session.add(Note(tenant_id=ELSEWHERE, id=1))

    with pytest.raises(WrongShardKeyError):
        on_sqlite.tenants.run(5, store)
    assert len(tries) == 1


def test_each_row_of_a_long_list_is_looked_at_once(
    on_sqlite: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def encode(key: int) -> bytes:
        looked.append(key)
        return on_sqlite.tenants.encode_key(key)

    monkeypatch.setattr(on_sqlite.tenants.row_keys, "_encode", encode)
    rows = [row(SAME, number) for number in range(2_500)]
    with on_sqlite.tenants.sessionmaker()(5) as session:
        session.execute(insert(note).returning(note.c.id), rows)
        session.execute(insert(note), [row(5, number) for number in range(2_500)])
    assert looked == [SAME] * 2_500


def test_a_map_without_a_schema_checks_nothing(on_sqlite: Routed) -> None:
    on_sqlite.tenants.set_schema(None)
    with on_sqlite.tenants.sessionmaker().begin(5) as session:
        session.add(Note(tenant_id=ELSEWHERE, id=1))
    assert on_sqlite.notes(on_sqlite.one) == [(ELSEWHERE, 1)]


# --- other maps, other tables ---------------------------------------------------------------------


class Shop(DeclarativeBase):
    pass


class Region(Shop):
    __tablename__ = "region"
    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Scratch(Shop):
    __tablename__ = "scratch"
    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Order(Shop):
    __tablename__ = "order"
    tenant: Mapped[int] = mapped_column("tenant_id", primary_key=True, default=lambda: 9)
    id: Mapped[int] = mapped_column(primary_key=True)
    lines: Mapped[list["Line"]] = relationship(back_populates="order")


class Line(Shop):
    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[int | None] = mapped_column(Integer, key="owner")
    order_id: Mapped[int | None]
    order: Mapped[Order | None] = relationship(back_populates="lines")
    __table_args__ = (ForeignKeyConstraint(["owner", "order_id"], ["order.tenant_id", "order.id"]),)


SHOP = ShardedSchema(
    Shop.metadata, keys={"order": "tenant_id", "line": "owner"}, reference=["region"]
)


@pytest.fixture
def shop(new_sqlite: NewDatabase) -> Iterator[Any]:
    """A list map with the keys 5 and 9, each on a shard of its own."""
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        made = manager.create_list_map("tenants", key=int, schema=SHOP)
        fleet = Fleet(manager, metadata=Shop.metadata)
        for key in (5, 9):
            fleet.add_shard(made, new_sqlite(f"shard{key}"), [key])
        yield made


def test_a_list_map_takes_rows_of_the_key_of_the_session_alone(shop: Any) -> None:
    with shop.sessionmaker().begin(5) as session:
        session.add(Order(tenant=5, id=1))
    with shop.sessionmaker()(5) as session:
        session.add(Order(tenant=6, id=1))
        with pytest.raises(WrongShardKeyError):
            session.flush()


def test_a_key_that_a_default_gives_is_checked(shop: Any) -> None:
    with shop.sessionmaker().begin(9) as session:
        session.add(Order(id=1))
    with shop.sessionmaker()(5) as session:
        session.add(Order(id=1))
        with pytest.raises(WrongShardKeyError):
            session.flush()


def test_a_key_that_a_relationship_gives_is_checked(shop: Any) -> None:
    with shop.sessionmaker(check_keys=False).begin(5) as session:
        session.add(Order(tenant=9, id=1))
    with shop.sessionmaker().begin(5) as session:
        session.add(Order(tenant=5, id=1, lines=[Line(id=1)]))
    with shop.sessionmaker()(5) as session:
        order = session.get_one(Order, (9, 1))
        order.lines.append(Line(id=2))
        with pytest.raises(WrongShardKeyError) as raised:
            session.flush()
    assert raised.value.facts["table"] == "line"


def test_reference_tables_other_tables_and_rows_without_a_key_are_not_checked(shop: Any) -> None:
    with shop.sessionmaker().begin(5) as session:
        session.add_all([Region(tenant_id=9), Scratch(tenant_id=9), Line(id=1)])


def test_a_composite_key_is_checked_as_a_whole(new_sqlite: NewDatabase) -> None:
    tables = MetaData()
    blog = Table(
        "blog",
        tables,
        Column("region", String, primary_key=True),
        Column("tenant", Integer, primary_key=True),
        Column("title", String),
    )
    schema = ShardedSchema(tables, keys={"blog": ["region", "tenant"]})
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        made = manager.create_range_map("blogs", key=(str, int), schema=schema)
        fleet = Fleet(manager, metadata=tables)
        fleet.add_shard(made, new_sqlite("eu"), [Range(("eu",), ("us",))])
        fleet.add_shard(made, new_sqlite("us"), [Range(("us",), None)])
        with made.sessionmaker().begin(("eu", 5)) as session:
            session.execute(insert(blog).values(region="eu", tenant=5))
            session.execute(insert(blog).values(region="eu", tenant=6))
            session.execute(update(blog).values(title="x"))
            session.execute(update(blog).where(blog.c.tenant == 6).values(tenant=7))
            for statement in (
                insert(blog).values(region="us", tenant=5),
                update(blog).values(region="us"),
            ):
                with pytest.raises(WrongShardKeyError):
                    session.execute(statement)


def test_a_hash_map_takes_rows_of_the_buckets_of_the_session(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        made = manager.create_hash_map("tenants", key=int, buckets=2, schema=SHOP)
        fleet = Fleet(manager, metadata=Shop.metadata)
        for bucket in (0, 1):
            url = new_sqlite(f"bucket{bucket}")
            fleet.add_shard(made, url, [Range(bucket, bucket + 1)])
        buckets: dict[bytes, list[int]] = {}
        for key in range(20):
            buckets.setdefault(made.encode_key(key), []).append(key)
        (one, other, *_), (elsewhere, *_) = buckets.values()
        with made.sessionmaker().begin(one) as session:
            session.add_all([Order(tenant=one, id=1), Order(tenant=other, id=1)])
        with made.sessionmaker()(one) as session:
            session.add(Order(tenant=elsewhere, id=2))
            with pytest.raises(WrongShardKeyError):
                session.flush()
