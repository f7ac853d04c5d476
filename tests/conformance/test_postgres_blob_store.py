from collections.abc import AsyncIterator, Callable, Iterator
from typing import ClassVar, TypeVar

import pytest

from conformance.blob_store import LONG, BlobStoreConformance, blob, block_id, code_of, latest
from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules import limits
from partita.blobs.store import download as downloading
from partita.errors import ConfigurationError
from partita.scaleout.blobs import collector
from support.object_stores import (
    azure_server,
    google_server,
    new_bucket,
    new_container,
    new_google_bucket,
    s3_server,
)
from support.postgres_blobs import BlobDatabase, FrontEnd, blob_database, folder_url

SMALL = LONG[:65_536]
"""The longest content that lies in a row."""

Suite = TypeVar("Suite", bound=type[BlobStoreConformance])


class PostgresBlobs(BlobStoreConformance):
    stores_nul: ClassVar[bool] = False
    front_end: FrontEnd
    database: BlobDatabase | None = None

    def blob_store(self) -> str | None:
        return folder_url(self.folder)

    async def open_engine(self) -> BlobEngine:
        if self.database is None:
            self.database = await blob_database("blobs")
        self.front_end = await FrontEnd.open(self.database, self.blob_store(), self.clock)
        return self.front_end.engine

    async def close_engine(self) -> None:
        await self.front_end.close()

    async def collect(self) -> None:
        await self.front_end.contents.collector.collect()

    async def forget_stale(self) -> None:
        await self.front_end.contents.collector.forget_stale()

    def rows_of(self, table: str) -> int:
        assert self.database is not None
        return self.database.count(table)

    async def contents(self) -> list[bytes]:
        return await self.front_end.objects()

    async def a_long_upload_is_sent_in_parts(self) -> None:
        content = LONG * 70  # 21 MB: three parts

        await self.engine.put_blob(blob("a"), content)

        assert await self.read(blob("a")) == content


def only(*names: str) -> Callable[[Suite], Suite]:
    """Leave out all tests of the suite but these."""

    def leave_out(suite: Suite) -> Suite:
        tests = {name for name in dir(BlobStoreConformance) if name.startswith("test_")}
        assert tests >= set(names)
        for name in tests - set(names):
            setattr(suite, name, None)
        return suite

    return leave_out


class TestBlobsInPostgresAndAFolder(PostgresBlobs):
    pass


@pytest.mark.proof
class TestBlobsInPostgresInSmallSteps(PostgresBlobs):
    """The same contract when every content has many chunks, slabs, reads and purges."""

    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "INLINE_BYTES_MAX", 2000)
        monkeypatch.setattr(limits, "CHUNK_BYTES", 2048)
        monkeypatch.setattr(limits, "SLAB_BYTES", 8192)
        monkeypatch.setattr(limits, "READ_BYTES", 4096)
        monkeypatch.setattr(downloading, "FETCH_PIECES_MAX", 3)
        monkeypatch.setattr(collector, "PURGE_ROWS", 2)
        monkeypatch.setattr(collector, "PAUSE_SECONDS", 0)


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    with s3_server():
        yield


@pytest.mark.usefixtures("s3")
class PostgresAndS3(PostgresBlobs):
    bucket: str | None = None

    def blob_store(self) -> str:
        if self.bucket is None:
            self.bucket = new_bucket()
        return self.bucket


@only(
    "test_ranges_of_long_and_short_blobs_are_read",
    "test_appends_return_where_they_begin",
    "test_deleted_content_is_reclaimed",
    "test_a_refused_upload_leaves_nothing",
    "test_everything_is_there_after_a_restart",
)
class TestBlobsInPostgresAndS3(PostgresAndS3):
    async def test_a_long_upload_is_sent_in_parts(self) -> None:
        await self.a_long_upload_is_sent_in_parts()


@pytest.mark.proof
class TestAllBlobsInPostgresAndS3(PostgresAndS3):
    pass


@pytest.fixture(scope="module")
def azure() -> Iterator[None]:
    with azure_server():
        yield


@pytest.mark.proof
@pytest.mark.usefixtures("azure")
class TestAllBlobsInPostgresAndAzure(PostgresBlobs):
    container: str | None = None

    def blob_store(self) -> str:
        if self.container is None:
            self.container = new_container()
        return self.container

    async def test_a_long_upload_is_sent_in_parts(self) -> None:
        await self.a_long_upload_is_sent_in_parts()


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with google_server(tmp_path_factory.mktemp("google")):
        yield


@pytest.mark.proof
@pytest.mark.usefixtures("google")
class TestAllBlobsInPostgresAndGoogle(PostgresBlobs):
    bucket: str | None = None

    def blob_store(self) -> str:
        if self.bucket is None:
            self.bucket = new_google_bucket()
        return self.bucket

    async def test_a_long_upload_is_sent_in_parts(self) -> None:
        await self.a_long_upload_is_sent_in_parts()


@only(
    "test_a_container_is_found_by_its_name",
    "test_a_leased_container_is_deleted_only_by_who_holds_it",
    "test_blobs_are_listed_in_the_order_of_their_bytes",
)
class TestBlobsInPostgresAlone(PostgresBlobs):
    """Without an object store."""

    def blob_store(self) -> None:
        return None

    async def test_everything_up_to_64_kib_is_stored(self) -> None:
        await self.engine.put_blob(blob("whole"), SMALL)
        for number in (1, 2, 3):
            await self.engine.block_blobs.put_block(blob("blocks"), block_id(number), SMALL)
        await self.engine.block_blobs.put_block_list(blob("blocks"), latest(1, 2, 3))
        await self.engine.append_blobs.create_append_blob(blob("log"))
        for _ in range(3):
            await self.engine.append_blobs.append_block(blob("log"), SMALL)
        await self.engine.page_blobs.create_page_blob(blob("pages"), 2 * len(SMALL))
        await self.engine.page_blobs.put_pages(blob("pages"), 0, SMALL, last=len(SMALL) - 1)

        assert await self.read(blob("whole")) == SMALL
        assert await self.read(blob("blocks")) == SMALL * 3
        assert await self.read(blob("log")) == SMALL * 3
        assert await self.read(blob("pages")) == SMALL + bytes(len(SMALL))

    async def test_more_is_refused_with_a_hint(self) -> None:
        await self.engine.append_blobs.create_append_blob(blob("log"))
        await self.engine.page_blobs.create_page_blob(blob("pages"), 1024 * 1024)
        longer = SMALL + b"1"

        for work in (
            self.engine.put_blob(blob("a"), longer),
            self.engine.block_blobs.put_block(blob("a"), block_id(1), longer),
            self.engine.append_blobs.append_block(blob("log"), longer),
            self.engine.page_blobs.put_pages(blob("pages"), 0, LONG[:66_048], last=66_047),
        ):
            with pytest.raises(ConfigurationError) as refused:
                await work
            assert refused.value.code == "BlobStoreMissing"
            assert "--blob-store" in refused.value.hint

    async def test_a_long_upload_is_refused_before_it_has_arrived(self) -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 10_000
                yield bytes(10_000)

        assert await code_of(self.engine.put_blob(blob("a"), endless())) == "BlobStoreMissing"
        assert sent == 70_000

    async def test_what_another_front_end_has_stored_outside_is_refused(self) -> None:
        assert self.database is not None
        other = await FrontEnd.open(self.database, folder_url(self.folder), self.clock, slot=2)
        await other.engine.put_blob(blob("a"), LONG)
        await other.close()

        assert await code_of(self.read(blob("a"))) == "BlobStoreMissing"
        await self.engine.delete_blob(blob("a"))
        await self.collect()
        assert self.rows_of("extent") == 0
