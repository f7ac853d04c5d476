"""What is asked of which shards: the options of a fan-out, checked, and the map they speak of.

Shared by `fan_out` and `afan_out`. Reads the catalog, never a shard.
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
from partita.ticks import Clock

OPEN_TRIES_MAX = 3
"""Connections of the pool that may turn out dead before a shard counts as failed."""
VIEW_PAUSE_SECONDS, VIEW_PAUSE_SECONDS_MAX = 0.005, 0.2
"""Between looks at a map that is being changed."""
REPLANS_MAX = 10
TIMEOUT_SECONDS = 300.0
SHARD_TIMEOUT_SECONDS = 30.0
WORKERS = 16
KEYS_ASKED_SINGLY_MAX = 16
"""Up to here each key is one indexed read of the catalog; beyond, all mappings are read at once."""


class FannedMap(Protocol):
    """What a fan-out needs of a shard map."""

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
    def encode_key(self, key: Any) -> bytes: ...


class FanOutOptions(TypedDict, total=False):
    """The options of `fan_out` and `afan_out`."""

    shards: Iterable[Shard | Location | URL | str] | None
    """Only these."""
    keys: Iterable[Any] | None
    """Only the shards of these keys; an expanding parameter "keys" receives each shard's own."""
    policy: Policy
    timeout: float | None
    """Seconds that the caller may wait altogether; its own work on the rows does not count."""
    shard_timeout: float | None
    """Seconds that one shard may work altogether; waiting for a slow reader does not count."""
    workers: int
    shard_column: str | None
    order_by: OrderBy | Sequence[OrderBy] | None
    limit: int | None
    reduce: ReduceOption | None
    consistent: bool
    on_event: OnEvent | None
    clock: Clock


class FanOutPlan(msgspec.Struct, frozen=True):
    """A fan-out, ready to run."""

    shard_map: FannedMap
    statement: ShardStatement
    shards: tuple[Shard, ...]
    keys: dict[Shard, list[Any]] | None
    are_all: bool
    """Whether every shard of the map was meant."""
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
        """Whether each shard is asked by one SELECT, which has a snapshot of its own."""
        return self.view is None and self.statement.is_single

    @property
    def opens_all(self) -> bool:
        """Whether no row can be given out before every shard has answered."""
        return bool(self.statement.orderings) or self.view is not None


def fan_out_plan(shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> FanOutPlan:
    """Check the options and find the shards; typed errors before anything is asked."""
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
    )


def check_statement(
    statement: Executable, options: FanOutOptions
) -> tuple[Reduce | None, ShardStatement]:
    """Check what can be checked without the catalog."""
    _check_options(options)
    given = options.get("reduce")
    reduce = None if given is None else as_reduce(given)
    prepared = shard_statement(
        statement,
        # What is reduced is ordered and cut afterwards.
        order_by=options.get("order_by") if reduce is None else None,
        limit=options.get("limit") if reduce is None else None,
        shard_column=options.get("shard_column"),
    )
    return reduce, prepared


class ConsistentView:
    """One state of the map that the snapshots of all shards agree with.

    Each shard's snapshot holds its local catalog and its rows of one moment. A mapping has a new
    id after every change, so shards whose local ids are those of one reading of the global
    catalog own disjoint ranges: each row lies in the range of one shard, and is counted there.
    """

    def __init__(self, shard_map: FannedMap) -> None:
        if shard_map.schema is None:
            raise InvalidRequestError(
                "SchemaUnknown",
                "A consistent fan-out must know the sharding columns, and the map has no schema.",
                facts={"map": shard_map.name},
                hint="Give the map a ShardedSchema: schema= when it is created.",
            )
        self.shard_map = shard_map
        self._tables = tuple(shard_map.schema.sharded_tables())
        self._metadata = shard_map.schema.metadata
        self._mappings: dict[Shard, list[Mapping]] = {}

    def load(self, plan: FanOutPlan) -> bool:
        """Read the global catalog; say whether the plan asks the right shards still."""
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
            "A fan-out goes to given shards or to the shards of given keys.",
            hint="Give shards= or keys=, not both.",
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
            "There is no shard to ask.",
            facts={"map": shard_map.name},
            hint="Add shards with fleet.add_shard(), or name at least one shard or key.",
        )
    return shards, grouped


def _shard(shard_map: FannedMap, given: Shard | Location | URL | str) -> Shard:
    return given if isinstance(given, Shard) else shard_map.get_shard(given)


def _group_stored(shard_map: FannedMap, keys: list[Any]) -> dict[Shard, list[Any]]:
    # From the catalog, not the cache: a fan-out is not validated and would miss rows silently.
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
        raise _invalid("policy", "must be complete or partial")
    for name in ("shards", "keys"):
        if isinstance(options.get(name), str | bytes):
            raise _invalid(name, "must be a list: one of them is [one]")
    workers: object = options.get("workers", WORKERS)
    limit: object = options.get("limit")
    if not isinstance(workers, int) or workers < 1:
        raise _invalid("workers", "must be a whole number, at least 1")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise _invalid("limit", "must be a whole number, and not negative")
    if _seconds(options.get("timeout")) <= 0 or _seconds(options.get("shard_timeout")) <= 0:
        raise _invalid("timeout", "and shard_timeout must be above zero, or None")


def _invalid(name: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidFanOutOption", f"{name} {rule}.", hint="See the options of fan_out()."
    )


def _unknown(name: str) -> UnknownOptionError:
    known = sorted(FanOutOptions.__annotations__)
    hint = f"Use one of {', '.join(known)}."
    if name in {"params", "parameters"}:
        hint = "Bind values to the statement itself: statement.params(name=value)."
    elif close := get_close_matches(name, known, 1):
        hint = f"Write {close[0]}=."
    return UnknownOptionError(
        "UnknownOption",
        f"fan_out() and afan_out() have no option {name!r}.",
        facts={"option": name},
        hint=hint,
    )


class ReplanError(Exception):
    """The map changed: other shards must be asked than were planned. Never leaves the package."""


def map_changing(shard_map: FannedMap) -> OperationPendingError:
    """Return the cause where the catalogs did not agree within the time limit."""
    return OperationPendingError(
        "MapChanging",
        "The local catalog did not come to agree with the global catalog.",
        facts={"map": shard_map.name},
        hint="Try again after the change; if its process died, manager.repair() finishes it.",
    )


def changes_too_fast(shard_map: FannedMap) -> StaleMappingError:
    """Return the error where the plan was out of date each time it was made."""
    return StaleMappingError(
        "MapChanged",
        "Shards or mappings changed each time the fan-out was about to begin.",
        facts={"map": shard_map.name},
        hint="Run it again.",
    )
