"""What is kept when a blob is replaced or deleted: a version, or a blob that can be restored.

What is kept is a row of its own, beside the snapshots: a version has its own time as `snapshot`,
a replaced or deleted blob the time of that change. A blob that was written as a version is kept
as one also while versions are not kept any more.
"""

import msgspec

from partita.blobs.rules.model import NO_RETENTION, Retention
from partita.blobs.rules.stored_format import History
from partita.blobs.store.contract import BlobChange, BlobRow
from partita.ticks import TICKS_PER_DAY

replace = msgspec.structs.replace


class Keeper:
    """The retention of an account, shared by the parts of its engine."""

    def __init__(self) -> None:
        self.retention: Retention = NO_RETENTION
        """Replaced as a whole when the service properties of the account change."""

    def new_history(self, stamp: int) -> History | None:
        """Return the history of a blob that is written now."""
        return History(stamp) if self.retention.keeps_versions else None

    def keeps_version_of(self, row: BlobRow) -> bool:
        """Return whether the next version of a blob leaves the present one as it is."""
        return self.retention.keeps_versions or row.facts.history is not None

    async def keep(self, tx: BlobChange, row: BlobRow, *, is_deleted: bool = False) -> None:
        """Keep a blob that is replaced or deleted, if it has to be kept; its content moves."""
        if not row.facts.is_committed:
            return
        if self.keeps_version_of(row):
            await keep_version(tx, row, row.content)
        elif self.retention.blob_days is not None:
            at = tx.stamp()
            history = History(None, at, self._expiry(at), was_blob=is_deleted)
            facts = replace(row.facts, lease=None, history=history)
            await tx.put_blob(replace(row, snapshot=at, facts=facts))

    async def remove(self, tx: BlobChange, row: BlobRow) -> None:
        """Delete a snapshot or an earlier version, so that it can be restored if it has to be."""
        if self.retention.blob_days is None:
            await tx.remove_blob(row)
            return
        at = tx.stamp()
        version = None if row.facts.history is None else row.facts.history.version
        history = History(version, at, self._expiry(at))
        await tx.put_blob(replace(row, facts=replace(row.facts, history=history)))

    def _expiry(self, at: int) -> int:
        assert self.retention.blob_days is not None
        return at + self.retention.blob_days * TICKS_PER_DAY


async def keep_version(tx: BlobChange, row: BlobRow, content: int) -> None:
    """Keep the present version of a blob as an earlier one, with this content."""
    history = row.facts.history
    version = (
        row.facts.changed_at if history is None or history.version is None else history.version
    )
    facts = replace(row.facts, lease=None, history=History(version))
    await tx.put_blob(replace(row, snapshot=version, content=content, facts=facts))


async def content_to_keep(tx: BlobChange, row: BlobRow) -> int:
    """Return a content for what is kept of a blob whose content stays in use.

    Pages change in place; appends only add after the length that the kept row has.
    """
    return await tx.fork(row) if row.facts.kind == "PageBlob" else row.content


def restored(row: BlobRow) -> BlobRow:
    """Return the row of a deleted snapshot or version after it is restored."""
    history = row.facts.history
    assert history is not None
    kept = None if history.version is None else History(history.version)
    return replace(row, facts=replace(row.facts, history=kept))
