"""Random operations through the engine beside a model of plain lists, on a clock moved by hand.

The model knows the rules of the service: who sees a message when, which receipt counts, what is
expired. It knows nothing of how the engine keeps them. Sweeps are small, and a rule of their own.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.queues import limits
from partita.queues.engine import QueueEngine
from partita.queues.message import Message
from partita.queues.store import Queue
from partita.ticks import TICKS_PER_SECOND
from support.repeats import repeat

T = TypeVar("T")

QUEUES = st.sampled_from(["work", "work", "work", "more"])
TEXTS = st.sampled_from(["", " ", "a", "<&>\r\n", "\U0001f600", "x" * 3000])
HIDDEN = st.sampled_from([0, 1, 2, 10, 30])
PUT_HIDDEN = st.sampled_from([0, 0, 0, 1, 10])
LIFETIMES = st.sampled_from([1000, None, 100, 31, 11, 3, 1])
STEPS_MAX = 100
SELDOM = st.integers(0, 9).map(lambda number: number == 9)
"""What empties a queue would otherwise leave little to look at."""
COUNTS = st.sampled_from([2, 32, 1, 3])


class Known(msgspec.Struct):
    """A message as the model knows it."""

    id: str
    text: str
    inserted_at: int
    expires_at: int
    visible_at: int
    dequeue_count: int
    receipt: str
    old_receipts: list[str]


class RefusedError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def shown(message: Known) -> Message:
    return Message(
        message.id,
        message.text,
        message.inserted_at,
        message.expires_at,
        message.visible_at,
        message.dequeue_count,
        message.receipt,
    )


class QueueMachine(RuleBasedStateMachine):
    """The rules; a subclass says how a store is opened and what time it has."""

    engine: QueueEngine

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.queues: dict[str, list[Known]] = {}
        self.gone: list[Known] = []
        """Deleted, cleared or expired: nobody may find them again."""
        self.unswept: dict[str, int] = {}
        """How many messages of a queue expired since nobody can have met them."""
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Open a store without its own sweep: here that is a rule."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def upcoming(self) -> int:
        """Return the stamp that the next change will have."""

    @abstractmethod
    def upcoming_steady(self) -> int:
        """Return the steady time that the next change will have, by which messages are hidden."""

    @abstractmethod
    def now(self) -> int:
        """Return the time that the next read will have."""

    @abstractmethod
    def steady(self) -> int:
        """Return the steady time that the next read will have."""

    def check_count(self, queue: Queue, living: int, unmet: int) -> None:
        """Check a listed queue; `unmet` messages are expired and perhaps not removed."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.close()
        self.runner.close()

    # What the model says

    def expire(self, now: int) -> None:
        for name, messages in self.queues.items():
            dead = [message for message in messages if message.expires_at <= now]
            self.queues[name] = [message for message in messages if message.expires_at > now]
            self.gone += dead
            self.unswept[name] = self.unswept.get(name, 0) + len(dead)

    def visible(self, name: str, now: int, steady: int) -> list[Known]:
        self.expire(now)
        if name not in self.queues:
            raise RefusedError("QueueNotFound")
        seen = [message for message in self.queues[name] if message.visible_at <= steady]
        return sorted(seen, key=lambda message: message.visible_at)

    def held(self, name: str, message: Known, receipt: str, now: int) -> Known:
        self.expire(now)
        if name not in self.queues:
            raise RefusedError("QueueNotFound")
        if message not in self.queues[name]:
            raise RefusedError("MessageNotFound")
        if receipt != message.receipt:
            raise RefusedError("MessageNotFound")
        return message

    def agree(self, work: Coroutine[Any, Any, T], expected: RefusedError | None) -> T | None:
        """Run, and find the refusal that the model expects, or none."""
        outcome, found = None, None
        try:
            outcome = self.run(work)
        except PartitaError as error:
            found = error.code
        assert found == (None if expected is None else expected.code)
        return outcome

    def a_message(self, data: st.DataObject) -> Known | None:
        known = [message for messages in self.queues.values() for message in messages]
        known += self.gone[-5:]
        return data.draw(st.sampled_from(known)) if known else None

    def a_receipt(self, message: Known, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([message.receipt, *message.old_receipts[-2:]]))

    # Queues

    @initialize()
    def create_both(self) -> None:
        for name in ("work", "more"):
            self.create(name)

    @rule(name=QUEUES)
    def create(self, name: str) -> None:
        assert self.run(self.engine.create_queue(name, {})) is (name not in self.queues)
        self.queues.setdefault(name, [])

    @rule(name=QUEUES, is_meant=SELDOM)
    def delete_queue(self, name: str, is_meant: bool) -> None:
        if not is_meant:
            return
        expected = None if name in self.queues else RefusedError("QueueNotFound")
        self.agree(self.engine.delete_queue(name), expected)
        self.gone += self.queues.pop(name, [])
        self.unswept.pop(name, None)

    @rule(name=QUEUES, is_meant=SELDOM)
    def clear(self, name: str, is_meant: bool) -> None:
        if not is_meant:
            return
        expected = None if name in self.queues else RefusedError("QueueNotFound")
        self.agree(self.engine.clear(name), expected)
        if expected is None:
            self.gone += self.queues[name]
            self.queues[name] = []
            self.unswept[name] = 0

    # Messages

    @rule(name=QUEUES, text=TEXTS, hidden=PUT_HIDDEN, lifetime=LIFETIMES)
    def put(self, name: str, text: str, hidden: int, lifetime: int | None) -> None:
        now, steady = self.upcoming(), self.upcoming_steady()
        self.expire(now)
        expected = None if name in self.queues else RefusedError("QueueNotFound")
        message = self.agree(
            self.engine.put(name, text, hidden_seconds=hidden, lifetime_seconds=lifetime), expected
        )
        if message is None:
            return
        expires_at = limits.NEVER if lifetime is None else now + lifetime * TICKS_PER_SECOND
        known = Known(
            message.id,
            text,
            now,
            expires_at,
            steady + hidden * TICKS_PER_SECOND,
            0,
            message.receipt,
            [],
        )
        assert message == shown(known)
        self.queues[name].append(known)

    @rule(name=QUEUES, count=st.integers(2, 6), hidden=PUT_HIDDEN, lifetime=LIFETIMES)
    def put_some(self, name: str, count: int, hidden: int, lifetime: int | None) -> None:
        for number in range(count):
            self.put(name, f"{number}", hidden, lifetime)

    @rule(name=QUEUES, limit=COUNTS, hidden=HIDDEN.filter(bool))
    def get(self, name: str, limit: int, hidden: int) -> None:
        now, steady = self.upcoming(), self.upcoming_steady()
        expected, wanted = None, list[Known]()
        try:
            wanted = self.visible(name, now, steady)[:limit]
        except RefusedError as refused:
            expected = refused
        got = self.agree(self.engine.get(name, limit=limit, hidden_seconds=hidden), expected)
        if got is None:
            return
        if got:
            # Each change that only removed expired messages took a stamp, and at a later stamp
            # one more message may be seen.
            stamp = got[0].visible_at - hidden * TICKS_PER_SECOND
            assert steady <= stamp <= steady + STEPS_MAX
            now, steady = now + stamp - steady, stamp
            wanted = self.visible(name, now, steady)[:limit]
        assert [message.id for message in got] == [known.id for known in wanted]
        for position, (message, known) in enumerate(zip(got, wanted, strict=True)):
            known.old_receipts.append(known.receipt)
            assert message.receipt not in known.old_receipts
            known.receipt = message.receipt
            known.dequeue_count += 1
            known.visible_at = steady + hidden * TICKS_PER_SECOND + position
            assert message == shown(known)

    @rule(name=QUEUES, limit=COUNTS)
    def peek(self, name: str, limit: int) -> None:
        now, steady = self.now(), self.steady()
        expected, wanted = None, list[Known]()
        try:
            wanted = self.visible(name, now, steady)[:limit]
        except RefusedError as refused:
            expected = refused
        seen = self.agree(self.engine.peek(name, limit=limit), expected)
        if seen is not None:
            assert seen == [shown(known) for known in wanted]

    @rule(name=QUEUES, data=st.data(), hidden=HIDDEN, text=st.none() | TEXTS)
    def update(self, name: str, data: st.DataObject, hidden: int, text: str | None) -> None:
        known = self.a_message(data)
        if known is None:
            return
        receipt, now = self.a_receipt(known, data), self.upcoming()
        visible_at = self.upcoming_steady() + hidden * TICKS_PER_SECOND
        expected = None
        try:
            self.held(name, known, receipt, now)
            if now + hidden * TICKS_PER_SECOND > known.expires_at:
                expected = RefusedError("InvalidQueryParameterValue")
        except RefusedError as refused:
            expected = refused
        updated = self.agree(
            self.engine.update(name, known.id, receipt, hidden_seconds=hidden, text=text), expected
        )
        if updated is None:
            return
        known.old_receipts.append(known.receipt)
        known.receipt, known.visible_at = updated.receipt, visible_at
        known.text = known.text if text is None else text
        assert updated.receipt not in known.old_receipts
        assert updated == shown(known)

    @rule(name=QUEUES, data=st.data())
    def delete(self, name: str, data: st.DataObject) -> None:
        known = self.a_message(data)
        if known is None:
            return
        receipt, now = self.a_receipt(known, data), self.upcoming()
        expected = None
        try:
            self.held(name, known, receipt, now)
        except RefusedError as refused:
            expected = refused
        self.agree(self.engine.delete(name, known.id, receipt), expected)
        if expected is None:
            self.queues[name].remove(known)
            self.gone.append(known)

    # Time, sweeps

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 10.0, 31.0, 100.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-100.0, -2.0, 5.0, 86_400.0]))
    def set_the_wall_clock(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule()
    def sweep(self) -> None:
        self.run(self.engine.store.sweep())
        self.expire(self.now())
        self.unswept = dict.fromkeys(self.queues, 0)

    @invariant()
    def counts_are_never_too_small(self) -> None:
        self.expire(self.now())
        listed = self.run(self.engine.list_queues()).queues
        assert [queue.name for queue in listed] == sorted(self.queues)
        for queue in listed:
            living = len(self.queues[queue.name])
            unmet = self.unswept.get(queue.name, 0)
            self.check_count(queue, living, unmet)


def run_machine(machine: type[QueueMachine], examples: int) -> None:
    test_case = machine.TestCase
    test_case.settings = settings(
        max_examples=repeat(examples // 4, examples, examples * 50),
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    test = test_case("runTest")
    test.runTest()
