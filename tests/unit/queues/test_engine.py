"""Queue engine: clocks set back, deleted queues, cancelled gets, expired messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partita.clock import ManualClock
from partita.errors import MessageNotFoundError, PartitaError, ReceiptMismatchError
from partita.queues import sqlite_store
from partita.queues.engine import QueueEngine
from partita.queues.sqlite_store import SqliteQueueStore
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock

DAY_SECONDS = 24 * 3600


@asynccontextmanager
async def opened(folder: Path, clock: ManualClock) -> AsyncIterator[QueueEngine]:
    database = await Database.open(folder)
    store = SqliteQueueStore(database, StoreClock(database, clock))
    yield QueueEngine(store)
    await store.close()
    await database.close()


async def test_a_clock_set_back_across_a_restart_shows_nothing_early_and_loses_nothing(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock) as queues:
        await queues.create_queue("work", {})
        await queues.put("work", "x", lifetime_seconds=60)
        [held] = await queues.get("work", hidden_seconds=30)
    clock.jump(-DAY_SECONDS)
    async with opened(tmp_path, clock) as queues:
        assert await queues.get("work") == []
        renewed = await queues.update("work", held.id, held.receipt, hidden_seconds=10)
        clock.advance(2 * 10 + 2)
        [again] = await queues.get("work", hidden_seconds=1)
        assert again.dequeue_count == 2
        with pytest.raises(ReceiptMismatchError, match="MessageNotFound"):
            await queues.delete("work", renewed.id, renewed.receipt)
        clock.advance(2 * 60 + 2)
        assert await queues.get("work") == []
        with pytest.raises(MessageNotFoundError):
            await queues.delete("work", again.id, again.receipt)


async def test_messages_put_while_their_queue_goes_leave_no_row_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, ManualClock()) as queues:
        store = queues.store
        assert isinstance(store, SqliteQueueStore)
        for turn in range(8):
            await queues.create_queue("work", {})
            ends = queues.delete_queue if turn % 2 else queues.clear
            puts = [queues.put("work", "x", lifetime_seconds=None) for _ in range(10)]
            await asyncio.gather(*puts[:5], ends("work"), *puts[5:], return_exceptions=True)
            with contextlib.suppress(PartitaError):
                await queues.delete_queue("work")
            await store.sweep()
        count = "SELECT (SELECT count(*) FROM message) + (SELECT count(*) FROM message_count)"
        assert store.database.reader.execute(count).get == 0


async def test_a_get_that_is_cancelled_hides_messages_and_loses_none(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock) as queues:
        await queues.create_queue("work", {})
        for number in range(20):
            await queues.put("work", str(number))
        for turns in range(20):
            getting = asyncio.ensure_future(queues.get("work", hidden_seconds=30))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            getting.cancel()
            await asyncio.wait([getting])
        clock.advance(31)
        texts = {message.text for message in await queues.get("work", limit=32)}
        assert texts == {str(number) for number in range(20)}
        assert (await queues.get_queue("work")).message_count == 20


async def test_an_expired_message_behind_living_ones_does_not_hold_a_get_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "SWEEP_MESSAGES", 2)
    clock = ManualClock()
    async with opened(tmp_path, clock) as queues:
        await queues.create_queue("work", {})
        for text, seconds in (("a", 60), ("b", 60), ("late", 1), ("c", 60)):
            await queues.put("work", text, lifetime_seconds=seconds)
        clock.advance(2)

        got = await queues.get("work", limit=32, hidden_seconds=30)

        assert [message.text for message in got] == ["a", "b", "c"]
