import uuid
from collections.abc import AsyncIterator

import pytest

from conformance.table_store import TableStoreConformance
from partita.scaleout.catalog.fleet_clock import SLOTS_MAX
from support.front_ends import FrontEnd, OwningStore, forget_slots, installed_url


class TestPostgres(TableStoreConformance):
    ticks_precision = SLOTS_MAX

    @pytest.fixture(autouse=True)
    async def account(self) -> AsyncIterator[None]:
        self.account_name = f"conformance{uuid.uuid4().hex[:12]}"
        await forget_slots(installed_url())
        yield

    async def open_store(self) -> OwningStore:
        front_end = await FrontEnd.open(self.clock, installed_url())
        return await front_end.tables(self.account_name)
