"""Rounds of the balancer on a fleet: elected, decided, performed.

Any number of processes may run it; the one that holds a lock in the catalog decides, and the others
wait for its session to end. A round that was cut off leaves jobs, which the next one resumes.
"""

import asyncio
from collections.abc import Callable

import msgspec

from partita.errors import PartitaError
from partita.scaleout.balancing.deciding import (
    Action,
    Decision,
    Memory,
    MergeRanges,
    MoveRange,
    SplitRange,
    decide,
)
from partita.scaleout.balancing.limits import BUSY_ROUNDS, CAPACITY, ROUND_SECONDS
from partita.scaleout.balancing.observing import Observer
from partita.scaleout.balancing.picture import Picture
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import ThrottleState
from partita.scaleout.schema.locks import BALANCE_JOB, JOB_LOCKS
from partita.storage.durability import Durability
from partita.ticks import Clock

ELECTION_SECONDS = 5.0
"""How often a stand-by tries to get the lock."""

_ELECT = f"SELECT pg_catalog.pg_try_advisory_lock({JOB_LOCKS}, {BALANCE_JOB}) AS is_mine"
_IS_ALIVE = "SELECT 1"


class Done(msgspec.Struct, frozen=True):
    """An action of a round, and how it ended."""

    action: Action
    error: str = ""
    """Why it failed; empty if it is done. A later round decides again."""


class Balancer:
    """The rounds of one process; build it with `open`."""

    def __init__(self, control: Control, observer: Observer, clock: Clock) -> None:
        self._control = control
        self._observer = observer
        self._clock = clock
        self._memory = Memory()

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Clock,
        *,
        durability: Durability = Durability.FULL,
        capacity: float = CAPACITY,
    ) -> "Balancer":
        control = await Control.open(url, durability=durability, clock=clock)
        connector = Connector(Location.parse(url), durability)
        return cls(control, Observer(connector, control, clock, capacity=capacity), clock)

    async def close(self) -> None:
        await self._observer.close()
        await self._control.close()

    async def decide(self, *, rounds: int = 1) -> tuple[Picture, Decision]:
        """Look at the fleet and decide, as if it had looked the same for several rounds."""
        picture = await self._observer.look()
        now = self._clock.monotonic()
        for _ in range(rounds):
            self._memory.note(picture, now)
        return picture, decide(picture, self._memory, now)

    async def decide_once(self) -> tuple[Picture, Decision]:
        """Look at the fleet and decide, without a memory of earlier rounds."""
        return await self.decide(rounds=BUSY_ROUNDS)

    async def perform(self, found: Decision) -> list[Done]:
        """Perform the actions of a round; moves run at the same time."""
        others = [each for each in found.actions if not isinstance(each, MoveRange)]
        moves = [each for each in found.actions if isinstance(each, MoveRange)]
        done = [await self._perform(each) for each in others]
        return done + await asyncio.gather(*map(self._perform, moves))

    async def resume(self) -> None:
        """Complete or take back what processes that died have left."""
        await self._control.resume()

    async def throttles(self) -> list[ThrottleState]:
        """Return the partitions whose rate is limited."""
        return await self._control.throttles()

    async def _perform(self, action: Action) -> Done:
        try:
            if isinstance(action, SplitRange):
                halves = await self._control.split(action.table, action.at, account=action.account)
                self._memory.note_split(halves)
            elif isinstance(action, MergeRanges):
                await self._control.merge(action.first, action.second)
            else:
                await self._control.move(action.range_id, action.to)
        except PartitaError as error:
            return Done(action, f"{error.code}: {error.message}")
        return Done(action)


class Election:
    """The lock that one balancer of a fleet holds, as long as its session lives."""

    def __init__(self, url: str, durability: Durability = Durability.FULL) -> None:
        self._connector = Connector(Location.parse(url), durability)
        self._link: Link | None = None

    async def is_won(self) -> bool:
        """Return whether this process may decide now; try to get the lock if it has none."""
        try:
            if self._link is not None:
                await self._link.read(_IS_ALIVE)
                return True
            self._link = await self._connector.connect()
            rows = await self._link.read(_ELECT)
            is_won = bool(rows[0]["is_mine"])
        except BaseException:
            await self.lose()
            raise
        if not is_won:
            await self.lose()
        return is_won

    async def lose(self) -> None:
        """Let another process decide."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()


async def balance_forever(
    url: str,
    clock: Clock,
    tell: Callable[[str], None],
    report: Callable[[list[Done], Decision], None],
    *,
    durability: Durability = Durability.FULL,
    capacity: float = CAPACITY,
) -> None:
    """Be elected, then run a round every `ROUND_SECONDS`, until the task is cancelled.

    What fails is told once and tried again: the catalog may be down for a while.
    """
    election = Election(url, durability)
    balancer: Balancer | None = None
    trouble = ""
    try:
        while True:
            pause = ROUND_SECONDS
            try:
                if not await election.is_won():
                    pause = ELECTION_SECONDS
                    if trouble != "stand-by":
                        tell("another process balances this fleet; standing by")
                    trouble = "stand-by"
                else:
                    if balancer is None:
                        balancer = await Balancer.open(
                            url, clock, durability=durability, capacity=capacity
                        )
                        tell("elected: this process balances the fleet")
                    await balancer.resume()
                    _picture, found = await balancer.decide()
                    report(await balancer.perform(found), found)
                    trouble = ""
            except PartitaError as error:
                if trouble != error.code:
                    tell(f"{error.message} Trying again. {error.hint}".rstrip())
                trouble = error.code
                if balancer is not None:
                    await balancer.close()
                    balancer = None
            await asyncio.sleep(pause)
    finally:
        await election.lose()
        if balancer is not None:
            await balancer.close()
