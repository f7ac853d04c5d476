"""The Log contract: ordered, durable records with one writer at a time.

Three logs satisfy it and run one conformance suite: a local file, a JetStream stream, and a
simulated one. The log knows bytes and sequences; what a record means is not its business.
"""

from collections.abc import AsyncIterator
from typing import Protocol


class Log(Protocol):
    """Records by sequence, from `first` to `last` without a hole.

    `first` is the oldest sequence still held (`last` + 1 when the log is empty); truncation
    moves it. `last` is the newest that this side knows to be durable.
    """

    first: int
    last: int

    @property
    def record_bytes_max(self) -> int:
        """What one record may hold here, never above limits.RECORD_BYTES_MAX."""

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> None:
        """Return when the record is durable at `sequence`, which must be `last` + 1.

        One append at a time; `alone` says that nobody else waits, so that a log may hold the
        loop for a sync that is quicker so. It has a definite end: NotPrimaryError says that
        another writer's record is at that sequence and that this one never will be;
        StoreFullError that nothing was written; StoreStoppedError that the log has stopped for
        good. InDoubtError is raised when the log is closed or given up while the answer is open,
        or its place was truncated.
        """
        ...

    def read_from(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (sequence, raw) from `sequence` to the end as it is known when that is reached.

        A sequence below `first` raises NotReadableError: what was truncated is in a checkpoint.
        """
        ...

    def follow(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Like read_from, and then wait for what comes; it ends when the log is closed."""
        ...

    async def sync(self) -> None:
        """Return when all that was appended is durable, also in a mode that answers earlier."""
        ...

    async def truncate(self, below: int) -> None:
        """Give free the records below a sequence; `first` may stay lower than asked."""
        ...

    async def close(self) -> None: ...
