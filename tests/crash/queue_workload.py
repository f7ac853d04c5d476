"""Clients that put, claim, update and delete messages at the same time, remember what they were
told, and a check of a recovered store against that memory.

Every client owns a queue, so that each message has one history. A message lives without end, and
the recovered store has a clock of the far future: everything that is there can be got.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crash.queue_live import a_text
from crash.workload import Finding
from partita.clock import ManualClock
from partita.errors import QueueNotFoundError
from partita.queues.engine import QueueEngine
from partita.queues.message import Message
from partita.queues.sqlite_store import SqliteQueueStore
from partita.storage.database import Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock

CLIENTS = 8
FAR_FUTURE = 10**18
"""Ticks, long after every visibility time of a run."""


@dataclass
class History:
    """What became of one message, by positions of the trace."""

    put_asked: int
    put_told: int | None = None
    delete_asked: int | None = None
    delete_told: int | None = None
    counts_told: list[tuple[int, int]] = field(default_factory=list)
    """When a claim was told, and the dequeue count that it brought."""


@dataclass
class QueueMemory:
    created_told: dict[str, int] = field(default_factory=dict)
    histories: dict[str, dict[int, History]] = field(default_factory=dict)
    """By queue, by the number in the text of a message."""


class QueueWorker:
    def __init__(
        self, queue: str, engine: QueueEngine, memory: QueueMemory, position: Callable[[], int]
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._memory = memory
        self._histories = memory.histories.setdefault(queue, {})
        self._position = position
        self._chance = random.Random(queue)

    async def work(self, steps: int, clock: ManualClock) -> None:
        await self._engine.create_queue(self._queue, {})
        self._memory.created_told[self._queue] = self._position()
        for _ in range(steps):
            clock.advance(self._chance.random() / 20)
            if self._chance.random() < 0.02:
                clock.jump(-3600 * self._chance.random())
            await self._put()
            if self._chance.random() < 0.7:
                await self._get()

    async def _put(self) -> None:
        number = len(self._histories)
        history = self._histories[number] = History(self._position())
        await self._engine.put(self._queue, a_text(number), lifetime_seconds=None)
        history.put_told = self._position()

    async def _get(self) -> None:
        limit, hidden = self._chance.randint(1, 4), self._chance.randint(1, 3)
        for message in await self._engine.get(self._queue, limit=limit, hidden_seconds=hidden):
            history = self._histories[_number(message)]
            history.counts_told.append((self._position(), message.dequeue_count))
            if self._chance.random() < 0.3:
                message = await self._engine.update(  # noqa: PLW2901 - it is the same message
                    self._queue, message.id, message.receipt, hidden_seconds=hidden
                )
            if self._chance.random() < 0.6:
                history.delete_asked = self._position()
                await self._engine.delete(self._queue, message.id, message.receipt)
                history.delete_told = self._position()


async def run_workers(
    folder: Path,
    vfs: str,
    position: Callable[[], int],
    *,
    steps: int,
    durability: Durability = Durability.FULL,
) -> QueueMemory:
    """Let all clients work in a new store, and close it."""
    memory, clock = QueueMemory(), ManualClock()
    database = await Database.open(folder, durability=durability, vfs=vfs)
    engine = QueueEngine(await SqliteQueueStore.open(database, StoreClock(database, clock)))
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            worker = QueueWorker(f"work-{number}", engine, memory, position)
            group.create_task(worker.work(steps, clock))
    await engine.close()
    await database.close()
    return memory


async def examine_queues(folder: Path, memory: QueueMemory, position: int) -> Finding:
    """Open what a crash at a position has left, and compare it with the memory."""
    finding = Finding()
    database = await Database.open(folder)
    store_clock = StoreClock(database, ManualClock(ticks=FAR_FUTURE))
    engine = QueueEngine(await SqliteQueueStore.open(database, store_clock))
    try:
        problems = database.reader.pragma("integrity_check")
        if problems != "ok":
            finding.damaged.append(str(problems))
            return finding
        for queue in memory.histories:
            await _compare(engine, queue, memory, position, finding)
    finally:
        await engine.close()
        await database.close()
    return finding


async def _compare(
    engine: QueueEngine, queue: str, memory: QueueMemory, position: int, finding: Finding
) -> None:
    try:
        count = (await engine.get_queue(queue)).message_count
    except QueueNotFoundError:
        if memory.created_told.get(queue, position + 1) <= position:
            finding.lost.append(queue)
        return
    found = await _take_all(engine, queue, finding)
    if count != len(found):
        finding.damaged.append(f"{queue}: {len(found)} messages, {count} are counted")
    histories = memory.histories[queue]
    for number in found.keys() - histories.keys():
        finding.damaged.append(f"{queue} {number}: nobody put it")
    for number, history in histories.items():
        _judge(f"{queue} {number}", history, found.get(number), position, finding)
    await engine.put(queue, "again")
    if [message.text for message in await engine.get(queue)] != ["again"]:
        finding.damaged.append(f"{queue}: a new message cannot be got")


def _judge(
    name: str, history: History, found: Message | None, position: int, finding: Finding
) -> None:
    def was(told: int | None) -> bool:
        return told is not None and told <= position

    if found is None:
        if was(history.put_told) and not was(history.delete_asked):
            finding.lost.append(f"{name} is lost")
        return
    if history.put_asked > position:
        finding.damaged.append(f"{name} is there before it was put")
    if was(history.delete_told):
        finding.lost.append(f"{name} came back after its delete")
    counts = [count for told, count in history.counts_told if told <= position]
    if found.dequeue_count <= max(counts, default=0):
        finding.lost.append(f"{name} was got {counts} times, shows {found.dequeue_count}")


async def _take_all(engine: QueueEngine, queue: str, finding: Finding) -> dict[int, Message]:
    found: dict[int, Message] = {}
    while messages := await engine.get(queue, limit=32, hidden_seconds=3600):
        for message in messages:
            number = _number(message)
            if message.text != a_text(number):
                finding.halves.append(f"{queue} {number}")
            if number in found:
                finding.damaged.append(f"{queue} {number} is there twice")
            found[number] = message
    return found


def _number(message: Message) -> int:
    return int(message.text.partition(":")[0])
