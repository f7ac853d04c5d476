"""The three services: names, default ports, dialects and limits."""

from collections.abc import Callable

import msgspec

from partita.service.accounts.account import Accounts
from partita.service.accounts.development import PORTS
from partita.service.accounts.respond import Service
from partita.service.blobs.service import BlobService
from partita.service.http.message_bytes import (
    BLOB_DIALECT,
    QUEUE_DIALECT,
    STREAMING_LIMITS,
    TABLE_DIALECT,
    Dialect,
    HttpLimits,
)
from partita.service.queues.service import QueueService
from partita.service.tables.service import TableService
from partita.ticks import Clock


class ServiceKind(msgspec.Struct, frozen=True):
    """How a service is built and served."""

    name: str
    """The plural of its resource: blobs, queues or tables."""
    port: int
    """The default port of clients."""
    build: Callable[[Accounts, Clock], Service]
    dialect: Dialect
    limits: HttpLimits = HttpLimits()


BLOBS = ServiceKind("blobs", PORTS["blobs"], BlobService, BLOB_DIALECT, STREAMING_LIMITS)
QUEUES = ServiceKind(
    "queues", PORTS["queues"], lambda _accounts, _clock: QueueService(), QUEUE_DIALECT
)
TABLES = ServiceKind("tables", PORTS["tables"], TableService, TABLE_DIALECT)

KINDS = (BLOBS, QUEUES, TABLES)
