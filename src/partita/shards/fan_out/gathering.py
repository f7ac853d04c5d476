"""The rows and outcomes of one fan-out: which shards failed, and which rows can be returned.

It has no threads, no event loop, no clock. Rule: a shard is settled once, as succeeded, failed or
cancelled; later reports of the shard are ignored.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from partita.errors import PartitaError, SchemaMismatchError, ShardError, UsageError
from partita.shards.fan_out.merging import Fold, Merge, OrderedMerge, Reduce, UnionAll, sort_key
from partita.shards.fan_out.shard_reader import BATCH_ROWS, AnyRow, Shape, rows_of
from partita.shards.fan_out.shard_statement import OrderBy, ShardStatement, order_of_names
from partita.shards.keys.mapping import Shard

BUFFERED_ROWS = 2 * BATCH_ROWS
"""A shard that is this many rows ahead of the caller waits."""

Policy = Literal["complete", "partial"]
EventKind = Literal["began", "succeeded", "failed", "cancelled"]


class FanOutEvent(msgspec.Struct, frozen=True):
    """An event of one shard of a fan-out."""

    kind: EventKind
    shard: Shard
    error: ShardError | None = None
    rows: int = 0


OnEvent = Callable[[FanOutEvent], None]


class Gathering:
    """Rows and outcomes of all shards of one fan-out."""

    def __init__(
        self,
        shards: Sequence[Shard],
        plan: ShardStatement,
        *,
        policy: Policy = "complete",
        reduce: Reduce | None = None,
        order_by: OrderBy | Sequence[OrderBy] | None = None,
        limit: int | None = None,
    ) -> None:
        self.shards = tuple(shards)
        self.errors: dict[Shard, ShardError] = {}
        self._plan = plan
        self._policy = policy
        self._reduce = reduce
        self._order_by = order_by
        self._left = limit
        self._unsettled = set(range(len(self.shards)))
        self._shape: tuple[Shape, Shard] | None = None
        self._fold: Fold | None = None
        self._refusal: UsageError | None = None
        self._merge: Merge[AnyRow] = (
            OrderedMerge(len(self.shards), sort_key(plan.orderings))
            if plan.orderings
            else UnionAll(len(self.shards))
        )

    # --- reports of a shard -----------------------------------------------------------------------

    def answer(self, index: int, shape: Shape) -> None:
        """Take the columns of an answer; SchemaMismatchError if other shards have other columns."""
        if self._shape is None:
            self._shape = (shape, self.shards[index])
            self._begin_fold(shape)
            return
        expected, first = self._shape
        if not shape.fits(expected):
            raise SchemaMismatchError(
                "ShardColumnsDiffer",
                "The columns of the shard differ from those of the first shard that answered.",
                facts={
                    "columns": _described(shape),
                    "expected": _described(expected),
                    "expected_by": first.location.text,
                },
                hint="Upgrade the shards to one schema: fleet.check_drift() lists the differences.",
            )

    def _begin_fold(self, shape: Shape) -> None:
        if self._reduce is None:
            return
        try:
            self._fold = Fold(shape.names, self._reduce)
            if self._order_by is not None:
                order_of_names(shape.names, self._order_by)
        except UsageError as error:
            # Only an answer has the names of all columns. The option is wrong, not the shard.
            self._refusal = error

    def offer(self, index: int, rows: Sequence[AnyRow]) -> None:
        if index in self._unsettled:
            self._merge.offer(index, rows)

    def succeed(self, index: int) -> bool:
        """Settle the shard; return False if it was settled before."""
        return self._settle(index)

    def cancel(self, index: int) -> bool:
        return self._settle(index)

    def fail(self, index: int, error: ShardError) -> bool:
        if not self._settle(index):
            return False
        self.errors[self.shards[index]] = error
        return True

    def _settle(self, index: int) -> bool:
        if index not in self._unsettled:
            return False
        self._unsettled.discard(index)
        self._merge.end(index)
        return True

    # --- rows for the caller ----------------------------------------------------------------------

    @property
    def unsettled(self) -> list[int]:
        return sorted(self._unsettled)

    def has_room(self, index: int) -> bool:
        return self._merge.held(index) < BUFFERED_ROWS

    def take(self) -> list[AnyRow]:
        """Return rows that can be returned to the caller now."""
        if self._reduce is not None:
            return self._take_reduced()
        wanted = BATCH_ROWS if self._left is None else min(self._left, BATCH_ROWS)
        rows = self._merge.take(wanted)
        if self._left is not None:
            self._left -= len(rows)
        return self._visible(rows)

    @property
    def is_over(self) -> bool:
        """Whether, after take(), there are no more rows: limit reached or all shards settled."""
        return self._left == 0 or not self._unsettled

    @property
    def has_failed(self) -> bool:
        """Whether the fan-out has failed, whatever the other shards deliver."""
        is_broken = self._policy == "complete" and bool(self.errors)
        return is_broken or self._refusal is not None

    @property
    def is_lost(self) -> bool:
        return len(self.errors) == len(self.shards)

    def failure(self) -> Exception:
        """Return the error to raise, with the errors of all shards that failed."""
        return self._refusal if self._refusal is not None else self.group()

    def group(self) -> ExceptionGroup[ShardError]:
        count = f"{len(self.errors)} of {len(self.shards)} shards failed"
        return ExceptionGroup(count, list(self.errors.values()))

    def _take_reduced(self) -> list[AnyRow]:
        while rows := self._merge.take(BATCH_ROWS):
            assert self._fold is not None
            self._fold.add(rows)
        if self._unsettled or self._shape is None or self._fold is None or self.is_lost:
            return []
        fold, self._fold = self._fold, None
        names = self._shape[0].names
        values = list(fold.rows())
        if self._order_by is not None:
            values.sort(key=sort_key(order_of_names(names, self._order_by)))
        return rows_of(names, values[: self._left])

    def _visible(self, rows: list[AnyRow]) -> list[AnyRow]:
        if not self._plan.hidden or not rows:
            return rows
        assert self._shape is not None
        names = self._shape[0].names[: -self._plan.hidden]
        return rows_of(names, [row[: len(names)] for row in rows])


def _described(shape: Shape) -> Any:
    return tuple(zip(shape.names, shape.types[: len(shape.names)], strict=True)), shape.types[
        len(shape.names) :
    ]


# --- errors of one shard --------------------------------------------------------------------------


def failed(shard: Shard, cause: BaseException) -> ShardError:
    """Return the error of a shard; the message of the driver is only in its cause."""
    hint = cause.hint if isinstance(cause, PartitaError) and cause.hint else ""
    said = cause.message if isinstance(cause, PartitaError) else type(cause).__name__
    error = ShardError(
        "ShardFailed",
        f"The shard failed: {said}",
        facts={"shard": shard.location.text},
        hint=hint or "See its cause; policy='partial' returns the rows of the other shards.",
    )
    error.shard, error.cause, error.__cause__ = shard, cause, cause
    return error


def timed_out(shard: Shard, seconds: float, limit: str) -> ShardError:
    """Return the error of a shard that did not answer within `timeout` or `shard_timeout`."""
    cause = TimeoutError(f"no answer within {limit}={seconds:g} s")
    error = ShardError(
        "ShardTimedOut",
        f"The shard did not answer in time; its statement was cancelled ({cause}).",
        facts={"shard": shard.location.text, limit: seconds},
        hint=f"Check the load of the shard, or raise {limit}=.",
    )
    error.shard, error.cause, error.__cause__ = shard, cause, cause
    return error


def as_shard_error(shard: Shard, error: Exception, shard_timeout: float) -> ShardError:
    """Return the error of a shard for the exception that ended its reader."""
    if isinstance(error, TimeoutError):
        return timed_out(shard, shard_timeout, "shard_timeout")
    return failed(shard, error)
