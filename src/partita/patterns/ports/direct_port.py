"""Direct access to the tables of an account in this process: no SDK, no HTTP, no signatures.

The account runs on an event loop in its own thread. All calls that a caller's loop makes in one
iteration are sent to that thread together, and answers are returned together, to share the cost of
switching threads. A point read of an account on disk is done in the caller's thread, in about ten
microseconds. Queues and blobs use the SDK.
"""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from partita.errors import (
    EntityNotFoundError,
    LimitExceededError,
    PartitaError,
    TableExistsError,
    TableNotFoundError,
)
from partita.patterns.ports.aio_port import AsyncPort
from partita.patterns.ports.direct_rows import key_of, operation_of, row_of
from partita.patterns.ports.sdk_errors import HINTS
from partita.patterns.ports.sync_port import SyncPort
from partita.patterns.protocol.calls import (
    Call,
    Continuation,
    Cost,
    CreateTable,
    DeleteTable,
    GetRow,
    ListTables,
    QueryRows,
    RowPage,
    WriteRows,
)
from partita.patterns.protocol.values import Row, measure
from partita.service.formats.address import parse_continuation, print_continuation
from partita.service.hosting.in_process import LocalAccount
from partita.tables import limits
from partita.tables.engine import TableEngine, table_not_found
from partita.tables.entity import EntityKey
from partita.tables.filters import parse
from partita.tables.operations import EntityGroup
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore

T = TypeVar("T")
Work = Callable[[TableEngine], Coroutine[Any, Any, Any]]
"""Work to do on the account's loop."""
READS_PER_TURN = 64
"""The number of reads in the caller's thread after which other tasks of the loop get a turn, so
that a task that only reads does not delay timeouts and writes."""


class DirectPort:
    """Performs table calls on the engine for the asynchronous API; other calls through `inner`."""

    def __init__(self, account: LocalAccount, inner: AsyncPort) -> None:
        self.capabilities = inner.capabilities
        self._account = account
        self._inner = inner
        self._crossings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Crossing]
        self._crossings = weakref.WeakKeyDictionary()
        self._reads = 0

    async def perform(self, call: Call[T], cost: Cost) -> T:
        if isinstance(call, GetRow) and (store := _store_here(self._account)) is not None:
            self._reads += 1
            if self._reads % READS_PER_TURN == 0:
                await asyncio.sleep(0)
            return _read_here(call, store, cost)  # type: ignore[return-value]
        make = _WORKS.get(type(call))
        if make is None:
            return await self._inner.perform(call, cost)
        work = make(call)
        cost.requests += 1
        try:
            answer: T = await self._crossing().send(work)
        except PartitaError as error:
            _add_facts(error, call)
            raise
        _count(call, answer, cost)
        return answer

    def _crossing(self) -> "_Crossing":
        loop = asyncio.get_running_loop()
        found = self._crossings.get(loop)
        if found is None:
            found = self._crossings[loop] = _Crossing(self._account, loop)
        return found

    async def close(self) -> None:
        await self._inner.close()


class DirectSyncPort:
    """Performs table calls on the engine for the synchronous API; other calls through `inner`."""

    def __init__(self, account: LocalAccount, inner: SyncPort) -> None:
        self.capabilities = inner.capabilities
        self._account = account
        self._inner = inner

    def perform(self, call: Call[T], cost: Cost) -> T:
        if isinstance(call, GetRow) and (store := _store_here(self._account)) is not None:
            return _read_here(call, store, cost)  # type: ignore[return-value]
        make = _WORKS.get(type(call))
        if make is None:
            return self._inner.perform(call, cost)
        work = make(call)
        loop, engine = self._account.loop, self._account.engines.tables
        cost.requests += 1
        try:
            answer: T = asyncio.run_coroutine_threadsafe(work(engine), loop).result()
        except PartitaError as error:
            _add_facts(error, call)
            raise
        _count(call, answer, cost)
        return answer

    def close(self) -> None:
        self._inner.close()


class _Crossing:
    """Sends work from one loop to the account's loop, and returns the answers."""

    def __init__(self, account: LocalAccount, home: asyncio.AbstractEventLoop) -> None:
        self._account = account
        self._home = home
        self._outgoing: list[tuple[Work, asyncio.Future[Any]]] = []
        """Changed by the caller's loop only."""
        self._answered: list[tuple[asyncio.Future[Any], asyncio.Task[Any]]] = []
        """Changed by the account's loop only."""

    def send(self, work: Work) -> asyncio.Future[Any]:
        away = self._account.loop
        answered = self._home.create_future()
        if not self._outgoing:
            self._home.call_soon(self._send_batch, away)
        self._outgoing.append((work, answered))
        return answered

    def _send_batch(self, away: asyncio.AbstractEventLoop) -> None:
        batch, self._outgoing = self._outgoing, []
        try:
            away.call_soon_threadsafe(self._start_batch, batch, away)
        except RuntimeError as error:  # it was closed
            for _, answered in batch:
                if not answered.done():
                    answered.set_exception(error)

    def _start_batch(
        self, batch: list[tuple[Work, asyncio.Future[Any]]], away: asyncio.AbstractEventLoop
    ) -> None:
        engine = self._account.engines.tables
        for work, answered in batch:
            away.create_task(work(engine)).add_done_callback(partial(self._done, answered, away))

    def _done(
        self,
        answered: asyncio.Future[Any],
        away: asyncio.AbstractEventLoop,
        done: asyncio.Task[Any],
    ) -> None:
        if not self._answered:
            away.call_soon(self._send_answers)
        self._answered.append((answered, done))

    def _send_answers(self) -> None:
        batch, self._answered = self._answered, []
        try:
            self._home.call_soon_threadsafe(_resolve, batch)
        except RuntimeError:  # the caller's loop was closed
            for _, done in batch:
                done.exception()


def _resolve(batch: list[tuple[asyncio.Future[Any], asyncio.Task[Any]]]) -> None:
    for answered, done in batch:
        error = done.exception()
        if answered.done():
            continue  # the wait was cancelled; the work was done nevertheless
        if error is None:
            answered.set_result(done.result())
        else:
            answered.set_exception(error)


def _store_here(account: LocalAccount) -> SqliteTableStore | None:
    """Return the store of an account on disk, which any thread may read; else None."""
    _ = account.loop  # raises if the account is closed
    store = account.engines.tables.store
    is_on_disk = isinstance(store, SqliteTableStore) and store.database.folder is not None
    return store if is_on_disk else None  # type: ignore[return-value]


def _read_here(call: GetRow, store: SqliteTableStore, cost: Cost) -> Row | None:
    key = key_of(call.key)
    cost.requests += 1
    try:
        table = store.find_table_here(call.table)
        if table is None:
            raise table_not_found(call.table)
        entity = store.get_here(table, key)
    except PartitaError as error:
        _add_facts(error, call)
        raise
    if entity is None:
        return None
    row = row_of(entity, call.select)
    cost.count((row,))
    return row


def _add_facts(error: PartitaError, call: Call[Any]) -> None:
    """Add the facts and the hint that the SDK port would add."""
    if not isinstance(call, ListTables):
        error.facts.setdefault("table", call.table)  # type: ignore[attr-defined]
    if isinstance(call, WriteRows) and len(call.operations) == 1:
        error.facts.setdefault("index", 0)
    error.hint = error.hint or HINTS.get(type(error), "")


def _count(call: Call[Any], answer: Any, cost: Cost) -> None:
    if isinstance(call, WriteRows):
        cost.count(operation.sent for operation in call.operations)
    elif isinstance(answer, RowPage):
        cost.count(answer.rows)
    elif isinstance(answer, Row):
        cost.count((answer,))


# Work on the account's loop


def _get_row(call: GetRow) -> Work:
    key = key_of(call.key)

    async def work(engine: TableEngine) -> Row | None:
        try:
            return row_of(await engine.get(call.table, key), call.select)
        except EntityNotFoundError:
            return None

    return work


def _query_rows(call: QueryRows) -> Work:
    chosen = parse(call.filter) if call.filter else None
    start = None
    if call.continuation is not None:
        row = call.continuation.row
        start = EntityKey(
            parse_continuation(call.continuation.partition), parse_continuation(row) if row else ""
        )
    limit = min(call.size or limits.PAGE_ENTITIES_MAX, limits.PAGE_ENTITIES_MAX)

    async def work(engine: TableEngine) -> RowPage:
        _, page = await engine.query(
            call.table, chosen, within=KeyRange(), start=start, limit=limit
        )
        rows = tuple(row_of(entity, call.select) for entity in page.entities)
        if page.continuation is None:
            return RowPage(rows)
        partition, row = map(print_continuation, page.continuation)
        return RowPage(rows, Continuation(partition, row))

    return work


def _write_rows(call: WriteRows) -> Work:
    operations = []
    for index, operation in enumerate(call.operations):
        try:
            operations.append(operation_of(operation))
        except PartitaError as error:
            error.facts["index"] = index
            raise
    group = EntityGroup(operations)
    if len(operations) > 1 and _size(call) > limits.GROUP_BYTES_MAX:
        raise LimitExceededError(
            "RequestBodyTooLarge",
            "The request body is too large and exceeds the maximum permissible limit.",
            facts={"table": call.table},
        )

    async def work(engine: TableEngine) -> tuple[str, ...]:
        outcome = await engine.run(call.table, group)
        return tuple("" if entity is None else entity.etag for entity in outcome.entities)

    return work


def _size(call: WriteRows) -> int:
    return sum(measure(operation.row) for operation in call.operations)


def _create_table(call: CreateTable) -> Work:
    async def work(engine: TableEngine) -> bool:
        try:
            await engine.create_table(call.table)
        except TableExistsError:
            return False
        return True

    return work


def _delete_table(call: DeleteTable) -> Work:
    async def work(engine: TableEngine) -> bool:
        try:
            await engine.delete_table(call.table)
        except TableNotFoundError:
            return False
        return True

    return work


def _list_tables(call: ListTables) -> Work:
    async def work(engine: TableEngine) -> tuple[str, ...]:
        names: list[str] = []
        start: str | None = call.prefix.lower()
        while start is not None:
            page = await engine.list_tables(None, start=start)
            names += [table.name for table in page.tables]
            start = page.continuation
        return tuple(name for name in names if name.startswith(call.prefix))

    return work


_WORKS: dict[type, Callable[[Any], Work]] = {
    GetRow: _get_row,
    QueryRows: _query_rows,
    WriteRows: _write_rows,
    CreateTable: _create_table,
    DeleteTable: _delete_table,
    ListTables: _list_tables,
}
