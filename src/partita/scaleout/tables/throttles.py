"""Partitions whose rate an operator has limited: `partita fleet throttle`.

The limits of an account are a setting of the catalog, so that all front ends follow a change within
seconds. They divide a rate among them: a load balancer gives each an equal part of the requests. Of
a limit only the time is kept at which its next second is full again, in whole nanoseconds.
"""

import math
from collections.abc import Callable

import msgspec

from partita.errors import StoreBusyError
from partita.ticks import Clock

SETTING = "throttles"
"""The name of the setting."""
BURST_SECONDS = 1
"""A partition that was idle can use the entities of this time at once."""

_SECOND = 1_000_000_000
_BURST = BURST_SECONDS * _SECOND


class PartitionRate(msgspec.Struct, frozen=True):
    """The limit of one partition."""

    table: str
    partition_key: str
    rate: float
    """Entities per second, read or written, of all front ends together."""

    def is_of(self, table: str, partition_key: str) -> bool:
        return (self.table.lower(), self.partition_key) == (table.lower(), partition_key)


_decode = msgspec.json.Decoder(list[PartitionRate]).decode


def decoded(value: bytes | None) -> list[PartitionRate]:
    """Return the limits of a setting.

    >>> decoded(None)
    []
    """
    return [] if value is None else _decode(value)


class Throttles:
    """The limits of one account at one front end."""

    def __init__(self, clock: Clock, front_ends: Callable[[], int]) -> None:
        self._clock = clock
        self._front_ends = front_ends
        self._value = b""
        self._rates: dict[tuple[str, str], float] = {}
        self._full_at: dict[tuple[str, str], int] = {}

    def charge(self, value: bytes, table: str, partition_key: str, entities: int) -> None:
        """Count entities of a partition that has a limit; raise ServerBusy above it."""
        if value is not self._value:
            self._value = value
            self._rates = {
                (each.table.lower(), each.partition_key): each.rate for each in decoded(value)
            }
            self._full_at = {key: self._full_at[key] for key in self._rates.keys() & self._full_at}
        key = (table.lower(), partition_key)
        if (rate := self._rates.get(key)) is None:
            return
        now, full_at, step = self._bucket(key, rate)
        wait = full_at - now + min(entities * step, _BURST) - _BURST
        if wait > 0:
            raise StoreBusyError(
                "ServerBusy",
                "The server is busy.",
                facts={"target": "partition", "retry_after": max(1, math.ceil(wait / _SECOND))},
                hint=f"An operator limits this partition to {rate:g} entities per second (`partita"
                " fleet throttle`): use more partition keys, or send fewer requests.",
            )
        self._full_at[key] = full_at + entities * step

    def owe(self, table: str, partition_key: str, entities: int) -> None:
        """Count entities that a scan has returned; they delay the next request."""
        key = (table.lower(), partition_key)
        if (rate := self._rates.get(key)) is not None:
            _now, full_at, step = self._bucket(key, rate)
            self._full_at[key] = full_at + entities * step

    def _bucket(self, key: tuple[str, str], rate: float) -> tuple[int, int, int]:
        """Return the time, when the bucket is full, and what an entity adds to that."""
        now = round(self._clock.monotonic() * _SECOND)
        step = round(_SECOND * max(1, self._front_ends()) / rate)
        return now, max(self._full_at.get(key, now), now), step
