"""`partita serve --store postgres --local`: a PostgreSQL in the data folder.

Its programs are those of a wheel. It runs for as long as the server does, and only this machine can
connect to it.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from partita.cli.config import Config
from partita.errors import ConfigurationError
from partita.local_postgres import CLUSTER_FOLDER, LocalPostgres
from partita.service.hosting.opening import Place, import_scaleout
from partita.storage.folder import FolderLock, make_folder

POSTGRES_FOLDER, BLOBS_FOLDER = "postgres", "blobs"
"""The folders of the database, and of blobs above 64 KiB, in the data folder."""


def local_store_warnings(config: Config) -> list[str]:
    """Return a warning if the data folder also has the database of --local, which is not served."""
    folder = config.folder
    if config.is_on_postgresql or folder is None:
        return []
    if not (folder / POSTGRES_FOLDER / CLUSTER_FOLDER).is_dir():
        return []
    warning = (
        f"{folder} also has a PostgreSQL database, whose accounts are not served: give --store"
        " postgres --local to serve them."
    )
    return [warning]


@contextlib.asynccontextmanager
async def opened_place(config: Config) -> AsyncIterator[Place]:
    """Yield where the accounts of a server are; with --local, start PostgreSQL there."""
    blob_store = None if config.blob_store is None else config.blob_store.text
    with contextlib.ExitStack() as started:
        where: Path | str | None = config.folder
        if config.local:
            schema = import_scaleout("schema.install")
            where = started.enter_context(_started(config.path / POSTGRES_FOLDER))
            await schema.install(where)
            if blob_store is None:
                blobs = (config.path / BLOBS_FOLDER).absolute()
                make_folder(blobs)
                blob_store = blobs.as_uri()
        elif config.is_on_postgresql:
            where = config.store.text
        yield Place(where, config.durability, blob_store, config.clock_check, config.heat)


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[str]:
    """Start PostgreSQL and stop it at the end.

    It is started in this thread, not in another one: it ends with the thread that started it.
    """
    try:
        make_folder(folder)
        lock = FolderLock(folder, "database")
    except OSError as error:
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {folder} cannot be used: {error.strerror}.",
            hint="Check --path and its permissions.",
        ) from error
    try:
        server = LocalPostgres(folder)
        server.start()
        try:
            yield server.url()
        finally:
            server.stop()
    finally:
        lock.release()
