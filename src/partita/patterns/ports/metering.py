"""Counts every HTTP request of the SDK, including its retries.

A call in progress has one meter, in a context variable, so that tasks and threads have their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from partita.patterns.protocol.calls import Cost

_INCONCLUSIVE = frozenset({408, 500, 502, 504})
"""Statuses of a service that gave up, or of a proxy."""


class Meter(msgspec.Struct):
    """The requests of one call so far."""

    requests: int = 0
    status: int = 0
    """The status of the last answer; 0 if there was none."""
    is_in_doubt: bool = False
    """A request was sent without a conclusive answer: it may have been performed."""

    def answer(self, status: int) -> None:
        """Record an answer. A request that failed with such a status may have been performed."""
        self.status = status
        self.is_in_doubt = self.is_in_doubt or status in _INCONCLUSIVE


_current: ContextVar[Meter | None] = ContextVar("partita_meter", default=None)


@contextmanager
def metered(cost: Cost) -> Iterator[Meter]:
    """Count the requests of a block, and add them to `cost` even if it fails."""
    meter = Meter()
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)
        cost.requests += meter.requests


def current_meter() -> Meter:
    """Return the meter of the call in progress, or a new one outside of any call."""
    return _current.get() or Meter()
