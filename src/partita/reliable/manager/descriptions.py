"""Descriptions of collections: creating collections, and what is recorded about their values.

Each change of a description is a transaction of its own, so that it is a record in the log.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec

from partita.errors import LimitExceededError, NotPrimaryError, NotReadableError, SchemaError
from partita.reliable.collections.concurrent_queue import HEADER_BYTES
from partita.reliable.collections.transaction import CREATIONS, Core, Owner
from partita.reliable.state.locks import LockMode
from partita.reliable.state.records import Alter, Create, Operation
from partita.reliable.state.state import Collection, Description, encode_description
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_count
from partita.reliable.values.layout import Misfit, combined
from partita.reliable.values.serialization import ValueCodec

ROWS_TRIED = 100
"""Rows that are decoded with a type if the description has no layout to compare it with."""
CREATION_SECONDS = 10.0
"""How long opening a collection on a secondary waits for the primary to create it."""


DESCRIPTION = b""
"""The key of the lock on a description, which each change replaces as a whole."""


class LockedCollection:
    """A collection without a codec: only its name and its lock are used."""

    codec = None
    cache = None
    index_operations = None
    keeps_every_change = False

    def __init__(self, collection: Collection) -> None:
        self.name = collection.description.name
        self.collection = collection

    def key_of(self, encoded: bytes) -> object:
        return encoded.decode(errors="replace")


CREATION_LOCK = LockedCollection(Collection(CREATIONS, Description("new collections", "creations")))
"""Locked while a collection is created or dropped."""


class Descriptions:
    """Creates collections and changes their descriptions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.check_promotion: Callable[[str, int], Awaitable[None]] | None = None
        """Raises if a live replica cannot read a version of a collection's schema."""

    async def find(self, name: str) -> Collection | None:
        """Return a collection; on a secondary, wait for the primary to create it."""
        found = self._core.state.find(name)
        if found is not None:
            return found
        started = self._core.clock.monotonic()
        while isinstance(self._core.role_error, NotPrimaryError):
            found = self._core.state.find(name)
            if found is not None or self._core.clock.monotonic() - started > CREATION_SECONDS:
                return found
            await asyncio.sleep(CREATION_SECONDS / 200)
        return self._core.state.find(name)

    async def create(self, description: Description, owner: Owner | None = None) -> Collection:
        """Create a collection, or return the one that was created meanwhile."""
        if isinstance(self._core.role_error, NotPrimaryError):
            raise _not_created(description.name, self._core.role_error.primary)
        self._core.writable()
        async with self._core.transaction() as tx:
            if owner is not None:
                await tx.enter(owner, None)
            # The lock is held until the commit ends, even if the caller is cancelled: two
            # creations must never use the same identifier or the same name.
            await tx.lock(CREATION_LOCK, b"", LockMode.EXCLUSIVE, None)
            found = self._core.state.find(description.name)
            if found is not None:
                return found
            self.refuse_too_many()
            identifier = self._core.state.next_collection
            tx.stage_operations([Create(identifier, encode_description(description))])
        return self._core.state.collections[identifier]

    def refuse_too_many(self) -> None:
        """Raise if the state cannot have another collection."""
        if len(self._core.state.collections) >= limits.COLLECTIONS_MAX:
            raise LimitExceededError(
                "TooManyCollections",
                f"A state may have at most {limits.COLLECTIONS_MAX} collections and indexes.",
                hint="Combine several dictionaries into one with tuples as keys.",
            )

    async def commit(self, owner: Owner, operation: Callable[[], Operation]) -> None:
        """Commit a change of a description while the collection cannot be dropped."""
        async with self._core.transaction() as tx:
            await tx.enter(owner, None)
            await tx.lock(LockedCollection(owner.collection), DESCRIPTION, LockMode.EXCLUSIVE, None)
            tx.stage_operations([operation()])

    async def keep_versions(self, collection: Collection, *, is_locked: bool) -> None:
        """Keep the version of every row from now on, by a record in the log.

        `is_locked`: the caller's transaction uses the collection, so that it cannot be dropped. A
        second lock on it could wait for one who waits for the caller.
        """
        if self._core.role_error is not None:
            raise NotReadableError(
                "VersionsNotKept",
                f"{collection.description.name!r} does not keep the versions of its rows yet.",
                facts={"collection": collection.description.name},
                hint="Call get_versioned() on the primary first: it starts to keep versions.",
            )
        owner = LockedCollection(collection)
        async with self._core.transaction() as tx:
            if not is_locked:
                await tx.enter(owner, None)
            await tx.lock(owner, DESCRIPTION, LockMode.EXCLUSIVE, None)
            description = collection.description
            if not description.is_versioned:
                kept = msgspec.structs.replace(description, is_versioned=True)
                tx.stage_operations([Alter(collection.id, encode_description(kept))])

    async def describe_values(self, collection: Collection, values: ValueCodec[object]) -> None:
        """Add what this code writes to the description, if it is missing there."""
        if self._core.role_error is None and described(collection, values) != (
            collection.description
        ):
            await self.commit(
                LockedCollection(collection),
                lambda: Alter(collection.id, encode_description(described(collection, values))),
            )

    async def write_version(self, collection: Collection, readable: int, version: int) -> None:
        """Let every replica write a schema version from now on."""
        description = collection.description
        if version == description.written_version:
            return
        if not description.written_version < checked_count(version) <= readable:
            raise SchemaError(
                "SchemaNotPromoted",
                f"{description.name!r} is written in version {description.written_version} and "
                f"this code reads up to {readable}; it cannot be promoted to {version!r}.",
                facts={"collection": description.name},
                hint="Promote to a higher version that this code can read.",
            )
        if self.check_promotion is not None:
            await self.check_promotion(description.name, version)

        def promoted() -> Operation:
            newest = msgspec.structs.replace(collection.description, written_version=version)
            return Alter(collection.id, encode_description(newest))

        await self.commit(LockedCollection(collection), promoted)


def described(collection: Collection, values: ValueCodec[object]) -> Description:
    """Return the description with the layout of a type; SchemaError if the type does not fit."""
    description, version = collection.description, values.version
    written = description.written_version
    layouts = {key: kept for key, kept in description.layouts.items() if key >= written}
    stored = layouts.get(version)
    if not layouts and version == written and description.fingerprint != values.fingerprint:
        _refuse_unreadable(collection, values)
    try:
        layouts[version] = values.layout if stored is None else combined(stored, values.layout)
    except Misfit as misfit:
        raise _changed(description, values, misfit.path, misfit.reason) from None
    if layouts == description.layouts:
        return description
    layouts = dict(sorted(layouts.items()))
    if version < max(layouts):
        return msgspec.structs.replace(description, layouts=layouts)
    return msgspec.structs.replace(
        description, layouts=layouts, value=values.type_name, fingerprint=values.fingerprint
    )


def _refuse_unreadable(collection: Collection, values: ValueCodec[object]) -> None:
    """Decode some rows whose description, of an older release, has no layout."""
    start = HEADER_BYTES if collection.description.kind == "concurrent_queue" else 0
    rows = list(islice(collection.rows.values.values(), ROWS_TRIED))
    if rows and not any(values.can_read(row[start:]) for row in rows):
        reason = f"none of {len(rows)} rows can be decoded as it"
        raise _changed(collection.description, values, "", reason)


def _changed(
    description: Description, values: ValueCodec[object], path: str, reason: str
) -> SchemaError:
    where = f" at {path}" if path else ""
    return SchemaError(
        "ValueTypeChanged",
        f"{description.name!r} contains values of type {description.value} in version "
        f"{values.version}; {values.type_name} is not compatible{where}: {reason}.",
        facts={
            "collection": description.name,
            "stored": description.value,
            "given": values.type_name,
            "version": values.version,
            "path": path,
        },
        hint=f"Open it with the type that it was written with, or with version="
        f"{values.version + 1} and an @upcast that converts older values.",
    )


def _not_created(name: str, primary: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        f"The collection {name!r} does not exist yet, and only the primary creates collections.",
        facts={"collection": name, "primary": primary},
        hint="Open the collection on the primary first.",
    )
    error.primary = primary
    return error
