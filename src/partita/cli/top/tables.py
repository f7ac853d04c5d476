"""The rows and lines of `partita top`, for the live view and for `--once`. Pure."""

from collections.abc import Iterator

from partita.cli.top.readings import Reading

OPERATION_HEADINGS = ("service", "operation", "req/s", "err/s", "p50 ms", "p99 ms", "in/s", "out/s")
HOT_HEADINGS = ("table", "from", "to", "reads/s", "writes/s")
SLOW_HEADINGS = ("ms", "operation", "object", "examined", "returned", "filter", "advice")
FILTER_CHARACTERS_MAX = 60
_UNITS = ("B", "KB", "MB", "GB", "TB")


def headline(reading: Reading) -> str:
    """Return the server as one line."""
    total = sum(service.requests for service in reading.services)
    errors = sum(service.errors for service in reading.services)
    connections = sum(service.connections for service in reading.services)
    parts = [
        f"Partita {reading.version}, up {_duration(reading.uptime_seconds)}",
        f"{total:.0f} req/s",
        f"{errors:.0f} err/s",
        f"{connections} connections",
        f"loop lag {reading.loop_lag_ms:.1f} ms",
        f"refused {reading.refused_signatures:.0f}/s",
        f"throttled {reading.throttled:.0f}/s",
        *([f"log lines dropped {reading.log_dropped}"] if reading.log_dropped else []),
    ]
    return "   ".join(parts)


def store_line(reading: Reading) -> str:
    """Return the store as one line."""
    store = reading.store
    return "   ".join(
        (
            f"{store.commits:.0f} commits/s of {store.changes_per_commit:.1f}",
            f"commit p50 {store.commit_p50_ms:.2f} ms, p99 {store.commit_p99_ms:.2f} ms",
            f"queue {store.queue_length}",
            f"wal {amount(store.wal_bytes)}",
            f"store {amount(store.store_bytes)}",
        )
    )


def operation_rows(reading: Reading) -> Iterator[tuple[str, ...]]:
    """Yield each service, then its operations."""
    for service in reading.services:
        for row in (service, *service.operations):
            yield (
                service.name if row is service else "",
                "all" if row is service else row.name,
                f"{row.requests:.1f}",
                f"{row.errors:.1f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                amount(row.bytes_in),
                amount(row.bytes_out),
            )


def hot_rows(reading: Reading) -> Iterator[tuple[str, ...]]:
    for each in reading.hot:
        yield each.table, each.first, each.last, f"{each.reads:.1f}", f"{each.writes:.1f}"


def slow_rows(reading: Reading) -> Iterator[tuple[str, ...]]:
    for each in reading.slow:
        examined, returned = each["examined"], each["returned"]
        bound = "" if each.get("is_examined_exact", True) else ">="
        yield (
            f"{each['ms']:.0f}",
            f"{each['service']}/{each['operation']}",
            each["object"],
            "-" if examined is None else f"{bound}{examined}",
            "-" if returned is None else str(returned),
            each["filter"][:FILTER_CHARACTERS_MAX] or "-",
            each["advice"] or "-",
        )


def amount(count: float) -> str:
    """Return bytes with a unit.

    >>> amount(999), amount(1536), amount(5 * 1024**3)
    ('999 B', '1.5 KB', '5.0 GB')
    """
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    time = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}d {time}" if days else time
