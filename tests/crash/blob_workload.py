"""Clients that write blobs at the same time, remember what they were told, and a check of a
recovered store against that memory.

Each client owns its names, so that each name has one history: the version it was last told of,
and at most one more that was asked for. A version's bytes follow from its name and number.
"""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName, BlockChoice
from partita.blobs.store.files import FileSystem, FolderFiles
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import DamageError, PartitaError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from partita.ticks import Clock
from support.sqlite_blobs import store_of

CONTAINER = "work"
CLIENTS = 4
NAMES = 3
BLOCK_BYTES = 700

State = int | None
"""The number of a version; None: the blob does not exist."""


@dataclass
class Version:
    state: State
    asked: int
    told: int | None = None
    """Positions of the trace; None: nobody was told that it succeeded."""


@dataclass
class Memory:
    """All that the clients know."""

    histories: dict[str, list[Version]] = field(default_factory=dict)
    appended: dict[str, list[Version]] = field(default_factory=dict)

    def allowed(self, name: str, position: int) -> list[State]:
        """Return the states of a blob that a crash at a position may leave."""
        asked = [version for version in self.histories[name] if version.asked <= position]
        told = [
            number
            for number, version in enumerate(asked)
            if version.told is not None and version.told <= position
        ]
        if not told:
            return [None, *(version.state for version in asked)]
        return [version.state for version in asked[told[-1] :]]

    def appends(self, name: str, position: int) -> tuple[int, int]:
        """Return how many appends a log must show after a crash at a position, and how many may."""
        told = [v for v in self.appended[name] if v.told is not None and v.told <= position]
        return len(told), sum(v.asked <= position for v in self.appended[name])


def content_of(name: str, number: int) -> bytes:
    """Return the bytes of a version: many are the same for several names."""
    size = (40, 1100, 3000, 9000)[number % 4]
    owner = name if number % 3 else ""
    return number.to_bytes(4) + random.Random(f"{owner}/{number}").randbytes(size)


def line_of(number: int) -> bytes:
    return number.to_bytes(4) + b"." * ((20, 2500)[number % 2] + number % 7)


async def open_engine(
    folder: Path, clock: Clock, *, vfs: str | None = None, system: FileSystem | None = None
) -> BlobEngine:
    database = await Database.open(folder, vfs=vfs)
    files = FolderFiles(folder, system)
    return BlobEngine(
        await SqliteBlobStore.open(database, StoreClock(database, clock), files=files)
    )


async def close_engine(engine: BlobEngine) -> None:
    await engine.close()
    await store_of(engine).database.close()


class Client:
    def __init__(
        self, number: int, engine: BlobEngine, memory: Memory, position: Callable[[], int]
    ) -> None:
        self._number = number
        self._engine = engine
        self._memory = memory
        self._position = position
        self._chance = random.Random(number)
        self._count = 0

    async def work(self, steps: int, seed: int) -> None:
        self._chance.seed(f"{seed}/{self._number}")
        log = f"log{self._number}"
        self._memory.appended[log] = []
        await self._engine.append_blobs.create_append_blob(BlobName(CONTAINER, log))
        actions = [self._put] * 4 + [self._commit] * 3 + [self._copy] * 2 + [self._delete]
        actions += [self._append] * 3
        for _ in range(steps):
            await self._chance.choice(actions)()

    async def _put(self) -> None:
        name, number = self._next()
        content = content_of(name, number)
        await self._remember(
            name, number, lambda: self._engine.put_blob(_blob(name), _in_parts(content))
        )

    async def _commit(self) -> None:
        name, number = self._next()
        content = content_of(name, number)
        parts = [content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
        ids = [base64.b64encode(f"{n:04}".encode()).decode() for n in range(len(parts))]
        await asyncio.gather(
            *(
                self._engine.block_blobs.put_block(_blob(name), identity, part)
                for identity, part in zip(ids, parts, strict=True)
            )
        )
        chosen = [BlockChoice("Latest", identity) for identity in ids]
        await self._remember(
            name, number, lambda: self._engine.block_blobs.put_block_list(_blob(name), chosen)
        )

    async def _copy(self) -> None:
        name, _ = self._next()
        source = f"b{self._number}-{self._chance.randrange(NAMES)}"
        history = self._memory.histories.get(source)
        number = history[-1].state if history else None
        if number is None or (number % 3 and name != source):
            return  # the bytes would tell the other name
        await self._remember(
            name, number, lambda: self._engine.copies.copy_blob(_blob(source), _blob(name))
        )

    async def _delete(self) -> None:
        name, _ = self._next()
        history = self._memory.histories.get(name)
        if history and history[-1].state is not None:
            await self._remember(name, None, lambda: self._engine.delete_blob(_blob(name)))

    async def _append(self) -> None:
        name = f"log{self._number}"
        versions = self._memory.appended[name]
        version = Version(len(versions), self._position())
        versions.append(version)
        await self._engine.append_blobs.append_block(_blob(name), line_of(len(versions) - 1))
        version.told = self._position()

    def _next(self) -> tuple[str, int]:
        self._count += 1
        return f"b{self._number}-{self._chance.randrange(NAMES)}", self._count

    async def _remember(
        self, name: str, state: State, work: Callable[[], Awaitable[object]]
    ) -> None:
        version = Version(state, self._position())
        self._memory.histories.setdefault(name, []).append(version)
        await work()
        version.told = self._position()


async def run_clients(
    folder: Path,
    vfs: str,
    system: FileSystem,
    position: Callable[[], int],
    *,
    steps: int,
    seed: int,
) -> Memory:
    """Let all clients work in a new store, and close it."""
    memory = Memory()
    engine = await open_engine(folder, ManualClock(), vfs=vfs, system=system)
    await engine.containers.create_container(CONTAINER)
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            client = Client(number, engine, memory, position)
            group.create_task(client.work(steps, seed))
    await close_engine(engine)
    return memory


async def examine(folder: Path, memory: Memory, position: int) -> list[str]:
    """Open what a crash at a position has left and compare it with the memory."""
    wrong: list[str] = []
    engine = await open_engine(folder, ManualClock(ticks=1_000_000))
    try:
        await store_of(engine).collector.sweep()
        for name in memory.histories:
            allowed = memory.allowed(name, position)
            try:
                found = await read(engine, name)
            except DamageError:
                wrong.append(f"{name} is damaged")
                continue
            expected = [None if n is None else content_of(name, n) for n in allowed]
            if found not in expected:
                wrong.append(f"{name} is lost or half there")
        for name in memory.appended:
            wrong += await _examine_log(engine, memory, name, position)
        wrong += await _examine_files(engine)
    finally:
        await close_engine(engine)
    return wrong


async def _examine_log(engine: BlobEngine, memory: Memory, name: str, position: int) -> list[str]:
    least, most = memory.appends(name, position)
    try:
        found = await read(engine, name) or b""
    except DamageError:
        return [f"{name} is damaged"]
    lines = b""
    for number in range(most + 1):
        if found == lines and number >= least:
            return []
        lines += line_of(number)
    return [f"{name} has lost an append, or shows half of one"]


async def _examine_files(engine: BlobEngine) -> list[str]:
    """Every file that is there is named by a row, and the other way round."""
    await store_of(engine).collector.collect()
    files = {digest for part in store_of(engine).files.digests() for digest in part}
    rows = store_of(engine).database.reader.execute(
        "SELECT hash FROM extent WHERE hash IS NOT NULL"
    )
    named = {digest for (digest,) in rows}
    return [] if files == named else [f"{len(files - named)} stray, {len(named - files)} missing"]


async def read(engine: BlobEngine, name: str) -> bytes | None:
    """Return a blob's bytes, if it is there."""
    try:
        opened = await engine.open_blob(_blob(name))
    except DamageError:
        raise
    except PartitaError as error:
        if error.code in ("BlobNotFound", "ContainerNotFound"):
            return None
        raise
    try:
        return b"".join([part async for part in opened.content])
    finally:
        await opened.content.close()


def _blob(name: str) -> BlobName:
    return BlobName(CONTAINER, name)


async def _in_parts(content: bytes) -> AsyncIterator[bytes]:
    for place in range(0, len(content), 1000):
        await asyncio.sleep(0)
        yield content[place : place + 1000]
