"""One copy of an account: every part is copied, then compared, then the target is opened.

The source is read at one moment for the copy, and at another for the comparison, so the target
opens only if nothing was written to the source in between. Otherwise the same call copies the
parts again that differ, and nothing else.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from partita.blobs.rules.checksums import damaged
from partita.errors import DamageError
from partita.scaleout.copying.contract import Source, Target
from partita.scaleout.copying.parts import (
    EXTENT_HASH,
    EXTENT_SIZE,
    CopyPart,
    Digest,
    Plan,
    Row,
    State,
    bytes_of,
    head_stamp_of,
    key_of,
    runs_of_contents,
    shift_between,
    shifted_head,
    shifted_row,
    stamp_of,
)

CONTENTS_AT_ONCE = 4
"""Large contents that are copied or read at the same time."""
DIFFERENCES_MAX = 100
"""Parts that a report names."""

T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Called with the step, its completed bytes and its total bytes."""


class PartCopied(msgspec.Struct, frozen=True):
    """A part that is equal on both sides."""

    kind: str
    name: str
    rows: int
    digest: str


class Inventory(msgspec.Struct, frozen=True):
    """What an account has."""

    plans: Sequence[Plan]
    files: int
    file_bytes: int
    """Of large contents, which are not in rows."""

    @property
    def total(self) -> int:
        return sum(plan.bytes for plan in self.plans) + self.file_bytes


class Report(msgspec.Struct, frozen=True):
    """The outcome of a copy."""

    inventory: Inventory
    parts: Sequence[PartCopied]
    differences: Sequence[str]
    """What differs; the target is closed until it does not."""
    is_source_changed: bool
    """Whether the source was written between the copy and the comparison."""


class Copier:
    """Copies the account of a source to a target."""

    def __init__(self, source: Source, target: Target, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._step = ""
        self._done = self._total = 0
        self._shift = 0
        self._stamp = 0
        """The latest stamp that was compared."""

    async def run(self) -> Report:
        """Copy what is missing, compare everything, open the target if all is equal."""
        source, target = self._source, self._target
        shift = shift_between(await source.clocks(), await target.clocks())
        self._shift = await target.begin(source.identity, shift)
        version = await source.version()
        async with source.moment():
            await self._copy_all(await inventory_of(source))
        async with source.moment():
            is_changed = await source.version() != version
            inventory = await inventory_of(source)
            parts, differences = await self._compare_all(inventory)
            stamp = max((await source.clocks()).stamp, self._stamp)
        if differences:
            await target.repeat([part for part in differences if part in await target.states()])
        else:
            await target.finish(stamp)
        named = list(differences.values())[:DIFFERENCES_MAX]
        return Report(inventory, parts, named, is_changed)

    async def abandon(self) -> int:
        """Remove what an incomplete copy has left in the target; return how many parts it had."""
        await self._target.begin(self._source.identity, 0)
        states = await self._target.states()
        for part, state in states.items():
            await self._target.drop(part, state)
        await self._target.forget()
        return len(states)

    # Copying

    async def _copy_all(self, inventory: Inventory) -> None:
        self._begin("copy", inventory.total)
        states = await self._target.states()
        wanted = {plan.part for plan in inventory.plans}
        for part, state in states.items():
            if part not in wanted:
                await self._target.drop(part, state)
        alive_at = await self._alive_at()
        for plan in inventory.plans:
            found = states.get(plan.part)
            if found is not None and found.is_done:
                self._advance(plan.bytes)
            else:
                await self._copy(plan, found, alive_at)

    async def _copy(self, plan: Plan, found: State | None, alive_at: int) -> None:
        part, state = plan.part, found
        head = shifted_head(part, plan.head, self._shift)
        if state is None or state.differs or state.head != head:
            state = await self._target.start(part, head, found)
        async with ahead(self._source.rows(part, state.last, alive_at)) as batches:
            while batch := await batches.next():
                for run in runs_of_contents(batch) if part.kind == "extents" else (batch,):
                    if part.kind == "extents":
                        await at_once(self._copy_content, _large(run).items())
                    rows = [shifted_row(part, row, self._shift) for row in run]
                    await self._target.write(part, state, rows)
                    self._advance(sum(map(bytes_of, run)))
        await self._target.complete(part)

    async def _copy_content(self, content: tuple[bytes, int]) -> None:
        digest, size = content

        async def pieces() -> AsyncIterator[bytes] | None:
            # A content that is not in use any more is found missing by the comparison, unless
            # its extent is not there either.
            found = await self._source.content(digest)
            return None if found is None else _checked(found, digest)

        await self._target.put_content(digest, size, pieces)
        self._advance(size)

    # Comparing

    async def _compare_all(
        self, inventory: Inventory
    ) -> tuple[list[PartCopied], dict[CopyPart, str]]:
        """Return the parts that are equal, and for each other one what differs."""
        self._begin("verify", inventory.total)
        states = await self._target.states()
        alive_at = await self._alive_at()
        equal: list[PartCopied] = []
        differences = {
            part: f"{part}: not in the source any more"
            for part in states.keys() - {plan.part for plan in inventory.plans}
        }
        for plan in inventory.plans:
            part, state = plan.part, states.get(plan.part)
            if state is None:
                differences[part] = f"{part}: new in the source"
            elif state.head != shifted_head(part, plan.head, self._shift):
                differences[part] = f"{part}: other properties"
            else:
                digest = Digest(state.head)
                self._stamp = max(self._stamp, head_stamp_of(part, state.head))
                if (where := await self._compare(part, state, alive_at, digest)) is not None:
                    differences[part] = f"{part}: differs at {where}"
                else:
                    copied = PartCopied(part.kind, part.name, digest.rows, digest.hexdigest())
                    equal.append(copied)
        return equal, differences

    async def _compare(
        self, part: CopyPart, state: State, alive_at: int, digest: Digest
    ) -> str | None:
        """Compare the rows of a part; return where they differ first."""
        async with (
            ahead(self._source.rows(part, None, alive_at)) as source,
            ahead(self._target.rows(part, state, alive_at)) as target,
        ):
            ours: list[Row] = []
            theirs: list[Row] = []
            while True:
                ours = ours or [shifted_row(part, row, self._shift) for row in await source.next()]
                try:
                    theirs = theirs or await target.next()
                except DamageError as error:  # of the target: it is copied again
                    return f"{error.code} {_printed(error.facts.values())}"
                count = min(len(ours), len(theirs))
                if count == 0:
                    left = ours or theirs
                    return await self._where(part, left[0]) if left else None
                if ours[:count] != theirs[:count]:
                    row = next(a for a, b in zip(ours, theirs, strict=False) if a != b)
                    return await self._where(part, row)
                digest.update(theirs[:count])
                self._stamp = max(self._stamp, *(stamp_of(part, row) for row in theirs[:count]))
                self._advance(sum(map(bytes_of, theirs[:count])))
                if part.kind == "extents" and (bad := await self._damaged(theirs[:count])):
                    return await self._where(part, bad)
                ours, theirs = ours[count:], theirs[count:]

    async def _damaged(self, extents: Sequence[Row]) -> Row | None:
        """Read the large contents of the target; return an extent whose content is another."""
        large = _large(extents)
        bad: set[bytes] = set()

        async def check(content: tuple[bytes, int]) -> None:
            digest, size = content
            if await self._target.digest_of(digest) != digest:
                bad.add(digest)
            self._advance(size)

        await at_once(check, large.items())
        return next((row for row in extents if row[EXTENT_HASH] in bad), None)

    async def _where(self, part: CopyPart, row: Row) -> str:
        if part.kind == "extents" and (blob := await self._source.blob_of(row[0])) is not None:
            return f"blob {blob!r}"
        return _printed(key_of(part, row))

    async def _alive_at(self) -> int:
        """Return the time at which messages are regarded as expired, on both sides."""
        return max((await self._source.clocks()).stamp, (await self._target.clocks()).stamp)

    # Progress

    def _begin(self, step: str, total: int) -> None:
        self._step, self._done, self._total = step, 0, total
        self._progress(step, 0, total)

    def _advance(self, size: int) -> None:
        self._done += size
        self._progress(self._step, min(self._done, self._total), self._total)


async def inventory_of(source: Source) -> Inventory:
    """Return what a source has, at the moment that is being read."""
    return Inventory(await source.plans(), *await source.large_contents())


class Ahead:
    """Reads the next batch while the present one is used."""

    def __init__(self, batches: AsyncGenerator[list[Row]]) -> None:
        self._batches = batches
        self._next = asyncio.ensure_future(self._take())

    async def next(self) -> list[Row]:
        """Return the next batch; an empty one at the end."""
        batch = await self._next
        if batch:
            self._next = asyncio.ensure_future(self._take())
        return batch

    async def close(self) -> None:
        await asyncio.wait((self._next,))
        if not self._next.cancelled():
            self._next.exception()  # the reader has its own error, or needs no more rows
        await self._batches.aclose()

    async def _take(self) -> list[Row]:
        return await anext(self._batches, [])


@contextlib.asynccontextmanager
async def ahead(batches: AsyncGenerator[list[Row]]) -> AsyncIterator[Ahead]:
    """Read batches ahead in the block."""
    reader = Ahead(batches)
    try:
        yield reader
    finally:
        await reader.close()


async def at_once(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Run the work on all items, a few at a time; the first error ends it."""
    free = asyncio.Semaphore(CONTENTS_AT_ONCE)

    async def one(item: T) -> None:
        async with free:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(one(item))
    except* Exception as errors:  # noqa: BLE001 - one of them is raised
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def _large(extents: Iterable[Row]) -> dict[bytes, int]:
    """Return the hashes and sizes of the contents that are not in rows."""
    return {row[EXTENT_HASH]: row[EXTENT_SIZE] for row in extents if row[EXTENT_HASH] is not None}


def _printed(values: Iterable[object]) -> str:
    return ", ".join(repr(each) for each in values)


async def _checked(pieces: AsyncIterator[bytes], digest: bytes) -> AsyncIterator[bytes]:
    """Yield the pieces of a content; raise at the end if they are not those of its hash."""
    found = hashlib.sha256()
    async for piece in pieces:
        found.update(piece)
        yield piece
    if found.digest() != digest:
        raise damaged("its bytes are not those that were written")
