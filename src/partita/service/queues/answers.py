"""Outcome → Response for the queue protocol. Pure; elements have the order of the service."""

from collections.abc import Sequence
from functools import lru_cache

from partita.errors import InvalidRequestError
from partita.queues.engine import QueuePage
from partita.queues.message import Message
from partita.queues.store import Queue
from partita.service.formats.metadata_wire import metadata_headers
from partita.service.formats.xml_text import (
    document,
    element,
    escape,
    escape_attribute,
    text_element,
)
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Response
from partita.service.queues.wire import ListQueues
from partita.ticks import TICKS_PER_SECOND

_XML = ("Content-Type", "application/xml")

_dated = lru_cache(maxsize=1024)(http_date)
"""Messages of the same second have the same text."""


def put_answer(message: Message) -> Response:
    return Response(201, [_XML], _messages([_front(message) + _claim(message)]))


def got_answer(messages: Sequence[Message]) -> Response:
    texts = [_front(message) + _claim(message) + _content(message) for message in messages]
    return Response(200, [_XML], _messages(texts))


def peeked_answer(messages: Sequence[Message]) -> Response:
    """Answer Peek Messages: it returns no receipts."""
    texts = [_front(message) + _content(message) for message in messages]
    return Response(200, [_XML], _messages(texts))


def updated_answer(message: Message) -> Response:
    return Response(
        204,
        [
            ("x-ms-popreceipt", message.receipt),
            ("x-ms-time-next-visible", _time(message.visible_at)),
        ],
    )


def metadata_answer(queue: Queue) -> Response:
    count = ("x-ms-approximate-messages-count", str(queue.message_count))
    return Response(200, [count, *metadata_headers(queue.metadata)])


def page_answer(page: QueuePage, call: ListQueues, root: str, account: str) -> Response:
    asked = (
        (text_element("Prefix", call.prefix) if call.prefix else "")
        + (text_element("Marker", call.marker) if call.marker else "")
        + (element("MaxResults", str(call.limit)) if call.has_limit else "")
    )
    queues = [_queue(queue, with_metadata=call.includes_metadata) for queue in page.queues]
    following = "" if page.continuation is None else print_marker(page.continuation, account)
    content = asked + element("Queues", "".join(queues)) + text_element("NextMarker", following)
    endpoint = f' ServiceEndpoint="{escape_attribute(root)}/"'
    return Response(200, [_XML], document("EnumerationResults", content, endpoint))


def print_marker(name: str, account: str) -> str:
    """Print the marker of the next page."""
    return f"/{account}/{name}"


def parse_marker(marker: str, account: str) -> str:
    """Return the name in a marker; any name is valid."""
    if not marker:
        return ""
    front = print_marker("", account)
    if not marker.startswith(front):
        raise InvalidRequestError(
            "InvalidMarker",
            "The specified marker is invalid.",
            hint="Send the NextMarker of the previous page unchanged.",
        )
    return marker.removeprefix(front)


def _queue(queue: Queue, *, with_metadata: bool) -> str:
    metadata = ""
    if with_metadata:
        pairs = [text_element(name, value) for name, value in queue.metadata.items()]
        metadata = element("Metadata", "".join(pairs))
    return element("Queue", element("Name", queue.name) + metadata)


def _messages(texts: Sequence[str]) -> bytes:
    if not texts:
        return document("QueueMessagesList", "")
    inner = "</QueueMessage><QueueMessage>".join(texts)
    return document("QueueMessagesList", f"<QueueMessage>{inner}</QueueMessage>")


def _front(message: Message) -> str:
    return (
        f"<MessageId>{message.id}</MessageId>"
        f"<InsertionTime>{_time(message.inserted_at)}</InsertionTime>"
        f"<ExpirationTime>{_time(message.expires_at)}</ExpirationTime>"
    )


def _claim(message: Message) -> str:
    return (
        f"<PopReceipt>{message.receipt}</PopReceipt>"
        f"<TimeNextVisible>{_time(message.visible_at)}</TimeNextVisible>"
    )


def _content(message: Message) -> str:
    return (
        f"<DequeueCount>{message.dequeue_count}</DequeueCount>"
        f"<MessageText>{escape(message.text)}</MessageText>"
    )


def _time(ticks: int) -> str:
    return _dated(ticks // TICKS_PER_SECOND * TICKS_PER_SECOND)
