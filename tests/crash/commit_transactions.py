"""A process whose clients commit to a state until it is killed, and a ledger that outlives it.

`python commit_transactions.py FOLDER [fast] [checkpoints] [early|halves|twice]` writes a line
before each transaction (asked) and after its acknowledgement (told). Every client works its own
numbers one after the other, under one idempotency key each, and begins with the last one that
the state knows: again, as a client does whose answer was lost. Three variants are broken.
"""

import asyncio
import os
import random
import signal
import sys

import msgspec

import partita
from partita.reliable import LockMode, Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.storage.local_log import Durability, LocalLog

CLIENTS = 6
ACCOUNTS = 8
OPENING_BALANCE = 1_000
FATAL_NUMBER = 30
"""Where a broken variant is killed between its two steps: by itself, so that it is the same."""
CHECKPOINT_SECONDS = 0.015
SEGMENT_BYTES = 30_000
"""Small, so that the log is often cut behind a checkpoint."""


class Transfer(msgspec.Struct, frozen=True):
    source: int
    target: int
    amount: int


def transfer_of(client: int, number: int) -> Transfer:
    """Return what a client does under a number: everyone can tell it beforehand."""
    chance = random.Random(f"{client}/{number}")
    source, target = chance.sample(range(ACCOUNTS), 2)
    return Transfer(source, target, chance.randint(1, 9))


def result_of(client: int, number: int) -> int:
    return number * 100 + client


def sends(number: int) -> bool:
    return number % 2 == 0


class Desk:
    """The collections of one open state, and the one transaction that uses them all."""

    def __init__(self, state: StateManager) -> None:
        self.state = state

    async def open(self) -> "Desk":
        state = self.state
        self.counters = await state.dictionary("counters", key=str, value=int)
        self.accounts = await state.dictionary("accounts", key=int, value=int)
        self.entries = await state.dictionary(
            "entries",
            key=tuple[int, int],
            value=Transfer,
            indexes={"source": lambda transfer: transfer.source},
        )
        self.outbox = await state.queue("outbox", value=str)
        self.taken = await state.dictionary("taken", key=str, value=int)
        return self

    async def work(self, tx: Transaction, client: int, number: int) -> int:
        name, transfer = f"client{client}", transfer_of(client, number)
        done = await self.counters.get(tx, name, 0, lock=LockMode.UPDATE)
        assert done == number, f"{name} has done {done}, not {number}"
        await self.counters.set(tx, name, number + 1)
        await self.entries.add(tx, (client, number), transfer)
        await self.move(tx, transfer)
        if sends(number):
            await self.outbox.enqueue(tx, f"{client}/{number}")
        if number % 3 == 1:
            await self.take(tx)
        return result_of(client, number)

    async def move(self, tx: Transaction, transfer: Transfer) -> None:
        source, target, amount = transfer.source, transfer.target, transfer.amount
        for account in sorted((source, target)):
            balance = await self.accounts.get(tx, account, OPENING_BALANCE, lock=LockMode.UPDATE)
            change = amount if account == target else -amount
            await self.accounts.set(tx, account, balance + change)

    async def take(self, tx: Transaction) -> None:
        """Take two items, and note in which order they came."""
        for item in await self.outbox.dequeue_many(tx, 2):
            order = await self.counters.get(tx, "taken", 0, lock=LockMode.UPDATE)
            await self.counters.set(tx, "taken", order + 1)
            await self.taken.add(tx, item, order)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def keep_committing(desk: Desk, client: int, variant: str) -> None:
    async with desk.state.snapshot() as snapshot:
        done = await desk.counters.get(snapshot, f"client{client}", 0)
    number = max(done - 1, 0)
    while True:
        say("asked", client, number)
        if variant == "early":
            say("told", client, number, result_of(client, number), 0)
            die_at(client, number)
        if variant == "halves" and number == FATAL_NUMBER:
            async with desk.state.transaction() as tx:
                source = transfer_of(client, number).source
                balance = await desk.accounts.get(tx, source, lock=LockMode.UPDATE)
                await desk.accounts.set(tx, source, balance - 1)
            die_at(client, number)
        committed = await desk.state.run(
            desk.work, client, number, idempotency_key=f"{client}/{number}"
        )
        if variant == "twice" and number % 7 == 0:
            await desk.state.run(desk.move, transfer_of(client, number))
        if variant != "early":
            say("told", client, number, committed.value, committed.commit_sequence)
        number += 1


def die_at(client: int, number: int) -> None:
    if client == 0 and number == FATAL_NUMBER:
        os.kill(os.getpid(), signal.SIGKILL)


async def keep_checkpointing(state: StateManager) -> None:
    while True:
        await asyncio.sleep(CHECKPOINT_SECONDS)
        await state.checkpoint()


async def main(folder: str, options: list[str]) -> None:
    durability: Durability = "fast" if "fast" in options else "full"
    variant = next((one for one in options if one in ("early", "halves", "twice")), "")
    async with partita.open_state(folder, durability=durability) as state:
        assert isinstance(state.log, LocalLog)
        state.log.segment_bytes = SEGMENT_BYTES
        desk = await Desk(state).open()
        say("open", state.sequence)
        async with asyncio.TaskGroup() as group:
            if "checkpoints" in options:
                group.create_task(keep_checkpointing(state))
            for client in range(CLIENTS):
                group.create_task(keep_committing(desk, client, variant))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
