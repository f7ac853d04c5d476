from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, FormatVersionError, PartitaError
from partita.policies import Policy
from partita.service.accounts.service_properties_xml import (
    Logging,
    Metrics,
    ServiceProperties,
    decode,
    encode,
    parse_policies,
    parse_properties,
    print_policies,
    print_properties,
    print_stats,
)
from partita.service.auth.cors import CorsRule

DECLARATION = b'<?xml version="1.0" encoding="utf-8"?>'
NEW, OLD = "2019-02-02", "2012-02-12"
DEFAULTS = ServiceProperties()
OFF = "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
LOGGING = f"<Version>1.0</Version><Read>true</Read><Write>false</Write><Delete>true</Delete>{OFF}"
METRICS = f"<Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>{OFF}"
CORS_RULE = (
    "<AllowedOrigins>http://a.com,*</AllowedOrigins><AllowedMethods>GET,PUT</AllowedMethods>"
    "<MaxAgeInSeconds>60</MaxAgeInSeconds><ExposedHeaders>x-b</ExposedHeaders>"
    "<AllowedHeaders>x-ms-meta-*,x-a</AllowedHeaders>"
)


def policies_of(*identifiers: str) -> list[Policy]:
    inside = "".join(f"<SignedIdentifier>{one}</SignedIdentifier>" for one in identifiers)
    return parse_policies(f"<SignedIdentifiers>{inside}</SignedIdentifiers>".encode())


def properties_of(
    inside: str, current: ServiceProperties = DEFAULTS, version: str = NEW
) -> ServiceProperties:
    body = f"<StorageServiceProperties>{inside}</StorageServiceProperties>"
    return parse_properties(body.encode(), current, version)


def policies_refusal(body: bytes) -> str:
    with pytest.raises(PartitaError) as caught:
        parse_policies(body)
    return caught.value.code


def properties_refusal(inside: str, version: str = NEW) -> str:
    with pytest.raises(PartitaError) as caught:
        properties_of(inside, version=version)
    return caught.value.code


# --- policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b" \r\n", b"<SignedIdentifiers />",
                                  b"<SignedIdentifiers></SignedIdentifiers>"])  # fmt: skip
def test_nothing_said_clears_the_policies(body: bytes) -> None:
    assert parse_policies(body) == []


@pytest.mark.parametrize(
    ("identifier", "policy"),
    [
        ("<Id>a</Id>", Policy("a")),
        ("<Id>a</Id><AccessPolicy />", Policy("a")),
        (
            "<Id>a</Id><AccessPolicy><Start/><Expiry></Expiry><Permission /></AccessPolicy>",
            Policy("a"),
        ),
        (
            "<Id>a</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>",
            Policy("a", permission="r"),
        ),
        (
            (
                "<AccessPolicy><Permission>raud</Permission><Expiry>2024-01-02</Expiry>"
                "<Start>2024-01-01T00:00:00Z</Start></AccessPolicy><Id>é &amp; b</Id>"
            ),
            Policy("é & b", "2024-01-01T00:00:00Z", "2024-01-02", "raud"),
        ),
        (
            "\n <Id>a</Id>\n <AccessPolicy>\n  <Start> 2024-01-01 </Start>\n </AccessPolicy>\n",
            Policy("a", start="2024-01-01"),
        ),
    ],
)
def test_policies_are_read(identifier: str, policy: Policy) -> None:
    assert policies_of(identifier) == [policy]


def test_body_of_the_official_client_is_read() -> None:
    body = (
        b"<?xml version='1.0' encoding='utf-8'?>\n<SignedIdentifiers><SignedIdentifier><Id>a</Id>"
        b"</SignedIdentifier><SignedIdentifier><Id>c</Id><AccessPolicy><Start>2024-01-01T00:00:00Z"
        b"</Start><Expiry>2025-01-01T00:00:00Z</Expiry><Permission>r</Permission></AccessPolicy>"
        b"</SignedIdentifier></SignedIdentifiers>"
    )

    assert parse_policies(body) == [
        Policy("a"),
        Policy("c", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "r"),
    ]


def test_byte_order_mark_and_utf_16_are_read() -> None:
    text = "<SignedIdentifiers><SignedIdentifier><Id>é</Id></SignedIdentifier></SignedIdentifiers>"

    assert parse_policies(text.encode("utf-8-sig")) == [Policy("é")]
    assert parse_policies(text.encode("utf-16")) == [Policy("é")]


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("<SignedIdentifier />", "MissingRequiredXmlNode"),
        ("<SignedIdentifier><Id /></SignedIdentifier>", "InvalidXmlNodeValue"),
        (f"<SignedIdentifier><Id>{'x' * 65}</Id></SignedIdentifier>", "InvalidXmlNodeValue"),
        ("<SignedIdentifier><Id><b/></Id></SignedIdentifier>", "InvalidXmlNodeValue"),
        ("<SignedIdentifier><Id>a</Id><Id>b</Id></SignedIdentifier>", "InvalidXmlDocument"),
        ("<SignedIdentifier><Id>a</Id><More/></SignedIdentifier>", "UnsupportedXmlNode"),
        ("<Other />", "UnsupportedXmlNode"),
        ("<SignedIdentifier><Id>a</Id></SignedIdentifier>" * 2, "InvalidXmlDocument"),
        (
            (
                "<SignedIdentifier><Id>a</Id><AccessPolicy><Expiry>soon</Expiry></AccessPolicy>"
                "</SignedIdentifier>"
            ),
            "InvalidXmlNodeValue",
        ),
        (
            (
                "<SignedIdentifier><Id>a</Id><AccessPolicy><Permission>w</Permission></AccessPolicy>"
                "</SignedIdentifier>"
            ),
            "InvalidXmlNodeValue",
        ),
        (
            "".join(f"<SignedIdentifier><Id>{n}</Id></SignedIdentifier>" for n in range(6)),
            "InvalidXmlDocument",
        ),
    ],
)
def test_policies_against_the_rules_are_refused(inside: str, code: str) -> None:
    assert policies_refusal(f"<SignedIdentifiers>{inside}</SignedIdentifiers>".encode()) == code


LAUGHS = b"".join(
    b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10 if n else b"ha") for n in range(10)
)


@pytest.mark.parametrize(
    "body",
    [
        b"not xml",
        b"<SignedIdentifiers>",
        b"<Other />",
        b"<SignedIdentifiers /><SignedIdentifiers />",
        b"\xff\xfe\x00",
        b'<?xml version="1.0" encoding="no-such"?><SignedIdentifiers />',
        b'<?xml version="1.0" encoding="rot13"?><SignedIdentifiers />',
        b"<SignedIdentifiers><SignedIdentifier><Id>\x01</Id></SignedIdentifier></SignedIdentifiers>",
        b"<!DOCTYPE SignedIdentifiers><SignedIdentifiers />",
        b"<!DOCTYPE x [" + LAUGHS + b"]><SignedIdentifiers>&l9;</SignedIdentifiers>",
        (
            b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><SignedIdentifiers>&f;'
            b"</SignedIdentifiers>"
        ),
        b'<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><SignedIdentifiers />',
        b"<SignedIdentifiers>&unknown;</SignedIdentifiers>",
        b"<SignedIdentifiers>" + b" " * 256 * 1024 + b"</SignedIdentifiers>",
        b"<SignedIdentifiers>" + b"<a/>" * 3000 + b"</SignedIdentifiers>",
        b"<a>" * 80_000,
        ("<SignedIdentifiers>" + "<a/>" * 3000 + "</SignedIdentifiers>").encode("utf-16"),
    ],
)
def test_what_is_not_small_and_plain_xml_is_refused(body: bytes) -> None:
    assert policies_refusal(body) == "InvalidXmlDocument"


def test_deep_nesting_is_refused_without_harm() -> None:
    body = b"<SignedIdentifiers>" + b"<a>" * 900 + b"</a>" * 900 + b"</SignedIdentifiers>"

    assert policies_refusal(body) == "UnsupportedXmlNode"


def test_no_policies_print_as_an_empty_element() -> None:
    assert print_policies([]) == DECLARATION + b"<SignedIdentifiers />"


@pytest.mark.parametrize(
    ("policy", "printed"),
    [
        (Policy("a"), "<Id>a</Id>"),
        (Policy("<&>'\""), "<Id>&lt;&amp;&gt;'\"</Id>"),
        (Policy("a\x01\ufffeb"), "<Id>ab</Id>"),
        (
            Policy("a", permission="ra"),
            "<Id>a</Id><AccessPolicy><Permission>ra</Permission></AccessPolicy>",
        ),
        (
            Policy("a", "2021-06-08T02:05:09Z", "2021-06-08", "r"),
            (
                "<Id>a</Id><AccessPolicy><Start>2021-06-08T02:05:09.0000000Z</Start>"
                "<Expiry>2021-06-08T00:00:00.0000000Z</Expiry><Permission>r</Permission></AccessPolicy>"
            ),
        ),
        (
            Policy("a", expiry="2021-06-08T02:05:09.12+01:00"),
            "<Id>a</Id><AccessPolicy><Expiry>2021-06-08T01:05:09.1200000Z</Expiry></AccessPolicy>",
        ),
    ],
)
def test_policies_are_printed(policy: Policy, printed: str) -> None:
    assert print_policies([policy]).decode() == (
        f"{DECLARATION.decode()}<SignedIdentifiers><SignedIdentifier>{printed}"
        "</SignedIdentifier></SignedIdentifiers>"
    )


POLICIES = st.builds(
    Policy,
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
            min_size=1, max_size=64),
    st.none() | st.just("2021-06-08T02:05:09.1234567Z"),
    st.none() | st.just("2031-06-08T02:05:09.0000000Z"),
    st.none() | st.sampled_from(["r", "raud", "du"]),
)  # fmt: skip


@given(st.lists(POLICIES, max_size=5, unique_by=lambda policy: policy.id))
def test_printed_policies_read_back(policies: list[Policy]) -> None:
    assert parse_policies(print_policies(policies)) == policies


@given(st.binary(max_size=60) | st.text("<>/&; !DOCTYPEId", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        parse_policies(body)
    except PartitaError as error:
        assert "Xml" in error.code  # noqa: PT017 - either way is right


# --- properties --------------------------------------------------------------------------------


def test_defaults_are_off() -> None:
    off = "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
    metrics = f"<Version>1.0</Version><Enabled>false</Enabled>{off}"

    assert print_properties(DEFAULTS, NEW).decode() == (
        f"{DECLARATION.decode()}<StorageServiceProperties><Logging><Version>1.0</Version>"
        f"<Read>false</Read><Write>false</Write><Delete>false</Delete>{off}</Logging>"
        f"<HourMetrics>{metrics}</HourMetrics><MinuteMetrics>{metrics}</MinuteMetrics><Cors />"
        "</StorageServiceProperties>"
    )


FULL = ServiceProperties(
    Logging(read=True, delete=True, retention_days=7),
    Metrics(enabled=True, include_apis=True, retention_days=365),
    Metrics(enabled=True, retention_days=1),
    (
        CorsRule(("http://a.com", "*"), ("GET", "PUT"), ("x-a", "x-ms-meta-*"), ("x-b",), 60),
        CorsRule(("*",), ("MERGE",)),
    ),
)


def test_properties_print_in_the_order_of_the_service() -> None:
    root = ElementTree.fromstring(print_properties(FULL, NEW))

    assert [child.tag for child in root] == ["Logging", "HourMetrics", "MinuteMetrics", "Cors"]
    logging, hour, _, cors = root
    assert [child.tag for child in logging] == [
        "Version", "Read", "Write", "Delete", "RetentionPolicy",
    ]  # fmt: skip
    assert [child.tag for child in logging[4]] == ["Enabled", "Days"]
    assert [child.tag for child in hour] == ["Version", "Enabled", "IncludeAPIs", "RetentionPolicy"]
    assert [(child.tag, child.text) for child in cors[0]] == [
        ("AllowedMethods", "GET,PUT"),
        ("AllowedOrigins", "http://a.com,*"),
        ("AllowedHeaders", "x-a,x-ms-meta-*"),
        ("ExposedHeaders", "x-b"),
        ("MaxAgeInSeconds", "60"),
    ]


def test_printed_properties_read_back() -> None:
    assert parse_properties(print_properties(FULL, NEW), DEFAULTS, NEW) == FULL
    assert parse_properties(print_properties(DEFAULTS, NEW), FULL, NEW) == DEFAULTS


def test_stored_properties_read_back() -> None:
    assert decode(encode(FULL)) == FULL
    assert decode(encode(DEFAULTS)) == DEFAULTS
    assert decode(b"{}") == DEFAULTS


@pytest.mark.parametrize("stored", [b"", b"[]", b'{"cors": 5}', b"\xff"])
def test_damaged_properties_are_told(stored: bytes) -> None:
    with pytest.raises(DamageError) as caught:
        decode(stored)

    assert caught.value.code == "UnreadableServiceProperties"
    assert not isinstance(caught.value, FormatVersionError)


@pytest.mark.parametrize(
    ("inside", "changed"),
    [
        ("", {}),
        (f"<Logging>{LOGGING}</Logging>", {"logging": Logging(read=True, delete=True)}),
        (
            f"<HourMetrics>{METRICS}</HourMetrics>",
            {"hour_metrics": Metrics(enabled=True, include_apis=True)},
        ),
        (
            f"<MinuteMetrics>{METRICS}</MinuteMetrics>",
            {"minute_metrics": Metrics(enabled=True, include_apis=True)},
        ),
        ("<Cors />", {"cors": ()}),
        (
            f"<Cors><CorsRule>{CORS_RULE}</CorsRule></Cors>",
            {
                "cors": (
                    CorsRule(
                        ("http://a.com", "*"), ("GET", "PUT"), ("x-a", "x-ms-meta-*"), ("x-b",), 60
                    ),
                )
            },
        ),
    ],
)
def test_only_what_is_named_is_replaced(inside: str, changed: dict[str, object]) -> None:
    before = {name: getattr(FULL, name) for name in FULL.__struct_fields__}

    after = properties_of(inside, FULL)

    assert {name: getattr(after, name) for name in before} == {**before, **changed}


def test_apis_and_days_mean_nothing_where_disabled() -> None:
    properties = properties_of(
        "<HourMetrics><Version>1.0</Version><Enabled>false</Enabled><IncludeAPIs>true</IncludeAPIs>"
        "<RetentionPolicy><Enabled>false</Enabled><Days>7</Days></RetentionPolicy></HourMetrics>"
    )

    assert properties.hour_metrics == Metrics()


def with_days(days: str) -> str:
    retention = f"<RetentionPolicy><Enabled>true</Enabled>{days}</RetentionPolicy>"
    return f"<Logging>{LOGGING.replace(OFF, retention)}</Logging>"


@pytest.mark.parametrize("days", [1, 365])
def test_retention_of_a_day_to_a_year_is_kept(days: int) -> None:
    assert properties_of(with_days(f"<Days>{days}</Days>")).logging.retention_days == days


def cors(rule: str, count: int = 1) -> str:
    return f"<Cors>{f'<CorsRule>{rule}</CorsRule>' * count}</Cors>"


def cors_with(name: str, value: str) -> str:
    before = ElementTree.fromstring(f"<r>{CORS_RULE}</r>").findtext(name)
    return cors(CORS_RULE.replace(f"<{name}>{before}</{name}>", f"<{name}>{value}</{name}>"))


def cors_without(name: str) -> str:
    before = ElementTree.fromstring(f"<r>{CORS_RULE}</r>").findtext(name)
    return cors(CORS_RULE.replace(f"<{name}>{before}</{name}>", ""))


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("<Other />", "UnsupportedXmlNode"),
        ("<Metrics />", "UnsupportedXmlNode"),
        ("<Logging />", "MissingRequiredXmlNode"),
        ("<HourMetrics />", "MissingRequiredXmlNode"),
        (f"<Logging>{LOGGING}</Logging>" * 2, "InvalidXmlDocument"),
        (f"<Logging>{LOGGING.replace('1.0', '2.0')}</Logging>", "InvalidXmlNodeValue"),
        (f"<Logging>{LOGGING.replace('<Read>true</Read>', '')}</Logging>",
         "MissingRequiredXmlNode"),
        (f"<Logging>{LOGGING.replace(OFF, '')}</Logging>", "MissingRequiredXmlNode"),
        (f"<Logging>{LOGGING.replace('>true<', '>yes<')}</Logging>", "InvalidXmlNodeValue"),
        (
            ("<HourMetrics>"
            f"{METRICS.replace('<IncludeAPIs>true</IncludeAPIs>', '')}</HourMetrics>"),
            "MissingRequiredXmlNode",
        ),
        (with_days(""), "MissingRequiredXmlNode"),
        (with_days("<Days>366</Days>"), "InvalidXmlDocument"),
        (with_days("<Days>0</Days>"), "InvalidXmlDocument"),
        (with_days("<Days>-1</Days>"), "InvalidXmlNodeValue"),
        (with_days("<Days>many</Days>"), "InvalidXmlNodeValue"),
        (with_days("<Days>99999999999999999999</Days>"), "InvalidXmlNodeValue"),
        (cors(CORS_RULE, 6), "InvalidXmlDocument"),
        (cors("<Other/>"), "UnsupportedXmlNode"),
        ("<Cors><Other/></Cors>", "UnsupportedXmlNode"),
        *((cors_without(name), "MissingRequiredXmlNode") for name in (
            "AllowedOrigins", "AllowedMethods", "AllowedHeaders", "ExposedHeaders",
            "MaxAgeInSeconds")),
        (cors_with("AllowedOrigins", ""), "InvalidXmlNodeValue"),
        (cors_with("AllowedMethods", ""), "InvalidXmlNodeValue"),
        (cors_with("AllowedMethods", "GET,TRACE"), "InvalidXmlNodeValue"),
        (cors_with("AllowedMethods", "get"), "InvalidXmlNodeValue"),
        (cors_with("MaxAgeInSeconds", "-1"), "InvalidXmlNodeValue"),
        (cors_with("MaxAgeInSeconds", "2147483648"), "InvalidXmlNodeValue"),
        (cors_with("AllowedOrigins", "x" * 257), "InvalidXmlDocument"),
        (cors_with("AllowedHeaders", "x" * 257), "InvalidXmlDocument"),
        (cors_with("AllowedHeaders", ",".join("abc" for _ in range(65))), "InvalidXmlDocument"),
        (cors_with("ExposedHeaders", "a*,b*,c*"), "InvalidXmlDocument"),
        (cors_with("AllowedOrigins", ",".join("o" * 250 for _ in range(9))), "InvalidXmlDocument"),
    ],
)  # fmt: skip
def test_properties_against_the_rules_are_refused(inside: str, code: str) -> None:
    assert properties_refusal(inside) == code


def test_rules_up_to_their_limits_are_kept() -> None:
    assert len(properties_of(cors(CORS_RULE, 5)).cors) == 5
    many = ",".join(["a"] * 64 + ["b*", "c*"])
    assert len(properties_of(cors_with("AllowedHeaders", many)).cors[0].allowed_headers) == 66
    longest = properties_of(cors_with("AllowedOrigins", "o" * 256)).cors[0].origins
    assert longest == ("o" * 256,)


def test_properties_need_a_body() -> None:
    with pytest.raises(PartitaError, match="InvalidXmlDocument"):
        parse_properties(b"", DEFAULTS, NEW)


def test_old_versions_know_one_kind_of_metrics() -> None:
    printed = print_properties(FULL, OLD)

    root = ElementTree.fromstring(printed)
    assert [child.tag for child in root] == ["Logging", "Metrics"]
    after = parse_properties(printed, DEFAULTS, OLD)
    assert after == ServiceProperties(FULL.logging, FULL.hour_metrics)


def test_old_versions_leave_what_they_do_not_know() -> None:
    after = properties_of(
        f"<Logging>{LOGGING}</Logging><Metrics>{METRICS}</Metrics>", FULL, version=OLD
    )

    assert (after.minute_metrics, after.cors) == (FULL.minute_metrics, FULL.cors)
    assert after.hour_metrics == Metrics(enabled=True, include_apis=True)


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        (f"<Logging>{LOGGING}</Logging>", "MissingRequiredXmlNode"),
        (f"<Metrics>{METRICS}</Metrics>", "MissingRequiredXmlNode"),
        ("<HourMetrics />", "UnsupportedXmlNode"),
        ("<Cors />", "UnsupportedXmlNode"),
    ],
)
def test_old_versions_need_all_they_know(inside: str, code: str) -> None:
    assert properties_refusal(inside, OLD) == code


# --- stats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "last_sync", "synced"),
    [
        (
            "live",
            16_346_006_421_234_567,
            "<LastSyncTime>Mon, 18 Oct 2021 23:44:02 GMT</LastSyncTime>",
        ),
        ("live", 0, "<LastSyncTime>Thu, 01 Jan 1970 00:00:00 GMT</LastSyncTime>"),
        ("live", None, "<LastSyncTime />"),
        ("bootstrap", 0, "<LastSyncTime />"),
        ("unavailable", None, "<LastSyncTime />"),
    ],
)
def test_stats_are_printed(status: str, last_sync: int | None, synced: str) -> None:
    assert print_stats(status, last_sync).decode() == (
        f"{DECLARATION.decode()}<StorageServiceStats><GeoReplication><Status>{status}</Status>"
        f"{synced}</GeoReplication></StorageServiceStats>"
    )
