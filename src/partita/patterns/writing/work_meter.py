"""Counters of the work that a database does for its outbox, for `partita.metrics.render()`."""

from collections.abc import Iterator

from partita.metrics.families import Family, Sample
from partita.metrics.names import claim_name
from partita.metrics.sources import register

LABEL = "queue"
"""The first queue of the outbox."""

_COUNTERS = {
    "entries": ("partita_outbox_entries_total", "Outbox entries that were processed."),
    "transactions": ("partita_outbox_transactions_total", "Transactions that were run."),
    "failures": ("partita_outbox_failures_total", "Attempts that failed and are repeated."),
    "poisoned": ("partita_poison_total", "Work that was moved to the poison queue."),
    "left": ("partita_outbox_skipped_total", "Work skipped: it needs a newer version."),
}


class WorkMeter:
    """What the workers of one database have done; threads may lose a few."""

    def __init__(self, queue: str) -> None:
        self.entries = 0
        self.transactions = 0
        self.failures = 0
        self.poisoned = 0
        self.left = 0
        self.waiting: int | None = None
        """Messages in the queues, about; None if they were not counted."""
        self.poison_waiting: int | None = None
        self.oldest_seconds: float | None = None
        """The age of the oldest work that was seen waiting; None if it was not looked for."""
        self._queue = queue
        self._name = ""
        register(self)

    def families(self) -> Iterator[Family]:
        """Yield nothing for a database that does no such work."""
        if not any(getattr(self, name) for name in _COUNTERS) and self.waiting is None:
            return
        if not self._name:
            self._name = claim_name(LABEL, self._queue, self)
        labels = {LABEL: self._name}
        for field, (name, text) in _COUNTERS.items():
            yield Family(name, "counter", text, [Sample(getattr(self, field), labels)])
        gauges = (
            ("partita_outbox_messages", "Messages in the queues, about.", self.waiting),
            ("partita_poison_messages", "Messages in the poison queue.", self.poison_waiting),
            ("partita_outbox_age_seconds", "Age of the oldest work.", self.oldest_seconds),
        )
        for name, text, value in gauges:
            if value is not None:
                yield Family(name, "gauge", text, [Sample(value, labels)])
