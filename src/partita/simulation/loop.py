"""SimLoop: an asyncio loop with virtual time and an order that a seed decides.

Time does not advance while anything can run; then it jumps to the next timer. Everything that is
ready at one moment runs in an order drawn from the seed, so that a run is one history of a
concurrent system and the same seed gives the same history, as `trace_hash` proves. Tasks may
belong to a named node, which can be paused like a process by SIGSTOP or killed by SIGKILL.
"""

import asyncio
import contextlib
import contextvars
import functools
import gc
import hashlib
import heapq
import random  # noqa: TID251 - seeded: the same seed must give the same history
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

import msgspec

from partita.ticks import TICKS_PER_SECOND

T = TypeVar("T")

STEPS_MAX = 20_000_000
"""A run with more steps is in an endless loop: time does not advance while tasks are ready."""
START_TICKS = 17_000_000_000_000_000


class SimulationError(Exception):
    """A run failed; the message contains the seed."""


class DeadlockedError(SimulationError):
    """Nothing is ready and no timer is set: no task will ever continue."""


class SpinningError(SimulationError):
    """The run exceeded the limit of steps."""


class LeakedTaskError(SimulationError):
    """The main task ended while others still exist."""


class UnseenFailureError(SimulationError):
    """A callback or a task failed and its error was never retrieved."""


class Ran(msgspec.Struct, Generic[T], frozen=True):
    """The result of one run, and what is needed to compare it with another."""

    value: T
    trace_hash: str
    steps: int
    seconds: float
    """The virtual time that passed."""


class Node:
    """A simulated process: the tasks that are paused and killed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused_until = 0.0
        self.is_paused = False
        self.is_dead = False
        self.held: list[asyncio.Handle] = []


_node: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)


def run(coroutine: Coroutine[Any, Any, T], *, seed: int, steps_max: int = STEPS_MAX) -> Ran[T]:
    """Run a coroutine to its end on a new loop."""
    loop = SimLoop(seed=seed, steps_max=steps_max)
    value = loop.run(coroutine)
    return Ran(value, loop.trace_hash, loop.steps, loop.time())


def running_loop() -> "SimLoop":
    """Return the simulated loop that runs this code."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "this code runs on a loop that is not simulated"
    return loop


class SimLoop(asyncio.BaseEventLoop):
    """One run, without network, threads and real waits.

    Ready handles are sorted by their labels before the seed shuffles them: asyncio keeps some
    tasks in sets, whose order depends on addresses.
    """

    # Attributes of BaseEventLoop.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, *, seed: int, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self._steps_max = steps_max
        self._now = 0.0
        self._random = random.Random(f"{seed}/order")  # noqa: S311 - reproducible on purpose
        self._hash = hashlib.blake2b(digest_size=16)
        self._tasks_made = 0
        self._nodes: dict[str, Node] = {}
        self._task_nodes: weakref.WeakKeyDictionary[asyncio.Task[Any], Node | None] = (
            weakref.WeakKeyDictionary()
        )
        self._buried: list[asyncio.Task[Any]] = []
        self._failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self._failures.append(context))

    @property
    def trace_hash(self) -> str:
        """A hash of every step, its time, and the traced texts; equal for equal histories."""
        return self._hash.hexdigest()

    def trace(self, text: str) -> None:
        """Add a text to the history that is hashed."""
        self._hash.update(f"{text}@{self._now!r}\n".encode())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end of the coroutine, then check that no task is left.

        The garbage collector is off meanwhile: its timing depends on what ran before, and it
        calls finalizers.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            value = self.run_until_complete(coroutine)
            self._check_nothing_left()
            return value
        finally:
            self._clean_up()
            self.close()
            if was_enabled:
                gc.enable()

    def spawn(self, node: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on a node; tasks that it starts belong to the node too.

        After a kill the same name is a new process.
        """
        context = contextvars.copy_context()
        context.run(_node.set, self._nodes.setdefault(node, Node(node)))
        return self.create_task(coroutine, context=context)

    def pause(self, node: str, seconds: float) -> None:
        """Run nothing of the node for a while; everything else continues, its timers run late."""
        paused = self._nodes.setdefault(node, Node(node))
        paused.is_paused = True
        paused.paused_until = max(paused.paused_until, self._now + seconds)
        self.call_at(paused.paused_until, self._resume, paused, context=contextvars.Context())

    def kill(self, node: str) -> None:
        """Never run anything of the node again, not even `finally` or `except`, like kill -9."""
        killed = self._nodes.pop(node, None)
        if killed is None:
            return
        killed.is_dead = True
        for task in self._living_tasks():
            if self._task_nodes.get(task) is killed:
                cast("Any", task)._log_destroy_pending = False  # noqa: SLF001 - intended
                self._buried.append(task)
        killed.held.clear()

    def time(self) -> float:
        return self._now

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Name the task by a counter of this loop: asyncio's counter is shared by all loops."""
        self._tasks_made += 1
        node = _node.get() if context is None else context.get(_node, None)
        if name is None:
            owner = f"{node.name}/" if node is not None else ""
            name = f"{owner}{getattr(coro, '__qualname__', 'task')}-{self._tasks_made}"
        task = asyncio.Task(coro, loop=self, name=str(name), context=context)
        self._task_nodes[task] = node
        return task

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:
            self._jump()
        self._wake_timers()
        batch = [(label_of(handle), handle) for handle in self._ready if not handle.cancelled()]
        self._ready.clear()
        if len(batch) > 1:
            batch.sort(key=_label_first)
            self._random.shuffle(batch)
        batch.reverse()
        while batch:
            self._step(*batch.pop())

    def _step(self, label: str, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        node = cast("contextvars.Context", handle._context).get(_node)  # type: ignore[attr-defined]  # noqa: SLF001
        if node is not None and (node.is_dead or node.is_paused):
            if not node.is_dead:
                node.held.append(handle)
            return
        self.steps += 1
        if self.steps > self._steps_max:
            raise SpinningError(self._text(f"more than {self._steps_max} steps; now {label}"))
        self._hash.update(label.encode())
        handle._run()  # noqa: SLF001 - as every asyncio loop does
        # The traceback of an error keeps this frame: a task in it would not be told as unseen.
        del handle

    def _jump(self) -> None:
        """Advance the time to the next timer: nothing else can happen before it."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if not self._scheduled:
            raise DeadlockedError(self._text(f"no task can continue: {self._waiting()}"))
        self._now = max(self._now, self._scheduled[0].when())
        self._hash.update(f"@{self._now!r}\n".encode())

    def _wake_timers(self) -> None:
        while self._scheduled and self._scheduled[0].when() <= self._now:
            self._ready.append(heapq.heappop(self._scheduled))

    def _resume(self, node: Node) -> None:
        if node.is_dead or self._now < node.paused_until:
            return
        node.is_paused = False
        self._ready.extend(node.held)
        node.held.clear()

    def _check_nothing_left(self) -> None:
        left = [task.get_name() for task in self._living_tasks() if task not in self._buried]
        if left:
            raise LeakedTaskError(self._text(f"tasks are left after the run: {', '.join(left)}"))
        if self._failures:
            first = self._failures[0]
            text = self._text(
                f"{len(self._failures)} errors not retrieved; first: {first['message']}"
            )
            raise UnseenFailureError(text) from first.get("exception")

    def _clean_up(self) -> None:
        """Close the remaining tasks without errors, which would hide the error of the run."""
        for task in self._living_tasks():
            cast("Any", task)._log_destroy_pending = False  # noqa: SLF001 - intended
            _close(task)
        for handle in (*self._ready, *self._scheduled):
            handle.cancel()
        self._ready.clear()
        self._scheduled.clear()
        self._nodes.clear()
        self._failures.clear()

    def _living_tasks(self) -> list[asyncio.Task[Any]]:
        return sorted(asyncio.all_tasks(self), key=asyncio.Task.get_name)

    def _waiting(self) -> str:
        return ", ".join(task.get_name() for task in self._living_tasks())

    def _text(self, what: str) -> str:
        return f"seed {self.seed}, {self._now:.6f} s, step {self.steps}: {what}"

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap: it is skipped later."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread."""


class SimClock:
    """The clock of a node on the loop's time, with skew, drift and jumps.

    `drift` is the seconds that it gains per second. Its random bytes depend on the seed and name.
    """

    def __init__(
        self, loop: SimLoop, name: str = "", *, skew_seconds: float = 0.0, drift: float = 0.0
    ) -> None:
        self._loop = loop
        self._skew = skew_seconds
        self._rate = 1.0 + drift
        self._random = random.Random(f"{loop.seed}/clock/{name}")  # noqa: S311 - reproducible

    def ticks(self) -> int:
        return START_TICKS + round((self.monotonic() + self._skew) * TICKS_PER_SECOND)

    def monotonic(self) -> float:
        return self._loop.time() * self._rate

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back."""
        self._skew += seconds

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def new_id(self) -> str:
        return str(uuid.UUID(bytes=self._random.randbytes(16), version=4))


def label_of(handle: asyncio.Handle) -> str:
    """Return the name of the task or function that a handle runs, without addresses."""
    callback: Callable[..., object] = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    while isinstance(callback, functools.partial):
        callback = callback.func
    return getattr(callback, "__qualname__", type(callback).__name__)


def _label_first(labelled: tuple[str, asyncio.Handle]) -> str:
    return labelled[0]


def _close(task: asyncio.Task[Any]) -> None:
    # The run is over: errors of a closed task are ignored.
    with contextlib.suppress(BaseException):
        cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
