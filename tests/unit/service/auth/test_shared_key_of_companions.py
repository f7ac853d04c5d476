import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from typing import Any

import pytest
from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport
from azure.storage.blob import BlobServiceClient
from azure.storage.blob._shared.authentication import compare
from azure.storage.queue import QueueServiceClient
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import PartitaError
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.auth.shared_key import (
    SigningKey,
    _collation,
    authenticate,
    parse_http_date,
    string_to_sign,
)
from partita.service.http.request import Request

KEY = SigningKey.from_base64(DEVELOPMENT_KEY)
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
NOW = 17_040_672_000_000_000
HEADERS = {"x-ms-date": DATE, "x-ms-version": "2021-08-06"}
PUT_TEXT = (
    "PUT\n\n\n11\n\napplication/octet-stream\n\n\n\n\n\n\nx-ms-blob-type:BlockBlob\n"
    f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/c1/a%20b.txt\ntimeout:30"
)
LIST_TEXT = (
    "GET\n" + "\n" * 11 + f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/c1"
    "\ncomp:list\ninclude:metadata,snapshots\nprefix:log/\nrestype:container"
)
LITE_TEXT = f"PUT\n\n\n{DATE}\nx-ms-version:2014-02-14\n/{ACCOUNT}/{ACCOUNT}/c1?comp=metadata"


def sign(text: str) -> str:
    return base64.b64encode(KEY.signature(text)).decode()


def check(request: Request, *, now: int = NOW, service: str = "b") -> None:
    authenticate(request, ACCOUNT, (KEY,), now, 900, service)


def refusal(request: Request) -> str:
    with pytest.raises(PartitaError) as caught:
        check(request)
    return caught.value.code


def a_request(
    text: str,
    path: str = f"/{ACCOUNT}/c1",
    query: str = "",
    *,
    method: str = "PUT",
    scheme: str = "SharedKey",
    repeated: frozenset[str] = frozenset(),
    **headers: str,
) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["authorization"] = f"{scheme} {ACCOUNT}:{sign(text)}"
    return Request(method, path, query, {**HEADERS, **named}, repeated=repeated)


KNOWN = [
    (
        Request(
            "PUT",
            f"/{ACCOUNT}/c1/a%20b.txt",
            "timeout=30",
            {
                "content-length": "11",
                "content-type": "application/octet-stream",
                "x-ms-blob-type": "BlockBlob",
                **HEADERS,
            },
        ),
        PUT_TEXT,
        "1YesYs6iAi1ZuaaiNmfZ4nGs4/wJQn19nILESaPr+0s=",
    ),
    (
        Request(
            "GET",
            f"/{ACCOUNT}/c1",
            "restype=container&comp=list&prefix=log%2F&include=snapshots&include=metadata",
            HEADERS,
        ),
        LIST_TEXT,
        "2XEiHJadY3KR7Y691X4JF9A+uq3L5jTTGlQOyEcxkYg=",
    ),
]


@pytest.mark.parametrize(("request_", "text", "signature"), KNOWN)
def test_known_requests_give_the_known_texts(request_: Request, text: str, signature: str) -> None:
    assert string_to_sign(request_, ACCOUNT, "b") == text
    assert sign(text) == signature


def test_known_lite_request_gives_the_known_text() -> None:
    request = Request(
        "PUT",
        f"/{ACCOUNT}/c1",
        "restype=container&comp=metadata",
        {"date": DATE, "x-ms-version": "2014-02-14"},
    )

    assert string_to_sign(request, ACCOUNT, "b", is_lite=True) == LITE_TEXT
    assert sign(LITE_TEXT) == "1+9mauXL9WJz26IoAlc4wZkRjiRfJbw9e4aYOa9dR6Q="


def test_lite_request_is_authentic() -> None:
    headers = {
        "date": DATE,
        "x-ms-version": "2014-02-14",
        "authorization": f"SharedKeyLite {ACCOUNT}:{sign(LITE_TEXT)}",
    }

    check(Request("PUT", f"/{ACCOUNT}/c1", "restype=container&comp=metadata", headers))


def test_header_names_sort_as_the_service_sorts_them() -> None:
    names = ["x-ms-blob-type", "x-ms-date", "x-ms-meta", "x-ms-meta-_a", "x-ms-meta-a_b",
             "x-ms-meta-ab", "x-ms-meta-a-b", "x-ms-meta-test", "x-ms-meta-test-",
             "x-ms-meta-test_", "x-ms-meta-test_a", "x-ms-meta-test1", "x-ms-meta-testa",
             "x-ms-meta-test-a", "x-ms-version"]  # fmt: skip

    assert sorted(sorted(names), key=_collation) == names


@given(st.lists(st.text("abz019-_'.!~+", max_size=6), max_size=8))
def test_header_names_sort_as_the_official_client_sorts_them(names: list[str]) -> None:
    names = [f"x-ms-meta-{name}" for name in names]

    assert sorted(names, key=_collation) == sorted(names, key=cmp_to_key(compare))


BYTES_ORDER = ["a-b", "a_b", "ab"]
SERVICE_ORDER = ["a_b", "ab", "a-b"]


@pytest.mark.parametrize("order", [BYTES_ORDER, SERVICE_ORDER])
def test_headers_may_be_signed_in_the_order_of_bytes_or_of_the_service(order: list[str]) -> None:
    lines = "".join(f"x-ms-meta-{name}:1\n" for name in order)
    text = (
        "PUT\n" + "\n" * 11 + f"x-ms-date:{DATE}\n{lines}x-ms-version:2021-08-06\n"
        f"/{ACCOUNT}/{ACCOUNT}/c1"
    )
    request = a_request(text)
    request.headers.update({f"x-ms-meta-{name}": "1" for name in order})

    check(request)


def test_headers_signed_in_any_other_order_are_refused() -> None:
    text = (
        "PUT\n" + "\n" * 11 + f"x-ms-version:2021-08-06\nx-ms-date:{DATE}\n/{ACCOUNT}/{ACCOUNT}/c1"
    )

    assert refusal(a_request(text)) == "AuthenticationFailed"


@pytest.mark.parametrize("length", ["", "0"])
def test_length_of_an_empty_body_is_signed_as_nothing_or_as_zero(length: str) -> None:
    text = (
        f"PUT\n\n\n{length}" + "\n" * 9 + f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n"
        f"/{ACCOUNT}/{ACCOUNT}/c1"
    )

    check(a_request(text, content_length="0"))


def test_length_of_a_body_is_signed() -> None:
    text = (
        "PUT\n" + "\n" * 11 + f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/c1"
    )

    assert refusal(a_request(text, content_length="1")) == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("version", "line"), [("2014-02-14", ""), ("2016-05-31", "x-ms-meta-e:\n")]
)
def test_header_without_a_value_is_signed_from_its_version_on(version: str, line: str) -> None:
    text = (
        "PUT\n" + "\n" * 11 + f"x-ms-date:{DATE}\n{line}x-ms-version:{version}\n"
        f"/{ACCOUNT}/{ACCOUNT}/c1"
    )

    check(a_request(text, x_ms_meta_e="", x_ms_version=version))


def test_date_header_is_signed_only_where_it_rules() -> None:
    text = f"GET\n\n\n\n\n\n{DATE}\n\n\n\n\n\n/{ACCOUNT}/{ACCOUNT}/c1"
    headers = {"date": DATE, "authorization": f"SharedKey {ACCOUNT}:{sign(text)}"}

    check(Request("GET", f"/{ACCOUNT}/c1", "", headers))
    assert refusal(Request("GET", f"/{ACCOUNT}/c1", "", {**headers, "x-ms-date": DATE})) == (
        "AuthenticationFailed"
    )


def test_a_parameter_is_signed_by_its_name_in_lower_case_and_its_decoded_value() -> None:
    text = (
        "PUT\n" + "\n" * 11 + f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n"
        f"/{ACCOUNT}/{ACCOUNT}/c1\na:x+y z\nb:\ncomp:list"
    )

    check(a_request(text, query="Comp=list&b=&a=x+y%20z"))
    check(a_request(text, query="%63omp=list&a=x%2By%20z&b"))


def test_line_feed_in_a_parameter_is_refused() -> None:
    assert refusal(a_request("", query="prefix=a%0Acomp:list")) == "InvalidQueryParameterValue"
    assert refusal(a_request("", query="a%0Ab=1")) == "InvalidQueryParameterValue"


CHANGES: list[Callable[[Request], Request]] = [
    lambda r: Request("POST", r.path, r.query, r.headers),
    lambda r: Request(r.method, f"{r.path}x", r.query, r.headers),
    lambda r: Request(r.method, r.path, f"{r.query}&comp=list", r.headers),
    lambda r: Request(r.method, r.path, "", r.headers),
    *(
        lambda r, name=name: Request(r.method, r.path, r.query, {**r.headers, name: "changed"})
        for name in ("content-encoding", "content-language", "content-length", "content-md5",
                     "content-type", "if-modified-since", "if-match", "if-none-match",
                     "if-unmodified-since", "range", "x-ms-blob-type", "x-ms-meta-new")
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("service", ["q", "b"])
def test_every_signed_part_counts(service: str, change: Callable[[Request], Request]) -> None:
    request = Request(
        "PUT",
        f"/{ACCOUNT}/c1/b1",
        "timeout=30",
        {"content-length": "11", **HEADERS, "authorization": ""},
    )
    text = string_to_sign(request, ACCOUNT, service)
    request.headers["authorization"] = f"SharedKey {ACCOUNT}:{sign(text)}"

    check(request, service=service)
    with pytest.raises(PartitaError, match="AuthenticationFailed"):
        check(change(request), service=service)


@pytest.mark.parametrize(
    "header", ["authorization", "content-length", "content-type", "range", "x-ms-date", "date"]
)
def test_signed_header_sent_twice_is_refused(header: str) -> None:
    request = a_request("", repeated=frozenset({header}))

    assert refusal(request) == "InvalidHeaderValue"


@pytest.mark.parametrize("path", ["/devstoreaccount1-secondary/c1", "/devstoreaccount1/c1"])
def test_secondary_may_be_signed_as_the_primary(path: str) -> None:
    text = "GET\n" + "\n" * 11 + f"x-ms-date:{DATE}\nx-ms-version:2021-08-06\n/{ACCOUNT}{path}"

    check(a_request(text, "/devstoreaccount1-secondary/c1", method="GET"))


def test_signature_of_the_table_scheme_is_not_one_of_blobs() -> None:
    request = Request("GET", f"/{ACCOUNT}/c1", "", dict(HEADERS))
    signature = sign(string_to_sign(request, ACCOUNT, "t"))
    request.headers["authorization"] = f"SharedKey {ACCOUNT}:{signature}"

    authenticate(request, ACCOUNT, (KEY,), NOW, 900, "t")
    assert refusal(request) == "AuthenticationFailed"


# The official clients


class SentError(Exception):
    pass


class CatchingTransport(HttpTransport[HttpRequest, HttpResponse]):
    """Keeps what the official client would send."""

    def send(self, request: HttpRequest, **_: object) -> HttpResponse:
        self.request = request
        raise SentError

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


Client = Any
Call = Callable[[Client], object]


def upload(name: str) -> Call:
    metadata = {"a_b": "1", "ab": "2", "A1": "3"}
    return lambda client: client.get_blob_client("c1", name).upload_blob(b"x", metadata=metadata)


def list_blobs(prefix: str) -> Call:
    return lambda client: list(
        client.get_container_client("c1").list_blobs(prefix, include=["metadata", "copy"])
    )


def calls() -> Iterator[tuple[str, str, Call]]:
    for name in ("plain", "a b", "é", "100%", "a/b", "x?y#z", "a'b", "+,$:@=&;"):
        yield f"upload {name}", "b", upload(name)
        yield f"list {name}", "b", list_blobs(name)
    yield "empty", "b", lambda c: c.get_blob_client("c1", "b1").upload_blob(b"")
    yield "read", "b", lambda c: c.get_blob_client("c1", "b1").download_blob(offset=5, length=9)
    yield "containers", "b", lambda c: list(c.list_containers())
    yield "send", "q", lambda c: c.get_queue_client("q1").send_message("é<")
    yield "receive", "q", lambda c: list(c.get_queue_client("q1").receive_messages())
    yield "delete", "q", lambda c: c.get_queue_client("q1").delete_message("id/+", "a+b/=")
    yield "create", "q", lambda c: c.create_queue("q1", metadata={"x_1": " a "})


@pytest.mark.parametrize(
    ("service", "call"), [pytest.param(s, c, id=f"{s} {n}") for n, s, c in calls()]
)
def test_official_client_is_authentic(service: str, call: Callable[[Any], object]) -> None:
    transport = CatchingTransport()
    kind = QueueServiceClient if service == "q" else BlobServiceClient
    client = kind(
        f"http://127.0.0.1:10000/{ACCOUNT}",
        credential={"account_name": ACCOUNT, "account_key": DEVELOPMENT_KEY},
        transport=transport,
    )

    with pytest.raises(SentError):
        call(client)

    sent = transport.request
    path, _, query = sent.url.removeprefix("http://127.0.0.1:10000").partition("?")
    headers = {name.lower(): value.strip() for name, value in sent.headers.items()}
    now = parse_http_date(headers["x-ms-date"])
    assert now is not None
    check(Request(sent.method, path, query, headers), now=now, service=service)


@given(st.binary(max_size=80))
def test_signature_is_hmac_sha256_of_the_text(text: bytes) -> None:
    secret = base64.b64decode(DEVELOPMENT_KEY)

    assert KEY.signature(text) == hmac.digest(secret, text, hashlib.sha256)
