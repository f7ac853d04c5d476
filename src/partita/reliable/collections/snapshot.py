"""A consistent read view over all collections: no locks, never in anyone's way."""

from asyncio import _get_running_loop
from types import TracebackType
from typing import Self

from partita.errors import CollectionNotFoundError, NotReadableError, TransactionUseError
from partita.reliable.collections.unclosed import end_lost, origin
from partita.reliable.state.state import Collection, State


class Snapshot:
    """The state as of one sequence, until it is closed. Any task may read it.

    >>> # async with state.snapshot() as snapshot: await users.count(snapshot)
    """

    def __init__(self, state: State, now: int) -> None:
        self._state = state
        self.now = now
        """Wall clock in ticks: what expires by it is not seen."""
        self.origin = origin()
        self._loop = _get_running_loop()
        self.sequence = state.open_snapshot()
        self._is_open = True

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and self._loop is not None:
            what = f"A snapshot of sequence {self.sequence}"
            end_lost(self._loop, self.origin, what, self.close, self)

    def check(self) -> None:
        """Refuse reads after the end."""
        if not self._is_open:
            raise TransactionUseError(
                "SnapshotClosed",
                "The snapshot was closed.",
                hint="Read inside its `async with` block, or open another.",
            )

    def check_collection(self, collection: Collection) -> None:
        """Refuse what this snapshot cannot see: dropped, or replaced by a full copy."""
        self.check()
        if self._state.collections.get(collection.id) is collection:
            return
        if collection.is_dropped:
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"The collection {collection.description.name!r} was dropped.",
                hint="Open it again: that creates a new one.",
            )
        raise NotReadableError(
            "SnapshotReplaced",
            "The replica took a full copy after this snapshot was opened.",
            hint="Open another snapshot.",
        )

    def find(self, collection: Collection, key: bytes) -> bytes | None:
        self.check_collection(collection)
        return collection.find(key, self.sequence)

    def close(self) -> None:
        """Let go of old versions; closing twice does nothing."""
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
