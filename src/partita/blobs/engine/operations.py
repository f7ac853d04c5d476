"""What the operations of the engine share: terms, fresh facts, a new etag, a whole blob's rows."""

import msgspec

from partita.blobs.engine.preconditions import Terms
from partita.blobs.rules import leases
from partita.blobs.rules.model import (
    BlobName,
    Conditions,
    Kind,
    LeaseOutcome,
    LeaseRequest,
    Properties,
    Written,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob
from partita.blobs.rules.tags import check_tags
from partita.blobs.store.rows import BlobRow, BlobTransaction
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.errors import InvalidRequestError

DEFAULT_CONTENT_TYPE = "application/octet-stream"
PREMIUM_TIERS = [f"P{number}" for number in (4, 6, 10, 15, 20, 30, 40, 50, 60, 70, 80)]
TIERS = frozenset({"Hot", "Cool", "Cold", "Archive", "Smart", "Premium", *PREMIUM_TIERS})

replace = msgspec.structs.replace


class Operations:
    """A part of the engine."""

    def __init__(self, store: SqliteBlobStore) -> None:
        self.store = store

    def terms(self, lease_id: str | None, conditions: Conditions) -> Terms:
        return Terms(self.store.clock.now(), lease_id, conditions)

    def apply_lease(
        self, lease: leases.Lease | None, request: LeaseRequest
    ) -> tuple[leases.Lease | None, int | None]:
        clock = self.store.clock
        return leases.apply(lease, request, now=clock.now(), new_id=clock.clock.new_id())

    def new_facts(
        self, kind: Kind, stamp: int, properties: Properties, before: BlobRow | None
    ) -> StoredBlob:
        """Return the facts of a blob that is written whole: of what was there, a lease stays."""
        headers = properties.headers
        if headers.content_type is None:
            headers = replace(headers, content_type=DEFAULT_CONTENT_TYPE)
        return StoredBlob(
            kind,
            created_at=stamp,
            changed_at=stamp,
            headers=headers,
            metadata=dict(properties.metadata),
            tags=dict(properties.tags),
            tier=properties.tier,
            tier_changed_at=None if properties.tier is None else stamp,
            lease=None if before is None else leases.after_write(before.facts.lease, stamp),
        )

    def touch(self, tx: BlobTransaction, row: BlobRow, terms: Terms, **changes: object) -> Written:
        """Write a blob's row with a new etag."""
        lease = leases.after_write(row.facts.lease, terms.now)
        facts = replace(row.facts, changed_at=tx.stamp(), lease=lease, **changes)
        tx.put_blob(replace(row, facts=facts))
        return Written(facts.changed_at, sequence_number=facts.sequence_number)


def check_properties(properties: Properties) -> Properties:
    check_tags(properties.tags)
    if properties.tier is not None:
        check_tier(properties.tier)
    return properties


def check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise bad_header("x-ms-access-tier", tier)


def put_new(
    tx: BlobTransaction,
    place: tuple[int, BlobRow | None],
    name: BlobName,
    content: int,
    facts: StoredBlob,
) -> None:
    """Write a whole blob: what was staged for it is forgotten."""
    container, before = place
    tx.put_blob(BlobRow(container, name.name, LIVE, content, facts), before)
    if before is not None and before.facts.kind == "BlockBlob":
        tx.discard_blocks(container, name.name)


def lease_outcome(changed_at: int, lease: leases.Lease | None, seconds: int | None) -> LeaseOutcome:
    return LeaseOutcome(changed_at, None if lease is None else lease.id, seconds)


def bad_header(header: str, value: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidHeaderValue",
        "The value for one of the HTTP headers is not in the correct format.",
        facts={"elements": [("HeaderName", header), ("HeaderValue", value)]},
    )
