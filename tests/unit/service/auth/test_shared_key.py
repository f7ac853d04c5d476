import base64
import hashlib
import hmac

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport
from azure.data.tables import TableClient
from hypothesis import example, given
from hypothesis import strategies as st

from partita.errors import ConfigurationError, PartitaError
from partita.service.auth.bearer import challenge
from partita.service.auth.shared_key import SigningKey, authenticate, parse_http_date
from partita.service.http.request import Request

ACCOUNT = "devstoreaccount1"
KEY_TEXT = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
KEY = SigningKey.from_base64(KEY_TEXT)
OTHER_KEY = SigningKey(b"another key")
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
NOW = 17_040_672_000_000_000
SECOND = 10_000_000
ENTITY = "/devstoreaccount1/MyTab(PartitionKey='a''b',RowKey='')"


def sign(text: str, key: SigningKey = KEY) -> str:
    return base64.b64encode(key.signature(text)).decode()


def a_request(
    authorization: str | None = None,
    path: str = "/devstoreaccount1/Tables",
    *,
    query: str = "",
    method: str = "GET",
    repeated: frozenset[str] = frozenset(),
    **headers: str,
) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if not {"date", "x-ms-date"} & named.keys():
        named["x-ms-date"] = DATE
    if authorization is not None:
        named["authorization"] = authorization
    return Request(method, path, query, named, repeated=repeated)


def a_lite_request(signed_path: str, sent_path: str, query: str = "") -> Request:
    signature = sign(f"{DATE}\n/{ACCOUNT}{signed_path}")
    return a_request(f"SharedKeyLite {ACCOUNT}:{signature}", sent_path, query=query)


def check(request: Request, *keys: SigningKey, now: int = NOW, skew: int | None = 900) -> None:
    authenticate(request, ACCOUNT, keys or (KEY,), now, skew)


def refusal(request: Request, *keys: SigningKey, now: int = NOW) -> PartitaError:
    with pytest.raises(PartitaError) as caught:
        check(request, *keys, now=now)
    return caught.value


VECTORS = [
    (
        f"POST\n\napplication/json;odata=nometadata\n{DATE}\n/{ACCOUNT}/{ACCOUNT}/Tables",
        "VVEni35dYYPP+Qk8tDErfbBKYUstV8A3uqbQVnV53eM=",
    ),
    (
        f"GET\n\n\n{DATE}\n/{ACCOUNT}/{ACCOUNT}/MyTab?comp=acl",
        "VB7MMsRaeT7nAGtAAP78yACXADKadPyfcVFlQwSTXwI=",
    ),
    (
        f"{DATE}\n/{ACCOUNT}/{ACCOUNT}/MyTab(PartitionKey='a''b%20%C3%A9',RowKey='')",
        "JhIlyrpJw7/ZgVXc0PQ+gZ+zGAA6q8Q7Nj3ecrc2lrg=",
    ),
    (f"{DATE}\n/{ACCOUNT}/Tables", "YLb1lYsg3mYfEcUoaRzUaTOKPjj+nW2UWYupQxg9WQ8="),
]


@pytest.mark.parametrize(("text", "signature"), VECTORS)
def test_signature_of_known_texts(text: str, signature: str) -> None:
    assert sign(text) == signature
    assert KEY.verify(text, signature)


@pytest.mark.parametrize(
    "request_",
    [
        a_request(
            "SharedKey devstoreaccount1:VVEni35dYYPP+Qk8tDErfbBKYUstV8A3uqbQVnV53eM=",
            method="POST",
            content_type="application/json;odata=nometadata",
        ),
        a_request(
            "SharedKey devstoreaccount1:VB7MMsRaeT7nAGtAAP78yACXADKadPyfcVFlQwSTXwI=",
            "/devstoreaccount1/MyTab",
            query="timeout=5&comp=acl",
        ),
        a_request(
            "SharedKeyLite devstoreaccount1:JhIlyrpJw7/ZgVXc0PQ+gZ+zGAA6q8Q7Nj3ecrc2lrg=",
            "/devstoreaccount1/MyTab(PartitionKey='a''b%20%C3%A9',RowKey='')",
        ),
        a_request(
            "SharedKeyLite devstoreaccount1:YLb1lYsg3mYfEcUoaRzUaTOKPjj+nW2UWYupQxg9WQ8=", "/Tables"
        ),
    ],
)
def test_requests_of_the_known_texts_are_authentic(request_: Request) -> None:
    check(request_)


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300))
@example(b"k" * 64, b"")
@example(b"k" * 65, b"text")
def test_signing_is_hmac_sha256(secret: bytes, text: bytes) -> None:
    assert SigningKey(secret).signature(text) == hmac.digest(secret, text, hashlib.sha256)


@given(st.text(max_size=20))
def test_any_text_can_be_signed_and_verified(text: str) -> None:
    assert KEY.verify(text, sign(text))


def test_text_with_a_lone_surrogate_fails_without_raising() -> None:
    assert not KEY.verify("\ud800", sign("x"))


def test_any_of_the_keys_will_do() -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")

    check(request, OTHER_KEY, KEY)


def test_key_does_not_show_itself() -> None:
    assert repr(KEY) == "SigningKey(***)"
    assert str(KEY) == "SigningKey(***)"


@pytest.mark.parametrize(
    "text", ["", "not base64!", "abc", "YWJj\n", "é", "YWJjZA=", KEY_TEXT[:-1]]
)
def test_key_that_is_not_base64_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SigningKey.from_base64(text)

    assert caught.value.code == "InvalidAccountKey"
    assert text not in caught.value.message or not text


@pytest.mark.parametrize(
    "authorization",
    ["", "SharedKey", "SharedKey ", "SharedKey acct", "SharedKey :c2ln", "SharedKey acct:",
     "Basic dXNlcjpwYXNz", "sharedkey devstoreaccount1:c2ln", "SharedKeyMax acct:c2ln"],
)  # fmt: skip
def test_malformed_authorization_is_told_apart(authorization: str) -> None:
    assert refusal(a_request(authorization)).code == "InvalidAuthenticationInfo"


@pytest.mark.parametrize(
    "signature",
    ["AAAA", "!!!!", "c2ln", sign("another text"), sign("x")[:-4], "é", " " + sign("x"),
     base64.b64encode(bytes(32)).decode(), base64.b64encode(bytes(31)).decode()],
)  # fmt: skip
def test_wrong_signature_is_refused(signature: str) -> None:
    error = refusal(a_request(f"SharedKeyLite {ACCOUNT}:{signature}"))

    assert error.code == "AuthenticationFailed"
    assert error.message == (
        "Server failed to authenticate the request. Make sure the value of Authorization header"
        " is formed correctly including the signature."
    )
    assert signature not in str(error)


def test_signature_of_another_key_is_refused() -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")

    assert refusal(request, OTHER_KEY).code == "AuthenticationFailed"


def test_account_without_keys_is_refused() -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")

    with pytest.raises(PartitaError, match="AuthenticationFailed"):
        authenticate(request, ACCOUNT, (), NOW)


def test_request_without_credentials_is_refused() -> None:
    assert refusal(a_request()).code == "AuthenticationFailed"


def test_header_that_names_another_account_is_refused() -> None:
    signature = sign(f"{DATE}\n/{ACCOUNT}/devstoreaccount1/Tables")

    error = refusal(a_request(f"SharedKeyLite someoneelse:{signature}"))

    assert error.code == "AuthenticationFailed"


def test_unknown_account_is_told_what_a_wrong_signature_is_told() -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")
    known = refusal(request, OTHER_KEY)

    with pytest.raises(PartitaError) as caught:
        authenticate(request, ACCOUNT, (SigningKey(b"nobody has this"),), NOW)

    assert str(caught.value) == str(known)


SIGNED_PARTS = {
    "method": "PUT",
    "content-md5": "other",
    "content-type": "text/plain",
    "x-ms-date": "Mon, 01 Jan 2024 00:00:01 GMT",
    "path": "/devstoreaccount1/T2",
    "query": "comp=properties",
}


@pytest.mark.parametrize("part", SIGNED_PARTS)
def test_every_signed_part_counts(part: str) -> None:
    text = f"POST\nmd5\napplication/json\n{DATE}\n/{ACCOUNT}/devstoreaccount1/T?comp=acl"
    values = {
        "method": "POST",
        "content-md5": "md5",
        "content-type": "application/json",
        "x-ms-date": DATE,
        "path": "/devstoreaccount1/T",
        "query": "comp=acl",
    }

    def build(parts: dict[str, str]) -> Request:
        headers = {"authorization": f"SharedKey {ACCOUNT}:{sign(text)}"}
        for name in ("content-md5", "content-type", "x-ms-date"):
            headers[name] = parts[name]
        return Request(parts["method"], parts["path"], parts["query"], headers)

    check(build(values))
    assert refusal(build({**values, part: SIGNED_PARTS[part]})).code == "AuthenticationFailed"


@pytest.mark.parametrize("query", ["comp=acl", "a=1&comp=acl", "%63omp=acl", "comp=%61cl&b=2"])
def test_comp_is_signed_wherever_it_stands(query: str) -> None:
    check(a_lite_request("/devstoreaccount1/T?comp=acl", "/devstoreaccount1/T", query))
    unsigned = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T", query)
    assert refusal(unsigned).code == "AuthenticationFailed"


@pytest.mark.parametrize("query", ["restype=service", "$filter=a%20eq%20'comp=acl'", "xcomp=1"])
def test_other_parameters_are_not_signed(query: str) -> None:
    check(a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T", query))


def test_comp_given_twice_is_refused() -> None:
    request = a_lite_request(
        "/devstoreaccount1/T?comp=acl", "/devstoreaccount1/T", "comp=acl&comp=x"
    )

    assert refusal(request).code == "InvalidQueryParameterValue"


def test_empty_path_is_signed_as_a_slash() -> None:
    check(a_lite_request("/", ""))


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        (ENTITY, ENTITY.replace("'", "%27")),
        (ENTITY.replace("'", "%27"), ENTITY),
        (ENTITY, ENTITY.replace("''", "%27%27")),
        ("/devstoreaccount1-secondary/T", "/devstoreaccount1-secondary/T"),
        ("/devstoreaccount1/T", "/devstoreaccount1-secondary/T"),
        ("/devstoreaccount1", "/devstoreaccount1-secondary"),
        ("/devstoreaccount1/T('a')", "/devstoreaccount1-secondary/T(%27a%27)"),
    ],
)
def test_other_spellings_of_the_same_resource_are_accepted(signed: str, sent: str) -> None:
    check(a_lite_request(signed, sent))


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        ("/devstoreaccount1/a b", "/devstoreaccount1/a%20b"),
        ("/devstoreaccount1/T", "/devstoreaccount1-secondaryx/T"),
        ("/devstoreaccount1x/T", "/devstoreaccount1-secondaryx/T"),
        ("/devstoreaccount1-secondary/T", "/devstoreaccount1/T"),
        ("/devstoreaccount1/T", "/devstoreaccount1/t"),
        ("/devstoreaccount1/T", "/devstoreaccount1/T/"),
    ],
)
def test_other_resources_are_not(signed: str, sent: str) -> None:
    assert refusal(a_lite_request(signed, sent)).code == "AuthenticationFailed"


@pytest.mark.parametrize("seconds", [-900, -1, 0, 1, 900])
def test_date_within_a_quarter_of_an_hour_is_accepted(seconds: int) -> None:
    check(a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T"), now=NOW + seconds * SECOND)


@pytest.mark.parametrize("seconds", [-960, -901, 901, 960, 86_400])
def test_date_further_away_is_refused(seconds: int) -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")

    assert refusal(request, now=NOW + seconds * SECOND).code == "AuthenticationFailed"


def test_date_check_can_be_switched_off() -> None:
    request = a_lite_request("/devstoreaccount1/T", "/devstoreaccount1/T")

    check(request, now=NOW + 10**17, skew=None)


@pytest.mark.parametrize(
    "date", ["", "yesterday", "2024-01-01T00:00:00Z", "Mon, 01 Jan 2024 00:00:00 CET",
             "Mon, 32 Jan 2024 00:00:00 GMT", "Mon, 01 Foo 2024 00:00:00 GMT",
             "Mon, 01 Jan 2024 24:00:00 GMT", "Mon, 01 Jan 2024 00:60:00 GMT",
             "Mon, 01 Jan 0000 00:00:00 GMT"],
)  # fmt: skip
def test_date_in_another_form_is_refused(date: str) -> None:
    signature = sign(f"{date}\n/{ACCOUNT}/devstoreaccount1/Tables")

    error = refusal(a_request(f"SharedKeyLite {ACCOUNT}:{signature}", x_ms_date=date))

    assert error.code == "AuthenticationFailed"


def test_date_header_serves_when_there_is_no_x_ms_date() -> None:
    signature = sign(f"{DATE}\n/{ACCOUNT}/devstoreaccount1/Tables")

    check(a_request(f"SharedKeyLite {ACCOUNT}:{signature}", date=DATE))


def test_x_ms_date_wins_over_date() -> None:
    signature = sign(f"{DATE}\n/{ACCOUNT}/devstoreaccount1/Tables")
    old = "Sun, 01 Jan 2023 00:00:00 GMT"

    check(a_request(f"SharedKeyLite {ACCOUNT}:{signature}", x_ms_date=DATE, date=old))
    request = a_request(f"SharedKeyLite {ACCOUNT}:{signature}", x_ms_date=old, date=DATE)
    assert refusal(request).code == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        (DATE, NOW),
        ("Thu, 29 Feb 2024 23:59:59 GMT", 17_092_511_990_000_000),
        ("Thu, 29 Feb 2023 23:59:59 GMT", None),
    ],
)
def test_http_dates(text: str, ticks: int | None) -> None:
    assert parse_http_date(text) == ticks


@pytest.mark.parametrize(
    "header", ["authorization", "content-md5", "content-type", "date", "x-ms-date"]
)
def test_signed_header_sent_twice_is_refused(header: str) -> None:
    signature = sign(f"{DATE}\n/{ACCOUNT}/devstoreaccount1/Tables")

    request = a_request(f"SharedKeyLite {ACCOUNT}:{signature}", repeated=frozenset({header}))

    assert refusal(request).code == "InvalidHeaderValue"


def test_other_header_sent_twice_is_not() -> None:
    signature = sign(f"{DATE}\n/{ACCOUNT}/devstoreaccount1/Tables")

    check(a_request(f"SharedKeyLite {ACCOUNT}:{signature}", repeated=frozenset({"accept"})))


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


@pytest.mark.parametrize("key", ["plain", "a'b", "é ü", "100%", "+,$:@=&;", "", "x?y"])
def test_official_client_is_authentic(key: str) -> None:
    transport = CatchingTransport()
    client = TableClient(
        f"http://127.0.0.1:10002/{ACCOUNT}",
        "MyTab",
        credential=AzureNamedKeyCredential(ACCOUNT, KEY_TEXT),
        transport=transport,
    )

    with pytest.raises(SentError):
        client.delete_entity(key, key)

    sent = transport.request
    path, _, query = sent.url.removeprefix("http://127.0.0.1:10002").partition("?")
    headers = {name.lower(): value for name, value in sent.headers.items()}
    now = parse_http_date(headers["x-ms-date"])
    assert now is not None
    check(Request(sent.method, path, query, headers), now=now)


def test_bearer_token_is_challenged() -> None:
    error = challenge(Request("GET", "/Tables", headers={"x-ms-version": "2020-12-06"}))

    assert error.code == "InvalidAuthenticationInfo"
    assert error.facts["www_authenticate"] == (
        "Bearer authorization_uri=https://login.microsoftonline.com/common/oauth2/authorize"
        " resource_id=https://storage.azure.com"
    )


@pytest.mark.parametrize("headers", [{}, {"x-ms-version": "2019-07-07"}])
def test_bearer_token_of_an_older_version_is_refused(headers: dict[str, str]) -> None:
    error = challenge(Request("GET", "/Tables", headers=headers))

    assert error.code == "AuthenticationFailed"
    assert error.facts == {}
