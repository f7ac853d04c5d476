"""The ledgers and the report of `make chaos`: what they must find, and what they must allow."""

from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.blob_client import BlobLedger, BlobWireClient
from chaos.outbox import GuestLedger, Rows
from chaos.report import Outcome, Row, decoded, encoded, failed_row, merged, row_of, table
from chaos.run import run_one, scenarios
from chaos.scenario import Run, Scenario
from chaos.shard_map import differences
from crash.blob_workload import content_of
from crash.live import GoneError

ANNA = ("Astor", "m1x1", "a")
ANNA_ROWS = {("Astor", "code_a_00000001"), ("Astor", "mail_m1x1"), ("m1x1", "Astor_00000001")}


def a_row(**changes: Any) -> Row:
    run = Outcome(Counter(kill=2), 10, [], [0.5, 1.0, 4.0])
    broken = Outcome(violations=["lost"])
    given: dict[str, Any] = {
        "seed": 1,
        "seconds": 3.0,
        "run": run,
        "sibling": "hasty",
        "broken": broken,
    }
    return row_of("services", **(given | changes))


# --- the report -----------------------------------------------------------------------------


def test_a_run_without_violations_whose_sibling_was_caught_succeeds() -> None:
    assert a_row().failures == []
    assert decoded(encoded(a_row())) == a_row()


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"broken": Outcome()}, "the broken sibling was not caught: hasty"),
        ({"run": Outcome(Counter(kill=1), 1, ["p0 is lost"])}, "1 violations: ['p0 is lost']"),
        ({"run": Outcome(Counter(), 1)}, "no fault was injected"),
        ({"run": Outcome(Counter(kill=1), 0)}, "no operation was acknowledged"),
    ],
)
def test_a_run_that_proves_nothing_fails(changes: dict[str, Any], failure: str) -> None:
    assert a_row(**changes).failures == [failure]


def test_a_scenario_that_does_not_end_fails() -> None:
    row = failed_row("states", seed=1, seconds=9, sibling="hasty", error="did not end in time")

    assert row.failures == ["did not end in time"]


def test_the_table_has_the_sums_of_repeated_runs() -> None:
    again = a_row(run=Outcome(Counter(kill=1, reset=1), 5, ["x"], [7.0]), broken=Outcome())

    assert table(merged([a_row(), again])).splitlines()[2:] == [
        "| services | 3 kill, 1 reset | 15 | 1 | 7.00 s | 7.00 s | hasty: NOT CAUGHT |"
    ]
    assert table([a_row()]).splitlines()[2] == (
        "| services | 2 kill | 10 | 0 | 1.00 s | 4.00 s | hasty: caught |"
    )


# --- the runner -----------------------------------------------------------------------------


def test_every_kind_of_fault_is_injected_however_short_the_time() -> None:
    names = ["kill", "reset", "delay"]

    assert sorted(Run(Path(), Random(1), 0).faults(names)) == sorted(names)
    assert len(list(Run(Path(), Random(1), 0, is_broken=True).faults(names))) == 1


def test_the_sibling_is_run_until_it_is_caught() -> None:
    runs: list[bool] = []

    def scenario(run: Run) -> Outcome:
        runs.append(run.is_broken)
        found = ["lost"] if runs.count(True) == 2 else []
        return Outcome(Counter(kill=1), 1, found)

    row = run_one(Scenario("services", "hasty", scenario), 1, 0)

    assert runs == [False, True, True]
    assert row.caught == "lost"


def test_every_scenario_has_a_name_and_a_sibling_of_its_own() -> None:
    found = scenarios()

    assert len({each.name for each in found}) == len(found)
    assert all(each.sibling for each in found)


# --- blobs ----------------------------------------------------------------------------------


class FakeBlobs:
    """Blobs in a dictionary; a write may be done and its answer lost."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.loses_answer = False

    def put(self, name: str, content: bytes) -> None:
        self.stored[name] = content
        if self.loses_answer:
            raise GoneError

    put_blocks = put

    def delete(self, name: str) -> None:
        self.stored.pop(name, None)

    def get(self, name: str) -> bytes | None:
        return self.stored.get(name)


def written() -> tuple[BlobLedger, Any]:
    ledger, blobs = BlobLedger(1), FakeBlobs()
    client: Any = blobs
    for _ in range(30):
        ledger.step(client, "b")
    return ledger, blobs


def test_the_ledger_of_blobs_allows_what_was_told_or_asked_for_later() -> None:
    ledger, blobs = written()
    assert ledger.check(blobs) == []
    blobs.loses_answer = True
    with pytest.raises(GoneError):
        ledger.step(blobs, "b")

    assert ledger.check(blobs) == []
    assert all(len(states) == 1 for states in ledger.allowed.values())


@pytest.mark.parametrize("content", [None, content_of("b-0", 999), b"\0\0\0\1torn"])
def test_the_ledger_of_blobs_finds_a_lost_an_invented_and_a_torn_version(
    content: bytes | None,
) -> None:
    ledger, blobs = written()
    if content is None:
        del blobs.stored["b-0"]
    else:
        blobs.stored["b-0"] = content
    client: BlobWireClient = blobs

    assert [line.split()[1] for line in ledger.check(client)] == ["b-0"]


# --- the outbox -----------------------------------------------------------------------------


def a_ledger(*lines: tuple[str, tuple[str, ...] | None]) -> GuestLedger:
    ledger = GuestLedger()
    for word, state in lines:
        ledger.take(word, 1, state, False)
    return ledger


def test_the_ledger_of_guests_allows_either_end_of_an_operation_without_an_answer() -> None:
    ledger = a_ledger(("asked", ANNA), ("told", ANNA), ("asked", None))

    assert ledger.check(Rows({1: [ANNA]}, ANNA_ROWS)) == []
    assert ledger.check(Rows()) == []


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (Rows(), ["guest 1 is None, allowed are [('Astor', 'm1x1', 'a')]"]),
        (
            Rows({1: [ANNA]}, ANNA_ROWS - {("Astor", "mail_m1x1")}),
            ["index row ('Astor', 'mail_m1x1') is missing"],
        ),
        (
            Rows({1: [ANNA]}, ANNA_ROWS | {("Ritz", "mail_m1x1")}),
            ["index row ('Ritz', 'mail_m1x1') is an orphan"],
        ),
        (
            Rows({1: [ANNA], 2: [ANNA]}, ANNA_ROWS),
            [
                "guest 2 was never saved",
                "index row ('Astor', 'code_a_00000002') is missing",
                "index row ('m1x1', 'Astor_00000002') is missing",
            ],
        ),
    ],
    ids=["lost", "missing", "orphan", "invented"],
)
def test_the_ledger_of_guests_finds_lost_guests_and_wrong_indexes(
    rows: Rows, wrong: list[str]
) -> None:
    assert a_ledger(("asked", ANNA), ("told", ANNA)).check(rows) == wrong


def test_the_ledger_of_guests_finds_a_started_transaction_that_was_not_run() -> None:
    ledger = a_ledger(("told", ANNA))
    ledger.take("told", 1, ANNA, True)

    assert ledger.check(Rows({1: [ANNA]}, ANNA_ROWS)) == ["guest 1 was not greeted"]
    assert ledger.check(Rows({1: [ANNA]}, ANNA_ROWS, {1})) == []


# --- shards ---------------------------------------------------------------------------------


def a_map(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> Any:
    """Tenants 5 and 42 belong to shard one, tenant 150 to shard two."""
    return SimpleNamespace(
        one="one",
        two="two",
        notes={"one": one, "two": two}.__getitem__,
        tenants=SimpleNamespace(
            get=lambda tenant, lookup: SimpleNamespace(shard="one" if tenant < 100 else "two")
        ),
    )


@pytest.mark.parametrize(
    ("one", "two", "wrong"),
    [
        ([(5, 1), (42, 2)], [(150, 3)], []),
        ([(5, 1), (42, 2)], [], ["note (150, 3) is lost"]),
        (
            [(5, 1)],
            [(42, 2), (150, 3)],
            ["note (42, 2) is on a shard that does not own it"],
        ),
        (
            [(5, 1), (42, 2)],
            [(150, 3), (5, 1)],
            [
                "note (5, 1) is on a shard that does not own it",
                "note (5, 1) is stored 2 times",
            ],
        ),
        (
            [(5, 1), (42, 2), (5, 8), (5, 9)],
            [(150, 3)],
            ["2 notes were not asked for, 1 writers were killed"],
        ),
    ],
    ids=["whole", "lost", "misplaced", "doubled", "invented"],
)
def test_the_ledger_of_notes_finds_lost_doubled_and_misplaced_rows(
    one: list[tuple[int, int]], two: list[tuple[int, int]], wrong: list[str]
) -> None:
    done = {(5, 1), (42, 2), (150, 3)}

    assert differences(a_map(one, two), done, set(), 1) == wrong
