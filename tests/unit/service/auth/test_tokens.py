"""The check of bearer tokens, attacked: what must be refused, and what the roles then permit."""

import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from partita.service.auth.bearer import TokenRefusedError
from partita.service.auth.roles import parse_role_rule
from partita.service.auth.tokens import (
    TOKEN_BYTES_MAX,
    Checked,
    TokenRules,
    check_token,
    check_unsigned,
    key_id_of,
    parse_keys,
)
from support import issuers

NOW = 1_800_000_000
RULES = TokenRules(issuers.ISSUER)


def checked(text: str, rules: TokenRules = RULES, keys: bytes | None = None) -> Checked:
    """Check a token as a server does whose issuer has two keys."""
    known = parse_keys(keys or issuers.key_set("first", "second"))
    return check_token(text, known[key_id_of(text)], rules)


def refused(text: str, rules: TokenRules = RULES) -> str:
    with pytest.raises(TokenRefusedError) as error:
        checked(text, rules).check_times(NOW, rules.skew_seconds)
    return str(error.value)


def test_a_right_token_names_its_owner_and_roles() -> None:
    content = issuers.claims(NOW, "Storage.Table.Data.Reader")

    found = checked(issuers.token(content))

    found.check_times(NOW, 0)
    assert (found.identity.oid, found.identity.tid) == (issuers.OID, issuers.TID)
    assert found.bearer(RULES, "a1").rights_in("t").object == "r"
    assert found.bearer(RULES, "a1").rights_in("b").object == ""


def test_a_token_of_an_elliptic_key_is_accepted() -> None:
    text = jwt.encode(issuers.claims(NOW), issuers.ec_key(), "ES256", headers={"kid": "ec"})

    assert checked(text).identity.oid == issuers.OID


@pytest.mark.parametrize("spelling", ["none", "None", "NONE", "nOnE"])
def test_a_token_without_a_signature_is_refused(spelling: str) -> None:
    header = {"alg": spelling, "typ": "JWT", "kid": "first"}

    assert "algorithm" in refused(issuers.segments(header, issuers.claims(NOW)))


def test_a_token_with_the_signature_removed_is_refused() -> None:
    head, body, _ = issuers.token(issuers.claims(NOW)).split(".")

    assert "signature" in refused(f"{head}.{body}.")


@pytest.mark.parametrize("encoding", ["PEM", "DER", "JWK"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(encoding: str) -> None:
    public = issuers.rsa_key().public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    secret = {
        "PEM": lambda: public.public_bytes(serialization.Encoding.PEM, spki),
        "DER": lambda: public.public_bytes(serialization.Encoding.DER, spki),
        "JWK": lambda: issuers.key_set("first"),
    }[encoding]()
    header = {"alg": "HS256", "typ": "JWT", "kid": "first"}
    unsigned = issuers.segments(header, issuers.claims(NOW)).rpartition(".")[0]
    mac = hmac.digest(secret, unsigned.encode(), hashlib.sha256)
    signature = issuers.segments({}, {}, mac).rpartition(".")[2]

    assert "algorithm" in refused(f"{unsigned}.{signature}")


def test_a_key_verifies_one_algorithm_only() -> None:
    text = jwt.encode(issuers.claims(NOW), issuers.rsa_key(), "RS512", headers={"kid": "first"})

    assert "signature" in refused(text)


def test_a_token_of_another_key_is_refused() -> None:
    assert "signature" in refused(issuers.token(issuers.claims(NOW), "stranger", kid="first"))
    assert "signature" in refused(issuers.token(issuers.claims(NOW), "second", kid="first"))


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": json.loads(issuers.key_set("stranger"))["keys"][0]},
        {"jku": "https://attacker.test/keys"},
        {"x5u": "https://attacker.test/certificate"},
    ],
    ids=["jwk", "jku", "x5u"],
)
def test_a_key_that_the_token_itself_brings_is_not_used(header: dict[str, Any]) -> None:
    stranger = issuers.rsa_key("stranger")
    text = jwt.encode(issuers.claims(NOW), stranger, "RS256", headers={**header, "kid": "first"})

    assert "signature" in refused(text)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "https://vault.azure.net"}, "Audience"),
        ({"aud": None}, "not valid"),
        ({"aud": []}, "not valid"),
        ({"aud": {"https://storage.azure.com": 1}}, "Audience"),
        ({"aud": "https://storage.azure.com.attacker.test"}, "Audience"),
        ({"iss": "https://login.test/tenant2"}, "Issuer"),
        ({"iss": f"{issuers.ISSUER}/"}, "Issuer"),
        ({"iss": None}, "not valid"),
        ({"exp": NOW - 301}, "expired"),
        ({"exp": None}, "not valid"),
        ({"exp": "never"}, "numbers"),
        ({"exp": True}, "numbers"),
        ({"exp": 1e300}, "numbers"),
        ({"nbf": NOW + 301}, "not yet valid"),
        ({"nbf": "now"}, "numbers"),
        ({"oid": None}, "oid"),
        ({"oid": "a\nb"}, "oid"),
        ({"oid": "x" * 257}, "oid"),
        ({"tid": ["t"]}, "tid"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(changed: dict[str, Any], reason: str) -> None:
    assert reason in refused(issuers.token(issuers.claims(NOW, **changed)))


def test_times_may_differ_by_the_permitted_skew() -> None:
    late, early = issuers.claims(NOW, exp=NOW - 299), issuers.claims(NOW, nbf=NOW + 299)

    for content in (late, early):
        checked(issuers.token(content)).check_times(NOW, 300)
        with pytest.raises(TokenRefusedError):
            checked(issuers.token(content)).check_times(NOW, 298)


@pytest.mark.parametrize("audience", ["https://storage.azure.com/", ["x", issuers.AUDIENCE]])
def test_an_audience_may_end_with_a_slash_or_be_one_of_several(audience: object) -> None:
    assert checked(issuers.token(issuers.claims(NOW, aud=audience))).identity.tid == issuers.TID


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b.c", "a.b.c.d.e", "\u00e9.b.c", "e30.e30.e30", "[]", "9" * 64]
)
def test_a_text_that_is_not_a_token_is_refused(text: str) -> None:
    assert refused(text)


def test_a_huge_token_is_refused_before_it_is_decoded() -> None:
    text = issuers.token(issuers.claims(NOW, padding="x" * TOKEN_BYTES_MAX))

    assert str(TOKEN_BYTES_MAX) in refused(text)


@pytest.mark.parametrize("depth", [500, 1900])
def test_deeply_nested_json_is_refused(depth: int) -> None:
    good, nested = issuers.token(issuers.claims(NOW)), b'{"a":' * depth + b"1" + b"}" * depth
    part = issuers.segments({}, {}, nested).rpartition(".")[2]
    header, _, rest = good.partition(".")

    assert refused(f"{part}.{rest}")
    assert refused(f"{header}.{part}.AAAA")


def test_critical_headers_that_are_unknown_are_refused() -> None:
    headers = {"kid": "first", "crit": ["exp-policy"], "exp-policy": 1}
    text = jwt.encode(issuers.claims(NOW), issuers.rsa_key(), "RS256", headers=headers)

    assert refused(text)


# Keys


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff"])
def test_a_document_that_is_not_a_key_set_is_an_error(document: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several modules
        parse_keys(document)


def test_keys_that_cannot_sign_are_skipped() -> None:
    listed = json.loads(issuers.key_set("first"))["keys"]
    useless = [
        1,
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
        {**listed[0], "kid": "encryption", "use": "enc"},
        {**listed[0], "kid": "wrong algorithm", "alg": "HS256"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "broken"},
        {"kty": "new", "kid": "unknown"},
    ]

    keys = parse_keys(json.dumps({"keys": [*useless, *listed]}).encode())

    assert sorted(keys) == ["ec", "first"]


# Roles


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("roles", ["readers"]),
        ("scope", "openid readers"),
        ("realm_access.roles", None),
        ("https://partita.test/roles", ["readers", 1, None]),
    ],
)
def test_the_roles_claim_may_have_any_name_and_form(claim: str, value: object) -> None:
    rule = parse_role_rule("readers=Storage Queue Data Reader")
    rules = TokenRules(issuers.ISSUER, roles_claim=claim, role_rules=(rule,))
    nested = {"realm_access": {"roles": ["readers"]}}
    content = issuers.claims(NOW, **(nested if value is None else {claim: value}))

    bearer = checked(issuers.token(content), rules).bearer(rules, "a1")

    assert bearer.rights_in("q").object == "r"


@pytest.mark.parametrize("value", [None, 7, {}, [[]], "Storage Table Data", ["other"]])
def test_other_claims_permit_nothing(value: object) -> None:
    bearer = checked(issuers.token(issuers.claims(NOW, roles=value))).bearer(RULES, "a1")

    assert [bearer.rights_in(letter).object for letter in "tqb"] == ["", "", ""]


# Development


def test_development_accepts_any_signature_of_an_audience_of_azure() -> None:
    text = issuers.segments({"alg": "none"}, issuers.claims(NOW, iss="https://sts.windows.net/x/"))

    assert check_unsigned(text, [issuers.AUDIENCE]).identity.oid == issuers.OID
    with pytest.raises(TokenRefusedError, match="Audience"):
        check_unsigned(text, ["https://a1.table.core.windows.net"])


@pytest.mark.parametrize("text", ["", "a.b.c", "x" * (TOKEN_BYTES_MAX + 1)])
def test_development_refuses_what_is_not_a_token(text: str) -> None:
    with pytest.raises(TokenRefusedError):
        check_unsigned(text, [issuers.AUDIENCE])
