"""The PostgreSQL of `partita serve --store postgres --local`, in the data folder.

Its programs are those of a wheel. It runs for as long as the process that started it, and only this
machine can connect to it. While a server runs, other processes use the database that it started.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from partita.errors import ConfigurationError, StoreLockedError
from partita.local_postgres import POSTGRES_FOLDER, LocalPostgres, running_url
from partita.service.hosting.opening import import_scaleout
from partita.storage.folder import FolderLock, make_folder

BLOBS_FOLDER = "blobs"
"""The folder of blobs above 64 KiB, in the data folder."""


@contextlib.asynccontextmanager
async def started_store(path: Path) -> AsyncIterator[tuple[str, str]]:
    """Start the PostgreSQL of a data folder; yield its URL and that of its objects."""
    schema = import_scaleout("schema.install")
    with _started(path / POSTGRES_FOLDER) as url:
        await schema.install(url)
        blobs = _blobs_of(path)
        make_folder(blobs)
        yield url, blobs.as_uri()


@contextlib.asynccontextmanager
async def used_store(path: Path) -> AsyncIterator[tuple[str, str]]:
    """Yield the same for a database that may run already: that of a server is used, not stopped."""
    async with contextlib.AsyncExitStack() as opened:
        try:
            found = await opened.enter_async_context(started_store(path))
        except StoreLockedError:
            url = running_url(path / POSTGRES_FOLDER)
            if url is None:
                raise
            found = url, _blobs_of(path).as_uri()
        yield found


def _blobs_of(path: Path) -> Path:
    return (path / BLOBS_FOLDER).absolute()


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
