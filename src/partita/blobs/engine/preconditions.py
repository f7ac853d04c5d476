"""Whether a request may touch what it names: found, of the right kind, not leased, conditions met.

Pure decisions over rows; the order is the service's: container, blob, kind, lease, conditions.
Called once before content that is still arriving is taken in, so that a hopeless upload ends
early, and in the transaction, where it counts.
"""

import msgspec

from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import leases
from partita.blobs.rules.model import ANY, BlobName, Conditions, Kind
from partita.blobs.rules.names import (
    LIVE,
    check_blob_name,
    check_container_name,
    snapshot_ticks,
)
from partita.blobs.rules.stored_format import ARCHIVE
from partita.blobs.store.rows import BlobRow, BlobRows, ContainerRow
from partita.errors import ConflictError, InvalidRequestError


class Terms(msgspec.Struct, frozen=True, gc=False):
    """On which terms a request comes: the lease it proves, its conditions, its time."""

    now: int
    lease_id: str | None = None
    conditions: Conditions = ANY


def require_container(rows: BlobRows, name: str) -> ContainerRow:
    row = rows.find_container(name)
    if row is None:
        raise missing_container(name)
    return row


def judge_container(row: ContainerRow, terms: Terms, *, writes: bool) -> None:
    """Check lease and conditions of a change to a container.

    `writes` marks a delete: only that one is blocked by a lease whose id is not given.
    """
    leases.check_use(
        row.facts.lease, terms.lease_id, now=terms.now, writes=writes, thing="Container"
    )
    condition_rules.check_container(terms.conditions, row.facts.changed_at)


def judge_new(
    rows: BlobRows, name: BlobName, terms: Terms, *, kind: Kind | None = None
) -> tuple[int, BlobRow | None]:
    """Return the container's id and what is there, for a request that writes a whole blob.

    `kind`: what is there must be of it (only block lists and copies ask that).
    """
    require_live(name)
    check_blob_name(name.name)
    container, before = rows.find_blob(name.container, name.name)
    if container is None:
        raise missing_container(name.container)
    if before is not None and kind is not None and before.facts.kind != kind:
        raise wrong_kind()
    leases.check_use(
        None if before is None else before.facts.lease, terms.lease_id, now=terms.now, writes=True
    )
    is_there = before is not None and before.facts.is_committed
    condition_rules.check_write(
        terms.conditions,
        before.facts.changed_at if before is not None and is_there else None,
        before.facts.tags if before is not None else {},
        creates=True,
        holds_lease=terms.lease_id is not None,
    )
    return container, before


def require_blob(rows: BlobRows, name: BlobName) -> BlobRow:
    """Find a blob that can be read."""
    container, row = rows.find_blob(name.container, name.name, snapshot_ticks(name.snapshot))
    return require_found(name, container, row)


def require_found(name: BlobName, container: int | None, row: BlobRow | None) -> BlobRow:
    """Return a row that was looked for, if it is there and can be read."""
    if container is None:
        raise missing_container(name.container)
    if row is None or not row.facts.is_committed:
        raise missing_blob(name)
    return row


def judge_read(rows: BlobRows, name: BlobName, terms: Terms) -> BlobRow:
    row = require_blob(rows, name)
    judge_read_of(row, terms)
    return row


def judge_read_of(row: BlobRow, terms: Terms) -> None:
    """Check lease and conditions of a read; snapshots have no lease."""
    if row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=terms.now, writes=False)
    condition_rules.check_read(terms.conditions, row.facts.changed_at, row.facts.tags)


def judge_write(
    rows: BlobRows, name: BlobName, terms: Terms, *, kind: Kind | None = None
) -> BlobRow:
    """Return what is there, for a request that changes it."""
    require_live(name)
    row = require_blob(rows, name)
    if kind is not None and row.facts.kind != kind:
        raise wrong_kind()
    judge_write_of(row, terms, needs_lease=True)
    return row


def judge_write_of(row: BlobRow, terms: Terms, *, needs_lease: bool) -> None:
    if row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=terms.now, writes=needs_lease)
    condition_rules.check_write(terms.conditions, row.facts.changed_at, row.facts.tags)


def require_live(name: BlobName) -> None:
    """Refuse to write a snapshot."""
    if name.snapshot is not None:
        raise InvalidRequestError(
            "InvalidQueryParameterValue",
            "Value for one of the query parameters specified in the request URI is invalid.",
            facts={
                "elements": [
                    ("QueryParameterName", "snapshot"),
                    ("QueryParameterValue", name.snapshot),
                    ("Reason", "A snapshot cannot be changed."),
                ]
            },
        )


def refuse_archived(row: BlobRow, now: int) -> None:
    """Refuse what needs the content of an archived blob."""
    facts = row.facts
    is_on_its_way = facts.rehydrated_at is not None and now < facts.rehydrated_at
    if facts.tier == ARCHIVE or is_on_its_way:
        raise ConflictError(
            "BlobArchived",
            "This operation is not permitted on an archived blob.",
            hint="Set its tier to Hot, Cool or Cold, and wait until it is there.",
        )


def missing_container(name: str) -> Exception:
    """Return what is wrong with a container that was not found: its name, or just that."""
    check_container_name(name)
    return ConflictError(
        "ContainerNotFound", "The specified container does not exist.", facts={"container": name}
    )


def missing_blob(name: BlobName) -> Exception:
    check_blob_name(name.name)
    return ConflictError(
        "BlobNotFound", "The specified blob does not exist.", facts={"container": name.container}
    )


def wrong_kind() -> ConflictError:
    return ConflictError(
        "InvalidBlobType",
        "The blob type is invalid for this operation.",
        hint="Each kind has its own operations: blocks, appends, pages.",
    )
