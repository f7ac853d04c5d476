"""TableEngine: applies the rules of the table service on a store. No HTTP here."""

from collections.abc import Sequence

import msgspec

from partita.errors import EntityNotFoundError, GroupRuleError, TableNotFoundError
from partita.policies import Policy
from partita.refusals import invalid_input, not_found
from partita.tables import limits
from partita.tables.entity import Entity, EntityKey, check_table_name, is_system_table
from partita.tables.expectations import expectation_of
from partita.tables.filters import Filter, compile_table_filter
from partita.tables.operations import EntityGroup, Outcome
from partita.tables.paging import KeyRange, Page, after
from partita.tables.plan import Plan, PlanKind, plan
from partita.tables.store import Table, TableStore


class TablePage(msgspec.Struct, frozen=True):
    """Tables in order, and the lower-cased name where the next page starts."""

    tables: list[Table]
    continuation: str | None = None


class TableEngine:
    """Tables, entities, policies of one account.

    >>> import asyncio
    >>> from partita.storage.database import Database
    >>> from partita.tables.entity import EntityKey
    >>> from partita.tables.operations import Insert
    >>> from partita.tables.sqlite_store import SqliteTableStore
    >>> async def example() -> bytes:
    ...     engine = TableEngine(await SqliteTableStore.open(await Database.open(None)))
    ...     await engine.create_table("Staff")
    ...     ken = Insert(EntityKey("Sales", "00010"), {"Name": "Ken"})
    ...     await engine.run("Staff", EntityGroup([ken]))
    ...     entity = await engine.get("Staff", ken.key)
    ...     await engine.close()
    ...     return entity.properties()["Name"]
    >>> asyncio.run(example())
    'Ken'
    """

    def __init__(self, store: TableStore) -> None:
        self.store = store

    async def run(self, table_name: str, group: EntityGroup) -> Outcome:
        """Apply a group atomically; return when it is durable."""
        if not group.operations:
            raise invalid_input(GroupRuleError)
        group.check()
        table = await self.require_table(table_name)
        try:
            return await self._run(table, group)
        except TableNotFoundError:
            return await self._run(await self._require_other(table), group)

    async def _run(self, table: Table, group: EntityGroup) -> Outcome:
        entities = await self.store.change(
            table,
            group.partition_key,
            [operation.key.row_key for operation in group.operations],
            group.apply,
            expected=lambda: [expectation_of(operation) for operation in group.operations],
            frees_space=group.only_deletes,
            is_long=group.is_long,
        )
        return Outcome(entities)

    async def get(self, table_name: str, key: EntityKey) -> Entity:
        """Read one entity, or raise EntityNotFoundError."""
        table = await self.require_table(table_name)
        try:
            entity = await self.store.get(table, key)
        except TableNotFoundError:
            entity = await self.store.get(await self._require_other(table), key)
        if entity is None:
            raise not_found(EntityNotFoundError)
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
        """Return a page of the matching entities of a range, and the plan that found them.

        `start` is the continuation of the previous page; `within` limits it, too, so that it
        cannot extend a grant.
        """
        table = await self.require_table(table_name)
        chosen = plan(filter_, within)
        span = chosen.span if start is None else chosen.span.starting_at(start)
        try:
            return chosen, await self._read(table, chosen, span, limit)
        except TableNotFoundError:
            return chosen, await self._read(await self._require_other(table), chosen, span, limit)

    async def _read(self, table: Table, chosen: Plan, span: KeyRange, limit: int) -> Page:
        if chosen.kind is PlanKind.POINT and chosen.residual is None and limit > 0:
            found = None if span.is_empty else await self.store.get(table, span.lower)
            return Page([] if found is None else [found], examined=0 if found is None else 1)
        return await self.store.scan(table, span, chosen.residual, limit)

    async def create_table(self, name: str) -> Table:
        return await self.store.create_table(check_table_name(name))

    async def delete_table(self, name: str) -> None:
        await self.store.delete_table(name)

    async def get_table(self, name: str) -> Table:
        """Find a table for operations on the table itself."""
        table = await self.store.find_table(name)
        if table is None:
            raise not_found(TableNotFoundError, {"table": name})
        return table

    async def list_tables(
        self, filter_: Filter | None, *, start: str = "", limit: int = limits.PAGE_ENTITIES_MAX
    ) -> TablePage:
        """List tables by lower-cased name, from `start` on (inclusive); no system tables."""
        if limit <= 0:
            return TablePage([])
        matches = compile_table_filter(filter_) if filter_ is not None else None
        chosen: list[Table] = []
        while len(chosen) <= limit:
            tables = await self.store.list_tables(start, limits.PAGE_ENTITIES_MAX)
            chosen += [
                table
                for table in tables
                if (matches is None or matches(table.name)) and not is_system_table(table.name)
            ]
            if len(tables) < limits.PAGE_ENTITIES_MAX:
                break
            start = after(tables[-1].name.lower())
        following = chosen[limit].name.lower() if len(chosen) > limit else None
        return TablePage(chosen[:limit], following)

    async def get_policies(self, name: str) -> list[Policy]:
        return await self.store.get_policies(await self.get_table(name))

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None:
        await self.store.set_policies(await self.get_table(name), policies)

    async def close(self) -> None:
        await self.store.close()

    async def require_table(self, name: str) -> Table:
        """Find a table for operations on its entities."""
        table = await self.store.find_table(name)
        if table is None:
            raise table_not_found(name)
        return table

    async def _require_other(self, dropped: Table) -> Table:
        """Find the table that has the name of one that another front end has dropped."""
        table = await self.require_table(dropped.name)
        if table.id == dropped.id:
            raise table_not_found(dropped.name)
        return table


def table_not_found(name: str) -> TableNotFoundError:
    message = "The table specified does not exist."
    return TableNotFoundError("TableNotFound", message, facts={"table": name})
