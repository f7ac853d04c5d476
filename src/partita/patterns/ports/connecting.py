"""Where a database is: a folder, memory, an open account, or a connection string.

`parse` is pure; `open_async` and `open_sync` make ports of what it found. Texts that cannot be
understood are never repeated in an error: they may hold a key.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from partita.errors import ConfigurationError
from partita.patterns.ports.aio_port import AsyncPort
from partita.patterns.ports.direct_port import DirectPort, DirectSyncPort
from partita.patterns.ports.sdk_clients import LocalClients, RemoteClients
from partita.patterns.ports.sdk_port import AioPort
from partita.patterns.ports.sdk_port_sync import SdkPort
from partita.patterns.ports.sync_port import SyncPort
from partita.patterns.protocol.capabilities import ORDERED, Capabilities, capabilities_of
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.in_process import ENDPOINTS, LocalAccount, open_account

SCHEME = "partita:"
MEMORY = ":memory:"
_SUFFIX = "core.windows.net"
_NAME = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?")
_KINDS = {"tables": "table", "queues": "queue", "blobs": "blob"}
_EXAMPLES = (
    "One of: 'partita:./folder' (in this process, the folder is made), 'partita::memory:', "
    "an account of partita.open_account(), 'UseDevelopmentStorage=true' (a local server), "
    "'AccountName=...;AccountKey=...;TableEndpoint=http://127.0.0.1:10002/...;"
    "QueueEndpoint=...;BlobEndpoint=...', or the connection string that the Azure portal shows "
    "of a storage account or of Cosmos DB for Table."
)

Where = str | LocalAccount


class Folder(msgspec.Struct, frozen=True):
    """An account in this process; None keeps it in memory."""

    path: str | None


class Remote(msgspec.Struct, frozen=True):
    """Services at addresses, and the one credential for all of them."""

    endpoints: dict[str, str]
    """By "tables", "queues" and "blobs"; what is not named is not there."""
    account: str = ""
    key: str = ""
    sas: str = ""

    def __repr__(self) -> str:
        return f"Remote({self.endpoints!r})"  # a key has no place in a traceback

    @property
    def capabilities(self) -> Capabilities:
        found = capabilities_of(self.endpoints["tables"])
        return msgspec.structs.replace(
            found,
            has_queues=found.has_queues and "queues" in self.endpoints,
            has_blobs=found.has_blobs and "blobs" in self.endpoints,
        )


def parse(text: str) -> Folder | Remote:
    """Read a place.

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
        raise _unreadable("It names no folder.")
    return _parse_connection_string(text)


def _parse_connection_string(text: str) -> Remote:
    members = _members_of(text)
    if members.get("usedevelopmentstorage", "").lower() == "true":
        return _development(members)
    endpoints = _endpoints_of(members)
    account, key = members.get("accountname", ""), members.get("accountkey", "")
    sas = members.get("sharedaccesssignature", "").lstrip("?")
    if "tables" not in endpoints:
        raise _unreadable("It names no tables: neither TableEndpoint nor AccountName.")
    has_key = bool(account and key)
    if not sas and not has_key:
        raise _unreadable("It holds neither AccountName and AccountKey nor SharedAccessSignature.")
    return Remote(endpoints, account, key if has_key else "", "" if has_key else sas)


def _members_of(text: str) -> dict[str, str]:
    members: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise _unreadable("It is neither a folder nor a connection string.")
        members[name.strip().lower()] = value.strip()
    if not members:
        raise _unreadable("It is empty.")
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
    # With one endpoint spelled out and no suffix, the others are not guessed: there may be none.
    if account and ("endpointsuffix" in members or not named):
        protocol = members.get("defaultendpointsprotocol", "https")
        suffix = members.get("endpointsuffix") or _SUFFIX
        if not _NAME.fullmatch(account + suffix):
            raise _unreadable("AccountName or EndpointSuffix in it is no part of an address.")
        made = {
            kind: _checked(f"{protocol}://{account}.{word}.{suffix}")
            for kind, word in _KINDS.items()
        }
        return made | named
    return named


def _checked(endpoint: str) -> str:
    """Return an address that a client can connect to."""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0 and endpoint.isprintable()
    except ValueError:  # a port or an IPv6 address that is none
        is_address = False
    if not is_address:
        raise _unreadable("An endpoint in it is no http or https address.")
    return endpoint


def _unreadable(why: str) -> ConfigurationError:
    return ConfigurationError(
        "PlaceUnreadable", f"This is no place that a database can be at. {why}", hint=_EXAMPLES
    )


def _clients_of(where: Where) -> tuple[LocalClients | RemoteClients, Capabilities]:
    if isinstance(where, LocalAccount):
        return LocalClients(where, is_owned=False), ORDERED
    if not isinstance(where, str):
        raise _unreadable("It is neither a text nor an account.")
    place = parse(where)
    if isinstance(place, Remote):
        remote = RemoteClients(place.endpoints, place.account, place.key, place.sas)
        return remote, place.capabilities
    path = None if place.path is None else os.path.expanduser(place.path)  # noqa: PTH111
    return LocalClients(open_account(path), is_owned=True), ORDERED


def credential_of(where: Where) -> tuple[str, str, str]:
    """Return account, key and table endpoint of a place, for whoever signs grants."""
    place = parse(where) if isinstance(where, str) else None
    if not isinstance(place, Remote):
        return DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ENDPOINTS["tables"]
    place.capabilities.require_signatures("A grant")
    if not place.key:
        raise ConfigurationError(
            "AccountKeyMissing",
            "Only who has the account's key can grant access.",
            hint="Connect with a string that has AccountName and AccountKey.",
        )
    return place.account, place.key, place.endpoints["tables"]


async def open_async(where: Where, *, direct: bool = False) -> AsyncPort:
    """Open a place for the asynchronous face.

    An account that is handed in stays open when the port is closed. `direct` skips the SDK for
    the tables of an account in this process.
    """
    clients, capabilities = await asyncio.to_thread(_clients_of, where)
    port = AioPort(clients, capabilities=capabilities)
    if not direct:
        return port
    return DirectPort(_account_of(clients), port)


def open_sync(where: Where, *, direct: bool = False) -> SyncPort:
    """Open a place for the synchronous face, as `open_async` does."""
    clients, capabilities = _clients_of(where)
    port = SdkPort(clients, capabilities=capabilities)
    if not direct:
        return port
    return DirectSyncPort(_account_of(clients), port)


def _account_of(clients: LocalClients | RemoteClients) -> LocalAccount:
    if isinstance(clients, LocalClients):
        return clients.account
    raise ConfigurationError(
        "NotInProcess",
        "direct=True goes to an account in this process, and this one is elsewhere.",
        hint="Leave direct=True out, or connect to 'partita:./folder'.",
    )
