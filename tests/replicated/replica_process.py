"""A process that is one replica of a ledger.

`replica_process.py URL PARTITION FOLDER ADDRESS [MONITOR ...]`; MONITOR is the monitoring address
of a node, if it is not at the port that follows from the client's.

It reads requests from its input, one JSON object a line, and answers each under its id in any
order. It says what it is once it is open, and ends with its input.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

import partita
from partita.errors import NotPrimaryError, PartitaError
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.replication.replica import Replica

SHARES = 8


class Asked(msgspec.Struct, frozen=True):
    """Do the operation of this number, or tell what this replica is and holds."""

    id: int
    what: Literal["note", "tell"]
    number: int = 0


class Told(msgspec.Struct, frozen=True):
    """An answer: the sequence of what was committed, or the code of an error."""

    id: int
    sequence: int = 0
    error: str = ""
    digest: str = ""
    is_primary: bool = False
    copies: int = 0
    counts: dict[int, int] = {}


class Ledger:
    """Operations that were done, and how often: one would be right for each of them."""

    def __init__(
        self,
        state: StateManager,
        counts: ReliableDictionary[int, int],
        shares: ReliableDictionary[int, int],
    ) -> None:
        self.state = state
        self.counts = counts
        self.shares = shares

    @classmethod
    async def open(cls, state: StateManager) -> "Ledger":
        """Open the collections, which a secondary cannot do before the primary has."""
        while True:
            with contextlib.suppress(NotPrimaryError):
                counts = await state.dictionary("counts", key=int, value=int)
                shares = await state.dictionary("shares", key=int, value=int)
                return cls(state, counts, shares)
            await asyncio.sleep(0.05)

    async def note(self, number: int, **options: Any) -> int:
        """Do one operation under its own key; return where it was committed."""
        committed = await self.state.run(
            self._note, number, idempotency_key=key_of(number), **options
        )
        assert committed.value == number
        assert committed.commit_sequence is not None
        return committed.commit_sequence

    async def _note(self, tx: Transaction, number: int) -> int:
        await self.counts.upsert(tx, number, 1, lambda count: count + 1)
        await self.shares.upsert(tx, number % SHARES, 1, lambda count: count + 1)
        return number

    async def read(self) -> tuple[dict[int, int], int]:
        """Return the counts, and the sum of the shares, which must agree with them."""
        async with self.state.snapshot() as snapshot:
            counts = {number: count async for number, count in self.counts.items(snapshot)}
            return counts, sum([share async for share in self.shares.values(snapshot)])

    @property
    def copies(self) -> int:
        assert isinstance(self.state.replica, Replica)
        return self.state.replica.copies


def key_of(number: int) -> str:
    return f"operation-{number}"


async def answer(ledger: Ledger, asked: Asked) -> Told:
    if asked.what == "note":
        try:
            return Told(asked.id, sequence=await ledger.note(asked.number))
        except PartitaError as error:
            return Told(asked.id, error=error.code)
    counts, _ = await ledger.read()
    state = ledger.state
    return Told(
        asked.id,
        state.sequence,
        digest=state.state.digest(),
        is_primary=state.is_primary,
        copies=ledger.copies,
        counts=counts,
    )


async def lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


async def main(url: str, partition: str, folder: str, address: str, *monitor: str) -> None:
    def say(told: Told) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()

    async def respond(asked: Asked) -> None:
        say(await answer(ledger, asked))

    async with partita.open_state(
        url, partition=partition, folder=folder, address=address, monitor=monitor or None
    ) as state:
        ledger = await Ledger.open(state)
        say(await answer(ledger, Asked(0, "tell")))
        async with asyncio.TaskGroup() as tasks:
            async for line in lines():
                tasks.create_task(respond(msgspec.json.decode(line, type=Asked)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
