"""All errors that Partita raises, in four families under `PartitaError`.

`UsageError`: the call can never work. `ConflictError`: the state disagrees with the call.
`UnavailableError`: the call may work later. `DamageError`: stored data is damaged.

An error has a stable `code` (the anchor in docs/errors.md, the code on the wire and in logs), a
`message` and `facts` (what failed, on what), a `hint` (what to do) and `retry` (whether a retry
can help). Facts never contain property values, account keys or signatures.
"""

import enum
from collections.abc import Mapping
from typing import Any


class Retry(enum.Enum):
    """Whether a retry can help."""

    NO = "no"
    """The same call can never succeed."""
    REREAD = "reread"
    """Read the current state, then decide whether to repeat the call."""
    LATER = "later"
    """The same call may succeed later."""


class PartitaError(Exception):
    """The base class of all errors that Partita raises."""

    retry = Retry.NO

    def __init__(
        self,
        code: str,
        message: str,
        *,
        facts: Mapping[str, object] | None = None,
        hint: str = "",
        setting: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, object] = dict(facts or {})
        self.hint = hint
        self.setting = setting
        """The server, account or client setting that resolves the error; empty if there is none."""

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        parts = [f"{self.code}: {self.message}", f"({facts})" if facts else "", self.hint]
        return " ".join(part for part in parts if part)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is rebuilt from its message alone, which fails in another process.
        return type(self), (self.code, self.message), self.__dict__


class UsageError(PartitaError):
    """The call can never succeed: correct the call, the declaration or the configuration."""


class InvalidKeyError(UsageError):
    """A partition key, row key or table name breaks the rules."""


class InvalidPropertyError(UsageError):
    """A property's name, type or value breaks the rules."""


class InvalidRequestError(UsageError):
    """The address, headers, body or options of a request are invalid."""


class GroupRuleError(UsageError):
    """A group breaks a rule of entity group transactions."""


class FilterSyntaxError(UsageError):
    """A filter cannot be parsed, or uses an unsupported operator or function."""


class LimitExceededError(UsageError):
    """A size, length or count exceeds its documented limit."""


class NotAuthorizedError(UsageError):
    """The credentials are missing or wrong, or do not permit the operation."""


class NotSupportedError(UsageError):
    """The Azure service has this operation; Partita does not implement it."""


class ConfigurationError(UsageError):
    """A flag, environment variable, file or argument has an invalid value."""


class TransactionUseError(UsageError):
    """A transaction was used after its end, by two tasks, or for an unsupported operation."""


class MutableTypeError(UsageError):
    """A collection was declared with a type whose values can be changed in place."""


class SchemaError(UsageError):
    """The stored schema and the declared schema are incompatible."""


class MutatedValueError(UsageError):
    """A value was changed in place after it was set or read; the transaction is not committed."""

    collection: str
    key: object
    path: str

    @classmethod
    def of(cls, collection: str, key: object, path: str) -> "MutatedValueError":
        """Build the error for a value and the path of its changed field."""
        where = f" in {path}" if path else ""
        error = cls(
            "MutatedValue",
            f"A value of {collection!r} was changed in place{where} after it was set or read.",
            facts={"collection": collection, "key": key, "path": path},
            hint="Change a copy and set() the copy: later changes to the object are not saved.",
        )
        error.collection, error.key, error.path = collection, key, path
        return error


class UnknownOptionError(UsageError, TypeError):
    """A call has an unknown keyword argument."""


class InvalidShardKeyError(UsageError):
    """A sharding key does not have the key type of its shard map."""


class WrongShardKeyError(UsageError):
    """A session would store a row whose sharding key is outside the session's mapping."""


class RangeError(UsageError):
    """A range of keys is empty or reversed, or does not fit the existing ranges."""


class MoveRefusedError(UsageError):
    """The plan of a move has obstacles; nothing was changed."""


class DefinitionError(UsageError):
    """The declaration of an entity type, key template, index or step is invalid."""


class UnknownFieldError(UsageError, AttributeError):
    """An entity type has no field of this name."""

    __str__ = PartitaError.__str__


class ScanRefusedError(UsageError):
    """A query would scan a whole partition or table without permission to scan."""


class ScanWarning(UserWarning):
    """A query scans a whole partition or table; `connect(..., scans="warn")` permits it."""


class ProjectionError(UsageError, TypeError):
    """An object with only some of its fields was passed where the complete entity is needed."""


class NotSelectedError(ProjectionError, AttributeError):
    """A field was read that the projection does not contain; `hasattr` returns False."""

    __str__ = PartitaError.__str__


class ContinuationError(UsageError):
    """A continuation is damaged, or belongs to another query."""


class NotOrderedError(UsageError):
    """The call needs ordered results, and the endpoint does not return them in order."""


class NewerVersionError(UsageError):
    """The stored entity was written by a newer version of its type than this program has."""


class UnknownTypeError(UsageError):
    """A stored entity has a type that the query does not list."""


class EncryptionKeyError(UsageError):
    """No keyring is configured, or it lacks the key that encrypted the value."""


class ConflictError(PartitaError):
    """The current state does not permit the call: read it again, then decide."""

    retry = Retry.REREAD

    entity: object = None
    """The object that was passed to the call, if the conflict is about one."""


class UniqueViolationError(ConflictError):
    """Another entity already has the value of a unique index; `index` is that index."""

    index: object = None


class BlobMissingError(ConflictError):
    """The blob of an entity no longer exists: the entity was replaced or deleted."""


class EntityExistsError(ConflictError):
    """An entity with the same keys already exists."""


class EntityNotFoundError(ConflictError):
    """No entity has these keys."""


class ETagMismatchError(ConflictError):
    """The entity changed since the etag was read."""


class TableExistsError(ConflictError):
    """A table with this name exists; case is ignored."""


class TableNotFoundError(ConflictError):
    """No table has this name."""


class QueueExistsError(ConflictError):
    """A queue with this name exists and has different metadata."""


class QueueNotFoundError(ConflictError):
    """No queue has this name."""


class MessageNotFoundError(ConflictError):
    """The message was deleted, has expired, or was received again by another consumer."""


class ReceiptMismatchError(MessageNotFoundError):
    """The message exists, but the receipt is not the one of its last receive or update."""


class KeyExistsError(ConflictError):
    """add() was called with a key that the dictionary already contains."""


class KeyNotFoundError(ConflictError, KeyError):
    """The collection does not contain the key, or is empty."""

    __str__ = PartitaError.__str__


class VersionConflictError(ConflictError):
    """A row does not have the version that `if_version` names."""


class CollectionNotFoundError(ConflictError):
    """The state has no collection with this name."""


class CollectionMismatchError(ConflictError):
    """The collection exists with another kind, key type or value type."""


class BackupOrderError(ConflictError):
    """A backup chain has a gap, or a restore would discard newer state."""


class ShardMapExistsError(ConflictError):
    """A shard map, or a catalog, exists already."""


class ShardMapNotFoundError(ConflictError):
    """The shard map or the catalog does not exist."""


class ShardExistsError(ConflictError):
    """The database is already a shard of this map."""


class ShardNotFoundError(ConflictError):
    """The database is not a shard of this map."""


class ShardInUseError(ConflictError):
    """The shard map or shard still has mappings or shards: remove them first."""


class MappingExistsError(ConflictError):
    """A mapping for some of the keys already exists."""


class MappingNotFoundError(ConflictError):
    """No mapping contains this key."""


class MappingLockedError(ConflictError):
    """The mapping is locked with another token."""


class StaleMappingError(ConflictError):
    """The mapping has changed since it was read."""


class SchemaMismatchError(ConflictError):
    """Shards return different columns, or differ from the expected schema."""


class UnavailableError(PartitaError):
    """The call is valid and may succeed later."""

    retry = Retry.LATER


class StoreBusyError(UnavailableError):
    """The store is overloaded or stopping."""


class StoreLockedError(UnavailableError):
    """Another process has the store open."""


class StoreFullError(UnavailableError):
    """The disk is full: reads and deletes continue, other writes fail until there is space."""


class StoreStoppedError(UnavailableError):
    """A sync failed or the folder's lock was lost: nothing is acknowledged until a restart."""


class LockTimeoutError(UnavailableError, TimeoutError):
    """A lock was not granted in time; `holder` is the transaction that holds it."""

    holder: str
    collection: str
    key: object
    waited: float

    @classmethod
    def of(cls, holder: str, collection: str, key: object, waited: float) -> "LockTimeoutError":
        """Build the error for the holder, the key and the time waited."""
        error = cls(
            "LockTimeout",
            f"Transaction {holder} held the lock for the {waited:.3g} s that this one waited.",
            facts={"holder": holder, "collection": collection, "key": key, "waited": waited},
            hint="Retry the whole transaction: state.run() does so, with increasing delays.",
        )
        error.holder, error.collection, error.key, error.waited = holder, collection, key, waited
        return error


class DeadlockError(LockTimeoutError):
    """Two or more transactions wait for each other; this one was chosen to fail."""

    @classmethod
    def of(cls, holder: str, collection: str, key: object, waited: float) -> "DeadlockError":
        """Build the error for the next transaction of the cycle."""
        error = cls(
            "Deadlock",
            f"Transaction {holder} holds the lock and waits for this one.",
            facts={"holder": holder, "collection": collection, "key": key, "waited": waited},
            hint="Retry the whole transaction: state.run() does so. To avoid deadlocks, lock keys "
            "in the same order, or read with LockMode.UPDATE before writing.",
        )
        error.holder, error.collection, error.key, error.waited = holder, collection, key, waited
        return error


class NotPrimaryError(UnavailableError):
    """This replica is not the primary; `primary` is the current one, if known."""

    primary: str = ""


class NotReadableError(UnavailableError):
    """This replica has not applied the requested sequence yet."""


class StateClosedError(UnavailableError):
    """The state was closed, or is being closed."""


class QuorumLostError(UnavailableError):
    """Too few nodes of the log respond: nothing can be committed."""


class InDoubtError(UnavailableError):
    """The outcome of a commit is unknown; `transaction_id` may or may not be in the log."""

    transaction_id: str = ""


class TransactionAbortedError(UnavailableError):
    """The transaction was aborted because the role of the replica changed."""


class WriteConflictError(TransactionAbortedError):
    """A row that a snapshot transaction writes was written since its snapshot."""


class NotDurableError(UnavailableError):
    """The log or the database acknowledges writes before they are durable."""


class MappingOfflineError(UnavailableError):
    """The mapping is offline: its shardlet is being moved, or it was set offline."""


class ShardOfflineError(UnavailableError):
    """The shard cannot be reached."""


class OperationPendingError(UnavailableError):
    """Another change of the catalog is in progress."""


class ShardError(UnavailableError):
    """One shard failed in a fan-out; `cause` is its error."""

    shard: object = None
    cause: BaseException | None = None


class IndexNotReadableError(UnavailableError):
    """The index is being built or is disabled: reading it would miss entities."""


class ThrottledError(UnavailableError):
    """The service kept answering that it is busy; `retry_after` is its suggested delay."""

    retry_after: float = 0.0


class TornReadError(UnavailableError):
    """The rows of a wide entity kept changing while they were read."""


class DamageError(PartitaError):
    """Stored data is not what was written. Do not continue: restore a backup."""


class SealBrokenError(DamageError):
    """An encrypted value was changed, or moved to another entity or property."""


class ChecksumError(DamageError):
    """Stored bytes do not match their checksum."""


class FormatVersionError(DamageError):
    """The files were written by another version of Partita."""


class ChainBrokenError(DamageError):
    """A record does not continue its predecessor: the log was truncated, mixed or changed."""


class CatalogMismatchError(DamageError):
    """The global and a local catalog disagree, and no pending operation explains it."""
