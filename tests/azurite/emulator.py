"""Azurite as a process, and accounts of it that the tests take for Partita's own.

`EmulatedAccount` is a `LocalAccount` whose services are Azurite's: the official clients hand each
request to the account as ever, and the account sends it on by HTTP, byte for byte as it was
signed. So whatever stands between clients and services (faults, a test's `around`) stands there
still.
"""

import io
import itertools
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ServiceRequestError
from bench.tables.servers import Server, azurite_in_memory, free_port
from yarl import URL

from partita.clock import SystemClock
from partita.loop_thread import LoopThread
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account
from partita.service.formats.address import print_continuation
from partita.service.hosting.azure_transport import AsyncInProcessTransport
from partita.service.hosting.azure_transport_sync import InProcessTransport
from partita.service.hosting.in_process import (
    ENDPOINTS,
    AsyncClients,
    LocalAccount,
    account_closed,
)
from partita.service.hosting.services import BLOBS, QUEUES, TABLES, ServiceKind
from partita.service.http.request import Request, Response

SPARE_ACCOUNTS = 4000
_SPARE_KEY = "YSBrZXkgZm9yIHRlc3Rz"
_ADDED_BY_THE_CONNECTION = {"host", "content-length", "connection", "transfer-encoding"}
_NEXT = ("NextPartitionKey", "NextRowKey")
_LEFT_AS_SIGNED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Emulator:
    """One Azurite on free ports. Its accounts are the development account and spare ones."""

    def __init__(self, folder: Path) -> None:
        self._ports = {BLOBS.name: free_port(), QUEUES.name: free_port()}
        self._server: Server = azurite_in_memory(
            folder, self._ports[BLOBS.name], self._ports[QUEUES.name]
        )
        self._ports[TABLES.name] = self._server.port
        self._spare = itertools.cycle([f"spare{number:04d}" for number in range(SPARE_ACCOUNTS)])
        os.environ["AZURITE_ACCOUNTS"] = ";".join(
            [f"{DEVELOPMENT_ACCOUNT}:{DEVELOPMENT_KEY}"]
            + [f"spare{number:04d}:{_SPARE_KEY}" for number in range(SPARE_ACCOUNTS)]
        )
        try:
            self._server.start()  # of the three services it starts that of tables last
        finally:
            del os.environ["AZURITE_ACCOUNTS"]
        self._opened: dict[Path, str] = {}
        self.is_used = False
        """The test at hand has opened an account."""

    def open(self, path: str | os.PathLike[str] | None) -> "EmulatedAccount":
        """Open the development account first, and then one spare account after the other.

        A folder that is opened again has kept its account.
        """
        key = None if path is None else Path(path).absolute()
        name = None if key is None else self._opened.get(key)
        if name is None:
            name = next(self._spare) if self.is_used else DEVELOPMENT_ACCOUNT
        self.is_used = True
        if key is not None:
            self._opened[key] = name
        return EmulatedAccount(self._ports, name)

    def empty(self) -> None:
        """Leave nothing behind of a test. Spare accounts are used once."""
        self._opened.clear()
        if not self.is_used:
            return
        self.is_used = False
        with EmulatedAccount(self._ports, DEVELOPMENT_ACCOUNT) as account:
            for table in account.tables.list_tables():
                account.tables.delete_table(table.name)
            for queue in account.queues.list_queues():
                account.queues.delete_queue(queue.name)
            for container in account.blobs.list_containers():
                account.blobs.delete_container(container.name)

    def connection_string(self) -> str:
        """Return that of the development account, which counts as opening it."""
        self.is_used = True
        words = {TABLES.name: "Table", QUEUES.name: "Queue", BLOBS.name: "Blob"}
        places = [
            f"{words[kind]}Endpoint=http://127.0.0.1:{port}/{DEVELOPMENT_ACCOUNT}"
            for kind, port in self._ports.items()
        ]
        return ";".join(
            [f"AccountName={DEVELOPMENT_ACCOUNT}", f"AccountKey={DEVELOPMENT_KEY}", *places]
        )

    def stop(self) -> None:
        self._server.stop()


class EmulatedAccount(LocalAccount):
    """An account of Azurite in the place of one in this process."""

    def __init__(self, ports: dict[str, int], name: str) -> None:
        self._ports = ports
        self._name = name
        self._clock = SystemClock()
        self._thread = LoopThread("azurite-account", account_closed)
        self._session: aiohttp.ClientSession = self._thread.submit(_new_session()).result()
        self.aio = AsyncClients(self)
        self.around = None
        self.client_options: dict[str, Any] = {}

    @property
    def engines(self) -> Account:
        pytest.skip("looks inside an account of Partita")

    def client_arguments(self, kind: ServiceKind, *, is_async: bool = False) -> dict[str, Any]:
        async def respond(request: Request) -> Response:
            async def send(again: Request) -> Response:
                return await self._send(kind, again)

            if self.around is None:
                return await send(request)
            return await self.around(kind, request, send)

        transport = AsyncInProcessTransport if is_async else InProcessTransport
        key = DEVELOPMENT_KEY if self._name == DEVELOPMENT_ACCOUNT else _SPARE_KEY
        endpoint = ENDPOINTS[kind.name].replace(DEVELOPMENT_ACCOUNT, self._name)
        return {
            ("endpoint" if kind is TABLES else "account_url"): endpoint,
            "credential": AzureNamedKeyCredential(self._name, key),
            "transport": transport(
                respond, self._thread, stream_above_bytes=kind.limits.stream_above_bytes
            ),
            **self.client_options,
        }

    async def _send(self, kind: ServiceKind, request: Request) -> Response:
        query = f"?{_from_the_start(request.query)}" if request.query else ""
        address = f"http://127.0.0.1:{self._ports[kind.name]}{request.path}{query}"
        body = request.body
        if request.upload is not None:
            body = b"".join([piece async for piece in request.upload])
        headers = {
            request.spelled.get(name, name): value
            for name, value in request.headers.items()
            if name not in _ADDED_BY_THE_CONNECTION
        }
        try:
            async with self._session.request(
                request.method,
                URL(address, encoded=True),
                data=io.BytesIO(body) if body else None,
                headers=headers,
                skip_auto_headers=_LEFT_AS_SIGNED,
            ) as answer:
                content = await answer.read()
                kept = [
                    (name, value)
                    for name, value in answer.headers.items()
                    if name.lower() not in _ADDED_BY_THE_CONNECTION or request.method == "HEAD"
                ]
                return Response(answer.status, kept, content)
        except aiohttp.ClientError as error:
            raise ServiceRequestError(str(error), error=error) from error

    def close(self) -> None:
        if self._thread.is_stopping:
            return
        self._thread.submit(self._session.close()).result()
        self._thread.stop()


def _from_the_start(query: str) -> str:
    """Leave out a continuation that hostile paging made up: only Partita knows it as the start."""
    made_up = {f"{name}={print_continuation('')}" for name in _NEXT}
    return "&".join([each for each in query.split("&") if unquote(each) not in made_up])


async def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(auto_decompress=False)
