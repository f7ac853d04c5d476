"""Batches of the blob service: credentials of the batch, and what its parts share with it."""

import re
from collections.abc import AsyncIterator

import pytest

from partita.blobs.rules.model import BlobName
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.auth.cors import CorsRule
from partita.service.blobs.batch import PARTS_MAX
from partita.service.http.request import Request, Response
from support.fronts import HOSTS, PRIVATE_ACCOUNT, Fronts, opened_fronts, told, turns_of

KIND = {"content-type": "multipart/mixed; boundary=x"}
PAGE = "https://page.example"


@pytest.fixture
async def fronts() -> AsyncIterator[Fronts]:
    """Two accounts, each with the blob `box/b`."""
    async with opened_fronts() as opened:
        for account in opened.accounts.values():
            await account.blobs.containers.create_container("box")
            await account.blobs.put_blob(BlobName("box", "b"), b"content")
        yield opened


def a_part(request: Request, number: int = 0, **headers: str) -> str:
    """Return a request as a part of a batch; without the host, as clients send it."""
    fields = {name: value for name, value in request.headers.items() if name != "host"} | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    target = f"{request.path}?{request.query}"
    return (
        f"--x\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
        f"{request.method} {target} HTTP/1.1\r\n{lines}\r\n\r\n"
    )


def a_body(*parts: str) -> bytes:
    return ("".join(parts) + "--x--\r\n").encode()


def statuses(response: Response) -> list[str]:
    return re.findall(r"HTTP/1.1 (\d{3})", response.body.decode())


async def has_blob(fronts: Fronts, account: str = DEVELOPMENT_ACCOUNT) -> bool:
    answer = await fronts.ask("blobs", "HEAD", "/box/b", account=account)
    return answer.status == 200


async def test_an_anonymous_batch_is_refused_before_its_parts_are_read(fronts: Fronts) -> None:
    parts = [a_part(fronts.request("blobs", "DELETE", "/box/b"), n) for n in range(PARTS_MAX)]

    for body in (a_body(*parts), b"not a batch"):
        for target in ("/?comp=batch", "/box?restype=container&comp=batch"):
            answer = await fronts.ask("blobs", "POST", target, body, KIND, is_signed=False)
            assert told(answer) == "401 NoAuthenticationInformation"
    assert await has_blob(fronts)


@pytest.mark.parametrize("letters", ["r", "d"])
async def test_a_token_may_send_a_batch_and_its_parts_need_their_own(
    fronts: Fronts, letters: str
) -> None:
    token = fronts.blob_token(letters, "box")
    unsigned = fronts.request("blobs", "DELETE", "/box/b", is_signed=False)
    own = fronts.request("blobs", "DELETE", f"/box/b?{token}", is_signed=False)
    target = f"/box?restype=container&comp=batch&{token}"
    body = a_body(a_part(unsigned), a_part(own, 1))

    answer = await fronts.ask("blobs", "POST", target, body, KIND, is_signed=False)

    assert told(answer) == "202"
    assert statuses(answer) == ["401", "202" if letters == "d" else "403"]


async def test_other_requests_run_between_the_parts_of_a_batch(fronts: Fronts) -> None:
    unsigned = fronts.request("blobs", "DELETE", "/box/b", is_signed=False)
    body = a_body(*[a_part(unsigned, number) for number in range(PARTS_MAX)])

    answer, turns = await turns_of(fronts.ask("blobs", "POST", "/?comp=batch", body, KIND))

    assert statuses(answer) == ["401"] * PARTS_MAX
    assert turns >= PARTS_MAX


async def test_one_part_too_many_is_refused(fronts: Fronts) -> None:
    unsigned = fronts.request("blobs", "DELETE", "/box/b", is_signed=False)
    body = a_body(*[a_part(unsigned, number) for number in range(PARTS_MAX + 1)])

    assert told(await fronts.ask("blobs", "POST", "/?comp=batch", body, KIND)) == "400 InvalidInput"


async def test_a_part_may_repeat_the_host_of_the_batch(fronts: Fronts) -> None:
    part = a_part(fronts.request("blobs", "DELETE", "/box/b"), host=HOSTS["blobs"])

    answer = await fronts.ask("blobs", "POST", "/?comp=batch", a_body(part), KIND)

    assert statuses(answer) == ["202"]


def a_batch_of_private(fronts: Fronts, part: str, **headers: str) -> Request:
    """Return a batch that names the private account by its host: no path is put before parts."""
    host = f"{PRIVATE_ACCOUNT}.blob.localhost:10000"
    fields = {**KIND, "host": host, **headers}
    return fronts.request(
        "blobs",
        "POST",
        "/?comp=batch",
        a_body(part),
        fields,
        account=PRIVATE_ACCOUNT,
        in_path=False,
    )


@pytest.mark.parametrize(
    "host", [f"{DEVELOPMENT_ACCOUNT}.localhost:10000", "127.0.0.1:10000", "localhost:10000"]
)
async def test_a_page_cannot_reach_the_development_account_by_a_host_in_a_part(
    fronts: Fronts, host: str
) -> None:
    """The page may address the private account; the part is signed with the well-known key."""
    rule = CorsRule(origins=(PAGE,), methods=("POST",), allowed_headers=("*",))
    await fronts.accounts[PRIVATE_ACCOUNT].set_properties("b", ServiceProperties(cors=(rule,)))
    in_path = not host.startswith(DEVELOPMENT_ACCOUNT)
    part = a_part(fronts.request("blobs", "DELETE", "/box/b", in_path=in_path), host=host)
    request = a_batch_of_private(fronts, part, origin=PAGE)

    assert told(await fronts.fronts["blobs"].respond(request)) == "400 InvalidInput"
    assert await has_blob(fronts)


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:10000"])
async def test_the_path_of_a_part_is_in_the_account_of_the_batch(
    fronts: Fronts, server: str
) -> None:
    """A part that is signed for another account does not have the signature of this one."""
    part = fronts.request("blobs", "DELETE", "/box/b")
    text = a_part(part).replace(f"DELETE {part.path}", f"DELETE {server}{part.path}")
    by_host = await fronts.fronts["blobs"].respond(a_batch_of_private(fronts, text))
    by_path = await fronts.ask(
        "blobs", "POST", "/?comp=batch", a_body(text), KIND, account=PRIVATE_ACCOUNT
    )

    assert (statuses(by_host), statuses(by_path)) == (["403"], ["403"])
    assert await has_blob(fronts)
    assert await has_blob(fronts, PRIVATE_ACCOUNT)


@pytest.mark.parametrize(("methods", "status"), [(("POST",), "403"), (("POST", "DELETE"), "202")])
async def test_the_parts_of_a_page_have_its_origin(
    fronts: Fronts, methods: tuple[str, ...], status: str
) -> None:
    """A rule for POST alone does not let a page delete with the well-known key."""
    rule = CorsRule(origins=(PAGE,), methods=methods, allowed_headers=("*",))
    await fronts.account.set_properties("b", ServiceProperties(cors=(rule,)))
    body = a_body(a_part(fronts.request("blobs", "DELETE", "/box/b"), origin="https://other"))

    answer = await fronts.ask(
        "blobs",
        "POST",
        "/?comp=batch",
        body,
        {**KIND, "origin": PAGE, "sec-fetch-site": "cross-site"},
    )

    assert statuses(answer) == [status]
