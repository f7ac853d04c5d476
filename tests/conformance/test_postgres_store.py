import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import pytest

from conformance.table_store import TableStoreConformance
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.fleet_clock import SLOTS_MAX
from partita.tables.store import Table
from support.front_ends import OwningStore, forget_slots


class TestPostgres(TableStoreConformance):
    ticks_precision = SLOTS_MAX
    store: OwningStore

    @pytest.fixture(autouse=True)
    def account(self) -> None:
        self.account_name = f"conformance{uuid.uuid4().hex[:12]}"
        forget_slots()

    async def open_store(self) -> OwningStore:
        return await OwningStore.open(self.account_name, self.clock)

    async def space_is_reclaimed(self, table: Table) -> None:
        statement = "SELECT FROM partita.entity WHERE tid = $1"
        async with asyncio.timeout(60):  # the fleet's own purge may be at work on it
            while await self.store.fleet.pool.read(statement, table.id):
                await self.store.purge()

    async def cancel_after(self, steps: int, work: Coroutine[Any, Any, object]) -> None:
        await super().cancel_after(steps, work)
        # Changes of the catalog have several connections: another change does not wait for them.
        changes = [each.__qualname__ for each in (Catalog._create_table, Catalog._delete)]
        while under_way := [
            task
            for task in asyncio.all_tasks()
            if getattr(task.get_coro(), "__qualname__", "") in changes
        ]:
            await asyncio.wait(under_way)
