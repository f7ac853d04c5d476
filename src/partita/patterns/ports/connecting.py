"""The location of a database: a folder, memory, an open account, or a connection string.

`open_async` and `open_sync` create ports.
"""

import asyncio
import os

import msgspec

from partita.errors import ConfigurationError
from partita.patterns.ports.aio_port import AsyncPort
from partita.patterns.ports.direct_port import DirectPort, DirectSyncPort
from partita.patterns.ports.lean_port import LeanPort
from partita.patterns.ports.sdk_clients import LocalClients, RemoteClients, has_proxy
from partita.patterns.ports.sdk_port import AioPort
from partita.patterns.ports.sdk_port_sync import SdkPort
from partita.patterns.ports.sync_port import SyncPort
from partita.patterns.protocol.capabilities import COSMOS, ORDERED, Capabilities, capabilities_of
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.in_process import ENDPOINTS, LocalAccount, open_account
from partita.service.hosting.locations import Remote, parse, unreadable

Where = str | LocalAccount


def _clients_of(where: Where) -> tuple[LocalClients | RemoteClients, Capabilities]:
    if isinstance(where, LocalAccount):
        return LocalClients(where, is_owned=False), ORDERED
    if not isinstance(where, str):
        raise unreadable("It is neither a string nor an account.")
    location = parse(where)
    if isinstance(location, Remote):
        remote = RemoteClients(location.endpoints, location.account, location.key, location.sas)
        return remote, remote_capabilities(location)
    path = None if location.path is None else os.path.expanduser(location.path)  # noqa: PTH111
    return LocalClients(open_account(path), is_owned=True), ORDERED


def remote_capabilities(remote: Remote) -> Capabilities:
    """Return what the addresses of a location support."""
    found = capabilities_of(remote.endpoints["tables"])
    return msgspec.structs.replace(
        found,
        has_queues=found.has_queues and "queues" in remote.endpoints,
        has_blobs=found.has_blobs and "blobs" in remote.endpoints,
    )


def credential_of(where: Where, service: str = "tables") -> tuple[str, str, str]:
    """Return account, key and the endpoint of a service of a location, for signing."""
    location = parse(where) if isinstance(where, str) else None
    if not isinstance(location, Remote):
        return DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ENDPOINTS[service]
    remote_capabilities(location).require_signatures("A grant")
    if not location.key:
        raise ConfigurationError(
            "AccountKeyMissing",
            "Granting access requires the key of the account.",
            hint="Connect with a connection string that has AccountName and AccountKey.",
        )
    return location.account, location.key, location.endpoints[service]


async def open_async(where: Where, *, direct: bool = False) -> AsyncPort:
    """Open a location for the asynchronous API.

    An account that was passed in stays open when the port is closed. `direct` bypasses the SDK for
    the tables of an account in this process.
    """
    clients, capabilities = await asyncio.to_thread(_clients_of, where)
    port = AioPort(clients, capabilities=capabilities)
    if direct:
        return DirectPort(_account_of(clients), port)
    if isinstance(clients, RemoteClients) and _is_lean(clients):
        return LeanPort(port, clients.endpoints, clients.own_credential)
    return port


def _is_lean(clients: RemoteClients) -> bool:
    """Return whether requests need nothing that only the SDK does."""
    return capabilities_of(clients.endpoints["tables"]) is not COSMOS and not has_proxy()


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
