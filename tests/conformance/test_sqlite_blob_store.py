from typing import Any

import pytest

from conformance.blob_store import HERE, LONG, BlobStoreConformance, blob
from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules import limits
from partita.blobs.rules.model import Include
from partita.blobs.store import download as downloading
from partita.blobs.store import garbage_collector as collector
from partita.blobs.store import sqlite_store
from partita.blobs.store.contract import Scan
from partita.blobs.store.list_scan import listing_statement
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from support.sqlite_blobs import store_of


class SqliteBlobs(BlobStoreConformance):
    async def close_engine(self) -> None:
        await self.engine.close()
        await store_of(self.engine).database.close()

    async def collect(self) -> None:
        await store_of(self.engine).collector.collect()

    async def forget_stale(self) -> None:
        await store_of(self.engine).collector.forget_stale()

    def rows_of(self, table: str) -> int:
        reader = store_of(self.engine).database.reader
        count: int = reader.execute(f"SELECT count(*) FROM {table}").get
        return count

    async def contents(self) -> list[bytes]:
        return [digest for part in store_of(self.engine).files.digests() for digest in part]


class TestBlobsInAFolder(SqliteBlobs):
    async def open_engine(self) -> BlobEngine:
        database = await Database.open(self.folder)
        clock = StoreClock(database, self.clock)
        return BlobEngine(await SqliteBlobStore.open(database, clock))

    async def test_no_text_of_a_user_reaches_a_path(self) -> None:
        await self.engine.put_blob(blob("../../escaped"), LONG)
        await self.engine.block_blobs.put_block(blob("../up"), "Li4vLi4=", LONG + b"1")

        paths = [path for path in self.folder.parent.rglob("*") if path.is_file()]
        inside = [path.relative_to(self.folder) for path in paths]

        files = [path for path in inside if path.parts[0] == "blobs"]
        assert len(files) == 2
        for path in files:
            _, first, second, name = path.parts
            assert name[:2] == first
            assert name[2:4] == second
            assert len(bytes.fromhex(name)) == 32
        assert not [path for path in inside if "escaped" in str(path) or HERE in str(path)]

    async def test_files_are_for_their_owner_only(self) -> None:
        await self.engine.put_blob(blob("a"), LONG)

        for path in (self.folder / "blobs").rglob("*"):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)

    @pytest.mark.parametrize("include", [frozenset(), frozenset({"snapshots"})])
    @pytest.mark.parametrize("prefix", ["", "a", "\U0010ffff"])
    async def test_a_listing_is_a_range_of_the_primary_key(
        self, prefix: str, include: frozenset[Include]
    ) -> None:
        scan = Scan(1, prefix, "/", (prefix, 0), 10, include, 0)
        statement, end = listing_statement(scan)
        connection = store_of(self.engine).database.reader

        plan: list[Any] = connection.execute(
            "EXPLAIN QUERY PLAN " + statement, (1, prefix, 0, end)
        ).fetchall()

        assert [row[3].split(" AND name<")[0].rstrip(")") for row in plan] == [
            "SEARCH blob USING PRIMARY KEY (container=? AND (name,snapshot)>(?,?"
        ]
        assert ("name<?" in plan[0][3]) == (end is not None)


class TestBlobsInMemory(SqliteBlobs):
    is_durable = False

    async def open_engine(self) -> BlobEngine:
        database = await Database.open(None)
        clock = StoreClock(database, self.clock)
        return BlobEngine(await SqliteBlobStore.open(database, clock))


@pytest.mark.proof
class TestBlobsInSmallSteps(TestBlobsInAFolder):
    """The same contract when every content has many chunks, slabs, reads and purges.

    Every change that touches blocks, pieces or snapshots runs in the thread.
    """

    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "INLINE_BYTES_MAX", 2000)
        monkeypatch.setattr(limits, "CHUNK_BYTES", 2048)
        monkeypatch.setattr(limits, "SLAB_BYTES", 8192)
        monkeypatch.setattr(limits, "READ_BYTES", 4096)
        monkeypatch.setattr(downloading, "FETCH_PIECES_MAX", 3)
        monkeypatch.setattr(sqlite_store, "CHANGE_ROWS_MAX", 0)
        monkeypatch.setattr(collector, "PURGE_PIECES", 2)
        monkeypatch.setattr(collector, "PAUSE_SECONDS", 0)
