"""The engine on two front ends of one PostgreSQL beside the model of support.queue_machine."""

import itertools

import pytest

from partita.queues.engine import QueueEngine
from partita.scaleout.queues import lanes, sweep
from support.queue_databases import OpenQueues, TickingTime
from support.queue_machine import QueueMachine, run_machine


class PostgresQueueMachine(QueueMachine):
    """Every call goes through the other front end."""

    def open(self) -> None:
        self.time = TickingTime(self.clock)

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
