"""What is observed of one request while it is answered: for counters, logs and traces. Pure.

`Request.observe` makes one when there is something to note. Of a point read that succeeds, which is
the most frequent request, nothing is noted: its answer has what the counters need. The one rule: it
holds no exception and no connection, because a Request is not tracked by the garbage collector.
"""

from typing import Any, Final

import msgspec

from partita.metrics.waits import Waits
from partita.tables.plan import Plan

UNKNOWN_OPERATION: Final = "Unknown"
"""The operation of a request that was refused before it was decoded."""

BY_KEY: Final = 0
ANONYMOUSLY: Final = 8
BY_SAS: Final = 16
"""How a request is authorized: the offset of its outcomes among the 24 of Azure's metrics."""


class Queried(msgspec.Struct, frozen=True, gc=False):
    """How a query of entities was answered."""

    plan: Plan
    examined: int
    """Entities that were read."""
    returned: int
    is_counted: bool = True
    """Whether `examined` is exact; otherwise at least so many."""


class Observed(Waits, gc=False):
    """One request, as far as it is known."""

    account: str = ""
    """Empty if no such account is served."""
    operation: str = UNKNOWN_OPERATION
    """As Storage Analytics names it: QueryEntities, PutMessage, GetBlob."""
    credentials: int = BY_KEY
    code: str = ""
    """The code of the error that it was answered with, also inside the answer of a batch."""
    hint: str = ""
    call: Any = None
    """The decoded call, whose type belongs to the service; the list of calls of a batch."""
    object: str = ""
    """The blob or container of a request to the blob service."""
    query: Queried | None = None
    """Of a query of entities."""


class _Unobserved(Observed, frozen=True, gc=False):  # type: ignore[misc]  # msgspec allows it
    """Cannot be changed, so that requests can share it."""


UNOBSERVED: Final = _Unobserved()
"""Of all requests of which nothing is noted."""
