import datetime as dt
import enum
import re
from typing import Any
from uuid import UUID

import pytest

from partita.patterns.design.access_patterns import access
from partita.patterns.design.lints import lint
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.types.decorators import EntityType, entity, entity_type
from partita.patterns.types.indexes import index, list_index


class Severity(enum.StrEnum):
    ERROR = "e"
    CRITICAL = "c"


def codes(model: EntityType[Any]) -> list[str]:
    return [each.code for each in lint(model)]


class TestPrependAppend:
    """The guide's "Prepend/append anti-pattern"."""

    def test_the_current_hour_as_partition_is_told_with_the_guides_own_solution(self) -> None:
        @entity(
            table="accesses",
            partition="{hour:asc}",
            row="{dept:esc}_{employee:06d}_{event:04d}",
        )
        class Accessed:
            hour: dt.datetime
            dept: str
            employee: int
            event: int
            resource: str
            bytes_sent: int

        (found,) = lint(entity_type(Accessed))

        assert found.code == "MonotonePartition"
        assert 'partition="{dept:esc}_{employee:06d}", row="{hour:asc}_{event:04d}"' in found.hint
        assert str(found).startswith("MonotonePartition: ")

    def test_the_solution_has_nothing_to_be_told(self) -> None:
        @entity(
            table="accesses",
            partition="{dept:esc}_{employee:06d}",
            row="{hour:asc}_{event:04d}",
        )
        class Accessed:
            hour: dt.datetime
            dept: str
            employee: int
            event: int
            resource: str
            bytes_sent: int

        assert lint(entity_type(Accessed)) == []

    def test_the_log_tail_pattern_has_nothing_to_be_told(self) -> None:
        @entity(table="expenses", partition="{employee:06d}", row="{at:desc}_{number:04d}")
        class Expense:
            employee: int
            at: dt.datetime
            number: int
            amount: int

        assert lint(entity_type(Expense)) == []

    @pytest.mark.parametrize(
        ("partition", "row"),
        [
            ("{at:desc}", "{device}"),
            ("{day:asc}", "{device}_"),
            ("{sequence:08d}", "x"),
            ("v1_{at:asc}_{device}", "{number:04d}"),
            ("{at:asc}", "{id}"),
            ("{at:asc}", "{badge}"),
            ("{day:asc}", "{at:asc}"),
        ],
    )
    def test_every_rewritten_template_can_be_declared_and_does_not_grow(
        self, partition: str, row: str
    ) -> None:
        annotations: dict[str, Any] = {
            "at": dt.datetime,
            "day": dt.date,
            "device": str,
            "sequence": int,
            "number": int,
            "id": UUID,
            "badge": UUID,
            "value": float,
        }
        used = [name for name in annotations if f"{{{name}" in partition + row]
        made = type("Made", (), {"__annotations__": {n: annotations[n] for n in (*used, "value")}})
        row = row.rstrip("_")
        declared: type[Any] = entity(table="made", partition=partition, row=row)(made)
        model = entity_type(declared)

        (found,) = [each for each in lint(model) if each.code == "MonotonePartition"]
        told = re.search(r'partition="(.*?)", row="(.*?)"', found.hint)

        assert told
        keys = KeyTemplate.compile(told[1], annotations, role="partition", owner="Made")
        rows = KeyTemplate.compile(told[2], annotations, role="row", owner="Made")
        KeyTemplate.check_pair(keys, rows)
        assert not keys.is_monotone
        assert {*keys.fields, *rows.fields} == {*used}

    def test_an_index_can_be_hot_as_well(self) -> None:
        @entity(table="orders", partition="{client}", row="{id}")
        class Order:
            client: str
            id: UUID
            at: dt.datetime
            total: int

        by_time = index(
            Order, table="orderbytime", partition="{at:asc}", row="{id}_{client}", name="by_time"
        )
        everything = index(Order, table="orderall", partition="all", row="{at:asc}_{id}_{client}")

        found = lint(entity_type(Order))

        assert [each.code for each in found] == ["MonotonePartition", "SinglePartition"]
        assert "by_time" in found[0].message
        assert lint(entity_type(Order), [by_time]) == found[:1]
        assert lint(entity_type(Order), [everything]) == found[1:]
        assert lint(entity_type(Order), []) == []

    def test_an_index_beside_its_entity_is_as_hot_as_the_entity(self) -> None:
        @entity(table="orders", partition="{client}", row="o_{id}")
        class Order:
            client: str
            id: UUID
            at: dt.datetime
            total: int

        index(Order, row="t_{at:asc}_{id}")

        assert lint(entity_type(Order)) == []

    def test_who_means_it_says_so(self) -> None:
        @entity(table="days", partition="{day:asc}", row="{name}", allow_hot=True)
        class Day:
            day: dt.date
            name: str
            count: int

        assert lint(entity_type(Day)) == []


class TestLogData:
    """The guide's "Log data anti-pattern"."""

    def test_log_lines_by_the_hour_belong_into_blobs(self) -> None:
        @entity(table="messages", partition="{hour:asc}", row="{at:asc}_{id:06d}")
        class LogMessage:
            hour: dt.datetime
            at: dt.datetime
            id: int
            severity: Severity
            text: str

        found = lint(entity_type(LogMessage))

        assert [each.code for each in found] == ["LogData", "MonotonePartition"]
        assert "db.log_writer()" in found[0].hint

    def test_log_lines_by_their_source_belong_there_too(self) -> None:
        @entity(table="messages", partition="{source}", row="{at:asc}_{id:06d}")
        class LogMessage:
            source: str
            at: dt.datetime
            id: int
            text: str

        assert codes(entity_type(LogMessage)) == ["LogData"]

    def test_text_by_time_that_is_not_called_a_log_may_be_anything(self) -> None:
        @entity(table="chats", partition="{room}", row="{at:asc}_{author}")
        class Remark:
            room: str
            at: dt.datetime
            author: str
            words: str

        assert lint(entity_type(Remark)) == []

    def test_numbers_by_time_are_no_log(self) -> None:
        @entity(table="traces", partition="{device}", row="{at:asc}")
        class Trace:
            device: str
            at: dt.datetime
            celsius: float

        assert lint(entity_type(Trace)) == []

    def test_keys_alone_are_no_log(self) -> None:
        @entity(table="events", partition="{device}", row="{at:asc}")
        class Event:
            device: str
            at: dt.datetime

        assert lint(entity_type(Event)) == []


class TestChoosingAPartitionKey:
    """The guide's "Choosing an appropriate PartitionKey"."""

    def test_one_partition_for_everything_is_told(self) -> None:
        @entity(table="things", partition="all", row="{name}")
        class Thing:
            name: str

        assert codes(entity_type(Thing)) == ["SinglePartition"]

    def test_a_list_of_one_is_told(self) -> None:
        @entity(table="users", partition="{user}", row="profile")
        class Profile:
            user: str
            city: str

        list_index(Profile, row="city_{city}")

        assert codes(entity_type(Profile)) == ["OneEntityPerPartition"]

    def test_uniqueness_among_one_is_told(self) -> None:
        @entity(table="users", partition="{user}", row="profile")
        class Profile:
            user: str
            email: str

        index(Profile, row="email_{email}", unique=True)

        assert codes(entity_type(Profile)) == ["OneEntityPerPartition"]

    def test_one_entity_a_partition_is_fine_where_nothing_groups_them(self) -> None:
        @entity(table="users", partition="{user}", row="profile")
        class Profile:
            user: str
            city: str

        index(Profile, table="usersbycity", partition="{city}", row="{user}")

        assert lint(entity_type(Profile)) == []

    def test_one_entity_a_partition_is_fine_beside_others(self) -> None:
        @entity(table="users", partition="{user}", row="profile")
        class Profile:
            user: str
            city: str

        @entity(table="users", partition="{user}", row="visit_{id:06d}")
        class Visit:
            user: str
            id: int

        list_index(Profile, row="city_{city}")

        assert lint(entity_type(Profile), neighbours=[entity_type(Visit)]) == []


# ---------------------------------------------------------------------------------------------
# Names that say more than types, and indexes without a query


def declared(partition: str, kind: Any, row: str = "{user:esc}_{note}") -> Any:
    names = [part.partition(":")[0].strip("{}") for part in partition.split("_{")]
    space = {"__annotations__": {**dict.fromkeys(names, kind), "user": str, "note": str}}
    return entity(table="named", partition=partition, row=row)(type("Named", (), space))


@pytest.mark.parametrize("name", ["hour", "day", "date", "order_date", "accessHour", "month"])
def test_a_text_that_is_named_like_a_time_is_a_monotone_partition(name: str) -> None:
    found = lint(declared(f"{{{name}}}", str))

    assert [each.code for each in found] == ["MonotonePartition"]
    assert 'partition="{user}"' in found[0].hint or 'partition="{user:esc}"' in found[0].hint


@pytest.mark.parametrize("name", ["order_id", "event_id", "InvoiceId", "log_entry_id"])
def test_a_number_that_is_usually_counted_is_a_monotone_partition(name: str) -> None:
    assert [each.code for each in lint(declared(f"{{{name}:08d}}", int))] == ["MonotonePartition"]


@pytest.mark.parametrize(
    ("name", "kind"), [("id:08d", int), ("employee_id:08d", int), ("dept", str), ("today", str)]
)
def test_other_names_are_not_monotone(name: str, kind: type) -> None:
    assert lint(declared(f"{{{name}}}", kind)) == []


def test_an_index_that_no_declared_access_uses_costs_writes_for_nothing() -> None:
    @entity(
        table="used",
        partition="{dept}",
        row="emp_{id:06d}",
        access=[
            access("one", get=("dept", "id")),
            access("by name", partition=("dept",), range=("name",), via="by_name"),
        ],
    )
    class Used:
        dept: str
        id: int
        name: str
        age: int
        email: str

    index(Used, row="name_{name:esc}_{id:06d}", name="by_name")
    index(Used, row="mail_{email}", name="by_email", unique=True)
    index(Used, row="age_{age:03d}_{id:06d}", name="by_age")

    [found] = lint(Used)

    assert found.code == "UnusedIndex"
    assert "by_age" in found.message


def test_without_declared_access_no_index_is_unused() -> None:
    @entity(table="unsaid", partition="{dept}", row="emp_{id:06d}")
    class Unsaid:
        dept: str
        id: int
        age: int

    index(Unsaid, row="age_{age:03d}_{id:06d}")

    assert lint(Unsaid) == []
