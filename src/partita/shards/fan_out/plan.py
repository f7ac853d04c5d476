"""Check the options of a fan-out and find its shards, for `fan_out` and `afan_out`.

This reads the global catalog, but no shard.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypedDict

import msgspec
from sqlalchemy import URL, Executable

from partita.clock import SystemClock
from partita.errors import (
    InvalidRequestError,
    OperationPendingError,
    ShardNotFoundError,
    StaleMappingError,
    UnknownOptionError,
)
from partita.shards.catalog import global_catalog
from partita.shards.connections.engines import Engines
from partita.shards.fan_out.gathering import Gathering, OnEvent, Policy
from partita.shards.fan_out.merging import Reduce, ReduceOption, as_reduce
from partita.shards.fan_out.owned_rows import OwnedRows
from partita.shards.fan_out.shard_reader import ShardReader
from partita.shards.fan_out.shard_statement import OrderBy, ShardStatement, shard_statement
from partita.shards.keys.mapping import Location, Mapping, Shard
from partita.shards.keys.schema import ShardedSchema
from partita.shards.keys.shard_key import KeyType
from partita.shards.routing.retry import AnyPolicy
from partita.ticks import Clock

REPLANS_MAX = 10
TIMEOUT_SECONDS = 300.0
SHARD_TIMEOUT_SECONDS = 30.0
WORKERS = 16
KEYS_ASKED_SINGLY_MAX = 16
"""With more keys, all mappings are read at once instead of one per key."""


class FannedMap(Protocol):
    """The part of a shard map that a fan-out uses."""

    id: str
    name: str
    kind: Any
    key_type: KeyType

    @property
    def engines(self) -> Engines: ...
    @property
    def counters(self) -> Any: ...
    @property
    def schema(self) -> ShardedSchema | None: ...
    def current_shards(self) -> list[Shard]: ...
    def forget_shards(self) -> None: ...
    def get_shard(self, where: Shard | Location | URL | str) -> Shard: ...
    def mappings(self) -> list[Mapping]: ...
    def get(self, key: Any, *, lookup: Literal["cache", "store"]) -> Mapping: ...
    def encode_key(self, key: Any, /) -> bytes: ...


class FanOutOptions(TypedDict, total=False):
    """The options of `fan_out` and `afan_out`."""

    shards: Iterable[Shard | Location | URL | str] | None
    """Only these shards."""
    keys: Iterable[Any] | None
    """Only the shards of these keys; an expanding parameter "keys" gets the keys of each shard."""
    policy: Policy
    timeout: float | None
    """Seconds that the caller may wait in total, without its own work on the rows."""
    shard_timeout: float | None
    """Seconds that one shard may work in total, without waiting for a slow caller."""
    workers: int
    shard_column: str | None
    order_by: OrderBy | Sequence[OrderBy] | None
    limit: int | None
    reduce: ReduceOption | None
    consistent: bool
    on_event: OnEvent | None
    clock: Clock
    retry: AnyPolicy | None
    """How often a shard that failed before its first row is asked again, within its time-out."""


class FanOutPlan(msgspec.Struct, frozen=True):
    """A fan-out, ready to run."""

    shard_map: FannedMap
    statement: ShardStatement
    shards: tuple[Shard, ...]
    keys: dict[Shard, list[Any]] | None
    are_all: bool
    """Whether the fan-out goes to all shards of the map."""
    policy: Policy
    timeout: float
    shard_timeout: float
    workers: int
    reduce: Reduce | None
    order_by: OrderBy | Sequence[OrderBy] | None
    limit: int | None
    on_event: OnEvent | None
    clock: Clock
    view: "ConsistentView | None" = None
    retry: AnyPolicy | None = None

    def gathering(self) -> Gathering:
        return Gathering(
            self.shards,
            self.statement,
            policy=self.policy,
            reduce=self.reduce,
            order_by=self.order_by,
            limit=self.limit,
        )

    def reader(self, index: int) -> ShardReader:
        shard = self.shards[index]
        return ShardReader(self.statement, shard, () if self.keys is None else self.keys[shard])

    @property
    def is_single(self) -> bool:
        """Whether each shard executes a single SELECT, which has a snapshot of its own."""
        return self.view is None and self.statement.is_single

    @property
    def opens_all(self) -> bool:
        """Whether no row can be returned before every shard has answered."""
        return bool(self.statement.orderings) or self.view is not None


def fan_out_plan(shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> FanOutPlan:
    """Check the options and find the shards, before any shard is read."""
    reduce, prepared = check_statement(statement, options)
    shards, keys = _shards_of(shard_map, options)
    return FanOutPlan(
        shard_map=shard_map,
        statement=prepared,
        shards=shards,
        keys=keys,
        are_all=options.get("shards") is None and keys is None,
        policy=options.get("policy", "complete"),
        timeout=_seconds(options.get("timeout", TIMEOUT_SECONDS)),
        shard_timeout=_seconds(options.get("shard_timeout", SHARD_TIMEOUT_SECONDS)),
        workers=options.get("workers", WORKERS),
        reduce=reduce,
        order_by=options.get("order_by"),
        limit=options.get("limit"),
        on_event=options.get("on_event"),
        clock=options.get("clock") or SystemClock(),
        view=ConsistentView(shard_map) if options.get("consistent") else None,
        retry=options.get("retry"),
    )


def check_statement(
    statement: Executable, options: FanOutOptions
) -> tuple[Reduce | None, ShardStatement]:
    """Check the statement and the options without reading the catalog."""
    _check_options(options)
    given = options.get("reduce")
    reduce = None if given is None else as_reduce(given)
    prepared = shard_statement(
        statement,
        # Reduced rows are ordered and limited afterwards.
        order_by=options.get("order_by") if reduce is None else None,
        limit=options.get("limit") if reduce is None else None,
        shard_column=options.get("shard_column"),
    )
    return reduce, prepared


class ConsistentView:
    """A state of the map with which the snapshots of all shards agree.

    The snapshot of a shard holds its local catalog and its rows at one time. A mapping gets a new
    id at every change, so shards whose local ids match one read of the global catalog own disjoint
    ranges: each row belongs to exactly one shard, and is counted there.
    """

    def __init__(self, shard_map: FannedMap) -> None:
        if shard_map.schema is None:
            raise InvalidRequestError(
                "SchemaUnknown",
                "A consistent fan-out needs the sharding columns, but the map has no schema.",
                facts={"map": shard_map.name},
                hint="Pass schema= when the map is created, or call set_schema().",
            )
        self.shard_map = shard_map
        self._tables = tuple(shard_map.schema.sharded_tables())
        self._metadata = shard_map.schema.metadata
        self._mappings: dict[Shard, list[Mapping]] = {}

    def load(self, plan: FanOutPlan) -> bool:
        """Read the global catalog; return whether the plan still has the right shards."""
        mappings = self.shard_map.mappings()
        self._mappings = {}
        for mapping in mappings:
            self._mappings.setdefault(mapping.shard, []).append(mapping)
        if plan.keys is not None:
            keys = [key for keys in plan.keys.values() for key in keys]
            return _group(self.shard_map, keys, mappings) == plan.keys
        if not plan.are_all or set(self._mappings) <= set(plan.shards):
            return True
        self.shard_map.forget_shards()
        return False

    def agrees(self, shard: Shard, local_ids: frozenset[str]) -> bool:
        return {mapping.id for mapping in self._mappings.get(shard, ())} == local_ids

    def owned(self, shard: Shard) -> OwnedRows:
        mappings = sorted(self._mappings.get(shard, ()), key=lambda each: each.key_range)
        is_hashed = getattr(self.shard_map.kind, "value", self.shard_map.kind) == "hash"
        return OwnedRows(
            tables=self._tables,
            key_type=self.shard_map.key_type,
            key_ranges=tuple(mapping.key_range for mapping in mappings),
            ranges=() if is_hashed else tuple(mapping.range for mapping in mappings),
            position_of=self.shard_map.encode_key,
            metadata=self._metadata,
        )


def _shards_of(
    shard_map: FannedMap, options: FanOutOptions
) -> tuple[tuple[Shard, ...], dict[Shard, list[Any]] | None]:
    given, keys = options.get("shards"), options.get("keys")
    if given is not None and keys is not None:
        raise InvalidRequestError(
            "ShardsAndKeys",
            "shards= and keys= cannot be combined.",
            hint="Pass shards= or keys=, not both.",
        )
    grouped = None if keys is None else _group_stored(shard_map, list(keys))
    if grouped is not None:
        shards = tuple(grouped)
    else:
        named = (
            shard_map.current_shards()
            if given is None
            else [_shard(shard_map, one) for one in given]
        )
        shards = tuple(dict.fromkeys(named))
    if not shards:
        raise ShardNotFoundError(
            "NoShards",
            "The fan-out has no shards.",
            facts={"map": shard_map.name},
            hint="Add shards with fleet.add_shard(), or pass at least one shard or key.",
        )
    return shards, grouped


def _shard(shard_map: FannedMap, given: Shard | Location | URL | str) -> Shard:
    return given if isinstance(given, Shard) else shard_map.get_shard(given)


def _group_stored(shard_map: FannedMap, keys: list[Any]) -> dict[Shard, list[Any]]:
    # Not from the cache: a fan-out is not validated, and a stale mapping would miss rows.
    if len(keys) > KEYS_ASKED_SINGLY_MAX:
        return _group(shard_map, keys, shard_map.mappings())
    grouped: dict[Shard, list[Any]] = {}
    for key in dict.fromkeys(keys):
        grouped.setdefault(shard_map.get(key, lookup="store").shard, []).append(key)
    return grouped


def _group(
    shard_map: FannedMap, keys: Iterable[Any], mappings: Iterable[Mapping]
) -> dict[Shard, list[Any]]:
    ordered = sorted(mappings, key=lambda mapping: mapping.key_range)
    lows = [mapping.key_range.low for mapping in ordered]
    grouped: dict[Shard, list[Any]] = {}
    for key in dict.fromkeys(keys):
        encoded = shard_map.encode_key(key)
        place = bisect_right(lows, encoded) - 1
        if place < 0 or not ordered[place].key_range.contains(encoded):
            raise global_catalog.key_not_mapped(shard_map.name, key)
        grouped.setdefault(ordered[place].shard, []).append(key)
    return grouped


def _seconds(given: float | None) -> float:
    return float("inf") if given is None else float(given)


def _check_options(options: FanOutOptions) -> None:
    for name in options:
        if name not in FanOutOptions.__annotations__:
            raise _unknown(name)
    policy = options.get("policy", "complete")
    if policy not in ("complete", "partial"):
        raise _invalid("policy", 'must be "complete" or "partial"')
    for name in ("shards", "keys"):
        if isinstance(options.get(name), str | bytes):
            raise _invalid(name, "must be a list, even for one element")
    workers: object = options.get("workers", WORKERS)
    limit: object = options.get("limit")
    if not isinstance(workers, int) or workers < 1:
        raise _invalid("workers", "must be a whole number, at least 1")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise _invalid("limit", "must be a whole number, and not negative")
    if _seconds(options.get("timeout")) <= 0 or _seconds(options.get("shard_timeout")) <= 0:
        raise _invalid("timeout", "and shard_timeout must be greater than zero, or None")


def _invalid(name: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidFanOutOption",
        f"{name} {rule}.",
        hint="See the options of fan_out() in its documentation.",
    )


def _unknown(name: str) -> UnknownOptionError:
    known = sorted(FanOutOptions.__annotations__)
    hint = f"Use one of {', '.join(known)}."
    if name in {"params", "parameters"}:
        hint = "Bind the values to the statement: statement.params(name=value)."
    elif close := get_close_matches(name, known, 1):
        hint = f"Write {close[0]}=."
    return UnknownOptionError(
        "UnknownOption",
        f"fan_out() and afan_out() have no option {name!r}.",
        facts={"option": name},
        hint=hint,
    )


class ReplanError(Exception):
    """The map has changed, and the plan must be made again. Never leaves the package."""


def map_changing(shard_map: FannedMap) -> OperationPendingError:
    """Return the error if the catalogs did not agree within the time-out."""
    return OperationPendingError(
        "MapChanging",
        "The local catalog and the global catalog did not agree in time.",
        facts={"map": shard_map.name},
        hint="Try again after the change of the map. If its process died, call manager.repair().",
    )


def changes_too_fast(shard_map: FannedMap) -> StaleMappingError:
    """Return the error if every plan was outdated before it ran."""
    return StaleMappingError(
        "MapChanged",
        "The map changed each time the fan-out was about to start.",
        facts={"map": shard_map.name},
        hint="Repeat the fan-out.",
    )
