"""Clients of several front ends that note what was acknowledged, while ranges are changed.

Each kind of client checks one thing: conditional increments are all counted, groups are whole, the
last acknowledged version of a key is there, and a paged scan sees each entity that exists
throughout exactly once, in key order.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from partita.errors import (
    EntityNotFoundError,
    ETagMismatchError,
    InDoubtError,
    OperationPendingError,
    PartitaError,
    RangeError,
    UnavailableError,
)
from partita.scaleout.control.control import Control
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, InsertOrReplace, Replace
from partita.tables.paging import FIRST, KeyRange
from partita.tables.store import Table
from support.front_ends import OwningStore

PARTITIONS = [f"p{number:02}" for number in range(16)]
PAGE = 7
PAUSE_SECONDS = 0.05
"""After a failure."""
PAIR, PAIR_END = "pair", "pair~"


class Ledger:
    """What clients were told, and what they then found."""

    def __init__(
        self, stores: Sequence[OwningStore], table: Table, seed: int, *, may_fail: bool = False
    ) -> None:
        self.stores = stores
        self._may_fail = may_fail
        """Whether a server is stopped: then operations are refused, or their outcome is unknown."""
        self.engines = [TableEngine(store) for store in stores]
        self.table = table
        self.chance = random.Random(seed)
        self.violations: list[str] = []
        self.done: Counter[str] = Counter()
        """Acknowledged operations, by kind."""
        self._counted: Counter[EntityKey] = Counter()
        self._unsure: Counter[EntityKey] = Counter()
        """Increments whose outcome is unknown."""
        self._last: dict[EntityKey, int | None] = {}
        """The number in each key of one writer; None: it was removed."""
        self._numbers = itertools.count(1)
        self._is_over = False
        self._clients: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the clients in the block, then compare everything with what was acknowledged."""
        await self._start()
        try:
            yield
        except BaseException:
            for client in self._clients:
                client.cancel()
            await asyncio.wait(self._clients)
            raise
        await self._stop()

    async def _start(self) -> None:
        """Put the entities that stay, then start all clients."""
        for partition in PARTITIONS:
            names = ["count", *(f"stays{number}" for number in range(3))]
            await self._run(
                0, *(InsertOrReplace(EntityKey(partition, name), {"N": 0}) for name in names)
            )
        kinds: list[Callable[[int], Awaitable[None]]] = [
            *(self._count_up, self._write_pairs, self._own_keys, self._scan, self._read_pairs)
        ]
        for front, _ in enumerate(self.engines):
            for kind in kinds:
                self._clients.append(asyncio.ensure_future(self._repeat(kind, front)))

    async def _stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._clients)
        for key, count in self._counted.items():
            found = await self._number(0, key)
            if found is None or not count <= found <= count + self._unsure[key]:
                self.violations.append(f"{key} counts {found}, acknowledged were {count}")
        for key, number in self._last.items():
            if (last := await self._number(0, key)) != number:
                self.violations.append(f"{key} has {last}, acknowledged was {number}")
        await self._scan(0)

    async def _repeat(self, work: Callable[[int], Awaitable[None]], front: int) -> None:
        while not self._is_over:
            try:
                await work(front)
                self.done[work.__name__] += 1
            except PartitaError as error:
                if not (self._may_fail and isinstance(error, UnavailableError)):
                    self.violations.append(f"{work.__name__} was refused: {error}")
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(0)

    async def _run(self, front: int, *operations: InsertOrReplace | Replace | Delete) -> None:
        await self.engines[front].run("Staff", EntityGroup(list(operations)))

    async def _number(self, front: int, key: EntityKey) -> int | None:
        with contextlib.suppress(EntityNotFoundError):
            return int((await self.engines[front].get("Staff", key)).properties()["N"])
        return None

    # Clients

    async def _count_up(self, front: int) -> None:
        key = EntityKey(self.chance.choice(PARTITIONS), "count")
        while True:
            entity = await self.engines[front].get("Staff", key)
            count = int(entity.properties()["N"])
            self._unsure[key] += 1
            try:
                await self._run(front, Replace(key, {"N": count + 1}, entity.etag))
                self._counted[key] += 1
            except ETagMismatchError:
                continue
            except InDoubtError:
                self._unsure[key] += 1
                raise
            finally:
                self._unsure[key] -= 1
            return

    async def _write_pairs(self, front: int) -> None:
        partition, number = self.chance.choice(PARTITIONS), next(self._numbers)
        name = f"{PAIR}{self.chance.randrange(3)}"
        await self._run(
            front,
            *(InsertOrReplace(EntityKey(partition, name + half), {"N": number}) for half in "ab"),
        )

    async def _read_pairs(self, front: int) -> None:
        partition = self.chance.choice(PARTITIONS)
        span = KeyRange(EntityKey(partition, PAIR), EntityKey(partition, PAIR_END))
        page = await self.stores[front].scan(self.table, span, None, 100)
        found = {entity.row_key: entity.properties()["N"] for entity in page.entities}
        for name in {row_key[:-1] for row_key in found}:
            if found.get(name + "a") != found.get(name + "b"):
                self.violations.append(f"{partition} {name} is torn: {found}")

    async def _own_keys(self, front: int) -> None:
        """Write a key that no other client writes; the outcome is noted when it is known."""
        key = EntityKey(self.chance.choice(PARTITIONS), f"own{front}-{self.chance.randrange(4)}")
        before = self._last.pop(key, None)  # unknown, until it is acknowledged
        if before is not None and self.chance.random() < 0.4:
            await self._run(front, Delete(key))
            self._last[key] = None
        else:
            number = next(self._numbers)
            await self._run(front, InsertOrReplace(key, {"N": number}))
            self._last[key] = number
        other = self.chance.randrange(len(self.engines))
        if (found := await self._number(other, key)) != self._last[key]:
            text = f"{key} reads {found} after {self._last[key]} was acknowledged, before {before}"
            self.violations.append(text)

    async def _scan(self, front: int) -> None:
        seen: list[EntityKey] = []
        start = FIRST
        while True:
            store = self.stores[(front + len(seen)) % len(self.stores)]
            page = await store.scan(self.table, KeyRange(start), None, PAGE)
            seen += [entity.key for entity in page.entities]
            if page.continuation is None:
                break
            start = page.continuation
        if seen != sorted(set(seen)):
            self.violations.append("a scan is not in the order of keys, or repeats some")
        stay = [key for key in seen if key.row_key.startswith("stays")]
        if stay != [EntityKey(p, f"stays{number}") for p in PARTITIONS for number in range(3)]:
            self.violations.append(f"a scan sees {len(stay)} of the entities that stay")


async def change_ranges(control: Control, account: str, chance: random.Random) -> float | None:
    """Split or merge something, perhaps; then move a range; return how long it was closed.

    Return None if another mover was faster.
    """
    with contextlib.suppress(OperationPendingError, RangeError):
        if chance.random() < 0.4:
            at = chance.choice(PARTITIONS) + chance.choice(["", "0"])
            await control.split("Staff", at, account=account)
        ranges = await control.ranges("Staff", account)
        if chance.random() < 0.4 and len(ranges) > 1:
            place = chance.randrange(len(ranges) - 1)
            await control.merge(ranges[place].id, ranges[place + 1].id)
    names = [shard.name for shard in await control.shards()]
    moved = chance.choice(await control.ranges("Staff", account))
    try:
        outcome = await control.move(
            moved.id, chance.choice([name for name in names if name != moved.shard])
        )
    except OperationPendingError:
        return None
    return outcome.closed_seconds
