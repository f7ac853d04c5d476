"""The location of an account as a text: a folder, memory, a connection string, or a SAS URL.

Pure. Invalid texts are never repeated in an error, because they may contain a key.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec

from partita.errors import ConfigurationError
from partita.service.accounts.development import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    ENDPOINTS,
    PORTS,
)

SCHEME = "partita:"
MEMORY = ":memory:"
_SUFFIX = "core.windows.net"
_NAME = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?")
_KINDS = {"tables": "table", "queues": "queue", "blobs": "blob"}
_PORTS = {port: name for name, port in PORTS.items()}
_EXAMPLES = (
    "Use one of: 'partita:./folder' (in this process; the folder is created), 'partita::memory:', "
    "an account of partita.open_account(), 'UseDevelopmentStorage=true' (a local server), "
    "'AccountName=...;AccountKey=...;TableEndpoint=http://127.0.0.1:10002/...;"
    "QueueEndpoint=...;BlobEndpoint=...', the connection string of a storage account or of "
    "Cosmos DB for Table from the Azure portal, or a URL with a shared access signature."
)


class Folder(msgspec.Struct, frozen=True):
    """An account in this process; a path of None is an account in memory."""

    path: str | None


class Remote(msgspec.Struct, frozen=True):
    """The addresses of services, and one credential for all of them."""

    endpoints: dict[str, str]
    """By "tables", "queues" and "blobs"; services without an entry do not exist."""
    account: str = ""
    key: str = ""
    sas: str = ""

    @property
    def has_identity(self) -> bool:
        """Whether the caller signs in to the account: it has neither a key nor a signature."""
        return not self.key and not self.sas

    def __repr__(self) -> str:
        return f"Remote({self.endpoints!r})"  # without the key, for tracebacks


def parse(
    text: str, service: str = "tables", *, may_have_identity: bool = False
) -> Folder | Remote:
    """Parse a location; one that has no address of `service` is refused.

    With `may_have_identity`, an https address alone is an account to which the caller signs in.

    >>> parse("partita:./data")
    Folder(path='./data')
    >>> sorted(parse("UseDevelopmentStorage=true").endpoints)
    ['blobs', 'queues', 'tables']
    """
    if text.startswith(SCHEME):
        path = text.removeprefix(SCHEME)
        if path == MEMORY:
            return Folder(None)
        if path.strip() and "\x00" not in path:
            return Folder(path)
        raise unreadable("The folder is missing.")
    is_url = text.startswith(("http://", "https://"))
    if is_url:
        is_bare = may_have_identity and text.startswith("https://") and "?" not in text
        found = _parse_url(text, service, is_bare=is_bare)
    else:
        found = _parse_connection_string(text)
    if service not in found.endpoints:
        missing = f"{_KINDS[service].title()}Endpoint"
        raise unreadable("It has neither " + missing + " nor AccountName.")
    return found


def _parse_url(text: str, service: str, *, is_bare: bool) -> Remote:
    """Read a URL; on an unusual port it is that of the service that the caller wants."""
    address, _, sas = text.strip().partition("?")
    if not is_bare and ("sig" not in parse_qs(sas) or ";" in sas or not sas.isprintable()):
        raise unreadable("It is a URL without a shared access signature.")
    parts = urlsplit(_checked(address))
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    labels = (parts.hostname or "").split(".")
    own = next((kind for kind, word in _KINDS.items() if word in labels[1:2]), None)
    if own is not None:
        endpoints = {
            kind: root.replace(f".{_KINDS[own]}.", f".{word}.", 1) for kind, word in _KINDS.items()
        }
        return Remote(endpoints, labels[0], sas=sas)
    account = parts.path.strip("/").partition("/")[0]
    if not _NAME.fullmatch(account):
        raise unreadable("Its path does not begin with the name of an account.")
    named = _PORTS.get(parts.port or 0, service)
    return Remote({named: f"{root}/{account}"}, account, sas=sas)


def _parse_connection_string(text: str) -> Remote:
    members = _members_of(text)
    if members.get("usedevelopmentstorage", "").lower() == "true":
        return _development(members)
    endpoints = _endpoints_of(members)
    account, key = members.get("accountname", ""), members.get("accountkey", "")
    sas = members.get("sharedaccesssignature", "").lstrip("?")
    has_key = bool(account and key)
    if endpoints and not sas and not has_key:
        raise unreadable("It has neither AccountName and AccountKey nor SharedAccessSignature.")
    return Remote(endpoints, account, key if has_key else "", "" if has_key else sas)


def _members_of(text: str) -> dict[str, str]:
    members: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise unreadable("It is neither a folder nor a connection string.")
        members[name.strip().lower()] = value.strip()
    if not members:
        raise unreadable("It is empty.")
    return members


def _development(members: Mapping[str, str]) -> Remote:
    endpoints = dict(ENDPOINTS)
    proxy = members.get("developmentstorageproxyuri", "")
    if proxy:
        address = _checked(proxy if "://" in proxy else f"http://{proxy}")
        parts = urlsplit(address)
        name = parts.hostname or ""
        host = f"{parts.scheme}://{f'[{name}]' if ':' in name else name}"
        endpoints = {
            kind: endpoint.replace("http://127.0.0.1", host) for kind, endpoint in ENDPOINTS.items()
        }
    return Remote(endpoints, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)


def _endpoints_of(members: Mapping[str, str]) -> dict[str, str]:
    named = {
        kind: _checked(members[f"{word}endpoint"].rstrip("/"))
        for kind, word in _KINDS.items()
        if members.get(f"{word}endpoint")
    }
    account = members.get("accountname")
    # If one endpoint is given without a suffix, the others are not guessed: they may not exist.
    if account and ("endpointsuffix" in members or not named):
        protocol = members.get("defaultendpointsprotocol", "https")
        suffix = members.get("endpointsuffix") or _SUFFIX
        if not _NAME.fullmatch(account + suffix):
            raise unreadable("Its AccountName or EndpointSuffix is not valid in an address.")
        made = {
            kind: _checked(f"{protocol}://{account}.{word}.{suffix}")
            for kind, word in _KINDS.items()
        }
        return made | named
    return named


def _checked(endpoint: str) -> str:
    """Return a valid address of a service."""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0 and endpoint.isprintable()
    except ValueError:  # an invalid port or IPv6 address
        is_address = False
    if not is_address:
        raise unreadable("One of its endpoints is not an http or https address.")
    return endpoint


def unreadable(why: str) -> ConfigurationError:
    """Return the error of an invalid location; `why` does not contain the text."""
    return ConfigurationError(
        "PlaceUnreadable", f"Not a valid database location. {why}", hint=_EXAMPLES
    )
