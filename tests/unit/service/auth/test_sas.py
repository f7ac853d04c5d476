import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import msgspec
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import ResourceTypes, generate_account_sas, generate_table_sas
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import NotAuthorizedError
from partita.policies import Policy
from partita.service.auth import sas as sas_module
from partita.service.auth.sas import (
    FULL,
    Grant,
    Need,
    Sas,
    check_single_credential,
    evaluate,
    parse_sas,
    sign,
    string_to_sign,
)
from partita.service.auth.shared_key import SigningKey
from partita.service.http.request import Request
from partita.tables.entity import EntityKey
from partita.tables.paging import KeyRange

ACCOUNT = "devstoreaccount1"
KEY_TEXT = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
KEY = SigningKey.from_base64(KEY_TEXT)
CREDENTIAL = AzureNamedKeyCredential(ACCOUNT, KEY_TEXT)
NOW = 17_040_672_000_000_000
"""2024-01-01T00:00:00Z"""
SECOND = 10_000_000
EXPIRY = "2030-01-01T00:00:00Z"
V2019 = "2019-02-02"


def a_table_sas(**fields: str) -> Sas:
    given = {"version": V2019, "table": "MyTab", "permissions": "raud", "expiry": EXPIRY}
    return Sas(**{**given, **fields})


def an_account_sas(**fields: str) -> Sas:
    given = {"version": V2019, "services": "t", "resource_types": "sco", "permissions": "rwdlacu"}
    return Sas(**{**given, "expiry": EXPIRY, **fields})


def parsed(token: str) -> Sas:
    sas = parse_sas(parse_qsl(token, keep_blank_values=True))
    assert sas is not None
    return sas


def granted(token: str, *policies: Policy, now: int = NOW, peer: str = "127.0.0.1",
            scheme: str = "http", keys: tuple[SigningKey, ...] = (KEY,)) -> Grant:  # fmt: skip
    return evaluate(
        parsed(token),
        service="t",
        account=ACCOUNT,
        keys=keys,
        policies=policies,
        now=now,
        peer=peer,
        scheme=scheme,
    )


def signed(sas: Sas, key: SigningKey = KEY) -> str:
    return sign(sas, service="t", account=ACCOUNT, key=key)


def code_of(token: str, *policies: Policy, now: int = NOW, peer: str = "127.0.0.1",
            scheme: str = "http") -> str:  # fmt: skip
    with pytest.raises(NotAuthorizedError) as caught:
        granted(token, *policies, now=now, peer=peer, scheme=scheme)
    return caught.value.code


def refusal(grant: Grant, need: Need) -> str | None:
    try:
        grant.check(need)
    except NotAuthorizedError as error:
        return error.code
    return None


# --- signatures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sas", "signature"),
    [
        (
            an_account_sas(resource_types="o", permissions="rw"),
            "vC4XtD9a0likm19efdo0ZmtWVp7F9qAM2wRXw9fwbdg=",
        ),
        (an_account_sas(permissions="rl"), "6atERsp82qDGsajntf9Es3ucADuU+5Mh/vk0jf0U1tw="),
        (
            a_table_sas(start_partition_key="a", start_row_key="b"),
            "6nvtc4sfUb75LvhbbpT1dsxGXrM6oQJ3SWJ5kupYMrw=",
        ),
        (a_table_sas(permissions="ra"), "bxSai/DQCtrJWwwnvWucRsgirEv3zIB2XrFSDWY8nvw="),
    ],
)
def test_signatures_of_known_tokens(sas: Sas, signature: str) -> None:
    assert dict(parse_qsl(signed(sas)))["sig"] == signature


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("2012-02-12", "raud||EXP|/devstoreaccount1/mytab||2012-02-12|p|r|q|s"),
        ("2013-08-15", "raud||EXP|/devstoreaccount1/mytab||2013-08-15|p|r|q|s"),
        ("2015-02-20", "raud||EXP|/devstoreaccount1/mytab||2015-02-20|p|r|q|s"),
        ("2015-02-21", "raud||EXP|/table/devstoreaccount1/mytab||2015-02-21|p|r|q|s"),
        ("2015-04-05", "raud||EXP|/table/devstoreaccount1/mytab||||2015-04-05|p|r|q|s"),
        ("2020-12-06", "raud||EXP|/table/devstoreaccount1/mytab||||2020-12-06|p|r|q|s"),
    ],
)
def test_slots_of_a_table_sas_by_version(version: str, lines: str) -> None:
    sas = a_table_sas(version=version, start_partition_key="p", start_row_key="r",
                      end_partition_key="q", end_row_key="s")  # fmt: skip

    text = string_to_sign(sas, service="t", account=ACCOUNT)

    assert text == lines.replace("EXP", EXPIRY).replace("|", "\n")


def test_table_sas_signs_every_slot_in_order() -> None:
    sas = a_table_sas(start="2020-01-01", policy_id="si", ip_range="1.2.3.4", protocols="https")

    text = string_to_sign(sas, service="t", account=ACCOUNT)

    assert text == (
        f"raud\n2020-01-01\n{EXPIRY}\n/table/devstoreaccount1/mytab\nsi\n1.2.3.4\nhttps\n"
        f"{V2019}\n\n\n\n"
    )


@pytest.mark.parametrize(("version", "tail"), [("2020-10-02", ""), ("2020-12-06", "scope\n")])
def test_account_sas_signs_the_scope_from_2020_12_06_on(version: str, tail: str) -> None:
    sas = an_account_sas(version=version, start="2020-01-01", ip_range="1.2.3.4",
                         protocols="https", encryption_scope="scope")  # fmt: skip

    text = string_to_sign(sas, service="t", account=ACCOUNT)

    assert text == (
        f"devstoreaccount1\nrwdlacu\nt\nsco\n2020-01-01\n{EXPIRY}\n1.2.3.4\nhttps\n{version}\n{tail}"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"permission": "r", "expiry": EXPIRY},
        {"permission": "raud", "expiry": EXPIRY, "start": "2020-01-01T00:00:00Z"},
        {"permission": "r", "expiry": EXPIRY, "start_pk": "a b", "start_rk": "+%&", "end_pk": "é"},
        {"permission": "r", "expiry": EXPIRY, "end_pk": "x", "end_rk": "y'z"},
        {"permission": "r", "expiry": EXPIRY, "ip_address_or_range": "127.0.0.1-127.0.0.9"},
        {"permission": "r", "expiry": EXPIRY, "protocol": "https,http"},
        {"policy_id": "policy one"},
    ],
)
def test_official_table_sas_is_ours(fields: dict[str, str]) -> None:
    token = generate_table_sas(CREDENTIAL, "MyTab", **fields)
    policy = Policy("policy one", expiry=EXPIRY, permission="r")

    sas = parsed(token)

    assert granted(token, policy).scope == "mytab"
    unsigned = msgspec.structs.replace(sas, signature="")
    assert sorted(parse_qsl(signed(unsigned))) == sorted(parse_qsl(token))


@pytest.mark.parametrize("protocol", [None, "https,http"])
@pytest.mark.parametrize("address", [None, "127.0.0.1"])
@pytest.mark.parametrize("start", [None, datetime(2020, 1, 1, tzinfo=UTC)])
def test_official_account_sas_is_ours(
    protocol: str | None, address: str | None, start: datetime | None
) -> None:
    token = generate_account_sas(
        CREDENTIAL,
        ResourceTypes(service=True, object=True),
        "rl",
        EXPIRY,
        start=start,
        ip_address_or_range=address,
        protocol=protocol,
    )

    grant = granted(token)

    assert (grant.permissions, grant.services, grant.resource_types) == ("rl", "t", "so")
    assert grant.is_account_sas
    unsigned = msgspec.structs.replace(parsed(token), signature="")
    assert sorted(parse_qsl(signed(unsigned))) == sorted(parse_qsl(token))


VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)
TIMES = st.sampled_from(["", "2020-01-01", "2021-05-05T10:00Z", "2022-01-01T00:00:00.1234567Z"])
EXPIRIES = st.sampled_from([EXPIRY, "2029-12-31", "2031-01-01T10:30:00+02:00"])
TABLE_VERSIONS = st.sampled_from(["2012-02-12", "2015-02-21", "2015-04-05", V2019, "2026-04-06"])
TABLE_SASES = st.builds(
    a_table_sas,
    version=TABLE_VERSIONS,
    table=st.sampled_from(["MyTab", "mytab", "Other"]),
    permissions=st.sampled_from(["r", "ra", "raud", "ud"]),
    start=TIMES,
    expiry=EXPIRIES,
    start_partition_key=VALUES.map(lambda text: "A" + text),
    start_row_key=VALUES,
    end_partition_key=VALUES.map(lambda text: "\U0010ffff" + text),
    end_row_key=VALUES,
)
ACCOUNT_SASES = st.builds(
    an_account_sas,
    version=st.sampled_from(["2015-04-05", V2019, "2020-12-06"]),
    services=st.sampled_from(["t", "bqtf"]),
    resource_types=st.sampled_from(["s", "co", "sco"]),
    permissions=st.sampled_from(["r", "rl", "rwdlacu"]),
    start=TIMES,
    expiry=EXPIRIES,
    protocols=st.sampled_from(["", "https,http"]),
    ip_range=st.sampled_from(["", "127.0.0.1", "127.0.0.0-127.0.0.2"]),
)


@given(TABLE_SASES | ACCOUNT_SASES)
def test_what_we_sign_we_accept(sas: Sas) -> None:
    grant = granted(signed(sas))

    assert grant.permissions == sas.permissions
    assert grant.span == sas.span


CHANGES = {
    "sv": ["2015-04-05", "2018-03-28", "2021-01-01"],
    "tn": ["MyTab", "Other", "third"],
    "ss": ["t", "bt", "bqtf"],
    "srt": ["s", "o", "sco"],
    "sp": ["r", "d", "raud"],
    "st": ["2019-01-01", "2020-01-02T00:00Z"],
    "se": ["2032-01-01", "2033-01-01T00:00:00Z"],
    "sip": ["127.0.0.1", "0.0.0.0-255.255.255.255"],
    "spr": ["https,http", "http,https"],
    "spk": ["A", "B"],
    "srk": ["a", "b"],
    "epk": ["\U0010ffff", "\U0010ffffx"],
    "erk": ["x", "y"],
}


@given(TABLE_SASES | ACCOUNT_SASES, st.data())
def test_changing_any_field_breaks_the_signature(sas: Sas, data: st.DataObject) -> None:
    fields = dict(parse_qsl(signed(sas)))
    signs_addresses = sas.version >= "2015-04-05"
    names = {"sv", "sp", "st", "se"} | ({"sip", "spr"} if signs_addresses else set())
    names |= {"ss", "srt"} if sas.is_account_sas else {"tn", "spk", "srk", "epk", "erk"}
    name = data.draw(st.sampled_from(sorted(names)))
    before = fields.get(name, "")
    options = [value for value in CHANGES[name] if value.lower() != before.lower()]
    value = data.draw(st.sampled_from(options))

    with pytest.raises(NotAuthorizedError) as caught:
        granted("&".join(f"{n}={_quoted(v)}" for n, v in {**fields, name: value}.items()))

    assert caught.value.code == "AuthenticationFailed"


@given(TABLE_SASES | ACCOUNT_SASES, st.data())
def test_leaving_out_any_field_is_refused(sas: Sas, data: st.DataObject) -> None:
    fields = dict(parse_qsl(signed(sas)))
    name = data.draw(st.sampled_from(sorted(fields.keys() - {"sig"})))
    del fields[name]

    with pytest.raises(NotAuthorizedError) as caught:
        granted("&".join(f"{n}={_quoted(v)}" for n, v in fields.items()))

    assert caught.value.code == "AuthenticationFailed"


def _quoted(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode())


def test_key_of_another_account_signs_nothing_here() -> None:
    token = signed(a_table_sas(), SigningKey(b"other"))

    assert code_of(token) == "AuthenticationFailed"


def test_token_of_another_account_is_refused() -> None:
    token = sign(a_table_sas(), service="t", account="another", key=KEY)

    assert code_of(token) == "AuthenticationFailed"


def test_either_key_of_the_account_will_do() -> None:
    token = signed(a_table_sas())

    assert granted(token, keys=(SigningKey(b"other"), KEY)).permissions == "raud"


def test_table_name_is_signed_without_case() -> None:
    fields = dict(parse_qsl(signed(a_table_sas(table="mytab"))))
    fields["tn"] = "MYTAB"

    assert granted("&".join(f"{n}={_quoted(v)}" for n, v in fields.items())).scope == "mytab"


def test_token_does_not_show_its_signature() -> None:
    sas = parsed(signed(a_table_sas()))

    assert sas.signature not in repr(sas)


# --- what cannot have been meant ------------------------------------------------------------


def test_parameters_without_a_signature_are_no_sas() -> None:
    assert parse_sas([("sv", V2019), ("tn", "T"), ("$top", "5")]) is None


def test_other_parameters_are_left_alone() -> None:
    token = signed(a_table_sas()) + "&$filter=a&$filter=b&api-version=2019-02-02"

    assert granted(token).scope == "mytab"


@pytest.mark.parametrize("name", ["sv", "sp", "se", "tn", "sig", "spk"])
def test_field_given_twice_is_refused(name: str) -> None:
    token = signed(a_table_sas(start_partition_key="a"))
    value = dict(parse_qsl(token))[name]

    assert code_of(f"{token}&{name}={_quoted(value)}") == "AuthenticationFailed"
    assert code_of(f"{name}=&{token}") == "AuthenticationFailed"


@pytest.mark.parametrize(
    "fields",
    [
        {"version": ""},
        {"version": "latest"},
        {"version": "2011-08-18"},
        {"version": "2019-02-30"},
        {"version": "2019-02-02T00:00:00Z"},
        {"permissions": "rw"},
        {"permissions": "R"},
        {"permissions": "r,a"},
        {"expiry": "tomorrow"},
        {"expiry": "2030-13-01"},
        {"expiry": "9999-12-31T23:59:59-01:00"},
        {"start": "1700000000"},
        {"start_row_key": "b"},
        {"end_row_key": "b"},
        {"start_partition_key": "b", "end_partition_key": "a"},
        {
            "start_partition_key": "a",
            "start_row_key": "2",
            "end_partition_key": "a",
            "end_row_key": "1",
        },
        {"start_partition_key": "a\nb"},
        {"policy_id": "a\nb"},
        {"protocols": "http"},
        {"protocols": "ftp"},
        {"ip_range": "localhost"},
        {"ip_range": "1.2.3.4-"},
        {"ip_range": "1.2.3.9-1.2.3.4"},
        {"ip_range": "1.2.3.4-::1"},
        {"ip_range": "1.2.3.0/24"},
        {"table": "my-tab"},
        {"table": "tåble"},
        {"services": "t"},
        {"resource_types": "o"},
    ],
)
def test_table_sas_that_makes_no_sense_is_refused(fields: dict[str, str]) -> None:
    assert code_of(signed(a_table_sas(**fields))) == "AuthenticationFailed"


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "2015-02-21"},
        {"services": ""},
        {"services": "x"},
        {"resource_types": ""},
        {"resource_types": "x"},
        {"services": "", "resource_types": ""},
        {"policy_id": "p"},
        {"start_partition_key": "a"},
        {"end_partition_key": "a"},
        {"permissions": "r1"},
        {"permissions": ""},
        {"expiry": ""},
    ],
)
def test_account_sas_that_makes_no_sense_is_refused(fields: dict[str, str]) -> None:
    assert code_of(signed(an_account_sas(**fields))) == "AuthenticationFailed"


def test_empty_end_is_not_an_end_because_the_signature_cannot_tell() -> None:
    token = signed(a_table_sas())

    assert granted(f"{token}&epk=&erk=&spk=&st=") == granted(token)


def test_one_partition_from_start_to_end_is_a_range() -> None:
    grant = granted(signed(a_table_sas(start_partition_key="a", end_partition_key="a")))

    assert grant.span == KeyRange.of_partition("a")


def test_sas_beside_an_authorization_header_is_refused() -> None:
    request = Request("GET", "/T", headers={"authorization": "SharedKey a:b"})

    with pytest.raises(NotAuthorizedError) as caught:
        check_single_credential(request, parsed(signed(a_table_sas())))

    assert caught.value.code == "InvalidAuthenticationInfo"
    check_single_credential(request, None)
    check_single_credential(Request("GET", "/T"), parsed(signed(a_table_sas())))


# --- window, protocol, address, policy ------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({"expiry": "2024-01-01T00:00:01Z"}, True),
        ({"expiry": "2024-01-01T00:00:00.0000001Z"}, True),
        ({"expiry": "2024-01-01T00:00:00Z"}, False),
        ({"expiry": "2023-12-31T23:59:59Z"}, False),
        ({"expiry": "2024-01-02"}, True),
        ({"expiry": "2024-01-01"}, False),
        ({"expiry": "2024-01-01T00:01Z"}, True),
        ({"expiry": "2024-01-01T01:00:00+02:00"}, False),
        ({"expiry": "2023-12-31T23:00:00-02:00"}, True),
        ({"start": "2024-01-01T00:00:00Z"}, True),
        ({"start": "2024-01-01"}, True),
        ({"start": "2024-01-01T00:00:00.0000001Z"}, False),
        ({"start": "2024-01-01T00:00:01Z"}, False),
        ({"start": "2031-01-01"}, False),
    ],
)
@pytest.mark.parametrize("build", [a_table_sas, an_account_sas])
def test_window_of_a_token(build: Callable[..., Sas], fields: dict[str, str], passes: bool) -> None:
    token = signed(build(**fields))

    if passes:
        assert granted(token).permissions
    else:
        assert code_of(token) == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("protocols", "scheme", "passes"),
    [
        ("", "http", True),
        ("", "https", True),
        ("https", "https", True),
        ("https", "http", False),
        ("https,http", "http", True),
        ("https,http", "https", True),
    ],
)
def test_protocol_of_a_token(protocols: str, scheme: str, passes: bool) -> None:
    token = signed(a_table_sas(protocols=protocols))

    if passes:
        assert granted(token, scheme=scheme).permissions
    else:
        assert code_of(token, scheme=scheme) == "AuthorizationProtocolMismatch"


@pytest.mark.parametrize(
    ("ip_range", "peer", "passes"),
    [
        ("", "", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1-10.0.1.0", "10.0.0.1", True),
        ("10.0.0.1-10.0.1.0", "10.0.1.0", True),
        ("10.0.0.1-10.0.1.0", "10.0.0.200", True),
        ("10.0.0.1-10.0.1.0", "10.0.1.1", False),
        ("10.0.0.1-10.0.1.0", "10.0.0.0", False),
        ("9.0.0.0-10.0.0.0", "9.255.0.1", True),
        ("::1", "::1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("0.0.0.0-255.255.255.255", "::1", False),
        ("10.0.0.1", "", False),
        ("10.0.0.1", "unix:/run/socket", False),
    ],
)
def test_address_of_a_token(ip_range: str, peer: str, passes: bool) -> None:
    token = signed(a_table_sas(ip_range=ip_range))

    if passes:
        assert granted(token, peer=peer).permissions
    else:
        assert code_of(token, peer=peer) == "AuthorizationSourceIPMismatch"


def test_checks_come_in_their_order() -> None:
    everything_wrong = a_table_sas(
        expiry="2020-01-01", protocols="https", ip_range="1.1.1.1", policy_id="none"
    )

    assert code_of(f"{signed(everything_wrong)}x") == "AuthenticationFailed"
    in_time = msgspec.structs.replace(everything_wrong, expiry=EXPIRY)
    token = f"{signed(in_time)}x"
    assert code_of(token) == "AuthorizationProtocolMismatch"
    assert code_of(token, scheme="https") == "AuthorizationSourceIPMismatch"
    assert code_of(token, scheme="https", peer="1.1.1.1") == "AuthenticationFailed"


A_POLICY = Policy("p", start="2020-01-01", expiry=EXPIRY, permission="ra")


@pytest.mark.parametrize(
    ("fields", "policy", "permissions"),
    [
        ({"permissions": "", "expiry": ""}, A_POLICY, "ra"),
        ({"permissions": "d", "expiry": ""}, Policy("p", expiry=EXPIRY), "d"),
        ({"permissions": ""}, Policy("p", permission="u"), "u"),
        ({}, Policy("p"), "raud"),
        ({"start": "2020-01-01"}, Policy("p"), "raud"),
        # given by both
        ({"expiry": ""}, A_POLICY, None),
        ({"permissions": ""}, A_POLICY, None),
        ({"permissions": "", "expiry": "", "start": "2021-01-01"}, A_POLICY, None),
        ({}, Policy("p", permission="raud"), None),
        # given by neither
        ({"permissions": ""}, Policy("p"), None),
        ({"expiry": ""}, Policy("p"), None),
        ({"permissions": "", "expiry": ""}, Policy("p", permission="r"), None),
        # window of the policy
        ({"expiry": ""}, Policy("p", expiry="2024-01-01T00:00:00Z"), None),
        ({}, Policy("p", start="2024-01-01T00:00:01Z"), None),
        # no such policy
        ({}, Policy("P"), None),
        ({}, Policy("q"), None),
    ],
)
def test_policy_completes_a_token(
    fields: dict[str, str], policy: Policy, permissions: str | None
) -> None:
    token = signed(a_table_sas(policy_id="p", **fields))

    if permissions is None:
        assert code_of(token, policy) == "AuthenticationFailed"
    else:
        assert granted(token, policy).permissions == permissions


def test_policies_do_not_touch_a_token_that_names_none() -> None:
    assert granted(signed(a_table_sas()), A_POLICY).permissions == "raud"


def test_removed_policy_revokes_its_tokens() -> None:
    token = signed(a_table_sas(policy_id="p", permissions="", expiry=""))

    assert granted(token, A_POLICY).permissions == "ra"
    assert code_of(token) == "AuthenticationFailed"


# --- what a grant allows ---------------------------------------------------------------------

INSIDE, OUTSIDE = EntityKey("m", "5"), EntityKey("z", "5")
OPERATIONS = {
    # name: resource type, alternatives of letters, both written out again from the reference
    "get service properties": ("s", ["r"]),
    "set service properties": ("s", ["w"]),
    "get service stats": ("s", ["r"]),
    "query tables": ("c", ["l"]),
    "create table": ("c", ["c", "w"]),
    "delete table": ("c", ["d"]),
    "query entities": ("o", ["r"]),
    "insert": ("o", ["a"]),
    "insert or replace": ("o", ["au"]),
    "insert or merge": ("o", ["au"]),
    "update": ("o", ["u"]),
    "merge": ("o", ["u"]),
    "delete entity": ("o", ["d"]),
}
NEEDS = {
    "get service properties": Need("s", sas_module.READ),
    "set service properties": Need("s", sas_module.WRITE),
    "get service stats": Need("s", sas_module.READ),
    "query tables": Need("c", sas_module.LIST),
    "create table": Need("c", sas_module.CREATE, scope="MyTab"),
    "delete table": Need("c", sas_module.DELETE, scope="MyTab"),
    "query entities": Need("o", sas_module.READ, scope="MyTab"),
    "insert": Need("o", sas_module.ADD, scope="MyTab", key=INSIDE),
    "insert or replace": Need("o", sas_module.UPSERT, scope="MyTab", key=INSIDE),
    "insert or merge": Need("o", sas_module.UPSERT, scope="MyTab", key=INSIDE),
    "update": Need("o", sas_module.UPDATE, scope="MyTab", key=INSIDE),
    "merge": Need("o", sas_module.UPDATE, scope="MyTab", key=INSIDE),
    "delete entity": Need("o", sas_module.DELETE, scope="MyTab", key=INSIDE),
}


def letter_sets(letters: str) -> list[str]:
    counts = range(1, len(letters) + 1)
    return ["".join(some) for n in counts for some in itertools.combinations(letters, n)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_account_sas_matrix(operation: str) -> None:
    resource, alternatives = OPERATIONS[operation]

    for services, types, letters in itertools.product(
        ("t", "bqf", "bqtf"), letter_sets("sco"), letter_sets("rwdlacu")
    ):
        grant = Grant(permissions=letters, services=services, resource_types=types)
        if "t" not in services:
            expected = "AuthorizationServiceMismatch"
        elif resource not in types:
            expected = "AuthorizationResourceTypeMismatch"
        elif not any(set(alternative) <= set(letters) for alternative in alternatives):
            expected = "AuthorizationPermissionMismatch"
        else:
            expected = None
        assert refusal(grant, NEEDS[operation]) == expected, (services, types, letters)


SPANS = {
    "everything": ({}, True, True),
    "from m": ({"start_partition_key": "m"}, True, True),
    "from m, 5": ({"start_partition_key": "m", "start_row_key": "5"}, True, True),
    "from m, 6": ({"start_partition_key": "m", "start_row_key": "6"}, False, True),
    "from n": ({"start_partition_key": "n"}, False, True),
    "to l": ({"end_partition_key": "l"}, False, False),
    "to m": ({"end_partition_key": "m"}, True, False),
    "to m, 4": ({"end_partition_key": "m", "end_row_key": "4"}, False, False),
    "to m, 5": ({"end_partition_key": "m", "end_row_key": "5"}, True, False),
    "to z": ({"end_partition_key": "z"}, True, True),
    "only m": ({"start_partition_key": "m", "end_partition_key": "m"}, True, False),
    "a to b": ({"start_partition_key": "a", "end_partition_key": "b"}, False, False),
    "za to zb": ({"start_partition_key": "za", "end_partition_key": "zb"}, False, False),
}
"""Fields of a SAS, whether they hold (m, 5), whether they hold (z, 5)."""


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_table_sas_matrix(operation: str, span: str) -> None:
    resource, alternatives = OPERATIONS[operation]
    fields, holds_inside, holds_outside = SPANS[span]
    need = NEEDS[operation]

    for letters, (key, is_held) in itertools.product(
        letter_sets("raud"), ((INSIDE, holds_inside), (OUTSIDE, holds_outside))
    ):
        grant = granted(signed(a_table_sas(permissions=letters, **fields)))
        if resource != "o":
            expected = "AuthorizationFailure"
        elif not any(set(alternative) <= set(letters) for alternative in alternatives):
            expected = "AuthorizationPermissionMismatch"
        elif operation != "query entities" and not is_held:
            expected = "AuthorizationFailure"
        else:
            expected = None
        touched = msgspec.structs.replace(need, key=key if resource == "o" else None)
        assert refusal(grant, touched) == expected, (letters, key)
        assert grant.span.contains(key) == is_held


def test_point_get_outside_the_span_is_left_to_the_span() -> None:
    grant = granted(signed(a_table_sas(end_partition_key="l")))

    grant.check(Need("o", sas_module.READ, scope="MyTab", key=OUTSIDE))

    assert not grant.span.contains(OUTSIDE)


def test_write_that_names_no_key_is_outside_every_span() -> None:
    need = Need("o", sas_module.ADD, scope="MyTab")

    assert refusal(granted(signed(a_table_sas())), need) is None
    ranged = granted(signed(a_table_sas(start_partition_key="a")))
    assert refusal(ranged, need) == "AuthorizationFailure"


@pytest.mark.parametrize("table", ["MyTab2", "MyTa", "", None])
def test_table_sas_serves_one_table(table: str | None) -> None:
    grant = granted(signed(a_table_sas()))

    assert refusal(grant, Need("o", sas_module.READ, scope=table)) == "AuthorizationFailure"


def test_table_sas_serves_its_table_in_any_case() -> None:
    granted(signed(a_table_sas())).check(Need("o", sas_module.READ, scope="MYTAB"))


@pytest.mark.parametrize("build", [a_table_sas, an_account_sas])
def test_access_policies_are_out_of_reach_of_any_sas(build: Callable[..., Sas]) -> None:
    grant = granted(signed(build()))
    need = Need("c", sas_module.READ, scope="MyTab", by_key_only=True)

    assert refusal(grant, need) == "AuthorizationFailure"


def test_key_holder_may_do_everything() -> None:
    for need in NEEDS.values():
        FULL.check(need)
    FULL.check(Need("c", sas_module.WRITE, scope="MyTab", by_key_only=True))
    assert FULL.span == KeyRange()
    assert not FULL.is_account_sas


@pytest.mark.parametrize(
    ("version", "code"),
    [("2015-02-21", "ResourceNotFound"), ("2015-04-05", "AuthorizationPermissionMismatch")],
)
def test_old_versions_hide_a_missing_permission(version: str, code: str) -> None:
    grant = granted(signed(a_table_sas(version=version, permissions="r")))

    assert refusal(grant, Need("o", sas_module.DELETE, scope="MyTab", key=INSIDE)) == code


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("AuthorizationFailure", "this operation."),
        ("AuthorizationPermissionMismatch", "this operation using this permission."),
    ],
)
def test_refusals_use_the_words_of_the_service(code: str, ending: str) -> None:
    grant = granted(signed(a_table_sas(permissions="r")))
    resource = "c" if code == "AuthorizationFailure" else "o"

    with pytest.raises(NotAuthorizedError) as caught:
        grant.check(Need(resource, sas_module.ADD, scope="MyTab", key=INSIDE))

    assert caught.value.code == code
    assert caught.value.message == f"This request is not authorized to perform {ending}"
