"""A folder for one process: created durably, locked, with the name of the process that has it."""

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path

from partita.errors import StoreLockedError

LOCK_FILE = "lock"


def make_folder(folder: Path) -> None:
    """Create a folder so that its name survives a power failure, too."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_names(folder.parent)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path, what: str) -> int:
    """Lock the folder of an account or a state; pass the result to `unlock_folder`."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 1024, 0).decode("utf-8", "replace")
        os.close(descriptor)
        raise _locked(folder, holder, what) from error
    except OSError:
        os.close(descriptor)
        raise
    # The name of the program without its arguments, which may contain a password.
    program = Path(sys.argv[0] or sys.executable).name
    owner = f"{os.getpid()}\n{program}\n{socket.gethostname()}\n".encode("utf-8", "replace")
    with contextlib.suppress(OSError):  # on a full disk the lock is valid without a name
        os.pwrite(descriptor, owner, 0)
        os.ftruncate(descriptor, len(owner))
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Unlock explicitly: a forked child shares the lock, so closing it here is not enough."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _locked(folder: Path, holder: str, what: str) -> StoreLockedError:
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
