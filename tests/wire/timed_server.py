"""An account behind HTTP in this process, by a clock that the test moves.

Claims on messages end when the test lets time pass, never because the machine is busy.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from partita.clock import ManualClock, SystemClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.in_process import open_account
from partita.service.hosting.server import Server
from partita.service.hosting.services import BLOBS, KINDS, QUEUES, TABLES, ServiceKind
from partita.service.http.request import Request, Response
from support.live import PATIENCE_SECONDS

T = TypeVar("T")


class TimedServer:
    """Blobs, queues and tables of the development account, in memory."""

    def __init__(self) -> None:
        # It begins at the present: clients sign with the machine's time.
        self.clock = ManualClock(SystemClock().ticks())
        self._renewed = threading.Semaphore(0)
        """Released whenever a claim on a message was made longer."""
        self._account = open_account(None, clock=self.clock)
        self._servers = {kind.name: self._server_of(kind) for kind in KINDS}
        for server in self._servers.values():
            self._run(server.start())

    def _server_of(self, kind: ServiceKind) -> Server:
        front = self._account._fronts[kind.name]

        async def respond(request: Request) -> Response:
            response = await front.respond(request)
            is_change = request.method == "PUT" and "popreceipt=" in request.query
            if kind is QUEUES and is_change and response.status == 204:
                self._renewed.release()
            return response

        return Server(respond, limits=kind.limits, dialect=kind.dialect)

    @property
    def connection_string(self) -> str:
        labels = {BLOBS.name: "Blob", QUEUES.name: "Queue", TABLES.name: "Table"}
        endpoints = (
            f"{labels[name]}Endpoint=http://127.0.0.1:{server.port}/{DEVELOPMENT_ACCOUNT}"
            for name, server in self._servers.items()
        )
        account = f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY}"
        return ";".join(["DefaultEndpointsProtocol=http", account, *endpoints])

    def wait_for_renewal(self) -> None:
        """Return after a claim was made longer that was asked for from now on."""
        while self._renewed.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have been under way
            assert self._renewed.acquire(timeout=PATIENCE_SECONDS), "nobody renews"

    def stop(self) -> None:
        for server in self._servers.values():
            self._run(server.stop(0))
        self._account.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._account.loop).result()
