"""The HTTP requests of reads and writes of rows, and their answers. Pure.

The SDK's own methods build and read each request through generated layers: half a millisecond, as
long as signing, sending and performing it take together. These bytes are equivalent; the SDK's
pipeline still signs, sends and retries them.
"""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from partita.bulk.batches import content_type
from partita.errors import GroupRuleError
from partita.patterns.ports import group_body
from partita.patterns.ports.group_body import CONDITIONAL, METHODS
from partita.patterns.protocol.calls import (
    Continuation,
    GetRow,
    QueryRows,
    RowPage,
    Verb,
    WriteRows,
)
from partita.patterns.protocol.capabilities import COSMOS, capabilities_of
from partita.patterns.protocol.row_json import (
    KEYS,
    MISREAD,
    Members,
    print_row,
    read_row,
    row_path,
    unreadable,
)
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row

RowCall = GetRow | QueryRows | WriteRows

_READ = {"Accept": "application/json;odata=minimalmetadata", "DataServiceVersion": "3.0"}
_WRITE = {**_READ, "Content-Type": "application/json", "Prefer": "return-no-content"}
_NEXT = "x-ms-continuation-Next"


class RowRequest(msgspec.Struct, frozen=True):
    """A request, without the headers that every request of the client has."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None = None


def request_of(call: RowCall, root: str, batch_id: str) -> RowRequest:
    """Return the request of a call; `root` is the address of the account."""
    url = f"{root}/{call.table}"
    if isinstance(call, GetRow):
        return RowRequest("GET", url + row_path(call.key) + _query(_select(call)), _READ)
    if isinstance(call, QueryRows):
        return RowRequest("GET", url + "()" + _query(_asked(call)), _READ)
    check_group(call)
    if len(call.operations) > 1:
        headers = {**group_body.HEADERS, "Content-Type": content_type(batch_id)}
        # Cosmos DB does not accept PATCH. For single requests the SDK's pipeline handles that.
        is_tunnelled = capabilities_of(root) is COSMOS
        body = group_body.print_group(url, call.operations, batch_id, is_tunnelled=is_tunnelled)
        return RowRequest("POST", f"{root}/$batch", headers, body)
    return _write_of(call, url)


def _write_of(call: WriteRows, url: str) -> RowRequest:
    (operation,) = call.operations
    verb = operation.verb
    if verb is not Verb.INSERT:
        url += row_path(operation.row.key)
    is_delete = verb is Verb.DELETE
    headers = _READ if is_delete else _WRITE
    if verb in CONDITIONAL:
        headers = {**headers, "If-Match": operation.etag}
    body = None if is_delete else print_row(operation.row).encode("ascii")
    return RowRequest(METHODS[verb], url, headers, body)


def check_group(call: WriteRows) -> None:
    """Raise for a group that every service refuses."""
    if not call.operations:
        raise GroupRuleError("InvalidInput", "The group has no operations.")
    first = call.operations[0].row.key.partition
    for index, operation in enumerate(call.operations):
        if operation.row.key.partition != first:
            raise GroupRuleError(
                "CommandsInBatchActOnDifferentPartitions",
                "All operations of a group must be on one partition.",
                facts={"index": index, "table": call.table},
            )


def _select(call: GetRow | QueryRows) -> dict[str, str]:
    if call.select is None:
        return {}
    # The keys are always selected.
    return {"$select": ",".join([*KEYS, *(name for name in call.select if name not in KEYS)])}


def _asked(call: QueryRows) -> dict[str, str]:
    asked = _select(call)
    if call.size is not None:
        asked["$top"] = str(call.size)
    if call.filter:
        asked["$filter"] = call.filter
    start = call.continuation
    if start is not None:
        asked["NextPartitionKey"] = start.partition
        if start.row is not None:
            asked["NextRowKey"] = start.row
    return asked


def _query(asked: Mapping[str, str]) -> str:
    if not asked:
        return ""
    return "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())


# Answers


class _Entities(msgspec.Struct):
    value: list[dict[str, object]]


def read_one(body: bytes) -> Row:
    """Return the row in a response body."""
    try:
        return read_row(decode(body, dict[str, object]))
    except MISREAD as error:
        raise unreadable() from error


def read_page(body: bytes, headers: Mapping[str, str]) -> RowPage:
    """Return the rows of a page, and where the next page starts."""
    try:
        entities: list[Members] = list(decode(body, _Entities).value)
        rows = tuple(map(read_row, entities))
    except MISREAD as error:
        raise unreadable() from error
    partition, row = headers.get(_NEXT + "PartitionKey"), headers.get(_NEXT + "RowKey")
    return RowPage(rows, Continuation(partition or "", row) if partition or row else None)
