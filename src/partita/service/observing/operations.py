"""The operations endpoint: metrics for Prometheus, totals, slow requests, health. No socket here.

On loopback, /metrics and health need no token. Everything under /api/ needs it, because its
answers contain keys and filters; beyond loopback every path except health does. The one rule: an
answer contains no value of an entity and no secret.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from partita.errors import PartitaError
from partita.metrics.families import Family, Sample
from partita.metrics.sources import collect
from partita.metrics.store_meter import StoreMeter, sum_of
from partita.metrics.text import CONTENT_TYPE, print_families
from partita.service.auth.browser_guard import names_this_machine
from partita.service.http.request import Request, Response
from partita.service.http.watchdog import LoopWatchdog
from partita.service.observing.meter import ServiceMeter
from partita.service.observing.outcomes import AUTHORIZATION, THROTTLING
from partita.ticks import TICKS_PER_SECOND, Clock

TOKEN_BYTES: Final = 32
QUERY_FIELDS_MAX: Final = 16
"""Parameters of a question; more are refused."""
_OPEN: Final = frozenset({"/healthz", "/readyz"})
_JSON: Final = ("Content-Type", "application/json")
_ALWAYS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)

logger = logging.getLogger("partita.service.operations")

Route = Callable[[Mapping[str, str]], Awaitable[object]]
"""Answers a question under /api/v1/ with a value that becomes JSON; its argument is the query.

It may raise ValueError for a parameter that is not valid."""


class Served(Protocol):
    """What is asked of the server of a service."""

    @property
    def connection_count(self) -> int: ...

    @property
    def watchdog(self) -> LoopWatchdog: ...

    @property
    def lag_seconds(self) -> float:
        """How late the event loop ran the last timer."""


class Operations:
    """Answers questions about a serving process."""

    def __init__(  # noqa: PLR0913 - what it is built from, by name
        self,
        meters: Mapping[str, ServiceMeter],
        stores: Mapping[str, StoreMeter],
        clock: Clock,
        *,
        version: str,
        token: str = "",
        is_on_network: bool = False,
        why_not_ready: Callable[[], str] = lambda: "",
    ) -> None:
        self.meters = meters
        """By the name of the service."""
        self.stores = stores
        """By account; one for all accounts (named `""`) if they share a database."""
        self.accounts: tuple[str, ...] = ()
        self.servers: dict[str, Served] = {}
        """By the name of the service; added when they are built."""
        self.log_dropped: Callable[[], int] = lambda: 0
        """Lines of all logs that were dropped because their writer was too slow."""
        self.further: list[Callable[[], Sequence[Family]]] = []
        """Return metrics of other parts of the server."""
        self.routes: dict[str, Route] = {"/api/v1/now": self._now}
        """By path; other parts of the server add theirs."""
        self._clock = clock
        self._version = version
        self._token = token
        self._is_on_network = is_on_network
        self._why_not_ready = why_not_ready
        self._started = clock.monotonic()

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return _error(405, "UnsupportedHttpVerb", "Only GET is supported.")
        if not self._is_on_network and not names_this_machine(request.headers.get("host", "")):
            return _error(
                400,
                "InvalidHeaderValue",
                "The Host header does not name this machine.",
                "Use 127.0.0.1 or localhost in the address.",
            )
        if path in _OPEN:
            return self._health(path)
        is_open = path == "/metrics" and not self._is_on_network
        if not is_open and not self._is_authorized(request):
            return _error(
                401,
                "AuthenticationFailed",
                "The token of the operations endpoint is missing or wrong.",
                "Send Authorization: Bearer with the content of operations.token.",
            )
        if path == "/metrics":
            text = print_families(self.families())
            return Response(200, [("Content-Type", CONTENT_TYPE), *_ALWAYS], text.encode())
        return await self.ask(path, request.query)

    async def ask(self, path: str, query: str) -> Response:
        """Answer a path under /api/v1/ to a caller that needs no token: one of this process."""
        route = self.routes.get(path)
        if route is None:
            known = ", ".join(["/metrics", *sorted(self.routes)])
            return _error(404, "ResourceNotFound", "The path does not exist.", f"Use {known}.")
        try:
            options = dict(parse_qsl(query, max_num_fields=QUERY_FIELDS_MAX))
            body = msgspec.json.encode(await route(options))
        except ValueError as error:
            return _error(400, "InvalidQueryParameterValue", f"A parameter is not valid: {error}.")
        except PartitaError as error:
            return _error(503, error.code, error.message, error.hint)
        return Response(200, [_JSON, *_ALWAYS], body)

    def _is_authorized(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return (
            bool(self._token)
            and scheme.lower() == "bearer"
            and hmac.compare_digest(token.strip().encode(), self._token.encode())
        )

    def _health(self, path: str) -> Response:
        reason = self._why_not_ready() if path == "/readyz" else ""
        text = f"not ready: {reason}\n" if reason else ("ready\n" if path == "/readyz" else "ok\n")
        headers = [("Content-Type", "text/plain;charset=utf-8"), *_ALWAYS]
        return Response(503 if reason else 200, headers, text.encode())

    async def _now(self, _options: Mapping[str, str]) -> object:
        return self.facts()

    def facts(self) -> dict[str, object]:
        """Return the totals since the start as JSON values."""
        return {
            "version": self._version,
            "uptime_seconds": self._clock.monotonic() - self._started,
            "at": self._clock.ticks() / TICKS_PER_SECOND,
            "accounts": list(self.accounts),
            "services": {
                name: {**meter.facts(), "connections": self._connections(name)}
                for name, meter in self.meters.items()
            },
            "store": sum_of([store.facts() for store in self.stores.values()]),
            "loop": {
                "lag_seconds": max((each.lag_seconds for each in self.servers.values()), default=0),
                "longest_turn_seconds": max(
                    (each.watchdog.longest_seconds for each in self.servers.values()), default=0
                ),
                "long_turns_total": sum(each.watchdog.long_turns for each in self.servers.values()),
            },
            "refused_signatures_total": self._count(AUTHORIZATION),
            "throttled_total": self._count(THROTTLING),
            "log_dropped_total": self.log_dropped(),
        }

    def _count(self, kind: int) -> int:
        return sum(meter.count(kind) for meter in self.meters.values())

    def _connections(self, service: str) -> int:
        server = self.servers.get(service)
        return 0 if server is None else server.connection_count

    def families(self) -> Iterator[Family]:
        """Yield all metrics of the process, with those of `partita.metrics.register`."""
        yield Family(
            "partita_build_info",
            "gauge",
            "The version of Partita; the value is always 1.",
            [Sample(1, {"version": self._version})],
        )
        for meter in self.meters.values():
            yield from meter.families()
        for account, store in self.stores.items():
            yield from store.families({"account": account} if account else {})
        yield from self._server_families()
        for name, text, kind in (
            (
                "partita_refused_signatures_total",
                "Requests with refused credentials.",
                AUTHORIZATION,
            ),
            ("partita_throttled_total", "Requests answered with ServerBusy.", THROTTLING),
        ):
            samples = [Sample(each.count(kind), {"service": n}) for n, each in self.meters.items()]
            yield Family(name, "counter", text, samples)
        yield Family(
            "partita_log_dropped_total",
            "counter",
            "Lines of logs that were dropped because their reader was too slow.",
            [Sample(self.log_dropped())],
        )
        for families in self.further:
            yield from families()
        yield from collect()

    def _server_families(self) -> Iterator[Family]:
        servers = {name: {"service": name} for name in self.servers}
        yield Family(
            "partita_connections",
            "gauge",
            "Open connections.",
            [Sample(self._connections(name), labels) for name, labels in servers.items()],
        )
        yield Family(
            "partita_loop_lag_seconds",
            "gauge",
            "How late the event loop ran the last timer.",
            [Sample(self.servers[name].lag_seconds, labels) for name, labels in servers.items()],
        )
        yield Family(
            "partita_loop_turn_seconds_max",
            "gauge",
            "The longest turn of the event loop.",
            [
                Sample(self.servers[name].watchdog.longest_seconds, labels)
                for name, labels in servers.items()
            ],
        )
        yield Family(
            "partita_loop_long_turns_total",
            "counter",
            "Turns of the event loop of more than 50 ms.",
            [
                Sample(self.servers[name].watchdog.long_turns, labels)
                for name, labels in servers.items()
            ],
        )


def _error(status: int, code: str, message: str, hint: str = "") -> Response:
    body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": hint}})
    challenge = [("WWW-Authenticate", "Bearer")] if status == 401 else []
    return Response(status, [_JSON, *_ALWAYS, *challenge], body)
