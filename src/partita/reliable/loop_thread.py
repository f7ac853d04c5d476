"""LoopThread: one event loop in one daemon thread, for callers that have none.

A call is handed over and its caller waits for the end, so that nothing it started is left behind:
an interrupted caller cancels the call and waits for that. `perform` saves the task of a call that
needs none, because it rarely waits; `run` is for what must know the task that it runs in. A call
may `ask` for a function to be called in the thread that waits for it.
"""

import asyncio
import functools
import os
import threading
import types
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from partita.errors import StateClosedError, UsageError

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS = 1.0
"""How often those who wait look whether the thread still lives."""


class Ask(Protocol):
    """Calls a function in the thread of the caller, and returns or raises what it does."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]: ...


class LoopThread:
    """The thread and its loop, from construction to `stop`."""

    def __init__(self, name: str) -> None:
        refuse_running_loop()
        self._pid = os.getpid()
        self.loop = _new_loop()
        self.is_stopping = False
        self._has_stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that has the thread."""
        return os.getpid() != self._pid

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a task of its own and return its result."""
        call = _Call(self, coroutine)
        return call.hand_over(call.start_task)

    def run_asking(self, make: Callable[[Ask], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that is given the means to ask its caller."""
        call: _Call[T] = _Call(self)
        call.coroutine = make(call.ask)
        return call.hand_over(call.start_task)

    def finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do what `run` does; an interrupted caller waits for the end and does not cancel."""
        call = _Call(self, coroutine, is_finished=True)
        return call.hand_over(call.start_task)

    def perform(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that does not ask which task it runs in: without one if it can."""
        call = _Call(self, coroutine)
        return call.hand_over(call.start)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the loop."""
        return self.perform(_called(function))

    def post(self, function: Callable[..., object], *arguments: object) -> bool:
        """Let the loop call a function some time; False if it does not run any more."""
        if self.is_forked:  # it would wake the loop of the other process
            return False
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def check(self) -> None:
        """Refuse calls that would never end."""
        if self.is_forked:
            raise UsageError(
                "StateForked",
                "The state was opened before this process was forked: its thread is not here.",
                hint="Open it after the fork: in the worker, not while the program is loaded.",
            )
        refuse_running_loop()
        if self.is_stopping:
            raise closed()

    def stop(self, last: Coroutine[Any, Any, object] | None = None, *, seconds: float) -> bool:
        """Stop the loop behind a last coroutine; False if the thread still runs after the time."""
        self.is_stopping = True
        if not self.post(self._stop_behind, last) and last is not None:
            last.close()
        self._thread.join(seconds)
        return not self.is_alive

    # --- in the thread --------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.is_stopping = self._has_stopped = True
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _stop_behind(self, last: Coroutine[Any, Any, object] | None) -> None:
        if last is not None and not self._has_stopped:
            self.loop.create_task(last).add_done_callback(lambda _: self.loop.stop())
            return
        if last is not None:
            last.close()
        if not self._has_stopped:
            self.loop.stop()


class _Call(Generic[T]):
    """One call: its caller waits for `turn`, which says that it ended or that it asks."""

    __slots__ = (
        "asked",
        "coroutine",
        "error",
        "is_done",
        "is_finished",
        "is_started",
        "task",
        "thread",
        "turn",
        "value",
    )

    def __init__(
        self,
        thread: LoopThread,
        coroutine: Coroutine[Any, Any, T] | None = None,
        *,
        is_finished: bool = False,
    ) -> None:
        self.thread = thread
        self.coroutine = coroutine
        self.is_finished = is_finished
        self.is_started = False
        self.is_done = False
        self.task: asyncio.Task[None] | None = None
        self.asked: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.value: T
        self.turn = threading.Lock()
        self.turn.acquire()

    # --- in the thread of the caller ------------------------------------------------------

    def hand_over(self, start: Callable[[], None]) -> T:
        """Have the call started and wait for its end."""
        try:
            self.thread.check()
        except BaseException:
            self._forget()
            raise
        try:
            self._post(start)
            self._wait()
        except BaseException:
            self._give_up()
            raise
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # or the error and its traceback would keep each other

    def _post(self, start: Callable[[], None]) -> None:
        if not self.thread.post(start):
            raise closed()

    def _wait(self) -> None:
        while True:
            self._look()
            if self.is_done:
                return
            asked, self.asked = self.asked, None
            if asked is not None:
                asked()

    def _look(self) -> None:
        while not self.turn.acquire(timeout=LOOK_SECONDS):
            if not self.thread.is_alive:
                raise closed()

    def _give_up(self) -> None:
        """Come here by an interrupt, or because the thread died: nothing may go on behind us."""
        if not self.thread.is_forked and self.thread.is_alive and self.thread.post(self._cancel):
            while not self.is_done and self.thread.is_alive:
                self.turn.acquire(timeout=LOOK_SECONDS)
        elif not self.is_started:
            self._forget()

    def _forget(self) -> None:
        if self.coroutine is not None:
            self.coroutine.close()

    # --- in the thread of the loop --------------------------------------------------------

    def start(self) -> None:
        """Take the first step here; only what waits for something becomes a task."""
        coroutine = self._begin()
        if coroutine is None:
            return
        self.is_started = True
        try:
            waited = coroutine.send(None)
        except StopIteration as stop:
            self._end(value=stop.value)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._end(error)
        else:
            self.is_started = False
            self.task = self.thread.loop.create_task(self._drive(_resumed(coroutine, waited)))

    def start_task(self) -> None:
        coroutine = self._begin()
        if coroutine is not None:
            self.task = self.thread.loop.create_task(self._drive(coroutine))

    async def ask(self, function: Callable[[], R]) -> R:
        """Have the caller's thread call a function."""
        future: asyncio.Future[tuple[BaseException | None, R | None]]
        future = self.thread.loop.create_future()

        def answer() -> None:
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - the call raises it
                self.thread.post(_resolve, future, (error, None))
            else:
                self.thread.post(_resolve, future, (None, value))

        self.asked = answer
        self.turn.release()
        error, value = await future
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _begin(self) -> Coroutine[Any, Any, T] | None:
        assert self.coroutine is not None
        if self.is_done:  # given up before it began
            return None
        if self.thread.is_stopping:
            self.coroutine.close()
            self._end(closed())
            return None
        return self.coroutine

    async def _drive(self, coroutine: Awaitable[T]) -> None:
        self.is_started = True
        try:
            value = await coroutine
        except asyncio.CancelledError as error:
            self._end(closed() if self.thread.is_stopping else error)
        except BaseException as error:  # noqa: BLE001 - the caller raises it; the loop must live
            self._end(error)
        else:
            self._end(value=value)

    def _end(self, error: BaseException | None = None, value: Any = None) -> None:
        self.error, self.value = error, value
        self.is_done = True
        if self.turn.locked():  # it is not when an interrupted caller never fetched a question
            self.turn.release()

    def _cancel(self) -> None:
        if self.is_done:
            return
        if self.task is None:  # never handed over
            self._forget()
            self._end(asyncio.CancelledError())
        elif self.is_started and not self.is_finished:
            self.task.cancel()
        elif (
            not self.is_started
        ):  # a task that was cancelled before its first step would never say that it ended
            self.thread.loop.call_soon(self._cancel)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop where it can be had: a call costs half as much on it."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def refuse_running_loop() -> None:
    """Refuse to block a thread that runs an event loop, the state's own included."""
    if _get_running_loop() is not None:
        raise UsageError(
            "LoopIsRunning",
            "This call would block the event loop that runs in this thread.",
            hint="Use `async with partita.open_state(...)` in asyncio code. A function that is "
            "given to a collection (update=, where=, an index) must not use the state.",
        )


def closed() -> StateClosedError:
    return StateClosedError(
        "StateClosed",
        "The state was closed.",
        hint="Open it again: partita.reliable.sync.open_state(...).",
    )


async def _called(function: Callable[[], T]) -> T:
    return function()


async def _end_tasks() -> None:
    """Cancel what is left, each task after its first step, and wait for it."""
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits already, for a future of asyncio or for its next turn."""
    while True:
        try:
            answer = yield waited
        except BaseException as error:  # noqa: BLE001 - for the coroutine to deal with
            step = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, answer)
        try:
            waited = step()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
