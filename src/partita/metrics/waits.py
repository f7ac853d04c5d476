"""How long the current request has waited for the store.

The server sets the context variable for each request; a store adds to it where a change waits.
Without a server nothing is set, and nothing is measured.
"""

from contextvars import ContextVar

import msgspec


class Waits(msgspec.Struct, gc=False):
    """Seconds that one request has waited."""

    queue_seconds: float = 0.0
    """For its turn to change the store."""
    commit_seconds: float = 0.0
    """For its changes to become durable."""


WAITS: ContextVar[Waits | None] = ContextVar("partita_waits", default=None)
