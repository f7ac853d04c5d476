"""Requests that cost the server most for their size, and the longest turn of the loop of each.

`python -m chaos.bad_inputs`, in the folder of the tests, sends them all to the services of an
account in a folder, and prints the longest turn of the event loop in thread time: what a busy
machine adds does not count.
"""

import asyncio
import base64
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from partita.blobs.rules.limits import BLOCKS_COMMITTED_MAX, BLOCKS_STAGED_MAX, PAGE_BYTES
from partita.blobs.rules.model import BlobName, Properties
from partita.blobs.store.contract import EMPTY
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert
from support.accounts import database_of
from support.fronts import Fronts, opened_fronts, told

TURN_SECONDS_MAX = 0.05
"""No turn of the loop may take longer."""

PAGES = 100_000
CLEARED = 30_000
SNAPSHOTS = 20_000
LISTED = 5000
KIND = {"content-type": "multipart/mixed; boundary=x"}
JSON = {"content_type": "application/json"}


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that records the thread time of its longest turn."""

    longest_seconds = 0.0
    turns = 0

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # asyncio's own
        self.turns += 1
        self.longest_seconds = max(self.longest_seconds, time.thread_time() - before)


class BadInput(NamedTuple):
    """One request of the table."""

    name: str
    told: str
    """The expected answer: the status, and the code of an error."""
    send: Callable[[Fronts], Awaitable[str]]
    """Sends it; what it needs was made by `prepare`."""
    prepare: Callable[[Fronts], Awaitable[None]] | None = None


class Measured(NamedTuple):
    """The answer to one request, and the longest turn while it was answered."""

    name: str
    told: str
    expected: str
    seconds: float


def block_id(number: int) -> str:
    return base64.b64encode(b"%064d" % number).decode()


def a_block_list(ids: Iterable[str]) -> bytes:
    return b"<BlockList>%s</BlockList>" % b"".join(
        b"<Latest>%s</Latest>" % each.encode() for each in ids
    )


async def _rows(fronts: Fronts, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
    async with database_of(fronts.account).change() as connection:
        connection.executemany(statement, rows)


def _last_extent(fronts: Fronts) -> tuple[int, bytes]:
    """Return the id of the newest extent, and its checks."""
    statement = "SELECT id, checks FROM extent ORDER BY id DESC LIMIT 1"
    rows: list[Any] = database_of(fronts.account).reader.execute(statement).fetchall()
    return rows[0][0], rows[0][1]


async def _container(fronts: Fronts) -> int:
    containers = fronts.account.blobs.containers
    if await containers.find_container("box") is None:
        await containers.create_container("box")
    row = await fronts.account.blobs.store.reads().find_container("box")
    assert row is not None
    return row.id


def staged(name: str, count: int) -> Callable[[Fronts], Awaitable[None]]:
    """Return how to stage many blocks of a blob, without a request for each."""

    async def prepare(fronts: Fronts) -> None:
        container = await _container(fronts)
        await fronts.account.blobs.block_blobs.put_block(BlobName("box", name), block_id(0), b"x")
        extents, checks = _last_extent(fronts)
        rows = ((extents + n, 1, checks, b"x") for n in range(1, count))
        await _rows(fronts, "INSERT INTO extent (id, size, checks, bytes) VALUES (?,?,?,?)", rows)
        now = fronts.account.blobs.store.now()
        blocks = ((container, name, block_id(n), extents + n, 1, now) for n in range(1, count))
        await _rows(fronts, "INSERT INTO block VALUES (?,?,?,?,?,?)", blocks)

    return prepare


def committed(name: str, count: int) -> Callable[[Fronts], Awaitable[None]]:
    async def prepare(fronts: Fronts) -> None:
        await staged(name, count)(fronts)
        body = a_block_list(map(block_id, range(count)))
        answer = await fronts.ask("blobs", "PUT", f"/box/{name}?comp=blocklist", body)
        assert told(answer) == "201"

    return prepare


async def _both(fronts: Fronts) -> None:
    await committed("read", BLOCKS_COMMITTED_MAX)(fronts)
    container = await _container(fronts)
    extent, _ = _last_extent(fronts)
    now = fronts.account.blobs.store.now()
    blocks = ((container, "read", block_id(n), extent, 1, now) for n in range(BLOCKS_STAGED_MAX))
    await _rows(fronts, "INSERT INTO block VALUES (?,?,?,?,?,?)", blocks)


def written_pages(name: str, count: int) -> Callable[[Fronts], Awaitable[None]]:
    """Return how to write many separate pages of a blob."""

    async def prepare(fronts: Fronts) -> None:
        await _container(fronts)
        pages, blob = fronts.account.blobs.page_blobs, BlobName("box", name)
        await pages.create_page_blob(blob, 2 * PAGE_BYTES * count)
        await pages.put_pages(blob, 0, b"x" * PAGE_BYTES, last=PAGE_BYTES - 1)
        _, row = await fronts.account.blobs.store.reads().find_blob("box", name)
        assert row is not None
        assert row.content != EMPTY
        extents, checks = _last_extent(fronts)
        rows = ((extents + n, PAGE_BYTES, checks, b"x" * PAGE_BYTES) for n in range(1, count))
        await _rows(fronts, "INSERT INTO extent (id, size, checks, bytes) VALUES (?,?,?,?)", rows)
        pieces = (
            (row.content, 2 * PAGE_BYTES * n, PAGE_BYTES, 0, extents + n) for n in range(1, count)
        )
        await _rows(fronts, "INSERT INTO piece VALUES (?,?,?,?,?,NULL)", pieces)

    return prepare


async def _snapshots(fronts: Fronts) -> None:
    container = await _container(fronts)
    await fronts.account.blobs.put_blob(BlobName("box", "kept"), b"x")
    database = database_of(fronts.account)
    content, facts = database.reader.execute(
        "SELECT content, facts FROM blob WHERE container = ? AND name = 'kept'", (container,)
    ).fetchall()[0]
    rows = ((container, "kept", n, 1, content, facts) for n in range(1, SNAPSHOTS))
    await _rows(fronts, "INSERT INTO blob VALUES (?,?,?,?,?,?)", rows)


async def _many_blobs(fronts: Fronts) -> None:
    container = await _container(fronts)
    metadata = {f"name{n}": "&" * 300 for n in range(20)}
    await fronts.account.blobs.put_blob(
        BlobName("box", "listed/"), b"x", properties=Properties(metadata=metadata)
    )
    reader = database_of(fronts.account).reader
    content, facts = reader.execute(
        "SELECT content, facts FROM blob WHERE container = ? AND name = 'listed/'", (container,)
    ).fetchall()[0]
    live = reader.execute("SELECT max(snapshot) FROM blob").get
    rows = ((container, f"listed/{n}", live, 1, content, facts) for n in range(1, LISTED))
    await _rows(fronts, "INSERT INTO blob VALUES (?,?,?,?,?,?)", rows)


async def _many_queues(fronts: Fronts) -> None:
    for n in range(LISTED):
        await fronts.account.queues.create_queue(f"queue-{n}", {"name": "&" * 300})


async def _many_tables(fronts: Fronts) -> None:
    rows = ((f"t{n:06}", f"T{n:06}", b"[]") for n in range(20_000))
    await _rows(fronts, "INSERT INTO catalog (folded, name, policies) VALUES (?,?,?)", rows)


async def _long_messages(fronts: Fronts) -> None:
    for _ in range(32):
        await fronts.account.queues.put("queue-1", "&" * 65_000)


def entities(
    table: str, count: int, properties: int, size: int
) -> Callable[[Fronts], Awaitable[None]]:
    """Return how to insert entities with many properties into a new table."""

    async def prepare(fronts: Fronts) -> None:
        await fronts.account.tables.create_table(table)
        members: dict[str, str | int | float | bool] = {}
        for n in range(properties):
            members |= (
                {f"p{n}@odata.type": "Edm.Int64", f"p{n}": str(n)}
                if size == 0
                else {f"p{n}": "x" * size}
            )
        for n in range(count):
            insert = Insert(EntityKey("p", f"{n:05}"), dict(members))
            await fronts.account.tables.run(table, EntityGroup([insert]))

    return prepare


def sent(
    service: str, method: str, target: str, body: bytes = b"", **headers: str
) -> Callable[[Fronts], Awaitable[str]]:
    """Return how to send a signed request; underscores in names of headers stand for dashes."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}

    async def send(fronts: Fronts) -> str:
        request = fronts.request(service, method, target, body, fields)
        response = await fronts.fronts[service].respond(request)
        if response.download is not None:
            async for _ in response.download:
                await asyncio.sleep(0)
            await response.download.close()
        return told(response)

    return send


def _change_set(parts: Iterable[str]) -> bytes:
    inside = "".join(
        "--y\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
        f"{part}\r\n"
        for part in parts
    )
    return (
        "--x\r\nContent-Type: multipart/mixed; boundary=y\r\n\r\n" + inside + "--y--\r\n--x--\r\n"
    ).encode()


def _insert_part(table: str, number: int) -> str:
    members = "".join(f',"p{n}@odata.type":"Edm.Int64","p{n}":"{n}"' for n in range(252))
    return (
        f"POST /devstoreaccount1/{table} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n"
        f'{{"PartitionKey":"p","RowKey":"{number}"{members}}}'
    )


def _merge_part(table: str, number: int) -> str:
    return (
        f"PATCH /devstoreaccount1/{table}(PartitionKey='p',RowKey='{number:05}') HTTP/1.1\r\n"
        'Content-Type: application/json\r\nIf-Match: *\r\n\r\n{"q":1}'
    )


def _deletes(fronts: Fronts) -> bytes:
    """Return a batch of parts whose signatures do not match."""
    part = fronts.request("blobs", "DELETE", "/box/b")
    lines = "".join(f"{name}: {value}\r\n" for name, value in part.headers.items())
    lines += "".join(f"x-ms-meta-n{n}: {'x' * 150}\r\n" for n in range(50))
    text = (
        f"--x\r\nContent-Type: application/http\r\n\r\nDELETE {part.path} HTTP/1.1\r\n{lines}\r\n"
    )
    return (text * 256 + "--x--\r\n").encode()


async def _send_deletes(fronts: Fronts) -> str:
    return told(await fronts.ask("blobs", "POST", "/?comp=batch", _deletes(fronts), KIND))


def _attributes(root: str, size: int) -> bytes:
    whole = f"<{root} " + " ".join(f'a{n:x}=""' for n in range(size // 8))
    return whole[: size - 40].rpartition(" ")[0].encode() + f"></{root}>".encode()


def _members(count: int) -> bytes:
    return b"{%s}" % b",".join(b'"a%x":1' % n for n in range(count))


LIST = "/box/{}?comp=blocklist"
BAD_INPUTS = [
    BadInput(
        "a block list that names one block 50,000 times",
        "201",
        sent("blobs", "PUT", LIST.format("one"), a_block_list([block_id(0)] * 50_000)),
        staged("one", 1),
    ),
    BadInput(
        "a commit of 50,000 blocks",
        "201",
        sent(
            "blobs",
            "PUT",
            LIST.format("many"),
            a_block_list(map(block_id, range(BLOCKS_COMMITTED_MAX))),
        ),
        staged("many", BLOCKS_COMMITTED_MAX),
    ),
    BadInput(
        "a commit of one of 100,000 staged blocks",
        "201",
        sent("blobs", "PUT", LIST.format("few"), a_block_list([block_id(0)])),
        staged("few", BLOCKS_STAGED_MAX),
    ),
    BadInput(
        "a block list whose root has 400,000 attributes",
        "400 InvalidXmlDocument",
        sent("blobs", "PUT", LIST.format("b"), _attributes("BlockList", 4 * 1024 * 1024)),
    ),
    BadInput(
        "a block list nested 99,990 deep",
        "400 InvalidXmlDocument",
        sent("blobs", "PUT", LIST.format("b"), b"<BlockList>" * 99_990 + b"</BlockList>" * 99_990),
    ),
    BadInput(
        "a block list of text",
        "400 InvalidXmlDocument",
        sent("blobs", "PUT", LIST.format("b"), b"<BlockList>" + b"x" * 7_000_000),
    ),
    BadInput(
        "the block list of 50,000 committed and 100,000 staged blocks",
        "200",
        sent("blobs", "GET", LIST.format("read") + "&blocklisttype=all"),
        _both,
    ),
    BadInput(
        "Put Blob over 100,000 staged blocks",
        "201",
        sent("blobs", "PUT", "/box/over", b"x", x_ms_blob_type="BlockBlob"),
        staged("over", BLOCKS_STAGED_MAX),
    ),
    BadInput(
        "a snapshot of a page blob with 100,000 pieces",
        "201",
        sent("blobs", "PUT", "/box/pages?comp=snapshot"),
        written_pages("pages", PAGES),
    ),
    BadInput(
        "a copy of a page blob with 100,000 pieces",
        "202",
        sent(
            "blobs",
            "PUT",
            "/box/copy",
            x_ms_copy_source="http://127.0.0.1:10000/devstoreaccount1/box/pages",
        ),
    ),
    BadInput(
        "the page ranges of 100,000 pieces",
        "200",
        sent("blobs", "GET", "/box/pages?comp=pagelist"),
    ),
    BadInput("a read of a blob of 50,000 blocks", "200", sent("blobs", "GET", "/box/read")),
    BadInput(
        "a read of a page blob with 100,000 pieces",
        "206",
        sent("blobs", "GET", "/box/pages", x_ms_range="bytes=0-104857599"),
    ),
    BadInput(
        "Put Page over 4,096 pieces",
        "201",
        sent(
            "blobs",
            "PUT",
            "/box/pages?comp=page",
            b"x" * 4 * 1024 * 1024,
            x_ms_page_write="update",
            x_ms_range=f"bytes=0-{4 * 1024 * 1024 - 1}",
        ),
    ),
    BadInput(
        "Put Page clear over 30,000 pieces",
        "201",
        sent(
            "blobs",
            "PUT",
            "/box/pages?comp=page",
            x_ms_page_write="clear",
            x_ms_range=f"bytes={8 * 1024 * 1024}-{8 * 1024 * 1024 + 2 * PAGE_BYTES * CLEARED - 1}",
        ),
    ),
    BadInput(
        "a resize that cuts 60,000 pieces",
        "200",
        sent("blobs", "PUT", "/box/pages?comp=properties", x_ms_blob_content_length="1024"),
    ),
    BadInput(
        "a delete of a blob with 20,000 snapshots",
        "202",
        sent("blobs", "DELETE", "/box/kept", x_ms_delete_snapshots="include"),
        _snapshots,
    ),
    BadInput(
        "a listing of 5,000 blobs with metadata",
        "200",
        sent(
            "blobs",
            "GET",
            "/box?restype=container&comp=list&prefix=listed/&include=metadata,snapshots,copy",
        ),
        _many_blobs,
    ),
    BadInput("a batch of 256 deletes with wrong signatures", "202", _send_deletes),
    BadInput(
        "tags whose root has many attributes",
        "400 InvalidXmlDocument",
        sent("blobs", "PUT", "/box/listed/?comp=tags", _attributes("Tags", 64 * 1024)),
    ),
    BadInput(
        "service properties whose root has many attributes",
        "400 InvalidXmlDocument",
        sent(
            "blobs",
            "PUT",
            "/?restype=service&comp=properties",
            _attributes("StorageServiceProperties", 256 * 1024),
        ),
    ),
    BadInput(
        "a message whose root has many attributes",
        "400 InvalidXmlDocument",
        sent("queues", "POST", "/queue-1/messages", _attributes("QueueMessage", 640 * 1024)),
        _many_queues,
    ),
    BadInput(
        "a listing of 5,000 queues with metadata",
        "200",
        sent("queues", "GET", "/?comp=list&include=metadata"),
    ),
    BadInput(
        "32 messages of 64 KiB that need escapes",
        "200",
        sent("queues", "GET", "/queue-1/messages?numofmessages=32"),
        _long_messages,
    ),
    BadInput(
        "a message of character references",
        "413 RequestBodyTooLarge",
        sent(
            "queues",
            "POST",
            "/queue-1/messages",
            b"<QueueMessage><MessageText>%s</MessageText></QueueMessage>" % (b"&#38;" * 130_000),
        ),
    ),
    BadInput(
        "an insert with 340,000 members",
        "400 TooManyProperties",
        sent("tables", "POST", "/Wide", _members(340_000), **JSON),
        entities("Wide", 0, 0, 0),
    ),
    BadInput(
        "an insert with a list of a million objects",
        "400 InvalidInput",
        sent("tables", "POST", "/Wide", b'{"a":[%s{}]}' % (b"{}," * 1_300_000), **JSON),
    ),
    BadInput(
        "an insert with two million escaped quotes",
        "400 EntityTooLarge",
        sent("tables", "POST", "/Wide", b'{"a":"%s"}' % (b'\\"' * 2_000_000), **JSON),
    ),
    BadInput(
        "a filter of 32 KiB",
        "200",
        sent("tables", "GET", "/Wide()?$filter=" + "%20or%20".join(["a%20eq%201"] * 2200)),
    ),
    BadInput(
        "a group of 100 inserts with 252 typed properties",
        "202",
        sent(
            "tables",
            "POST",
            "/$batch",
            _change_set(_insert_part("Wide", n) for n in range(100)),
            content_type=KIND["content-type"],
        ),
    ),
    BadInput(
        "a page of 1,000 entities with all metadata",
        "200",
        sent("tables", "GET", "/Paged()", accept="application/json;odata=fullmetadata"),
        entities("Paged", 1000, 200, 0),
    ),
    BadInput(
        "a selection of 200 properties of 1,000 entities",
        "200",
        sent("tables", "GET", "/Paged()?$select=" + ",".join(f"p{n}" for n in range(200))),
    ),
    BadInput(
        "a group of 100 merges into entities of 900 KiB",
        "202",
        sent(
            "tables",
            "POST",
            "/$batch",
            _change_set(_merge_part("Large", n) for n in range(100)),
            content_type=KIND["content-type"],
        ),
        entities("Large", 100, 30, 15_000),
    ),
    BadInput(
        "a page of entities of 900 KiB",
        "200",
        sent("tables", "GET", "/Large()?$filter=PartitionKey%20eq%20'p'"),
    ),
    BadInput(
        "a list of 20,000 tables that no filter matches",
        "200",
        sent("tables", "GET", "/Tables?$filter=TableName%20eq%20'nothing'"),
        _many_tables,
    ),
    BadInput(
        "a batch whose parts begin like delimiters",
        "400 InvalidInput",
        sent(
            "tables",
            "POST",
            "/$batch",
            b"--x\r\n" + b"\n--xy" * 800_000,
            content_type=KIND["content-type"],
        ),
    ),
]


async def measured(folder: Path, loop: MeasuredLoop) -> list[Measured]:
    found = []
    async with opened_fronts(folder) as fronts:
        await _container(fronts)
        for each in BAD_INPUTS:
            if each.prepare is not None:
                await each.prepare(fronts)
            await asyncio.sleep(0)
            loop.longest_seconds = 0.0
            answer = await each.send(fronts)
            await asyncio.sleep(0)
            found.append(Measured(each.name, answer, each.told, loop.longest_seconds))
    return found


def run() -> list[Measured]:
    """Send all requests, in their order, to an account in a new folder."""
    loop = MeasuredLoop()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return loop.run_until_complete(measured(Path(folder), loop))
        finally:
            loop.close()


def main() -> int:
    """Print the longest turn of each request; the status is 1 if one is too long."""
    found = run()
    for each in found:
        mark = "" if each.told == each.expected else f"  (expected {each.expected})"
        print(f"{each.seconds * 1000:8.1f} ms  {each.told:24} {each.name}{mark}")
    longest = max(found, key=lambda each: each.seconds)
    print(f"longest turn: {longest.seconds * 1000:.1f} ms, {longest.name}")
    is_met = all(each.seconds <= TURN_SECONDS_MAX and each.told == each.expected for each in found)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
