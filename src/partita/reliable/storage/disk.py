"""What reliable state asks of a disk: one folder of files that grow, and honest syncs.

Code of `reliable` reaches files only through this contract, so that the same code runs on the
machine's disk (`os_disk`) and on a simulated one that loses, tears and flips what was not
synced. Names are plain file names, never paths. An `OSError` of the machine leaves as
StoreFullError (no space: nothing was written that a reader would trust) or StoreStoppedError
(anything else).
"""

from typing import Protocol


class GrowingFile(Protocol):
    """An open file that is only appended to. `size` counts what was written."""

    name: str
    size: int

    def write(self, chunk: bytes) -> None:
        """Append; it survives a crash only after a sync.

        After StoreFullError the file is cut back to the size it had before.
        """
        ...

    async def sync(self) -> None:
        """Return when all that was written is on the medium; other tasks go on meanwhile.

        A failed sync raises StoreStoppedError and the file must not be used again: the kernel
        may have dropped the pages and call the next sync a success.
        """
        ...

    def sync_now(self) -> None:
        """The same without leaving the loop: quicker when nobody else waits."""
        ...

    def renew(self, start: int) -> None:
        """Write what lies from `start` on once more, for the next sync to carry.

        After a failed sync the machine may show bytes that the medium never got, and take them
        for written: no sync of a later process would bring them there.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder that this process holds alone."""

    def names(self) -> list[str]:
        """All file names, sorted."""
        ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        """Return `count` bytes from `start` (all to the end when negative)."""
        ...

    def create(self, name: str) -> GrowingFile:
        """Open a new, empty file; an old one of that name is emptied."""
        ...

    def grow(self, name: str, size: int) -> GrowingFile:
        """Open a file to append to, cut to `size` first."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """Replace `new_name` at once; durable after sync_folder."""
        ...

    def remove(self, name: str) -> None: ...

    async def sync_folder(self) -> None:
        """Return when names (created, renamed, removed) are on the medium."""
        ...

    def free_bytes(self) -> int: ...

    def close(self) -> None:
        """Let go of the folder's lock."""
        ...
