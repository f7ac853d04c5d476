"""Runs functions in transactions: retries, and exactly once with an idempotency key."""

import asyncio
import typing
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from partita.errors import InDoubtError, PartitaError, UsageError
from partita.reliable.collections import retry
from partita.reliable.collections.retry import Committed
from partita.reliable.collections.transaction import OUTCOMES, Core, Status, Transaction
from partita.reliable.manager.descriptions import LockedCollection
from partita.reliable.state.locks import LockMode
from partita.reliable.state.records import Outcome
from partita.reliable.state.state import Collection, Description
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_idempotency_key
from partita.reliable.values.serialization import decode_result, encode_result
from partita.retrying import RetryPolicy
from partita.ticks import TICKS_PER_SECOND

T = TypeVar("T")

_OUTCOME_LOCK = LockedCollection(Collection(OUTCOMES, Description("idempotency keys", "outcomes")))


class Runner:
    """Runs functions in transactions of one state."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(
        self,
        function: Callable[..., Awaitable[T]],
        *arguments: Any,
        begin: Callable[[], Transaction] | None = None,
        idempotency_key: str | None = None,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> Committed[T]:
        """Run `await function(tx, *arguments)`, again after errors that a retry may resolve."""
        begin, clock = begin or self._core.transaction, self._core.clock
        started = clock.monotonic()
        failures = 0
        doubt: InDoubtError | None = None
        if idempotency_key is not None:
            checked_idempotency_key(idempotency_key)
        while True:
            try:
                return await self._try(begin, function, arguments, idempotency_key)
            except PartitaError as error:
                failures += 1
                doubt = error if isinstance(error, InDoubtError) else doubt
                delay = policy.delay(failures, clock)
                spent = clock.monotonic() - started + delay
                has_key = idempotency_key is not None
                if policy.is_last(failures, spent) or (
                    not retry.is_worth_another_try(error, has_key=has_key)
                ):
                    # A later error does not resolve the doubt: the first try may be in the log.
                    raise doubt or error from (error if doubt is not None else error.__cause__)
            await asyncio.sleep(delay)

    def outcome(self, idempotency_key: str, result_type: Any) -> Committed[Any] | None:
        """Return what a run with this key has committed, None if there is no outcome."""
        checked_idempotency_key(idempotency_key)
        self._core.check_open()
        kept = self._core.state.outcomes.get(idempotency_key)
        if kept is None or kept.expires <= self._core.now():
            return None
        return Committed(decode_result(kept.result, result_type), kept.sequence)

    async def _try(
        self,
        begin: Callable[[], Transaction],
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        idempotency_key: str | None,
    ) -> Committed[T]:
        async with begin() as tx:
            if idempotency_key is None:
                value = await _called(function, tx, arguments)
            else:
                result_type = _result_type(function)
                await tx.lock(_OUTCOME_LOCK, idempotency_key.encode(), LockMode.EXCLUSIVE, None)
                kept = self.outcome(idempotency_key, result_type)
                if kept is not None:
                    return kept
                tx.check_writable()
                tx.keeps_outcome = True
                result = encode_result(await _called(function, tx, arguments))
                expires = tx.now + round(limits.OUTCOME_SECONDS_KEPT * TICKS_PER_SECOND)
                tx.keeps_outcome = False
                tx.stage_operations([Outcome(idempotency_key, result, expires)])
                value = decode_result(result, result_type)
            if tx.status is Status.ACTIVE:
                await tx.commit()
            return Committed(value, tx.commit_sequence)


def _called(
    function: Callable[..., Awaitable[T]], tx: Transaction, arguments: tuple[Any, ...]
) -> Awaitable[T]:
    taken: object = function
    given: object = taken(tx, *arguments) if callable(taken) else taken
    if not isinstance(given, Awaitable):
        raise UsageError(
            "FunctionNotAsync",
            f"run() takes a coroutine function; this one returned {type(given).__name__}.",
            hint="Define it with `async def`.",
        )
    return given


def _result_type(function: Callable[..., Any]) -> Any:
    """Return the return annotation of a function, Any without one."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError, AttributeError):  # an annotation that only checkers resolve
        return Any
