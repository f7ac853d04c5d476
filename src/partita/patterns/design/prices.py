"""Cost estimates: requests, transfer and storage at published prices.

Prices differ by region, redundancy and year, so none are built in.

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
    """The price of ten thousand requests."""
    gib_month: Decimal = Decimal(0)
    """The price of storing a GiB for a month."""
    gib_carried: Decimal = Decimal(0)
    """The price of a GiB that leaves the data centre; zero if client and service share one."""

    def estimate(self, cost: Cost, *, times: int = 1) -> Decimal:
        """Return the price of a measured call, made `times` times."""
        if times < 0:
            raise UsageError("InvalidTimes", "times must not be negative.")
        requests = Decimal(cost.requests) * times / 10_000
        carried = Decimal(cost.bytes) * times / _GIB
        return requests * self.requests_10_000 + carried * self.gib_carried

    def keep(self, stored_bytes: int) -> Decimal:
        """Return the price of storing bytes, as counted by `measure`, for a month."""
        return Decimal(stored_bytes) / _GIB * self.gib_month
