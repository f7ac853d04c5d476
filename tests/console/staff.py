"""A table of staff that the browser tests and the pictures show."""

import uuid
from datetime import UTC, datetime

from azure.data.tables import EdmType, EntityProperty, TableClient, TableServiceClient

NAMES = (
    *("Ken Kwok", "Ana Bowman", "Don Hall", "Mike Nash", "Jun Cao"),
    *("Isabella Lima", "Omar Aziz", "Eva Correia", "Liu Wei", "Sara Novak"),
)
DEPARTMENTS = ("Finance", "Marketing", "Research", "Sales", "Support")


def fill_staff(connection_string: str, *, others: tuple[str, ...] = ()) -> TableClient:
    """Create the table Staff with 500 entities of all eight types, and empty tables."""
    service = TableServiceClient.from_connection_string(connection_string)
    for name in others:
        service.create_table_if_not_exists(name)
    table = service.create_table_if_not_exists("Staff")
    for department in DEPARTMENTS:
        table.submit_transaction([("upsert", person(department, number)) for number in range(100)])
    return table


def person(department: str, number: int) -> dict[str, object]:
    entity: dict[str, object] = {
        "PartitionKey": department,
        "RowKey": f"{number:05}",
        "Name": NAMES[number * 7 % 10],
        "Age": EntityProperty(23 + number % 40, EdmType.INT32),
        "Salary": 4200.0 + number * 12.5,
        "Badge": EntityProperty(9007199254740993 + number, EdmType.INT64),
        "Hired": datetime(2015 + number % 9, 1 + number % 12, 1 + number % 28, 9, 30, tzinfo=UTC),
        "Active": number % 7 != 0,
        "Id": uuid.UUID(int=number * 7919 + 1),
    }
    if number % 5 == 0:
        entity["Photo"] = b"\x89PNG" + bytes([number])
    if number % 9 == 0:
        entity["Note"] = "moved from another office; see the contract"
    if number % 13 == 0:
        entity["Age"] = str(23 + number)
    return entity
