"""Claims of the guide's chapter "About the Azure Table service"."""

import time
from datetime import UTC, datetime

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.data.tables import (
    EdmType,
    EntityProperty,
    RequestTooLargeError,
    TableClient,
    TableTransactionError,
    UpdateMode,
)

from partita.service.hosting.in_process import LocalAccount


def timestamp_of(table: TableClient, partition_key: str, row_key: str) -> datetime:
    timestamp = table.get_entity(partition_key, row_key).metadata["timestamp"]
    assert timestamp is not None
    return timestamp


class TestAboutTheTableService:
    def test_two_keys_identify_an_entity(self, staff: TableClient) -> None:
        assert staff.get_entity("Marketing", "00001")["FirstName"] == "Don"
        assert staff.get_entity("Sales", "Department")["EmployeeCount"] == 42

    def test_no_two_entities_share_both_keys(self, staff: TableClient) -> None:
        with pytest.raises(ResourceExistsError):
            staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010"})

        staff.create_entity({"PartitionKey": "Marketing", "RowKey": "00010"})

    def test_both_keys_are_mandatory(self, table: TableClient) -> None:
        with pytest.raises((HttpResponseError, ValueError)):
            table.create_entity({"PartitionKey": "Sales"})
        with pytest.raises((HttpResponseError, ValueError)):
            table.create_entity({"RowKey": "00010"})

        assert list(table.list_entities()) == []

    def test_the_timestamp_tells_the_last_change(self, staff: TableClient) -> None:
        before = timestamp_of(staff, "Sales", "00010")
        time.sleep(0.002)

        staff.update_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 24})

        after = timestamp_of(staff, "Sales", "00010")
        assert before < after
        assert abs((datetime.now(UTC) - after).total_seconds()) < 60

    def test_the_timestamp_cannot_be_set_by_hand(self, table: TableClient) -> None:
        table.create_entity(
            {
                "PartitionKey": "Sales",
                "RowKey": "00010",
                "Timestamp": datetime(2001, 1, 1, tzinfo=UTC),
            }
        )

        assert timestamp_of(table, "Sales", "00010").year != 2001

    def test_the_etag_comes_from_the_timestamp(self, staff: TableClient) -> None:
        text = timestamp_of(staff, "Sales", "00010").strftime("%Y-%m-%dT%H%%3A%M%%3A%S")
        etag = staff.get_entity("Sales", "00010").metadata["etag"]

        assert str(etag).startswith(f"W/\"datetime'{text}")

    def test_one_table_keeps_entities_of_several_types(self, staff: TableClient) -> None:
        employee = staff.get_entity("Marketing", "00001")
        department = staff.get_entity("Marketing", "Department")

        assert "FirstName" in employee
        assert "EmployeeCount" not in employee
        assert "EmployeeCount" in department
        assert "FirstName" not in department

    def test_a_property_may_have_another_type_on_each_entity(self, table: TableClient) -> None:
        values = ["text", 5, 0.5, True, b"\x01", EntityProperty(5, EdmType.INT64)]
        for number, value in enumerate(values):
            table.create_entity({"PartitionKey": "p", "RowKey": str(number), "Value": value})

        assert [entity["Value"] for entity in table.list_entities()] == values

    def test_only_scalar_properties_are_kept(self, table: TableClient) -> None:
        with pytest.raises((HttpResponseError, TypeError)):
            table.create_entity({"PartitionKey": "p", "RowKey": "r", "Address": {"City": "Bern"}})

        table.create_entity({"PartitionKey": "p", "RowKey": "r", "Address": '{"City":"Bern"}'})
        assert table.get_entity("p", "r")["Address"] == '{"City":"Bern"}'

    def test_one_operation_drops_a_whole_table(
        self, account: LocalAccount, staff: TableClient
    ) -> None:
        account.tables.delete_table("Employees")

        assert list(account.tables.list_tables()) == []
        with pytest.raises(ResourceNotFoundError):
            staff.get_entity("Sales", "00010")


class TestTablePartitions:
    def test_table_and_partition_key_name_the_partition(
        self, account: LocalAccount, staff: TableClient
    ) -> None:
        other = account.tables.create_table("Contractors")
        other.create_entity({"PartitionKey": "Sales", "RowKey": "00099"})

        found = staff.query_entities("PartitionKey eq 'Sales'")

        assert [e["RowKey"] for e in found] == ["00010", "00011", "00012", "Department"]

    def test_a_partition_is_the_scope_of_a_transaction(self, staff: TableClient) -> None:
        with pytest.raises((TableTransactionError, ValueError)):
            staff.submit_transaction(
                [
                    ("create", {"PartitionKey": "Sales", "RowKey": "00020"}),
                    ("create", {"PartitionKey": "Marketing", "RowKey": "00020"}),
                ]
            )

        assert list(staff.query_entities("RowKey eq '00020'")) == []


class TestEntityGroupTransactions:
    def test_all_changes_of_a_transaction_happen(self, staff: TableClient) -> None:
        staff.submit_transaction(
            [
                ("create", {"PartitionKey": "Sales", "RowKey": "00020", "Age": 30}),
                ("update", {"PartitionKey": "Sales", "RowKey": "Department", "EmployeeCount": 43}),
                ("delete", {"PartitionKey": "Sales", "RowKey": "00012"}),
            ]
        )

        assert staff.get_entity("Sales", "00020")["Age"] == 30
        assert staff.get_entity("Sales", "Department")["EmployeeCount"] == 43
        with pytest.raises(ResourceNotFoundError):
            staff.get_entity("Sales", "00012")

    def test_a_transaction_with_one_bad_change_changes_nothing(self, staff: TableClient) -> None:
        with pytest.raises(TableTransactionError):
            staff.submit_transaction(
                [
                    ("create", {"PartitionKey": "Sales", "RowKey": "00020"}),
                    ("delete", {"PartitionKey": "Sales", "RowKey": "00012"}),
                    ("create", {"PartitionKey": "Sales", "RowKey": "00010"}),
                ]
            )

        found = staff.query_entities("PartitionKey eq 'Sales'")
        assert [e["RowKey"] for e in found] == ["00010", "00011", "00012", "Department"]

    def test_a_transaction_may_mix_entity_types(self, staff: TableClient) -> None:
        staff.submit_transaction(
            [
                ("upsert", {"PartitionKey": "IT", "RowKey": "00030", "FirstName": "Ian"}),
                ("upsert", {"PartitionKey": "IT", "RowKey": "Department", "EmployeeCount": 1}),
            ]
        )

        assert len(list(staff.query_entities("PartitionKey eq 'IT'"))) == 2

    def test_a_transaction_works_on_100_entities(self, table: TableClient) -> None:
        table.submit_transaction(
            [("create", {"PartitionKey": "p", "RowKey": f"{n:03}"}) for n in range(100)]
        )

        assert len(list(table.list_entities())) == 100

    def test_a_transaction_of_101_entities_is_refused(self, table: TableClient) -> None:
        with pytest.raises(TableTransactionError):
            table.submit_transaction(
                [("create", {"PartitionKey": "p", "RowKey": f"{n:03}"}) for n in range(101)]
            )

        assert list(table.list_entities()) == []


class TestCapacityConsiderations:
    def test_an_entity_has_255_properties_with_the_system_ones(self, table: TableClient) -> None:
        properties = {f"P{number}": number for number in range(252)}

        table.create_entity({"PartitionKey": "p", "RowKey": "r", **properties})

        assert len(table.get_entity("p", "r")) == 254  # the SDK keeps Timestamp apart

    def test_one_property_more_is_refused(self, table: TableClient) -> None:
        properties = {f"P{number}": number for number in range(253)}

        with pytest.raises(HttpResponseError, match="TooManyProperties"):
            table.create_entity({"PartitionKey": "p", "RowKey": "r", **properties})

        assert list(table.list_entities()) == []

    def test_an_entity_has_almost_1_mib(self, table: TableClient) -> None:
        large = {f"P{number:02}": b"x" * 64_000 for number in range(16)}

        table.create_entity({"PartitionKey": "p", "RowKey": "r", **large})

        assert table.get_entity("p", "r")["P15"] == b"x" * 64_000

    def test_an_entity_over_1_mib_is_refused(self, table: TableClient) -> None:
        large = {f"P{number:02}": b"x" * 64_000 for number in range(17)}

        with pytest.raises(HttpResponseError, match="EntityTooLarge"):
            table.create_entity({"PartitionKey": "p", "RowKey": "r", **large})

        assert list(table.list_entities()) == []

    @pytest.mark.parametrize(("partition_key", "row_key"), [("k" * 512, "r"), ("p", "k" * 512)])
    def test_each_key_has_up_to_1_kib(
        self, table: TableClient, partition_key: str, row_key: str
    ) -> None:
        table.create_entity({"PartitionKey": partition_key, "RowKey": row_key, "Age": 1})

        assert table.get_entity(partition_key, row_key)["Age"] == 1

    @pytest.mark.parametrize(("partition_key", "row_key"), [("k" * 513, "r"), ("p", "k" * 513)])
    def test_a_longer_key_is_refused(
        self, table: TableClient, partition_key: str, row_key: str
    ) -> None:
        with pytest.raises(HttpResponseError):
            table.create_entity({"PartitionKey": partition_key, "RowKey": row_key})

        assert list(table.list_entities()) == []

    def test_a_transaction_of_more_than_4_mib_is_refused(self, table: TableClient) -> None:
        large = {f"P{number}": b"x" * 64_000 for number in range(10)}

        with pytest.raises(RequestTooLargeError):
            table.submit_transaction(
                [("create", {"PartitionKey": "p", "RowKey": str(n), **large}) for n in range(6)]
            )

        assert list(table.list_entities()) == []

    def test_a_transaction_changes_an_entity_only_once(self, staff: TableClient) -> None:
        with pytest.raises(TableTransactionError, match="InvalidDuplicateRow"):
            staff.submit_transaction(
                [
                    ("update", {"PartitionKey": "Sales", "RowKey": "00010", "Age": 24}),
                    ("update", {"PartitionKey": "Sales", "RowKey": "00010", "Age": 25}),
                ]
            )

        assert staff.get_entity("Sales", "00010")["Age"] == 23

    def test_many_tables_and_partitions_live_side_by_side(self, account: LocalAccount) -> None:
        for number in range(20):
            account.tables.create_table(f"Table{number}")
        table = account.tables.get_table_client("Table7")
        for number in range(50):
            table.create_entity({"PartitionKey": f"{number:02}", "RowKey": ""})

        assert len(list(account.tables.list_tables())) == 20
        assert len(list(table.list_entities())) == 50


class TestOptimisticConcurrency:
    """The timestamp serves optimistic concurrency; "Managing concurrency" says how."""

    def test_a_stale_etag_does_not_win(self, staff: TableClient) -> None:
        ken = staff.get_entity("Sales", "00010")
        staff.update_entity({**ken, "Age": 24}, UpdateMode.REPLACE)

        with pytest.raises(HttpResponseError) as refused:
            staff.update_entity(
                {**ken, "Age": 99},
                UpdateMode.REPLACE,
                etag=ken.metadata["etag"],
                match_condition=MatchConditions.IfNotModified,
            )

        assert refused.value.status_code == 412
        assert staff.get_entity("Sales", "00010")["Age"] == 24
