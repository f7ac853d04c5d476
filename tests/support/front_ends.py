"""Front ends of one PostgreSQL database, in this process: one database per test process."""

import asyncio
import getpass
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from psycopg import sql

from partita.clock import SystemClock
from partita.local_postgres import HOST
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.catalog.slots import Slots
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema.install import install
from partita.scaleout.tables.postgres_store import PostgresTableStore
from partita.scaleout.tables.trips import Trips
from partita.storage.durability import Durability
from partita.ticks import Clock
from support import postgres

_CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE {}")


@cache
def installed_url(locale: str = "C") -> str:
    """Return the URL of this process's database with the schema; commits do not wait for disks."""
    server = postgres.server()
    name = f"fleet_{uuid.uuid4().hex[:8]}"
    server.execute(_CREATE.format(sql.Identifier(name), sql.Literal(locale)))
    server.execute(postgres.DO_NOT_WAIT.format(sql.Identifier(name)))
    url = f"postgresql://{getpass.getuser()}@{HOST}:{server.port}/{name}"
    with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
        thread.submit(lambda: asyncio.run(install(url))).result()
    return url


class FrontEnd:
    """What one front end owns, and its table stores."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.clock = clock
        self.connector = Connector(Location.parse(url), Durability.FAST)
        self.pool = Pool(self.connector)
        self.trips = Trips(self.connector, self.pool)
        self.fleet_clock = FleetClock(clock, lease_clock=SystemClock())
        self.slots = Slots(self.pool, self.fleet_clock, uuid.uuid4())
        self.catalog: Catalog

    @classmethod
    async def open(cls, clock: Clock, url: str | None = None) -> "FrontEnd":
        front_end = cls(url or await asyncio.to_thread(installed_url), clock)
        front_end.catalog = await Catalog.open(front_end.connector, front_end.pool)
        await front_end.slots.take()
        return front_end

    async def tables(self, account: str) -> "OwningStore":
        identity = await self.catalog.account_id(account)
        return OwningStore(self, identity)

    async def close(self) -> None:
        if self.fleet_clock.lease is None:
            return
        await self.trips.close()
        await self.slots.give_back()
        await self.catalog.close()
        await self.pool.close()


class OwningStore(PostgresTableStore):
    """A store that closes its front end."""

    def __init__(self, front_end: FrontEnd, account_id: int) -> None:
        super().__init__(
            account_id,
            front_end.catalog,
            front_end.fleet_clock,
            front_end.trips,
            front_end.pool,
            front_end.clock,
        )
        self.front_end = front_end

    async def close(self) -> None:
        await self.front_end.close()


async def forget_slots(url: str) -> None:
    """Let the next front end begin without the stamps of earlier ones."""
    link = await Connector(Location.parse(url), Durability.FAST).connect()
    await link.write("DELETE FROM partita.slot")
    await link.close()
