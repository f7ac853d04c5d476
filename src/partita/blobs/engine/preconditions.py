"""Whether a request may touch what it names: found, of the right kind, not leased, conditions met.

The order of the checks is the service's: container, blob, kind, lease, conditions. They run
once before the content of an upload is received, so that a hopeless upload ends early, and
again in the transaction, where they count.
"""

from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import leases
from partita.blobs.rules.model import BlobName, Kind, Terms
from partita.blobs.rules.names import (
    LIVE,
    check_blob_name,
    check_container_name,
    snapshot_ticks,
)
from partita.blobs.rules.stored_format import ARCHIVE
from partita.blobs.store.contract import BlobReads, BlobRow, ContainerRow
from partita.errors import ConflictError
from partita.refusals import invalid_parameter


async def require_container(reads: BlobReads, name: str) -> ContainerRow:
    row = await reads.find_container(name)
    if row is None:
        raise missing_container(name)
    return row


def check_container(row: ContainerRow, terms: Terms, now: int, *, is_delete: bool) -> None:
    """Check lease and conditions of a request to a container.

    A lease whose id is not given blocks only a delete.
    """
    leases.check_use(row.facts.lease, terms.lease_id, now=now, writes=is_delete, thing="Container")
    condition_rules.check_container(terms.conditions, row.facts.changed_at)


async def check_new(
    reads: BlobReads, name: BlobName, terms: Terms, now: int, *, kind: Kind | None = None
) -> tuple[int, BlobRow | None]:
    """Return the container's id and the blob to replace, for a request that writes a whole blob.

    With `kind`, a blob to replace must be of that kind (only block lists and copies ask that).
    """
    require_live(name)
    check_blob_name(name.name)
    container, before = await reads.find_blob(name.container, name.name)
    if container is None:
        raise missing_container(name.container)
    if before is not None and kind is not None and before.facts.kind != kind:
        raise wrong_kind()
    leases.check_use(
        None if before is None else before.facts.lease, terms.lease_id, now=now, writes=True
    )
    is_committed = before is not None and before.facts.is_committed
    condition_rules.check_write(
        terms.conditions,
        before.facts.changed_at if before is not None and is_committed else None,
        before.facts.tags if before is not None else {},
        creates=True,
        holds_lease=terms.lease_id is not None,
    )
    return container, before


async def key_of(reads: BlobReads, name: BlobName) -> int:
    """Return the `snapshot` of the row that a name stands for, if that row exists."""
    if name.version is None:
        return snapshot_ticks(name.snapshot)
    version = snapshot_ticks(name.version, "versionid")
    _, row = await reads.find_blob(name.container, name.name, version)
    return LIVE if row is None else version


async def require_blob(reads: BlobReads, name: BlobName) -> BlobRow:
    """Find a blob that can be read."""
    snapshot = await key_of(reads, name)
    return require_found(name, *await reads.find_blob(name.container, name.name, snapshot))


def require_found(name: BlobName, container: int | None, row: BlobRow | None) -> BlobRow:
    """Return the row that was looked up, if it exists and can be read."""
    if container is None:
        raise missing_container(name.container)
    if row is None or not row.facts.is_committed or not is_named(name, row):
        raise missing_blob(name)
    return row


def is_named(name: BlobName, row: BlobRow) -> bool:
    """Return whether a row is what a name stands for: not another kind of it, and not deleted."""
    history = row.facts.history
    if name.version is not None:
        return (
            history is not None
            and history.deleted_at is None
            and history.version == snapshot_ticks(name.version, "versionid")
        )
    # The blob itself may be a version, too; a snapshot is none.
    return history is None or row.snapshot == LIVE


async def find_for_read(reads: BlobReads, name: BlobName, terms: Terms, now: int) -> BlobRow:
    """Return the blob that a request reads."""
    row = await require_blob(reads, name)
    check_read(row, terms, now)
    return row


def check_read(row: BlobRow, terms: Terms, now: int) -> None:
    """Check lease and conditions of a read; snapshots have no lease."""
    if row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=now, writes=False)
    condition_rules.check_read(terms.conditions, row.facts.changed_at, row.facts.tags)


async def find_for_write(
    reads: BlobReads, name: BlobName, terms: Terms, now: int, *, kind: Kind | None = None
) -> BlobRow:
    """Return the blob that a request changes."""
    require_live(name)
    row = await require_blob(reads, name)
    if kind is not None and row.facts.kind != kind:
        raise wrong_kind()
    check_write(row, terms, now)
    return row


def check_write(row: BlobRow, terms: Terms, now: int, *, needs_lease: bool = True) -> None:
    if row.snapshot == LIVE:
        leases.check_use(row.facts.lease, terms.lease_id, now=now, writes=needs_lease)
    condition_rules.check_write(terms.conditions, row.facts.changed_at, row.facts.tags)


def require_live(name: BlobName) -> None:
    """Refuse to write a snapshot or a version."""
    if name.version is not None:
        raise invalid_parameter("versionid", name.version, "A version cannot be changed.")
    if name.snapshot is not None:
        raise invalid_parameter("snapshot", name.snapshot, "A snapshot cannot be changed.")


def refuse_archived(row: BlobRow, now: int) -> None:
    """Refuse an operation that needs the content of an archived blob."""
    facts = row.facts
    is_rehydrating = facts.rehydrated_at is not None and now < facts.rehydrated_at
    if facts.tier == ARCHIVE or is_rehydrating:
        raise ConflictError(
            "BlobArchived",
            "This operation is not permitted on an archived blob.",
            hint="Set its tier to Hot, Cool or Cold, and wait until it is rehydrated.",
        )


def missing_container(name: str) -> Exception:
    """Return the error of a container that was not found: its name may be invalid."""
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
        hint="Use the operations of its type: blocks, appends or pages.",
    )
