"""A consistent read view over all collections, without locks.

Also the clean-up of snapshots and transactions that a program loses without ending them: they
are ended on their event loop, with a ResourceWarning.
"""

import asyncio
import contextlib
import os
import sys
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Self

from partita.errors import CollectionNotFoundError, NotReadableError, TransactionUseError
from partita.reliable.state.state import Collection, State

Origin = tuple[int, CodeType | None, int]
"""The process and the place in the code where a snapshot or transaction was opened."""


class Snapshot:
    """The state as of one sequence, until it is closed. Any task may read it.

    >>> # async with state.snapshot() as snapshot: await users.count(snapshot)
    """

    def __init__(self, state: State, now: int, origin: Origin) -> None:
        self._state = state
        self.now = now
        """Wall clock in ticks: rows that have expired by then are not seen."""
        self.origin = origin
        self._loop = _get_running_loop()
        self.sequence = state.open_snapshot()
        self._is_open = True

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and self._loop is not None:
            what = f"A snapshot of sequence {self.sequence}"
            end_lost(self._loop, self.origin, what, self.close, self)

    def check(self) -> None:
        """Raise if the snapshot was closed."""
        if not self._is_open:
            raise TransactionUseError(
                "SnapshotClosed",
                "The snapshot was closed.",
                hint="Read inside its `async with` block, or open another.",
            )

    def check_collection(self, collection: Collection) -> None:
        """Raise if the collection was dropped or replaced by a full copy."""
        self.check()
        if collection.is_new or self._state.collections.get(collection.id) is collection:
            return
        if collection.is_dropped:
            raise collection_dropped(collection.description.name)
        raise NotReadableError(
            "SnapshotReplaced",
            "The replica loaded a full copy of the state after this snapshot was opened.",
            hint="Open another snapshot.",
        )

    def find(self, collection: Collection, key: bytes) -> bytes | None:
        self.check_collection(collection)
        return collection.find(key, self.sequence)

    def close(self) -> None:
        """Release the old versions; closing twice does nothing."""
        if self._is_open:
            self._is_open = False
            self._state.close_snapshot(self.sequence)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def collection_dropped(name: str) -> CollectionNotFoundError:
    return CollectionNotFoundError(
        "CollectionNotFound",
        f"The collection {name!r} was dropped.",
        facts={"collection": name},
        hint="Open it again to create a new one.",
    )


def end_lost(
    loop: asyncio.AbstractEventLoop,
    origin: Origin,
    what: str,
    end: Callable[[], None],
    source: object,
) -> None:
    """End a lost snapshot or transaction on its loop and warn; called by finalizers.

    Nothing is done in a forked child, whose loop belongs to the parent, or after the loop or
    the interpreter has ended.
    """
    process, code, position = origin
    if sys.is_finalizing() or process != os.getpid() or loop.is_closed():
        return
    with contextlib.suppress(RuntimeError):  # the loop was closed just now
        loop.call_soon_threadsafe(end)
    place = ""
    if code is not None:
        lines = (line for start, end, line in code.co_lines() if start <= position < end)
        place = f", opened at {code.co_filename}:{next(lines, None)},"
    warnings.warn(
        f"{what}{place} was never ended. It is ended now.",
        ResourceWarning,
        source=source,
        stacklevel=3,
    )
