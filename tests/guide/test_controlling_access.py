"""Claims of the guide's section "Controlling access with Shared Access Signatures"."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableClient, TableSasPermissions, generate_table_sas

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.azure_transport_sync import InProcessTransport
from partita.service.hosting.in_process import ENDPOINTS, LocalAccount

Grant = Callable[..., TableClient]


@pytest.fixture
def grant(account: LocalAccount, staff: TableClient) -> Grant:
    """Return a client that holds nothing but a signature."""

    def build(permission: str, *, hours: float = 1, **parameters: Any) -> TableClient:
        sas = generate_table_sas(
            AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
            "Employees",
            permission=TableSasPermissions.from_string(permission),
            expiry=datetime.now(UTC) + timedelta(hours=hours),
            **parameters,
        )
        return TableClient(
            ENDPOINTS["tables"],
            "Employees",
            credential=AzureSasCredential(sas),
            transport=InProcessTransport(account._fronts["tables"].respond, account._thread),
        )

    return build


class TestControllingAccessWithSharedAccessSignatures:
    def test_no_account_key_is_needed(self, grant: Grant) -> None:
        assert grant("r").get_entity("Sales", "00010")["FirstName"] == "Ken"

    def test_a_grant_may_be_read_only(self, grant: Grant, staff: TableClient) -> None:
        client = grant("r")

        with pytest.raises(HttpResponseError) as refused:
            client.upsert_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 1})

        assert refused.value.status_code == 403
        assert staff.get_entity("Sales", "00010")["Age"] == 23

    def test_a_grant_is_limited_in_time(self, grant: Grant) -> None:
        with pytest.raises(HttpResponseError) as refused:
            grant("r", hours=-1).get_entity("Sales", "00010")

        assert refused.value.status_code == 403

    def test_a_grant_is_for_one_table(self, account: LocalAccount, grant: Grant) -> None:
        account.tables.create_table("Contractors")
        client = grant("raud")
        client.table_name = "Contractors"

        with pytest.raises(HttpResponseError) as refused:
            list(client.list_entities())

        assert refused.value.status_code == 403

    def test_by_default_a_grant_is_for_the_entire_table(self, grant: Grant) -> None:
        assert len(list(grant("r").list_entities())) == 7

    def test_a_grant_may_be_for_a_range_of_partitions(self, grant: Grant) -> None:
        client = grant("r", start_pk="Sales", end_pk="Sales")

        assert {e["PartitionKey"] for e in client.list_entities()} == {"Sales"}
        with pytest.raises(ResourceNotFoundError):
            client.get_entity("Marketing", "00001")

    def test_a_grant_may_be_for_a_range_of_row_keys(self, grant: Grant, staff: TableClient) -> None:
        client = grant("raud", start_pk="Sales", start_rk="00010", end_pk="Sales", end_rk="00011")

        assert [e["RowKey"] for e in client.list_entities()] == ["00010", "00011"]
        client.update_entity({"PartitionKey": "Sales", "RowKey": "00011", "Age": 52})
        with pytest.raises(HttpResponseError) as refused:
            client.update_entity({"PartitionKey": "Sales", "RowKey": "00012", "Age": 1})
        assert refused.value.status_code == 403
        assert staff.get_entity("Sales", "00012")["Age"] == 38
