"""Tables in every layout of the guide, as a program with the official SDK writes them, adopted.

Each layout is read by the classes that `adopt` prints, and saved again without a change.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from partita.keys import inverted_ticks
from partita.patterns.sync import connect
from partita.service.hosting.in_process import LocalAccount
from partita.ticks import TICKS_PER_SECOND
from support.adopted import save_all

Rows = Iterator[tuple[str, str, dict[str, Any]]]
START = datetime(2014, 7, 31, 18, tzinfo=UTC)
NUMBERS = (10, 11, 152, 223)
LAST_NAMES = ("Kwok", "Smith", "Jones", "Jones")


def _person(number: int, *, is_whole: bool = True) -> dict[str, Any]:
    last = LAST_NAMES[NUMBERS.index(number)]
    found: dict[str, Any] = {"FirstName": f"First{number}", "LastName": last}
    return found | ({"Age": 20 + number % 40, "Email": _address(number)} if is_whole else {})


def _address(number: int) -> str:
    return f"{LAST_NAMES[NUMBERS.index(number)].lower()}{number}@contoso.com"


def one_to_many() -> Rows:
    """A department and its employees in one partition."""
    for number in NUMBERS:
        yield "Sales", f"{number:05d}", _person(number)
    for name in ("Marketing", "Sales"):
        yield name, "Department", {"DepartmentName": name, "EmployeeCount": 4}


def denormalized() -> Rows:
    """Employees with the details of their department."""
    for number in NUMBERS:
        manager = {"DepartmentName": "Sales", "ManagerName": "Ken Kwok", "ManagerPhone": "555"}
        yield "Sales", f"{number:06d}", _person(number) | manager


def inheritance() -> Rows:
    """Two concrete classes of one abstract class, with the type as a property."""
    for number in NUMBERS[:2]:
        own = {"EntityType": "Customer", "CreditLimit": number * 1.5}
        yield "Person", f"{number:06d}", _person(number, is_whole=False) | own
    for number in NUMBERS[2:]:
        own = {"EntityType": "Employee", "JobTitle": "Engineer"}
        yield "Person", f"{number:06d}", _person(number, is_whole=False) | own


def intra_partition_index() -> Rows:
    for number in NUMBERS:
        yield "Sales", f"empid_{number:06d}", _person(number)
        yield "Sales", f"email_{_address(number)}", _person(number)


def intra_partition_index_of_some_properties() -> Rows:
    for number in NUMBERS:
        own = _person(number)
        yield "Sales", f"empid_{number:06d}", own
        part = {"FirstName": own["FirstName"], "EmployeeId": f"{number:06d}"}
        yield "Sales", f"email_{_address(number)}", part


def inter_partition_index() -> Rows:
    for number in NUMBERS:
        yield "empid_Sales", f"{number:06d}", _person(number)
        yield "email_Sales", _address(number), _person(number)


def index_entities() -> Rows:
    """Option 2: lists of ids in the partition of the employees."""
    for number in NUMBERS:
        yield "Sales", f"{number:06d}", _person(number)
    for name in sorted(set(LAST_NAMES)):
        ids = [
            f"{each:06d}" for each, last in zip(NUMBERS, LAST_NAMES, strict=True) if last == name
        ]
        yield "Sales", name, {"EmployeeIDs": ",".join(ids)}


def index_entities_elsewhere() -> Rows:
    """Option 3: lists of ids in a partition for each last name."""
    for name in sorted(set(LAST_NAMES)):
        yield name, "Sales", {"EmployeeIDs": "000152,000223"}
        yield name, "Marketing", {"EmployeeIDs": "000010"}


def denormalized_manager() -> Rows:
    for name in ("Marketing", "Sales"):
        manager = {"ManagerName": "Ken Kwok", "ManagerEmail": "kenk@contoso.com"}
        yield name, "Department", {"DepartmentName": name, "EmployeeCount": 4} | manager


def compound_key() -> Rows:
    """Employees and their reviews by year."""
    for number in NUMBERS:
        yield "Sales", f"{number:06d}", _person(number)
        for year in (2012, 2013):
            review = {"ManagerRating": year % 5, "PeerRating": 3, "Comments": "good"}
            yield "Sales", f"{number:06d}_{year}", review


def log_tail() -> Rows:
    for number in NUMBERS:
        at = START + timedelta(minutes=number)
        claim = {"Amount": number * 9.5, "Purpose": "travel"}
        yield "000123", inverted_ticks(int(at.timestamp()) * TICKS_PER_SECOND), claim


def high_volume_delete() -> Rows:
    """Logins by user and time."""
    for number in NUMBERS:
        at = START + timedelta(minutes=number)
        yield f"user{number}", f"{at:%Y-%m-%dT%H:%M:%SZ}", {"IsSuccess": number % 2 == 0}


def data_series() -> Rows:
    """One property for each hour of a day."""
    for number in NUMBERS:
        hours = {f"Hour{hour:02d}": 2 * hour + number + 1 for hour in range(24)}
        yield "Sales", f"{number:06d}_20140731", hours


def wide_entities() -> Rows:
    """365 days in two physical entities."""
    for number in NUMBERS:
        for part, days in (("01", range(1, 253)), ("02", range(253, 366))):
            yield "Sales", f"{number:06d}_{part}", {f"M{day:03d}": day * 3 + number for day in days}


def large_entities() -> Rows:
    for number in NUMBERS:
        link = {"Photo": f"https://contoso.blob.core.windows.net/photos/{number:06d}.jpg"}
        yield "Sales", f"{number:06d}", _person(number) | link


def append_anti_pattern() -> Rows:
    """Accesses in the partition of the current hour."""
    for number in NUMBERS:
        yield f"{START:%Y%m%d%H}", f"{number:06d}", {"Resource": "/start"}
        yield f"{START + timedelta(hours=1):%Y%m%d%H}", f"{number:06d}", {"Resource": "/end"}


def without_the_anti_pattern() -> Rows:
    """The same, spread over departments and employees."""
    for number in NUMBERS:
        for hours in range(2):
            at = START + timedelta(hours=hours)
            yield f"Sales_{number:06d}", f"{at:%Y%m%d%H}_{hours:04d}", {"Resource": "/start"}


def log_data() -> Rows:
    for number in NUMBERS:
        at = START + timedelta(minutes=number)
        hour = f"{at:%Y%m%d%H}"
        yield hour, f"{at:%Y%m%d%H%M%S}_{number:06d}", {"Level": "error", "Text": "it failed"}


def types_in_row_keys() -> Rows:
    for number in NUMBERS:
        yield "Sales", f"EMPLOYEE_{number:06d}", _person(number)
    yield "Sales", "DEPARTMENT_SALES", {"DepartmentName": "Sales", "EmployeeCount": 4}


LAYOUTS: dict[Any, dict[str, tuple[str, str]]] = {
    one_to_many: {
        "Guide": ("{partition}", "{id:05d}"),
        "Department": ("{department_name_key}", "Department"),
    },
    denormalized: {"Guide": ("{department_name_key}", "{id:06d}")},
    inheritance: {
        "Customer": ("{partition}", "{id:06d}"),
        "Employee": ("{partition}", "{id:06d}"),
    },
    intra_partition_index: {
        "Empid": ("{partition}", "empid_{empid:06d}"),
        "Email": ("{partition}", "email_{email_key}"),
    },
    intra_partition_index_of_some_properties: {
        "Empid": ("{partition}", "empid_{empid:06d}"),
        "Email": ("{partition}", "email_{email}"),
    },
    inter_partition_index: {
        "Guide": ("email_{partition}", "{email_key}"),
        "Guide2": ("empid_{empid}", "{id:06d}"),
    },
    index_entities: {
        "Guide": ("{partition}", "{id:06d}"),
        "Guide2": ("{partition}", "{row}"),
    },
    index_entities_elsewhere: {"Guide": ("{partition}", "{row}")},
    denormalized_manager: {"Department": ("{department_name_key}", "Department")},
    compound_key: {
        "Guide": ("{partition}", "{id:06d}_{year:04d}"),
        "Guide2": ("{partition}", "{id:06d}"),
    },
    log_tail: {"Guide": ("{id:06d}", "{at:desc}")},
    high_volume_delete: {"Guide": ("{partition}", "{at:%Y-%m-%dT%H:%M:%SZ}")},
    data_series: {"Guide": ("{partition}", "{id:06d}_{day:asc}")},
    wide_entities: {
        "Guide": ("{partition}", "{id:06d}_01"),
        "Guide2": ("{partition}", "{id:06d}_02"),
    },
    large_entities: {"Guide": ("{partition}", "{id:06d}")},
    append_anti_pattern: {"Guide": ("{at:%Y%m%d%H}", "{id:06d}")},
    without_the_anti_pattern: {
        "Guide": ("Sales_{sales_id:06d}", "{at:%Y%m%d%H}_{id:04d}"),
    },
    log_data: {"Guide": ("{at:%Y%m%d%H}", "{at_2:%Y%m%d%H%M%S}_{id:06d}")},
    types_in_row_keys: {
        "EMPLOYEE": ("{partition}", "EMPLOYEE_{employee_id:06d}"),
        "DEPARTMENT": ("{department_name_key}", "DEPARTMENT_{department}"),
    },
}
"""The classes that are printed for each layout, with their key templates."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_table_in_a_layout_of_the_guide_is_adopted_with_every_row(
    partita_account: LocalAccount, layout: Any
) -> None:
    table = partita_account.tables.create_table("guide")
    for partition, row, properties in layout():
        table.create_entity({"PartitionKey": partition, "RowKey": row, **properties})

    with connect(partita_account) as db:
        found = db.adopt("guide")

        assert found.misfits == []
        assert {each.name: (each.partition, each.row) for each in found.classes} == LAYOUTS[layout]
        assert save_all(db, found.module, "guide") == 0


def test_the_days_of_both_parts_of_a_wide_entity_are_series(partita_account: LocalAccount) -> None:
    table = partita_account.tables.create_table("guide")
    for partition, row, properties in wide_entities():
        table.create_entity({"PartitionKey": partition, "RowKey": row, **properties})

    with connect(partita_account) as db:
        first, second = db.adopt("guide").classes

    assert first.fields["m"].endswith('Series("M{:03d}", slots=252, first=1)]')
    assert second.fields["m"].endswith('Series("M{:03d}", slots=113, first=253)]')
