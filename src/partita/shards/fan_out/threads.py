"""A fan-out in threads: a few workers advance the streams of all shards, one batch at a time.

The caller takes rows and, while it waits, watches the deadlines; `RunState` decides. Rules: a
thread owns a stream only while it advances it, so a stream that is ahead of the caller holds its
connection but no thread; all threads end when the last connection is released.
"""

import itertools
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from partita.errors import ShardError
from partita.shards.fan_out.gathering import EventKind
from partita.shards.fan_out.plan import FanOutPlan, ReplanError
from partita.shards.fan_out.run_state import RunState, ShardStream
from partita.shards.fan_out.shard_reader import AnyRow

CLOSE_SECONDS_MAX = 5.0
"""How long close() waits for cancelled statements."""
CONNECT_SECONDS_MAX = 0.5
"""How long close() waits for connections that are being opened."""
CANCEL_SECONDS_MAX = 2.0
"""How long one request to cancel a statement may take."""
CANCEL_PAUSE_SECONDS, CANCEL_PAUSE_SECONDS_MAX = 0.02, 1.0
"""The pause between requests: one that arrives before its statement starts has no effect."""


class _CancelledError(Exception):
    """The stream was cancelled."""


class _ThreadStream(ShardStream):
    """A stream with its connection, whose statement other threads can interrupt."""

    def __init__(self, index: int, plan: FanOutPlan) -> None:
        super().__init__(index, plan)
        self.has_begun = self.is_cancelled = self.is_connecting = False
        self._connection: Connection | None = None
        self._driver: Any = None
        self._was_interrupted = False
        self._guard = threading.Lock()

    def open(self) -> None:
        """Connect and begin; with a view, read which mappings the snapshot has."""
        plan = self.plan
        engines = plan.shard_map.engines
        engine = engines.for_location(self.shard.location)
        connection = engines.idle.take(engine) if plan.is_single else None
        if connection is None:
            connection = self._connect(engine)
        with self._guard:
            self._connection = connection
            fairy = connection.connection
            self._driver = (
                fairy.driver_connection or fairy.dbapi_connection
            )  # detached from its pool
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
        """Ask the database to cancel the statement of this stream; from any thread."""
        with self._guard:
            if self._driver is not None:
                self._was_interrupted = True
                _interrupt(self._driver)

    def release(self, *, is_reusable: bool = False) -> None:
        """Return the connection to its pool; close it if it was interrupted."""
        if self._connection is None:
            return
        with self._guard:
            connection, self._connection, self._driver = self._connection, None, None
        reader = self.reader
        # A late interruption would hit the next user of the connection.
        if self._was_interrupted:
            if connection.dialect.name == "sqlite":
                # A cursor must be closed before its connection; SQLite has no server to wait for.
                with suppress(SQLAlchemyError):
                    reader.finish()
            connection.invalidate()
            self._was_interrupted = False
        try:
            reader.leave()
            if is_reusable and self._keeps(connection):
                return
            connection.close()
        except SQLAlchemyError:  # the connection may be broken
            if not connection.closed:
                connection.invalidate()
                connection.close()

    def _keeps(self, connection: Connection) -> bool:
        if connection.dialect.name != "sqlite" or not self.plan.is_single:
            return False
        return self.plan.shard_map.engines.idle.keep(connection)


def _interrupt(driver: Any) -> None:
    with suppress(Exception):  # a lost request is repeated; a lost server has nothing to cancel
        if hasattr(driver, "interrupt"):
            driver.interrupt()
        elif hasattr(driver, "cancel_safe"):
            driver.cancel_safe(timeout=CANCEL_SECONDS_MAX)
        elif hasattr(driver, "cancel"):
            driver.cancel()


class ThreadRun:
    """One running fan-out. `state` and the fields after `_lock` are used under that lock."""

    def __init__(self, plan: FanOutPlan) -> None:
        self.plan = plan
        self.state = RunState(plan, _ThreadStream)
        self.gathering = self.state.gathering
        self._clock = plan.clock
        self._telling = threading.RLock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._working = 0
        """The number of workers; a worker without work ends."""
        self.is_patient = plan.reduce is not None
        """Whether the caller is woken only at the end or when a buffer is full."""
        self._streams = self.state.streams
        self._unstarted = deque(self._streams)
        self._ready: deque[_ThreadStream] = deque()
        self._open: set[_ThreadStream] = set()
        self._canceller: threading.Thread | None = None
        try:
            with self._lock:
                self._engage()
        except BaseException:
            self.cancel()
            raise

    # --- called by the caller ---------------------------------------------------------------------

    def next_rows(self) -> list[AnyRow]:
        """Wait for rows; an empty list is the end."""
        while True:
            with self._lock:
                rows = self.state.take_rows()
                if rows is not None:
                    if rows:
                        self._resume()
                    return rows
                is_at_view = self.state.is_at_view
                late = [] if is_at_view else self._wait()
            if is_at_view:
                self._compare_view()
            elif late:
                self._fail_late(late)

    def cancel(self) -> None:
        """Stop all shards without waiting for them."""
        with self._lock:
            cancelled = self.state.cancel()
            self._unstarted.clear()
            self._stop(list(self._open))
        for stream in cancelled:
            self._tell("cancelled", stream)

    def close(self) -> None:
        """Stop all shards and wait until their connections are released."""
        self.cancel()
        with self._lock:
            self._changed.wait_for(lambda: not self._open, CONNECT_SECONDS_MAX)
            # A connection that is being opened cannot be interrupted: its thread ends after it.
            self._changed.wait_for(
                lambda: all(stream.is_connecting for stream in self._open), CLOSE_SECONDS_MAX
            )
            is_quiet = not self._open
        canceller = self._canceller
        if is_quiet and canceller is not None and canceller is not threading.current_thread():
            canceller.join(CLOSE_SECONDS_MAX)

    def _wait(self) -> list[tuple[_ThreadStream, ShardError]]:
        """Wait for a change; return the shards that timed out."""
        began = self._clock.monotonic()
        self._changed.wait(self.state.wait_seconds(began))
        now = self._clock.monotonic()
        return self.state.late(now - began, now)

    def _fail_late(self, late: list[tuple[_ThreadStream, ShardError]]) -> None:
        with self._lock:
            failures = self.state.fail(late)
            for stream in failures:
                with suppress(ValueError):
                    self._unstarted.remove(stream)
            self._stop(failures)
        for stream in failures:
            self._tell("failed", stream)

    def _stop(self, streams: list[_ThreadStream]) -> None:
        """Make workers release the streams; running ones are interrupted until they do."""
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
        """Continue the streams whose rows were taken."""
        if not self.state.is_view_agreed:
            return
        for stream in self._open:
            is_parked = stream.running_since is None and stream not in self._ready
            if is_parked and self.gathering.has_room(stream.index):
                self._ready.append(stream)
        self._engage()

    def _compare_view(self) -> None:
        view = self.plan.view
        assert view is not None
        if not view.load(self.plan):
            raise ReplanError
        with self._lock:
            stale = self.state.stale_snapshots()
            if stale:
                self._changed.wait_for(lambda: False, self.state.next_view_pause())
            self._ready.extend(self.state.leave_view(stale))
            self._engage()

    # --- called by the workers --------------------------------------------------------------------

    def _engage(self) -> None:
        """Start a worker for each stream that can be advanced, up to the maximum.

        A worker that has reported a batch takes the next stream itself: more workers than streams
        are never useful.
        """
        room = len(self._unstarted)
        if not self.plan.opens_all:
            room = min(room, self.plan.workers - len(self._open))
        free = min(self.plan.workers, len(self._streams)) - self._working
        for _ in range(min(len(self._ready) + max(0, room), free)):
            name = f"partita-fan-out-{self._working}"
            self.plan.shard_map.engines.workers.start(self._work, name)
            self._working += 1

    def _work(self) -> None:
        while (stream := self._next_stream()) is not None:
            self._advance(stream)

    def _next_stream(self) -> _ThreadStream | None:
        with self._lock:
            stream = self._pick()
            if stream is None:
                self._working -= 1
            else:
                stream.start_work()
            return stream

    def _pick(self) -> _ThreadStream | None:
        if self._ready:
            return self._ready.popleft()
        may_open = self.plan.opens_all or len(self._open) < self.plan.workers
        if not self._unstarted or not may_open:
            return None
        stream = self._unstarted.popleft()
        self._open.add(stream)
        return stream

    def _advance(self, stream: _ThreadStream) -> None:
        if not stream.has_begun and not stream.is_cancelled:
            stream.has_begun = True
            self._tell("began", stream)
        error: Exception | None = None
        rows: list[AnyRow] = []
        is_last = False
        try:
            rows, is_last = self._read(stream)
        except Exception as caught:  # noqa: BLE001 - any error is an outcome of this shard
            error = caught
        is_done = is_last or error is not None
        count = stream.reader.rows
        if is_done:
            stream.release(is_reusable=error is None and not stream.is_cancelled)
        event = self._report(stream, rows, error, is_done=is_done)
        if event is not None:
            self._tell(event, stream, count)

    def _read(self, stream: _ThreadStream) -> tuple[list[AnyRow], bool]:
        for tries in itertools.count(1):
            try:
                return self._read_once(stream)
            except (DBAPIError, OSError) as error:
                pause = self.state.pause_after(stream, error, tries)
                if stream.is_cancelled or pause is None:
                    raise
                stream.release()
                stream.stage = "new"
            with self._lock:
                self._changed.wait_for(lambda: stream.is_cancelled, pause)
        raise AssertionError

    def _read_once(self, stream: _ThreadStream) -> tuple[list[AnyRow], bool]:
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
            owned = None if view is None else view.owned(stream.shard)
            shape = stream.reader.execute(owned)
            with self._lock:
                self.gathering.answer(stream.index, shape)
        stream.check()
        return stream.reader.fetch()

    def _report(
        self, stream: _ThreadStream, rows: list[AnyRow], error: Exception | None, *, is_done: bool
    ) -> EventKind | None:
        with self._lock:
            event: EventKind | None = None
            if stream.stop_work() >= self.plan.shard_timeout and error is None:
                error = TimeoutError()
            if error is None:
                self.gathering.offer(stream.index, rows)
            if error is not None or is_done:
                event = self.state.settle(stream, error)
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
            return event

    def _has_more_to_do(self, stream: _ThreadStream) -> bool:
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

    def _tell(self, kind: EventKind, stream: _ThreadStream, rows: int = 0) -> None:
        if self.plan.on_event is None:
            return
        with self._telling:
            was_heard = self.state.tell(kind, stream, rows)
        if not was_heard:
            with self._lock:
                self._changed.notify_all()
