"""BlobEngine: applies the rules of the blob service on a store. No HTTP here.

Each operation judges (`preconditions`), writes its rows in one transaction, and ends. Those
of containers, blocks, pages and copies are in modules of their own.
"""

from collections.abc import Mapping
from functools import partial

from partita.blobs.engine import preconditions as judging
from partita.blobs.engine.block_blobs import BlockEngine
from partita.blobs.engine.containers import ContainerEngine
from partita.blobs.engine.copies import CopyEngine
from partita.blobs.engine.operations import (
    bad_header,
    check_properties,
    check_tier,
    lease_outcome,
    put_new,
    replace,
)
from partita.blobs.engine.page_blobs import PageEngine
from partita.blobs.rules import checksums, limits
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules.model import (
    ANY,
    PLAIN,
    UNDECLARED,
    Blob,
    BlobName,
    Conditions,
    Content,
    Declared,
    DeleteSnapshots,
    Download,
    Headers,
    LeaseOutcome,
    LeaseRequest,
    Opened,
    Properties,
    Written,
)
from partita.blobs.rules.names import LIVE, snapshot_ticks
from partita.blobs.rules.stored_format import ARCHIVE, blob_of
from partita.blobs.rules.tags import check_tags
from partita.blobs.store.download import BytesDownload, verified
from partita.blobs.store.rows import BlobRow, PieceRow
from partita.errors import ConflictError, InvalidRequestError, LimitExceededError
from partita.ticks import TICKS_PER_SECOND

REHYDRATION_SECONDS = 15
"""How long an archived blob takes to come back: the service takes hours."""
DEFAULT_PRIORITY = "Standard"


class BlobEngine(ContainerEngine, BlockEngine, PageEngine, CopyEngine):
    """Containers and blobs of one account.

    >>> import asyncio
    >>> from partita.blobs.store.sqlite_store import SqliteBlobStore
    >>> from partita.clock import SystemClock
    >>> from partita.storage.database import Database
    >>> from partita.storage.store_clock import StoreClock
    >>> async def example() -> bytes:
    ...     database = await Database.open(None)
    ...     clock = StoreClock(database, SystemClock())
    ...     engine = BlobEngine(await SqliteBlobStore.open(database, clock))
    ...     await engine.create_container("photos")
    ...     await engine.put_blob(BlobName("photos", "staff/00010.png"), b"PNG")
    ...     opened = await engine.open_blob(BlobName("photos", "staff/00010.png"), first=1)
    ...     content = b"".join([part async for part in opened.content])
    ...     await opened.content.close()
    ...     await engine.close()
    ...     await database.close()
    ...     return content
    >>> asyncio.run(example())
    b'NG'
    """

    async def close(self) -> None:
        """Finish what was accepted; the database is closed by whoever opened it."""
        await self.store.close()

    # Whole blobs

    async def put_blob(
        self,
        name: BlobName,
        content: Content,
        *,
        properties: Properties = PLAIN,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
        declared: Declared = UNDECLARED,
    ) -> Written:
        """Write a block blob whole, over whatever is there; a stated MD5 is verified, too."""
        check_properties(properties)
        if not isinstance(content, bytes):
            judging.judge_new(self.store.rows(), name, self.terms(lease_id, conditions))
        async with self.store.receive(
            content, bytes_max=limits.PUT_BLOB_BYTES_MAX, wants_md5=True
        ) as receipt:
            sums, stated = receipt.received.sums, properties.headers.content_md5
            checksums.verify(declared, sums)
            checksums.verify(Declared(md5=stated), sums)
            await receipt.settle()
            async with self.store.change() as tx:
                place = judging.judge_new(tx, name, self.terms(lease_id, conditions))
                facts = self.new_facts("BlockBlob", tx.stamp(), properties, place[1])
                headers = replace(facts.headers, content_md5=sums.md5)
                facts = replace(facts, headers=headers, length=receipt.received.size)
                put_new(tx, place, name, tx.add_content(receipt.received), facts)
        return Written(facts.changed_at, sums.md5, sums.crc64)

    async def open_blob(  # noqa: PLR0913 - what a reader may ask for, each by its name
        self,
        name: BlobName,
        *,
        first: int | None = None,
        last: int | None = None,
        wants_md5: bool = False,
        wants_crc64: bool = False,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Opened:
        """Open a blob, or bytes `first` to `last` (inclusive) of it, for reading.

        A `last` beyond the end is clipped; a `first` beyond it is InvalidRange, with the length
        in `facts["length"]`. A checksum is of RANGE_MD5_BYTES_MAX bytes at most. Close what comes
        back.
        """
        terms = self.terms(lease_id, conditions)
        snapshot = snapshot_ticks(name.snapshot)
        container, row, inline = self.store.rows().find_blob_with_bytes(
            name.container, name.name, snapshot
        )
        row = judging.require_found(name, container, row)
        pieces: list[PieceRow] | None = None
        if row.facts.kind == "PageBlob":
            row, pieces = await self._read_pages(row, first or 0, last)
        try:
            judging.judge_read_of(row, terms)
            judging.refuse_archived(row, terms.now)
            start, end = _clipped(first, last, row.facts.length)
            has_sums = wants_md5 or wants_crc64
            if has_sums and end - start > limits.RANGE_MD5_BYTES_MAX:
                raise too_long_for_checksum()
            if inline is not None and pieces is None:
                content: Download = BytesDownload(verified(inline)[start:end])
            else:
                content = await self.store.open_content(row, start, end, pieces)
        finally:
            if pieces is not None:
                self.store.claims.unpin(row.content)
        sums = UNDECLARED
        if has_sums:
            content, sums = await self._with_sums(content, wants_md5=wants_md5)
        blob = blob_of(row.name, row.snapshot, row.facts, terms.now)
        crc64 = sums.crc64 if wants_crc64 else None
        return Opened(blob, content, start, end - 1, row.facts.length, sums.md5, crc64)

    async def _with_sums(self, content: Download, *, wants_md5: bool) -> tuple[Download, Declared]:
        try:
            whole = b"".join([part async for part in content])
        finally:
            await content.close()
        sums = partial(checksums.sums_of, wants_md5=wants_md5)
        return BytesDownload(whole), await self.store.threads.run(sums, whole)

    async def get_blob(
        self, name: BlobName, *, lease_id: str | None = None, conditions: Conditions = ANY
    ) -> Blob:
        terms = self.terms(lease_id, conditions)
        row = judging.judge_read(self.store.rows(), name, terms)
        return blob_of(row.name, row.snapshot, row.facts, terms.now)

    async def set_headers(
        self,
        name: BlobName,
        headers: Headers,
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        """Replace all headers together."""
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(tx, name, terms)
            return self.touch(tx, row, terms, headers=headers)

    async def set_metadata(
        self,
        name: BlobName,
        metadata: Mapping[str, str],
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(tx, name, terms)
            judging.refuse_archived(row, terms.now)
            return self.touch(tx, row, terms, metadata=dict(metadata))

    async def set_tier(
        self,
        name: BlobName,
        tier: str,
        *,
        priority: str | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> bool:
        """Record a tier; True when the blob has to be brought back from the archive for it."""
        check_tier(tier)
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.require_blob(tx, name)
            if row.facts.kind == "AppendBlob":
                raise judging.wrong_kind()
            judging.judge_write_of(row, terms, needs_lease=True)
            shown = blob_of(row.name, row.snapshot, row.facts, terms.now)
            comes_back = shown.tier == ARCHIVE and tier != ARCHIVE
            back_at = terms.now + REHYDRATION_SECONDS * TICKS_PER_SECOND if comes_back else None
            facts = replace(
                row.facts,
                tier=tier,
                tier_changed_at=terms.now,
                rehydrated_at=back_at,
                rehydrate_priority=(priority or DEFAULT_PRIORITY) if comes_back else None,
            )
            tx.put_blob(replace(row, facts=facts))
        return comes_back

    async def get_tags(
        self, name: BlobName, *, lease_id: str | None = None, conditions: Conditions = ANY
    ) -> Mapping[str, str]:
        terms = self.terms(lease_id, conditions)
        return judging.judge_read(self.store.rows(), name, terms).facts.tags

    async def set_tags(
        self,
        name: BlobName,
        tags: Mapping[str, str],
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> None:
        check_tags(tags)
        async with self.store.change() as tx:
            row = judging.require_blob(tx, name)
            judging.judge_write_of(row, self.terms(lease_id, conditions), needs_lease=True)
            tx.put_blob(replace(row, facts=replace(row.facts, tags=dict(tags))))

    async def lease_blob(
        self, name: BlobName, request: LeaseRequest, *, conditions: Conditions = ANY
    ) -> LeaseOutcome:
        async with self.store.change() as tx:
            judging.require_live(name)
            row = judging.require_blob(tx, name)
            condition_rules.check_write(conditions, row.facts.changed_at, row.facts.tags)
            lease, seconds = self.apply_lease(row.facts.lease, request)
            tx.put_blob(replace(row, facts=replace(row.facts, lease=lease)))
        return lease_outcome(row.facts.changed_at, lease, seconds)

    async def snapshot(
        self,
        name: BlobName,
        *,
        metadata: Mapping[str, str] | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Blob:
        """Keep the blob as it is now under a time of its own; return that snapshot."""
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            judging.require_live(name)
            row = judging.require_blob(tx, name)
            judging.judge_write_of(row, terms, needs_lease=False)
            judging.refuse_archived(row, terms.now)
            facts = replace(row.facts, lease=None)
            if metadata is not None:
                facts = replace(facts, metadata=dict(metadata))
            # Pages change in place; appends only add behind what the snapshot shows.
            content = tx.fork(row) if facts.kind == "PageBlob" else row.content
            kept = BlobRow(row.container, row.name, tx.stamp(), content, facts)
            tx.put_blob(kept)
        return blob_of(kept.name, kept.snapshot, kept.facts, terms.now)

    async def delete_blob(
        self,
        name: BlobName,
        *,
        snapshots: DeleteSnapshots | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> None:
        if name.snapshot is not None and snapshots is not None:
            raise bad_header("x-ms-delete-snapshots", snapshots)
        async with self.store.change(frees_space=True) as tx:
            row = judging.require_blob(tx, name)
            judging.judge_write_of(row, self.terms(lease_id, conditions), needs_lease=True)
            condition_rules.check_tier_time(conditions, row.facts.tier_changed_at)
            if row.snapshot != LIVE:
                tx.remove_blob(row)
                return
            kept = tx.snapshots(row.container, row.name)
            if kept and snapshots is None:
                raise ConflictError(
                    "SnapshotsPresent",
                    "This operation is not permitted while the blob has snapshots.",
                    hint="Say whether they go with it: x-ms-delete-snapshots.",
                )
            for each in kept:
                tx.remove_blob(each)
            if snapshots != "only":
                tx.remove_blob(row)
                tx.discard_blocks(row.container, row.name)


def _clipped(first: int | None, last: int | None, length: int) -> tuple[int, int]:
    """Return the bytes to give as a half-open range."""
    if first is None:
        return 0, length
    if first >= length or (last is not None and last < first):
        raise InvalidRequestError(
            "InvalidRange",
            "The range specified is invalid for the current size of the resource.",
            facts={"length": length},
        )
    return first, length if last is None else min(last + 1, length)


def too_long_for_checksum() -> LimitExceededError:
    """Return the refusal of a checksum of too long a range."""
    return LimitExceededError(
        "OutOfRangeInput",
        "One of the request inputs is out of range.",
        hint=f"Ask for the checksum of at most {limits.RANGE_MD5_BYTES_MAX} bytes.",
    )
