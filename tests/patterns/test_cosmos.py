"""Cosmos DB: what is refused there, and how merges are sent."""

import pytest

from partita.errors import NotSupportedError
from partita.patterns.ports.row_requests import request_of
from partita.patterns.protocol.calls import RowOperation, Verb, WriteRows
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.sync import connect
from partita.service.formats.multipart import read_batch
from support.entities import File


@pytest.mark.parametrize("verb", [Verb.MERGE, Verb.UPSERT_MERGE])
@pytest.mark.parametrize(
    ("root", "method"),
    [
        ("https://shop.table.cosmos.azure.com", "POST"),
        ("http://localhost:8902", "POST"),
        ("https://shop.table.core.windows.net", "PATCH"),
        ("http://localhost:10002/devstoreaccount1", "PATCH"),
    ],
)
def test_merges_in_a_group_are_said_to_cosmos_db_as_the_sdk_says_them(
    verb: Verb, root: str, method: str
) -> None:
    rows = [Row(RowKey("p", each), {"Age": 7}) for each in ("1", "2")]
    call = WriteRows("staff", tuple(RowOperation(verb, row, "*") for row in rows))

    made = request_of(call, root, "7")

    parts = read_batch(made.body or b"", made.headers["Content-Type"]).parts
    said = "MERGE" if method == "POST" else None
    assert [(one.method, one.headers.get("x-http-method")) for one in parts] == [(method, said)] * 2


COSMOS = (
    "DefaultEndpointsProtocol=https;AccountName=contoso;AccountKey=a2V5;"
    "TableEndpoint=https://contoso.table.cosmos.azure.com:443/"
)


def test_cosmos_is_granted_nothing() -> None:
    with connect(COSMOS) as db, pytest.raises(NotSupportedError) as refused:
        db.grant(File, dept="Sales")

    assert refused.value.code == "ServiceAbsent"


def test_no_endpoint_beside_cosmos_is_advised_since_one_key_does_not_open_both() -> None:
    with_others = f"{COSMOS};QueueEndpoint=https://contoso.queue.core.windows.net"

    with connect(with_others) as db, pytest.raises(NotSupportedError) as refused:
        db.work_once()

    assert "QueueEndpoint" not in refused.value.hint
    assert "storage account" in refused.value.hint
