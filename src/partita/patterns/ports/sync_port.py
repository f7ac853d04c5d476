"""The synchronous port: drives steps, and performs their calls through the official clients."""

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from azure.core.exceptions import AzureError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from partita.errors import UsageError
from partita.patterns.ports.metering import Meter, MeteredTransport, metered
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
    from azure.core.pipeline.transport import HttpTransport

T = TypeVar("T")


class SyncPort(Protocol):
    """Performs calls; everything it raises on purpose is an error of Partita."""

    capabilities: Capabilities

    def perform(self, call: Call[T], cost: Cost) -> T:
        """Answer a call, and add what it took to `cost`."""
        ...

    def close(self) -> None: ...


def run_steps(steps: Steps[T], port: SyncPort, cost: Cost) -> T:
    """Drive steps to their end; they are closed however that comes."""
    return _drive(steps, port, cost, _Stop())


class _Stop:
    """Ends steps beside which others have failed, and all that those drive in turn."""

    def __init__(self, parent: "_Stop | None" = None) -> None:
        self.asked = threading.Event()
        self.inner: list[_Stop] = []
        if parent is not None:
            parent.inner.append(self)
            if parent.asked.is_set():
                self.asked.set()

    def ask(self) -> None:
        self.asked.set()
        for stop in self.inner:
            stop.ask()

    def check(self) -> None:
        if self.asked.is_set():
            raise _StoppedError

    def sleep(self, seconds: float) -> None:
        if self.asked.wait(seconds):
            raise _StoppedError


class _StoppedError(BaseException):
    """No business of the steps that it ends, as a cancellation."""


def _drive(steps: Steps[T], port: SyncPort, cost: Cost, stop: _Stop) -> T:
    answer: Any = None
    refusal: Exception | None = None
    try:
        while True:
            try:
                call = steps.send(answer) if refusal is None else steps.throw(refusal)
            except StopIteration as end:
                result: T = end.value
                return result
            stop.check()
            answer, refusal = None, None
            try:
                answer = _perform(call, port, cost, stop)
            except Exception as error:  # noqa: BLE001 - the steps decide
                refusal = error
    finally:
        steps.close()


def _perform(call: Call[Any], port: SyncPort, cost: Cost, stop: _Stop) -> Any:
    if isinstance(call, Sleep):
        return stop.sleep(call.seconds)
    if isinstance(call, Invoke):
        return _invoke(call)
    if isinstance(call, Parallel):
        return _run_parallel(call, port, cost, stop)
    if isinstance(call, Beside):
        return _run_beside(call, port, cost, stop)
    return port.perform(call, cost)


def _invoke(call: Invoke) -> Any:
    result = None if inspect.iscoroutinefunction(call.function) else call.function(*call.arguments)
    if inspect.isawaitable(result) or inspect.iscoroutinefunction(call.function):
        if inspect.iscoroutine(result):
            result.close()
        name = getattr(call.function, "__qualname__", repr(call.function))
        raise UsageError(
            "AsynchronousFunction",
            f"{name} must be awaited, and nothing here can await.",
            hint="Give a plain function, or use partita.patterns.connect instead of its sync twin.",
        )
    return result


def _run_beside(call: Beside, port: SyncPort, cost: Cost, parent: _Stop) -> Any:
    stop, spent = _Stop(parent), Cost()

    def work() -> None:
        with contextlib.suppress(Exception, _StoppedError):
            _drive(call.background, port, spent, stop)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    try:
        return _drive(call.steps, port, cost, parent)
    finally:
        stop.ask()
        thread.join()
        cost.add(spent)


def _run_parallel(call: Parallel, port: SyncPort, cost: Cost, parent: _Stop) -> tuple[Any, ...]:
    answers: list[Any] = [None] * len(call.steps)
    pending = iter(enumerate(call.steps))
    taking = threading.Lock()
    stop = _Stop(parent)
    errors: list[BaseException] = []

    def work() -> None:
        own = Cost()
        try:
            while True:
                with taking:
                    taken = next(pending, None)
                if taken is None:
                    return
                answers[taken[0]] = _drive(taken[1], port, own, stop)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)
            stop.ask()
        finally:
            with taking:
                cost.add(own)

    try:
        _run_in_threads(work, min(max(call.limit, 1), len(call.steps)), stop)
    finally:
        for steps in call.steps:
            steps.close()
    if errors:
        raise errors[0]  # the reason; the others failed because they were stopped
    return tuple(answers)


def _run_in_threads(work: Callable[[], None], count: int, stop: _Stop) -> None:
    with ThreadPoolExecutor(max(count, 1), "partita-parallel") as threads:
        started = [threads.submit(contextvars.copy_context().run, work) for _ in range(count)]
        try:
            wait(started)
        except BaseException:
            stop.ask()  # the executor still waits for what is under way
            raise


class SdkPort:
    """Performs calls through the official synchronous clients; one client for each name."""

    def __init__(self, clients: Clients, *, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._clients = clients
        self._transports: dict[str, HttpTransport[Any, Any]] = {}
        self._services: dict[str, Any] = {}
        self._kept: dict[tuple[str, str], Any] = {}
        self._building = threading.Lock()

    def perform(self, call: Call[T], cost: Cost) -> T:
        plan = plan_of(call)
        with metered(cost) as meter:
            try:
                return self._ask(call, plan, meter, cost)
            except (AzureError, ValueError) as error:
                endpoint = self._clients.endpoints[plan.service]
                answer: T = refusal_of(call, error, meter, endpoint)
                return answer

    def _ask(self, call: Call[T], plan: Plan, meter: Meter, cost: Cost) -> T:
        if isinstance(call, AppendBlob) and call.position == 0:
            self._make(make_append_blob(call))
            if not call.content:
                return 0  # type: ignore[return-value]
        result = self._send_rows(call, plan) if of_rows(call) else self._send(plan)
        if isinstance(call, ListTables):
            result = self._rest(plan, result)
        answer: T = answer_of(call, result, meter, cost)
        return answer

    def _send_rows(self, call: RowCall, plan: Plan) -> Any:
        client = self._client(plan)
        request = row_request(client, call)
        return client._client._client.send_request(request, **ROW_OPTIONS)  # noqa: SLF001

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
            if refused.code not in ALREADY_MADE:
                raise

    def _client(self, plan: Plan) -> Any:
        kept = self._kept.get((plan.service, plan.name))
        if kept is None:
            with self._building:
                service = self._service(plan.service)
                get = getattr(service, CLIENTS[plan.service])
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
