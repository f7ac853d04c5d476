"""Values of metrics: histograms, samples, and families of samples with one name. Pure.

Counters on a hot path are integers in lists; they become families when they are asked for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Literal, Protocol

import msgspec

Kind = Literal["counter", "gauge", "histogram"]

SECONDS_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The upper bounds of the buckets of durations; the last bucket has no bound."""
COUNT_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""The upper bounds of the buckets of counts, such as the changes of a commit."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Sample(msgspec.Struct, frozen=True):
    """One number of a family."""

    value: float
    labels: Mapping[str, str] = NO_LABELS
    suffix: str = ""
    """What follows the name of the family: `_bucket`, `_sum` or `_count` of a histogram."""


class Family(msgspec.Struct, frozen=True):
    """The samples of one name; the name of a counter ends with `_total`."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]


class Source(Protocol):
    """An object that has metrics."""

    def families(self) -> Iterable[Family]:
        """Return the present values; called when they are asked for, in any thread."""
        ...


class Histogram:
    """Counts of observations by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bucket, not cumulative; a value equal to a bound is in the bucket of the bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self, labels: Mapping[str, str] = NO_LABELS) -> list[Sample]:
        return histogram_samples(self.bounds, self.counts, self.total, labels)

    def facts(self) -> dict[str, object]:
        """Return the histogram as JSON values."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.total}


def histogram_samples(
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
    labels: Mapping[str, str] = NO_LABELS,
) -> list[Sample]:
    """Return the samples of a histogram whose counts are not cumulative."""
    sums = list(accumulate(counts))
    named = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return [
        *(
            Sample(count, {**labels, "le": bound}, "_bucket")
            for bound, count in zip(named, sums, strict=True)
        ),
        Sample(total, labels, "_sum"),
        Sample(sums[-1], labels, "_count"),
    ]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the value below which a share of the observations is, within its bucket.

    The last bucket has no upper bound: its lower bound is returned. Without observations: 0.

    >>> quantile((1.0, 2.0), [0, 10, 0], 0.5)
    1.5
    """
    wanted = sum(counts) * share
    if wanted <= 0:
        return 0.0
    before = 0
    for index, count in enumerate(counts):
        if before + count >= wanted and count:
            lower = bounds[index - 1] if index else 0.0
            if index == len(bounds):
                return lower
            return lower + (bounds[index] - lower) * (wanted - before) / count
        before += count
    return bounds[-1]
