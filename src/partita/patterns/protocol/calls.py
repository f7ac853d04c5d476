"""The calls that the core can make to tables, queues, blobs and the clock, as values.

The core does no I/O: it is written as generators ("steps") that yield a call and receive its
answer. The asynchronous and the synchronous API drive the same steps and have a port perform the
calls (`aio_port`, `sync_port`, `direct_port`). Whatever the port raises is raised inside the
steps: errors of `partita.errors` only.
"""

import enum
from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from partita.patterns.protocol.values import Row, RowKey, measure

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Steps = Generator["Call[Any]", Any, T]
"""A generator that needs I/O: drive it to get a T."""


class Call(msgspec.Struct, Generic[T_co], frozen=True):
    """One call to be performed by a port; its answer is a T."""


def ask(call: Call[T]) -> Steps[T]:
    """Have a call performed and return its answer, typed as the call declares it."""
    answer: T = yield call
    return answer


# ---------------------------------------------------------------------------------------------
# Tables


class GetRow(Call[Row | None], frozen=True):
    """A point query; None if the row does not exist. A missing table raises TableNotFoundError."""

    table: str
    key: RowKey
    select: tuple[str, ...] | None = None


class Continuation(msgspec.Struct, frozen=True):
    """Where the next page starts, as the service returned it; the row key may be absent."""

    partition: str
    row: str | None = None


class RowPage(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    continuation: Continuation | None = None


class QueryRows(Call[RowPage], frozen=True):
    """Request one page; a short or empty page may still have a continuation."""

    table: str
    filter: str = ""
    select: tuple[str, ...] | None = None
    size: int | None = None
    """The maximum number of rows per page; the service returns at most 1,000."""
    continuation: Continuation | None = None


class Verb(enum.Enum):
    """The kinds of row operations in a group."""

    INSERT = "insert"
    REPLACE = "replace"
    MERGE = "merge"
    UPSERT_REPLACE = "upsert-replace"
    UPSERT_MERGE = "upsert-merge"
    DELETE = "delete"


class RowOperation(msgspec.Struct, frozen=True):
    """One change of one row; replace, merge and delete require `etag` ("*" matches any)."""

    verb: Verb
    row: Row
    etag: str = "*"

    @property
    def sent(self) -> Row:
        """The row that is sent: of a delete only the keys."""
        return Row(self.row.key, {}) if self.verb is Verb.DELETE else self.row


class WriteRows(Call[tuple[str, ...]], frozen=True):
    """One entity group transaction, or a plain request for a single operation.

    Returns the new etags in order, "" for deletes. A rejected group raises EntityExistsError,
    EntityNotFoundError, ETagMismatchError or the error of the service, with the position of the
    failed operation in `facts["index"]`; nothing is changed in that case.
    """

    table: str
    operations: tuple[RowOperation, ...]


class CreateTable(Call[bool], frozen=True):
    """True if the table was created, False if it existed."""

    table: str


class DeleteTable(Call[bool], frozen=True):
    """True if the table existed. A table that is being deleted counts as missing."""

    table: str


class ListTables(Call[tuple[str, ...]], frozen=True):
    """The names of the tables that begin with `prefix`."""

    prefix: str = ""


class TablePolicy(msgspec.Struct, frozen=True):
    """A stored access policy of a table: what tokens that name it permit, and until when.

    A term that is left out must be in the token.
    """

    permissions: str = ""
    """Letters of `raud`: read, add, update, delete."""
    expires: datetime | None = None
    start: datetime | None = None


class GetPolicies(Call[dict[str, TablePolicy]], frozen=True):
    table: str


class SetPolicies(Call[bool], frozen=True):
    """Replace all policies of a table."""

    table: str
    policies: dict[str, TablePolicy]


# ---------------------------------------------------------------------------------------------
# Queues


class Message(msgspec.Struct, frozen=True):
    id: str
    receipt: str
    text: str
    dequeue_count: int


class CreateQueue(Call[bool], frozen=True):
    queue: str


class PutMessage(Call[None], frozen=True):
    """Put a message that never expires; it becomes visible after `delay` seconds."""

    queue: str
    text: str
    delay: float = 0


class ReceiveMessages(Call[tuple[Message, ...]], frozen=True):
    """Claim up to `count` messages (at most 32) for `visibility` seconds."""

    queue: str
    count: int = 1
    visibility: float = 30


class PeekMessages(Call[tuple[Message, ...]], frozen=True):
    """Read up to 32 messages without claiming them; their receipts are empty."""

    queue: str


class CountMessages(Call[int | None], frozen=True):
    """The approximate number of messages, claimed ones included; None if there is no queue."""

    queue: str


class RenewMessage(Call[Message | None], frozen=True):
    """Extend the claim of a message; None if the claim has expired."""

    queue: str
    message: Message
    visibility: float = 30


class DeleteMessage(Call[bool], frozen=True):
    """False if the claim has expired or the message does not exist any more."""

    queue: str
    message: Message


# ---------------------------------------------------------------------------------------------
# Blobs


class Blob(msgspec.Struct, frozen=True):
    content: bytes
    etag: str
    metadata: dict[str, str]


class ListedBlob(msgspec.Struct, frozen=True):
    name: str
    etag: str
    length: int
    modified: datetime
    metadata: dict[str, str]


class BlobPage(msgspec.Struct, frozen=True):
    blobs: tuple[ListedBlob, ...]
    continuation: str = ""


class CreateContainer(Call[bool], frozen=True):
    container: str


class PutBlob(Call[str | None], frozen=True):
    """Write a whole block blob and return its etag; None if the condition was not met.

    `etag`: None for no condition, "" to create only, otherwise the version to overwrite.
    """

    container: str
    name: str
    content: bytes
    metadata: dict[str, str] = {}
    etag: str | None = None


class GetBlob(Call[Blob | None], frozen=True):
    """Read a blob, or `length` bytes of it from `offset` on."""

    container: str
    name: str
    offset: int = 0
    length: int | None = None


class AppendBlob(Call[int | None], frozen=True):
    """Append one block durably and return the new length; `position` 0 creates the blob.

    None if `position` is not the end of the blob (or, for 0, the blob exists): another writer
    appended, or this call was performed before. `metadata` is set when the blob is created.
    """

    container: str
    name: str
    content: bytes
    position: int
    metadata: dict[str, str] = {}


class SetBlobMetadata(Call[bool], frozen=True):
    container: str
    name: str
    metadata: dict[str, str]


class DeleteBlob(Call[bool], frozen=True):
    """False if the blob does not exist or its etag differs from the given one."""

    container: str
    name: str
    etag: str | None = None


class ListBlobs(Call[BlobPage], frozen=True):
    """One page of blobs, ordered by name."""

    container: str
    prefix: str = ""
    continuation: str = ""


# ---------------------------------------------------------------------------------------------
# Time, concurrency and functions of the user


class Sleep(Call[None], frozen=True):
    seconds: float


class Parallel(Call[tuple[Any, ...]], frozen=True):
    """Run several steps concurrently, at most `limit` at once; the first error cancels the rest."""

    steps: tuple[Steps[Any], ...]
    limit: int = 8


class Beside(Call[Any], frozen=True):
    """Run `steps` for their answer, and `background` concurrently until they end.

    The background is then cancelled; its errors are ignored.
    """

    steps: Steps[Any]
    background: Steps[Any]


class Invoke(Call[Any], frozen=True):
    """Call a function of the user; the asynchronous API awaits an awaitable result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class Cost(msgspec.Struct):
    """The work of the services: requests sent, rows transferred, bytes of their values."""

    requests: int = 0
    entities: int = 0
    bytes: int = 0

    def count(self, rows: Iterable[Row]) -> None:
        """Add rows that were sent or received."""
        for row in rows:
            self.entities += 1
            self.bytes += measure(row)

    def add(self, other: "Cost") -> None:
        self.requests += other.requests
        self.entities += other.entities
        self.bytes += other.bytes

    def copy(self) -> "Cost":
        return Cost(self.requests, self.entities, self.bytes)
