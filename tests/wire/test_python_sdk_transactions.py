"""Entity group transactions through the official Python SDK, both halves."""

from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.data.tables import (
    RequestTooLargeError,
    TableTransactionError,
    TransactionOperation,
    UpdateMode,
)

from support.live import LiveServer
from wire.sdk import all_of, open_service

STALE = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\""


def an_entity(row: object, **properties: Any) -> dict[str, Any]:
    return {"PartitionKey": "p", "RowKey": str(row)} | properties


def error_code_of(raised: pytest.ExceptionInfo[TableTransactionError]) -> str:
    code: str = getattr(raised.value, "error_code")  # noqa: B009 - not in the SDK's types
    return code


async def rows_of(client: Any) -> dict[str, dict[str, Any]]:
    """Return the properties of all entities by row key."""
    return {
        entity["RowKey"]: {
            name: value for name, value in entity.items() if name not in ("PartitionKey", "RowKey")
        }
        for entity in await all_of(client.list_entities())
    }


async def test_a_transaction_does_every_operation_in_order(client: Any) -> None:
    for row in ("merged", "replaced", "upserted", "deleted"):
        await client.create_entity(an_entity(row, Old=1))

    said = await client.submit_transaction(
        [
            (TransactionOperation.CREATE, an_entity("created", New=2)),
            (TransactionOperation.UPDATE, an_entity("merged", New=2), {"mode": UpdateMode.MERGE}),
            ("update", an_entity("replaced", New=2), {"mode": "replace"}),
            ("upsert", an_entity("upserted", New=2), {"mode": "merge"}),
            ("upsert", an_entity("fresh", New=2), {"mode": "replace"}),
            ("delete", an_entity("deleted")),
        ]
    )

    assert await rows_of(client) == {
        "created": {"New": 2},
        "fresh": {"New": 2},
        "merged": {"Old": 1, "New": 2},
        "replaced": {"New": 2},
        "upserted": {"Old": 1, "New": 2},
    }
    assert [bool(part.get("etag")) for part in said] == [True] * 5 + [False]
    rows = ("created", "merged", "replaced", "upserted", "fresh")
    for part, row in zip(said, rows, strict=False):
        assert (await client.get_entity("p", row)).metadata["etag"] == part["etag"]


@pytest.mark.parametrize("index", [0, 3, 9])
@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [
        (("create", "taken", {}), 409, "EntityAlreadyExists"),
        (("update", "missing", {}), 404, "ResourceNotFound"),
        (("delete", "missing", {}), 404, "ResourceNotFound"),
        (("update", "taken", {"etag": STALE}), 412, "UpdateConditionNotSatisfied"),
        (("delete", "taken", {"etag": STALE}), 412, "UpdateConditionNotSatisfied"),
        (("create", "a#b", {}), 400, "OutOfRangeInput"),
    ],
)
async def test_a_failing_operation_is_named_and_nothing_is_done(
    client: Any, index: int, operation: tuple[str, str, dict[str, Any]], status: int, code: str
) -> None:
    await client.create_entity(an_entity("taken", Old=1))
    verb, row, options = operation
    if options:
        options = options | {"match_condition": MatchConditions.IfNotModified}
    operations: list[Any] = [("upsert", an_entity(f"{place:02}")) for place in range(10)]
    operations[index] = (verb, an_entity(row, Old=2), options)

    with pytest.raises(TableTransactionError) as refused:
        await client.submit_transaction(operations)

    assert (refused.value.index, refused.value.status_code) == (index, status)
    assert error_code_of(refused) == code
    assert await rows_of(client) == {"taken": {"Old": 1}}


async def test_a_lone_failing_operation_has_index_zero(client: Any) -> None:
    await client.create_entity(an_entity("taken"))

    with pytest.raises(TableTransactionError) as refused:
        await client.submit_transaction([("create", an_entity("taken"))])

    assert (refused.value.index, error_code_of(refused)) == (0, "EntityAlreadyExists")


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_an_update_in_a_transaction_keeps_to_its_etag(client: Any, mode: UpdateMode) -> None:
    etag = (await client.create_entity(an_entity("a", Old=1)))["etag"]
    options = {"etag": etag, "match_condition": MatchConditions.IfNotModified, "mode": mode}

    await client.submit_transaction([("update", an_entity("a", New=1), options)])
    with pytest.raises(TableTransactionError) as refused:
        await client.submit_transaction([("update", an_entity("a", New=2), options)])

    assert refused.value.status_code == 412
    assert (await client.get_entity("p", "a"))["New"] == 1


async def test_no_entity_appears_twice(client: Any) -> None:
    with pytest.raises(TableTransactionError) as refused:
        await client.submit_transaction(
            [("upsert", an_entity("a")), ("upsert", an_entity("b")), ("delete", an_entity("a"))]
        )

    assert (refused.value.index, error_code_of(refused)) == (2, "InvalidDuplicateRow")
    assert await rows_of(client) == {}


async def test_a_hundred_operations_are_done_and_one_more_is_refused(client: Any) -> None:
    await client.submit_transaction([("create", an_entity(row)) for row in range(100)])

    with pytest.raises(TableTransactionError) as refused:
        await client.submit_transaction([("upsert", an_entity(row, A=1)) for row in range(101)])

    assert error_code_of(refused) == "InvalidInput"
    assert "exceeds the maximum 100 changes per change set" in str(refused.value)
    rows = await rows_of(client)
    assert (len(rows), rows["0"]) == (100, {})


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_transaction_of_more_than_four_mib_is_too_large(client: Any) -> None:
    block = b"x" * 65_536
    operations = [("create", an_entity(row, A=block, B=block)) for row in range(30)]

    with pytest.raises(RequestTooLargeError) as refused:
        await client.submit_transaction(operations)

    assert refused.value.status_code == 413
    assert await rows_of(client) == {}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_transaction_just_below_four_mib_is_done(client: Any) -> None:
    block = b"x" * 65_536
    operations = [("create", an_entity(row, A=block)) for row in range(45)]

    await client.submit_transaction(operations)

    assert len(await rows_of(client)) == 45


async def test_one_partition_a_transaction(client: Any) -> None:
    with pytest.raises(ValueError, match="Partition Keys in the batch must all be the same"):
        await client.submit_transaction(
            [("create", an_entity("a")), ("create", an_entity("b", PartitionKey="q"))]
        )


async def test_a_transaction_on_a_missing_table_is_told_so(service: Any, name: str) -> None:
    missing = service.get_table_client(name)

    with pytest.raises(TableTransactionError) as refused:
        await missing.submit_transaction([("create", an_entity(row)) for row in "ab"])

    assert (refused.value.status_code, error_code_of(refused)) == (404, "TableNotFound")
    assert refused.value.index == 0


async def test_an_unsigned_batch_is_refused_as_a_whole(
    half: str, server: LiveServer, table: str
) -> None:
    wrong = AzureNamedKeyCredential("devstoreaccount1", "bm90IHRoZSBrZXk=")
    async with open_service(half, server.endpoint, wrong) as service:
        with pytest.raises(ClientAuthenticationError) as refused:
            await service.get_table_client(table).submit_transaction([("create", an_entity("a"))])
    assert isinstance(refused.value, HttpResponseError)
    assert refused.value.status_code == 403


async def test_odd_texts_pass_through_a_transaction(client: Any) -> None:
    odd = an_entity(
        "x", A="100%25 \r\n--changeset_x\r\n\r\n", B='{"a":1}', C="啊齄\U0001f600", D="'", E="\x00"
    )

    await client.submit_transaction([("create", odd)])

    assert dict(await client.get_entity("p", "x")) == odd
