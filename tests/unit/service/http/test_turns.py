"""No request holds the event loop: long work is done in several turns, or in a thread."""

import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from chaos.bad_inputs import a_block_list, block_id
from partita.blobs.rules.model import BlobName
from partita.blobs.store import sqlite_store
from partita.errors import InvalidPropertyError, UsageError
from partita.service.http.turns import ITEMS_PER_TURN, collected, computed
from partita.service.tables import service as table_service
from partita.storage.database import Database
from partita.tables import entity as entities
from partita.tables import limits
from support.fronts import Fronts, opened_fronts, told, turns_of

JSON = {"content-type": "application/json"}
ROWS = 4
"""A change of more rows is long in these tests."""


async def test_a_long_list_is_collected_in_several_turns() -> None:
    items, turns = await turns_of(collected(iter(range(25)), per_turn=5))

    assert items == list(range(25))
    assert turns >= 5


@pytest.mark.parametrize(
    ("items", "is_here"), [(ITEMS_PER_TURN, True), (ITEMS_PER_TURN + 1, False)]
)
async def test_a_long_answer_is_computed_in_a_thread(items: int, is_here: bool) -> None:
    thread = await computed(items, threading.get_ident)

    assert (thread == threading.get_ident()) == is_here


# Changes of many rows


@pytest.fixture
async def fronts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fronts]:
    monkeypatch.setattr(sqlite_store, "CHANGE_ROWS_MAX", ROWS)
    async with opened_fronts(tmp_path) as opened:
        await opened.account.blobs.containers.create_container("box")
        yield opened


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the long changes that run in the commit thread."""
    seen: list[str] = []
    run_alone = Database.run_alone

    async def recorded(
        database: Database, work: Callable[..., Coroutine[Any, Any, Any]], **named: Any
    ) -> Any:
        seen.append("long")
        return await run_alone(database, work, **named)

    monkeypatch.setattr(Database, "run_alone", recorded)
    return seen


async def stage(fronts: Fronts, name: str, count: int) -> bytes:
    """Stage blocks and return the list that commits them."""
    for number in range(count):
        await fronts.account.blobs.block_blobs.put_block(
            BlobName("box", name), block_id(number), b"x"
        )
    return a_block_list(map(block_id, range(count)))


async def write_pages(fronts: Fronts, name: str, count: int) -> None:
    pages, blob = fronts.account.blobs.page_blobs, BlobName("box", name)
    await pages.create_page_blob(blob, 1024 * count)
    for number in range(count):
        first = 1024 * number
        await pages.put_pages(blob, first, b"x" * 512, last=first + 511)


async def put_list(fronts: Fronts, count: int) -> str:
    body = await stage(fronts, "b", count)
    return told(await fronts.ask("blobs", "PUT", "/box/b?comp=blocklist", body))


async def name_one_block(fronts: Fronts, count: int) -> str:
    await stage(fronts, "b", 1)
    body = a_block_list([block_id(0)] * count)
    return told(await fronts.ask("blobs", "PUT", "/box/b?comp=blocklist", body))


async def overwrite(fronts: Fronts, count: int) -> str:
    await stage(fronts, "b", count)
    headers = {"x-ms-blob-type": "BlockBlob"}
    return told(await fronts.ask("blobs", "PUT", "/box/b", b"x", headers))


async def snapshot(fronts: Fronts, count: int) -> str:
    await write_pages(fronts, "p", count)
    return told(await fronts.ask("blobs", "PUT", "/box/p?comp=snapshot"))


async def copy(fronts: Fronts, count: int) -> str:
    await write_pages(fronts, "p", count)
    headers = {"x-ms-copy-source": "http://127.0.0.1:10000/devstoreaccount1/box/p"}
    return told(await fronts.ask("blobs", "PUT", "/box/copy", b"", headers))


async def put_page(fronts: Fronts, count: int) -> str:
    await write_pages(fronts, "p", count)
    headers = {"x-ms-page-write": "update", "x-ms-range": f"bytes=0-{1024 * count - 1}"}
    body = b"y" * 1024 * count
    return told(await fronts.ask("blobs", "PUT", "/box/p?comp=page", body, headers))


async def clear(fronts: Fronts, count: int) -> str:
    await write_pages(fronts, "p", count)
    headers = {"x-ms-page-write": "clear", "x-ms-range": f"bytes=0-{1024 * count - 1}"}
    return told(await fronts.ask("blobs", "PUT", "/box/p?comp=page", b"", headers))


async def resize(fronts: Fronts, count: int) -> str:
    await write_pages(fronts, "p", count)
    headers = {"x-ms-blob-content-length": "0"}
    return told(await fronts.ask("blobs", "PUT", "/box/p?comp=properties", b"", headers))


async def delete(fronts: Fronts, count: int) -> str:
    await fronts.account.blobs.put_blob(BlobName("box", "b"), b"x")
    for _ in range(count):
        await fronts.account.blobs.snapshot(BlobName("box", "b"))
    headers = {"x-ms-delete-snapshots": "include"}
    return told(await fronts.ask("blobs", "DELETE", "/box/b", b"", headers))


CHANGES = [
    put_list, name_one_block, overwrite, snapshot, copy, put_page, clear, resize, delete
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_many_rows_leaves_the_loop(
    fronts: Fronts, in_thread: list[str], change: Callable[[Fronts, int], Coroutine[Any, Any, str]]
) -> None:
    """The same change is made on the loop if it touches few rows."""
    few = await change(fronts, 1)
    assert in_thread == []
    many = await change(fronts, ROWS + 1)

    assert few == many
    assert few.startswith("20")
    assert in_thread == ["long"]


async def test_a_change_that_is_refused_in_the_thread_is_refused(fronts: Fronts) -> None:
    body = a_block_list([block_id(7)] * (ROWS + 1))

    refused = await fronts.ask("blobs", "PUT", "/box/b?comp=blocklist", body)

    assert told(refused) == "400 InvalidBlockList"
    assert (await fronts.ask("blobs", "HEAD", "/box/b")).status == 404


async def test_a_block_list_is_parsed_in_several_turns(fronts: Fronts) -> None:
    await stage(fronts, "b", 1)
    body = a_block_list([block_id(0)] * (5 * ITEMS_PER_TURN))

    answer, turns = await turns_of(fronts.ask("blobs", "PUT", "/box/b?comp=blocklist", body))

    assert told(answer) == "201"
    assert turns > 5


async def test_stale_blocks_are_forgotten_in_the_thread(
    fronts: Fronts, in_thread: list[str]
) -> None:
    await stage(fronts, "b", 2)
    fronts.clock.advance(8 * 24 * 3600)
    store = fronts.account.blobs.store
    assert isinstance(store, sqlite_store.SqliteBlobStore)

    await store.collector.forget_stale()

    assert in_thread == ["long"]
    listing = await fronts.ask("blobs", "GET", "/box/b?comp=blocklist&blocklisttype=all")
    assert told(listing) == "404 BlobNotFound"


# Entities


def test_of_a_body_with_many_members_only_the_first_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []
    decode_body = entities._decode_body

    def decode(body: bytes) -> object:
        decoded.append(len(body))
        return decode_body(body)

    monkeypatch.setattr(entities, "_decode_body", decode)
    count = 40 * limits.BODY_MEMBERS_MAX

    for body, code in (
        (b"{%s}" % b",".join(b'"a%d":1' % n for n in range(count)), "TooManyProperties"),
        (b"{%s}" % b",".join(b'"a%d\\\\":1' % n for n in range(count)), "TooManyProperties"),
        (b'{"a":"%s"}' % (b'\\"' * (limits.ENTITY_BYTES_MAX + 1)), "EntityTooLarge"),
        (b"{%s}" % b",".join(b'"a":1' for n in range(count)), "DuplicatePropertiesSpecified"),
        (b'{"a":' * count, "InvalidInput"),
    ):
        with pytest.raises(UsageError) as refused:
            entities.parse_object(body)
        assert refused.value.code == code
    assert max(decoded) <= limits.NESTED_BODY_BYTES_MAX + 1


def test_quotes_in_texts_are_not_members() -> None:
    text = '"' * 20_000
    body = entities._encode({"PartitionKey": "p", "RowKey": "r", "Name": text})

    assert entities.parse_body(body).properties == {"Name": text}


def test_a_nested_value_ends_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(entities, "_decode_nested")
    body = b'{"a":[%s{}]}' % (b"{}," * limits.NESTED_BODY_BYTES_MAX)

    with pytest.raises(InvalidPropertyError) as refused:
        entities.parse_object(body)
    assert refused.value.code == "InvalidInput"


def a_group(count: int, properties: int) -> bytes:
    members = "".join(f',"p{n}":"{"x" * 900}"' for n in range(properties))
    parts = "".join(
        "--y\r\nContent-Type: application/http\r\n\r\nPOST /devstoreaccount1/Staff HTTP/1.1\r\n"
        "Content-Type: application/json\r\n\r\n"
        f'{{"PartitionKey":"p","RowKey":"{n}"{members}}}\r\n'
        for n in range(count)
    )
    return f"--x\r\nContent-Type: multipart/mixed; boundary=y\r\n\r\n{parts}--y--\r\n".encode()


async def test_the_parts_of_a_group_are_decoded_in_several_turns(
    fronts: Fronts, in_thread: list[str]
) -> None:
    await fronts.account.tables.create_table("Staff")
    body, kind = a_group(100, 7), {"content-type": "multipart/mixed; boundary=x"}
    assert len(body) > 4 * table_service.BODY_BYTES_PER_TURN

    answer, turns = await turns_of(fronts.ask("tables", "POST", "/$batch", body, kind))

    assert answer.body.count(b"HTTP/1.1 201") == 100
    assert turns > 4
    assert in_thread == []


@pytest.mark.parametrize("limit", ["TURN_MEMBERS_MAX", "TURN_BYTES_MAX"])
async def test_a_group_of_much_data_leaves_the_loop(
    fronts: Fronts, in_thread: list[str], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the properties that it writes, or by the entities that it reads."""
    await fronts.account.tables.create_table("Staff")
    kind = {"content-type": "multipart/mixed; boundary=x"}
    body = a_group(10, 2)
    assert (await fronts.ask("tables", "POST", "/$batch", body, kind)).status == 202
    assert in_thread == []
    monkeypatch.setattr(limits, limit, 19)

    merges = body.replace(b"POST /devstoreaccount1/Staff", b"MERGE")
    for n in range(10):
        merges = merges.replace(
            b"MERGE HTTP",
            f"MERGE /devstoreaccount1/Staff(PartitionKey='p',RowKey='{n}') HTTP".encode(),
            1,
        )
    answer = await fronts.ask("tables", "POST", "/$batch", merges, kind)

    assert answer.body.count(b"HTTP/1.1 204") == 10
    assert in_thread == ["long"]
