"""What calls would cost: requests, bytes and storage at prices that somebody else publishes.

Prices differ by region, redundancy and year, and are not built in: look them up, and give them.

>>> from decimal import Decimal
>>> from partita.patterns import Cost, Prices
>>> prices = Prices(requests_10_000=Decimal("0.00036"), gib_month=Decimal("0.045"))
>>> prices.estimate(Cost(requests=2), times=1_000_000)
Decimal('0.07200')
"""

from decimal import Decimal

import msgspec

from partita.errors import UsageError
from partita.patterns.protocol.calls import Cost

_GIB = Decimal(1024**3)


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in one currency."""

    requests_10_000: Decimal
    """Of ten thousand requests."""
    gib_month: Decimal = Decimal(0)
    """Of a GiB that is stored for a month."""
    gib_carried: Decimal = Decimal(0)
    """Of a GiB that leaves the data centre; nothing if client and service are in one."""

    def estimate(self, cost: Cost, *, times: int = 1) -> Decimal:
        """Return what so many calls like the measured one cost."""
        if times < 0:
            raise UsageError("InvalidTimes", "Nothing is done less than no times.")
        requests = Decimal(cost.requests) * times / 10_000
        carried = Decimal(cost.bytes) * times / _GIB
        return requests * self.requests_10_000 + carried * self.gib_carried

    def keep(self, stored_bytes: int) -> Decimal:
        """Return what it costs to keep so many bytes for a month; `measure` tells them."""
        return Decimal(stored_bytes) / _GIB * self.gib_month
