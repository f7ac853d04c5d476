"""The model of the blob engine on PostgreSQL and a folder."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from partita.blobs.engine.engine import BlobEngine
from support.postgres_blobs import FrontEnd, blob_database, folder_url
from support.repeats import repeat
from unit.blobs.engine.test_blob_model import HERE, BlobModel, SmallPieces


class OnPostgres(BlobModel):
    async def _open(self) -> BlobEngine:
        self.folder = tempfile.TemporaryDirectory()
        database = await blob_database("model")
        self.front_end = await FrontEnd.open(
            database, folder_url(Path(self.folder.name)), self.clock
        )
        await self.front_end.engine.containers.create_container(HERE)
        return self.front_end.engine

    async def _reclaim(self) -> None:
        await self.front_end.contents.collector.collect()

    async def _close(self) -> None:
        await self.front_end.close()
        self.folder.cleanup()


class OnPostgresInSmallPieces(OnPostgres, SmallPieces):
    pass


_settings = settings(
    max_examples=repeat(10, 12, 300),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOnPostgres = pytest.mark.proof(OnPostgres.TestCase)
TestOnPostgres.settings = _settings
TestOnPostgresInSmallPieces = pytest.mark.proof(OnPostgresInSmallPieces.TestCase)
TestOnPostgresInSmallPieces.settings = _settings
