"""A folder for one process: created durably, locked, with the name of the process that has it.

The lock is on the folder itself, because a file in it can be removed by accident and created again
by a second process. The file `lock` is locked too: it names the process, and earlier versions of
Partita lock only this file.
"""

import contextlib
import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

from partita.errors import StoreLockedError, StoreStoppedError

LOCK_FILE = "lock"


def make_folder(folder: Path) -> None:
    """Create a folder so that its name survives a power failure, too."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_names(folder.parent)


def full_sync(descriptor: int) -> None:
    """Return when an open file or folder is on the medium.

    On macOS fsync leaves the bytes in the drive's cache; F_FULLFSYNC flushes it, but some network
    file systems do not support it.
    """
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        try:
            fcntl.fcntl(descriptor, command)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
        else:
            return
    os.fsync(descriptor)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        full_sync(descriptor)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """Create a file for its owner alone."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def keep_private(path: Path) -> None:
    """Take a file from other users: an earlier version created it for all of them."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # the owner is another user
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder now; nothing is written."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    finally:
        os.close(descriptor)


class FolderLock:
    """The lock of the folder of an account, a state or a NATS cluster, until `release`.

    The process that holds it compares the `stat` of `paths` with `identities` before it
    acknowledges a write, and stops with `lost()` if they differ.
    """

    def __init__(self, folder: Path, what: str, file: str = LOCK_FILE) -> None:
        self.paths: list[Path] = []
        """What must stay in place: the folder, its lock file, and files that `watch` added."""
        self.identities: list[tuple[int, ...]] = []
        """The inode and the device of each path."""
        self._folder = folder
        self._descriptors: list[int] = []
        try:
            self._take(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), what)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._take(os.open(file, flags, 0o600, dir_fd=self._descriptors[0]), what)
            self._write_owner()
            self.watch("")
            self.watch(file)
        except BaseException:
            self.release()
            raise

    def watch(self, name: str) -> None:
        """Add a file of the folder that must not be replaced."""
        path = self._folder / name
        self.paths.append(path)
        self.identities.append(path.stat()[1:3])

    def lost(self) -> StoreStoppedError:
        """Return the error of a process whose folder or lock file was removed or replaced."""
        return StoreStoppedError(
            "StoreLockLost",
            f"The folder {self._folder} or its lock was removed or replaced while it was in use;"
            " nothing is acknowledged until the process is restarted.",
            facts={"folder": str(self._folder)},
            hint="Stop every process that uses the folder, restore what was removed, then restart.",
        )

    def release(self) -> None:
        """Unlock explicitly: a forked child shares the lock, so closing it here is not enough."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _take(self, descriptor: int, what: str) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise _locked(self._folder, what) from error
        except OSError:
            os.close(descriptor)
            raise
        self._descriptors.append(descriptor)

    def _write_owner(self) -> None:
        # The name of the program without its arguments, which may contain a password.
        program = Path(sys.argv[0] or sys.executable).name
        owner = f"{os.getpid()}\n{program}\n{socket.gethostname()}\n".encode("utf-8", "replace")
        with contextlib.suppress(OSError):  # on a full disk the lock is valid without a name
            os.pwrite(self._descriptors[-1], owner, 0)
            os.ftruncate(self._descriptors[-1], len(owner))


def _locked(folder: Path, what: str) -> StoreLockedError:
    holder = ""
    with contextlib.suppress(OSError):  # the file was removed: the process is not known
        holder = (folder / LOCK_FILE).read_bytes()[:1024].decode("utf-8", "replace")
    process, program, host, *_ = [*holder.split("\n"), "", "", ""]
    who = f"{process or 'unknown'}" + (f" ({program} on {host})" if program else "")
    return StoreLockedError(
        "StoreLocked",
        f"The folder {folder} is in use by process {who}.",
        facts={"folder": str(folder), "holder": process, "program": program, "host": host},
        hint=f"Use the {what} that this process has open, or close it first."
        if process == str(os.getpid()) and host == socket.gethostname()
        else "Stop that process, or choose another folder.",
    )
