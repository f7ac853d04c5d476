"""A reliable state in a folder, and a catalog of shard maps, for the console to show."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import partita
from partita.shards import Fleet, Range, ShardedSchema, ShardMapManager


class Order(msgspec.Struct, frozen=True):
    customer: str
    total: float
    lines: tuple[str, ...]


def seed_state(folder: Path, orders: int = 250) -> None:
    """Write two dictionaries and a queue."""
    with ThreadPoolExecutor(1) as thread:  # the loop of Playwright runs in this one
        thread.submit(asyncio.run, _seed_state(folder, orders)).result()


async def _seed_state(folder: Path, orders: int) -> None:
    async with partita.open_state(folder) as state:
        kept = await state.dictionary("orders", key=str, value=Order)
        stock = await state.dictionary("stock", key=tuple[str, int], value=int)
        work = await state.queue("to-ship", value=str)
        async with state.transaction() as tx:
            for number in range(orders):
                lines = (f"{1 + number % 3} chairs", "1 table")
                order = Order(f"customer-{number % 17:02}", 12.5 * number, lines)
                await kept.set(tx, f"order-{number:05}", order)
            for shelf in range(12):
                await stock.set(tx, ("zurich", shelf), shelf * 7)
            for number in range(0, orders, 9):
                await work.enqueue(tx, f"order-{number:05}")


class Base(DeclarativeBase):
    pass


class Blog(Base):
    __tablename__ = "blog"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def seed_catalog(folder: Path) -> str:
    """Make a map of ranges whose keys 300 to 500 were moved, and a list map; return the URL."""
    url = f"sqlite:///{folder / 'catalog.db'}"
    with ShardMapManager.create(url) as manager:
        schema = ShardedSchema(Base.metadata, keys={"blog": "tenant_id"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        fleet = Fleet(manager, metadata=Base.metadata)
        shards = [
            fleet.add_shard(
                tenants,
                f"sqlite:///{folder / f'shard-{number}.db'}",
                mappings=[Range(number * 300, number * 300 + 300)],
            )
            for number in range(4)
        ]
        session_of = tenants.sessionmaker()
        for tenant in range(300, 340):
            with session_of(tenant) as session, session.begin():
                session.add(Blog(tenant_id=tenant, name=f"Blog {tenant}"))
        low, _ = tenants.split(at=500)
        fleet.move(low, to=shards[3])
        regions = manager.create_list_map("regions", key=str)
        shard = regions.create_shard(f"sqlite:///{folder / 'shard-0.db'}")
        for region in ("eu", "us", "asia"):
            regions.create_mapping(region, shard)
        regions.set_offline(regions.get("us"))
    return url
