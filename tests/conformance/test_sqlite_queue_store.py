from typing import Any

import pytest

from conformance.queue_store import QueueStoreConformance
from partita.queues import sqlite_store
from partita.queues.sqlite_store import SqliteQueueStore
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock


class SqliteQueueStoreConformance(QueueStoreConformance):
    database: Database

    async def open_store(self) -> SqliteQueueStore:
        self.database = await Database.open(self.folder if self.is_durable else None)
        return await SqliteQueueStore.open(self.database, StoreClock(self.database, self.clock))

    async def close_store(self) -> None:
        await self.store.close()
        await self.database.close()


class TestSqliteInAFolder(SqliteQueueStoreConformance):
    @pytest.mark.parametrize("sql", [sqlite_store._VISIBLE, sqlite_store._ALIVE])
    async def test_the_next_message_is_found_by_the_index_of_visibility(self, sql: str) -> None:
        plan: list[Any] = self.database.reader.execute(
            f"EXPLAIN QUERY PLAN {sql}", (1,) * sql.count("?")
        ).fetchall()

        assert len(plan) == 1
        assert "USING INDEX message_visibility (queue_id=? AND visible_at<?)" in plan[0][3]

    async def test_a_claim_takes_as_many_steps_whatever_the_queue_holds(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, *("x" for _ in range(10)))
        few = await self.steps_of_a_claim(queue)
        await self.put(queue, *("x" for _ in range(3000)))
        many = await self.steps_of_a_claim(queue)

        assert many <= few + 20

    async def steps_of_a_claim(self, queue: str) -> int:
        steps = 0

        def count() -> bool:
            nonlocal steps
            steps += 1
            return False

        writer = self.database._writer
        writer.set_progress_handler(count, 10)
        await self.claim(queue, 1)
        writer.set_progress_handler(None)
        return steps * 10

    async def test_the_sweep_leaves_no_rows_behind(self) -> None:
        queue, other = await self.a_queue(), await self.a_queue("other")
        await self.put(queue, *(str(n) for n in range(700)))
        await self.put(other, *(str(n) for n in range(700)), lives=5)
        await self.store.clear(queue)
        await self.store.delete_queue(queue)
        self.clock.advance(6)

        await self.store.sweep()

        reader = self.database.reader
        assert reader.execute("SELECT count(*) FROM message").get == 0
        assert reader.execute("SELECT count(*) FROM dropped_queue").get == 0
        assert reader.execute("SELECT sum(messages) FROM message_count").get == 0


class TestSqliteInMemory(SqliteQueueStoreConformance):
    is_durable = False


@pytest.mark.proof
class TestSqliteInSmallSteps(SqliteQueueStoreConformance):
    """The same contract when a sweep takes many changes, and runs all the time."""

    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_store, "SWEEP_MESSAGES", 40)
        monkeypatch.setattr(sqlite_store, "SWEEP_PAUSE_SECONDS", 0)
        monkeypatch.setattr(sqlite_store, "SWEEP_SECONDS", 0.001)
