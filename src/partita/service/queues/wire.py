"""Request → Call for the queue protocol. Pure: no I/O, no clock.

A call is chosen by verb, resource and `comp`, and names the permission that it needs. Parameters
are checked here, names and texts by the engine.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from partita.errors import InvalidRequestError
from partita.queues import limits
from partita.queues.message import message_too_large
from partita.refusals import invalid_parameter, unsupported_media_type
from partita.service.auth import delegation, roles, sas
from partita.service.auth.sas import Need
from partita.service.formats.address import decode_name, invalid_uri
from partita.service.formats.metadata_wire import metadata_of
from partita.service.formats.query_options import (
    missing_parameter,
    options_of,
    out_of_range,
    unsupported_verb,
)
from partita.service.formats.xml_text import is_legal, name_of, not_valid, parse_xml, text_of
from partita.service.http.request import Request

BODY_BYTES_MAX = 10 * limits.MESSAGE_BYTES_MAX + limits.KIB
"""A text of the maximal size, with each character as a reference, and its envelope."""
MESSAGE_ELEMENTS_MAX = 16

ANSWERED_PUT_VERSION = "2016-05-31"
"""Put Message of older versions answers without a body."""
ANY_LIFETIME_VERSION = "2017-07-29"
"""Older versions limit the lifetime to seven days."""

_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)
_PLAIN_BODY = re.compile(
    rb"""(?:\xef\xbb\xbf)?(?:<\?xml[ ]version=(?:'1\.0'|"1\.0")
    (?:[ ]encoding=(?:'[Uu][Tt][Ff]-8'|"[Uu][Tt][Ff]-8"))?
    (?:[ ]standalone=(?:'yes'|"yes"))?[ ]?\?>)?[ \t\r\n]*
    <QueueMessage><MessageText>([^<&\r\x00-\x08\x0b\x0c\x0e-\x1f]*)</MessageText></QueueMessage>""",
    re.VERBOSE,
)
_SIMPLE_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""Types that a page of another site can send without a CORS preflight."""


class QueueResource(NamedTuple):
    """The resource of a path: the service, a queue, its messages, or one of them."""

    queue: str | None = None
    has_messages: bool = False
    message_id: str | None = None


class ListQueues(msgspec.Struct, frozen=True):
    prefix: str
    marker: str
    limit: int
    has_limit: bool
    includes_metadata: bool

    def need(self) -> Need:
        return Need(sas.SERVICE, sas.LIST)


class CreateQueue(msgspec.Struct, frozen=True):
    queue: str
    metadata: dict[str, str]

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.CREATE)


class DeleteQueue(msgspec.Struct, frozen=True):
    queue: str

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.DELETE)


class GetMetadata(msgspec.Struct, frozen=True):
    queue: str

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.READ, self.queue)


class SetMetadata(msgspec.Struct, frozen=True):
    queue: str
    metadata: dict[str, str]

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.WRITE)


class GetQueuePolicies(msgspec.Struct, frozen=True):
    queue: str

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.READ, by_key_only=True)


class SetQueuePolicies(msgspec.Struct, frozen=True):
    queue: str
    body: bytes

    def need(self) -> Need:
        return Need(sas.CONTAINER, sas.WRITE, by_key_only=True)


class PutMessage(msgspec.Struct, frozen=True):
    queue: str
    body: bytes
    hidden_seconds: int
    lifetime_seconds: int | None

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.ADD, self.queue)


class GetMessages(msgspec.Struct, frozen=True):
    queue: str
    limit: int
    hidden_seconds: int

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.PROCESS, self.queue)


class PeekMessages(msgspec.Struct, frozen=True):
    queue: str
    limit: int

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.READ, self.queue)


class UpdateMessage(msgspec.Struct, frozen=True):
    queue: str
    message_id: str
    receipt: str
    hidden_seconds: int
    body: bytes

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.UPDATE, self.queue)


class DeleteMessage(msgspec.Struct, frozen=True):
    queue: str
    message_id: str
    receipt: str

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.PROCESS, self.queue)


class ClearMessages(msgspec.Struct, frozen=True):
    queue: str

    def need(self) -> Need:
        return Need(sas.OBJECT, sas.DELETE)


class GetQueueProperties(msgspec.Struct, frozen=True):
    def need(self) -> Need:
        return Need(sas.SERVICE, sas.READ)


class SetQueueProperties(msgspec.Struct, frozen=True):
    def need(self) -> Need:
        return Need(sas.SERVICE, sas.WRITE)


class GetQueueStatistics(msgspec.Struct, frozen=True):
    def need(self) -> Need:
        return Need(sas.SERVICE, sas.READ)


class GetQueueDelegationKey(msgspec.Struct, frozen=True):
    key: delegation.KeyTerms

    def need(self) -> Need:
        return Need(sas.SERVICE, roles.DELEGATE)


QueueCall = (
    ListQueues
    | CreateQueue
    | DeleteQueue
    | GetMetadata
    | SetMetadata
    | GetQueuePolicies
    | SetQueuePolicies
    | PutMessage
    | GetMessages
    | PeekMessages
    | UpdateMessage
    | DeleteMessage
    | ClearMessages
    | GetQueueProperties
    | SetQueueProperties
    | GetQueueStatistics
    | GetQueueDelegationKey
)
READS = (
    ListQueues,
    GetMetadata,
    GetQueuePolicies,
    PeekMessages,
    GetQueueProperties,
    GetQueueStatistics,
)
"""Calls that the secondary endpoint answers."""
OPERATIONS: dict[type, str] = {
    ListQueues: "ListQueues",
    CreateQueue: "CreateQueue",
    DeleteQueue: "DeleteQueue",
    GetMetadata: "GetQueueMetadata",
    SetMetadata: "SetQueueMetadata",
    GetQueuePolicies: "GetQueueACL",
    SetQueuePolicies: "SetQueueACL",
    PutMessage: "PutMessage",
    GetMessages: "GetMessages",
    PeekMessages: "PeekMessages",
    UpdateMessage: "UpdateMessage",
    DeleteMessage: "DeleteMessage",
    ClearMessages: "ClearMessages",
    GetQueueProperties: "GetQueueServiceProperties",
    SetQueueProperties: "SetQueueServiceProperties",
    GetQueueStatistics: "GetQueueServiceStats",
    GetQueueDelegationKey: "GetUserDelegationKey",
}
"""The operation of each call as Storage Analytics names it."""


def decode(
    request: Request, path: str, pairs: Sequence[tuple[str, str]], version: str
) -> QueueCall:
    """Decode a request; `path` is the path after the account."""
    resource, options = parse_queue_resource(path), options_of(pairs)
    if resource.queue is None:
        return _decode_service(request, options)
    _check_media_type(request)
    if resource.message_id is not None:
        return _decode_message(request, resource.queue, resource.message_id, options)
    if resource.has_messages:
        return _decode_messages(request, resource.queue, options, version)
    return _decode_queue(request, resource.queue, options)


def parse_queue_resource(path: str) -> QueueResource:
    """Parse the path after the account, as it was sent."""
    trimmed = path.strip("/")
    segments = [decode_name(segment) for segment in trimmed.split("/")] if trimmed else []
    match segments:
        case []:
            return QueueResource()
        case [queue]:
            return QueueResource(queue)
        case [queue, "messages"]:
            return QueueResource(queue, has_messages=True)
        case [queue, "messages", message_id]:
            return QueueResource(queue, has_messages=True, message_id=message_id)
        case _:
            raise invalid_uri("Use /queue, /queue/messages or /queue/messages/id.")


def _decode_service(request: Request, options: Mapping[str, str]) -> QueueCall:
    method = request.method
    comp = options.get("comp", "").lower()
    if options.get("restype", "").lower() != "service":
        if comp != "list":
            raise invalid_parameter("comp", comp, "Use comp=list.")
        _check_method(method, ("GET",))
        return _decode_list(options)
    match comp, method:
        case "properties", "GET":
            return GetQueueProperties()
        case "properties", "PUT":
            return SetQueueProperties()
        case "stats", "GET" | "HEAD":
            return GetQueueStatistics()
        case "userdelegationkey", "POST":
            return GetQueueDelegationKey(delegation.parse_key_terms(request.body))
        case (("properties" | "stats" | "userdelegationkey"), _):
            raise unsupported_verb()
        case _:
            raise invalid_parameter("comp", comp, "Use properties or stats.")


def _decode_list(options: Mapping[str, str]) -> ListQueues:
    limit = _number(options, "maxresults", limits.PAGE_QUEUES_MAX, lowest=1, highest=2**31 - 1)
    include = [part.strip().lower() for part in options.get("include", "").split(",")]
    if not set(include) <= {"", "metadata"}:
        raise invalid_parameter("include", options["include"], "It is metadata.")
    return ListQueues(
        options.get("prefix", ""),
        options.get("marker", ""),
        min(limit, limits.PAGE_QUEUES_MAX),
        "maxresults" in options,
        "metadata" in include,
    )


def _decode_queue(request: Request, queue: str, options: Mapping[str, str]) -> QueueCall:
    match options.get("comp", "").lower(), request.method:
        case "", "PUT":
            return CreateQueue(queue, metadata_of(request))
        case "", "DELETE":
            return DeleteQueue(queue)
        case "metadata", "GET" | "HEAD":
            return GetMetadata(queue)
        case "metadata", "PUT":
            return SetMetadata(queue, metadata_of(request))
        case "acl", "GET" | "HEAD":
            return GetQueuePolicies(queue)
        case "acl", "PUT":
            return SetQueuePolicies(queue, request.body)
        case "", "GET" | "HEAD":
            raise missing_parameter("comp")
        case (("" | "metadata" | "acl"), _):
            raise unsupported_verb()
        case comp, _:
            raise invalid_parameter("comp", comp, "Use metadata or acl.")


def _decode_messages(
    request: Request, queue: str, options: Mapping[str, str], version: str
) -> QueueCall:
    match request.method:
        case "POST":
            return _decode_put(request, queue, options, version)
        case "GET":
            count = _number(options, "numofmessages", 1, lowest=1, highest=limits.GET_MESSAGES_MAX)
            if _is_true(options, "peekonly"):
                return PeekMessages(queue, count)
            return GetMessages(queue, count, _hidden_seconds(options, lowest=1))
        case "DELETE":
            return ClearMessages(queue)
        case _:
            raise unsupported_verb()


def _decode_put(
    request: Request, queue: str, options: Mapping[str, str], version: str
) -> PutMessage:
    hidden = _hidden_seconds(options, lowest=0, default=0)
    lifetime = _lifetime_seconds(options, version)
    if lifetime is not None and hidden >= lifetime:
        raise invalid_parameter(
            "visibilitytimeout",
            str(hidden),
            "Use a messagettl that is longer than visibilitytimeout.",
        )
    return PutMessage(queue, request.body, hidden, lifetime)


def _lifetime_seconds(options: Mapping[str, str], version: str) -> int | None:
    """Return the lifetime of a message; None: unlimited."""
    is_free = version >= ANY_LIFETIME_VERSION
    if is_free and options.get("messagettl") == "-1":
        return None
    highest = limits.LIFETIME_SECONDS_MAX if is_free else limits.LIFETIME_SECONDS_DEFAULT
    return _number(
        options, "messagettl", limits.LIFETIME_SECONDS_DEFAULT, lowest=1, highest=highest
    )


def _decode_message(
    request: Request, queue: str, message_id: str, options: Mapping[str, str]
) -> QueueCall:
    _check_method(request.method, ("PUT", "DELETE"))
    receipt = options.get("popreceipt")
    if not receipt:
        raise missing_parameter("popreceipt")
    if request.method == "DELETE":
        return DeleteMessage(queue, message_id, receipt)
    if "visibilitytimeout" not in options:
        raise missing_parameter("visibilitytimeout")
    return UpdateMessage(
        queue, message_id, receipt, _hidden_seconds(options, lowest=0), request.body
    )


# Bodies


def parse_message(body: bytes) -> str:
    """Return the text of a Put Message request."""
    text = find_text(body) if body else None
    if text is None:
        raise InvalidRequestError(
            "MissingRequiredXmlNode",
            "A required XML node was not specified in the request body.",
            facts={"node": "MessageText", "elements": [("XmlNodeName", "MessageText")]},
            hint="Send <QueueMessage><MessageText>…</MessageText></QueueMessage>.",
        )
    return text


def find_text(body: bytes) -> str | None:
    """Return the text in a body; None if it has no MessageText.

    The usual body is read without a parser: the pattern is unambiguous.
    """
    if len(body) > BODY_BYTES_MAX:
        raise message_too_large()
    if (plain := _plain_text(body)) is not None:
        return plain
    root = parse_xml(
        body, "QueueMessage", bytes_max=BODY_BYTES_MAX, elements_max=MESSAGE_ELEMENTS_MAX
    )
    texts = [child for child in root if name_of(child) == "MessageText"]
    if len(texts) > 1:
        raise not_valid(hint="Give MessageText only once.")
    return text_of(texts[0]) if texts else None


def _plain_text(body: bytes) -> str | None:
    match = _PLAIN_BODY.fullmatch(body)
    if match is None or b"]]>" in match[1]:
        return None
    try:
        text = match[1].decode()
    except UnicodeError:
        return None
    return text if text.isascii() or is_legal(text) else None


def _check_media_type(request: Request) -> None:
    """Refuse compressed bodies, and types that a page of another site can send."""
    media_type = request.headers.get("content-type", "").lower()
    if "content-encoding" in request.headers or media_type.startswith(_SIMPLE_TYPES):
        raise unsupported_media_type("Send application/xml, without Content-Encoding.")


# Parameters


def _hidden_seconds(
    options: Mapping[str, str], *, lowest: int, default: int = limits.VISIBILITY_SECONDS_DEFAULT
) -> int:
    highest = limits.VISIBILITY_SECONDS_MAX
    return _number(options, "visibilitytimeout", default, lowest=lowest, highest=highest)


def _number(
    options: Mapping[str, str], name: str, default: int, *, lowest: int, highest: int
) -> int:
    text = options.get(name, "").strip()
    if not text:
        return default
    if not _NUMBER.fullmatch(text):
        raise invalid_parameter(name, text, "Use a whole number.")
    number = int(text)
    if not lowest <= number <= highest:
        raise out_of_range(name, text, lowest, highest)
    return number


def _is_true(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").strip().lower()
    if text not in ("true", "false", ""):
        raise invalid_parameter(name, text, "Use true or false.")
    return text == "true"


def _check_method(method: str, allowed: tuple[str, ...]) -> None:
    if method not in allowed:
        raise unsupported_verb()
