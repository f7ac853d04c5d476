"""The model of the table engine beside two front ends on one PostgreSQL, in turns.

Scans look at few entities a statement, and ranges are split, so that pages, statements and ranges
meet in every way.
"""

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from partita.scaleout.tables import scan
from partita.tables.engine import TableEngine
from support.front_ends import OwningStore, cut_ranges, forget_slots
from unit.tables.test_engine_model import TABLE_NAMES, EngineMachine, runs


class InTurns:
    """Two stores of one account: each call goes to the other one."""

    def __init__(self, stores: list[OwningStore]) -> None:
        self.stores = stores
        self._turns = itertools.cycle(stores)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(self._turns), name)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class PostgresMachine(EngineMachine):
    is_durable = True

    def __init__(self) -> None:
        self.account = f"model{uuid.uuid4().hex[:12]}"
        super().__init__()
        self.patch.setattr(scan, "LOOK_ENTITIES_MAX", 5)
        self.patch.setattr(scan, "UNCHECKED_ENTITIES_MAX", 2)

    async def open(self) -> TableEngine:
        if not hasattr(self, "tables"):
            forget_slots()
        stores = [await OwningStore.open(self.account, self.clock) for _ in range(2)]
        return TableEngine(InTurns(stores))

    @rule(name=TABLE_NAMES, bounds=st.sets(st.sampled_from(["a", "p", "p!", "q"])))
    def cut_ranges(self, name: str, bounds: set[str]) -> None:
        if name.lower() not in self.tables:
            return
        table = self.run(self.engine.get_table(name))
        store = self.engine.store.stores[0]  # type: ignore[attr-defined]
        self.run(cut_ranges(store.fleet, table.id, sorted(bounds)))


TestEngineOnPostgres = pytest.mark.repeated(PostgresMachine.TestCase)
TestEngineOnPostgres.settings = runs(20)
