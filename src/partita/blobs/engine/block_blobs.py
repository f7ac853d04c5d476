"""Block lists: blocks are staged, then committed as the content of a blob."""

from collections.abc import Sequence

from partita.blobs.engine import preconditions
from partita.blobs.engine.keeping import Keeper
from partita.blobs.engine.operations import check_properties, new_facts, put_new, replace
from partita.blobs.rules import blocks as block_rules
from partita.blobs.rules import checksums, limits
from partita.blobs.rules.model import (
    NO_TERMS,
    PLAIN,
    UNDECLARED,
    BlobName,
    BlockChoice,
    BlockList,
    Content,
    Declared,
    Properties,
    Terms,
    Written,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob, blob_of
from partita.blobs.store.contract import EMPTY, BlobChange, BlobRow, BlobStore, BlockRow


class BlockBlobs:
    """The operations on blocks."""

    def __init__(self, store: BlobStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper

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
        store, terms = self._store, Terms(lease_id)
        block_rules.check_block_id(block_id, None)
        if not isinstance(content, bytes):
            await preconditions.check_new(store.reads(), name, terms, store.now(), kind="BlockBlob")
        async with store.receive(
            content, bytes_max=limits.BLOCK_BYTES_MAX, wants_md5=declared.md5 is not None
        ) as receipt:
            received = receipt.received
            block_rules.refuse_empty(received.size)
            checksums.verify(declared, received.sums)
            await receipt.settle()
            async with store.change() as tx:
                now = store.now()
                container, row = await preconditions.check_new(
                    tx, name, terms, now, kind="BlockBlob"
                )
                if row is None:
                    facts = StoredBlob("BlockBlob", now, now, is_committed=False)
                    row = BlobRow(container, name.name, LIVE, EMPTY, facts)
                    await tx.put_blob(row)
                block_rules.check_block_id(block_id, await tx.some_block_id(row))
                if not await tx.has_room_for_block(row):
                    raise block_rules.too_many_blocks(
                        "uncommitted block count", limits.BLOCKS_STAGED_MAX
                    )
                await tx.put_block(row, block_id, received)
        return received.sums

    async def put_block_list(
        self,
        name: BlobName,
        blocks: Sequence[BlockChoice],
        *,
        properties: Properties = PLAIN,
        terms: Terms = NO_TERMS,
    ) -> Written:
        """Make these blocks, in this order, the content; discard all other staged blocks."""
        check_properties(properties)

        async def commit(tx: BlobChange) -> Written:
            tx.touch(len(blocks))
            now = self._store.now()
            found = await preconditions.check_new(tx, name, terms, now, kind="BlockBlob")
            container, before = found
            chosen = block_rules.resolve(
                blocks,
                {} if before is None else _by_id(await tx.committed_blocks(before.content)),
                _by_id(await tx.staged_blocks(container, name.name)),
            )
            facts = new_facts("BlockBlob", tx.stamp(), properties, before, now=now)
            content, length = await tx.add_blocks(chosen)
            return await put_new(
                tx, self._keeper, found, name, content, replace(facts, length=length)
            )

        return await self._store.run(commit)

    async def get_block_list(self, name: BlobName, *, terms: Terms = NO_TERMS) -> BlockList:
        now = self._store.now()

        def check(container: int | None, row: BlobRow | None) -> None:
            if container is None:
                raise preconditions.missing_container(name.container)
            if row is None or not preconditions.is_named(name, row):
                raise preconditions.missing_blob(name)
            if row.facts.kind != "BlockBlob":
                raise preconditions.wrong_kind()
            preconditions.check_read(row, terms, now)

        snapshot = await preconditions.key_of(self._store.reads(), name)
        row, committed, staged = await self._store.read_blocks(
            name.container, name.name, snapshot, check
        )
        blob = blob_of(row.name, row.snapshot, row.facts, now)
        return BlockList(blob, committed, staged)


def _by_id(blocks: Sequence[BlockRow]) -> dict[str, BlockRow]:
    return {block.id: block for block in blocks}
