"""A lane: requests that wait for the database are gathered into one round trip.

One trip is under way per lane; what arrives meanwhile is the next trip. A second trip runs beside
it only while many requests wait: spreading them thin loses the gathering. A trip has each key
once, so that its statement touches each row once; `send` sorts it by key, so that trips of
several front ends lock in the same order and never deadlock.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from typing import Generic, TypeVar

import msgspec

from partita.errors import PartitaError
from partita.scaleout.connections.link import Connector, Link, busy

TRIP_ITEMS_MAX = 256
TRIP_BYTES_MAX = 1024 * 1024
TRIPS_MAX = 2
"""Trips of one lane that run at the same time, ..."""
WAITING_FOR_SECOND_TRIP = 64
"""... the second only if more requests than this wait."""
TURNS_BETWEEN_TRIPS = 3
"""Turns of the event loop from the end of a trip to the next: the callers that were just answered
need them to answer over HTTP and to read what their clients ask next. Without them, busy clients
split into two halves that take turns, and each trip has half of the requests."""
TRIP_LEFT_MAX = 1024
"""How many requests may be passed over, because their key is in the trip, to fill it."""
LANE_WAITING_MAX = 8192
"""More waiting requests than this are refused at once, ..."""
LANE_WAIT_SECONDS_MAX = 10.0
"""... and those that waited longer when the next trip starts."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Send = Callable[[Link, Sequence[Item]], Awaitable[Sequence[Result | PartitaError]]]
"""Runs one trip: returns a result or an error for each item, in order."""


class _Waiting(msgspec.Struct, Generic[Item, Result], frozen=True):
    item: Item
    keys: Sequence[Hashable]
    size: int
    since: float
    answer: "asyncio.Future[Result]"


class Lane(Generic[Item, Result]):
    """Gathers calls of one kind; `send` runs a trip."""

    def __init__(
        self, connector: Connector, send: "Send[Item, Result]", *, trips_max: int = TRIPS_MAX
    ) -> None:
        self._connector = connector
        self._send = send
        self._trips_max = trips_max
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._running = 0
        self._trips: set[asyncio.Task[None]] = set()
        self._free: list[Link] = []
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many items wait for a trip."""
        return len(self._waiting)

    async def ask(self, item: Item, *, keys: Sequence[Hashable] = (), size: int = 0) -> Result:
        """Send an item with the next trip. A caller that is cancelled loses only its answer."""
        if self._is_closed or len(self._waiting) >= LANE_WAITING_MAX:
            raise busy("closing" if self._is_closed else "waiting")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._waiting.append(_Waiting(item, keys, size, loop.time(), answer))
        if self._running == 0 or (
            self._running < self._trips_max and len(self._waiting) > WAITING_FOR_SECOND_TRIP
        ):
            self._start()
        return await answer

    async def close(self) -> None:
        """Finish the trips of accepted items, then close the connections."""
        self._is_closed = True
        while self._trips:
            await asyncio.wait(self._trips)
        free, self._free = self._free, []
        for link in free:
            await link.close()

    def _start(self) -> None:
        self._running += 1
        trip = asyncio.get_running_loop().create_task(self._travel())
        self._trips.add(trip)
        trip.add_done_callback(self._trips.discard)

    async def _travel(self) -> None:
        try:
            while trip := self._next_trip():
                outcomes: Sequence[Result | Exception]
                try:
                    outcomes = await self._run(trip)
                except Exception as error:  # noqa: BLE001 - each caller gets it
                    outcomes = [error] * len(trip)
                for waiting, outcome in zip(trip, outcomes, strict=True):
                    _answer(waiting.answer, outcome)
                for _ in range(TURNS_BETWEEN_TRIPS):
                    await asyncio.sleep(0)
        finally:
            # At once: an item that is asked before this task is done needs a trip of its own.
            self._running -= 1

    async def _run(self, trip: Sequence[_Waiting[Item, Result]]) -> Sequence[Result | PartitaError]:
        link = self._free.pop() if self._free else None
        if link is None or link.is_closed:
            try:
                link = await self._connector.connect()
                link.is_shielded = False  # the task of a trip is not cancelled
            except PartitaError as error:
                # All wait for the same connection: their time is not spent on further attempts.
                while self._waiting:
                    _answer(self._waiting.popleft().answer, error)
                raise
        try:
            return await self._send(link, [waiting.item for waiting in trip])
        finally:
            if not link.is_closed:
                self._free.append(link)

    def _next_trip(self) -> list[_Waiting[Item, Result]]:
        """Take items in order, as many as fit; an item whose key is in the trip waits."""
        trip: list[_Waiting[Item, Result]] = []
        left: list[_Waiting[Item, Result]] = []
        seen: set[Hashable] = set()
        size = 0
        oldest = asyncio.get_running_loop().time() - LANE_WAIT_SECONDS_MAX
        while self._waiting and len(trip) < TRIP_ITEMS_MAX and len(left) < TRIP_LEFT_MAX:
            waiting = self._waiting.popleft()
            if waiting.answer.done():
                continue  # its caller was cancelled
            if waiting.since < oldest:
                waiting.answer.set_exception(busy("waiting"))
                continue
            if trip and size + waiting.size > TRIP_BYTES_MAX:
                left.append(waiting)
                break
            if not waiting.keys:
                trip.append(waiting)
                size += waiting.size
                continue
            if seen.isdisjoint(waiting.keys):
                trip.append(waiting)
                size += waiting.size
            else:
                left.append(waiting)
            seen.update(waiting.keys)
        self._waiting.extendleft(reversed(left))
        return trip


def _answer(answer: "asyncio.Future[Result]", outcome: Result | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, PartitaError):
        error = copy(outcome)  # each caller adds its own facts
        error.facts = dict(outcome.facts)
        answer.set_exception(error)
    elif isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
