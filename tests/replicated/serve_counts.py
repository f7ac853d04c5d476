"""A process that joins a service which counts: `serve_counts.py URL NAME FOLDER ADDRESS`.

It says `ready` when its partitions serve, and stays until its input ends.
"""

import asyncio
import sys
from pathlib import Path

from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.service.requests import Request
from partita.reliable.service.service import open_service

PARTITIONS = 6


async def open_counts(state: StateManager) -> None:
    await state.dictionary("counts", key=str, value=int)


async def count(state: StateManager, request: Request) -> bytes:
    """Add what the payload says to the key, once for each id; return the sum."""
    counts = await state.dictionary("counts", key=str, value=int)

    async def add(tx: Transaction) -> int:
        return await counts.upsert(
            tx, str(request.key), int(request.payload), lambda old: old + int(request.payload)
        )

    committed = await state.run(add, idempotency_key=request.id)
    return b"%d" % committed.value


async def main(url: str, name: str, folder: Path, address: str) -> None:
    async with open_service(
        url,
        name,
        partitions=PARTITIONS,
        folder=folder,
        opened=open_counts,
        handle=count,
        address=address,
    ):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
