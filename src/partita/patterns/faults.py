"""Fault injection for tests, between the clients of an in-process account and its services.

The official clients see the failures of a network, so that their own retries run. `ShufflingPort`
returns rows unordered, to test code that must not rely on order.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from azure.core.exceptions import ServiceRequestError, ServiceResponseError

from partita.clock import ManualClock
from partita.errors import PartitaError, ThrottledError, UnavailableError
from partita.patterns.ports.aio_port import AsyncPort
from partita.patterns.protocol.calls import Call, Continuation, Cost, QueryRows, RowPage
from partita.patterns.protocol.values import Row, measure
from partita.service.formats.address import print_continuation
from partita.service.formats.error_wire import encode_error, encode_json
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import TABLES, ServiceKind
from partita.service.http.request import Request, Response
from partita.service.tables.calls import Level
from partita.tables.limits import PAGE_ENTITIES_MAX

T = TypeVar("T")
Match = str | Callable[[str], bool]
"""Selects requests by `METHOD /path?query`: a substring, or a predicate."""

SHORT_RETRIES: dict[str, Any] = {
    "retry_backoff_factor": 0.001,
    "retry_backoff_max": 0.01,
    "initial_backoff": 0,
    "increment_base": 0.001,
    "random_jitter_range": 0,
}
"""SDK options with short delays between retries, to keep tests fast."""


class _Fault(msgspec.Struct):
    """A fault for the next requests that match."""

    kind: str
    match: Match
    times: int
    retry_after: float | None = None
    error: Exception | None = None


class Faults:
    """The faults of one account. `count` is the number of requests that reached it."""

    def __init__(self, account: LocalAccount) -> None:
        self.count = 0
        self.requests: list[str] = []
        """Each request as `METHOD /path?query`, in order of arrival."""
        self._faults: list[_Fault] = []
        self._latency = 0.0
        self._paging: _HostilePaging | None = None
        account.around = self._answer
        account.client_options = SHORT_RETRIES

    def answer_503(
        self, times: int = 1, *, retry_after: float | None = None, match: Match = ""
    ) -> None:
        """Answer the next requests with ServerBusy; the SDK gives up after the fourth."""
        self._add(_Fault("busy", match, times, retry_after))

    def lose_answers(self, times: int = 1, *, match: Match = "") -> None:
        """Perform the next requests, but break the connection before the answer."""
        self._add(_Fault("lost", match, times))

    def refuse_connections(self, times: int = 1, *, match: Match = "") -> None:
        """Break the connection before the next requests are sent."""
        self._add(_Fault("refused", match, times))

    def fail_next(self, match: Match = "", *, error: Exception | None = None) -> None:
        """Raise at the next matching request, which is neither performed nor retried."""
        self._add(_Fault("failed", match, 1, error=error))

    def hostile_paging(self, seed: int = 0) -> None:
        """Answer queries with short pages, and with empty pages that have a continuation."""
        self._paging = _HostilePaging(seed)

    def latency(self, seconds: float) -> None:
        """Delay every request."""
        self._latency = seconds

    def stop(self) -> None:
        """Remove all faults; the counts stay."""
        self._faults.clear()
        self._latency = 0.0
        self._paging = None

    async def _answer(self, kind: ServiceKind, request: Request, respond: Respond) -> Response:
        address = f"{request.path}?{request.query}" if request.query else request.path
        line = f"{request.method} {unquote(address)}"
        self.count += 1
        self.requests.append(line)
        if self._latency:
            await asyncio.sleep(self._latency)
        fault = self._take(line)
        if fault is None:
            if self._paging is not None and _is_query(kind, request):
                return await self._paging.answer(request, respond)
            return await respond(request)
        if fault.kind == "busy":
            return _busy(kind, request, fault.retry_after)
        if fault.kind == "lost":
            await respond(request)
            raise ServiceResponseError("The connection was broken before the answer.")
        if fault.kind == "refused":
            raise ServiceRequestError("The connection was refused.")
        raise fault.error or _injected(line)

    def _add(self, fault: _Fault) -> None:
        if fault.times > 0:
            self._faults.append(fault)

    def _take(self, line: str) -> _Fault | None:
        for fault in self._faults:
            is_meant = fault.match in line if isinstance(fault.match, str) else fault.match(line)
            if is_meant:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None


def _injected(line: str) -> PartitaError:
    return UnavailableError("FaultInjected", "A test injected this fault.", facts={"request": line})


def _busy(kind: ServiceKind, request: Request, retry_after: float | None) -> Response:
    error = ThrottledError("ServerBusy", "The server is busy.")
    extra = [] if retry_after is None else [("Retry-After", f"{retry_after:g}")]
    if kind is TABLES:
        return encode_json(error, error.message, Level.MINIMAL.content_type, extra=extra)
    return encode_error(error, error.message, request, extra)


def _is_query(kind: ServiceKind, request: Request) -> bool:
    return kind is TABLES and request.method == "GET" and request.path.endswith("()")


class _HostilePaging:
    """Pages that the protocol allows but servers rarely return."""

    def __init__(self, seed: int) -> None:
        self._chance = ManualClock(seed=seed)
        self._was_empty = False
        """Whether the last page was empty; the next one is not, or a client would never finish."""

    async def answer(self, request: Request, respond: Respond) -> Response:
        options = dict(parse_qsl(request.query, keep_blank_values=True))
        drawn = self._chance.random_bytes(1)[0]
        asked = int(options.get("$top", PAGE_ENTITIES_MAX))
        options["$top"] = str(min(asked, 1 + drawn % 3))
        short = msgspec.structs.replace(request, query=urlencode(options))
        response = await respond(short)
        if self._was_empty or drawn < 128 or response.status != 200:
            self._was_empty = False
            return response
        self._was_empty = True
        return _emptied(response, options)


def _emptied(response: Response, options: dict[str, str]) -> Response:
    """Return an empty page whose continuation is the start of this page."""
    body = msgspec.json.decode(response.body)
    body["value"] = []
    headers = [pair for pair in response.headers if "continuation" not in pair[0].lower()]
    for half in ("NextPartitionKey", "NextRowKey"):
        start = options.get(half) or print_continuation("")
        headers.append((f"x-ms-continuation-{half}", start))
    return Response(200, headers, msgspec.json.encode(body))


class ShufflingPort:
    """A port that returns rows unordered, like Cosmos DB: sorted by a hash of their keys."""

    def __init__(self, inner: AsyncPort, seed: int = 0) -> None:
        self.capabilities = msgspec.structs.replace(
            inner.capabilities, is_ordered=False, name="a shuffling port"
        )
        self._inner = inner
        self._seed = seed

    async def perform(self, call: Call[T], cost: Cost) -> T:
        if not isinstance(call, QueryRows):
            return await self._inner.perform(call, cost)
        rows = sorted(await self._read_all(call), key=self._place)
        start = 0 if call.continuation is None else int(call.continuation.partition)
        end = start + (call.size or PAGE_ENTITIES_MAX)
        page = tuple(rows[start:end])
        cost.requests += 1
        cost.entities += len(page)
        cost.bytes += sum(map(measure, page))
        following = Continuation(str(end)) if end < len(rows) else None
        return RowPage(page, following)  # type: ignore[return-value]

    async def _read_all(self, call: QueryRows) -> list[Row]:
        rows: list[Row] = []
        whole = msgspec.structs.replace(call, size=None, continuation=None)
        while True:
            page = await self._inner.perform(whole, Cost())
            rows += page.rows
            if page.continuation is None:
                return rows
            whole = msgspec.structs.replace(whole, continuation=page.continuation)

    def _place(self, row: Row) -> bytes:
        return sha256(f"{self._seed}\x00{row.key.partition}\x00{row.key.row}".encode()).digest()

    async def close(self) -> None:
        await self._inner.close()
