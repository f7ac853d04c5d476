"""Reliable collections: transactional dictionaries and queues in your own process.

USERS = Dictionary("users", key=str, value=User)

async with partita.open_state("./state") as state:
    users = await state.open(USERS)
    async with state.transaction() as tx:
        await users.set(tx, "ada", User("ada@example.org"))
"""

from partita.errors import (
    BackupOrderError,
    CollectionMismatchError,
    CollectionNotFoundError,
    DeadlockError,
    InDoubtError,
    KeyExistsError,
    KeyNotFoundError,
    LockTimeoutError,
    MutableTypeError,
    MutatedValueError,
    NotDurableError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    SchemaError,
    StateClosedError,
    TransactionAbortedError,
    TransactionUseError,
    UnavailableError,
    VersionConflictError,
    WriteConflictError,
)
from partita.reliable.collections.change_feed import Change
from partita.reliable.collections.concurrent_queue import Delivery, ReliableConcurrentQueue
from partita.reliable.collections.dictionary import MISSING, ReliableDictionary, Versioned
from partita.reliable.collections.indexes import Index
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.collections.retry import Committed
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.declared import ConcurrentQueue, Dictionary, Queue
from partita.reliable.manager.notices import CollectionNotice, Commit
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_state
from partita.reliable.restoring import restore_state
from partita.reliable.service.requests import RemoteError, Request
from partita.reliable.service.service import Service, open_service
from partita.reliable.state.locks import LockMode
from partita.reliable.values.custom_serializer import Serializer
from partita.reliable.values.limits import Sizes
from partita.reliable.values.schema import Schema, downcast, upcast
from partita.reliable.values.serialization import ValueCodec
from partita.reliable.values.value_shape import IDENTITY
from partita.retrying import RetryPolicy

__all__ = [
    "IDENTITY",
    "MISSING",
    "BackupOrderError",
    "Change",
    "CollectionMismatchError",
    "CollectionNotFoundError",
    "CollectionNotice",
    "Commit",
    "Committed",
    "ConcurrentQueue",
    "DeadlockError",
    "Delivery",
    "Dictionary",
    "InDoubtError",
    "Index",
    "KeyExistsError",
    "KeyNotFoundError",
    "LockMode",
    "LockTimeoutError",
    "MutableTypeError",
    "MutatedValueError",
    "NotDurableError",
    "NotPrimaryError",
    "NotReadableError",
    "Queue",
    "QuorumLostError",
    "ReliableConcurrentQueue",
    "ReliableDictionary",
    "ReliableQueue",
    "RemoteError",
    "Request",
    "RetryPolicy",
    "Schema",
    "SchemaError",
    "Serializer",
    "Service",
    "Sizes",
    "Snapshot",
    "StateClosedError",
    "StateManager",
    "Transaction",
    "TransactionAbortedError",
    "TransactionUseError",
    "UnavailableError",
    "ValueCodec",
    "VersionConflictError",
    "Versioned",
    "WriteConflictError",
    "downcast",
    "open_service",
    "open_state",
    "restore_state",
    "upcast",
]
