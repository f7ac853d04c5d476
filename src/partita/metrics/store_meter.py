"""The measurements of a store: commits, the queue of the writer, checkpoints, sizes. Pure.

The store adds; sizes are read when they are asked for. One for each database.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from partita.metrics.families import COUNT_BOUNDS, NO_LABELS, Family, Histogram, Sample


class StoreMeter:
    """What one database has done."""

    def __init__(self) -> None:
        self.commit_seconds = Histogram()
        """COMMIT with its sync, or one round trip of a transaction."""
        self.commit_changes = Histogram(COUNT_BOUNDS)
        """Changes that one commit made durable."""
        self.queue_seconds = Histogram()
        """How long a change waited for its turn; only those that waited."""
        self.checkpoint_seconds = Histogram()
        self.connection_wait_seconds = Histogram()
        """How long a request waited for a free connection to PostgreSQL; only those that waited."""
        self.sync_failures = 0
        self.queue_length: Callable[[], int] = _nothing
        """Changes that wait now."""
        self.wal_bytes: Callable[[], int] = _nothing
        self.store_bytes: Callable[[], int] = _nothing

    def facts(self) -> dict[str, object]:
        """Return the measurements as JSON values."""
        return {
            **{name: getattr(self, name).facts() for name in _HISTOGRAMS},
            "sync_failures_total": self.sync_failures,
            **{name: getattr(self, name)() for name in _GAUGES},
        }

    def families(self, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Family]:
        for field, (name, text) in _HISTOGRAMS.items():
            yield Family(name, "histogram", text, getattr(self, field).samples(labels))
        yield Family(
            "partita_sync_failures_total",
            "counter",
            "Writes to the disk that failed; the store stops after one.",
            [Sample(self.sync_failures, labels)],
        )
        for field, (name, text) in _GAUGES.items():
            yield Family(name, "gauge", text, [Sample(getattr(self, field)(), labels)])


_HISTOGRAMS = {
    "commit_seconds": ("partita_commit_duration_seconds", "Time of a commit with its sync."),
    "commit_changes": ("partita_commit_changes", "Changes that one commit made durable."),
    "queue_seconds": ("partita_writer_wait_seconds", "Time that a change waited for its turn."),
    "checkpoint_seconds": ("partita_checkpoint_duration_seconds", "Time of a checkpoint."),
    "connection_wait_seconds": (
        "partita_connection_wait_seconds",
        "Time that a statement waited for a connection to PostgreSQL.",
    ),
}
_GAUGES = {
    "queue_length": ("partita_writer_queue", "Changes that wait for their turn."),
    "wal_bytes": ("partita_wal_bytes", "Size of the write-ahead log."),
    "store_bytes": ("partita_store_bytes", "Size of the database."),
}


def _nothing() -> int:
    return 0


def sum_of(facts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Add the facts of several stores: numbers, and histograms with the same bounds."""
    if not facts:
        return StoreMeter().facts()
    return {name: _sum([each[name] for each in facts]) for name in facts[0]}


def _sum(values: Sequence[object]) -> object:
    first = values[0]
    if not isinstance(first, dict):
        return sum(value for value in values if isinstance(value, int | float))
    histograms = [value for value in values if isinstance(value, dict)]
    return {
        "bounds": first["bounds"],
        "counts": [sum(counts) for counts in zip(*(h["counts"] for h in histograms), strict=True)],
        "sum": sum(h["sum"] for h in histograms),
    }
