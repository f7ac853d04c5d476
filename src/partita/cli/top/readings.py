"""What `partita top` shows: rates and quantiles from two answers of /api/v1/now. Pure.

An answer has totals since the start of the server; a rate is their difference per second. If the
server was restarted between two answers, the second one counts from zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.metrics.families import quantile

Json = Mapping[str, Any]
HOT_RANGES_MAX = 10
KEY_CHARACTERS_MAX = 40


class Rates(msgspec.Struct, frozen=True):
    """What one service or one operation does per second, and how long it takes."""

    name: str
    requests: float
    errors: float
    p50_ms: float
    p99_ms: float
    bytes_in: float
    bytes_out: float


class ServiceRates(Rates, frozen=True):
    connections: int
    operations: list[Rates]
    """The busiest first; those without a request are left out."""


class StoreRates(msgspec.Struct, frozen=True):
    commits: float
    changes_per_commit: float
    commit_p50_ms: float
    commit_p99_ms: float
    queue_length: int
    wal_bytes: int
    store_bytes: int


class HotRange(msgspec.Struct, frozen=True):
    """A range of keys with load; keys are cut."""

    table: str
    first: str
    last: str
    reads: float
    writes: float


class Reading(msgspec.Struct, frozen=True):
    """One screen."""

    version: str
    uptime_seconds: float
    seconds: float
    """The time between the two answers."""
    services: list[ServiceRates]
    store: StoreRates
    loop_lag_ms: float
    longest_turn_ms: float
    refused_signatures: float
    throttled: float
    log_dropped: int
    hot: list[HotRange]
    slow: list[dict[str, Any]]


def reading_of(before: Json, now: Json, hot: Sequence[HotRange], slow: Sequence[Any]) -> Reading:
    """Compare two answers."""
    if now["uptime_seconds"] < before["uptime_seconds"]:
        before = _zeroed(now)
    seconds = max(now["uptime_seconds"] - before["uptime_seconds"], 0.001)
    return Reading(
        version=now["version"],
        uptime_seconds=now["uptime_seconds"],
        seconds=seconds,
        services=[
            _service(name, before["services"].get(name) or _zeroed(each), each, seconds)
            for name, each in now["services"].items()
        ],
        store=_store(before["store"], now["store"], seconds),
        loop_lag_ms=now["loop"]["lag_seconds"] * 1000,
        longest_turn_ms=now["loop"]["longest_turn_seconds"] * 1000,
        refused_signatures=_rate(before, now, "refused_signatures_total", seconds),
        throttled=_rate(before, now, "throttled_total", seconds),
        log_dropped=now["log_dropped_total"],
        hot=list(hot),
        slow=list(slow),
    )


def _zeroed(value: Any) -> Any:
    """Return the same shape with every number zero: what a server has at its start."""
    match value:
        case dict():
            return {key: each if key == "bounds" else _zeroed(each) for key, each in value.items()}
        case list():
            return [_zeroed(each) for each in value]
        case bool() | str() | None:
            return value
        case _:
            return 0


def _rate(before: Json, now: Json, name: str, seconds: float) -> float:
    return float(max(0, now[name] - before[name])) / seconds


def _service(name: str, before: Json, now: Json, seconds: float) -> ServiceRates:
    operations = [
        _rates(each, before["operations"].get(each, _zeroed(found)), found, seconds)
        for each, found in now["operations"].items()
    ]
    busy = sorted(operations, key=lambda each: -each.requests)
    total = _rates(name, before, now, seconds)
    return ServiceRates(
        **msgspec.structs.asdict(total),
        connections=now["connections"],
        operations=[each for each in busy if each.requests],
    )


def _rates(name: str, before: Json, now: Json, seconds: float) -> Rates:
    p50, p99 = _quantiles_ms(before["latency"], now["latency"])
    return Rates(
        name=name,
        requests=_rate(before, now, "requests_total", seconds),
        errors=_rate(before, now, "errors_total", seconds),
        p50_ms=p50,
        p99_ms=p99,
        bytes_in=_rate(before, now, "bytes_in_total", seconds),
        bytes_out=_rate(before, now, "bytes_out_total", seconds),
    )


def _quantiles_ms(before: Json, now: Json) -> tuple[float, float]:
    counts = [a - b for a, b in zip(now["counts"], before["counts"], strict=True)]
    bounds = now["bounds"]
    return quantile(bounds, counts, 0.5) * 1000, quantile(bounds, counts, 0.99) * 1000


def _store(before: Json, now: Json, seconds: float) -> StoreRates:
    changes, earlier = now["commit_changes"], before["commit_changes"]
    commits = sum(changes["counts"]) - sum(earlier["counts"])
    p50, p99 = _quantiles_ms(before["commit_seconds"], now["commit_seconds"])
    return StoreRates(
        commits=commits / seconds,
        changes_per_commit=(changes["sum"] - earlier["sum"]) / commits if commits else 0.0,
        commit_p50_ms=p50,
        commit_p99_ms=p99,
        queue_length=now["queue_length"],
        wal_bytes=now["wal_bytes"],
        store_bytes=now["store_bytes"],
    )


def hot_ranges(table: str, answer: Json) -> list[HotRange]:
    """Return the ranges of the newest complete minute of a table, the hottest first.

    `answer` is that of /api/v1/heat; if no minute is complete, the open one counts as a whole.
    """
    closed = [column for column in answer["columns"] if not column["is_open"]]
    newest = next(reversed(closed or answer["columns"]), None)
    if newest is None:
        return []
    seconds = newest["seconds"]
    ranges = [
        HotRange(table, _shown(first), _shown(last), counts[0] / seconds, counts[2] / seconds)
        for first, last, counts in newest["axis"]
    ]
    return sorted(ranges, key=lambda each: -(each.reads + each.writes))


def _shown(key: str) -> str:
    text = key.replace("\x00", " / ")
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= KEY_CHARACTERS_MAX else text[: KEY_CHARACTERS_MAX - 1] + "…"
