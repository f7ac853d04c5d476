"""The contract of a table store: ordered keys, atomic in one partition, durable on return.

Every store runs the same suite, tests/conformance/table_store.py. All calls are coroutines: a
networked store suspends, the embedded one does not on point reads. A store keeps the clock of
its writes: ticks rise with every change and never repeat, also after a restart or a wall clock
that went back.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from partita.policies import Policy
from partita.tables.entity import Entity, EntityKey
from partita.tables.filters import Filter
from partita.tables.paging import KeyRange, Page

T = TypeVar("T")


class LongGroupError(Exception):
    """A group reads more than one turn of the loop allows: see `TableStore.run_long`."""


class Table(msgspec.Struct, frozen=True, gc=False):
    """A stored table. `id` is never used again after the table is dropped."""

    id: int
    name: str
    """In the case used at creation; names match without case."""


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """The size of a range of keys."""

    entities: int
    document_bytes: int


class Partition(Protocol):
    """One partition in a transaction: the reads and writes of a group."""

    now: int
    """The ticks of this change: later than those of all earlier changes."""

    async def read(self, row_keys: Sequence[str]) -> dict[str, Entity]:
        """Read the entities that exist, by row key."""
        ...

    async def write(self, put: Sequence[Entity], remove: Sequence[EntityKey]) -> None: ...


class TableStore(Protocol):
    """Where tables and their entities are kept."""

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

    async def run_long(
        self,
        table: Table,
        partition_key: str,
        work: Callable[[Partition], Coroutine[Any, Any, T]],
        *,
        frees_space: bool = False,
    ) -> T:
        """Run the block of a long change of a partition, without holding the event loop.

        `work` may have run in a block of `partition` before, which raised LongGroupError.
        """
        ...

    def partition(
        self, table: Table, partition_key: str, *, frees_space: bool = False
    ) -> AbstractAsyncContextManager[Partition]:
        """Open a transaction on one partition.

        Leaving the block commits and returns when the change is durable. An exception rolls the
        block back, and leaves it when everything that the block has read is durable.
        The block awaits nothing but the partition's own calls: an embedded store shares one
        transaction among all blocks. `frees_space` marks a block that only deletes: it may use
        the reserve of a full disk.
        """
        ...

    async def get_policies(self, table: Table) -> list[Policy]: ...

    async def set_policies(self, table: Table, policies: Sequence[Policy]) -> None: ...

    async def get_setting(self, name: str) -> bytes | None:
        """Read an account-wide setting, such as the service properties."""
        ...

    async def set_setting(self, name: str, value: bytes) -> None: ...

    async def statistics(self, table: Table, span: KeyRange) -> Statistics: ...

    async def close(self) -> None:
        """Finish accepted changes and release the files."""
        ...
