"""Front ends in this process that record logs and metrics, by a clock that the test moves."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from partita.clock import ManualClock, SystemClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.analytics.recorder import Recorder
from partita.service.blobs.service import BlobService
from partita.service.hosting.opening import Place, open_accounts
from partita.service.hosting.server import Server
from partita.service.hosting.services import BLOBS, KINDS
from partita.service.observing import ServiceMeter
from partita.ticks import TICKS_PER_SECOND

T = TypeVar("T")

LABELS = {"blobs": "Blob", "queues": "Queue", "tables": "Table"}
DAY_SECONDS = 24 * 3600
TICKS_PER_HOUR = 3600 * TICKS_PER_SECOND


class RecordedServer:
    """The three services of the development account on free ports, and their recorder.

    Its clock begins in the middle of an hour and moves only when the test moves it; requests are
    accepted whatever time they were signed at.
    """

    def __init__(self, where: Path | str | None = None, clock: ManualClock | None = None) -> None:
        now = SystemClock().ticks()
        self.clock = clock or ManualClock(now - now % TICKS_PER_HOUR + TICKS_PER_HOUR // 2)
        self._where = where
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._opened = contextlib.AsyncExitStack()
        self.run(self._open())

    async def _open(self) -> None:
        place = Place(self._where, checks_clock=False)
        keys = {DEVELOPMENT_ACCOUNT: [DEVELOPMENT_KEY]}
        opened = open_accounts(keys, place, self.clock)
        accounts = await self._opened.enter_async_context(opened)
        self.account: Account = accounts[0]
        known = Accounts(accounts, self.clock)
        self.meters = {kind.name: ServiceMeter(kind.name) for kind in KINDS}
        # Only the test lets it write, in `pass_time` and `stop`.
        self.recorder = Recorder(accounts, self.meters, self.clock, tick_seconds=DAY_SECONDS)
        self._opened.push_async_callback(self.recorder.close)
        self.recorder.start()
        self.servers: dict[str, Server] = {}
        for kind in KINDS:
            service = (
                BlobService(known, self.clock, skew_seconds=None)
                if kind is BLOBS
                else kind.build(known, self.clock)
            )
            server = Server(
                Front(service, known, self.clock, skew_seconds=None).respond,
                limits=kind.limits,
                dialect=kind.dialect,
                observer=self.meters[kind.name],
            )
            await server.start()
            self._opened.push_async_callback(server.stop, 0)
            self.servers[kind.name] = server

    @property
    def connection_string(self) -> str:
        endpoints = (
            f"{LABELS[name]}Endpoint=http://127.0.0.1:{server.port}/{DEVELOPMENT_ACCOUNT}"
            for name, server in self.servers.items()
        )
        account = f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY}"
        return ";".join(["DefaultEndpointsProtocol=http", account, *endpoints])

    @property
    def blobs(self) -> BlobServiceClient:
        return BlobServiceClient.from_connection_string(self.connection_string, retry_total=0)

    @property
    def queues(self) -> QueueServiceClient:
        return QueueServiceClient.from_connection_string(self.connection_string, retry_total=0)

    @property
    def tables(self) -> TableServiceClient:
        return TableServiceClient.from_connection_string(self.connection_string, retry_total=0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and let the recorder do what is due then."""
        self.clock.advance(seconds)
        self.run(self.recorder.tick())
        if self.recorder._measuring is not None:
            self.run(_finished(self.recorder._measuring))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        """Stop as `partita serve` does: the servers, the recorder, the accounts."""
        self.run(self._opened.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


async def _finished(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])
