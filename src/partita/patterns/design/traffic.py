"""The traffic of one type under a load: requests, entities and classes of operations.

The number of entities that a query reads follows from its plan: a point reads one, a range that the
keys express reads what it returns, and everything else reads the partition or the table.
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from partita.patterns.design.access_patterns import AccessPlan, check_access
from partita.patterns.design.loads import AccessLoad, TypeLoad, refused
from partita.patterns.planning.requests import QueryKind
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, ListIndex
from partita.tables import limits

SECONDS_PER_MONTH = 30 * 86_400
WORKER_OPERATIONS = {"queue": 2.0, "read": 4.0, "write": 2.0}
"""What a worker does for one change of one index elsewhere: about 8 requests."""

_SCANS = (QueryKind.MULTI_PARTITION, QueryKind.TABLE)


class Traffic(msgspec.Struct, frozen=True):
    """What one access or one kind of write causes per second."""

    type: str
    name: str
    plan: str
    """How it is read, or the kind of write."""
    rate: float
    requests: float
    entities: float
    busiest: float
    """The entities per second in the busiest partition of `place`."""
    busiest_requests: float
    place: str
    """The table and the partition template; types that share partitions share a place."""
    operations: dict[str, float]
    """Operations per second, by class."""
    is_scan: bool = False


def partitions_of(model: EntityType[Any], load: TypeLoad) -> int:
    """Return the number of partitions, given or decided by the keys; at least one."""
    if load.partitions is not None:
        return max(load.partitions, 1)
    if not model.partition.fields:
        return 1
    is_alone = not set(model.row.fields) - set(model.partition.fields)
    return max(load.entities, 1) if is_alone else 1


class _Place:
    """The partitions of a type, or of an index elsewhere; an index near has those of its type."""

    def __init__(self, of: EntityType[Any] | AnyIndex, load: TypeLoad) -> None:
        owner = of if isinstance(of, EntityType) else of.owner
        given = None if isinstance(of, EntityType) else load.indexes.get(of.name)
        is_own = isinstance(of, EntityType) or of.is_local
        self.name = f"{of.table} {of.partition.text!r}"
        if given is not None:
            self.partitions, busiest = max(given.partitions, 1), given.busiest
        elif is_own or of.partition.fields == owner.partition.fields:
            self.partitions, busiest = partitions_of(owner, load), load.busiest
        else:
            self.partitions, busiest = (load.entities or 1) if of.partition.fields else 1, None
        self.share = 1 / self.partitions if busiest is None else busiest
        """The share of the busiest partition."""
        self.mean = load.entities / self.partitions
        """The entities of a partition."""


def read_traffic(model: EntityType[Any], load: TypeLoad, table_rows: int) -> Iterator[Traffic]:
    """Yield the traffic of each access that has a rate; `table_rows` is what a scan reads."""
    plans = {each.access.name: each for each in check_access(model)}
    for name, access in load.access.items():
        planned = plans.get(name)
        if planned is None:
            raise refused("the access is not declared", f"{model.name}: {name}")
        yield _read(model, load, planned, access, table_rows)


def _read(
    model: EntityType[Any],
    load: TypeLoad,
    planned: AccessPlan,
    access: AccessLoad,
    table_rows: int,
) -> Traffic:
    plan, rate = planned.plan, access.rate
    via = plan.asked.via
    place = _Place(model, load) if via is None else _Place(via, load)
    read = _entities_read(planned, access, place.mean, table_rows)
    pages = max(len(plan.requests), math.ceil(read / limits.PAGE_ENTITIES_MAX))
    operations = {"read" if _is_point(planned) else "query": rate * pages}
    if isinstance(via, ListIndex):
        members = read if access.returns is None else access.returns
        operations["read"] = operations.get("read", 0.0) + rate * members
        read += members
    # A scan reads every partition; anything else reads the busiest one in its share of the calls.
    weight = 1.0 if plan.kind in _SCANS else place.share
    busiest = _entities_read(planned, access, load.entities * place.share,
                             int(table_rows * place.share))  # fmt: skip
    return Traffic(
        type=model.name,
        name=planned.access.name,
        plan=plan.summary,
        rate=rate,
        requests=sum(operations.values()),
        entities=rate * read,
        busiest=rate * busiest * weight,
        busiest_requests=sum(operations.values()) * place.share,
        place=place.name,
        operations=operations,
        is_scan=planned.is_scan,
    )


def _is_point(planned: AccessPlan) -> bool:
    return planned.plan.kind in (QueryKind.POINT, QueryKind.POINTS)


def _entities_read(
    planned: AccessPlan, access: AccessLoad, in_partition: float, table_rows: int
) -> float:
    """Return the entities that one call reads."""
    plan = planned.plan
    if _is_point(planned):
        return float(len(plan.requests))
    if plan.kind in _SCANS:
        return float(table_rows)
    rows = plan.asked.templates[0][1].fields
    is_narrow = plan.residual is None or set(plan.bound) & set(rows)
    return in_partition if access.returns is None or not is_narrow else access.returns


def write_traffic(model: EntityType[Any], load: TypeLoad) -> Iterator[Traffic]:
    """Yield the traffic of inserts, updates and deletes, and of the indexes that follow them."""
    local = sum(index.is_local for index in model.indexes)
    elsewhere = [index for index in model.indexes if not index.is_local]
    place = _Place(model, load)
    for verb in ("insert", "update", "delete"):
        rate = getattr(load.writes, verb)
        if not rate:
            continue
        operations = {"group" if local or elsewhere else "write": rate}
        if elsewhere:
            operations["queue"] = rate
        yield Traffic(
            type=model.name,
            name=verb,
            plan=f"{verb} with {local} copies" if local else verb,
            rate=rate,
            requests=sum(operations.values()),
            entities=rate * (1 + local),
            busiest=rate * (1 + local) * place.share,
            busiest_requests=rate * place.share,
            place=place.name,
            operations=operations,
        )
    for index in elsewhere:
        rate, place = load.writes.total, _Place(index, load)
        yield Traffic(
            type=model.name,
            name=f"worker of {index.name}",
            plan="update by a worker",
            rate=rate,
            requests=rate * sum(WORKER_OPERATIONS.values()),
            entities=rate * (WORKER_OPERATIONS["read"] + WORKER_OPERATIONS["write"]),
            busiest=2 * rate * place.share,
            busiest_requests=2 * rate * place.share,
            place=place.name,
            operations={name: rate * count for name, count in WORKER_OPERATIONS.items()},
        )
