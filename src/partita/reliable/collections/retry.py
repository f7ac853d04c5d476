"""Retries of transactions: which errors are retried.

Lock time-outs, deadlocks and aborts by the system are retried with a new transaction, with full
jitter. A lost primary or a closed state is not retried: another replica must do the work. A
commit in doubt is retried only with an idempotency key, which shows whether it happened.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from partita.errors import (
    InDoubtError,
    LockTimeoutError,
    NotReadableError,
    PartitaError,
    StoreBusyError,
    TransactionAbortedError,
)
from partita.reliable.collections.transaction import Status, Transaction
from partita.retrying import RetryPolicy
from partita.ticks import Clock

T = TypeVar("T")

RETRIED = (LockTimeoutError, TransactionAbortedError, NotReadableError, StoreBusyError)


class Committed(msgspec.Struct, Generic[T], frozen=True):
    """The result of `state.run`: the function's result and the sequence of the commit.

    `commit_sequence` is None when the function wrote nothing.
    """

    value: T
    commit_sequence: int | None


def policy_of(
    retry: RetryPolicy | None,
    attempts: int | None,
    first_delay: float | None,
    max_delay: float | None,
    deadline: float | None,
) -> RetryPolicy:
    """Return the policy of a call: `retry`, changed by the single limits that were given."""
    single = {
        "attempts": attempts,
        "first_delay": first_delay,
        "max_delay": max_delay,
        "deadline": deadline,
    }
    given = {name: limit for name, limit in single.items() if limit is not None}
    return msgspec.structs.replace(retry or RetryPolicy(), **given).checked()


class Attempt:
    """One attempt: `async with attempt as tx`. An error that is retried is not raised."""

    def __init__(self, begin: Callable[[], Transaction], *, is_last: Callable[[], bool]) -> None:
        self._begin = begin
        self._is_last = is_last
        self._tx: Transaction | None = None
        self.failure: PartitaError | None = None

    @property
    def is_done(self) -> bool:
        return self._tx is not None and self._tx.status is Status.COMMITTED

    async def __aenter__(self) -> Transaction:
        self._tx = self._begin()
        return await self._tx.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._tx is not None
        try:
            await self._tx.__aexit__(kind, error, trace)
        except RETRIED as failure:
            error = failure
            if self._is_last():
                raise
        if not isinstance(error, RETRIED) or self._is_last():
            return False
        self.failure = error
        return True


async def attempts(
    begin: Callable[[], Transaction], policy: RetryPolicy, clock: Clock
) -> AsyncIterator[Attempt]:
    """Yield attempts until one commits; the error of the last one is raised."""
    started = clock.monotonic()
    for failures in range(1, policy.attempts + 1):
        delay = policy.delay(failures, clock)

        def is_last(number: int = failures, pause: float = delay) -> bool:
            return policy.is_last(number, clock.monotonic() - started + pause)

        attempt = Attempt(begin, is_last=is_last)
        yield attempt
        if attempt.failure is None:
            return
        await asyncio.sleep(delay)


def is_worth_another_try(error: PartitaError, *, has_key: bool) -> bool:
    """Return whether a new transaction may succeed after this error."""
    return isinstance(error, RETRIED) or (has_key and isinstance(error, InDoubtError))
