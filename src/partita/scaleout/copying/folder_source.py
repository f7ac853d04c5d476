"""A folder as the source of a copy: read beside its server, at one moment."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from partita.blobs.rules.checksums import damaged
from partita.blobs.store.files import CONTENT_FOLDER
from partita.errors import ConfigurationError
from partita.scaleout.copying.folder_rows import FolderRows
from partita.scaleout.copying.parts import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    CopyPart,
    Key,
    Moment,
    Plan,
    Row,
    bytes_of,
)
from partita.storage.database import DATABASE_FILE
from partita.storage.reading_beside import open_source
from partita.storage.sqlite_errors import translated
from partita.ticks import Clock

CONTENT_BYTES = 1024 * 1024
"""How much of a content is read at a time."""

T = TypeVar("T")


class FolderSource:
    """The account in a folder; a server may have it open."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder.absolute()
        self.identity = f"folder {self.folder}"
        self._clock = clock
        self._connection: apsw.Connection | None = None

    async def open(self) -> None:
        if not (self.folder / DATABASE_FILE).is_file():
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {self.folder} does not contain an account.",
                hint="Give the data folder, or the folder of an account in it.",
            )
        self._connection = await self._do(lambda: open_source(self.folder))
        self._rows = FolderRows(self._connection)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.asynccontextmanager
    async def moment(self) -> AsyncIterator[None]:
        """Read one state of the account in the block."""
        assert self._connection is not None
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    async def clocks(self) -> Moment:
        """Return the clocks as a server that starts now would have them."""
        mark, steady = await self._do(self._rows.marks)
        wall = self._clock.ticks()
        return Moment(max(wall, mark, steady), max(wall, mark))

    async def version(self) -> object:
        """Return a value that changes when another process writes."""
        assert self._connection is not None
        return self._connection.pragma("data_version")

    async def plans(self) -> list[Plan]:
        return await self._do(self._rows.plans)

    async def large_contents(self) -> tuple[int, int]:
        return await self._do(self._rows.large_contents)

    async def rows(
        self, part: CopyPart, after: Key | None, alive_at: int
    ) -> AsyncGenerator[list[Row]]:
        found = await self._do(lambda: self._rows.rows(part, after, alive_at))
        while batch := await self._do(lambda: next_batch(found)):
            yield batch

    async def content(self, digest: bytes) -> AsyncIterator[bytes] | None:
        """Return the parts of a large content; None if a server has removed it."""
        try:
            descriptor = os.open(content_path(self.folder, digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if await self.is_named(digest):
                raise damaged("its file is missing") from None
            return None
        return read_file(descriptor)

    async def is_named(self, digest: bytes) -> bool:
        """Return whether the present state refers to a content."""

        def look() -> bool:
            with contextlib.closing(open_source(self.folder)) as fresh:
                return FolderRows(fresh).is_named(digest)

        return await self._do(look)

    async def blob_of(self, extent: int) -> str | None:
        def look() -> str | None:
            with contextlib.closing(open_source(self.folder)) as fresh:
                return FolderRows(fresh).blob_of(extent)

        return await self._do(look)

    async def _do(self, work: Callable[[], T]) -> T:
        return await in_thread(work, self.folder)


def next_batch(rows: Iterator[Row]) -> list[Row]:
    """Take as many rows as a batch may have; none at the end."""
    batch: list[Row] = []
    size = 0
    for row in itertools.islice(rows, BATCH_ROWS_MAX):
        batch.append(row)
        size += bytes_of(row)
        if size >= BATCH_BYTES_MAX:
            break
    return batch


def content_path(folder: Path, digest: bytes) -> Path:
    name = digest.hex()
    return folder / CONTENT_FOLDER / name[:2] / name[2:4] / name


async def read_file(descriptor: int) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(os.read, descriptor, CONTENT_BYTES):
            yield piece
    finally:
        os.close(descriptor)


async def in_thread(work: Callable[[], T], folder: Path) -> T:
    """Run a call that blocks; translate errors of SQLite."""
    try:
        return await asyncio.to_thread(work)
    except apsw.Error as error:
        raise translated(error, folder) from error
