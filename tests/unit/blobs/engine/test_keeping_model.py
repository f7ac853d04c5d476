"""Random changes of a blob with versions and retention, compared with a model of what is kept."""

import random
from dataclasses import dataclass

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import Blob, BlobName, Include, Retention
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from support.repeats import repeat

HERE = "photos"
EVERYTHING: frozenset[Include] = frozenset({"snapshots", "versions", "deleted"})
CHANGES = 40
DAY = 86_400


@dataclass
class Row:
    """What is kept beside the blob itself."""

    kind: str
    content: bytes
    written: int
    """Number of the write, or of the snapshot, that gave a version its id."""
    is_deleted: bool = False
    was_blob: bool = False


class Model:
    """The rules of what is kept, without times."""

    def __init__(self) -> None:
        self.live: bytes | None = None
        self.count = 0
        self.written = 0
        """Number of the write of the blob."""
        self.version: int | None = None
        """What gave the blob its version id; None if it has none."""
        self.rows: list[Row] = []

    def next(self) -> int:
        self.count += 1
        return self.count

    def keep_version(self) -> None:
        """Keep the blob as a version; without an id of its own it gets that of its write.

        That write may have been kept before: it is the same version.
        """
        assert self.live is not None
        written = self.version or self.written
        if not any(row.kind == "version" and row.written == written for row in self.rows):
            self.rows.append(Row("version", self.live, written))

    def keep(self, retention: Retention, *, is_delete: bool) -> None:
        if self.live is None:
            return
        if retention.keeps_versions or self.version is not None:
            self.keep_version()
        elif retention.blob_days is not None:
            row = Row("snapshot", self.live, self.written, is_deleted=True, was_blob=is_delete)
            self.rows.append(row)

    def put(self, retention: Retention, content: bytes) -> None:
        self.keep(retention, is_delete=False)
        self.live, self.written = content, self.next()
        self.version = self.written if retention.keeps_versions else None

    def snapshot(self, retention: Retention) -> None:
        assert self.live is not None
        self.rows.append(Row("snapshot", self.live, self.written))
        if retention.keeps_versions or self.version is not None:
            self.keep_version()
            self.version = self.next() if retention.keeps_versions else None

    def delete(self, retention: Retention) -> None:
        kept: list[Row] = []
        for row in self.rows:
            if row.kind == "version" or row.is_deleted:
                kept.append(row)
            elif retention.blob_days is not None:
                row.is_deleted = True
                kept.append(row)
        self.rows = kept
        self.keep(retention, is_delete=True)
        self.live, self.version = None, None

    def undelete(self) -> None:
        deleted = [row for row in self.rows if row.is_deleted]
        if self.live is None and deleted and deleted[-1].was_blob:
            self.live, self.written = deleted[-1].content, deleted[-1].written
            self.rows.remove(deleted[-1])
        for row in deleted:
            row.is_deleted = row.was_blob = False

    def described(self) -> list[tuple[str, bytes]]:
        """Return what can be read beside the blob itself."""
        return sorted((row.kind, row.content) for row in self.rows if not row.is_deleted)


async def contents_of(engine: BlobEngine, name: BlobName) -> bytes | None:
    try:
        opened = await engine.open_blob(name)
    except PartitaError as error:
        if error.code != "BlobNotFound":
            raise
        return None
    try:
        return b"".join([part async for part in opened.content])
    finally:
        await opened.content.close()


async def described(engine: BlobEngine) -> tuple[list[tuple[str, bytes]], int]:
    """Return what can be read beside the blob itself, and how much is deleted."""
    found: list[tuple[str, bytes]] = []
    deleted = 0
    for item in (await engine.containers.list_blobs(HERE, include=EVERYTHING)).items:
        assert isinstance(item, Blob)
        if item.deleted_at is not None:
            deleted += 1
        elif not item.is_current:
            name = BlobName(HERE, "a", item.snapshot, item.version)
            content = await contents_of(engine, name)
            assert content is not None
            found.append(("snapshot" if item.snapshot else "version", content))
    return sorted(found), deleted


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(repeat(20, 200, 2000)))
async def test_what_is_kept_is_what_the_model_keeps(seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    database = await Database.open(None)
    store = await SqliteBlobStore.open(database, StoreClock(database, clock))
    engine, model, name = BlobEngine(store), Model(), BlobName(HERE, "a")
    await engine.containers.create_container(HERE)

    for number in range(CHANGES):
        retention = engine.keeper.retention
        match chance.choice(["put", "put", "snapshot", "delete", "undelete", "retention"]):
            case "put":
                # Contents of equal bytes share files; every third is the same.
                content = (b"%d " % (number % 3)) * chance.choice([10, 30_000])
                await engine.put_blob(name, content)
                model.put(retention, content)
            case "snapshot" if model.live is not None:
                await engine.snapshot(name)
                model.snapshot(retention)
            case "delete" if model.live is not None:
                await engine.delete_blob(name, snapshots="include")
                model.delete(retention)
            case "undelete" if model.live is not None or any(row.is_deleted for row in model.rows):
                await engine.undelete_blob(name)
                model.undelete()
            case "retention":
                days = chance.choice([None, 1])
                engine.keeper.retention = Retention(chance.random() < 0.4, days)
            case _:
                continue  # nothing to change
        await store.collector.collect()
        assert await contents_of(engine, name) == model.live
        found, deleted = await described(engine)
        assert (found, deleted) == (model.described(), sum(row.is_deleted for row in model.rows))

    clock.advance(2 * DAY)
    await store.collector.forget_expired()
    await store.collector.collect()
    assert await described(engine) == (model.described(), 0)
    await engine.containers.delete_container(HERE)
    await store.collector.collect()
    assert database.reader.execute("SELECT count(*) FROM extent").get == 0
    assert [digest for part in store.files.digests() for digest in part] == []
    await engine.close()
    await database.close()
