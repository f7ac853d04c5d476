"""The collections that are open on this replica: opening, listing, dropping, schema versions."""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from partita.errors import (
    CollectionMismatchError,
    CollectionNotFoundError,
    SchemaError,
    UsageError,
)
from partita.reliable.collections.concurrent_queue import ReliableConcurrentQueue
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.collections.transaction import Core, Transaction
from partita.reliable.manager.declarations import Declaration, refuse_other
from partita.reliable.manager.declared import Declared
from partita.reliable.manager.descriptions import (
    CREATION_LOCK,
    Descriptions,
    LockedCollection,
    described,
)
from partita.reliable.manager.index_builder import IndexBuilder
from partita.reliable.manager.runner import Runner
from partita.reliable.state.locks import LockMode
from partita.reliable.state.state import Collection, Description
from partita.reliable.values.arguments import checked_count
from partita.reliable.values.schema import Schema
from partita.reliable.values.serialization import ValueCodec

logger = logging.getLogger("partita.reliable")

AnyCollection = ReliableDictionary[Any, Any] | ReliableQueue[Any] | ReliableConcurrentQueue[Any]
Build = Callable[[Collection, ValueCodec[Any]], AnyCollection]


class Opened(msgspec.Struct, frozen=True):
    """What `state.collections()` returns for one collection."""

    name: str
    kind: str
    key: str
    value: str
    written_version: int
    count: int
    indexes: tuple[str, ...]


class OpenCollections:
    """Opens each collection once, and keeps the open collections by name."""

    def __init__(
        self, core: Core, runner: Runner, descriptions: Descriptions, indexes: IndexBuilder
    ) -> None:
        self._core = core
        self._runner = runner
        self._descriptions = descriptions
        self._indexes = indexes
        self._opened: dict[str, AnyCollection] = {}
        self._declared: dict[str, Declaration] = {}
        """The declarations of the open collections."""
        self._compared: dict[str, Description] = {}
        """Descriptions that contain already what this code writes."""
        self._creating: dict[int, tuple[AnyCollection, Declaration]] = {}
        """What open transactions create, by identifier."""
        self._opening = asyncio.Lock()

    async def open(self, given: Declared[Any], build: Build) -> AnyCollection:
        """Return the open collection, creating it if it is new."""
        self._core.check_open()
        values, declared = given.values(), given.declaration
        async with self._opening:
            collection = await self._collection(given.wanted, values, declared)
            opened = self._opened_as(collection)
            if opened is None:
                opened = build(collection, values)
                collection.watchers.append(opened.watch)
                self._opened[opened.name] = opened
                self._declared[opened.name] = declared
                if isinstance(opened, ReliableDictionary):
                    await self._open_indexes(opened, declared)
            elif isinstance(opened, ReliableDictionary):
                await self._indexes.build_all([opened])
        return opened

    async def open_in(self, tx: Transaction, given: Declared[Any], build: Build) -> AnyCollection:
        """Return the open collection; a new one exists only in the transaction until it commits.

        Its indexes are built after the commit.
        """
        values, name = given.values(), given.name
        found = tx.find_collection(name)
        if found is None:
            tx.check_writable()
            await tx.lock(CREATION_LOCK, b"", LockMode.EXCLUSIVE, None)
            found = tx.find_collection(name)
        if found is None:
            self._descriptions.refuse_too_many()
            found = tx.stage_create(_new(given.wanted, values, given.declaration.schema))
            created = build(found, values)
            if isinstance(created, ReliableDictionary):
                self._indexes.declare(created, dict(given.declaration.indexes))
            self._creating[found.id] = created, given.declaration
            tx.on_end(functools.partial(self._end_creation, created))
        if not found.is_new:
            return await self.open(given, build)
        opened, declared = self._creating[found.id]
        _refuse_other_kind(found.description, given.wanted)
        refuse_other(name, declared, given.declaration)
        return opened

    def _end_creation(self, opened: AnyCollection, is_committed: bool) -> None:  # noqa: FBT001 - a callback
        """Keep a collection that was created by a transaction, or end it."""
        new = opened.collection
        found = self._creating.pop(new.id, None)
        if found is None:
            return
        collection = self._core.state.collections.get(new.id) if is_committed else None
        new.is_new = False
        if collection is None:
            new.is_dropped = True
            return
        opened.rebind(collection)
        collection.watchers.append(opened.watch)
        self._opened[opened.name], self._declared[opened.name] = found

    def dictionaries(self) -> list[ReliableDictionary[Any, Any]]:
        """Return the open dictionaries."""
        return [one for one in self._opened.values() if isinstance(one, ReliableDictionary)]

    def list_all(self) -> list[Opened]:
        """Return all collections of the state, by name."""
        self._core.check_open()
        state = self._core.state
        return [
            Opened(
                collection.description.name,
                collection.description.kind,
                collection.description.key,
                collection.description.value,
                collection.description.written_version,
                len(collection.rows.values),
                tuple(
                    index.description.name.rpartition("\x00")[2]
                    for index in state.indexes_of(collection)
                ),
            )
            for _, collection in sorted(
                (collection.description.name, collection)
                for collection in state.collections.values()
                if collection.description.kind != "index"
            )
        ]

    async def drop(self, tx: Transaction, name: str, timeout: float | None) -> None:
        """Remove a collection and its content, after the transactions that use it."""
        collection = tx.find_collection(name)
        if collection is None or collection.description.kind == "index":
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"There is no collection {name!r}.",
                facts={"collection": name},
                hint="Call state.collections() to list the collections.",
            )
        tx.check_writable()
        await tx.lock(LockedCollection(collection), None, LockMode.EXCLUSIVE, timeout)
        # An index of it may be under construction.
        await tx.lock(CREATION_LOCK, b"", LockMode.EXCLUSIVE, timeout)
        if collection.is_dropped:
            return
        tx.stage_drop(collection)
        tx.on_end(functools.partial(self._end_drop, collection))

    def _end_drop(self, collection: Collection, is_committed: bool) -> None:  # noqa: FBT001 - a callback
        opened = self._opened.get(collection.description.name)
        if is_committed and opened is not None and opened.collection is collection:
            del self._opened[opened.name]

    async def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on."""
        collection = self._core.state.find(name)
        opened = self._opened.get(name)
        if collection is None or opened is None:
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"The collection {name!r} is not open here.",
                facts={"collection": name},
                hint="Open it first, with the code that reads the new version.",
            )
        async with self._opening:
            await self._descriptions.write_version(collection, opened.codec.version, version)

    def readable_versions(self) -> dict[str, int]:
        """Return the newest schema version of each open collection that this code can read."""
        return {name: opened.codec.version for name, opened in sorted(self._opened.items())}

    async def rewrite(self, collection: ReliableDictionary[Any, Any], batch: int) -> int:
        """Convert all rows of older versions in small transactions; return their number."""
        self._core.writable()
        if not isinstance(collection, ReliableDictionary):
            raise CollectionMismatchError(
                "CollectionMismatch",
                f"rewrite() takes a dictionary, not {type(collection).__name__}.",
                hint="Do not rewrite queues: items of every version can be read.",
            )
        if checked_count(batch) == 0:
            raise UsageError("InvalidLimit", "batch= must be at least 1.")
        count, last = 0, b""
        while True:
            keys = collection.collection.rows.between(last, None, limit=batch)
            if not keys:
                return count
            last = keys[-1] + b"\x00"

            async def convert(tx: Transaction, keys: list[bytes] = keys) -> int:
                return await collection.rewrite_rows(tx, keys)

            count += (await self._runner.run(convert)).value

    def rebind(self) -> None:
        """Use the rows of a full copy that has replaced the state."""
        for name, opened in list(self._opened.items()):
            collection = self._core.state.find(name)
            if collection is None or collection.id != opened.collection.id:
                opened.collection.is_dropped = True
                del self._opened[name]
            else:
                opened.rebind(collection)
                collection.watchers.append(opened.watch)

    async def describe_all(self) -> None:
        """Describe the values of collections that were opened while this was a secondary."""
        for name, opened in list(self._opened.items()):
            collection = opened.collection
            if (
                self._core.role_error is not None
                or collection.is_dropped
                or self._compared.get(name) is collection.description
            ):
                continue
            try:
                await self._descriptions.describe_values(collection, opened.codec)
            except SchemaError as error:
                logger.warning("this code writes values that other code cannot read: %s", error)
            self._compared[name] = collection.description

    async def _collection(
        self, wanted: Description, values: ValueCodec[Any], declared: Declaration
    ) -> Collection:
        """Find or create a collection and check that it fits the declaration."""
        name, schema = wanted.name, declared.schema
        collection = await self._descriptions.find(name)
        if collection is None:
            collection = await self._descriptions.create(_new(wanted, values, schema))
        found = collection.description
        _refuse_other_kind(found, wanted)
        if self._opened_as(collection) is not None:
            refuse_other(name, self._declared[name], declared)
        if found.written_version > values.version:
            raise SchemaError(
                "SchemaTooNew",
                f"{name!r} is written in version {found.written_version}; "
                f"this code reads {values.version}.",
                facts={"collection": name, "version": found.written_version},
                hint="Deploy the code that reads the new version on every replica.",
            )
        described(collection, values)  # refuses a type that does not fit, also on a secondary
        is_promoted = schema.write is None and found.written_version < schema.version
        if is_promoted and self._core.role_error is None:
            await self._descriptions.write_version(collection, values.version, schema.version)
        await self._descriptions.describe_values(collection, values)
        return collection

    def _opened_as(self, collection: Collection) -> AnyCollection | None:
        """Return the open collection, None if it is not open."""
        opened = self._opened.get(collection.description.name)
        return opened if opened is not None and opened.collection is collection else None

    async def _open_indexes(
        self, owner: ReliableDictionary[Any, Any], declared: Declaration
    ) -> None:
        self._indexes.declare(owner, dict(declared.indexes))
        try:
            await self._indexes.build_all([owner])
        except BaseException:
            # It was not returned yet; the next opening may declare other indexes.
            owner.collection.watchers.remove(owner.watch)
            del self._opened[owner.name]
            raise


def _new(wanted: Description, values: ValueCodec[Any], schema: Schema) -> Description:
    """Return the description of a collection that does not exist yet."""
    return msgspec.structs.replace(
        wanted,
        value=values.type_name,
        fingerprint=values.fingerprint,
        written_version=schema.written,
        layouts={schema.version: values.layout},
    )


def _refuse_other_kind(found: Description, wanted: Description) -> None:
    if (found.kind, found.key) != (wanted.kind, wanted.key):
        raise CollectionMismatchError(
            "CollectionMismatch",
            f"{found.name!r} is a {_kind_text(found)}, not a {_kind_text(wanted)}.",
            facts={"collection": found.name},
            hint="Open it as it was created, or choose another name.",
        )


def _kind_text(description: Description) -> str:
    return (
        f"{description.kind} with keys {description.key}" if description.key else description.kind
    )
