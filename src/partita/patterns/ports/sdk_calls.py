"""How each call is performed by an official client; shared by both SDK ports.

`plan_of` returns the client and the method to call; `answer_of` and `refusal_of` turn the result
or the error into the answer of the call. The ports only wait.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeGuard
from uuid import uuid4

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest
from azure.data.tables import TableAccessPolicy

from partita.errors import PartitaError, UsageError
from partita.patterns.ports import group_body
from partita.patterns.ports.row_requests import RowCall, read_one, read_page, request_of
from partita.patterns.ports.sdk_errors import code_of, refusal, refusal_of_part, translate
from partita.patterns.protocol import calls
from partita.patterns.protocol.calls import Call, Cost
from partita.patterns.protocol.row_json import unreadable

Service = Literal["tables", "queues", "blobs"]
Result = Literal["value", "page", "stream"]

ALL_METHODS = frozenset({"DELETE", "GET", "HEAD", "MERGE", "PATCH", "POST", "PUT"})
TABLE_OPTIONS = {"retry_on_methods": ALL_METHODS}
"""By default the table SDK does not retry a POST whose answer was lost. Steps check what is stored,
so that every method can be retried."""
ROW_OPTIONS: dict[str, Any] = {"stream": True, **TABLE_OPTIONS}
"""Keeps the pipeline from decoding the body; see AsyncMeteredTransport."""

CLIENTS = {
    "tables": "get_table_client",
    "queues": "get_queue_client",
    "blobs": "get_container_client",
}
"""The method of a service client that returns the client of one name."""


# Counting requests: a call in progress has one meter, in a context variable, so that tasks and
# threads have their own.

_INCONCLUSIVE = frozenset({408, 500, 502, 504})
"""Statuses of a service that gave up, or of a proxy."""


class Meter(msgspec.Struct):
    """The requests of one call so far."""

    requests: int = 0
    status: int = 0
    """The status of the last answer; 0 if there was none."""
    is_in_doubt: bool = False
    """A request was sent without a conclusive answer: it may have been performed."""

    def answer(self, status: int) -> None:
        """Record an answer. A request that failed with such a status may have been performed."""
        self.status = status
        self.is_in_doubt = self.is_in_doubt or status in _INCONCLUSIVE


_current: ContextVar[Meter | None] = ContextVar("partita_meter", default=None)


@contextmanager
def metered(cost: Cost) -> Iterator[Meter]:
    """Count the requests of a block, and add them to `cost` even if it fails."""
    meter = Meter()
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)
        cost.requests += meter.requests


def current_meter() -> Meter:
    """Return the meter of the call in progress, or a new one outside of any call."""
    return _current.get() or Meter()


# Calls and clients


class NotThereError(AzureError):
    """A 404 that the SDK would otherwise ignore."""

    def __init__(self, response: Any = None, **_: Any) -> None:
        super().__init__("404")
        self.response = response


_SAY_NOT_THERE = {"error_map": {404: NotThereError}}


class Plan(msgspec.Struct, frozen=True):
    """A method of a client to call, and how to read its result."""

    service: Service
    name: str
    """The table, queue or container; empty for the client of the service."""
    method: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    result: Result = "value"
    continuation: object = None
    blob: str = ""


Answer = Callable[[Any, Any, Meter, Cost], Any]
"""Turns (call, result of the client, meter, cost) into the answer of the call."""

_RAISE = object()
_REFUSED = 400
_NOT_FOUND = 404


def plan_of(call: Call[Any]) -> Plan:
    """Return the client and the method that perform a call."""
    found = _CALLS.get(type(call))
    if found is None:
        raise UsageError("UnknownCall", f"{type(call).__name__} is not a call of a port.")
    return found[0](call)


def answer_of(call: Call[Any], result: Any, meter: Meter, cost: Cost) -> Any:
    """Return the answer for a client's result, and add the transferred entities to the cost."""
    return _CALLS[type(call)][1](call, result, meter, cost)


def refusal_of(call: Call[Any], error: Exception, meter: Meter, endpoint: str) -> Any:
    """Return the answer for an error of the service, or raise it as a PartitaError."""
    translated = translate(_told(error), endpoint=endpoint)
    answer = _CALLS[type(call)][2].get(translated.code, _RAISE)
    if answer is _RAISE:
        raise _with_facts(call, translated, meter) from error
    return answer


def _told(error: Exception) -> AzureError:
    """Return the error of the service, which the SDK may have replaced by its own."""
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


# Tables


def of_rows(call: Call[Any]) -> TypeGuard[RowCall]:
    """Return whether a call reads or writes rows: its request is not built by the SDK."""
    return isinstance(call, RowCall)


def row_request(client: Any, call: RowCall) -> HttpRequest:
    """Return the request of a call; the client's own pipeline signs, sends and retries it."""
    # Private attributes of the SDK; a test checks that they exist.
    root = f"{client.scheme}://{client._primary_hostname}"  # noqa: SLF001
    made = request_of(call, root, str(uuid4()) if is_group(call) else "")
    headers = {**made.headers, "x-ms-version": client.api_version}
    return HttpRequest(made.method, made.url, headers=headers, content=made.body)


def row_answer(call: RowCall, response: Any, meter: Meter, cost: Cost) -> Any:
    """Return the answer of a response and add its rows to the cost; raise errors of the service."""
    if response.status_code >= _REFUSED:
        refusal = HttpResponseError(response=response)
        if response.status_code == _NOT_FOUND and not code_of(refusal):
            raise unreadable() from refusal  # from another server: not about a row
        raise refusal
    if isinstance(call, calls.GetRow):
        row = read_one(response.content)
        cost.count((row,))
        return row
    if isinstance(call, calls.QueryRows):
        page = read_page(response.content, response.headers)
        cost.count(page.rows)
        return page
    etags = _group_etags(call, response, meter) if is_group(call) else (_etag(response),)
    cost.count(operation.sent for operation in call.operations)
    return etags


def read_rows(call: RowCall, answer: Any, meter: Meter, cost: Cost) -> Any:
    """Return the answer of a response that did not come through the SDK, or raise its error."""
    if answer.status_code < _REFUSED:
        return row_answer(call, answer, meter, cost)
    error = refusal(answer.status_code, answer.headers, answer.content)
    if error is None:
        raise unreadable()
    found = _CALLS[type(call)][2].get(error.code, _RAISE)
    if found is _RAISE:
        raise _with_facts(call, error, meter)
    return found


def is_group(call: RowCall) -> bool:
    """Return whether a call is sent as an entity group transaction."""
    return isinstance(call, calls.WriteRows) and len(call.operations) > 1


def _etag(response: Any) -> str:
    return response.headers.get("etag") or ""


def _group_etags(call: calls.WriteRows, response: Any, meter: Meter) -> tuple[str, ...]:
    parts = group_body.read_answer(response.content, response.headers.get("Content-Type", ""))
    refused = next((part for part in parts if part.status >= _REFUSED), None)
    if refused is not None:
        error = refusal_of_part(refused.status, refused.headers, refused.body)
        raise _with_facts(call, error, meter)
    return tuple(map(group_body.etag_of, parts))


def _row_call(call: RowCall) -> Plan:
    return Plan("tables", call.table, "")


def _create_table(call: calls.CreateTable) -> Plan:
    return Plan("tables", call.table, "create_table", options=dict(TABLE_OPTIONS))


def _delete_table(call: calls.DeleteTable) -> Plan:
    return Plan("tables", call.table, "delete_table", options=TABLE_OPTIONS | _SAY_NOT_THERE)


def _get_policies(call: calls.GetPolicies) -> Plan:
    return Plan("tables", call.table, "get_table_access_policy")


def _policies(
    _call: calls.GetPolicies, result: Any, _meter: Meter, _cost: Cost
) -> dict[str, calls.TablePolicy]:
    return {
        name: calls.TablePolicy()
        if stored is None
        else calls.TablePolicy(stored.permission or "", stored.expiry, stored.start)
        for name, stored in result.items()
    }


def _set_policies(call: calls.SetPolicies) -> Plan:
    policies = {
        name: TableAccessPolicy(
            permission=each.permissions or None, expiry=each.expires, start=each.start
        )
        for name, each in call.policies.items()
    }
    return Plan("tables", call.table, "set_table_access_policy", (policies,))


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


def whole_seconds(value: float) -> int:
    """Return whole seconds, the unit of the service, rounded up."""
    return math.ceil(value)


def _create_queue(call: calls.CreateQueue) -> Plan:
    return Plan("queues", call.queue, "create_queue")


def _put_message(call: calls.PutMessage) -> Plan:
    options = {"time_to_live": -1, "visibility_timeout": whole_seconds(call.delay)}
    return Plan("queues", call.queue, "send_message", (call.text,), options)


def _receive_messages(call: calls.ReceiveMessages) -> Plan:
    options = {
        "messages_per_page": call.count,
        "max_messages": call.count,
        "visibility_timeout": max(1, whole_seconds(call.visibility)),
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
    options = {"visibility_timeout": max(1, whole_seconds(call.visibility))}
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
    options = {} if call.length is None else {"offset": call.offset, "length": call.length}
    return Plan(
        "blobs", call.container, "download_blob", (), options, result="stream", blob=call.name
    )


def _blob(_call: calls.GetBlob, result: Any, _meter: Meter, cost: Cost) -> calls.Blob:
    content, properties = result
    cost.bytes += len(content)
    return calls.Blob(content, properties.etag, dict(properties.metadata or {}))


def _append_blob(call: calls.AppendBlob) -> Plan:
    options = {"appendpos_condition": call.position, "length": len(call.content)}
    return Plan("blobs", call.container, "append_block", (call.content,), options, blob=call.name)


def make_append_blob(call: calls.AppendBlob) -> Plan:
    """Return the plan that creates the blob, if it is missing, before the first block."""
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
            f'"{item.etag.strip(chr(34))}"',  # listings have etags without quotes
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
    """Return whether a queue was created: one with the same metadata is answered with 204."""
    return meter.status == 201


_NOT_OURS: dict[str, Any] = {"MessageNotFound": False, "PopReceiptMismatch": False}
_CALLS: dict[type, tuple[Callable[[Any], Plan], Answer, dict[str, Any]]] = {
    calls.GetRow: (_row_call, row_answer, {"ResourceNotFound": None, "EntityNotFound": None}),
    calls.QueryRows: (_row_call, row_answer, {}),
    calls.WriteRows: (_row_call, row_answer, {}),
    calls.CreateTable: (_create_table, _true, {"TableAlreadyExists": False}),
    calls.DeleteTable: (
        _delete_table,
        _true,
        {"ResourceNotFound": False, "TableNotFound": False, "TableBeingDeleted": False},
    ),
    calls.ListTables: (_list_tables, _table_names, {}),
    calls.GetPolicies: (_get_policies, _policies, {}),
    calls.SetPolicies: (_set_policies, _true, {}),
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
