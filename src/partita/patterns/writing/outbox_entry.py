"""Outbox entries: the work that a committed group leaves for workers.

    row key     ~o_<19 digits of ticks>_<16 hex digits>
    properties  EntityType "~outbox", Entry0, Entry1, ... (JSON, split)

An entry is written in the group of its change, and removed when its work is done. It names what may
be stale, never the values to write: a worker reads the current entity (`worker.py`), so that an
entry can be processed twice, late or out of order.
"""

import contextlib
import enum
from collections.abc import Callable, Collection, Iterator

import msgspec

from partita.errors import ConflictError, DamageError, EntityNotFoundError
from partita.patterns.protocol.calls import RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.split_text import cut, join
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.row_layout import HIDDEN_MARK
from partita.patterns.writing.context import OutboxReference
from partita.ticks import Clock

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
    """The keys that an index may hold for it, before and after the change."""
    owners: list[tuple[str, str, str, str | None]] = []
    """Fields derived from it, and where their owners are: partition key, bounds of row keys."""
    derived: list[str] = []
    """Its own derived fields with sources elsewhere, to be derived again."""
    blobs: list[tuple[str, str]] = []
    """Containers and names of blobs that it may not refer to any more."""
    views: list[str] = []
    """Views to be called for it."""

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
    """An entity that is to be moved to other keys."""

    type: str
    source: tuple[str, str]
    target: tuple[str, str]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The work that one group leaves for workers."""

    touched: list[Touched] = []
    started: list[Step] = []
    moves: list[Move] = []

    @property
    def is_empty(self) -> bool:
        return not (self.touched or self.started or self.moves)


# ---------------------------------------------------------------------------------------------
# Names in an entry


class Kind(enum.Enum):
    """What a name in an entry refers to; the name is `<kind>:<name>`."""

    TYPE = "type"
    INDEX = "index"
    """`index:<type>@<index>`"""
    VIEW = "view"
    """`view:<type>@<view>`"""
    FIELD = "field"
    """`field:<type>.<field>`, a derived one"""
    TRANSACTION = "transaction"

    def name_of(self, text: str) -> str:
        return f"{self.value}:{text}"


def names_in(entry: Entry) -> frozenset[str]:
    """Return the names of everything that a worker must have declared to process an entry."""
    names = {Kind.TYPE.name_of(move.type) for move in entry.moves}
    names |= {Kind.TRANSACTION.name_of(step.transaction) for step in entry.started}
    for touched in entry.touched:
        names |= {Kind.TYPE.name_of(touched.type), *_names_of(touched)}
    return frozenset(names)


def _names_of(touched: Touched) -> Iterator[str]:
    owner = touched.type
    yield from (Kind.INDEX.name_of(f"{owner}@{name}") for name in touched.indexes)
    yield from (Kind.FIELD.name_of(name) for name, *_ in touched.owners)
    yield from (Kind.FIELD.name_of(f"{owner}.{name}") for name in touched.derived)
    yield from (Kind.VIEW.name_of(f"{owner}@{name}") for name in touched.views)


def without(entry: Entry, names: Collection[str]) -> Entry:
    """Return an entry without the work for these names."""
    return _cut_down(entry, lambda name: name not in names, is_rest=True)


def only(entry: Entry, names: Collection[str]) -> Entry:
    """Return an entry with only the work for these names."""
    return _cut_down(entry, lambda name: name in names, is_rest=False)


def joined(one: Entry, other: Entry) -> Entry:
    """Return an entry with the work of two."""
    return Entry(one.touched + other.touched, one.started + other.started, one.moves + other.moves)


def _cut_down(entry: Entry, is_meant: Callable[[str], bool], *, is_rest: bool) -> Entry:
    touched = [
        each
        if not is_rest and is_meant(Kind.TYPE.name_of(each.type))
        else _touched_by(each, is_meant, is_rest=is_rest)
        for each in entry.touched
    ]
    return Entry(
        [each for each in touched if not each.is_idle],
        [each for each in entry.started if is_meant(Kind.TRANSACTION.name_of(each.transaction))],
        [each for each in entry.moves if is_meant(Kind.TYPE.name_of(each.type))],
    )


def _touched_by(touched: Touched, is_meant: Callable[[str], bool], *, is_rest: bool) -> Touched:
    """Return a touched entity with the selected followers; blobs belong to `is_rest`."""
    owner = touched.type
    if is_rest and not is_meant(Kind.TYPE.name_of(owner)):
        return Touched(owner, touched.partition, touched.row)
    return Touched(
        owner,
        touched.partition,
        touched.row,
        indexes={
            name: keys
            for name, keys in touched.indexes.items()
            if is_meant(Kind.INDEX.name_of(f"{owner}@{name}"))
        },
        owners=[each for each in touched.owners if is_meant(Kind.FIELD.name_of(each[0]))],
        derived=[
            name for name in touched.derived if is_meant(Kind.FIELD.name_of(f"{owner}.{name}"))
        ],
        blobs=touched.blobs if is_rest else [],
        views=[name for name in touched.views if is_meant(Kind.VIEW.name_of(f"{owner}@{name}"))],
    )


# ---------------------------------------------------------------------------------------------
# Rows and messages


def new_key(partition_key: str, clock: Clock) -> RowKey:
    """Return the key of a new entry: entries of a partition sort by time."""
    return RowKey(
        partition_key, f"{OUTBOX_PREFIX}{clock.ticks():019d}_{clock.random_bytes(8).hex()}"
    )


def entry_operation(key: RowKey, entry: Entry) -> RowOperation:
    return RowOperation(Verb.INSERT, Row(key, _properties_of(entry)))


def _properties_of(entry: Entry) -> dict[str, Value]:
    text = msgspec.json.encode(entry).decode()
    return {TYPE_PROPERTY: OUTBOX_TYPE, **cut(_ENTRY, text)}


def read_entry(row: Row) -> Entry:
    try:
        return decode(join(_ENTRY, row.properties), Entry)
    except msgspec.DecodeError as error:
        raise DamageError(
            "OutboxDamaged",
            "An outbox entry cannot be read.",
            facts=row.key.facts,
        ) from error


def written_at(key: RowKey) -> int:
    """Return the ticks at which an entry was written; 0 if the key does not have them."""
    ticks = key.row.removeprefix(OUTBOX_PREFIX).partition("_")[0]
    return int(ticks) if ticks.isdecimal() else 0


def first_at(ticks: int) -> str:
    """Return the row key that is greater than those of all entries written before a tick."""
    return f"{OUTBOX_PREFIX}{max(ticks, 0):019d}"


def hint(reference: OutboxReference) -> str:
    """Return the text of a message that refers to an entry."""
    return msgspec.json.encode(reference).decode()


def read_hint(text: str) -> OutboxReference:
    """Read a hint. Raises msgspec.DecodeError for a message of another program."""
    reference = decode(text, OutboxReference)
    if not reference.key.row.startswith(OUTBOX_PREFIX):
        # A worker deletes the row that a hint names: refuse any other row.
        raise msgspec.DecodeError("The message names a row that is not an outbox entry.")
    return reference


def entry_removal(reference: OutboxReference) -> Steps[None]:
    """Remove an entry whose work is done."""
    removal = RowOperation(Verb.DELETE, Row(reference.key, {}))
    with contextlib.suppress(EntityNotFoundError):  # another worker may have removed it
        yield from ask(WriteRows(reference.table, (removal,)))


def entry_shortening(table: str, row: Row, entry: Entry) -> Steps[bool]:
    """Replace an entry by a shorter one, or remove it if that is empty.

    False: it was changed by another worker, and left as it is.
    """
    if entry.is_empty:
        operation = RowOperation(Verb.DELETE, Row(row.key, {}), row.etag)
    else:
        operation = RowOperation(Verb.REPLACE, Row(row.key, _properties_of(entry)), row.etag)
    try:
        yield from ask(WriteRows(table, (operation,)))
    except ConflictError:
        return False  # because another worker has processed it
    return True
