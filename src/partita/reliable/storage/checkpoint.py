r"""Checkpoints: the whole state on disk up to a sequence, so that the log can be truncated.

    file     "PARTCKP\n" | format 4 | length 4 | crc32c 4 | heading | block | block | … | footer
    heading  MessagePack map, the class CheckpointHeading
    block    collection 4 | length 4 | crc32c 4 | MessagePack array [key, value, key, value, …],
             or [key, value, version, …] of a collection that keeps the versions of its rows
    footer   "\xf6END" | blocks 8 | rows 8 | blake2b of everything before the footer 32

Numbers are big-endian; a checksum covers its own head too. Blocks are in the order of the
heading's collections, rows in the order of their keys: a block of rows is one of the blocks that
contain them in memory, encoded by one call. Outcomes are the rows of collection 0,
last and in the order in which they were added: idempotency key and KeptOutcome, both encoded.

A file is renamed to its final name after its sync, so a file with this name is complete or
damaged, never unfinished. Only the newest is kept: it is removed when the next one is durable,
before the log is truncated. Format 2 is format 1 with versions; a state without any is written in
format 1, which older releases read.
"""

import asyncio
import contextlib
import functools
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from partita.errors import ChecksumError, DamageError, FormatVersionError, PartitaError
from partita.reliable.state.state import Collection, Description, KeptOutcome, Rows, State
from partita.reliable.storage.disk import Disk, GrowingFile

FORMAT = 2
"""The newest format that is read and, where a collection keeps versions, written."""
PLAIN_FORMAT = 1
"""The format of a file without versions."""
VERSION_BYTES = 8
MAGIC = b"PARTCKP\n"
END = b"\xf6END"
BLOCK_BYTES = 64 * 1024
"""Bytes of a block of outcomes, or of rows with versions; other blocks are those in memory."""
SYNC_BYTES = 1024 * 1024
"""Bytes written, hashed and synced at once beside the event loop, so that the sync of a commit
never waits long."""
TURN_BYTES = 256 * 1024
"""Bytes encoded in one turn of the event loop, at least one block."""
CHUNK_BYTES = 1024 * 1024
"""Bytes read and hashed at once, beside the event loop."""
OWN_SHARE = 0.2
"""The share of the time in which a checkpoint encodes, on the event loop, or hashes, writes and
syncs, beside it, while there are commits."""
CALM_SECONDS = 0.1
"""After this time without a commit, a checkpoint uses the loop as much as it can."""
CUT_BYTES = 4 * 1024 * 1024
"""Bytes of a removed file that are freed at once."""
ROWS_AT_ONCE = 256
"""Rows read in one turn of the event loop."""
OUTCOMES = 0
"""The collection number of outcomes in a file; collections start at 1."""
RESTORE_FILE = "restore.part"
"""A restored state that has not replaced the old one yet; backup.py does that."""
COPY = "copied checkpoint"
NOT_IN_ORDER = "keys are not in order, each once"

_HEAD = struct.Struct(">8sIII")
_BLOCK = struct.Struct(">III")
_FOOTER = struct.Struct(">4sQQ32s")

T = TypeVar("T")

_Encoded = tuple[int, bytes, memoryview]
"""The collection of a block, and its body in two parts."""

Progress = Callable[[int, int], None]
"""Called repeatedly with (done, total) of the current step; a new total is a new step."""
Read = Callable[[int, int], bytes]


class Aside(Protocol):
    """Runs a function that does not use the state beside the event loop, if the disk can."""

    def __call__(self, call: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


class Checkpoint(msgspec.Struct, frozen=True):
    """One file: the state after the record at `sequence`, whose hash is `hash`."""

    name: str
    sequence: int
    epoch: int
    hash: bytes
    ticks: int
    size: int


class CollectionHeading(msgspec.Struct, frozen=True, array_like=True):
    """One collection in the heading; `count` rows follow in blocks."""

    id: int
    description: Description
    tail: int
    count: int


class CheckpointHeading(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything of the state except its rows."""

    sequence: int
    epoch: int
    hash: bytes
    ticks: int
    primary: str
    next_collection: int
    collections: Sequence[CollectionHeading]
    outcomes: int
    versioned_since: dict[int, int] = {}
    """By collection, the sequence from which on versions are kept: its rows have them."""


def _without_versions(heading: CheckpointHeading) -> CheckpointHeading:
    """Return a heading of format 1, in which no collection keeps versions."""
    return msgspec.structs.replace(heading, versioned_since={})


UPGRADES = {1: _without_versions}
"""By format, how its heading becomes that of the next one."""

_encode = msgspec.msgpack.Encoder().encode
_heading_decoder = msgspec.msgpack.Decoder(CheckpointHeading)
_block_decoder = msgspec.msgpack.Decoder(list[bytes])
_rows_decoder = msgspec.msgpack.Decoder(dict[bytes, bytes])
_name_decoder = msgspec.msgpack.Decoder(str)
_outcome_decoder = msgspec.msgpack.Decoder(KeptOutcome)


class Checkpoints:
    """The checkpoints of one disk. One is written at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = asyncio.Lock()
        self.newest: Checkpoint | None = None
        """The checkpoint to recover from; set by load, write and install."""

    async def load(self, state: State, *, progress: Progress | None = None) -> Checkpoint | None:
        """Fill an empty state from the newest checkpoint, and remove unfinished and older files."""
        names = self._disk.names()
        if RESTORE_FILE in names:
            raise _restore_unfinished()
        complete = [name for name in names if is_checkpoint(name)]
        if complete:
            self.newest = await read_file(self._disk, complete[-1], state, progress=progress)
        if len(complete) > 1:
            # A killed process may have renamed the newest file without syncing the name: do so
            # before the older ones are removed.
            await self._disk.sync_folder()
        await self._remove(name for name in names if name.startswith("checkpoint-"))
        return self.newest

    async def write(self, state: State, *, progress: Progress | None = None) -> Checkpoint:
        """Write the current state while commits continue; remove the previous checkpoint.

        The records up to now must be durable: a checkpoint must not survive their loss.
        """
        async with self._lock:
            # A full copy may have been installed meanwhile, which is newer.
            if self.newest is not None and self.newest.sequence >= state.sequence:
                return self.newest
            self.newest = await self._write_file(state, progress)
            await self._remove(name for name in self._disk.names() if is_checkpoint(name))
            return self.newest

    async def _write_file(self, state: State, progress: Progress | None) -> Checkpoint:
        return await write_file(self._disk, name_of(state.sequence), state, progress=progress)

    def is_due(self, log_bytes: int, checkpoint_bytes: int) -> bool:
        """Return whether the log since the newest checkpoint is long enough for another.

        It must be as long as the checkpoint itself, so that all checkpoints together write no
        more than the log did.
        """
        return log_bytes >= max(checkpoint_bytes, self.newest.size if self.newest else 0)

    def read(self, checkpoint: Checkpoint) -> bytes:
        """Return the content for a full copy to another replica, which verifies it."""
        return self._disk.read(checkpoint.name)

    async def install(self, content: bytes, state: State) -> Checkpoint:
        """Store a copy from another replica and fill an empty state from it.

        Nothing is changed if the copy is incomplete or damaged.
        """
        reader = Reader(COPY, len(content), lambda start, count: content[start : start + count])
        contents = await reader.read_all()
        async with self._lock:
            return await self._install(content, contents, state)

    async def _install(self, content: bytes, contents: "Contents", state: State) -> Checkpoint:
        name = name_of(contents.heading.sequence)
        file = self._disk.create(f"{name}.new")
        with discarding(self._disk, file):
            for start in range(0, len(content), SYNC_BYTES):
                file.write(content[start : start + SYNC_BYTES])
                await file.sync()
            # A copy may be older than the files here, and load takes the newest by name.
            for newer in [old for old in self._disk.names() if is_checkpoint(old) and old > name]:
                self._disk.remove(newer)
            await put_in_place(self._disk, file, name)
        contents.fill(state)
        self.newest = _checkpoint(name, contents.heading, len(content))
        await self._remove(old for old in self._disk.names() if is_checkpoint(old))
        return self.newest

    async def _remove(self, names: Iterable[str]) -> None:
        """Remove these files except the newest checkpoint, which is durable."""
        for name in names:
            if self.newest is None or name != self.newest.name:
                await remove_file(self._disk, name)


def name_of(sequence: int) -> str:
    """Return the file name of a checkpoint; names sort like sequences."""
    return f"checkpoint-{sequence:020}.part"


def is_checkpoint(name: str) -> bool:
    """Return whether a file is a finished checkpoint."""
    return name.startswith("checkpoint-") and name.endswith(".part")


def describe_file(disk: Disk, name: str) -> Checkpoint:
    """Read only the heading of a file."""
    reader = _reader(disk, name)
    return _checkpoint(name, reader.read_heading(), reader.size)


async def verify_file(disk: Disk, name: str) -> Checkpoint:
    """Verify every byte of a file without decoding its rows."""
    reader = _reader(disk, name)
    heading = reader.read_heading()
    await reader.verify_rest()
    return _checkpoint(name, heading, reader.size)


async def read_file(
    disk: Disk, name: str, state: State, *, progress: Progress | None = None
) -> Checkpoint:
    """Fill an empty state from a file, after every byte was verified."""
    reader = _reader(disk, name)
    contents = await reader.read_all(progress)
    contents.fill(state)
    return _checkpoint(name, contents.heading, reader.size)


async def write_file(
    disk: Disk, name: str, state: State, *, progress: Progress | None = None
) -> Checkpoint:
    """Write the current state to a file, which is renamed when it is durable."""
    # The file describes this moment: descriptions and outcomes are frozen values, tails and
    # counts are copied, and the snapshot keeps the rows even if a collection is dropped.
    collections = [state.collections[number] for number in sorted(state.collections)]
    outcomes = list(state.outcomes.items())
    heading = heading_of(state, collections)
    sequence = state.open_snapshot()
    try:
        file = disk.create(f"{name}.new", is_apart=True)
        with discarding(disk, file):
            writer = Writer(disk, file, state, _row_count(heading), progress)
            await writer.begin(MAGIC, _format_of(heading), _encode(heading))
            for collection in collections:
                await write_rows(writer, collection, sequence)
            await writer.rows(OUTCOMES, outcome_rows(outcomes))
            await writer.end()
            size = file.size
            await put_in_place(disk, file, name)
    finally:
        state.close_snapshot(sequence)
    return _checkpoint(name, heading, size)


async def write_rows(writer: "Writer", collection: Collection, sequence: int) -> None:
    """Write all rows of a collection as of a sequence."""
    if collection.versioned_since:
        await writer.rows(collection.id, _versioned_rows(collection, sequence))
    else:
        await writer.pieces(collection.id, collection.pieces(sequence))


async def put_in_place(disk: Disk, file: GrowingFile, name: str) -> None:
    """Rename a file after it is durable, so that a file with this name is complete."""
    await file.sync()
    file.close()
    disk.rename(file.name, name)
    await disk.sync_folder()


async def remove_file(disk: Disk, name: str) -> None:
    """Shrink a file step by step and remove it, beside the loop.

    Freeing a large one at once would delay the syncs of commits.
    """
    for size in range(disk.size(name) - CUT_BYTES, 0, -CUT_BYTES):
        await disk.aside(functools.partial(_cut, disk, name, size))
    await disk.aside(functools.partial(disk.remove, name))


def _cut(disk: Disk, name: str, size: int) -> None:
    disk.grow(name, size).close()


class Writer:
    """Encodes heading, blocks and footer; checksums, hash, writes and syncs are done in a thread.

    A turn of the loop encodes some blocks, each by one call.
    """

    def __init__(
        self,
        disk: Disk,
        file: GrowingFile,
        state: State,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._disk = disk
        self._pace = _Pace(state)
        self._file = file
        self._hash = hashlib.blake2b(digest_size=32)
        self._progress = progress
        self._total = total
        self._blocks = 0
        self._rows = 0
        self._unwritten: list[_Encoded] = []
        self._unwritten_bytes = 0
        self._turn_bytes = 0

    async def begin(self, magic: bytes, number: int, body: bytes) -> None:
        """Write the encoded heading of a file."""
        head = _HEAD.pack(magic, number, len(body), _head_checksum(magic, number, body))
        await self._apart(lambda: self._write(head + body))

    async def pieces(self, number: int, pieces: Iterable[dict[bytes, bytes]]) -> None:
        """Write the rows of one collection, each piece as a block."""
        for rows in pieces:
            if not rows:
                await self._pace.give_way()
                continue
            # A map contains what an array of keys and values does, after another head.
            body = _encode(rows)
            head = _array_head(2 * len(rows))
            await self._block(number, head, memoryview(body)[_head_size(body) :], len(rows))
        await self._pace.give_way()

    async def rows(self, number: int, steps: Iterable[Sequence[tuple[bytes, ...]]]) -> None:
        """Write the rows of one collection; other tasks run between two steps."""
        flat: list[bytes] = []
        size = count = 0
        for step in steps:
            for row in step:
                flat += row
                count += 1
                size += sum(map(len, row))
                if size >= BLOCK_BYTES:
                    await self._block(number, b"", memoryview(_encode(flat)), count)
                    flat, size, count = [], 0, 0
            await self._pace.give_way()
        if flat:
            await self._block(number, b"", memoryview(_encode(flat)), count)

    async def end(self) -> None:
        await self._flush()
        self._file.write(_FOOTER.pack(END, self._blocks, self._rows, self._hash.digest()))

    async def _block(self, number: int, head: bytes, rest: memoryview, count: int) -> None:
        self._unwritten.append((number, head, rest))
        self._unwritten_bytes += len(rest)
        self._turn_bytes += len(rest)
        self._blocks += 1
        self._rows += count
        if self._progress is not None:
            self._progress(self._rows, self._total)
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            await self._pace.give_way()
        if self._unwritten_bytes >= SYNC_BYTES:
            self._pace.resume()
            await self._flush()
            await self._file.sync()
            await self._pace.give_way()

    async def _flush(self) -> None:
        blocks, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
        await self._apart(lambda: self._write(b"".join(_framed(blocks))))

    def _write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._hash.update(chunk)

    async def _apart(self, call: Callable[[], None]) -> None:
        """Run a call beside the loop; if this is cancelled, wait for it: it uses the file."""
        work = asyncio.ensure_future(self._disk.aside(call))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait((work,))
            raise


def _framed(blocks: list[_Encoded]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of blocks, each with its head."""
    for number, head, rest in blocks:
        length = len(head) + len(rest)
        checksum = crc32c(rest, crc32c(head, crc32c(_BLOCK.pack(number, length, 0))))
        yield _BLOCK.pack(number, length, checksum)
        yield head
        yield rest


class _Pace:
    """Leaves most of the event loop's time to commits, as long as there are any."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._time = asyncio.get_running_loop().time
        self._sequence = state.sequence
        self._busy_until = 0.0
        self._began = self._time()

    async def give_way(self) -> None:
        """Let other tasks run for a time that fits the work since the last call."""
        now = self._time()
        if self._state.sequence != self._sequence:
            self._sequence, self._busy_until = self._state.sequence, now + CALM_SECONDS
        own = now - self._began
        await asyncio.sleep(own * (1 / OWN_SHARE - 1) if now < self._busy_until else 0)
        self.resume()

    def resume(self) -> None:
        """Count the work from now on: what came before was a wait."""
        self._began = self._time()


class Contents:
    """The content of a verified file."""

    def __init__(
        self,
        heading: CheckpointHeading,
        collections: list[Collection],
        outcomes: list[tuple[str, KeptOutcome]],
    ) -> None:
        self.heading = heading
        self._collections = collections
        self._outcomes = outcomes

    def fill(self, state: State) -> None:
        """Fill an empty state."""
        assert not state.sequence, "a checkpoint fills an empty state"
        assert not state.collections, "a checkpoint fills an empty state"
        set_heading(state, self.heading)
        state.restore(self._collections, self._outcomes)


class Reader:
    """Reads and verifies one file; `name` is for errors."""

    def __init__(self, name: str, size: int, read: Read, aside: Aside | None = None) -> None:
        self.size = size
        self._name = name
        self._read = read
        self._aside = aside or _at_once
        self._hash = hashlib.blake2b(digest_size=32)
        self._place = 0

    def read_heading(self) -> CheckpointHeading:
        """Return the heading and continue after it."""
        number, body = self.read_head(MAGIC, FORMAT)
        heading = self.decoded(_heading_decoder, body)
        for earlier in range(number, FORMAT):
            heading = UPGRADES[earlier](heading)
        return heading

    def read_head(self, magic: bytes, newest: int) -> tuple[int, bytes]:
        """Return the format and the encoded heading, and continue after it."""
        head = self._read(0, _HEAD.size)
        if head[: len(magic)] != magic:
            raise _damaged(self._name, 0, "it does not start as a checkpoint does")
        if len(head) < _HEAD.size:
            raise _damaged(self._name, 0, "the file ends in its first bytes")
        _, number, length, checksum = _HEAD.unpack(head)
        body = self._read(_HEAD.size, length)
        if len(body) != length or _head_checksum(magic, number, body) != checksum:
            raise _damaged(self._name, 0, "the heading does not match its checksum")
        if number > newest:
            raise _newer(self._name, number)
        self._advance(head, body)
        return number, body

    async def read_all(self, progress: Progress | None = None) -> Contents:
        """Read everything; other tasks run between two chunks of blocks."""
        heading = self.read_heading()
        total = _row_count(heading)
        done = blocks = 0
        rows = {described.id: Rows() for described in heading.collections}
        outcomes: list[tuple[str, KeptOutcome]] = []
        async for chunk in self.chunks():
            for number, body in chunk:
                if number == OUTCOMES:
                    pairs = self.outcomes_of(body)
                    outcomes += pairs
                    count = len(pairs)
                elif number in rows:
                    is_versioned = number in heading.versioned_since
                    count = self.read_rows(rows[number], body, is_versioned=is_versioned)
                else:
                    reason = "it contains rows of an unknown collection"
                    raise self.damaged(reason)
                blocks, done = blocks + 1, done + count
                if progress is not None:
                    progress(done, total)
            await asyncio.sleep(0)
        self.read_footer(blocks, done)
        collections = [self._collection(one, rows[one.id]) for one in heading.collections]
        for collection in collections:
            collection.versioned_since = heading.versioned_since.get(collection.id, 0)
        if len(outcomes) != heading.outcomes:
            raise self.damaged("outcomes are missing")
        return Contents(heading, collections, outcomes)

    async def verify_rest(self) -> None:
        """Compare everything after the heading with the footer's hash."""
        end = self.size - _FOOTER.size
        while (ahead := self._ahead(self._place, end)) is not None:
            count = len(await ahead)
            if not count:
                break
            self._place += count
        footer = self._read(self._place, _FOOTER.size)
        if len(footer) < _FOOTER.size or _FOOTER.unpack(footer)[3] != self._hash.digest():
            raise self.damaged("the footer does not match the content")

    async def chunks(self) -> AsyncIterator[Iterable[tuple[int, memoryview]]]:
        """Yield the verified blocks of each chunk; the next chunk is read and hashed meanwhile."""
        end = self.size - _FOOTER.size
        place, rest = self._place, b""
        ahead = self._ahead(place, end)
        try:
            while ahead is not None:
                chunk = await ahead
                place += len(chunk)
                ahead = self._ahead(place, end) if chunk else None
                chunk = rest + chunk
                start = self._place
                yield self._blocks(chunk, end)
                rest = chunk[self._place - start :]
        finally:
            if ahead is not None:
                ahead.cancel()
        if rest or place < end:
            raise self.damaged("the file ends inside a block")

    def _ahead(self, place: int, end: int) -> "asyncio.Task[bytes] | None":
        if place >= end:
            return None

        def read_and_hash() -> bytes:
            chunk = self._read(place, min(CHUNK_BYTES, end - place))
            self._hash.update(chunk)
            return chunk

        return asyncio.ensure_future(self._aside(read_and_hash))

    def _blocks(self, chunk: bytes, end: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the complete blocks of a chunk that begins at the current place."""
        view, at = memoryview(chunk), 0
        while len(chunk) - at >= _BLOCK.size:
            number, length, checksum = _BLOCK.unpack_from(view, at)
            if length > end - self._place - _BLOCK.size:
                raise self.damaged("a block is longer than the file")
            if length > len(chunk) - at - _BLOCK.size:
                return
            at += _BLOCK.size
            body = view[at : at + length]
            if _block_checksum(number, body) != checksum:
                raise self.damaged("a block does not match its checksum")
            self._place += _BLOCK.size + length
            at += length
            yield number, body

    def read_footer(self, blocks: int, rows: int) -> None:
        footer = self._read(self._place, _FOOTER.size)
        if footer != _FOOTER.pack(END, blocks, rows, self._hash.digest()):
            raise self.damaged("the footer does not match the content")

    def _collection(self, described: CollectionHeading, rows: Rows) -> Collection:
        if len(rows.values) != described.count:
            raise self.damaged("rows of a collection are missing")
        collection = Collection(described.id, described.description)
        collection.rows, collection.tail = rows, described.tail
        return collection

    def read_rows(self, rows: Rows, body: memoryview, *, is_versioned: bool) -> int:
        """Add the rows of a block, which come after all others; return their number."""
        found, versions = self.rows_of(body, is_versioned=is_versioned)
        last = rows.values.last_key()
        if found and last is not None and not last < next(iter(found)):
            raise self.damaged(NOT_IN_ORDER)
        rows.values.extend(found, len(body))
        rows.versions.update(versions)
        return len(found)

    def rows_of(
        self, body: memoryview, *, is_versioned: bool
    ) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
        """Return the rows of a block, in the order of their keys, and their versions."""
        versions: dict[bytes, int] = {}
        if is_versioned:
            flat = self.decoded(_block_decoder, body)
            if len(flat) % 3:
                raise self.damaged("a key has no value")
            found = dict(zip(flat[::3], flat[1::3], strict=True))
            versions = dict(zip(flat[::3], map(int.from_bytes, flat[2::3]), strict=True))
            count = len(flat) // 3
        else:
            # A map contains what an array of keys and values does, after another head.
            size, rest = _array_count(body), body[_head_size(body) :]
            if size is None:
                raise self.damaged("it cannot be decoded")
            if size % 2:
                raise self.damaged("a key has no value")
            count = size // 2
            found = self.decoded(_rows_decoder, b"".join((_map_head(count), rest)))
        keys = list(found)
        if len(keys) != count or keys != sorted(keys):
            raise self.damaged(NOT_IN_ORDER)
        return found, versions

    def outcomes_of(self, body: memoryview) -> list[tuple[str, KeptOutcome]]:
        flat = self.decoded(_block_decoder, body)
        if len(flat) % 2:
            raise self.damaged("a key has no value")
        return [
            (self.decoded(_name_decoder, key), self.decoded(_outcome_decoder, value))
            for key, value in zip(flat[::2], flat[1::2], strict=True)
        ]

    def decoded(self, decoder: "msgspec.msgpack.Decoder[T]", body: bytes | memoryview) -> T:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise self.damaged("it cannot be decoded") from (error)

    def damaged(self, reason: str) -> ChecksumError:
        """Return the error for the current place."""
        return _damaged(self._name, self._place, reason)

    def _advance(self, head: bytes, body: bytes) -> None:
        self._hash.update(head)
        self._hash.update(body)
        self._place += len(head) + len(body)


@contextlib.contextmanager
def discarding(disk: Disk, file: GrowingFile) -> Iterator[None]:
    """Remove the file if the block raises: a full disk needs the space."""
    try:
        yield
    except BaseException:
        file.close()
        with contextlib.suppress(PartitaError):  # the next load removes it
            if file.name in disk.names():
                disk.remove(file.name)
        raise


def heading_of(state: State, collections: Iterable[Collection]) -> CheckpointHeading:
    return CheckpointHeading(
        state.sequence,
        state.epoch,
        state.hash,
        state.ticks,
        state.primary,
        state.next_collection,
        [
            CollectionHeading(one.id, one.description, one.tail, len(one.rows.values))
            for one in collections
        ],
        len(state.outcomes),
        {one.id: one.versioned_since for one in collections if one.versioned_since},
    )


def set_heading(state: State, heading: CheckpointHeading) -> None:
    """Set all of a state that is not in its collections and outcomes."""
    state.sequence, state.epoch, state.hash = heading.sequence, heading.epoch, heading.hash
    state.primary, state.ticks = heading.primary, heading.ticks
    state.next_collection = heading.next_collection


def _format_of(heading: CheckpointHeading) -> int:
    return FORMAT if heading.versioned_since else PLAIN_FORMAT


def _versioned_rows(collection: Collection, sequence: int) -> Iterator[Sequence[tuple[bytes, ...]]]:
    for step in collection.pairs(sequence, limit=ROWS_AT_ONCE):
        yield versioned(collection, step, sequence)


def versioned(
    collection: Collection, pairs: Iterable[tuple[bytes, bytes]], sequence: int
) -> list[tuple[bytes, ...]]:
    """Return rows with their versions as of a sequence."""
    return [
        (key, value, collection.version(key, sequence).to_bytes(VERSION_BYTES))
        for key, value in pairs
    ]


def outcome_rows(
    outcomes: list[tuple[str, KeptOutcome]],
) -> Iterator[list[tuple[bytes, bytes]]]:
    for start in range(0, len(outcomes), ROWS_AT_ONCE):
        step = outcomes[start : start + ROWS_AT_ONCE]
        yield [(_encode(name), _encode(kept)) for name, kept in step]


def _array_head(count: int) -> bytes:
    """Return the MessagePack head of an array."""
    if count < 1 << 4:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def _map_head(count: int) -> bytes:
    """Return a MessagePack head of a map."""
    return b"\xdf" + count.to_bytes(4)


def _head_size(body: bytes | memoryview) -> int:
    """Return the size of the head of an array or map."""
    return {0xDC: 3, 0xDE: 3, 0xDD: 5, 0xDF: 5}.get(body[0], 1) if body else 0


def _array_count(body: memoryview) -> int | None:
    """Return the length of an array by its head, None if it is not an array."""
    kind = body[0] if body else 0
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    if kind in (0xDC, 0xDD) and len(body) >= _head_size(body):
        return int.from_bytes(body[1 : _head_size(body)])
    return None


def _row_count(heading: CheckpointHeading) -> int:
    return sum(described.count for described in heading.collections) + heading.outcomes


def _checkpoint(name: str, heading: CheckpointHeading, size: int) -> Checkpoint:
    return Checkpoint(name, heading.sequence, heading.epoch, heading.hash, heading.ticks, size)


def _reader(disk: Disk, name: str) -> Reader:
    size = disk.size(name)
    return Reader(name, size, lambda start, count: disk.read(name, start, count), disk.aside)


async def _at_once(call: Callable[[], T]) -> T:
    return call()


def _head_checksum(magic: bytes, number: int, body: bytes) -> int:
    return crc32c(body, crc32c(_HEAD.pack(magic, number, len(body), 0)))


def _block_checksum(number: int, body: bytes | memoryview) -> int:
    return crc32c(body, crc32c(_BLOCK.pack(number, len(body), 0)))


def _damaged(name: str, place: int, reason: str) -> ChecksumError:
    return ChecksumError(
        "CheckpointDamaged",
        f"{name} is damaged at byte {place}: {reason}.",
        facts={"file": name, "offset": place},
        hint="No file was changed. Copy the folder, check the disk, and restore a backup; empty "
        "the folder of a replica to copy the state from another.",
    )


def _newer(name: str, number: int) -> FormatVersionError:
    return FormatVersionError(
        "FormatVersion",
        f"{name} was written in format {number}; this version reads {FORMAT}.",
        facts={"file": name, "format": number},
        hint="Install a version of Partita at least as new as the one that wrote it: pip install "
        "--upgrade partita. Nothing was changed.",
    )


def _restore_unfinished() -> DamageError:
    return DamageError(
        "RestoreUnfinished",
        "A restore was interrupted before it replaced the old state.",
        facts={"file": RESTORE_FILE},
        hint="Finish it with partita.open_state(...) or `partita state restore`.",
    )
