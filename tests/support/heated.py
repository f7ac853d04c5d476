"""A real table server whose minutes pass as fast as its clock is advanced, and loads on it.

`python -m support.heated FOLDER` draws the pictures of docs/operations/heat.md.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from partita.clock import ManualClock
from partita.heat.drawing.labels import title_text
from partita.heat.drawing.picture import draw
from partita.heat.drawing.png import png
from partita.heat.kept import Column
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.hosting.opening import Place, open_accounts
from partita.service.hosting.server import Server
from partita.service.hosting.services import TABLES
from support.fronts import Fronts

START = 1_768_471_200
"""A whole hour, in seconds since 1970."""
PIPELINED = 16
BOUNDARY = "batch_heat"
JSON = {"content-type": "application/json", "accept": "application/json"}

Wanted = tuple[str, str, bytes, dict[str, str]]
"""Method, target, body, headers."""


class HeatedServer:
    """One account behind a socket, and a client that signs with the time of the server."""

    def __init__(self, account: Account, server: Server, clock: ManualClock) -> None:
        assert account.heat is not None
        self.account = account
        self.heat = account.heat
        self.clock = clock
        self.port = server.port
        self._fronts = Fronts({DEVELOPMENT_ACCOUNT: account}, clock)

    async def send(self, wanted: Iterable[Wanted]) -> list[int]:
        """Send requests on one connection, many at a time; return the statuses."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        statuses: list[int] = []
        waiting = list(wanted)
        while waiting:
            some, waiting = waiting[:PIPELINED], waiting[PIPELINED:]
            writer.write(b"".join(self._bytes(*each) for each in some))
            for _ in some:
                head = await reader.readuntil(b"\r\n\r\n")
                statuses.append(int(head.split(b" ", 2)[1]))
                await _read_body(reader, head)
        writer.close()
        await writer.wait_closed()
        return statuses

    async def minute(self, wanted: Iterable[Wanted]) -> list[int]:
        """Send the requests of a minute, then let the minute pass."""
        statuses = await self.send(wanted)
        self.clock.advance(60)
        await self.heat.tick()
        return statuses

    async def columns(self, table: str) -> list[Column]:
        reading = await self.heat.read(DEVELOPMENT_ACCOUNT, table, 0, START + 10**7)
        assert reading is not None
        return reading.columns

    def _bytes(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> bytes:
        request = self._fronts.request("tables", method, target, body, headers)
        query = f"?{request.query}" if request.query else ""
        lines = [
            f"{method} {request.path}{query} HTTP/1.1",
            *(f"{name}: {value}" for name, value in request.headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> None:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"content-length" in fields:
        await reader.readexactly(int(fields[b"content-length"]))
    elif b"transfer-encoding" in fields:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()


@contextlib.asynccontextmanager
async def heated_server(where: Path | None = None, *tables: str) -> AsyncIterator[HeatedServer]:
    """Serve an account that measures its heat, with some tables."""
    clock = ManualClock(START * 10_000_000)
    keys = {DEVELOPMENT_ACCOUNT: [DEVELOPMENT_KEY]}
    place = Place(where, measures_heat=True)
    async with open_accounts(keys, place, clock) as [account]:
        accounts = Accounts([account], clock)
        front = Front(TABLES.build(accounts, clock), accounts, clock)
        server = Server(front.respond)  # time-outs of connections are by the real clock
        await server.start()
        heated = HeatedServer(account, server, clock)
        made = await heated.send(
            ("POST", "/Tables", json.dumps({"TableName": table}).encode(), JSON) for table in tables
        )
        assert made == [201] * len(tables)
        try:
            yield heated
        finally:
            await server.stop()


def insert(table: str, partition_key: str, row_key: str, text: str = "x" * 100) -> Wanted:
    entity = {"PartitionKey": partition_key, "RowKey": row_key, "Text": text}
    return "POST", f"/{table}", json.dumps(entity).encode(), JSON


def upserts(table: str, partition_key: str, row_keys: Iterable[str]) -> Wanted:
    """Return a group."""
    parts = []
    for row_key in row_keys:
        entity = {"PartitionKey": partition_key, "RowKey": row_key, "Text": "x" * 100}
        place = f"{table}(PartitionKey='{partition_key}',RowKey='{row_key}')"
        body = json.dumps(entity)
        parts.append(
            f"--set\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
            f"PUT http://127.0.0.1:10002/{DEVELOPMENT_ACCOUNT}/{place} HTTP/1.1\r\n"
            f"Content-Type: application/json\r\nAccept: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}\r\n"
        )
    whole = (
        f"--{BOUNDARY}\r\nContent-Type: multipart/mixed; boundary=set\r\n\r\n"
        f"{''.join(parts)}--set--\r\n--{BOUNDARY}--\r\n"
    )
    kind = {"content-type": f"multipart/mixed; boundary={BOUNDARY}"}
    return "POST", "/$batch", whole.encode(), kind


def get(table: str, partition_key: str, row_key: str) -> Wanted:
    place = f"/{table}(PartitionKey='{quote(partition_key)}',RowKey='{quote(row_key)}')"
    return "GET", place, b"", JSON


def query(table: str, options: str = "") -> Wanted:
    return "GET", f"/{table}()" + (f"?{options}" if options else ""), b"", JSON


def append_only(minute: int, scale: int) -> list[Wanted]:
    """Return a log: the partition key is the time, so writes go to the end of the table."""
    moments = [START + 60 * minute + second for second in range(0, 60, max(1, 20 // scale))]
    return [
        upserts("Log", f"{moment}", [f"{place:04}" for place in range(20)]) for moment in moments
    ]


def hot_tenant(minute: int, scale: int) -> list[Wanted]:
    """Return reads of 60 tenants; for a time one of them has most."""
    chance = random.Random(minute)
    wanted = []
    for _ in range(100 * scale):
        is_hot = 4 <= minute < 40 and chance.random() < 0.7
        tenant = 23 if is_hot else chance.randrange(60)
        row = f"order-{chance.randrange(200):05}"
        wanted.append(get("Orders", f"tenant-{tenant:03}", row))
    return wanted


def scans(minute: int, scale: int) -> list[Wanted]:
    """Return point reads, and at some times the whole table by a filter without keys."""
    chance = random.Random(minute)
    wanted = [
        get("Events", f"user-{int(chance.random() ** 2 * 40):03}", f"{chance.randrange(20):04}")
        for _ in range(30 * scale)
    ]
    if minute % 5 == 3:
        wanted += [query("Events", "$filter=Text%20ne%20'y'")] * scale
    return wanted


async def filled_events(heated: HeatedServer) -> None:
    """Store what the scans read."""
    rows = [f"{row:04}" for row in range(20)]
    await heated.send(upserts("Events", f"user-{user:03}", rows) for user in range(40))
    heated.account.meter.cut()


LOADS: dict[str, tuple[str, Callable[[int, int], list[Wanted]]]] = {
    "append": ("Log", append_only),
    "hot-tenant": ("Orders", hot_tenant),
    "scan": ("Events", scans),
}


async def run_load(heated: HeatedServer, name: str, *, minutes: int, scale: int) -> list[Column]:
    """Run a load for some minutes and return the columns of its table."""
    table, load = LOADS[name]
    if name == "scan":
        await filled_events(heated)
    for minute in range(minutes):
        await heated.minute(load(minute, scale))
    return await heated.columns(table)


async def draw_all(folder: Path) -> None:
    for name, (table, _load) in LOADS.items():
        async with heated_server(None, table) as heated:
            columns = await run_load(heated, name, minutes=60, scale=8)
        kind = "writes" if name == "append" else "reads"
        picture = draw(columns, kind, rows_max=150, columns_max=400)
        (folder / f"heat-{name}.png").write_bytes(png(picture, title_text(table, picture)))


if __name__ == "__main__":
    asyncio.run(draw_all(Path(sys.argv[1])))
