"""Processor time per request: what a slice of work showed, and ratios over rounds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Some seconds of one kind of request; CPU in seconds."""

    requests: int
    seconds: float
    client_cpu: float
    """Of the front ends, or of pgbench."""
    store_cpu: float
    """Of all processes of PostgreSQL."""

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def client_us(self) -> float:
        return self.client_cpu * 1e6 / max(1, self.requests)

    @property
    def store_us(self) -> float:
        return self.store_cpu * 1e6 / max(1, self.requests)

    @property
    def us(self) -> float:
        """CPU of everything, in microseconds per request."""
        return self.client_us + self.store_us


def ratio(sides: Sequence[Slice], beside: Sequence[Slice]) -> float:
    """Return the median over rounds of the CPU per request beside another side's in that round."""
    return statistics.median(a.us / b.us for a, b in zip(sides, beside, strict=True))


def median_us(slices: Sequence[Slice]) -> tuple[float, float, float]:
    """Return the medians of the CPU per request: of the client, of PostgreSQL, of both."""
    return (
        statistics.median(each.client_us for each in slices),
        statistics.median(each.store_us for each in slices),
        statistics.median(each.us for each in slices),
    )
