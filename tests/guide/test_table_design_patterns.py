"""What the guide's patterns ask of the service."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableClient, UpdateMode

from partita.keys import inverted_ticks
from partita.service.hosting.in_process import LocalAccount


def row_keys(table: TableClient, query: str) -> list[str]:
    return [str(entity["RowKey"]) for entity in table.query_entities(query)]


class TestIntraPartitionSecondaryIndexPattern:
    @pytest.fixture
    def indexed(self, table: TableClient) -> TableClient:
        for number, email in (
            ("000099", "zoe@contoso.com"),
            ("000100", "anna@contoso.com"),
            ("000150", "bert@contoso.com"),
            ("000199", "abe@contoso.com"),
            ("000223", "jonesj@contoso.com"),
        ):
            table.submit_transaction(
                [
                    ("create", {"PartitionKey": "Sales", "RowKey": f"empid_{number}"}),
                    ("create", {"PartitionKey": "Sales", "RowKey": f"email_{email}"}),
                ]
            )
        return table

    def test_either_copy_is_one_point_query_away(self, indexed: TableClient) -> None:
        for row_key in ("empid_000223", "email_jonesj@contoso.com"):
            query = f"(PartitionKey eq 'Sales') and (RowKey eq '{row_key}')"
            assert row_keys(indexed, query) == [row_key]

    def test_a_range_of_employee_ids(self, indexed: TableClient) -> None:
        query = (
            "(PartitionKey eq 'Sales') and (RowKey ge 'empid_000100')"
            " and (RowKey le 'empid_000199')"
        )

        assert row_keys(indexed, query) == ["empid_000100", "empid_000150", "empid_000199"]

    def test_a_range_of_email_addresses_by_first_letter(self, indexed: TableClient) -> None:
        query = "(PartitionKey eq 'Sales') and (RowKey ge 'email_a') and (RowKey lt 'email_b')"

        assert row_keys(indexed, query) == ["email_abe@contoso.com", "email_anna@contoso.com"]


class TestCompoundKeyPattern:
    def test_all_reviews_of_an_employee_are_one_range(self, table: TableClient) -> None:
        for row_key in ("empid_000122_2012", "empid_000123", "empid_000123_2012"):
            table.create_entity({"PartitionKey": "Sales", "RowKey": row_key, "Rating": 4})
        table.create_entity({"PartitionKey": "Sales", "RowKey": "empid_000124", "Rating": 5})

        found = table.query_entities(
            "(PartitionKey eq 'Sales') and (RowKey ge 'empid_000123')"
            " and (RowKey lt 'empid_000124')",
            select=["RowKey", "Rating", "Comments"],
        )

        assert [dict(entity) for entity in found] == [
            {"RowKey": "empid_000123", "Rating": 4, "Comments": None},
            {"RowKey": "empid_000123_2012", "Rating": 4, "Comments": None},
        ]


class TestLogTailPattern:
    def test_the_first_entities_of_a_partition_are_the_latest(self, table: TableClient) -> None:
        for minute in range(15):
            row_key = inverted_ticks(17_000_000_000_000_000 + minute * 600_000_000)
            table.create_entity({"PartitionKey": "empid", "RowKey": row_key, "Minute": minute})

        pages = table.query_entities("PartitionKey eq 'empid'", results_per_page=10).by_page()

        assert [entity["Minute"] for entity in next(pages)] == list(range(14, 4, -1))


class TestHighVolumeDeletePattern:
    def test_dropping_a_table_deletes_its_entities_at_once(self, account: LocalAccount) -> None:
        table = account.tables.create_table("Logins20150226")
        for start in range(0, 1000, 100):
            table.submit_transaction(
                [
                    ("create", {"PartitionKey": "p", "RowKey": f"{number:05}"})
                    for number in range(start, start + 100)
                ]
            )

        account.tables.delete_table("Logins20150226")

        with pytest.raises(ResourceNotFoundError):
            list(table.list_entities())

    def test_the_name_can_be_used_again_and_is_empty(self, account: LocalAccount) -> None:
        table = account.tables.create_table("Logins")
        table.create_entity({"PartitionKey": "p", "RowKey": "r"})

        account.tables.delete_table("Logins")
        table = account.tables.create_table("Logins")

        assert list(table.list_entities()) == []

    def test_many_deletes_travel_in_one_transaction(self, table: TableClient) -> None:
        entities = [{"PartitionKey": "p", "RowKey": f"{number:03}"} for number in range(100)]
        table.submit_transaction([("create", entity) for entity in entities])

        table.submit_transaction([("delete", entity) for entity in entities])

        assert list(table.list_entities()) == []


class TestDataSeriesPattern:
    def test_a_merge_sets_one_value_of_the_series(self, table: TableClient) -> None:
        series = {f"Hour{hour:02}": 0 for hour in range(24)}
        table.create_entity({"PartitionKey": "Sales", "RowKey": "00010", **series})

        for hour in (9, 10, 9):
            entity = {"PartitionKey": "Sales", "RowKey": "00010", f"Hour{hour:02}": hour}
            table.update_entity(entity, UpdateMode.MERGE)

        stored = table.get_entity("Sales", "00010")
        assert (stored["Hour09"], stored["Hour10"], stored["Hour11"]) == (9, 10, 0)
        assert len(stored) == 26


class TestWideEntitiesPattern:
    def test_more_than_252_values_live_in_two_entities(self, table: TableClient) -> None:
        days = {f"Day{day:03}": day for day in range(365)}
        first = {name: days[name] for name in list(days)[:252]}
        second = {name: days[name] for name in list(days)[252:]}

        with pytest.raises(HttpResponseError):
            table.create_entity({"PartitionKey": "Sales", "RowKey": "00010", **days})
        table.submit_transaction(
            [
                ("create", {"PartitionKey": "Sales", "RowKey": "00010_01", **first}),
                ("create", {"PartitionKey": "Sales", "RowKey": "00010_02", **second}),
            ]
        )

        stored = {**table.get_entity("Sales", "00010_01"), **table.get_entity("Sales", "00010_02")}
        assert {name: stored[name] for name in days} == days


class TestLogDataAntiPattern:
    def test_a_range_of_times_across_partitions_is_found_in_order(self, table: TableClient) -> None:
        for hour in range(6):
            for server in ("a", "b"):
                table.create_entity({"PartitionKey": f"20150226{hour:02}", "RowKey": server})

        found = table.query_entities(
            "PartitionKey ge '2015022602' and PartitionKey lt '2015022604'"
        )

        assert [(e["PartitionKey"][-2:], e["RowKey"]) for e in found] == [
            ("02", "a"),
            ("02", "b"),
            ("03", "a"),
            ("03", "b"),
        ]
