"""The reserve of a folder: space that is freed on a full disk for deletes and a checkpoint."""

import contextlib
import errno
import os
from pathlib import Path

from partita.storage.folder import make_private

RESERVE_FILE = "reserve"
RESERVE_BYTES = 4 * 1024 * 1024
"""Freed on a full disk: the space for deletes and a checkpoint."""


class DiskReserve:
    """A file that keeps some space of the disk allocated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def free_bytes(self) -> int:
        space = os.statvfs(self._folder)
        return space.f_bavail * space.f_frsize

    def keep(self, size: int) -> bool:
        """Allocate the reserve; return False if the disk has no space for it."""
        path = self._folder / RESERVE_FILE
        kept = path.stat().st_size if path.exists() else 0
        if kept >= size:
            return True
        try:
            make_private(path)
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, kept)
            return kept > 0 or error.errno not in (errno.ENOSPC, errno.EDQUOT)
        return True

    def drop(self) -> None:
        """Free the space."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / RESERVE_FILE).unlink()
