"""The scalability targets that Azure publishes for tables, enforced with token buckets.

Each partition and each account has a bucket with the entities of one second. Of a bucket only
the time is kept at which it is full again: a request moves that time, and a bucket whose time
has passed is removed, so that an idle partition costs nothing.
"""

import enum
from collections.abc import Callable, Hashable
from typing import TypeVar

import msgspec

from partita.tables.limits import KIB
from partita.ticks import Clock

PARTITION_ENTITIES_PER_SECOND = 2_000
ACCOUNT_ENTITIES_PER_SECOND = 20_000
COUNTED_BYTES = 1 * KIB
"""The published rates are for entities of this size: a larger one counts as several."""
BURST_SECONDS = 1
"""The capacity of a bucket: an idle partition can use this at once."""
SWEEP_SECONDS = 5
"""How often full buckets are removed."""
WATCHED_PARTITIONS_MAX = 65_536
"""The number of partitions that are tracked; the oldest one is removed for the next."""

_SECOND = 1_000_000_000
_BURST = BURST_SECONDS * _SECOND

_Name = TypeVar("_Name", bound=Hashable)


class RateTarget(enum.Enum):
    """The exceeded target."""

    PARTITION = "partition"
    ACCOUNT = "account"


class Excess(msgspec.Struct, frozen=True):
    """A request exceeds a target; `seconds` is when it would not."""

    target: RateTarget
    seconds: float


def counted(size: int) -> int:
    """Return how many entities one of this many bytes counts for.

    >>> [counted(size) for size in (0, 1024, 1025)]
    [1, 1, 2]
    """
    return max(1, -(-size // COUNTED_BYTES))


class Targets:
    """The buckets of one server. Times are whole nanoseconds, so that nothing is rounded away.

    Several front ends of the same accounts divide the rates: a load balancer gives each of them
    an equal part of the requests. `front_ends` returns their present number.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        partition_rate: int = PARTITION_ENTITIES_PER_SECOND,
        account_rate: int = ACCOUNT_ENTITIES_PER_SECOND,
        front_ends: Callable[[], int] = lambda: 1,
    ) -> None:
        self._clock = clock
        self._front_ends = front_ends
        self._partition_step = _SECOND // partition_rate
        self._account_step = _SECOND // account_rate
        self._partitions: dict[tuple[str, str, str], int] = {}
        """When each bucket is full again; changed by `charge` and `owe`, pruned by `_sweep`."""
        self._accounts: dict[str, int] = {}
        self._sweep_at = self._now() + SWEEP_SECONDS * _SECOND

    @property
    def partitions(self) -> int:
        """The number of tracked partitions."""
        return len(self._partitions)

    def charge(
        self, account: str, table: str, partition_key: str | None, entities: int
    ) -> Excess | None:
        """Take entities from the buckets, or take nothing and return how long to wait.

        Without a partition key only the account counts. More than a whole bucket is permitted
        if the bucket is full, and leaves a debt. Zero entities pass if one would.
        """
        now = self._now()
        self._sweep(now)
        partition_step, account_step = self._steps()
        if partition_key is not None:
            place = (account, table.lower(), partition_key)
            full_at = self._partitions.get(place, now)
            excess = _excess(full_at - now, entities, partition_step)
            if excess > 0:
                return Excess(RateTarget.PARTITION, excess / _SECOND)
        full_at = self._accounts.get(account, now)
        excess = _excess(full_at - now, entities, account_step)
        if excess > 0:
            return Excess(RateTarget.ACCOUNT, excess / _SECOND)
        self._take(now, account, table, partition_key, entities)
        return None

    def owe(self, account: str, table: str, partition_key: str | None, entities: int) -> None:
        """Take entities that were already returned; a shortage becomes a debt."""
        now = self._now()
        self._sweep(now)
        self._take(now, account, table, partition_key, entities)

    def _take(
        self, now: int, account: str, table: str, partition_key: str | None, entities: int
    ) -> None:
        if entities <= 0:
            return
        partition_step, account_step = self._steps()
        _move(self._accounts, account, now, entities * account_step)
        if partition_key is None:
            return
        place = (account, table.lower(), partition_key)
        if place not in self._partitions and len(self._partitions) >= WATCHED_PARTITIONS_MAX:
            del self._partitions[next(iter(self._partitions))]
        _move(self._partitions, place, now, entities * partition_step)

    def _steps(self) -> tuple[int, int]:
        """Return in how many nanoseconds one entity returns to each kind of bucket."""
        share = max(1, self._front_ends())
        return self._partition_step * share, self._account_step * share

    def _sweep(self, now: int) -> None:
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS * _SECOND
        self._partitions = {
            place: full_at for place, full_at in self._partitions.items() if full_at > now
        }

    def _now(self) -> int:
        return round(self._clock.monotonic() * _SECOND)


def _excess(missing: int, entities: int, step: int) -> int:
    """Return in how many nanoseconds a bucket has enough for this many entities."""
    needed = min(max(entities, 1) * step, _BURST)
    return max(missing, 0) + needed - _BURST


def _move(buckets: dict[_Name, int], name: _Name, now: int, taken: int) -> None:
    buckets[name] = max(buckets.get(name, now), now) + taken
