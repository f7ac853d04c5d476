"""The console as one function from request to answer: guard, pages, API.

Nothing raises out of `respond`: a PartitaError becomes its JSON form, anything else is logged and
becomes InternalError.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import partita
from partita.console.api import (
    blobs,
    bulk,
    entities,
    fleets,
    jobs,
    operations,
    patterns,
    queues,
    sas,
    session,
    shards,
    states,
    tables,
)
from partita.console.calls import (
    JSON_BODY_BYTES_MAX,
    Call,
    Route,
    Routes,
    error_answer,
    json_answer,
    query_of,
)
from partita.console.errors import not_found
from partita.console.guard import TokenCheck, check_sender, with_headers
from partita.console.pages import find_page, read_pages
from partita.console.services import Services
from partita.errors import LimitExceededError, NotSupportedError, PartitaError, UsageError
from partita.service.http.message_bytes import Dialect, HttpLimits, Refusal
from partita.service.http.request import Request, Response

ROUTES: Sequence[Route] = (
    *session.ROUTES,
    *jobs.ROUTES,
    *tables.ROUTES,
    *entities.ROUTES,
    *patterns.ROUTES,
    *queues.ROUTES,
    *blobs.ROUTES,
    *sas.ROUTES,
    *bulk.ROUTES,
    *operations.ROUTES,
    *states.ROUTES,
    *shards.ROUTES,
    *fleets.ROUTES,
)

LIMITS = HttpLimits(
    body_bytes_max=5000 * 1024 * 1024,
    stream_above_bytes=64 * 1024,
    linger_bytes_max=256 * 1024 * 1024,
    connections_max=64,
    connections_per_peer_max=64,
    reserved_connections_max=4,
)
"""A browser opens six connections; uploads are streamed."""

logger = logging.getLogger(__name__)


def _refuse(refusal: Refusal, _request_id: str, _ticks: int) -> Response:
    error = {"code": refusal.code, "message": refusal.message, "hint": "", "facts": {}}
    return with_headers(json_answer({"error": error}, refusal.status))


DIALECT = Dialect(f"Partita-Console/{partita.__version__}", _refuse)


class Console:
    """Answers the requests of browsers."""

    def __init__(
        self,
        services: Services,
        token: str,
        *,
        allowed_hosts: Iterable[str] = (),
        routes: Sequence[Route] = ROUTES,
    ) -> None:
        self.services = services
        self._check = TokenCheck(token)
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._routes = Routes(routes)
        self._pages = read_pages()

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        try:
            check_sender(request, self._allowed_hosts)
            answer = await self._answer(request)
        except PartitaError as error:
            answer = error_answer(error)
        except Exception:
            logger.exception("A request of the console failed: %s %s", request.method, request.path)
            answer = error_answer(UsageError("InternalError", "The console failed; see its log."))
            answer = Response(500, answer.headers, answer.body)
        return with_headers(answer)

    async def _answer(self, request: Request) -> Response:
        if not request.path.startswith("/api/"):
            return self._page(request)
        found = self._routes.find(request.method, request.path)
        if found is None or found[0].needs_token:
            self._check.check(request, self.services.clock.monotonic())
        if found is None:
            raise not_found("This path of the API")
        if request.stranger is not None:
            request.stranger.authenticated()
        await asyncio.sleep(0)  # from here on in a task: clients use time-outs
        route, arguments = found
        if route.uses_sdk:
            await self.services.sdk.finish()
        answer = await route.function(await self._call(route, arguments, request))
        return answer if isinstance(answer, Response) else json_answer(answer)

    def _page(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise NotSupportedError("ConsoleNotFound", "Pages can only be read.")
        page = find_page(self._pages, request.path)
        if page is None:
            raise not_found(request.path)
        return page

    async def _call(self, route: Route, arguments: dict[str, str], request: Request) -> Call:
        chosen = None
        if "account" in arguments:
            chosen = self.services.accounts.get(arguments["account"])
            if chosen is None:
                raise not_found("The account")
            if route.writes:
                self.services.check_writable(chosen, request)
        body = b"" if route.streams else await _read(request)
        return Call(self.services, request, arguments, query_of(request), body, chosen)


async def _read(request: Request) -> bytes:
    """Return the whole body of a request, within the limit of JSON bodies."""
    if request.upload is None:
        return request.body
    pieces, length = [], 0
    async for piece in request.upload:
        length += len(piece)
        if length > JSON_BODY_BYTES_MAX:
            raise LimitExceededError(
                "RequestBodyTooLarge", "The body is longer than the limit of JSON bodies."
            )
        pieces.append(piece)
    return b"".join(pieces)
