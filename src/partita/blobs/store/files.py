"""Content files: named by the SHA-256 of their content, durable before a row refers to them.

    blobs/incoming/<random id>       an incomplete upload: removed at start
    blobs/ab/cd/abcd…                64 hex digits or more, two levels of folders
    blobs/quarantine/abcd…           a file that was found damaged: moved, not changed

A store may add bytes to the hash: then the same content can have several names. No path contains
text of a user. A file is written once, synced, renamed to its name, and the
folders of its name are synced, too; an existing equal file is replaced, which repairs it if it
was damaged. All calls block: they run in threads.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from partita.blobs.rules.checksums import damaged
from partita.errors import StoreBusyError
from partita.refusals import store_full, store_stopped
from partita.storage.folder import full_sync

CONTENT_FOLDER = "blobs"
INCOMING_FOLDER = "incoming"
QUARANTINE_FOLDER = "quarantine"
HASH_BYTES = 1024 * 1024
"""How much of a file is read at a time to hash it."""

_HASH = re.compile(r"[0-9a-f]{64,}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class IncomingFile(Protocol):
    """Content of an incomplete upload."""

    def write(self, slab: bytes) -> None: ...


class ContentFile(Protocol):
    """Content open for reading; it stays readable after its file is removed."""

    def read(self, start: int, count: int) -> bytes:
        """Return these bytes, fewer only at the end of the file."""
        ...

    def close(self) -> None: ...


class ContentFiles(Protocol):
    """Where long content is kept, by its hash."""

    def begin(self, identity: str) -> IncomingFile: ...

    def place(self, incoming: IncomingFile, digest: bytes) -> None:
        """Return when the content is durable under its hash."""
        ...

    def discard(self, incoming: IncomingFile) -> None:
        """Remove an upload that was not placed; a placed one stays."""
        ...

    def open(self, digest: bytes) -> ContentFile: ...

    def remove(self, digest: bytes) -> None: ...

    def quarantine(self, digest: bytes) -> bool:
        """Move a damaged file aside; return False if it is sound or missing."""
        ...

    def digests(self) -> Iterator[list[bytes]]:
        """Yield the hashes of all files, folder by folder."""
        ...

    def clear_incoming(self) -> None:
        """Remove incomplete uploads of earlier processes."""
        ...


class FileSystem:
    """The file system calls of content files; tests replace it."""

    def create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def write(self, descriptor: int, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        full_sync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, path: Path, new_path: Path) -> None:
        path.rename(new_path)

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            full_sync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


class FolderFiles:
    """ContentFiles in the folder of an account."""

    _failure: OSError | None = None
    """Set by a failed sync: later syncs may report success for lost data."""

    def __init__(self, folder: Path, system: FileSystem | None = None) -> None:
        self.root = folder / CONTENT_FOLDER
        self._account = folder
        self._system = system or FileSystem()
        self.on_failure: Callable[[OSError], None] | None = None
        """Called in the thread in which a sync has failed."""
        self._settled: set[Path] = set()
        """Folders whose own names were synced by this process."""
        with translating():
            self._make_root()

    def begin(self, identity: str) -> "FolderIncoming":
        if self._failure is not None:
            raise store_stopped() from self._failure
        path = self.root / INCOMING_FOLDER / identity
        with translating():
            return FolderIncoming(self, path, self._system.create(path))

    def write(self, descriptor: int, slab: bytes) -> None:
        with translating():
            self._system.write(descriptor, slab)

    def place(self, incoming: IncomingFile, digest: bytes) -> None:
        assert isinstance(incoming, FolderIncoming)
        with translating():
            self._place(incoming, self._path(digest))

    def discard(self, incoming: IncomingFile) -> None:
        assert isinstance(incoming, FolderIncoming)
        if incoming.descriptor >= 0:
            self._system.close(incoming.descriptor)
            incoming.descriptor = -1
        if incoming.path is not None:
            with translating():
                self._system.remove(incoming.path)

    def open(self, digest: bytes) -> "FolderFile":
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with translating():
            # The sound parts of a file in quarantine can be read: every chunk is verified.
            for path in (self._path(digest), self._quarantined(digest)):
                with suppress(FileNotFoundError):
                    return FolderFile(os.open(path, flags))
        raise damaged("its file is missing")

    def remove(self, digest: bytes) -> None:
        with translating():
            self._system.remove(self._path(digest))
            self._system.remove(self._quarantined(digest))

    def quarantine(self, digest: bytes) -> bool:
        path, target = self._path(digest), self._quarantined(digest)
        with translating():
            if not path.is_file() or _is_sound(path, digest):
                return False
            self._system.make_folder(target.parent)
            self._system.rename(path, target)
            for folder in (target.parent, path.parent, self.root):
                self._sync_folder(folder)
        return True

    def digests(self) -> Iterator[list[bytes]]:
        with translating():
            for first in sorted(self.root.glob("[0-9a-f][0-9a-f]")):
                for second in sorted(first.glob("[0-9a-f][0-9a-f]")):
                    names = [path.name for path in second.iterdir()]
                    yield [bytes.fromhex(name) for name in names if _HASH.fullmatch(name)]

    def clear_incoming(self) -> None:
        with translating():
            for path in (self.root / INCOMING_FOLDER).iterdir():
                if path.is_symlink() or path.is_file():
                    self._system.remove(path)

    def _make_root(self) -> None:
        for folder in (self.root, self.root / INCOMING_FOLDER):
            self._system.make_folder(folder)
        self._sync_folder(self._account)

    def _place(self, incoming: "FolderIncoming", path: Path) -> None:
        assert incoming.path is not None
        self._sync(incoming.descriptor)
        self._system.close(incoming.descriptor)
        incoming.descriptor = -1
        self._system.make_folder(path.parent.parent)
        self._system.make_folder(path.parent)
        self._system.rename(incoming.path, path)
        incoming.path = None
        self._sync_folder(path.parent)
        # An earlier process may have created the folders and ended before it synced their names.
        if path.parent not in self._settled:
            self._sync_folder(path.parent.parent)
            self._sync_folder(self.root)
            self._settled.add(path.parent)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        assert len(name) >= 64
        return self.root / name[:2] / name[2:4] / name

    def _quarantined(self, digest: bytes) -> Path:
        return self.root / QUARANTINE_FOLDER / digest.hex()

    def _sync(self, descriptor: int) -> None:
        try:
            self._system.sync(descriptor)
        except OSError as error:
            self._remember(error)
            raise

    def _sync_folder(self, path: Path) -> None:
        try:
            self._system.sync_folder(path)
        except OSError as error:
            self._remember(error)
            raise

    def _remember(self, error: OSError) -> None:
        if error.errno not in (*_FULL, *_TOO_MANY):
            self._failure = error
            if self.on_failure is not None:
                self.on_failure(error)


class FolderIncoming:
    """An upload in its temporary file."""

    def __init__(self, files: FolderFiles, path: Path, descriptor: int) -> None:
        self.path: Path | None = path
        """None once it has its name."""
        self.descriptor = descriptor
        self._files = files

    def write(self, slab: bytes) -> None:
        self._files.write(self.descriptor, slab)


class FolderFile:
    """A content file open for reading."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, start: int, count: int) -> bytes:
        try:
            return os.pread(self._descriptor, count, start)
        except OSError as error:
            raise damaged("its file cannot be read") from error

    def close(self) -> None:
        os.close(self._descriptor)


class MemoryFiles:
    """ContentFiles that live as long as the process."""

    def __init__(self) -> None:
        self._contents: dict[bytes, MemoryContent] = {}

    def begin(self, identity: str) -> "MemoryContent":  # noqa: ARG002 - the contract's
        return MemoryContent()

    def place(self, incoming: IncomingFile, digest: bytes) -> None:
        assert isinstance(incoming, MemoryContent)
        self._contents[digest] = incoming

    def discard(self, incoming: IncomingFile) -> None: ...

    def open(self, digest: bytes) -> "MemoryContent":
        if digest not in self._contents:
            raise damaged("it is missing")
        return self._contents[digest]

    def remove(self, digest: bytes) -> None:
        self._contents.pop(digest, None)

    def quarantine(self, digest: bytes) -> bool:  # noqa: ARG002 - memory is not verified
        return False

    def digests(self) -> Iterator[list[bytes]]:
        yield list(self._contents)

    def clear_incoming(self) -> None: ...


class MemoryContent:
    """Content in memory, whole."""

    def __init__(self) -> None:
        self._content = bytearray()

    def write(self, slab: bytes) -> None:
        self._content += slab

    def read(self, start: int, count: int) -> bytes:
        return bytes(memoryview(self._content)[start : start + count])

    def close(self) -> None: ...


def _is_sound(path: Path, digest: bytes) -> bool:
    """Return whether a file has the bytes that its name promises; unreadable ones are damage."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(HASH_BYTES):
                found.update(piece)
    except OSError as error:
        if error.errno in _TOO_MANY:
            raise
        return False
    return found.digest() == digest[: found.digest_size]


@contextmanager
def translating() -> Iterator[None]:
    """Translate errors of the operating system."""
    try:
        yield
    except OSError as error:
        if error.errno in _TOO_MANY:
            raise StoreBusyError(
                "ServerBusy",
                "Too many files are open at the same time.",
                hint="Retry later, or raise the limit of open files of the server (ulimit -n).",
            ) from error
        if error.errno not in _FULL:
            raise store_stopped() from error
        raise store_full() from error
