"""Answers that break in the middle, sent by a real socket: reads ask again, writes look first."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from partita.errors import UnavailableError
from partita.patterns import connect, entity, sync
from partita.service.accounts.account import DEVELOPMENT_KEY

BODY = b'{"PartitionKey":"Sales","RowKey":"000007","EntityType":"Clerk","Name":"Jun"}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)
HALF = WHOLE[: len(WHOLE) // 2 + 30]
STRANGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"


@entity(table="clerks", partition="{dept}", row="{id:06d}")
class Clerk:
    dept: str
    id: int
    name: str


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """Answer one request after another with these bytes, and hang up after each."""
    left = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(left))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    root = f"http://127.0.0.1:{port}/devstoreaccount1"
    try:
        yield (
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={DEVELOPMENT_KEY};"
            f"TableEndpoint={root};QueueEndpoint={root};BlobEndpoint={root}"
        )
    finally:
        server.close()
        await server.wait_closed()


@contextmanager
def answering_in_a_thread(*answers: bytes) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = answering(*answers)

    def run(step: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(step, loop).result()

    try:
        yield run(context.__aenter__())
    finally:
        run(context.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_a_read_whose_answer_breaks_in_the_middle_is_asked_again() -> None:
    async with answering(HALF, WHOLE) as where, connect(where) as db:
        with db.measuring() as cost:
            clerk = await db.table(Clerk).get(dept="Sales", id=7)

    assert clerk.name == "Jun"
    assert cost.requests == 2


def test_a_read_whose_answer_breaks_in_the_middle_is_asked_again_without_a_loop() -> None:
    with (
        answering_in_a_thread(HALF, WHOLE) as where,
        sync.connect(where) as db,
        db.measuring() as cost,
    ):
        clerk = db.table(Clerk).get(dept="Sales", id=7)

    assert clerk.name == "Jun"
    assert cost.requests == 2


@pytest.mark.parametrize(
    "answer",
    [
        STRANGE,
        STRANGE.replace(b"200 OK", b"404 Not Found"),
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_another_server_at_the_address_is_said(answer: bytes) -> None:
    async with answering(answer) as where, connect(where) as db:
        with pytest.raises(UnavailableError) as caught:
            await db.table(Clerk).get_or_none(dept="Sales", id=7)

    assert caught.value.code == "AnswerUnreadable"
    assert "another server may listen there" in caught.value.hint
