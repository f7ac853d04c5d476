"""The entities of the metrics tables. Pure.

    PartitionKey  YYYYMMDDThhmm, the start of the hour, the minute or (capacity) the day
    RowKey        user;All, user;<operation>, system;All; of the capacity: data, analytics

A row keeps counts, so that rows of the same period can be added: several front ends count, and a
server that restarts continues. Names and rules follow the page "Storage Analytics Metrics Table
Schema" of the REST reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from partita.service.observing.outcomes import (
    AUTHORIZATION,
    CLIENT_OTHER,
    CLIENT_TIMEOUT,
    KINDS,
    NETWORK,
    OUTCOMES,
    SERVER_OTHER,
    SERVER_TIMEOUT,
    SUCCESS,
    THROTTLING,
)
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX, Members
from partita.tables.entity import Entity, EntityKey, build
from partita.tables.store import Decide
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND

TICKS_PER_MINUTE: Final = 60 * TICKS_PER_SECOND
TICKS_PER_HOUR: Final = 60 * TICKS_PER_MINUTE

BYTES_IN: Final = len(OUTCOMES)
BYTES_OUT: Final = BYTES_IN + 1
SECONDS: Final = BYTES_IN + 2
"""Of the successful requests."""
COUNTS_LENGTH: Final = BYTES_IN + 3

Counts = list[float]
"""The requests by outcome, then bytes and seconds; all are integers except SECONDS."""

_ANONYMOUS_AUTHORIZATION: Final = len(KINDS) + AUTHORIZATION
_FREE: Final = frozenset(
    {
        _ANONYMOUS_AUTHORIZATION,
        *range(THROTTLING, len(OUTCOMES), len(KINDS)),
        *range(SERVER_TIMEOUT, len(OUTCOMES), len(KINDS)),
        *range(SERVER_OTHER, len(OUTCOMES), len(KINDS)),
    }
)
"""The outcomes of requests that are not billable."""
_NOT_JUDGED: Final = frozenset(
    {_ANONYMOUS_AUTHORIZATION, *range(THROTTLING, len(OUTCOMES), len(KINDS))}
)
"""The outcomes that the availability does not include."""
_PERCENTAGES: Final = {
    "PercentSuccess": (SUCCESS,),
    "PercentThrottlingError": (THROTTLING,),
    "PercentTimeoutError": (CLIENT_TIMEOUT, SERVER_TIMEOUT),
    "PercentServerOtherError": (SERVER_OTHER,),
    "PercentClientOtherError": (CLIENT_OTHER,),
    "PercentAuthorizationError": (AUTHORIZATION,),
    "PercentNetworkError": (NETWORK,),
}


class Period:
    """The counts of one hour or minute."""

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        """In ticks."""
        self.length = length
        self.operations: dict[str, Counts] = {}
        self.system: Counts = no_counts()
        """The requests of Storage Analytics itself."""

    @classmethod
    def of(cls, ticks: int, length: int) -> "Period":
        """Return the period that a time is in."""
        return cls(ticks - ticks % length, length)

    def covers(self, ticks: int) -> bool:
        return self.start <= ticks < self.start + self.length

    def add(
        self, operation: str, outcome: int, *, seconds: float, bytes_in: int, bytes_out: int
    ) -> None:
        counts = self.operations.get(operation)
        if counts is None:
            counts = self.operations[operation] = no_counts()
        counts[outcome] += 1
        counts[BYTES_IN] += bytes_in
        counts[BYTES_OUT] += bytes_out
        if outcome % len(KINDS) == SUCCESS:
            counts[SECONDS] += seconds

    def rows(self, *, include_apis: bool) -> dict[str, Counts]:
        """Return the counts by row key; operations without requests have no row."""
        each = {f"user;{name}": counts for name, counts in sorted(self.operations.items())}
        return {
            "user;All": sum_of(list(each.values())),
            "system;All": self.system,
            **(each if include_apis else {}),
        }


def no_counts() -> Counts:
    return [0] * COUNTS_LENGTH


def sum_of(rows: Sequence[Counts]) -> Counts:
    return [sum(column) for column in zip(no_counts(), *rows, strict=True)]


def period_key(ticks: int) -> str:
    """Return the partition key of a period by its start.

    >>> period_key(14_007_564_000_000_000)
    '20140522T1100'
    """
    day, _, time = edm.text_of_second(ticks // TICKS_PER_SECOND).partition("T")
    return f"{day.replace('-', '')}T{time[:5].replace(':', '')}"


def day_key(ticks: int) -> str:
    """Return the partition key of the capacity of a day."""
    return period_key(ticks - ticks % TICKS_PER_DAY)


def adding(partition_key: str, rows: Mapping[str, Counts]) -> Decide:
    """Return the change that adds counts to the stored rows, in the order of the row keys."""

    def decide(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
        return [
            build(EntityKey(partition_key, row_key), now, members_of(_added(before, row_key, each)))
            for row_key, each in rows.items()
        ]

    return decide


def _added(before: Mapping[str, Entity], row_key: str, counts: Counts) -> Counts:
    stored = before.get(row_key)
    return counts if stored is None else sum_of([counts, counts_of(stored.properties())])


def members_of(counts: Counts) -> Members:
    """Return the properties of a row."""
    outcomes = [int(count) for count in counts[: len(OUTCOMES)]]
    total = sum(outcomes)
    billable = total - sum(outcomes[number] for number in _FREE)
    judged = total - sum(outcomes[number] for number in _NOT_JUDGED)
    successes = _count_of(outcomes, (SUCCESS,))
    latency = counts[SECONDS] * 1000 / successes if successes else 0.0
    return {
        **dict(_integer("TotalIngress", int(counts[BYTES_IN]))),
        **dict(_integer("TotalEgress", int(counts[BYTES_OUT]))),
        **dict(_integer("TotalRequests", total)),
        **dict(_integer("TotalBillableRequests", billable)),
        "Availability": 100.0 * billable / judged if judged else 100.0,
        "AverageE2ELatency": latency,
        "AverageServerLatency": latency,
        **{
            name: 100.0 * _count_of(outcomes, kinds) / total if total else 0.0
            for name, kinds in _PERCENTAGES.items()
        },
        **{
            key: value
            for name, count in zip(OUTCOMES, outcomes, strict=True)
            for key, value in _integer(name, count)
        },
    }


def counts_of(members: Members) -> Counts:
    """Return the counts of a row that `members_of` made."""
    outcomes: Counts = [int(members.get(name, 0)) for name in OUTCOMES]
    successes = _count_of(outcomes, (SUCCESS,))
    seconds = float(members.get("AverageE2ELatency", 0)) * successes / 1000
    bytes_in, bytes_out = (int(members.get(name, 0)) for name in ("TotalIngress", "TotalEgress"))
    return [*outcomes, bytes_in, bytes_out, seconds]


def capacity_members(size: int, containers: int, objects: int) -> Members:
    """Return the properties of a row of the capacity."""
    return {
        **dict(_integer("Capacity", size)),
        **dict(_integer("ContainerCount", containers)),
        **dict(_integer("ObjectCount", objects)),
    }


def _count_of(outcomes: Sequence[float], kinds: Sequence[int]) -> int:
    """Return how many requests had one of these kinds of outcome, with any credentials."""
    return int(sum(sum(outcomes[kind :: len(KINDS)]) for kind in kinds))


def _integer(name: str, value: int) -> Iterator[tuple[str, str]]:
    yield name + TYPE_SUFFIX, edm.INT64
    yield name, str(value)
