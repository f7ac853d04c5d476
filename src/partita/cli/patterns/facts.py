"""What the verbs of `partita patterns` found or did: values for one JSON line or for text."""

from typing import Any

import msgspec


class IndexFacts(msgspec.Struct, frozen=True):
    """An index, and whether it may be read; no state: nobody has made it yet."""

    type: str
    name: str
    table: str
    partition: str
    row: str
    way: str
    """copy, or the storage of a list."""
    is_unique: bool
    is_local: bool
    """In the entity's own partition, so that it is written in the same group."""
    state: str | None = None


class Created(msgspec.Struct, frozen=True):
    """Tables that were missing."""

    place: str
    tables: list[str]
    indexes: list[IndexFacts]


class Rebuilt(msgspec.Struct, frozen=True):
    type: str
    index: str
    entities: int
    state: str


class Disabled(msgspec.Struct, frozen=True):
    type: str
    index: str
    rows: int


class DriftFacts(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    type: str
    kind: str
    what: str
    table: str
    partition_key: str
    row_key: str


class Verified(msgspec.Struct, frozen=True):
    """What follows entities, compared with them."""

    is_sound: bool
    entities: dict[str, int]
    """Looked at, by type."""
    drifts: list[DriftFacts]
    repaired: int
    left: int
    """What is still wrong after the repair."""


class Collected(msgspec.Struct, frozen=True):
    """Blobs that no entity named, by container."""

    blobs: dict[str, int]


class Rotated(msgspec.Struct, frozen=True):
    """Rows whose keys were wrapped anew, by type."""

    key: str
    rows: dict[str, int]
    periods: dict[str, int]
    """By the names of series of tables."""


class Started(msgspec.Struct, frozen=True):
    """A worker that is at work."""

    place: str
    queues: list[str]
    types: list[str]
    transactions: list[str]
    views: list[str]
    tasks: int
    process: int


class Worked(msgspec.Struct, frozen=True):
    """What was done, and what failed."""

    entries: int
    transactions: int
    failures: int
    poisoned: int
    left: int
    """Entries with something that these modules do not declare: they wait for a newer program."""
    troubles: list[str]
    """The reasons, each once."""

    @property
    def is_clean(self) -> bool:
        return not (self.failures or self.left)


class Forgotten(msgspec.Struct, frozen=True):
    """Outbox entries out of which names were taken that are declared no more."""

    names: list[str]
    entries: int


class OutboxFacts(msgspec.Struct, frozen=True):
    """Outbox entries that wait in a table; None: it was not read."""

    table: str
    entries: int | None
    oldest_seconds: float | None
    unknown: dict[str, int]
    """What entries name and these modules do not declare, and how many entries."""


class QueueFacts(msgspec.Struct, frozen=True):
    """Messages in a queue, about; None: there is no such queue yet."""

    queue: str
    messages: int | None


class Status(msgspec.Struct, frozen=True):
    """How far what follows is behind."""

    place: str
    is_healthy: bool
    indexes: list[IndexFacts]
    outbox: list[OutboxFacts]
    queues: list[QueueFacts]
    poison: QueueFacts | None
    late_seconds: float


class PoisonFacts(msgspec.Struct, frozen=True):
    """Work that failed too often."""

    what: str
    deliveries: int | None
    reason: str


class Poison(msgspec.Struct, frozen=True):
    """The poison queue: the first of its messages, or how many were put back."""

    queue: str
    messages: list[PoisonFacts]
    count: int
    retried: int


class AccessFacts(msgspec.Struct, frozen=True):
    """A declared access pattern and its plan."""

    name: str
    plan: str
    is_refused: bool


class LintFacts(msgspec.Struct, frozen=True):
    code: str
    message: str
    hint: str


class TypeFacts(msgspec.Struct, frozen=True):
    """One entity type as it is declared."""

    name: str
    table: str
    partition: str
    row: str
    version: int
    fields: dict[str, str]
    indexes: list[IndexFacts]
    views: list[str]
    access: list[AccessFacts]
    lints: list[LintFacts]


class LockFacts(msgspec.Struct, frozen=True):
    """The file that says how entities are stored: written, current, outdated, or broken."""

    file: str
    state: str
    differences: list[LintFacts]


class Checked(msgspec.Struct, frozen=True):
    """Definitions, their plans, and the opinions of the guide."""

    is_good: bool
    types: list[TypeFacts]
    transactions: list[str]
    lock: LockFacts | None


class Explained(msgspec.Struct, frozen=True):
    """How a query would be read."""

    type: str
    plan: str
    table: str
    is_refused: bool
    requests: int
    summary: str
    text: str


Facts = (
    Created
    | Rebuilt
    | Disabled
    | Verified
    | Collected
    | Rotated
    | Worked
    | Forgotten
    | Status
    | Poison
    | Checked
    | Explained
)


def exit_status(facts: Facts) -> int:
    """Return 1 for what somebody must look at, else 0."""
    match facts:
        case Verified():
            is_good = facts.is_sound
        case Worked():
            is_good = facts.is_clean
        case Status():
            is_good = facts.is_healthy
        case Poison():
            is_good = not facts.messages
        case Checked():
            is_good = facts.is_good
        case Explained():
            is_good = not facts.is_refused
        case _:
            is_good = True
    return 0 if is_good else 1


def index_facts(index: Any, state: str | None = None) -> IndexFacts:
    storage = getattr(index, "storage", None)
    return IndexFacts(
        type=index.owner.name,
        name=index.name,
        table=index.table,
        partition=index.partition.text,
        row=index.row.text,
        way="copy" if storage is None else storage.value,
        is_unique=bool(getattr(index, "is_unique", False)),
        is_local=index.is_local,
        state=state,
    )
