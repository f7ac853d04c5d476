"""Append blobs: blocks are added at the end until the blob is sealed."""

from partita.blobs.engine import preconditions
from partita.blobs.engine.keeping import Keeper
from partita.blobs.engine.operations import check_properties, new_facts, put_new, replace, touch
from partita.blobs.rules import checksums, limits
from partita.blobs.rules.blocks import refuse_empty, too_many_blocks
from partita.blobs.rules.model import (
    NO_TERMS,
    PLAIN,
    UNDECLARED,
    Appended,
    BlobName,
    Content,
    Declared,
    Properties,
    Terms,
    Written,
)
from partita.blobs.store.contract import EMPTY, BlobChange, BlobRow, BlobStore
from partita.errors import ConflictError


class AppendBlobs:
    """The operations of append blobs."""

    def __init__(self, store: BlobStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper

    async def create_append_blob(
        self, name: BlobName, *, properties: Properties = PLAIN, terms: Terms = NO_TERMS
    ) -> Written:
        check_properties(properties)

        async def create(tx: BlobChange) -> Written:
            now = self._store.now()
            found = await preconditions.check_new(tx, name, terms, now)
            facts = new_facts("AppendBlob", tx.stamp(), properties, found[1], now=now)
            return await put_new(tx, self._keeper, found, name, EMPTY, facts)

        return await self._store.run(create)

    async def append_block(
        self,
        name: BlobName,
        content: Content,
        *,
        position: int | None = None,
        size_max: int | None = None,
        terms: Terms = NO_TERMS,
        declared: Declared = UNDECLARED,
    ) -> Appended:
        """Append if the blob's length is `position` and stays within `size_max`."""
        store = self._store
        if not isinstance(content, bytes):
            row = await preconditions.find_for_write(
                store.reads(), name, terms, store.now(), kind="AppendBlob"
            )
            _check_append(row, position)
        async with store.receive(
            content, bytes_max=limits.APPEND_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            refuse_empty(received.size)
            checksums.verify(declared, received.sums)
            await receipt.settle()
            async with store.change() as tx:
                now = store.now()
                row = await preconditions.find_for_write(tx, name, terms, now, kind="AppendBlob")
                _check_append(row, position)
                offset = row.facts.length
                if size_max is not None and offset + received.size > size_max:
                    raise ConflictError(
                        "MaxBlobSizeConditionNotMet",
                        "The max blob size condition specified was not met.",
                    )
                content_id = await tx.new_content() if row.content == EMPTY else row.content
                await tx.write_content(content_id, offset, received)
                written = await touch(
                    tx,
                    replace(row, content=content_id),
                    now,
                    length=offset + received.size,
                    block_count=row.facts.block_count + 1,
                    copy=None,
                )
        sums = received.sums
        written = replace(written, md5=sums.md5, crc64=sums.crc64)
        return Appended(written, offset, row.facts.block_count + 1)

    async def seal(
        self, name: BlobName, *, position: int | None = None, terms: Terms = NO_TERMS
    ) -> Written:
        """Seal an append blob: nothing can be appended afterwards."""
        async with self._store.change() as tx:
            now = self._store.now()
            row = await preconditions.find_for_write(tx, name, terms, now, kind="AppendBlob")
            _check_position(row, position)
            return await touch(tx, row, now, is_sealed=True)


def _check_append(row: BlobRow, position: int | None) -> None:
    if row.facts.is_sealed:
        raise ConflictError(
            "BlobIsSealed", "The specified blob is sealed and its contents can't be modified."
        )
    _check_position(row, position)
    if row.facts.block_count >= limits.APPENDED_BLOCKS_MAX:
        raise too_many_blocks("committed block count", limits.APPENDED_BLOCKS_MAX)


def _check_position(row: BlobRow, position: int | None) -> None:
    if position is not None and position != row.facts.length:
        raise ConflictError(
            "AppendPositionConditionNotMet",
            "The append position condition specified was not met.",
            facts={"length": row.facts.length},
            hint="Another client has appended: read the length again.",
        )
