"""The official SDK as a synchronous port: performs calls, translates errors.

Generated from sdk_port.py by tools/make_sync.py. Do not edit: change the source instead.
"""

import threading
from typing import Any, TypeVar

import msgspec
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import HttpTransport
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from partita.patterns.ports import sdk_calls
from partita.patterns.ports.row_requests import RowCall
from partita.patterns.ports.sdk_calls import Meter, Plan, current_meter, metered
from partita.patterns.ports.sdk_clients import Clients, check_service
from partita.patterns.ports.sdk_errors import translate, was_sent
from partita.patterns.protocol.calls import AppendBlob, Call, Cost, ListTables
from partita.patterns.protocol.capabilities import Capabilities

T = TypeVar("T")


class SdkPort:
    """Performs calls through the official synchronous clients; keeps one client per name."""

    def __init__(self, clients: Clients, *, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._clients = clients
        self._transports: dict[str, HttpTransport[Any, Any]] = {}
        self._services: dict[str, Any] = {}
        self._kept: dict[tuple[str, str], Any] = {}
        self._building = threading.Lock()  # for the threads of the synchronous port

    def perform(self, call: Call[T], cost: Cost) -> T:
        plan = sdk_calls.plan_of(call)
        with metered(cost) as meter:
            try:
                return self._ask(call, plan, meter, cost)
            except (AzureError, ValueError) as error:
                endpoint = self._clients.endpoints[plan.service]
                answer: T = sdk_calls.refusal_of(call, error, meter, endpoint)
                return answer

    def _ask(self, call: Call[T], plan: Plan, meter: Meter, cost: Cost) -> T:
        if isinstance(call, AppendBlob) and call.position == 0:
            self._make(sdk_calls.make_append_blob(call))
            if not call.content:
                return 0  # type: ignore[return-value]
        result = self._send_rows(call, plan) if sdk_calls.of_rows(call) else self._send(plan)
        if isinstance(call, ListTables):
            result = self._rest(plan, result)
        answer: T = sdk_calls.answer_of(call, result, meter, cost)
        return answer

    def _send_rows(self, call: RowCall, plan: Plan) -> Any:
        client = self._client(plan)
        request = sdk_calls.row_request(client, call)
        return client._client._client.send_request(request, **sdk_calls.ROW_OPTIONS)  # noqa: SLF001

    def _send(self, plan: Plan) -> Any:
        result = getattr(self._client(plan), plan.method)(*plan.arguments, **plan.options)
        if plan.result == "page":
            pages = result.by_page(plan.continuation) if plan.continuation else result.by_page()
            for page in pages:
                return list(page), pages.continuation_token
            return [], None
        if plan.result == "stream":
            return result.readall(), result.properties
        return result

    def _rest(self, plan: Plan, first: tuple[list[Any], Any]) -> tuple[list[Any], None]:
        items, continuation = first
        while continuation:
            page = msgspec.structs.replace(plan, continuation=continuation)
            more, continuation = self._send(page)
            items += more
        return items, None

    def _make(self, plan: Plan) -> None:
        try:
            self._send(plan)
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
            arguments = self._clients.arguments(kind, is_async=False)
            inner = self._transports[kind] = arguments.pop("transport")
            transport = MeteredTransport(inner, is_whole=kind == "tables")
            made = _SERVICES[kind](**arguments, transport=transport)
            found = self._services[kind] = made
        return found

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()
        self._kept.clear()
        self._services.clear()
        self._transports.clear()
        self._clients.close()


_SERVICES: dict[str, Any] = {
    "tables": TableServiceClient,
    "queues": QueueServiceClient,
    "blobs": BlobServiceClient,
}


class MeteredTransport(HttpTransport[Any, Any]):
    """Counts the requests of the synchronous clients.

    With `is_whole` a response is read completely although the pipeline asks for a stream: the
    pipeline then does not decode the body, and retries a response that breaks off like any other.
    """

    def __init__(self, inner: HttpTransport[Any, Any], *, is_whole: bool) -> None:
        self._inner = inner
        self._is_whole = is_whole

    def send(self, request: Any, **options: Any) -> Any:
        meter = current_meter()
        meter.requests += 1
        if self._is_whole:
            options["stream"] = False
        try:
            response = self._inner.send(request, **options)
        except AzureError as error:
            meter.is_in_doubt = meter.is_in_doubt or was_sent(error)
            raise
        meter.answer(response.status_code)
        return response

    def open(self) -> None:
        """Do nothing: the inner transport opens itself."""

    def close(self) -> None:
        """Do nothing: the port closes the inner transport, which several clients share."""

    def __exit__(self, *_: object) -> None:
        """Do nothing, as `close`."""

    def sleep(self, duration: float) -> None:
        self._inner.sleep(duration)
