"""The root of all errors of Partita and its four families.

An error says what happened to whom (`message`, `facts`), whether trying again can help
(`retry`) and what to do (`hint`). `code` is stable: it is the anchor in docs/errors.md, the
code on the wire and the key in logs. Facts never hold values, account keys or signatures.
"""

import enum
from collections.abc import Mapping
from typing import Any


class Retry(enum.Enum):
    """What trying again is worth."""

    NO = "no"
    """The same call can never work."""
    REREAD = "reread"
    """Read the state again and decide again."""
    LATER = "later"
    """The same call may work later."""


class PartitaError(Exception):
    """The root: catch this to catch everything that Partita raises on purpose."""

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
        """The setting of the server, the account or the client that cures it, if there is one."""

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        parts = [f"{self.code}: {self.message}", f"({facts})" if facts else "", self.hint]
        return " ".join(part for part in parts if part)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is remade from its message alone, and would not come back from a process.
        return type(self), (self.code, self.message), self.__dict__


class UsageError(PartitaError):
    """The caller asked for something that can never work."""


class InvalidKeyError(UsageError):
    """A partition key, row key or table name breaks the rules."""


class InvalidPropertyError(UsageError):
    """A property's name, type or value breaks the rules."""


class InvalidRequestError(UsageError):
    """A request cannot be understood: its address, headers, body or options."""


class GroupRuleError(UsageError):
    """A group breaks a rule of entity group transactions."""


class FilterSyntaxError(UsageError):
    """A filter cannot be parsed, or uses what filters do not have."""


class LimitExceededError(UsageError):
    """Something is larger, longer or more than its named limit."""


class NotAuthorizedError(UsageError):
    """The request is not who it says it is, or may not do what it asks."""


class NotSupportedError(UsageError):
    """The service has this operation, Partita has not."""


class ConfigurationError(UsageError):
    """A flag, variable or file asks for something that cannot be started."""


class TransactionUseError(UsageError):
    """A transaction was used after its end, by two tasks, or for what it cannot do."""


class MutableTypeError(UsageError):
    """A collection was declared with a type whose values can be changed in place."""


class SchemaError(UsageError):
    """What is stored and what the code declares cannot be brought together."""


class MutatedValueError(UsageError):
    """A value was changed in place after it was written or read: nothing was committed."""

    collection: str
    key: object
    path: str

    @classmethod
    def of(cls, collection: str, key: object, path: str) -> "MutatedValueError":
        """Name the value and the field in which it changed."""
        where = f" in {path}" if path else ""
        error = cls(
            "MutatedValue",
            f"A value of {collection!r} was changed{where} after it was given or read.",
            facts={"collection": collection, "key": key, "path": path},
            hint="Change a copy and set() the copy: what was set already is what is stored.",
        )
        error.collection, error.key, error.path = collection, key, path
        return error


class UnknownOptionError(UsageError, TypeError):
    """A keyword argument that the function does not have."""


class InvalidShardKeyError(UsageError):
    """A sharding key is not of the type that its shard map was made for."""


class WrongShardKeyError(UsageError):
    """A row was to be stored by a session whose mapping does not hold the row's sharding key."""


class RangeError(UsageError):
    """A range of keys is empty, turned around, or does not fit where it is asked for."""


class MoveRefusedError(UsageError):
    """A shardlet cannot be moved like this: the plan was checked before anything was changed."""


class DefinitionError(UsageError):
    """An entity, a key template, an index or a step is declared in a way that cannot work."""


class UnknownFieldError(UsageError, AttributeError):
    """An entity type has no field of this name."""

    __str__ = PartitaError.__str__


class ScanRefusedError(UsageError):
    """A query would read a whole partition or table, and nobody asked for that."""


class ScanWarning(UserWarning):
    """The same, where `connect(..., scans="warn")` lets it happen."""


class ProjectionError(UsageError, TypeError):
    """An object that holds only some fields was given where the whole entity is needed."""


class NotSelectedError(ProjectionError, AttributeError):
    """A field was asked for that the projection does not hold: to `hasattr` it has none."""

    __str__ = PartitaError.__str__


class ContinuationError(UsageError):
    """A continuation is damaged, or belongs to another query."""


class NotOrderedError(UsageError):
    """The endpoint does not sort its answers, and the call means nothing without order."""


class NewerVersionError(UsageError):
    """The stored entity was written by a newer version of its type than this code knows."""


class UnknownTypeError(UsageError):
    """A stored entity is of a type that the query was not told of."""


class EncryptionKeyError(UsageError):
    """There is no keyring, or it does not hold the key that this value was sealed with."""


class ConflictError(PartitaError):
    """The state disagrees with the request: read again, decide again."""

    retry = Retry.REREAD

    entity: object = None
    """The caller's object that the conflict is about, where there is one."""


class UniqueViolationError(ConflictError):
    """Another entity has the value already; `index` is the unique index that says so."""

    index: object = None


class BlobMissingError(ConflictError):
    """An entity names a blob that is gone: the entity was replaced or deleted meanwhile."""


class EntityExistsError(ConflictError):
    """An insert met an entity with the same keys."""


class EntityNotFoundError(ConflictError):
    """No entity has these keys."""


class ETagMismatchError(ConflictError):
    """The entity changed since the etag was read."""


class TableExistsError(ConflictError):
    """A table of this name exists, in any case of its letters."""


class TableNotFoundError(ConflictError):
    """No table has this name."""


class QueueExistsError(ConflictError):
    """A queue of this name exists with other metadata."""


class QueueNotFoundError(ConflictError):
    """No queue has this name."""


class MessageNotFoundError(ConflictError):
    """No message has this identifier and receipt: deleted, expired, or claimed again since."""


class ReceiptMismatchError(MessageNotFoundError):
    """The message exists, but this is not the receipt of its last claim or change."""


class KeyExistsError(ConflictError):
    """add() met a key that the dictionary holds."""


class KeyNotFoundError(ConflictError, KeyError):
    """The collection does not hold this key, or holds nothing."""

    __str__ = PartitaError.__str__


class CollectionNotFoundError(ConflictError):
    """The state has no collection of this name."""


class CollectionMismatchError(ConflictError):
    """The collection exists with another kind, key or value than was asked for."""


class BackupOrderError(ConflictError):
    """A backup chain has a hole, or a restore would go back behind what is here."""


class ShardMapExistsError(ConflictError):
    """A shard map, or a catalog, exists already."""


class ShardMapNotFoundError(ConflictError):
    """There is no such shard map, or no catalog."""


class ShardExistsError(ConflictError):
    """The database is a shard of this map already."""


class ShardNotFoundError(ConflictError):
    """The database is no shard of this map."""


class ShardInUseError(ConflictError):
    """A shard map or shard still holds what must be gone first."""


class MappingExistsError(ConflictError):
    """Some of these keys are mapped already."""


class MappingNotFoundError(ConflictError):
    """No mapping holds this key."""


class MappingLockedError(ConflictError):
    """Another token holds the lock of the mapping."""


class StaleMappingError(ConflictError):
    """The mapping was changed since it was read."""


class SchemaMismatchError(ConflictError):
    """Shards answer with different columns, or differ from the schema that they should have."""


class UnavailableError(PartitaError):
    """Nothing is wrong with the request; later it may work."""

    retry = Retry.LATER


class StoreBusyError(UnavailableError):
    """The store is overloaded or stopping."""


class StoreLockedError(UnavailableError):
    """Another process holds the store."""


class StoreFullError(UnavailableError):
    """The disk is full: reads and deletes go on, other writes wait for space."""


class StoreStoppedError(UnavailableError):
    """A sync failed: nothing more is acknowledged until a restart has recovered from disk."""


class LockTimeoutError(UnavailableError, TimeoutError):
    """A lock was not granted in time; `holder` names the transaction that has it."""

    holder: str
    collection: str
    key: object
    waited: float

    @classmethod
    def of(cls, holder: str, collection: str, key: object, waited: float) -> "LockTimeoutError":
        """Name who holds what, and how long the wait was."""
        error = cls(
            "LockTimeout",
            f"Transaction {holder} held the lock for the {waited:.3g} s that this one waited.",
            facts={"holder": holder, "collection": collection, "key": key, "waited": waited},
            hint="Try the whole transaction again: state.run() does it, with a growing delay.",
        )
        error.holder, error.collection, error.key, error.waited = holder, collection, key, waited
        return error


class DeadlockError(LockTimeoutError):
    """Waiting would have closed a circle of transactions that wait for each other."""

    @classmethod
    def of(cls, holder: str, collection: str, key: object, waited: float) -> "DeadlockError":
        """Name the next transaction of the circle."""
        error = cls(
            "Deadlock",
            f"Transaction {holder} holds the lock and waits for this one.",
            facts={"holder": holder, "collection": collection, "key": key, "waited": waited},
            hint="Try the whole transaction again: state.run() does it. Lock keys in one order, "
            "or read what you will write with LockMode.UPDATE, and it will not happen.",
        )
        error.holder, error.collection, error.key, error.waited = holder, collection, key, waited
        return error


class NotPrimaryError(UnavailableError):
    """This replica may not write; `primary` says which may, if that is known."""

    primary: str = ""


class NotReadableError(UnavailableError):
    """This replica cannot answer yet: it has not read as far as was asked for."""


class StateClosedError(UnavailableError):
    """The state was closed, or is being closed."""


class QuorumLostError(UnavailableError):
    """Too few nodes of the log answer: nothing can be committed, and nothing is guessed."""


class InDoubtError(UnavailableError):
    """The answer to a commit was lost; `transaction_id` may or may not be in the log."""

    transaction_id: str = ""


class TransactionAbortedError(UnavailableError):
    """The system ended the transaction: the replica's role changed under it."""


class NotDurableError(UnavailableError):
    """The log acknowledges before it syncs: nothing that it says would be durable."""


class MappingOfflineError(UnavailableError):
    """The mapping is offline: its shardlet is being moved, or somebody took it off."""


class ShardOfflineError(UnavailableError):
    """The shard cannot be reached."""


class OperationPendingError(UnavailableError):
    """Another change of the catalog is under way."""


class ShardError(UnavailableError):
    """One shard failed in a fan-out; `cause` says how."""

    shard: object = None
    cause: BaseException | None = None


class IndexNotReadableError(UnavailableError):
    """The index is still being built, or was disabled: reading it would miss entities."""


class ThrottledError(UnavailableError):
    """The service answered that it is busy, and went on doing so; `retry_after` is its advice."""

    retry_after: float = 0.0


class TornReadError(UnavailableError):
    """The rows of a wide entity kept changing while they were read."""


class DamageError(PartitaError):
    """What is stored is not what was written: stop."""


class SealBrokenError(DamageError):
    """A sealed value was changed, or carried to another entity or property."""


class ChecksumError(DamageError):
    """Stored bytes do not match their checksum."""


class FormatVersionError(DamageError):
    """The files were written by another version of Partita."""


class ChainBrokenError(DamageError):
    """A record does not continue the one before it: the log was cut, mixed or changed."""


class CatalogMismatchError(DamageError):
    """The global and a local catalog disagree, and no operation explains it."""
