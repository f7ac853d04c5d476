"""Copies: within the account by sharing content, from elsewhere by reading it."""

from partita.blobs.engine import preconditions as judging
from partita.blobs.engine.operations import Operations, check_properties, put_new, replace
from partita.blobs.engine.preconditions import Terms
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import leases, limits
from partita.blobs.rules.model import (
    ANY,
    PLAIN,
    Blob,
    BlobName,
    Conditions,
    Copied,
    CopyFacts,
    Headers,
    Kind,
    Opened,
    Properties,
    Written,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob
from partita.blobs.store.rows import EMPTY, BlobRow, BlobRows, BlobTransaction
from partita.errors import ConflictError


class CopyEngine(Operations):
    """The operations that write a blob from another one."""

    async def copy_blob(  # noqa: PLR0913 - two blobs, each with its lease and conditions
        self,
        source: BlobName,
        target: BlobName,
        *,
        source_address: str = "",
        properties: Properties | None = None,
        copies_tags: bool = False,
        seals: bool | None = None,
        source_lease_id: str | None = None,
        source_conditions: Conditions = ANY,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Copied:
        """Copy within the account: content is shared, not copied.

        Of `properties`, metadata replace those of the source as a whole unless they are empty;
        headers count when any is given; a tier and tags count when given. `seals` seals the
        copy of an append blob, None does as the source.
        """
        given = check_properties(properties or PLAIN)
        async with self.store.change() as tx:
            now = self.store.clock.now()
            origin = _judge_source(tx, source, Terms(now, source_lease_id, source_conditions))
            place = self._judge_copy(
                tx, target, self.terms(lease_id, conditions), origin.facts.kind
            )
            facts = self._copied_facts(tx.stamp(), given, place[1], origin.facts)
            if copies_tags:
                facts = replace(facts, tags=origin.facts.tags)
            if seals is not None and facts.kind == "AppendBlob":
                facts = replace(facts, is_sealed=seals)
            facts = replace(facts, copy=self._copy_facts(source_address, facts))
            # Blocks never change; appends and pages of the two go on differently.
            shares = facts.kind == "BlockBlob"
            content = origin.content if shares else tx.fork(origin)
            put_new(tx, place, target, content, facts)
        assert facts.copy is not None
        return Copied(Written(facts.changed_at), facts.copy)

    async def put_copy(
        self,
        source: Opened,
        target: BlobName,
        *,
        source_address: str = "",
        properties: Properties | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Copied:
        """Copy from elsewhere (another account, another server): the content is read and kept.

        A block blob comes out as one piece.
        """
        given = check_properties(properties or PLAIN)
        kind = source.blob.kind
        self._judge_copy(self.store.rows(), target, self.terms(lease_id, conditions), kind)
        async with self.store.receive(
            source.content, bytes_max=limits.PAGE_BLOB_BYTES_MAX, wants_md5=True
        ) as receipt:
            await receipt.settle()
            async with self.store.change() as tx:
                place = self._judge_copy(tx, target, self.terms(lease_id, conditions), kind)
                facts = self._copied_facts(tx.stamp(), given, place[1], _facts_of(source.blob))
                facts = replace(facts, length=receipt.received.size)
                facts = replace(facts, copy=self._copy_facts(source_address, facts))
                content = tx.add_content(receipt.received)
                if content == EMPTY and kind == "PageBlob":
                    content = tx.stamp()
                put_new(tx, place, target, content, facts)
        assert facts.copy is not None
        sums = receipt.received.sums
        return Copied(Written(facts.changed_at, sums.md5, sums.crc64), facts.copy)

    async def abort_copy(
        self, name: BlobName, copy_id: str, *, lease_id: str | None = None
    ) -> None:
        """Refuse: copies here end before they are answered, so none is ever pending."""
        row = judging.judge_write(self.store.rows(), name, self.terms(lease_id, ANY))
        if row.facts.copy is not None and row.facts.copy.id != copy_id:
            raise ConflictError(
                "CopyIdMismatch",
                "The specified copy ID did not match the copy ID for the pending copy operation.",
            )
        raise ConflictError(
            "NoPendingCopyOperation", "There is currently no pending copy operation."
        )

    def _copied_facts(
        self, stamp: int, given: Properties, before: BlobRow | None, origin: StoredBlob
    ) -> StoredBlob:
        headers = origin.headers if given.headers == Headers() else given.headers
        properties = Properties(
            headers, given.metadata or origin.metadata, given.tags, given.tier or origin.tier
        )
        return replace(
            self.new_facts(origin.kind, stamp, properties, before),
            length=origin.length,
            tier_changed_at=stamp if given.tier else origin.tier_changed_at,
            block_count=origin.block_count,
            sequence_number=origin.sequence_number,
            is_sealed=origin.is_sealed,
        )

    def _copy_facts(self, source_address: str, facts: StoredBlob) -> CopyFacts:
        identity = self.store.clock.clock.new_id()
        length = facts.length
        return CopyFacts(identity, source_address, "success", length, length, facts.changed_at)

    @staticmethod
    def _judge_copy(
        rows: BlobRows, target: BlobName, terms: Terms, kind: Kind
    ) -> tuple[int, BlobRow | None]:
        container, before = judging.judge_new(rows, target, terms)
        if before is None:
            return container, None
        if before.facts.is_committed and before.facts.kind != kind:
            raise judging.wrong_kind()
        lease = before.facts.lease
        if lease is not None and leases.facts_at(lease, terms.now).duration == "fixed":
            raise ConflictError(
                "InfiniteLeaseDurationRequired",
                "The destination of a copy may be leased without an end only.",
                hint="Acquire the lease with the duration -1.",
            )
        return container, before


def _judge_source(tx: BlobTransaction, source: BlobName, terms: Terms) -> BlobRow:
    row = judging.require_blob(tx, source)
    judging.refuse_archived(row, terms.now)
    if terms.lease_id is not None and row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=terms.now, writes=False)
    # Of all conditions on a source, only its tags fail under the name of the target's.
    condition_rules.check_tags(terms.conditions, row.facts.tags)
    try:
        condition_rules.check_read(terms.conditions, row.facts.changed_at, row.facts.tags)
    except ConflictError as error:
        raise condition_rules.source_error(error) from None
    return row


def _facts_of(blob: Blob) -> StoredBlob:
    """Return what a copy takes over of a blob that lies elsewhere."""
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
