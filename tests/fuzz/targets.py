"""What is fuzzed: one function a target, from bytes to "was it understood".

The rule for all: refusals are PartitaError and nothing else, and what was understood can be
printed and read back as the same thing. A broken rule leaves a target as any other exception.
Atheris drives these from run.py; every test run replays the corpus through them.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import urlencode

from fuzz import blob_targets, credential_targets, pattern_targets
from partita.errors import NotAuthorizedError, PartitaError
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.respond import locate
from partita.service.auth import shared_key
from partita.service.formats import xml_text
from partita.service.formats.address import parse_continuation, parse_query, print_continuation
from partita.service.formats.multipart import PART_HEAD_BYTES_MAX, read_batch
from partita.service.http.request import Request
from partita.service.queues import wire as queue_wire
from partita.service.tables.answers import entity_url
from partita.service.tables.wire import OneEntity, parse_resource
from partita.tables import entity, filters, limits, plan
from partita.tables.entity import Entity, EntityKey

ACCOUNT = "acct"
SECRET = b"a key of no account"
NOW = 17_040_672_000_000_000
"""Mon, 01 Jan 2024 00:00:00 GMT, in ticks."""


def an_entity(partition_key: str, row_key: str, body: bytes) -> Entity:
    return entity.build((partition_key, row_key), NOW, entity.parse_body(body).properties)


EVERY_TYPE = (
    b'{"S":"a","I":5,"B":true,"D":0.5,"L@odata.type":"Edm.Int64","L":"9007199254740993",'
    b'"N@odata.type":"Edm.Double","N":"NaN","T@odata.type":"Edm.DateTime",'
    b'"T":"2024-01-01T00:00:00Z","G@odata.type":"Edm.Guid",'
    b'"G":"c9da6455-213d-42c9-9a79-3e9149a57833","Y@odata.type":"Edm.Binary","Y":"AP8="}'
)
ENTITIES = [
    an_entity("", "", b"{}"),
    an_entity("a", "b", EVERY_TYPE),
    an_entity("a", "c", b'{"S":5,"I":"a","B":"true","L":1,"T":"x","G":"g","Y":0.5,"D":false}'),
    an_entity("é'", "\U0001f600", b'{"S":"","I":-1,"B":false,"D":-1e300}'),
]


def filter_text(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    _check_table_filter(text)
    try:
        tree = filters.parse(text)
    except PartitaError:
        return False
    if tree is None:
        return True
    printed = filters.to_text(tree)
    if len(printed) <= limits.FILTER_CHARACTERS_MAX:
        again = filters.parse(printed)
        assert again is not None
        assert filters.to_text(again) == printed, printed
    chosen = plan.plan(tree)
    plan.describe(chosen)
    whole = filters.compile_filter(tree)
    residual = filters.compile_filter(chosen.residual or filters.Constant(value=True))
    for each in ENTITIES:
        members = _members(each)
        planned = chosen.span.contains(each.key) and residual(members)
        assert planned == whole(members), (printed, each.key)
    return True


def _check_table_filter(text: str) -> None:
    try:
        tree = filters.parse_table_filter(text)
    except PartitaError:
        return
    if tree is not None:
        matches = filters.compile_table_filter(tree)
        assert matches("MyTab") == matches("mytab")


def _members(each: Entity) -> dict[str, object]:
    return {
        "PartitionKey": each.partition_key,
        "RowKey": each.row_key,
        "Timestamp": "2024-01-01T00:00:00Z",
        **each.properties(),
    }


def batch(data: bytes) -> bool:
    """Read a batch; a first line that starts with `multipart` is the Content-Type."""
    content_type, body = "multipart/mixed; boundary=batch_B", data
    if data.startswith(b"multipart"):
        line, _, body = data.partition(b"\n")
        content_type = line.decode("latin-1").strip()
    try:
        found = read_batch(body, content_type, "/acct")
    except PartitaError:
        return False
    assert len(found.parts) <= limits.GROUP_OPERATIONS_MAX + 1
    assert not found.is_query or [part.method for part in found.parts] == ["GET"]
    for part in found.parts:
        _check_part(part)
    if all(len(_head_of(part)) < PART_HEAD_BYTES_MAX - 100 for part in found.parts):
        again = read_batch(_envelope(found.parts, data, is_query=found.is_query), TYPE, "/acct")
        assert [_facts(part) for part in again.parts] == [_facts(part) for part in found.parts]
        assert again.is_query == found.is_query
    return True


TYPE = "multipart/mixed; boundary=printed_again"


def _check_part(part: Request) -> None:
    assert part.path.startswith("/acct/")
    for text in (part.path, part.query, *part.headers, *part.headers.values()):
        assert not {"\r", "\n", "\0"} & set(text)
    assert all(name == name.lower() for name in part.headers)


def _facts(part: Request) -> tuple[object, ...]:
    return part.method, part.path, part.query, part.headers, part.body


def _head_of(part: Request) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in part.headers.items())
    return f"{part.method} {part.path}?{part.query} HTTP/1.1\r\n{headers}\r\n".encode()


def _envelope(parts: list[Request], seen: bytes, *, is_query: bool) -> bytes:
    boundary = b"changeset"
    while boundary in seen:
        boundary = hashlib.sha256(boundary).hexdigest().encode()
    front = b"--printed_again\r\nContent-Type: multipart/mixed; boundary=" + boundary + b"\r\n\r\n"
    head = b"Content-Type: application/http\r\n\r\n"
    if is_query:
        return b"--printed_again\r\n" + head + _head_of(parts[0]) + parts[0].body
    pieces = [b"--" + boundary + b"\r\n" + head + _head_of(part) + part.body for part in parts]
    return front + b"\r\n".join(pieces) + b"\r\n--" + boundary + b"--\r\n--printed_again--\r\n"


def uri(data: bytes) -> bool:
    """Read four lines: path, query, continuation, host; those that are missing are usual."""
    lines = data.decode("utf-8", "surrogateescape").split("\n", 3)
    path, query, continuation, host = lines + ["", "", "", "127.0.0.1:10002"][len(lines) :]
    understood = [_check_path(host, path), _check_query(query), _check_continuation(continuation)]
    return all(understood)


def _check_path(host: str, path: str) -> bool:
    try:
        target = locate("http", host, path, {ACCOUNT})
        resource = parse_resource(target.path, target.account)
    except PartitaError:
        return False
    assert target.root.startswith("http://")
    assert target.root.isascii()
    assert target.root.isprintable()
    if isinstance(resource, OneEntity):
        printed = entity_url("", resource.table, resource.key)
        assert parse_resource(printed) == resource, printed
    return True


def _check_query(query: str) -> bool:
    try:
        pairs = parse_query(query)
    except PartitaError:
        return False
    pairs = [pair for pair in pairs if pair != ("", "")]
    again = [pair for pair in parse_query(urlencode(pairs)) if pair != ("", "")]
    assert again == pairs, (pairs, again)
    return True


def _check_continuation(text: str) -> bool:
    short = text.encode("utf-8", "replace").decode()[:384]
    assert parse_continuation(print_continuation(short)) == short
    try:
        decoded = parse_continuation(text)
    except PartitaError:
        return not text
    assert print_continuation(decoded) == text
    return True


def json_body(data: bytes) -> bool:
    try:
        body = entity.parse_body(data)
        key = EntityKey(body.partition_key or "", body.row_key or "")
        built = entity.build(key, NOW, body.properties)
    except PartitaError:
        return False
    # repr and not ==, for which 1, 1.0 and True are the same.
    assert repr(built.properties()) == repr(body.properties)
    again = entity.parse_body(b"{" + built.document)
    assert (again.partition_key, again.row_key) == key
    assert repr(again.properties) == repr(body.properties)
    return True


def authorization(data: bytes) -> bool:
    """Read five lines: Authorization, method, path, query, date."""
    lines = data.decode("utf-8", "surrogateescape").split("\n", 4)
    given, method, path, query, sent_at = lines + [""] * (5 - len(lines))
    headers = {"authorization": given, "x-ms-date": sent_at}
    _check_signed_is_accepted(Request("GET", path, query, headers))
    request = Request(method, path, query, headers)
    keys = [shared_key.SigningKey(SECRET)]
    try:
        shared_key.authenticate(request, ACCOUNT, keys, NOW)
    except PartitaError:
        return False
    try:
        shared_key.authenticate(request, ACCOUNT, [shared_key.SigningKey(b"another")], NOW)
    except NotAuthorizedError:
        return True
    raise AssertionError("another key accepts the same signature")


def _check_signed_is_accepted(request: Request) -> None:
    """Sign the request as a client would; the date is a good one."""
    if "comp" in request.query or "%" in request.query or not request.path.startswith("/"):
        return
    sent_at = "Mon, 01 Jan 2024 00:00:00 GMT"
    text = f"{sent_at}\n/{ACCOUNT}{request.path}".encode("utf-8", "surrogatepass")
    signature = base64.b64encode(hmac.digest(SECRET, text, "sha256")).decode()
    headers = {"authorization": f"SharedKeyLite {ACCOUNT}:{signature}", "x-ms-date": sent_at}
    signed = Request(request.method, request.path, request.query, headers)
    shared_key.authenticate(signed, ACCOUNT, [shared_key.SigningKey(SECRET)], NOW)


def queue_body(data: bytes) -> bool:
    """Read a body as each XML document that the queue service takes."""
    return any([_check_message(data), _check_policies(data), _check_properties(data)])


def _check_message(data: bytes) -> bool:
    try:
        text = queue_wire.find_text(data)
    except PartitaError:
        return False
    if text is None:
        return False
    printed = xml_text.element("QueueMessage", xml_text.text_element("MessageText", text))
    assert queue_wire.find_text(printed.encode()) == text
    return True


def _check_policies(data: bytes) -> bool:
    try:
        policies = xml_wire.parse_policies(data, "q")
    except PartitaError:
        return False
    printed = xml_wire.print_policies(policies)
    again = xml_wire.parse_policies(printed, "q")
    assert xml_wire.print_policies(again) == printed
    return bool(policies)


def _check_properties(data: bytes) -> bool:
    default = xml_wire.ServiceProperties()
    try:
        properties = xml_wire.parse_properties(data, default, "2026-10-06")
    except PartitaError:
        return False
    printed = xml_wire.print_properties(properties, "2026-10-06")
    assert xml_wire.parse_properties(printed, default, "2026-10-06") == properties
    return True


def queue_request(data: bytes) -> bool:
    """Read three lines: method, path, query; what follows is the body."""
    lines = [*data.split(b"\n", 3), b"", b"", b""]
    method, path, query = (line.decode("utf-8", "surrogateescape") for line in lines[:3])
    try:
        pairs = parse_query(query)
        call = queue_wire.decode(
            Request(method, f"/acct/{path}", query, {}, lines[3]), path, pairs, "2026-10-06"
        )
    except PartitaError:
        return False
    need = call.need()
    assert need.resource in {"s", "c", "o"}
    if isinstance(call, queue_wire.PutMessage) and call.lifetime_seconds is not None:
        assert 0 <= call.hidden_seconds < call.lifetime_seconds
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "filter": filter_text,
    "batch": batch,
    "uri": uri,
    "json_body": json_body,
    "authorization": authorization,
    "signature": credential_targets.signature,
    "token": credential_targets.token,
    "queue_body": queue_body,
    "queue_request": queue_request,
    "blob_range": blob_targets.byte_range,
    "blob_expression": blob_targets.expression,
    "blob_document": blob_targets.document,
    "blob_headers": blob_targets.headers,
    "pattern_condition": pattern_targets.condition,
    "pattern_key": pattern_targets.key_template,
    "pattern_continuation": pattern_targets.continuation,
    "pattern_outbox": pattern_targets.outbox_text,
    "pattern_place": pattern_targets.place,
    "pattern_seal": pattern_targets.seal,
    "pattern_answer": pattern_targets.group_answer,
    "pattern_page": pattern_targets.page_answer,
}
