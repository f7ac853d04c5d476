"""Retries of transactions: which errors are retried, and after which delay.

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
    UsageError,
)
from partita.reliable.collections.transaction import Status, Transaction
from partita.reliable.values.arguments import checked_count, checked_timeout
from partita.ticks import Clock

T = TypeVar("T")

ATTEMPTS = 8
FIRST_DELAY_SECONDS = 0.05
DELAY_SECONDS_MAX = 2.0
DEADLINE_SECONDS = 60.0

RETRIED = (LockTimeoutError, TransactionAbortedError, NotReadableError, StoreBusyError)


class Committed(msgspec.Struct, Generic[T], frozen=True):
    """The result of `state.run`: the function's result and the sequence of the commit.

    `commit_sequence` is None when the function wrote nothing.
    """

    value: T
    commit_sequence: int | None


class Backoff(msgspec.Struct, frozen=True):
    """The limits of retries; the delay before attempt n is random, below first_delay * 2**n."""

    attempts: int = ATTEMPTS
    first_delay: float = FIRST_DELAY_SECONDS
    max_delay: float = DELAY_SECONDS_MAX
    deadline: float = DEADLINE_SECONDS

    def checked(self) -> "Backoff":
        """Raise UsageError for invalid numbers."""
        if checked_count(self.attempts) == 0:
            raise UsageError("InvalidLimit", "attempts= must be at least 1.")
        for seconds in (self.first_delay, self.max_delay, self.deadline):
            checked_timeout(seconds)
        return self

    def delay(self, failures: int, clock: Clock) -> float:
        """Return the seconds to wait after this many failures."""
        ceiling = min(self.max_delay, self.first_delay * 2 ** min(failures - 1, 60))
        return float(ceiling * int.from_bytes(clock.random_bytes(4)) / 2**32)


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
    begin: Callable[[], Transaction], backoff: Backoff, clock: Clock
) -> AsyncIterator[Attempt]:
    """Yield attempts until one commits; the error of the last one is raised."""
    backoff = backoff.checked()
    started = clock.monotonic()
    for failures in range(1, backoff.attempts + 1):
        delay = backoff.delay(failures, clock)

        def is_last(number: int = failures, pause: float = delay) -> bool:
            spent = clock.monotonic() - started + pause
            return number == backoff.attempts or spent > backoff.deadline

        attempt = Attempt(begin, is_last=is_last)
        yield attempt
        if attempt.failure is None:
            return
        await asyncio.sleep(delay)


def is_worth_another_try(error: PartitaError, *, has_key: bool) -> bool:
    """Return whether a new transaction may succeed after this error."""
    return isinstance(error, RETRIED) or (has_key and isinstance(error, InDoubtError))
