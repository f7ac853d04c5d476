"""Files of entities: their format by their name, compression, and output that can be continued.

Output is compressed in members (gzip) or frames (zstd) that end at each checkpoint, so that a file
can be cut there; readers see one stream.
"""

import codecs
import contextlib
import gzip
import importlib
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from partita.errors import ConfigurationError

PIECE_BYTES = 1024 * 1024
STANDARD = "-"
"""The name of standard input and output."""

_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".json": "json",
}
FORMATS = ("jsonl", "csv", "parquet", "json")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class FileKind(msgspec.Struct, frozen=True):
    """The format of a file, and its compression if it has one."""

    format: str
    compression: str = ""


def kind_of_file(name: str, given: str | None = None) -> FileKind:
    """Return the kind of a file by its name; `given` is the format if the name does not tell.

    >>> kind_of_file("staff.csv.gz")
    FileKind(format='csv', compression='gzip')
    """
    path = Path(name)
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    stem = path.stem if compression else path.name
    found = given or _SUFFIXES.get(Path(stem).suffix.lower())
    if found is None and name == STANDARD:
        found = "jsonl"
    if found is None:
        raise ConfigurationError(
            "Configuration",
            f"The name {name!r} does not tell the format of the file.",
            hint=f"Give --format {'|'.join(FORMATS)}, or a name that ends in .jsonl, .csv, "
            ".parquet or .json, with .gz or .zst after it if it is compressed.",
        )
    if found == "parquet" and (compression or name == STANDARD):
        raise ConfigurationError(
            "Configuration",
            "A Parquet file has its own compression and cannot be a stream.",
            hint="Give the name of a file that ends in .parquet.",
        )
    return FileKind(found, compression)


# --- reading


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Open a file for reading; `-` is standard input."""
    if name == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below; only opening is translated
    except OSError as error:
        raise unusable(name, error) from error
    with file:
        yield file


def read_pieces(file: BinaryIO, compression: str = "") -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, decompressed."""
    try:
        source = _decompressed(file, compression)
        piece = source.read(PIECE_BYTES)
        if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ConfigurationError(
                "FileUnreadable",
                "The file is UTF-16, not UTF-8.",
                hint="Convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW.",
            )
        while piece:
            yield piece
            piece = source.read(PIECE_BYTES)
    except (OSError, EOFError, zlib.error, _zstd_error(compression)) as error:
        raise ConfigurationError(
            "FileUnreadable",
            f"The file cannot be read: {str(error) or type(error).__name__}.",
            hint="Check the file and its compression, which the end of its name tells.",
        ) from error


def _decompressed(file: BinaryIO, compression: str) -> BinaryIO:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if compression == "zstd":
        reader: BinaryIO = _zstd().ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return reader
    return file


def _zstd() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise ConfigurationError(
            "NotInstalled",
            "Files that end in .zst need the package zstandard, which is not installed.",
            hint='Run: pip install "./partita[zstd]", or use .gz.',
        ) from error


def _zstd_error(compression: str) -> type[Exception]:
    found: type[Exception] = _zstd().ZstdError if compression == "zstd" else EOFError
    return found


# --- writing


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Translate errors of a write, such as a full disk; a closed pipe is left to the caller."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigurationError(
            "FileUnusable",
            f"The file {name} cannot be written: {error.strerror or error}.",
            facts={"file": name},
            hint="Free space on the disk, then repeat the command: it continues.",
        ) from error


class _Compressor(Protocol):
    def compress(self, piece: bytes) -> bytes: ...

    def flush(self) -> bytes: ...


class Output:
    """A file that is written in order; `sync` returns the length at which it can be continued."""

    def __init__(self, name: str, compression: str = "", *, length: int | None = None) -> None:
        self._name = name
        self._compression = compression
        self._compressor: _Compressor | None = None
        self._is_standard = name == STANDARD
        try:
            self._file: BinaryIO = sys.stdout.buffer if self._is_standard else _open(name, length)
        except OSError as error:
            raise unusable(name, error) from error
        self.length = length or 0

    def write(self, piece: bytes) -> None:
        if self._compression:
            if self._compressor is None:
                self._compressor = _new_compressor(self._compression)
            piece = self._compressor.compress(piece)
        self.length += len(piece)
        with writing(self._name):
            self._file.write(piece)

    def sync(self) -> int:
        """Make everything durable and return the length of the file."""
        with writing(self._name):
            if self._compressor is not None:
                piece = self._compressor.flush()
                self._compressor = None
                self.length += len(piece)
                self._file.write(piece)
            self._file.flush()
            if not self._is_standard:
                os.fsync(self._file.fileno())
        return self.length

    def close(self) -> None:
        if not self._is_standard:
            with writing(self._name):
                self._file.close()


def _open(name: str, length: int | None) -> BinaryIO:
    if length is None:
        return Path(name).open("wb")
    file = Path(name).open("r+b")  # noqa: SIM115 - closed by Output
    if file.seek(0, os.SEEK_END) < length:
        file.close()
        raise ConfigurationError(
            "ProgressUnusable",
            f"The file {name} is shorter than its progress file says.",
            hint="Give --restart to begin again.",
        )
    file.truncate(length)
    file.seek(length)
    return file


def _new_compressor(compression: str) -> _Compressor:
    if compression == "gzip":
        return zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    compressor: _Compressor = _zstd().ZstdCompressor().compressobj()
    return compressor


def unusable(name: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        "FileUnusable",
        f"The file {name} cannot be opened: {error.strerror or error}.",
        facts={"file": name},
        hint="Check the path and its permissions.",
    )
