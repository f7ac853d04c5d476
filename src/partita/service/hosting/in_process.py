"""An account in this process: the official clients without a socket.

The service runs on one event loop in a thread of its own. Clients of any thread or loop share
it; what they acknowledge is as durable as with a server.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from partita.clock import SystemClock
from partita.errors import ConfigurationError, UsageError
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.rate_targets import Targets
from partita.service.accounts.respond import Front
from partita.service.hosting.services import BLOBS, KINDS, QUEUES, TABLES, ServiceKind
from partita.service.http.request import Request, Response
from partita.storage.database import Durability
from partita.ticks import Clock

if TYPE_CHECKING:
    from azure.data.tables import TableServiceClient
    from azure.data.tables.aio import TableServiceClient as AsyncTableServiceClient
    from azure.storage.blob import BlobServiceClient
    from azure.storage.blob.aio import BlobServiceClient as AsyncBlobServiceClient
    from azure.storage.queue import QueueServiceClient
    from azure.storage.queue.aio import QueueServiceClient as AsyncQueueServiceClient

T = TypeVar("T")

Respond = Callable[[Request], Coroutine[Any, Any, Response]]
Around = Callable[[ServiceKind, Request, Respond], Coroutine[Any, Any, Response]]
"""Answers a request to a service, which is the last argument, or asks it, or raises."""

ENDPOINTS = {kind.name: f"http://127.0.0.1:{kind.port}/{DEVELOPMENT_ACCOUNT}" for kind in KINDS}
"""What the clients believe they talk to: the addresses that `partita serve` has by default."""


def open_account(
    path: str | os.PathLike[str] | None,
    *,
    durability: str = "full",
    clock: Clock | None = None,
    enforce_targets: bool = False,
) -> "LocalAccount":
    """Open the development account of a folder; None keeps everything in memory.

    The folder is the one that `partita serve --path` takes. One process can hold it at a time.
    For tests: a `clock` of one's own moves leases and hidden messages (the clients sign with the
    machine's time, so that it may be 15 minutes from that), and `enforce_targets` answers 503
    above the cloud's scalability targets, as the flag of `partita serve` does.

    >>> import partita
    >>> with partita.open_account(None) as account:
    ...     staff = account.tables.create_table("Staff")
    ...     _ = staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010", "Name": "Ken"})
    ...     staff.get_entity("Sales", "00010")["Name"]
    'Ken'
    """
    try:
        import azure.data.tables  # noqa: PLC0415 - an extra; say so if it is not there
        import azure.storage.blob  # noqa: PLC0415
        import azure.storage.queue  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "Configuration",
            "The official Azure SDK is not installed.",
            hint="Run: pip install 'partita[azure]'",
        ) from error
    modes = [mode.value for mode in Durability]
    if durability not in modes:
        raise ConfigurationError(
            "Configuration", f"{durability!r} is no durability.", hint=f"One of: {', '.join(modes)}"
        )
    root = None if path is None else Path(path)
    return LocalAccount(
        root, Durability(durability), clock or SystemClock(), enforce_targets=enforce_targets
    )


class LocalAccount:
    """The clients of one account in this process. Close it, or use it as a context."""

    def __init__(
        self,
        root: Path | None,
        durability: Durability,
        clock: Clock,
        *,
        enforce_targets: bool = False,
    ) -> None:
        self._clock = clock
        self._targets = Targets(clock) if enforce_targets else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="partita-account", daemon=True
        )
        self._thread.start()
        try:
            self._account = self._run(self._open(root, durability))
        except BaseException:
            self._stop_loop()
            raise
        accounts = Accounts([self._account], self._clock)
        self._fronts = {
            kind.name: Front(kind.build(accounts, self._clock), accounts, self._clock)
            for kind in KINDS
        }
        self._blobs: BlobServiceClient | None = None
        self._queues: QueueServiceClient | None = None
        self._tables: TableServiceClient | None = None
        self.aio = AsyncClients(self)
        self.around: Around | None = None
        """Stands between the clients and the services, when it is set: tests bring faults in."""
        self.client_options: dict[str, Any] = {}
        """Further arguments of the clients that are built from now on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the account lives on, in a thread of its own."""
        if self._loop.is_closed():
            raise UsageError("AccountClosed", "This account is closed.", hint="Open it again.")
        return self._loop

    @property
    def engines(self) -> Account:
        """What the services answer from, without HTTP. Use it on `loop` only."""
        return self._account

    @property
    def blobs(self) -> "BlobServiceClient":
        """The synchronous blob client, the same at every call."""
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415 - an extra

        if self._blobs is None:
            self._blobs = BlobServiceClient(**self.client_arguments(BLOBS))
        return self._blobs

    @property
    def queues(self) -> "QueueServiceClient":
        """The synchronous queue client, the same at every call."""
        from azure.storage.queue import QueueServiceClient  # noqa: PLC0415 - an extra

        if self._queues is None:
            self._queues = QueueServiceClient(**self.client_arguments(QUEUES))
        return self._queues

    @property
    def tables(self) -> "TableServiceClient":
        """The synchronous table client, the same at every call."""
        from azure.data.tables import TableServiceClient  # noqa: PLC0415 - an extra

        if self._tables is None:
            self._tables = TableServiceClient(**self.client_arguments(TABLES))
        return self._tables

    def client_arguments(self, kind: ServiceKind, *, is_async: bool = False) -> dict[str, Any]:
        """Return what a client of this service is built with: no socket, the account's key."""
        from azure.core.credentials import AzureNamedKeyCredential  # noqa: PLC0415 - an extra

        from partita.service.hosting.azure_transport import (  # noqa: PLC0415
            AsyncInProcessTransport,
            InProcessTransport,
        )

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
                self._loop,
                stream_above_bytes=kind.limits.stream_above_bytes,
            ),
            **self.client_options,
        }

    def close(self) -> None:
        """Finish what was accepted and give the folder free."""
        if self._loop.is_closed():
            return
        self._run(self._account.close())
        self._stop_loop()

    def __enter__(self) -> "LocalAccount":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _open(self, root: Path | None, durability: Durability) -> Account:
        return await Account.open(
            DEVELOPMENT_ACCOUNT,
            [DEVELOPMENT_KEY],
            root=root,
            durability=durability,
            clock=self._clock,
            targets=self._targets,
        )

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AsyncClients:
    """The asynchronous twins of an account's clients; each call gives a client of its own."""

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
