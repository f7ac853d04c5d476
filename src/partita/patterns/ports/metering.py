"""Counts every HTTP request that the SDK sends, its own retries included.

A call in progress has one meter, found by context, so that tasks and threads do not share theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from partita.patterns.protocol.calls import Cost

_TELLING_NOTHING = frozenset({408, 500, 502, 504})
"""Answers of a service that gave up, or of what stands before it."""


class Meter(msgspec.Struct):
    """What one call has sent so far."""

    requests: int = 0
    status: int = 0
    """Of the last answer; 0 if there was none."""
    is_in_doubt: bool = False
    """A request was sent whose answer never came, or told nothing: it may have been performed."""

    def answer(self, status: int) -> None:
        """Note an answer. What failed in the service or on the way may have been done first."""
        self.status = status
        self.is_in_doubt = self.is_in_doubt or status in _TELLING_NOTHING


_current: ContextVar[Meter | None] = ContextVar("partita_meter", default=None)


@contextmanager
def metered(cost: Cost) -> Iterator[Meter]:
    """Count the requests of a block, and add them to `cost` however it ends."""
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
