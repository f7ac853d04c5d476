"""Requests with bearer tokens, and with SAS of user delegation keys, at the three services."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from partita.clock import ManualClock
from partita.service.auth.delegation import KEY_DAYS_MAX
from partita.service.auth.roles import parse_role_rule
from partita.service.auth.sas import Sas, sign
from partita.service.auth.shared_key import SigningKey
from partita.service.auth.tokens import TokenRules
from partita.service.hosting.token_issuer import READ_SECONDS_MIN, DevelopmentIssuer, Issuer
from partita.service.http.request import Request, Response
from partita.tables.edm import text_of
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND
from support import issuers
from support.fronts import PRIVATE_ACCOUNT, VERSION, Fronts, opened_fronts, told

RULES = TokenRules(
    issuers.ISSUER,
    role_rules=(parse_role_rule("orders-only=Storage Table Data Reader@private1"),),
)
TABLE = b'{"TableName": "Staff"}'
JSON = {"content-type": "application/json", "accept": "application/json;odata=nometadata"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Fronts]:
    async with opened_fronts() as fronts:
        keys = tmp_path / "keys.json"
        keys.write_bytes(issuers.key_set("first"))
        fronts.served.issuer = Issuer(RULES, keys, fronts.clock)
        yield fronts


def seconds(clock: ManualClock) -> float:
    return clock.ticks() / TICKS_PER_SECOND


async def ask(
    fronts: Fronts,
    service: str,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    token: str | None = None,
    roles: tuple[str, ...] = (),
    scheme: str = "https",
    peer: str = "192.0.2.7",
    account: str = "devstoreaccount1",
    **headers: str,
) -> Response:
    """Ask with a token of these roles, by https from another machine."""
    if token is None:
        token = issuers.token(issuers.claims(seconds(fronts.clock), *roles))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {"authorization": f"Bearer {token}", **named}
    request = fronts.request(
        service, method, target, body, {k: v for k, v in fields.items() if v}, account=account,
        is_signed=False,
    )  # fmt: skip
    whole = Request(
        request.method,
        request.path,
        request.query,
        request.headers,
        request.body,
        scheme=scheme,
        peer=peer,
    )
    return await fronts.fronts[service].respond(whole)


@pytest.mark.parametrize(
    ("roles", "answers"),
    [
        ((), ["403", "403", "403", "404", "403"]),
        (("Storage Table Data Reader",), ["200", "403", "404", "404", "403"]),
        (("Storage Blob Data Owner",), ["403", "403", "403", "404", "403"]),
        (("Storage Table Data Contributor",), ["200", "201", "404", "404", "403"]),
        (("StorageTableDataContributor", "x"), ["200", "201", "404", "404", "403"]),
        (("Storage Account Contributor",), ["403", "403", "403", "404", "200"]),
        (("Storage Table Data Owner",), ["200", "201", "404", "200", "200"]),
    ],
)
async def test_roles_permit_at_tables_what_they_permit_in_azure(
    served: Fronts, roles: tuple[str, ...], answers: list[str]
) -> None:
    targets = [
        ("GET", "/Tables", b""),
        ("POST", "/Tables", TABLE),
        ("GET", "/Other(PartitionKey='1',RowKey='1')", b""),
        ("GET", "/Staff?comp=acl", b""),
        ("GET", "/?restype=service&comp=properties", b""),
    ]

    found = [
        await ask(served, "tables", method, target, body, roles=roles, **JSON)
        for method, target, body in targets
    ]

    assert [str(each.status) for each in found] == answers


@pytest.mark.parametrize(
    ("roles", "answers"),
    [
        ((), ["403"] * 7),
        (("Storage Queue Data Reader",), ["200", "403", "200", "403", "200", "403", "403"]),
        (("Storage Queue Data Message Sender",), ["403"] * 3 + ["201", "403", "403", "403"]),
        (
            ("Storage Queue Data Message Processor",),
            ["403", "403", "403", "403", "200", "200", "403"],
        ),
        (("Storage Queue Data Contributor",), ["200", "204", "200", "201", "200", "200", "204"]),
    ],
)
async def test_roles_permit_at_queues_what_they_permit_in_azure(
    served: Fronts, roles: tuple[str, ...], answers: list[str]
) -> None:
    await served.account.queues.create_queue("jobs", {})
    message = b"<QueueMessage><MessageText>a</MessageText></QueueMessage>"
    targets = [
        ("GET", "/?comp=list", b""),
        ("PUT", "/jobs", b""),
        ("GET", "/jobs?comp=metadata", b""),
        ("POST", "/jobs/messages", message),
        ("GET", "/jobs/messages?peekonly=true", b""),
        ("GET", "/jobs/messages", b""),
        ("DELETE", "/jobs/messages", b""),
    ]

    found = [
        await ask(served, "queues", method, target, body, roles=roles)
        for method, target, body in targets
    ]

    assert [str(each.status) for each in found] == answers


BLOB = {"x_ms_blob_type": "BlockBlob"}


@pytest.mark.parametrize(
    ("roles", "answers"),
    [
        ((), ["403"] * 7),
        (("Storage Blob Delegator",), ["403"] * 7),
        (("Storage Blob Data Reader",), ["200", "403", "200", "403", "403", "403", "403"]),
        (("Storage Blob Data Contributor",), ["200", "201", "200", "201", "403", "403", "202"]),
        (("Storage Blob Data Owner",), ["200", "201", "200", "201", "200", "200", "202"]),
    ],
)
async def test_roles_permit_at_blobs_what_they_permit_in_azure(
    served: Fronts, roles: tuple[str, ...], answers: list[str]
) -> None:
    await served.account.blobs.containers.create_container("photos")
    targets = [
        ("GET", "/?comp=list", b""),
        ("PUT", "/new?restype=container", b""),
        ("GET", "/photos?restype=container&comp=list", b""),
        ("PUT", "/photos/a", b"content"),
        ("GET", "/photos/a?comp=tags", b""),
        ("GET", "/photos?restype=container&comp=acl", b""),
        ("DELETE", "/photos/a", b""),
    ]

    found = [
        await ask(served, "blobs", method, target, body, roles=roles, **BLOB)
        for method, target, body in targets
    ]

    assert [str(each.status) for each in found] == answers


async def test_a_role_may_apply_to_one_account(served: Fronts) -> None:
    roles = ("orders-only",)

    there = await ask(served, "tables", "GET", "/Tables", roles=roles, account=PRIVATE_ACCOUNT)
    here = await ask(served, "tables", "GET", "/Tables", roles=roles)

    assert (there.status, told(here)) == (200, "403 AuthorizationPermissionMismatch")


@pytest.mark.parametrize("service", ["blobs", "queues", "tables"])
async def test_a_refused_token_is_answered_with_the_challenge_of_the_issuer(
    served: Fronts, service: str
) -> None:
    expired = issuers.token(issuers.claims(seconds(served.clock) - 7200))

    answer = await ask(served, service, "GET", "/?comp=list", token=expired)
    without = await ask(served, service, "GET", "/?comp=list", token=expired, authorization="")

    assert told(answer) == "401 InvalidAuthenticationInfo"
    assert answer.header("WWW-Authenticate") == (
        f"Bearer authorization_uri={issuers.ISSUER}/oauth2/authorize"
        " resource_id=https://storage.azure.com"
    )
    assert b"the token is expired" in answer.body
    if service != "blobs":  # which may be public
        assert without.header("WWW-Authenticate") == answer.header("WWW-Authenticate")


async def test_a_token_that_expires_is_refused_although_it_was_accepted(served: Fronts) -> None:
    token = issuers.token(issuers.claims(seconds(served.clock), "Storage Table Data Reader"))

    before = await ask(served, "tables", "GET", "/Tables", token=token)
    served.clock.advance(3600 + 301)
    after = await ask(served, "tables", "GET", "/Tables", token=token)

    assert (before.status, after.status) == (200, 401)


@pytest.mark.parametrize(
    ("scheme", "peer", "status"),
    [
        ("http", "192.0.2.7", 401),
        ("http", "::ffff:192.0.2.7", 401),
        ("http", "", 401),
        ("http", "127.0.0.1", 200),
        ("http", "::1", 200),
        ("https", "192.0.2.7", 200),
    ],
)
async def test_a_token_over_http_is_accepted_from_this_machine_only(
    served: Fronts, scheme: str, peer: str, status: int
) -> None:
    roles = ("Storage Table Data Reader",)

    answer = await ask(served, "tables", "GET", "/Tables", roles=roles, scheme=scheme, peer=peer)

    assert answer.status == status


async def test_an_unknown_account_is_refused_as_with_a_wrong_key(served: Fronts) -> None:
    answer = await ask(served, "tables", "GET", "/Tables", account="nobodyhome")

    assert told(answer) == "403 AuthenticationFailed"


async def test_a_token_and_a_sas_together_are_refused(served: Fronts) -> None:
    sas = "sv=2026-10-06&ss=bqt&srt=sco&sp=rl&se=2040-01-01&sig=AAAA"

    answer = await ask(served, "tables", "GET", f"/Tables?{sas}")

    assert told(answer) == "400 InvalidAuthenticationInfo"


async def test_development_accepts_tokens_of_every_issuer_by_https_from_this_machine(
    served: Fronts,
) -> None:
    served.served.issuer = DevelopmentIssuer()
    content = issuers.claims(seconds(served.clock), iss="https://sts.windows.net/any/")
    token = issuers.token(content, "stranger")

    found = [
        await ask(served, "queues", "GET", "/?comp=list", token=token, scheme=scheme, peer=peer)
        for scheme, peer in [
            ("https", "127.0.0.1"),
            ("http", "127.0.0.1"),
            ("https", "192.0.2.7"),
        ]
    ]

    assert [each.status for each in found] == [200, 401, 401]


# Keys of the issuer


async def test_a_new_key_is_read_when_a_token_names_it(served: Fronts, tmp_path: Path) -> None:
    content = issuers.claims(seconds(served.clock), "Storage Table Data Reader")
    (tmp_path / "keys.json").write_bytes(issuers.key_set("first"))
    first = await ask(served, "tables", "GET", "/Tables", token=issuers.token(content))

    (tmp_path / "keys.json").write_bytes(issuers.key_set("second"))
    soon = await ask(served, "tables", "GET", "/Tables", token=issuers.token(content, "second"))
    served.clock.advance(READ_SECONDS_MIN)
    later = await ask(served, "tables", "GET", "/Tables", token=issuers.token(content, "second"))
    withdrawn = await ask(served, "tables", "GET", "/Tables", token=issuers.token(content))

    assert [each.status for each in (first, soon, later, withdrawn)] == [200, 401, 200, 401]


async def test_a_flood_of_unknown_keys_reads_the_keys_once_a_minute(
    served: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = served.served.issuer
    assert isinstance(issuer, Issuer)
    reads = 0
    read = issuer.read

    async def counted() -> None:
        nonlocal reads
        reads += 1
        await read()

    monkeypatch.setattr(issuer, "read", counted)
    content = issuers.claims(seconds(served.clock))

    for minute in range(3):
        for number in range(50):
            token = issuers.token(content, kid=f"invented {minute} {number}")
            answer = await ask(served, "tables", "GET", "/Tables", token=token)
            assert answer.status == 401
        served.clock.advance(READ_SECONDS_MIN)

    assert reads == 3


async def test_keys_that_cannot_be_read_are_a_refusal_for_now(
    served: Fronts, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").unlink()

    answer = await ask(served, "tables", "GET", "/Tables")

    assert told(answer) == "503 ServerBusy"
    assert answer.header("Retry-After") == "60"


async def test_kept_keys_are_used_for_a_day_while_the_issuer_is_away(
    served: Fronts, tmp_path: Path
) -> None:
    roles = ("Storage Table Data Reader",)
    statuses = [(await ask(served, "tables", "GET", "/Tables", roles=roles)).status]
    (tmp_path / "keys.json").unlink()

    for hours in (2, 21, 2):
        served.clock.advance(hours * 3600)
        statuses.append((await ask(served, "tables", "GET", "/Tables", roles=roles)).status)

    assert statuses == [200, 200, 200, 503]


# User delegation keys


def key_terms(clock: ManualClock, days: float = 1, start: float = 0) -> bytes:
    now = clock.ticks()
    times = [text_of(now + int(each * TICKS_PER_DAY)) for each in (start, days)]
    return f"<KeyInfo><Start>{times[0]}</Start><Expiry>{times[1]}</Expiry></KeyInfo>".encode()


KEY = "/?restype=service&comp=userdelegationkey"


async def delegation_key(
    fronts: Fronts, service: str, *roles: str, body: bytes = b""
) -> dict[str, str]:
    answer = await ask(fronts, service, "POST", KEY, body or key_terms(fronts.clock), roles=roles)
    assert answer.status == 200, answer.body
    root = ElementTree.fromstring(answer.body)
    return {child.tag: child.text or "" for child in root}


def delegated(found: dict[str, str], letters: str, service: str = "b", **changed: str) -> str:
    """Return a SAS for the container `photos` or the queue `jobs` that this key signs."""
    fields = {
        "version": VERSION,
        "permissions": letters,
        "expiry": "2040-01-01T00:00:00Z",
        "resource": "c" if service == "b" else "",
        "container": "photos" if service == "b" else "jobs",
        "key_oid": found["SignedOid"],
        "key_tid": found["SignedTid"],
        "key_start": found["SignedStart"],
        "key_expiry": found["SignedExpiry"],
        "key_service": found["SignedService"],
        "key_version": found["SignedVersion"],
        **changed,
    }
    key = SigningKey(base64.b64decode(found["Value"]))
    return sign(Sas(**fields), service=service, account="devstoreaccount1", key=key)


async def use(fronts: Fronts, service: str, method: str, target: str, sas: str) -> str:
    join = "&" if "?" in target else "?"
    body = b"content" if method == "PUT" else b""
    headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {}
    answer = await fronts.ask(
        service, method, f"{target}{join}{sas}", body, headers, is_signed=False
    )
    return told(answer)


async def test_a_delegation_key_names_its_owner_and_times(served: Fronts) -> None:
    found = await delegation_key(served, "blobs", "Storage Blob Delegator")
    again = await delegation_key(served, "blobs", "Storage Blob Delegator")

    assert found == again
    assert list(found) == [
        *("SignedOid", "SignedTid", "SignedStart", "SignedExpiry"),
        *("SignedService", "SignedVersion", "Value"),
    ]
    assert (found["SignedOid"], found["SignedTid"]) == (issuers.OID, issuers.TID)
    assert (found["SignedService"], found["SignedVersion"]) == ("b", VERSION)
    assert len(base64.b64decode(found["Value"])) == 32


@pytest.mark.parametrize(
    ("role", "answers"),
    [
        ("Storage Blob Delegator", ["403", "403", "403"]),
        ("Storage Blob Data Reader", ["403", "404", "200"]),
        ("Storage Blob Data Contributor", ["201", "200", "200"]),
    ],
)
async def test_a_delegated_sas_permits_at_most_what_its_owner_may_do(
    served: Fronts, role: str, answers: list[str]
) -> None:
    await served.account.blobs.containers.create_container("photos")
    sas = delegated(await delegation_key(served, "blobs", role), "racwdl")

    found = [
        await use(served, "blobs", method, target, sas)
        for method, target in [
            ("PUT", "/photos/a"),
            ("GET", "/photos/a"),
            ("GET", "/photos?restype=container&comp=list"),
        ]
    ]

    assert [each[:3] for each in found] == answers


async def test_a_delegated_sas_permits_only_its_own_letters(served: Fronts) -> None:
    await served.account.queues.create_queue("jobs", {})
    found = await delegation_key(served, "queues", "Storage Queue Data Contributor")
    sas = delegated(found, "p", "q")

    assert await use(served, "queues", "GET", "/jobs/messages", sas) == "200"
    peek = await use(served, "queues", "GET", "/jobs/messages?peekonly=true", sas)
    assert peek == "403 AuthorizationPermissionMismatch"
    assert await use(served, "queues", "GET", "/other/messages", sas) == "403 AuthenticationFailed"


async def test_a_sas_of_an_expired_delegation_key_is_refused(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    sas = delegated(await delegation_key(served, "blobs", "Storage Blob Data Reader"), "l")
    listing = "/photos?restype=container&comp=list"

    before = await use(served, "blobs", "GET", listing, sas)
    served.clock.advance(86_400)
    after = await use(served, "blobs", "GET", listing, sas)

    assert (before, after) == ("200", "403 AuthenticationFailed")


async def test_a_sas_of_a_delegation_key_that_starts_later_is_refused(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    body = key_terms(served.clock, days=2, start=1)
    sas = delegated(
        await delegation_key(served, "blobs", "Storage Blob Data Reader", body=body), "l"
    )
    listing = "/photos?restype=container&comp=list"

    assert await use(served, "blobs", "GET", listing, sas) == "403 AuthenticationFailed"
    served.clock.advance(86_400)
    assert await use(served, "blobs", "GET", listing, sas) == "200"


FORGED = {
    "key_oid": "another",
    "key_tid": "another",
    "key_start": "2020-01-01T00:00:00Z",
    "key_expiry": "2039-01-01T00:00:00Z",
    "key_version": "2020-02-10",
    "permissions": "rwdl",
    "container": "other",
}


@pytest.mark.parametrize("field", FORGED)
async def test_a_delegated_sas_with_a_changed_field_is_refused(served: Fronts, field: str) -> None:
    found = await delegation_key(served, "blobs", "Storage Blob Data Reader")
    right = delegated(found, "rl")
    signature = right.rpartition("sig=")[2]
    wrong = delegated(found, "rl", **{field: FORGED[field]}).rpartition("sig=")[0]

    answer = await use(served, "blobs", "GET", "/photos/a", f"{wrong}sig={signature}")

    if field == "container":  # it is in the address, not among the fields
        answer = await use(served, "blobs", "GET", "/other/a", right)
    assert answer == "403 AuthenticationFailed"


@pytest.mark.parametrize("field", [field for field in FORGED if field.startswith("key_")])
async def test_a_delegation_key_signs_no_other_terms_of_itself(served: Fronts, field: str) -> None:
    found = await delegation_key(served, "blobs", "Storage Blob Data Reader")

    sas = delegated(found, "rl", **{field: FORGED[field]})

    assert await use(served, "blobs", "GET", "/photos/a", sas) == "403 AuthenticationFailed"


async def test_a_delegation_key_of_blobs_is_not_one_of_queues(served: Fronts) -> None:
    found = await delegation_key(served, "blobs", "Storage Blob Data Contributor")

    sas = delegated(found, "p", "q")

    assert await use(served, "queues", "GET", "/jobs/messages", sas) == "403 AuthorizationFailure"


@pytest.mark.parametrize(
    "extra", ["saoid=a", "suoid=a", "skdutid=a", "srh=a", "srq=a", "si=policy"]
)
async def test_a_delegated_sas_with_a_restriction_that_is_unknown_here_is_refused(
    served: Fronts, extra: str
) -> None:
    sas = delegated(await delegation_key(served, "blobs", "Storage Blob Data Reader"), "rl")

    answer = await use(served, "blobs", "GET", "/photos/a", f"{sas}&{extra}")

    assert answer == "403 AuthorizationFailure"


# A SAS for one user


USERS_VERSION = "2025-07-05"
FRIEND = "6f1a0c1e-0000-4000-8000-000000000003"


def for_user(found: dict[str, str], **changed: str) -> str:
    """Return a SAS for the owner of the key, of a version that signs the user."""
    return delegated(found, "rl", **{"version": USERS_VERSION, "user_oid": issuers.OID, **changed})


async def list_with(
    fronts: Fronts, sas: str, oid: str = issuers.OID, tid: str = issuers.TID
) -> str:
    """List a container with a SAS and a token of a user without roles."""
    token = issuers.token(issuers.claims(seconds(fronts.clock), oid=oid, tid=tid))
    target = f"/photos?restype=container&comp=list&{sas}"
    return told(await ask(fronts, "blobs", "GET", target, token=token))


async def test_a_sas_for_a_user_needs_a_token_of_that_user(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    found = await delegation_key(served, "blobs", "Storage Blob Data Reader")
    sas, friends = for_user(found), for_user(found, user_oid=FRIEND)
    wrong = "403 AuthenticationFailed"

    assert await list_with(served, sas) == "200"
    assert await list_with(served, friends, oid=FRIEND) == "200"
    assert await list_with(served, friends) == wrong
    assert await list_with(served, sas, oid=FRIEND) == wrong
    assert await list_with(served, sas, tid=FRIEND) == wrong
    assert await use(served, "blobs", "GET", "/photos?restype=container&comp=list", sas) == wrong


async def test_a_sas_for_a_user_is_not_one_without_the_user(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    found = await delegation_key(served, "blobs", "Storage Blob Data Reader")
    sas = for_user(found)
    without = sas.replace(f"&sduoid={issuers.OID}", "")
    old = for_user(found, version="2020-02-10")
    unbound = delegated(found, "rl", version=USERS_VERSION)

    assert without != sas
    for changed in (without, f"{unbound}&sduoid={issuers.OID}"):
        assert await list_with(served, changed) in (
            "403 AuthenticationFailed",
            "400 InvalidAuthenticationInfo",
        )
    assert await list_with(served, old) == "403 AuthorizationFailure"


async def test_a_sas_for_a_user_permits_no_more_than_its_letters(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    found = await delegation_key(served, "blobs", "Storage Blob Data Owner")
    claims = issuers.claims(seconds(served.clock), "Storage Blob Data Owner")

    answer = await ask(
        served, "blobs", "DELETE", f"/photos/a?{for_user(found)}", token=issuers.token(claims)
    )

    assert told(answer) == "403 AuthorizationPermissionMismatch"


async def test_an_expired_token_does_not_prove_a_user(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    sas = for_user(await delegation_key(served, "blobs", "Storage Blob Data Reader"))
    token = issuers.token(issuers.claims(seconds(served.clock) - 7200))

    answer = await ask(
        served, "blobs", "GET", f"/photos?restype=container&comp=list&{sas}", token=token
    )

    assert told(answer) == "401 InvalidAuthenticationInfo"


async def test_a_key_for_the_users_of_a_tenant_signs_sas_for_them_only(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    body = key_terms(served.clock).replace(
        b"</KeyInfo>", f"<DelegatedUserTid>{FRIEND}</DelegatedUserTid></KeyInfo>".encode()
    )
    found = await delegation_key(served, "blobs", "Storage Blob Data Reader", body=body)
    sas = for_user(found, user_tid=FRIEND)

    assert found["SignedDelegatedUserTid"] == FRIEND
    assert await list_with(served, sas, tid=FRIEND) == "200"
    assert await list_with(served, sas) == "403 AuthenticationFailed"
    assert await list_with(served, for_user(found)) == "403 AuthenticationFailed"
    anyone = delegated(found, "rl", version=USERS_VERSION)
    listing = "/photos?restype=container&comp=list"
    assert await use(served, "blobs", "GET", listing, anyone) == "403 AuthenticationFailed"


async def test_the_tenant_of_a_key_is_an_identifier(served: Fronts) -> None:
    body = key_terms(served.clock).replace(
        b"</KeyInfo>", b"<DelegatedUserTid>a b</DelegatedUserTid></KeyInfo>"
    )

    answer = await ask(served, "blobs", "POST", KEY, body, roles=("Storage Blob Delegator",))

    assert told(answer) == "400 InvalidXmlNodeValue"


async def test_replacing_the_account_key_revokes_delegation_keys(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    sas = delegated(await delegation_key(served, "blobs", "Storage Blob Data Reader"), "l")
    listing = "/photos?restype=container&comp=list"
    first = served.account.keys[0]
    new = base64.b64encode(b"n" * 64).decode()

    served.account.set_keys([new])
    served.account.keys.append(first)
    assert await use(served, "blobs", "GET", listing, sas) == "200"
    served.account.set_keys([new])
    assert await use(served, "blobs", "GET", listing, sas) == "403 AuthenticationFailed"


async def test_delegated_sas_is_refused_without_an_issuer(served: Fronts) -> None:
    sas = delegated(await delegation_key(served, "blobs", "Storage Blob Data Reader"), "l")
    served.served.issuer = None

    assert await use(served, "blobs", "GET", "/photos/a", sas) == "403 AuthorizationFailure"


@pytest.mark.parametrize("service", ["blobs", "queues"])
async def test_an_account_key_gets_no_delegation_key(served: Fronts, service: str) -> None:
    answer = await served.ask(service, "POST", KEY, key_terms(served.clock))

    assert told(answer) == "403 AuthenticationFailed"


@pytest.mark.parametrize("service", ["blobs", "queues"])
async def test_an_account_sas_gets_no_delegation_key(served: Fronts, service: str) -> None:
    letters = {"version": VERSION, "services": "bqt", "resource_types": "sco"}
    sas = Sas(**letters, permissions="rwlkacupd", expiry="2040-01-01T00:00:00Z")
    query = sign(sas, service=service[0], account="devstoreaccount1", key=served.account.keys[0])

    answer = await served.ask(
        service, "POST", f"{KEY}&{query}", key_terms(served.clock), is_signed=False
    )

    assert told(answer) == "403 AuthenticationFailed"


async def test_a_role_of_another_service_gets_no_delegation_key(served: Fronts) -> None:
    roles = ("Storage Queue Data Contributor", "Storage Account Contributor")

    answer = await ask(served, "blobs", "POST", KEY, key_terms(served.clock), roles=roles)

    assert told(answer) == "403 AuthorizationPermissionMismatch"


@pytest.mark.parametrize(("days", "start"), [(KEY_DAYS_MAX + 0.01, 0), (-0.01, -1), (1, 2), (1, 1)])
async def test_a_delegation_key_is_valid_for_seven_days_at_most(
    served: Fronts, days: float, start: float
) -> None:
    body = key_terms(served.clock, days, start)

    answer = await ask(served, "blobs", "POST", KEY, body, roles=("Storage Blob Delegator",))

    assert told(answer) == "400 InvalidXmlNodeValue"


@pytest.mark.parametrize("issuer_key", ["first", "stranger"])
async def test_a_point_read_checks_the_token_as_every_request(
    served: Fronts, issuer_key: str
) -> None:
    """Reads of one entity with an account key take fewer steps; with a token they must not."""
    await served.account.tables.create_table("Staff")
    key = EntityKey("a", "b")
    await served.account.tables.run("Staff", EntityGroup([InsertOrReplace(key, {})]))
    content = issuers.claims(seconds(served.clock), "Storage Table Data Reader")
    token = issuers.token(content, issuer_key, kid="first")
    headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
    target = "/Staff(PartitionKey='a',RowKey='b')"
    asked = served.request("tables", "GET", target, b"", headers, is_signed=False)
    request = Request(asked.method, asked.path, "", asked.headers, scheme="https", peer="192.0.2.7")

    begun = served.fronts["tables"].begin(request)

    answer = begun if isinstance(begun, Response) else await begun
    assert answer.status == (200 if issuer_key == "first" else 401)


# Copies whose source is read with a token


async def copy_with(
    fronts: Fronts, token: str, query: str = "", *, scheme: str = "https", host: str = ""
) -> str:
    """Copy the blob a, of another account, with a token for it; return the answer."""
    source = f"http://{host or '127.0.0.1:10000'}/devstoreaccount1/photos/a{query}"
    request = fronts.request(
        "blobs",
        "PUT",
        "/copies/b",
        headers={
            "x-ms-copy-source": source,
            "x-ms-copy-source-authorization": token,
            "x-ms-requires-sync": "true",
        },
        account=PRIVATE_ACCOUNT,
    )
    whole = msgspec.structs.replace(request, scheme=scheme, peer="192.0.2.7")
    return told(await fronts.fronts["blobs"].respond(whole))


@pytest.fixture
async def source(served: Fronts) -> None:
    await served.account.blobs.containers.create_container("photos")
    await served.accounts[PRIVATE_ACCOUNT].blobs.containers.create_container("copies")
    await served.ask("blobs", "PUT", "/photos/a", b"1", {"x-ms-blob-type": "BlockBlob"})


def bearer_of(fronts: Fronts, *roles: str, **changed: object) -> str:
    return f"Bearer {issuers.token(issuers.claims(seconds(fronts.clock), *roles, **changed))}"


@pytest.mark.usefixtures("source")
async def test_the_source_of_a_copy_is_read_with_a_token_of_its_own(served: Fronts) -> None:
    assert await copy_with(served, bearer_of(served, "Storage Blob Data Reader")) == "202"
    copied = await served.ask("blobs", "GET", "/copies/b", account=PRIVATE_ACCOUNT)
    assert copied.body == b"1"


@pytest.mark.usefixtures("source")
async def test_a_token_that_may_not_read_the_source_copies_nothing(served: Fronts) -> None:
    reader = bearer_of(served, "Storage Blob Data Reader")
    expired = bearer_of(served, "Storage Blob Data Reader", exp=int(seconds(served.clock)) - 3600)
    forged = f"{reader[:-8]}AAAAAAAA"
    sas = served.blob_token("r", "photos")
    none = {"alg": "none"}
    unsigned = issuers.segments(none, issuers.claims(seconds(served.clock), "StorageBlobDataOwner"))
    refused = "403 CannotVerifyCopySource"

    assert await copy_with(served, bearer_of(served)) == refused
    assert await copy_with(served, bearer_of(served, "Storage Queue Data Owner")) == refused
    for token in (expired, forged, f"Bearer {unsigned}", "Basic dTpw", "Bearer ", "Bearer"):
        assert await copy_with(served, token) == refused
    assert await copy_with(served, reader, f"?{sas}") == refused
    assert await copy_with(served, reader, scheme="http") == refused
    served.served.issuer = None
    assert await copy_with(served, reader) == refused


@pytest.mark.usefixtures("source")
async def test_a_token_is_not_sent_to_another_server(served: Fronts) -> None:
    served.served.copy_hosts = frozenset({"data.example"})
    token = bearer_of(served, "Storage Blob Data Reader")

    assert await copy_with(served, token, host="data.example") == "501 NotImplemented"
