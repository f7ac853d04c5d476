"""What each call asks of an official client, and what its answer means: shared by both faces.

A port asks `plan_of(call)` which method to call on which client, and `answer_of` or `refusal_of`
what came of it. Waiting is the ports' only own business.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeGuard
from uuid import uuid4

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest

from partita.errors import GroupRuleError, PartitaError, UsageError
from partita.patterns import calls, group_body
from partita.patterns.calls import Call, Cost
from partita.patterns.metering import Meter
from partita.patterns.sdk_errors import refusal_of_part, translate
from partita.patterns.sdk_rows import KEYS, request_of, row_of
from partita.patterns.values import Row, measure

Service = Literal["tables", "queues", "blobs"]
Result = Literal["value", "page", "stream"]

ALL_METHODS = frozenset({"DELETE", "GET", "HEAD", "MERGE", "PATCH", "POST", "PUT"})
_TABLE_OPTIONS = {"retry_on_methods": ALL_METHODS}
"""The table SDK repeats no POST whose answer was lost. The core compares what it finds, so that a
lost answer is asked for again like any other."""


CLIENTS = {
    "tables": "get_table_client",
    "queues": "get_queue_client",
    "blobs": "get_container_client",
}
"""How a service client is asked for the client of one name."""


class NotThereError(AzureError):
    """Stands for a 404 that the SDK would swallow."""

    def __init__(self, response: Any = None, **_: Any) -> None:
        super().__init__("404")
        self.response = response


_SAY_NOT_THERE = {"error_map": {404: NotThereError}}


class Plan(msgspec.Struct, frozen=True):
    """A method of a client, and how its result is read."""

    service: Service
    name: str
    """Of the table, queue or container; empty: the client of the whole service."""
    method: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    result: Result = "value"
    continuation: object = None
    blob: str = ""


Answer = Callable[[Any, Any, Meter, Cost], Any]
"""(call, what the client returned, meter, cost) → the answer of the call."""

_RAISE = object()
_ACCEPTED = 202
_REFUSED = 400


def plan_of(call: Call[Any]) -> Plan:
    """Return what to ask of which client."""
    found = _CALLS.get(type(call))
    if found is None:
        raise UsageError("UnknownCall", f"{type(call).__name__} is no call of a port.")
    return found[0](call)


def answer_of(call: Call[Any], result: Any, meter: Meter, cost: Cost) -> Any:
    """Return the answer that a client's result means, and count what it carried."""
    return _CALLS[type(call)][1](call, result, meter, cost)


def refusal_of(call: Call[Any], error: Exception, meter: Meter, endpoint: str) -> Any:
    """Return the answer that a refusal means, or raise it as an error of Partita."""
    translated = translate(_told(error), endpoint=endpoint)
    answer = _CALLS[type(call)][2].get(translated.code, _RAISE)
    if answer is _RAISE:
        raise _with_facts(call, translated, meter) from error
    return answer


def _told(error: Exception) -> AzureError:
    """Return what the service said, where the SDK has put words of its own in the place."""
    if isinstance(error, NotThereError):
        return HttpResponseError(response=error.response)
    if isinstance(error, AzureError):
        return error
    if isinstance(error.__context__, AzureError):  # a ValueError about the name of a table
        return error.__context__
    raise error


def _with_facts(call: Call[Any], error: PartitaError, meter: Meter) -> PartitaError:
    for name in ("table", "queue", "container"):
        if hasattr(call, name):
            error.facts.setdefault(name, getattr(call, name))
    if isinstance(call, calls.WriteRows) and len(call.operations) == 1:
        error.facts.setdefault("index", 0)
    if meter.is_in_doubt:
        error.facts["answer_lost"] = True
    return error


def count_rows(cost: Cost, rows: Iterable[Row]) -> None:
    """Add rows that were carried, in either direction."""
    for row in rows:
        cost.entities += 1
        cost.bytes += measure(row)


def carried_by(operation: calls.RowOperation) -> Row:
    """Return what a write carries: of a delete only the keys go."""
    return Row(operation.row.key, {}) if operation.verb is calls.Verb.DELETE else operation.row


def check_group(call: calls.WriteRows) -> None:
    """Raise for a group that the SDK itself would refuse, without a word of its own."""
    if not call.operations:
        raise GroupRuleError("InvalidInput", "A group without operations.")
    first = call.operations[0].row.key.partition
    for index, operation in enumerate(call.operations):
        if operation.row.key.partition != first:
            raise GroupRuleError(
                "CommandsInBatchActOnDifferentPartitions",
                "All operations of a group are on one partition.",
                facts={"index": index, "table": call.table},
            )


# Tables


def _get_row(call: calls.GetRow) -> Plan:
    options = dict(_TABLE_OPTIONS)
    if call.select is not None:
        options["select"] = selected(call.select)  # type: ignore[assignment]
    return Plan("tables", call.table, "get_entity", (call.key.partition, call.key.row), options)


def selected(names: tuple[str, ...]) -> list[str]:
    """Return the names to ask for: the keys are always among them."""
    return [*KEYS, *(name for name in names if name not in KEYS)]


def _row(call: calls.GetRow, result: Any, _meter: Meter, cost: Cost) -> Row:
    row = row_of(result, call.key)
    count_rows(cost, [row])
    return row


def _query_rows(call: calls.QueryRows) -> Plan:
    options: dict[str, Any] = dict(_TABLE_OPTIONS)
    if call.select is not None:
        options["select"] = selected(call.select)
    if call.size is not None:
        options["results_per_page"] = call.size
    if call.filter:
        options["query_filter"] = call.filter
    start = call.continuation
    return Plan(
        "tables",
        call.table,
        "query_entities" if call.filter else "list_entities",
        (),
        options,
        "page",
        {"PartitionKey": start.partition, "RowKey": start.row} if start is not None else None,
    )


def _row_page(_call: calls.QueryRows, result: Any, _meter: Meter, cost: Cost) -> calls.RowPage:
    entities, continuation = result
    rows = tuple(row_of(entity) for entity in entities)
    count_rows(cost, rows)
    if not continuation:
        return calls.RowPage(rows)
    start = calls.Continuation(continuation["PartitionKey"], continuation["RowKey"])
    return calls.RowPage(rows, start)


def is_group(call: Call[Any]) -> TypeGuard[calls.WriteRows]:
    """Tell whether a call goes as an entity group transaction."""
    return isinstance(call, calls.WriteRows) and len(call.operations) > 1


def group_request(client: Any, call: calls.WriteRows) -> HttpRequest:
    """Return the request of a group; the client's own pipeline signs and repeats it."""
    check_group(call)
    # The SDK keeps these two to itself; a test holds that they are there.
    root = f"{client.scheme}://{client._primary_hostname}"  # noqa: SLF001
    batch_id = str(uuid4())
    return HttpRequest(
        "POST",
        f"{root}/$batch",
        headers={
            **group_body.HEADERS,
            "x-ms-version": client.api_version,
            "Content-Type": group_body.content_type(batch_id),
        },
        content=group_body.print_group(f"{root}/{call.table}", call.operations, batch_id),
    )


def group_options() -> dict[str, Any]:
    """Return what else the request of a group is sent with."""
    return {"stream": True, **_TABLE_OPTIONS}


def group_answer(
    call: calls.WriteRows, response: Any, content: bytes, meter: Meter, cost: Cost
) -> tuple[str, ...]:
    """Return the etags of a group, or raise what the service refused."""
    if response.status_code != _ACCEPTED:
        raise HttpResponseError(response=response)
    parts = group_body.read_answer(content, response.headers["Content-Type"])
    refused = next((part for part in parts if part.status >= _REFUSED), None)
    if refused is not None:
        error = refusal_of_part(refused.status, refused.headers, refused.body)
        raise _with_facts(call, error, meter)
    count_rows(cost, map(carried_by, call.operations))
    return tuple(map(group_body.etag_of, parts))


def _write_rows(call: calls.WriteRows) -> Plan:
    check_group(call)
    if len(call.operations) > 1:
        return Plan("tables", call.table, "")
    method, entity, options = request_of(call.operations[0])
    options |= _TABLE_OPTIONS
    if method == "delete_entity":
        options |= _SAY_NOT_THERE
    return Plan("tables", call.table, method, (entity,), options)


def _etags(call: calls.WriteRows, result: Any, _meter: Meter, cost: Cost) -> tuple[str, ...]:
    count_rows(cost, map(carried_by, call.operations))
    return ((result or {}).get("etag") or "",)


def _create_table(call: calls.CreateTable) -> Plan:
    return Plan("tables", call.table, "create_table", options=dict(_TABLE_OPTIONS))


def _delete_table(call: calls.DeleteTable) -> Plan:
    return Plan("tables", call.table, "delete_table", options=_TABLE_OPTIONS | _SAY_NOT_THERE)


def _list_tables(call: calls.ListTables) -> Plan:
    if not call.prefix:
        return Plan("tables", "", "list_tables", result="page")
    text = call.prefix.replace("'", "''")
    query = f"TableName ge '{text}' and TableName lt '{text}{{'"  # '{' follows 'z'
    return Plan("tables", "", "query_tables", (query,), result="page")


def _table_names(
    call: calls.ListTables, result: Any, _meter: Meter, _cost: Cost
) -> tuple[str, ...]:
    items, _ = result
    return tuple(item.name for item in items if item.name.startswith(call.prefix))


# Queues


def _seconds(value: float) -> int:
    """Return whole seconds, the unit of the service: never less than was asked for."""
    return math.ceil(value)


def _create_queue(call: calls.CreateQueue) -> Plan:
    return Plan("queues", call.queue, "create_queue")


def _put_message(call: calls.PutMessage) -> Plan:
    options = {"time_to_live": -1, "visibility_timeout": _seconds(call.delay)}
    return Plan("queues", call.queue, "send_message", (call.text,), options)


def _receive_messages(call: calls.ReceiveMessages) -> Plan:
    options = {
        "messages_per_page": call.count,
        "max_messages": call.count,
        "visibility_timeout": max(1, _seconds(call.visibility)),
    }
    return Plan("queues", call.queue, "receive_messages", (), options, "page")


def _messages(
    _call: calls.ReceiveMessages, result: Any, _meter: Meter, cost: Cost
) -> tuple[calls.Message, ...]:
    found, _ = result
    received = tuple(
        calls.Message(item.id, item.pop_receipt, item.content or "", item.dequeue_count)
        for item in found
    )
    cost.bytes += sum(len(message.text.encode()) for message in received)
    return received


def _peek_messages(call: calls.PeekMessages) -> Plan:
    return Plan("queues", call.queue, "peek_messages", (), {"max_messages": 32})


def _peeked(
    _call: calls.PeekMessages, result: Any, _meter: Meter, _cost: Cost
) -> tuple[calls.Message, ...]:
    return tuple(
        calls.Message(item.id, "", item.content or "", item.dequeue_count or 0) for item in result
    )


def _count_messages(call: calls.CountMessages) -> Plan:
    return Plan("queues", call.queue, "get_queue_properties")


def _counted(_call: calls.CountMessages, result: Any, _meter: Meter, _cost: Cost) -> int:
    return int(result.approximate_message_count or 0)


def _renew_message(call: calls.RenewMessage) -> Plan:
    message = call.message
    options = {"visibility_timeout": max(1, _seconds(call.visibility))}
    return Plan("queues", call.queue, "update_message", (message.id, message.receipt), options)


def _renewed(call: calls.RenewMessage, result: Any, _meter: Meter, _cost: Cost) -> calls.Message:
    return msgspec.structs.replace(call.message, receipt=result.pop_receipt)


def _delete_message(call: calls.DeleteMessage) -> Plan:
    message = call.message
    return Plan("queues", call.queue, "delete_message", (message.id, message.receipt))


def _put_done(call: calls.PutMessage, _result: Any, _meter: Meter, cost: Cost) -> None:
    cost.bytes += len(call.text.encode())


# Blobs


def _create_container(call: calls.CreateContainer) -> Plan:
    return Plan("blobs", call.container, "create_container")


def _put_blob(call: calls.PutBlob) -> Plan:
    options: dict[str, Any] = {"metadata": call.metadata or None, "overwrite": call.etag != ""}
    if call.etag:
        options |= {"etag": call.etag, "match_condition": MatchConditions.IfNotModified}
    return Plan("blobs", call.container, "upload_blob", (call.content,), options, blob=call.name)


def _blob_etag(call: calls.PutBlob, result: Any, _meter: Meter, cost: Cost) -> str:
    cost.bytes += len(call.content)
    return str(result["etag"])


def _get_blob(call: calls.GetBlob) -> Plan:
    return Plan("blobs", call.container, "download_blob", result="stream", blob=call.name)


def _blob(_call: calls.GetBlob, result: Any, _meter: Meter, cost: Cost) -> calls.Blob:
    content, properties = result
    cost.bytes += len(content)
    return calls.Blob(content, properties.etag, dict(properties.metadata or {}))


def _append_blob(call: calls.AppendBlob) -> Plan:
    options = {"appendpos_condition": call.position, "length": len(call.content)}
    return Plan("blobs", call.container, "append_block", (call.content,), options, blob=call.name)


def make_append_blob(call: calls.AppendBlob) -> Plan:
    """Return what comes before the first block: the blob is made if it is missing."""
    options = {"metadata": call.metadata or None, "match_condition": MatchConditions.IfMissing}
    return Plan("blobs", call.container, "create_append_blob", (), options, blob=call.name)


ALREADY_MADE = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})


def _appended(call: calls.AppendBlob, _result: Any, _meter: Meter, cost: Cost) -> int:
    cost.bytes += len(call.content)
    return call.position + len(call.content)


def _set_metadata(call: calls.SetBlobMetadata) -> Plan:
    return Plan("blobs", call.container, "set_blob_metadata", (call.metadata,), blob=call.name)


def _delete_blob(call: calls.DeleteBlob) -> Plan:
    options: dict[str, Any] = {"delete_snapshots": "include"}
    if call.etag is not None:
        options |= {"etag": call.etag, "match_condition": MatchConditions.IfNotModified}
    return Plan("blobs", call.container, "delete_blob", (), options, blob=call.name)


def _list_blobs(call: calls.ListBlobs) -> Plan:
    return Plan(
        "blobs",
        call.container,
        "list_blobs",
        (),
        {"name_starts_with": call.prefix or None, "include": ["metadata"]},
        "page",
        call.continuation or None,
    )


def _blob_page(_call: calls.ListBlobs, result: Any, _meter: Meter, _cost: Cost) -> calls.BlobPage:
    items, continuation = result
    listed = tuple(
        calls.ListedBlob(
            item.name,
            f'"{item.etag.strip(chr(34))}"',  # a list names etags without their quotes
            item.size,
            item.last_modified,
            dict(item.metadata or {}),
        )
        for item in items
    )
    return calls.BlobPage(listed, continuation or "")


def _true(_call: Any, _result: Any, _meter: Meter, _cost: Cost) -> bool:
    return True


def _made(_call: Any, _result: Any, meter: Meter, _cost: Cost) -> bool:
    """A queue that was there with the same metadata is answered with 204."""
    return meter.status == 201


_NOT_OURS: dict[str, Any] = {"MessageNotFound": False, "PopReceiptMismatch": False}
_CALLS: dict[type, tuple[Callable[[Any], Plan], Answer, dict[str, Any]]] = {
    calls.GetRow: (_get_row, _row, {"ResourceNotFound": None, "EntityNotFound": None}),
    calls.QueryRows: (_query_rows, _row_page, {}),
    calls.WriteRows: (_write_rows, _etags, {}),
    calls.CreateTable: (_create_table, _true, {"TableAlreadyExists": False}),
    calls.DeleteTable: (
        _delete_table,
        _true,
        {"ResourceNotFound": False, "TableNotFound": False, "TableBeingDeleted": False},
    ),
    calls.ListTables: (_list_tables, _table_names, {}),
    calls.CreateQueue: (_create_queue, _made, {"QueueAlreadyExists": False}),
    calls.PutMessage: (_put_message, _put_done, {}),
    calls.ReceiveMessages: (_receive_messages, _messages, {}),
    calls.PeekMessages: (_peek_messages, _peeked, {"QueueNotFound": ()}),
    calls.CountMessages: (_count_messages, _counted, {"QueueNotFound": None}),
    calls.RenewMessage: (_renew_message, _renewed, dict.fromkeys(_NOT_OURS)),
    calls.DeleteMessage: (_delete_message, _true, _NOT_OURS),
    calls.CreateContainer: (_create_container, _true, {"ContainerAlreadyExists": False}),
    calls.PutBlob: (
        _put_blob,
        _blob_etag,
        {"BlobAlreadyExists": None, "ConditionNotMet": None, "TargetConditionNotMet": None},
    ),
    calls.GetBlob: (_get_blob, _blob, {"BlobNotFound": None}),
    calls.AppendBlob: (
        _append_blob,
        _appended,
        {"AppendPositionConditionNotMet": None, "BlobNotFound": None},
    ),
    calls.SetBlobMetadata: (_set_metadata, _true, {"BlobNotFound": False}),
    calls.DeleteBlob: (
        _delete_blob,
        _true,
        {"BlobNotFound": False, "ConditionNotMet": False, "TargetConditionNotMet": False},
    ),
    calls.ListBlobs: (_list_blobs, _blob_page, {}),
}
