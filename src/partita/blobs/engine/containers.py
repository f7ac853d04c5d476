"""Containers: create, lease, list, drop; and the listing of the blobs in them."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from partita.blobs.engine import preconditions
from partita.blobs.engine.keeping import Keeper
from partita.blobs.engine.operations import change_lease, check_scope, replace
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import limits, listing
from partita.blobs.rules.model import (
    ANY,
    NO_TERMS,
    Access,
    Conditions,
    Container,
    ContainerListing,
    Include,
    LeaseOutcome,
    LeaseRequest,
    Listing,
    Terms,
)
from partita.blobs.rules.names import (
    LOGS,
    check_container_name,
    container_version,
    deleted_name,
)
from partita.blobs.rules.stored_format import StoredContainer, container_of
from partita.blobs.store.contract import BlobStore, Scan
from partita.errors import ConflictError
from partita.policies import Policy
from partita.ticks import TICKS_PER_DAY


class Containers:
    """The operations of containers."""

    def __init__(self, store: BlobStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper

    async def create_container(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        access: Access | None = None,
        encryption_scope: str | None = None,
        denies_other_scopes: bool = False,
    ) -> Container:
        """Create a container; ContainerAlreadyExists if the name is in use.

        The encryption scope is returned with the container; it has no other effect.
        """
        check_container_name(name)
        if encryption_scope is not None:
            check_scope(encryption_scope, "x-ms-default-encryption-scope")
        async with self._store.change() as tx:
            if await tx.find_container(name) is not None:
                raise _name_in_use(name)
            facts = StoredContainer(
                tx.stamp(),
                dict(metadata or {}),
                access,
                encryption_scope=encryption_scope,
                denies_other_scopes=denies_other_scopes,
            )
            await tx.put_container(name, facts)
        return container_of(name, facts, self._store.now())

    async def get_container(self, name: str, *, lease_id: str | None = None) -> Container:
        now = self._store.now()
        row = await preconditions.require_container(self._store.reads(), name)
        preconditions.check_container(row, Terms(lease_id), now, is_delete=False)
        return container_of(name, row.facts, now)

    async def find_container(self, name: str) -> Container | None:
        """Find a container without any check: for the rules of anonymous access."""
        row = await self._store.reads().find_container(name)
        return None if row is None else container_of(name, row.facts, self._store.now())

    async def delete_container(self, name: str, *, terms: Terms = NO_TERMS) -> None:
        """Delete a container with its blobs at once; without retention, reclaim their space."""
        days = self._keeper.retention.container_days
        async with self._store.change(frees_space=True) as tx:
            row = await preconditions.require_container(tx, name)
            preconditions.check_container(row, terms, self._store.now(), is_delete=True)
            if days is None:
                await tx.drop_container(row)
                return
            at = tx.stamp()
            expires_at = at + days * TICKS_PER_DAY
            facts = replace(row.facts, lease=None, deleted_at=at, expires_at=expires_at)
            await tx.rename_container(row, deleted_name(name, container_version(at)), facts)

    async def restore_container(self, name: str, version: str) -> Container:
        """Restore a deleted container with its blobs, unless its name is in use again."""
        check_container_name(name)
        async with self._store.change() as tx:
            row = await tx.find_container(deleted_name(name, version.upper()))
            expires_at = None if row is None else row.facts.expires_at
            if row is None or expires_at is None or expires_at <= tx.stamp():
                raise preconditions.missing_container(name)
            if await tx.find_container(name) is not None:
                raise _name_in_use(name)
            facts = replace(row.facts, deleted_at=None, expires_at=None)
            await tx.rename_container(row, name, facts)
        return container_of(name, facts, self._store.now())

    async def forget_container(self, name: str, version: str) -> None:
        """Drop a deleted container before its time, if it was not restored meanwhile."""
        async with self._store.change(frees_space=True) as tx:
            row = await tx.find_container(deleted_name(name, version))
            if row is not None:
                await tx.drop_container(row)

    async def set_container_metadata(
        self, name: str, metadata: Mapping[str, str], *, terms: Terms = NO_TERMS
    ) -> Container:
        return await self._change(name, terms, metadata=dict(metadata))

    async def set_policies(
        self,
        name: str,
        policies: Sequence[Policy],
        *,
        access: Access | None = None,
        terms: Terms = NO_TERMS,
    ) -> Container:
        """Replace policies and public access together; `get_container` returns them."""
        kept = [(each.id, each.start, each.expiry, each.permission) for each in policies]
        return await self._change(name, terms, policies=kept, access=access)

    async def _change(self, name: str, terms: Terms, **changes: object) -> Container:
        now = self._store.now()
        async with self._store.change() as tx:
            row = await preconditions.require_container(tx, name)
            preconditions.check_container(row, terms, now, is_delete=False)
            facts = replace(row.facts, changed_at=tx.stamp(), **changes)
            await tx.put_container(name, facts)
        return container_of(name, facts, now)

    async def lease_container(
        self, name: str, request: LeaseRequest, *, conditions: Conditions = ANY
    ) -> LeaseOutcome:
        async with self._store.change() as tx:
            row = await preconditions.require_container(tx, name)
            facts = row.facts
            condition_rules.check_container(conditions, facts.changed_at)
            lease, outcome = change_lease(self._store, facts.lease, request, facts.changed_at)
            await tx.put_container(name, replace(facts, lease=lease))
        return outcome

    async def list_containers(
        self,
        *,
        prefix: str = "",
        marker: str = "",
        limit: int = limits.LIST_ITEMS_MAX,
        with_system: bool = False,
        with_deleted: bool = False,
    ) -> ContainerListing:
        """List containers by name; that of Storage Analytics only `with_system`.

        `with_deleted` also lists the deleted ones that can be restored.
        """
        start = max(prefix, listing.place_of(marker)[0])
        now = self._store.now()
        rows = await self._store.list_containers(
            start, listing.end_of(prefix), limit + 2, with_deleted=with_deleted
        )
        rows = [row for row in rows if with_system or row.name != LOGS]
        following = listing.marker_of((rows[limit].name, 0)) if len(rows) > limit else None
        shown = [container_of(row.name, row.facts, now) for row in rows[:limit]]
        return ContainerListing(shown, following)

    async def list_blobs(  # noqa: PLR0913 - the parameters of a listing
        self,
        container: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        marker: str = "",
        start_from: str = "",
        limit: int = limits.LIST_ITEMS_MAX,
        include: AbstractSet[Include] = frozenset(),
    ) -> Listing:
        """List blobs by name; with a delimiter, names that contain it are listed as one prefix.

        `start_from` is the first name to show; a marker takes precedence over it.
        """
        row = await preconditions.require_container(self._store.reads(), container)
        start, now = max(listing.place_of(marker), (start_from, 0)), self._store.now()
        scan = Scan(row.id, prefix, delimiter, start, limit, include, now)
        items, following = await self._store.list_blobs(scan)
        return Listing(items, None if following is None else listing.marker_of(following))


def _name_in_use(name: str) -> ConflictError:
    return ConflictError(
        "ContainerAlreadyExists",
        "The specified container already exists.",
        facts={"container": name},
    )
