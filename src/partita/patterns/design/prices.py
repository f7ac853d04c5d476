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


class PriceList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices by class of operation, with the date at which they were valid.

    The classes are `read` (one entity by both keys), `query` (each page), `write` (one entity),
    `group` and `queue`.
    """

    date: str
    currency: str
    gib_month: Decimal
    operations: dict[str, Decimal]
    """The price of ten thousand operations of each class."""
    source: str = ""

    def cost(self, operation: str, count: float) -> Decimal:
        """Return the price of a number of operations of one class."""
        price = self.operations.get(operation)
        if price is None:
            raise UsageError(
                "PricesRefused",
                f"The prices have no class {operation!r} of operations.",
                hint="Give all of read, query, write, group and queue.",
            )
        return Decimal(count) / 10_000 * price

    def keep(self, stored_bytes: float) -> Decimal:
        """Return the price of storing bytes for a month."""
        return Decimal(stored_bytes) / _GIB * self.gib_month


def read_prices(text: str) -> PriceList:
    """Read a price list from TOML."""
    try:
        return msgspec.toml.decode(text, type=PriceList, strict=False)
    except msgspec.MsgspecError as error:
        raise UsageError(
            "PricesRefused",
            f"The prices cannot be read: {error}.",
            hint="Give date, currency, gib_month and the table operations.",
        ) from error
