"""Repeat a unit of work after a transient failure, each time through routing.

Transient failures are moves, lost connections and conflicts of transactions. Rule: work whose
commit was not answered is repeated only if the caller declares it idempotent.
"""

import asyncio
import functools
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

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
from partita.retrying import RetryPolicy
from partita.shards.routing.router import RoutedMap
from partita.shards.routing.session import RoutedSession, async_sessionmaker, sessionmaker
from partita.ticks import Clock

T = TypeVar("T")
S = TypeVar("S", bound=Session)
A = TypeVar("A", bound=AsyncSession)
AnySession = TypeVar("AnySession", bound=Session | AsyncSession)
P = ParamSpec("P")

_TRANSIENT = (MappingOfflineError, StaleMappingError, ShardOfflineError, OperationPendingError)
_TRANSIENT_STATES = ("57P01", "57P02", "57P03", "40001", "40P01")
_CONNECTION_STATES = "08"
_SQLITE_BUSY, _SQLITE_LOCKED = 5, 6


class Retry(msgspec.Struct, frozen=True):
    """A policy with fixed pauses, or with errors of your own; otherwise use `RetryPolicy`."""

    first: float = 0.05
    """Seconds of the first pause; it doubles each time, up to `longest`."""
    longest: float = 5.0
    budget: float = 30.0
    """Seconds after which no further attempt starts and the last error is raised."""
    tries: int | None = None
    is_jittered: bool = True
    also: Callable[[BaseException], bool] | None = None
    """Returns whether another error is transient as well."""

    @classmethod
    def fixed(cls, tries: int = 10, pause: float = 5.0) -> "Retry":
        """Return a fixed number of attempts with equal pauses."""
        return cls(first=pause, longest=pause, budget=float("inf"), tries=tries, is_jittered=False)

    @classmethod
    def never(cls) -> "Retry":
        return cls(tries=1)

    def pauses(self, clock: Clock) -> Iterator[float]:
        """Yield the pause before each further attempt, until tries or budget are used up."""
        end = clock.monotonic() + self.budget
        pause, left = self.first, self.tries
        while left is None or left > 1:
            # The jitter shortens a pause by up to half, so that clients do not retry together.
            share = int.from_bytes(clock.random_bytes(4), "big") / 2**33 if self.is_jittered else 0
            seconds = pause * (1 - share)
            if clock.monotonic() + seconds > end:
                return
            yield seconds
            pause = min(2 * pause, self.longest)
            left = None if left is None else left - 1


AnyPolicy = Retry | RetryPolicy


def pauses_of(policy: AnyPolicy, clock: Clock) -> Iterator[float]:
    """Yield the pause before each further attempt, until the policy allows none."""
    if isinstance(policy, Retry):
        yield from policy.pauses(clock)
        return
    began = clock.monotonic()
    for failures in itertools.count(1):
        if policy.is_last(failures, clock.monotonic() - began):
            return
        yield policy.delay(failures, clock)


@overload
def run(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[S], T],
    *,
    class_: type[S],
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
@overload
def run(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[RoutedSession], T],
    *,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
@overload
def run(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[..., T],
    argument: Any,
    *arguments: Any,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
def run(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[..., T],
    *arguments: Any,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T:
    """Call `fn(session, *arguments)` in a routed transaction, commit, and return its result.

    Each attempt has a session of its own. InDoubtError means that the answer to the commit was
    lost; with `idempotent=True` the work is repeated instead.
    """
    make = sessionmaker(shard_map, **options)
    attempts = _Attempts(shard_map, retry or Retry(), idempotent=idempotent)
    while True:
        session = make(key, **attempts.session_options)
        try:
            with session:
                outcome = fn(session, *arguments)
                _check_outcome(outcome)
                session.commit()
                return outcome
        except Exception as error:
            pause = attempts.pause_after(error, session)
            if pause is None:
                raise
        time.sleep(pause)


@overload
async def arun(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[A], Awaitable[T]],
    *,
    class_: type[A],
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
@overload
async def arun(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[[AsyncSession], Awaitable[T]],
    *,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
@overload
async def arun(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[..., Awaitable[T]],
    argument: Any,
    *arguments: Any,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T: ...
async def arun(
    shard_map: RoutedMap,
    key: Any,
    fn: Callable[..., Awaitable[T]],
    *arguments: Any,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> T:
    """Await `fn(session, *arguments)` in a routed transaction, as `run()` does."""
    make = async_sessionmaker(shard_map, **options)
    attempts = _Attempts(shard_map, retry or Retry(), idempotent=idempotent)
    while True:
        session = make(key, **attempts.session_options)
        try:
            async with session:
                work = fn(session, *arguments)
                _check_awaitable(work)
                outcome = await work
                await session.commit()
                return outcome
        except Exception as error:
            pause = attempts.pause_after(error, session.sync_session)
            if pause is None:
                raise
        await asyncio.sleep(pause)


class _Attempts:
    """Decides after a failed attempt whether, when and how the work is attempted again."""

    def __init__(self, shard_map: RoutedMap, policy: AnyPolicy, *, idempotent: bool) -> None:
        self.session_options: dict[str, bool] = {}
        """Options of the next session."""
        self._counters = shard_map.counters
        self._pauses = pauses_of(policy, shard_map.clock)
        self._also = policy.also if isinstance(policy, Retry) else None
        self._idempotent = idempotent

    def pause_after(self, error: Exception, session: Session) -> float | None:
        """Return the pause in seconds before the next attempt; None if there is none."""
        if isinstance(session, RoutedSession) and not self._idempotent:
            if session.is_in_doubt(error):
                raise _in_doubt(session) from error
            if session.has_committed:
                return None  # the part that has committed would be repeated
        if not is_transient(error) and (self._also is None or not self._also(error)):
            return None
        pause = next(self._pauses, None)
        if pause is None:
            return None
        self._counters.retries += 1
        if is_clash_on_sqlite(error) and not self.session_options:
            # It read before it wrote. The next attempt queues for the write lock, so no pause.
            self.session_options, pause = {"writes": True}, 0.0
        return pause


def routed(
    shard_map: RoutedMap,
    argument: str,
    *,
    retry: AnyPolicy | None = None,
    idempotent: bool = False,
    **options: Any,
) -> "Callable[[Callable[Concatenate[AnySession, P], T]], Callable[P, T]]":
    """Return a decorator that passes a routed session for the key in `argument`.

    The session is the first argument of the function; callers omit it. A coroutine function gets
    an async session.
    """
    if not isinstance(argument, str):
        raise _argument_missing(argument, argument)

    def decorate(function: Callable[Concatenate[AnySession, P], T]) -> Callable[P, T]:
        signature = _without_session(function, argument)

        def unit_of_work(*arguments: P.args, **named: P.kwargs) -> tuple[Any, Callable[[Any], Any]]:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            return bound.arguments[argument], lambda session: function(session, *arguments, **named)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: P.args, **named: P.kwargs) -> Any:
                key, fn = unit_of_work(*arguments, **named)
                return await arun(shard_map, key, fn, retry=retry, idempotent=idempotent, **options)

            return cast("Callable[P, T]", _with_signature(call_async, signature))

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            key, fn = unit_of_work(*arguments, **named)
            outcome: T = run(shard_map, key, fn, retry=retry, idempotent=idempotent, **options)
            return outcome

        return cast("Callable[P, T]", _with_signature(call, signature))

    return decorate


def is_transient(error: BaseException) -> bool:
    """Return whether the same work may succeed later, through routing."""
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
    """Return whether SQLite refused a lock, or a write on an old snapshot."""
    # The low byte of an extended code is the code: BUSY_SNAPSHOT is a BUSY.
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
    return code in {_SQLITE_BUSY, _SQLITE_LOCKED}


def _in_doubt(session: RoutedSession) -> InDoubtError:
    return InDoubtError(
        "CommitInDoubt",
        "The connection was lost before the commit was answered: it may have taken place.",
        facts={"map": session.shard_map.name},
        hint="Check whether the changes are stored. Pass idempotent=True if the work may be "
        "repeated.",
    )


def _check_outcome(outcome: object) -> None:
    if isinstance(outcome, CoroutineType | GeneratorType | AsyncGeneratorType):
        if isinstance(outcome, CoroutineType):
            outcome.close()
        raise _not_a_unit_of_work(
            "The function returned a coroutine or a generator, which would run after the commit.",
            "Use arun() for a coroutine function; return a list instead of yielding.",
        )


def _check_awaitable(work: object) -> None:
    if not inspect.isawaitable(work):
        raise _not_a_unit_of_work(
            "The function did not return an awaitable.",
            "Define it with async def, or use run().",
        )


def _not_a_unit_of_work(message: str, hint: str) -> UsageError:
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
