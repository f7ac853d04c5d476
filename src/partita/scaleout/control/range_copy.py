"""The rows of a range from one shard to another: COPY in intervals of keys, then what changed.

Each interval is read in a snapshot of its own. Keys that are written after the copy began are in
`change` (schema.entities); a pass carries them over as they are in one snapshot, so it may be
repeated: what matters is the row as it is now, not how often it was written. What the rows are is
said by `row_kinds`; an entity stands for a message, too, in all names here.
"""

# ruff: noqa: S608 - only our own columns and conditions

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from partita.errors import CatalogMismatchError, UnavailableError
from partita.scaleout.catalog.fleet_clock import CLOSE_SECONDS_MAX
from partita.scaleout.catalog.kinds import Kind
from partita.scaleout.connections.link import Link, Rows
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.control.row_kinds import RowKind
from partita.scaleout.schema.entities import ALL_KEYS
from partita.ticks import TICKS_PER_SECOND

INTERVAL_ENTITIES_MAX = 10_000
INTERVAL_BYTES = 16 * 1024 * 1024
"""What an interval should have at most, by the size of the entities in the one before."""
INTERVAL_ENTITIES_MIN = 16
PIPE_CHUNKS_MAX = 4
"""Chunks between both shards: a slow target holds up the source."""
ERASED_ENTITIES = 1_000
"""Entities that one statement deletes."""
ERASE_PAUSE_SECONDS = 0.002
SEQUENCE_LEAP = 10_000
"""How many numbers of messages are left out on the target of a queue, at most."""
STEP_SECONDS_MAX = 600.0
"""For an interval, a pass or a comparison. More is a shard that does not answer."""

_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_CHANGED_TABLE = """
CREATE TEMP TABLE IF NOT EXISTS changed (pk text COLLATE "C", rk text COLLATE "C")
ON COMMIT DELETE ROWS
"""
_COUNT_CHANGED = "SELECT count(*) AS keys FROM partita.change WHERE range_id = $1"
_CHANGED = "SELECT DISTINCT c.pk, c.rk FROM partita.change c WHERE c.range_id = $1"
_FORGET_CHANGED = "DELETE FROM partita.change WHERE range_id = $1"
_ESTIMATE = """
SELECT greatest(c.reltuples, 0)::bigint AS entities FROM pg_class c
 WHERE c.oid = ('partita.' || $1::text)::regclass
"""
_TICKS = "SELECT partita.ticks_1() AS ticks"
_LATER_NUMBERS = "SELECT partita.pass_messages_1($1, $2)"
_REMOVED = "SELECT max(r.ticks) AS ticks FROM partita.removed r WHERE r.tid = $1"
_KEEP_REMOVED = f"""
INSERT INTO partita.removed (tid, ticks, key_hash) SELECT $1, $2, {ALL_KEYS}
 WHERE NOT EXISTS (SELECT FROM partita.removed r
                    WHERE r.tid = $1 AND r.key_hash = {ALL_KEYS} AND r.ticks >= $2)
"""

Interval = tuple[int, str, str | None]
"""The number of a table or queue, and the bounds of a range of it."""
Report = Callable[[int], None]


class RangeCopy:
    """Copies one range between two sessions; both belong to one job."""

    def __init__(
        self, source: Link, target: Link, range_id: int, interval: Interval, rows: RowKind
    ) -> None:
        self._rows = rows
        self._source = source
        self._target = target
        self._range_id = range_id
        self._interval = interval
        self.entities = 0
        """Entities that were copied so far, ..."""
        self.changed = 0
        """... and keys that were written meanwhile."""

    async def copy(self, report: Report, rate: float | None) -> None:
        """Copy all entities; at most `rate` in a second."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        after, key, limit = ">=", self._rows.first_key(self._interval[1]), INTERVAL_ENTITIES_MAX
        while True:
            async with _limited(), self._target.transaction():
                rows, size = await self._pipe(
                    self._rows.interval(after), (*self._interval, *key, limit), self._rows.table
                )
            self.entities += rows
            report(self.entities)
            if rows < limit:
                return
            (last,) = await self._target.read(self._rows.last, *self._interval)
            after, key = ">", tuple(last)
            limit = max(
                INTERVAL_ENTITIES_MIN, min(INTERVAL_ENTITIES_MAX, INTERVAL_BYTES * rows // size)
            )
            if rate is not None:
                await asyncio.sleep(begun + self.entities / rate - loop.time())

    async def carry_changes(self, *, compares: bool = False) -> int:
        """Carry over what was written since the last pass; return how many keys.

        With `compares`, raise if the target then differs from the same snapshot of the source.
        """
        source, range_id, tid = self._source, self._range_id, self._interval[0]
        async with _limited(), source.transaction():
            await source.read(_SNAPSHOT)
            rows = await source.read(_COUNT_CHANGED, range_id)
            keys = int(rows[0]["keys"])
            if keys:
                keys = await self._apply(range_id, tid)
            if compares:
                await self._compare()
            # Only what this snapshot sees; a crash before here repeats the pass.
            await source.read(_FORGET_CHANGED, range_id)
        self.changed += keys
        return keys

    async def _apply(self, range_id: int, tid: int) -> int:
        target = self._target
        await target.read(_CHANGED_TABLE)
        async with target.transaction():
            keys, _ = await self._pipe(_CHANGED, (range_id,), "changed", schema="pg_temp")
            table = self._rows.table
            is_changed = self._rows.changed.format(tid="$1")
            await target.read(
                f"DELETE FROM partita.{table} e USING pg_temp.changed k WHERE {is_changed}", tid
            )
            is_changed = self._rows.changed.format(tid="$2")
            query = f"{self._rows.rows} JOIN ({_CHANGED}) k ON {is_changed}"
            await self._pipe(query, (range_id, tid), table)
        return keys

    async def _compare(self) -> None:
        found = await asyncio.gather(
            *(
                fetched(link, self._rows.sums, *self._interval)
                for link in (self._source, self._target)
            )
        )
        here, there = (dict(rows[0]) for rows in found)
        if here != there:
            raise CatalogMismatchError(
                "MoveRowsDiffer",
                "The entities on the target are not those of the source.",
                facts={"range": self._range_id, "source": here, "target": there},
                hint="Nothing was moved. Find out what else writes to the target, then try again.",
            )

    async def carry_order(self) -> None:
        """Let what is written on the target be later than all that was written here.

        That is: an entity has later ticks than all that were removed; a message has a later number
        and, by the clock of the target, a later time.
        """
        if self._rows.kind is Kind.TABLE:
            await self._carry_removed()
        else:
            await written(self._target, _LATER_NUMBERS, self._interval[0], SEQUENCE_LEAP)
            await self._wait_for_clock()

    async def _wait_for_clock(self) -> None:
        ((reached,),) = await self._source.read(_TICKS)
        ((now,),) = await self._target.read(_TICKS)
        behind = (reached - now) / TICKS_PER_SECOND
        if behind > CLOSE_SECONDS_MAX:
            raise UnavailableError(
                "MoveFenceFailed",
                f"The clock of the target is {behind:.1f} s behind that of the source.",
                facts={"range": self._range_id},
                hint="The range stays where it was. Synchronize the clocks of the servers, then try"
                " again.",
            )
        await asyncio.sleep(max(0.0, behind))

    async def _carry_removed(self) -> None:
        tid = self._interval[0]
        rows = await self._source.read(_REMOVED, tid)
        if rows[0]["ticks"] is not None:
            await written(self._target, _KEEP_REMOVED, tid, rows[0]["ticks"])

    async def estimate(self) -> int | None:
        """Return how many entities the source has in all tables, at most; None if unknown."""
        rows = await self._source.read(_ESTIMATE, self._rows.table)
        return rows[0]["entities"] or None

    async def _pipe(
        self, query: str, values: tuple[object, ...], table: str, *, schema: str = "partita"
    ) -> tuple[int, int]:
        """Copy the result of a query on the source to a table on the target; return rows, bytes."""
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(PIPE_CHUNKS_MAX)
        size = 0

        async def read() -> None:
            try:
                await self._source.connection.copy_from_query(
                    query, *values, output=chunks.put, format="binary"
                )
                await chunks.put(None)
            except BaseException:
                while not chunks.empty():
                    chunks.get_nowait()
                chunks.put_nowait(None)
                raise

        async def received() -> AsyncGenerator[bytes]:
            nonlocal size
            while (chunk := await chunks.get()) is not None:
                size += len(chunk)
                yield chunk
            await reading  # a failed read ends the copy

        reading = asyncio.ensure_future(read())
        try:
            status = await self._target.connection.copy_to_table(
                table,
                schema_name=schema,
                columns=self._rows.columns if table == self._rows.table else None,
                source=received(),
                format="binary",
            )
        except BaseException as error:
            reading.cancel()
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            if isinstance(error, DriverError):
                raise translated(error) from error
            raise
        return int(str(status).rpartition(" ")[2]), size


async def erase(link: Link, kind: RowKind, interval: Interval, report: Report) -> None:
    """Delete all rows of an interval of keys that a shard does not serve."""
    start, erased = kind.first_key(interval[1]), 0
    while rows := await written(link, kind.erase, *interval, *start, ERASED_ENTITIES):
        start = tuple(rows[0])
        erased += ERASED_ENTITIES
        report(erased)
        await asyncio.sleep(ERASE_PAUSE_SECONDS)


async def written(link: Link, statement: str, *values: object) -> Rows:
    """Run one statement in a transaction of its own."""
    try:
        return await link.write(statement, *values)
    except DriverError as error:
        raise translated(error) from error


async def fetched(link: Link, statement: str, *values: object) -> Rows:
    """Run a statement that changes nothing and may take longer than a request."""
    try:
        rows: Rows = await link.connection.fetch(statement, *values)
    except DriverError as error:
        raise translated(error) from error
    return rows


@contextlib.asynccontextmanager
async def _limited() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(STEP_SECONDS_MAX):
            yield
    except TimeoutError as error:
        raise translated(error) from error
