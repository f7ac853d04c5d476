"""Counts, sizes, times and errors in words."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return `1 row` or `1,200 rows`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "-"


def size_text(count: int) -> str:
    """Write a number of bytes for people."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def moment(ticks: int) -> str | None:
    """Write a time for people and programs; None for no time."""
    if not ticks:
        return None
    try:
        when = _EPOCH + timedelta(microseconds=ticks // 10)
    except OverflowError:
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat().replace("+00:00", "Z")


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
