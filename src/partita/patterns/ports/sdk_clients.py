"""Arguments of the official clients, for an account in this process or a remote one."""

import os
from typing import Any, Protocol
from urllib.request import getproxies

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport

from partita.bulk.wire import Credential
from partita.patterns.protocol.capabilities import Capabilities
from partita.service.auth.shared_key import SigningKey
from partita.service.hosting.in_process import ENDPOINTS, LocalAccount
from partita.service.hosting.services import KINDS

CONNECT_SECONDS_MAX = 20
READ_SECONDS_MAX = 60
STORAGE_RETRIES: dict[str, float] = {
    "initial_backoff": 0.5,
    "increment_base": 2,
    "random_jitter_range": 0.4,
}
"""Replaces the SDK's 15 seconds before the first retry of a queue or blob request."""

_KINDS = {kind.name: kind for kind in KINDS}


class Clients(Protocol):
    """The endpoints of the services, and the arguments of their clients."""

    endpoints: dict[str, str]

    def arguments(self, kind: str, *, is_async: bool) -> dict[str, Any]:
        """Return the arguments of a service client, including its transport."""
        ...

    def close(self) -> None: ...


class LocalClients:
    """Clients of an account in this process."""

    def __init__(self, account: LocalAccount, *, is_owned: bool) -> None:
        self.endpoints = ENDPOINTS
        self.account = account
        self._is_owned = is_owned

    def arguments(self, kind: str, *, is_async: bool) -> dict[str, Any]:
        return _retrying(kind) | self.account.client_arguments(_KINDS[kind], is_async=is_async)

    def close(self) -> None:
        """Close the account, if it was opened for these clients."""
        if self._is_owned:
            self.account.close()


class RemoteClients:
    """Clients of services over HTTP; `agent` comes first in their User-Agent."""

    def __init__(
        self, endpoints: dict[str, str], account: str, key: str, sas: str, *, agent: str = ""
    ) -> None:
        self.endpoints = endpoints
        signing = SigningKey.from_base64(key) if key else None
        self.own_credential = Credential(account, signing, sas)
        """For requests without the SDK."""
        self._agent = {"user_agent": agent} if agent else {}
        self._credential = AzureNamedKeyCredential(account, key) if key else AzureSasCredential(sas)

    def arguments(self, kind: str, *, is_async: bool) -> dict[str, Any]:
        transport = AioHttpTransport if is_async else RequestsTransport
        return (
            _retrying(kind)
            | self._agent
            | {
                ("endpoint" if kind == "tables" else "account_url"): self.endpoints[kind],
                "credential": self._credential,
                "transport": transport(
                    connection_timeout=CONNECT_SECONDS_MAX,
                    read_timeout=READ_SECONDS_MAX,
                    # The synchronous transport also finds certificates by the environment.
                    use_env_settings=not is_async or has_proxy(),
                ),
            }
        )

    def close(self) -> None:
        """Do nothing: the port closes the transports."""


def has_proxy() -> bool:
    """Return whether the environment names a proxy or a netrc file.

    If it does not, the asynchronous transport does not look for them: it would look in another
    thread, twice per request, which takes longer than the rest of the request.
    """
    return bool(getproxies()) or "NETRC" in os.environ


def _retrying(kind: str) -> dict[str, Any]:
    return {} if kind == "tables" else dict(STORAGE_RETRIES)


def check_service(capabilities: Capabilities, kind: str) -> None:
    """Raise an error if the endpoint does not have a service."""
    if kind == "queues":
        capabilities.require_queues("This call")
    if kind == "blobs":
        capabilities.require_blobs("This call")
