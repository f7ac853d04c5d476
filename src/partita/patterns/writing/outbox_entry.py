"""Outbox entries: the work that a committed group leaves for workers.

    row key     ~o_<19 digits of ticks>_<16 hex digits>
    properties  EntityType "~outbox", Entry0, Entry1, ... (JSON, split)

An entry is written in the group of its change, and removed when its work is done. It names what may
be stale, never the values to write: a worker reads the current entity (`worker.py`), so that an
entry can be processed twice, late or out of order.
"""

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from partita.errors import ConflictError, DamageError, EntityNotFoundError, UnknownTypeError
from partita.patterns.protocol.calls import RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.split_text import cut, is_piece, join
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.row_layout import HIDDEN_MARK
from partita.patterns.writing.context import Context, OutboxReference
from partita.ticks import TICKS_PER_SECOND, Clock

OUTBOX_PREFIX = HIDDEN_MARK + "o_"
OUTBOX_END = HIDDEN_MARK + "p"
OUTBOX_TYPE = "~outbox"
TYPE_PROPERTY = "EntityType"
FENCE_SECONDS = 86_400
"""How long a fence stays: longer than any request can be delayed."""
_ENTRY = "Entry"
_FENCED = "Fenced"


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
    followers: dict[str, list[str]] = {}
    """By type: the names of what follows it, if the work writes entities of the type.

    A worker that does not know all of them would leave the others out of date.
    """

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
    names: set[str] = set()

    def is_needed(needed: Collection[str]) -> bool:
        names.update(needed)
        return True

    _select(entry, is_needed)
    return frozenset(names)


def without(entry: Entry, names: Collection[str]) -> Entry:
    """Return the work of an entry that needs none of these names."""
    return _select(entry, lambda needed: not any(name in names for name in needed))


def only(entry: Entry, names: Collection[str]) -> Entry:
    """Return the work of an entry that needs any of these names."""
    return _select(entry, lambda needed: any(name in names for name in needed))


def forgotten(entry: Entry, names: Collection[str]) -> Entry:
    """Return an entry without these names, and without the work for them."""
    followers = {
        type_name: [each for each in followers if each not in names]
        for type_name, followers in entry.followers.items()
    }
    return without(Entry(entry.touched, entry.started, entry.moves, followers), names)


def joined(one: Entry, other: Entry) -> Entry:
    """Return an entry with the work of two."""
    return Entry(
        one.touched + other.touched,
        one.started + other.started,
        one.moves + other.moves,
        one.followers | other.followers,
    )


def _select(entry: Entry, is_meant: Callable[[Collection[str]], bool]) -> Entry:
    """Return the parts of an entry whose needed names are meant."""
    touched = [_select_of(each, entry.followers, is_meant) for each in entry.touched]
    touched = [each for each in touched if not each.is_idle]
    moves = [each for each in entry.moves if is_meant(_needed_to_write(each.type, entry.followers))]
    written = {move.type for move in moves} | {each.type for each in touched}
    written |= {_owner_of(name) for each in touched for name, *_ in each.owners}
    return Entry(
        touched,
        [each for each in entry.started if is_meant({Kind.TRANSACTION.name_of(each.transaction)})],
        moves,
        {name: each for name, each in entry.followers.items() if name in written},
    )


def _select_of(
    touched: Touched,
    followers: Mapping[str, Collection[str]],
    is_meant: Callable[[Collection[str]], bool],
) -> Touched:
    owner = touched.type
    own, rewritten = Kind.TYPE.name_of(owner), _needed_to_write(owner, followers)
    return Touched(
        owner,
        touched.partition,
        touched.row,
        indexes={
            name: keys
            for name, keys in touched.indexes.items()
            if is_meant({own, Kind.INDEX.name_of(f"{owner}@{name}")})
        },
        owners=[
            each
            for each in touched.owners
            if is_meant({own, Kind.FIELD.name_of(each[0]), *followers.get(_owner_of(each[0]), ())})
        ],
        derived=[
            name
            for name in touched.derived
            if is_meant({*rewritten, Kind.FIELD.name_of(f"{owner}.{name}")})
        ],
        blobs=touched.blobs if touched.blobs and is_meant({own}) else [],
        views=[
            name for name in touched.views if is_meant({own, Kind.VIEW.name_of(f"{owner}@{name}")})
        ],
    )


def _needed_to_write(type_name: str, followers: Mapping[str, Collection[str]]) -> set[str]:
    return {Kind.TYPE.name_of(type_name), *followers.get(type_name, ())}


def _owner_of(field_name: str) -> str:
    """Return the type of a derived field `<type>.<field>`."""
    return field_name.rpartition(".")[0]


def followers_of_moved(context: Context, model: EntityType[Any]) -> dict[str, list[str]]:
    """Return the names of everything that follows an entity of a type to other keys.

    A move changes the owners of fields that are derived from the entity, so what follows the owners
    is included. No more than that: a derived field is not the source of another one.
    """
    dependents = model.followers.dependents
    names = {Kind.FIELD.name_of(each.name) for each in dependents}
    names |= {Kind.FIELD.name_of(f"{model.name}.{field.name}") for field, _ in model.derived_fields}
    for each in (model, *(dependent.owner for dependent in dependents)):
        names |= _direct_followers_of(context, each)
    return {model.name: sorted(names)} if names else {}


def followers_of_changed(
    context: Context, owners: Iterable[EntityType[Any]]
) -> dict[str, list[str]]:
    """Return the names of everything that follows a change of derived fields of these types."""
    named = {model.name: sorted(_direct_followers_of(context, model)) for model in owners}
    return {name: followers for name, followers in named.items() if followers}


def _direct_followers_of(context: Context, model: EntityType[Any]) -> set[str]:
    """Return the indexes and views of a type and of the types derived from it."""
    names: set[str] = set()
    for each in model.family():
        indexes, views = context.live_indexes(each), each.followers.views
        names |= {Kind.INDEX.name_of(f"{each.name}@{index.name}") for index in indexes}
        names |= {Kind.VIEW.name_of(f"{each.name}@{view.name}") for view in views}
    return names


# ---------------------------------------------------------------------------------------------
# Rows and messages


def new_key(partition_key: str, clock: Clock) -> RowKey:
    """Return the key of a new entry: entries of a partition sort by time."""
    return RowKey(
        partition_key, f"{OUTBOX_PREFIX}{clock.ticks():019d}_{clock.random_bytes(8).hex()}"
    )


def entry_operation(key: RowKey, entry: Entry) -> RowOperation:
    return RowOperation(Verb.INSERT, Row(key, _properties_of(entry)))


def fence_operation(key: RowKey, clock: Clock) -> RowOperation:
    """Return the insert of a fence: an entry without work, so that no group writes this entry."""
    return RowOperation(Verb.INSERT, Row(key, {**_properties_of(Entry()), _FENCED: clock.ticks()}))


def is_fence(row: Row, clock: Clock) -> bool:
    """Return whether a row is a fence that must stay, because a delayed group could still come."""
    since = row.properties.get(_FENCED)
    return isinstance(since, int) and clock.ticks() - since < FENCE_SECONDS * TICKS_PER_SECOND


def _properties_of(entry: Entry) -> dict[str, Value]:
    text = msgspec.json.encode(entry).decode()
    return {TYPE_PROPERTY: OUTBOX_TYPE, **cut(_ENTRY, text)}


def read_entry(row: Row) -> Entry:
    """Read an entry. Raises UnknownTypeError if it has members that a newer Partita wrote."""
    text = join(_ENTRY, row.properties)
    try:
        entry, members = decode(text, Entry), decode(text, dict[str, Any])
    except msgspec.DecodeError as error:
        raise DamageError(
            "OutboxDamaged",
            "An outbox entry cannot be read.",
            facts=row.key.facts,
        ) from error
    unknown = _unknown_members(members)
    if unknown:
        raise UnknownTypeError(
            "EntryUnknown",
            f"An outbox entry has members that this version of Partita does not know: "
            f"{', '.join(sorted(unknown))}.",
            facts=row.key.facts,
            hint="Run a worker with the version of Partita that the writers use.",
        )
    return entry


def _unknown_members(entry: Mapping[str, Any]) -> set[str]:
    parts = {"touched": Touched, "started": Step, "moves": Move}
    unknown = set(entry) - set(Entry.__struct_fields__)
    for name, kind in parts.items():
        for part in entry.get(name, ()):
            unknown |= set(part) - set(kind.__struct_fields__)
    return unknown


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
        # What is not the entry itself stays: the notes of a move.
        kept = {name: each for name, each in row.properties.items() if not is_piece(_ENTRY, name)}
        shorter = Row(row.key, {**kept, **_properties_of(entry)})
        operation = RowOperation(Verb.REPLACE, shorter, row.etag)
    try:
        yield from ask(WriteRows(table, (operation,)))
    except ConflictError:
        return False  # because another worker has processed it
    return True
