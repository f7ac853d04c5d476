"""Trying a transaction again: which errors are worth it, how long to wait, exactly once.

Lock time-outs, deadlocks and aborts by the system are tried again on a new transaction, with
full jitter. A lost primary or a closed state is not: the answer is elsewhere. An answer that
was lost is tried again only under an idempotency key, which says whether it happened.
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
    """What `state.run` returns: the function's result and where it was committed.

    `commit_sequence` is None when the function wrote nothing.
    """

    value: T
    commit_sequence: int | None


class Backoff(msgspec.Struct, frozen=True):
    """How often and how long: the delay before attempt n is random below first * 2**n."""

    attempts: int = ATTEMPTS
    first_delay: float = FIRST_DELAY_SECONDS
    max_delay: float = DELAY_SECONDS_MAX
    deadline: float = DEADLINE_SECONDS

    def checked(self) -> "Backoff":
        """Refuse numbers that make no sense."""
        if checked_count(self.attempts) == 0:
            raise UsageError("InvalidLimit", "One attempt is the least: attempts=1.")
        for seconds in (self.first_delay, self.max_delay, self.deadline):
            checked_timeout(seconds)
        return self

    def delay(self, failures: int, clock: Clock) -> float:
        """Return the seconds to wait after so many failures."""
        ceiling = min(self.max_delay, self.first_delay * 2 ** min(failures - 1, 60))
        return float(ceiling * int.from_bytes(clock.random_bytes(4)) / 2**32)


class Attempt:
    """One try: `async with attempt as tx`. A failure worth another try is kept, not raised."""

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
    """Yield attempts until one commits; what the last one raises is raised."""
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
    """Say whether a new transaction may succeed where this one failed."""
    return isinstance(error, RETRIED) or (has_key and isinstance(error, InDoubtError))
