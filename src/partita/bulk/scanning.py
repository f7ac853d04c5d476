"""All pages of a query, read in several ranges of keys at the same time.

It begins with one range. A worker without a range divides the one of another worker at an existing
key that a probe finds, so that neither the alphabet of the keys nor their distribution is guessed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from partita.bulk.entities import decode_keys
from partita.bulk.ranges import EVERYWHERE, Span, both, midpoint, quoted
from partita.bulk.wire import Continuation, Page, Query, TableClient

DIVIDE_PAGES = 3
"""A range is divided only after this many pages: a small table is not probed."""
PROBES_MAX = 32
"""Probes for the middle of one range."""
PROBE_PAGES_MAX = 20
HELD_PAGES_MAX = 4


class ScanPart(msgspec.Struct):
    """A range and how far it is processed; the consumer moves it with `advance`."""

    span: Span = EVERYWHERE
    continuation: Continuation | None = None
    is_done: bool = False

    def advance(self, page: Page) -> None:
        """Mark a page as processed."""
        self.continuation = page.continuation
        self.is_done = page.continuation is None


class _UnknownError(Exception):
    """Too many pages were empty to tell whether an entity follows."""


class _Active:
    """A range that a worker reads."""

    def __init__(self, part: ScanPart) -> None:
        self.part = part
        self.pages = 0
        self.is_divisible = True
        self.last: tuple[str, str] | None = None


class Scan:
    """The pages of one query. `parts` is its progress, which `Scan.resumed` continues."""

    def __init__(
        self,
        client: TableClient,
        table: str,
        query: Query,
        *,
        concurrency: int = 4,
        parts: list[ScanPart] | None = None,
        is_decoded: bool = True,
    ) -> None:
        self._client = client
        self._table = table
        self._query = query
        self._is_decoded = is_decoded
        # Cosmos DB does not return entities in the order of their keys.
        self._concurrency = 1 if ".table.cosmos" in client.endpoint else concurrency
        self.parts = parts if parts is not None else [ScanPart()]
        self._free = [part for part in self.parts if not part.is_done]
        self._active: list[_Active] = []
        self._dividing = asyncio.Lock()
        self._changed = asyncio.Event()

    def state(self) -> list[dict[str, Any]]:
        """Return the progress for a checkpoint."""
        found: list[dict[str, Any]] = msgspec.to_builtins(self.parts)
        return found

    @staticmethod
    def parts_of(state: object) -> list[ScanPart]:
        """Return the progress that `state` returned."""
        return msgspec.convert(state, list[ScanPart])

    async def pages(self) -> AsyncIterator[tuple[ScanPart, Page]]:
        """Yield pages with the part that they advance; those of one part are in order."""
        found: asyncio.Queue[tuple[ScanPart, Page] | None] = asyncio.Queue(HELD_PAGES_MAX)
        async with _Workers() as workers:
            for _ in range(self._concurrency):
                workers.start(self._work(found))
            workers.start_last(found.put(None))
            while (item := await workers.get(found)) is not None:
                yield item

    async def _work(self, found: "asyncio.Queue[tuple[ScanPart, Page] | None]") -> None:
        while (active := await self._take()) is not None:
            part = active.part
            continuation = part.continuation
            while True:
                span = part.span
                query = self._in(span)
                page = await self._client.query(
                    self._table, query, continuation, is_decoded=self._is_decoded
                )
                if part.span is not span:
                    continue  # it was divided meanwhile: the page may have entities of the rest
                active.pages += 1
                active.last = page.last_keys() or active.last
                continuation = page.continuation
                is_last = continuation is None
                if is_last:
                    self._active.remove(active)
                self._notify()
                await found.put((part, page))
                if is_last:
                    break

    async def _take(self) -> _Active | None:
        """Return a range to read: a free one, or half of another one; None at the end."""
        while True:
            changed = self._changed  # of this moment: a change from here on is not missed
            if self._free:
                active = _Active(self._free.pop(0))
                self._active.append(active)
                return active
            if not self._active:
                self._notify()
                return None
            async with self._dividing:
                candidates = [
                    each
                    for each in self._active
                    if each.is_divisible and each.pages >= DIVIDE_PAGES and each.last
                ]
                if not self._free and candidates:
                    await self._divide(max(candidates, key=lambda each: each.pages))
                    continue
            await changed.wait()

    def _notify(self) -> None:
        """Let waiting workers look for a range again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _divide(self, active: _Active) -> None:
        part, last = active.part, active.last
        assert last is not None
        span = part.span
        try:
            rest = await self._rest_of(span, last)
        except _UnknownError:
            rest = None
        if rest is None:
            active.is_divisible = False
            return
        active.pages = 0
        first = rest.lower
        assert active.last is not None
        at = active.last[0 if rest.partition is None else 1]
        if active not in self._active or not _is_before(at, first):
            return  # it was read further meanwhile, up to the rest or to its end
        part.span = Span(span.lower, first, rest.partition)
        if span.partition != rest.partition:
            part.span = Span("", first, rest.partition)
        self.parts.append(ScanPart(rest))
        self._free.append(self.parts[-1])
        self._notify()

    async def _rest_of(self, span: Span, last: tuple[str, str]) -> Span | None:
        """Return the second half of what is left of a range; None if it cannot be divided."""
        partition_key, row_key = last
        if span.partition is None:
            beyond = f"PartitionKey gt {quoted(partition_key)}"
            following = await self._first(both(span.condition(), beyond))
            if following is not None:
                high = span.upper or await self._bound("", partition_key)
                found = await self._middle(span.condition(), "PartitionKey", partition_key, high)
                return Span(found or following[0], span.upper)
            span = Span("", None, partition_key)
        own = f"PartitionKey eq {quoted(partition_key)}"
        high = span.upper or await self._bound(own, row_key)
        found = await self._middle(span.condition(), "RowKey", row_key, high)
        return None if found is None else Span(found, span.upper, partition_key)

    async def _middle(self, within: str, name: str, low: str, high: str | None) -> str | None:
        """Return a key of about the middle: an existing one, so that both halves have entities.

        A text with nothing after it becomes the new end: keys often use few characters.
        """
        for _ in range(PROBES_MAX):
            middle = midpoint(low, high)
            if middle is None:
                return None
            found = await self._first(both(within, f"{name} ge {quoted(middle)}"))
            if found is not None:
                key = found[0 if name == "PartitionKey" else 1]
                return key if key > low else None
            high = middle
        return None

    async def _bound(self, within: str, key: str) -> str | None:
        """Return a text above all keys of a range, by halving the range of first characters."""
        name = "RowKey" if within else "PartitionKey"

        async def has(code: int) -> bool:
            return await self._first(both(within, f"{name} ge {quoted(chr(code))}")) is not None

        low, high = (0x7F, 0x110000) if await has(0x7F) else (ord(key[0]) if key else 0x20, 0x7F)
        while high - low > 1:
            middle = (low + high) // 2
            if 0xD800 <= middle < 0xE000:
                middle = 0xE000 if high > 0xE000 else 0xD7FF
                if middle == low:
                    break
            if await has(middle):
                low = middle
            else:
                high = middle
        return None if high > 0x10FFFF else chr(high)

    async def _first(self, condition: str) -> tuple[str, str] | None:
        """Return the keys of the first entity that a condition on keys selects.

        None means that there is none: a range is cut where nothing follows.
        """
        query = Query(condition, ("PartitionKey", "RowKey"), 1, has_metadata=False)
        start = None
        for _ in range(PROBE_PAGES_MAX):
            page = await self._client.query(self._table, query, start)
            if page.entities:
                keys = decode_keys(page.entities[0])
                return keys.partition_key, keys.row_key
            if page.continuation is None:
                return None
            start = page.continuation
        raise _UnknownError

    def _in(self, span: Span) -> Query:
        condition = both(span.condition(), self._query.filter)
        return msgspec.structs.replace(self._query, filter=condition)


def _is_before(one: str, other: str) -> bool:
    """Return whether a key is before another one in the order of every service.

    They differ for characters from U+D800 on: some compare UTF-16 units, others code points.
    """
    return one < other and max(one + other) < "\ud800"


class _Workers:
    """Tasks whose first error is raised to the reader of their queue, and ends the others."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "_Workers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    def start_last(self, work: Any) -> None:
        """Start what follows after all others have ended without an error."""
        others = list(self._tasks)

        async def finish() -> None:
            try:
                await asyncio.gather(*others)
            except BaseException:
                work.close()
                raise
            await work

        self._tasks.append(asyncio.create_task(finish()))

    async def get(self, queue: "asyncio.Queue[Any]") -> Any:
        """Return the next item; raise the error of a worker."""
        getting = asyncio.create_task(queue.get())
        try:
            await asyncio.wait([getting, self._tasks[-1]], return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            self._tasks[-1].result()
            return await getting
        finally:
            if not getting.done():
                getting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await getting
