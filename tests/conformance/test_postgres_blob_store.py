from typing import Any, ClassVar

import psycopg
from conformance.blob_store import BlobStoreConformance
from partita.blobs.engine.engine import BlobEngine
from support.postgres_blobs import FrontEnd, database_url, folder_url


class PostgresBlobs(BlobStoreConformance):
    stores_nul: ClassVar[bool] = False
    front_end: FrontEnd
    url: str | None = None

    def blob_store(self) -> str | None:
        return folder_url(self.folder)

    async def open_engine(self) -> BlobEngine:
        if self.url is None:
            self.url = await database_url("blobs")
        self.front_end = await FrontEnd.open(self.url, self.blob_store(), self.clock)
        return self.front_end.engine

    async def close_engine(self) -> None:
        await self.front_end.close()

    async def collect(self) -> None:
        await self.front_end.contents.collector.collect()

    async def forget_stale(self) -> None:
        await self.front_end.contents.collector.forget_stale()

    def rows_of(self, table: str) -> int:
        assert self.url is not None
        with psycopg.connect(self.url) as connection:
            found: Any = connection.execute(f"SELECT count(*) FROM partita.{table}").fetchone()
        count: int = found[0]
        return count

    async def contents(self) -> list[bytes]:
        return await self.front_end.objects()


class TestBlobsInPostgresAndAFolder(PostgresBlobs):
    pass
