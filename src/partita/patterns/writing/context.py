"""What the core needs to know besides the answers to its calls.

One `Context` belongs to one open database. Its only moving parts: which indexes may be read,
and which outbox entries this process wrote and has not seen done.
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
from partita.queues.limits import VISIBILITY_SECONDS_MAX
from partita.queues.names import check_queue_name
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.patterns.types.table_series import TableSeries

Scans = Literal["refuse", "warn", "allow"]

PENDING_MAX = 10_000
"""Own outbox entries that a process keeps in mind; a sweep finds the others."""


class IndexState(enum.Enum):
    """The life of an index."""

    WRITE_ONLY = "write-only"
    """It follows every change, but may lack entities that were stored before it was declared."""
    READABLE = "readable"
    DISABLED = "disabled"
    """It follows nothing; its rows may be removed."""


class Options(msgspec.Struct, frozen=True):
    """How the database behaves; `connect` takes each of these by name."""

    queues: tuple[str, ...] = ("partita-outbox",)
    """Hints to workers; a partition always uses the same one."""
    poison_queue: str = "partita-poison"
    attempts_max: int = 30
    """How often a change is tried again that met another writer on an index or counter."""
    visibility: float = 30.0
    """Seconds for which a worker claims a message; it renews the claim while it works."""
    deliveries_max: int = 5
    """How often a message may be tried before it counts as poison."""
    blob_grace: float = 3600.0
    """Seconds for which a blob that no entity names is left alone."""
    accepts_unsealed: bool = False
    """Read encrypted fields that lie in the clear: those stored before they were declared so."""
    parallel: int = 8
    """Requests at once, for one call that needs several."""
    scans: Scans = "refuse"
    """What becomes of a query that reads a whole table and does not say `allow_scan()`."""

    def __post_init__(self) -> None:
        if self.scans not in get_args(Scans):
            raise UsageError(
                "UnknownOption",
                f"scans={self.scans!r} is none of {', '.join(get_args(Scans))}.",
                hint="Leave it out: scans are refused then.",
            )
        _check_several(self.queues)
        for name in self.queues:
            _check_queue("queues", name)
        _check_queue("poison_queue", self.poison_queue)
        if not 0 < self.visibility <= VISIBILITY_SECONDS_MAX:
            raise _refused(
                "visibility",
                f"is a number of seconds, {VISIBILITY_SECONDS_MAX:,} at most",
                "The claim is renewed while the work goes on: leave it at 30.",
            )
        for option in ("deliveries_max", "attempts_max", "parallel"):
            if getattr(self, option) < 1:
                raise _refused(option, "is at least 1", "Leave it out.")


def _check_several(queues: object) -> None:
    if isinstance(queues, str) or not queues:
        # A text would be taken for one queue a letter.
        raise _refused("queues", "is a tuple of names", 'Say queues=("work-a", "work-b").')


def _check_queue(option: str, name: str) -> None:
    try:
        check_queue_name(name)
    except UsageError as error:
        hint = "3 to 63 lower-case letters, digits and single hyphens between them."
        raise _refused(option, f"cannot be {name!r}: it is no name of a queue", hint) from error


def _refused(option: str, what: str, hint: str) -> UsageError:
    return UsageError(
        "OptionRefused", f"The option {option} {what}.", facts={"option": option}, hint=hint
    )


class OutboxReference(msgspec.Struct, frozen=True):
    """Where an outbox entry lies: what a hint says."""

    table: str
    key: RowKey


class Context:
    """The clock, the keys, the types and the states of one open database."""

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
        """The types in use, by name; filled by `know`."""
        self.states: dict[tuple[str, str], IndexState] = {}
        """The states of indexes as last read, by the names of type and index."""
        self.transactions: dict[str, object] = {}
        """Eventually consistent transactions that a worker of this database can run."""
        self.series: dict[str, dict[TableSeries, str]] = {}
        """The series of tables in which types are kept by period, by the names of the types.

        With each goes the field that tells the period.
        """
        self.face: object = None
        """The database as users see it: what their own functions are given."""
        self.pending: dict[OutboxReference, None] = {}
        """Outbox entries that this process wrote and has not seen done, oldest first."""
        self._remembering = threading.Lock()  # threads of the synchronous face share a context

    def know(self, model: EntityType[Any]) -> None:
        """Remember a type, and those that depend on it or that it depends on."""
        known = self.models.get(model.name)
        if known is model:
            return
        if known is not None:
            raise UsageError(
                "TypeNameTaken",
                f"Two types of one database are called {model.name!r}.",
                hint="Give one of them another name: @entity(..., name=...).",
            )
        check_apart(model, self.models.values())
        self.models[model.name] = model
        for related in model.related():
            self.know(related)

    def remember(self, reference: OutboxReference) -> None:
        """Keep an outbox entry of this process in mind, for `drain`; the oldest are forgotten.

        Where other processes do the work nobody tells this one that it is done.
        """
        with self._remembering:
            self.pending[reference] = None
            if len(self.pending) > PENDING_MAX:
                del self.pending[next(iter(self.pending))]

    def forget(self, reference: OutboxReference) -> None:
        """Put an entry out of mind that is done."""
        with self._remembering:
            self.pending.pop(reference, None)

    def state_of(self, index: AnyIndex) -> IndexState:
        return self.states.get((index.owner.name, index.name), IndexState.WRITE_ONLY)

    def live_indexes(self, model: EntityType[Any]) -> list[AnyIndex]:
        """Return the indexes that follow changes of a type."""
        return [
            index
            for index in model.all_indexes()
            if self.state_of(index) is not IndexState.DISABLED
        ]

    def is_followed(self, model: EntityType[Any]) -> bool:
        """Tell whether something elsewhere follows changes of a type."""
        return any(not index.is_local for index in self.live_indexes(model)) or bool(
            model.all_views()
        )

    def queue_of(self, partition_key: str) -> str:
        queues = self.options.queues
        return queues[sum(partition_key.encode()) % len(queues)]
