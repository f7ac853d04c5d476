"""Reliable collections: transactional dictionaries and queues in your own process.

async with partita.open_state("./state") as state:
    users = await state.dictionary("users", key=str, value=User)
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
)
from partita.reliable.concurrent_queue import Delivery, ReliableConcurrentQueue
from partita.reliable.dictionary import MISSING, ReliableDictionary
from partita.reliable.indexes import Index
from partita.reliable.locks import LockMode
from partita.reliable.notifications import Change
from partita.reliable.opening import open_state
from partita.reliable.partitions import Service, open_service
from partita.reliable.queue import ReliableQueue
from partita.reliable.requests import RemoteError, Request
from partita.reliable.restoring import restore_state
from partita.reliable.retry import Committed
from partita.reliable.schema import Schema, downcast, upcast
from partita.reliable.serialization import ValueCodec
from partita.reliable.snapshot import Snapshot
from partita.reliable.state_manager import StateManager
from partita.reliable.transaction import Transaction
from partita.reliable.value_shape import IDENTITY

__all__ = [
    "IDENTITY",
    "MISSING",
    "BackupOrderError",
    "Change",
    "CollectionMismatchError",
    "CollectionNotFoundError",
    "Committed",
    "DeadlockError",
    "Delivery",
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
    "QuorumLostError",
    "ReliableConcurrentQueue",
    "ReliableDictionary",
    "ReliableQueue",
    "RemoteError",
    "Request",
    "Schema",
    "SchemaError",
    "Service",
    "Snapshot",
    "StateClosedError",
    "StateManager",
    "Transaction",
    "TransactionAbortedError",
    "TransactionUseError",
    "UnavailableError",
    "ValueCodec",
    "downcast",
    "open_service",
    "open_state",
    "restore_state",
    "upcast",
]
