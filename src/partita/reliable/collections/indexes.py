"""Secondary indexes: entries in a collection of their own, written in the same commit.

    entry    encoded index key | encoded key of the row, with an empty value

The function of an index runs on the replica that commits; other replicas apply its entries as
bytes, so that they are the same everywhere. A writer without the function marks the index as not
ready, and the next writer that has it builds the index again.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

import msgspec

from partita.errors import PartitaError, UsageError
from partita.keys import Key
from partita.reliable.collections.enumeration import SCAN_ROWS, ReadView, scan
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import Workspace
from partita.reliable.state.records import Alter, Clear, Delete, Operation, Put
from partita.reliable.state.state import Collection, encode_description
from partita.reliable.values.key_codec import encode_index_key

IndexFunction = Callable[..., Key | Iterable[Key] | None]


class Index(msgspec.Struct, frozen=True):
    """An index with a version: increase it when the function changes, to build it again."""

    function: IndexFunction
    version: int = 1


class Indexed(Protocol):
    """What an index needs of its dictionary."""

    name: str
    collection: Collection

    def value_of(self, encoded: bytes, stored: bytes) -> object: ...


class IndexView:
    """One index of one dictionary, with its function."""

    def __init__(
        self, name: str, index: Index, owner: Indexed, locate: Callable[[], Collection | None]
    ) -> None:
        self.name = name
        self.index = index
        self.locate = locate
        """Returns the collection of entries, None before the primary has created it."""
        self._owner = owner

    @property
    def collection(self) -> Collection:
        """The collection of entries, which must exist."""
        found = self.locate()
        assert found is not None, "the index was created"
        return found

    @property
    def is_ready(self) -> bool:
        """Whether the index covers every row with this function."""
        found = self.locate()
        if found is None:
            return False
        return found.description.is_ready and found.description.index_version == self.index.version

    def covers(self, snapshot: Snapshot) -> bool:
        """Return whether the index covers every row that a snapshot sees."""
        return self.is_ready and self.collection.ready_since <= snapshot.sequence

    def is_match(self, key: bytes, stored: bytes, wanted: object) -> bool:
        """Return whether a row has this index key, for scans without the index."""
        return encode_index_key(wanted) + key in self._entries(key, stored)

    def operations(self, space: Workspace) -> list[Operation]:
        """Return the changes of the index for the commit of a workspace."""
        operations: list[Operation] = []
        if space.is_cleared:
            operations.append(Clear(self.collection.id))
        held = {} if space.is_cleared else self.collection.rows.values
        committed = {} if space.is_cleared else space.collection.rows.values
        for key, new in space.writes.items():
            before = self._entries(key, committed.get(key))
            after = self._entries(key, new)
            operations += (
                Delete(self.collection.id, entry)
                for entry in before
                if entry not in after and entry in held
            )
            operations += (
                Put(self.collection.id, entry, b"") for entry in after if entry not in held
            )
        return operations

    def entries_of(self, keys: Iterable[bytes]) -> list[Operation]:
        """Return the missing entries of committed rows, to build the index."""
        values, held = self._owner.collection.rows.values, self.collection.rows.values
        return [
            Put(self.collection.id, entry, b"")
            for key in keys
            for entry in self._entries(key, values.get(key))
            if entry not in held
        ]

    async def find(self, view: ReadView, wanted: object, *, reverse: bool) -> AsyncIterator[bytes]:
        """Yield the encoded keys of the rows in a view with this index key, in key order."""
        prefix = encode_index_key(wanted)
        entries = msgspec.structs.replace(view, writes=await self._own_entries(view, prefix))
        upper = prefix + b"\xff"  # every encoded key begins below
        async for rows in scan(entries, self.collection, prefix, upper, reverse=reverse):
            for entry, _ in rows:
                yield entry[len(prefix) :]

    def described(self, *, is_ready: bool) -> Operation:
        """Return the operation that records whether the index covers every row."""
        description = msgspec.structs.replace(
            self.collection.description, is_ready=is_ready, index_version=self.index.version
        )
        return Alter(self.collection.id, encode_description(description))

    async def _own_entries(self, view: ReadView, prefix: bytes) -> dict[bytes, bytes | None]:
        """Return how the writes of a view change the entries of one index key."""
        entries: dict[bytes, bytes | None] = {}
        for number, (key, stored) in enumerate(view.writes.items(), start=1):
            entry = prefix + key
            entries[entry] = b"" if entry in self._entries(key, stored) else None
            if number % SCAN_ROWS == 0:
                await asyncio.sleep(0)
        return entries

    def _entries(self, key: bytes, stored: bytes | None) -> dict[bytes, None]:
        if stored is None:
            return {}
        try:
            found = self.index.function(self._owner.value_of(key, stored))
            return {encode_index_key(index_key) + key: None for index_key in _many(found)}
        except PartitaError:
            raise
        except Exception as error:
            raise UsageError(
                "IndexFailed",
                f"The function of index {self.name!r} failed: {error!r}.",
                facts={"collection": self._owner.name, "index": self.name},
                hint="Make it accept every value and return a key, a list of keys, or None.",
            ) from error


def _many(found: object) -> Iterable[object]:
    """Return the keys of a list, set or generator; any other value is one key, None is none."""
    if found is None:
        return ()
    if isinstance(found, list | set | frozenset | types.GeneratorType):
        return found
    return (found,)
