"""The async twin of fan_out: one task a shard on async engines, the same results and limits.

Rule: SQLAlchemy's synchronous reader runs in the greenlet of each async connection, so that what
a shard is asked and how its rows are read is written once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any, Self, TypeVar, Unpack

from sqlalchemy import Engine, Executable, func, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

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
    REPLANS_MAX,
    VIEW_PAUSE_SECONDS,
    VIEW_PAUSE_SECONDS_MAX,
    FannedMap,
    FanOutOptions,
    FanOutPlan,
    ReplanError,
    changes_too_fast,
    check_statement,
    fan_out_plan,
    map_changing,
)
from partita.shards.fan_out.shard_reader import AnyRow, ShardReader
from partita.shards.keys.mapping import Shard

CONNECT_SECONDS_MAX = 2.0
"""How long a cancelled fan-out waits for a connection that is just being made."""
INTERRUPT_PAUSE_SECONDS = 0.02
"""Between interruptions of SQLite: one that comes just before a statement starts is lost."""

T = TypeVar("T")


def afan_out(
    shard_map: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
) -> "AsyncFanOutResult":
    """Run a SELECT on many shards and return their rows for `async for`; see `fan_out`.

    It begins with the first row that is asked for. `on_event` is called in the event loop.
    """
    return AsyncFanOutResult(shard_map, statement, options)


class AsyncFanOutResult:
    """The rows of all shards; iterate it once, and close it (`async with`) when you stop early."""

    def __init__(self, shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> None:
        check_statement(statement, options)
        self._asked = (shard_map, statement, options)
        self._rows: Iterator[AnyRow] = iter(())
        self._is_over = False
        self._run: _TaskRun | None = None
        shard_map.counters.fan_outs += 1

    @property
    def errors(self) -> dict[Shard, ShardError]:
        """The shards that failed, so far or at the end."""
        return {} if self._run is None else dict(self._run.gathering.errors)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of the shards that failed, if any did."""
        if self._run is not None and self._run.gathering.errors:
            raise self._run.gathering.group()

    async def all(self) -> list[AnyRow]:
        """Return the rows that are left."""
        return [row async for row in self]

    async def scalar(self) -> Any:
        """Return the first value of the next row, or None, and close."""
        async with self:
            row = await anext(self, None)
        return None if row is None else row[0]

    async def aclose(self) -> None:
        """Cancel what still runs; more than once does no harm."""
        self._is_over = True
        self._rows = iter(())
        if self._run is not None:
            await self._run.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyRow:
        row = next(self._rows, None)
        while row is None:
            self._rows = iter(await self._next_batch())
            row = next(self._rows, None)
        return row

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)
        if run is not None and not run.loop.is_closed():
            run.loop.call_soon_threadsafe(run.cancel)

    async def _next_batch(self) -> list[AnyRow]:
        if self._is_over:
            raise StopAsyncIteration
        for _ in range(REPLANS_MAX):
            try:
                if self._run is None:
                    # The catalog is read with the synchronous engine, so off the loop.
                    self._run = _TaskRun(await asyncio.to_thread(fan_out_plan, *self._asked))
                rows = await self._run.next_rows()
            except ReplanError:
                assert self._run is not None
                await self._run.close()
                self._run = None
                continue
            except BaseException:
                await self.aclose()
                raise
            if not rows:
                await self.aclose()
                raise StopAsyncIteration
            return rows
        raise changes_too_fast(self._asked[0])


class _TaskStream:
    """One shard's reader with its connection and its task."""

    def __init__(self, index: int, plan: FanOutPlan) -> None:
        self.index = index
        self.plan = plan
        self.reader: ShardReader = plan.reader(index)
        self.connection: AsyncConnection | None = None
        self.driver: Any = None
        self.was_interrupted = False
        self.task: asyncio.Task[None] | None = None
        self.may_go_on = asyncio.Event()
        self.is_at_view = False
        self.is_stale = False
        self.local_ids: frozenset[str] = frozenset()
        self.busy_seconds = 0.0
        self.running_since: float | None = None

    async def connect(self) -> None:
        location = self.plan.shards[self.index].location
        self.connection = self.plan.shard_map.engines.async_for_location(location).connect()
        try:
            await self.connection.start()
        except TimeoutError as error:  # asyncpg's; the fan-out's own limits are another matter
            raise ConnectionError("the connection was not made in time") from error

    async def take_snapshot(self) -> None:
        """Connect, begin, and read which mappings the snapshot has."""
        view = self.plan.view
        assert view is not None
        await self.connect()
        await self.call(self.begin)
        self.local_ids = await self.call(self.reader.local_mappings, view.shard_map.id)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        assert self.connection is not None
        return await self.connection.run_sync(lambda _: function(*arguments))

    def begin(self) -> None:
        assert self.connection is not None
        assert self.connection.sync_connection is not None
        self.driver = self.connection.sync_connection.connection.driver_connection
        self.reader.begin(self.connection.sync_connection, snapshot=self.plan.view is not None)

    async def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step; when the task is cancelled the database is asked to give the step up.

        SQLAlchemy and its drivers leave connections open that are cancelled while they are made
        or used, so the step itself always comes to its end.
        """
        running = asyncio.ensure_future(step)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.was_interrupted = True
            await self._stop(running)
            raise

    async def _stop(self, running: asyncio.Future[T]) -> None:
        end = self.plan.clock.monotonic() + CONNECT_SECONDS_MAX
        while not running.done():
            is_connecting = self.driver is None and self.plan.clock.monotonic() < end
            if not is_connecting and not await self._interrupt():
                running.cancel()
            await asyncio.wait((running,), timeout=INTERRUPT_PAUSE_SECONDS)
        with suppress(asyncio.CancelledError, Exception):  # because nobody waits for it any more
            running.result()

    async def _interrupt(self) -> bool:
        """Ask the database to give up what it runs; False: the task must be cancelled instead."""
        driver = self.driver
        with suppress(Exception):  # because a lost request is repeated, a lost server has no work
            if hasattr(driver, "interrupt"):
                await driver.interrupt()
                return True
            if hasattr(driver, "cancel_safe"):
                await driver.cancel_safe(timeout=CONNECT_SECONDS_MAX)
                return True
            if hasattr(driver, "get_server_pid"):
                # asyncpg asks only once, with its task: too early, and the statement goes on.
                shard = self.plan.shards[self.index]
                engine = self.plan.shard_map.engines.admin(shard.location)
                asking = asyncio.to_thread(_cancel_backend, engine, driver.get_server_pid())
                await asyncio.wait_for(asking, CONNECT_SECONDS_MAX)
                return True
        return False

    async def release(self) -> None:
        """Give the connection back; one whose statement was interrupted is closed for good."""
        connection, self.connection, self.driver = self.connection, None, None
        reader, self.reader = self.reader, self.plan.reader(self.index)
        if connection is None or connection.sync_connection is None:
            return
        closing = asyncio.ensure_future(_close(connection, reader, for_good=self.was_interrupted))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait((closing,), timeout=CONNECT_SECONDS_MAX)
            closing.cancel()
            raise
        except SQLAlchemyError:  # because the connection may be what failed
            return

    def busy(self, now: float) -> float:
        since = self.running_since
        return self.busy_seconds + (0.0 if since is None else now - since)


async def _close(connection: AsyncConnection, reader: ShardReader, *, for_good: bool) -> None:
    try:
        # Closing a connection ends its transaction: to end it here would be one more round trip.
        await connection.run_sync(lambda _: reader.finish() if for_good else reader.leave())
        if for_good:
            await connection.invalidate()
    finally:
        await connection.close()


def _cancel_backend(engine: Engine, pid: int) -> None:
    with engine.connect() as connection:
        connection.execute(select(func.pg_cancel_backend(pid)))


class _TaskRun:
    """One fan-out under way, all of it in one event loop."""

    def __init__(self, plan: FanOutPlan) -> None:
        self.plan = plan
        self.gathering = plan.gathering()
        self.loop = asyncio.get_running_loop()
        self._clock = plan.clock
        self._waited_seconds = 0.0
        self._listener_error: Exception | None = None
        self._view_stands = plan.view is None
        self._view_pause = VIEW_PAUSE_SECONDS
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(plan.workers)
        self._streams = [_TaskStream(index, plan) for index in range(len(plan.shards))]
        for stream in self._streams:
            stream.task = self.loop.create_task(self._follow(stream))

    # --- the caller's side ------------------------------------------------------------------------

    async def next_rows(self) -> list[AnyRow]:
        """Wait for rows; an empty list is the end."""
        while True:
            self._changed.clear()
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
            if self._is_at_view():
                await self._look_at_the_map()
            else:
                self._fail_late(await self._wait())

    def cancel(self) -> None:
        """Stop all shards without waiting for them."""
        cancelled = [i for i in self.gathering.unsettled if self.gathering.cancel(i)]
        for stream in self._streams:
            if stream.task is not None:
                stream.task.cancel()
        for index in cancelled:
            self._tell("cancelled", index)

    async def close(self) -> None:
        self.cancel()
        tasks = [stream.task for stream in self._streams if stream.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> list[tuple[_TaskStream, ShardError]]:
        began = self._clock.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._patience(began))
        now = self._clock.monotonic()
        self._waited_seconds += now - began
        if self._waited_seconds >= self.plan.timeout:
            return [(self._streams[i], self._out_of_time(i)) for i in self.gathering.unsettled]
        limit = self.plan.shard_timeout
        return [
            (self._streams[i], timed_out(self.plan.shards[i], limit, "shard_timeout"))
            for i in self.gathering.unsettled
            if self._streams[i].busy(now) >= limit
        ]

    def _patience(self, now: float) -> float | None:
        left = [
            self.plan.shard_timeout - stream.busy(now)
            for stream in self._streams
            if stream.running_since is not None
        ]
        shortest = min([self.plan.timeout - self._waited_seconds, *left])
        return None if shortest == float("inf") else max(0.0, shortest)

    def _out_of_time(self, index: int) -> ShardError:
        shard = self.plan.shards[index]
        if self._view_stands or not self._streams[index].is_at_view:
            return timed_out(shard, self.plan.timeout, "timeout")
        return failed(shard, map_changing(self.plan.shard_map))

    def _fail_late(self, late: list[tuple[_TaskStream, ShardError]]) -> None:
        for stream, error in late:
            if self.gathering.fail(stream.index, error):
                assert stream.task is not None
                stream.task.cancel()
                self._tell("failed", stream.index, error)

    def _resume(self) -> None:
        if not self._view_stands:
            return
        for stream in self._streams:
            if self.gathering.has_room(stream.index):
                stream.may_go_on.set()

    # --- a consistent view ------------------------------------------------------------------------

    def _is_at_view(self) -> bool:
        unsettled = self.gathering.unsettled
        return not self._view_stands and all(self._streams[i].is_at_view for i in unsettled)

    async def _look_at_the_map(self) -> None:
        view = self.plan.view
        assert view is not None
        if not await asyncio.to_thread(view.load, self.plan):
            raise ReplanError
        streams = [self._streams[i] for i in self.gathering.unsettled]
        stale = [s for s in streams if not view.agrees(self.plan.shards[s.index], s.local_ids)]
        if stale:
            await asyncio.sleep(self._view_pause)
            self._waited_seconds += self._view_pause
            self._view_pause = min(2 * self._view_pause, VIEW_PAUSE_SECONDS_MAX)
        self._view_stands = not stale
        for stream in stale or streams:
            # A stale snapshot is taken anew; the others are kept as they are.
            stream.is_stale, stream.is_at_view = bool(stale), False
            stream.may_go_on.set()

    # --- the shards' side -------------------------------------------------------------------------

    async def _follow(self, stream: _TaskStream) -> None:
        error: Exception | None = None
        async with AsyncExitStack() as stack:
            if not self.plan.opens_all:
                await stack.enter_async_context(self._slots)
            try:
                await self._read_all(stream)
            except Exception as caught:  # noqa: BLE001 - whatever it is, it belongs to this shard
                error = caught
            finally:
                count = stream.reader.rows
                await stream.release()
        self._settle(stream, error, count)

    def _settle(self, stream: _TaskStream, error: Exception | None, count: int) -> None:
        shard = self.plan.shards[stream.index]
        if error is None:
            if self.gathering.succeed(stream.index):
                self._tell("succeeded", stream.index, rows=count)
        else:
            shard_error = as_shard_error(shard, error, self.plan.shard_timeout)
            if self.gathering.fail(stream.index, shard_error):
                self._tell("failed", stream.index, shard_error, count)
        self._changed.set()

    async def _read_all(self, stream: _TaskStream) -> None:
        self._tell("began", stream.index)
        rows, is_last = await self._first_rows(stream)
        while True:
            self.gathering.offer(stream.index, rows)
            self._changed.set()
            if is_last:
                return
            while not self.gathering.has_room(stream.index):
                stream.may_go_on.clear()
                await stream.may_go_on.wait()
            rows, is_last = await self._step(stream, self._fetch)

    async def _first_rows(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        for tries in range(1, OPEN_TRIES_MAX + 1):
            is_agreed = False
            try:
                if self.plan.view is not None:
                    await self._agree(stream)
                    is_agreed = True
                return await self._step(stream, self._first_fetch)
            except DBAPIError as error:
                # Nothing was read yet: a connection that died in the pool is replaced. Not after
                # the view was agreed on: a new snapshot may show another state.
                if not error.connection_invalidated or is_agreed or tries == OPEN_TRIES_MAX:
                    raise
                await stream.release()
        raise AssertionError

    async def _agree(self, stream: _TaskStream) -> None:
        stream.is_stale = True
        while stream.is_stale:
            await stream.release()
            await self._step(stream, _TaskStream.take_snapshot)
            stream.may_go_on.clear()
            stream.is_at_view = True
            self._changed.set()
            await stream.may_go_on.wait()

    async def _first_fetch(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        if self.plan.view is None:
            await stream.connect()
        return await stream.call(self._ask, stream)

    def _ask(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        view = self.plan.view
        if view is None:
            stream.begin()
        owned = None if view is None else view.owned(self.plan.shards[stream.index])
        self.gathering.answer(stream.index, stream.reader.execute(owned))
        return stream.reader.fetch()

    async def _fetch(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        return await stream.call(stream.reader.fetch)

    async def _step(
        self, stream: _TaskStream, step: Callable[[_TaskStream], Coroutine[Any, Any, T]]
    ) -> T:
        async with AsyncExitStack() as stack:
            if self.plan.opens_all:
                await stack.enter_async_context(self._slots)
            stream.running_since = self._clock.monotonic()
            # The waiting caller must watch one more deadline.
            self._changed.set()
            try:
                outcome = await stream.run(step(stream))
            finally:
                stream.busy_seconds = stream.busy(self._clock.monotonic())
                stream.running_since = None
        if stream.busy_seconds >= self.plan.shard_timeout:
            raise TimeoutError
        return outcome

    def _tell(
        self, kind: EventKind, index: int, error: ShardError | None = None, rows: int = 0
    ) -> None:
        if self.plan.on_event is None:
            return
        try:
            self.plan.on_event(FanOutEvent(kind, self.plan.shards[index], error, rows))
        except Exception as raised:  # noqa: BLE001 - it is raised again where the caller waits
            self._listener_error = raised
            self._changed.set()
