"""What one front end owns: connections, the catalog, the clock with its slot, and the stores.

    fleet = await Fleet.open("postgresql://partita@db1,db2/partita")
    stores = await fleet.stores("devaccount")

A background task notes every few seconds in the database that this front end is alive, compares
the clocks, renews the slot, and reclaims the space of dropped tables.
"""

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable

import msgspec

from partita.blobs.store.contract import BlobStore
from partita.clock import SystemClock
from partita.errors import InDoubtError, PartitaError, StoreBusyError, UnavailableError
from partita.metrics.store_meter import StoreMeter
from partita.queues.store import QueueStore
from partita.scaleout.blobs.contents import Contents
from partita.scaleout.blobs.postgres_store import PostgresBlobStore
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.fleet_clock import CLOSE_SECONDS_MAX, FleetClock
from partita.scaleout.catalog.heat import FleetHeat
from partita.scaleout.catalog.purge import fold_removed, purge_tables
from partita.scaleout.catalog.shards import HOME, Shard, Shards
from partita.scaleout.catalog.slots import Slots
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.queues.postgres_store import QueueDatabase
from partita.scaleout.tables.places import Places
from partita.scaleout.tables.postgres_store import PostgresTableStore
from partita.storage.durability import Durability
from partita.tables.store import TableStore
from partita.ticks import TICKS_PER_SECOND, Clock

logger = logging.getLogger("partita.scaleout.fleet")

BEAT_SECONDS = 10.0
"""How often a front end shows that it is alive, and compares the clocks."""
BEAT_AGAIN_SECONDS = 1.0
"""The same after a failure."""
ALIVE_TICKS = 30 * TICKS_PER_SECOND
"""A front end that was not seen for longer is not counted, ..."""
FORGET_TICKS = 3600 * TICKS_PER_SECOND
"""... and for longer than this, forgotten."""
PURGE_SECONDS = 30.0
CATALOG_LINKS_MAX = 2
"""Connections for the catalog: scans do not delay it."""

_BEAT = "SELECT partita.beat_1($1, $2, $3, $4, $5) AS front_ends"
_SIZE = "SELECT pg_database_size(current_database()) AS bytes"
_TICKS = "SELECT partita.ticks_1() AS ticks"
_LEAVE = "DELETE FROM partita.front_end WHERE id = $1"


class Stores(msgspec.Struct, frozen=True):
    """The stores of one account."""

    tables: TableStore
    queues: QueueStore
    blobs: BlobStore


class Fleet:
    """One front end of the fleet; build it with `open`."""

    def __init__(
        self,
        connector: Connector,
        *,
        blob_store: str | None,
        clock: Clock | None,
        checks_clock: bool,
        follows_catalog: bool,
    ) -> None:
        self.connector = connector
        self.meter = StoreMeter()
        self.meter.store_bytes = lambda: self._database_bytes
        self._database_bytes = 0
        """The size of all reachable databases when they were last asked for."""
        self.blob_store = blob_store
        """The URL of the object store of long blobs; None: there is none."""
        self.contents: Contents | None = None
        """What the blob stores share, once it is open."""
        self.pool = Pool(connector, waits=self.meter.connection_wait_seconds)
        """For scans, long groups and transactions of the stores."""
        self._catalog_pool = Pool(connector, links_max=CATALOG_LINKS_MAX)
        self.shards = Shards(connector, self.pool)
        """The databases that have the ranges of tables and queues."""
        self.places = Places(self.shards, self.meter)
        """For reads and changes of entities, by shard."""
        self.clock = FleetClock(
            clock or SystemClock(), lease_clock=SystemClock(), checks_clock=checks_clock
        )
        self._follows_catalog = follows_catalog
        self.id = uuid.UUID(SystemClock().new_id())
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.front_ends = 1
        """How many front ends are alive."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called if the background work ended by an error that is a fault of the program."""
        self.catalog = Catalog(connector, self._catalog_pool, self.shards)
        self.queues = QueueDatabase(
            self.catalog, self.pool, self.clock.clock, may_expire=lambda: self.clock.is_close
        )
        """What the queue stores share."""
        self.heat = FleetHeat(self._catalog_pool, self.id)
        """Where the load of tables is kept."""
        self._slots = Slots(self._catalog_pool, self.clock, self.id)
        self._trouble = ""
        """Why the last background work failed; empty if it did not."""
        self._is_catalog_away = False
        """Whether it failed because the catalog did not answer."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stores: dict[str, Stores] = {}

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        durability: Durability = Durability.FULL,
        blob_store: str | None = None,
        clock: Clock | None = None,
        checks_clock: bool = True,
        follows_catalog: bool = True,
    ) -> "Fleet":
        """Connect to the database, check it, read the catalog, lease a slot.

        With `checks_clock`, a wall clock that is far from the catalog's makes it not ready. Without
        `follows_catalog`, stamps follow `clock` and not the catalog's: for tests.
        """
        connector = Connector(Location.parse(url), durability)
        fleet = cls(
            connector,
            blob_store=blob_store,
            clock=clock,
            checks_clock=checks_clock,
            follows_catalog=follows_catalog,
        )
        try:
            await fleet.catalog.start()
            await fleet._beat()
            await fleet._measure()
            fleet.contents = await Contents.open(fleet.pool, fleet.clock, blob_store)
            fleet.queues.start()
            fleet.contents.start()
        except BaseException:
            await fleet.close()
            raise
        for work in (fleet._keep_beating, fleet._keep_purging):
            task = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(fleet._ended)
            fleet._tasks.append(task)
        return fleet

    async def stores(self, account_name: str) -> Stores:
        """Return the stores of an account; an account is known to the fleet once it is used."""
        if (found := self._stores.get(account_name)) is None:
            account_id = await self.catalog.account_id(account_name)
            assert self.contents is not None
            built = Stores(
                PostgresTableStore(
                    account_id,
                    self.catalog,
                    self.clock,
                    self.places,
                    front_ends=lambda: self.front_ends,
                ),
                self.queues.store(account_id),
                PostgresBlobStore(self.contents, account_id),
            )
            found = self._stores.setdefault(account_name, built)
        return found

    @property
    def on_change(self) -> list[Callable[[], Awaitable[None]]]:
        """Callbacks for changes of the catalog by other front ends."""
        return self.catalog.on_change

    @property
    def is_ready(self) -> bool:
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        """Why a load balancer should send requests to other front ends; empty if it need not."""
        if not self.clock.is_close:
            return (
                f"the clock is {self.clock.seconds_apart:+.1f} s from the database's;"
                f" at most {CLOSE_SECONDS_MAX:g} s are allowed"
            )
        if not self.clock.has_slot:
            return "this front end has no slot"
        if self._is_catalog_away and len(self.shards) > 1:
            return ""  # known tables on other shards are served
        return self._trouble

    async def close(self) -> None:
        """Give back the slot and close the connections; the stores must be closed before."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.places.close()
        await self.queues.close()
        if self.contents is not None:
            await self.contents.close()
        await self.catalog.close()
        try:
            await self._leave()
        except PartitaError as error:
            logger.warning("the slot was not given back: %s", error)
        await self.shards.close()
        await self._catalog_pool.close()
        await self.pool.close()

    # Background work

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_AGAIN_SECONDS if self._trouble else BEAT_SECONDS)
            try:
                await self._beat()
            except InDoubtError as error:
                # The server answers, but no standby does: reads go on.
                self._trouble = ""
                logger.warning("writes are not confirmed: %s", error)
            except PartitaError as error:
                if not self._trouble:
                    logger.warning("the catalog refuses or does not answer: %s", error)
                self._trouble = f"{error.code}: {error.message}"
                self._is_catalog_away = isinstance(error, StoreBusyError)

    async def _keep_purging(self) -> None:
        while True:
            try:
                await self._measure()
                await self.catalog.close_dropped()
            except PartitaError as error:
                logger.info("the purge goes on later: %s", error)
            for shard in self.shards:
                await self._purge(shard)
            await asyncio.sleep(PURGE_SECONDS)

    async def _purge(self, shard: Shard) -> None:
        """Reclaim space on one shard; the others do not wait for one that is away."""
        pool = self._catalog_pool if shard.id == HOME else self.shards.pool(shard.id)
        try:
            await fold_removed(pool)
            await purge_tables(pool)
        except PartitaError as error:
            logger.info("the purge of %s goes on later: %s", shard.name, error)

    async def _beat(self) -> None:
        if self._follows_catalog:  # first: the floor of a slot is a time, too
            async with self._catalog_pool.link() as link:
                before = self.clock.reading()
                rows = await link.read(_TICKS)
                self.clock.compare(before, self.clock.reading(rows[0]["ticks"]))
        if self._slots.must_renew or not self.clock.has_slot:
            await self._slots.renew()
        lease = self.clock.lease
        slot = None if lease is None else lease.slot
        rows = await self._catalog_pool.write(
            _BEAT, self.id, self.name, slot, ALIVE_TICKS, FORGET_TICKS
        )
        self.front_ends = max(1, rows[0]["front_ends"])
        self._trouble = ""
        self._is_catalog_away = False

    async def _measure(self) -> None:
        sizes = 0
        for shard in self.shards:
            pool = self._catalog_pool if shard.id == HOME else self.shards.pool(shard.id)
            with contextlib.suppress(UnavailableError):
                sizes += (await pool.read(_SIZE))[0]["bytes"]
        self._database_bytes = sizes

    async def _leave(self) -> None:
        if self.clock.lease is not None:
            await self._slots.give_back()
            await self._catalog_pool.write(_LEAVE, self.id)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._trouble = f"the background work ended: {type(error).__name__}"
            if self.on_failure is not None:
                self.on_failure(error)
