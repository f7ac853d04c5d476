"""An account that the console shows: where it is, what signs its requests, its clients.

Keys and SAS stay here: nothing that the API returns contains them. Clients are created when they
are first used, on the event loop of the console; the official SDK is imported in a thread.
"""

import asyncio
import importlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

import partita
from partita.addresses import is_loopback
from partita.bulk.connecting import remote_client
from partita.bulk.identity import default_credential
from partita.bulk.wire import TableClient
from partita.errors import ConfigurationError
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.hosting.locations import Remote
from partita.ticks import Clock

if TYPE_CHECKING:
    from azure.storage.blob.aio import BlobServiceClient
    from azure.storage.queue.aio import QueueServiceClient

_PATIENCE: Final[dict[str, Any]] = {
    "connection_timeout": 10,
    "read_timeout": 30,
    "retry_total": 1,
    "initial_backoff": 1,
    "random_jitter_range": 1,
}
"""How long the SDKs wait, in seconds: a page shows the error, and the user decides to retry."""


_SDK_MODULES: Final = ("azure.storage.queue.aio", "azure.storage.blob.aio")

AGENT = f"partita-console/{partita.__version__}"
"""The User-Agent of its requests: the access log shows which changes came from a console."""


class AccountFacts(msgspec.Struct, frozen=True):
    """What the pages know about an account."""

    name: str
    is_development: bool
    """The development account is not read-only by default."""
    endpoints: dict[str, str]
    """By "tables", "queues" and "blobs"."""
    has_key: bool
    """Whether SAS can be made: a SAS cannot sign another one."""


class ConsoleAccount:
    """One account and its clients."""

    def __init__(self, remote: Remote, clock: Clock) -> None:
        self.remote = remote
        self._clock = clock

    @cached_property
    def facts(self) -> AccountFacts:
        remote = self.remote
        hosts = [urlsplit(endpoint).hostname or "" for endpoint in remote.endpoints.values()]
        is_development = remote.key == DEVELOPMENT_KEY and all(map(is_loopback, hosts))
        return AccountFacts(
            name=self.name,
            is_development=is_development,
            endpoints=remote.endpoints,
            has_key=bool(remote.key),
        )

    @cached_property
    def name(self) -> str:
        return self.remote.account or account_name_of(next(iter(self.remote.endpoints.values())))

    @cached_property
    def tables(self) -> TableClient:
        """The client of the tables."""
        self._endpoint("tables")
        return remote_client(self.remote, self._clock, agent=AGENT)

    @cached_property
    def queues(self) -> "QueueServiceClient":
        """The client of the queues; the SDK is imported."""
        from azure.storage.queue.aio import QueueServiceClient  # noqa: PLC0415 - an extra

        return QueueServiceClient(
            self._endpoint("queues"), credential=self._credential(), user_agent=AGENT, **_PATIENCE
        )

    @cached_property
    def blobs(self) -> "BlobServiceClient":
        """The client of the blobs; the SDK is imported."""
        from azure.storage.blob.aio import BlobServiceClient  # noqa: PLC0415 - an extra

        return BlobServiceClient(
            self._endpoint("blobs"), credential=self._credential(), user_agent=AGENT, **_PATIENCE
        )

    def _endpoint(self, service: str) -> str:
        endpoint = self.remote.endpoints.get(service)
        if endpoint is None:
            raise ConfigurationError(
                "ConsoleServiceMissing",
                f"The console has no address of the {service} of this account.",
                facts={"account": self.name},
                hint=f"Name the {service[:-1].title()}Endpoint in the connection string.",
            )
        return endpoint

    def _credential(self) -> Any:
        if self.remote.has_identity:
            return default_credential("azure.identity.aio")
        if self.remote.key:
            return {"account_name": self.name, "account_key": self.remote.key}
        return self.remote.sas

    async def close(self) -> None:
        """Close the clients that were used."""
        for name in ("tables", "queues", "blobs"):
            if name in self.__dict__:
                await self.__dict__[name].close()


def account_name_of(endpoint: str) -> str:
    """Return the name of the account in the address of a service.

    >>> account_name_of("https://shop.table.core.windows.net")
    'shop'
    >>> account_name_of("http://127.0.0.1:10002/devstoreaccount1")
    'devstoreaccount1'
    """
    parts = urlsplit(endpoint)
    return parts.path.strip("/") or (parts.hostname or "").partition(".")[0]


class SdkImport:
    """Imports the official SDK once, in a thread: it takes a second of computing, or several."""

    def __init__(self) -> None:
        self._importing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the import unless it was started."""
        if self._importing is None:
            self._importing = asyncio.create_task(asyncio.to_thread(_import_sdk))

    async def finish(self) -> None:
        """Wait until the SDK is imported; ConfigurationError without the extra `console`."""
        self.begin()
        assert self._importing is not None
        try:
            await asyncio.shield(self._importing)
        except ImportError as error:
            raise ConfigurationError(
                "Configuration",
                "The official Azure SDK is not installed.",
                hint="Run: pip install './partita[console]'",
            ) from error

    async def close(self) -> None:
        """Wait for the end of the import: a thread cannot be cancelled."""
        if self._importing is not None:
            await asyncio.wait([self._importing])
            self._importing.exception()  # retrieved: without the extra it is an ImportError


def _import_sdk() -> None:
    for name in _SDK_MODULES:
        importlib.import_module(name)
