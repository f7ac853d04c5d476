"""LoopThread: an event loop in a daemon thread, for callers in other threads and event loops.

`submit` returns a future. The other calls block the calling thread until the coroutine has ended,
so that no work outlives its caller: an interrupted caller cancels the coroutine and waits for its
end. `perform` avoids the cost of a task for coroutines that rarely wait; `run` always creates one.
A coroutine may `ask` for a function to be called in the thread that waits for it.
"""

import asyncio
import functools
import os
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent import futures
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS = 1.0
"""Interval at which a waiting caller checks that the thread is alive."""


class Ask(Protocol):
    """Calls a function in the thread of the caller; returns or raises what the function does."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]: ...


class LoopThread:
    """The thread and its event loop, from construction to `stop`.

    `closed` returns the error that is raised by calls after the thread was stopped.
    """

    def __init__(self, name: str, closed: Callable[[], Exception]) -> None:
        self._pid = os.getpid()
        self.closed = closed
        self.loop = new_event_loop()
        self.is_stopping = False
        self._has_stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that the thread runs in."""
        return os.getpid() != self._pid

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> futures.Future[T]:
        """Start a coroutine; any thread or event loop may wait for the future."""
        if self.is_stopping:
            coroutine.close()
            raise self.closed()
        try:
            return asyncio.run_coroutine_threadsafe(self._unless_stopped(coroutine), self.loop)
        except RuntimeError as error:  # the loop was closed
            coroutine.close()
            raise self.closed() from error

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in its own task and return its result."""
        call = _Call(self, coroutine)
        return call.hand_over(call.start_task)

    def run_asking(self, make: Callable[[Ask], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that can call functions in the thread of its caller."""
        call: _Call[T] = _Call(self)
        call.coroutine = make(call.ask)
        return call.hand_over(call.start_task)

    def finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as `run` does, but do not cancel it when the caller is interrupted."""
        call = _Call(self, coroutine, is_finished=True)
        return call.hand_over(call.start_task)

    def perform(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that does not depend on its task, without a task if it never waits."""
        call = _Call(self, coroutine)
        return call.hand_over(call.start)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the event loop."""
        return self.perform(_called(function))

    def post(self, function: Callable[..., object], *arguments: object) -> bool:
        """Let the loop call a function later; return False if the loop does not run any more."""
        if self.is_forked:  # this would wake the loop of the parent process
            return False
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def check(self) -> None:
        """Raise an error if a blocking call would never end."""
        if self.is_stopping:
            raise self.closed()

    def stop(
        self, last: Coroutine[Any, Any, object] | None = None, *, seconds: float | None = None
    ) -> bool:
        """Stop the loop after a last coroutine; return False if `seconds` were not enough."""
        self.is_stopping = True
        if not self.post(self._stop_after, last) and last is not None:
            last.close()
        self._thread.join(seconds)
        return not self.is_alive

    # --- in the thread --------------------------------------------------------------------

    async def _unless_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; report that the thread was stopped instead of a cancellation."""
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._has_stopped:
                raise self.closed() from None
            raise

    def _work(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.is_stopping = self._has_stopped = True
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _stop_after(self, last: Coroutine[Any, Any, object] | None) -> None:
        if last is not None and not self._has_stopped:
            self.loop.create_task(last).add_done_callback(lambda _: self.loop.stop())
            return
        if last is not None:
            last.close()
        if not self._has_stopped:
            self.loop.stop()


class _Call(Generic[T]):
    """One blocking call. Its caller waits for `turn`: the call has ended, or it asks."""

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
        """Start the call in the thread of the loop and wait for its end."""
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
            self.error = None  # breaks the cycle of the error and its traceback

    def _post(self, start: Callable[[], None]) -> None:
        if not self.thread.post(start):
            raise self.thread.closed()

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
                raise self.thread.closed()

    def _give_up(self) -> None:
        """Cancel the call and wait for its end, after an interrupt or the end of the thread."""
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
        """Run the coroutine until it first waits; only then create a task for the rest."""
        coroutine = self._begin()
        if coroutine is None:
            return
        self.is_started = True
        try:
            waited = coroutine.send(None)
        except StopIteration as stop:
            self._end(value=stop.value)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            self._end(error)
        else:
            self.is_started = False
            self.task = self.thread.loop.create_task(self._drive(_resumed(coroutine, waited)))

    def start_task(self) -> None:
        coroutine = self._begin()
        if coroutine is not None:
            self.task = self.thread.loop.create_task(self._drive(coroutine))

    async def ask(self, function: Callable[[], R]) -> R:
        """Call a function in the thread of the caller."""
        future: asyncio.Future[tuple[BaseException | None, R | None]]
        future = self.thread.loop.create_future()

        def answer() -> None:
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - raised by the coroutine
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
        if self.is_done:  # cancelled before it began
            return None
        if self.thread.is_stopping:
            self.coroutine.close()
            self._end(self.thread.closed())
            return None
        return self.coroutine

    async def _drive(self, coroutine: Awaitable[T]) -> None:
        self.is_started = True
        try:
            value = await coroutine
        except asyncio.CancelledError as error:
            self._end(self.thread.closed() if self.thread.is_stopping else error)
        except BaseException as error:  # noqa: BLE001 - raised by the caller; the loop must go on
            self._end(error)
        else:
            self._end(value=value)

    def _end(self, error: BaseException | None = None, value: Any = None) -> None:
        self.error, self.value = error, value
        self.is_done = True
        if self.turn.locked():  # unlocked if an interrupted caller left a question unanswered
            self.turn.release()

    def _cancel(self) -> None:
        if self.is_done:
            return
        if self.task is None:  # not started yet
            self._forget()
            self._end(asyncio.CancelledError())
        elif self.is_started and not self.is_finished:
            self.task.cancel()
        elif not self.is_started:
            # A task that is cancelled before its first step would never report its end.
            self.thread.loop.call_soon(self._cancel)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where it is installed: a call costs half as much there."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _called(function: Callable[[], T]) -> T:
    return function()


async def _end_tasks() -> None:
    """Cancel the remaining tasks, each after its first step, and wait for their end."""
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
    """Continue a coroutine that already waits: for a future, or for the next turn of the loop."""
    while True:
        try:
            answer = yield waited
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine
            step = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, answer)
        try:
            waited = step()
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
