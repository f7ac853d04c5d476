"""The state of one open database that the core needs.

Only three parts of a `Context` change: the states of indexes, the outbox entries that this
process wrote and whose work is not known to be done, and the counters of work.
"""

import enum
import threading
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from partita.errors import UsageError
from partita.patterns.encryption.keyring import Keyring, check_keyring
from partita.patterns.protocol.capabilities import Capabilities
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, check_apart
from partita.patterns.writing.rows import Sealing
from partita.patterns.writing.work_meter import WorkMeter
from partita.queues.limits import VISIBILITY_SECONDS_MAX
from partita.queues.names import check_queue_name
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.patterns.types.table_series import TableSeries

Scans = Literal["refuse", "warn", "allow"]

PENDING_MAX = 10_000
"""The most outbox entries of its own that a process remembers; a sweep finds the others."""


class IndexState(enum.Enum):
    """Whether an index is written and read."""

    WRITE_ONLY = "write-only"
    """Every change is written to it, but older entities may be missing."""
    READABLE = "readable"
    DISABLED = "disabled"
    """It is not written; its rows may be removed."""


class Options(msgspec.Struct, frozen=True):
    """The options of a database; `connect` takes each by name."""

    queues: tuple[str, ...] = ("partita-outbox",)
    """The queues of hints to workers; a partition always uses the same one."""
    poison_queue: str = "partita-poison"
    attempts_max: int = 30
    """How often a write is attempted that conflicts on an index or counter."""
    visibility: float = 30.0
    """Seconds for which a worker claims a message; it renews the claim while it works."""
    deliveries_max: int = 5
    """How often a message is delivered before it is treated as poison."""
    blob_grace: float = 3600.0
    """Seconds for which a blob without an entity is kept."""
    accepts_unsealed: bool = False
    """Read encrypted fields that are stored unsealed, from before they were declared encrypted."""
    parallel: int = 8
    """The number of parallel requests of one call."""
    scans: Scans = "refuse"
    """What happens to a query that reads a whole table without `allow_scan()`."""

    def __post_init__(self) -> None:
        if self.scans not in get_args(Scans):
            raise UsageError(
                "UnknownOption",
                f"scans={self.scans!r} is not one of {', '.join(get_args(Scans))}.",
                hint="Leave it out to refuse scans.",
            )
        _check_several(self.queues)
        for name in self.queues:
            _check_queue("queues", name)
        _check_queue("poison_queue", self.poison_queue)
        if not 0 < self.visibility <= VISIBILITY_SECONDS_MAX:
            raise _refused(
                "visibility",
                f"must be more than 0 and at most {VISIBILITY_SECONDS_MAX:,} seconds",
                "Leave it at 30: the claim is renewed while the worker runs.",
            )
        for option in ("deliveries_max", "attempts_max", "parallel"):
            if getattr(self, option) < 1:
                raise _refused(option, "must be at least 1", "Leave it out.")


def _check_several(queues: object) -> None:
    if isinstance(queues, str) or not queues:
        # A string would be taken for one queue per letter.
        raise _refused("queues", "must be a tuple of names", 'Use queues=("work-a", "work-b").')


def _check_queue(option: str, name: str) -> None:
    try:
        check_queue_name(name)
    except UsageError as error:
        hint = "Use 3 to 63 lower-case letters, digits and single hyphens between them."
        raise _refused(option, f"has {name!r}, which is not a valid queue name", hint) from error


def _refused(option: str, what: str, hint: str) -> UsageError:
    return UsageError(
        "OptionRefused", f"The option {option} {what}.", facts={"option": option}, hint=hint
    )


class OutboxReference(msgspec.Struct, frozen=True):
    """The table and key of an outbox entry; the content of a hint."""

    table: str
    key: RowKey


class Context:
    """The clock, keyring, types and index states of one open database."""

    def __init__(
        self,
        clock: Clock,
        capabilities: Capabilities,
        *,
        keyring: Keyring | None = None,
        options: Options | None = None,
    ) -> None:
        self.clock = clock
        self.capabilities = capabilities
        self.keyring = keyring
        if keyring is not None:
            check_keyring(keyring)
        self.options = options or Options()
        self.sealing = Sealing(clock, keyring, self.options.accepts_unsealed)
        self.models: dict[str, EntityType[Any]] = {}
        """The types in use, by name; added by `know`."""
        self.states: dict[tuple[str, str], IndexState] = {}
        """The states of indexes as last read, by type name and index name."""
        self.transactions: dict[str, object] = {}
        """Eventually consistent transactions that a worker of this database can run."""
        self.series: dict[str, dict[TableSeries, str]] = {}
        """By type name: the table series that hold the type, with the field that decides the
        period."""
        self.database: object = None
        """The public database object, which is passed to functions of the user."""
        self.pending: dict[OutboxReference, None] = {}
        """Outbox entries that this process wrote and whose work is not known to be done, oldest
        first."""
        self.work = WorkMeter(self.options.queues[0])
        self._remembering = threading.Lock()  # threads of the synchronous API share a context

    def know(self, model: EntityType[Any]) -> None:
        """Register a type and the types related to it."""
        known = self.models.get(model.name)
        if known is model:
            return
        if known is not None:
            raise UsageError(
                "TypeNameTaken",
                f"Two types of one database have the name {model.name!r}.",
                hint="Rename one of them: @entity(..., name=...).",
            )
        check_apart(model, self.models.values())
        self.models[model.name] = model
        for related in model.related():
            self.know(related)

    def remember(self, reference: OutboxReference) -> None:
        """Remember an outbox entry of this process for `drain`; drop the oldest beyond the limit.

        This process does not learn about work that other processes do.
        """
        with self._remembering:
            self.pending[reference] = None
            if len(self.pending) > PENDING_MAX:
                del self.pending[next(iter(self.pending))]

    def forget(self, reference: OutboxReference) -> None:
        """Remove an entry whose work is done."""
        with self._remembering:
            self.pending.pop(reference, None)

    def state_of(self, index: AnyIndex) -> IndexState:
        return self.states.get((index.owner.name, index.name), IndexState.WRITE_ONLY)

    def live_indexes(self, model: EntityType[Any]) -> list[AnyIndex]:
        """Return the indexes of a type that are not disabled."""
        return [
            index
            for index in model.followers.indexes
            if self.state_of(index) is not IndexState.DISABLED
        ]

    def is_followed(self, model: EntityType[Any]) -> bool:
        """Return whether a type has followers outside its partition."""
        return any(not index.is_local for index in self.live_indexes(model)) or bool(
            model.followers.views
        )

    def queue_of(self, partition_key: str) -> str:
        queues = self.options.queues
        return queues[sum(partition_key.encode()) % len(queues)]
