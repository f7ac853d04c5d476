"""Tables that enforce the scalability targets: `partita serve --enforce-targets`.

A write is counted before it is performed, and a group as a whole. The entities of a read are
known only afterwards: they become a debt, which delays the next request.
"""

import math
from itertools import groupby
from operator import attrgetter

from partita.errors import StoreBusyError
from partita.service.accounts.rate_targets import (
    ACCOUNT_ENTITIES_PER_SECOND,
    PARTITION_ENTITIES_PER_SECOND,
    Excess,
    RateTarget,
    Targets,
    counted,
)
from partita.tables import limits
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey, size_of
from partita.tables.filters import Filter
from partita.tables.operations import Delete, EntityGroup, Operation, Outcome
from partita.tables.paging import KeyRange, Page
from partita.tables.plan import Plan, plan
from partita.tables.store import TableStore

_SETTING = "--enforce-targets"
_OPT_OUT = f" Without {_SETTING} the server does not enforce this limit."


class ThrottledTables(TableEngine):
    """A TableEngine that refuses requests above a target with ServerBusy (503)."""

    def __init__(self, store: TableStore, account: str, targets: Targets) -> None:
        super().__init__(store)
        self._account = account
        self._targets = targets

    async def run(self, table_name: str, group: EntityGroup) -> Outcome:
        if group.operations:
            group.check()  # an invalid group must not be retried later
            entities = sum(map(_counted_of_operation, group.operations))
            self._charge(table_name, group.partition_key, entities)
        return await super().run(table_name, group)

    async def get(self, table_name: str, key: EntityKey) -> Entity:
        self._charge(table_name, key.partition_key, 1)
        entity = await super().get(table_name, key)
        further = _counted_of_entity(entity) - 1
        self._targets.owe(self._account, table_name, key.partition_key, further)
        return entity

    async def query(
        self,
        table_name: str,
        filter_: Filter | None,
        *,
        within: KeyRange,
        start: EntityKey | None = None,
        limit: int = limits.PAGE_ENTITIES_MAX,
    ) -> tuple[Plan, Page]:
        only = plan(filter_, within).span.single_partition()
        self._charge(table_name, only, 0)
        chosen, page = await super().query(
            table_name, filter_, within=within, start=start, limit=limit
        )
        for partition_key, entities in groupby(page.entities, attrgetter("partition_key")):
            returned = sum(map(_counted_of_entity, entities))
            self._targets.owe(self._account, table_name, partition_key, returned)
        if not page.entities:
            self._targets.owe(self._account, table_name, only, 1)
        return chosen, page

    def _charge(self, table_name: str, partition_key: str | None, entities: int) -> None:
        excess = self._targets.charge(self._account, table_name, partition_key, entities)
        if excess is not None:
            raise _busy(excess)


def _counted_of_operation(operation: Operation) -> int:
    """Count the bytes that are sent: of a merge, the properties in the request."""
    if isinstance(operation, Delete):
        return 1
    return counted(size_of(operation.key, operation.properties))


def _counted_of_entity(entity: Entity) -> int:
    return counted(size_of(entity.key, entity.properties()))


def _busy(excess: Excess) -> StoreBusyError:
    facts = {"target": excess.target.value, "retry_after": max(1, math.ceil(excess.seconds))}
    if excess.target is RateTarget.PARTITION:
        return StoreBusyError(
            "ServerBusy",
            "The server is busy.",
            facts=facts,
            hint=f"The partition exceeds {PARTITION_ENTITIES_PER_SECOND} entities of 1 KiB per"
            f" second: use more partition keys, or send fewer requests.{_OPT_OUT}",
            setting=_SETTING,
        )
    return StoreBusyError(
        "ServerBusy",
        "Operations per second is over the account limit.",
        facts=facts,
        hint=f"The account exceeds {ACCOUNT_ENTITIES_PER_SECOND} entities of 1 KiB per second:"
        f" send fewer requests, or use several accounts.{_OPT_OUT}",
        setting=_SETTING,
    )
