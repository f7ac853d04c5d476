"""Large values in chunks: a blob is appended to block by block, and read range by range.

Only one chunk is in memory. The hash is computed on the way, and checked when the last chunk was
read.
"""

import hashlib
from typing import Any

from partita.errors import BlobMissingError, ConflictError
from partita.patterns.fields.fields import Field
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.protocol.calls import (
    AppendBlob,
    CreateContainer,
    GetBlob,
    PutBlob,
    Steps,
    ask,
)
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.blob_values import blob_metadata, folder_of, upload_name

CHUNK_BYTES = 4 * 1024 * 1024
"""The size of one block and of one range; services before 2022-11-02 append no more at once."""


def put_blob(call: PutBlob | AppendBlob) -> Steps[Any]:
    """Write to a blob; create its container if it does not exist."""
    try:
        return (yield from ask(call))
    except ConflictError as error:
        if error.code != "ContainerNotFound":
            raise
    yield from ask(CreateContainer(call.container))
    return (yield from ask(call))


class Upload:
    """A large value that is being written. Without `finish`, its blob belongs to no entity."""

    def __init__(self, table: str, key: RowKey, field: Field, write_id: str) -> None:
        assert field.blob is not None
        self._container = field.blob.container
        self._name = upload_name(folder_of(table, key), field.property, write_id)
        self._metadata = blob_metadata(table, key)
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._length = 0

    def put(self, content: bytes) -> Steps[None]:
        """Add bytes, and write full blocks."""
        self._buffer += content
        while len(self._buffer) >= CHUNK_BYTES:
            block = bytes(self._buffer[:CHUNK_BYTES])
            del self._buffer[:CHUNK_BYTES]
            yield from self._append(block)

    def finish(self) -> Steps[LargeValue]:
        """Write the rest, and return the reference to the whole value."""
        if self._buffer:
            yield from self._append(bytes(self._buffer))
        if not self._length:  # a service does not append nothing
            yield from put_blob(PutBlob(self._container, self._name, b"", self._metadata))
        return LargeValue(self._name, self._length, self._hash.hexdigest(), self._container)

    def _append(self, block: bytes) -> Steps[None]:
        call = AppendBlob(self._container, self._name, block, self._length, self._metadata)
        if (yield from put_blob(call)) is None:
            yield from self._check_appended(block)
        self._hash.update(block)
        self._length += len(block)

    def _check_appended(self, block: bytes) -> Steps[None]:
        """Raise unless the block is stored: its answer was lost, and it was sent again."""
        there = yield from ask(
            GetBlob(self._container, self._name, offset=self._length, length=len(block))
        )
        if there is None or there.content != block:
            raise ConflictError(
                "ConditionNotMet",
                "Another program wrote to the blob of a large value.",
                facts={"container": self._container, "blob": self._name},
                hint="Write the value again.",
            )


class Download:
    """A large value that is being read, chunk by chunk."""

    def __init__(self, value: LargeValue) -> None:
        self._value = value
        self._hash = hashlib.sha256()
        self._offset = 0

    def read(self) -> Steps[bytes]:
        """Return the next chunk; empty at the end. Raises if the whole is not what was written."""
        if self._offset >= self._value.length:
            self._value.check_hash(self._hash.hexdigest())
            return b""
        value, length = self._value, min(CHUNK_BYTES, self._value.length - self._offset)
        blob = yield from ask(
            GetBlob(value.container, value.name, offset=self._offset, length=length)
        )
        if blob is None:
            raise BlobMissingError(
                "BlobMissing",
                "The blob of a large property does not exist.",
                facts={"container": value.container, "blob": value.name},
                hint="Load the entity again: it was replaced or deleted during the read.",
            )
        if len(blob.content) != length:
            value.check_hash("")
        self._hash.update(blob.content)
        self._offset += length
        return blob.content
