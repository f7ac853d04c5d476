"""The table of bad inputs: what is sent, and the answer that it must get.

The rows are numbered as in the catalogue of the project's threat model; numbers that are missing
concern other services or have a test of their own, and 0 is not in the catalogue.
"""

import gzip
import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote

from wire.hostile import JSON, Service, a_batch, a_part, in_seconds

OWN_ACCOUNT = "harbour"
OWN_KEY = "b25lIG1vcmUga2V5IHRoYXQgbm9ib2R5IGVsc2Uga25vd3M="

PATIENCE_SECONDS = 60
CPU_SECONDS = 2
"""What takes longer than this is worked on and not only waited for."""

Build = Callable[[Service], bytes]


def an_entity(partition_key: str, row: int | str, **properties: object) -> str:
    return json.dumps({"PartitionKey": partition_key, "RowKey": str(row), **properties})


class Row(NamedTuple):
    number: int
    title: str
    build: Build
    expected: str
    is_closing: bool = False
    cpu_seconds_max: float = 10


ENTITY = "/Witness(PartitionKey='a',RowKey='0')"
IN_PATH = f"/devstoreaccount1{ENTITY}"


def signed(
    method: str, target: str, headers: dict[str, str] | None = None, body: str | bytes = b""
) -> Build:
    return lambda service: service.signed(method, target, headers, body)


def insert(body: str | bytes, **headers: str) -> Build:
    return signed("POST", "/Witness", {**JSON, **headers}, body)


def insert_key(**keys: object) -> Build:
    return insert(json.dumps({"PartitionKey": "z", "RowKey": "z", **keys}))


def insert_property(json_text: str, name: str = "X") -> Build:
    return insert(f'{{"PartitionKey":"z","RowKey":"z","{name}":{json_text}}}')


def query(**options: str) -> Build:
    target = "/Witness()?" + "&".join(
        f"{name}={quote(text, safe='()')}" for name, text in options.items()
    )
    return signed("GET", target)


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
    return signed("POST", "/$batch", media_type | headers, body)


def enveloped(content_type: str, body: bytes) -> Build:
    return signed("POST", "/$batch", {"Content-Type": content_type}, body)


def acl(body: str) -> Build:
    return signed("PUT", "/Witness?comp=acl", {}, body)


def with_headers(**headers: str) -> Build:
    return signed("GET", ENTITY, headers)


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


def properties(exposed_header: str) -> Build:
    rule = (
        "<AllowedMethods>GET</AllowedMethods><AllowedOrigins>*</AllowedOrigins><AllowedHeaders/>"
        f"<ExposedHeaders>{exposed_header}</ExposedHeaders><MaxAgeInSeconds>1</MaxAgeInSeconds>"
    )
    body = f"<Cors><CorsRule>{rule}</CorsRule></Cors>"
    return signed(
        "PUT",
        "/?restype=service&comp=properties",
        {},
        f"<StorageServiceProperties>{body}</StorageServiceProperties>",
    )


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
    Row(8, "expired a second ago", by_sas("GET", ENTITY, se=in_seconds(-1)), REFUSED),
    Row(
        8, "not valid yet", by_sas("GET", ENTITY, st=in_seconds(3600), se=in_seconds(7200)), REFUSED
    ),
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
            signed("GET", f"/Witness(PartitionKey='a{escape}b',RowKey='0')"),
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
        signed("GET", "/Witness(PartitionKey='%FF',RowKey='0')"),
        INPUT,
    ),
    Row(
        22,
        "surrogate in the address",
        signed("GET", "/Witness(PartitionKey='%ED%A0%80',RowKey='0')"),
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
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(
        26,
        "depth 100000",
        insert_property("[" * 100_000 + "]" * 100_000),
        INPUT,
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(26, "a megabyte of brackets", insert(b"[" * 1_000_000), INPUT, cpu_seconds_max=CPU_SECONDS),
    Row(26, "objects in objects", insert(b'{"a":' * 200_000), INPUT, cpu_seconds_max=CPU_SECONDS),
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
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(26, "no object", insert(b"7"), INPUT),
    Row(26, "no body", signed("POST", "/Witness", JSON | {"Content-Length": "0"}), INPUT),
]

QUERIES = [
    Row(
        27,
        "15000 parentheses",
        filtered("(" * 7_500 + "true" + ")" * 7_500),
        INPUT,
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(
        27, "4000 negations", filtered("not " * 4_000 + "true"), INPUT, cpu_seconds_max=CPU_SECONDS
    ),
    Row(
        27,
        "50000 parentheses",
        signed("GET", "/Witness()?$filter=" + "(" * 50_000),
        "414 InvalidUri",
        is_closing=True,
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(
        27,
        "a megabyte",
        signed("GET", "/Witness()?$filter=" + "a" * 1_000_000),
        "414 InvalidUri",
        is_closing=True,
        cpu_seconds_max=CPU_SECONDS,
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
        signed("GET", "/Witness()?$top=1&$top=2"),
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
    Row(
        30,
        "101 operations",
        batched(*(insert_part(number) for number in range(101))),
        "202 400 InvalidInput",
    ),
    Row(
        30, "one row twice", batched(insert_part(1), insert_part(1)), "202 400 InvalidDuplicateRow"
    ),
    Row(
        30,
        "two partitions",
        batched(insert_part(1), insert_part(2, "y")),
        "202 400 CommandsInBatchActOnDifferentPartitions",
    ),
    Row(30, "4 MiB and one byte", of_bytes(4 * 1024 * 1024 + 1), "413 RequestBodyTooLarge"),
    Row(
        30,
        "the last part exists",
        batched(insert_part(1, "a"), insert_part(0, "a")),
        "202 409 EntityAlreadyExists",
    ),
    Row(31, "no boundary", enveloped("multipart/mixed", a_batch(insert_part(1))[1]), INPUT),
    Row(
        31,
        "another boundary",
        enveloped("multipart/mixed; boundary=other", a_batch(insert_part(1))[1]),
        INPUT,
    ),
    Row(
        31,
        "boundary of 2 KB",
        enveloped(
            f"multipart/mixed; boundary={'b' * 2048}",
            a_batch(insert_part(1), boundary="b" * 2048)[1],
        ),
        INPUT,
    ),
    Row(
        31,
        "two boundaries",
        enveloped("multipart/mixed; boundary=batch_b; boundary=x", a_batch(insert_part(1))[1]),
        INPUT,
    ),
    Row(31, "nested 50 levels", enveloped("multipart/mixed; boundary=b0", nested(50)), INPUT),
    Row(31, "no multipart", enveloped("text/plain", a_batch(insert_part(1))[1]), INPUT),
    Row(
        31,
        "carriage return in a header",
        batched(
            a_part("POST", "/Witness", {"PartitionKey": "z", "RowKey": "z"}, {"Prefer": "a\rb"})
        ),
        INPUT,
    ),
    Row(
        31,
        "folded header",
        batched(
            a_part("POST", "/Witness", {"PartitionKey": "z", "RowKey": "z"}, {"Prefer": "a\r\n b"})
        ),
        INPUT,
    ),
    Row(
        31,
        "length that lies",
        batched(
            a_part(
                "POST", "/Witness", {"PartitionKey": "a", "RowKey": "0"}, {"Content-Length": "9"}
            )
        ),
        "202 409 EntityAlreadyExists",
    ),
    Row(31, "query in a change set", batched(insert_part(1), a_part("GET", ENTITY)), INPUT),
    Row(
        31,
        "two change sets",
        enveloped(
            "multipart/mixed; boundary=batch_b",
            a_batch(insert_part(1))[1].replace(b"--batch_b--\r\n", b"")
            + a_batch(insert_part(2))[1],
        ),
        INPUT,
    ),
    Row(
        31,
        "no change set",
        enveloped("multipart/mixed; boundary=batch_b", b"--batch_b--\r\n"),
        INPUT,
    ),
    Row(
        31,
        "another account",
        batched(a_part("POST", f"/{OWN_ACCOUNT}/Witness", {"PartitionKey": "z", "RowKey": "z"})),
        "202 404 TableNotFound",
    ),
    Row(
        31, "a batch in a batch", batched(a_part("POST", "/$batch", {})), "202 405 MethodNotAllowed"
    ),
    Row(
        31,
        "a table in a batch",
        batched(a_part("POST", "/Tables", {"TableName": "New"})),
        "202 400 InvalidInput",
    ),
    Row(
        31,
        "a million delimiters",
        enveloped("multipart/mixed; boundary=b", b"--b\r\n" + b"\n--bx" * 400_000),
        INPUT,
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(
        31,
        "a megabyte of empty parts",
        enveloped("multipart/mixed; boundary=b", b"--b\r\n" * 200_000),
        INPUT,
        cpu_seconds_max=CPU_SECONDS,
    ),
]

DOCUMENTS = [
    Row(32, "document type", acl(f"<!DOCTYPE a>{policies(1)}"), "400 InvalidXmlDocument"),
    Row(
        32,
        "external entity",
        acl(f'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>{policies(1)}'),
        "400 InvalidXmlDocument",
    ),
    Row(
        32,
        "billion laughs",
        acl(f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><SignedIdentifiers>&l9;</SignedIdentifiers>'),
        "400 InvalidXmlDocument",
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(
        32,
        "document type in UTF-16",
        signed("PUT", "/Witness?comp=acl", {}, f"<!DOCTYPE a>{policies(1)}".encode("utf-16")),
        "400 InvalidXmlDocument",
    ),
    Row(32, "6 policies", acl(policies(6)), "400 InvalidXmlDocument"),
    Row(
        32,
        "5000 policies",
        acl(policies(5_000)),
        "400 InvalidXmlDocument",
        cpu_seconds_max=CPU_SECONDS,
    ),
    Row(32, "deep", acl("<a>" * 50_000), "400 InvalidXmlDocument", cpu_seconds_max=CPU_SECONDS),
    Row(32, "no XML", acl("{}"), "400 InvalidXmlDocument"),
    Row(
        0, "line end in a CORS rule", properties("a&#13;&#10;X-Evil: 1"), "400 InvalidXmlNodeValue"
    ),
    Row(
        32,
        "properties with a document type",
        signed(
            "PUT",
            "/?restype=service&comp=properties",
            {},
            "<!DOCTYPE a><StorageServiceProperties/>",
        ),
        "400 InvalidXmlDocument",
    ),
]

FRAMES = [
    Row(
        36,
        "both lengths",
        with_lines("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
        INPUT,
        True,
    ),
    Row(
        36,
        "bare line feed after a chunk size",
        with_lines("Transfer-Encoding: chunked\r\n", b"1\nx\r\n0\r\n\r\n"),
        INPUT,
        True,
    ),
    Row(
        36,
        "line feed in a chunk extension",
        with_lines("Transfer-Encoding: chunked\r\n", b"1;a\nb\r\nx\r\n0\r\n\r\n"),
        INPUT,
        True,
    ),
    Row(
        36,
        "unknown coding",
        with_lines("Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
        INPUT,
        True,
    ),
    Row(
        36,
        "blank of another kind before the coding",
        with_lines("Transfer-Encoding: \xa0chunked\r\n", b"0\r\n\r\n"),
        INPUT,
        True,
    ),
    Row(
        36,
        "coding of HTTP/1.0",
        lambda s: with_lines("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")(s).replace(
            b"HTTP/1.1", b"HTTP/1.0"
        ),
        INPUT,
        True,
    ),
    Row(
        36,
        "two lengths",
        with_lines("Content-Length: 1\r\nContent-Length: 2\r\n", b"xx"),
        INPUT,
        True,
    ),
    Row(36, "signed length", with_lines("Content-Length: +1\r\n", b"x"), INPUT, True),
    Row(36, "empty length", with_lines("Content-Length:\r\n"), INPUT, True),
    Row(
        36,
        "length of 5001 digits",
        with_lines(f"Content-Length: {'0' * 5000}1\r\n", b"x"),
        INPUT,
        True,
    ),
    Row(
        36,
        "length of 5000 nines",
        with_lines(f"Content-Length: {'9' * 5000}\r\n", b"x"),
        INPUT,
        True,
    ),
    Row(36, "line feeds only", lambda s: with_lines("")(s).replace(b"\r\n", b"\n"), INPUT, True),
    Row(36, "folded header", with_lines("X-A: a\r\n b\r\n"), INPUT, True),
    Row(36, "two hosts", with_lines("Host: 127.0.0.1\r\n"), "400 InvalidHeaderValue", True),
    Row(
        36,
        "no host",
        lambda _: f"GET {IN_PATH} HTTP/1.1\r\n\r\n".encode(),
        "400 InvalidHeaderValue",
        True,
    ),
    Row(
        37,
        "headers of 64 KiB",
        with_lines(f"X-A: {'a' * 65_536}\r\n"),
        "431 InvalidHeaderValue",
        True,
    ),
    Row(
        37,
        "1000 headers",
        with_lines("".join(f"X-{n}: a\r\n" for n in range(1000))),
        "431 InvalidHeaderValue",
        True,
    ),
    Row(37, "name with a blank", with_lines("X A: a\r\n"), INPUT, True),
    Row(37, "blank before the colon", with_lines("X-A : a\r\n"), INPUT, True),
    Row(37, "zero byte in a value", with_lines("X-A: a\0b\r\n"), INPUT, True),
    Row(
        37,
        "no HTTP",
        lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        INPUT,
        True,
    ),
    Row(
        40,
        "gzip",
        signed(
            "POST",
            "/Witness",
            JSON | {"Content-Encoding": "gzip"},
            gzip.compress(bytes(10_000_000)),
        ),
        "415 MediaTypeNotSupported",
    ),
    Row(
        40,
        "gzip around a batch",
        signed(
            "POST",
            "/$batch",
            a_batch()[0] | {"Content-Encoding": "gzip"},
            gzip.compress(a_batch(insert_part(1))[1]),
        ),
        "415 MediaTypeNotSupported",
    ),
    Row(
        40,
        "gzip around policies",
        signed(
            "PUT",
            "/Witness?comp=acl",
            {"Content-Encoding": "gzip"},
            gzip.compress(policies(1).encode()),
        ),
        "415 MediaTypeNotSupported",
    ),
    Row(
        40,
        "10 GB expected",
        with_lines("Content-Length: 10737418240\r\nExpect: 100-continue\r\n"),
        "413 RequestBodyTooLarge",
        True,
    ),
    Row(
        40,
        "another expectation",
        with_lines("Content-Length: 2\r\nExpect: tea\r\n", b"{}"),
        "417 InvalidHeaderValue",
        True,
    ),
]

HEADERS = [
    Row(
        0,
        "version that is no date",
        with_headers(**{"x-ms-version": "newest"}),
        "400 InvalidHeaderValue",
    ),
    Row(
        0,
        "version that is no day",
        with_headers(**{"x-ms-version": "2019-02-02x"}),
        "400 InvalidHeaderValue",
    ),
    Row(
        0,
        "text as JSON",
        insert(an_entity("z", "z"), **{"Content-Type": "text/plain"}),
        "415 MediaTypeNotSupported",
    ),
    Row(
        0,
        "Atom",
        insert(an_entity("z", "z"), **{"Content-Type": "application/atom+xml"}),
        "415 AtomFormatNotSupported",
    ),
    Row(0, "etag without quotes", signed("PUT", ENTITY, JSON | {"If-Match": "x"}, "{}"), INPUT),
    Row(0, "two etags", signed("PUT", ENTITY, JSON | {"If-Match": '"a", "b"'}, "{}"), INPUT),
    Row(0, "delete without a condition", signed("DELETE", ENTITY), "400 MissingRequiredHeader"),
    Row(
        0, "tunnel in a get", with_headers(**{"X-HTTP-Method": "DELETE"}), "400 XMethodNotUsingPost"
    ),
    Row(
        0,
        "tunnel to nowhere",
        signed("POST", ENTITY, {"X-HTTP-Method": "GET"}),
        "400 XMethodIncorrectValue",
    ),
    Row(0, "unknown method", signed("PROPFIND", ENTITY), "405 MethodNotAllowed"),
    Row(
        0,
        "comp twice",
        signed("GET", "/Witness?comp=acl&comp=acl"),
        "400 InvalidQueryParameterValue",
    ),
    Row(0, "101 query options", signed("GET", "/Witness()?" + "a=1&" * 101), INPUT),
    Row(
        0, "256 selected names", query(**{"$select": ",".join(f"P{n}" for n in range(256))}), INPUT
    ),
]

TABLE = [*CREDENTIALS, *TOKENS, *ENTITIES, *QUERIES, *GROUPS, *DOCUMENTS, *FRAMES, *HEADERS]
