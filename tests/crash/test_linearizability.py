import asyncio
import random
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from crash.shim_vfs import scratch_folder
from crash.version_order import Event, violations
from partita.clock import SystemClock
from partita.errors import EntityExistsError, EntityNotFoundError, ETagMismatchError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from partita.tables import operations
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey
from partita.tables.filters import parse
from partita.tables.operations import (
    ANY_ETAG,
    Delete,
    EntityGroup,
    Insert,
    InsertOrReplace,
    Operation,
    Replace,
)
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore
from partita.tables.store import Table
from support.repeats import repeat

TABLE = "Work"
CLIENTS = 12
ROWS = ("a", "b", "c")
OPERATIONS = repeat(8_000, 50_000, 500_000)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="partita-") as folder:
        yield Path(folder)


class Client:
    """Does random operations on few entities and writes down what it saw."""

    def __init__(self, number: int, engine: TableEngine, events: list[Event], order: count) -> None:  # type: ignore[type-arg]
        self._engine = engine
        self._events = events
        self._order = order
        self._chance = random.Random(number)
        self._known: dict[str, Entity] = {}
        """The last version seen of each entity: what conditions name."""

    async def work(self, steps: int) -> None:
        actions = (
            [self._get] * 6 + [self._scan] + [self._put] * 2 + [self._update] * 4
            + [self._insert] * 2 + [self._delete]
        )  # fmt: skip
        for _ in range(steps):
            await self._chance.choice(actions)(self._chance.choice(ROWS))
            if self._chance.random() < 0.3:
                await asyncio.sleep(0)

    async def _get(self, row: str) -> None:
        invoked = next(self._order)
        try:
            entity = await self._engine.get(TABLE, EntityKey("p", row))
        except EntityNotFoundError:
            self._note("absent", row, invoked)
            return
        self._known[row] = entity
        self._note("read", row, invoked, entity.ticks)

    async def _scan(self, _row: str) -> None:
        invoked = next(self._order)
        _, page = await self._engine.query(
            TABLE, parse("N ge 0"), within=KeyRange.of_partition("p")
        )
        found = {entity.row_key: entity for entity in page.entities}
        for row in ROWS:
            if row in found:
                self._note("read", row, invoked, found[row].ticks)
            else:
                self._note("absent", row, invoked)

    async def _put(self, row: str) -> None:
        await self._change("put", InsertOrReplace(EntityKey("p", row), {"N": 1}))

    async def _insert(self, row: str) -> None:
        await self._change("insert", Insert(EntityKey("p", row), {"N": 2}))

    async def _update(self, row: str) -> None:
        if (known := self._known.get(row)) is not None:
            change = Replace(EntityKey("p", row), {"N": 3}, known.etag)
            await self._change("update", change, known.ticks)

    async def _delete(self, row: str) -> None:
        if (known := self._known.get(row)) is not None:
            await self._change("delete", Delete(EntityKey("p", row), known.etag), known.ticks)

    async def _change(self, kind: str, operation: Operation, expected: int = 0) -> None:
        row = operation.key.row_key
        invoked = next(self._order)
        try:
            outcome = await self._engine.run(TABLE, EntityGroup([operation]))
        except EntityNotFoundError:
            self._note("absent", row, invoked)
            return
        except EntityExistsError:
            self._note("exists", row, invoked)
            return
        except ETagMismatchError:
            self._note("unequal", row, invoked, 0, expected)
            return
        (entity,) = outcome.entities
        if entity is not None:
            self._known[row] = entity
        self._note(kind, row, invoked, expected if entity is None else entity.ticks, expected)

    def _note(self, kind: str, row: str, invoked: int, version: int = 0, expected: int = 0) -> None:
        self._events.append(Event(kind, row, invoked, next(self._order), version, expected))


async def run_clients(store: SqliteTableStore, wanted: int) -> list[Event]:
    engine = TableEngine(store)
    await engine.create_table(TABLE)
    events: list[Event] = []
    order = count()
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            client = Client(number, engine, events, order)
            group.create_task(client.work(wanted // CLIENTS))
    await engine.close()
    return events


class StaleStore(SqliteTableStore):
    """Answers some reads from a cache that writes do not reach."""

    async def get(self, table: Table, key: EntityKey) -> Entity | None:
        cache: dict[EntityKey, Entity | None] = self.__dict__.setdefault("cache", {})
        reads: int = self.__dict__.setdefault("reads", 0)
        self.__dict__["reads"] = reads + 1
        if reads % 50 == 0 or key not in cache:
            cache[key] = await super().get(table, key)
        return cache[key] if reads % 50 == 1 else await super().get(table, key)


@pytest.mark.repeated
@pytest.mark.timeout(900)
async def test_a_concurrent_history_is_linearizable(scratch: Path) -> None:
    store = await SqliteTableStore.open(await Database.open(scratch), SystemClock())

    events = await run_clients(store, OPERATIONS + OPERATIONS // 4)

    print(f"{len(events)} operations")
    assert len(events) >= OPERATIONS
    assert violations(events) == []
    kinds = {event.kind for event in events}
    assert kinds == {"read", "put", "insert", "update", "delete", "absent", "exists", "unequal"}


async def test_the_check_finds_reads_from_a_stale_cache(scratch: Path) -> None:
    database = await Database.open(scratch)
    store = StaleStore(database, StoreClock(database, SystemClock()))

    events = await run_clients(store, 5_000)

    assert violations(events) != []


async def test_the_check_finds_updates_that_ignore_their_etag(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = operations.check_condition
    monkeypatch.setattr(operations, "check_condition", lambda before, etag: check(before, ANY_ETAG))
    store = await SqliteTableStore.open(await Database.open(scratch), SystemClock())

    events = await run_clients(store, 5_000)

    assert violations(events) != []


async def test_no_reader_sees_half_a_group(scratch: Path) -> None:
    store = await SqliteTableStore.open(await Database.open(scratch), SystemClock())
    engine = TableEngine(store)
    await engine.create_table(TABLE)
    keys = [EntityKey("p", f"{row:03}") for row in range(40)]
    seen: set[tuple[int, int]] = set()

    async def write() -> None:
        for number in range(150):
            await engine.run(
                TABLE, EntityGroup([InsertOrReplace(key, {"N": number}) for key in keys])
            )

    async def read() -> None:
        while not writing.done():
            _, page = await engine.query(TABLE, parse("N ge 0"), within=KeyRange.of_partition("p"))
            seen.add((len(page.entities), len({entity.ticks for entity in page.entities})))

    writing = asyncio.create_task(write())
    await asyncio.gather(writing, read(), read())
    await engine.close()
    assert seen - {(0, 0)} == {(40, 1)}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [
                Event("put", "k", 0, 1, 10),
                Event("put", "k", 2, 3, 20),
                Event("read", "k", 4, 5, 10),
            ],
            id="a read of an older version",
        ),
        pytest.param(
            [Event("put", "k", 0, 1, 10), Event("absent", "k", 2, 3)],
            id="not found after a write",
        ),
        pytest.param(
            [
                Event("put", "k", 0, 1, 10),
                Event("put", "k", 2, 9, 20),
                Event("read", "k", 3, 4, 20),
                Event("read", "k", 5, 6, 10),
            ],
            id="two reads that go back while a write is under way",
        ),
        pytest.param(
            [Event("insert", "k", 0, 1, 10), Event("insert", "k", 0, 1, 20)],
            id="two inserts that both succeed",
        ),
        pytest.param(
            [
                Event("put", "k", 0, 1, 10),
                Event("update", "k", 2, 5, 20, 10),
                Event("update", "k", 3, 4, 30, 10),
            ],
            id="two updates with one etag",
        ),
        pytest.param(
            [
                Event("put", "k", 0, 1, 10),
                Event("delete", "k", 2, 3, 10),
                Event("exists", "k", 4, 5),
            ],
            id="a conflict with a deleted entity",
        ),
        pytest.param(
            [Event("put", "k", 0, 1, 10), Event("unequal", "k", 2, 3, 0, 10)],
            id="a refused condition that held",
        ),
        pytest.param(
            [Event("put", "k", 0, 1, 20), Event("put", "k", 2, 3, 10)],
            id="etags that go back",
        ),
        pytest.param([Event("read", "k", 0, 1, 10)], id="a version that nobody wrote"),
    ],
)
def test_the_check_finds_each_kind_of_violation(events: list[Event]) -> None:
    assert len(violations(events)) == 1


def test_the_check_accepts_what_overlaps() -> None:
    events = [
        Event("put", "k", 0, 9, 10),
        Event("absent", "k", 1, 2),
        Event("read", "k", 3, 4, 10),
        Event("delete", "k", 5, 8, 10),
        Event("exists", "k", 6, 7),
        Event("absent", "k", 6, 7),
        Event("insert", "k", 10, 11, 20),
    ]

    assert violations(events) == []
