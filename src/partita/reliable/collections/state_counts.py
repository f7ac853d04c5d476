"""Counters of a state: integers that transactions and the committer add to, read when asked."""

from partita.metrics.families import Histogram


class StateCounts:
    """What the transactions of one state have done since it was opened in this process."""

    __slots__ = (
        "commit_seconds",
        "commits",
        "deadlocks",
        "lock_timeouts",
        "lock_wait_seconds",
        "records",
    )

    def __init__(self) -> None:
        self.commits = 0
        """Transactions whose writes are durable."""
        self.records = 0
        """Records that they share."""
        self.commit_seconds = Histogram()
        """From the start of an append until the record is durable, by record."""
        self.lock_wait_seconds = Histogram()
        """Only of requests that had to wait."""
        self.deadlocks = 0
        self.lock_timeouts = 0
