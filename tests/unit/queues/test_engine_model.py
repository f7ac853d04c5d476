"""The engine on SQLite beside the model of support.queue_machine."""

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis.stateful import rule

from partita.queues import sqlite_store
from partita.queues.engine import QueueEngine
from partita.queues.sqlite_store import SqliteQueueStore
from partita.queues.store import Queue
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from support.queue_machine import QueueMachine, run_machine


class SqliteQueueMachine(QueueMachine):
    is_durable: ClassVar[bool] = False
    folder: Path | None = None

    def open(self) -> None:
        if self.is_durable and self.folder is None:
            self.folder = Path(tempfile.mkdtemp())

        async def opened() -> None:
            self.database = await Database.open(self.folder)
            self.store_clock = StoreClock(self.database, self.clock)
            self.engine = QueueEngine(SqliteQueueStore(self.database, self.store_clock))

        self.run(opened())

    def close(self) -> None:
        self.run(self.database.close())
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def upcoming(self) -> int:
        return max(self.store_clock.now(), self.store_clock._last + 1)

    def upcoming_steady(self) -> int:
        return max(self.store_clock.steady(), self.store_clock._last_steady + 1)

    def now(self) -> int:
        return self.store_clock.now()

    def steady(self) -> int:
        return self.store_clock.steady()

    def check_count(self, queue: Queue, living: int, unmet: int) -> None:
        assert queue.message_count is not None
        assert living <= queue.message_count <= living + unmet


class DurableQueueMachine(SqliteQueueMachine):
    is_durable = True

    @rule()
    def restart(self) -> None:
        before = self.run(self.a_change())
        self.run(self.database.close())
        self.open()
        assert self.store_clock.now() >= before

    async def a_change(self) -> int:
        """What a change has seen no restart forgets; a mere look may be forgotten."""
        async with self.database.change():
            return self.store_clock.next()


@pytest.fixture(autouse=True)
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "SWEEP_MESSAGES", 2)
    monkeypatch.setattr(sqlite_store, "SWEEP_PAUSE_SECONDS", 0)


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_the_engine_in_memory_does_what_the_model_does() -> None:
    run_machine(SqliteQueueMachine, 20)


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_the_engine_on_disk_does_what_the_model_does_also_after_restarts() -> None:
    run_machine(DurableQueueMachine, 4)
