"""One replica of a counter on NATS. Run `partita nats up`, this in three terminals, and kill the one that counts."""

import asyncio
import os
import sys

import partita
from partita.errors import UnavailableError
from partita.reliable import Dictionary, Transaction

COUNTS = Dictionary("counts", key=str, value=int)


async def main(where: str) -> None:
    me = f"process {os.getpid()}"
    async with partita.open_state(where, partition="counter", replicas=3, address=me) as state:
        while not (await state.wait_primary(0.1) or state.collections()):
            pass  # only a primary creates collections
        counts = await state.open(COUNTS)

        async def count(tx: Transaction) -> int:
            return await counts.upsert(tx, "total", 1, lambda total: total + 1)

        while True:
            try:
                print(f"{me} counted {await state.call(count)}", flush=True)
            except UnavailableError as error:  # a secondary, or a quorum that is lost: it can read
                async with state.snapshot() as snapshot:
                    total = await counts.get(snapshot, "total", 0)
                print(f"{me} sees {total}. {error.message}", flush=True)
            await asyncio.sleep(0.5)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
