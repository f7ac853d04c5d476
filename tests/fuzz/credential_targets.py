"""Fuzz targets about who asks: tokens and signatures of the three services."""

import base64

import msgspec

from partita.errors import NotAuthorizedError, PartitaError
from partita.service.auth import sas, shared_key
from partita.service.formats.address import parse_query
from partita.service.http.request import Request

ACCOUNT = "acct"
KEY = shared_key.SigningKey(b"a key of no account")
OTHER = shared_key.SigningKey(b"another")
NOW = 17_040_672_000_000_000
"""Mon, 01 Jan 2024 00:00:00 GMT, in ticks."""
DATE = "Mon, 01 Jan 2024 00:00:00 GMT"
SERVICES = {"t", "q", "b"}


def token(data: bytes) -> bool:
    """Read three lines: the letter of a service, path, query."""
    lines = data.decode("utf-8", "surrogateescape").split("\n", 2)
    service, path, query = lines + [""] * (3 - len(lines))
    if service not in SERVICES:
        return False
    try:
        found = sas.parse_sas(parse_query(query), service, path, allows_old=True)
    except PartitaError:
        return False
    if found is None:
        return False
    text = sas.string_to_sign(found, service=service, account=ACCOUNT)
    mac = base64.b64encode(KEY.signature(text)).decode()
    signed = msgspec.structs.replace(found, signature=mac)
    assert _grant(signed, service, OTHER) is None
    grant = _grant(signed, service, KEY)
    if grant is None:
        return False
    assert not grant.everything
    assert not grant.is_anonymous
    assert (grant.scope is None) == found.is_account_sas
    _check_scope_is_signed(grant, service, text)
    for name, value in grant.overrides:
        assert name.isascii()
        assert value.isprintable()
        assert value.isascii()
    return True


def _check_scope_is_signed(grant: sas.Grant, service: str, text: str) -> None:
    """What is granted must be what the signature names, letter by letter."""
    if grant.scope is None:
        return
    names = (grant.scope,) if isinstance(grant.scope, str) else grant.scope[:2]
    resource = text.split("\n")[3]
    assert resource.endswith(f"/{ACCOUNT}/{'/'.join(names)}"), (resource, grant.scope)


def _grant(found: sas.Sas, service: str, key: shared_key.SigningKey) -> sas.Grant | None:
    try:
        return sas.evaluate(
            found,
            service=service,
            account=ACCOUNT,
            keys=(key,),
            policies=(),
            now=NOW,
            peer="127.0.0.1",
            scheme="https",
        )
    except NotAuthorizedError:
        return None


def signature(data: bytes) -> bool:
    """Read five lines: service and scheme, method, path, query; further lines are headers."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    first, method, path, query = lines[:4] + [""] * (4 - len(lines[:4]))
    service, _, scheme = first.partition(" ")
    if service not in SERVICES or scheme not in {"SharedKey", "SharedKeyLite"}:
        return False
    headers = {}
    for line in lines[4:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    headers.setdefault("x-ms-date", DATE)
    request = Request(method, path, query, headers)
    is_lite = scheme == "SharedKeyLite"
    try:
        text = shared_key.string_to_sign(request, ACCOUNT, service, is_lite=is_lite)
    except PartitaError:
        return False
    mac = base64.b64encode(KEY.signature(text)).decode()
    headers["authorization"] = f"{scheme} {ACCOUNT}:{mac}"
    assert not _is_authentic(request, service, OTHER)
    changed = Request(f"{method}X", path, query, headers)
    assert (service == "t" and is_lite) or not _is_authentic(changed, service, KEY)
    return _is_authentic(request, service, KEY)


def _is_authentic(request: Request, service: str, key: shared_key.SigningKey) -> bool:
    try:
        shared_key.authenticate(request, ACCOUNT, (key,), NOW, service=service)
    except PartitaError:
        return False
    return True
