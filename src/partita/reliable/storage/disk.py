"""The Disk contract: one folder of files that are only appended to, and reliable syncs.

Code of `reliable` accesses files only through this contract, so that the same code runs on the
file system (`os_disk`) and on a simulated disk that loses, tears and corrupts unsynced bytes.
Names are plain file names, never paths. An `OSError` becomes StoreFullError (no space: nothing
was written that a reader would accept) or StoreStoppedError (any other error).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class GrowingFile(Protocol):
    """An open file that is only appended to. `size` is the number of bytes written."""

    name: str
    size: int

    def write(self, chunk: bytes) -> None:
        """Append bytes, which survive a crash only after a sync.

        After StoreFullError the file has the size it had before.
        """
        ...

    async def sync(self) -> None:
        """Return when all written bytes are on the medium; other tasks run meanwhile.

        A failed sync raises StoreStoppedError and the file must not be used again: the kernel
        may have dropped the pages and report the next sync as a success.
        """
        ...

    def sync_now(self) -> None:
        """Sync and block the event loop, which is quicker when no other task waits."""
        ...

    def renew(self, start: int) -> None:
        """Write the bytes from `start` on again, so that the next sync includes them.

        After a failed sync the kernel may return bytes that never reached the medium and treat
        them as clean, so that a later process would not sync them.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder, used by this process only."""

    def names(self) -> list[str]:
        """Return all file names, sorted."""
        ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        """Return `count` bytes from `start` (all up to the end when negative)."""
        ...

    def create(self, name: str, *, is_apart: bool = False) -> GrowingFile:
        """Open a new, empty file; an existing one is truncated.

        The syncs of a file that is apart do not delay those of other files.
        """
        ...

    def grow(self, name: str, size: int) -> GrowingFile:
        """Open a file for appending, truncated to `size` first."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """Rename atomically, replacing `new_name`; durable after sync_folder."""
        ...

    def remove(self, name: str) -> None: ...

    async def sync_folder(self) -> None:
        """Return when created, renamed and removed names are on the medium."""
        ...

    async def aside(self, call: Callable[[], T]) -> T:
        """Run a function beside the event loop, if the disk has threads, and return its result.

        It must not use anything that the event loop changes. If the caller is cancelled, it still
        runs to its end.
        """
        ...

    def free_bytes(self) -> int: ...

    def close(self) -> None:
        """Release the folder's lock."""
        ...
