"""A fleet of two shards for tests of `Control`: an administrative session, and front ends."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cache

import pytest

from partita.scaleout.connections.link import Link, Rows
from partita.scaleout.control import moving
from partita.scaleout.control.control import Control
from partita.scaleout.control.range_copy import written
from partita.scaleout.control.states import MoveOutcome, MoveStep, RangeState
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from partita.tables.paging import KeyRange
from partita.tables.store import Table
from support.front_ends import OwningStore
from support.many_shards import execute, new_fleet, open_front_end

HERE, THERE = "catalog", "shard-1"
"""The names of the shards."""


@cache
def urls() -> list[str]:
    """Return the URLs of the fleet of this process."""
    return new_fleet(2)


class Session:
    """An administrative session, a front end, and a table that has one range on shard `HERE`."""

    control: Control
    store: OwningStore
    table: Table
    account: str

    async def ranges(self) -> list[RangeState]:
        return await self.control.ranges("Staff", self.account)

    async def only(self) -> RangeState:
        """Return the only range of the table."""
        (found,) = await self.ranges()
        return found

    async def split(self, at: str) -> tuple[int, int]:
        return await self.control.split("Staff", at, account=self.account)

    async def put(self, partition_key: str, row_keys: Iterable[str] = ("r",), age: int = 1) -> None:
        operations = [
            InsertOrReplace(EntityKey(partition_key, row_key), {"Age": age}) for row_key in row_keys
        ]
        await TableEngine(self.store).run("Staff", EntityGroup(operations))

    async def keys(self) -> list[str]:
        """Return the partition keys of all entities, in order, as clients see them."""
        page = await self.store.scan(self.table, KeyRange(), None, 1000)
        return [entity.partition_key for entity in page.entities]

    async def front_end(self) -> OwningStore:
        """Open another front end of the same account that knows the table."""
        fleet = await open_front_end(urls()[0])
        store = OwningStore(fleet, await fleet.catalog.account_id(self.account))
        assert await store.find_table("Staff") == self.table
        return store

    def rows(self, shard: int) -> int:
        """Return how many entities of the table a shard has, whether it serves them or not."""
        statement = "SELECT count(*) FROM partita.entity WHERE tid = %s"
        ((count,),) = execute(urls()[shard], statement, self.table.id)
        assert isinstance(count, int)
        return count

    def owned(self, shard: int) -> Sequence[object]:
        """Return the states of the table's ranges on a shard."""
        statement = "SELECT state FROM partita.range_own WHERE tid = %s ORDER BY lo"
        return [row[0] for row in execute(urls()[shard], statement, self.table.id)]


async def open_session() -> Session:
    """Open a session with a new account and table."""
    execute(urls()[0], "UPDATE partita.shard SET state = CASE id WHEN 0 THEN 'o' ELSE 'd' END")
    session = Session()
    session.control = await Control.open(urls()[0], durability=Durability.FAST)
    fleet = await open_front_end(urls()[0])
    session.account = f"control{uuid.uuid4().hex[:12]}"
    session.store = OwningStore(fleet, await fleet.catalog.account_id(session.account))
    session.table = await session.store.create_table("Staff")
    return session


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    opened = await open_session()
    yield opened
    await opened.store.close()
    await opened.control.close()
    execute(urls()[0], "DELETE FROM partita.job")


@pytest.fixture
async def other(session: Session) -> AsyncIterator[Control]:
    """Another administrative session on the same fleet."""
    control = await Control.open(urls()[0], durability=Durability.FAST)
    yield control
    await control.close()


class Pause:
    """Stops a move before a step has an effect, until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: MoveStep) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        begin, own = moving.Move._begin, moving.Move._own

        async def begin_later(move: moving.Move, begun: MoveStep) -> None:
            await begin(move, begun)
            if begun == step:
                await self._wait()

        async def write_later(link: Link, statement: str, *values: object) -> Rows:
            if (statement, step) == (moving._IMPORT, "prepare"):
                await self._wait()
            return await written(link, statement, *values)

        async def own_later(move: moving.Move) -> None:
            if step == "own":
                await self._wait()
            await own(move)

        monkeypatch.setattr(moving.Move, "_begin", begin_later)
        monkeypatch.setattr(moving, "written", write_later)
        monkeypatch.setattr(moving.Move, "_own", own_later)

    async def _wait(self) -> None:
        if not self.go.is_set():
            self.reached.set()
            await self.go.wait()

    async def reach(self, task: "asyncio.Task[MoveOutcome]") -> None:
        """Wait until the move has reached the step."""
        waiting = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
        if not self.reached.is_set():
            waiting.cancel()
            await task
            pytest.fail("the move ended before the step")
