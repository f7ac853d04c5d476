"""The shard maps of a catalog as values that JSON can hold; read in a thread.

Locations have no user and no password. Bars show mappings by their place among all bounds of the
map: in proportion if all bounds are whole numbers, else every interval is as wide as the others.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from partita.errors import ConfigurationError
from partita.ticks import moment

if TYPE_CHECKING:
    from partita.shards.keys.mapping import Location, Mapping, Shard
    from partita.shards.maps.manager import AnyShardMap, ShardMapManager

MAPPINGS_MAX: Final = 2_000
"""Mappings of one map that are shown; the counts are of all."""
JOBS_MAX: Final = 200
"""Jobs that are shown, the newest first."""


class ShardShown(msgspec.Struct, frozen=True):
    id: str
    name: str
    location: str
    status: str
    mappings: int


class MappingShown(msgspec.Struct, frozen=True):
    shard: str
    """The id of the shard."""
    range: str
    start: float
    end: float
    """Where its bar is, from 0 to 1."""
    status: str
    is_locked: bool


class MapShown(msgspec.Struct, frozen=True):
    name: str
    kind: str
    key: str
    buckets: int | None
    shards: list[ShardShown]
    mappings: list[MappingShown]
    mappings_count: int
    sharded: dict[str, list[str]]
    reference: list[str]


class JobShown(msgspec.Struct, frozen=True):
    id: str
    map: str
    kind: str
    state: str
    step: str
    step_number: int | None
    """Of a move: from 1 to `steps`."""
    subject: str
    source: str
    target: str
    rows: int
    rows_total: int
    fence_seconds: float
    made_at: str | None
    changed_at: str | None
    error: str


class CatalogShown(msgspec.Struct, frozen=True):
    location: str
    maps: list[MapShown]
    jobs: list[JobShown]
    steps: tuple[str, ...]


class _Plan(msgspec.Struct, frozen=True):
    """The parts of a stored plan that say what a job is about."""

    subject: str = ""
    source: str = ""
    target: str = ""
    low: bytes = b""
    high: bytes | None = None


class _Progress(msgspec.Struct, frozen=True):
    rows: int = 0
    rows_total: int = 0
    fence_seconds: float = 0.0
    error: str = ""


class ShardCatalog:
    """One catalog; it is opened when it is first shown."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turn = asyncio.Lock()
        self._manager: ShardMapManager | None = None

    async def read(self) -> CatalogShown:
        """Return all maps and the last jobs."""
        async with self._turn:
            return await asyncio.to_thread(self._read)

    def _read(self) -> CatalogShown:
        try:
            from partita.shards.maps.manager import ShardMapManager  # noqa: PLC0415 - an extra
            from partita.shards.moving.move_plan import STEPS  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "Configuration",
                "SQLAlchemy is not installed.",
                hint='Run: pip install "./partita[shards]"',
            ) from error
        if self._manager is None:
            self._manager = ShardMapManager.open(self._url)
        maps = self._manager.list_maps()
        return CatalogShown(
            self._manager.location.text,
            [_map_shown(each) for each in maps],
            _jobs(self._manager, maps),
            STEPS,
        )

    async def close(self) -> None:
        if self._manager is not None:
            await self._manager.aclose()


def _map_shown(shard_map: "AnyShardMap") -> MapShown:
    mappings = shard_map.mappings()
    counts: dict[str, int] = {}
    for each in mappings:
        counts[each.shard.id] = counts.get(each.shard.id, 0) + 1
    places = _places(mappings[:MAPPINGS_MAX], getattr(shard_map, "buckets", None))
    schema = shard_map.schema
    return MapShown(
        name=shard_map.name,
        kind=shard_map.kind,
        key=shard_map.key_type.name,
        buckets=getattr(shard_map, "buckets", None),
        shards=[_shard_shown(each, counts.get(each.id, 0)) for each in shard_map.shards()],
        mappings=[
            MappingShown(
                each.shard.id,
                range_text(each.range.low, each.range.high, is_point=each.range.is_point),
                *place,
                each.status.value,
                each.lock_owner is not None,
            )
            for each, place in zip(mappings, places, strict=False)
        ],
        mappings_count=len(mappings),
        sharded={
            ".".join(filter(None, (each.schema, each.name))): list(each.columns)
            for each in (schema.sharded_tables() if schema else ())
        },
        reference=[
            ".".join(filter(None, (each.schema, each.name)))
            for each in (schema.reference_tables() if schema else ())
        ],
    )


def _shard_shown(shard: "Shard", mappings: int) -> ShardShown:
    location = shard.location
    return ShardShown(shard.id, _short_name(location), location.text, shard.status.value, mappings)


def _short_name(location: "Location") -> str:
    return Path(location.database).stem if location.backend == "sqlite" else location.database


def _places(mappings: Sequence["Mapping"], buckets: int | None) -> list[tuple[float, float]]:
    """Return where the bar of each mapping starts and ends, from 0 to 1."""
    if not mappings:
        return []
    if all(each.range.is_point for each in mappings):
        width = 1 / len(mappings)
        return [(number * width, (number + 1) * width) for number in range(len(mappings))]
    bounds = [each.range.low for each in mappings] + [each.range.high for each in mappings]
    numbers = [each for each in bounds if isinstance(each, int)]
    if numbers and len(numbers) + bounds.count(None) == len(bounds):
        return _in_proportion(mappings, numbers, buckets)
    lows = {each.key_range.low for each in mappings}
    ends = {each.key_range.high for each in mappings if each.key_range.high is not None}
    ordered = {bound: number for number, bound in enumerate(sorted(lows | ends))}
    count = len(ordered) - all(each.key_range.high is not None for each in mappings)
    return [
        (
            ordered[each.key_range.low] / count,
            1.0 if each.key_range.high is None else ordered[each.key_range.high] / count,
        )
        for each in mappings
    ]


def _in_proportion(
    mappings: Sequence["Mapping"], numbers: list[int], buckets: int | None
) -> list[tuple[float, float]]:
    first, last = (0, buckets) if buckets else (min(numbers), max(numbers))
    margin = 0.0 if buckets else max(1, last - first) * 0.08
    """What an open end is drawn with."""
    low = first - (margin if any(each.range.low is None for each in mappings) else 0)
    high = last + (margin if any(each.range.high is None for each in mappings) else 0)
    span = max(1e-9, high - low)
    return [
        (
            0.0 if each.range.low is None else (each.range.low - low) / span,
            1.0 if each.range.high is None else (each.range.high - low) / span,
        )
        for each in mappings
    ]


def range_text(low: object, high: object, *, is_point: bool) -> str:
    """Return a range of keys as text: `LOW to HIGH`, without the bound that is open."""
    if is_point:
        return _key_text(low)
    if low is None:
        return "all keys" if high is None else f"below {_key_text(high)}"
    if high is None:
        return f"from {_key_text(low)}"
    return f"{_key_text(low)} to {_key_text(high)}"


def _key_text(key: Any) -> str:
    if isinstance(key, bytes):
        return f"hex:{key.hex()}"
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_text, key))})"
    return str(key)


def _jobs(manager: "ShardMapManager", maps: "Sequence[AnyShardMap]") -> list[JobShown]:
    from sqlalchemy import select  # noqa: PLC0415 - an extra

    from partita.shards.catalog.global_catalog import jobs  # noqa: PLC0415 - an extra

    by_id = {each.id: each for each in maps}
    query = select(jobs).order_by(jobs.c.changed_at.desc()).limit(JOBS_MAX)
    with manager.executor.engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    locations = manager.list_locations()
    names = {form: _short_name(each) for each in locations for form in (each.text, each.identity)}
    return [_job_shown(row, by_id.get(row["map_id"]), names) for row in rows]


def _job_shown(row: Any, shard_map: "AnyShardMap | None", names: dict[str, str]) -> JobShown:
    from partita.shards.keys.ranges import KeyRange  # noqa: PLC0415 - an extra
    from partita.shards.moving.move_plan import STEPS  # noqa: PLC0415 - an extra

    plan = msgspec.json.decode(row["plan"], type=_Plan)
    progress = msgspec.json.decode(row["progress"], type=_Progress)
    subject, step = plan.subject, row["step"]
    if not subject and shard_map is not None:
        keys = shard_map.decode_range(KeyRange(plan.low, plan.high))
        subject = range_text(keys.low, keys.high, is_point=keys.is_point)
    return JobShown(
        id=row["id"],
        map=row["map_id"] if shard_map is None else shard_map.name,
        kind=row["kind"],
        state=row["state"],
        step=step,
        step_number=STEPS.index(step) + 1 if step in STEPS else None,
        subject=names.get(subject, subject),
        source=names.get(plan.source, plan.source),
        target=names.get(plan.target, plan.target),
        rows=progress.rows,
        rows_total=progress.rows_total,
        fence_seconds=progress.fence_seconds,
        made_at=moment(row["made_at"]),
        changed_at=moment(row["changed_at"]),
        error=progress.error,
    )
