"""The tables that Storage Analytics writes: their names. Pure.

Clients read them and delete their entities; they cannot create, drop or list them. Their names are
not valid names of other tables, which begin with a letter.
"""

from typing import Final

SERVICES: Final = ("Blob", "Queue", "Table")
CAPACITY_TABLE: Final = "$MetricsCapacityBlob"


def hour_table(service: str) -> str:
    """Return the table of hourly metrics of a service.

    >>> hour_table("Queue")
    '$MetricsHourPrimaryTransactionsQueue'
    """
    return f"$MetricsHourPrimaryTransactions{service}"


def minute_table(service: str) -> str:
    return f"$MetricsMinutePrimaryTransactions{service}"


def find_system_table(name: str) -> str | None:
    """Find the table that a name means, in any case; the names before 2013-08-15 mean hours."""
    return _NAMES.get(name.lower())


_NAMES: Final = {
    name.lower(): stored
    for name, stored in (
        (CAPACITY_TABLE, CAPACITY_TABLE),
        *((hour_table(each), hour_table(each)) for each in SERVICES),
        *((minute_table(each), minute_table(each)) for each in SERVICES),
        *((f"$MetricsTransactions{each}", hour_table(each)) for each in SERVICES),
    )
}
