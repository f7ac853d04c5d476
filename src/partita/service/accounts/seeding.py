"""Create tables, queues and containers at the start of a server, and fill them from a folder.

```
FOLDER/tables/Staff.jsonl       one entity a line, as `partita export` writes them
FOLDER/queues/work.jsonl        one message a line, as a JSON text
FOLDER/blobs/photos/a/1.png     the blob `a/1.png` of the container `photos`
```

The one rule: what exists already is not changed, so that a restart keeps what clients have written.
"""

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from partita.blobs.rules.model import BlobName, Headers, Properties
from partita.errors import ConfigurationError, ConflictError, PartitaError
from partita.service.accounts.account import Account
from partita.tables.entity import EntityKey, parse_body
from partita.tables.limits import GROUP_OPERATIONS_MAX
from partita.tables.operations import EntityGroup, InsertOrReplace

KINDS = ("table", "queue", "container")
FOLDERS = ("tables", "queues", "blobs")
LINE_BYTES_MAX = 16 * 1024 * 1024
"""The longest line of a file that is read."""
PIECE_BYTES = 256 * 1024


class NamedPlace(msgspec.Struct, frozen=True):
    """A table, queue or container that is created at the start."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_place(text: str) -> NamedPlace:
    """Parse `table:NAME`, `queue:NAME` or `container:NAME`.

    >>> parse_place("queue:work").name
    'work'
    """
    kind, colon, name = text.partition(":")
    if kind not in KINDS or not colon or not name:
        raise ConfigurationError(
            "Configuration",
            f"{text!r} cannot be created.",
            hint="Write table:NAME, queue:NAME or container:NAME.",
        )
    return NamedPlace(kind, name)


async def create(account: Account, place: NamedPlace) -> bool:
    """Create a place; return False if it exists. Raises ConfigurationError for a wrong name."""
    try:
        match place.kind:
            case "table":
                await account.tables.create_table(place.name)
            case "queue":
                return await account.queues.create_queue(place.name, {})
            case _:
                await account.blobs.containers.create_container(place.name)
    except ConflictError:
        return False
    except PartitaError as error:
        raise ConfigurationError(
            "Configuration",
            f"{place.text} cannot be created: {error.message}",
            hint=error.hint or "Correct the name.",
        ) from error
    return True


async def seed(account: Account, folder: Path) -> None:
    """Create what a folder contains and the account does not have."""
    found = await asyncio.to_thread(_places_in, folder)
    for place, path in found:
        if not await create(account, place):
            continue
        try:
            await _fill(account, place, path)
        except (PartitaError, OSError, ValueError) as error:
            reason = error.message if isinstance(error, PartitaError) else str(error)
            raise ConfigurationError(
                "Configuration",
                f"{path} cannot be loaded into {place.text}: {reason}",
                hint="Correct the file, and remove the data of the account before the next start.",
            ) from error


async def _fill(account: Account, place: NamedPlace, path: Path) -> None:
    match place.kind:
        case "table":
            await _fill_table(account, place.name, path)
        case "queue":
            async for number, line in _lines(path):
                await account.queues.put(place.name, _message_of(line, number))
        case _:
            for file in await asyncio.to_thread(_files_in, path):
                name = file.relative_to(path).as_posix()
                kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
                await account.blobs.put_blob(
                    BlobName(place.name, name),
                    _Upload(file),
                    properties=Properties(Headers(content_type=kind)),
                )


async def _fill_table(account: Account, table: str, path: Path) -> None:
    group: list[InsertOrReplace] = []
    async for number, line in _lines(path):
        try:
            body = parse_body(line)
        except PartitaError as error:
            error.message = f"line {number}: {error.message}"
            raise
        if body.partition_key is None or body.row_key is None:
            message = f"line {number} has no PartitionKey or no RowKey"
            raise ValueError(message)
        key = EntityKey(body.partition_key, body.row_key)
        keys = {operation.key for operation in group}
        is_other = bool(group) and group[0].key.partition_key != key.partition_key
        if is_other or key in keys or len(group) == GROUP_OPERATIONS_MAX:
            await account.tables.run(table, EntityGroup(group))
            group = []
        group.append(InsertOrReplace(key, body.properties))
    if group:
        await account.tables.run(table, EntityGroup(group))


def _message_of(line: bytes, number: int) -> str:
    try:
        return msgspec.json.decode(line, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"line {number} is not a JSON text"
        raise ValueError(message) from error


async def _lines(path: Path) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers."""
    with path.open("rb") as file:
        number = 0
        while line := await asyncio.to_thread(file.readline, LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                message = f"line {number} is longer than {LINE_BYTES_MAX} bytes"
                raise ValueError(message)
            if line.strip():
                yield number, line


class _Upload:
    """The content of a file as the content of a blob."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.length: int | None = path.stat().st_size
        self.received_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._path.open("rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                self.received_bytes += len(piece)
                yield piece


def _places_in(folder: Path) -> list[tuple[NamedPlace, Path]]:
    if not folder.is_dir():
        raise _unusable(folder, "It is not a folder.")
    others = sorted(each.name for each in folder.iterdir() if each.name not in FOLDERS)
    others = [name for name in others if not name.startswith(".")]
    if others:
        raise _unusable(folder, f"It contains {others[0]}.")
    return [*_files_of(folder, "table"), *_files_of(folder, "queue"), *_containers_of(folder)]


def _files_of(folder: Path, kind: str) -> Iterator[tuple[NamedPlace, Path]]:
    for path in _shown(folder / f"{kind}s"):
        if path.suffix != ".jsonl" or not path.is_file():
            raise _unusable(path, "It is not a file of JSON lines.")
        yield NamedPlace(kind, path.stem), path


def _containers_of(folder: Path) -> Iterator[tuple[NamedPlace, Path]]:
    for path in _shown(folder / "blobs"):
        if not path.is_dir():
            raise _unusable(path, "It is not the folder of a container.")
        yield NamedPlace("container", path.name), path


def _shown(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if not each.name.startswith("."))


def _files_in(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


def _unusable(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        "Configuration",
        f"{path} cannot be loaded at the start. {reason}",
        hint="Give --seed a folder with tables/NAME.jsonl, queues/NAME.jsonl and"
        " blobs/CONTAINER/NAME.",
    )
