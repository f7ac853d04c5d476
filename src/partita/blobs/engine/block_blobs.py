"""Blocks that are staged and committed, and blobs that are appended to."""

from collections.abc import Sequence

from partita.blobs.engine import preconditions as judging
from partita.blobs.engine.operations import (
    Operations,
    bad_header,
    check_properties,
    put_new,
    replace,
)
from partita.blobs.rules import blocks as block_rules
from partita.blobs.rules import checksums, limits
from partita.blobs.rules.model import (
    ANY,
    PLAIN,
    UNDECLARED,
    Appended,
    BlobName,
    Block,
    BlockChoice,
    BlockList,
    Conditions,
    Content,
    Declared,
    Properties,
    Written,
)
from partita.blobs.rules.names import LIVE, snapshot_ticks
from partita.blobs.rules.stored_format import StoredBlob, blob_of
from partita.blobs.store.rows import EMPTY, BlobRow, BlockRow, PieceRow
from partita.errors import ConflictError


class BlockEngine(Operations):
    """The operations of block lists and append blobs."""

    # Blocks

    async def put_block(
        self,
        name: BlobName,
        block_id: str,
        content: Content,
        *,
        lease_id: str | None = None,
        declared: Declared = UNDECLARED,
    ) -> Declared:
        """Stage a block; return its checksums (the MD5 only if one was declared)."""
        block_rules.check_block_id(block_id, None)
        if not isinstance(content, bytes):
            terms = self.terms(lease_id, ANY)
            judging.judge_new(self.store.rows(), name, terms, kind="BlockBlob")
        async with self.store.receive(
            content, bytes_max=limits.BLOCK_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            refuse_empty(received.size)
            checksums.verify(declared, received.sums)
            await receipt.settle()
            async with self.store.change() as tx:
                terms = self.terms(lease_id, ANY)
                container, row = judging.judge_new(tx, name, terms, kind="BlockBlob")
                if row is None:
                    facts = StoredBlob("BlockBlob", terms.now, terms.now, is_committed=False)
                    row = BlobRow(container, name.name, LIVE, EMPTY, facts)
                    tx.put_blob(row)
                block_rules.check_block_id(block_id, tx.some_block_id(row))
                if not tx.has_room_for_block(row):
                    raise _too_many_blocks("uncommitted block count", limits.BLOCKS_STAGED_MAX)
                tx.put_block(row, block_id, received)
        return received.sums

    async def put_block_list(
        self,
        name: BlobName,
        blocks: Sequence[BlockChoice],
        *,
        properties: Properties = PLAIN,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        """Make these blocks, in this order, the content; all other staged ones vanish."""
        check_properties(properties)
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            place = judging.judge_new(tx, name, terms, kind="BlockBlob")
            container, before = place
            chosen = block_rules.resolve(
                blocks,
                {} if before is None else _by_id(tx.committed_blocks(before.content)),
                _by_id(tx.staged_blocks(container, name.name)),
            )
            facts = self.new_facts("BlockBlob", tx.stamp(), properties, before)
            content, length = tx.add_blocks(chosen)
            put_new(tx, place, name, content, replace(facts, length=length))
        return Written(facts.changed_at)

    async def get_block_list(
        self, name: BlobName, *, lease_id: str | None = None, conditions: Conditions = ANY
    ) -> BlockList:
        terms = self.terms(lease_id, conditions)
        rows = self.store.rows()
        container, row = rows.find_blob(name.container, name.name, snapshot_ticks(name.snapshot))
        if container is None:
            raise judging.missing_container(name.container)
        if row is None:
            raise judging.missing_blob(name)
        if row.facts.kind != "BlockBlob":
            raise judging.wrong_kind()
        judging.judge_read_of(row, terms)
        staged = rows.staged_blocks(container, name.name) if row.snapshot == LIVE else []
        return BlockList(
            blob_of(row.name, row.snapshot, row.facts, terms.now),
            [Block(block.id, block.size) for block in rows.committed_blocks(row.content)],
            [Block(block.id, block.size) for block in staged],
        )

    # Appends

    async def create_append_blob(
        self,
        name: BlobName,
        *,
        properties: Properties = PLAIN,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        check_properties(properties)
        async with self.store.change() as tx:
            place = judging.judge_new(tx, name, self.terms(lease_id, conditions))
            facts = self.new_facts("AppendBlob", tx.stamp(), properties, place[1])
            put_new(tx, place, name, EMPTY, facts)
        return Written(facts.changed_at)

    async def append_block(  # noqa: PLR0913 - an append has conditions of its own
        self,
        name: BlobName,
        content: Content,
        *,
        position: int | None = None,
        size_max: int | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
        declared: Declared = UNDECLARED,
    ) -> Appended:
        """Append, if the blob is as long as `position` says and stays within `size_max`."""
        if not isinstance(content, bytes):
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(self.store.rows(), name, terms, kind="AppendBlob")
            _judge_append(row, position)
        async with self.store.receive(
            content, bytes_max=limits.APPEND_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            refuse_empty(received.size)
            checksums.verify(declared, received.sums)
            await receipt.settle()
            async with self.store.change() as tx:
                terms = self.terms(lease_id, conditions)
                row = judging.judge_write(tx, name, terms, kind="AppendBlob")
                _judge_append(row, position)
                offset = row.facts.length
                if size_max is not None and offset + received.size > size_max:
                    raise _too_long_to_append()
                chain = tx.stamp() if row.content == EMPTY else row.content
                tx.add_piece(chain, PieceRow(offset, received.size, 0, tx.add_extent(received)))
                written = self.touch(
                    tx,
                    replace(row, content=chain),
                    terms,
                    length=offset + received.size,
                    block_count=row.facts.block_count + 1,
                    copy=None,
                )
        sums = received.sums
        written = Written(written.changed_at, sums.md5, sums.crc64)
        return Appended(written, offset, row.facts.block_count + 1)

    async def seal(
        self,
        name: BlobName,
        *,
        position: int | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Written:
        """End an append blob: nothing can be appended any more."""
        async with self.store.change() as tx:
            terms = self.terms(lease_id, conditions)
            row = judging.judge_write(tx, name, terms, kind="AppendBlob")
            _judge_position(row, position)
            return self.touch(tx, row, terms, is_sealed=True)


def _judge_append(row: BlobRow, position: int | None) -> None:
    if row.facts.is_sealed:
        raise ConflictError(
            "BlobIsSealed", "The specified blob is sealed and its contents can't be modified."
        )
    _judge_position(row, position)
    if row.facts.block_count >= limits.APPENDED_BLOCKS_MAX:
        raise _too_many_blocks("committed block count", limits.APPENDED_BLOCKS_MAX)


def _judge_position(row: BlobRow, position: int | None) -> None:
    if position is not None and position != row.facts.length:
        raise ConflictError(
            "AppendPositionConditionNotMet",
            "The append position condition specified was not met.",
            facts={"length": row.facts.length},
            hint="Somebody else has appended: read the length again.",
        )


def _by_id(blocks: Sequence[BlockRow]) -> dict[str, BlockRow]:
    return {block.id: block for block in blocks}


def refuse_empty(size: int) -> None:
    if size == 0:
        raise bad_header("Content-Length", "0")


def _too_long_to_append() -> ConflictError:
    return ConflictError(
        "MaxBlobSizeConditionNotMet", "The max blob size condition specified was not met."
    )


def _too_many_blocks(what: str, most: int) -> ConflictError:
    return ConflictError(
        "BlockCountExceedsLimit",
        f"The {what} cannot exceed the maximum limit of {most:,} blocks.",
    )
