"""Page blobs: ranges of pages are written, cleared and listed; unwritten pages read as zeros."""

import itertools
from collections.abc import Iterator

from partita.blobs.engine import preconditions
from partita.blobs.engine.keeping import Keeper
from partita.blobs.engine.operations import check_properties, new_facts, put_new, replace, touch
from partita.blobs.rules import checksums, limits
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules.model import (
    ANY_SEQUENCE,
    NO_TERMS,
    PLAIN,
    UNDECLARED,
    BlobName,
    Content,
    Declared,
    PageRange,
    PageRanges,
    Properties,
    SequenceAction,
    SequenceConditions,
    Terms,
    Written,
)
from partita.blobs.rules.names import snapshot_ticks
from partita.blobs.rules.stored_format import blob_of
from partita.blobs.store.contract import BlobChange, BlobRow, BlobStore, PieceRow
from partita.errors import ConflictError, InvalidRequestError
from partita.refusals import invalid_header

SEQUENCE_NUMBER_MAX = 2**63 - 1


class PageBlobs:
    """The operations of page blobs."""

    def __init__(self, store: BlobStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper

    async def create_page_blob(
        self,
        name: BlobName,
        length: int,
        *,
        sequence_number: int = 0,
        properties: Properties = PLAIN,
        terms: Terms = NO_TERMS,
    ) -> Written:
        check_properties(properties)
        _check_length(length)
        _check_sequence_number(sequence_number)

        async def create(tx: BlobChange) -> Written:
            now = self._store.now()
            found = await preconditions.check_new(tx, name, terms, now)
            facts = new_facts("PageBlob", tx.stamp(), properties, found[1], now=now)
            facts = replace(facts, length=length, sequence_number=sequence_number)
            return await put_new(tx, self._keeper, found, name, await tx.new_content(), facts)

        return await self._store.run(create)

    async def put_pages(  # noqa: PLR0913 - pages have conditions of their own
        self,
        name: BlobName,
        first: int,
        content: Content,
        *,
        last: int,
        sequence: SequenceConditions = ANY_SEQUENCE,
        terms: Terms = NO_TERMS,
        declared: Declared = UNDECLARED,
    ) -> Written:
        """Write complete pages, from byte `first` to byte `last`."""
        store = self._store
        row = await preconditions.find_for_write(
            store.reads(), name, terms, store.now(), kind="PageBlob"
        )
        _check_range(first, last, row.facts.length)
        async with store.receive(
            content, bytes_max=limits.PUT_PAGES_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            if received.size != last - first + 1:
                raise _bad_range("The range and the content have different lengths.")
            checksums.verify(declared, received.sums)
            await receipt.settle()

            async def write(tx: BlobChange) -> Written:
                now = store.now()
                row = await _find_pages(tx, name, terms, now, sequence)
                _check_range(first, last, row.facts.length)
                await tx.write_content(row.content, first, received)
                return await touch(tx, row, now, copy=None)

            written = await store.run(write)
        return replace(written, md5=received.sums.md5, crc64=received.sums.crc64)

    async def clear_pages(
        self,
        name: BlobName,
        first: int,
        last: int,
        *,
        sequence: SequenceConditions = ANY_SEQUENCE,
        terms: Terms = NO_TERMS,
    ) -> Written:
        """Make pages read as zeros again, and free their space."""

        async def clear(tx: BlobChange) -> Written:
            now = self._store.now()
            row = await _find_pages(tx, name, terms, now, sequence)
            _check_range(first, last, row.facts.length)
            await tx.cut(row.content, first, last + 1)
            return await touch(tx, row, now, copy=None)

        return await self._store.run(clear)

    async def page_ranges(
        self,
        name: BlobName,
        *,
        first: int = 0,
        last: int | None = None,
        limit: int | None = None,
        since: str | None = None,
        terms: Terms = NO_TERMS,
    ) -> PageRanges:
        """List the ranges that were written, in order.

        With `since`, the time of an earlier snapshot: those that were written or cleared since.
        """
        now = self._store.now()
        earlier = None if since is None else await self._earlier_pieces(name, since)

        def within(row: BlobRow) -> tuple[int, int]:
            length = row.facts.length
            return min(first, length), length if last is None else min(last + 1, length)

        def join(row: BlobRow, pieces: list[PieceRow]) -> PageRanges:
            if earlier is None:
                ranges = _ranges(pieces, *within(row))
            else:
                ranges = _changed_ranges(_before(earlier, row), pieces, *within(row))
            shown = list(itertools.islice(ranges, limit))
            following = next(ranges, None)
            blob = blob_of(row.name, row.snapshot, row.facts, now)
            return PageRanges(blob, shown, None if following is None else following.first)

        def choose(container: int | None, row: BlobRow | None) -> tuple[int, int]:
            found = preconditions.require_found(name, container, row)
            if found.facts.kind != "PageBlob":
                raise preconditions.wrong_kind()
            preconditions.check_read(found, terms, now)
            return within(found)

        snapshot = await preconditions.key_of(self._store.reads(), name)
        return await self._store.read_pages(name.container, name.name, snapshot, choose, join)

    async def _earlier_pieces(self, name: BlobName, since: str) -> tuple[BlobRow, list[PieceRow]]:
        """Return an earlier snapshot and its pieces: they never change."""
        earlier = BlobName(name.container, name.name, since)
        time = snapshot_ticks(since, "prevsnapshot")

        def choose(container: int | None, row: BlobRow | None) -> tuple[int, int]:
            if container is None:
                raise preconditions.missing_container(name.container)
            if row is None or not preconditions.is_named(earlier, row):
                raise ConflictError(
                    "PreviousSnapshotNotFound", "The previous snapshot is not found."
                )
            if row.facts.kind != "PageBlob":
                raise preconditions.wrong_kind()
            return 0, row.facts.length

        if name.snapshot is not None and snapshot_ticks(name.snapshot) < time:
            raise InvalidRequestError(
                "PreviousSnapshotCannotBeNewer",
                "The prevsnapshot query parameter value cannot be newer than snapshot query"
                " parameter value.",
            )
        return await self._store.read_pages(
            name.container, name.name, time, choose, lambda row, pieces: (row, pieces)
        )

    async def resize(self, name: BlobName, length: int, *, terms: Terms = NO_TERMS) -> Written:
        _check_length(length)

        async def cut(tx: BlobChange) -> Written:
            now = self._store.now()
            row = await preconditions.find_for_write(tx, name, terms, now, kind="PageBlob")
            if length < row.facts.length:
                await tx.cut(row.content, length, row.facts.length)
            return await touch(tx, row, now, length=length)

        return await self._store.run(cut)

    async def set_sequence_number(
        self,
        name: BlobName,
        action: SequenceAction,
        number: int | None,
        *,
        terms: Terms = NO_TERMS,
    ) -> Written:
        if (number is None) != (action == "increment"):
            raise invalid_header("x-ms-blob-sequence-number", "" if number is None else str(number))
        async with self._store.change() as tx:
            now = self._store.now()
            row = await preconditions.find_for_write(tx, name, terms, now, kind="PageBlob")
            current = row.facts.sequence_number
            if number is None:
                number = current + 1
            elif action == "max":
                number = max(number, current)
            _check_sequence_number(number)
            return await touch(tx, row, now, sequence_number=number)


async def _find_pages(
    tx: BlobChange, name: BlobName, terms: Terms, now: int, sequence: SequenceConditions
) -> BlobRow:
    row = await preconditions.find_for_write(tx, name, terms, now, kind="PageBlob")
    condition_rules.check_sequence(sequence, row.facts.sequence_number)
    return row


def _ranges(pieces: list[PieceRow], first: int, end: int) -> Iterator[PageRange]:
    """Join adjacent pieces, within a range."""
    start = stop = -1
    for piece in pieces:
        if piece.place != stop:
            if start >= 0:
                yield PageRange(max(start, first), stop - 1)
            start = piece.place
        stop = piece.place + piece.size
    if start >= 0:
        yield PageRange(max(start, first), min(stop, end) - 1)


def _before(earlier: tuple[BlobRow, list[PieceRow]], row: BlobRow) -> list[PieceRow]:
    """Return the earlier pieces of a blob, unless it was created again since."""
    before, pieces = earlier
    if before.facts.created_at != row.facts.created_at:
        raise ConflictError(
            "BlobOverwritten", "The blob has been recreated since the previous snapshot was taken."
        )
    return pieces


def _changed_ranges(
    before: list[PieceRow], pieces: list[PieceRow], first: int, end: int
) -> Iterator[PageRange]:
    """Yield what was written or cleared between two states of the same blob, in order.

    Bytes are unchanged if they are the same part of the same extent.
    """
    bounds = {first, end}
    for piece in itertools.chain(before, pieces):
        bounds |= {piece.place, piece.place + piece.size}
    places = sorted(place for place in bounds if first <= place <= end)
    old, new = _Sources(before), _Sources(pieces)
    found: PageRange | None = None
    for place, stop in itertools.pairwise(places):
        was, present = old.at(place), new.at(place)
        if was == present:
            continue
        is_cleared = present is None
        if found is not None and (found.last + 1, found.is_cleared) == (place, is_cleared):
            found = PageRange(found.first, stop - 1, is_cleared)
            continue
        if found is not None:
            yield found
        found = PageRange(place, stop - 1, is_cleared)
    if found is not None:
        yield found


class _Sources:
    """Where the bytes of a blob are stored, asked for in rising order."""

    def __init__(self, pieces: list[PieceRow]) -> None:
        self._pieces = iter(pieces)
        self._piece = next(self._pieces, None)

    def at(self, place: int) -> tuple[int, int] | None:
        """Return the extent of a byte and the byte's place in it; None if it is a zero."""
        piece = self._piece
        while piece is not None and piece.place + piece.size <= place:
            self._piece = piece = next(self._pieces, None)
        if piece is None or piece.place > place:
            return None
        return piece.extent, piece.start + place - piece.place


def _check_length(length: int) -> None:
    if length % limits.PAGE_BYTES or not 0 <= length <= limits.PAGE_BLOB_BYTES_MAX:
        raise invalid_header("x-ms-blob-content-length", str(length))


def _check_range(first: int, last: int, length: int) -> None:
    if first % limits.PAGE_BYTES or (last + 1) % limits.PAGE_BYTES or not 0 <= first <= last:
        raise _bad_range("Start and end pages at multiples of 512 bytes.")
    if last >= length:
        raise _bad_range("The range ends after the end of the blob.")


def _check_sequence_number(number: int) -> None:
    if not 0 <= number <= SEQUENCE_NUMBER_MAX:
        raise invalid_header("x-ms-blob-sequence-number", str(number))


def _bad_range(hint: str) -> ConflictError:
    return ConflictError("InvalidPageRange", "The page range specified is invalid.", hint=hint)
