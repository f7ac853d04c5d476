"""The engine on two front ends of one PostgreSQL beside the model of support.queue_machine."""

import itertools

import pytest

from partita.queues.engine import QueueEngine
from partita.scaleout.queues import lanes, sweep
from partita.ticks import Clock
from support.queue_databases import OpenQueues
from support.queue_machine import QueueMachine, run_machine


class CallTime:
    """The time of a manual clock: each call has one, later than the call before.

    A call may take several statements: rounds of a claim, a repetition at a range that is stale.
    How many is not for the model to know. What the model was told of is never taken back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present = self._upcoming = 0

    def __call__(self) -> int:
        return self._present

    def upcoming(self) -> int:
        """Return the time of the next call."""
        self._upcoming = max(self._clock.ticks(), self._present + 1, self._upcoming)
        return self._upcoming

    def begin(self) -> None:
        """Begin the next call."""
        self._present = self.upcoming()


class PostgresQueueMachine(QueueMachine):
    """Every call goes through the other front end, which meets ranges that are stale, too."""

    def open(self) -> None:
        self.time = CallTime(self.clock)

        async def opened() -> None:
            one = OpenQueues(self.clock, now=self.time)
            await one.open()
            two = OpenQueues(self.clock, now=self.time, account_id=one.account_id)
            await two.open()
            self.front_ends = (one, two)

        self.run(opened())
        self.turns = itertools.cycle(QueueEngine(each.store) for each in self.front_ends)

    @property
    def engine(self) -> QueueEngine:  # type: ignore[override]
        self.time.begin()
        return next(self.turns)

    def close(self) -> None:
        for front_end in self.front_ends:
            self.run(front_end.close())

    def upcoming(self) -> int:
        return self.time.upcoming()

    upcoming_steady = now = steady = upcoming


@pytest.fixture(autouse=True)
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SWEEP_MESSAGES", 2)
    monkeypatch.setattr(sweep, "SWEEP_PAUSE_SECONDS", 0)
    monkeypatch.setattr(lanes, "MET_MESSAGES_MAX", 2)


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_the_engine_on_two_front_ends_does_what_the_model_does() -> None:
    run_machine(PostgresQueueMachine, 12)
