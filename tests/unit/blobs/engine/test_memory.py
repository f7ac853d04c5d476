"""A long upload or download never holds more than a few MiB."""

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import SystemClock
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from support.repeats import repeat

MIB = 1024 * 1024
LENGTH = repeat(64, 128, 2048) * MIB
HELD_MAX = 8 * MIB
PART = bytes(range(256)) * 1024


async def parts(length: int) -> AsyncIterator[bytes]:
    for number in range(length // len(PART)):
        yield number.to_bytes(8) + PART[8:]


@pytest.mark.timeout(900)
async def test_a_long_upload_and_download_hold_a_few_mebibytes(tmp_path: Path) -> None:
    database = await Database.open(tmp_path)
    engine = BlobEngine(await SqliteBlobStore.open(database, StoreClock(database, SystemClock())))
    await engine.containers.create_container("here")
    tracemalloc.start()
    try:
        await engine.put_blob(BlobName("here", "long"), parts(LENGTH))
        _, upload_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        opened = await engine.open_blob(BlobName("here", "long"))
        length = 0
        async for part in opened.content:
            length += len(part)
        await opened.content.close()
        _, download_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await engine.close()
    await database.close()

    print(f"upload {upload_peak / MIB:.1f} MiB, download {download_peak / MIB:.1f} MiB")
    assert length == LENGTH
    assert upload_peak < HELD_MAX
    assert download_peak < HELD_MAX
