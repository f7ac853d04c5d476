"""Writing and deleting many entities: grouped by partition, some groups in parallel, at a rate.

Entities of one partition are written in groups as large as the service accepts, including their
index rows. Two groups of one partition are never written at the same time, because they would delay
each other. A group that is refused is split in halves, so that only the faulty entity fails.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from partita.errors import (
    NotAuthorizedError,
    PartitaError,
    TableNotFoundError,
    ThrottledError,
)
from partita.patterns.following.progress_counter import Progress, ProgressCounter
from partita.patterns.operations.rate_limit import Rate
from partita.patterns.operations.verbs import (
    can_be_replaced_unread,
    change_of,
    find_etag,
    not_loaded,
    remember,
    upsert,
    upsert_of,
)
from partita.patterns.protocol.calls import Cost, Parallel, Sleep, Steps, ask
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import in_parallel
from partita.patterns.writing.write import Change, write
from partita.tables import limits

OTHER_OPERATIONS = 8
"""Operations of a group that are reserved for owners of derived fields and the outbox."""
BUSY_ATTEMPTS_MAX = 20


class Failure(msgspec.Struct, frozen=True):
    """An entity that was not written, and the error."""

    entity: Any
    error: PartitaError


class BulkOutcome(msgspec.Struct):
    """The outcome of a bulk write: the written entities in order, and the failures."""

    entities: list[Any] = []
    failures: list[Failure] = []
    cost: Cost = msgspec.field(default_factory=Cost)
    """The cost; set by the API that ran the steps."""


Mode = Literal["save", "upsert", "delete"]


def operations_of(context: Context, model: EntityType[Any]) -> int:
    """Return the largest number of operations that a change of a type needs in a group."""
    local = sum(index.is_local for index in context.live_indexes(model))
    return model.layout.rows + 2 * local


def write_all(  # noqa: PLR0913 - the options of a bulk write
    context: Context,
    model: EntityType[Any],
    entities: Sequence[Any],
    mode: Mode,
    *,
    rate: Rate | None,
    concurrency: int,
    progress: Progress,
) -> Steps[BulkOutcome]:
    """Write many entities of one table, in as few groups as they fit into."""
    work = _Work(context, model, mode, rate, progress)
    chains: dict[str, list[tuple[int, Change]]] = {}
    for place, entity in enumerate(entities):
        change = change_of(model, entity)
        chains.setdefault(change.key.partition, []).append((place, change))
    yield from ask(
        Parallel(tuple(work.write_partition(each) for each in chains.values()), concurrency)
    )
    return work.outcome(len(entities))


class _Work:
    def __init__(
        self,
        context: Context,
        model: EntityType[Any],
        mode: Mode,
        rate: Rate | None,
        progress: Progress,
    ) -> None:
        self._context = context
        self._model = model
        self._mode = mode
        self._rate = rate
        self._counter = ProgressCounter(progress)
        self._written: dict[int, Any] = {}
        self._failed: dict[int, Failure] = {}

    def outcome(self, count: int) -> BulkOutcome:
        return BulkOutcome(
            [self._written[place] for place in range(count) if place in self._written],
            [self._failed[place] for place in range(count) if place in self._failed],
        )

    def write_partition(self, members: Sequence[tuple[int, Change]]) -> Steps[None]:
        for group in self._groups(members):
            yield from self._write_group(group)

    def _groups(self, members: Sequence[tuple[int, Change]]) -> list[list[tuple[int, Change]]]:
        """Split members into groups; a second change of an entity begins a new group."""
        groups: list[list[tuple[int, Change]]] = [[]]
        keys = set[RowKey]()
        operations = 0
        for place, change in members:
            needed = operations_of(self._context, change.model)
            is_full = operations + needed > limits.GROUP_OPERATIONS_MAX - OTHER_OPERATIONS
            if groups[-1] and (is_full or change.key in keys):
                groups.append([])
                keys, operations = set(), 0
            groups[-1].append((place, change))
            keys.add(change.key)
            operations += needed
        return groups

    def _write_group(self, group: Sequence[tuple[int, Change]]) -> Steps[None]:
        """Send a group; if it is refused, send its halves, down to the entity that fails."""
        changes = [change for _, change in group]
        try:
            yield from self._wait(len(group))
            saved = yield from self._send_with_retries(changes)
        except (ThrottledError, NotAuthorizedError, TableNotFoundError):
            raise
        except PartitaError as error:
            if len(group) > 1:
                middle = len(group) // 2
                yield from self._write_group(group[:middle])
                yield from self._write_group(group[middle:])
                return
            place, change = group[0]
            self._failed[place] = Failure(change.entity, error)
        else:
            for (place, _), kept in zip(group, saved, strict=True):
                self._written[place] = kept
        self._counter.add(len(group))

    def _wait(self, count: int) -> Steps[None]:
        if self._rate is not None:
            seconds = self._rate.reserve(self._context.clock.monotonic(), count)
            if seconds > 0:
                yield from ask(Sleep(seconds))

    def _send_with_retries(self, changes: Sequence[Change]) -> Steps[list[Any]]:
        """Retry when the service is busy, after the requested delay or with increasing delays."""
        for attempt in range(BUSY_ATTEMPTS_MAX):
            try:
                return (yield from self._send(changes))
            except ThrottledError as error:
                if attempt == BUSY_ATTEMPTS_MAX - 1:
                    raise
                yield from ask(Sleep(error.retry_after or min(0.1 * 2.0**attempt, 10.0)))
        raise AssertionError

    def _send(self, changes: Sequence[Change]) -> Steps[list[Any]]:
        context, model = self._context, self._model
        if self._mode == "upsert" and not all(
            can_be_replaced_unread(change.model) for change in changes
        ):
            return (yield from self._send_read(changes))
        for change in changes:
            if self._mode == "upsert":
                if change.before is not None:
                    change.extra, change.sealed = dict(change.before.extra), change.before.sealed
                change.before, change.is_blind = None, True
            elif self._mode == "delete":
                change.after = None
                if change.before is None:
                    hint = "Load the entities first, or delete the result of a query."
                    raise not_loaded(model, hint)
            yield from find_etag(context, change)
        written = yield from write(context, changes)
        if self._mode == "delete":
            for change in changes:
                change.model.set_origin(change.entity, None)
            return [change.entity for change in changes]
        return [
            remember(change.entity, each) for change, each in zip(changes, written, strict=True)
        ]

    def _send_read(self, changes: Sequence[Change]) -> Steps[list[Any]]:
        """Overwrite entities that have followers: read them in parallel, and write one group.

        If another writer changes one of them in between, the group is refused and split; a single
        entity is read again until it can be written.
        """
        context, model = self._context, self._model
        entities = [change.entity for change in changes]
        if len(entities) == 1:
            return [(yield from upsert(context, model, entities[0]))]
        reads = [upsert_of(context, model, each, merge=False) for each in entities]
        based = yield from in_parallel(context, reads)
        written = yield from write(context, based)
        return [remember(entity, each) for entity, each in zip(entities, written, strict=True)]
