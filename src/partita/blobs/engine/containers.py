"""Containers: created, leased, listed, dropped; and the blobs in them by name."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from partita.blobs.engine import preconditions as judging
from partita.blobs.engine.operations import Operations, lease_outcome, replace
from partita.blobs.engine.preconditions import Terms
from partita.blobs.rules import conditions as condition_rules
from partita.blobs.rules import limits, listing
from partita.blobs.rules.model import (
    ANY,
    Access,
    Conditions,
    Container,
    ContainerListing,
    Include,
    LeaseOutcome,
    LeaseRequest,
    Listing,
)
from partita.blobs.rules.names import check_container_name
from partita.blobs.rules.stored_format import StoredContainer, container_of
from partita.blobs.store.list_scan import Scan
from partita.errors import ConflictError
from partita.policies import Policy


class ContainerEngine(Operations):
    """The operations of containers."""

    async def create_container(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        access: Access | None = None,
    ) -> Container:
        """Create a container; ContainerAlreadyExists if the name is taken."""
        check_container_name(name)
        async with self.store.change() as tx:
            if tx.find_container(name) is not None:
                raise ConflictError(
                    "ContainerAlreadyExists",
                    "The specified container already exists.",
                    facts={"container": name},
                )
            facts = StoredContainer(tx.stamp(), dict(metadata or {}), access)
            tx.put_container(name, facts)
        return container_of(name, facts, self.store.clock.now())

    async def get_container(self, name: str, *, lease_id: str | None = None) -> Container:
        now = self.store.clock.now()
        row = judging.require_container(self.store.rows(), name)
        judging.judge_container(row, Terms(now, lease_id), writes=False)
        return container_of(name, row.facts, now)

    async def find_container(self, name: str) -> Container | None:
        """Find a container without judging anything: for the anonymous reader's rules."""
        row = self.store.rows().find_container(name)
        return None if row is None else container_of(name, row.facts, self.store.clock.now())

    async def delete_container(
        self, name: str, *, lease_id: str | None = None, conditions: Conditions = ANY
    ) -> None:
        """Drop a container and all that is in it at once; its space is reclaimed behind it."""
        async with self.store.change(frees_space=True) as tx:
            row = judging.require_container(tx, name)
            judging.judge_container(row, self.terms(lease_id, conditions), writes=True)
            tx.drop_container(row)

    async def set_container_metadata(
        self,
        name: str,
        metadata: Mapping[str, str],
        *,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Container:
        terms = self.terms(lease_id, conditions)
        return await self._change_container(name, terms, metadata=dict(metadata))

    async def set_policies(
        self,
        name: str,
        policies: Sequence[Policy],
        *,
        access: Access | None = None,
        lease_id: str | None = None,
        conditions: Conditions = ANY,
    ) -> Container:
        """Replace policies and public access together; `get_container` shows them."""
        terms = self.terms(lease_id, conditions)
        kept = [(each.id, each.start, each.expiry, each.permission) for each in policies]
        return await self._change_container(name, terms, policies=kept, access=access)

    async def _change_container(self, name: str, terms: Terms, **changes: object) -> Container:
        async with self.store.change() as tx:
            row = judging.require_container(tx, name)
            judging.judge_container(row, terms, writes=False)
            facts = replace(row.facts, changed_at=tx.stamp(), **changes)
            tx.put_container(name, facts)
        return container_of(name, facts, terms.now)

    async def lease_container(
        self, name: str, request: LeaseRequest, *, conditions: Conditions = ANY
    ) -> LeaseOutcome:
        async with self.store.change() as tx:
            row = judging.require_container(tx, name)
            condition_rules.check_container(conditions, row.facts.changed_at)
            lease, seconds = self.apply_lease(row.facts.lease, request)
            tx.put_container(name, replace(row.facts, lease=lease))
        return lease_outcome(row.facts.changed_at, lease, seconds)

    async def list_containers(
        self, *, prefix: str = "", marker: str = "", limit: int = limits.LIST_ITEMS_MAX
    ) -> ContainerListing:
        start = max(prefix, listing.place_of(marker)[0])
        now = self.store.clock.now()
        rows = await self.store.in_reader(
            lambda rows: rows.list_containers(start, listing.end_of(prefix), limit + 1)
        )
        following = listing.marker_of((rows[limit].name, 0)) if len(rows) > limit else None
        shown = [container_of(row.name, row.facts, now) for row in rows[:limit]]
        return ContainerListing(shown, following)

    async def list_blobs(  # noqa: PLR0913 - what a listing can be asked for
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
        """List blobs by name; with a delimiter, prefixes stand for all that goes on behind it.

        `start_from` is the first name to show; a marker goes on behind it.
        """
        row = judging.require_container(self.store.rows(), container)
        start, now = max(listing.place_of(marker), (start_from, 0)), self.store.clock.now()
        scan = Scan(row.id, prefix, delimiter, start, limit, include, now)
        items, following = await self.store.in_reader(scan.read)
        return Listing(items, None if following is None else listing.marker_of(following))
