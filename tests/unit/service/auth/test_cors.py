import pytest

from partita.errors import PartitaError
from partita.service.auth.cors import HEADERS_ASKED_MAX, CorsRule, preflight, response_headers
from partita.service.http.request import Request

ORIGIN = "http://www.example.com"
RULE = CorsRule(
    origins=(ORIGIN, "https://*.example.org"),
    methods=("GET", "PUT"),
    allowed_headers=("x-ms-date", "x-ms-meta-*"),
    exposed_headers=("x-ms-request-id", "x-ms-meta-*"),
    max_age_seconds=60,
)
ANYONE = CorsRule(("*",), ("GET", "DELETE"), ("*",), ("*",), 5)


def an_options_request(origin: str = ORIGIN, method: str = "GET", headers: str = "") -> Request:
    named = {"origin": origin, "access-control-request-method": method}
    if headers:
        named["access-control-request-headers"] = headers
    return Request("OPTIONS", "/acct/T", headers=named)


def refusal(*rules: CorsRule, request: Request) -> str:
    with pytest.raises(PartitaError) as caught:
        preflight(rules, request)
    return caught.value.code


def test_preflight_names_what_was_asked_for() -> None:
    response = preflight([RULE], an_options_request(headers="X-MS-Date, x-ms-meta-a"))

    assert response.status == 200
    assert response.body == b""
    assert dict(response.headers) == {
        "Access-Control-Allow-Origin": ORIGIN,
        "Access-Control-Allow-Methods": "GET",
        "Access-Control-Allow-Headers": "X-MS-Date, x-ms-meta-a",
        "Access-Control-Max-Age": "60",
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }


def test_preflight_without_headers_allows_none() -> None:
    response = preflight([RULE], an_options_request())

    assert response.header("Access-Control-Allow-Headers") is None


@pytest.mark.parametrize("missing", ["origin", "access-control-request-method"])
def test_preflight_needs_its_two_headers(missing: str) -> None:
    headers = dict(an_options_request().headers)
    del headers[missing]

    assert refusal(RULE, request=Request("OPTIONS", "/", headers=headers)) == (
        "MissingRequiredHeader"
    )


def test_preflight_with_two_origins_is_refused() -> None:
    headers = an_options_request("a,b").headers
    request = Request("OPTIONS", "/", headers=headers, repeated=frozenset({"origin"}))

    assert refusal(ANYONE, request=request) == "MissingRequiredHeader"


@pytest.mark.parametrize(
    ("origin", "method", "headers"),
    [
        ("http://www.example.com", "POST", ""),
        ("http://www.example.com", "get", ""),
        ("http://other.example.com", "GET", ""),
        ("http://www.example.com", "GET", "authorization"),
        ("http://www.example.com", "GET", "x-ms-date,authorization"),
        ("http://www.example.com", "GET", "x-ms-dates"),
    ],
)
def test_preflight_without_a_matching_rule_is_refused(
    origin: str, method: str, headers: str
) -> None:
    request = an_options_request(origin, method, headers)

    assert refusal(RULE, request=request) == "CorsPreflightFailure"


def test_preflight_without_rules_is_refused() -> None:
    assert refusal(request=an_options_request()) == "CorsPreflightFailure"


def test_preflight_for_too_many_headers_is_refused() -> None:
    """It needs no credentials, and each header is compared with all headers of the rule."""
    names = [f"x-ms-meta-{number}" for number in range(HEADERS_ASKED_MAX)]

    assert preflight([RULE], an_options_request(headers=",".join(names))).status == 200
    request = an_options_request(headers=",".join([*names, "x-ms-date"]))
    assert refusal(RULE, request=request) == "CorsPreflightFailure"


def test_first_rule_of_origin_and_method_decides_alone() -> None:
    request = an_options_request(headers="authorization")

    assert refusal(RULE, ANYONE, request=request) == "CorsPreflightFailure"
    assert preflight([ANYONE, RULE], request).header("Access-Control-Max-Age") == "5"


@pytest.mark.parametrize(
    ("allowed", "origin", "matches"),
    [
        ("*", "http://any.where:80", True),
        ("http://a.com", "http://a.com", True),
        ("http://a.com", "http://A.com", False),
        ("http://a.com", "https://a.com", False),
        ("http://a.com", "http://a.com:8080", False),
        ("http://a.com", "http://a.com.evil.net", False),
        ("http://*.a.com", "http://x.a.com", True),
        ("http://*.a.com", "http://x.y.a.com", True),
        ("http://*.a.com", "http://a.com", False),
        ("http://*.a.com", "http://.a.com", False),
        ("http://*.a.com", "https://x.a.com", False),
        ("http://*.a.com", "http://x.a.com.evil.net", False),
        ("http://*.a.com", "http://evil.net/.a.com", False),
        ("http://*.a.com", "http://xa.com", False),
        ("http://*.a.com", "null", False),
    ],
)
def test_origins(allowed: str, origin: str, matches: bool) -> None:
    assert CorsRule((allowed,), ("GET",)).allows_origin(origin) is matches


@pytest.mark.parametrize(
    ("allowed", "name", "matches"),
    [
        ("*", "anything", True),
        ("X-Ms-Date", "x-ms-date", True),
        ("x-ms-meta-*", "X-MS-META-a", True),
        ("x-ms-meta-*", "x-ms-date", False),
        ("x-ms-date", "x-ms-date2", False),
    ],
)
def test_header_names(allowed: str, name: str, matches: bool) -> None:
    assert CorsRule(("*",), ("GET",), (allowed,)).allows_header(name) is matches


def test_actual_request_of_a_matching_rule_gets_headers() -> None:
    headers = response_headers([RULE], Request("PUT", "/", headers={"origin": ORIGIN}))

    assert headers == [
        ("Access-Control-Allow-Origin", ORIGIN),
        ("Access-Control-Expose-Headers", "x-ms-request-id,x-ms-meta-*"),
        ("Access-Control-Allow-Credentials", "true"),
        ("Vary", "Origin"),
    ]


def test_rule_that_exposes_nothing_says_nothing() -> None:
    rule = CorsRule(("*",), ("GET",))

    headers = dict(response_headers([rule], Request("GET", "/", headers={"origin": ORIGIN})))

    assert "Access-Control-Expose-Headers" not in headers
    assert headers["Access-Control-Allow-Origin"] == ORIGIN


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "/"),
        Request("POST", "/", headers={"origin": ORIGIN}),
        Request("GET", "/", headers={"origin": "http://evil.net"}),
    ],
)
def test_other_requests_only_learn_that_origin_matters(request_: Request) -> None:
    assert response_headers([RULE], request_) == [("Vary", "Origin")]


def test_without_rules_nothing_is_added() -> None:
    assert response_headers([], Request("GET", "/", headers={"origin": ORIGIN})) == []
