"""The design calculator: what a design costs under a load, and what would improve it. Pure.

`calculate_design` adds up the traffic of all types, compares it with the targets of the service for
one partition and one account, and proposes keys and indexes from the declared accesses alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from partita.patterns.design.access_patterns import check_access
from partita.patterns.design.key_proposals import KeyProposal, propose
from partita.patterns.design.lints import lint
from partita.patterns.design.loads import Loads, TypeLoad, load_of, read_loads
from partita.patterns.design.prices import PriceList
from partita.patterns.design.sections import Section
from partita.patterns.design.sizes import entity_bytes, index_bytes
from partita.patterns.design.traffic import (
    SECONDS_PER_MONTH,
    Traffic,
    read_traffic,
    write_traffic,
)
from partita.patterns.keys.format_specs import BUCKETS_MAX
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.entity_types import type_of_given
from partita.patterns.types.indexes import AnyIndex

PARTITION_TARGET = 2_000
"""Entities per second in one partition (Azure Storage scalability targets)."""
ACCOUNT_TARGET = 20_000
"""Entities per second in one account, of 1 KiB each (the same page)."""
WARNING_SHARE = 0.5
"""The share of a target from which a load is reported."""

_UNUSED = "UnusedIndex"
_LINT_SECTIONS = {
    "MonotonePartition": Section.PREPEND_APPEND,
    "LogData": Section.LOGS,
    "SinglePartition": Section.PARTITION_KEY,
    "OneEntityPerPartition": Section.PARTITION_KEY,
}


class PlaceFacts(msgspec.Struct, frozen=True):
    """The partitions of some types, or of an index elsewhere."""

    name: str
    """The table and the partition template."""
    entities_per_second: float
    """In the busiest partition."""
    requests_per_second: float
    """In the busiest partition."""
    scanned_per_second: float
    """The part of the entities that scans read."""
    share: float
    """Of the target of one partition."""


class StoredFacts(msgspec.Struct, frozen=True):
    """The rows of a type or of an index."""

    name: str
    table: str
    rows: int
    bytes: int
    is_copy: bool


class Finding(msgspec.Struct, frozen=True):
    """Something that should be changed, or known."""

    code: str
    subject: str
    message: str
    section: str
    page: str


class Design(msgspec.Struct, frozen=True):
    """What a design costs under a load."""

    requests_per_second: float
    entities_per_second: float
    account_share: float
    """Of the target of one account."""
    traffic: list[Traffic]
    places: list[PlaceFacts]
    """The busiest first."""
    stored: list[StoredFacts]
    bytes: int
    operations: dict[str, float]
    """Operations per month, by class."""
    costs: dict[str, Decimal]
    """The price of a month by class of operation, and of `storage`; empty without prices."""
    prices: PriceList | None
    findings: list[Finding]
    proposals: list[KeyProposal]

    @property
    def total_cost(self) -> Decimal:
        return sum(self.costs.values(), Decimal(0))


def calculate_design(
    *types: type[Any] | EntityType[Any],
    loads: Loads | Mapping[str, Any] | str,
    prices: PriceList | None = None,
) -> Design:
    """Compute what types cost under their loads, and propose keys and indexes.

    `loads` is TOML, or the same as a dict; see `loads.py` for the format.
    """
    models = [type_of_given(each) for each in types]
    known = _typed(loads)
    pairs = [(model, load_of(model, known)) for model in models]
    stored = [fact for model, load in pairs for fact in _stored(model, load)]
    traffic = [each for model, load in pairs for each in _traffic(model, load, stored)]
    places = _places(traffic)
    operations = _operations(traffic)
    total_bytes = sum(each.bytes for each in stored)
    entities = sum(each.entities for each in traffic)
    proposals = [each for model, load in pairs for each in propose(model, load)]
    return Design(
        requests_per_second=sum(each.requests for each in traffic),
        entities_per_second=entities,
        account_share=entities / ACCOUNT_TARGET,
        traffic=traffic,
        places=places,
        stored=stored,
        bytes=total_bytes,
        operations=operations,
        costs={} if prices is None else _costs(operations, total_bytes, prices),
        prices=prices,
        findings=[
            *_scan_findings(traffic),
            *_place_findings(places),
            *_account_findings(entities),
            *_index_findings(pairs),
            *_lint_findings(models),
        ],
        proposals=proposals,
    )


def _typed(loads: Loads | Mapping[str, Any] | str) -> Loads:
    if isinstance(loads, str):
        return read_loads(loads)
    if all(isinstance(each, TypeLoad) for each in loads.values()):
        return loads
    return read_loads(loads)


_Pairs = Sequence[tuple[EntityType[Any], TypeLoad]]


def _stored(model: EntityType[Any], load: TypeLoad) -> Iterator[StoredFacts]:
    size = load.bytes or entity_bytes(model)
    yield StoredFacts(model.name, model.table, load.entities, load.entities * size, is_copy=False)
    for index in model.indexes:
        total = load.entities * index_bytes(index, size)
        yield StoredFacts(_label(index), index.table, load.entities, total, is_copy=True)


def _label(index: AnyIndex) -> str:
    return f"{index.owner.name}, index {index.name}"


def _traffic(
    model: EntityType[Any], load: TypeLoad, stored: Sequence[StoredFacts]
) -> Iterator[Traffic]:
    rows = sum(each.rows for each in stored if each.table == model.table)
    yield from read_traffic(model, load, rows)
    yield from write_traffic(model, load)


def _places(traffic: Sequence[Traffic]) -> list[PlaceFacts]:
    found = []
    for name in dict.fromkeys(each.place for each in traffic):
        own = [each for each in traffic if each.place == name]
        entities = sum(each.busiest for each in own)
        place = PlaceFacts(
            name=name,
            entities_per_second=entities,
            requests_per_second=sum(each.busiest_requests for each in own),
            scanned_per_second=sum(each.busiest for each in own if each.is_scan),
            share=entities / PARTITION_TARGET,
        )
        found.append(place)
    return sorted(found, key=lambda place: -place.entities_per_second)


def _operations(traffic: Sequence[Traffic]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in traffic:
        for name, count in each.operations.items():
            found[name] = found.get(name, 0.0) + count * SECONDS_PER_MONTH
    return found


def _costs(
    operations: Mapping[str, float], total_bytes: int, prices: PriceList
) -> dict[str, Decimal]:
    found = {name: prices.cost(name, count) for name, count in operations.items()}
    return found | {"storage": prices.keep(total_bytes)}


# ---------------------------------------------------------------------------------------------
# Findings


def _finding(kind: str, subject: str, message: str, section: Section) -> Finding:
    return Finding(kind, subject, message, section.title, section.page)


def _scan_findings(traffic: Sequence[Traffic]) -> Iterator[Finding]:
    entities = sum(each.entities for each in traffic)
    requests = sum(each.requests for each in traffic)
    for each in sorted(traffic, key=lambda one: -one.entities):
        if each.is_scan and each.entities:
            message = (
                f"It reads {each.entities / each.rate:,.0f} entities in each call ({each.plan}): "
                f"{each.entities / entities:.1%} of all entities, in "
                f"{each.requests / requests:.1%} of all requests."
            )
            yield _finding("Scan", f"{each.type}: {each.name}", message, Section.QUERY_KINDS)


def _place_findings(places: Sequence[PlaceFacts]) -> Iterator[Finding]:
    for place in places:
        if place.share < WARNING_SHARE:
            continue
        rest = (place.entities_per_second - place.scanned_per_second) / PARTITION_TARGET
        advice = (
            f"Write a hash into the partition key: {{...:hash{_buckets(rest)}}}."
            if rest >= WARNING_SHARE
            else f"Scans read {place.scanned_per_second:,.0f} of them: serve these by an index."
        )
        message = (
            f"Its busiest partition has {place.entities_per_second:,.0f} entities per second; the "
            f"target is {PARTITION_TARGET:,}. {advice}"
        )
        kind = "HotPartition" if place.share >= 1 else "WarmPartition"
        yield _finding(kind, place.name, message, Section.PARTITION_KEY)


def _buckets(share: float) -> int:
    """Return a power of two that brings a partition to half of its target."""
    return min(1 << math.ceil(math.log2(max(share / WARNING_SHARE, 2))), BUCKETS_MAX)


def _account_findings(entities: float) -> Iterator[Finding]:
    if entities >= WARNING_SHARE * ACCOUNT_TARGET:
        message = (
            f"All types together have {entities:,.0f} entities per second; the target of an "
            f"account is {ACCOUNT_TARGET:,}."
        )
        kind = "AccountLimit" if entities >= ACCOUNT_TARGET else "AccountWarm"
        yield _finding(kind, "account", message, Section.GUIDELINES)


def _index_findings(pairs: _Pairs) -> Iterator[Finding]:
    for model, load in pairs:
        used = {each.via for each in _accesses(model) if load.access.get(each.name)}
        for index in model.indexes:
            if index.name not in used:
                message = (
                    "No access with a rate reads it, but every write of "
                    f"{model.name} also writes its rows."
                )
                yield _finding(_UNUSED, _label(index), message, Section.COST)


def _accesses(model: EntityType[Any]) -> list[Any]:
    return [each.access for each in check_access(model)]


def _lint_findings(models: Sequence[EntityType[Any]]) -> Iterator[Finding]:
    for model in models:
        for each in lint(model, neighbours=[other for other in models if other is not model]):
            if each.code == _UNUSED:
                continue  # because `_index_findings` decides it by the rates
            section = _LINT_SECTIONS.get(each.code, Section.GUIDELINES)
            yield _finding(each.code, model.name, f"{each.message} {each.hint}", section)
