"""Requests for rows and messages over HTTP without the pipeline of the SDK.

The pipeline and its transport take most of the processor time of a call. Here the first attempt of
the most frequent calls is one signed request on a kept connection. Whatever that attempt does not
complete (no connection, a lost answer, a busy server, a refused message) is sent again by the SDK,
with its retries and errors.
"""

import asyncio
import binascii
import functools
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import escape

import msgspec
from defusedxml.ElementTree import fromstring

from partita.bulk.http_client import HttpSender
from partita.bulk.wire import VERSION, Credential
from partita.clock import SystemClock
from partita.errors import PartitaError, UnavailableError
from partita.patterns.ports import sdk_calls
from partita.patterns.ports.aio_port import AsyncPort
from partita.patterns.ports.row_requests import RowCall, request_of
from partita.patterns.ports.sdk_calls import Meter, whole_seconds
from partita.patterns.ports.sdk_clients import READ_SECONDS_MAX
from partita.patterns.ports.sdk_errors import retry_after
from partita.patterns.protocol.calls import (
    Call,
    Cost,
    DeleteMessage,
    GetRow,
    Message,
    PutMessage,
    QueryRows,
    ReceiveMessages,
    WriteRows,
)
from partita.patterns.protocol.row_json import unreadable
from partita.service.auth.shared_key import string_to_sign
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request, Response

T = TypeVar("T")
MessageCall = PutMessage | ReceiveMessages | DeleteMessage

SENT_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that the SDK's retry policy retries."""
_LEAN = (GetRow, QueryRows, WriteRows, PutMessage, ReceiveMessages, DeleteMessage)
_AGENT = "partita"


class LeanPort:
    """Performs calls for rows and messages by single requests; all others through `inner`."""

    def __init__(
        self, inner: AsyncPort, endpoints: Mapping[str, str], credential: Credential
    ) -> None:
        self.capabilities = inner.capabilities
        self._inner = inner
        self._endpoints = {kind: each.rstrip("/") for kind, each in endpoints.items()}
        self._credential = credential
        self._clock = SystemClock()
        self._senders: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[str, HttpSender]
        ] = weakref.WeakKeyDictionary()  # a connection belongs to the loop that made it

    async def perform(self, call: Call[T], cost: Cost) -> T:
        kind = "tables" if isinstance(call, RowCall) else "queues"
        if not isinstance(call, _LEAN) or kind not in self._endpoints:
            return await self._inner.perform(call, cost)
        meter = Meter()
        try:
            response = await self._attempt(call, kind, meter)
        finally:
            cost.requests += meter.requests
        if response is not None:
            answer = _Answer.of(response)
            if isinstance(call, RowCall):
                found: T = sdk_calls.read_rows(call, answer, meter, cost)
                return found
            if response.status < 300:
                return _read_messages(call, answer, cost)  # type: ignore[no-any-return]
        sent_again: T = await self._send_again(call, cost, meter)
        return sent_again

    async def _attempt(
        self, call: RowCall | MessageCall, kind: str, meter: Meter
    ) -> Response | None:
        """Send one request; None if the SDK is to send it."""
        request = self._signed(self._request_of(call, self._endpoints[kind]), kind)
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                response = await self._sender(kind).respond(request)
        except (UnavailableError, TimeoutError) as error:
            if getattr(error, "code", "") != "ServerUnreachable":
                meter.requests += 1
                meter.is_in_doubt = True
            return None
        meter.requests += 1
        meter.answer(response.status)
        if response.status in SENT_AGAIN:
            await asyncio.sleep(retry_after(dict(response.headers)))
            return None
        return response

    async def _send_again(self, call: Call[Any], cost: Cost, meter: Meter) -> Any:
        try:
            return await self._inner.perform(call, cost)
        except PartitaError as error:
            if meter.is_in_doubt:
                error.facts["answer_lost"] = True
            raise

    def _request_of(self, call: RowCall | MessageCall, root: str) -> Request:
        if isinstance(call, RowCall):
            made = request_of(call, root, self._clock.new_id() if sdk_calls.is_group(call) else "")
            path, _, query = made.url.removeprefix(_origin(root)).partition("?")
            return Request(made.method, path, query, made.headers, made.body or b"")
        path = f"{urlsplit(root).path}/{quote(call.queue, safe='')}/messages"
        if isinstance(call, ReceiveMessages):
            claim = max(1, whole_seconds(call.visibility))
            return Request("GET", path, f"numofmessages={call.count}&visibilitytimeout={claim}")
        if isinstance(call, DeleteMessage):
            message = call.message
            receipt = f"popreceipt={quote(message.receipt, safe='')}"
            return Request("DELETE", f"{path}/{quote(message.id, safe='')}", receipt)
        body = f"<QueueMessage><MessageText>{escape(call.text)}</MessageText></QueueMessage>"
        query = f"visibilitytimeout={whole_seconds(call.delay)}&messagettl=-1"
        headers = {"content-type": "application/xml"}
        return Request("POST", path, query, headers, body.encode())

    def _signed(self, request: Request, kind: str) -> Request:
        account, key = self._credential.account, self._credential.key
        headers = {
            **request.headers,
            "x-ms-date": http_date(self._clock.ticks()),
            "x-ms-version": VERSION,
            "user-agent": _AGENT,
        }
        if key is None:
            query = "&".join(filter(None, (request.query, self._credential.sas)))
            return msgspec.structs.replace(request, query=query, headers=headers)
        if kind == "tables":
            scheme, text = "SharedKeyLite", f"{headers['x-ms-date']}\n/{account}{request.path}"
        else:
            length = {"content-length": str(len(request.body))} if request.body else {}
            signed = msgspec.structs.replace(request, headers={**headers, **length})
            scheme, text = "SharedKey", string_to_sign(signed, account, "q")
        signature = binascii.b2a_base64(key.signature(text), newline=False).decode()
        headers["authorization"] = f"{scheme} {account}:{signature}"
        return msgspec.structs.replace(request, headers=headers)

    def _sender(self, kind: str) -> HttpSender:
        own = self._senders.setdefault(asyncio.get_running_loop(), {})
        found = own.get(kind)
        if found is None:
            found = own[kind] = HttpSender(self._endpoints[kind])
        return found

    async def close(self) -> None:
        for sender in self._senders.pop(asyncio.get_running_loop(), {}).values():
            await sender.close()
        await self._inner.close()


@functools.lru_cache(maxsize=16)
def _origin(root: str) -> str:
    parts = urlsplit(root)
    return f"{parts.scheme}://{parts.netloc}"


class _Headers(dict[str, str]):
    """Headers with names in lower case, found in any case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class _Answer(msgspec.Struct, frozen=True):
    """A response in the form that the readers of the SDK's responses take."""

    status_code: int
    headers: _Headers
    content: bytes

    @classmethod
    def of(cls, response: Response) -> "_Answer":
        headers = _Headers((name.lower(), value) for name, value in response.headers)
        return cls(response.status, headers, response.body)


def _read_messages(call: MessageCall, answer: _Answer, cost: Cost) -> Any:
    if isinstance(call, DeleteMessage):
        return True
    if isinstance(call, PutMessage):
        cost.bytes += len(call.text.encode())
        return None
    try:
        found = [_read_message(each) for each in fromstring(answer.content, forbid_dtd=True)]
    except (SyntaxError, ValueError) as error:  # of XML: not a list of messages
        raise unreadable() from error
    cost.bytes += sum(len(message.text.encode()) for message in found)
    return tuple(found)


def _read_message(element: Any) -> Message:
    found = {each.tag: each.text or "" for each in element}
    try:
        return Message(
            found["MessageId"],
            found["PopReceipt"],
            found["MessageText"],
            int(found["DequeueCount"]),
        )
    except KeyError as error:
        raise ValueError from error
