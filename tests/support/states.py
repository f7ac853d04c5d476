"""Builders for tests of reliable state: on a simulated disk, on a simulated loop, with a clock.

`a_state()` opens on the test's own loop with a clock that stands still; `simulate()` runs a whole
scenario on a virtual loop, where waiting costs nothing and the clock goes with the loop.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec

from partita.clock import ManualClock
from partita.reliable import ReliableDictionary
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import Durability, open_local
from partita.reliable.state.locks import LockMode
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.ticks import Clock

T = TypeVar("T")


class User(msgspec.Struct, frozen=True):
    email: str
    age: int = 0
    tags: tuple[str, ...] = ()


class Cart(msgspec.Struct):
    items: list[str]


class Machine:
    """A clock and a disk that outlive the states opened on them, one after the other."""

    def __init__(self, clock: Clock | None = None, *, seed: int = 0) -> None:
        self.clock = clock or ManualClock(seed=seed)
        self.disk = SimDisk(self.clock)

    @contextlib.asynccontextmanager
    async def open(
        self, durability: Durability = "full", checkpoint_bytes: int = 2**40
    ) -> AsyncIterator[StateManager]:
        self.disk = self.disk.restart()
        state = await open_local(
            self.disk, self.clock, durability=durability, checkpoint_bytes=checkpoint_bytes
        )
        try:
            yield state
        finally:
            await state.close()

    def advance(self, seconds: float) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)


@contextlib.asynccontextmanager
async def a_state(
    clock: Clock | None = None, durability: Durability = "full"
) -> AsyncIterator[StateManager]:
    async with Machine(clock).open(durability) as state:
        yield state


def simulate(
    scenario: Callable[[StateManager], Awaitable[T]], *, seed: int = 0, sync_seconds: float = 0.0
) -> T:
    """Run a scenario with a state on a virtual loop; time jumps when everyone waits."""

    async def main() -> T:
        machine = Machine(SimClock(running_loop()))
        async with machine.open() as state:
            machine.disk.sync_seconds = sync_seconds
            return await scenario(state)

    return run(main(), seed=seed).value


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def locks_of(tx: Transaction) -> dict[tuple[int, bytes | None], LockMode]:
    """Return what a transaction holds, by collection and encoded key."""
    table = tx.locks
    return {
        resource: lock.holders[tx.id]
        for resource, lock in sorted(table._locks.items(), key=lambda pair: repr(pair[0]))
        if tx.id in lock.holders
    }


def key_locks_of(tx: Transaction) -> list[LockMode]:
    """Return the modes of the key locks that a transaction holds."""
    return [mode for (_, key), mode in locks_of(tx).items() if key is not None]


async def put(state: StateManager, counts: ReliableDictionary[int, int], key: int) -> None:
    async with state.transaction() as tx:
        await counts.set(tx, key, key)
