"""Outbox entries: what is still to be done elsewhere after a group was committed.

    row key     ~o_<19 digits of ticks>_<16 hex digits>
    properties  EntityType "~outbox", Entry0, Entry1, ... (JSON, cut)

An entry is written in the group of the change that it belongs to, and removed when its work is
done. It names what may be out of date, never what to write there: a worker looks at the entity
as it is then (`worker.py`), so that doing an entry twice, late or out of order does no harm.
"""

import contextlib

import msgspec

from partita.clock import Clock
from partita.errors import DamageError, EntityNotFoundError
from partita.patterns.calls import RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.chunks import cut, join
from partita.patterns.context import OutboxReference
from partita.patterns.foreign_json import decode
from partita.patterns.layout import HIDDEN_MARK
from partita.patterns.values import Row, RowKey, Value

OUTBOX_PREFIX = HIDDEN_MARK + "o_"
OUTBOX_END = HIDDEN_MARK + "p"
OUTBOX_TYPE = "~outbox"
TYPE_PROPERTY = "EntityType"
_ENTRY = "Entry"


class Touched(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entity whose followers elsewhere may be out of date."""

    type: str
    partition: str
    row: str
    indexes: dict[str, list[tuple[str, str]]] = {}
    """Keys under which an index may hold it, before and after the change."""
    owners: list[tuple[str, str, str, str | None]] = []
    """Fields derived from it, and where their owners lie: partition key, bounds of row keys."""
    derived: list[str] = []
    """Its own fields that are derived from entities elsewhere, to be derived once more."""
    blobs: list[tuple[str, str]] = []
    """Containers and blobs that it named and may name no longer."""
    views: list[str] = []
    """Views that follow it."""

    @property
    def key(self) -> RowKey:
        return RowKey(self.partition, self.row)

    @property
    def is_idle(self) -> bool:
        return not (self.indexes or self.owners or self.derived or self.blobs or self.views)


class Step(msgspec.Struct, frozen=True):
    """An eventually consistent transaction that was started in the same group."""

    transaction: str
    arguments: str


class Move(msgspec.Struct, frozen=True):
    """An entity that shall lie under other keys."""

    type: str
    source: tuple[str, str]
    target: tuple[str, str]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one group leaves to be done elsewhere."""

    touched: list[Touched] = []
    started: list[Step] = []
    moves: list[Move] = []


def new_key(partition_key: str, clock: Clock) -> RowKey:
    """Return the key of a new entry: entries of a partition sort by time."""
    return RowKey(
        partition_key, f"{OUTBOX_PREFIX}{clock.ticks():019d}_{clock.random_bytes(8).hex()}"
    )


def entry_operation(key: RowKey, entry: Entry) -> RowOperation:
    text = msgspec.json.encode(entry).decode()
    properties: dict[str, Value] = {TYPE_PROPERTY: OUTBOX_TYPE, **cut(_ENTRY, text)}
    return RowOperation(Verb.INSERT, Row(key, properties))


def read_entry(row: Row) -> Entry:
    try:
        return decode(join(_ENTRY, row.properties), Entry)
    except msgspec.DecodeError as error:
        raise DamageError(
            "OutboxDamaged",
            "An outbox entry cannot be read.",
            facts={"partition_key": row.key.partition, "row_key": row.key.row},
        ) from error


def written_at(key: RowKey) -> int:
    """Return the ticks at which an entry was made; 0 if the key does not say."""
    ticks = key.row.removeprefix(OUTBOX_PREFIX).partition("_")[0]
    return int(ticks) if ticks.isdecimal() else 0


def hint(reference: OutboxReference) -> str:
    """Return the text of a message that tells a worker of an entry."""
    return msgspec.json.encode(reference).decode()


def read_hint(text: str) -> OutboxReference:
    """Read a hint; raises msgspec.DecodeError for a message of somebody else."""
    reference = decode(text, OutboxReference)
    if not reference.key.row.startswith(OUTBOX_PREFIX):
        # What is done is deleted: no message may name anything else.
        raise msgspec.DecodeError("The message names a row that is no outbox entry.")
    return reference


def entry_removal(reference: OutboxReference) -> Steps[None]:
    """Remove an entry whose work is done."""
    removal = RowOperation(Verb.DELETE, Row(reference.key, {}))
    with contextlib.suppress(EntityNotFoundError):  # another worker may have done the same
        yield from ask(WriteRows(reference.table, (removal,)))
