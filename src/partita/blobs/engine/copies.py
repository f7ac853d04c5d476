"""Copies: within the account by sharing content, from elsewhere by reading it."""

from partita.blobs.engine import preconditions
from partita.blobs.engine.keeping import Keeper
from partita.blobs.engine.operations import check_properties, new_facts, put_new, replace
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import leases, limits
from partita.blobs.rules.model import (
    NO_TERMS,
    PLAIN,
    Blob,
    BlobName,
    Copied,
    CopyFacts,
    Headers,
    Kind,
    Opened,
    Properties,
    Terms,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob
from partita.blobs.store.contract import EMPTY, BlobChange, BlobReads, BlobRow, BlobStore
from partita.errors import ConflictError


class Copies:
    """The operations that write a blob from another one."""

    def __init__(self, store: BlobStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper

    async def copy_blob(  # noqa: PLR0913 - two blobs, each with its terms
        self,
        source: BlobName,
        target: BlobName,
        *,
        source_address: str = "",
        properties: Properties = PLAIN,
        copies_tags: bool = False,
        seals: bool | None = None,
        source_terms: Terms = NO_TERMS,
        terms: Terms = NO_TERMS,
    ) -> Copied:
        """Copy within the account: content is shared, not copied.

        In `properties`, metadata replaces that of the source unless it is empty; headers count
        when any is given; a tier and tags count when given. `seals` seals the copy of an append
        blob; None keeps what the source has.
        """
        given = check_properties(properties)

        async def share(tx: BlobChange) -> Copied:
            now = self._store.now()
            origin = await _find_source(tx, source, source_terms, now)
            found = await _check_target(tx, target, terms, now, origin.facts.kind)
            facts = _copied_facts(tx.stamp(), given, found[1], origin.facts, now=now)
            if copies_tags:
                facts = replace(facts, tags=origin.facts.tags)
            if seals is not None and facts.kind == "AppendBlob":
                facts = replace(facts, is_sealed=seals)
            facts, copy = self._as_copy(source_address, facts)
            # Blocks never change; appends and pages of the two blobs change independently.
            content = origin.content if facts.kind == "BlockBlob" else await tx.fork(origin)
            written = await put_new(tx, self._keeper, found, target, content, facts)
            return Copied(written, copy)

        return await self._store.run(share)

    async def put_copy(
        self,
        source: Opened,
        target: BlobName,
        *,
        source_address: str = "",
        properties: Properties = PLAIN,
        terms: Terms = NO_TERMS,
    ) -> Copied:
        """Copy from another account or server: the content is read and stored.

        A block blob becomes one piece.
        """
        store, given, kind = self._store, check_properties(properties), source.blob.kind
        await _check_target(store.reads(), target, terms, store.now(), kind)
        async with store.receive(
            source.content, bytes_max=limits.PAGE_BLOB_BYTES_MAX, wants_md5=True
        ) as receipt:
            await receipt.settle()
            sums = receipt.received.sums

            async def write(tx: BlobChange) -> Copied:
                now = store.now()
                found = await _check_target(tx, target, terms, now, kind)
                origin = _facts_of(source.blob)
                facts = _copied_facts(tx.stamp(), given, found[1], origin, now=now)
                facts = replace(facts, length=receipt.received.size)
                facts, copy = self._as_copy(source_address, facts)
                content = await tx.add_content(receipt.received)
                if content == EMPTY and kind == "PageBlob":
                    content = await tx.new_content()
                written = await put_new(tx, self._keeper, found, target, content, facts, sums)
                return Copied(written, copy)

            return await store.run(write)

    async def abort_copy(
        self, name: BlobName, copy_id: str, *, lease_id: str | None = None
    ) -> None:
        """Refuse: a copy completes before it is answered, so that no copy is ever pending."""
        store = self._store
        row = await preconditions.find_for_write(store.reads(), name, Terms(lease_id), store.now())
        if row.facts.copy is not None and row.facts.copy.id != copy_id:
            raise ConflictError(
                "CopyIdMismatch",
                "The specified copy ID did not match the copy ID for the pending copy operation.",
            )
        raise ConflictError(
            "NoPendingCopyOperation", "There is currently no pending copy operation."
        )

    def _as_copy(self, source_address: str, facts: StoredBlob) -> tuple[StoredBlob, CopyFacts]:
        length = facts.length
        copy = CopyFacts(
            self._store.new_id(), source_address, "success", length, length, facts.changed_at
        )
        return replace(facts, copy=copy), copy


def _copied_facts(
    stamp: int, given: Properties, before: BlobRow | None, origin: StoredBlob, *, now: int
) -> StoredBlob:
    headers = origin.headers if given.headers == Headers() else given.headers
    properties = Properties(
        headers,
        given.metadata or origin.metadata,
        given.tags,
        given.tier or origin.tier,
        given.encryption_scope,
    )
    return replace(
        new_facts(origin.kind, stamp, properties, before, now=now),
        length=origin.length,
        tier_changed_at=stamp if given.tier else origin.tier_changed_at,
        block_count=origin.block_count,
        sequence_number=origin.sequence_number,
        is_sealed=origin.is_sealed,
    )


async def _check_target(
    reads: BlobReads, target: BlobName, terms: Terms, now: int, kind: Kind
) -> tuple[int, BlobRow | None]:
    container, before = await preconditions.check_new(reads, target, terms, now)
    if before is None:
        return container, None
    if before.facts.is_committed and before.facts.kind != kind:
        raise preconditions.wrong_kind()
    lease = before.facts.lease
    if lease is not None and leases.facts_at(lease, now).duration == "fixed":
        raise ConflictError(
            "InfiniteLeaseDurationRequired",
            "The destination of a copy may be leased without an end only.",
            hint="Acquire the lease with the duration -1.",
        )
    return container, before


async def _find_source(tx: BlobChange, source: BlobName, terms: Terms, now: int) -> BlobRow:
    row = await preconditions.require_blob(tx, source)
    preconditions.refuse_archived(row, now)
    if terms.lease_id is not None and row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=now, writes=False)
    # The condition on tags fails with the code of the target's conditions, the others do not.
    condition_rules.check_tags(terms.conditions, row.facts.tags)
    try:
        condition_rules.check_read(terms.conditions, row.facts.changed_at, row.facts.tags)
    except ConflictError as error:
        raise condition_rules.source_error(error) from None
    return row


def _facts_of(blob: Blob) -> StoredBlob:
    """Return the facts that a copy takes from a blob of another account."""
    return StoredBlob(
        blob.kind,
        blob.created_at,
        blob.changed_at,
        headers=blob.headers,
        metadata=dict(blob.metadata),
        tier=blob.tier,
        tier_changed_at=blob.tier_changed_at,
        block_count=1 if blob.kind == "AppendBlob" and blob.length else 0,
        sequence_number=blob.sequence_number,
        is_sealed=blob.is_sealed,
    )
