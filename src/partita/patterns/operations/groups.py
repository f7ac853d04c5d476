"""Atomic groups: the changes that the caller collects, and how they are sent."""

from collections.abc import Mapping
from typing import Any

import msgspec

from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    GroupRuleError,
)
from partita.patterns.following.eventual_transactions import NamedSteps, start_message
from partita.patterns.following.moving import load_unmoving
from partita.patterns.operations.verbs import (
    change_of,
    check_entity,
    find_etag,
    patch_of,
    remember,
    upsert_of,
)
from partita.patterns.protocol.calls import Steps
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.projections import refuse_partial
from partita.patterns.writing import outbox_entry
from partita.patterns.writing.context import Context
from partita.patterns.writing.group_draft import written_twice
from partita.patterns.writing.load import locate
from partita.patterns.writing.merges import Merge
from partita.patterns.writing.write import Change, too_many_conflicts, wait_before, write


class _Removal(msgspec.Struct):
    """A deletion that reads first: a missing entity is not an error."""

    model: EntityType[Any]
    key: RowKey


class _Upsert(msgspec.Struct):
    """A write that reads first, and has no condition."""

    model: EntityType[Any]
    entity: Any
    merge: Merge


Wanted = Change | _Removal | _Upsert


class Collected:
    """Changes of one partition, checked as they are collected."""

    def __init__(self, context: Context, model: EntityType[Any], partition: str) -> None:
        self._context = context
        self._table = model.table
        self._home = model.declaration.table
        """The declared table of the type; a period table is another one."""
        self._partition = partition
        self._changes: list[Wanted] = []
        self._started: list[outbox_entry.Step] = []
        self._keys: set[RowKey] = set()

    def save(self, entity: Any) -> None:
        """Insert or replace, as `save` of the table does."""
        change = change_of(self._in_this_table(self._type_of(entity)), entity)
        self._add(change.model, change.key, change)

    def upsert(self, entity: Any, *, merge: Merge) -> None:
        """Write an entity without a condition, as `upsert` of the table does."""
        own = check_entity(self._in_this_table(self._type_of(entity)), entity)
        self._add(own, own.key(own.values(entity)), _Upsert(own, entity, merge))

    def patch(self, entity: Any, changes: Mapping[str, Any]) -> None:
        """Change some fields of a loaded entity that is unchanged in storage."""
        change = patch_of(self._in_this_table(self._type_of(entity)), entity, changes)
        self._add(change.model, change.key, change)

    def delete(self, entity: Any) -> None:
        """Delete a loaded entity that is unchanged in storage."""
        model = check_entity(self._in_this_table(self._type_of(entity)), entity)
        origin = model.origin(entity)
        if origin is None:
            raise GroupRuleError(
                "NotLoaded",
                f"This {model.name} was neither loaded nor saved.",
                hint="Use delete_if_exists(...) with its key.",
            )
        self._add(model, origin.key, Change(model, origin, None, entity))

    def remove(self, model: EntityType[Any], key: RowKey) -> None:
        model = self._in_this_table(model)
        self._add(model, key, _Removal(model, key))

    def _type_of(self, entity: Any) -> EntityType[Any]:
        refuse_partial(entity)
        return entity_type(type(entity))

    def _in_this_table(self, model: EntityType[Any]) -> EntityType[Any]:
        return model.in_table(self._table) if model.table == self._home else model

    def start(
        self,
        transaction: NamedSteps,
        arguments: Mapping[str, Any],
        positional: tuple[Any, ...] = (),
    ) -> None:
        """Start an eventually consistent transaction, if and only if the group is committed."""
        if self._table != self._home:
            raise GroupRuleError(
                "PeriodHasNoOutbox",
                "A group in a period table cannot start a transaction: its outbox is dropped "
                "with the table.",
                facts={"table": self._table},
                hint="Start the transaction separately: db.start(...).",
            )
        started = start_message(transaction, arguments, positional)
        self._started.append(outbox_entry.Step(started.transaction, started.arguments))

    def _add(self, model: EntityType[Any], key: RowKey, change: Wanted) -> None:
        self._check_place(model, key)
        if key in self._keys:
            raise written_twice(key)
        self._keys.add(key)
        if self._table == self._home:
            self._context.know(model)
        self._changes.append(change)

    def _check_place(self, model: EntityType[Any], key: RowKey) -> None:
        if model.table != self._table or key.partition != self._partition:
            raise GroupRuleError(
                "PartitionMismatch",
                "All entities of a group must be in one partition of one table.",
                facts={
                    "table": self._table,
                    "partition_key": self._partition,
                    "other": f"{model.table}/{key.partition}",
                },
                hint="Use two groups, or an eventually consistent transaction.",
            )

    def commit(self) -> Steps[list[Any]]:
        """Send the group; return the saved entities in their order."""
        context = self._context
        for attempt in range(context.options.attempts_max):
            yield from wait_before(context, attempt)
            changes: list[Change] = []
            read_here: set[int] = set()
            for wanted in self._changes:
                change = yield from self._based_on_stored(wanted)
                if change is None:
                    continue
                if change is not wanted and not change.is_blind:
                    read_here.add(len(changes))
                changes.append(change)
            if not changes and not self._started:
                return []
            if not changes:
                raise _nothing_to_change()
            try:
                written = yield from write(context, changes, started=self._started)
            except (EntityExistsError, EntityNotFoundError, ETagMismatchError) as error:
                place = error.facts.get("index", 0)
                if place in read_here:
                    continue  # because an entity read here changed in between
                raise
            for change in changes:
                if change.after is None and change.entity is not None:
                    change.model.set_origin(change.entity, None)
            return [
                remember(change.entity, outcome)
                for change, outcome in zip(changes, written, strict=True)
                if change.after is not None
            ]
        raise too_many_conflicts(
            "An entity that the group deletes or replaces kept changing.",
            facts={"table": self._table, "partition_key": self._partition},
        )

    def _based_on_stored(self, wanted: Wanted) -> Steps[Change | None]:
        """Return the change based on the stored entity; None if there is nothing to delete."""
        if isinstance(wanted, Change):
            yield from find_etag(self._context, wanted)
            return wanted
        if isinstance(wanted, _Upsert):
            return (
                yield from upsert_of(self._context, wanted.model, wanted.entity, merge=wanted.merge)
            )
        key = yield from locate(wanted.model, wanted.key)
        self._check_place(wanted.model, key)
        stored = yield from load_unmoving(self._context, wanted.model, key)
        return None if stored is None else Change(stored.model, stored.origin, None)


def _nothing_to_change() -> GroupRuleError:
    return GroupRuleError(
        "GroupEmpty",
        "A transaction cannot be started by a group that changes nothing.",
        hint="Start it separately: db.start(...).",
    )
