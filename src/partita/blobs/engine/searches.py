"""Searches for blobs by their tags, in an account or in one container."""

from partita.blobs.engine import preconditions
from partita.blobs.rules import limits, tags
from partita.blobs.rules.listing import found_marker_of, found_place_of
from partita.blobs.rules.model import Found, FoundBlobs
from partita.blobs.store.contract import BlobStore

ROWS_READ = 1000
"""Blobs with tags that are read at a time."""


class Searches:
    """The operations that find blobs."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def find_blobs(
        self,
        expression: str,
        *,
        container: str | None = None,
        marker: str = "",
        limit: int = limits.LIST_ITEMS_MAX,
    ) -> FoundBlobs:
        """Find blobs by their tags, container by container, and by name in each.

        Snapshots and earlier versions are not found. A page looks at SEARCHED_BLOBS_MAX blobs
        that have tags at most.
        """
        wanted = tags.parse_search(expression)
        within: int | None = None
        for name in {container, wanted.container} - {None}:
            found = await self._store.reads().find_container(name or "")
            if found is None and name == container:
                raise preconditions.missing_container(name or "")
            if found is None or within not in (None, found.id):
                return FoundBlobs(())
            within = found.id
        start = found_place_of(marker)
        items: list[Found] = []
        for _ in range(0, limits.SEARCHED_BLOBS_MAX, ROWS_READ):
            rows = await self._store.list_tagged(within, start, ROWS_READ + 1)
            for row in rows[:ROWS_READ]:
                if len(items) == limit:
                    return FoundBlobs(items, found_marker_of(row.place))
                if wanted.matches(row.tags):
                    shown = wanted.named(row.tags)
                    items.append(Found(row.container, row.place[1], shown, row.version))
            if len(rows) <= ROWS_READ:
                return FoundBlobs(items)
            start = rows[ROWS_READ].place
        return FoundBlobs(items, found_marker_of(start))
