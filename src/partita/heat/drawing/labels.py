"""Texts of a picture: keys, times, rates; pure."""

from datetime import UTC, datetime

from partita.heat.axes import partition_of
from partita.heat.drawing.picture import Picture

_CUT = "…"
_STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
"""Seconds between two marks of time."""


def key_text(key: str, width: int = 40) -> str:
    """Write a key for people: partition key / row key, without control characters."""
    partition, _, row = key.partition("\0")
    text = f"{partition} / {row}" if row else partition
    shown = "".join(each if each.isprintable() else "·" for each in text)
    return shown if len(shown) <= width else shown[: width - 1] + _CUT


def range_text(first: str, last: str, width: int = 60) -> str:
    """Write a range: a key, a partition, or both ends."""
    if first == last:
        return key_text(first, width)
    half = max(8, (width - 3) // 2)
    if partition_of(first) == partition_of(last):
        if len(partition_of(first)) + 4 > half:
            return key_text(first, width)
        rows = (first.partition("\0")[2], last.partition("\0")[2])
        shown = " … ".join(key_text(row, half // 2 + 4) for row in rows)
        return f"{key_text(partition_of(first), half)} / {shown}"
    return f"{key_text(first, half)} … {key_text(last, half)}"


def time_text(seconds: int, *, has_date: bool = False) -> str:
    """Write a time in UTC."""
    form = "%m-%d %H:%M" if has_date else "%H:%M"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def rate_text(rate: float) -> str:
    """Write a rate with two or three digits."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= limit * 0.9995:
            return f"{rate / limit:.3g} {unit}"
    if rate >= 1:
        return f"{rate:.3g}"
    return f"{rate:.2g}" if rate >= 0.0001 or rate == 0 else f"{rate:.6f}"


def has_dates(picture: Picture) -> bool:
    return picture.to - picture.since > 86_400


def time_marks(picture: Picture, count: int) -> list[tuple[float, str]]:
    """Return at most `count` round times, and the column at which each begins, as a fraction."""
    if not picture.cells:
        return []
    span = picture.to - picture.since
    step = next((each for each in _STEPS if span / each <= count), _STEPS[-1] * count)
    first = -(-picture.since // step) * step
    return [
        ((moment - picture.since) / picture.step, time_text(moment, has_date=has_dates(picture)))
        for moment in range(first, picture.to, step)
    ]


def title_text(table: str, picture: Picture) -> str:
    """Return what a picture shows: table, unit, time."""
    since, to = (time_text(each, has_date=True) for each in (picture.since, picture.to))
    year = datetime.fromtimestamp(picture.since, UTC).year
    until = to if to[:5] != since[:5] else to[6:]
    return f"{table or 'other tables'}: {picture.unit}, {year}-{since} to {until} UTC"
