"""Grants: one SAS token per key range, by stored policy or lifetime."""

from datetime import timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableClient

from partita.errors import UsageError
from partita.patterns import Grant, RowKey, TablePolicy, entity
from partita.patterns.protocol.utc import utc_now
from partita.patterns.sync import Database, connect
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


# ---------------------------------------------------------------------------------------------
# Whole tables, partitions, policies, and the end of tables


def rows_of(grant: Grant, account: LocalAccount) -> list[str]:
    credential = {"credential": AzureSasCredential(grant.token)}
    arguments: dict[str, Any] = account.client_arguments(TABLES) | credential
    with TableClient(table_name=grant.table, **arguments) as holder:
        return [each["PartitionKey"] for each in holder.list_entities()]


def with_notes(db: Database) -> None:
    notes = db.table(Note)
    db.create_tables()
    for user in ("ann", "bob", "bob2", "carl"):
        notes.save(Note(user=user, title="plan"))


@pytest.mark.parametrize(
    ("bounds", "users"),
    [
        (("", ""), ["ann", "bob", "bob2", "carl"]),
        (("bob", ""), ["bob", "bob2", "carl"]),
        (("", "bob"), ["ann", "bob"]),
        (("b", "bob2"), ["bob", "bob2"]),
    ],
)
def test_partitions_and_whole_tables_are_granted_on_request(
    partita_db_sync: Database,
    partita_account: LocalAccount,
    bounds: tuple[str, str],
    users: list[str],
) -> None:
    with_notes(partita_db_sync)

    grant = partita_db_sync.grant_table(Note, partitions=bounds)

    assert rows_of(grant, partita_account) == users
    holding = [user for user in ("ann", "bob", "bob2", "carl") if grant.holds(RowKey(user, "x"))]
    assert holding == users


def test_bounds_in_the_wrong_order_are_refused(partita_db_sync: Database) -> None:
    with pytest.raises(UsageError) as refused:
        partita_db_sync.grant_table(Note, partitions=("b", "a"))

    assert refused.value.code == "GrantNotExpressible"


def test_a_policy_of_a_table_decides_over_its_tokens(
    partita_db_sync: Database, partita_account: LocalAccount
) -> None:
    with_notes(partita_db_sync)
    expires = utc_now(partita_db_sync.context.clock).replace(microsecond=0) + timedelta(hours=1)
    policy = TablePolicy(permissions="r", expires=expires)

    partita_db_sync.set_policies(Note, {"readers": policy})
    stored = partita_db_sync.policies(Note)
    grant = partita_db_sync.grant_table(Note, policy_id="readers")
    before = rows_of(grant, partita_account)
    partita_db_sync.set_policies(Note, {})

    assert (stored["readers"].permissions, stored["readers"].expires) == ("r", expires)
    assert len(before) == 4
    with pytest.raises(HttpResponseError):
        rows_of(grant, partita_account)


def test_a_table_has_five_policies(partita_db_sync: Database) -> None:
    policies = {f"policy{number}": TablePolicy(permissions="r") for number in range(6)}

    with pytest.raises(UsageError) as refused:
        partita_db_sync.set_policies(Note, policies)

    assert refused.value.code == "TooManyPolicies"


@pytest.mark.parametrize("direct", [False, True])
def test_dropped_tables_can_be_created_again(partita_account: LocalAccount, direct: bool) -> None:
    with connect(partita_account, direct=direct) as db:
        with_notes(db)

        gone = db.drop_tables()
        again = db.create_tables()

        assert (gone, again) == (["notes"], ["notes"])
        assert db.table(Note).get_or_none(user="ann", title="plan") is None
        assert db.drop_tables() == ["notes"]
        assert db.drop_tables() == []
