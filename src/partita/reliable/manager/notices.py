"""Notices of a whole state: every commit, and collections that are added, dropped or rebuilt.

Functions are called after a record was applied, on the primary and on secondaries, in the order of
the log and before the commit returns. They must be quick: commits wait for them. A function that
raises is logged and called again for the next record.
"""

import logging
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from partita.errors import UsageError
from partita.reliable.state.records import Clear, Delete, Drop, Enqueue, Put, Record
from partita.reliable.state.state import Collection, CollectionEvent, State

logger = logging.getLogger("partita.reliable")

N = TypeVar("N")

WRITES = Put | Delete | Enqueue | Clear | Drop


class Commit(msgspec.Struct, frozen=True):
    """One record that was committed.

    `transactions` are the ids of its transactions, `collections` the names of the collections that
    they wrote to, sorted, without indexes. `ticks` is the clock of the primary.
    """

    sequence: int
    ticks: int
    transactions: tuple[str, ...]
    collections: tuple[str, ...]


class CollectionNotice(msgspec.Struct, frozen=True):
    """A collection was added or dropped; or all were rebuilt by a full copy, with an empty name."""

    kind: Literal["added", "dropped", "rebuilt"]
    name: str
    sequence: int


class Notices:
    """The functions to call for a state; `attach` connects them to its rows."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._on_commit: list[Callable[[Commit], object]] = []
        self._on_collections: list[Callable[[CollectionNotice], object]] = []
        self._names: dict[int, str] = {}
        """Names of the collections that the record being applied has dropped."""
        self._pending: list[CollectionNotice] = []

    def attach(self, state: State) -> None:
        """Listen to a state if there are functions to call."""
        self._state = state
        is_wanted = bool(self._on_commit or self._on_collections)
        state.on_applied = self._applied if is_wanted else None
        state.on_collection = self._changed if is_wanted else None

    def on_commit(self, function: Callable[[Commit], object]) -> Callable[[], None]:
        return self._add(self._on_commit, function)

    def on_collections(self, function: Callable[[CollectionNotice], object]) -> Callable[[], None]:
        return self._add(self._on_collections, function)

    def rebuilt(self, state: State) -> None:
        """Announce that a full copy has replaced all rows."""
        self.attach(state)
        _call_all(self._on_collections, CollectionNotice("rebuilt", "", state.sequence))

    def _add(
        self, functions: list[Callable[[N], object]], function: Callable[[N], object]
    ) -> Callable[[], None]:
        given: object = function
        if not callable(given):
            raise UsageError(
                "CallbackNotCallable",
                f"A function is needed, not {given!r}.",
                hint="Pass an ordinary function of one argument, the notice; it cannot await.",
            )
        functions.append(function)
        self.attach(self._state)

        def stop() -> None:
            if function in functions:
                functions.remove(function)
            self.attach(self._state)

        return stop

    def _changed(self, kind: CollectionEvent, collection: Collection) -> None:
        if kind == "dropped":
            self._names[collection.id] = collection.description.name
        if collection.description.kind != "index":
            name, sequence = collection.description.name, self._state.sequence
            self._pending.append(CollectionNotice(kind, name, sequence))

    def _applied(self, record: Record) -> None:
        pending, self._pending = self._pending, []
        names, self._names = self._names, {}
        for notice in pending:
            _call_all(self._on_collections, notice)
        if self._on_commit:
            _call_all(self._on_commit, self._commit(record, names))

    def _commit(self, record: Record, dropped: dict[int, str]) -> Commit:
        written = {
            operation.collection
            for entry in record.entries
            for operation in entry.operations
            if isinstance(operation, WRITES)
        }
        collections = self._state.collections
        names = {
            collections[one].description.name if one in collections else dropped.get(one, "")
            for one in written
        }
        return Commit(
            record.sequence,
            record.ticks,
            tuple(entry.transaction_id for entry in record.entries),
            tuple(sorted(name for name in names if name and "\x00" not in name)),
        )


def _call_all(functions: list[Callable[[N], object]], notice: N) -> None:
    for function in list(functions):
        try:
            function(notice)
        except Exception:  # because the record is durable: a function cannot undo it
            logger.exception("a function for notices failed")
