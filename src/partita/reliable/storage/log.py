"""The Log contract: ordered, durable records with one writer at a time.

Three logs implement it and pass one conformance suite: a local file, a JetStream stream, and a
simulated one. A log handles bytes and sequences and does not interpret the entries of a record.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from partita.errors import LimitExceededError, NotReadableError, StateClosedError, UsageError


class Log(Protocol):
    """Records by sequence, from `first` to `last` without a gap.

    `first` is the oldest sequence in the log (`last` + 1 when the log is empty); truncation
    raises it. `last` is the newest sequence that this process knows to be durable.
    """

    first: int
    last: int

    @property
    def record_bytes_max(self) -> int:
        """The largest record that this log accepts, at most limits.RECORD_BYTES_MAX."""

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> bytes:
        """Return the record's hash when it is durable at `sequence`, which must be `last` + 1.

        Only one append may run at a time. `alone` says that no other commit waits, so that a log
        may block the event loop for a sync, which is quicker. NotPrimaryError: the record of
        another writer is at that sequence, and this one will never be. StoreFullError: nothing
        was written. StoreStoppedError: the log has stopped. InDoubtError: the log was closed or
        abandoned before the answer came, or the sequence was truncated.
        """
        ...

    def read_from(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (sequence, raw) from `sequence` to the last record known when it is reached.

        A sequence below `first` raises NotReadableError: truncated records are in a checkpoint.
        """
        ...

    def follow(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield as `read_from` does, then wait for new records until the log is closed."""
        ...

    async def sync(self) -> None:
        """Return when all appended records are durable, also in a mode that answers earlier."""
        ...

    async def truncate(self, below: int) -> None:
        """Allow the removal of records below a sequence; `first` may stay lower than that."""
        ...

    async def close(self) -> None: ...


def log_closed() -> StateClosedError:
    return StateClosedError("StateClosed", "The log was closed.", hint="Open the state again.")


def log_truncated(sequence: int, first: int) -> NotReadableError:
    return NotReadableError(
        "LogTruncated",
        f"The log starts at record {first}; record {sequence} was truncated.",
        facts={"sequence": sequence, "first": first},
        hint="Start from a checkpoint, or from a full copy.",
    )


def not_next_record(sequence: int, last: int) -> UsageError:
    return UsageError(
        "LogOrder",
        f"Record {sequence} cannot be appended after record {last}.",
        facts={"sequence": sequence, "last": last},
        hint="Append complete records one at a time, each at the sequence after the last.",
    )


def record_too_large(sequence: int, size: int, bytes_max: int) -> LimitExceededError:
    return LimitExceededError(
        "RecordTooLarge",
        f"A record of {size} bytes exceeds the limit of {bytes_max}.",
        facts={"sequence": sequence, "bytes": size, "limit": bytes_max},
        hint="Write less in one transaction; on NATS, max_payload of the servers sets the limit.",
    )
