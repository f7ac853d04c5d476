"""Listing blobs by name: a range scan, with a delimiter a skip-scan from prefix to prefix."""

from collections.abc import Set as AbstractSet

import msgspec

from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.listing import Place, end_of, shared_prefix
from partita.blobs.rules.model import Blob, BlobPrefix, Include
from partita.blobs.rules.names import LIVE
from partita.blobs.store.rows import BlobRows


class Scan(msgspec.Struct, frozen=True):
    """What is listed: at most `limit` items of a container from `start` on."""

    container: int
    prefix: str
    delimiter: str
    start: Place
    limit: int
    include: AbstractSet[Include]
    now: int

    def read(self, rows: BlobRows) -> tuple[list[Blob | BlobPrefix], Place | None]:
        """Return items, and the place of the next one."""
        items: list[Blob | BlobPrefix] = []
        place: Place | None = max(self.start, (self.prefix, 0))
        while place is not None:
            place, is_full = self._read_to_prefix(rows, place, items)
            if is_full:
                return items, place
        return items, None

    def _read_to_prefix(
        self, rows: BlobRows, start: Place, items: list[Blob | BlobPrefix]
    ) -> tuple[Place | None, bool]:
        """Gather up to the next prefix; return where to go on, and whether the page is full."""
        statement, end = self._statement()
        parameters = (self.container, *start, end)
        for name, snapshot, facts in rows.connection.execute(statement, parameters):
            if len(items) == self.limit:
                return (name, snapshot), True
            prefix = shared_prefix(name, self.prefix, self.delimiter)
            if prefix is not None:
                items.append(BlobPrefix(prefix))
                behind = end_of(prefix)
                return None if behind is None else (behind, 0), False
            items.append(stored.blob_of(name, snapshot, stored.decode_blob(facts), self.now))
        return None, False

    def _statement(self) -> tuple[str, str | None]:
        end = end_of(self.prefix)
        conditions = ["container = ?1", "(name, snapshot) >= (?2, ?3)"]
        # The end is bound in any case: a parameter that is not used would be refused.
        conditions.append("?4 IS NULL" if end is None else "name < ?4")
        if "snapshots" not in self.include:
            conditions.append(f"snapshot = {LIVE}")
        if "uncommittedblobs" not in self.include:
            conditions.append("is_committed")
        where = " AND ".join(conditions)
        return (
            f"SELECT name, snapshot, facts FROM blob WHERE {where} ORDER BY name, snapshot",  # noqa: S608 - only our own text
            end,
        )
