"""The one way in of the three services, on an account in memory and a clock that stands still."""

import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from partita.blobs.rules.model import BlobName
from partita.clock import ManualClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import WARNING_SECONDS, Front
from partita.service.accounts.service_properties_xml import (
    DeleteRetention,
    ServiceProperties,
    StaticWebsite,
)
from partita.service.auth.cors import CorsRule
from partita.service.auth.sas import Sas, sign
from partita.service.auth.shared_key import SigningKey, string_to_sign
from partita.service.hosting.services import KINDS
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request, Response
from support.accounts import open_folder_account
from support.fronts import EXPIRY, opened_fronts, told

KEY = SigningKey.from_base64(DEVELOPMENT_KEY)
VERSION = "2026-10-06"
GUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LETTERS = {"blobs": "b", "queues": "q", "tables": "t"}
HOSTS = {kind.name: f"127.0.0.1:{kind.port}" for kind in KINDS}
SERVICES = sorted(LETTERS)
COMPANIONS = ["blobs", "queues"]
MISSING = {
    "blobs": f"/{ACCOUNT}/nothing/here",
    "queues": f"/{ACCOUNT}/nothing/messages",
    "tables": f"/{ACCOUNT}/Nothing()",
}
PROPERTIES = "restype=service&comp=properties"


class Door:
    """The fronts of one account, and requests signed with its key."""

    def __init__(self, account: Account, clock: ManualClock) -> None:
        self.account = account
        self.clock = clock
        accounts = Accounts([account], clock)
        self._fronts = {
            kind.name: Front(kind.build(accounts, clock), accounts, clock) for kind in KINDS
        }

    async def send(self, service: str, request: Request) -> Response:
        return await self._fronts[service].respond(request)

    async def ask(
        self,
        service: str,
        method: str = "GET",
        path: str = f"/{ACCOUNT}/",
        query: str = "",
        body: bytes = b"",
        *,
        is_signed: bool = True,
        **headers: str,
    ) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        fields = {
            "host": HOSTS[service],
            "x-ms-date": http_date(self.clock.ticks()),
            "x-ms-version": VERSION,
            "content-length": str(len(body)),
        } | named
        request = Request(method, path, query, {k: v for k, v in fields.items() if v}, body)
        if is_signed:
            text = string_to_sign(request, ACCOUNT, LETTERS[service])
            signature = base64.b64encode(KEY.signature(text)).decode()
            request.headers["authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        return await self.send(service, request)


async def open_door(root: Path | None = None) -> Door:
    clock = ManualClock()
    account = await open_folder_account(ACCOUNT, [DEVELOPMENT_KEY], root=root, clock=clock)
    return Door(account, clock)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    opened = await open_door()
    yield opened
    await opened.account.close()


def a_document(inside: str) -> bytes:
    return f"<StorageServiceProperties>{inside}</StorageServiceProperties>".encode()


def code_of(response: Response) -> str | None:
    return response.header("x-ms-error-code")


# Errors


@pytest.mark.parametrize("service", COMPANIONS)
async def test_an_error_is_a_document_with_three_lines_of_message(door: Door, service: str) -> None:
    response = await door.ask(service, path=MISSING[service])

    assert response.status == 404
    assert response.header("Content-Type") == "application/xml"
    assert response.body.startswith(b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><Error>')
    root = ElementTree.fromstring(response.body.decode("utf-8-sig"))
    assert [child.tag for child in root] == ["Code", "Message"]
    assert root.findtext("Code") == code_of(response)
    sentence, request_id, time = str(root.findtext("Message")).split("\n")
    assert sentence.endswith(".")
    assert request_id == f"RequestId:{response.header('x-ms-request-id')}"
    assert re.fullmatch(r"Time:2023-11-14T22:13:20\.0{7}Z", time)


@pytest.mark.parametrize("service", COMPANIONS)
async def test_the_error_of_a_head_request_is_told_by_its_header(door: Door, service: str) -> None:
    response = await door.ask(service, "HEAD", f"/{ACCOUNT}/nothing", "comp=metadata")

    assert (response.status, response.body) == (404, b"")
    assert str(code_of(response)).endswith("NotFound")


@pytest.mark.parametrize("service", SERVICES)
async def test_every_answer_has_the_headers_of_the_service(door: Door, service: str) -> None:
    for response in (
        await door.ask(service, query=PROPERTIES, x_ms_client_request_id="mine"),
        await door.ask(service, path=MISSING[service], x_ms_client_request_id="mine"),
        await door.ask(service, is_signed=False, x_ms_client_request_id="mine"),
    ):
        assert re.fullmatch(GUID, str(response.header("x-ms-request-id")))
        assert response.header("x-ms-version") == VERSION
        assert response.header("x-ms-client-request-id") == "mine"
        assert len({name.lower() for name, _ in response.headers}) == len(response.headers)


async def test_caches_do_not_keep_what_queues_say(door: Door) -> None:
    response = await door.ask("queues", query="comp=list")

    assert response.header("Cache-Control") == "no-cache"


# Versions


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("version", ["2009-09-19", "2014-02-14", "2026-10-06", "2028-11-13"])
async def test_versions_of_the_next_five_years_are_served(
    door: Door, service: str, version: str
) -> None:
    response = await door.ask(service, query=PROPERTIES, x_ms_version=version)

    assert (response.status, response.header("x-ms-version")) == (200, version)


@pytest.mark.parametrize("service", COMPANIONS)
@pytest.mark.parametrize(
    "version", ["2099-11-05", "2028-11-30", "2021-02-30", "latest", "2021-08-06 ", "9999-99-99"]
)
async def test_other_versions_are_refused_with_the_header_and_its_value(
    door: Door, service: str, version: str
) -> None:
    response = await door.ask(service, query=PROPERTIES, x_ms_version=version)

    assert (response.status, code_of(response)) == (400, "InvalidHeaderValue")
    root = ElementTree.fromstring(response.body.decode("utf-8-sig"))
    assert root.findtext("HeaderName") == "x-ms-version"
    assert root.findtext("HeaderValue") == version


async def test_the_default_version_of_the_account_rules_requests_that_name_none(
    door: Door,
) -> None:
    body = a_document("<DefaultServiceVersion>2019-02-02</DefaultServiceVersion>")
    assert (await door.ask("blobs", "PUT", query=PROPERTIES, body=body)).status == 202

    unnamed = await door.ask("blobs", query="comp=list", x_ms_version="")
    named = await door.ask("blobs", query="comp=list")

    assert unnamed.header("x-ms-version") == "2019-02-02"
    assert named.header("x-ms-version") == VERSION


# Who asks


@pytest.mark.parametrize("service", ["queues", "tables"])
async def test_queues_and_tables_answer_nobody_in_particular(door: Door, service: str) -> None:
    response = await door.ask(service, query="comp=list", is_signed=False)

    assert (response.status, code_of(response)) == (401, "NoAuthenticationInformation")


@pytest.mark.parametrize("account", [ACCOUNT, "nobodyhome"])
@pytest.mark.parametrize(
    ("method", "path", "query", "status", "code"),
    [
        ("GET", "photos/1.png", "", 404, "ResourceNotFound"),
        ("HEAD", "photos/1.png", "", 404, "ResourceNotFound"),
        ("GET", "photos", "restype=container&comp=list", 404, "ResourceNotFound"),
        ("PUT", "photos", "restype=container", 401, "NoAuthenticationInformation"),
        ("DELETE", "photos/1.png", "", 401, "NoAuthenticationInformation"),
    ],
)
async def test_an_account_that_is_not_there_answers_as_one_that_hides(  # noqa: PLR0917
    door: Door, account: str, method: str, path: str, query: str, status: int, code: str
) -> None:
    response = await door.ask("blobs", method, f"/{account}/{path}", query, is_signed=False)

    assert (response.status, code_of(response)) == (status, code)


@pytest.mark.parametrize("service", SERVICES)
async def test_an_unknown_account_is_told_what_a_wrong_signature_is_told(
    door: Door, service: str
) -> None:
    unknown = await door.ask(service, path="/nobodyhome/")
    wrong = await door.ask(service, authorization=f"SharedKey {ACCOUNT}:AAAA", is_signed=False)

    assert unknown.status == wrong.status == 403
    assert code_of(unknown) == code_of(wrong) == "AuthenticationFailed"


@pytest.mark.parametrize("service", COMPANIONS)
async def test_a_bearer_token_is_challenged(door: Door, service: str) -> None:
    response = await door.ask(service, authorization="Bearer abc", is_signed=False)

    assert response.status == 401
    assert str(response.header("WWW-Authenticate")).startswith("Bearer authorization_uri=")


@pytest.mark.parametrize("service", COMPANIONS)
async def test_a_token_and_a_signature_together_are_refused(door: Door, service: str) -> None:
    sas = "sv=2026-10-06&ss=bqt&srt=sco&sp=rl&se=2030-01-01&sig=AAAA"

    response = await door.ask(service, query=f"comp=list&{sas}")

    assert (response.status, code_of(response)) == (400, "InvalidAuthenticationInfo")


@pytest.mark.parametrize("service", COMPANIONS)
async def test_a_user_delegation_token_is_refused(door: Door, service: str) -> None:
    sas = "sv=2026-10-06&sr=c&skoid=a&sktid=b&skt=c&ske=d&sks=b&skv=e&sp=r&se=2030-01-01&sig=AAAA"

    response = await door.ask(
        service, path=f"/{ACCOUNT}/c1", query=f"restype=container&{sas}", is_signed=False
    )

    assert (response.status, code_of(response)) == (403, "AuthorizationFailure")
    assert response.header("x-partita-hint") is None


@pytest.mark.parametrize(("service", "label"), [("blobs", "blob"), ("queues", "queue")])
async def test_the_host_may_name_the_account(door: Door, service: str, label: str) -> None:
    response = await door.ask(
        service, path="/", query="comp=list", host=f"{ACCOUNT}.{label}.localhost:10000"
    )

    assert response.status == 200


@pytest.mark.parametrize("service", COMPANIONS)
async def test_the_secondary_endpoint_only_reads(door: Door, service: str) -> None:
    query = "restype=container" if service == "blobs" else ""
    path = f"/{ACCOUNT}-secondary/work1"

    write = await door.ask(service, "PUT", path, query)
    statistics = await door.ask(
        service, path=f"/{ACCOUNT}-secondary/", query="restype=service&comp=stats"
    )
    at_primary = await door.ask(service, query="restype=service&comp=stats")

    assert (write.status, code_of(write)) == (403, "InsufficientAccountPermissions")
    assert statistics.status == 200
    assert b"<Status>live</Status>" in statistics.body
    assert (at_primary.status, code_of(at_primary)) == (400, "InvalidQueryParameterValue")


# Browsers


RULE = CorsRule(("https://app.test",), ("GET", "PUT"), ("*",), ("x-ms-*",), 60)


@pytest.mark.parametrize("service", SERVICES)
async def test_rules_for_browsers_are_those_of_the_service(door: Door, service: str) -> None:
    await door.account.set_properties(LETTERS[service], ServiceProperties(cors=(RULE,)))

    for each in SERVICES:
        response = await door.ask(
            each,
            "OPTIONS",
            is_signed=False,
            origin="https://app.test",
            access_control_request_method="PUT",
        )
        assert response.status == (200 if each == service else 403)


@pytest.mark.parametrize("service", COMPANIONS)
async def test_answers_vary_by_origin_once_there_is_a_rule(door: Door, service: str) -> None:
    before = await door.ask(service, query="comp=list")
    await door.account.set_properties(LETTERS[service], ServiceProperties(cors=(RULE,)))
    after = await door.ask(service, query="comp=list")
    asked = await door.ask(service, query="comp=list", origin="https://app.test")

    assert before.header("Vary") is None
    assert after.header("Vary") == asked.header("Vary") == "Origin"
    assert asked.header("Access-Control-Allow-Origin") == "https://app.test"


@pytest.mark.parametrize("service", COMPANIONS)
async def test_a_foreign_page_cannot_use_the_well_known_key(door: Door, service: str) -> None:
    by_origin = await door.ask(service, query="comp=list", origin="https://evil.test")
    by_name = await door.ask(service, query="comp=list", host="evil.test")

    assert (by_origin.status, by_name.status) == (403, 400)


# Service properties


FULL = (
    b"<StorageServiceProperties><Logging><Version>1.0</Version><Delete>true</Delete>"
    b"<Read>false</Read><Write>true</Write><RetentionPolicy><Enabled>true</Enabled><Days>5</Days>"
    b"</RetentionPolicy></Logging><Cors /><DeleteRetentionPolicy><Enabled>true</Enabled>"
    b"<Days>7</Days></DeleteRetentionPolicy><StaticWebsite><Enabled>true</Enabled>"
    b"<IndexDocument>index.html</IndexDocument><ErrorDocument404Path>errors/404.html"
    b"</ErrorDocument404Path></StaticWebsite></StorageServiceProperties>"
)


async def test_blob_properties_come_back_in_the_order_of_the_service(door: Door) -> None:
    assert (await door.ask("blobs", "PUT", query=PROPERTIES, body=FULL)).status == 202

    body = (await door.ask("blobs", query=PROPERTIES)).body

    root = ElementTree.fromstring(body)
    assert [child.tag for child in root] == [
        *("Logging", "HourMetrics", "MinuteMetrics", "Cors"),
        *("DeleteRetentionPolicy", "StaticWebsite"),
    ]
    assert root.findtext("DeleteRetentionPolicy/Days") == "7"
    assert root.findtext("StaticWebsite/ErrorDocument404Path") == "errors/404.html"
    assert root.findtext("Logging/RetentionPolicy/Days") == "5"


@pytest.mark.parametrize("service", ["queues", "tables"])
async def test_only_blobs_have_properties_of_blobs(door: Door, service: str) -> None:
    response = await door.ask(service, "PUT", query=PROPERTIES, body=FULL)

    assert response.status == 400
    assert door.account.properties[LETTERS[service]] == ServiceProperties()


@pytest.mark.parametrize("service", SERVICES)
async def test_properties_of_one_service_leave_the_others_alone(door: Door, service: str) -> None:
    body = a_document(
        "<Cors><CorsRule><AllowedMethods>GET</AllowedMethods><AllowedOrigins>*</AllowedOrigins>"
        "<AllowedHeaders /><ExposedHeaders /><MaxAgeInSeconds>1</MaxAgeInSeconds></CorsRule></Cors>"
    )

    assert (await door.ask(service, "PUT", query=PROPERTIES, body=body)).status == 202

    for each in SERVICES:
        rules = door.account.properties[LETTERS[each]].cors
        assert len(rules) == (1 if each == service else 0)


BAD = [
    "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>0</Days></DeleteRetentionPolicy>",
    "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>366</Days></DeleteRetentionPolicy>",
    "<DeleteRetentionPolicy><Enabled>true</Enabled></DeleteRetentionPolicy>",
    "<DeleteRetentionPolicy><Days>5</Days></DeleteRetentionPolicy>",
    "<DeleteRetentionPolicy><Enabled>maybe</Enabled></DeleteRetentionPolicy>",
    "<StaticWebsite><IndexDocument>a</IndexDocument></StaticWebsite>",
    (
        "<StaticWebsite><Enabled>true</Enabled>"
        f"<IndexDocument>{'a' * 2000}</IndexDocument></StaticWebsite>"
    ),
    "<DefaultServiceVersion>newest</DefaultServiceVersion>",
    "<DefaultServiceVersion>2021-02-30</DefaultServiceVersion>",
    "<Secrets />",
    "<Cors>" + "<CorsRule />" * 6 + "</Cors>",
    (
        "<HourMetrics><Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>"
        "<RetentionPolicy><Enabled>true</Enabled><Days>366</Days></RetentionPolicy></HourMetrics>"
    ),
]


@pytest.mark.parametrize("inside", BAD)
async def test_properties_that_cannot_be_are_refused_and_change_nothing(
    door: Door, inside: str
) -> None:
    response = await door.ask("blobs", "PUT", query=PROPERTIES, body=a_document(inside))

    assert response.status == 400
    assert door.account.properties["b"] == ServiceProperties()


async def test_what_a_disabled_setting_says_besides_is_forgotten(door: Door) -> None:
    body = (
        b"<StorageServiceProperties><DeleteRetentionPolicy><Enabled>false</Enabled><Days>5</Days>"
        b"</DeleteRetentionPolicy><StaticWebsite><Enabled>false</Enabled>"
        b"<IndexDocument>a</IndexDocument></StaticWebsite></StorageServiceProperties>"
    )

    assert (await door.ask("blobs", "PUT", query=PROPERTIES, body=body)).status == 202
    assert door.account.properties["b"].delete_retention == DeleteRetention()
    assert door.account.properties["b"].static_website == StaticWebsite()


async def test_properties_of_all_services_outlive_the_process(tmp_path: Path) -> None:
    door = await open_door(tmp_path)
    for letter, days in (("b", 1), ("q", 2), ("t", 3)):
        wanted = ServiceProperties(cors=(RULE,), delete_retention=DeleteRetention(days))
        await door.account.set_properties(letter, wanted)
    await door.account.close()

    door = await open_door(tmp_path)

    for letter, days in (("b", 1), ("q", 2), ("t", 3)):
        assert door.account.properties[letter].delete_retention.days == days
    await door.account.close()


# Batches


async def test_an_empty_change_set_changes_nothing_and_is_answered(door: Door) -> None:
    body = b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c--\r\n--b--\r\n"

    response = await door.ask(
        "tables",
        "POST",
        f"/{ACCOUNT}/$batch",
        body=body,
        content_type="multipart/mixed; boundary=b",
    )

    assert response.status == 202
    assert re.fullmatch(
        rf"--batchresponse_{GUID}\r\n"
        rf"Content-Type: multipart/mixed; boundary=changesetresponse_{GUID}\r\n\r\n"
        rf"--changesetresponse_{GUID}--\r\n--batchresponse_{GUID}--\r\n",
        response.body.decode(),
    )


# Refusals that a setting cures


HTTPS_ONLY = "sv=2026-10-06&ss=bqt&srt=sco&sp=rl&se=2030-01-01&spr=https&sig=AAAA"
CURABLE: dict[str, tuple[dict[str, Any], str]] = {
    "host": ({"host": "storage.test:80"}, "--allowed-host storage.test"),
    "origin": ({"origin": "https://app.test"}, "CORS rule"),
    "preflight": (
        {"method": "OPTIONS", "origin": "https://app.test", "access_control_request_method": "GET"},
        "CORS rule",
    ),
    "https only": ({"query": f"comp=list&{HTTPS_ONLY}", "is_signed": False}, "--tls-cert"),
    "bearer token": ({"authorization": "Bearer a.b", "is_signed": False}, "account key or a SAS"),
    "old bearer token": (
        {"authorization": "Bearer a.b", "is_signed": False, "x_ms_version": "2019-07-07"},
        "account key or a SAS",
    ),
}


def message_lines(response: Response) -> list[str]:
    if response.body.startswith(b"{"):
        text = json.loads(response.body)["odata.error"]["message"]["value"]
    else:
        root = ElementTree.fromstring(response.body.decode("utf-8-sig"))
        text = next(child.text for child in root if child.tag.lower().endswith("message"))
    return str(text).split("\n")


@pytest.mark.parametrize("refusal", CURABLE)
@pytest.mark.parametrize("service", SERVICES)
async def test_a_refusal_that_a_setting_cures_tells_its_hint(
    door: Door, service: str, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, cure = CURABLE[refusal]

    with caplog.at_level(logging.WARNING, "partita.service"):
        response = await door.ask(service, **asked)

    assert 400 <= response.status < 404
    message, hint, request_id, time = message_lines(response)
    assert message.endswith(".")
    assert cure in hint
    assert hint == response.header("x-partita-hint")
    assert (request_id[:10], time[:5]) == ("RequestId:", "Time:")
    (logged,) = caplog.records
    assert hint in logged.getMessage()
    assert str(response.header("x-ms-request-id")) in logged.getMessage()


@pytest.mark.parametrize("service", ["queues", "tables"])
async def test_a_request_without_credentials_is_told_what_to_bring(
    door: Door, service: str
) -> None:
    response = await door.ask(service, is_signed=False)

    assert message_lines(response)[1] == "Sign the request with an account key, or use a SAS."


@pytest.mark.parametrize("service", COMPANIONS)
async def test_a_version_that_is_not_served_is_told_which_are(door: Door, service: str) -> None:
    response = await door.ask(service, x_ms_version="2099-11-05")

    assert "api_version" in message_lines(response)[1]


async def test_a_source_that_may_not_be_read_is_told_how_it_may(door: Door) -> None:
    await door.ask("blobs", "PUT", f"/{ACCOUNT}/photos", "restype=container")
    source = f"http://{HOSTS['blobs']}/{ACCOUNT}/photos/1.png"

    response = await door.ask(
        "blobs",
        "PUT",
        f"/{ACCOUNT}/photos/2.png",
        x_ms_copy_source=source,
        x_ms_requires_sync="true",
    )

    assert code_of(response) == "CannotVerifyCopySource"
    assert "make its container public" in message_lines(response)[1]


async def test_the_log_warns_of_the_same_setting_once_a_minute(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "partita.service"):
        await door.ask("tables", host="storage.test")
        await door.ask("tables", host="other.test")
        await door.ask("tables", origin="https://app.test")
        door.clock.advance(WARNING_SECONDS)
        await door.ask("tables", host="storage.test")

    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.INFO, logging.WARNING, logging.WARNING]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("is_token", [False, True], ids=["signature", "token"])
async def test_an_account_that_is_not_served_is_named_in_the_log_only(
    door: Door, service: str, caplog: pytest.LogCaptureFixture, *, is_token: bool
) -> None:
    sas = "sv=2026-10-06&ss=bqt&srt=sco&sp=rl&se=2030-01-01&sig=AAAA"
    query = f"comp=list&{sas}" if is_token else ""

    with caplog.at_level(logging.WARNING, "partita.service"):
        unknown = await door.ask(service, path="/nobodyhome/", query=query, is_signed=not is_token)
    wrong = await door.ask(service, authorization=f"SharedKey {ACCOUNT}:AAAA", is_signed=False)

    (logged,) = caplog.records
    assert "'nobodyhome'" in logged.getMessage()
    assert "--account" in logged.getMessage()
    assert unknown.header("x-partita-hint") is None
    assert message_lines(unknown)[0] == message_lines(wrong)[0]
    assert len(message_lines(unknown)) == len(message_lines(wrong)) == 3


# Tokens that do not sign their service


@pytest.mark.parametrize("allows_old", [False, True])
async def test_an_old_queue_token_opens_no_container_of_the_same_name(allows_old: bool) -> None:
    """Nor is it a source of a copy; `--allow-old-sas` accepts it as before."""
    given = Sas(version="2012-02-12", container="same", permissions="r", expiry=EXPIRY)
    token = sign(given, service="q", account=ACCOUNT, key=KEY) + "&sr=c"
    async with opened_fronts() as fronts:
        fronts.served.allows_old_sas = allows_old
        await fronts.account.blobs.containers.create_container("same")
        await fronts.account.blobs.put_blob(BlobName("same", "secret"), b"x")

        read = await fronts.ask("blobs", "GET", f"/same/secret?{token}", is_signed=False)
        source = f"http://{HOSTS['blobs']}/{ACCOUNT}/same/secret?{token}"
        headers = {"x-ms-copy-source": source, "x-ms-requires-sync": "true"}
        copied = await fronts.ask("blobs", "PUT", "/same/copy", b"", headers)

    answers = ("403 AuthenticationFailed", "401 CannotVerifyCopySource")
    assert (told(read), told(copied)) == (("200", "202") if allows_old else answers)
