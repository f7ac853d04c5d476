"""The account on the wire: access policies, service properties, browsers."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.live import on_every_front_end
from wire.conftest import StartServer
from wire.raw import JSON, Answer, RawClient

# Access policies and service properties


def test_policies_come_back_as_they_are_defined(raw: RawClient, table: str) -> None:
    put = (
        "<?xml version='1.0' encoding='utf-8'?><SignedIdentifiers>"
        "<SignedIdentifier><Id>all</Id><AccessPolicy><Start>2021-06-08T02:05:09Z</Start>"
        "<Expiry>2031-06-08</Expiry><Permission>raud</Permission></AccessPolicy></SignedIdentifier>"
        "<SignedIdentifier><Id>none</Id><AccessPolicy /></SignedIdentifier>"
        "<SignedIdentifier><Id>bare</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>part</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>"
        "</SignedIdentifier></SignedIdentifiers>"
    )

    assert (
        raw.send("PUT", f"/{table}?comp=acl", put, {"Content-Type": "application/xml"}).status
        == 204
    )

    assert raw.send("GET", f"/{table}?comp=acl").body.decode().partition("?>")[2] == (
        "<SignedIdentifiers><SignedIdentifier><Id>all</Id><AccessPolicy>"
        "<Start>2021-06-08T02:05:09.0000000Z</Start><Expiry>2031-06-08T00:00:00.0000000Z</Expiry>"
        "<Permission>raud</Permission></AccessPolicy></SignedIdentifier>"
        "<SignedIdentifier><Id>none</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>bare</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>part</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>"
        "</SignedIdentifier></SignedIdentifiers>"
    )


def test_an_empty_body_clears_the_policies(raw: RawClient, table: str) -> None:
    one = "<SignedIdentifiers><SignedIdentifier><Id>a</Id></SignedIdentifier></SignedIdentifiers>"
    raw.send("PUT", f"/{table}?comp=acl", one)

    cleared = raw.send("PUT", f"/{table}?comp=acl", "")

    assert (cleared.status, cleared.body) == (204, b"")
    assert raw.send("GET", f"/{table}?comp=acl").body.endswith(b"<SignedIdentifiers />")


def test_service_properties_have_the_order_of_the_service(raw: RawClient) -> None:
    root = ElementTree.fromstring(raw.send("GET", "/?restype=service&comp=properties").body)

    assert [child.tag for child in root] == ["Logging", "HourMetrics", "MinuteMetrics", "Cors"]
    logging, hour = root[0], root[1]
    assert [child.tag for child in logging] == [
        "Version",
        "Read",
        "Write",
        "Delete",
        "RetentionPolicy",
    ]
    assert [child.tag for child in hour] == ["Version", "Enabled", "RetentionPolicy"]


# Browsers


CORS = (
    "<StorageServiceProperties><Cors><CorsRule><AllowedMethods>GET,PUT</AllowedMethods>"
    "<AllowedOrigins>https://good.example</AllowedOrigins>"
    "<AllowedHeaders>x-ms-*,content-type</AllowedHeaders><ExposedHeaders>x-ms-*</ExposedHeaders>"
    "<MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule></Cors></StorageServiceProperties>"
)


@pytest.fixture
def with_cors(start_server: StartServer) -> RawClient:
    """A server of its own whose account lets pages of https://good.example in."""
    client = RawClient(start_server("--in-memory").endpoint)
    assert client.send("PUT", "/?restype=service&comp=properties", CORS).status == 202
    asked = {"Origin": "https://good.example", "Access_Control_Request_Method": "PUT"}
    assert on_every_front_end(lambda: preflight(client, **asked).status == 200)
    return client


def preflight(client: RawClient, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.send("OPTIONS", "/Any", headers=named, is_signed=False)


def test_cross_origin_rules_answer_preflights_and_dress_answers(with_cors: RawClient) -> None:
    good = {"Origin": "https://good.example"}

    allowed = preflight(
        with_cors,
        **good,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="x-ms-date,content-type",
    )
    assert allowed.status == 200
    assert allowed["Access-Control-Allow-Origin"] == "https://good.example"
    assert allowed["Access-Control-Allow-Methods"] == "PUT"
    assert allowed["Access-Control-Allow-Headers"] == "x-ms-date,content-type"
    assert allowed["Access-Control-Max-Age"] == "60"
    assert allowed["Access-Control-Allow-Credentials"] == "true"

    refused = [
        preflight(with_cors, **good, Access_Control_Request_Method="DELETE"),
        preflight(with_cors, Origin="https://bad.example", Access_Control_Request_Method="GET"),
        preflight(
            with_cors,
            **good,
            Access_Control_Request_Method="GET",
            Access_Control_Request_Headers="cookie",
        ),
    ]
    assert [(each.status, each.code) for each in refused] == [(403, "CorsPreflightFailure")] * 3
    assert preflight(with_cors, **good).status == 403
    assert preflight(with_cors).status == 400

    actual = with_cors.send("GET", "/Tables", headers=good)
    assert actual["Access-Control-Allow-Origin"] == "https://good.example"
    assert actual["Access-Control-Expose-Headers"] == "x-ms-*"
    assert actual["Access-Control-Allow-Credentials"] == "true"
    assert actual["Vary"] == "Origin"

    plain = with_cors.send("GET", "/Tables")
    assert plain["Vary"] == "Origin"
    assert "Access-Control-Allow-Origin" not in plain.names


def test_a_foreign_page_cannot_use_the_well_known_key(raw: RawClient) -> None:
    answers = [
        raw.send("GET", "/Tables", headers={"Origin": "https://evil.example"}),
        raw.send("GET", "/Tables", headers={"Sec-Fetch-Site": "cross-site"}),
        raw.send("GET", "/Tables", headers={"Host": "evil.example"}),
    ]

    assert [answer.status for answer in answers] == [403, 403, 400]


def test_accounts_have_their_own_keys_tables_and_rules(
    start_server: StartServer, tmp_path: Path
) -> None:
    settings = tmp_path / "two.toml"
    keys = {"first": "Zmlyc3Qga2V5", "second": "c2Vjb25kIGtleQ=="}
    lines = [f'[[accounts]]\nname = "{name}"\nkey = "{key}"\n' for name, key in keys.items()]
    settings.write_text("".join(lines))
    origin = start_server("--in-memory", "--config", str(settings)).origin
    first, second = [RawClient(f"{origin}/{name}", key=key) for name, key in keys.items()]

    assert first.send("POST", "/Tables", '{"TableName":"Staff"}', JSON).status == 201

    assert second.send("GET", "/Tables").json["value"] == []
    assert RawClient(f"{origin}/second", key=keys["first"]).send("GET", "/Tables").status == 403
    foreign = first.send("GET", "/Tables", headers={"Origin": "https://evil.example"})
    assert (foreign.status, "Access-Control-Allow-Origin" in foreign.names) == (200, False)
