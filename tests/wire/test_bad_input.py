"""Bad input over raw sockets: each row gets its answer, soon, and changes nothing.

The rows are numbered as in the catalogue of bad inputs of the project's threat model; numbers
that are missing concern other services.
"""

import base64
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from wire.hostile import (
    JSON,
    Answer,
    Service,
    a_batch,
    a_part,
    in_seconds,
)
from wire.live import LiveServer

OWN_ACCOUNT = "harbour"
OWN_KEY = "b25lIG1vcmUga2V5IHRoYXQgbm9ib2R5IGVsc2Uga25vd3M="

ROWS = 12
PATIENCE_SECONDS = 10
CPU_SECONDS = 2

Build = Callable[[Service], bytes]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("bad-input")
    accounts = "".join(
        f'[[accounts]]\nname = "{each.account}"\nkey = "{each.key}"\n'
        for each in (Service(0), Service(0, OWN_ACCOUNT, OWN_KEY))
    )
    folder.joinpath("partita.toml").write_text(accounts)
    server = LiveServer(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def service(live: LiveServer) -> Service:
    service = Service(live.announced["addresses"][0][1])
    for name in ("Witness", "Other"):
        must(service, "201", service.signed("POST", "/Tables", JSON, f'{{"TableName":"{name}"}}'))
    for number in range(ROWS):
        must(
            service,
            "201",
            service.signed("POST", "/Witness", JSON, an_entity("abcd"[number // 3], number)),
        )
    return service


def must(service: Service, expected: str, data: bytes) -> Answer:
    answer = service.exchange(data)
    assert answer.told == expected, answer.body
    return answer


def an_entity(partition_key: str, row: int | str, **properties: object) -> str:
    return json.dumps({"PartitionKey": partition_key, "RowKey": str(row), **properties})


def everything(service: Service) -> list[bytes]:
    """Read all that a bad request could have changed."""
    targets = ("/Tables", "/Witness()", "/Other()", "/Witness?comp=acl")
    targets += ("/?restype=service&comp=properties",)
    return [must(service, "200", service.signed("GET", target)).body for target in targets]


@pytest.fixture
def witness(service: Service) -> Iterator[Service]:
    """The service, on the promise that the test changes nothing."""
    before = everything(service)
    yield service
    assert everything(service) == before


class Row(NamedTuple):
    number: int
    title: str
    build: Build
    expected: str
    is_closing: bool = False
    seconds_max: float = PATIENCE_SECONDS


ENTITY = "/Witness(PartitionKey='a',RowKey='0')"
IN_PATH = f"/devstoreaccount1{ENTITY}"


def insert(body: str | bytes, **headers: str) -> Build:
    return lambda service: service.signed("POST", "/Witness", {**JSON, **headers}, body)


def insert_key(**keys: object) -> Build:
    return insert(json.dumps({"PartitionKey": "z", "RowKey": "z", **keys}))


def insert_property(json_text: str, name: str = "X") -> Build:
    return insert(f'{{"PartitionKey":"z","RowKey":"z","{name}":{json_text}}}')


def query(**options: str) -> Build:
    target = "/Witness()?" + "&".join(f"{name}={quote(text)}" for name, text in options.items())
    return lambda service: service.signed("GET", target)


def filtered(text: str) -> Build:
    return query(**{"$filter": text})


def by_sas(
    method: str, target: str, body: str = "", headers: dict[str, str] | None = None, **fields: str
) -> Build:
    """Send with a SAS for the table Witness."""

    def build(service: Service) -> bytes:
        sas = service.table_sas("Witness", **{"sp": "raud"} | fields)
        mark = "&" if "?" in target else "?"
        return service.unsigned(method, f"{target}{mark}{sas}", {**JSON, **(headers or {})}, body)

    return build


def batched(*parts: str, **headers: str) -> Build:
    media_type, body = a_batch(*parts)
    return lambda service: service.signed("POST", "/$batch", media_type | headers, body)


def enveloped(content_type: str, body: bytes) -> Build:
    return lambda service: service.signed("POST", "/$batch", {"Content-Type": content_type}, body)


def acl(body: str) -> Build:
    return lambda service: service.signed("PUT", "/Witness?comp=acl", {}, body)


def with_headers(**headers: str) -> Build:
    return lambda service: service.signed("GET", ENTITY, headers)


def with_lines(lines: str, body: bytes = b"", method: str = "POST") -> Build:
    """Send header lines as they are: what is malformed never gets as far as a signature."""

    def build(service: Service) -> bytes:
        head = f"{method} {IN_PATH} HTTP/1.1\r\nHost: {service.host}\r\n{lines}\r\n"
        return head.encode("latin-1") + body

    return build


def authorized_by(credentials: str) -> Build:
    date = {"x-ms-date": formatdate(usegmt=True)}
    return lambda service: service.unsigned("GET", ENTITY, date | {"Authorization": credentials})


def dated(seconds: float) -> Build:
    return lambda service: service.signed(
        "GET", ENTITY, date=formatdate(time.time() + seconds, usegmt=True)
    )


def of_unknown_account(service: Service) -> bytes:
    stranger = service._replace(account="nosuchaccount")
    return stranger.signed("GET", ENTITY)


def twice_dated(service: Service) -> bytes:
    request = service.signed("GET", ENTITY)
    second = f"x-ms-date: {formatdate(time.time() - 60, usegmt=True)}\r\n\r\n"
    return request.removesuffix(b"\r\n") + second.encode()


def with_two_permissions(service: Service) -> bytes:
    sas = service.table_sas("Witness", sp="r")
    return service.unsigned("GET", f"{ENTITY}?{sas}&sp=raud")


def insert_part(row: object, partition_key: str = "z", **properties: object) -> str:
    body = {"PartitionKey": partition_key, "RowKey": str(row), **properties}
    return a_part("POST", "/Witness", body)


def nested(levels: int) -> bytes:
    front = "".join(
        f"--b{level}\r\nContent-Type: multipart/mixed; boundary=b{level + 1}\r\n\r\n"
        for level in range(levels)
    )
    return front.encode()


def of_bytes(size: int) -> Build:
    """Send a batch of exactly this size."""
    start = '{"PartitionKey":"z","RowKey":"z","X":"'

    def build(service: Service) -> bytes:
        frame = a_batch(a_part("POST", "/Witness") + start + '"}')
        _, body = a_batch(a_part("POST", "/Witness") + start + "x" * (size - len(frame[1])) + '"}')
        assert len(body) == size
        return service.signed("POST", "/$batch", frame[0], body)

    return build


def policies(count: int) -> str:
    each = "".join(
        f"<SignedIdentifier><Id>{number}</Id></SignedIdentifier>" for number in range(count)
    )
    return f"<SignedIdentifiers>{each}</SignedIdentifiers>"


FORBIDDEN_IN_BODY = ["/", "\\", "#", "?", "\x00", "\x1f", "\x7f", "\x80", "\x9f"]
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
REFUSED = "403 AuthenticationFailed"
INPUT = "400 InvalidInput"

CREDENTIALS = [
    Row(
        1, "no credentials", lambda s: s.unsigned("GET", ENTITY), "401 NoAuthenticationInformation"
    ),
    Row(2, "wrong mac", lambda s: s.signed("GET", ENTITY, key=OWN_KEY), REFUSED),
    Row(3, "unknown account", of_unknown_account, REFUSED),
    Row(4, "mac is not base64", authorized_by("SharedKey devstoreaccount1:$$$$"), REFUSED),
    Row(4, "mac is cut", authorized_by("SharedKey devstoreaccount1:AAAA"), REFUSED),
    Row(4, "no mac", authorized_by("SharedKey devstoreaccount1"), "400 InvalidAuthenticationInfo"),
    Row(4, "another scheme", authorized_by("Basic YTpi"), "400 InvalidAuthenticationInfo"),
    Row(4, "bearer", authorized_by("Bearer a.b.c"), REFUSED),
    Row(5, "16 minutes old", dated(-16 * 60), REFUSED),
    Row(5, "16 minutes ahead", dated(16 * 60), REFUSED),
    Row(6, "two dates", twice_dated, "400 InvalidHeaderValue"),
]

TOKENS = [
    Row(8, "expired a second ago", lambda s: by_sas("GET", ENTITY, se=in_seconds(-1))(s), REFUSED),
    Row(8, "not valid yet", lambda s: by_sas("GET", ENTITY, st=in_seconds(60))(s), REFUSED),
    Row(
        9,
        "read only, delete",
        by_sas("DELETE", ENTITY, headers={"If-Match": "*"}, sp="r"),
        "403 AuthorizationPermissionMismatch",
    ),
    Row(
        9,
        "read only, tunnelled delete",
        by_sas("POST", ENTITY, headers={"If-Match": "*", "X-HTTP-Method": "DELETE"}, sp="r"),
        "403 AuthorizationPermissionMismatch",
    ),
    Row(
        10,
        "insert behind the range",
        by_sas("POST", "/Witness", an_entity("c", "z"), spk="a", epk="b"),
        "403 AuthorizationFailure",
    ),
    Row(
        13,
        "add only, insert or replace",
        by_sas("PUT", ENTITY, "{}", sp="a"),
        "403 AuthorizationPermissionMismatch",
    ),
    Row(15, "sp twice", with_two_permissions, REFUSED),
    Row(16, "another table", by_sas("GET", "/Other()"), "403 AuthorizationFailure"),
    Row(16, "the list of tables", by_sas("GET", "/Tables"), "403 AuthorizationFailure"),
    Row(16, "access policies", by_sas("GET", "/Witness?comp=acl"), "403 AuthorizationFailure"),
    Row(
        17,
        "another address",
        by_sas("GET", ENTITY, sip="203.0.113.9"),
        "403 AuthorizationSourceIPMismatch",
    ),
    Row(
        17,
        "another address, forwarded",
        by_sas("GET", ENTITY, headers={"X-Forwarded-For": "203.0.113.9"}, sip="203.0.113.9"),
        "403 AuthorizationSourceIPMismatch",
    ),
    Row(18, "https only", by_sas("GET", ENTITY, spr="https"), "403 AuthorizationProtocolMismatch"),
]

ENTITIES = [
    *(
        Row(20, f"continuation {token}", query(NextPartitionKey=token), INPUT)
        for token in (
            "a",
            "1!4!",
            "1!2!AA",
            "1!4!YQ=x",
            "1!4!YR--",
            "2!4!YQ--",
            "1!99999!YQ--",
            "1!4!_w--",
        )
    ),
    *(
        Row(
            21,
            f"{name} with {ord(letter):#04x}",
            insert_key(**{name: f"a{letter}b"}),
            "400 OutOfRangeInput",
        )
        for name in ("PartitionKey", "RowKey")
        for letter in FORBIDDEN_IN_BODY
    ),
    *(
        Row(
            21,
            f"{escape} in the address",
            lambda s, e=escape: s.signed("GET", f"/Witness(PartitionKey='a{e}b',RowKey='0')"),
            expected,
        )
        for escape, expected in (
            ("%2F", INPUT),
            ("%5C", INPUT),
            ("%23", "400 OutOfRangeInput"),
            ("%3F", "400 OutOfRangeInput"),
            ("%C2%80", "400 OutOfRangeInput"),
        )
    ),
    Row(22, "key of 1025 characters", insert_key(RowKey="k" * 1025), "400 PropertyValueTooLarge"),
    Row(
        22, "key of 513 characters", insert_key(PartitionKey="k" * 513), "400 PropertyValueTooLarge"
    ),
    Row(22, "lone surrogate", insert(r'{"PartitionKey":"\ud800","RowKey":"z"}'), INPUT),
    Row(22, "body that is not UTF-8", insert(b'{"PartitionKey":"\xff\xfe","RowKey":"z"}'), INPUT),
    Row(
        22,
        "address that is not UTF-8",
        lambda s: s.signed("GET", "/Witness(PartitionKey='%FF',RowKey='0')"),
        INPUT,
    ),
    Row(
        22,
        "surrogate in the address",
        lambda s: s.signed("GET", "/Witness(PartitionKey='%ED%A0%80',RowKey='0')"),
        INPUT,
    ),
    Row(22, "key that is a number", insert_key(RowKey=7), INPUT),
    Row(
        23,
        "253 properties",
        insert(an_entity("z", "z", **{f"P{n}": n for n in range(253)})),
        "400 TooManyProperties",
    ),
    Row(23, "name of 256 characters", insert_property("1", "n" * 256), "400 PropertyNameTooLong"),
    Row(23, "name with a dash", insert_property("1", "a-b"), "400 PropertyNameInvalid"),
    Row(
        24,
        "text of 64 KiB and more",
        insert_property(f'"{"x" * 32769}"'),
        "400 PropertyValueTooLarge",
    ),
    Row(
        24,
        "entity of 1 MiB and more",
        insert(an_entity("z", "z", **{f"P{n}": "x" * 32000 for n in range(17)})),
        "400 EntityTooLarge",
    ),
    Row(
        25,
        "Int64 too large",
        insert_property('"9223372036854775808","X@odata.type":"Edm.Int64"'),
        INPUT,
    ),
    Row(
        25,
        "year 1600",
        insert_property('"1600-12-31T00:00:00Z","X@odata.type":"Edm.DateTime"'),
        "400 OutOfRangeInput",
    ),
    Row(25, "NaN as a number", insert_property("NaN"), INPUT),
    Row(
        25,
        "number of 100000 digits",
        insert_property("1" * 100_000),
        INPUT,
        seconds_max=CPU_SECONDS,
    ),
    Row(
        26,
        "depth 100000",
        insert_property("[" * 100_000 + "]" * 100_000),
        INPUT,
        seconds_max=CPU_SECONDS,
    ),
    Row(26, "a megabyte of brackets", insert(b"[" * 1_000_000), INPUT, seconds_max=CPU_SECONDS),
    Row(26, "objects in objects", insert(b'{"a":' * 200_000), INPUT, seconds_max=CPU_SECONDS),
    Row(26, "member given twice", insert_property('1,"X":2'), "400 DuplicatePropertiesSpecified"),
    Row(
        26, "key given twice", insert_property('1,"RowKey":"y"'), "400 DuplicatePropertiesSpecified"
    ),
    Row(
        26,
        "member twice by an escape",
        insert_property(r'1,"\u0058":2'),
        "400 DuplicatePropertiesSpecified",
    ),
    Row(
        26,
        "40000 equal members",
        insert(b"{" + b'"X":1,' * 40_000 + b'"X":1}'),
        "400 DuplicatePropertiesSpecified",
        seconds_max=CPU_SECONDS,
    ),
    Row(26, "no object", insert(b"7"), INPUT),
    Row(
        26, "no body", lambda s: s.signed("POST", "/Witness", JSON | {"Content-Length": "0"}), INPUT
    ),
]

QUERIES = [
    Row(
        27,
        "15000 parentheses",
        filtered("(" * 7_500 + "true" + ")" * 7_500),
        INPUT,
        seconds_max=CPU_SECONDS,
    ),
    Row(27, "4000 negations", filtered("not " * 4_000 + "true"), INPUT, seconds_max=CPU_SECONDS),
    Row(
        27,
        "50000 parentheses",
        lambda s: s.signed("GET", "/Witness()?$filter=" + "(" * 50_000),
        "414 InvalidUri",
        is_closing=True,
        seconds_max=CPU_SECONDS,
    ),
    Row(
        27,
        "a megabyte",
        lambda s: s.signed("GET", "/Witness()?$filter=" + "a" * 1_000_000),
        "414 InvalidUri",
        is_closing=True,
        seconds_max=CPU_SECONDS,
    ),
    Row(27, "unterminated text", filtered("PartitionKey eq 'a"), INPUT),
    Row(27, "unknown function", filtered("startswith(PartitionKey,'a')"), "501 NotImplemented"),
    Row(28, "injection", filtered("x eq '' or 1 eq 1); drop table Witness"), INPUT),
    Row(28, "injection in a text", filtered("PartitionKey eq '''; drop table Witness; --'"), "200"),
    Row(29, "top -1", query(**{"$top": "-1"}), INPUT),
    Row(29, "top 0", query(**{"$top": "0"}), "200"),
    Row(29, "top 1001", query(**{"$top": "1001"}), INPUT),
    Row(29, "top 1e9", query(**{"$top": "1e9"}), INPUT),
    Row(29, "top abc", query(**{"$top": "abc"}), INPUT),
    Row(29, "top in other digits", query(**{"$top": "٣"}), INPUT),
    Row(29, "top of 20000 digits", query(**{"$top": "9" * 20_000}), INPUT),
    Row(
        29,
        "top twice",
        lambda s: s.signed("GET", "/Witness()?$top=1&$top=2"),
        "400 InvalidQueryParameterValue",
    ),
]

GROUPS = [
    Row(
        12,
        "99 inside, 1 outside",
        lambda s: s.unsigned(
            "POST",
            "/$batch?" + s.table_sas("Witness", sp="a", spk="z", srk="00", epk="z", erk="98"),
            *a_batch(*(insert_part(f"{number:02}") for number in range(100))),
        ),
        "403 AuthorizationFailure",
    ),
    Row(30, "101 operations", batched(*(insert_part(number) for number in range(101))), "202 400 InvalidInput"),
    Row(30, "one row twice", batched(insert_part(1), insert_part(1)), "202 400 InvalidDuplicateRow"),
    Row(30, "two partitions", batched(insert_part(1), insert_part(2, "y")), "202 400 CommandsInBatchActOnDifferentPartitions"),
    Row(30, "4 MiB and one byte", of_bytes(4 * 1024 * 1024 + 1), "413 RequestBodyTooLarge"),
    Row(30, "the last part exists", batched(insert_part(1, "a"), insert_part(0, "a")), "202 409 EntityAlreadyExists"),
    Row(31, "no boundary", enveloped("multipart/mixed", a_batch(insert_part(1))[1]), INPUT),
    Row(31, "another boundary", enveloped("multipart/mixed; boundary=other", a_batch(insert_part(1))[1]), INPUT),
    Row(31, "boundary of 2 KB", enveloped(f"multipart/mixed; boundary={'b' * 2048}", a_batch(insert_part(1), boundary="b" * 2048)[1]), INPUT),
    Row(31, "two boundaries", enveloped("multipart/mixed; boundary=batch_b; boundary=x", a_batch(insert_part(1))[1]), INPUT),
    Row(31, "nested 50 levels", enveloped("multipart/mixed; boundary=b0", nested(50)), INPUT),
    Row(31, "no multipart", enveloped("text/plain", a_batch(insert_part(1))[1]), INPUT),
    Row(31, "carriage return in a header", batched(a_part("POST", "/Witness", {"PartitionKey": "z", "RowKey": "z"}, {"Prefer": "a\rb"})), INPUT),
    Row(31, "folded header", batched(a_part("POST", "/Witness", {"PartitionKey": "z", "RowKey": "z"}, {"Prefer": "a\r\n b"})), INPUT),
    Row(31, "length that lies", batched(a_part("POST", "/Witness", {"PartitionKey": "a", "RowKey": "0"}, {"Content-Length": "9"})), "202 409 EntityAlreadyExists"),
    Row(31, "query in a change set", batched(insert_part(1), a_part("GET", ENTITY)), INPUT),
    Row(31, "two change sets", enveloped("multipart/mixed; boundary=batch_b", a_batch(insert_part(1))[1].replace(b"--batch_b--\r\n", b"") + a_batch(insert_part(2))[1]), INPUT),
    Row(31, "empty", batched(), INPUT),
    Row(31, "another account", batched(a_part("POST", f"/{OWN_ACCOUNT}/Witness", {"PartitionKey": "z", "RowKey": "z"})), "202 400 InvalidResourceName"),
    Row(31, "a batch in a batch", batched(a_part("POST", "/$batch", {})), "202 405 MethodNotAllowed"),
    Row(31, "a table in a batch", batched(a_part("POST", "/Tables", {"TableName": "New"})), "202 400 InvalidInput"),
    Row(31, "a million delimiters", enveloped("multipart/mixed; boundary=b", b"--b\r\n" + b"\n--bx" * 400_000), INPUT, seconds_max=CPU_SECONDS),
    Row(31, "a megabyte of empty parts", enveloped("multipart/mixed; boundary=b", b"--b\r\n" * 200_000), INPUT, seconds_max=CPU_SECONDS),
]  # fmt: skip

DOCUMENTS = [
    Row(32, "document type", acl(f"<!DOCTYPE a>{policies(1)}"), "400 InvalidXmlDocument"),
    Row(32, "external entity", acl(f'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>{policies(1)}'), "400 InvalidXmlDocument"),
    Row(32, "billion laughs", acl(f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><SignedIdentifiers>&l9;</SignedIdentifiers>'), "400 InvalidXmlDocument", seconds_max=CPU_SECONDS),
    Row(32, "document type in UTF-16", lambda s: s.signed("PUT", "/Witness?comp=acl", {}, f"<!DOCTYPE a>{policies(1)}".encode("utf-16")), "400 InvalidXmlDocument"),
    Row(32, "6 policies", acl(policies(6)), "400 InvalidXmlDocument"),
    Row(32, "100000 policies", acl(policies(100_000)), "400 InvalidXmlDocument", seconds_max=CPU_SECONDS),
    Row(32, "deep", acl("<a>" * 50_000), "400 InvalidXmlDocument", seconds_max=CPU_SECONDS),
    Row(32, "no XML", acl("{}"), "400 InvalidXmlDocument"),
    Row(32, "properties with a document type", lambda s: s.signed("PUT", "/?restype=service&comp=properties", {}, "<!DOCTYPE a><StorageServiceProperties/>"), "400 InvalidXmlDocument"),
]  # fmt: skip

FRAMES = [
    Row(36, "both lengths", with_lines("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"), INPUT, True),
    Row(36, "bare line feed after a chunk size", with_lines("Transfer-Encoding: chunked\r\n", b"1\nx\r\n0\r\n\r\n"), INPUT, True),
    Row(36, "line feed in a chunk extension", with_lines("Transfer-Encoding: chunked\r\n", b"1;a\nb\r\nx\r\n0\r\n\r\n"), INPUT, True),
    Row(36, "unknown coding", with_lines("Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), INPUT, True),
    Row(36, "blank of another kind before the coding", with_lines("Transfer-Encoding: \xa0chunked\r\n", b"0\r\n\r\n"), INPUT, True),
    Row(36, "coding of HTTP/1.0", lambda s: with_lines("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")(s).replace(b"HTTP/1.1", b"HTTP/1.0"), INPUT, True),
    Row(36, "two lengths", with_lines("Content-Length: 1\r\nContent-Length: 2\r\n", b"xx"), INPUT, True),
    Row(36, "signed length", with_lines("Content-Length: +1\r\n", b"x"), INPUT, True),
    Row(36, "empty length", with_lines("Content-Length:\r\n"), INPUT, True),
    Row(36, "length of 5001 digits", with_lines(f"Content-Length: {'0' * 5000}1\r\n", b"x"), INPUT, True),
    Row(36, "length of 5000 nines", with_lines(f"Content-Length: {'9' * 5000}\r\n", b"x"), INPUT, True),
    Row(36, "line feeds only", lambda s: with_lines("")(s).replace(b"\r\n", b"\n"), INPUT, True),
    Row(36, "folded header", with_lines("X-A: a\r\n b\r\n"), INPUT, True),
    Row(36, "two hosts", with_lines("Host: 127.0.0.1\r\n"), "400 InvalidHeaderValue", True),
    Row(36, "no host", lambda _: f"GET {IN_PATH} HTTP/1.1\r\n\r\n".encode(), "400 InvalidHeaderValue", True),
    Row(37, "headers of 64 KiB", with_lines(f"X-A: {'a' * 65_536}\r\n"), "431 InvalidHeaderValue", True),
    Row(37, "1000 headers", with_lines("".join(f"X-{n}: a\r\n" for n in range(1000))), "431 InvalidHeaderValue", True),
    Row(37, "name with a blank", with_lines("X A: a\r\n"), INPUT, True),
    Row(37, "blank before the colon", with_lines("X-A : a\r\n"), INPUT, True),
    Row(37, "zero byte in a value", with_lines("X-A: a\0b\r\n"), INPUT, True),
    Row(37, "no HTTP", lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), INPUT, True),
    Row(40, "gzip", lambda s: s.signed("POST", "/Witness", JSON | {"Content-Encoding": "gzip"}, gzip.compress(bytes(10_000_000))), "415 MediaTypeNotSupported"),
    Row(40, "gzip around a batch", lambda s: s.signed("POST", "/$batch", a_batch()[0] | {"Content-Encoding": "gzip"}, gzip.compress(a_batch(insert_part(1))[1])), "415 MediaTypeNotSupported"),
    Row(40, "gzip around policies", lambda s: s.signed("PUT", "/Witness?comp=acl", {"Content-Encoding": "gzip"}, gzip.compress(policies(1).encode())), "415 MediaTypeNotSupported"),
    Row(40, "10 GB expected", with_lines("Content-Length: 10737418240\r\nExpect: 100-continue\r\n"), "413 RequestBodyTooLarge", True),
    Row(40, "another expectation", with_lines("Content-Length: 2\r\nExpect: tea\r\n", b"{}"), "417 InvalidHeaderValue", True),
]  # fmt: skip

HEADERS = [
    Row(0, "version that is no date", with_headers(**{"x-ms-version": "newest"}), "400 InvalidHeaderValue"),
    Row(0, "version that is no day", with_headers(**{"x-ms-version": "2019-02-02x"}), "400 InvalidHeaderValue"),
    Row(0, "text as JSON", insert(an_entity("z", "z"), **{"Content-Type": "text/plain"}), "415 MediaTypeNotSupported"),
    Row(0, "Atom", insert(an_entity("z", "z"), **{"Content-Type": "application/atom+xml"}), "415 AtomFormatNotSupported"),
    Row(0, "etag without quotes", lambda s: s.signed("PUT", ENTITY, JSON | {"If-Match": "x"}, "{}"), INPUT),
    Row(0, "two etags", lambda s: s.signed("PUT", ENTITY, JSON | {"If-Match": '"a", "b"'}, "{}"), INPUT),
    Row(0, "delete without a condition", lambda s: s.signed("DELETE", ENTITY), "400 MissingRequiredHeader"),
    Row(0, "tunnel in a get", with_headers(**{"X-HTTP-Method": "DELETE"}), "400 XMethodNotUsingPost"),
    Row(0, "tunnel to nowhere", lambda s: s.signed("POST", ENTITY, {"X-HTTP-Method": "GET"}), "400 XMethodIncorrectValue"),
    Row(0, "unknown method", lambda s: s.signed("PROPFIND", ENTITY), "405 MethodNotAllowed"),
    Row(0, "comp twice", lambda s: s.signed("GET", "/Witness?comp=acl&comp=acl"), "400 InvalidQueryParameterValue"),
    Row(0, "101 query options", lambda s: s.signed("GET", "/Witness()?" + "a=1&" * 101), INPUT),
    Row(0, "256 selected names", query(**{"$select": ",".join(f"P{n}" for n in range(256))}), INPUT),
]  # fmt: skip

TABLE = [*CREDENTIALS, *TOKENS, *ENTITIES, *QUERIES, *GROUPS, *DOCUMENTS, *FRAMES, *HEADERS]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.number}-{row.title}") for row in TABLE]
)
def test_bad_input_gets_its_answer_soon_and_changes_nothing(row: Row, witness: Service) -> None:
    answer = witness.exchange(row.build(witness))

    assert answer.told == row.expected
    assert answer.seconds < row.seconds_max
    assert answer.status < 500 or answer.status in (501, 503, 507)
    assert answer.is_closing or not row.is_closing


def test_well_known_key_is_not_served_on_the_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "partita.cli.main", "serve", "--table-port", "0"]

    refused = subprocess.run(
        [*command, "--host", "0.0.0.0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert refused.returncode == 2
    assert "well-known development key" in refused.stderr
    assert refused.stdout == ""


def test_refused_query_options_leave_an_empty_page(witness: Service) -> None:
    answer = witness.exchange(query(**{"$top": "0"})(witness))

    assert json.loads(answer.body)["value"] == []
    assert not [name for name in answer.headers if "continuation" in name]


def test_query_by_a_range_shows_nothing_outside_it(witness: Service) -> None:
    sas = witness.table_sas("Witness", sp="r", spk="b", epk="c")
    seen: list[dict[str, Any]] = []
    more = ""
    while True:
        filter_ = quote("PartitionKey ge ''")
        target = f"/Witness()?$filter={filter_}&$top=2{more}&{sas}"
        answer = witness.exchange(witness.unsigned("GET", target))
        assert answer.status == 200
        seen += json.loads(answer.body)["value"]
        token = [
            (name.removeprefix("x-ms-continuation-"), value)
            for name, value in answer.headers.items()
            if "continuation" in name
        ]
        if not token:
            break
        assert decoded(dict(token)["nextpartitionkey"]) in "bc"
        names = {"nextpartitionkey": "NextPartitionKey", "nextrowkey": "NextRowKey"}
        more = "".join(f"&{names[name]}={value}" for name, value in token)

    assert [(each["PartitionKey"], each["RowKey"]) for each in seen] == [
        *(("b", row) for row in "345"),
        *(("c", row) for row in "678"),
    ]


def decoded(token: str) -> str:
    _, _, text = token.split("!")
    return base64.b64decode(text.replace("-", "=")).decode()


def test_continuation_from_outside_grants_nothing(witness: Service) -> None:
    sas = witness.table_sas("Witness", sp="r", spk="b", epk="b")
    before = f"/Witness()?NextPartitionKey=1!4!YQ--&NextRowKey=1!4!MA--&{sas}"
    behind = f"/Witness()?NextPartitionKey=1!4!ZA--&NextRowKey=1!4!OQ--&{sas}"

    from_before = witness.exchange(witness.unsigned("GET", before))
    from_behind = witness.exchange(witness.unsigned("GET", behind))

    assert [each["RowKey"] for each in json.loads(from_before.body)["value"]] == ["3", "4", "5"]
    assert from_behind.told == "200"
    assert json.loads(from_behind.body)["value"] == []


def test_keys_of_a_body_never_move_a_write(witness: Service) -> None:
    elsewhere = "/Other(PartitionKey='z',RowKey='z')"
    body = json.dumps({"PartitionKey": "a", "RowKey": "0", "X": 1})

    must(witness, "204", witness.signed("PUT", elsewhere, JSON, body))

    written = json.loads(must(witness, "200", witness.signed("GET", "/Other()")).body)["value"]
    assert [(each["PartitionKey"], each["RowKey"]) for each in written] == [("z", "z")]
    must(witness, "204", witness.signed("DELETE", elsewhere, {"If-Match": "*"}))


def test_deleted_policy_ends_its_tokens_at_once(service: Service) -> None:
    policy = (
        "<SignedIdentifiers><SignedIdentifier><Id>p</Id><AccessPolicy>"
        f"<Expiry>{in_seconds(3600)}</Expiry><Permission>r</Permission>"
        "</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )
    must(service, "204", service.signed("PUT", "/Other?comp=acl", {}, policy))
    target = f"/Other()?{service.table_sas('Other', si='p', se='')}"
    must(service, "200", service.unsigned("GET", target))

    must(service, "204", service.signed("PUT", "/Other?comp=acl", {"Content-Length": "0"}))

    must(service, "403 AuthenticationFailed", service.unsigned("GET", target))


def test_token_and_key_together_are_refused(witness: Service) -> None:
    target = f"{ENTITY}?{witness.table_sas('Witness', sp='r')}"

    must(witness, "400 InvalidAuthenticationInfo", witness.signed("GET", target))


# Row 38: slow clients


def test_slow_clients_are_let_go_and_disturb_nobody(witness: Service) -> None:
    started = time.monotonic()
    slow = [socket.create_connection(("127.0.0.1", witness.port), 5) for _ in range(300)]
    try:
        for connection in slow:
            connection.sendall(b"GET /devstoreaccount1/Witness HTTP/1.1\r\n")
        while time.monotonic() - started < 5:
            answer = must(witness, "200", witness.signed("GET", ENTITY))
            assert answer.seconds < CPU_SECONDS
            time.sleep(0.1)
        for connection in slow:
            connection.sendall(b"X")
        while slow and time.monotonic() - started < 15:
            answer = must(witness, "200", witness.signed("GET", ENTITY))
            assert answer.seconds < CPU_SECONDS
            answered, _, _ = select.select(slow, [], [], 0.2)
            for connection in answered:
                assert connection.recv(64).startswith(b"HTTP/1.1 408 ")
                connection.close()
                slow.remove(connection)
        assert slow == []
        assert time.monotonic() - started > 9
    finally:
        for connection in slow:
            connection.close()


# Row 39: requests that a web page could make


EVIL = {"Origin": "http://evil.example"}
FROM_PAGES: list[tuple[dict[str, str], str]] = [
    (EVIL, "403 AuthorizationFailure"),
    ({"Sec-Fetch-Site": "cross-site"}, "403 AuthorizationFailure"),
    (EVIL | {"Content-Type": "text/plain"}, "403 AuthorizationFailure"),
    ({"Origin": "null"}, "403 AuthorizationFailure"),
    ({"Host": "evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "127.0.0.1.evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "devstoreaccount1.table.evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "localhost@evil.example"}, "400 InvalidHeaderValue"),
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "MERGE", "OPTIONS"])
@pytest.mark.parametrize(("headers", "expected"), FROM_PAGES)
def test_page_of_another_origin_cannot_use_the_development_account(
    method: str, headers: dict[str, str], expected: str, witness: Service
) -> None:
    target = f"/Witness?{witness.account_sas()}"
    if method == "OPTIONS":
        expected = expected.replace("AuthorizationFailure", "CorsPreflightFailure")

    data = witness.unsigned(method, target, JSON | headers, an_entity("z", "z"))
    if headers.get("Host", "").startswith("devstoreaccount1."):
        data = data.replace(b" /devstoreaccount1/", b" /", 1)

    assert witness.exchange(data).told == expected


def test_page_of_this_machine_may_use_the_development_account(witness: Service) -> None:
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Host": f"localhost:{witness.port}"}):
        must(witness, "200", witness.signed("GET", ENTITY, headers))


@pytest.fixture
def own(service: Service) -> Iterator[Service]:
    """An account with a key that web pages do not know, and one CORS rule."""
    own = Service(service.port, OWN_ACCOUNT, OWN_KEY)
    rule = (
        "<CorsRule><AllowedMethods>GET</AllowedMethods>"
        "<AllowedOrigins>http://good.example</AllowedOrigins><AllowedHeaders>*</AllowedHeaders>"
        "<ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>5</MaxAgeInSeconds></CorsRule>"
    )
    target = "/?restype=service&comp=properties"
    front, back = "<StorageServiceProperties><Cors>", "</Cors></StorageServiceProperties>"
    must(own, "202", own.signed("PUT", target, {}, front + rule + back))
    yield own
    must(own, "202", own.signed("PUT", target, {}, front + back))


def test_account_with_its_own_key_follows_its_cors_rules_only(own: Service) -> None:
    for headers in (EVIL, {"Sec-Fetch-Site": "cross-site"}, {"Host": "tables.example"}):
        answer = must(own, "200", own.signed("GET", "/Tables", headers))
        assert "access-control-allow-origin" not in answer.headers

    good = must(own, "200", own.signed("GET", "/Tables", {"Origin": "http://good.example"}))
    assert good.headers["access-control-allow-origin"] == "http://good.example"

    asked = {"Access-Control-Request-Method": "GET"}
    must(own, "403 CorsPreflightFailure", own.unsigned("OPTIONS", "/Tables", EVIL | asked))
    allowed = own.unsigned("OPTIONS", "/Tables", {"Origin": "http://good.example"} | asked)
    must(own, "200", allowed)


# Row 40: bodies that nobody wants


def test_body_that_is_too_large_is_refused_before_it_is_sent(witness: Service) -> None:
    head = with_lines(f"Content-Length: {10 * 2**30}\r\nExpect: 100-continue\r\n")(witness)
    with socket.create_connection(("127.0.0.1", witness.port), PATIENCE_SECONDS) as connection:
        connection.sendall(head)
        first = connection.recv(64)

    assert first.startswith(b"HTTP/1.1 413 ")


def test_client_that_sends_13_mib_first_hears_why_not(witness: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", witness.port, timeout=PATIENCE_SECONDS)
    connection.request("POST", "/devstoreaccount1/Witness", bytes(13 * 2**20), JSON)
    response = connection.getresponse()
    body = response.read()
    connection.close()

    assert response.status == 413
    assert json.loads(body)["odata.error"]["code"] == "RequestBodyTooLarge"


def test_what_follows_a_refused_request_is_not_served(witness: Service) -> None:
    smuggled = witness.signed("DELETE", ENTITY, {"If-Match": "*"})
    lines = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"
    with socket.create_connection(("127.0.0.1", witness.port), PATIENCE_SECONDS) as connection:
        connection.sendall(with_lines(lines, b"0\r\n\r\n")(witness) + smuggled)
        assert read_answer(connection, time.monotonic()).told == INPUT
        assert connection.recv(1) == b""


# Values that are given back


def test_client_request_id_is_given_back_only_if_it_is_plain(witness: Service) -> None:
    plain = must(witness, "200", with_headers(**{"x-ms-client-request-id": "a b;c"})(witness))
    assert plain.headers["x-ms-client-request-id"] == "a b;c"

    for text in ("\xe9", "a\tb", "a" * 1025):
        answer = must(witness, "200", with_headers(**{"x-ms-client-request-id": text})(witness))
        assert "x-ms-client-request-id" not in answer.headers


def test_version_that_was_refused_is_not_given_back(witness: Service) -> None:
    answer = witness.exchange(with_headers(**{"x-ms-version": "<newest>"})(witness))

    assert answer.headers["x-ms-version"] == "2019-02-02"


def test_key_with_a_line_end_cannot_be_addressed(witness: Service) -> None:
    """Location and continuation print keys, so none may hold what ends a line."""
    for escape in ("%0D%0A", "%00", "%7F", "%C2%85"):
        target = f"/Witness(PartitionKey='a{escape}X-Evil:1',RowKey='0')"
        answer = witness.exchange(witness.signed("PUT", target, JSON, "{}"))
        assert answer.status == 400
        assert "x-evil" not in answer.headers


def test_content_id_of_a_part_cannot_start_another_header(witness: Service) -> None:
    body = {"PartitionKey": "z", "RowKey": "z"}
    for evil in ("1\rX-Evil: 1", "1\nX-Evil\x00: 1", "1\x0bX-Evil: 1"):
        part = a_part("POST", "/Witness", body, {"Content-ID": evil})
        assert witness.exchange(batched(part)(witness)).told == INPUT


def test_same_answer_for_a_wrong_signature_and_an_unknown_account(witness: Service) -> None:
    wrong = witness.exchange(witness.signed("GET", ENTITY, key=OWN_KEY))
    unknown = witness.exchange(of_unknown_account(witness))

    assert wrong.headers.keys() == unknown.headers.keys()
    assert first_line(wrong) == first_line(unknown)


def first_line(answer: Answer) -> str:
    text: str = json.loads(answer.body)["odata.error"]["message"]["value"]
    return text.partition("\n")[0]
