"""Query plans: the requests of a query, their filters, and the conditions evaluated here. Pure.

A plan includes every entity that matches the query, and its kind is the one that the service
would use for its requests (the guide's "How your choice of PartitionKey and RowKey impacts query
performance").
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from partita.errors import UsageError
from partita.patterns.fields.fields import Field
from partita.patterns.keys.coarse_parts import Period
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_text import successor
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.planning.columns import (
    NEVER,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Negated,
    Operator,
    StartsWith,
    all_of,
    conjuncts,
    fields_in,
    find_field,
    stored_form,
)
from partita.patterns.planning.filter_text import check_length, evaluate_values, grouped, quoted
from partita.patterns.planning.key_conditions import Branch, branches_of, is_about, is_exact
from partita.patterns.planning.requests import (
    Hull,
    PointRead,
    QueryKind,
    RangeRead,
    Read,
    ScanRead,
    Spot,
    gather,
    kind_of,
)
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, ListIndex, Storage
from partita.patterns.types.row_layout import COPY_MARK, PART_MARK, VERSION

__all__ = [
    "Asked",
    "PointRead",
    "QueryKind",
    "QueryPlan",
    "RangeRead",
    "Read",
    "ScanRead",
    "conditions_of",
    "plan_query",
    "worse",
]


class Asked(msgspec.Struct, frozen=True):
    """The query of a plan."""

    model: EntityType[Any]
    given: Mapping[str, Any]
    condition: Condition | None = None
    via: AnyIndex | None = None

    @property
    def templates(self) -> list[tuple[KeyTemplate, KeyTemplate]]:
        """The key templates to search: those of the index, or of the type and its children."""
        if self.via is not None:
            return [(self.via.partition, self.via.row)]
        pairs = {
            (each.partition.text, each.row.text): (each.partition, each.row)
            for each in self.model.family()
            if not each.is_abstract
        }
        return list(pairs.values()) or [(self.model.partition, self.model.row)]

    @property
    def is_untyped(self) -> bool:
        """Whether only the keys distinguish the entities of the type from others in the table."""
        return self.via is None and self.model.type_property is None

    @property
    def keys(self) -> frozenset[str]:
        """The fields that all these keys have."""
        found = [{*partition.fields, *row.fields} for partition, row in self.templates]
        return frozenset(set.intersection(*found))


class QueryPlan(msgspec.Struct, frozen=True):
    """Perform `requests` with `filter`, and keep the entities for which `client` is true."""

    kind: QueryKind
    table: str
    requests: tuple[Read, ...]
    """In key order, without overlap."""
    bound: tuple[str, ...]
    """The key fields that limit the requests."""
    asked: Asked
    filter: str = ""
    """The filter of the service on each entity: its type and the residual. Points have none."""
    client: Condition | None = None
    """The condition evaluated here, on the whole entity."""
    served: Condition | None = None
    """The condition evaluated by the service, besides the type."""
    residual: Condition | None = None
    """The conditions that key bounds do not express, wherever they are evaluated."""
    is_merged: bool = False
    """Whether the answers are merged by row key, because a hash distributes the partition."""

    @property
    def est_requests(self) -> int:
        """The minimum number of requests: a range can take several pages."""
        return len(self.requests)

    @property
    def is_ordered(self) -> bool:
        """Whether the requests, one after another, return entities in key order."""
        return not self.is_merged

    @property
    def is_refused(self) -> bool:
        """Whether the query requires allow_scan()."""
        return self.kind in (QueryKind.MULTI_PARTITION, QueryKind.TABLE)

    def filter_of(self, read: Read) -> str:
        """Return the whole filter of one request."""
        return check_length(" and ".join(filter(None, (read.bounds_text(), self.filter))))

    @property
    def summary(self) -> str:
        """One line without values, the same for every call of a query; stored in partita.lock."""
        via = self.asked.via
        parts = [self.kind.value, self.table]
        parts += [] if via is None else [f"via {via.name}"]
        parts += [f"by {', '.join(self.bound)}"] if self.bound else []
        if self.residual is not None:
            names = dict.fromkeys(field.name for field in fields_in(self.residual))
            parts.append(f"residual {', '.join(names)}")
        return " ".join(parts)


def worse(this: QueryPlan, that: QueryPlan) -> bool:
    """Return whether `this` plan costs more than `that` plan."""
    return _cost(this) > _cost(that)


def _cost(plan: QueryPlan) -> tuple[int, bool, int]:
    spread = len(plan.requests) if plan.kind is QueryKind.SPREAD else 0
    return plan.kind.rank, plan.residual is not None, spread


def plan_query(
    model: EntityType[Any],
    given: Mapping[str, Any],
    condition: Condition | None = None,
    *,
    via: AnyIndex | None = None,
) -> QueryPlan:
    """Return the plan for the entities with the given key fields that satisfy a condition.

    `given` has values or Intervals of key fields: those of the index, if there is one.
    """
    asked = Asked(model, given, condition, via)
    if condition is None and (point := _find_point(asked)) is not None:
        return point
    if condition is not None:
        _check_columns(model, condition)
    wanted = [*conditions_of(asked), *conjuncts(condition)]
    if NEVER in wanted:
        return _made(asked, (), [], [])
    keys = asked.keys
    of_keys = [each for each in wanted if is_about(each, keys)]
    branches, left_out = branches_of(wanted, keys)
    found = [_find(asked, pair, branch, of_keys) for pair in asked.templates for branch in branches]
    reads, hull = gather([spot for each in found for spot in each.spots])
    if not all(isinstance(read, PointRead) for read in reads):
        _check_storage(via)
    inexact = {id(each) for each in left_out} | {
        id(each) for each in wanted if not is_exact(each, keys)
    }
    rest = [
        each
        for each in wanted
        if not is_about(each, keys)
        or not _is_expressed(each, found, hull, is_inexact=id(each) in inexact)
    ]
    return _made(asked, reads, rest, found)


def _check_columns(model: EntityType[Any], condition: Condition) -> None:
    """Raise for columns of another table, which may have a field of the same name."""
    for field in fields_in(condition):
        own = find_field(model, field.name)
        if own is field:
            continue
        owner, _, _ = field.codec.where.rpartition(".")
        if owner not in {each.name for each in model.lineage()}:
            raise UsageError(
                "ColumnOfAnother",
                f"The condition is on {field.codec.where}, but the query is on {model.name}.",
                facts={"type": model.name, "field": field.name},
                hint="Use the columns of the queried table: table.where(table.c.field == ...).",
            )


def _find_point(asked: Asked) -> QueryPlan | None:
    """Return the plan of a point query, the most common one; None for any other query."""
    pairs = asked.templates
    partition, row = pairs[0]
    names = tuple(dict.fromkeys(partition.fields + row.fields))
    is_point = len(pairs) == 1 and asked.given.keys() == set(names)
    if not is_point or any(isinstance(limit, Interval) for limit in asked.given.values()):
        return None
    if isinstance(asked.via, ListIndex) or (asked.via is not None and _lost(partition, row)):
        return None
    key = RowKey(partition.format(asked.given), row.format(asked.given))
    return QueryPlan(
        kind=QueryKind.POINT,
        table=asked.model.table if asked.via is None else asked.via.table,
        requests=(PointRead(key),),
        bound=names,
        asked=asked,
    )


def conditions_of(asked: Asked) -> list[Condition]:
    """Return the given key fields as conditions."""
    model, known = asked.model, asked.keys
    found: list[Condition] = []
    for name, limit in asked.given.items():
        field = find_field(model, name)
        if name not in known:
            place = model.name if asked.via is None else f"the index {asked.via.name!r}"
            raise UsageError(
                "NotAKeyField",
                f"{name!r} is not a key field of {place}.",
                facts={"type": model.name, "field": name},
                hint=f"Give key fields ({', '.join(sorted(known)) or 'there are none'}), and use "
                f"where(c.{name} == ...) for other fields.",
            )
        found += _of_limit(field, limit)
    return found


def _of_limit(field: Field, limit: Any) -> Iterator[Condition]:
    if not isinstance(limit, Interval):
        yield _compared(field, "eq", limit)
        return
    if limit.prefix is not None:
        yield StartsWith(field, limit.prefix)
    if limit.lower is not None:
        yield _compared(field, "ge" if limit.has_lower_inside else "gt", limit.lower)
    if limit.upper is not None:
        yield _compared(field, "le" if limit.has_upper_inside else "lt", limit.upper)


def _compared(field: Field, operator: Operator, value: object) -> Condition:
    return Compare(field, operator, value, stored_form(field, value))


# ---------------------------------------------------------------------------------------------
# The key ranges of one branch


class _Found(msgspec.Struct, frozen=True):
    """The key ranges of a branch, and the fields whose conditions hold for all keys in them."""

    spots: tuple[Spot, ...]
    expressed: frozenset[str] = frozenset()
    of_partition: frozenset[str] = frozenset()
    """The expressed fields that the partition key alone expresses."""
    bound: tuple[str, ...] = ()
    is_exact: bool = True
    """Whether a key that was asked for has only entities with the values that were asked for."""
    is_hashed: bool = False
    """Whether the partitions were enumerated by a hash."""

    @property
    def is_settled(self) -> bool:
        """Whether all conditions on key fields were evaluated, because their values are known."""
        return self.is_exact and all(spot.point is not None for spot in self.spots)


def _find(
    asked: Asked,
    templates: tuple[KeyTemplate, KeyTemplate],
    branch: Branch,
    of_keys: list[Condition],
) -> _Found:
    partition, row = templates
    rows = row.bounds(branch.limits, is_tight=asked.is_untyped)
    known = branch.values(partition.fields)
    if rows.is_empty:
        return _Found(())
    if known is not None:
        partitions: tuple[str, ...] = (partition.format(known),)
    elif partition.is_countable(branch.limits):
        partitions = partition.spread_values(branch.limits)
    else:
        return _find_open(asked, templates, branch)
    in_partition = frozenset(part.field for part in partition.parts() if part.is_full)
    expressed = in_partition
    row_values = branch.values(row.fields)
    if row_values is not None:
        spots = _spots_of_row(asked.via, partitions, row.format(row_values), rows.upper)
        values = {**(known or {}), **row_values}
        if known is not None and not all(evaluate_values(each, values) for each in of_keys):
            return _Found(())
        expressed |= frozenset(part.field for part in row.parts() if part.is_full)
    else:
        spots = tuple(Spot(each, rows.lower, rows.upper) for each in partitions)
        expressed |= rows.expressed
    return _Found(
        spots,
        expressed - branch.blurred,
        in_partition - branch.blurred,
        _bound(templates, branch, expressed | _limiting(partition, known)),
        is_exact=known is not None and not _lost(partition, row),
        is_hashed=known is None and partition.spread is not None,
    )


def _lost(partition: KeyTemplate, row: KeyTemplate) -> set[str]:
    """Return the fields of which the keys of an index have only a hash or another coarse form."""
    parts = (*partition.parts(), *row.parts())
    return {part.field for part in parts} - {part.field for part in parts if part.is_full}


def _limiting(partition: KeyTemplate, known: Mapping[str, Any] | None) -> set[str]:
    """Return the fields that limit enumerated partitions, or the one known partition."""
    if known is not None:
        return set(known)
    return {part.field for part in partition.parts() if isinstance(part, Period)}


def _find_open(asked: Asked, templates: tuple[KeyTemplate, KeyTemplate], branch: Branch) -> _Found:
    partitions, rows = (
        template.bounds(branch.limits, is_tight=asked.is_untyped) for template in templates
    )
    if partitions.is_empty:
        return _Found(())
    expressed = (partitions.expressed | rows.expressed) - branch.blurred
    spot = Spot(
        partitions.lower,
        rows.lower,
        rows.upper,
        is_open=True,
        partition_upper=partitions.upper,
    )
    bound = _bound(templates, branch, partitions.expressed)
    return _Found((spot,), expressed, bound=bound)


def _spots_of_row(
    via: AnyIndex | None, partitions: tuple[str, ...], row: str, upper: str | None
) -> tuple[Spot, ...]:
    if isinstance(via, ListIndex) and via.storage is Storage.ROWS:
        members = row + PART_MARK
        return tuple(Spot(each, members, successor(members)) for each in partitions)
    return tuple(Spot(each, row, upper, RowKey(each, row)) for each in partitions)


def _check_storage(via: AnyIndex | None) -> None:
    if isinstance(via, ListIndex) and via.storage is Storage.BLOB:
        raise UsageError(
            "NotAKeyField",
            f"The index {via.name!r} is stored in blobs and requires all of its key fields.",
            facts={"index": via.name},
            hint=f"Give one value each for {', '.join(via.key_fields)}.",
        )


def _bound(
    templates: tuple[KeyTemplate, KeyTemplate], branch: Branch, used: frozenset[str] | set[str]
) -> tuple[str, ...]:
    names = dict.fromkeys(templates[0].fields + templates[1].fields)
    return tuple(name for name in names if name in branch.limits and name in used)


def _is_expressed(
    condition: Condition, found: list[_Found], hull: Hull, *, is_inexact: bool
) -> bool:
    """Return whether a condition holds for everything that the requests return."""
    names = {field.name for field in fields_in(condition)}
    match hull:
        case Hull.PARTITIONS:
            return False
        case Hull.ROWS:
            return not is_inexact and all(names <= each.of_partition for each in found)
        case Hull.NOTHING:
            return all(
                each.is_settled or (not is_inexact and names <= each.expressed) for each in found
            )


def _made(
    asked: Asked, reads: tuple[Read, ...], rest: list[Condition], found: list[_Found]
) -> QueryPlan:
    kind = kind_of(reads)
    is_points = kind in (QueryKind.POINT, QueryKind.POINTS)
    served = [each for each in rest if not is_points and _is_served(asked, each)]
    client = rest
    if not any(each.upcasters for each in asked.model.family()):
        # With upcasters, the filter lets older versions through, to be evaluated when upcast.
        client = [each for each in rest if not any(each is other for other in served)]
    bound = dict.fromkeys(name for each in found if each.spots for name in each.bound)
    return QueryPlan(
        kind=kind,
        table=asked.model.table if asked.via is None else asked.via.table,
        requests=reads,
        filter="" if is_points else _filter_text(asked, served),
        client=all_of(*client) if client else None,
        served=all_of(*served) if served else None,
        residual=all_of(*rest) if rest else None,
        bound=tuple(bound),
        asked=asked,
        is_merged=kind is QueryKind.SPREAD and any(each.is_hashed for each in found),
    )


# ---------------------------------------------------------------------------------------------
# Conditions that the service evaluates


def _is_served(asked: Asked, condition: Condition) -> bool:
    """Return whether the service can evaluate a condition on the row that is read."""
    if asked.model.encrypt is not None or isinstance(asked.via, ListIndex):
        return False
    if not _sorts_as_stored(condition):
        return False
    names = {field.name for field in fields_in(condition)}
    if asked.via is not None:
        return names <= set(asked.via.copied)
    return all(
        _is_alike(field, each.fields[field.name]) and _is_in_first_row(each, field)
        for field in fields_in(condition)
        for each in asked.model.family()
    )


def _sorts_as_stored(condition: Condition) -> bool:
    match condition:
        case Compare(field, operator):
            return operator in ("eq", "ne") or field.codec.is_ordered
        case Negated():
            return _sorts_as_stored(condition.condition)
        case AllOf() | AnyOf():
            return all(map(_sorts_as_stored, condition.conditions))
        case _:
            return True


def _is_alike(this: Field, that: Field) -> bool:
    """Return whether a type and a derived type store a field in the same way."""
    ways = [(field.is_key, field.property, field.codec.edm) for field in (this, that)]
    return not this.is_key and ways[0] == ways[1]


def _is_in_first_row(model: EntityType[Any], field: Field) -> bool:
    """Return whether a field is in the first row of an entity, which filters can read."""
    return model.layout.places.get(field.property, 0) == 0


def _filter_text(asked: Asked, served: list[Condition]) -> str:
    """Return the filter text: the type of the entities, and the conditions."""
    types = [asked.via.owner] if asked.via is not None else _stored_types(asked.model)
    name = asked.model.type_property
    if not served or not any(each.upcasters for each in types):
        texts = [] if name is None else [_one_of([_type_text(asked, each) for each in types])]
        return " and ".join([*texts, *map(grouped, served)])
    return _one_of([_versioned(asked, each, served) for each in types])


def _versioned(asked: Asked, model: EntityType[Any], served: list[Condition]) -> str:
    """Return filter text with the conditions for the current version, and all older entities."""
    texts = [] if model.type_property is None else [_type_text(asked, model)]
    conditions = " and ".join(map(grouped, served))
    if model.upcasters:
        conditions = f"(not ({VERSION} eq {model.version}) or {conditions})"
    return " and ".join([*texts, conditions])


def _type_text(asked: Asked, model: EntityType[Any]) -> str:
    suffix = "" if asked.via is None else COPY_MARK + asked.via.name
    return f"{model.type_property} eq {quoted(model.name + suffix)}"


def _one_of(texts: list[str]) -> str:
    joined = " or ".join(texts) or "false"
    return f"({joined})" if " or " in joined else joined


def _stored_types(model: EntityType[Any]) -> list[EntityType[Any]]:
    return [each for each in model.family() if not each.is_abstract]
