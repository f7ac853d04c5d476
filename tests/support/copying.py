"""Copies of accounts in tests: both sides, small batches, and a process that dies at a step."""

import asyncio
import atexit
import functools
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from partita.clock import SystemClock
from partita.scaleout.connections.location import Location
from partita.scaleout.copying import folder_source as folder_reading
from partita.scaleout.copying import parts, postgres_rows
from partita.scaleout.copying.contract import Source, Target
from partita.scaleout.copying.copier import Copier, Report
from partita.scaleout.copying.folder_source import FolderSource
from partita.scaleout.copying.folder_target import FolderTarget
from partita.scaleout.copying.postgres_source import PostgresSource
from partita.scaleout.copying.postgres_target import PostgresTarget
from partita.storage.durability import Durability
from support.front_ends import installed_url

CHANGES = ("begin", "start", "drop", "write", "complete", "repeat", "put_content", "finish")
"""The methods of a target that write: a process can die before and after each call."""


@functools.cache
def _database() -> tuple[str, str]:
    """Create a database of its own, since an object store belongs to one."""
    folder = tempfile.mkdtemp(prefix="partita-objects-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return installed_url.__wrapped__(), Path(folder).as_uri()


class Place(msgspec.Struct, frozen=True):
    """A folder, or an account of a database with a folder for its objects."""

    folder: str = ""
    url: str = ""
    account: str = ""
    objects: str = ""

    @classmethod
    def in_database(cls, objects: str = "") -> "Place":
        """Return a new account: in the database of this process, or in one for other objects."""
        url, folder = (installed_url.__wrapped__(), objects) if objects else _database()
        return cls(url=url, account=uuid.uuid4().hex[:12], objects=folder)

    def source(self) -> Source:
        if self.folder:
            return FolderSource(Path(self.folder), SystemClock())
        return PostgresSource(
            Location.parse(self.url),
            self.account,
            blob_store=self.objects,
            durability=Durability.FAST,
        )

    def target(self) -> Target:
        if self.folder:
            return FolderTarget(Path(self.folder), SystemClock())
        return PostgresTarget(
            Location.parse(self.url),
            self.account,
            blob_store=self.objects,
            durability=Durability.FAST,
            clock=SystemClock(),
        )


async def copy(
    source: Source, target: Target, before_verifying: Callable[[], object] | None = None
) -> Report:
    """Copy all, or continue a copy."""

    def progress(step: str, done: int, _total: int) -> None:
        if (step, done) == ("verify", 0) and before_verifying is not None:
            before_verifying()

    try:
        await source.open()
        await target.open()
        return await Copier(source, target, progress).run()
    finally:
        await target.close()
        await source.close()


class Counted:
    """A target that counts the moments before and after its changes, and dies at one of them."""

    def __init__(self, target: Target, last: int | None = None) -> None:
        self._target = target
        self._last = last
        self.moments = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in CHANGES:
            return found

        async def counted(*values: object) -> object:
            self._count()
            result = await found(*values)
            self._count()
            return result

        return counted

    def _count(self) -> None:
        self.moments += 1
        if self.moments == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def use_small_batches(change: Callable[[Any, str, object], None] = setattr) -> None:
    """Let a small account need many batches."""
    for module in (folder_reading, postgres_rows):
        change(module, "BATCH_ROWS_MAX", 20)
    change(postgres_rows, "FETCHED_ROWS", 20)
    change(parts, "BATCH_CONTENT_BYTES_MAX", 1)


async def killed_copy(source: Place, target: Place, last: int) -> int:
    """Copy in another process, which is killed at a moment; return its status."""
    words = [msgspec.json.encode(each).decode() for each in (source, target)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "support.copying", *words, str(last)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return await process.wait()


if __name__ == "__main__":
    use_small_batches()
    sides = [msgspec.json.decode(word, type=Place) for word in sys.argv[1:3]]
    dying: Any = Counted(sides[1].target(), int(sys.argv[3]))
    asyncio.run(copy(sides[0].source(), dying))
    print(dying.moments)
