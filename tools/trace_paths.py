"""Print how many files and calls five common operations cross, in the steady state.

    python tools/trace_paths.py [--calls]

A file counts when a Python function of it under src/partita runs during the operation, in any
thread. Each operation runs several times first, so that caches are filled. Of several traces the
smallest is printed: work in the background, such as a checkpoint, can add files to the others.
`--calls` also lists the files and the functions that were called.
"""

import asyncio
import math
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableClient, TableServiceClient
from sqlalchemy import Column as SqlColumn
from sqlalchemy import Integer as SqlInteger
from sqlalchemy import MetaData, Table, select

import partita
from partita.clock import SystemClock
from partita.patterns import connect, entity
from partita.service.accounts.account import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    Account,
    Accounts,
)
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.accounts.respond import Front
from partita.service.hosting.server import Server
from partita.service.hosting.services import TABLES
from partita.service.http import protocol
from partita.shards import Fleet, Range, ShardedSchema, ShardMapManager

PACKAGE = Path(partita.__file__).parent
WARM_UPS = 3
TRACES = 40
FILES_MAX = {
    "point read": 12,
    "group of three": 17,
    "dictionary set and commit": 13,
    "routed session": 8,
    "typed save": 20,
}
"""Files that each path may cross."""
ABOVE_THE_PORT = ("patterns/", "clock.py")
"""A typed save is counted down to the official client: what the service does then is the group."""


@dataclass
class Trace:
    """The calls of one operation, by file and function."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.calls})


def smallest(traces: list[Trace]) -> Trace:
    return min(traces, key=lambda trace: (len(trace.files), sum(trace.calls.values())))


class Tracer:
    """Counts the calls of functions of the package while it is on, outside the client's thread."""

    def __init__(self) -> None:
        self._trace: Trace | None = None
        self._client = 0
        threading.setprofile(self._profile)

    def start(self) -> Trace:
        self._trace = Trace()
        return self._trace

    def stop(self) -> None:
        self._trace = None

    @contextmanager
    def here(self) -> Iterator[Trace]:
        """Trace what this thread does too."""
        trace = self.start()
        sys.setprofile(self._profile)
        try:
            yield trace
        finally:
            sys.setprofile(None)
            self.stop()

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        trace = self._trace
        if trace is None or event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(str(PACKAGE)) and not path.endswith("__init__.py"):
            file = str(Path(path).relative_to(PACKAGE))
            trace.calls[file, frame.f_code.co_qualname] += 1


def _client_work(port: int, tracer: Tracer, done: Callable[[dict[str, Trace]], None]) -> None:
    sys.setprofile(None)
    endpoint = f"http://127.0.0.1:{port}/{DEVELOPMENT_ACCOUNT}"
    credential = AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)
    service = TableServiceClient(endpoint, credential=credential)
    table = service.create_table("Staff")
    table.upsert_entity({"PartitionKey": "p", "RowKey": "r", "Age": 41})
    traces = {}
    for name, operation in (("point read", _read), ("group of three", _write_three)):
        for number in range(WARM_UPS):
            operation(table, number)
        found = []
        for number in range(TRACES):
            found.append(tracer.start())
            operation(table, WARM_UPS + number)
            tracer.stop()
        traces[name] = smallest(found)
    service.close()
    done(traces)


def _read(table: TableClient, _number: int) -> None:
    table.get_entity("p", "r")


def _write_three(table: TableClient, number: int) -> None:
    rows = [{"PartitionKey": "p", "RowKey": str(row), "Number": number} for row in range(3)]
    table.submit_transaction([("upsert", row) for row in rows])


async def trace_service(tracer: Tracer) -> dict[str, Trace]:
    """Trace requests from the socket to the disk and back."""
    protocol.TURN_SECONDS_MAX = math.inf  # traced turns are long, and the watchdog would log them
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        stores = await open_folder_stores(DEVELOPMENT_ACCOUNT, Path(folder), clock=clock)
        account = await Account.open(DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], stores)
        accounts = Accounts([account], clock)
        front = Front(TABLES.build(accounts, clock), accounts, clock)
        server = Server(front.begin, hosts=["127.0.0.1"], port=0, clock=clock)
        await server.start()
        sys.setprofile(tracer._profile)  # noqa: SLF001
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Trace]] = loop.create_future()

        def done(traces: dict[str, Trace]) -> None:
            loop.call_soon_threadsafe(answer.set_result, traces)

        threading.Thread(target=_client_work, args=(server.port, tracer, done)).start()
        traces = await answer
        sys.setprofile(None)
        await server.stop()
        await account.close()
    return traces


async def trace_dictionary(tracer: Tracer) -> dict[str, Trace]:
    with tempfile.TemporaryDirectory() as folder:
        async with partita.open_state(folder) as state:
            users = await state.dictionary("users", key=str, value=str)

            async def operation() -> None:
                async with state.transaction() as tx:
                    await users.set(tx, "ada", "ada@example.org")

            for _ in range(WARM_UPS):
                await operation()
            found = []
            for _ in range(TRACES):
                with tracer.here() as trace:
                    await operation()
                found.append(trace)
    return {"dictionary set and commit": smallest(found)}


def trace_session(tracer: Tracer) -> dict[str, Trace]:
    metadata = MetaData()
    blog = Table("blog", metadata, SqlColumn("tenant_id", SqlInteger, primary_key=True))
    with tempfile.TemporaryDirectory() as folder:
        manager = ShardMapManager.create(f"sqlite:///{folder}/catalog.db")
        tenants = manager.create_range_map(
            "tenants", key=int, schema=ShardedSchema(metadata, keys={"blog": "tenant_id"})
        )
        fleet = Fleet(manager, metadata=metadata)
        fleet.add_shard(tenants, f"sqlite:///{folder}/one.db", mappings=[Range(0, 100)])
        sessions = tenants.sessionmaker()

        def operation() -> None:
            with sessions(42) as session, session.begin():
                session.execute(select(blog.c.tenant_id).where(blog.c.tenant_id == 42)).all()

        for _ in range(WARM_UPS):
            operation()
        found = []
        for _ in range(TRACES):
            with tracer.here() as trace:
                operation()
            found.append(trace)
        manager.close()
    return {"routed session": smallest(found)}


@entity(table="Staff", partition="{department}", row="{number}")
class Employee:
    department: str
    number: str
    age: int


async def trace_save(tracer: Tracer) -> dict[str, Trace]:
    with tempfile.TemporaryDirectory() as folder:
        async with connect(f"partita:{folder}") as database:
            employees = database.table(Employee)
            await database.create_tables()
            for number in range(WARM_UPS):
                await employees.save(Employee(department="sales", number=str(number), age=41))
            employee = Employee(department="sales", number="x", age=41)
            with tracer.here() as trace:
                await employees.save(employee)
    above = {
        call: count for call, count in trace.calls.items() if call[0].startswith(ABOVE_THE_PORT)
    }
    return {"typed save": Trace(Counter(above))}


def all_traces() -> dict[str, Trace]:
    """Return the trace of each path, in the order of FILES_MAX."""
    tracer = Tracer()
    try:
        found = {
            **asyncio.run(trace_service(tracer)),
            **asyncio.run(trace_dictionary(tracer)),
            **trace_session(tracer),
            **asyncio.run(trace_save(tracer)),
        }
    finally:
        threading.setprofile(None)
    return {name: found[name] for name in FILES_MAX}


def main() -> int:
    print("| Path | Files | Calls | At most |\n|---|---|---|---|")
    traces = all_traces()
    for name, trace in traces.items():
        row = f"{len(trace.files)} | {sum(trace.calls.values())} | {FILES_MAX[name]} files"
        print(f"| {name} | {row} |")
    if "--calls" in sys.argv:
        for name, trace in traces.items():
            print(f"\n{name}")
            for file in trace.files:
                functions = [f for each, f in trace.calls if each == file]
                print(f"  {file}: {', '.join(functions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
