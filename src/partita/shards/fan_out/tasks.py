"""An async fan-out: one task per shard on async engines, with the results and limits of `fan_out`.

`RunState` decides; the tasks only wait. SQLAlchemy's synchronous reader runs in the greenlet of
each async connection, so that the reading of a shard is written once.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar, Unpack

from sqlalchemy import Engine, Executable, RowMapping, func, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from partita.errors import ShardError
from partita.shards.fan_out.gathering import EventKind
from partita.shards.fan_out.plan import (
    REPLANS_MAX,
    FannedMap,
    FanOutOptions,
    FanOutPlan,
    ReplanError,
    changes_too_fast,
    check_statement,
    fan_out_plan,
)
from partita.shards.fan_out.results import AsyncConverted, AsyncTaken, column_of, mapping_of
from partita.shards.fan_out.run_state import RunState, ShardStream
from partita.shards.fan_out.shard_reader import AnyRow, ShardReader
from partita.shards.keys.mapping import Shard

CONNECT_SECONDS_MAX = 2.0
"""How long a cancelled fan-out waits for a connection that is being opened."""
INTERRUPT_PAUSE_SECONDS = 0.02
"""The pause between interrupts: one that arrives before its statement starts has no effect."""

T = TypeVar("T")


def afan_out(
    shard_map: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
) -> "AsyncFanOutResult":
    """Run a SELECT on many shards and return their rows for `async for`; see `fan_out`.

    It starts when the first row is requested. `on_event` is called in the event loop.
    """
    return AsyncFanOutResult(shard_map, statement, options)


class AsyncFanOutResult(AsyncTaken[AnyRow]):
    """The rows of all shards; iterate once, and close it (`async with`) if you stop early."""

    def __init__(self, shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> None:
        check_statement(statement, options)
        self._asked = (shard_map, statement, options)
        self._rows: Iterator[AnyRow] = iter(())
        self._is_over = False
        self._run: TaskRun | None = None
        shard_map.counters.fan_outs += 1

    @property
    def errors(self) -> dict[Shard, ShardError]:
        """The shards that have failed so far."""
        return {} if self._run is None else dict(self._run.gathering.errors)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of the shards that failed, if any did."""
        if self._run is not None and self._run.gathering.errors:
            raise self._run.gathering.group()

    async def scalar(self) -> Any:
        """Return the first value of the next row, or None, and close."""
        async with self:
            row = await anext(self, None)
        return None if row is None else row[0]

    def scalars(self, index: int = 0) -> AsyncConverted[AnyRow, Any]:
        """Return the values of one column instead of rows."""
        return AsyncConverted(self, column_of(index))

    def mappings(self) -> AsyncConverted[AnyRow, RowMapping]:
        """Return rows as mappings of names to values."""
        return AsyncConverted(self, mapping_of)

    async def aclose(self) -> None:
        """Cancel what is still running; further calls do nothing."""
        self._is_over = True
        self._rows = iter(())
        if self._run is not None:
            await self._run.close()

    async def __anext__(self) -> AnyRow:
        row = next(self._rows, None)
        while row is None:
            self._rows = iter(await self._next_batch())
            row = next(self._rows, None)
        return row

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
                    # In a thread, because the catalog is read with the synchronous engine.
                    self._run = TaskRun(await asyncio.to_thread(fan_out_plan, *self._asked))
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


class _TaskStream(ShardStream):
    """A stream with its connection and its task."""

    def __init__(self, index: int, plan: FanOutPlan) -> None:
        super().__init__(index, plan)
        self.connection: AsyncConnection | None = None
        self.driver: Any = None
        self.was_interrupted = False
        self.task: asyncio.Task[None] | None = None
        self.may_continue = asyncio.Event()

    async def connect(self) -> None:
        engine = self.plan.shard_map.engines.async_for_location(self.shard.location)
        self.connection = engine.connect()
        try:
            await self.connection.start()
        except TimeoutError as error:  # of asyncpg, not of the fan-out
            raise ConnectionError("the connection timed out") from error

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
        """Run a step to its end; if the task is cancelled, ask the database to cancel the step.

        SQLAlchemy and its drivers leak connections that are cancelled while they are opened or
        used, so the step itself is never cancelled.
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
        with suppress(asyncio.CancelledError, Exception):  # its outcome is not needed
            running.result()

    async def _interrupt(self) -> bool:
        """Ask the database to cancel its statement; False if the task must be cancelled."""
        driver = self.driver
        with suppress(Exception):  # a lost request is repeated; a lost server has nothing to cancel
            if hasattr(driver, "interrupt"):
                await driver.interrupt()
                return True
            if hasattr(driver, "cancel_safe"):
                await driver.cancel_safe(timeout=CONNECT_SECONDS_MAX)
                return True
            if hasattr(driver, "get_server_pid"):
                # asyncpg sends one request when its task is cancelled, which may be too early.
                engine = self.plan.shard_map.engines.admin(self.shard.location)
                asking = asyncio.to_thread(_cancel_backend, engine, driver.get_server_pid())
                await asyncio.wait_for(asking, CONNECT_SECONDS_MAX)
                return True
        return False

    async def release(self) -> None:
        """Return the connection to its pool; close it if its statement was interrupted."""
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
        except SQLAlchemyError:  # the connection may be broken
            return


async def _close(connection: AsyncConnection, reader: ShardReader, *, for_good: bool) -> None:
    try:
        # close() ends the transaction; a rollback here would be another round trip.
        await connection.run_sync(lambda _: reader.finish() if for_good else reader.leave())
        if for_good:
            await connection.invalidate()
    finally:
        await connection.close()


def _cancel_backend(engine: Engine, pid: int) -> None:
    with engine.connect() as connection:
        connection.execute(select(func.pg_catalog.pg_cancel_backend(pid)))


class TaskRun:
    """One running fan-out, in one event loop."""

    def __init__(self, plan: FanOutPlan) -> None:
        self.plan = plan
        self.state = RunState(plan, _TaskStream)
        self.gathering = self.state.gathering
        self.loop = asyncio.get_running_loop()
        self._clock = plan.clock
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(plan.workers)
        for stream in self.state.streams:
            stream.task = self.loop.create_task(self._follow(stream))

    # --- called by the caller ---------------------------------------------------------------------

    async def next_rows(self) -> list[AnyRow]:
        """Wait for rows; an empty list is the end."""
        while True:
            self._changed.clear()
            rows = self.state.take_rows()
            if rows is not None:
                if rows:
                    self._resume()
                return rows
            if self.state.is_at_view:
                await self._compare_view()
            else:
                self._fail_late(await self._wait())

    def cancel(self) -> None:
        """Stop all shards without waiting for them."""
        cancelled = self.state.cancel()
        for stream in self.state.streams:
            if stream.task is not None:
                stream.task.cancel()
        for stream in cancelled:
            self._tell("cancelled", stream)

    async def close(self) -> None:
        """Stop all shards and wait until their connections are released."""
        self.cancel()
        tasks = [stream.task for stream in self.state.streams if stream.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> list[tuple[_TaskStream, ShardError]]:
        """Wait for a change; return the shards that timed out."""
        began = self._clock.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self.state.wait_seconds(began))
        now = self._clock.monotonic()
        return self.state.late(now - began, now)

    def _fail_late(self, late: list[tuple[_TaskStream, ShardError]]) -> None:
        for stream in self.state.fail(late):
            assert stream.task is not None
            stream.task.cancel()
            self._tell("failed", stream)

    def _resume(self) -> None:
        """Continue the streams whose rows were taken."""
        if not self.state.is_view_agreed:
            return
        for stream in self.state.streams:
            if self.gathering.has_room(stream.index):
                stream.may_continue.set()

    async def _compare_view(self) -> None:
        view = self.plan.view
        assert view is not None
        if not await asyncio.to_thread(view.load, self.plan):
            raise ReplanError
        stale = self.state.stale_snapshots()
        if stale:
            await asyncio.sleep(self.state.next_view_pause())
        for stream in self.state.leave_view(stale):
            stream.may_continue.set()

    # --- one task per shard -----------------------------------------------------------------------

    async def _follow(self, stream: _TaskStream) -> None:
        error: Exception | None = None
        async with AsyncExitStack() as stack:
            if not self.plan.opens_all:
                await stack.enter_async_context(self._slots)
            try:
                await self._read_all(stream)
            except Exception as caught:  # noqa: BLE001 - any error is an outcome of this shard
                error = caught
            finally:
                count = stream.reader.rows
                await stream.release()
        event = self.state.settle(stream, error)
        if event is not None:
            self._tell(event, stream, count)
        self._changed.set()

    async def _read_all(self, stream: _TaskStream) -> None:
        self._tell("began", stream)
        rows, is_last = await self._first_rows(stream)
        while True:
            self.gathering.offer(stream.index, rows)
            self._changed.set()
            if is_last:
                return
            while not self.gathering.has_room(stream.index):
                stream.may_continue.clear()
                await stream.may_continue.wait()
            rows, is_last = await self._step(stream, self._fetch)

    async def _first_rows(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        for tries in itertools.count(1):
            stream.stage = "new"
            try:
                if self.plan.view is not None:
                    await self._agree(stream)
                return await self._step(stream, self._first_fetch)
            except (DBAPIError, OSError) as error:
                pause = self.state.pause_after(stream, error, tries)
                if pause is None:
                    raise
                await stream.release()
            await asyncio.sleep(pause)
        raise AssertionError

    async def _agree(self, stream: _TaskStream) -> None:
        """Take snapshots until one agrees with the map."""
        while stream.stage == "new":
            await stream.release()
            await self._step(stream, _TaskStream.take_snapshot)
            stream.may_continue.clear()
            stream.stage = "at the view"
            self._changed.set()
            await stream.may_continue.wait()

    async def _first_fetch(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        if self.plan.view is None:
            await stream.connect()
        return await stream.call(self._ask, stream)

    def _ask(self, stream: _TaskStream) -> tuple[list[AnyRow], bool]:
        view = self.plan.view
        if view is None:
            stream.begin()
        owned = None if view is None else view.owned(stream.shard)
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
            stream.start_work()
            try:
                outcome = await stream.run(step(stream))
            finally:
                seconds = stream.stop_work()
        if seconds >= self.plan.shard_timeout:
            raise TimeoutError
        return outcome

    def _tell(self, kind: EventKind, stream: _TaskStream, rows: int = 0) -> None:
        if not self.state.tell(kind, stream, rows):
            self._changed.set()
