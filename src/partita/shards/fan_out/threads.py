"""A fan-out in threads: a few workers advance the readers of all shards, one batch at a time.

The caller takes rows and, while it waits, watches the time limits. Rules: a thread owns a reader
only while it advances it, so a reader that is ahead holds its connection, never a thread; every
thread ends when the last connection is given back.
"""

import threading
from collections import deque
from contextlib import suppress
from typing import Any, Literal

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from partita.errors import ShardError
from partita.shards.fan_out.gathering import (
    EventKind,
    FanOutEvent,
    as_shard_error,
    failed,
    timed_out,
)
from partita.shards.fan_out.plan import (
    OPEN_TRIES_MAX,
    VIEW_PAUSE_SECONDS,
    VIEW_PAUSE_SECONDS_MAX,
    FanOutPlan,
    ReplanError,
    map_changing,
)
from partita.shards.fan_out.shard_reader import AnyRow, ShardReader
from partita.shards.keys.mapping import Shard

CLOSE_SECONDS_MAX = 5.0
"""How long close() waits for statements that were cancelled."""
CONNECT_SECONDS_MAX = 0.5
"""How long close() waits for connections that are just being made."""
CANCEL_SECONDS_MAX = 2.0
"""How long one request to cancel a statement may take."""
CANCEL_PAUSE_SECONDS, CANCEL_PAUSE_SECONDS_MAX = 0.02, 1.0
"""Between requests: one that comes just before a statement starts is lost."""


class _CancelledError(Exception):
    """The reader was stopped from outside."""


Stage = Literal["new", "at the view", "reading", "released"]


class _Stream:
    """One shard's reader with its connection, and the way to interrupt it from outside."""

    def __init__(self, index: int, plan: FanOutPlan) -> None:
        self.index = index
        self.stage: Stage = "new"
        self.local_ids: frozenset[str] = frozenset()
        self.busy_seconds = 0.0
        self.running_since: float | None = None
        self.has_begun = self.is_cancelled = self.is_connecting = False
        self._plan = plan
        self._connection: Connection | None = None
        self._driver: Any = None
        self._was_interrupted = False
        self._guard = threading.Lock()
        self.reader: ShardReader = plan.reader(index)

    def open(self) -> None:
        """Connect and begin; with a view, read which mappings the snapshot has."""
        plan = self._plan
        engines = plan.shard_map.engines
        engine = engines.for_location(plan.shards[self.index].location)
        connection = engines.idle.take(engine) if plan.is_single else None
        if connection is None:
            connection = self._connect(engine)
        with self._guard:
            self._connection = connection
            fairy = connection.connection
            self._driver = fairy.driver_connection or fairy.dbapi_connection  # if in no pool
        self.check()
        view = plan.view
        self.reader.begin(connection, snapshot=view is not None)
        if view is not None:
            self.local_ids = self.reader.local_mappings(view.shard_map.id)

    def _connect(self, engine: Engine) -> Connection:
        self.is_connecting = True
        try:
            return engine.connect()
        finally:
            self.is_connecting = False

    def check(self) -> None:
        if self.is_cancelled:
            raise _CancelledError

    def interrupt(self) -> None:
        """Ask the database to give up what it runs for this stream; from any thread."""
        with self._guard:
            if self._driver is not None:
                self._was_interrupted = True
                _interrupt(self._driver)

    def release(self, *, is_reusable: bool = False) -> None:
        """Give the connection back; one that was interrupted is closed for good."""
        if self._connection is None:
            return
        with self._guard:
            connection, self._connection, self._driver = self._connection, None, None
        reader = self.reader
        # An interruption may still be under way and would hit the next user of the connection.
        if self._was_interrupted:
            if connection.dialect.name == "sqlite":
                # It waits for no server, and a cursor must be closed before its connection.
                with suppress(SQLAlchemyError):
                    reader.finish()
            connection.invalidate()
            self._was_interrupted = False
        try:
            reader.leave()
            if is_reusable and self._keeps(connection):
                return
            connection.close()
        except SQLAlchemyError:  # because the connection may be what failed
            if not connection.closed:
                connection.invalidate()
                connection.close()

    def _keeps(self, connection: Connection) -> bool:
        is_file = connection.dialect.name == "sqlite"
        return (
            is_file and self._plan.is_single and self._plan.shard_map.engines.idle.keep(connection)
        )


def _interrupt(driver: Any) -> None:
    with suppress(Exception):  # because a lost request is repeated, and a lost server has no work
        if hasattr(driver, "interrupt"):
            driver.interrupt()
        elif hasattr(driver, "cancel_safe"):
            driver.cancel_safe(timeout=CANCEL_SECONDS_MAX)
        elif hasattr(driver, "cancel"):
            driver.cancel()


class ThreadRun:
    """One fan-out under way. Everything below `_lock` is read and written under it."""

    def __init__(self, plan: FanOutPlan) -> None:
        self.plan = plan
        self.gathering = plan.gathering()
        self._clock = plan.clock
        self._waited_seconds = 0.0
        self._telling = threading.RLock()
        self._listener_error: Exception | None = None
        self._view_stands = plan.view is None
        self._view_pause = VIEW_PAUSE_SECONDS
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._working = 0
        """How many workers there are: one that finds nothing to do ends."""
        self.is_patient = plan.reduce is not None
        """Whether the caller need not be woken before there is an end or a full buffer."""
        self._streams = [_Stream(index, plan) for index in range(len(plan.shards))]
        self._unstarted = deque(self._streams)
        self._ready: deque[_Stream] = deque()
        self._open: set[_Stream] = set()
        self._canceller: threading.Thread | None = None
        try:
            with self._lock:
                self._engage()
        except BaseException:
            self.cancel()
            raise

    # --- the caller's side ------------------------------------------------------------------------

    def next_rows(self) -> list[AnyRow]:
        """Wait for rows; an empty list is the end."""
        while True:
            with self._lock:
                if self._listener_error is not None:
                    raise self._listener_error
                if self.gathering.has_failed:
                    raise self.gathering.failure()
                rows = self.gathering.take()
                if rows:
                    self._resume()
                    return rows
                if self.gathering.is_lost:
                    raise self.gathering.failure()
                if self.gathering.is_over:
                    return []
                is_at_view = self._is_at_view()
                late = [] if is_at_view else self._wait()
            if is_at_view:
                self._look_at_the_map()
            elif late:
                self._fail_late(late)

    def cancel(self) -> None:
        """Stop all shards without waiting for them."""
        with self._lock:
            cancelled = [i for i in self.gathering.unsettled if self.gathering.cancel(i)]
            self._unstarted.clear()
            self._stop(list(self._open))
        for index in cancelled:
            self._tell("cancelled", index)

    def close(self) -> None:
        """Stop all shards and wait until their connections are given back."""
        self.cancel()
        with self._lock:
            self._changed.wait_for(lambda: not self._open, CONNECT_SECONDS_MAX)
            # Nobody can interrupt a connection that is being made: its thread ends after it.
            self._changed.wait_for(
                lambda: all(stream.is_connecting for stream in self._open), CLOSE_SECONDS_MAX
            )
            is_quiet = not self._open
        canceller = self._canceller
        if is_quiet and canceller is not None and canceller is not threading.current_thread():
            canceller.join(CLOSE_SECONDS_MAX)

    def _wait(self) -> list[tuple[_Stream, ShardError]]:
        """Wait for a change, and return the shards whose time is over."""
        began = self._clock.monotonic()
        self._changed.wait(self._patience(began))
        now = self._clock.monotonic()
        self._waited_seconds += now - began
        if self._waited_seconds >= self.plan.timeout:
            return [(self._streams[i], self._out_of_time(i)) for i in self.gathering.unsettled]
        limit = self.plan.shard_timeout
        return [
            (stream, timed_out(self._shard(stream), limit, "shard_timeout"))
            for stream in self._open
            if self.gathering.is_open(stream.index) and _busy(stream, now) >= limit
        ]

    def _patience(self, now: float) -> float | None:
        left = [self.plan.shard_timeout - _busy(stream, now) for stream in self._open]
        # A shard that begins meanwhile has all of its time before it.
        shortest = min([self.plan.timeout - self._waited_seconds, self.plan.shard_timeout, *left])
        return None if shortest == float("inf") else max(0.0, shortest)

    def _out_of_time(self, index: int) -> ShardError:
        shard = self.plan.shards[index]
        if self._view_stands or self._streams[index].stage != "at the view":
            return timed_out(shard, self.plan.timeout, "timeout")
        return failed(shard, map_changing(self.plan.shard_map))

    def _fail_late(self, late: list[tuple[_Stream, ShardError]]) -> None:
        with self._lock:
            failures = [
                (stream, error)
                for stream, error in late
                if self.gathering.fail(stream.index, error)
            ]
            for stream, _ in failures:
                with suppress(ValueError):
                    self._unstarted.remove(stream)
            self._stop([stream for stream, _ in failures])
        for stream, error in failures:
            self._tell("failed", stream.index, error)

    def _stop(self, streams: list[_Stream]) -> None:
        """Make workers release the streams; those that run are interrupted until they do."""
        running = []
        for stream in streams:
            stream.is_cancelled = True
            if stream.running_since is not None:
                running.append(stream)
            elif stream in self._open and stream not in self._ready:
                self._ready.append(stream)
        if running and (self._canceller is None or not self._canceller.is_alive()):
            self._canceller = threading.Thread(
                target=self._cancel_running, name="partita-fan-out-cancel", daemon=True
            )
            self._canceller.start()
        self._engage()
        self._changed.notify_all()

    def _resume(self) -> None:
        """Let the streams go on whose rows were taken."""
        if not self._view_stands:
            return
        for stream in self._open:
            is_parked = stream.running_since is None and stream not in self._ready
            if is_parked and self.gathering.has_room(stream.index):
                self._ready.append(stream)
        self._engage()

    # --- a consistent view ------------------------------------------------------------------------

    def _is_at_view(self) -> bool:
        if self._view_stands:
            return False
        unsettled = self.gathering.unsettled
        return bool(unsettled) and all(
            self._streams[i].stage == "at the view" and self._streams[i].running_since is None
            for i in unsettled
        )

    def _look_at_the_map(self) -> None:
        view = self.plan.view
        assert view is not None
        if not view.load(self.plan):
            raise ReplanError
        with self._lock:
            streams = [self._streams[i] for i in self.gathering.unsettled]
            stale = [s for s in streams if not view.agrees(self._shard(s), s.local_ids)]
            if stale:
                self._pause()
            self._view_stands = not stale
            for stream in stale or streams:
                # A stale snapshot is taken anew; the others are kept as they are.
                stream.stage = "new" if stale else "reading"
                self._ready.append(stream)
            self._engage()

    def _pause(self) -> None:
        self._changed.wait_for(lambda: False, self._view_pause)
        self._waited_seconds += self._view_pause
        self._view_pause = min(2 * self._view_pause, VIEW_PAUSE_SECONDS_MAX)

    # --- the workers' side ------------------------------------------------------------------------

    def _engage(self) -> None:
        """Start as many workers as there are streams to advance."""
        room = len(self._unstarted)
        if not self.plan.opens_all:
            room = min(room, self.plan.workers - len(self._open))
        for _ in range(min(len(self._ready) + max(0, room), self.plan.workers - self._working)):
            name = f"partita-fan-out-{self._working}"
            self.plan.shard_map.engines.workers.start(self._work, name)
            self._working += 1

    def _work(self) -> None:
        while (stream := self._next_stream()) is not None:
            self._advance(stream)

    def _next_stream(self) -> _Stream | None:
        with self._lock:
            stream = self._pick()
            if stream is None:
                self._working -= 1
            else:
                stream.running_since = self._clock.monotonic()
            return stream

    def _pick(self) -> _Stream | None:
        if self._ready:
            return self._ready.popleft()
        may_open = self.plan.opens_all or len(self._open) < self.plan.workers
        if not self._unstarted or not may_open:
            return None
        stream = self._unstarted.popleft()
        self._open.add(stream)
        return stream

    def _advance(self, stream: _Stream) -> None:
        if not stream.has_begun and not stream.is_cancelled:
            stream.has_begun = True
            self._tell("began", stream.index)
        error: Exception | None = None
        rows: list[AnyRow] = []
        is_last = False
        try:
            rows, is_last = self._read(stream)
        except Exception as caught:  # noqa: BLE001 - whatever it is, it belongs to this shard
            error = caught
        is_done = is_last or error is not None
        count = stream.reader.rows
        if is_done:
            stream.release(is_reusable=error is None and not stream.is_cancelled)
        outcome = self._report(stream, rows, error, is_done=is_done)
        if outcome is not None and self.plan.on_event is not None:
            self._tell(outcome, stream.index, self.gathering.errors.get(self._shard(stream)), count)

    def _read(self, stream: _Stream) -> tuple[list[AnyRow], bool]:
        for tries in range(1, OPEN_TRIES_MAX + 1):
            try:
                return self._read_once(stream)
            except DBAPIError as error:
                # Nothing was read yet: a connection that died in the pool is replaced. Not after
                # the view was agreed on: a new snapshot may show another state.
                is_first = stream.reader.rows == 0 and (
                    self.plan.view is None or stream.stage == "new"
                )
                is_dead = error.connection_invalidated and is_first and not stream.is_cancelled
                if not is_dead or tries == OPEN_TRIES_MAX:
                    raise
                stream.release()
                stream.stage = "new"
        raise AssertionError

    def _read_once(self, stream: _Stream) -> tuple[list[AnyRow], bool]:
        stream.check()
        if stream.stage == "new":
            stream.release()
            stream.open()
            if self.plan.view is not None:
                stream.stage = "at the view"
                return [], False
            stream.stage = "reading"
        if not stream.reader.is_executing:
            view = self.plan.view
            owned = None if view is None else view.owned(self._shard(stream))
            shape = stream.reader.execute(owned)
            with self._lock:
                self.gathering.answer(stream.index, shape)
        stream.check()
        return stream.reader.fetch()

    def _report(
        self, stream: _Stream, rows: list[AnyRow], error: Exception | None, *, is_done: bool
    ) -> EventKind | None:
        with self._lock:
            now = self._clock.monotonic()
            stream.busy_seconds, stream.running_since = _busy(stream, now), None
            limit = self.plan.shard_timeout
            outcome: EventKind | None = None
            if error is None and stream.busy_seconds >= limit:
                error = TimeoutError()
            if error is None:
                self.gathering.offer(stream.index, rows)
            elif self.gathering.fail(
                stream.index, as_shard_error(self._shard(stream), error, limit)
            ):
                outcome = "failed"
            if error is None and is_done and self.gathering.succeed(stream.index):
                outcome = "succeeded"
            if is_done:
                stream.stage = "released"
                self._open.discard(stream)
            elif error is not None or stream.is_cancelled or self._has_more_to_do(stream):
                stream.is_cancelled = stream.is_cancelled or error is not None
                self._ready.append(stream)
            has_ended = not self._open and not self._unstarted
            waits = not is_done and stream not in self._ready
            if not self.is_patient or has_ended or waits or error is not None:
                self._changed.notify_all()
            return outcome

    def _has_more_to_do(self, stream: _Stream) -> bool:
        return stream.stage == "reading" and self.gathering.has_room(stream.index)

    def _cancel_running(self) -> None:
        pause = CANCEL_PAUSE_SECONDS
        while True:
            with self._lock:
                running = [s for s in self._open if s.is_cancelled and s.running_since is not None]
            if not running:
                return
            for stream in running:
                stream.interrupt()
            with self._lock:
                self._changed.wait(pause)
            pause = min(2 * pause, CANCEL_PAUSE_SECONDS_MAX)

    # --- small things -----------------------------------------------------------------------------

    def _shard(self, stream: _Stream) -> Shard:
        return self.plan.shards[stream.index]

    def _tell(
        self, kind: EventKind, index: int, error: ShardError | None = None, rows: int = 0
    ) -> None:
        if self.plan.on_event is None:
            return
        try:
            with self._telling:
                self.plan.on_event(FanOutEvent(kind, self.plan.shards[index], error, rows))
        except Exception as raised:  # noqa: BLE001 - it is raised again where the caller waits
            with self._lock:
                self._listener_error = raised
                self._changed.notify_all()


def _busy(stream: _Stream, now: float) -> float:
    since = stream.running_since
    return stream.busy_seconds + (0.0 if since is None else now - since)
