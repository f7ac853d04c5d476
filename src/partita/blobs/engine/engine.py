"""BlobEngine: applies the rules of the blob service on a store. No HTTP here.

Each operation checks its preconditions and writes its rows in one transaction. The engine has
the operations of all blobs; those of containers, blocks, appends, pages and copies are its parts.
"""

from collections.abc import Mapping

from partita.blobs.engine import preconditions
from partita.blobs.engine.append_blobs import AppendBlobs
from partita.blobs.engine.block_blobs import BlockBlobs
from partita.blobs.engine.containers import Containers
from partita.blobs.engine.copies import Copies
from partita.blobs.engine.keeping import (
    Keeper,
    content_to_keep,
    keep_version,
    restored,
)
from partita.blobs.engine.operations import (
    change_lease,
    check_properties,
    check_tier,
    new_facts,
    put_new,
    replace,
    touch,
    written_of,
)
from partita.blobs.engine.page_blobs import PageBlobs
from partita.blobs.engine.searches import Searches
from partita.blobs.rules import checksums, limits
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules.model import (
    ANY,
    NO_TERMS,
    PLAIN,
    UNDECLARED,
    Blob,
    BlobName,
    BytesDownload,
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
    Terms,
    Written,
)
from partita.blobs.rules.names import LIVE, snapshot_ticks
from partita.blobs.rules.stored_format import ARCHIVE, DELETED, blob_of, expiry_of, state_of
from partita.blobs.rules.tags import check_tags
from partita.blobs.store.contract import BlobChange, BlobRow, BlobStore
from partita.errors import ConflictError, InvalidRequestError
from partita.refusals import invalid_header, invalid_parameter
from partita.ticks import TICKS_PER_SECOND

REHYDRATION_SECONDS = 15
"""How long it takes to rehydrate an archived blob: the service takes hours."""
DEFAULT_PRIORITY = "Standard"


class BlobEngine:
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
    ...     await engine.containers.create_container("photos")
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

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.keeper = keeper = Keeper()
        self.containers = Containers(store, keeper)
        self.block_blobs = BlockBlobs(store, keeper)
        self.append_blobs = AppendBlobs(store, keeper)
        self.page_blobs = PageBlobs(store, keeper)
        self.copies = Copies(store, keeper)
        self.searches = Searches(store)

    async def close(self) -> None:
        """Finish the work in the background. The database belongs to the account."""
        await self.store.close()

    async def put_blob(
        self,
        name: BlobName,
        content: Content,
        *,
        properties: Properties = PLAIN,
        terms: Terms = NO_TERMS,
        declared: Declared = UNDECLARED,
    ) -> Written:
        """Write a block blob as a whole, over an existing blob; verify a stated MD5, too."""
        store = self.store
        check_properties(properties)
        if not isinstance(content, bytes):
            await preconditions.check_new(store.reads(), name, terms, store.now())
        async with store.receive(
            content, bytes_max=limits.PUT_BLOB_BYTES_MAX, wants_md5=True
        ) as receipt:
            sums, stated = receipt.received.sums, properties.headers.content_md5
            checksums.verify(declared, sums)
            checksums.verify(Declared(md5=stated), sums)
            await receipt.settle()

            async def write(tx: BlobChange) -> Written:
                now = store.now()
                found = await preconditions.check_new(tx, name, terms, now)
                facts = new_facts("BlockBlob", tx.stamp(), properties, found[1], now=now)
                headers = replace(facts.headers, content_md5=sums.md5)
                facts = replace(facts, headers=headers, length=receipt.received.size)
                content_id = await tx.add_content(receipt.received)
                return await put_new(tx, self.keeper, found, name, content_id, facts, sums)

            return await store.run(write)

    async def open_blob(
        self,
        name: BlobName,
        *,
        first: int | None = None,
        last: int | None = None,
        wants_md5: bool = False,
        wants_crc64: bool = False,
        terms: Terms = NO_TERMS,
    ) -> Opened:
        """Open a blob, or bytes `first` to `last` (inclusive) of it, for reading.

        A `last` beyond the end is clipped; a `first` beyond it is InvalidRange, with the length
        in `facts["length"]`. A checksum is of RANGE_MD5_BYTES_MAX bytes at most. Close the
        content of the result.
        """
        now = self.store.now()
        has_sums = wants_md5 or wants_crc64
        start = end = 0

        def choose(container: int | None, row: BlobRow | None) -> tuple[int, int]:
            nonlocal start, end
            found = preconditions.require_found(name, container, row)
            preconditions.check_read(found, terms, now)
            preconditions.refuse_archived(found, now)
            start, end = _clipped(first, last, found.facts.length)
            if has_sums and end - start > limits.RANGE_MD5_BYTES_MAX:
                raise checksums.too_long_for_checksum()
            return start, end

        snapshot = await preconditions.key_of(self.store.reads(), name)
        row, content = await self.store.open_blob(name.container, name.name, snapshot, choose)
        sums = UNDECLARED
        if has_sums:
            content, sums = await self._with_sums(content, wants_md5=wants_md5)
        blob = blob_of(row.name, row.snapshot, row.facts, now)
        crc64 = sums.crc64 if wants_crc64 else None
        return Opened(blob, content, start, end - 1, row.facts.length, sums.md5, crc64)

    async def _with_sums(self, content: Download, *, wants_md5: bool) -> tuple[Download, Declared]:
        try:
            whole = b"".join([part async for part in content])
        finally:
            await content.close()
        return BytesDownload(whole), await self.store.sums_of(whole, wants_md5=wants_md5)

    async def get_blob(self, name: BlobName, *, terms: Terms = NO_TERMS) -> Blob:
        now = self.store.now()
        row = await preconditions.find_for_read(self.store.reads(), name, terms, now)
        return blob_of(row.name, row.snapshot, row.facts, now)

    async def set_headers(
        self, name: BlobName, headers: Headers, *, terms: Terms = NO_TERMS
    ) -> Written:
        """Replace all headers together."""
        async with self.store.change() as tx:
            now = self.store.now()
            row = await preconditions.find_for_write(tx, name, terms, now)
            return await touch(tx, row, now, headers=headers)

    async def set_metadata(
        self, name: BlobName, metadata: Mapping[str, str], *, terms: Terms = NO_TERMS
    ) -> Written:
        async def write(tx: BlobChange) -> Written:
            now = self.store.now()
            row = await preconditions.find_for_write(tx, name, terms, now)
            preconditions.refuse_archived(row, now)
            row = await self._with_version_kept(tx, row)
            return await touch(tx, row, now, metadata=dict(metadata))

        return await self.store.run(write)

    async def _with_version_kept(self, tx: BlobChange, row: BlobRow) -> BlobRow:
        """Keep the present version of a blob, if versions are kept; return the new one.

        The new version has the same content and etag.
        """
        if not self.keeper.keeps_version_of(row):
            return row
        await keep_version(tx, row, await content_to_keep(tx, row))
        history = self.keeper.new_history(tx.stamp())
        return replace(row, facts=replace(row.facts, history=history))

    async def set_tier(
        self, name: BlobName, tier: str, *, priority: str | None = None, terms: Terms = NO_TERMS
    ) -> bool:
        """Set a tier; return whether the blob must be rehydrated from the archive for it."""
        check_tier(tier)
        async with self.store.change() as tx:
            now = self.store.now()
            row = await preconditions.require_blob(tx, name)
            if row.facts.kind == "AppendBlob":
                raise preconditions.wrong_kind()
            preconditions.check_write(row, terms, now)
            shown = blob_of(row.name, row.snapshot, row.facts, now)
            rehydrates = shown.tier == ARCHIVE and tier != ARCHIVE
            back_at = now + REHYDRATION_SECONDS * TICKS_PER_SECOND if rehydrates else None
            facts = replace(
                row.facts,
                tier=tier,
                tier_changed_at=now,
                rehydrated_at=back_at,
                rehydrate_priority=(priority or DEFAULT_PRIORITY) if rehydrates else None,
            )
            await tx.put_blob(replace(row, facts=facts))
        return rehydrates

    async def get_tags(self, name: BlobName, *, terms: Terms = NO_TERMS) -> Mapping[str, str]:
        now = self.store.now()
        row = await preconditions.find_for_read(self.store.reads(), name, terms, now)
        return row.facts.tags

    async def set_tags(
        self, name: BlobName, tags: Mapping[str, str], *, terms: Terms = NO_TERMS
    ) -> None:
        check_tags(tags)
        async with self.store.change() as tx:
            row = await preconditions.require_blob(tx, name)
            preconditions.check_write(row, terms, self.store.now())
            await tx.put_blob(replace(row, facts=replace(row.facts, tags=dict(tags))))

    async def lease_blob(
        self, name: BlobName, request: LeaseRequest, *, conditions: Conditions = ANY
    ) -> LeaseOutcome:
        async with self.store.change() as tx:
            preconditions.require_live(name)
            row = await preconditions.require_blob(tx, name)
            facts = row.facts
            condition_rules.check_write(conditions, facts.changed_at, facts.tags)
            lease, outcome = change_lease(self.store, facts.lease, request, facts.changed_at)
            await tx.put_blob(replace(row, facts=replace(facts, lease=lease)))
        return outcome

    async def snapshot(
        self,
        name: BlobName,
        *,
        metadata: Mapping[str, str] | None = None,
        terms: Terms = NO_TERMS,
    ) -> Blob:
        """Keep the current version of the blob as a blob snapshot; return that snapshot."""

        async def keep(tx: BlobChange) -> Blob:
            now = self.store.now()
            preconditions.require_live(name)
            row = await preconditions.require_blob(tx, name)
            preconditions.check_write(row, terms, now, needs_lease=False)
            preconditions.refuse_archived(row, now)
            facts = replace(row.facts, lease=None)
            if metadata is not None:
                facts = replace(facts, metadata=dict(metadata))
            content = await content_to_keep(tx, row)
            facts = replace(facts, history=None)
            kept = BlobRow(row.container, row.name, tx.stamp(), content, facts)
            await tx.put_blob(kept)
            current = await self._with_version_kept(tx, row)
            if current is not row:
                await tx.put_blob(current)
            shown = blob_of(kept.name, kept.snapshot, kept.facts, now)
            return replace(shown, version=written_of(current.facts).version)

        return await self.store.run(keep)

    async def delete_blob(
        self,
        name: BlobName,
        *,
        snapshots: DeleteSnapshots | None = None,
        is_permanent: bool = False,
        terms: Terms = NO_TERMS,
    ) -> bool:
        """Delete a blob, a snapshot or a version; return whether it cannot be restored.

        With versions, the blob becomes an earlier version. `is_permanent` removes a snapshot or a
        version that is already deleted.
        """
        if is_permanent:
            return await self._remove_deleted(name)
        if name.snapshot is not None and snapshots is not None:
            raise invalid_header("x-ms-delete-snapshots", snapshots)

        keeper = self.keeper

        async def delete(tx: BlobChange) -> bool:
            row = await preconditions.require_blob(tx, name)
            preconditions.check_write(row, terms, self.store.now())
            condition_rules.check_tier_time(terms.conditions, row.facts.tier_changed_at)
            is_final = keeper.retention.blob_days is None
            if row.snapshot != LIVE:
                await keeper.remove(tx, row)
                return is_final
            if name.version is not None:
                raise _current_version(name.version)
            kept = await tx.snapshots(row.container, row.name)
            if kept and snapshots is None:
                raise ConflictError(
                    "SnapshotsPresent",
                    "This operation is not permitted while the blob has snapshots.",
                    hint="Set x-ms-delete-snapshots to include or only.",
                )
            for each in kept:
                await keeper.remove(tx, each)
            if snapshots != "only":
                is_final = is_final and not keeper.keeps_version_of(row)
                await keeper.keep(tx, row, is_deleted=True)
                await tx.remove_blob(row)
                await tx.discard_blocks(row.container, row.name)
            return is_final

        return await self.store.run(delete, frees_space=True)

    async def _remove_deleted(self, name: BlobName) -> bool:
        if not self.keeper.retention.allows_permanent_delete:
            raise InvalidRequestError(
                "InsufficientAccountPermissions",
                "Permanent delete is not allowed by the retention policy of the account.",
                hint="Set AllowPermanentDelete in the DeleteRetentionPolicy of the blob service.",
            )
        if name.snapshot is None and name.version is None:
            raise invalid_parameter("deletetype", "permanent", "Name a snapshot or a version.")
        async with self.store.change(frees_space=True) as tx:
            key = await preconditions.key_of(tx, name)
            if name.snapshot is not None:
                key = snapshot_ticks(name.snapshot)
            container, row = await tx.find_blob(name.container, name.name, key)
            if container is None:
                raise preconditions.missing_container(name.container)
            history = None if row is None else row.facts.history
            if row is None or history is None or history.deleted_at is None:
                raise preconditions.missing_blob(name)
            await tx.remove_blob(row)
        return True

    async def undelete_blob(self, name: BlobName) -> None:
        """Restore a blob with its snapshots and versions, as far as they are deleted.

        Versions are restored as earlier versions: copy one over the blob to use it again.
        """
        preconditions.require_live(name)

        async def restore(tx: BlobChange) -> None:
            container, live = await tx.find_blob(name.container, name.name)
            if container is None:
                raise preconditions.missing_container(name.container)
            at = tx.stamp()
            deleted = [
                row
                for row in await tx.deleted_blobs(container, name.name)
                if (expiry_of(row.facts) or 0) > at
            ]
            is_there = live is not None and live.facts.is_committed
            if not deleted and not is_there:
                raise preconditions.missing_blob(name)
            last = deleted[-1] if deleted else None
            for row in deleted:
                again = restored(row)
                if row is last and not is_there and state_of(row.snapshot, row.facts) == DELETED:
                    await tx.put_blob(replace(again, snapshot=LIVE), live)
                    await tx.remove_blob(row)
                else:
                    await tx.put_blob(again)

        await self.store.run(restore)


def _current_version(version: str) -> InvalidRequestError:
    return InvalidRequestError(
        "OperationNotAllowedOnRootBlob",
        "This operation is not allowed on the current version of a blob.",
        facts={"version": version},
        hint="Delete the blob without versionid: its current version becomes an earlier one.",
    )


def _clipped(first: int | None, last: int | None, length: int) -> tuple[int, int]:
    """Return the bytes to read as a half-open range."""
    if first is None:
        return 0, length
    if first >= length or (last is not None and last < first):
        raise InvalidRequestError(
            "InvalidRange",
            "The range specified is invalid for the current size of the resource.",
            facts={"length": length},
        )
    return first, length if last is None else min(last + 1, length)
