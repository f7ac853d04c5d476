"""Claims of the guide's chapter "Design for querying" and of its sections on retrieving."""

from collections.abc import Callable
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableClient

import partita
from partita.service.hosting.in_process import LocalAccount

Find = Callable[[str], list[str]]
Plan = Callable[[str], str]


class TestHowPartitionKeyAndRowKeyImpactQueryPerformance:
    def test_both_keys_make_a_point_query(self, find: Find, plan: Plan) -> None:
        query = "(PartitionKey eq 'Sales') and (RowKey eq '00010')"

        assert plan(query) == "point"
        assert find(query) == ["00010"]

    def test_a_partition_key_and_a_range_of_row_keys_make_a_range_query(
        self, find: Find, plan: Plan
    ) -> None:
        query = "PartitionKey eq 'Sales' and RowKey ge '00011' and RowKey lt 'A'"

        assert plan(query) == "range"
        assert find(query) == ["00011", "00012"]

    def test_a_partition_key_and_another_property_make_a_partition_scan(
        self, find: Find, plan: Plan
    ) -> None:
        query = "PartitionKey eq 'Sales' and LastName eq 'Smith'"

        assert plan(query) == "partition"
        assert find(query) == ["00011"]

    def test_no_partition_key_makes_a_table_scan(self, find: Find, plan: Plan) -> None:
        query = "LastName eq 'Jones'"

        assert plan(query) == "table"
        assert find(query) == ["00012"]

    def test_a_row_key_alone_still_makes_a_table_scan(self, find: Find, plan: Plan) -> None:
        query = "RowKey eq 'Department'"

        assert plan(query) == "table"
        assert find(query) == ["Department", "Department"]

    def test_entities_come_in_the_order_of_their_keys(self, staff: TableClient) -> None:
        keys = [(e["PartitionKey"], e["RowKey"]) for e in staff.query_entities("Age gt 0")]

        assert keys == sorted(keys)
        assert len(keys) == 5

    def test_an_or_of_row_keys_is_not_a_point_query(self, find: Find, plan: Plan) -> None:
        query = "PartitionKey eq 'Sales' and (RowKey eq '00010' or RowKey eq '00012')"

        assert plan(query) in ("partition", "range")
        assert find(query) == ["00010", "00012"]


class TestOptimizingQueries:
    def test_any_property_can_be_searched_without_an_index(self, find: Find) -> None:
        assert find("Email eq 'kenk@contoso.com'") == ["00010"]
        assert find("Age ge 40") == ["00002", "00011"]


class TestSortingData:
    def test_partition_key_is_sorted_before_row_key(self, table: TableClient) -> None:
        for keys in (("b", "1"), ("a", "2"), ("b", "0"), ("a", "1")):
            table.create_entity({"PartitionKey": keys[0], "RowKey": keys[1]})

        found = [(e["PartitionKey"], e["RowKey"]) for e in table.list_entities()]

        assert found == [("a", "1"), ("a", "2"), ("b", "0"), ("b", "1")]

    def test_numbers_sort_as_texts_unless_they_are_padded(self, table: TableClient) -> None:
        for number in (5, 123, 20):
            table.create_entity({"PartitionKey": "plain", "RowKey": str(number)})
            table.create_entity({"PartitionKey": "padded", "RowKey": f"{number:08}"})

        def row_keys(partition_key: str) -> list[str]:
            found = table.query_entities(f"PartitionKey eq '{partition_key}'")
            return [entity["RowKey"] for entity in found]

        assert row_keys("plain") == ["123", "20", "5"]
        assert row_keys("padded") == ["00000005", "00000020", "00000123"]


class TestExecutingAPointQuery:
    def test_two_keys_retrieve_one_entity(self, staff: TableClient) -> None:
        assert staff.get_entity("Sales", "00011")["LastName"] == "Smith"

    def test_a_missing_entity_is_told_from_an_empty_one(self, staff: TableClient) -> None:
        staff.create_entity({"PartitionKey": "Sales", "RowKey": "212"})

        assert dict(staff.get_entity("Sales", "212")) == {
            "PartitionKey": "Sales",
            "RowKey": "212",
        }
        with pytest.raises(ResourceNotFoundError):
            staff.get_entity("Sales", "213")


class TestRetrievingMultipleEntities:
    @pytest.mark.parametrize(
        ("operator", "found"),
        [
            ("gt", ["00002", "00011"]),
            ("ge", ["00002", "00011", "00012"]),
            ("lt", ["00001", "00010"]),
            ("le", ["00001", "00010", "00012"]),
            ("eq", ["00012"]),
            ("ne", ["00001", "00002", "00010", "00011"]),
        ],
    )
    def test_there_are_six_comparisons(self, find: Find, operator: str, found: list[str]) -> None:
        assert find(f"Age {operator} 38") == found

    def test_a_prefix_is_a_range_of_row_keys(self, table: TableClient) -> None:
        for name in ("Adams", "Baker", "Brown", "Cole", "b"):
            table.create_entity({"PartitionKey": "Sales", "RowKey": name})

        found = table.query_entities("PartitionKey eq 'Sales' and RowKey ge 'B' and RowKey lt 'C'")

        assert [entity["RowKey"] for entity in found] == ["Baker", "Brown"]


def fill(table: TableClient, count: int) -> None:
    for start in range(0, count, 100):
        table.submit_transaction(
            [
                ("create", {"PartitionKey": "Sales", "RowKey": f"{number:05}"})
                for number in range(start, min(start + 100, count))
            ]
        )


class TestRetrievingLargeNumbersOfEntities:
    def test_a_page_has_at_most_1000_entities(self, table: TableClient) -> None:
        fill(table, 2300)

        pages = table.query_entities("PartitionKey eq 'Sales'").by_page()

        assert [len(list(page)) for page in pages] == [1000, 1000, 300]

    def test_a_client_may_follow_continuations_by_itself(self, table: TableClient) -> None:
        fill(table, 1001)

        found = [entity["RowKey"] for entity in table.query_entities("PartitionKey eq 'Sales'")]

        assert found == [f"{number:05}" for number in range(1001)]

    def test_a_result_that_fits_has_no_continuation(self, table: TableClient) -> None:
        fill(table, 1000)
        pages = table.query_entities("PartitionKey eq 'Sales'").by_page()

        assert len(list(next(pages))) == 1000
        with pytest.raises(StopIteration):
            next(pages)

    def test_a_continuation_can_be_kept_and_used_after_a_crash(self, tmp_path: Path) -> None:
        with partita.open_account(tmp_path / "crash") as account:
            table = account.tables.create_table("Employees")
            fill(table, 30)
            pages = table.list_entities(results_per_page=20).by_page()
            first = [entity["RowKey"] for entity in next(pages)]
            continuation = pages.continuation_token  # type: ignore[attr-defined]  # of the SDK's iterator

        with partita.open_account(tmp_path / "crash") as account:
            table = account.tables.get_table_client("Employees")
            pages = table.list_entities(results_per_page=20).by_page(continuation)
            second = [entity["RowKey"] for entity in next(pages)]

        assert first + second == [f"{number:05}" for number in range(30)]

    def test_a_client_may_ask_for_fewer_entities_in_a_page(self, table: TableClient) -> None:
        fill(table, 120)

        pages = table.list_entities(results_per_page=50).by_page()

        assert [len(list(page)) for page in pages] == [50, 50, 20]


class TestServerSideProjection:
    def test_only_the_selected_properties_are_sent(self, staff: TableClient) -> None:
        [entity] = staff.query_entities(
            "PartitionKey eq 'Sales' and RowKey eq '00010'",
            select=["PartitionKey", "RowKey", "Email"],
        )

        assert dict(entity) == {
            "PartitionKey": "Sales",
            "RowKey": "00010",
            "Email": "kenk@contoso.com",
        }

    def test_the_etag_comes_with_every_projection(self, staff: TableClient) -> None:
        [entity] = staff.query_entities("RowKey eq '00010'", select=["Email"])

        assert entity.metadata["etag"] == staff.get_entity("Sales", "00010").metadata["etag"]

    def test_keys_can_be_selected_beside_other_properties(self, staff: TableClient) -> None:
        found = staff.query_entities("PartitionKey eq 'Sales'", select=["RowKey", "Email"])

        assert [(e["RowKey"], e["Email"]) for e in found][:2] == [
            ("00010", "kenk@contoso.com"),
            ("00011", "anns@contoso.com"),
        ]

    def test_a_projection_of_a_point_query(self, staff: TableClient) -> None:
        entity = staff.get_entity("Sales", "00010", select=["Age"])

        assert dict(entity) == {"Age": 23}


class TestRetrievingHeterogeneousEntityTypes:
    def test_one_query_returns_entities_of_different_types(self, staff: TableClient) -> None:
        found = list(
            staff.query_entities("PartitionKey eq 'Sales' and RowKey ge '00012' and RowKey lt 'F'")
        )

        assert [entity["RowKey"] for entity in found] == ["00012", "Department"]
        assert ["EmployeeCount" in entity for entity in found] == [False, True]

    def test_a_property_that_marks_the_type_can_be_searched(self, table: TableClient) -> None:
        for row_key, kind in (("1", "Employee"), ("2", "Department"), ("3", "Employee")):
            table.create_entity({"PartitionKey": "p", "RowKey": row_key, "EntityType": kind})

        found = table.query_entities("PartitionKey eq 'p' and EntityType eq 'Employee'")

        assert [entity["RowKey"] for entity in found] == ["1", "3"]


class TestAsynchronousAndParallelOperations:
    async def test_an_asynchronous_client_sees_the_same_table(
        self, account: LocalAccount, staff: TableClient
    ) -> None:
        async with account.aio.tables as tables:
            client = tables.get_table_client("Employees")
            found = [e["RowKey"] async for e in client.query_entities("PartitionKey eq 'Sales'")]

        assert found == ["00010", "00011", "00012", "Department"]
