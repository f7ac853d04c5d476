"""The decisions of one fan-out: deadlines, the consistent view, and the outcome of each shard.

It has no threads, no event loop and does no I/O: `ThreadRun` and `TaskRun` read the shards, report
here, and wait as long as this says. ThreadRun calls it under its lock.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

from sqlalchemy.exc import OperationalError

from partita.errors import ShardError
from partita.shards.fan_out.gathering import (
    EventKind,
    FanOutEvent,
    as_shard_error,
    failed,
    timed_out,
)
from partita.shards.fan_out.plan import FanOutPlan, map_changing
from partita.shards.fan_out.shard_reader import AnyRow, ShardReader
from partita.shards.routing.retry import is_transient, pauses_of

OPEN_TRIES_MAX = 3
"""How many attempts a shard has if its pooled connections turn out to be broken."""
VIEW_PAUSE_SECONDS, VIEW_PAUSE_SECONDS_MAX = 0.005, 0.2
"""The pause between two readings of a map that is being changed; it doubles."""

_WAIT_SECONDS = 0.01
"""The minimum wait for a shard that has almost used up its time but is not working."""

Stage = Literal["new", "at the view", "reading", "released"]
"""A shard of a consistent fan-out waits at the view until all snapshots agree with the map."""


class ShardStream:
    """One shard of a fan-out: its reader, its stage, and how long it has worked."""

    def __init__(self, index: int, plan: FanOutPlan) -> None:
        self.index = index
        self.plan = plan
        self.shard = plan.shards[index]
        self.reader: ShardReader = plan.reader(index)
        self.stage: Stage = "new"
        self.local_ids: frozenset[str] = frozenset()
        """The mappings of the shard in its snapshot."""
        self.running_since: float | None = None
        self.pauses: Iterator[float] | None = None
        """The pauses that are left of the policy, once it was needed."""
        self._busy_seconds = 0.0

    def start_work(self) -> None:
        self.running_since = self.plan.clock.monotonic()

    def stop_work(self) -> float:
        """Return for how many seconds the shard has worked in all."""
        self._busy_seconds, self.running_since = self.busy(self.plan.clock.monotonic()), None
        return self._busy_seconds

    def busy(self, now: float) -> float:
        since = self.running_since
        return self._busy_seconds + (0.0 if since is None else now - since)


Stream = TypeVar("Stream", bound=ShardStream)


def _is_unreachable(error: Exception) -> bool:
    """Return whether no connection was opened: then drivers have no SQLSTATE."""
    if isinstance(error, OSError):
        return not isinstance(error, TimeoutError)
    return isinstance(error, OperationalError) and not getattr(error.orig, "sqlstate", None)


class RunState(Generic[Stream]):
    """The state of one fan-out and of its streams."""

    def __init__(self, plan: FanOutPlan, make: Callable[[int, FanOutPlan], Stream]) -> None:
        self.plan = plan
        self.gathering = plan.gathering()
        self.streams = [make(index, plan) for index in range(len(plan.shards))]
        self.is_view_agreed = plan.view is None
        self._view_pause = VIEW_PAUSE_SECONDS
        self._waited_seconds = 0.0
        self._listener_error: Exception | None = None
        self._counters = plan.shard_map.counters
        self._counters.fan_out_shards += len(plan.shards)

    @property
    def unsettled(self) -> list[Stream]:
        return [self.streams[index] for index in self.gathering.unsettled]

    # --- rows and deadlines -----------------------------------------------------------------------

    def take_rows(self) -> list[AnyRow] | None:
        """Return rows, an empty list at the end, or None if the caller must wait."""
        if self._listener_error is not None:
            raise self._listener_error
        if self.gathering.has_failed:
            raise self.gathering.failure()
        rows = self.gathering.take()
        if rows:
            return rows
        if self.gathering.is_lost:
            raise self.gathering.failure()
        return [] if self.gathering.is_over else None

    def wait_seconds(self, now: float) -> float | None:
        """Return how long the caller may wait before it must call `late`; None: no limit."""
        limit = self.plan.shard_timeout
        limits = [max(limit - stream.busy(now), _WAIT_SECONDS) for stream in self.unsettled]
        shortest = min([self.plan.timeout - self._waited_seconds, *limits])
        return None if shortest == float("inf") else max(0.0, shortest)

    def late(self, waited: float, now: float) -> list[tuple[Stream, ShardError]]:
        """Count the seconds that the caller has waited; return the shards that timed out."""
        self._waited_seconds += waited
        if self._waited_seconds >= self.plan.timeout:
            return [(stream, self._timed_out(stream)) for stream in self.unsettled]
        limit = self.plan.shard_timeout
        return [
            (stream, timed_out(stream.shard, limit, "shard_timeout"))
            for stream in self.unsettled
            if stream.busy(now) >= limit
        ]

    def _timed_out(self, stream: Stream) -> ShardError:
        if self.is_view_agreed or stream.stage != "at the view":
            return timed_out(stream.shard, self.plan.timeout, "timeout")
        return failed(stream.shard, map_changing(self.plan.shard_map))

    # --- the consistent view ----------------------------------------------------------------------

    @property
    def is_at_view(self) -> bool:
        """Whether all shards have taken a snapshot, and the map must be read."""
        unsettled = [] if self.is_view_agreed else self.unsettled
        return bool(unsettled) and all(
            stream.stage == "at the view" and stream.running_since is None for stream in unsettled
        )

    def stale_snapshots(self) -> list[Stream]:
        """Return the streams whose snapshot does not agree with the map that was just read."""
        view = self.plan.view
        assert view is not None
        return [
            stream for stream in self.unsettled if not view.agrees(stream.shard, stream.local_ids)
        ]

    def next_view_pause(self) -> float:
        """Return how long to wait before stale snapshots are taken again."""
        pause = self._view_pause
        self._waited_seconds += pause
        self._view_pause = min(2 * pause, VIEW_PAUSE_SECONDS_MAX)
        return pause

    def leave_view(self, stale: Sequence[Stream]) -> Sequence[Stream]:
        """Return the streams that continue: stale ones take a new snapshot, else all read."""
        self.is_view_agreed = not stale
        continuing = stale or self.unsettled
        for stream in continuing:
            stream.stage = "new" if stale else "reading"
        return continuing

    # --- outcomes ---------------------------------------------------------------------------------

    def pause_after(self, stream: Stream, error: Exception, tries: int) -> float | None:
        """Return the pause in seconds before the shard is asked again; None if it is not.

        Not after a row was read, and not after the view was agreed: a new snapshot may differ. A
        connection that was broken in its pool is replaced at once; other transient failures are
        repeated as the policy of the fan-out says.
        """
        if stream.reader.rows or not (self.plan.view is None or stream.stage == "new"):
            return None
        if getattr(error, "connection_invalidated", False) and tries < OPEN_TRIES_MAX:
            return 0.0
        if self.plan.retry is None or not (is_transient(error) or _is_unreachable(error)):
            return None
        if stream.pauses is None:
            stream.pauses = pauses_of(self.plan.retry, self.plan.clock)
        return next(stream.pauses, None)

    def settle(self, stream: Stream, error: Exception | None) -> EventKind | None:
        """Settle a shard; return the event to report, None if it was settled before."""
        if error is None:
            return "succeeded" if self.gathering.succeed(stream.index) else None
        failure = as_shard_error(stream.shard, error, self.plan.shard_timeout)
        if not self.gathering.fail(stream.index, failure):
            return None
        self._counters.fan_out_failures += 1
        return "failed"

    def fail(self, late: Sequence[tuple[Stream, ShardError]]) -> list[Stream]:
        """Settle the shards as failed; return those that were not settled before."""
        failed = [stream for stream, error in late if self.gathering.fail(stream.index, error)]
        self._counters.fan_out_failures += len(failed)
        return failed

    def cancel(self) -> list[Stream]:
        """Settle all other shards as cancelled and return them."""
        return [stream for stream in self.unsettled if self.gathering.cancel(stream.index)]

    def tell(self, kind: EventKind, stream: Stream, rows: int = 0) -> bool:
        """Call `on_event`; False if it raised: the error is raised where the caller waits."""
        if self.plan.on_event is None:
            return True
        error = self.gathering.errors.get(stream.shard)
        try:
            self.plan.on_event(FanOutEvent(kind, stream.shard, error, rows))
        except Exception as raised:  # noqa: BLE001 - take_rows() raises it
            self._listener_error = raised
            return False
        return True
