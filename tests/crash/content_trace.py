"""What content files did to the disk, in one trace with the database, and what a power cut leaves.

A file keeps what was synced; of the rest a cut leaves nothing, a part or all. A name (made,
renamed, removed) is sure when its folder was synced after it; a folder that is not sure takes
all that is in it along.
"""

import os
import random
from pathlib import Path
from typing import NamedTuple

from partita.blobs.store.files import FileSystem

FileKey = int
"""Number of the event that created the file or folder."""


class CreateFile(NamedTuple):
    path: str


class WriteFile(NamedTuple):
    path: str
    content: bytes


class SyncFile(NamedTuple):
    path: str


class RenameFile(NamedTuple):
    path: str
    new_path: str


class RemoveFile(NamedTuple):
    path: str


class MakeFolder(NamedTuple):
    path: str


class SyncFolder(NamedTuple):
    path: str
    began: int


ContentEvent = CreateFile | WriteFile | SyncFile | RenameFile | RemoveFile | MakeFolder | SyncFolder


class RecordingFiles(FileSystem):
    """Does what it is asked, and notes it where the database's events are noted."""

    def __init__(self, events: list[object], root: Path) -> None:
        self._events = events
        self._root = root
        self._paths: dict[int, str] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._paths[descriptor] = self._name(path)
        self._events.append(CreateFile(self._name(path)))
        return descriptor

    def write(self, descriptor: int, chunk: bytes) -> None:
        super().write(descriptor, chunk)
        self._events.append(WriteFile(self._paths[descriptor], bytes(chunk)))

    def sync(self, descriptor: int) -> None:
        self._events.append(SyncFile(self._paths[descriptor]))

    def rename(self, path: Path, new_path: Path) -> None:
        super().rename(path, new_path)
        self._events.append(RenameFile(self._name(path), self._name(new_path)))

    def make_folder(self, path: Path) -> None:
        is_new = not path.exists()
        super().make_folder(path)
        if is_new:
            self._events.append(MakeFolder(self._name(path)))

    def sync_folder(self, path: Path) -> None:
        self._events.append(SyncFolder(self._name(path), len(self._events)))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._events.append(RemoveFile(self._name(path)))

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self._root)


class WithoutFileSync(RecordingFiles):
    def sync(self, descriptor: int) -> None: ...


class WithoutFolderSync(RecordingFiles):
    def sync_folder(self, path: Path) -> None: ...


class WithoutSyncOfNewFolders(RecordingFiles):
    """Syncs the folder of the file, but not those above it."""

    def sync_folder(self, path: Path) -> None:
        if len(path.name) == 2 and len(path.parent.name) == 2:
            super().sync_folder(path)


class _File:
    def __init__(self) -> None:
        self.synced = b""
        self.pending = b""


class _Change(NamedTuple):
    position: int
    gone: str | None
    name: str | None
    file: _File | None
    """None: a folder."""


class ContentTree:
    """The state of the content files at a position of the trace. Feed it the events in order."""

    def __init__(self) -> None:
        self._names: dict[str, _File | None] = {}
        self._durable: dict[str, _File | None] = {}
        self._pending: list[_Change] = []
        self._position = 0

    def advance(self, event: object) -> None:
        match event:
            case CreateFile(path):
                self._change(None, path, _File())
            case WriteFile(path, content):
                file = self._names[path]
                assert file is not None
                file.pending += content
            case SyncFile(path):
                file = self._names[path]
                assert file is not None
                file.synced, file.pending = file.synced + file.pending, b""
            case RenameFile(path, new_path):
                self._change(path, new_path, self._names[path])
            case RemoveFile(path) if path in self._names:
                self._change(path, None, None)
            case MakeFolder(path):
                self._change(None, path, None)
            case SyncFolder(path, began):
                self._sync_folder(path, began)
            case _:
                pass
        self._position += 1

    def _change(self, gone: str | None, name: str | None, file: _File | None) -> None:
        change = _Change(self._position, gone, name, file)
        _apply(self._names, change)
        self._pending.append(change)

    def _sync_folder(self, folder: str, began: int) -> None:
        """What happened in this folder is sure; a rename between two folders is one event."""
        for change in list(self._pending):
            touched = {str(Path(name).parent) for name in (change.gone, change.name) if name}
            if change.position < began and folder in touched:
                _apply(self._durable, change)
                self._pending.remove(change)

    def after_cut(self, chance: random.Random, share: float) -> dict[str, bytes | None]:
        """Return what one power cut leaves: content by path, None for folders."""
        names = dict(self._durable)
        for change in self._pending:
            if chance.random() < share:
                _apply(names, change)
        image: dict[str, bytes | None] = {}
        for name in sorted(names):
            folder = str(Path(name).parent)
            if folder != "." and folder not in image:
                continue  # its folder is gone, and with it the name
            file = names[name]
            image[name] = None if file is None else file.synced + _some(file.pending, chance, share)
        return image


def write_tree(folder: Path, image: dict[str, bytes | None]) -> None:
    for name, content in image.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


def _apply(names: dict[str, _File | None], change: _Change) -> None:
    if change.gone is not None:
        names.pop(change.gone, None)
    if change.name is not None:
        names[change.name] = change.file


def _some(pending: bytes, chance: random.Random, share: float) -> bytes:
    """Of bytes in the air all, none, or zeros where a sector did not get there."""
    if share in (0.0, 1.0):
        return pending if share else b""
    sectors = [pending[at : at + 512] for at in range(0, len(pending), 512)]
    return b"".join(sector if chance.random() < share else bytes(len(sector)) for sector in sectors)
