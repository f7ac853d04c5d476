"""What `partita patterns adopt` inferred, as a module; what `partita patterns design` computed."""

from collections.abc import Iterator
from decimal import Decimal

from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.text import count_text
from partita.patterns.adoption.adopt import AdoptedClass
from partita.patterns.adoption.proof import Misfit
from partita.patterns.design.calculator import (
    ACCOUNT_TARGET,
    PARTITION_TARGET,
    Finding,
    PlaceFacts,
    StoredFacts,
)
from partita.patterns.design.key_proposals import KeyProposal
from partita.patterns.design.prices import PriceList
from partita.patterns.design.report_page import size_text
from partita.patterns.design.traffic import Traffic

SHOWN_MAX = 100
"""Rows that are printed for people; --json has them all."""


class Adopted(Facts, frozen=True):
    """The classes of a table; `lines` is a Python module."""

    table: str
    rows: int
    hidden: int
    type_property: str | None
    classes: list[AdoptedClass]
    misfits: list[Misfit]
    overlaps: list[tuple[str, str]]
    module: str

    @property
    def exit_status(self) -> int:
        return int(bool(self.misfits))

    def lines(self) -> Iterator[Line]:
        yield self.module
        for each in self.classes:
            yield f"# {each.name}: {each.fitting:,} of {count_text(each.rows, 'row')} fit."
        for one, other in self.overlaps:
            yield f"# {one} and {other} have no type property, and their keys can be the same."
        if self.hidden:
            yield f"# {count_text(self.hidden, 'row')} of the typed layer itself left out."
        for misfit in self.misfits[:SHOWN_MAX]:
            keys = f"{misfit.partition_key!r}, {misfit.row_key!r}"
            yield f"# Does not fit {misfit.type}: {keys}: {' '.join(misfit.reason.split())}"
        if len(self.misfits) > SHOWN_MAX:
            yield f"# ... and {len(self.misfits) - SHOWN_MAX:,} more; --json has them all."


class Designed(Facts, frozen=True):
    """What a design costs under a load."""

    requests_per_second: float
    entities_per_second: float
    account_share: float
    traffic: list[Traffic]
    places: list[PlaceFacts]
    stored: list[StoredFacts]
    bytes: int
    operations: dict[str, float]
    costs: dict[str, Decimal]
    prices: PriceList | None
    findings: list[Finding]
    proposals: list[KeyProposal]
    page: str | None = None
    """The file of the HTML page."""

    @property
    def exit_status(self) -> int:
        return int(self.account_share >= 1 or any(place.share >= 1 for place in self.places))

    def lines(self) -> Iterator[Line]:
        yield (
            f"{self.requests_per_second:,.1f} requests and {self.entities_per_second:,.1f} "
            f"entities per second: {self.account_share:,.1%} of {ACCOUNT_TARGET:,} per account."
        )
        yield ""
        yield Table(
            ("type", "access or write", "per second", "requests", "entities", "plan"),
            (
                (each.type, each.name, f"{each.rate:,g}", f"{each.requests:,.1f}",
                 f"{each.entities:,.1f}", each.plan)
                for each in self.traffic
            ),
        )  # fmt: skip
        yield ""
        yield Table(
            ("busiest partition of", "requests", "entities", f"of {PARTITION_TARGET:,}"),
            (
                (each.name, f"{each.requests_per_second:,.1f}",
                 f"{each.entities_per_second:,.1f}", f"{each.share:,.1%}")
                for each in self.places
            ),
        )  # fmt: skip
        yield ""
        yield Table(
            ("stored", "table", "rows", "size"),
            (
                (each.name, each.table, f"{each.rows:,}", size_text(each.bytes))
                for each in self.stored
            ),
        )
        yield f"All copies: {size_text(self.bytes)}."
        yield from self._cost_lines()
        for finding in self.findings:
            yield f"{finding.code}: {finding.subject}: {finding.message}"
            yield f"  guide: {finding.section} (docs/patterns/{finding.page})"
        yield ""
        if self.proposals:
            yield "From the accesses alone:"
        else:
            yield "No keys are proposed: declare accesses with @entity(access=[access(...)])."
        for each in self.proposals:
            mark = " (declared)" if each.is_declared else ""
            yield f"{each.type}, {each.access}: {each.text}{mark}"
            yield f"  because {each.reason}"
            yield f"  guide: {each.section} (docs/patterns/{each.page})"
        if self.page is not None:
            yield f"The page is in {self.page}."

    def _cost_lines(self) -> Iterator[Line]:
        yield ""
        if self.prices is None:
            return
        yield Table(
            ("class", "operations per month", self.prices.currency),
            (
                (name, f"{self.operations[name]:,.0f}" if name in self.operations else None,
                 f"{cost:,.2f}")
                for name, cost in self.costs.items()
            ),
        )  # fmt: skip
        total = sum(self.costs.values(), Decimal(0))
        yield f"A month: {total:,.2f} {self.prices.currency}, at prices of {self.prices.date}."
        yield ""
