"""A VFS over the machine's own that tells a watcher of every change of the database's files.

The watcher may raise: SQLite then sees the failing disk of the test. Only the main file, its
write-ahead log and its journal are watched; shared memory and locks pass through.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw

_KINDS = {
    apsw.SQLITE_OPEN_MAIN_DB: "main",
    apsw.SQLITE_OPEN_WAL: "log",
    apsw.SQLITE_OPEN_MAIN_JOURNAL: "journal",
}
_SUFFIXES = {"-wal": "log", "-journal": "journal"}
_number = count()


class Watcher:
    """What a test wants to know of the files, or to break. Files are called by their kind.

    `before_…` may raise and so fail the call; `after_…` is told of what has really happened.
    """

    def before_write(self, file: str, end: int) -> None: ...

    def after_write(self, file: str, offset: int, content: bytes) -> None: ...

    def before_sync(self, file: str) -> int:
        """Return a mark that `after_sync` gets back."""
        return 0

    def after_sync(self, file: str, mark: int) -> None: ...

    def after_truncate(self, file: str, size: int) -> None: ...

    def after_open(self, file: str) -> None: ...

    def after_delete(self, file: str) -> None: ...


class ShimVFS(apsw.VFS):
    def __init__(self, name: str, watcher: Watcher) -> None:
        super().__init__(name, "")
        self.name = name
        self.watcher = watcher

    def xOpen(  # noqa: N802 - SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        kind = next((kind for bit, kind in _KINDS.items() if flags[0] & bit), None)
        if kind is None:
            return apsw.VFSFile("", name, flags)
        file = ShimFile(self.watcher, kind, name, flags)
        self.watcher.after_open(kind)
        return file

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name
        kind = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "main")
        super().xDelete(name, syncdir)
        self.watcher.after_delete(kind)


class ShimFile(apsw.VFSFile):
    def __init__(
        self,
        watcher: Watcher,
        kind: str,
        name: str | apsw.URIFilename | None,
        flags: list[int],
    ) -> None:
        super().__init__("", name, flags)
        self._watcher = watcher
        self._kind = kind

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._watcher.before_write(self._kind, offset + len(data))
        super().xWrite(data, offset)
        self._watcher.after_write(self._kind, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(newsize)
        self._watcher.after_truncate(self._kind, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        mark = self._watcher.before_sync(self._kind)
        super().xSync(flags)
        self._watcher.after_sync(self._kind, mark)


@contextmanager
def registered(watcher: Watcher) -> Iterator[str]:
    """Yield the name under which `Database.open` finds the shim."""
    vfs = ShimVFS(f"partita-shim-{next(_number)}", watcher)
    try:
        yield vfs.name
    finally:
        vfs.unregister()


def scratch_folder() -> Path | None:
    """Return a folder in memory for many small images, if the machine has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None
