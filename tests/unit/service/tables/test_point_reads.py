"""A point read that is answered at once has the answer of any other request, byte for byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.service.accounts.respond import Front
from partita.service.auth.cors import CorsRule
from partita.service.http.observed import UNOBSERVED
from partita.service.http.request import Request, Response
from support.fronts import PRIVATE_ACCOUNT, Fronts, opened_fronts
from support.repeats import repeat

KEYS = [("p", "r"), ("a b", "x'y"), ("é", "ü"), ("", ""), ("p" * 300, "r"), ("-._~", "0")]
USUAL = "/Staff(PartitionKey='p',RowKey='r')"


@pytest.fixture
async def fronts() -> AsyncIterator[Fronts]:
    async with opened_fronts() as opened:
        for account in opened.accounts:
            await opened.ask("tables", "POST", "/Tables", b'{"TableName":"Staff"}', account=account)
            for partition_key, row_key in KEYS:
                members = {
                    "PartitionKey": partition_key,
                    "RowKey": row_key,
                    "Text": "é\n",
                    "Age": 4,
                }
                body = json.dumps(members).encode()
                answer = await opened.ask("tables", "POST", "/Staff", body, account=account)
                assert answer.status == 201
        yield opened


def masked(response: Response) -> Response:
    headers = [
        (name, "-" if name == "x-ms-request-id" else value) for name, value in response.headers
    ]
    body = response.body
    if response.status >= 400:
        body = body.partition(b"RequestId:")[0]
    return msgspec.structs.replace(response, headers=headers, body=body)


async def both(front: Front, request: Request) -> tuple[Response | None, Response]:
    """Return the answer at once, if there is one, and the general one."""
    begun: Response | Coroutine[Any, Any, Response] = front.begin(request)
    general = masked(await front.respond(request))
    if isinstance(begun, Response):
        return masked(begun), general
    assert masked(await begun) == general
    return None, general


async def test_a_usual_read_is_answered_at_once(fronts: Fronts) -> None:
    front = fronts.fronts["tables"]
    for account in (*fronts.accounts,):
        for target in (USUAL, USUAL.replace("'", "%27"), "/Staff(PartitionKey='',RowKey='')"):
            request = fronts.request("tables", "GET", target, account=account)
            request = msgspec.structs.replace(request, observed=UNOBSERVED)
            at_once, general = await both(front, request)
            assert at_once == general
            assert general.status == 200
            assert general.read is not None
            assert request.observed is UNOBSERVED


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("HEAD", USUAL, {}),
        ("DELETE", USUAL, {"if-match": "*"}),
        ("GET", USUAL + "?$select=Age", {}),
        ("GET", "/Staff()", {}),
        ("GET", "/Staff(PartitionKey='p',RowKey='none')", {}),
        ("GET", "/Nothing(PartitionKey='p',RowKey='r')", {}),
        ("GET", "/Staff(PartitionKey='a%20b',RowKey='x%27%27y')", {}),
        ("GET", USUAL, {"x-http-method": "PUT"}),
        ("GET", USUAL, {"origin": "http://localhost"}),
        ("GET", USUAL, {"content-encoding": "gzip"}),
        ("GET", USUAL, {"x-ms-version": ""}),
        ("GET", USUAL, {"x-ms-version": "2026-13-01"}),
        ("GET", USUAL, {"host": "example.org"}),
        ("GET", USUAL, {"accept": "application/atom+xml"}),
        ("GET", USUAL, {"authorization": "SharedKey devstoreaccount1:AAAA"}),
    ],
)
async def test_another_request_is_left_to_the_front(
    fronts: Fronts, method: str, target: str, headers: dict[str, str]
) -> None:
    request = fronts.request("tables", method, target, headers=headers)
    if "authorization" in headers:
        request.headers["authorization"] = headers["authorization"]
    begun = fronts.fronts["tables"].begin(request)

    assert not isinstance(begun, Response)
    assert (await begun).status != 500


async def test_an_account_with_cors_rules_is_left_to_the_front(fronts: Fronts) -> None:
    properties = fronts.account.properties["t"]
    rule = CorsRule(("*",), ("GET",), (), (), 5)
    fronts.account.properties["t"] = msgspec.structs.replace(properties, cors=[rule])
    request = fronts.request("tables", "GET", USUAL)
    begun = fronts.fronts["tables"].begin(request)

    assert not isinstance(begun, Response)
    assert (await begun).status == 200


requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "GET", "GET", "HEAD", "POST"]),
        "target": st.sampled_from(
            [USUAL, USUAL, USUAL.replace("'", "%27"), "/Staff(RowKey='r',PartitionKey='p')"]
            + [f"/staff(PartitionKey='{p}',RowKey='{r}')" for p, r in KEYS]
            + ["/Staff(PartitionKey='p',RowKey='r') ", "//Staff(PartitionKey='p',RowKey='r')"]
            + ["/Staff(PartitionKey='p',RowKey='%72')", USUAL + "/", "/$metadata", ""]
        ),
        "account": st.sampled_from([PRIVATE_ACCOUNT, "devstoreaccount1"]),
        "is_signed": st.sampled_from([True, True, True, False]),
        "in_path": st.sampled_from([True, True, True, False]),
        "headers": st.fixed_dictionaries(
            {},
            optional={
                "accept": st.sampled_from(
                    [
                        *("", "*/*", "application/json", "application/atom+xml"),
                        *(f"application/json;odata={word}metadata" for word in ("no", "full")),
                    ]
                ),
                "x-ms-client-request-id": st.sampled_from(["a", "", "é", "x" * 1025, "a\tb", " "]),
                "x-ms-version": st.sampled_from(["", "2019-02-02", "2099-01-01", "x"]),
                "host": st.sampled_from(
                    ["localhost:1", "[::1]:1", "example.org", "private1.table.core.windows.net", ""]
                ),
                "origin": st.just("http://example.org"),
                "if-match": st.just("*"),
                "x-ms-date": st.sampled_from(["", "yesterday", "Mon, 18 Oct 2021 21:58:33 GMT"]),
            },
        ),
    }
)


@pytest.mark.repeated
@settings(
    max_examples=repeat(10, 100, 500),
    deadline=None,
)
@given(wanted=st.lists(requests, min_size=20, max_size=20))
def test_the_answer_is_that_of_the_front(wanted: list[dict[str, Any]]) -> None:
    async def check() -> None:
        async with opened_fronts() as fronts:
            front = fronts.fronts["tables"]
            await fronts.ask("tables", "POST", "/Tables", b'{"TableName":"Staff"}')
            body = b'{"PartitionKey":"p","RowKey":"r","Age":4}'
            await fronts.ask("tables", "POST", "/Staff", body)
            for each in wanted:
                given = dict(each)
                method, target = given.pop("method"), given.pop("target")
                if method == "POST" and "Staff" in target:
                    method = "GET"
                request = fronts.request("tables", method, target, **given)
                at_once, general = await both(front, request)
                assert at_once is None or at_once == general

    asyncio.run(check())
