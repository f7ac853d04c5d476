import base64
from datetime import UTC, datetime
from itertools import chain, combinations
from urllib.parse import parse_qsl, quote

import pytest
from azure.storage.blob import (
    BlobSasPermissions,
    ContainerSasPermissions,
    generate_blob_sas,
    generate_container_sas,
)
from azure.storage.queue import QueueSasPermissions, generate_queue_sas
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import NotAuthorizedError
from partita.policies import Policy
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.auth import sas as needs
from partita.service.auth.policy import LETTERS
from partita.service.auth.sas import (
    ANONYMOUS,
    CONTAINER,
    OBJECT,
    SERVICE,
    BlobScope,
    Grant,
    Need,
    Sas,
    evaluate,
    parse_sas,
    sign,
    string_to_sign,
)
from partita.service.auth.shared_key import SigningKey

KEY = SigningKey.from_base64(DEVELOPMENT_KEY)
NOW = 17_040_672_000_000_000
"""2024-01-01T00:00:00Z"""
EXPIRY = "2030-01-01T00:00:00Z"
LATER = datetime(2030, 1, 1, tzinfo=UTC)
SNAPSHOT = "2022-08-12T20:49:56.0317382Z"
VERSIONS = ["2012-02-12", "2013-08-15", "2015-02-21", "2015-04-05", "2018-03-28", "2018-11-09",
            "2020-10-02", "2020-12-06", "2026-10-06"]  # fmt: skip


def a_blob_sas(**fields: str) -> Sas:
    given = {
        "version": "2026-10-06",
        "resource": "b",
        "container": "c1",
        "blob": "d/b1",
        "permissions": "r",
        "expiry": EXPIRY,
    }
    return Sas(**{**given, **fields})


def a_container_sas(**fields: str) -> Sas:
    return a_blob_sas(**{"resource": "c", "blob": "", "permissions": "racwdl", **fields})


def a_queue_sas(**fields: str) -> Sas:
    given = {"version": "2026-10-06", "container": "q1", "permissions": "raup", "expiry": EXPIRY}
    return Sas(**{**given, **fields})


def an_account_sas(**fields: str) -> Sas:
    given = {
        "version": "2026-10-06",
        "services": "bq",
        "resource_types": "sco",
        "permissions": "rwdlacup",
        "expiry": EXPIRY,
    }
    return Sas(**{**given, **fields})


def token_of(sas: Sas, service: str = "b") -> str:
    return sign(sas, service=service, account=ACCOUNT, key=KEY)


def path_of(sas: Sas) -> str:
    return f"{sas.container}/{quote(sas.blob)}" if sas.blob else sas.container


def granted(
    token: str,
    path: str,
    query: str = "",
    *,
    service: str = "b",
    policies: list[Policy] | None = None,
    allows_old: bool = True,
) -> Grant:
    pairs = parse_qsl(f"{query}&{token}", keep_blank_values=True)
    sas = parse_sas(pairs, service, path, allows_old=allows_old)
    assert sas is not None
    return evaluate(
        sas,
        service=service,
        account=ACCOUNT,
        keys=(KEY,),
        policies=policies or [],
        now=NOW,
        peer="127.0.0.1",
        scheme="http",
    )


def code_of(token: str, path: str, query: str = "", *, service: str = "b") -> str:
    with pytest.raises(NotAuthorizedError) as caught:
        granted(token, path, query, service=service)
    return caught.value.code


def refusal(grant: Grant, need: Need) -> str | None:
    try:
        grant.check(need)
    except NotAuthorizedError as error:
        return error.code
    return None


def test_signatures_of_known_tokens() -> None:
    known = [
        (a_blob_sas(), "b", "9/23R5Ld0JQTycRdaX48kX+GPWV3/R5lQqa2WSG7pg8="),
        (
            a_blob_sas(resource="bs", snapshot=SNAPSHOT),
            "b",
            "rBAC6Kk3d+0Syhq6thy6gESLT7v2hG2O9mQDCAUyrwk=",
        ),
        (
            a_blob_sas(
                cache_control="no-cache",
                content_disposition="attachment; filename=x",
                content_type="text/plain",
            ),
            "b",
            "Ooy2DbK7l6NYjwdA6RxiMJ8UVQ3vL1z4E/gETHFrwdE=",
        ),
        (
            a_blob_sas(resource="d", directory_depth="2"),
            "b",
            "2RQ+tSBAEKBF4V+YJDm6fyalePDoLwYeOD9dECDpnjg=",
        ),
        (a_container_sas(), "b", "mLhL0mIY6pivz5JJPm9WdDjbTtkjGuZ2LPXaYCF0HkI="),
        (a_queue_sas(), "q", "wFeHGTBzUu4wxkB0ZtgaMXNMFlSkUMfJonIj+ZTocts="),
        (an_account_sas(), "b", "E/PnM7mB/tE1MeC8PNvO7woWyR9rASlNDUIYxFk27X4="),
    ]

    for sas, service, signature in known:
        assert dict(parse_qsl(token_of(sas, service)))["sig"] == signature


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("", "r||EXP|/ACCT/c1/b1|"),
        ("2012-02-12", "r||EXP|/ACCT/c1/b1||VER"),
        ("2013-08-15", "r||EXP|/ACCT/c1/b1||VER|1|2|3|4|5"),
        ("2015-02-21", "r||EXP|/blob/ACCT/c1/b1||VER|1|2|3|4|5"),
        ("2015-04-05", "r||EXP|/blob/ACCT/c1/b1||||VER|1|2|3|4|5"),
        ("2018-11-09", "r||EXP|/blob/ACCT/c1/b1||||VER|b||1|2|3|4|5"),
        ("2020-10-02", "r||EXP|/blob/ACCT/c1/b1||||VER|b||1|2|3|4|5"),
        ("2020-12-06", "r||EXP|/blob/ACCT/c1/b1||||VER|b||scope|1|2|3|4|5"),
    ],
)
def test_slots_of_a_blob_sas_by_version(version: str, lines: str) -> None:
    sas = a_blob_sas(
        version=version,
        blob="b1",
        encryption_scope="scope",
        cache_control="1",
        content_disposition="2",
        content_encoding="3",
        content_language="4",
        content_type="5",
    )
    expected = lines.replace("|", "\n").replace("EXP", EXPIRY).replace("VER", version)

    assert string_to_sign(sas, service="b", account="ACCT") == expected


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("2012-02-12", "raup||EXP|/ACCT/q1||VER"),
        ("2015-02-21", "raup||EXP|/queue/ACCT/q1||VER"),
        ("2015-04-05", "raup||EXP|/queue/ACCT/q1||||VER"),
        ("2026-10-06", "raup||EXP|/queue/ACCT/q1||||VER"),
    ],
)
def test_slots_of_a_queue_sas_by_version(version: str, lines: str) -> None:
    expected = lines.replace("|", "\n").replace("EXP", EXPIRY).replace("VER", version)

    assert string_to_sign(a_queue_sas(version=version), service="q", account="ACCT") == expected


# The official clients


@pytest.mark.parametrize("blob", ["b1", "d/b1", "a b", "é", "100%", "x?y#z", "+,$:@=&;'"])
def test_official_blob_sas_is_ours(blob: str) -> None:
    token = generate_blob_sas(
        ACCOUNT,
        "c1",
        blob,
        account_key=DEVELOPMENT_KEY,
        permission=BlobSasPermissions(read=True, write=True, tag=True),
        expiry=LATER,
        start=datetime(2020, 1, 1, tzinfo=UTC),
        cache_control="no-cache",
        content_disposition="attachment; filename=x",
        content_encoding="gzip",
        content_language="fr",
        content_type="text/plain",
    )

    grant = granted(token, f"c1/{quote(blob)}")

    assert grant.scope == BlobScope("c1", blob)
    assert grant.permissions == "rwt"
    assert grant.overrides == (
        ("Cache-Control", "no-cache"),
        ("Content-Disposition", "attachment; filename=x"),
        ("Content-Encoding", "gzip"),
        ("Content-Language", "fr"),
        ("Content-Type", "text/plain"),
    )


def test_official_snapshot_sas_is_ours_only_with_its_snapshot() -> None:
    token = generate_blob_sas(
        ACCOUNT,
        "c1",
        "b1",
        snapshot=SNAPSHOT,
        account_key=DEVELOPMENT_KEY,
        permission=BlobSasPermissions(read=True),
        expiry=LATER,
    )
    other = SNAPSHOT.replace("56", "57")

    assert granted(token, "c1/b1", f"snapshot={SNAPSHOT}").scope == BlobScope("c1", "b1", SNAPSHOT)
    assert code_of(token, "c1/b1") == "AuthenticationFailed"
    assert code_of(token, "c1/b1", f"snapshot={other}") == "AuthenticationFailed"
    assert code_of(token, "c1/b1", f"versionid={SNAPSHOT}") == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("path", "query"), [("c1", "restype=container&comp=list"), ("c1/b1", ""), ("c1/a/b%20c", "")]
)
def test_official_container_sas_is_ours(path: str, query: str) -> None:
    token = generate_container_sas(
        ACCOUNT,
        "c1",
        account_key=DEVELOPMENT_KEY,
        permission=ContainerSasPermissions(read=True, list=True),
        expiry=LATER,
    )

    assert granted(token, path, query).scope == "c1"
    assert code_of(token, path.replace("c1", "c2"), query) == "AuthenticationFailed"


@pytest.mark.parametrize("path", ["q1", "q1/messages", "q1/messages/id"])
def test_official_queue_sas_is_ours(path: str) -> None:
    token = generate_queue_sas(
        ACCOUNT,
        "q1",
        DEVELOPMENT_KEY,
        permission=QueueSasPermissions(read=True, process=True),
        expiry=LATER,
    )

    assert granted(token, path, service="q").scope == "q1"
    assert code_of(token, path.replace("q1", "q2"), service="q") == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("service", "sas"),
    [
        ("q", a_queue_sas(permissions="", expiry="", policy_id="p1")),
        ("b", a_container_sas(permissions="", expiry="", policy_id="p1")),
        ("b", a_blob_sas(permissions="", expiry="", policy_id="p1")),
    ],
)
def test_stored_policy_completes_a_token(service: str, sas: Sas) -> None:
    policy = Policy("p1", None, EXPIRY, "r")
    token, path = token_of(sas, service), path_of(sas)
    query = "" if sas.blob else "restype=container"

    grant = granted(token, path, query, service=service, policies=[policy])

    assert grant.permissions == "r"
    assert code_of(token, path, query, service=service) == "AuthenticationFailed"


# What no token is


FLIPS: dict[str, str] = {
    "sv": "2025-01-05",
    "sp": "rw",
    "st": "2023-01-01",
    "se": "2031-01-01",
    "sip": "127.0.0.1",
    "spr": "https,http",
    "sr": "c",
    "ses": "scope",
    "rscc": "no-store",
    "rscd": "inline",
    "rsce": "br",
    "rscl": "de",
    "rsct": "text/html",
    "si": "policy",
    "sig": base64.b64encode(bytes(32)).decode(),
}


@pytest.mark.parametrize("name", FLIPS)
def test_every_field_of_a_blob_sas_is_signed(name: str) -> None:
    fields = dict(parse_qsl(token_of(a_blob_sas())))
    fields[name] = FLIPS[name]
    token = "&".join(f"{key}={quote(value)}" for key, value in fields.items())

    assert code_of(token, "c1/d/b1") == "AuthenticationFailed"


@pytest.mark.parametrize("path", ["c1/d/b2", "c1/d", "c1", "c2/d/b1", "", "d/b1", "c1/D/b1"])
def test_blob_sas_is_for_no_other_path(path: str) -> None:
    assert code_of(token_of(a_blob_sas()), path) == "AuthenticationFailed"


@pytest.mark.parametrize("version", ["", *VERSIONS])
@pytest.mark.parametrize("resource", ["c", "d", "bs", "bv", "x", ""])
def test_blob_sas_cannot_be_made_one_of_something_else(version: str, resource: str) -> None:
    # Before 2018-11-09 sr is not signed: a directory would be a free gift of all below it.
    token = token_of(a_blob_sas(version=version, blob="d"))
    token = token.replace("sr=b", f"sr={resource}&sdd=1")

    for path in ("c1/d", "c1/d/secret", "c1"):
        assert code_of(token, path, f"snapshot={SNAPSHOT}&versionid=1") == "AuthenticationFailed"


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "2015-02-21"])
def test_token_of_one_service_is_none_of_another_from_the_version_that_names_it(
    version: str,
) -> None:
    blob = token_of(a_container_sas(version=version, container="same", permissions="r"))
    queue = token_of(a_queue_sas(version=version, container="same", permissions="r"), "q")

    assert code_of(blob.replace("sr=c&", ""), "same", service="q") == "AuthenticationFailed"
    assert code_of(f"{queue}&sr=c", "same", "restype=container") == "AuthenticationFailed"


OLD_VERSIONS = [version for version in VERSIONS if version < "2015-02-21"]


@pytest.mark.parametrize("version", ["", *OLD_VERSIONS])
def test_a_token_that_does_not_sign_its_service_is_refused(version: str) -> None:
    """A queue SAS of 2012-02-12 would also open a container of the same name."""
    container = token_of(a_container_sas(version=version, container="same", permissions="r"))
    blob = token_of(a_blob_sas(version=version))
    asked = [(container, "same/b", "b"), (blob, "c1/d/b1", "b")]
    if version:
        queue = token_of(a_queue_sas(version=version, container="same", permissions="r"), "q")
        asked += [(queue, "same", "q"), (f"{queue}&sr=c", "same/b", "b")]

    for token, path, service in asked:
        with pytest.raises(NotAuthorizedError) as caught:
            granted(token, path, service=service, allows_old=False)
        assert (caught.value.code, caught.value.setting) == (
            "AuthenticationFailed",
            "--allow-old-sas",
        )
    assert granted(container, "same/b").scope == "same"
    assert granted(blob, "c1/d/b1").scope == BlobScope("c1", "d/b1")


def test_an_old_token_of_a_table_is_of_no_other_service() -> None:
    """Its string to sign has four slots more than that of a queue, one less than a container's."""
    for version in OLD_VERSIONS:
        given = Sas(version=version, table="same", permissions="r", expiry=EXPIRY)
        token = token_of(given, "t")

        assert granted(token, "same()", service="t", allows_old=False).scope == "same"
        assert code_of(token, "same", service="q") == "AuthenticationFailed"
        assert code_of(f"{token}&sr=c", "same/b") == "AuthenticationFailed"


def test_fields_of_tables_do_not_rename_what_a_token_is_for() -> None:
    blob = f"{token_of(a_blob_sas())}&tn=c1/d/b1"
    container = f"{token_of(a_container_sas())}&tn=c1"
    queue = f"{token_of(a_queue_sas(), 'q')}&tn=q1"

    assert granted(blob, "c1/d/b1").scope == BlobScope("c1", "d/b1")
    assert code_of(blob, "c1/secret") == "AuthenticationFailed"
    assert code_of(container, "c2", "restype=container") == "AuthenticationFailed"
    assert code_of(container, "c2/secret") == "AuthenticationFailed"
    assert code_of(queue, "secret", service="q") == "AuthenticationFailed"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_escaped_slash_moves_no_name_from_blob_to_container(version: str) -> None:
    token = token_of(a_blob_sas(version=version))

    assert code_of(token, "c1%2Fd/b1") == "AuthenticationFailed"
    moved = token.replace("sr=b", "sr=c")
    assert code_of(moved, "c1%2Fd%2Fb1", "restype=container") == "AuthenticationFailed"


def test_fields_of_blobs_mean_nothing_to_tables() -> None:
    token = (
        f"{token_of(Sas(version='2019-02-02', table='T1x', permissions='r', expiry=EXPIRY), 't')}"
    )

    grant = granted(f"{token}&sr=c&rsct=text/html&sdd=1", "T1x()", service="t")

    assert (grant.scope, grant.resource, grant.overrides) == ("t1x", "", ())


@pytest.mark.parametrize("field", ["skoid", "sktid", "skt", "ske", "sks", "skv"])
def test_user_delegation_sas_is_refused(field: str) -> None:
    assert code_of(f"{token_of(a_blob_sas())}&{field}=x", "c1/d/b1") == "AuthorizationFailure"


def test_queue_sas_without_a_queue_is_refused() -> None:
    token = token_of(a_queue_sas(container=""), "q")

    assert code_of(token, "", "comp=list", service="q") == "AuthenticationFailed"


@pytest.mark.parametrize("value", ["a\x0db", "a\x0ab", "\u2028", "\u00e9", "\x7f"])
def test_header_that_could_not_be_sent_is_refused(value: str) -> None:
    token = token_of(a_blob_sas(content_type=value))

    assert code_of(token, "c1/d/b1") == "AuthenticationFailed"


@pytest.mark.parametrize("version", ["", "2012-02-12"])
def test_headers_are_not_overridden_where_they_are_not_signed(version: str) -> None:
    token = f"{token_of(a_blob_sas(version=version))}&rsct=text/html"

    assert granted(token, "c1/d/b1").overrides == ()


def test_account_sas_overrides_no_headers() -> None:
    assert granted(f"{token_of(an_account_sas())}&rsct=text/html", "c1/b1").overrides == ()


BLOB_NAMES = st.text("abc/%01 -.", min_size=1, max_size=12)


@given(BLOB_NAMES, BLOB_NAMES)
def test_blob_sas_is_for_the_blob_that_was_signed_and_no_other(signed: str, asked: str) -> None:
    token = token_of(a_blob_sas(blob=signed))

    assert granted(token, f"c1/{quote(signed)}").scope == BlobScope("c1", signed)
    if asked != signed:
        assert code_of(token, f"c1/{quote(asked)}") == "AuthenticationFailed"


# What is granted


def blob_grant(resource: str = "b", **fields: str) -> Grant:
    sas = a_blob_sas(resource=resource, permissions="racwdl", **fields)
    return Grant(permissions=sas.permissions, service="b", scope=sas.scope, resource=resource)


def a_need(
    permissions: tuple[str, ...] = needs.READ, container: str = "c1", blob: str = "d/b1"
) -> Need:
    return Need(OBJECT, permissions, BlobScope(container, blob))


def test_blob_sas_reaches_its_blob_and_the_snapshots_of_it() -> None:
    grant = blob_grant()

    assert refusal(grant, a_need()) is None
    assert refusal(grant, Need(OBJECT, needs.READ, BlobScope("c1", "d/b1", SNAPSHOT))) is None
    assert refusal(grant, a_need(blob="d/b2")) == "AuthorizationFailure"
    assert refusal(grant, a_need(container="c2")) == "AuthorizationFailure"


def test_snapshot_sas_reaches_its_snapshot_only() -> None:
    grant = blob_grant("bs", snapshot=SNAPSHOT)

    assert refusal(grant, Need(OBJECT, needs.READ, BlobScope("c1", "d/b1", SNAPSHOT))) is None
    assert refusal(grant, a_need()) == "AuthorizationFailure"
    assert refusal(grant, Need(OBJECT, needs.READ, BlobScope("c1", "d/b1", "2020"))) == (
        "AuthorizationFailure"
    )


def test_directory_sas_reaches_what_lies_below() -> None:
    grant = blob_grant("d", blob="d/b1")

    for blob in ("d/b1", "d/b1/x", "d/b1/x/y"):
        assert refusal(grant, a_need(blob=blob)) is None
        below = Need(CONTAINER, needs.LIST, BlobScope("c1", f"{blob}/"))
        assert refusal(grant, below) is None
    # Listed by its bare name, its namesakes would show.
    bare = Need(CONTAINER, needs.LIST, BlobScope("c1", "d/b1"))
    assert refusal(grant, bare) == "AuthorizationFailure"
    for blob in ("d", "d/b", "d/b10", "d/b2/x", ""):
        assert refusal(grant, a_need(blob=blob)) == "AuthorizationFailure"
        assert refusal(grant, Need(CONTAINER, needs.LIST, BlobScope("c1", blob))) == (
            "AuthorizationFailure"
        )


def test_blob_sas_cannot_list() -> None:
    need = Need(CONTAINER, needs.LIST, BlobScope("c1", "d/b1"))

    assert refusal(blob_grant(), need) == "AuthorizationFailure"


def test_container_sas_reaches_its_blobs_and_their_list_but_not_the_container() -> None:
    sas = a_container_sas()
    grant = Grant(permissions="racwdl", service="b", scope=sas.scope, resource="c")

    assert refusal(grant, a_need()) is None
    assert refusal(grant, Need(CONTAINER, needs.LIST, BlobScope("c1", ""))) is None
    assert refusal(grant, a_need(container="c2")) == "AuthorizationFailure"
    for permissions in (needs.READ, needs.WRITE, needs.CREATE, needs.DELETE):
        assert refusal(grant, Need(CONTAINER, permissions)) == "AuthorizationFailure"
        assert refusal(grant, Need(SERVICE, permissions)) == "AuthorizationFailure"


QUEUE_NEEDS = {
    "peek": (Need(OBJECT, needs.READ, "q1"), "r"),
    "put": (Need(OBJECT, needs.ADD, "q1"), "a"),
    "get": (Need(OBJECT, needs.PROCESS, "q1"), "p"),
    "update": (Need(OBJECT, needs.UPDATE, "q1"), "u"),
    "delete message": (Need(OBJECT, needs.PROCESS, "q1"), "p"),
    "get metadata": (Need(CONTAINER, needs.READ, "q1"), "r"),
    "clear": (Need(OBJECT, needs.DELETE, "q1"), ""),
    "create": (Need(CONTAINER, needs.CREATE, "q1"), ""),
    "delete": (Need(CONTAINER, needs.DELETE, "q1"), ""),
    "set metadata": (Need(CONTAINER, needs.WRITE, "q1"), ""),
}


def subsets(letters: str) -> list[str]:
    sizes = range(len(letters) + 1)
    return ["".join(some) for some in chain(*(combinations(letters, size) for size in sizes))]


@pytest.mark.parametrize("operation", QUEUE_NEEDS)
def test_letters_of_a_queue_sas(operation: str) -> None:
    need, letter = QUEUE_NEEDS[operation]

    for letters in subsets("raup"):
        grant = Grant(permissions=letters, service="q", scope="q1")
        is_granted = bool(letter) and letter in letters
        assert refusal(grant, need) == (None if is_granted else "AuthorizationPermissionMismatch")
        elsewhere = Grant(permissions=letters, service="q", scope="q2")
        assert refusal(elsewhere, need) == "AuthorizationFailure"


@pytest.mark.parametrize("service", ["q", "b"])
def test_account_sas_needs_service_resource_type_and_letter(service: str) -> None:
    need = Need(OBJECT, needs.ADD, "q1")

    for services, types, letters in (
        (a, b, c) for a in ("q", "b", "t", "qb") for b in ("s", "co", "o") for c in ("a", "r", "ra")
    ):
        grant = Grant(permissions=letters, service=service, services=services, resource_types=types)
        if service not in services:
            expected: str | None = "AuthorizationServiceMismatch"
        elif "o" not in types:
            expected = "AuthorizationResourceTypeMismatch"
        else:
            expected = None if "a" in letters else "AuthorizationPermissionMismatch"
        assert refusal(grant, need) == expected


def test_letters_are_those_that_the_official_clients_write() -> None:
    every = ContainerSasPermissions.from_string("racwdxyltfmei")
    assert set(str(every)) <= set(LETTERS["b"])
    assert set(str(BlobSasPermissions.from_string("racwdxytmei"))) <= set(LETTERS["b"])
    assert set(str(QueueSasPermissions.from_string("raup"))) == set(LETTERS["q"])


# Nobody


HIDDEN, UNKNOWN = "ResourceNotFound", "NoAuthenticationInformation"
WRITES = [
    Need(OBJECT, needs.WRITE),
    Need(OBJECT, needs.CREATE),
    Need(OBJECT, needs.DELETE),
    Need(OBJECT, needs.APPEND),
    Need(OBJECT, needs.TAGS),
    Need(CONTAINER, needs.READ, by_key_only=True),
    Need(CONTAINER, needs.CREATE),
]
ANONYMOUS_CASES: list[tuple[Need, str | None, str | None, str | None]] = [
    # The refusals where the container is closed, open to blobs, open.
    (Need(OBJECT, needs.READ), HIDDEN, None, None),
    (Need(CONTAINER, needs.READ), HIDDEN, HIDDEN, None),
    (Need(CONTAINER, needs.LIST), HIDDEN, HIDDEN, None),
    (Need(SERVICE, needs.LIST), HIDDEN, HIDDEN, HIDDEN),
    (Need(SERVICE, needs.READ), HIDDEN, HIDDEN, HIDDEN),
    *[(need, UNKNOWN, UNKNOWN, UNKNOWN) for need in WRITES],
]


@pytest.mark.parametrize(("need", "closed", "blobs", "opened"), ANONYMOUS_CASES)
def test_nobody_reads_what_is_public_and_writes_nothing(
    need: Need, closed: str | None, blobs: str | None, opened: str | None
) -> None:
    assert refusal(ANONYMOUS, need) == closed
    assert refusal(ANONYMOUS.opened(None), need) == closed
    assert refusal(ANONYMOUS.opened("blob"), need) == blobs
    assert refusal(ANONYMOUS.opened("container"), need) == opened


def test_token_tells_no_secret() -> None:
    sas = a_blob_sas(signature="c2VjcmV0")

    assert "c2VjcmV0" not in repr(sas)
