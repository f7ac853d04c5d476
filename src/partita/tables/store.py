"""The contract of a table store: ordered keys, atomic in one partition, durable on return.

Every store runs the same suite, tests/conformance/table_store.py. All calls are coroutines: a
networked store suspends, the embedded one does not on point reads. A store keeps the clock of
its writes: for a key, ticks rise with every change and never repeat, also after a removal, a
restart or a wall clock that went back.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from partita.policies import Policy
from partita.tables.entity import Entity, EntityKey
from partita.tables.filters import Filter
from partita.tables.paging import KeyRange, Page

Decide = Callable[[Mapping[str, Entity], int], Sequence[Entity | None]]
"""Decide a change: the existing entities by row key and the ticks of the change, to the entity to
store for each row key, in order; None: the entity is removed, or still does not exist. It is pure:
a store may call it again, on other entities, with other ticks, in another thread. It raises to
refuse the change."""
Expected = Callable[[], Sequence[int | None]]
"""Return what each row key must hold for `decide` to be tried on stand-ins; None: it must be read.
See `partita.tables.expectations`. If an expectation is not met, or `decide` refuses a stand-in, the
store reads the entities and decides on them. A store that always reads does not call it."""


class Table(msgspec.Struct, frozen=True, gc=False):
    """A stored table. `id` is never used again after the table is dropped."""

    id: int
    name: str
    """In the case used at creation; names match without case."""


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """The size of a range of keys."""

    entities: int
    document_bytes: int


class TableStore(Protocol):
    """Where tables and their entities are kept.

    Calls with a table that another front end has dropped raise TableNotFoundError.
    """

    async def find_table(self, name: str) -> Table | None: ...

    async def create_table(self, name: str) -> Table:
        """Raise TableExistsError if a table has this name in any case."""
        ...

    async def delete_table(self, name: str) -> None:
        """Drop a table; its space is reclaimed afterwards. Raise TableNotFoundError if missing."""
        ...

    async def list_tables(self, start: str, limit: int) -> list[Table]:
        """List tables by lower-cased name from `start` on (inclusive)."""
        ...

    async def get(self, table: Table, key: EntityKey) -> Entity | None: ...

    async def scan(self, table: Table, span: KeyRange, residual: Filter | None, limit: int) -> Page:
        """Return at most `limit` matching entities of a range, and the continuation.

        A page may end early, even empty, by its byte and time budgets; its continuation is then
        the next key to read.
        """
        ...

    async def change(  # noqa: PLR0913 - what is known of a change helps a store to plan it
        self,
        table: Table,
        partition_key: str,
        row_keys: Sequence[str],
        decide: Decide,
        *,
        expected: Expected | None = None,
        frees_space: bool = False,
        is_long: bool = False,
    ) -> Sequence[Entity | None]:
        """Change entities of one partition atomically; return what `decide` returned, when durable.

        Each row key occurs once. An error of `decide` is raised when the entities that it was
        decided on are durable; nothing has changed then. `expected` lets a store try `decide`
        before it reads. `frees_space` marks a change that only removes: it may use the reserve of
        a full disk. `is_long` marks a change that must not hold the event loop.
        """
        ...

    async def get_policies(self, table: Table) -> list[Policy]: ...

    async def set_policies(self, table: Table, policies: Sequence[Policy]) -> None: ...

    async def get_setting(self, name: str) -> bytes | None:
        """Read an account-wide setting, such as the service properties."""
        ...

    async def set_setting(self, name: str, value: bytes) -> None: ...

    async def statistics(self, table: Table, span: KeyRange) -> Statistics:
        """Return the size of a range; a store may estimate it."""
        ...

    def places(self, table: Table, span: KeyRange) -> Sequence[str]:
        """Name the ranges that have the keys, and their shards; empty if there is one place."""
        ...

    async def close(self) -> None:
        """Finish accepted changes and release the files."""
        ...
