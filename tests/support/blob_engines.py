"""A blob engine in a folder, with a file system that fails when told to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName
from partita.blobs.store.files import FileSystem, FolderFiles
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.storage.database import Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock

LONG = b"0123456789abcdef" * 8192


NAME = BlobName("box", "b")


class FaultyFileSystem(FileSystem):
    """Fails when told, with these numbers."""

    creating: int | None = None
    syncing: int | None = None
    removing: int | None = None

    def create(self, path: Path) -> int:
        if self.creating is not None:
            raise OSError(self.creating, "told to")
        return super().create(path)

    def sync(self, descriptor: int) -> None:
        if self.syncing is not None:
            raise OSError(self.syncing, "told to")
        super().sync(descriptor)

    def remove(self, path: Path) -> None:
        if self.removing is not None:
            raise OSError(self.removing, "told to")
        super().remove(path)


@asynccontextmanager
async def opened(
    folder: Path, system: FileSystem | None = None, durability: Durability = Durability.FULL
) -> AsyncIterator[BlobEngine]:
    database = await Database.open(folder, durability=durability)
    clock = StoreClock(database, ManualClock())
    files = FolderFiles(folder, system)
    engine = BlobEngine(await SqliteBlobStore.open(database, clock, files=files))
    await engine.containers.create_container("box")
    yield engine
    await engine.close()
    await database.close()
