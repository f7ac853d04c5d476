"""Damaged bytes are never served: every chunk and row is verified when it is read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import ChecksumError
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.store_clock import StoreClock
from support.sqlite_blobs import store_of

CHUNK = 64 * 1024
LONG = b"".join(number.to_bytes(2) * (CHUNK // 2) for number in range(20))
A = BlobName("here", "a")


async def open_engine(folder: Path) -> BlobEngine:
    database = await Database.open(folder)
    return BlobEngine(await SqliteBlobStore.open(database, StoreClock(database, ManualClock())))


async def close_engine(engine: BlobEngine) -> None:
    await engine.close()
    await store_of(engine).database.close()


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    engine = await open_engine(tmp_path)
    await engine.containers.create_container("here")
    await engine.put_blob(A, LONG)
    await engine.put_blob(BlobName("here", "small"), b"in a row")
    await close_engine(engine)
    return tmp_path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[BlobEngine]:
    engine = await open_engine(folder)
    yield engine
    await close_engine(engine)


def file_in(folder: Path) -> Path:
    (path,) = [path for path in (folder / "blobs").rglob("*") if path.is_file()]
    return path


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


async def read(
    engine: BlobEngine, name: BlobName = A, first: int | None = None, last: int | None = None
) -> bytes:
    opened = await engine.open_blob(name, first=first, last=last)
    try:
        return b"".join([part async for part in opened.content])
    finally:
        await opened.content.close()


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 10 * CHUNK + 7, len(LONG) - 1])
async def test_a_flipped_bit_in_a_file_is_found(
    folder: Path, engine: BlobEngine, place: int
) -> None:
    flip(file_in(folder), place)

    with pytest.raises(ChecksumError) as refused:
        await read(engine)
    assert refused.value.code == "BlobDamaged"
    with pytest.raises(ChecksumError):
        await read(engine, A, place, place)


async def test_damage_at_the_beginning_is_known_before_anything_is_answered(
    folder: Path, engine: BlobEngine
) -> None:
    flip(file_in(folder), 5)

    with pytest.raises(ChecksumError):
        await engine.open_blob(A)


async def test_a_range_beside_the_damage_is_served(folder: Path, engine: BlobEngine) -> None:
    flip(file_in(folder), 10 * CHUNK + 7)

    assert await read(engine, A, 0, 10 * CHUNK - 1) == LONG[: 10 * CHUNK]
    assert await read(engine, A, 11 * CHUNK) == LONG[11 * CHUNK :]
    with pytest.raises(ChecksumError):
        await read(engine, A, 0, 10 * CHUNK)


async def test_chunks_in_each_other_s_place_are_found(folder: Path, engine: BlobEngine) -> None:
    path = file_in(folder)
    content = path.read_bytes()
    path.write_bytes(content[CHUNK : 2 * CHUNK] + content[:CHUNK] + content[2 * CHUNK :])

    with pytest.raises(ChecksumError):
        await read(engine)


async def test_a_file_that_is_short_or_gone_is_found(folder: Path, engine: BlobEngine) -> None:
    path = file_in(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert await read(engine, A, 0, 100) == LONG[:101]
    with pytest.raises(ChecksumError):
        await read(engine)
    path.unlink()
    with pytest.raises(ChecksumError):
        await read(engine, A, 0, 100)


async def test_the_same_content_sent_again_heals_the_file(folder: Path, engine: BlobEngine) -> None:
    flip(file_in(folder), 5)

    await engine.put_blob(BlobName("here", "b"), LONG)

    assert await read(engine, A) == LONG


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE extent SET bytes = x'696e206120726f78' WHERE hash IS NULL",
        "UPDATE extent SET bytes = x'696e' WHERE hash IS NULL",
        "UPDATE extent SET checks = x'00000000' WHERE hash IS NULL",
        "UPDATE blob SET facts = CAST(substr(facts, 1, 8) || x'ff' || substr(facts, 10) AS BLOB)",
        "UPDATE blob SET facts = x'0000'",
        "DELETE FROM extent",
        "DELETE FROM piece",
    ],
)
async def test_a_damaged_row_is_found(folder: Path, statement: str) -> None:
    connection = apsw.Connection(str(folder / DATABASE_FILE))
    connection.execute(statement)
    connection.close()
    engine = await open_engine(folder)

    with pytest.raises(ChecksumError) as refused:
        await read(engine, BlobName("here", "small"))

    assert refused.value.code == "BlobDamaged"
    await close_engine(engine)


async def test_checks_of_a_long_content_are_verified_too(folder: Path) -> None:
    connection = apsw.Connection(str(folder / DATABASE_FILE))
    connection.execute("UPDATE extent SET checks = zeroblob(length(checks))")
    connection.close()
    engine = await open_engine(folder)

    with pytest.raises(ChecksumError):
        await read(engine)
    await close_engine(engine)


async def test_an_append_blob_that_has_lost_a_piece_is_not_served(folder: Path) -> None:
    engine = await open_engine(folder)
    log = BlobName("here", "log")
    await engine.append_blobs.create_append_blob(log)
    for _ in range(5):
        await engine.append_blobs.append_block(log, b"line\n")
    await close_engine(engine)
    connection = apsw.Connection(str(folder / DATABASE_FILE))
    connection.execute("DELETE FROM piece WHERE place = 10")
    connection.close()
    engine = await open_engine(folder)

    with pytest.raises(ChecksumError):
        await read(engine, log)
    await close_engine(engine)


async def test_a_damaged_row_does_not_stop_the_collector(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await open_engine(folder)
    await engine.block_blobs.put_block(BlobName("here", "staged"), "MQ==", b"1")
    await close_engine(engine)
    connection = apsw.Connection(str(folder / DATABASE_FILE))
    connection.execute("UPDATE blob SET facts = x'0000' WHERE name = 'staged'")
    connection.execute("UPDATE block SET staged_at = 0")
    connection.close()

    engine = await open_engine(folder)
    await engine.delete_blob(A)
    while any(store_of(engine).files.digests()):  # noqa: ASYNC110 - the collector tells nobody
        await asyncio.sleep(0.01)

    assert not [path for path in (folder / "blobs").rglob("*") if path.is_file()]
    assert "the collector of blobs failed; it will retry" in caplog.text
    await close_engine(engine)
