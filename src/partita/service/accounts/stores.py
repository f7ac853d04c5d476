"""The stores that an account is built from, and what they have in common."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from partita.blobs.store.contract import BlobStore
from partita.metrics.store_meter import StoreMeter
from partita.queues.store import QueueStore
from partita.tables.store import TableStore


class Backing(Protocol):
    """The database behind the stores of an account; several accounts may share it."""

    on_failure: Callable[[BaseException], None] | None
    """Called once if it failed in a way that only a restart of the process resolves."""
    meter: StoreMeter

    @property
    def why_not_ready(self) -> str:
        """Why requests cannot be served now, as a sentence; empty if they can."""
        ...


class Stores(msgspec.Struct, frozen=True):
    """The stores of one account. Closing them leaves a shared backing open."""

    tables: TableStore
    queues: QueueStore
    blobs: BlobStore
    backing: Backing
