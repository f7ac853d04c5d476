"""A process whose clients commit, and what its ledger demands of the state that it leaves behind.

What was told must be there exactly once, what was asked wholly or not at all, in every
collection, index, outcome and feed alike.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import partita
from crash.commit_transactions import (
    ACCOUNTS,
    CLIENTS,
    OPENING_BALANCE,
    Desk,
    result_of,
    sends,
    transfer_of,
)

WORKER = Path(__file__).with_name("commit_transactions.py")
MARKER = -1
"""An account that is no account: its change ends what a feed has to tell."""


class Worker:
    """One life of the process; its ledger is a file that a kill cannot take back."""

    def __init__(
        self, place: Path, options: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> None:
        self.ledger = place / "ledger"
        self._begin = self.ledger.stat().st_size if self.ledger.exists() else 0
        command = [*prefix, sys.executable, str(WORKER), str(place / "state"), *options]
        with self.ledger.open("ab") as ledger:
            self.process = subprocess.Popen(command, stdout=ledger, stderr=subprocess.PIPE)

    def wait_until_open(self) -> None:
        self._wait_for(b"open ", 1)

    def wait_until_told(self, times: int) -> None:
        """Wait until so many transactions of this life were acknowledged."""
        self._wait_for(b"told ", times)

    def _wait_for(self, word: bytes, times: int) -> None:
        deadline = time.monotonic() + 60
        while self.ledger.read_bytes()[self._begin :].count(word) < times:
            assert self.process.poll() is None, self._errors()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def kill(self) -> None:
        assert self.process.poll() is None, self._errors()
        self.process.kill()
        self.wait()

    def wait(self) -> None:
        self.process.communicate(timeout=60)

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@contextmanager
def a_worker(
    place: Path, options: Sequence[str] = (), prefix: Sequence[str] = ()
) -> Iterator[Worker]:
    worker = Worker(place, options, prefix)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.wait()


class Ledger:
    """What the clients were told, and what a state must therefore hold."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.asked: dict[int, int] = {}
        """By client: the highest number."""
        self.told: dict[tuple[int, int], tuple[int, int]] = {}
        """Result and sequence, by client and number."""
        self.kept = 0
        """Transactions that were there though nobody had been told."""
        self._read = 0
        self._mirror: dict[int, int] = {}
        """The accounts, as the feed has told of them."""
        self._position = 0

    def read(self) -> list[str]:
        """Take in the lines since the last time; say what is wrong with them."""
        content = self.place.joinpath("ledger").read_bytes()
        lines = content[self._read :].decode().split("\n")
        assert lines.pop() == "", "a line is one write, whole or not there"
        self._read = len(content)
        wrong = []
        for line in lines:
            what, *numbers = line.split()
            if what == "asked":
                client, number = map(int, numbers)
                self.asked[client] = max(self.asked.get(client, -1), number)
            elif what == "told":
                client, number, result, sequence = map(int, numbers)
                before = self.told.setdefault((client, number), (result, sequence))
                if before != (result, sequence):
                    wrong.append(f"{client}/{number} was told {before}, then {result, sequence}")
        return wrong

    async def faults(self) -> list[str]:
        """Open what the kill has left, compare, and write once more."""
        wrong = self.read()
        async with partita.open_state(self.place / "state") as state:
            desk = await Desk(state).open()
            done = await self._compare_counters(desk, wrong)
            await self._compare_entries(desk, done, wrong)
            await self._compare_queue(desk, done, wrong)
            await self._compare_outcomes(desk, done, wrong)
            await self._compare_feed(desk, wrong)
        return wrong

    async def _compare_counters(self, desk: Desk, wrong: list[str]) -> dict[int, int]:
        """Return how many transactions of each client there are."""
        async with desk.state.snapshot() as snapshot:
            done = {c: await desk.counters.get(snapshot, f"client{c}", 0) for c in range(CLIENTS)}
        told = Counter(dict.fromkeys(done, 0))
        for client, number in self.told:
            told[client] = max(told[client], number + 1)
        for client, count in done.items():
            asked = self.asked.get(client, -1) + 1
            if not told[client] <= count <= asked:
                wrong.append(f"client {client}: {told[client]} told, {count} there, {asked} asked")
            self.kept += count > told[client]
        return done

    async def _compare_entries(self, desk: Desk, done: dict[int, int], wrong: list[str]) -> None:
        balances = dict.fromkeys(range(ACCOUNTS), OPENING_BALANCE)
        wanted = {(c, n): transfer_of(c, n) for c, count in done.items() for n in range(count)}
        for transfer in wanted.values():
            balances[transfer.source] -= transfer.amount
            balances[transfer.target] += transfer.amount
        async with desk.state.snapshot() as snapshot:
            entries = {key: value async for key, value in desk.entries.items(snapshot)}
            for account, balance in balances.items():
                found = await desk.accounts.get(snapshot, account, OPENING_BALANCE)
                if found != balance:
                    wrong.append(f"account {account}: {found} instead of {balance}")
            by_index = {key async for key, _ in desk.entries.find(snapshot, source=3)}
        if entries != wanted:
            wrong.append(f"entries: {entries.keys() ^ wanted.keys()}")
        if by_index != {key for key, transfer in wanted.items() if transfer.source == 3}:
            wrong.append(f"the index finds {len(by_index)} entries of account 3")

    async def _compare_queue(self, desk: Desk, done: dict[int, int], wrong: list[str]) -> None:
        async with desk.state.snapshot() as snapshot:
            taken = {item: order async for item, order in desk.taken.items(snapshot)}
            waiting = [item async for item in desk.outbox.items(snapshot)]
            count = await desk.counters.get(snapshot, "taken", 0)
        in_order = [*sorted(taken, key=taken.__getitem__), *waiting]
        if sorted(taken.values()) != [*range(count)]:
            wrong.append(f"{count} were taken, {len(taken)} are noted")
        for client, numbers in done.items():
            found = [item for item in in_order if item.startswith(f"{client}/")]
            if found != [f"{client}/{number}" for number in range(numbers) if sends(number)]:
                wrong.append(f"the queue lost, doubled or reordered items of client {client}")

    async def _compare_outcomes(self, desk: Desk, done: dict[int, int], wrong: list[str]) -> None:
        for client, count in done.items():
            for number in range(max(count - 50, 0), count + 2):
                found = await desk.state.outcome(f"{client}/{number}", int)
                if (found is not None) != (number < count):
                    wrong.append(f"the outcome of {client}/{number} is {found} of {count}")
                if found is not None and found.value != result_of(client, number):
                    wrong.append(f"the outcome of {client}/{number} is {found.value}")
        for (client, number), (_, sequence) in self.told.items():
            found = await desk.state.outcome(f"{client}/{number}", int)
            if found is None or found.commit_sequence != sequence:
                wrong.append(f"{client}/{number} was told {sequence}, its outcome is {found}")

    async def _compare_feed(self, desk: Desk, wrong: list[str]) -> None:
        """Resume where the last life ended, and once from the beginning."""
        async with desk.state.transaction() as tx:
            await desk.accounts.set(tx, MARKER, self._position)
        from_start: dict[int, int] = {}
        for known, since in ((self._mirror, self._position), (from_start, 0)):
            await _follow(desk, known, since)
        self._position = desk.state.sequence
        async with desk.state.snapshot() as snapshot:
            rows = {key: value async for key, value in desk.accounts.items(snapshot)}
        if self._mirror != rows:
            wrong.append(f"the resumed feed tells {self._mirror}, there is {rows}")
        if from_start != rows:
            wrong.append(f"the feed from 0 tells {from_start}, there is {rows}")


async def _follow(desk: Desk, known: dict[int, int], since: int) -> None:
    last = since
    async with asyncio.timeout(60), desk.accounts.changes(since=since) as feed:
        async for change in feed:
            assert change.sequence >= last, "a feed goes forward"
            last = change.sequence
            if change.kind == "rebuild":
                known.clear()
            else:
                assert change.key is not None
                assert change.new is not None
                assert change.old == known.get(change.key), change
                known[change.key] = change.new
            if change.sequence == desk.state.sequence and change.is_last:
                return
