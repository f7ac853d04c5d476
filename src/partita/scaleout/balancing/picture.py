"""What is known about the ranges and shards of a fleet in one moment; pure."""

import msgspec

from partita.scaleout.balancing.limits import CAPACITY


class RangeLoad(msgspec.Struct, frozen=True):
    """One range of keys of a table, with its load in point reads per second.

    >>> RangeLoad(7, "devaccount", "Staff", "", None, "shard-1", load=12_000, middle="m").title
    '7 (Staff, all keys)'
    """

    id: int
    account: str
    table: str
    lower: str
    upper: str | None
    shard: str
    load: float = 0.0
    bytes: int = 0
    middle: str | None = None
    """Where to split it into halves of the load, or of the bytes; None: it cannot be split."""
    hot_key: str | None = None
    """The partition key with the most load."""
    hot_share: float = 0.0
    """Its part of the load of the range."""
    is_appending: bool = False
    """Whether almost all writes have keys after all earlier ones."""
    rested_seconds: float = float("inf")
    """How long ago it was made by a split, or moved."""
    is_busy: bool = False
    """Whether a job changes it now."""

    @property
    def title(self) -> str:
        """Name it in an explanation."""
        keys = "all keys"
        if self.lower or self.upper is not None:
            end = "the end" if self.upper is None else repr(self.upper)
            keys = f"{self.lower!r} to {end}"
        return f"{self.id} ({self.table}, {keys})"


class ShardLoad(msgspec.Struct, frozen=True):
    """One shard; its load is that of its ranges."""

    name: str
    is_open: bool = True
    """Whether it may get ranges; False while it is drained."""
    is_reachable: bool = True
    is_busy: bool = False
    """Whether a move from or to it is under way."""


class Picture(msgspec.Struct, frozen=True):
    """The fleet, as a round of the balancer sees it."""

    shards: list[ShardLoad]
    ranges: list[RangeLoad]
    capacity: float = CAPACITY
    """Of each shard, in point reads per second."""
    moves_running: int = 0
