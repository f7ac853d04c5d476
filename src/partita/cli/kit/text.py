"""Counts, sizes and errors in words."""

from collections.abc import Iterable


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


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
