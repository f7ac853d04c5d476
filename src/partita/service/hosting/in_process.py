"""An account in this process: the official clients without a socket.

The services run on one event loop in its own thread. Clients in any thread or event loop share
them; acknowledged writes are as durable as with a server.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.addresses import is_postgresql
from partita.clock import SystemClock
from partita.errors import ConfigurationError, UsageError
from partita.loop_thread import LoopThread
from partita.service.accounts import development
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.hosting.listening import Listening, listen
from partita.service.hosting.opening import Place, open_accounts
from partita.service.hosting.services import BLOBS, KINDS, QUEUES, TABLES, ServiceKind
from partita.service.http.request import Request, Response
from partita.storage.durability import Durability
from partita.ticks import Clock

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient
    from azure.data.tables.aio import TableServiceClient as AsyncTableServiceClient
    from azure.storage.blob import BlobServiceClient
    from azure.storage.blob.aio import BlobServiceClient as AsyncBlobServiceClient
    from azure.storage.queue import QueueServiceClient
    from azure.storage.queue.aio import QueueServiceClient as AsyncQueueServiceClient

Respond = Callable[[Request], Coroutine[Any, Any, Response]]
Around = Callable[[ServiceKind, Request, Respond], Coroutine[Any, Any, Response]]
"""Answers a request itself, raises an error, or calls the service, which is the last argument."""


ENDPOINTS = development.ENDPOINTS

_CLIENTS = ("azure.data.tables", "azure.storage.blob", "azure.storage.queue")


def open_account(
    path: str | os.PathLike[str] | None,
    *,
    durability: str = "full",
    clock: Clock | None = None,
    enforce_targets: bool = False,
    blob_store: str | None = None,
) -> "LocalAccount":
    """Open the development account of a folder; None keeps everything in memory.

    `path` is a folder as for `partita serve --path`; only one process can open it at a time. Or it
    is the URL of a PostgreSQL database, as for `partita serve --store`, which any number of
    processes can use; `blob_store` is the URL of the object store for its larger blobs.
    For tests, `clock` controls leases and the visibility of messages (the clients sign requests
    with the machine's time, so it may differ from that by 15 minutes at most), and
    `enforce_targets` answers 503 above the cloud's scalability targets, as the flag of
    `partita serve` does.

    >>> import partita
    >>> with partita.open_account(None) as account:
    ...     staff = account.tables.create_table("Staff")
    ...     _ = staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010", "Name": "Ken"})
    ...     staff.get_entity("Sales", "00010")["Name"]
    'Ken'
    """
    require_sdk()
    modes = [mode.value for mode in Durability]
    if durability not in modes:
        raise ConfigurationError(
            "Configuration",
            f"{durability!r} is not a durability.",
            hint=f"Set durability to one of: {', '.join(modes)}.",
        )
    url = path if isinstance(path, str) and is_postgresql(path) else None
    if blob_store is not None and url is None:
        raise ConfigurationError(
            "Configuration",
            "blob_store applies to PostgreSQL: a folder contains its blobs.",
            hint="Leave blob_store out, or give the URL of a database.",
        )
    where = url if url is not None or path is None else Path(path)
    place = Place(where, Durability(durability), blob_store)
    return LocalAccount(place, clock or SystemClock(), enforce_targets=enforce_targets)


def require_sdk() -> None:
    """Raise ConfigurationError if the official clients are not installed.

    They are imported when they are used: that takes a second, and a server needs none of them.
    """
    try:
        is_installed = all(map(find_spec, _CLIENTS))  # in the extra `azure`
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise ConfigurationError(
            "Configuration",
            "The official Azure SDK is not installed.",
            hint="Run: pip install './partita[azure]'",
        )


class LocalAccount:
    """An account in this process and its clients. Close it, or use it as a context manager."""

    def __init__(self, place: Place, clock: Clock, *, enforce_targets: bool = False) -> None:
        self._clock = clock
        self._opened = contextlib.AsyncExitStack()
        opening = open_accounts(
            {DEVELOPMENT_ACCOUNT: [DEVELOPMENT_KEY]}, place, clock, enforces_targets=enforce_targets
        )
        self._thread = LoopThread("partita-account", account_closed)
        try:
            entering = self._opened.enter_async_context(opening)
            [self._account] = self._thread.submit(entering).result()
        except BaseException:
            self._thread.stop()
            raise
        accounts = Accounts([self._account], self._clock)
        self._fronts = {
            kind.name: Front(kind.build(accounts, self._clock), accounts, self._clock)
            for kind in KINDS
        }
        self._listening: Listening | None = None
        self._listening_once = threading.Lock()
        self.aio = AsyncClients(self)
        self.around: Around | None = None
        """Called between the clients and the services if set: tests inject faults here."""
        self.client_options: dict[str, Any] = {}
        """Additional arguments of clients that are created from now on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the account runs on, in its own thread."""
        if self._thread.is_stopping:
            raise account_closed()
        return self._thread.loop

    @property
    def engines(self) -> Account:
        """The engines of the services, without HTTP. Use them on `loop` only."""
        return self._account

    @cached_property
    def blobs(self) -> "BlobServiceClient":
        """The synchronous blob client; always the same object."""
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415 - an extra

        return BlobServiceClient(**self.client_arguments(BLOBS))

    @cached_property
    def queues(self) -> "QueueServiceClient":
        """The synchronous queue client; always the same object."""
        from azure.storage.queue import QueueServiceClient  # noqa: PLC0415 - an extra

        return QueueServiceClient(**self.client_arguments(QUEUES))

    @cached_property
    def tables(self) -> "TableServiceClient":
        """The synchronous table client; always the same object."""
        from azure.data.tables import TableServiceClient  # noqa: PLC0415 - an extra

        return TableServiceClient(**self.client_arguments(TABLES))

    def listen(self) -> Listening:
        """Serve the account on free ports of 127.0.0.1 until it is closed; return where.

        For clients that need a socket: programs in other processes and other languages. They and
        the clients of this object see the same tables, queues and blobs. A second call returns
        what the first one returned.

        >>> import partita
        >>> from azure.data.tables import TableServiceClient
        >>> with partita.open_account(None) as account:
        ...     _ = account.tables.create_table("Staff")
        ...     text = account.listen().connection_string
        ...     with TableServiceClient.from_connection_string(text) as client:
        ...         [table.name for table in client.list_tables()]
        ['Staff']
        """
        with self._listening_once:
            if self._listening is None:
                starting = listen(self._fronts, self._account, self._clock)
                entering = self._opened.enter_async_context(starting)
                self._listening = self._thread.submit(entering).result()
            return self._listening

    @property
    def connection_string(self) -> str:
        """What clients with a socket are given; calls `listen`."""
        return self.listen().connection_string

    def client_arguments(self, kind: ServiceKind, *, is_async: bool = False) -> dict[str, Any]:
        """Return the arguments of a client of this service: in-process transport, account key."""
        from azure.core.credentials import AzureNamedKeyCredential  # noqa: PLC0415 - an extra

        from partita.service.hosting.azure_transport import AsyncInProcessTransport  # noqa: PLC0415
        from partita.service.hosting.azure_transport_sync import InProcessTransport  # noqa: PLC0415

        transport = AsyncInProcessTransport if is_async else InProcessTransport
        front = self._fronts[kind.name]

        async def respond(request: Request) -> Response:
            if self.around is None:
                return await front.respond(request)
            return await self.around(kind, request, front.respond)

        return {
            ("endpoint" if kind is TABLES else "account_url"): ENDPOINTS[kind.name],
            "credential": AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
            "transport": transport(
                respond,
                self._thread,
                stream_above_bytes=kind.limits.stream_above_bytes,
            ),
            **self.client_options,
        }

    def close(self) -> None:
        """Finish the accepted requests and release the folder or the connections."""
        if self._thread.is_stopping:
            return
        self._thread.submit(self._opened.aclose()).result()
        self._thread.stop()

    def __enter__(self) -> "LocalAccount":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def account_closed() -> UsageError:
    """Return the error of every call to a closed account."""
    return UsageError("AccountClosed", "This account is closed.", hint="Open it again.")


class AsyncClients:
    """The asynchronous clients of an account; each access creates a client."""

    def __init__(self, account: LocalAccount) -> None:
        self._account = account

    @property
    def blobs(self) -> "AsyncBlobServiceClient":
        from azure.storage.blob.aio import BlobServiceClient  # noqa: PLC0415 - an extra

        return BlobServiceClient(**self._account.client_arguments(BLOBS, is_async=True))

    @property
    def queues(self) -> "AsyncQueueServiceClient":
        from azure.storage.queue.aio import QueueServiceClient  # noqa: PLC0415 - an extra

        return QueueServiceClient(**self._account.client_arguments(QUEUES, is_async=True))

    @property
    def tables(self) -> "AsyncTableServiceClient":
        from azure.data.tables.aio import TableServiceClient  # noqa: PLC0415 - an extra

        return TableServiceClient(**self._account.client_arguments(TABLES, is_async=True))
