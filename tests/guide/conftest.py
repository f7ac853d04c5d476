from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables import TableClient

import partita
from partita.service.hosting.in_process import LocalAccount


@pytest.fixture
def account(tmp_path: Path) -> Iterator[LocalAccount]:
    with partita.open_account(tmp_path) as opened:
        yield opened


@pytest.fixture
def table(account: LocalAccount) -> TableClient:
    return account.tables.create_table("Employees")


@pytest.fixture
def staff(table: TableClient) -> TableClient:
    """The employees and departments of the guide's examples."""
    for department, number, first, last, age in (
        ("Marketing", "00001", "Don", "Hall", 34),
        ("Marketing", "00002", "Jun", "Cao", 47),
        ("Sales", "00010", "Ken", "Kwok", 23),
        ("Sales", "00011", "Ann", "Smith", 51),
        ("Sales", "00012", "Eva", "Jones", 38),
    ):
        table.create_entity(
            {
                "PartitionKey": department,
                "RowKey": number,
                "FirstName": first,
                "LastName": last,
                "Age": age,
                "Email": f"{first.lower()}{last[0].lower()}@contoso.com",
            }
        )
    for department, count in (("Marketing", 153), ("Sales", 42)):
        table.create_entity(
            {
                "PartitionKey": department,
                "RowKey": "Department",
                "DepartmentName": department,
                "EmployeeCount": count,
            }
        )
    return table


@pytest.fixture
def find(staff: TableClient) -> Callable[[str], list[str]]:
    """Run a filter and return the row keys that it finds, in the order of the answer."""

    def run(query: str) -> list[str]:
        return [str(entity["RowKey"]) for entity in staff.query_entities(query)]

    return run


@pytest.fixture
def plan(staff: TableClient) -> Callable[[str], str]:
    """Run a filter and return the kind of the plan that the service names for it."""

    def run(query: str) -> str:
        plans: list[str] = []

        def keep(response: Any) -> None:
            plans.append(response.http_response.headers["x-partita-plan"])

        list(
            staff.query_entities(
                query, headers={"x-partita-explain": "true"}, raw_response_hook=keep
            )
        )
        return plans[0].split(" ")[0]

    return run
