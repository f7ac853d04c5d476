"""Front ends of one PostgreSQL database, in this process: one database per test process."""

import asyncio
import atexit
import itertools
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import psycopg
from psycopg import sql

from partita.scaleout.catalog.purge import purge_tables
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema import entities
from partita.scaleout.schema.install import install
from partita.scaleout.schema.locks import RANGE_LOCKS
from partita.scaleout.tables.postgres_store import PostgresTableStore
from partita.storage.durability import Durability
from partita.ticks import Clock
from support import postgres
from support.catalog_databases import url_of

_CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE {}")


@cache
def installed_url(locale: str = "C") -> str:
    """Return the URL of this process's database with the schema; commits do not wait for disks."""
    server = postgres.server()
    name = f"fleet_{uuid.uuid4().hex[:8]}"
    server.execute(_CREATE.format(sql.Identifier(name), sql.Literal(locale)))
    server.execute(postgres.DO_NOT_WAIT.format(sql.Identifier(name)))
    url = url_of(name)
    with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
        thread.submit(lambda: asyncio.run(install(url))).result()
    return url


async def open_fleet(clock: Clock | None = None) -> Fleet:
    """Open a front end; a clock that is handed in is not compared with the database's."""
    return await Fleet.open(
        installed_url(),
        durability=Durability.FAST,
        clock=clock,
        checks_clock=False,
        follows_catalog=clock is None,
    )


class OwningStore(PostgresTableStore):
    """A store that closes its front end."""

    def __init__(self, fleet: Fleet, account_id: int) -> None:
        super().__init__(account_id, fleet.catalog, fleet.clock, fleet.places)
        self.fleet = fleet
        self._is_closed = False

    @classmethod
    async def open(cls, account_name: str, clock: Clock | None = None) -> "OwningStore":
        fleet = await open_fleet(clock)
        return cls(fleet, await fleet.catalog.account_id(account_name))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.fleet.close()

    async def purge(self) -> None:
        """Reclaim the space of dropped tables now."""
        await purge_tables(self.fleet.pool)


@cache
def _connection() -> psycopg.Connection:
    connection = psycopg.connect(installed_url(), autocommit=True)
    atexit.register(connection.close)
    return connection


def whole_write() -> str:
    """Return the definition of the function that writes."""
    text = entities.FUNCTIONS
    start = text.index("CREATE OR REPLACE FUNCTION partita.write_2")
    return text[start : text.index("$$;", start) + 3]


def forget_slots() -> None:
    """Let the next front end begin without the stamps of earlier ones."""
    _connection().execute("DELETE FROM partita.slot")


async def cut_ranges(fleet: Fleet, tid: int, bounds: Sequence[str]) -> None:
    """Replace the ranges of a table by others, as splits and merges do; nobody is told."""
    async with fleet.pool.link() as link, link.transaction():
        await link.read(
            "SELECT pg_advisory_xact_lock($1, id) FROM partita.range_own WHERE tid = $2",
            *(RANGE_LOCKS, tid),
        )
        for name in ("range", "range_own"):
            await link.read(f"DELETE FROM partita.{name} WHERE tid = $1", tid)
        for lo, hi in itertools.pairwise(["", *bounds, None]):
            await link.read(
                "WITH r AS (INSERT INTO partita.range (tid, lo, hi, epoch)"
                " VALUES ($1, $2, $3, nextval('partita.epoch')) RETURNING *)"
                " INSERT INTO partita.range_own (id, tid, lo, hi, epoch)"
                " SELECT id, tid, lo, hi, epoch FROM r",
                *(tid, lo, hi),
            )
