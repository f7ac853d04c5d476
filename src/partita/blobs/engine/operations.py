"""Steps that the operations of the engine share: fresh facts, a new etag, the rows of a blob."""

import re

import msgspec

from partita.blobs.engine.keeping import Keeper
from partita.blobs.rules import leases, limits
from partita.blobs.rules.model import (
    UNDECLARED,
    BlobName,
    Declared,
    Kind,
    LeaseOutcome,
    LeaseRequest,
    Properties,
    Written,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob, version_of
from partita.blobs.rules.tags import check_tags
from partita.blobs.store.contract import BlobChange, BlobRow, BlobStore
from partita.refusals import invalid_header

DEFAULT_CONTENT_TYPE = "application/octet-stream"
PREMIUM_TIERS = [f"P{number}" for number in (4, 6, 10, 15, 20, 30, 40, 50, 60, 70, 80)]
TIERS = frozenset({"Hot", "Cool", "Cold", "Archive", "Smart", "Premium", *PREMIUM_TIERS})

_SCOPE = re.compile(
    rf"[A-Za-z0-9](?:-?[A-Za-z0-9]){{2,{limits.ENCRYPTION_SCOPE_CHARACTERS_MAX - 1}}}"
    r"|\$account-encryption-key"
)

replace = msgspec.structs.replace


def check_properties(properties: Properties) -> Properties:
    check_tags(properties.tags)
    if properties.tier is not None:
        check_tier(properties.tier)
    if properties.encryption_scope is not None:
        check_scope(properties.encryption_scope)
    return properties


def check_scope(name: str, header: str = "x-ms-encryption-scope") -> None:
    """Refuse what cannot be the name of an encryption scope."""
    if not _SCOPE.fullmatch(name):
        longest = limits.ENCRYPTION_SCOPE_CHARACTERS_MAX
        hint = f"Use 3 to {longest} letters, digits and dashes."
        raise invalid_header(header, name[:longest], hint)


def check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise invalid_header("x-ms-access-tier", tier)


def new_facts(
    kind: Kind, stamp: int, properties: Properties, before: BlobRow | None, *, now: int
) -> StoredBlob:
    """Return the facts of a blob that is written as a whole; it keeps the lease of `before`.

    `now` judges the lease: stamps may follow another clock.
    """
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
        lease=None if before is None else leases.after_write(before.facts.lease, now),
        encryption_scope=properties.encryption_scope,
    )


async def touch(tx: BlobChange, row: BlobRow, now: int, **changes: object) -> Written:
    """Write a blob's row with a new etag."""
    lease = leases.after_write(row.facts.lease, now)
    facts = replace(row.facts, changed_at=tx.stamp(), lease=lease, **changes)
    await tx.put_blob(replace(row, facts=facts))
    return written_of(facts)


async def put_new(  # noqa: PLR0913, PLR0917 - the row to replace, and what replaces it
    tx: BlobChange,
    keeper: Keeper,
    found: tuple[int, BlobRow | None],
    name: BlobName,
    content: int,
    facts: StoredBlob,
    sums: Declared = UNDECLARED,
) -> Written:
    """Write a whole blob and discard the blocks that were staged for it.

    What it replaces is kept, if it has to be. `sums` are the checksums of the received content.
    """
    container, before = found
    if keeper.retention.keeps_versions:
        facts = replace(facts, history=keeper.new_history(facts.changed_at))
    if before is not None and (keeper.retention.keeps_replaced or before.facts.history is not None):
        await keeper.keep(tx, before)
    await tx.put_blob(BlobRow(container, name.name, LIVE, content, facts), before)
    if before is not None and before.facts.kind == "BlockBlob":
        await tx.discard_blocks(container, name.name)
    return written_of(facts, sums)


def written_of(facts: StoredBlob, sums: Declared = UNDECLARED) -> Written:
    """Return the outcome of a change that wrote these facts."""
    return Written(
        facts.changed_at,
        sums.md5,
        sums.crc64,
        facts.sequence_number,
        version_of(facts),
        facts.encryption_scope,
    )


def change_lease(
    store: BlobStore, lease: leases.Lease | None, request: LeaseRequest, changed_at: int
) -> tuple[leases.Lease | None, LeaseOutcome]:
    """Return the lease after a request, and the outcome to answer with."""
    lease, seconds = leases.apply(lease, request, now=store.now(), new_id=store.new_id())
    return lease, LeaseOutcome(changed_at, None if lease is None else lease.id, seconds)
