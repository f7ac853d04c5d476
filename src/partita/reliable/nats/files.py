"""Files in a NATS object store, in the layout of the NATS tools, which can list and read them.

A file consists of chunks under a new name and one entry that refers to them, written last: a
reader finds the complete old file or the complete new one.
"""

import base64
import contextlib
import hashlib

import msgspec

from partita.errors import ChecksumError
from partita.reliable.nats.api import Api, Message, deadline
from partita.reliable.replication.stream import NoAnswer

CHUNK_BYTES = 512 * 1024
CLEAN_UP_SECONDS = 2.0


class FileEntry(msgspec.Struct, frozen=True):
    """The entry that refers to the chunks of a file."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str = "0001-01-01T00:00:00Z"
    deleted: bool = False


class FileHead(msgspec.Struct, frozen=True):
    """The size of a file, when it was stored, and its first bytes, which are not verified."""

    size: int
    stored_at: str
    """RFC 3339, by the clock of the node."""
    first: bytes


class FileBucket:
    """The files of one partition."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._name = name
        self.stream = f"OBJ_{name}"
        self.subjects = [f"$O.{name}.C.>", f"$O.{name}.M.>"]

    async def put(self, name: str, content: bytes, *, timeout: float) -> None:
        async with deadline(timeout):
            before = await self._entry(name, timeout)
            nuid = self._api.clock.new_id().replace("-", "")
            try:
                await self._put_new(name, content, nuid, timeout)
            except NoAnswer:
                await self._clean_up(nuid)
                raise
            if before is not None:
                await self._clean_up(before.nuid)

    async def get(self, name: str, *, timeout: float) -> bytes | None:
        async with deadline(timeout):
            while True:
                entry = await self._entry(name, timeout)
                if entry is None:
                    return None
                content = await self._content(entry, timeout)
                if _digest(content) == entry.digest:
                    return content
                if await self._entry(name, timeout) == entry:  # otherwise it was just replaced
                    raise ChecksumError(
                        "FileDamaged",
                        "A file in the object store does not match its checksum.",
                        facts={"file": name, "bucket": self._name},
                        hint="Remove it; a replica stores a new one with its next checkpoint.",
                    )

    async def head(self, name: str, *, timeout: float) -> FileHead | None:
        """Return the first chunk of a file; None if there is no file, or it was just replaced."""
        async with deadline(timeout):
            message = await self._message(name, timeout)
            entry = None if message is None else _entry_of(message)
            if message is None or entry is None:
                return None
            where = {"seq": 1, "next_by_subj": self._chunks(entry.nuid)}
            chunk = await self._api.get(self.stream, where, timeout)
            if chunk is None and entry.chunks:
                return None
            return FileHead(entry.size, message.time, b"" if chunk is None else chunk.content)

    async def _put_new(self, name: str, content: bytes, nuid: str, timeout: float) -> None:
        begins = range(0, len(content), CHUNK_BYTES)
        for begin in begins:
            piece = content[begin : begin + CHUNK_BYTES]
            await self._api.store_until_answered(self._chunks(nuid), piece, {}, timeout)
        digest = _digest(content)
        entry = FileEntry(name, self._name, nuid, len(content), len(begins), digest)
        raw = msgspec.json.encode(entry)
        await self._api.store_until_answered(
            self._subject(name), raw, {"Nats-Rollup": "sub"}, timeout
        )

    async def _entry(self, name: str, timeout: float) -> FileEntry | None:
        message = await self._message(name, timeout)
        return None if message is None else _entry_of(message)

    async def _message(self, name: str, timeout: float) -> Message | None:
        return await self._api.get(self.stream, {"last_by_subj": self._subject(name)}, timeout)

    async def _content(self, entry: FileEntry, timeout: float) -> bytes:
        pieces: list[bytes] = []
        sequence = 1
        for _ in range(entry.chunks):
            where = {"seq": sequence, "next_by_subj": self._chunks(entry.nuid)}
            message = await self._api.get(self.stream, where, timeout)
            if message is None:
                break
            pieces.append(message.content)
            sequence = message.seq + 1
        return b"".join(pieces)

    async def _clean_up(self, nuid: str) -> None:
        """Remove chunks without an entry; remaining ones only use space."""
        order = {"filter": self._chunks(nuid)}
        with contextlib.suppress(NoAnswer):
            await self._api.change(f"STREAM.PURGE.{self.stream}", order, CLEAN_UP_SECONDS)

    def _chunks(self, nuid: str) -> str:
        return f"$O.{self._name}.C.{nuid}"

    def _subject(self, name: str) -> str:
        return f"$O.{self._name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _entry_of(message: Message) -> FileEntry | None:
    entry = msgspec.json.decode(message.content, type=FileEntry)
    return None if entry.deleted else entry


def _digest(content: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()}"
