"""Files of the console: uploads before an import, exports before their download.

They are in a folder of mode 0700 that is removed when the console ends. The pages know a file by
a random identifier; its name is only a label.
"""

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import msgspec

from partita.console.errors import not_found
from partita.service.http.request import PIECE_BYTES_MAX, Request, Response
from partita.ticks import Clock

FILES_MAX: Final = 16
"""Files that are kept; the oldest that no job uses is removed for a new one."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class KeptFile(msgspec.Struct, frozen=True):
    """A file and the name that the user gave it, made safe."""

    identity: str
    name: str
    path: Path


class Files:
    """The files of one console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._folder: Path | None = None
        self._kept: dict[str, KeptFile] = {}
        self._used: set[str] = set()
        """Files of running uploads and jobs."""

    def new(self, name: str) -> KeptFile:
        """Return the place of a new file."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="partita-console-"))
        unused = [each for each in self._kept.values() if each.identity not in self._used]
        for kept in unused[: max(0, len(self._kept) - FILES_MAX + 1)]:
            self._remove(kept)
        identity = self._clock.new_id()
        safe = _UNSAFE.sub("_", name).strip("._")[-100:] or "file"
        inner = self._folder / identity
        inner.mkdir(mode=0o700)
        kept = self._kept[identity] = KeptFile(identity, safe, inner / safe)
        return kept

    def get(self, identity: str) -> KeptFile:
        found = self._kept.get(identity)
        if found is None:
            raise not_found("The file")
        return found

    @contextlib.contextmanager
    def using(self, kept: KeptFile) -> Iterator[None]:
        """Keep a file until the block ends."""
        self._used.add(kept.identity)
        try:
            yield
        finally:
            self._used.discard(kept.identity)

    def _remove(self, kept: KeptFile) -> None:
        del self._kept[kept.identity]
        shutil.rmtree(kept.path.parent, ignore_errors=True)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


async def save_upload(request: Request, path: Path) -> int:
    """Write the body of a request to a file; return its length."""
    if request.upload is None:
        await asyncio.to_thread(path.write_bytes, request.body)
        return len(request.body)
    length = 0
    file = await asyncio.to_thread(path.open, "wb")
    try:
        async for piece in request.upload:
            length += len(piece)
            await asyncio.to_thread(file.write, piece)
    finally:
        await asyncio.to_thread(file.close)
    return length


class FileDownload:
    """A file as the body of an answer."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self.length = length

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self.length
        while left:
            piece = await asyncio.to_thread(self._file.read, min(left, PIECE_BYTES_MAX))
            if not piece:
                return
            left -= len(piece)
            yield piece

    async def close(self) -> None:
        await asyncio.to_thread(self._file.close)


async def download_of(path: Path, name: str) -> Response:
    """Return an answer that a browser saves under a name."""
    file = await asyncio.to_thread(path.open, "rb")
    length = (await asyncio.to_thread(path.stat)).st_size
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f"attachment; filename*=UTF-8''{quote(name, safe='')}"),
    ]
    return Response(200, headers, download=FileDownload(file, length))
