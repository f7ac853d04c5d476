"""Page blobs: ranges of pages written, cleared and listed; what was never written reads as zero."""

import itertools
from collections.abc import Iterator
from functools import partial

from partita.blobs.engine import preconditions as judging
from partita.blobs.engine.operations import (
    Operations,
    bad_header,
    check_properties,
    put_new,
    replace,
)
from partita.blobs.engine.preconditions import Terms
from partita.blobs.rules import checksums, limits
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules.model import (
    ANY,
    ANY_SEQUENCE,
    PLAIN,
    UNDECLARED,
    BlobName,
    Conditions,
    Content,
    Declared,
    PageRange,
    PageRanges,
    Properties,
    SequenceAction,
    SequenceConditions,
    Written,
)
from partita.blobs.rules.stored_format import blob_of
from partita.blobs.store.rows import BlobRow, BlobRows, BlobTransaction, PieceRow
from partita.errors import ConflictError

SEQUENCE_NUMBER_MAX = 2**63 - 1


class PageEngine(Operations):
    """The operations of page blobs."""

    async def create_page_blob(
        self,
        name: BlobName,
        length: int,
        *,
        sequence_number: int = 0,
        properties: Properties = PLAIN,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        check_properties(properties)
        _check_length(length)
        _check_sequence_number(sequence_number)
        async with self.store.change() as tx:
            place = judging.judge_new(tx, name, self.terms(lease_id, conditions))
            facts = self.new_facts("PageBlob", tx.stamp(), properties, place[1])
            facts = replace(facts, length=length, sequence_number=sequence_number)
            put_new(tx, place, name, tx.stamp(), facts)
        return Written(facts.changed_at, sequence_number=sequence_number)

    async def put_pages(  # noqa: PLR0913 - pages have conditions of their own
        self,
        name: BlobName,
        first: int,
        content: Content,
        *,
        last: int,
        sequence: SequenceConditions = ANY_SEQUENCE,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
        declared: Declared = UNDECLARED,
    ) -> Written:
        """Write whole pages, from byte `first` to byte `last`."""
        terms = self.terms(lease_id, conditions)
        row = judging.judge_write(self.store.rows(), name, terms, kind="PageBlob")
        _check_range(first, last, row.facts.length)
        async with self.store.receive(
            content, bytes_max=limits.PUT_PAGES_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            if received.size != last - first + 1:
                raise _bad_range("The range and the content have different lengths.")
            checksums.verify(declared, received.sums)
            await receipt.settle()
            async with self.store.change() as tx:
                terms = self.terms(lease_id, conditions)
                row = self._judge_pages(tx, name, terms, sequence)
                _check_range(first, last, row.facts.length)
                tx.cut(row.content, first, last + 1)
                extent = tx.add_extent(received)
                tx.add_piece(row.content, PieceRow(first, received.size, 0, extent))
                written = self.touch(tx, row, terms, copy=None)
        return replace(written, md5=received.sums.md5, crc64=received.sums.crc64)

    async def clear_pages(
        self,
        name: BlobName,
        first: int,
        last: int,
        *,
        sequence: SequenceConditions = ANY_SEQUENCE,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        """Make pages read as zero again, and give their room back."""
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = self._judge_pages(tx, name, terms, sequence)
            _check_range(first, last, row.facts.length)
            tx.cut(row.content, first, last + 1)
            return self.touch(tx, row, terms, copy=None)

    async def page_ranges(
        self,
        name: BlobName,
        *,
        first: int = 0,
        last: int | None = None,
        limit: int | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> PageRanges:
        """List what was written, in order."""
        terms = self.terms(lease_id, conditions)

        def read(rows: BlobRows) -> PageRanges:
            row = judging.require_blob(rows, name)
            if row.facts.kind != "PageBlob":
                raise judging.wrong_kind()
            judging.judge_read_of(row, terms)
            start, end = _within(row, first, last)
            ranges = _ranges(rows.pieces(row.content, start, end), start, end)
            shown = list(itertools.islice(ranges, limit))
            following = next(ranges, None)
            blob = blob_of(row.name, row.snapshot, row.facts, terms.now)
            return PageRanges(blob, shown, None if following is None else following.first)

        return await self.store.in_reader(read)

    async def resize(
        self,
        name: BlobName,
        length: int,
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        _check_length(length)
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(tx, name, terms, kind="PageBlob")
            if length < row.facts.length:
                tx.cut(row.content, length, row.facts.length)
            return self.touch(tx, row, terms, length=length)

    async def set_sequence_number(
        self,
        name: BlobName,
        action: SequenceAction,
        number: int | None,
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        if (number is None) != (action == "increment"):
            raise bad_header("x-ms-blob-sequence-number", "" if number is None else str(number))
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(tx, name, terms, kind="PageBlob")
            current = row.facts.sequence_number
            if number is None:
                number = current + 1
            elif action == "max":
                number = max(number, current)
            _check_sequence_number(number)
            return self.touch(tx, row, terms, sequence_number=number)

    def _judge_pages(
        self, tx: BlobTransaction, name: BlobName, terms: Terms, sequence: SequenceConditions
    ) -> BlobRow:
        row = judging.judge_write(tx, name, terms, kind="PageBlob")
        condition_rules.check_sequence(sequence, row.facts.sequence_number)
        return row

    async def _read_pages(
        self, row: BlobRow, first: int, last: int | None
    ) -> tuple[BlobRow, list[PieceRow]]:
        """Read a page blob's row and the pieces of a range in one state, its content pinned.

        Pages change in place: what the row said before may belong to other pages by now.
        """
        while True:
            content = row.content
            self.store.claims.pin(content)
            try:
                read = partial(_read_row, row=row, first=first, last=last)
                found, pieces = await self.store.in_reader(read)
            except BaseException:
                self.store.claims.unpin(content)
                raise
            if found.content == content:
                return found, pieces
            self.store.claims.unpin(content)
            row = found


def _read_row(
    rows: BlobRows, *, row: BlobRow, first: int, last: int | None
) -> tuple[BlobRow, list[PieceRow]]:
    found = rows.get_blob(row.container, row.name, row.snapshot)
    if found is None:
        raise judging.missing_blob(BlobName("", row.name))
    return found, rows.pieces(found.content, *_within(found, first, last))


def _within(row: BlobRow, first: int, last: int | None) -> tuple[int, int]:
    """Return the range as far as the blob reaches: the database cannot count any further."""
    length = row.facts.length
    return min(first, length), length if last is None else min(last + 1, length)


def _ranges(pieces: list[PieceRow], first: int, end: int) -> Iterator[PageRange]:
    """Join pieces that touch, within a range."""
    start = stop = -1
    for piece in pieces:
        if piece.place != stop:
            if start >= 0:
                yield PageRange(max(start, first), stop - 1)
            start = piece.place
        stop = piece.place + piece.size
    if start >= 0:
        yield PageRange(max(start, first), min(stop, end) - 1)


def _check_length(length: int) -> None:
    if length % limits.PAGE_BYTES or not 0 <= length <= limits.PAGE_BLOB_BYTES_MAX:
        raise bad_header("x-ms-blob-content-length", str(length))


def _check_range(first: int, last: int, length: int) -> None:
    if first % limits.PAGE_BYTES or (last + 1) % limits.PAGE_BYTES or not 0 <= first <= last:
        raise _bad_range("Pages begin and end at multiples of 512.")
    if last >= length:
        raise _bad_range("The range ends behind the blob.")


def _check_sequence_number(number: int) -> None:
    if not 0 <= number <= SEQUENCE_NUMBER_MAX:
        raise bad_header("x-ms-blob-sequence-number", str(number))


def _bad_range(hint: str) -> ConflictError:
    return ConflictError("InvalidPageRange", "The page range specified is invalid.", hint=hint)
