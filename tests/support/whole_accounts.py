"""An account with something of every kind, and everything of an account for comparison.

Both go through the engines, so they work on every store.
"""

import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import (
    NO_RETENTION,
    Blob,
    BlobName,
    BlockChoice,
    Headers,
    LeaseRequest,
    Properties,
    Retention,
)
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import SystemClock
from partita.policies import Policy
from partita.queues.engine import QueueEngine
from partita.queues.message import Message
from partita.queues.sqlite_store import SqliteQueueStore
from partita.scaleout.fleet import Fleet
from partita.service.accounts.service_properties_xml import ServiceProperties, encode
from partita.storage.database import Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, Insert, Replace
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore
from partita.ticks import Clock
from support.copying import Place

LARGE = bytes(range(256)) * 1200
"""Larger than what is stored in a row."""
LEASE = "11111111-1111-4111-8111-111111111111"
POLICY = Policy("reader", "2020-01-01", "2040-01-01", "r")
SETTINGS = ("service properties", "queue service properties", "blob service properties")


class Engines(NamedTuple):
    """The three services of an account, without the wire."""

    tables: TableEngine
    queues: QueueEngine
    blobs: BlobEngine


@contextlib.asynccontextmanager
async def folder_account(folder: Path, clock: Clock | None = None) -> AsyncIterator[Engines]:
    database = await Database.open(folder)
    try:
        store_clock = StoreClock(database, clock or SystemClock())
        tables = await SqliteTableStore.open(database, store_clock=store_clock)
        queues = await SqliteQueueStore.open(database, store_clock)
        blobs = await SqliteBlobStore.open(database, store_clock)
        engines = Engines(TableEngine(tables), QueueEngine(queues), BlobEngine(blobs))
        try:
            yield engines
        finally:
            await engines.blobs.close()
            await engines.queues.close()
            await engines.tables.close()
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def postgres_account(url: str, name: str, blob_store: str | None) -> AsyncIterator[Engines]:
    fleet = await Fleet.open(url, durability=Durability.FAST, blob_store=blob_store)
    try:
        stores = await fleet.stores(name)
        yield Engines(
            TableEngine(stores.tables), QueueEngine(stores.queues), BlobEngine(stores.blobs)
        )
    finally:
        await fleet.close()


def opened(place: Place) -> contextlib.AbstractAsyncContextManager[Engines]:
    """Open the account of a place as a server does."""
    if place.folder:
        return folder_account(Path(place.folder))
    return postgres_account(place.url, place.account, place.objects)


async def fill(engines: Engines, *, entities: int = 40) -> list[Message]:
    """Store something of every kind; return the messages that were received."""
    await _fill_tables(engines.tables, entities)
    received = await _fill_queues(engines.queues)
    await _fill_blobs(engines.blobs)
    return received


async def _fill_tables(tables: TableEngine, entities: int) -> None:
    for name in ("Orders", "empty", "dropped"):
        await tables.create_table(name)
    await tables.set_policies("Orders", [POLICY])
    for setting in SETTINGS[:2]:
        await tables.store.set_setting(setting, encode(ServiceProperties()))
    for partition in ("", "a", "\N{SNOWMAN}", "\N{GRINNING FACE}"):
        inserts = [
            Insert(
                EntityKey(partition, f"{number:04}" if number else ""),
                {
                    "Text": f"line {number} \N{EURO SIGN}",
                    "Number": number,
                    "Long@odata.type": "Edm.Int64",
                    "Long": str(2**53 + number),
                    "Zero": "\0",
                    "Big": "x" * (30_000 if number % 16 == 0 else 1),
                },
            )
            for number in range(entities)
        ]
        for start in range(0, len(inserts), 100):
            await tables.run("Orders", EntityGroup(inserts[start : start + 100]))
    await tables.run("Orders", EntityGroup([Replace(EntityKey("a", "0001"), {"Text": "new"})]))
    await tables.run("Orders", EntityGroup([Delete(EntityKey("a", "0002"))]))
    await tables.run("dropped", EntityGroup([Insert(EntityKey("x", "y"), {})]))
    await tables.delete_table("dropped")


async def _fill_queues(queues: QueueEngine) -> list[Message]:
    for name in ("jobs", "empty", "dropped"):
        await queues.create_queue(name, {"Color": "red"})
    await queues.set_policies("jobs", [POLICY])
    for number in range(10):
        await queues.put("jobs", f"job {number} \N{SNOWMAN}")
    await queues.put("jobs", "later", hidden_seconds=600)
    await queues.put("jobs", "for ever", lifetime_seconds=None)
    await queues.put("dropped", "not copied")
    await queues.delete_queue("dropped")
    return await queues.get("jobs", limit=3, hidden_seconds=3000)


async def _fill_blobs(blobs: BlobEngine) -> None:
    for name in ("photos", "empty", "dropped"):
        await blobs.containers.create_container(name, metadata={"Color": "red"})
    await blobs.containers.set_policies("photos", [POLICY])
    await blobs.containers.lease_container(
        "photos", LeaseRequest("acquire", proposed_id=LEASE, duration=-1)
    )
    properties = Properties(
        Headers(content_type="text/plain"), {"Kind": "note"}, {"tag": "value"}, "Cool"
    )
    await blobs.put_blob(BlobName("photos", "small"), b"small content", properties=properties)
    await blobs.put_blob(BlobName("photos", "large \N{SNOWMAN}"), LARGE)
    for number in range(8):
        await blobs.put_blob(BlobName("photos", f"large {number}"), LARGE + b"%d" % number)
    await blobs.put_blob(BlobName("photos", "nothing"), b"")
    await blobs.snapshot(BlobName("photos", "small"))
    await blobs.put_blob(BlobName("photos", "small"), b"newer content", properties=properties)
    await blobs.copies.copy_blob(BlobName("photos", "small"), BlobName("empty", "copied"))
    await blobs.copies.copy_blob(BlobName("photos", "large \N{SNOWMAN}"), BlobName("empty", "big"))
    await blobs.lease_blob(
        BlobName("photos", "nothing"), LeaseRequest("acquire", proposed_id=LEASE, duration=60)
    )
    await _fill_blocks_and_pages(blobs)
    await blobs.put_blob(BlobName("dropped", "gone"), b"not copied")
    await blobs.containers.delete_container("dropped")
    await _fill_kept(blobs, properties)


async def _fill_kept(blobs: BlobEngine, properties: Properties) -> None:
    """Store versions, deleted blobs, and a deleted container."""
    try:
        blobs.keeper.retention = Retention(keeps_versions=True, blob_days=7, container_days=7)
        for content in (b"first", LARGE + b"second", b"third"):
            await blobs.put_blob(BlobName("photos", "versioned"), content, properties=properties)
        await blobs.put_blob(BlobName("photos", "only versions"), b"deleted")
        await blobs.delete_blob(BlobName("photos", "only versions"))
        blobs.keeper.retention = Retention(blob_days=7, container_days=7)
        await blobs.put_blob(BlobName("photos", "deleted"), LARGE + b"deleted")
        await blobs.snapshot(BlobName("photos", "deleted"))
        await blobs.delete_blob(BlobName("photos", "deleted"), snapshots="include")
        await blobs.containers.create_container("deleted", metadata={"Color": "blue"})
        await blobs.put_blob(BlobName("deleted", "kept"), b"kept", properties=properties)
        await blobs.containers.delete_container("deleted")
    finally:
        blobs.keeper.retention = NO_RETENTION


async def _fill_blocks_and_pages(blobs: BlobEngine) -> None:
    blocks = BlobName("photos", "blocks")
    ids = [base64.b64encode(b"block-%d" % number).decode() for number in range(4)]
    for number, block in enumerate(ids[:3]):
        await blobs.block_blobs.put_block(
            blocks, block, LARGE if number == 1 else b"block %d" % number
        )
    await blobs.block_blobs.put_block_list(
        blocks, [BlockChoice("Latest", each) for each in ids[:2]]
    )
    await blobs.block_blobs.put_block(blocks, ids[3], b"staged")
    await blobs.block_blobs.put_block(BlobName("photos", "uncommitted"), ids[0], b"staged only")
    log = BlobName("photos", "log")
    await blobs.append_blobs.create_append_blob(log)
    for number in range(5):
        await blobs.append_blobs.append_block(log, b"line %d\n" % number)
    disk = BlobName("photos", "disk")
    await blobs.page_blobs.create_page_blob(disk, 512 * 40)
    await blobs.page_blobs.put_pages(disk, 512, b"p" * 2048, last=2559)
    await blobs.snapshot(disk)
    await blobs.page_blobs.put_pages(disk, 1024, b"q" * 512, last=1535)
    await blobs.page_blobs.clear_pages(disk, 2048, 2559)


async def described(engines: Engines) -> dict[str, Any]:
    """Return everything of an account that clients can see, and their receipts cannot change."""
    return {
        "tables": await _tables(engines.tables),
        "queues": await _queues(engines.queues),
        "containers": await _containers(engines.blobs),
    }


async def _tables(tables: TableEngine) -> dict[str, Any]:
    found: dict[str, Any] = {name: await tables.store.get_setting(name) for name in SETTINGS}
    for table in (await tables.list_tables(None)).tables:
        entities = []
        start: EntityKey | None = None
        while True:
            _, page = await tables.query(table.name, None, within=KeyRange(), start=start)
            entities += [(each.key, each.etag, each.ticks, each.document) for each in page.entities]
            if (start := page.continuation) is None:
                break
        found[table.name] = await tables.get_policies(table.name), entities
    return found


async def _queues(queues: QueueEngine) -> dict[str, Any]:
    return {
        queue.name: (
            dict(queue.metadata),
            await queues.get_policies(queue.name),
            (await queues.get_queue(queue.name)).message_count,
            await queues.peek(queue.name, limit=32),
        )
        for queue in (await queues.list_queues()).queues
    }


async def _containers(blobs: BlobEngine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    listed = (await blobs.containers.list_containers(with_deleted=True)).items
    found["deleted"] = [each for each in listed if each.deleted_at is not None]
    searched = (await blobs.searches.find_blobs("tag = 'value'")).items
    found["tagged"] = sorted((each.container, each.name) for each in searched)
    for container in listed:
        if container.deleted_at is not None:
            continue
        listing = await blobs.containers.list_blobs(
            container.name, include={"snapshots", "uncommittedblobs", "versions", "deleted"}
        )
        items = [
            (msgspec.structs.replace(item), await _content(blobs, container.name, item))
            for item in listing.items
            if isinstance(item, Blob)
        ]
        found[container.name] = container, items
    return found


async def _content(blobs: BlobEngine, container: str, blob: Blob) -> Any:
    if blob.deleted_at is not None:
        return None
    name = BlobName(container, blob.name, blob.snapshot, blob.version)
    lists = None
    if blob.kind == "BlockBlob" and blob.snapshot is None:
        lists = await blobs.block_blobs.get_block_list(name)
    if not blob.is_committed:
        return lists
    opened = await blobs.open_blob(name)
    return b"".join([part async for part in opened.content]), lists
