"""What a scenario reports, and how it is printed: one JSON object and one row of a table."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

VIOLATIONS_SHOWN = 5
VIOLATION_CHARACTERS_MAX = 200
COLUMNS = (
    "scenario",
    "faults injected",
    "operations acknowledged",
    "violations",
    "recovery p50",
    "recovery max",
    "broken sibling",
)


@dataclass
class Outcome:
    """What happened in one run of a scenario, or of its broken sibling."""

    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from the end of a fault to the first operation that began later and succeeded."""


class Row(msgspec.Struct, frozen=True):
    """The result of a scenario and of its broken sibling."""

    scenario: str
    seed: int
    seconds: float
    faults: dict[str, int]
    acknowledged: int
    violations: int
    first_violations: list[str]
    recovery_p50: float | None
    recovery_max: float | None
    sibling: str
    """What is broken in the sibling."""
    caught: str
    """The first violation that the ledger found in the sibling; empty if it found none."""
    error: str = ""
    """Why the scenario did not end; empty if it did."""

    @property
    def failures(self) -> list[str]:
        """Return why the run has failed, if it has."""
        if self.error:
            return [self.error]
        checks = (
            (self.violations, f"{self.violations} violations: {self.first_violations}"),
            (not self.caught, f"the broken sibling was not caught: {self.sibling}"),
            (not self.faults, "no fault was injected"),
            (not self.acknowledged, "no operation was acknowledged"),
        )
        return [text for fails, text in checks if fails]


def row_of(
    scenario: str, *, seed: int, seconds: float, run: Outcome, sibling: str, broken: Outcome
) -> Row:
    return Row(
        scenario,
        seed,
        round(seconds, 1),
        dict(sorted(run.faults.items())),
        run.acknowledged,
        len(run.violations),
        [line[:VIOLATION_CHARACTERS_MAX] for line in run.violations[:VIOLATIONS_SHOWN]],
        percentile(run.recoveries, 0.5),
        percentile(run.recoveries, 1.0),
        sibling,
        next(iter(broken.violations), "")[:VIOLATION_CHARACTERS_MAX],
    )


def failed_row(scenario: str, *, seed: int, seconds: float, sibling: str, error: str) -> Row:
    return Row(scenario, seed, round(seconds, 1), {}, 0, 0, [], None, None, sibling, "", error)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 2)


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return one row per scenario: counts added, the largest of the recovery times.

    The median of several runs is the largest of their medians: the single times are not kept.
    """
    found: dict[str, Row] = {}
    for row in rows:
        found[row.scenario] = _added(found[row.scenario], row) if row.scenario in found else row
    return list(found.values())


def _added(one: Row, two: Row) -> Row:
    return Row(
        one.scenario,
        one.seed,
        round(one.seconds + two.seconds, 1),
        dict(sorted((Counter(one.faults) + Counter(two.faults)).items())),
        one.acknowledged + two.acknowledged,
        one.violations + two.violations,
        [*one.first_violations, *two.first_violations][:VIOLATIONS_SHOWN],
        _largest(one.recovery_p50, two.recovery_p50),
        _largest(one.recovery_max, two.recovery_max),
        one.sibling,
        one.caught and two.caught,
        one.error or two.error,
    )


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    faults = ", ".join(f"{count} {name}" for name, count in row.faults.items())
    return (
        row.scenario,
        row.error or faults or "none",
        f"{row.acknowledged:,}",
        str(row.violations),
        _seconds(row.recovery_p50),
        _seconds(row.recovery_max),
        f"{row.sibling}: {'caught' if row.caught else 'NOT CAUGHT'}",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def encoded(row: Row) -> str:
    return msgspec.json.encode(row).decode()


def decoded(line: str) -> Row:
    return msgspec.json.decode(line, type=Row)
