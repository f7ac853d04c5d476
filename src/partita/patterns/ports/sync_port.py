"""Runs steps without asyncio: sends their calls to a port, and runs parallel steps in threads."""

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from partita.errors import UsageError
from partita.patterns.protocol.calls import Beside, Call, Cost, Invoke, Parallel, Sleep, Steps
from partita.patterns.protocol.capabilities import Capabilities

T = TypeVar("T")


class SyncPort(Protocol):
    """Performs calls; the errors that it raises on purpose are PartitaErrors."""

    capabilities: Capabilities

    def perform(self, call: Call[T], cost: Cost) -> T:
        """Return the answer of a call, and add its cost to `cost`."""
        ...

    def close(self) -> None: ...


def run_steps(steps: Steps[T], port: SyncPort, cost: Cost) -> T:
    """Run steps to their end and return their result; close them in any case."""
    return _drive(steps, port, cost, _Stop())


class _Stop:
    """Stops steps after parallel ones have failed, and the steps that those run in turn."""

    def __init__(self, parent: "_Stop | None" = None) -> None:
        self.asked = threading.Event()
        self.inner: list[_Stop] = []
        if parent is not None:
            parent.inner.append(self)
            if parent.asked.is_set():
                self.asked.set()

    def ask(self) -> None:
        self.asked.set()
        for stop in self.inner:
            stop.ask()

    def check(self) -> None:
        if self.asked.is_set():
            raise _StoppedError

    def sleep(self, seconds: float) -> None:
        if self.asked.wait(seconds):
            raise _StoppedError


class _StoppedError(BaseException):
    """Stops steps; like a cancellation it is a BaseException, which steps do not handle."""


def _drive(steps: Steps[T], port: SyncPort, cost: Cost, stop: _Stop) -> T:
    answer: Any = None
    refusal: Exception | None = None
    try:
        while True:
            try:
                call = steps.send(answer) if refusal is None else steps.throw(refusal)
            except StopIteration as end:
                result: T = end.value
                return result
            stop.check()
            answer, refusal = None, None
            try:
                answer = _perform(call, port, cost, stop)
            except Exception as error:  # noqa: BLE001 - handled by the steps
                refusal = error
    finally:
        steps.close()


def _perform(call: Call[Any], port: SyncPort, cost: Cost, stop: _Stop) -> Any:
    if isinstance(call, Sleep):
        return stop.sleep(call.seconds)
    if isinstance(call, Invoke):
        return _invoke(call)
    if isinstance(call, Parallel):
        return _run_parallel(call, port, cost, stop)
    if isinstance(call, Beside):
        return _run_beside(call, port, cost, stop)
    return port.perform(call, cost)


def _invoke(call: Invoke) -> Any:
    result = None if inspect.iscoroutinefunction(call.function) else call.function(*call.arguments)
    if inspect.isawaitable(result) or inspect.iscoroutinefunction(call.function):
        if inspect.iscoroutine(result):
            result.close()
        name = getattr(call.function, "__qualname__", repr(call.function))
        raise UsageError(
            "AsynchronousFunction",
            f"{name} is asynchronous, and this database is synchronous.",
            hint="Pass an ordinary function, or connect with partita.patterns.connect.",
        )
    return result


def _run_beside(call: Beside, port: SyncPort, cost: Cost, parent: _Stop) -> Any:
    stop, spent = _Stop(parent), Cost()

    def work() -> None:
        with contextlib.suppress(Exception, _StoppedError):
            _drive(call.background, port, spent, stop)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    try:
        return _drive(call.steps, port, cost, parent)
    finally:
        stop.ask()
        thread.join()
        cost.add(spent)


def _run_parallel(call: Parallel, port: SyncPort, cost: Cost, parent: _Stop) -> tuple[Any, ...]:
    answers: list[Any] = [None] * len(call.steps)
    pending = iter(enumerate(call.steps))
    taking = threading.Lock()
    stop = _Stop(parent)
    errors: list[BaseException] = []

    def work() -> None:
        own = Cost()
        try:
            while True:
                with taking:
                    taken = next(pending, None)
                if taken is None:
                    return
                answers[taken[0]] = _drive(taken[1], port, own, stop)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)
            stop.ask()
        finally:
            with taking:
                cost.add(own)

    try:
        _run_in_threads(work, min(max(call.limit, 1), len(call.steps)), stop)
    finally:
        for steps in call.steps:
            steps.close()
    if errors:
        raise errors[0]  # the cause; the others come from stopping the rest
    return tuple(answers)


def _run_in_threads(work: Callable[[], None], count: int, stop: _Stop) -> None:
    with ThreadPoolExecutor(max(count, 1), "partita-parallel") as threads:
        started = [threads.submit(contextvars.copy_context().run, work) for _ in range(count)]
        try:
            wait(started)
        except BaseException:
            stop.ask()  # the executor then waits for the running calls
            raise
