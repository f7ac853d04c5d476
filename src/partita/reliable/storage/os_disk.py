"""A Disk on the file system: one folder, locked by one process, which checks before each write.

Syncs run in a thread of their own, so that other tasks continue; everything else is a short
system call on the event loop. Every OSError is translated.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from partita.errors import (
    ConfigurationError,
    PartitaError,
    StoreFullError,
    StoreStoppedError,
)
from partita.storage.folder import LOCK_FILE, FolderLock, full_sync, make_folder, sync_names

T = TypeVar("T")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class OsDisk:
    """A folder of the file system, created if it is new; `close` releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_folder(folder)
            self._lock = FolderLock(folder, "state")
        except OSError as error:
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {folder} cannot be used: {error.strerror or error}.",
                hint="Choose another folder, or check its permissions.",
            ) from error
        self._syncs = _SyncThread()
        self._apart = _SyncThread()
        """For checkpoints, whose long syncs and hashes must not delay the log."""
        self._is_closed = False

    def names(self) -> list[str]:
        with _translated(self.folder):
            return sorted(path.name for path in self.folder.iterdir() if path.name != LOCK_FILE)

    def size(self, name: str) -> int:
        with _translated(self.folder):
            return self._path(name).stat().st_size

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        with _translated(self.folder):
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if count < 0:
                    count = max(os.fstat(descriptor).st_size - start, 0)
                return _read_whole(descriptor, start, count)
            finally:
                os.close(descriptor)

    def create(self, name: str, *, is_apart: bool = False) -> "OsFile":
        return self._open(name, os.O_CREAT | os.O_TRUNC, 0, is_apart=is_apart)

    def grow(self, name: str, size: int) -> "OsFile":
        file = self._open(name, 0, size)
        if os.fstat(file.descriptor).st_size != size:
            file.cut(size)
        return file

    def rename(self, name: str, new_name: str) -> None:
        _check(self._lock)
        with _translated(self.folder):
            self._path(name).replace(self._path(new_name))

    def remove(self, name: str) -> None:
        _check(self._lock)
        with _translated(self.folder):
            self._path(name).unlink()

    async def sync_folder(self) -> None:
        await self._syncs.run(self._sync_folder)

    async def aside(self, call: Callable[[], T]) -> T:
        found: list[T] = []
        await self._apart.run(lambda: found.append(call()))
        return found[0]

    def free_bytes(self) -> int:
        with _translated(self.folder):
            space = os.statvfs(self.folder)
            return space.f_bavail * space.f_frsize

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._syncs.stop()
        self._apart.stop()
        self._lock.release()

    def _open(self, name: str, flags: int, size: int, *, is_apart: bool = False) -> "OsFile":
        _check(self._lock)
        with _translated(self.folder):
            path = self._path(name)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        syncs = self._apart if is_apart else self._syncs
        return OsFile(path, descriptor, size, syncs, self._lock)

    def _sync_folder(self) -> None:
        try:
            sync_names(self.folder)
        except OSError as error:
            raise _stopped(error, self.folder) from error

    def _path(self, name: str) -> Path:
        assert name == Path(name).name, name
        assert name not in ("", ".", "..", LOCK_FILE), name
        assert not self._is_closed, "the disk was closed"
        return self.folder / name


class OsFile:
    """A file that grows; see `GrowingFile`."""

    def __init__(
        self, path: Path, descriptor: int, size: int, syncs: "_SyncThread", lock: FolderLock
    ) -> None:
        self.name = path.name
        self.size = size
        self.descriptor = descriptor
        self._path = path
        self._syncs = syncs
        self._lock = lock
        self._failure: StoreStoppedError | None = None
        """The first failed sync: a later one could succeed although data was lost."""

    def write(self, chunk: bytes) -> None:
        self._refuse_if_failed()
        _check(self._lock)
        view = memoryview(chunk)
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self.descriptor, view[done:], self.size + done)
        except OSError as error:
            failure = _failure_of(error, self._path)
            if done and isinstance(failure, StoreFullError):
                self.cut(self.size)
            raise failure from error
        self.size += done

    async def sync(self) -> None:
        await self._syncs.run(self.sync_now)

    def sync_now(self) -> None:
        self._refuse_if_failed()
        try:
            _sync(self.descriptor)
        except OSError as error:
            # Also for a full disk: the kernel may have dropped pages that it could not write.
            self._failure = _stopped(error, self._path)
            raise self._failure from error

    def renew(self, start: int) -> None:
        with _translated(self._path):
            chunk = _read_whole(self.descriptor, start, self.size - start)
            done = 0
            while done < len(chunk):
                done += os.pwrite(self.descriptor, chunk[done:], start + done)

    def cut(self, size: int) -> None:
        with _translated(self._path):
            os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise StoreStoppedError(
                "StoreStopped",
                "A sync of the file failed; writes are refused until the process is restarted.",
                facts={"file": str(self._path)},
                hint="Check the disk and the kernel log, then restart the process.",
            ) from self._failure


class _SyncThread:
    """A thread that runs one call after the other, from its first call to `stop`.

    A daemon thread: a disk that was not closed must not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], None]) -> None:
        """Run a call and return or raise its result; if cancelled, it still runs to its end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="partita-sync", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def run_and_report() -> None:
            failure: BaseException | None = None
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(_resolve, ended, failure)

        self._calls.put(run_and_report)
        await ended

    def stop(self) -> None:
        """End the thread after the queued calls."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _resolve(ended: "asyncio.Future[None]", failure: BaseException | None) -> None:
    if ended.done():
        return  # the caller was cancelled
    if failure is None:
        ended.set_result(None)
    else:
        ended.set_exception(failure)


def _check(lock: FolderLock) -> None:
    """Raise if another process may have entered the folder."""
    with contextlib.suppress(OSError):  # a path is missing
        if [path.stat()[1:3] for path in lock.paths] == lock.identities:
            return
    raise lock.lost()


def _sync(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):
        full_sync(descriptor)
    else:
        os.fdatasync(descriptor)


def _read_whole(descriptor: int, start: int, count: int) -> bytes:
    chunk = os.pread(descriptor, count, start)
    if len(chunk) == count or not chunk:
        return chunk
    chunks = [chunk]
    while chunk and sum(map(len, chunks)) < count:
        done = sum(map(len, chunks))
        chunk = os.pread(descriptor, count - done, start + done)
        chunks.append(chunk)
    return b"".join(chunks)


class _translated:  # noqa: N801 - used as a verb: `with _translated(path)`
    """Translates every OSError of its block."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise _failure_of(error, self._path) from error


def _failure_of(error: OSError, path: Path) -> PartitaError:
    if error.errno not in NO_SPACE:
        return _stopped(error, path)
    return StoreFullError(
        "StoreFull",
        "The disk is full; writes are refused until there is space.",
        facts={"file": str(path)},
        hint="Free some space on the disk; no restart is needed.",
    )


def _stopped(error: OSError, path: Path) -> StoreStoppedError:
    return StoreStoppedError(
        "StoreStopped",
        f"The disk failed ({error.strerror}); writes are refused until the process is restarted.",
        facts={"file": str(path)},
        hint="Check the disk and the kernel log, then restart the process.",
    )
