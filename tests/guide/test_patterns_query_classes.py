"""The guide's "How your choice of PartitionKey and RowKey impacts query performance", typed.

Every query is planned by the typed layer and asked of a service, which says in its own words what
it had to read: the plan must not promise more.
"""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from azure.data.tables import TableClient

from partita.patterns.design.explain import explain
from partita.patterns.fields.markers import Named
from partita.patterns.keys.intervals import at_least, between, less_than, starting_with
from partita.patterns.planning.columns import Columns, Condition
from partita.patterns.planning.plans import PointRead, QueryKind, QueryPlan, plan_query
from partita.patterns.protocol.values import Int32
from partita.patterns.types.decorators import entity, entity_type
from partita.patterns.types.indexes import index

Find = Callable[[str], list[str]]
Plan = Callable[[str], str]


@entity(table="Employees", partition="{dept}", row="{id:05d}", type_property=None)
class Employee:
    dept: str
    id: int
    first: Annotated[str, Named("FirstName")]
    last: Annotated[str, Named("LastName")]
    age: Int32
    email: str


by_email = index(Employee, table="ByEmail", partition="{email}", row="{id:05d}_{dept}")
employees = entity_type(Employee)
c = Columns(employees)


def found(made: QueryPlan, find: Find) -> list[str]:
    return [key for read in made.requests for key in find(made.filter_of(read))]


class TestTheClassesOfQueries:
    @pytest.mark.parametrize(
        ("keys", "condition", "kind", "row_keys"),
        [
            ({"dept": "Sales", "id": 10}, None, "point", ["00010"]),
            ({}, (c.dept == "Sales") & (c.id == 10), "point", ["00010"]),
            ({"dept": "Sales", "id": at_least(11)}, None, "range", ["00011", "00012"]),
            ({"dept": "Sales", "id": between(10, 11)}, None, "range", ["00010", "00011"]),
            ({"dept": "Sales", "id": less_than(12)}, c.age > 40, "range", ["00011"]),
            ({"dept": "Sales"}, c.last == "Smith", "range", ["00011"]),
            ({}, c.last == "Jones", "table", ["00012"]),
            ({"dept": starting_with("M")}, c.age > 40, "multi-partition", ["00002"]),
        ],
    )
    def test_a_query_is_of_the_class_that_the_service_gives_it(
        self,
        find: Find,
        plan: Plan,
        keys: dict[str, Any],
        condition: Condition | None,
        kind: str,
        row_keys: list[str],
    ) -> None:
        made = plan_query(employees, keys, condition)

        assert made.kind.value == kind
        assert [plan(made.filter_of(read)) for read in made.requests] == [kind]
        assert found(made, find) == row_keys

    def test_a_table_scan_is_a_scan_even_if_it_names_row_keys(self, plan: Plan) -> None:
        made = plan_query(employees, {"id": 10})

        assert made.kind is QueryKind.TABLE
        assert plan(made.filter_of(made.requests[0])) == "table"
        assert made.is_refused

    def test_entities_come_in_the_order_of_their_keys(self, find: Find) -> None:
        made = plan_query(employees, {}, c.dept.in_(["Sales", "Marketing"]) & (c.age > 0))

        assert made.is_ordered
        assert found(made, find) == ["00001", "00002", "00010", "00011", "00012"]


class TestAnOrOfRowKeys:
    """The guide: an `or` on RowKey "results in a partition scan", so it is not sent as one."""

    def test_it_becomes_point_reads(self, find: Find, plan: Plan) -> None:
        made = plan_query(employees, {"dept": "Sales"}, (c.id == 10) | (c.id == 12))

        assert made.kind is QueryKind.POINTS
        assert [plan(made.filter_of(read)) for read in made.requests] == ["point", "point"]

    def test_it_finds_what_the_scan_would_find_in_the_same_order(self, find: Find) -> None:
        made = plan_query(employees, {"dept": "Sales"}, c.id.in_([12, 10, 99]))

        scanned = find(
            "PartitionKey eq 'Sales' and (RowKey eq '00012' or RowKey eq '00010'"
            " or RowKey eq '00099')"
        )
        assert found(made, find) == scanned

    def test_point_reads_are_reads_of_one_entity(self, staff: TableClient) -> None:
        made = plan_query(employees, {"dept": "Sales"}, c.id.in_([10, 12]))

        keys = [read.key for read in made.requests if isinstance(read, PointRead)]
        assert [staff.get_entity(key.partition, key.row)["Age"] for key in keys] == [23, 38]


class TestExplaining:
    def test_a_scan_is_refused_and_the_index_that_helps_is_named(self) -> None:
        told = explain(plan_query(employees, {}, c.email == "junc@contoso.com"))

        assert told.splitlines()[0] == (
            "TABLE SCAN   Employees   residual Email eq 'junc@contoso.com'   REFUSED"
        )
        assert "read .via(by_email)" in told
        assert "give dept=... (range)" in told
