"""Compression of the files of a backup: zstd if its package is installed, else gzip.

A stream is never expanded at once: a few bytes of a file that was made on purpose can stand for
gigabytes. What a stream expands to is verified by its hash.
"""

import gzip
import importlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Protocol

from partita.errors import ConfigurationError

ZSTD_LEVEL, GZIP_LEVEL = 3, 6
_GZIP_BITS = 31
"""What zlib calls the format of gzip."""


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @property
    def suffix(self) -> str:
        """What is added to the name of a file."""
        return {"none": "", "gzip": ".gz", "zstd": ".zst"}[self]


class Stream(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes: ...


class BadStreamError(Exception):
    """A compressed file cannot be expanded."""


def best_compression() -> Compression:
    """Return the best one that this installation has."""
    try:
        importlib.import_module("zstandard")
    except ImportError:
        return Compression.GZIP
    return Compression.ZSTD


def compressed(pieces: Iterable[bytes], how: Compression) -> Iterator[bytes]:
    if how is Compression.NONE:
        yield from pieces
        return
    machine: Any = (
        _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compressobj()
        if how is Compression.ZSTD
        else zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    )
    for piece in pieces:
        yield machine.compress(piece)
    yield machine.flush()


def expanded(descriptor: int, how: Compression) -> Stream:
    """Return the expanded bytes of an open file, which stays open."""
    file = io.BufferedReader(_Unclosed(descriptor))
    if how is Compression.NONE:
        return file
    if how is Compression.GZIP:
        return _Checked(gzip.GzipFile(fileobj=file), (OSError, EOFError, zlib.error))
    zstandard = _zstandard()
    opened = zstandard.ZstdDecompressor().stream_reader(file, closefd=False)
    return _Checked(opened, (zstandard.ZstdError,))


def read_fully(stream: Stream, size: int) -> bytes:
    """Read this many bytes, fewer only at the end."""
    parts: list[bytes] = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Unclosed(io.RawIOBase):
    """A file by its descriptor, which another owner closes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return os.readv(self._descriptor, [buffer])


class _Checked:
    def __init__(self, stream: Stream, errors: tuple[type[Exception], ...]) -> None:
        self._read: Callable[[int], bytes] = stream.read
        self._errors = errors

    def read(self, size: int, /) -> bytes:
        try:
            return self._read(size)
        except self._errors as error:
            raise BadStreamError from error


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise ConfigurationError(
            "NotInstalled",
            "The backup is compressed with zstd, and the package zstandard is not installed.",
            hint='Run: pip install "./partita[zstd]".',
        ) from error
