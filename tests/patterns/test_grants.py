"""Grants: one SAS token per key range, by stored policy or lifetime."""

from datetime import timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableClient

from partita.errors import UsageError
from partita.patterns import entity
from partita.patterns.sync import Database
from partita.service.hosting.in_process import LocalAccount
from partita.service.hosting.services import TABLES
from support.entities import File


@entity(table="notes", partition="{user}", row="{title}")
class Note:
    user: str
    title: str


def test_a_grant_is_one_token_of_the_plain_sdk_and_no_neighbour_s(
    partita_db_sync: Database, partita_account: LocalAccount
) -> None:
    files = partita_db_sync.table(File)
    partita_db_sync.create_tables()
    for owner in ("user1", "user10"):
        files.save(File(dept="Sales", owner=owner, name="plan"))

    grant = partita_db_sync.grant(File, dept="Sales", owner="user1")

    assert (grant.permissions, grant.table) == ("r", "files")
    credential = {"credential": AzureSasCredential(grant.token)}
    arguments: dict[str, Any] = partita_account.client_arguments(TABLES) | credential
    with TableClient(table_name=grant.table, **arguments) as holder:
        assert [each["RowKey"] for each in holder.list_entities()] == ["user1_plan"]
        with pytest.raises(ResourceNotFoundError):
            holder.get_entity("Sales", "user10_plan")


def test_keys_that_are_no_single_range_take_several_grants(partita_db_sync: Database) -> None:
    with pytest.raises(UsageError) as refused:
        partita_db_sync.grant(Note, user="ann")

    assert refused.value.code == "SeveralGrants"
    assert len(partita_db_sync.grants(Note, user="ann")) == 2


def test_a_grant_by_a_stored_policy_leaves_the_rest_to_it(partita_db_sync: Database) -> None:
    grant = partita_db_sync.grant(File, dept="Sales", owner="user1", policy_id="readers")

    assert (grant.permissions, grant.expires, grant.policy_id) == ("", None, "readers")
    assert "sp=" not in grant.token


def test_a_lifetime_in_seconds_is_refused_with_the_reason(partita_db_sync: Database) -> None:
    with pytest.raises(UsageError, match="timedelta") as refused:
        partita_db_sync.grant(File, dept="Sales", owner="ann", ttl=3600)  # type: ignore[arg-type]

    assert refused.value.code == "GrantTerms"
    hour = partita_db_sync.grant(File, dept="Sales", owner="ann", ttl=timedelta(hours=1))
    assert hour.expires is not None
