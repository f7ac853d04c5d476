"""Grants against the live server: every key in and around a range, by the official SDK."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.data.tables import (
    TableAccessPolicy,
    TableClient,
    TableSasPermissions,
    TableServiceClient,
    UpdateMode,
)

from partita.clock import ManualClock, SystemClock
from partita.patterns.grants.grants import Grant, GrantTerms, Issuer
from partita.patterns.keys.intervals import between
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import entity, entity_type
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer
from support.repeats import sample_pairs
from wire.sdk import CREDENTIAL

HOUR = timedelta(hours=1)
READ = GrantTerms("r", HOUR)
ALL = GrantTerms("raud", HOUR)

PARTITIONS = ["Sales", "Sale", "Sales0", "Salesa", "Sales ", "sales", "S", "User1", "éé", "T"]
ROWS = [
    *("emp_000123", "emp_000122", "emp_000124", "emp_00012", "emp_0001230", "emp_000123~1"),
    *("emp_000000", "emp_999999", "emp_9999990", "emp_", "emp", "emp_x", "emp`", "emp_photo_1"),
    *("user1_a", "user1_", "user1_😀", "user1_ｱ", "user1_~", "user1", "user10", "user10_a"),
    *("user1`", "user1a_b", "user2_a", "user_a", "User1_a", "user1-a"),
    *("~o_0000000000000000001_ab", "~o_", "~", "~~", "~ix_by_email", "}", "}~", "}\U0010ffff"),
    *("a", "é", "日本", "\xa0", "ｱ", "😀", "email_junc@contoso.com", "dept"),
]


@entity(table="GrantedKeys", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int


@entity(table="GrantedKeys", partition="{dept}", row="{owner:esc}_{name}")
class File:
    dept: str
    owner: str
    name: str


@entity(table="GrantedKeys", partition="{dept}", row="{title}")
class Note:
    dept: str
    title: str


@pytest.fixture(scope="module")
def owner(server: LiveServer) -> Iterator[TableClient]:
    """The table of these tests, with every key that could be mistaken for another."""
    with TableServiceClient(server.endpoint, credential=CREDENTIAL, retry_total=0) as service:
        table = service.create_table_if_not_exists("GrantedKeys")
        for partition_key in PARTITIONS:
            for start in range(0, len(ROWS), 100):
                table.submit_transaction(
                    [
                        ("upsert", {"PartitionKey": partition_key, "RowKey": row, "N": 1})
                        for row in ROWS[start : start + 100]
                    ]
                )
        yield table


@pytest.fixture
def issuer(server: LiveServer, owner: TableClient) -> Issuer:
    return Issuer(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, SystemClock(), endpoint=server.endpoint)


Open = Callable[[Grant], TableClient]


@pytest.fixture
def holder(server: LiveServer) -> Iterator[Open]:
    """Open a client that has nothing but a grant."""
    opened: list[TableClient] = []

    def build(grant: Grant) -> TableClient:
        opened.append(
            TableClient(
                server.endpoint,
                grant.table,
                credential=AzureSasCredential(grant.token),
                retry_total=0,
            )
        )
        return opened[-1]

    yield build
    for client in opened:
        client.close()


def status(call: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """Return 200, or the status of the refusal."""
    try:
        call(*arguments, **options)
    except HttpResponseError as error:
        return error.status_code or 0
    return 200


def reached(client: TableClient) -> set[tuple[str, str]]:
    """Read every key in and around, one by one, and return those that were given out."""
    return {
        (partition_key, row)
        for partition_key in PARTITIONS
        for row in ROWS
        if status(client.get_entity, partition_key, row) == 200
    }


def listed(client: TableClient) -> set[tuple[str, str]]:
    return {(each["PartitionKey"], each["RowKey"]) for each in client.list_entities()}


def in_sales(*rows: str) -> set[tuple[str, str]]:
    return {("Sales", row) for row in rows}


CASES: list[tuple[type[Any], dict[str, Any], set[tuple[str, str]]]] = [
    (Employee, {"dept": "Sales", "id": 123}, in_sales("emp_000123")),
    (
        Employee,
        {"dept": "Sales"},
        # Keys that begin with one of the type lie between two of them.
        in_sales(
            *("emp_000000", "emp_00012", "emp_000122", "emp_000123", "emp_0001230"),
            *("emp_000123~1", "emp_000124", "emp_999999"),
        ),
    ),
    (
        Employee,
        {"dept": "Sales", "id": between(122, 123)},
        in_sales("emp_000122", "emp_000123"),
    ),
    (
        File,
        {"dept": "Sales", "owner": "user1"},
        in_sales("user1_a", "user1_", "user1_😀", "user1_ｱ", "user1_~"),
    ),
    (File, {"dept": "Sales", "owner": "user1", "name": "a"}, in_sales("user1_a")),
    (File, {"dept": "Sales", "owner": "user1", "name": ""}, in_sales("user1_")),
    (Note, {"dept": "Sales", "title": "user1"}, in_sales("user1")),
    (Note, {"dept": "Sales"}, in_sales(*(row for row in ROWS if not row.startswith("~")))),
    (Employee, {"dept": "nobody"}, set()),
]


@pytest.mark.parametrize(("cls", "given", "expected"), sample_pairs(CASES, 3))
def test_exactly_the_keys_of_a_grant_are_reached(
    cls: type[Any],
    given: dict[str, Any],
    expected: set[tuple[str, str]],
    *,
    issuer: Issuer,
    holder: Open,
) -> None:
    grants = issuer.grants(entity_type(cls), given, READ)
    found = [reached(holder(grant)) for grant in grants]

    assert set().union(*found) == expected
    assert [listed(holder(grant)) for grant in grants] == found
    for grant, keys in zip(grants, found, strict=True):
        held = {(pk, row) for pk in PARTITIONS for row in ROWS if grant.holds(RowKey(pk, row))}
        assert held == keys


def test_a_filter_of_the_holder_sees_nothing_outside(issuer: Issuer, holder: Open) -> None:
    client = holder(issuer.grant(entity_type(File), {"dept": "Sales", "owner": "user1"}, READ))

    rows = [each["RowKey"] for each in client.query_entities("RowKey ge 'user1' and N eq 1")]

    assert rows == ["user1_", "user1_a", "user1_~", "user1_ｱ", "user1_😀"]


@pytest.mark.parametrize("letters", ["r", "a", "u", "d", "ra", "rau", "raud", "au"])
def test_a_grant_permits_what_its_letters_say_inside_and_nothing_outside(
    letters: str, issuer: Issuer, owner: TableClient, holder: Open
) -> None:
    client = holder(issuer.grant(entity_type(Employee), {"dept": "Pay"}, GrantTerms(letters, HOUR)))

    for row, is_inside in (("emp_000007", True), ("emp_x", False), ("~o_1", False)):
        entity_ = {"PartitionKey": "Pay", "RowKey": row, "N": 2}
        owner.delete_entity(entity_)
        may = {letter for letter in letters if is_inside}
        add = status(client.create_entity, entity_)
        owner.upsert_entity(entity_)
        replace = status(client.update_entity, entity_, mode=UpdateMode.REPLACE)
        merge = status(client.update_entity, entity_, mode=UpdateMode.MERGE)
        upsert = status(client.upsert_entity, entity_)
        delete = status(client.delete_entity, entity_)
        group = status(client.submit_transaction, [("upsert", entity_)])

        assert (add == 200) == ("a" in may)
        assert (replace == 200) == (merge == 200) == ("u" in may)
        assert (upsert == 200) == (group == 200) == ({"a", "u"} <= may)
        assert (delete == 200) == ("d" in may)
        assert {add, replace, merge, upsert, delete, group} <= {200, 403}


def test_a_group_that_leaves_the_range_is_refused_whole(
    issuer: Issuer, owner: TableClient, holder: Open
) -> None:
    client = holder(issuer.grant(entity_type(Employee), {"dept": "Legal"}, ALL))
    inside = {"PartitionKey": "Legal", "RowKey": "emp_000001"}
    outside = {"PartitionKey": "Legal", "RowKey": "email_a"}

    assert status(client.submit_transaction, [("upsert", inside), ("upsert", outside)]) == 403

    assert status(owner.get_entity, "Legal", "emp_000001") == 404
    assert status(client.submit_transaction, [("upsert", inside)]) == 200


def test_a_grant_is_for_its_table_only(server: LiveServer, issuer: Issuer, holder: Open) -> None:
    grant = issuer.grant(entity_type(Employee), {"dept": "Sales"}, ALL)
    with TableServiceClient(server.endpoint, credential=CREDENTIAL) as service:
        service.create_table_if_not_exists("GrantedNot")
    client = holder(grant)
    client.table_name = "GrantedNot"

    assert status(lambda: list(client.list_entities())) == 403


def ticks_from_now(seconds: float) -> int:
    return SystemClock().ticks() + round(seconds * 10_000_000)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 200), (-3_570, 200), (-3_605, 403), (290, 200), (310, 403)]
)
def test_a_grant_holds_from_five_minutes_before_until_its_end(
    seconds: float, expected: int, owner: TableClient, holder: Open
) -> None:
    """The clock of the issuer is ahead of the server's, or behind, by so many seconds."""
    issuer = Issuer(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ManualClock(ticks_from_now(seconds)))
    grant = issuer.grant(entity_type(Employee), {"dept": "Sales"}, GrantTerms("r", HOUR))

    assert status(holder(grant).get_entity, "Sales", "emp_000123") == expected


def test_a_policy_can_be_taken_back(issuer: Issuer, owner: TableClient, holder: Open) -> None:
    policy = TableAccessPolicy(
        permission=str(TableSasPermissions(read=True)), expiry=datetime.now(UTC) + HOUR
    )
    owner.set_table_access_policy({"readers": policy})
    terms = GrantTerms(policy_id="readers")
    client = holder(issuer.grant(entity_type(Employee), {"dept": "Sales"}, terms))

    assert status(client.get_entity, "Sales", "emp_000123") == 200
    assert status(client.get_entity, "Sales", "dept") == 404
    assert status(client.delete_entity, "Sales", "emp_000123") == 403
    owner.set_table_access_policy({})
    assert status(client.get_entity, "Sales", "emp_000123") == 403


def test_a_changed_token_is_refused(issuer: Issuer, holder: Open) -> None:
    grant = issuer.grant(entity_type(Employee), {"dept": "Sales"}, READ)
    wider = grant.token.replace("emp_999999", "zzz")
    assert wider != grant.token

    altered = holder(msgspec.structs.replace(grant, token=wider))

    assert status(altered.get_entity, "Sales", "emp_000123") == 403


def test_the_address_of_a_grant_opens_its_table(issuer: Issuer) -> None:
    grant = issuer.grant(entity_type(Employee), {"dept": "Sales"}, READ)
    url, _, token = grant.url.partition("?")

    with TableClient.from_table_url(url, credential=AzureSasCredential(token)) as client:
        assert client.get_entity("Sales", "emp_000123")["N"] == 1
