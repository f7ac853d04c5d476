"""The asynchronous port: drives steps, and performs their calls through the official clients."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from azure.core.exceptions import AzureError
from azure.data.tables.aio import TableServiceClient
from azure.storage.blob.aio import BlobServiceClient
from azure.storage.queue.aio import QueueServiceClient

from partita.patterns.ports.metering import AsyncMeteredTransport, Meter, metered
from partita.patterns.ports.row_requests import RowCall
from partita.patterns.ports.sdk_calls import (
    ALREADY_MADE,
    CLIENTS,
    ROW_OPTIONS,
    Plan,
    answer_of,
    make_append_blob,
    of_rows,
    plan_of,
    refusal_of,
    row_request,
)
from partita.patterns.ports.sdk_clients import Clients, check_service
from partita.patterns.ports.sdk_errors import translate
from partita.patterns.protocol.calls import (
    AppendBlob,
    Beside,
    Call,
    Cost,
    Invoke,
    ListTables,
    Parallel,
    Sleep,
    Steps,
)
from partita.patterns.protocol.capabilities import Capabilities

if TYPE_CHECKING:
    from azure.core.pipeline.transport import AsyncHttpTransport

T = TypeVar("T")


class AsyncPort(Protocol):
    """Performs calls; everything it raises on purpose is an error of Partita."""

    capabilities: Capabilities

    async def perform(self, call: Call[T], cost: Cost) -> T:
        """Answer a call, and add what it took to `cost`."""
        ...

    async def close(self) -> None: ...


async def run_steps(steps: Steps[T], port: AsyncPort, cost: Cost) -> T:
    """Drive steps to their end; they are closed however that comes."""
    answer: Any = None
    refusal: Exception | None = None
    try:
        while True:
            try:
                call = steps.send(answer) if refusal is None else steps.throw(refusal)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, refusal = None, None
            try:
                answer = await _perform(call, port, cost)
            except Exception as error:  # noqa: BLE001 - the steps decide
                refusal = error
    finally:
        steps.close()


async def _perform(call: Call[Any], port: AsyncPort, cost: Cost) -> Any:
    if isinstance(call, Sleep):
        return await asyncio.sleep(call.seconds)
    if isinstance(call, Invoke):
        result = call.function(*call.arguments)
        return await result if inspect.isawaitable(result) else result
    if isinstance(call, Parallel):
        return await _run_parallel(call.steps, call.limit, port, cost)
    if isinstance(call, Beside):
        return await _run_beside(call, port, cost)
    return await port.perform(call, cost)


async def _run_beside(call: Beside, port: AsyncPort, cost: Cost) -> Any:
    background = asyncio.ensure_future(run_steps(call.background, port, cost))
    try:
        return await run_steps(call.steps, port, cost)
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)


async def _run_parallel(
    steps: Sequence[Steps[Any]], limit: int, port: AsyncPort, cost: Cost
) -> tuple[Any, ...]:
    answers: list[Any] = [None] * len(steps)
    pending = iter(enumerate(steps))
    first: list[Exception] = []

    async def work() -> None:
        for place, one in pending:
            try:
                answers[place] = await run_steps(one, port, cost)
            except Exception as error:
                first.append(error)
                raise

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(limit, 1), len(steps))):
                group.create_task(work())
    except ExceptionGroup:
        # The first is the reason; the others failed while they were being stopped.
        raise first[0] from first[0].__cause__
    finally:
        for one in steps:
            one.close()
    return tuple(answers)


class AioPort:
    """Performs calls through the official asynchronous clients; one client for each name."""

    def __init__(self, clients: Clients, *, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._clients = clients
        self._transports: dict[str, AsyncHttpTransport[Any, Any]] = {}
        self._services: dict[str, Any] = {}
        self._kept: dict[tuple[str, str], Any] = {}

    async def perform(self, call: Call[T], cost: Cost) -> T:
        plan = plan_of(call)
        with metered(cost) as meter:
            try:
                return await self._ask(call, plan, meter, cost)
            except (AzureError, ValueError) as error:
                endpoint = self._clients.endpoints[plan.service]
                answer: T = refusal_of(call, error, meter, endpoint)
                return answer

    async def _ask(self, call: Call[T], plan: Plan, meter: Meter, cost: Cost) -> T:
        if isinstance(call, AppendBlob) and call.position == 0:
            await self._make(make_append_blob(call))
            if not call.content:
                return 0  # type: ignore[return-value]
        result = await (self._send_rows(call, plan) if of_rows(call) else self._send(plan))
        if isinstance(call, ListTables):
            result = await self._rest(plan, result)
        answer: T = answer_of(call, result, meter, cost)
        return answer

    async def _send_rows(self, call: RowCall, plan: Plan) -> Any:
        client = self._client(plan)
        request = row_request(client, call)
        return await client._client._client.send_request(request, **ROW_OPTIONS)  # noqa: SLF001

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
            if refused.code not in ALREADY_MADE:
                raise

    def _client(self, plan: Plan) -> Any:
        kept = self._kept.get((plan.service, plan.name))
        if kept is None:
            service = self._service(plan.service)
            get = getattr(service, CLIENTS[plan.service])
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
