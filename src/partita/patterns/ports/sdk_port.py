"""The official SDK as a port: performs calls through its clients and translates their errors.

`sdk_port_sync` is generated from this module by tools/make_sync.py.
"""

import asyncio
import threading
from typing import Any, TypeVar

import msgspec
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.data.tables.aio import TableServiceClient
from azure.storage.blob.aio import BlobServiceClient
from azure.storage.queue.aio import QueueServiceClient

from partita.patterns.ports import sdk_calls
from partita.patterns.ports.row_requests import RowCall
from partita.patterns.ports.sdk_calls import Meter, Plan, current_meter, metered
from partita.patterns.ports.sdk_clients import Clients, check_service
from partita.patterns.ports.sdk_errors import translate, was_sent
from partita.patterns.protocol.calls import AppendBlob, Call, Cost, ListTables
from partita.patterns.protocol.capabilities import Capabilities

T = TypeVar("T")


class AioPort:
    """Performs calls through the official asynchronous clients; keeps one client per name."""

    def __init__(self, clients: Clients, *, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._clients = clients
        self._transports: dict[str, AsyncHttpTransport[Any, Any]] = {}
        self._services: dict[str, Any] = {}
        self._kept: dict[tuple[str, str], Any] = {}
        self._building = threading.Lock()  # for the threads of the synchronous port

    async def perform(self, call: Call[T], cost: Cost) -> T:
        plan = sdk_calls.plan_of(call)
        with metered(cost) as meter:
            try:
                return await self._ask(call, plan, meter, cost)
            except (AzureError, ValueError) as error:
                endpoint = self._clients.endpoints[plan.service]
                answer: T = sdk_calls.refusal_of(call, error, meter, endpoint)
                return answer

    async def _ask(self, call: Call[T], plan: Plan, meter: Meter, cost: Cost) -> T:
        if isinstance(call, AppendBlob) and call.position == 0:
            await self._make(sdk_calls.make_append_blob(call))
            if not call.content:
                return 0  # type: ignore[return-value]
        result = await (
            self._send_rows(call, plan) if sdk_calls.of_rows(call) else self._send(plan)
        )
        if isinstance(call, ListTables):
            result = await self._rest(plan, result)
        answer: T = sdk_calls.answer_of(call, result, meter, cost)
        return answer

    async def _send_rows(self, call: RowCall, plan: Plan) -> Any:
        client = self._client(plan)
        request = sdk_calls.row_request(client, call)
        return await client._client._client.send_request(request, **sdk_calls.ROW_OPTIONS)  # noqa: SLF001

    async def _send(self, plan: Plan) -> Any:
        result = getattr(self._client(plan), plan.method)(*plan.arguments, **plan.options)
        if plan.result == "page":
            pages = result.by_page(plan.continuation) if plan.continuation else result.by_page()
            async for page in pages:
                return [item async for item in page], pages.continuation_token
            return [], None
        result = await result
        if plan.result == "stream":
            return await result.readall(), result.properties
        return result

    async def _rest(self, plan: Plan, first: tuple[list[Any], Any]) -> tuple[list[Any], None]:
        items, continuation = first
        while continuation:
            page = msgspec.structs.replace(plan, continuation=continuation)
            more, continuation = await self._send(page)
            items += more
        return items, None

    async def _make(self, plan: Plan) -> None:
        try:
            await self._send(plan)
        except AzureError as error:
            refused = translate(error, endpoint=self._clients.endpoints["blobs"])
            if refused.code not in sdk_calls.ALREADY_MADE:
                raise

    def _client(self, plan: Plan) -> Any:
        kept = self._kept.get((plan.service, plan.name))
        if kept is None:
            with self._building:
                service = self._service(plan.service)
                get = getattr(service, sdk_calls.CLIENTS[plan.service])
                kept = get(plan.name) if plan.name else service
                self._kept[plan.service, plan.name] = kept
        return kept.get_blob_client(plan.blob) if plan.blob else kept

    def _service(self, kind: str) -> Any:
        found = self._services.get(kind)
        if found is None:
            check_service(self.capabilities, kind)
            arguments = self._clients.arguments(kind, is_async=True)
            inner = self._transports[kind] = arguments.pop("transport")
            transport = AsyncMeteredTransport(inner, is_whole=kind == "tables")
            made = _SERVICES[kind](**arguments, transport=transport)
            found = self._services[kind] = made
        return found

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()
        self._kept.clear()
        self._services.clear()
        self._transports.clear()
        await asyncio.to_thread(self._clients.close)


_SERVICES: dict[str, Any] = {
    "tables": TableServiceClient,
    "queues": QueueServiceClient,
    "blobs": BlobServiceClient,
}


class AsyncMeteredTransport(AsyncHttpTransport[Any, Any]):
    """Counts the requests of the asynchronous clients.

    With `is_whole` a response is read completely although the pipeline asks for a stream: the
    pipeline then does not decode the body, and retries a response that breaks off like any other.
    """

    def __init__(self, inner: AsyncHttpTransport[Any, Any], *, is_whole: bool) -> None:
        self._inner = inner
        self._is_whole = is_whole

    async def send(self, request: Any, **options: Any) -> Any:
        meter = current_meter()
        meter.requests += 1
        if self._is_whole:
            options["stream"] = False
        try:
            response = await self._inner.send(request, **options)
        except AzureError as error:
            meter.is_in_doubt = meter.is_in_doubt or was_sent(error)
            raise
        meter.answer(response.status_code)
        return response

    async def open(self) -> None:
        """Do nothing: the inner transport opens itself."""

    async def close(self) -> None:
        """Do nothing: the port closes the inner transport, which several clients share."""

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, as `close`."""

    async def sleep(self, duration: float) -> None:
        await self._inner.sleep(duration)
