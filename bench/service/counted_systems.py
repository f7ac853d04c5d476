"""Operations of the other systems whose instructions are counted: one caller, one after the other.

    python bench/service/counted_systems.py FOLDER SYSTEM OPERATIONS

As `counted_loop.py` does for tables: the code is that of the `partita` on PYTHONPATH, and only the
operations are counted, after others that fill the caches. What other processes do is not counted:
of `pg-get` and `pg-upsert`, only the front end.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop
from bench.blobs import workload as blobs
from bench.queues import workload as queues
from bench.reliable.workload import Item, key_of, new_item
from bench.service.counted_loop import StepClock, instrument, open_account

import partita
from partita.patterns import connect, entity, index
from partita.service.accounts.account import Accounts
from partita.service.accounts.respond import Front
from partita.service.hosting.services import BLOBS, QUEUES, ServiceKind
from partita.service.http.connections import Connections
from partita.service.http.protocol import HttpProtocol

WARM_OPERATIONS = 40
BLOB_BYTES = 4096
ROWS = 1000
"""Rows of the dictionary, and of a scan."""
ENTITIES = 500

One = Callable[[int], Awaitable[object]]
"""One operation, by its number."""


class _Client:
    """The transport of one connection, and the client that waits for its answers."""

    def __init__(self, kind: ServiceKind, front: Front) -> None:
        connections = Connections(kind.limits, front.clock)
        self._answer: asyncio.Future[bytes]
        self._protocol = HttpProtocol(front.begin, kind.limits, connections)
        self._protocol.connection_made(self)  # type: ignore[arg-type]  # as far as it is used

    async def ask(self, request: bytes, status: int) -> bytes:
        """Return the answer up to its first piece."""
        self._answer = asyncio.get_running_loop().create_future()
        self._protocol.data_received(request)
        answer = await self._answer
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:500]
        return answer

    def write(self, part: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(part)

    def writelines(self, parts: tuple[bytes, bytes]) -> None:
        self.write(parts[0])

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 50000)

    def set_write_buffer_limits(self, **_limits: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@asynccontextmanager
async def _client(folder: Path, kind: ServiceKind) -> AsyncIterator[_Client]:
    clock = StepClock()
    account = await open_account(folder, clock)
    accounts = Accounts([account], clock)
    try:
        yield _Client(kind, Front(kind.build(accounts, clock), accounts, clock))
    finally:
        await account.close()


@asynccontextmanager
async def queue_cycle(folder: Path) -> AsyncIterator[One]:
    """Put a message, get it, delete it."""
    requests = queues.Requests(10001)
    async with _client(folder, QUEUES) as client:
        await client.ask(requests.create_queue(), 201)

        async def one(number: int) -> None:
            await client.ask(requests.put(number), 201)
            got = await client.ask(requests.get(), 200)
            message_id, receipt, _ = queues.read_message(got.partition(b"\r\n\r\n")[2])
            await client.ask(requests.delete(message_id, receipt), 204)

        yield one


@asynccontextmanager
async def blob_get(folder: Path) -> AsyncIterator[One]:
    requests = blobs.Requests(10000)
    async with _client(folder, BLOBS) as client:
        await client.ask(requests.create_container(), 201)
        await client.ask(requests.put("b", bytes(BLOB_BYTES)), 201)
        yield lambda _number: client.ask(requests.get("b"), 200)


@asynccontextmanager
async def blob_put(folder: Path) -> AsyncIterator[One]:
    requests = blobs.Requests(10000)
    async with _client(folder, BLOBS) as client:
        await client.ask(requests.create_container(), 201)

        async def one(number: int) -> None:
            await client.ask(requests.put(f"b{number}", b"%0*d" % (BLOB_BYTES, number)), 201)

        yield one


@asynccontextmanager
async def state_get(folder: Path) -> AsyncIterator[One]:
    """Get a value in a transaction of its own."""
    async with partita.open_state(folder) as state:
        items = await state.dictionary("items", key=str, value=Item)
        async with state.transaction() as tx:
            await items.set(tx, key_of(1), new_item())

        async def one(_number: int) -> None:
            async with state.transaction() as tx:
                await items.get(tx, key_of(1))

        yield one


@asynccontextmanager
async def state_set(folder: Path) -> AsyncIterator[One]:
    """Set a value and commit."""
    async with partita.open_state(folder) as state:
        items = await state.dictionary("items", key=str, value=Item)

        async def one(number: int) -> None:
            async with state.transaction() as tx:
                await items.set(tx, key_of(number % ROWS), new_item())

        yield one


@asynccontextmanager
async def state_scan(folder: Path) -> AsyncIterator[One]:
    """Read 1,000 rows in key order."""
    async with partita.open_state(folder) as state:
        items = await state.dictionary("items", key=str, value=Item)
        async with state.transaction() as tx:
            for number in range(ROWS):
                await items.set(tx, key_of(number), new_item())
        assert items.cache is not None
        items.cache.clear()  # as after opening it

        async def one(_number: int) -> None:
            async with state.snapshot() as snapshot:
                assert len([key async for key, _ in items.items(snapshot)]) == ROWS

        yield one


@asynccontextmanager
async def state_queue(folder: Path) -> AsyncIterator[One]:
    """Enqueue and commit, dequeue and commit."""
    async with partita.open_state(folder) as state:
        jobs = await state.queue("jobs", value=Item)

        async def one(_number: int) -> None:
            async with state.transaction() as tx:
                await jobs.enqueue(tx, new_item())
            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) is not None

        yield one


@asynccontextmanager
async def session(folder: Path) -> AsyncIterator[One]:
    """One statement in a session that is routed by its key, on SQLite."""
    from sqlalchemy import Column, Integer, MetaData, Table, select  # noqa: PLC0415 - an extra

    from partita.shards import Fleet, Range, ShardedSchema, ShardMapManager  # noqa: PLC0415

    metadata = MetaData()
    blog = Table("blog", metadata, Column("tenant_id", Integer, primary_key=True))
    manager = ShardMapManager.create(f"sqlite:///{folder}/catalog.db")
    schema = ShardedSchema(metadata, keys={"blog": "tenant_id"})
    tenants = manager.create_range_map("tenants", key=int, schema=schema)
    fleet = Fleet(manager, metadata=metadata)
    fleet.add_shard(tenants, f"sqlite:///{folder}/one.db", mappings=[Range(0, 100)])
    sessions = tenants.sessionmaker()

    async def one(_number: int) -> None:
        with sessions(42) as opened, opened.begin():
            opened.execute(select(blog.c.tenant_id).where(blog.c.tenant_id == 42)).all()

    yield one
    manager.close()


@entity(table="CountedStaff", partition="{dept}", row="{id:06d}")
class Employee:
    dept: str
    id: int
    age: int = 0


@entity(table="CountedMail", partition="{dept}", row="{id:06d}")
class Writer:
    dept: str
    id: int
    email: str


by_email = index(Writer, table="CountedMailIndex", partition="{email}", row="{id:06d}_{dept}")


@asynccontextmanager
async def save(folder: Path) -> AsyncIterator[One]:
    """Save a typed entity, in this process."""
    async with connect(f"partita:{folder}") as database:
        employees = database.table(Employee)
        await database.create_tables()
        yield lambda number: employees.save(Employee(dept="sales", id=number, age=41))


@asynccontextmanager
async def outbox(folder: Path) -> AsyncIterator[One]:
    """Let a worker write the index row of an entity in another table."""
    async with connect(f"partita:{folder}") as database:
        writers = database.table(Writer)
        await database.create_tables()
        for number in range(ENTITIES):
            await writers.save(Writer(dept="sales", id=number, email=f"{number}@contoso.com"))
        yield lambda _number: database.work_once()


@asynccontextmanager
async def _postgres(folder: Path, kind: str) -> AsyncIterator[One]:
    from bench.scaleout import database, store  # noqa: PLC0415 - an extra

    from partita.scaleout.fleet import Fleet  # noqa: PLC0415

    with database.started(folder) as postgres:
        fleet = await Fleet.open(postgres.url())
        try:
            tables = (await fleet.stores("bench")).tables
            table = await store.filled(tables, "ours", ENTITIES)
            one = store.get_of if kind == "get" else store.upsert_of
            yield _in_turn(one(tables, table, ENTITIES))
        finally:
            await fleet.close()


def _in_turn(one: One) -> One:
    return lambda number: one(number % ENTITIES)


SYSTEMS: dict[str, Callable[[Path], AbstractAsyncContextManager[One]]] = {
    "queue-cycle": queue_cycle,
    "blob-get": blob_get,
    "blob-put": blob_put,
    "state-get": state_get,
    "state-set": state_set,
    "state-scan": state_scan,
    "state-queue": state_queue,
    "session": session,
    "save": save,
    "outbox": outbox,
    "pg-get": lambda folder: _postgres(folder, "get"),
    "pg-upsert": lambda folder: _postgres(folder, "upsert"),
}
"""By name: what opens a system and yields its operation."""


async def count(folder: Path, system: str, wanted: int) -> None:
    """Do warm operations, then the counted ones."""
    async with SYSTEMS[system](folder) as one:
        for number in range(WARM_OPERATIONS):
            await one(number)
        gc.freeze()
        gc.disable()  # a collection would fall into one of the runs that are compared
        instrument("on")
        for number in range(WARM_OPERATIONS, WARM_OPERATIONS + wanted):
            await one(number)
        instrument("off")


if __name__ == "__main__":
    uvloop.run(count(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
