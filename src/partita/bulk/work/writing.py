"""Changes in bulk: windows of changes in groups, each group until it is performed or refused.

A window is sent completely before the next one, so that the changes of an entity keep their order
and a checkpoint after a window is exact. The next window is prepared meanwhile.
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from partita.bulk.batches import REPEATABLE, Change, Kind
from partita.bulk.canonical import canonical
from partita.bulk.entities import decode_keys, parse_entity
from partita.bulk.formats.rows import Reject, reason_of
from partita.bulk.grouping import Group, Planned, in_rounds
from partita.bulk.http_client import AnswerLostError
from partita.bulk.pace import Pace
from partita.bulk.ranges import quoted
from partita.bulk.wire import Query, TableClient
from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    PartitaError,
    TableNotFoundError,
    UsageError,
)

WINDOW_ROWS_MAX = 10_000
WINDOW_BYTES_MAX = 12 * 1024 * 1024
"""What is in memory: this window, and the next one."""
LOST_ANSWERS_MAX = 5
"""How often the outcome of one group is looked up before the verb gives up."""


class Mode(enum.Enum):
    """What happens to an entity that exists already."""

    REPLACE = "replace"
    MERGE = "merge"
    SKIP = "skip"
    FAIL = "fail"
    DELETE = "delete"
    """The changes are deletes."""

    @property
    def kind(self) -> Kind:
        return _KINDS[self]


_KINDS = {
    Mode.REPLACE: Kind.UPSERT_REPLACE,
    Mode.MERGE: Kind.UPSERT_MERGE,
    Mode.SKIP: Kind.INSERT,
    Mode.FAIL: Kind.INSERT,
    Mode.DELETE: Kind.DELETE,
}


class Tally(msgspec.Struct):
    """What was done so far."""

    written: int = 0
    """Written; or deleted, if the changes are deletes."""
    skipped: int = 0
    """Entities that existed already; or that were already deleted."""
    rejected: int = 0

    def add(self, other: "Tally") -> None:
        self.written += other.written
        self.skipped += other.skipped
        self.rejected += other.rejected

    @property
    def total(self) -> int:
        return self.written + self.skipped + self.rejected


class Window(msgspec.Struct):
    """Changes that are sent together, and where the source is after them."""

    changes: list[Planned]
    rejects: list[Reject]
    position: dict[str, Any]


class Writer:
    """Writes to one table. `is_resumed`: a former run may have written some of it."""

    def __init__(
        self, client: TableClient, table: str, mode: Mode, pace: Pace, *, is_resumed: bool = False
    ) -> None:
        self._client = client
        self._table = table
        self._mode = mode
        self._pace = pace
        self._is_resumed = is_resumed
        client.on_wait = pace.slow_down

    async def write(
        self,
        windows: AsyncIterator[Window],
        done: Callable[[Window, Tally, list[Reject]], None],
        progress: Callable[[int], None],
        *,
        concurrency: int,
    ) -> None:
        """Write all windows; `done` is called after each, `progress` with entities after groups."""
        sending: asyncio.Task[None] | None = None
        try:
            async for window in windows:
                if sending is not None:
                    await sending
                sending = asyncio.create_task(self._send(window, done, progress, concurrency))
            if sending is not None:
                await sending
        finally:
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _send(
        self,
        window: Window,
        done: Callable[[Window, Tally, list[Reject]], None],
        progress: Callable[[int], None],
        concurrency: int,
    ) -> None:
        tally, rejects = Tally(rejected=len(window.rejects)), list(window.rejects)
        for groups in in_rounds(window.changes):
            waiting = iter(groups)

            async def work(waiting: Any = waiting) -> None:
                for group in waiting:
                    outcome = await self.write_group(group, rejects)
                    tally.add(outcome)
                    progress(len(group))

            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(min(concurrency, len(groups))):
                        tasks.create_task(work())
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        rejects.sort(key=lambda reject: reject.place)
        done(window, tally, rejects)

    async def write_group(self, group: Group, rejects: list[Reject]) -> Tally:
        """Perform a group. Rows that are refused are taken out of it, so that the others pass."""
        tally = Tally()
        left, lost = group, 0
        while left:
            try:
                async with self._pace.slot(len(left)):
                    await self._client.run(self._table, [planned.change for planned in left])
            except TableNotFoundError:
                raise
            except EntityExistsError:
                left = await self._after_existing(left, tally, rejects)
            except (ETagMismatchError, EntityNotFoundError) as error:
                left = await self._after_missing(left, error, tally, rejects)
            except AnswerLostError:
                lost += 1
                if lost > LOST_ANSWERS_MAX or self._mode.kind in REPEATABLE:
                    raise  # repeatable changes were already repeated
                left = await self._after_lost(left, tally)
            except UsageError as error:
                left = await self._after_refusal(left, error, tally, rejects)
            else:
                tally.written += len(left)
                break
        return tally

    async def _after_existing(self, group: Group, tally: Tally, rejects: list[Reject]) -> Group:
        """Return the entities of a group of inserts that do not exist yet."""
        found = await self._existing(group)
        left: Group = []
        for planned in group:
            change = planned.change
            stored = found.get(change.row_key)
            if stored is None:
                left.append(planned)
            elif self._is_resumed and _is_same(stored, change):
                tally.written += 1  # by the run that this one continues
            elif self._mode is Mode.SKIP:
                tally.skipped += 1
            else:
                tally.rejected += 1
                rejects.append(_reject(planned, "EntityAlreadyExists: The entity exists already."))
        if len(left) == len(group) and len(group) > 1:
            return await self._halves(group, tally, rejects)
        if len(left) == len(group):
            tally.rejected += 1
            rejects.append(
                _reject(group[0], "EntityAlreadyExists: It exists, but is not readable.")
            )
            return []
        return left

    async def _existing(self, group: Group) -> dict[str, bytes]:
        """Return the documents of existing entities by row key."""
        keys = sorted(planned.change.row_key for planned in group)
        wanted = set(keys)
        partition_key = group[0].change.partition_key
        condition = (
            f"PartitionKey eq {quoted(partition_key)} and RowKey ge {quoted(keys[0])} "
            f"and RowKey le {quoted(keys[-1])}"
        )
        found: dict[str, bytes] = {}
        page = await self._client.query(self._table, Query(condition))
        for document in page.entities:
            row_key = decode_keys(document).row_key
            if row_key in wanted:
                found[row_key] = bytes(document)
        if page.continuation is not None or not found:
            for row_key in keys:
                if row_key not in found:
                    try:
                        entity = await self._client.get(self._table, partition_key, row_key)
                    except EntityNotFoundError:
                        continue
                    found[row_key] = entity.document
        return found

    async def _after_missing(
        self, group: Group, error: PartitaError, tally: Tally, rejects: list[Reject]
    ) -> Group:
        """Take the entity out that was deleted or changed since it was read."""
        place = _index_of(error, group)
        if place is None:
            return await self._halves(group, tally, rejects)
        planned = group[place]
        if isinstance(error, EntityNotFoundError):
            tally.skipped += 1
        else:
            tally.rejected += 1
            rejects.append(_reject(planned, "The entity was changed after it was read."))
        return group[:place] + group[place + 1 :]

    async def _after_lost(self, group: Group, tally: Tally) -> Group:
        """Find out whether a group was performed whose answer was lost: all of it, or nothing."""
        change = group[0].change
        try:
            entity = await self._client.get(self._table, change.partition_key, change.row_key)
        except EntityNotFoundError:
            is_done = change.kind is Kind.DELETE
        else:
            is_done = change.kind is not Kind.DELETE and _is_same(entity.document, change)
        if not is_done:
            return group
        tally.written += len(group)
        return []

    async def _after_refusal(
        self, group: Group, error: PartitaError, tally: Tally, rejects: list[Reject]
    ) -> Group:
        """Take the rows out that the service refuses."""
        left = []
        for planned in group:
            reason = await asyncio.to_thread(_reason, planned.change)
            if reason is None:
                left.append(planned)
            else:
                tally.rejected += 1
                rejects.append(_reject(planned, reason))
        if len(left) < len(group):
            return left
        if error.code in _OF_ALL:
            raise error
        if len(group) == 1:
            tally.rejected += 1
            rejects.append(_reject(group[0], reason_of(error)))
            return []
        place = _index_of(error, group)
        if place is None:
            return await self._halves(group, tally, rejects)
        tally.rejected += 1
        rejects.append(_reject(group[place], reason_of(error)))
        return group[:place] + group[place + 1 :]

    async def _halves(self, group: Group, tally: Tally, rejects: list[Reject]) -> Group:
        if len(group) > 1:
            middle = len(group) // 2
            for half in (group[:middle], group[middle:]):
                tally.add(await self.write_group(half, rejects))
        return []


_OF_ALL = frozenset(
    {
        *("AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
        *("AuthorizationServiceMismatch", "AuthorizationResourceTypeMismatch"),
        *("AuthorizationProtocolMismatch", "AuthorizationSourceIPMismatch"),
        *("InvalidAuthenticationInfo", "NoAuthenticationInformation", "InvalidResourceName"),
        "ResourceNotFound",
    }
)
"""Refusals that are not about one row."""


def _reason(change: Change) -> str | None:
    """Return why a document is refused; None if nothing is wrong with it."""
    if change.kind is Kind.DELETE:
        return None
    try:
        parse_entity(change.document)
    except (PartitaError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return reason_of(error)
    return None


def _is_same(stored: bytes, change: Change) -> bool:
    try:
        return canonical(stored) == canonical(change.document)
    except (PartitaError, msgspec.MsgspecError):
        return False


def _index_of(error: PartitaError, group: Sequence[Planned]) -> int | None:
    if len(group) == 1:
        return 0
    index = error.facts.get("index")
    return index if isinstance(index, int) and 0 <= index < len(group) else None


def _reject(planned: Planned, reason: str) -> Reject:
    text = planned.change.document.decode("utf-8", "replace")
    keys = f"{planned.change.partition_key} / {planned.change.row_key}"
    return Reject.of(planned.place, ValueError(reason), text or keys)
