"""Claims of the guide's chapter "Design for data modification" and of "Modifying entities"."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import (
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.data.tables import TableClient, TableTransactionError, UpdateMode


class TestInsertUpdateAndDelete:
    def test_both_keys_name_the_entity_to_change(self, staff: TableClient) -> None:
        staff.update_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 24})
        staff.delete_entity("Sales", "00011")

        ages = {e["RowKey"]: e.get("Age") for e in staff.query_entities("PartitionKey eq 'Sales'")}
        assert ages == {"00010": 24, "00012": 38, "Department": None}

    def test_an_insert_never_overwrites(self, staff: TableClient) -> None:
        with pytest.raises(ResourceExistsError):
            staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 1})

        assert staff.get_entity("Sales", "00010")["Age"] == 23


class TestEnsuringConsistency:
    def test_copies_in_one_partition_change_together(self, table: TableClient) -> None:
        rows = ("empid_000223", "email_jonesj@contoso.com")
        table.submit_transaction(
            [("create", {"PartitionKey": "Sales", "RowKey": row, "Age": 30}) for row in rows]
        )

        table.submit_transaction(
            [("update", {"PartitionKey": "Sales", "RowKey": row, "Age": 31}) for row in rows]
        )

        assert [table.get_entity("Sales", row)["Age"] for row in rows] == [31, 31]

    def test_no_transaction_spans_partitions(self, table: TableClient) -> None:
        with pytest.raises((TableTransactionError, ValueError)):
            table.submit_transaction(
                [
                    ("create", {"PartitionKey": "Sales", "RowKey": "1"}),
                    ("create", {"PartitionKey": "Marketing", "RowKey": "1"}),
                ]
            )

        assert list(table.list_entities()) == []


class TestModifyingEntities:
    def test_the_error_of_a_transaction_names_the_failing_change(self, staff: TableClient) -> None:
        with pytest.raises(TableTransactionError) as refused:
            staff.submit_transaction(
                [
                    ("create", {"PartitionKey": "Sales", "RowKey": "00020"}),
                    ("create", {"PartitionKey": "Sales", "RowKey": "00021"}),
                    ("update", {"PartitionKey": "Sales", "RowKey": "00099"}),
                    ("create", {"PartitionKey": "Sales", "RowKey": "00010"}),
                ]
            )

        assert refused.value.index == 2

    def test_one_transaction_inserts_updates_and_deletes(self, staff: TableClient) -> None:
        outcomes = staff.submit_transaction(
            [
                ("create", {"PartitionKey": "Sales", "RowKey": "00020"}),
                ("update", {"PartitionKey": "Sales", "RowKey": "00010", "Age": 24}),
                ("delete", {"PartitionKey": "Sales", "RowKey": "00011"}),
            ]
        )

        assert len(outcomes) == 3
        etag = staff.get_entity("Sales", "00010").metadata["etag"]
        assert outcomes[1]["etag"] == etag


class TestManagingConcurrency:
    @pytest.mark.parametrize("mode", [UpdateMode.MERGE, UpdateMode.REPLACE])
    def test_an_update_of_a_changed_entity_is_refused(
        self, staff: TableClient, mode: UpdateMode
    ) -> None:
        ken = staff.get_entity("Sales", "00010")
        staff.update_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 24})

        with pytest.raises(ResourceModifiedError):
            staff.update_entity(
                {**ken, "Age": 99},
                mode,
                etag=ken.metadata["etag"],
                match_condition=MatchConditions.IfNotModified,
            )

        assert staff.get_entity("Sales", "00010")["Age"] == 24

    def test_a_delete_of_a_changed_entity_is_refused(self, staff: TableClient) -> None:
        ken = staff.get_entity("Sales", "00010")
        staff.update_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 24})

        with pytest.raises(ResourceModifiedError):
            staff.delete_entity(
                ken, etag=ken.metadata["etag"], match_condition=MatchConditions.IfNotModified
            )

        assert staff.get_entity("Sales", "00010")["Age"] == 24

    def test_a_client_may_bypass_the_check(self, staff: TableClient) -> None:
        ken = staff.get_entity("Sales", "00010")
        staff.update_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 24})

        staff.update_entity({**ken, "Age": 99}, UpdateMode.REPLACE)

        assert staff.get_entity("Sales", "00010")["Age"] == 99

    def test_one_of_many_writers_with_the_same_etag_wins(self, staff: TableClient) -> None:
        ken = staff.get_entity("Sales", "00010")

        def write(age: int) -> bool:
            try:
                staff.update_entity(
                    {**ken, "Age": age},
                    UpdateMode.REPLACE,
                    etag=ken.metadata["etag"],
                    match_condition=MatchConditions.IfNotModified,
                )
            except ResourceModifiedError:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(write, range(100, 120)))

        assert won.count(True) == 1
        assert staff.get_entity("Sales", "00010")["Age"] == 100 + won.index(True)


class TestMergeOrReplace:
    def test_a_replace_removes_what_it_does_not_name(self, staff: TableClient) -> None:
        staff.update_entity(
            {"PartitionKey": "Sales", "RowKey": "00010", "Age": 24}, UpdateMode.REPLACE
        )

        assert dict(staff.get_entity("Sales", "00010")) == {
            "PartitionKey": "Sales",
            "RowKey": "00010",
            "Age": 24,
        }

    def test_a_merge_leaves_what_it_does_not_name(self, staff: TableClient) -> None:
        staff.update_entity(
            {"PartitionKey": "Sales", "RowKey": "00010", "Age": 24, "Room": "B2"},
            UpdateMode.MERGE,
        )

        ken = staff.get_entity("Sales", "00010")
        assert (ken["Age"], ken["Room"], ken["FirstName"]) == (24, "B2", "Ken")

    @pytest.mark.parametrize("mode", [UpdateMode.MERGE, UpdateMode.REPLACE])
    def test_both_fail_if_the_entity_does_not_exist(
        self, staff: TableClient, mode: UpdateMode
    ) -> None:
        with pytest.raises(ResourceNotFoundError):
            staff.update_entity({"PartitionKey": "Sales", "RowKey": "00099"}, mode)

    @pytest.mark.parametrize("mode", [UpdateMode.MERGE, UpdateMode.REPLACE])
    def test_an_upsert_creates_what_does_not_exist(
        self, staff: TableClient, mode: UpdateMode
    ) -> None:
        staff.upsert_entity({"PartitionKey": "Sales", "RowKey": "00099", "Age": 1}, mode)

        assert staff.get_entity("Sales", "00099")["Age"] == 1

    def test_an_upsert_merges_or_replaces_what_exists(self, staff: TableClient) -> None:
        ken = {"PartitionKey": "Sales", "RowKey": "00010", "Age": 24}

        staff.upsert_entity(ken, UpdateMode.MERGE)
        assert staff.get_entity("Sales", "00010")["FirstName"] == "Ken"

        staff.upsert_entity(ken, UpdateMode.REPLACE)
        assert "FirstName" not in staff.get_entity("Sales", "00010")


class TestModifyingHeterogeneousEntityTypes:
    def test_an_entity_is_deleted_without_knowing_its_type(self, staff: TableClient) -> None:
        for row_key in ("00010", "Department"):
            staff.delete_entity("Sales", row_key)

        found = staff.query_entities("PartitionKey eq 'Sales'")
        assert [e["RowKey"] for e in found] == ["00011", "00012"]

    def test_an_entity_is_changed_without_knowing_its_type(self, staff: TableClient) -> None:
        department = staff.get_entity("Sales", "Department")
        department["EmployeeCount"] += 1

        staff.update_entity(department, UpdateMode.MERGE)

        assert staff.get_entity("Sales", "Department")["EmployeeCount"] == 43
