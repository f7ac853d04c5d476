"""Everything the typed layer may ask of the world, as values: one sans-I/O core, two faces.

The core is written as generators ("steps") that yield a call and are sent its answer. A port
(`aio_port`, `sync_port`, `direct_port`) performs calls; `run` in each face drives the steps.
A call raises into the steps what the port raises: errors of `partita.errors` only.
"""

import enum
from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from partita.patterns.protocol.values import Row, RowKey

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Steps = Generator["Call[Any]", Any, T]
"""What the core returns for everything that needs the world: drive it to get a T."""


class Call(msgspec.Struct, Generic[T_co], frozen=True):
    """One question to the world, whose answer is a T."""


def ask(call: Call[T]) -> Steps[T]:
    """Put a call to the world; its answer has the type that the call says."""
    answer: T = yield call
    return answer


# ---------------------------------------------------------------------------------------------
# Tables


class GetRow(Call[Row | None], frozen=True):
    """A point query. None: no such entity. A missing table raises TableNotFoundError."""

    table: str
    key: RowKey
    select: tuple[str, ...] | None = None


class Continuation(msgspec.Struct, frozen=True):
    """Where the next page starts, as the service names it; a row key may be absent."""

    partition: str
    row: str | None = None


class RowPage(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    continuation: Continuation | None = None


class QueryRows(Call[RowPage], frozen=True):
    """One request for one page; the page may be short or empty and still have a continuation."""

    table: str
    filter: str = ""
    select: tuple[str, ...] | None = None
    size: int | None = None
    """The most rows a page may have; the service gives 1,000 at most."""
    continuation: Continuation | None = None


class Verb(enum.Enum):
    """What a group does to one row."""

    INSERT = "insert"
    REPLACE = "replace"
    MERGE = "merge"
    UPSERT_REPLACE = "upsert-replace"
    UPSERT_MERGE = "upsert-merge"
    DELETE = "delete"


class RowOperation(msgspec.Struct, frozen=True):
    """One change of one row. `etag` is the condition of replace, merge and delete: "*" is none."""

    verb: Verb
    row: Row
    etag: str = "*"


class WriteRows(Call[tuple[str, ...]], frozen=True):
    """One entity group transaction, or a plain request if it is one operation.

    Answers the new etags in order, "" for deletes. A refusal raises EntityExistsError,
    EntityNotFoundError, ETagMismatchError or what the service said, with the failing place in
    `facts["index"]`; nothing was changed then.
    """

    table: str
    operations: tuple[RowOperation, ...]


class CreateTable(Call[bool], frozen=True):
    """True if it was made now, False if it was there."""

    table: str


class DeleteTable(Call[bool], frozen=True):
    """True if it was there. A name that is being deleted counts as gone."""

    table: str


class ListTables(Call[tuple[str, ...]], frozen=True):
    """The names that begin with `prefix`."""

    prefix: str = ""


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
    """Put a message that never expires; it is seen after `delay` seconds."""

    queue: str
    text: str
    delay: float = 0


class ReceiveMessages(Call[tuple[Message, ...]], frozen=True):
    """Claim up to `count` (32 at most) messages for `visibility` seconds."""

    queue: str
    count: int = 1
    visibility: float = 30


class PeekMessages(Call[tuple[Message, ...]], frozen=True):
    """Look at up to 32 messages and claim none; their receipts are empty."""

    queue: str


class CountMessages(Call[int | None], frozen=True):
    """How many messages there are, about; claimed ones count. None: no such queue."""

    queue: str


class RenewMessage(Call[Message | None], frozen=True):
    """Claim a message for longer. None: it is not ours any more."""

    queue: str
    message: Message
    visibility: float = 30


class DeleteMessage(Call[bool], frozen=True):
    """False: it is not ours any more, or gone."""

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
    """Write a block blob whole and answer its etag; None if the condition did not hold.

    `etag`: None no condition, "" only if there is none, else only over that version.
    """

    container: str
    name: str
    content: bytes
    metadata: dict[str, str] = {}
    etag: str | None = None


class GetBlob(Call[Blob | None], frozen=True):
    container: str
    name: str


class AppendBlob(Call[int | None], frozen=True):
    """Append one block durably, making the blob if `position` is 0, and answer the new length.

    None: `position` is not the end of the blob (or it exists already, for 0): somebody else
    wrote, or this very call was performed before. `metadata` is set when the blob is made.
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
    """False: it was not there, or has another etag than the one given."""

    container: str
    name: str
    etag: str | None = None


class ListBlobs(Call[BlobPage], frozen=True):
    """One page of blobs in the order of their names."""

    container: str
    prefix: str = ""
    continuation: str = ""


# ---------------------------------------------------------------------------------------------
# The rest of the world


class Sleep(Call[None], frozen=True):
    seconds: float


class Parallel(Call[tuple[Any, ...]], frozen=True):
    """Drive several steps at once, at most `limit`; the first error cancels the rest."""

    steps: tuple[Steps[Any], ...]
    limit: int = 8


class Beside(Call[Any], frozen=True):
    """Drive `steps` for their answer, and `background` beside them until they end.

    The background is then stopped wherever it is; its errors are nobody's.
    """

    steps: Steps[Any]
    background: Steps[Any]


class Invoke(Call[Any], frozen=True):
    """Call a function of the user; the asynchronous face awaits what it returns, if it can be."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class Cost(msgspec.Struct):
    """What was asked of the services: requests sent, rows carried, bytes of their values."""

    requests: int = 0
    entities: int = 0
    bytes: int = 0

    def add(self, other: "Cost") -> None:
        self.requests += other.requests
        self.entities += other.entities
        self.bytes += other.bytes

    def copy(self) -> "Cost":
        return Cost(self.requests, self.entities, self.bytes)
