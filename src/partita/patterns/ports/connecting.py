"""The location of a database: a folder, memory, an open account, or a connection string.

`parse` is pure; `open_async` and `open_sync` create ports. Invalid texts are never repeated in an
error, because they may contain a key.
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
    "Use one of: 'partita:./folder' (in this process; the folder is created), 'partita::memory:', "
    "an account of partita.open_account(), 'UseDevelopmentStorage=true' (a local server), "
    "'AccountName=...;AccountKey=...;TableEndpoint=http://127.0.0.1:10002/...;"
    "QueueEndpoint=...;BlobEndpoint=...', or the connection string of a storage account or of "
    "Cosmos DB for Table from the Azure portal."
)

Where = str | LocalAccount


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

    def __repr__(self) -> str:
        return f"Remote({self.endpoints!r})"  # without the key, for tracebacks

    @property
    def capabilities(self) -> Capabilities:
        found = capabilities_of(self.endpoints["tables"])
        return msgspec.structs.replace(
            found,
            has_queues=found.has_queues and "queues" in self.endpoints,
            has_blobs=found.has_blobs and "blobs" in self.endpoints,
        )


def parse(text: str) -> Folder | Remote:
    """Parse a location.

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
        raise _unreadable("The folder is missing.")
    return _parse_connection_string(text)


def _parse_connection_string(text: str) -> Remote:
    members = _members_of(text)
    if members.get("usedevelopmentstorage", "").lower() == "true":
        return _development(members)
    endpoints = _endpoints_of(members)
    account, key = members.get("accountname", ""), members.get("accountkey", "")
    sas = members.get("sharedaccesssignature", "").lstrip("?")
    if "tables" not in endpoints:
        raise _unreadable("It has neither TableEndpoint nor AccountName.")
    has_key = bool(account and key)
    if not sas and not has_key:
        raise _unreadable("It has neither AccountName and AccountKey nor SharedAccessSignature.")
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
    # If one endpoint is given without a suffix, the others are not guessed: they may not exist.
    if account and ("endpointsuffix" in members or not named):
        protocol = members.get("defaultendpointsprotocol", "https")
        suffix = members.get("endpointsuffix") or _SUFFIX
        if not _NAME.fullmatch(account + suffix):
            raise _unreadable("Its AccountName or EndpointSuffix is not valid in an address.")
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
        raise _unreadable("One of its endpoints is not an http or https address.")
    return endpoint


def _unreadable(why: str) -> ConfigurationError:
    return ConfigurationError(
        "PlaceUnreadable", f"Not a valid database location. {why}", hint=_EXAMPLES
    )


def _clients_of(where: Where) -> tuple[LocalClients | RemoteClients, Capabilities]:
    if isinstance(where, LocalAccount):
        return LocalClients(where, is_owned=False), ORDERED
    if not isinstance(where, str):
        raise _unreadable("It is neither a string nor an account.")
    location = parse(where)
    if isinstance(location, Remote):
        remote = RemoteClients(location.endpoints, location.account, location.key, location.sas)
        return remote, location.capabilities
    path = None if location.path is None else os.path.expanduser(location.path)  # noqa: PTH111
    return LocalClients(open_account(path), is_owned=True), ORDERED


def credential_of(where: Where) -> tuple[str, str, str]:
    """Return account, key and table endpoint of a location, for signing grants."""
    location = parse(where) if isinstance(where, str) else None
    if not isinstance(location, Remote):
        return DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ENDPOINTS["tables"]
    location.capabilities.require_signatures("A grant")
    if not location.key:
        raise ConfigurationError(
            "AccountKeyMissing",
            "Granting access requires the key of the account.",
            hint="Connect with a connection string that has AccountName and AccountKey.",
        )
    return location.account, location.key, location.endpoints["tables"]


async def open_async(where: Where, *, direct: bool = False) -> AsyncPort:
    """Open a location for the asynchronous API.

    An account that was passed in stays open when the port is closed. `direct` bypasses the SDK for
    the tables of an account in this process.
    """
    clients, capabilities = await asyncio.to_thread(_clients_of, where)
    port = AioPort(clients, capabilities=capabilities)
    if not direct:
        return port
    return DirectPort(_account_of(clients), port)


def open_sync(where: Where, *, direct: bool = False) -> SyncPort:
    """Open a location for the synchronous API, as `open_async` does."""
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
        "direct=True requires an account in this process.",
        hint="Leave direct=True out, or connect to 'partita:./folder'.",
    )
