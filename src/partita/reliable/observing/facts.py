"""What an observer reports about a state: values that JSON can hold.

Times are RFC 3339 text in UTC, ages are seconds. A page is bounded by the limits below, whatever
the state holds.
"""

import msgspec

ROWS_PER_PAGE_MAX = 1_000
"""Rows of one page."""
ROW_PAGE_BYTES_MAX = 1024 * 1024
"""Encoded bytes of the rows of one page; a page has at least one row."""
ROW_BYTES_MAX = 64 * 1024
"""A row with more encoded bytes is reported without its value."""
LOCKS_PER_PAGE_MAX = 500
"""Locked keys in one report; those that are waited for come first."""
WAITERS_PER_LOCK_MAX = 20
"""Holders and waiters that are reported of one lock."""
KEY_CHARACTERS_MAX = 200
"""Characters of a locked key that are reported."""


class IndexFacts(msgspec.Struct, frozen=True):
    """An index of a dictionary; find() waits until it is ready."""

    name: str
    is_ready: bool
    count: int
    bytes: int | None = None


class CollectionFacts(msgspec.Struct, frozen=True):
    """One collection; `bytes` are those of its encoded keys and values, if they were counted."""

    name: str
    kind: str
    """dictionary, queue or concurrent_queue."""
    key: str
    value: str
    written_version: int
    count: int
    bytes: int | None
    indexes: list[IndexFacts]


class RowFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row; see `plain_rows` for the form of key and value."""

    key: object
    value: object = None
    version: int = 0
    bytes: int = 0
    is_cut: bool = False
    """Whether the value is left out because it is too large."""
    is_unreadable: bool = False
    """Whether the bytes cannot be decoded; run `partita state verify`."""
    expires: str | None = None
    visible_from: str | None = None
    deliveries: int | None = None


class RowPage(msgspec.Struct, frozen=True):
    """Rows in the order of their keys, as of one sequence."""

    collection: str
    sequence: int
    rows: list[RowFacts]
    next: str | None
    """Where the next page begins: pass it as `after`; None after the last page."""


class LockOwnerFacts(msgspec.Struct, frozen=True):
    """A transaction that holds a lock or waits for it."""

    transaction: str
    mode: str
    """shared, update or exclusive."""
    age_seconds: float | None
    """How long the transaction has been open; None if that is not known."""
    waited_seconds: float | None = None
    """How long it has waited for this lock; None for a holder."""
    origin: str = ""
    """Where the program opened the transaction, as file:line."""


class LockFacts(msgspec.Struct, frozen=True):
    """One locked key."""

    collection: str
    key: object
    """None for a whole collection."""
    holders: list[LockOwnerFacts]
    waiters: list[LockOwnerFacts]
    """The next one first."""


class LockReport(msgspec.Struct, frozen=True):
    """Locks of the primary; those that are waited for come first."""

    replica: str
    locks: list[LockFacts]
    count: int
    """All locked keys, including those that are not listed."""
    transactions: int
    """Open transactions."""
    waiting: int
    """Requests that wait for a lock."""


class LeaseFacts(msgspec.Struct, frozen=True):
    """Which replica holds the lease: the primary, or the one that will be."""

    replica: str
    address: str


class ReplicaFacts(msgspec.Struct, frozen=True):
    """One running replica."""

    replica: str
    address: str
    role: str
    """primary or secondary."""
    applied: int
    """The last sequence that it has applied."""
    lag: int
    """Records of the log that it has not applied."""
    epoch: int | None
    checkpoint: int
    """The sequence of its own newest checkpoint; 0 without one."""
    version: str | None
    """The version of Partita; None if the replica does not report it."""
    schemas: dict[str, int]
    """The newest schema version of each open collection that it can read."""
    is_placed: bool
    """Whether a service decides which replica is primary."""


class NodeFacts(msgspec.Struct, frozen=True):
    """A NATS node that stores the log."""

    name: str
    is_leader: bool
    is_current: bool
    is_offline: bool
    lag: int


class LogFacts(msgspec.Struct, frozen=True):
    """Records from `first` to `last`; none if `last` is below `first`."""

    first: int
    last: int
    bytes: int | None
    """None on a replica, whose log is on NATS."""
    segments: int | None = None
    """Files of the log; None on NATS."""


class CheckpointFacts(msgspec.Struct, frozen=True):
    """The checkpoint that a replica without one starts from."""

    sequence: int
    bytes: int
    written: str | None
    """When its newest record was committed."""
    stored_at: str | None = None
    age_seconds: float | None = None


class BackupFacts(msgspec.Struct, frozen=True):
    """The newest backup that was taken by a replica."""

    sequence: int
    kind: str
    made_at: str | None
    age_seconds: float
    address: str = ""


class StateFacts(msgspec.Struct, frozen=True):
    """The state of a partition, or of a folder, for which most of this is empty."""

    where: str
    kind: str
    """folder, nats or open (in this process)."""
    partition: str | None
    sequence: int
    """The last record of the log."""
    epoch: int
    last_commit: str | None
    lease: LeaseFacts | None
    replicas: list[ReplicaFacts]
    nodes: list[NodeFacts]
    log: LogFacts | None
    checkpoint: CheckpointFacts | None
    backup: BackupFacts | None
    notes: list[str]

    @property
    def primary(self) -> ReplicaFacts | None:
        """The replica that says that it is primary and holds the lease."""
        held = None if self.lease is None else self.lease.replica
        found = (each for each in self.replicas if each.role == "primary")
        return next((each for each in found if self.lease is None or each.replica == held), None)
