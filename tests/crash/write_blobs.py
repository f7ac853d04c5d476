"""A process that writes blobs without end and says what it asked for and what it was told.

    python -m crash.write_blobs <folder> <first number> <lines of log 0> <of log 1> <of log 2>

A line of its output is `asked|told <name> <number of the version>`; a version of number 0 is
none. With `hang` for the first number, a long upload stops for good when its file has its name
and no row has it yet.
"""

import asyncio
import base64
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from crash.blob_workload import CONTAINER, content_of, line_of, open_engine
from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName, BlockChoice
from partita.clock import SystemClock
from partita.errors import ConflictError
from support.sqlite_blobs import store_of

LONG_TIMES = 30
"""Some versions are repeated so often: they take several slabs."""


def long_content(name: str, number: int) -> bytes:
    content = content_of(name, number)
    return content * LONG_TIMES * 10 if number % 4 == 3 else content * LONG_TIMES


def say(word: str, name: str, number: int) -> None:
    print(word, name, number, flush=True)


async def slowly(content: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    for place in range(0, len(content), 100_000):
        await asyncio.sleep(chance.random() / 100)
        yield content[place : place + 100_000]


async def write_one(engine: BlobEngine, name: str, number: int, chance: random.Random) -> None:
    blob = BlobName(CONTAINER, name)
    content = long_content(name, number)
    if number % 2:
        await engine.put_blob(blob, slowly(content, chance))
        return
    parts = [content[at : at + 90_000] for at in range(0, len(content), 90_000)]
    ids = [base64.b64encode(f"{n:04}".encode()).decode() for n in range(len(parts))]
    for identity, part in zip(ids, parts, strict=True):
        await engine.block_blobs.put_block(blob, identity, part)
    await engine.block_blobs.put_block_list(
        blob, [BlockChoice("Latest", identity) for identity in ids]
    )


async def keep_writing(engine: BlobEngine, client: int, first: int, lines: int) -> None:
    chance = random.Random(f"{first}/{client}")
    log = f"log{client}"
    if lines == 0:
        await engine.append_blobs.create_append_blob(BlobName(CONTAINER, log))
    number = first
    while True:
        number += 1
        name = f"b{client}-{chance.randrange(3)}"
        if number % 5 == 4:
            say("asked", log, lines)
            await engine.append_blobs.append_block(
                BlobName(CONTAINER, log), line_of(lines) * LONG_TIMES
            )
            say("told", log, lines)
            lines += 1
        elif number % 5 == 0:
            say("asked", name, 0)
            with contextlib.suppress(ConflictError):  # it may not be there
                await engine.delete_blob(BlobName(CONTAINER, name))
            say("told", name, 0)
        else:
            say("asked", name, number)
            await write_one(engine, name, number, chance)
            say("told", name, number)


async def hang(place: str) -> None:
    if place == "placed":
        print("placed", flush=True)
        await asyncio.sleep(3600)


async def main(folder: Path, first: str, lines: list[int]) -> None:
    engine = await open_engine(folder, SystemClock())
    if await engine.containers.find_container(CONTAINER) is None:
        await engine.containers.create_container(CONTAINER)
    print("ready", flush=True)
    if first == "hang":
        store_of(engine).pause = hang
        await write_one(engine, "hanging", 3, random.Random(1))
    async with asyncio.TaskGroup() as group:
        for client, count in enumerate(lines):
            group.create_task(keep_writing(engine, client, int(first), count))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], [int(text) for text in sys.argv[3:]]))
