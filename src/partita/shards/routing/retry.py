"""Run a unit of work again, each time through routing: never on a connection that may be wrong.

Tried again is what a move, a lost connection or a clash of transactions causes. Rule: a commit
whose answer was lost is not repeated unless the caller says that repeating is harmless.
"""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from partita.errors import (
    InDoubtError,
    MappingOfflineError,
    OperationPendingError,
    ShardOfflineError,
    StaleMappingError,
    UsageError,
)
from partita.shards.routing.router import RoutedMap
from partita.shards.routing.session import (
    AsyncRoutedSessionmaker,
    RoutedSession,
    RoutedSessionmaker,
)
from partita.ticks import Clock

T = TypeVar("T")

_TRANSIENT = (MappingOfflineError, StaleMappingError, ShardOfflineError, OperationPendingError)
_TRANSIENT_STATES = ("57P01", "57P02", "57P03", "40001", "40P01")
_CONNECTION_STATES = "08"
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6


class Retry(msgspec.Struct, frozen=True):
    """How often, after which pauses and how long in all a unit of work is tried."""

    first: float = 0.05
    """Seconds of the first pause; each following one doubles."""
    longest: float = 5.0
    budget: float = 30.0
    """Seconds from the first failure after which no try is started; the last error is raised."""
    tries: int | None = None
    is_jittered: bool = True
    also: Callable[[BaseException], bool] | None = None
    """Tells which other errors are worth a try."""

    @classmethod
    def fixed(cls, tries: int = 10, pause: float = 5.0) -> "Retry":
        """Return the classic: so many tries with the same pause between them."""
        return cls(first=pause, longest=pause, budget=float("inf"), tries=tries, is_jittered=False)

    @classmethod
    def never(cls) -> "Retry":
        return cls(tries=1)

    def pauses(self, clock: Clock) -> Iterator[float]:
        """Give the seconds to wait before each further try, until tries or budget are used up."""
        end = clock.monotonic() + self.budget
        pause, left = self.first, self.tries
        while left is None or left > 1:
            # The jitter takes away up to half: clients that failed together come back apart.
            share = int.from_bytes(clock.random_bytes(4), "big") / 2**33 if self.is_jittered else 0
            seconds = pause * (1 - share)
            if clock.monotonic() + seconds > end:
                return
            yield seconds
            pause = min(2 * pause, self.longest)
            left = None if left is None else left - 1


def run(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[RoutedSession], T],
    *,
    retry: Retry | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T:
    """Call `fn(session)` in a routed transaction, commit, and return what it returned.

    Each try has a session of its own. An InDoubtError says that the answer to the commit was lost;
    with `idempotent=True` the work is repeated instead.
    """
    make = RoutedSessionmaker(shard_map, **options)
    policy = retry or Retry()
    pauses = policy.pauses(shard_map.clock)
    again: dict[str, bool] = {}
    while True:
        session = make(key, **again)
        try:
            with session:
                outcome = fn(session)
                _check_outcome(outcome)
                session.commit()
                return outcome
        except Exception as error:
            pause = _pause_after(error, session, policy, pauses, idempotent=idempotent)
            if pause is None:
                raise
            shard_map.counters.retries += 1
            if is_clash_on_sqlite(error) and not again:
                # It read before it wrote. The next try waits for its turn instead of a pause.
                again, pause = {"writes": True}, 0.0
        time.sleep(pause)


async def arun(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[AsyncSession], Awaitable[T]],
    *,
    retry: Retry | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T:
    """Await `fn(session)` in a routed transaction: the async twin of `run()`."""
    make = AsyncRoutedSessionmaker(shard_map, **options)
    policy = retry or Retry()
    pauses = policy.pauses(shard_map.clock)
    again: dict[str, bool] = {}
    while True:
        session = make(key, **again)
        try:
            async with session:
                work = fn(session)
                _check_awaitable(work)
                outcome = await work
                await session.commit()
                return outcome
        except Exception as error:
            pause = _pause_after(error, session.sync_session, policy, pauses, idempotent=idempotent)
            if pause is None:
                raise
            shard_map.counters.retries += 1
            if is_clash_on_sqlite(error) and not again:
                # It read before it wrote. The next try waits for its turn instead of a pause.
                again, pause = {"writes": True}, 0.0
        await asyncio.sleep(pause)


def routed(
    shard_map: RoutedMap,
    argument: str,
    *,
    retry: Retry | None = None,
    idempotent: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the function gets a routed session first, by the key in `argument`.

    Callers leave the session out. A coroutine function gets an async session.
    """
    if not isinstance(argument, str):
        raise _argument_missing(argument, argument)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = _without_session(function, argument)

        def unit_of_work(*arguments: Any, **named: Any) -> tuple[Any, Callable[[Any], Any]]:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            return bound.arguments[argument], lambda session: function(session, *arguments, **named)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: Any, **named: Any) -> Any:
                key, fn = unit_of_work(*arguments, **named)
                return await arun(shard_map, key, fn, retry=retry, idempotent=idempotent, **options)

            return _with_signature(call_async, signature)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            key, fn = unit_of_work(*arguments, **named)
            return run(shard_map, key, fn, retry=retry, idempotent=idempotent, **options)

        return _with_signature(call, signature)

    return decorate


def is_transient(error: BaseException) -> bool:
    """Tell whether the same work may succeed through routing, a little later."""
    if isinstance(error, _TRANSIENT):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _TRANSIENT_STATES or state.startswith(_CONNECTION_STATES):
        return True
    return is_clash_on_sqlite(error)


def is_clash_on_sqlite(error: BaseException) -> bool:
    """Return whether SQLite refused a lock, or to write from an old snapshot."""
    # The low byte of SQLite's extended codes is the code: BUSY_SNAPSHOT is a BUSY.
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
    return code in {_SQLITE_BUSY, _SQLITE_LOCKED}


def _pause_after(
    error: Exception,
    session: Session,
    policy: Retry,
    pauses: Iterator[float],
    *,
    idempotent: bool,
) -> float | None:
    if isinstance(session, RoutedSession) and session.is_in_doubt(error) and not idempotent:
        raise InDoubtError(
            "CommitInDoubt",
            "The connection was lost while the commit was answered: it may have taken place.",
            facts={"map": session.shard_map.name},
            hint="Read whether the work is there. If doing it twice is harmless, idempotent=True "
            "repeats it.",
        ) from error
    if isinstance(session, RoutedSession) and session.has_committed and not idempotent:
        return None  # because the work has committed a part of itself, which would be done twice
    if is_transient(error) or (policy.also is not None and policy.also(error)):
        return next(pauses, None)
    return None


def _check_outcome(outcome: object) -> None:
    if isinstance(outcome, CoroutineType | GeneratorType | AsyncGeneratorType):
        if isinstance(outcome, CoroutineType):
            outcome.close()
        raise _no_unit_of_work(
            "The function gave a coroutine or a generator, which would run after the commit.",
            "Use arun() for coroutine functions; return a list instead of yielding.",
        )


def _check_awaitable(work: object) -> None:
    if not inspect.isawaitable(work):
        raise _no_unit_of_work(
            "The function gave nothing that can be awaited.",
            "Write it with async def, or use run().",
        )


def _no_unit_of_work(message: str, hint: str) -> UsageError:
    return UsageError("NotAUnitOfWork", message, hint=hint)


def _without_session(function: Callable[..., Any], argument: str) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    if argument in [parameter.name for parameter in parameters]:
        return signature.replace(parameters=parameters)
    raise _argument_missing(function, argument)


def _argument_missing(function: object, argument: object) -> UsageError:
    return UsageError(
        "RoutedArgumentMissing",
        f"The function has no argument {argument!r} after its session.",
        facts={"function": getattr(function, "__qualname__", repr(function))},
        hint="Name the argument that holds the sharding key: @map.routed('tenant_id').",
    )


def _with_signature(
    function: Callable[..., Any], signature: inspect.Signature
) -> Callable[..., Any]:
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
