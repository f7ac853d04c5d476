"""The design calculator, on the guide's own employees."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from partita.errors import UsageError
from partita.patterns import design
from partita.patterns.design.access_patterns import access, check_access
from partita.patterns.design.calculator import Design, calculate_design
from partita.patterns.design.prices import read_prices
from partita.patterns.design.report_page import report_page
from partita.patterns.types.decorators import entity
from partita.patterns.types.indexes import index, list_index

EXAMPLE_PRICES = (Path(design.__file__).parent / "prices.toml").read_text("utf-8")


@entity(
    table="staff",
    partition="{dept}",
    row="emp_{id:06d}",
    access=[
        access("one employee", get=("dept", "id")),
        access("a department", partition=("dept",)),
        access("by e-mail in a department", get=("dept", "email"), via="by_email"),
        access("by last name in a department", partition=("dept",), where=("last",)),
        access("by e-mail", where=("email",), allow="scan"),
        access("the yearly report", where=("age",), allow="scan"),
    ],
)
class Employee:
    dept: str
    id: int
    last: str
    email: str
    age: int = 0


index(Employee, row="email_{email}", unique=True, name="by_email")
list_index(Employee, row="age_{age:03d}", name="by_age")


@entity(
    table="staff",
    partition="{dept}",
    row="rev_{employee:06d}_{year:04d}",
    access=[
        access("one review", get=("dept", "employee", "year")),
        access("latest reviews", partition=("dept", "employee"), range=("year",)),
    ],
)
class Review:
    dept: str
    employee: int
    year: int
    rating: int = 0


@entity(
    table="expenses",
    partition="{employee:06d}",
    row="{at:desc}",
    access=[
        access("one expense", get=("employee", "at")),
        access("latest expenses", partition=("employee",), range=("at",)),
    ],
)
class Expense:
    employee: int
    at: datetime
    amount: int = 0


@entity(
    table="read",
    partition="{device:03d}",
    row="{at:desc}",
    access=[
        access("the newest", partition=("device",)),
        access("alarms", where=("alarm",), allow="scan"),
    ],
)
class Reading:
    device: int
    at: datetime
    alarm: bool = False


def employees(**rates: dict[str, float]) -> dict[str, Any]:
    names = {each.replace(" ", "_").replace("-", ""): each for each in NAMES}
    return {
        "Employee": {
            "entities": 100_000,
            "partitions": 100,
            "writes": {"insert": 1, "update": 10},
            "access": {names[name]: rate for name, rate in rates.items()},
        }
    }


NAMES = [each.access.name for each in check_access(Employee)]


def of_employees(**rates: dict[str, float]) -> Design:
    return calculate_design(Employee, loads=employees(**rates))


def proposal(found: Design, access_name: str) -> tuple[str, str]:
    [one] = [each for each in found.proposals if access_name in each.access.split(", ")]
    return one.text, one.section


def test_the_keys_of_the_guide_follow_from_the_accesses() -> None:
    found = of_employees(one_employee={"rate": 100}, a_department={"rate": 5})

    assert proposal(found, "one employee") == (
        '@entity(partition="{dept}", row="{id:06d}")',
        "Choosing an appropriate PartitionKey",
    )
    assert found.proposals[0].is_declared


def test_one_entity_by_another_field_in_a_known_partition_is_the_intra_partition_index() -> None:
    found = of_employees(one_employee={"rate": 100}, by_email_in_a_department={"rate": 50})

    assert proposal(found, "by e-mail in a department") == (
        'index(Employee, row="email_{email}", unique=True)',
        "Intra-partition secondary index pattern",
    )
    assert found.proposals[1].is_declared


def test_one_entity_by_another_field_alone_is_the_inter_partition_index() -> None:
    found = of_employees(one_employee={"rate": 100}, by_email={"rate": 10, "returns": 1})

    assert proposal(found, "by e-mail") == (
        'index(Employee, table="staffbyemail", partition="{email}", row="{id:06d}_{dept}")',
        "Inter-partition secondary index pattern",
    )


def test_an_access_that_returns_one_of_many_entities_does_not_identify_them() -> None:
    rates = {"the newest": {"rate": 10, "returns": 1}, "alarms": {"rate": 1, "returns": 5}}
    found = calculate_design(
        Reading, loads={"Reading": {"entities": 1_000_000, "partitions": 5, "access": rates}}
    )

    assert [each.text for each in found.proposals] == [
        '@entity(partition="{device:03d}", row="{at:desc}")',
        'index(Reading, table="readbyalarm", partition="{alarm}", row="{device:03d}_{at:desc}")',
    ]
    assert found.proposals[0].is_declared
    index(Reading, table="readbyalarm", partition="{alarm}", row="{device:03d}_{at:desc}")


def test_many_entities_by_another_field_are_index_entities() -> None:
    found = of_employees(
        one_employee={"rate": 100}, by_last_name_in_a_department={"rate": 20, "returns": 5}
    )

    assert proposal(found, "by last name in a department") == (
        'list_index(Employee, row="last_{last}")',
        "Index entities pattern",
    )


def test_a_rare_report_stays_a_scan_because_an_index_would_cost_more() -> None:
    found = of_employees(one_employee={"rate": 100}, the_yearly_report={"rate": 1e-7})

    text, _ = proposal(found, "the yearly report")
    assert text == "no index"


def test_entities_of_an_employee_by_year_have_a_compound_key() -> None:
    loads = {
        "Review": {
            "entities": 1_000,
            "partitions": 10,
            "access": {"one review": {"rate": 1}, "latest reviews": {"rate": 9, "returns": 5}},
        }
    }

    found = calculate_design(Review, loads=loads)

    assert proposal(found, "latest reviews") == (
        '@entity(partition="{dept}", row="{employee:06d}_{year:04d}")',
        "Compound key pattern",
    )


def test_the_latest_entities_are_the_log_tail() -> None:
    loads = {
        "Expense": {
            "entities": 1_000,
            "partitions": 10,
            "access": {"one expense": {"rate": 1}, "latest expenses": {"rate": 9, "returns": 10}},
        }
    }

    found = calculate_design(Expense, loads=loads)

    assert proposal(found, "latest expenses") == (
        '@entity(partition="{employee:06d}", row="{at:desc}")',
        "Log tail pattern",
    )


def test_a_point_read_is_one_request_and_a_partition_one_for_each_thousand() -> None:
    found = of_employees(one_employee={"rate": 100}, a_department={"rate": 5})

    reads = {each.name: [each.requests, each.entities] for each in found.traffic}
    assert reads["one employee"] == [100, 100]
    assert reads["a department"] == [5, 5_000]


def test_a_write_writes_the_copies_in_its_partition_in_one_group() -> None:
    found = of_employees(one_employee={"rate": 1})

    [update] = [each for each in found.traffic if each.name == "update"]
    assert (update.requests, update.entities, update.operations) == (10, 30, {"group": 10})


def test_a_table_scan_reads_the_copies_too() -> None:
    found = of_employees(by_email={"rate": 1, "returns": 1})

    [scan] = [each for each in found.traffic if each.name == "by e-mail"]
    assert scan.entities == 300_000  # entities, and the rows of two indexes
    assert [each.code for each in found.findings][:3] == ["Scan", "HotPartition", "AccountLimit"]


def test_a_scan_is_reported_with_its_share_of_entities_and_requests() -> None:
    found = of_employees(one_employee={"rate": 1_000}, by_email={"rate": 0.01, "returns": 1})

    [scan] = [each for each in found.findings if each.code == "Scan"]
    # 3,000 of 3,000 + 1,000 + 33 entities, and 3 of 3 + 1,000 + 11 requests
    assert "74.4% of all entities, in 0.3% of all requests" in scan.message


def test_types_that_share_partitions_share_their_target() -> None:
    loads = employees(one_employee={"rate": 1_000}) | {
        "Review": {"entities": 10, "partitions": 100, "access": {"one review": {"rate": 1_000}}}
    }

    found = calculate_design(Employee, Review, loads=loads)

    [place] = found.places
    assert place.entities_per_second == pytest.approx(1_000 / 100 + 1_000 / 100 + 11 * 3 / 100)


def test_a_busy_partition_is_reported_with_the_hash_that_spreads_it() -> None:
    loads = employees(one_employee={"rate": 9_000})
    loads["Employee"]["busiest"] = 0.5

    found = calculate_design(Employee, loads=loads)

    [hot] = [each for each in found.findings if each.code == "HotPartition"]
    assert "{...:hash8}" in hot.message


def test_an_index_without_an_access_that_has_a_rate_is_unused() -> None:
    found = of_employees(by_email_in_a_department={"rate": 5})

    unused = [each.subject for each in found.findings if each.code == "UnusedIndex"]
    assert unused == ["Employee, index by_age"]


def test_the_price_of_a_month_is_given_by_class_of_operation() -> None:
    prices = read_prices(EXAMPLE_PRICES)
    found = calculate_design(Employee, loads=employees(one_employee={"rate": 100}), prices=prices)

    assert found.operations["read"] == 100 * 30 * 86_400
    assert found.costs["read"] == Decimal(100 * 30 * 86_400) / 10_000 * Decimal("0.00036")
    assert found.total_cost == sum(found.costs.values())


def test_the_bytes_include_all_copies() -> None:
    found = of_employees(one_employee={"rate": 1})

    assert [each.is_copy for each in found.stored] == [False, True, True]
    assert found.bytes == sum(each.bytes for each in found.stored)
    assert found.stored[0].bytes > 100_000 * 100


@pytest.mark.parametrize(
    "loads",
    [
        "not toml",
        "",
        "Employee = { entities = -1 }",
        "Employee = { entities = 1, busiest = 2.0 }",
        "Employee = { entities = 1, colour = 1 }",
        'Employee = { entities = 1, access = { "no such" = { rate = 1 } } }',
        "Employee = { entities = 1, indexes = { none = { partitions = 1 } } }",
    ],
)
def test_loads_that_do_not_fit_the_types_are_refused(loads: str) -> None:
    with pytest.raises(UsageError) as caught:
        calculate_design(Employee, loads=loads)

    assert caught.value.code == "LoadsRefused"


@pytest.mark.parametrize("text", ["", "date = 1", 'date = "a"\ncurrency = "b"\ngib_month = 1'])
def test_prices_that_are_incomplete_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_prices(text)

    assert caught.value.code == "PricesRefused"


def test_the_page_loads_nothing_and_escapes_names() -> None:
    found = of_employees(one_employee={"rate": 1}, by_email={"rate": 1, "returns": 1})

    page = report_page(found, "<script>")

    assert "<script>" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in page
