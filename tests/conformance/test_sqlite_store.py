from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from conformance.table_store import EVERYTHING, TableStoreConformance, condition, row_keys_of
from partita.errors import StoreLockedError
from partita.storage.database import Database
from partita.tables import sqlite_scan, sqlite_store
from partita.tables.entity import Entity, EntityKey
from partita.tables.expectations import ANYTHING, NOTHING, SOMETHING, assumed
from partita.tables.sqlite_store import SqliteTableStore
from partita.tables.store import Decide, Expected, Table


class TestSqliteInAFolder(TableStoreConformance):
    async def open_store(self) -> SqliteTableStore:
        return await SqliteTableStore.open(await Database.open(self.folder), self.clock)

    async def test_a_folder_has_one_holder(self) -> None:
        with pytest.raises(StoreLockedError) as refused:
            await Database.open(self.folder)

        assert str(refused.value.facts["holder"]).isdigit()

    @pytest.mark.parametrize("limit", [1, 1000])
    async def test_a_scan_for_a_rare_match_takes_few_steps(
        self, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = await self.store.create_table("Staff")
        text = "x" * 200
        await self.put(table, *(("p", f"{n:04}") for n in range(3000)), Name=text)
        await self.put(table, ("p", "2999"), Name=text + "y")
        steps = 0
        in_reader = Database.in_reader

        async def counted(database: Database, read: Callable[..., Any]) -> Any:
            nonlocal steps
            steps += 1
            return await in_reader(database, read)

        monkeypatch.setattr(Database, "in_reader", counted)
        # Too long to be pushed down: every entity is a candidate.
        page = await self.store.scan(table, EVERYTHING, condition(f"Name eq '{text}y'"), limit)

        assert row_keys_of(page.entities) == ["2999"]
        assert steps == 1


class TestSqliteInMemory(TableStoreConformance):
    is_durable = False

    async def open_store(self) -> SqliteTableStore:
        return await SqliteTableStore.open(await Database.open(None), self.clock)


class GuessingStore(SqliteTableStore):
    """Decides on the stand-ins of expectations where they are met, as a networked store does."""

    async def change(
        self,
        table: Table,
        partition_key: str,
        row_keys: Sequence[str],
        decide: Decide,
        *,
        expected: Expected | None = None,
        frees_space: bool = False,
        is_long: bool = False,
    ) -> Sequence[Entity | None]:
        guesses = [None] * len(row_keys) if expected is None else expected()
        stand_ins: dict[str, Entity] = {}
        for row_key, guess in zip(row_keys, guesses, strict=True):
            entity = None if guess is None else assumed(EntityKey(partition_key, row_key), guess)
            if entity is not None:
                stand_ins[row_key] = entity

        def decide_again(before: Mapping[str, Entity], now: int) -> Sequence[Entity | None]:
            with suppress(Exception):  # a decision that came too late, on other entities
                decide({}, now - 1)
            pairs = [(before.get(each), n) for each, n in zip(row_keys, guesses, strict=True)]
            are_met = all(n is not None and is_met(found, n) for found, n in pairs)
            return decide(stand_ins if are_met else before, now)

        return await super().change(
            table, partition_key, row_keys, decide_again, frees_space=frees_space, is_long=is_long
        )


def is_met(found: Entity | None, expectation: int) -> bool:
    if expectation in (NOTHING, SOMETHING):
        return (found is not None) == (expectation == SOMETHING)
    return expectation == ANYTHING or (found is not None and found.ticks == expectation)


class TestSqliteThatDecidesOnExpectations(TableStoreConformance):
    """The suite holds for a store that decides more than once, and on stand-ins."""

    is_durable = False

    async def open_store(self) -> SqliteTableStore:
        return await GuessingStore.open(await Database.open(None), self.clock)


@pytest.mark.proof
class TestSqliteInSmallSteps(TableStoreConformance):
    """The same contract when every scan takes many steps and every purge many changes."""

    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_scan, "CHUNK_ENTITIES", 50)
        monkeypatch.setattr(sqlite_scan, "PROGRESS_INSTRUCTIONS", 1)
        monkeypatch.setattr(sqlite_scan, "WHOLE_RANGE_SECONDS", -1.0)
        monkeypatch.setattr(sqlite_store, "INLINE_ENTITIES_MAX", 3)
        monkeypatch.setattr(sqlite_store, "PURGE_ENTITIES", 20)
        monkeypatch.setattr(sqlite_store, "PURGE_PAUSE_SECONDS", 0)

    async def open_store(self) -> SqliteTableStore:
        return await SqliteTableStore.open(await Database.open(self.folder), self.clock)
