"""`partita patterns worker`: receives messages, does their work, sweeps, stops on a signal.

One loop polls the queues and claims no more messages than there are free tasks, so that every
claimed message is worked on and its claim renewed. A signal ends the polling; messages in progress
are finished. Killing it is safe: an unfinished message is visible again when its claim ends.
"""

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import show
from partita.cli.kit.text import count_text
from partita.cli.patterns.facts import Worked, WorkerProgress, WorkerStarted
from partita.cli.patterns.opening import Session
from partita.cli.patterns.worker_health import health
from partita.clock import SystemClock
from partita.errors import EncryptionKeyError, PartitaError, UnavailableError
from partita.patterns.following import backlog, worker
from partita.patterns.following.eventual_transactions import Started as StartedTransaction
from partita.patterns.following.worker import Report, Trouble
from partita.patterns.protocol.calls import Message
from partita.patterns.writing.context import OutboxReference
from partita.ticks import Clock

T = TypeVar("T")

MESSAGES_MAX = 32
"""The most messages that the service returns at once."""
PAUSE_SECONDS_MAX = 30.0
"""The longest pause after a service that does not answer."""
TROUBLES_MAX = 100
"""The newest failures, whose reasons are printed again at the end."""
IDLE_SECONDS = 60.0
"""How often an idle worker prints its line."""
STOP_SECONDS_MAX = 2.0
"""How long a request for messages may take after a signal; its claims expire."""


class Pace(msgspec.Struct, frozen=True):
    """How much a worker does at a time, and how often."""

    tasks: int
    poll: float
    sweep_every: float
    """Seconds between sweeps; 0 is never."""
    sweep_age: float
    is_once: bool
    report_every: float = 0.0
    """Seconds between lines about rate and backlog; 0 is never."""


def pace_of(given: Given) -> Pace:
    return Pace(
        given.tasks,
        given.poll,
        given.sweep_every,
        given.sweep_age,
        given.once,
        0.0 if given.once else given.report_every,
    )


async def run_worker(session: Session, given: Given) -> Worked:
    """Work until a signal comes, or once."""
    _check_keyring(session)
    loop = asyncio.get_running_loop()
    # One thread for each plain function that may block, and some for the database itself.
    loop.set_default_executor(ThreadPoolExecutor(given.tasks + 4, "partita-worker"))
    stop = asyncio.Event()
    found = Worker(session, pace_of(given), SystemClock(), stop)
    async with health(given, found.why_not_ready) as address:
        with _stopping(loop, stop):
            await found.prepare(creates=given.create)
            if not stop.is_set():
                show(started_facts(session, found.pace.tasks, address), is_json=given.json)
            async with reporting(found, is_json=given.json):
                await found.work()
    return worked_facts(found.report)


@contextlib.asynccontextmanager
async def reporting(found: "Worker", *, is_json: bool) -> AsyncIterator[None]:
    """Print rate, backlog and age regularly while the block runs."""
    if not found.pace.report_every:
        yield
        return

    async def report() -> None:
        while True:
            await asyncio.sleep(found.pace.report_every)
            progress = await found.measure()
            if progress is not None:
                show(progress, is_json=is_json, file=sys.stderr)

    task = asyncio.ensure_future(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check_keyring(session: Session) -> None:
    """Refuse to start without the keys: each entry would fail and become poison."""
    sealed = [each.name for each in session.models if each.sealed_properties or each.encrypt]
    if sealed and session.context.keyring is None:
        raise EncryptionKeyError(
            "KeyringMissing",
            f"{sealed[0]} has encrypted fields, and there is no keyring.",
            hint="Give --keyring MODULE:NAME.",
        )


@contextlib.contextmanager
def _stopping(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)
            # A second signal ends the process at once. Python's own SIGINT would wait for the
            # threads of plain functions of the application.
            signal.signal(each, signal.SIG_DFL)

    before = {each: signal.getsignal(each) for each in signals}
    for each in signals:
        loop.add_signal_handler(each, on_signal)
    try:
        yield
    finally:
        for each, action in before.items():
            loop.remove_signal_handler(each)
            signal.signal(each, action)


class Worker:
    """The loop of one process."""

    def __init__(self, session: Session, pace: Pace, clock: Clock, stop: asyncio.Event) -> None:
        self.pace = pace
        self.report = Report()
        self._session = session
        self._clock = clock
        self._stop = stop
        self._busy: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.Task[None] | None = None
        self._swept_at: float | None = None
        self._failing: set[str] = set()
        """Entries that failed in the last sweep: reported once, though they fail in each."""
        self._texts: dict[str, str] = {}
        """The messages in progress, by id."""
        self._not_ready = "The worker is starting."
        self._measured: tuple[float, int, int] | None = None
        """When work was last measured, and how many entries and transactions there were."""
        self._told_at = -math.inf

    def why_not_ready(self) -> str:
        """Return why work is not being done; empty if it is."""
        return "The worker is stopping." if self._stop.is_set() else self._not_ready

    async def measure(self) -> WorkerProgress | None:
        """Return rate, backlog and age; None if an idle worker has said so recently."""
        report, now = self.report, self._clock.monotonic()
        before = self._measured or (now, report.entries, report.transactions)
        self._measured = (now, report.entries, report.transactions)
        waiting = await self._waiting()
        is_idle = self._measured[1:] == before[1:] and not (waiting and waiting.messages)
        if is_idle and now - self._told_at < IDLE_SECONDS:
            return None
        self._told_at = now
        seconds = max(now - before[0], 1e-3)
        return WorkerProgress(
            entries_per_second=round((self._measured[1] - before[1]) / seconds, 1),
            transactions_per_second=round((self._measured[2] - before[2]) / seconds, 1),
            busy=len(self._busy),
            tasks=self.pace.tasks,
            waiting=None if waiting is None else waiting.messages,
            oldest_seconds=None if waiting is None else waiting.oldest_seconds,
            failures=report.failures,
            poison=None if waiting is None else waiting.poison,
        )

    async def _waiting(self) -> backlog.Backlog | None:
        """Count what waits; None without queues, or if they cannot be read now."""
        context = self._session.context
        if not context.capabilities.has_queues:
            return None
        try:
            return await self._session.run(backlog.measure(context, list(self._texts.values())))
        except PartitaError as error:
            tell(f"cannot count messages: {error.code}: {error.message}")
            return None

    async def prepare(self, *, creates: bool) -> None:
        """Read the states of the indexes, or create the tables; wait for a service that is down."""
        db, pause = self._session.db, self.pace.poll
        while not self._stop.is_set():
            steps = db.create_tables() if creates else self._session.read_states()
            try:
                await self._unless_stopped(steps)
            except UnavailableError as error:
                if self.pace.is_once:
                    raise
                place = self._session.place
                tell(f"waiting for {place}, which cannot be used: {error.code}: {error.message}")
                self._not_ready = f"The account cannot be used: {error.code}."
                await self._rest(pause)
                pause = min(pause * 2 + 0.1, PAUSE_SECONDS_MAX)
                continue
            return

    async def work(self) -> None:
        pause = self.pace.poll
        while not self._stop.is_set():
            self._sweep_if_due()
            try:
                count = await self._take()
            except PartitaError as error:
                if self.pace.is_once:
                    await self._finish()
                    raise
                tell(f"cannot ask for messages: {error.code}: {error.message}")
                self._not_ready = f"Messages cannot be received: {error.code}."
                await self._rest(pause)
                pause = min(pause * 2 + 0.1, PAUSE_SECONDS_MAX)
                continue
            pause = self.pace.poll
            self._not_ready = ""
            if self.pace.is_once and not count and await self._is_done():
                return
            if not self.pace.is_once and not count:
                await self._rest(self.pace.poll)
        await self._finish()

    async def _is_done(self) -> bool:
        """Wait for the work in progress: it may put new messages on the queues."""
        had_work = bool(self._busy or (self._sweep is not None and not self._sweep.done()))
        await self._finish()
        return not had_work

    async def _finish(self) -> None:
        waiting = [*self._busy, *filter(None, (self._sweep,))]
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _take(self) -> int:
        """Claim messages for the free tasks; return how many."""
        context, count = self._session.context, 0
        if not context.capabilities.has_queues:
            return 0
        for queue in context.options.queues:
            free = await self._free()
            if self._stop.is_set():
                break
            steps = worker.receive(context, queue, min(free, MESSAGES_MAX))
            messages = await self._unless_stopped(self._session.run(steps))
            for message in messages or ():
                self._begin(queue, message)
                count += 1
        return count

    async def _free(self) -> int:
        """Wait for a free task; return how many are free."""
        while len(self._busy) >= self.pace.tasks:
            await asyncio.wait(self._busy, return_when=asyncio.FIRST_COMPLETED)
        return self.pace.tasks - len(self._busy)

    def _begin(self, queue: str, message: Message) -> None:
        task = asyncio.ensure_future(self._do(queue, message))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _do(self, queue: str, message: Message) -> None:
        report = Report()
        steps = worker.do_messages(self._session.context, queue, [message], report)
        self._texts[message.id] = message.text
        try:
            await self._session.run(steps)
        finally:
            self._texts.pop(message.id, None)
        self._add(report)

    def _sweep_if_due(self) -> None:
        every, now = self.pace.sweep_every, self._clock.monotonic()
        if not every or (self._sweep is not None and not self._sweep.done()):
            return
        if self._swept_at is None or (now - self._swept_at >= every and not self.pace.is_once):
            self._swept_at = now
            self._sweep = asyncio.ensure_future(self._do_sweep())

    async def _do_sweep(self) -> None:
        report = Report()
        try:
            await self._session.read_states()
            steps = worker.sweep(
                self._session.context,
                report,
                age=self.pace.sweep_age,
                # A worker that runs once does all waiting work, whatever others have done.
                unless_within=0.0 if self.pace.is_once else self.pace.sweep_every,
            )
            await self._session.run(steps)
        except PartitaError as error:
            tell(f"cannot sweep: {error.code}: {error.message}")
        failing = {trouble.text for trouble in report.troubles}
        report.troubles = [each for each in report.troubles if each.text not in self._failing]
        self._failing = failing
        self._add(report)

    def _add(self, report: Report) -> None:
        """Add the report of one task to that of all, and print failures."""
        for name in ("entries", "transactions", "failures", "poisoned", "left"):
            setattr(self.report, name, getattr(self.report, name) + getattr(report, name))
        for trouble in report.troubles:
            tell(trouble_text(trouble, self._session.context.options.deliveries_max))
        self.report.troubles = [*self.report.troubles, *report.troubles][-TROUBLES_MAX:]

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _unless_stopped(self, asked: Coroutine[Any, Any, T]) -> T | None:
        """Await an answer; after a signal only for a short time."""
        task = asyncio.ensure_future(asked)
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            await asyncio.wait({task}, timeout=STOP_SECONDS_MAX)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None


def tell(text: str) -> None:
    """Print one line on standard error."""
    print("partita worker:", " ".join(text.split()), file=sys.stderr, flush=True)


def trouble_text(trouble: Trouble, deliveries_max: int) -> str:
    """Return in one line what failed, and what happens to it."""
    subject = message_text(trouble.text)
    if trouble.is_left:
        return f"skipped, needs a newer worker version: {subject}: {trouble.reason}"
    if trouble.is_poison:
        attempts = count_text(trouble.deliveries, "attempt")
        return f"poison after {attempts}: {subject}: {trouble.reason}"
    if not trouble.queue:
        return f"failed in a sweep: {subject}: {trouble.reason}"
    return f"failed, attempt {trouble.deliveries} of {deliveries_max}: {subject}: {trouble.reason}"


def message_text(text: str) -> str:
    """Return what a message is about."""
    with contextlib.suppress(msgspec.DecodeError):
        return f"transaction {msgspec.json.decode(text, type=StartedTransaction).transaction!r}"
    reference = find_hint(text)
    if reference is not None:
        return f"entry of {reference.table}, partition {reference.key.partition!r}"
    return "a message of another program"


def find_hint(text: str) -> OutboxReference | None:
    """Read a hint of the outbox; None if the message is something else."""
    try:
        return msgspec.json.decode(text, type=OutboxReference)
    except msgspec.DecodeError:
        return None


def started_facts(session: Session, tasks: int, health: str | None = None) -> WorkerStarted:
    context = session.context
    return WorkerStarted(
        place=session.place,
        queues=list(context.options.queues) if context.capabilities.has_queues else [],
        types=sorted(context.models),
        transactions=sorted(context.transactions),
        views=sorted(view.name for model in session.models for view in model.views),
        tasks=tasks,
        process=os.getpid(),
        health=health,
    )


def worked_facts(report: Report) -> Worked:
    reasons = (f"{message_text(each.text)}: {each.reason}" for each in report.troubles)
    return Worked(
        entries=report.entries,
        transactions=report.transactions,
        failures=report.failures,
        poisoned=report.poisoned,
        left=report.left,
        troubles=list(dict.fromkeys(" ".join(reason.split()) for reason in reasons)),
    )
