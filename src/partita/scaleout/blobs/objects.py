"""Long content: objects in a folder, or in an object store of a cloud.

    blobs/abcd…          an object: the SHA-256 of its content and 8 random bytes, in hexadecimal
    quarantine/abcd…     an object that was found damaged: moved, not changed
    owner                the id of the database to which the objects belong

In a folder, the layout is that of `partita.blobs.store.files`, and every file is synced before a
record refers to it; the folder may be shared by several machines. For the object stores of clouds,
an upload is first written to a temporary file: only its whole content tells the name. All calls
block: they run in threads.
"""

import hashlib
import math
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import ObjectStore, from_url

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import damaged
from partita.blobs.store.files import (
    HASH_BYTES,
    INCOMING_FOLDER,
    ContentFile,
    ContentFiles,
    FolderFiles,
    IncomingFile,
    translating,
)
from partita.errors import ConfigurationError, StoreBusyError
from partita.scaleout.connections.session import RETRY_SECONDS
from partita.ticks import TICKS_PER_SECOND

if TYPE_CHECKING:
    from obstore.store import RetryConfig

SCHEMES = ("s3", "s3a", "az", "azure", "abfs", "abfss", "gs")
PART_BYTES = 8 * limits.MIB
"""A longer upload is sent in parts of this size, or longer ones: ..."""
PARTS_MAX = 10_000
"""... an object has at most so many (S3)."""
PARTS_AT_ONCE = 2
RETRY_SECONDS_MAX = 30
"""How long requests to an object store are repeated before an upload or download fails."""
RETRIES_MAX = 4
LISTED_AT_ONCE = 1000

_OBJECTS = "blobs"
_QUARANTINE = "quarantine"
_OWNER = "owner"


class Objects(ContentFiles, Protocol):
    """Where the objects of a database are."""

    def listed(self) -> Iterator[list[tuple[bytes, int]]]:
        """Yield the names of all objects, with the ticks when they were stored."""
        ...

    def find_owner(self) -> str | None: ...

    def set_owner(self, owner: str) -> None: ...


def open_objects(url: str | None) -> Objects | None:
    """Open the store of a URL; None without one."""
    if url is None:
        return None
    scheme = url.partition("://")[0].lower()
    if scheme == "file":
        return SharedFolder(_folder_of(url))
    if scheme not in SCHEMES:
        # The URL is not shown: any part of it may be a secret.
        raise unfit("Its URL is not one of file://, s3://, az:// or gs://.")
    # No options of the client: they would replace those of the environment.
    retries: RetryConfig = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX),
    }
    try:
        return CloudObjects(from_url(url, retry_config=retries))
    except (exceptions.BaseError, ValueError) as error:
        raise unfit(_first_line(error)) from error


def files_of(objects: Objects | None) -> ContentFiles:
    """Return where long content is kept, or what refuses it."""
    return NoObjects() if objects is None else objects


def _folder_of(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or not path.is_dir():
        raise unfit("The folder of a file:// URL must exist: write file:///absolute/path.")
    return path


class SharedFolder(FolderFiles):
    """Objects in a folder that several front ends may share."""

    def clear_incoming(self) -> None:
        """Do nothing: other front ends write there. See `clear_stale`."""

    def clear_stale(self, before: int) -> None:
        """Remove uploads to which nothing was written since then."""
        with translating():
            for entry in os.scandir(self.root / INCOMING_FOLDER):
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime_ns // 100 < before:
                        Path(entry.path).unlink()

    def listed(self) -> Iterator[list[tuple[bytes, int]]]:
        for names in self.digests():
            listed = []
            for name in names:
                with suppress(FileNotFoundError):
                    listed.append((name, self._path(name).stat().st_mtime_ns // 100))
            yield listed

    def find_owner(self) -> str | None:
        with suppress(FileNotFoundError):
            return (self.root / _OWNER).read_text().strip()
        return None

    def set_owner(self, owner: str) -> None:
        # Front ends that start at the same time write it at the same time.
        incoming = self.begin(f"{_OWNER}-{uuid.uuid4()}")
        try:
            incoming.write(owner.encode())
            with translating():
                self._place(incoming, self.root / _OWNER)
        finally:
            self.discard(incoming)


class CloudObjects:
    """Objects in an object store, by the library obstore."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def begin(self, identity: str) -> "SpooledUpload":  # noqa: ARG002 - the contract's
        with translating():
            return SpooledUpload(tempfile.TemporaryFile())

    def place(self, incoming: IncomingFile, digest: bytes) -> None:
        assert isinstance(incoming, SpooledUpload)
        part_bytes = max(PART_BYTES, math.ceil(incoming.size / PARTS_MAX))
        incoming.file.seek(0)
        with talking():
            obstore.put(
                self._store,
                _path(digest),
                incoming.file,
                chunk_size=part_bytes,
                max_concurrency=PARTS_AT_ONCE,
            )

    def discard(self, incoming: IncomingFile) -> None:
        assert isinstance(incoming, SpooledUpload)
        incoming.file.close()

    def open(self, digest: bytes) -> "CloudObject":
        return CloudObject(self._store, digest)

    def remove(self, digest: bytes) -> None:
        for path in (_path(digest), _quarantined(digest)):
            with talking(), suppress(FileNotFoundError):
                obstore.delete(self._store, path)

    def quarantine(self, digest: bytes) -> bool:
        with talking():
            try:
                if self._is_sound(digest):
                    return False
                obstore.copy(self._store, _path(digest), _quarantined(digest))
                obstore.delete(self._store, _path(digest))
            except FileNotFoundError:
                return False
        return True

    def digests(self) -> Iterator[list[bytes]]:
        for found in self.listed():
            yield [name for name, _ in found]

    def clear_incoming(self) -> None:
        """Do nothing: a temporary file ends with its process."""

    def listed(self) -> Iterator[list[tuple[bytes, int]]]:
        with talking():
            for batch in obstore.list(self._store, _OBJECTS, chunk_size=LISTED_AT_ONCE):
                found = ((_name(each["path"]), each["last_modified"]) for each in batch)
                yield [(name, _ticks(moment)) for name, moment in found if name is not None]

    def find_owner(self) -> str | None:
        with talking(), suppress(FileNotFoundError):
            return bytes(obstore.get(self._store, _OWNER).bytes()).decode()
        return None

    def set_owner(self, owner: str) -> None:
        with talking():
            try:
                obstore.put(self._store, _OWNER, owner.encode())
            except FileNotFoundError as error:
                raise unfit("The bucket or container does not exist.") from error

    def _is_sound(self, digest: bytes) -> bool:
        found = hashlib.sha256()
        for part in obstore.get(self._store, _path(digest)).stream(HASH_BYTES):
            found.update(part)
        return found.digest() == digest[: found.digest_size]


class SpooledUpload:
    """An upload in a temporary file without a name."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = 0

    def write(self, slab: bytes) -> None:
        with translating():
            self.file.write(slab)
        self.size += len(slab)


class CloudObject:
    """An object that is read by ranges. It may be removed meanwhile: `collector` says when."""

    def __init__(self, store: ObjectStore, digest: bytes) -> None:
        self._store = store
        self._digest = digest

    def read(self, start: int, count: int) -> bytes:
        with talking():
            # The sound parts of an object in quarantine can be read: every chunk is verified.
            for path in (_path(self._digest), _quarantined(self._digest)):
                with suppress(FileNotFoundError):
                    return self._read(path, start, start + count)
        raise damaged("its object is missing")

    def _read(self, path: str, start: int, end: int) -> bytes:
        try:
            return bytes(obstore.get_range(self._store, path, start=start, end=end))
        except exceptions.GenericError:
            # Stores refuse a range behind the end in different ways.
            if start < obstore.head(self._store, path)["size"]:
                raise
            return b""

    def close(self) -> None: ...


class NoObjects:
    """The lack of an object store: nothing long can be written or read."""

    def begin(self, identity: str) -> IncomingFile:  # noqa: ARG002 - the contract's
        raise store_missing()

    def place(self, incoming: IncomingFile, digest: bytes) -> None:  # noqa: ARG002
        raise store_missing()

    def discard(self, incoming: IncomingFile) -> None: ...

    def open(self, digest: bytes) -> ContentFile:  # noqa: ARG002
        raise store_missing()

    def remove(self, digest: bytes) -> None:  # noqa: ARG002
        raise store_missing()

    def quarantine(self, digest: bytes) -> bool:  # noqa: ARG002
        return False

    def digests(self) -> Iterator[list[bytes]]:
        return iter(())

    def clear_incoming(self) -> None: ...


@contextmanager
def talking() -> Iterator[None]:
    """Translate errors of an object store; FileNotFoundError passes."""
    try:
        yield
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise unfit("It refuses the credentials of the server.") from error
    except exceptions.BaseError as error:
        raise StoreBusyError(
            "ServerBusy",
            "The server is busy.",
            facts={"retry_after": RETRY_SECONDS, "reason": "object store"},
            hint="The object store of the server cannot be reached, or is overloaded. Try again.",
        ) from error


def store_missing() -> ConfigurationError:
    """Return the refusal of content that does not fit in a row."""
    return ConfigurationError(
        "BlobStoreMissing",
        "The server has no place for blobs, blocks and appends above 64 KiB.",
        hint="Start the server with --blob-store URL (file://, s3://, az:// or gs://), or send "
        "blocks of at most 64 KiB.",
        setting="--blob-store",
    )


def unfit(reason: str) -> ConfigurationError:
    """Return the refusal of an object store that cannot be used."""
    return ConfigurationError(
        "BlobStoreUnfit",
        f"The store of long blobs cannot be used. {reason}",
        hint="Check --blob-store, and the credentials in the server's environment.",
        setting="--blob-store",
    )


def _path(digest: bytes) -> str:
    return f"{_OBJECTS}/{digest.hex()}"


def _quarantined(digest: bytes) -> str:
    return f"{_QUARANTINE}/{digest.hex()}"


def _name(path: str) -> bytes | None:
    """Return the name of an object; None if a path is not one of ours."""
    try:
        return bytes.fromhex(path.rpartition("/")[2])
    except ValueError:
        return None


def _ticks(moment: datetime) -> int:
    return int(moment.timestamp() * TICKS_PER_SECOND)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
