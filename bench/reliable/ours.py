"""The same work on a reliable dictionary, and what it alone promises: replay, opening, memory.

Opening and memory are measured in a fresh process: `python bench/reliable/ours.py <folder>`
opens the state that lies there and prints its figures as JSON.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.reliable.workload import Item, Syncs, items, key_of, new_item, quantile

import partita
from partita.reliable import ReliableDictionary
from partita.reliable.manager.state_manager import StateManager

NO_CHECKPOINT = 1 << 60
LOADED_AT_ONCE = 5_000
Items = ReliableDictionary[str, Item]


@dataclass(frozen=True)
class Latencies:
    """Of single commits and of single syncs, taken in turns."""

    commit_p50_us: float
    commit_p99_us: float
    sync_p50_us: float
    sync_p99_us: float

    @property
    def ratio(self) -> float:
        return self.commit_p50_us / self.sync_p50_us


@dataclass(frozen=True)
class Opened:
    """What a fresh process found when it opened a state."""

    keys: int
    seconds: float
    rss_bytes: int
    """More than before it was opened, after the allocator gave back what it could."""
    peak_rss_bytes: int
    count_us: float
    scan_rows: float
    key_scan_rows: float


@contextlib.asynccontextmanager
async def opened(
    folder: Path, checkpoint_bytes: int = NO_CHECKPOINT
) -> AsyncIterator[tuple[StateManager, Items]]:
    async with partita.open_state(folder, checkpoint_bytes=checkpoint_bytes) as state:
        yield state, await state.dictionary("items", key=str, value=Item)


async def load(state: StateManager, dictionary: Items, keys: int) -> None:
    tx, left = state.transaction(), LOADED_AT_ONCE
    for key, item in items(keys):
        await dictionary.set(tx, key, item)
        left -= 1
        if not left:
            await tx.commit()
            tx, left = state.transaction(), LOADED_AT_ONCE
    await tx.commit()


async def get_us(state: StateManager, dictionary: Items, keys: list[str]) -> float:
    """Read keys that were read before in the same transaction, or another."""
    async with state.transaction() as tx:
        for key in keys:
            await dictionary.get(tx, key)
        started = time.perf_counter()
        for key in keys:
            await dictionary.get(tx, key)
        return (time.perf_counter() - started) / len(keys) * 1e6


async def set_us(state: StateManager, dictionary: Items, keys: list[str]) -> float:
    """Write existing keys, up to but without the commit."""
    values = [new_item() for _ in keys]
    tx = state.transaction()
    started = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        await dictionary.set(tx, key, value)
    seconds = time.perf_counter() - started
    await tx.abort()
    return seconds / len(keys) * 1e6


async def commit_latencies(
    state: StateManager, dictionary: Items, syncs: Syncs, rounds: int
) -> Latencies:
    commits, bare = [], []
    for number in range(rounds):
        value = new_item()
        started = time.perf_counter()
        async with state.transaction() as tx:
            await dictionary.set(tx, key_of(number % 1000), value)
        commits.append(time.perf_counter() - started)
        bare.append(syncs.seconds())
    found = [quantile(times, share) * 1e6 for times in (commits, bare) for share in (0.5, 0.99)]
    return Latencies(*found)


@dataclass(frozen=True)
class Rate:
    """Durable transactions of one key by many at once."""

    a_second: float
    p50_ms: float
    p99_ms: float
    group: float
    """Transactions in one record of the log."""


async def grouped(state: StateManager, dictionary: Items, tasks: int, seconds: float) -> Rate:
    latencies: list[float] = []
    deadline = time.perf_counter() + seconds

    async def write(number: int) -> None:
        turn = 0
        now = time.perf_counter()
        while now < deadline:
            turn += 1
            async with state.transaction() as tx:
                await dictionary.set(tx, key_of(number * 100 + turn % 100), new_item())
            before, now = now, time.perf_counter()
            latencies.append(now - before)

    before, started = state.sequence, time.perf_counter()
    await asyncio.gather(*(write(number) for number in range(tasks)))
    elapsed = time.perf_counter() - started
    return Rate(
        len(latencies) / elapsed,
        quantile(latencies, 0.5) * 1e3,
        quantile(latencies, 0.99) * 1e3,
        len(latencies) / (state.sequence - before),
    )


async def scan_rows(state: StateManager, dictionary: Items) -> float:
    """Walk through all keys and values in order; return rows a second."""
    async with state.snapshot() as snapshot:
        started, found = time.perf_counter(), 0
        async for _ in dictionary.items(snapshot):
            found += 1
        return found / (time.perf_counter() - started)


async def key_scan_rows(state: StateManager, dictionary: Items) -> float:
    async with state.snapshot() as snapshot:
        started, found = time.perf_counter(), 0
        async for _ in dictionary.keys(snapshot):
            found += 1
        return found / (time.perf_counter() - started)


async def count_us(state: StateManager, dictionary: Items) -> float:
    times = []
    async with state.snapshot() as snapshot:
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(1000):
                await dictionary.count(snapshot)
            times.append((time.perf_counter() - started) * 1e3)
    return min(times)


async def replay_operations(folder: Path, operations: int) -> float:
    """Open a log of grouped transactions of one key without a checkpoint; operations a second."""
    async with opened(folder) as (state, dictionary):

        async def write(number: int) -> None:
            for turn in range(operations // 64):
                async with state.transaction() as tx:
                    await dictionary.set(tx, key_of(turn * 64 + number), new_item())

        await asyncio.gather(*(write(number) for number in range(64)))
    gc.collect()
    started = time.perf_counter()
    async with partita.open_state(folder, checkpoint_bytes=NO_CHECKPOINT):
        return operations // 64 * 64 / (time.perf_counter() - started)


async def prepare(folder: Path, keys: int, *, checkpoint: bool) -> None:
    """Leave a closed state with so many keys, in a checkpoint or in the log alone."""
    async with opened(folder) as (state, dictionary):
        await load(state, dictionary, keys)
        if checkpoint:
            await state.checkpoint()


def open_in_child(folder: Path) -> Opened:
    words = [sys.executable, str(Path(__file__).resolve()), str(folder)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    return Opened(**json.loads(ended.stdout))


async def _look(folder: Path) -> Opened:
    before = _rss_bytes()
    started = time.perf_counter()
    async with opened(folder) as (state, dictionary):
        seconds = time.perf_counter() - started
        rss, peak = _rss_bytes() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with state.snapshot() as snapshot:
            keys = await dictionary.count(snapshot)
        return Opened(
            keys=keys,
            seconds=seconds,
            rss_bytes=rss,
            peak_rss_bytes=peak * 1024,
            count_us=await count_us(state, dictionary),
            scan_rows=await scan_rows(state, dictionary),
            key_scan_rows=await key_scan_rows(state, dictionary),
        )


def _rss_bytes() -> int:
    """Return the memory in use once what is free has been given back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # no glibc: the figure is a little high
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_look(Path(sys.argv[1]))))))
