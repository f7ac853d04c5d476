"""Clients that work at the same time through the engine, remember what they were told, and a
check of a recovered store against that memory.

Every client owns its partitions, so that each key has one history: the version it was last told
of, and at most one more that was asked for. The accounts of the partition `Bank` belong to all:
a transfer moves money between two of them in one group, so that their sum tells of half a group.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partita.clock import ManualClock
from partita.errors import ETagMismatchError, TableNotFoundError
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey
from partita.tables.operations import (
    Delete,
    EntityGroup,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Outcome,
    Replace,
)
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore

TABLE = "Work"
CLIENTS = 8
ROWS = 5
SHARES = 1000
ACCOUNTS = 4
OPENING_BALANCE = 100

State = int | None
"""The version number of an entity, a group or a table; None: it does not exist."""


@dataclass
class Version:
    state: State
    asked: int
    told: int | None = None
    """Positions of the trace; None: nobody was told that it succeeded."""


@dataclass
class Memory:
    """All that the clients know."""

    histories: dict[str, list[Version]] = field(default_factory=dict)
    ticks: list[tuple[int, int, str]] = field(default_factory=list)
    """Position, ticks and key of every entity that a client was told of."""
    bank_opened: int | None = None

    def allowed(self, name: str, position: int) -> tuple[list[State], list[State]]:
        """Return the states that a crash at a position may leave, and those lost by then."""
        asked = [v for v in self.histories[name] if v.asked <= position]
        last = max(
            (i for i, v in enumerate(asked) if v.told is not None and v.told <= position),
            default=None,
        )
        if last is None:
            return [None, *(v.state for v in asked)], []
        allowed = [v.state for v in asked[last:]]
        return allowed, [None, *(v.state for v in asked[:last])]

    def told_ticks(self, position: int) -> dict[str, int]:
        """Return the highest ticks of each key that were told by then."""
        if position < self._told_until:
            self._told_count, self._told = 0, {}
        self._told_until = position
        while self._told_count < len(self.ticks) and self.ticks[self._told_count][0] <= position:
            _, ticks, key = self.ticks[self._told_count]
            self._told[key] = max(ticks, self._told.get(key, 0))
            self._told_count += 1
        return self._told

    # What the last question has summed up: positions are asked for in rising order.
    _told_until = 0
    _told_count = 0
    _told: dict[str, int] = field(default_factory=dict)


class Client:
    def __init__(
        self, number: int, engine: TableEngine, memory: Memory, position: Callable[[], int]
    ) -> None:
        self.number = number
        self._engine = engine
        self._memory = memory
        self._position = position
        self._chance = random.Random(number)
        self._count = 0

    async def work(self, steps: int, clock: ManualClock) -> None:
        actions = [self._write_one] * 5 + [self._write_group] * 3 + [self._transfer] * 2
        if self.number == 0:
            actions += [self._replace_table] * 2
        for _ in range(steps):
            clock.advance(self._chance.random() / 50)
            if self._chance.random() < 0.02:
                clock.jump(-3600 * self._chance.random())
            await self._chance.choice(actions)()

    async def open_bank(self) -> None:
        await self._run(
            [Insert(EntityKey("Bank", f"a{n}"), {"Balance": 100}) for n in range(ACCOUNTS)]
        )
        self._memory.bank_opened = self._position()

    async def _write_one(self) -> None:
        key = EntityKey(f"P{self.number}", f"r{self._chance.randrange(ROWS)}")
        history = self._memory.histories.setdefault(f"{key[0]}/{key[1]}", [])
        exists = bool(history) and history[-1].state is not None
        self._count += 1
        properties: dict[str, str | int | float | bool] = {
            "N": self._count,
            "Text": "x" * self._chance.randrange(900),
        }
        if not exists:
            operation: Operation = self._chance.choice(
                (Insert(key, properties), InsertOrReplace(key, properties))
            )
        elif self._chance.random() < 0.25:
            await self._change(history, None, [Delete(key)])
            return
        else:
            operation = self._chance.choice(
                (Replace(key, properties), Merge(key, properties), InsertOrMerge(key, properties))
            )
        await self._change(history, self._count, [operation])

    async def _write_group(self) -> None:
        partition = f"G{self.number}"
        history = self._memory.histories.setdefault(partition, [])
        exists = bool(history) and history[-1].state is not None
        keys = [EntityKey(partition, f"r{n}") for n in range(ROWS)]
        if exists and self._chance.random() < 0.2:
            await self._change(history, None, [Delete(key) for key in keys])
            return
        self._count += 1
        cuts = sorted(self._chance.randrange(SHARES) for _ in range(ROWS - 1))
        shares = [b - a for a, b in zip([0, *cuts], [*cuts, SHARES], strict=True)]
        await self._change(
            history,
            self._count,
            [
                InsertOrReplace(key, {"N": self._count, "Share": share})
                for key, share in zip(keys, shares, strict=True)
            ],
        )

    async def _transfer(self) -> None:
        first, second = (
            EntityKey("Bank", f"a{n}") for n in self._chance.sample(range(ACCOUNTS), 2)
        )
        source, target = await self._engine.get(TABLE, first), await self._engine.get(TABLE, second)
        amount = self._chance.randrange(50)
        try:
            await self._run(
                [
                    Replace(first, {"Balance": _number(source, "Balance") - amount}, source.etag),
                    Merge(second, {"Balance": _number(target, "Balance") + amount}, target.etag),
                ]
            )
        except ETagMismatchError:
            return  # another client was faster; nothing has changed

    async def _replace_table(self) -> None:
        name = f"Temp{self._chance.randrange(3)}"
        history = self._memory.histories.setdefault(name, [])
        if history and history[-1].state is not None:
            version = Version(None, self._position())
            history.append(version)
            await self._engine.delete_table(name)
        else:
            self._count += 1
            version = Version(self._count, self._position())
            history.append(version)
            await self._engine.create_table(name)
            version.told = self._position()
            for n in range(10):
                row = Insert(EntityKey("p", f"{n}"), {"N": self._count})
                await self._engine.run(name, EntityGroup([row]))
        version.told = self._position()

    async def _change(
        self, history: list[Version], state: State, operations: Sequence[Operation]
    ) -> None:
        version = Version(state, self._position())
        history.append(version)
        await self._run(operations)
        version.told = self._position()

    async def _run(self, operations: Sequence[Operation]) -> Outcome:
        outcome = await self._engine.run(TABLE, EntityGroup(operations))
        position = self._position()
        for entity in outcome.entities:
            if entity is not None:
                key = f"{entity.partition_key}/{entity.row_key}"
                self._memory.ticks.append((position, entity.ticks, key))
        return outcome


async def run_clients(
    folder: Path,
    vfs: str,
    position: Callable[[], int],
    *,
    steps: int,
    seed: int,
    durability: Durability = Durability.FULL,
) -> Memory:
    """Let all clients work in a new store, and close it."""
    memory = Memory()
    clock = ManualClock()
    database = await Database.open(folder, durability=durability, vfs=vfs)
    engine = TableEngine(await SqliteTableStore.open(database, clock))
    await engine.create_table(TABLE)
    clients = [Client(n, engine, memory, position) for n in range(CLIENTS)]
    for client in clients:
        client._chance.seed(f"{seed}/{client.number}")
    await clients[0].open_bank()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.work(steps, clock))
    await engine.close()
    return memory


@dataclass
class Finding:
    """What is wrong with one recovered state; all empty is well."""

    damaged: list[str] = field(default_factory=list)
    halves: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not (self.damaged or self.halves or self.lost or self.repeated)


async def examine(folder: Path, memory: Memory, position: int) -> Finding:
    """Open what a crash at a position has left, compare it with the memory, write again."""
    finding = Finding()
    # A clock that stands long before the run: only what the store kept makes etags rise.
    database = await Database.open(folder)
    engine = TableEngine(await SqliteTableStore.open(database, ManualClock(ticks=1_000_000)))
    try:
        problems = database.reader.pragma("integrity_check")
        if problems != "ok":
            finding.damaged.append(str(problems))
            return finding
        await _compare_tables(engine, memory, position, finding)
        try:
            entities = await _entities(engine, TABLE)
        except TableNotFoundError:
            if memory.told_ticks(position):
                finding.lost.append("the table itself")
            return finding
        _compare(entities, memory, position, finding)
        await _write_again(engine, entities, memory, position, finding)
    finally:
        await engine.close()
    return finding


async def _compare_tables(
    engine: TableEngine, memory: Memory, position: int, finding: Finding
) -> None:
    existing = {table.name for table in (await engine.list_tables(None)).tables}
    for name in memory.histories:
        if not name.startswith("Temp"):
            continue
        allowed, _ = memory.allowed(name, position)
        if name in existing:
            numbers = {_number(entity, "N") for entity in await _entities(engine, name)}
            if not any(state is not None for state in allowed):
                finding.lost.append(f"the drop of {name}")
            if not numbers <= set(allowed):
                finding.lost.append(f"{name} shows entities of a dropped table: {numbers}")
        else:
            if None not in allowed:
                finding.lost.append(f"table {name}")
            await engine.create_table(name)
            if await _entities(engine, name):
                finding.lost.append(f"entities of the dropped table {name} are back")


def _compare(entities: list[Entity], memory: Memory, position: int, finding: Finding) -> None:
    found = {f"{entity.partition_key}/{entity.row_key}": entity for entity in entities}
    for name in memory.histories:
        if name.startswith("Temp"):
            continue
        if name.startswith("G"):
            state = _group_state(name, found, finding)
        else:
            state = _number(found[name], "N") if name in found else None
        allowed, lost = memory.allowed(name, position)
        if state in allowed:
            continue
        if state in lost:
            finding.lost.append(f"{name}: {state} instead of {allowed}")
        else:
            finding.damaged.append(f"{name}: {state}, which nobody wrote")
    bank = [_number(e, "Balance") for key, e in found.items() if key.startswith("Bank/")]
    if bank and (len(bank) != ACCOUNTS or sum(bank) != ACCOUNTS * OPENING_BALANCE):
        finding.halves.append(f"Bank: {bank}")
    if not bank and memory.bank_opened is not None and memory.bank_opened <= position:
        finding.lost.append("Bank")
    for key, ticks in memory.told_ticks(position).items():
        if key in found and found[key].ticks < ticks:
            finding.lost.append(f"{key}: an older etag")


def _group_state(name: str, found: dict[str, Entity], finding: Finding) -> State:
    members = [found[key] for n in range(ROWS) if (key := f"{name}/r{n}") in found]
    if not members:
        return None
    numbers = {_number(entity, "N") for entity in members}
    total = sum(_number(entity, "Share") for entity in members)
    if len(members) != ROWS or len(numbers) != 1 or total != SHARES:
        finding.halves.append(f"{name}: {len(members)} entities of {numbers}, {total} shares")
    return numbers.pop()


async def _write_again(
    engine: TableEngine, entities: list[Entity], memory: Memory, position: int, finding: Finding
) -> None:
    seen = [entity.ticks for entity in entities] + list(memory.told_ticks(position).values())
    highest = max(seen, default=0)
    outcome = await engine.run(
        TABLE, EntityGroup([InsertOrReplace(EntityKey("P0", "r0"), {"N": -1})])
    )
    (written,) = outcome.entities
    assert written is not None
    if written.ticks <= highest:
        finding.repeated.append(f"{written.ticks} after {highest}")
    if (await engine.get(TABLE, EntityKey("P0", "r0"))).ticks != written.ticks:
        finding.damaged.append("a new write cannot be read")


async def _entities(engine: TableEngine, table: str) -> list[Entity]:
    entities: list[Entity] = []
    start: EntityKey | None = None
    while True:
        _, page = await engine.query(table, None, within=KeyRange(), start=start)
        entities += page.entities
        start = page.continuation
        if start is None:
            return entities


def _number(entity: Entity, name: str) -> int:
    value = entity.properties()[name]
    assert isinstance(value, int)
    return value


def write_image(folder: Path, image: dict[str, bytes]) -> None:
    """Put the files of an image where Database looks for them."""
    folder.mkdir()
    suffixes = {"main": "", "log": "-wal", "journal": "-journal"}
    for kind, content in image.items():
        (folder / (DATABASE_FILE + suffixes[kind])).write_bytes(content)
