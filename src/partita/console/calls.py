"""Calls of the API: routes, decoded arguments, answers and errors as JSON.

A function of the API takes a `Call` and returns a value for JSON, or a `Response` for other
bytes. The one rule: a route that changes something says so (`writes`), because only that refuses
it for accounts that are read-only.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from partita.console.accounts import ConsoleAccount
from partita.console.errors import invalid
from partita.console.jobs import Job
from partita.console.services import Services
from partita.errors import (
    ConflictError,
    DamageError,
    LimitExceededError,
    NotAuthorizedError,
    PartitaError,
    UnavailableError,
)
from partita.service.formats.error_wire import STATUS
from partita.service.http.request import Request, Response

API: Final = "/api/v1/"
JSON_BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest JSON body; files are streamed."""

T = TypeVar("T")
C = TypeVar("C", bound="Confirmation")

_STATUS: Final = {
    "ConsoleTokenInvalid": 401,
    "ConsoleContentType": 415,
    "ConsoleNotFound": 404,
    "ConsoleTokenAttempts": 429,
}
_STATUS_OF_FAMILY: Final = (
    (NotAuthorizedError, 403),
    (LimitExceededError, 413),
    (ConflictError, 409),
    (UnavailableError, 503),
    (DamageError, 500),
)


class NewName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a table, queue or container that is created."""

    name: str


class Confirmation(msgspec.Struct, forbid_unknown_fields=True):
    """The name of what is changed or deleted as a whole, as the user typed it."""

    confirm: str


class Call(msgspec.Struct, frozen=True):
    """One request of the API, after the guard."""

    services: Services
    request: Request
    arguments: dict[str, str]
    """The variable parts of the path, decoded."""
    query: dict[str, str]
    body: bytes = b""
    """The whole body, unless the route streams it (`request.upload`)."""
    chosen: ConsoleAccount | None = None

    @property
    def account(self) -> ConsoleAccount:
        """The account that the path names."""
        assert self.chosen is not None, "the route has no account"
        return self.chosen

    def decode(self, form: type[T]) -> T:
        """Decode the JSON body; an unknown or missing member is an error."""
        try:
            return msgspec.json.decode(self.body, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"The body of the request is not valid: {error}"
            raise invalid(message) from error

    def confirmed(self, what: str, form: type[C]) -> C:
        """Decode a body that repeats the name in the path; refuse one with another name."""
        given = self.decode(form)
        if given.confirm != self.arguments[what]:
            message = f"The typed name is not the name of the {what}."
            raise invalid(message)
        return given

    def start_job(
        self, kind: str, title: str, work: Callable[[Job], Awaitable[None]]
    ) -> dict[str, Any]:
        """Start a job of the account; return it as the pages show it."""
        jobs = self.services.jobs
        return jobs.start(kind, self.account.name, title, work).shown(jobs.now())

    def whole(self, name: str, default: int, most: int) -> int:
        """Return a whole number of the query from 1 to `most`."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            message = f"{name} must be a whole number from 1 to {most}."
            raise invalid(message)
        return int(text)


Answer = object | Response
Function = Callable[[Call], Awaitable[Answer]]


class Route(msgspec.Struct, frozen=True):
    """`path` has variable parts in braces; `{account}` names an account of the console."""

    method: str
    path: str
    function: Function
    writes: bool = False
    """Whether it changes the account: refused while the account is read-only."""
    streams: bool = False
    """Whether the function reads `request.upload` itself."""
    uses_sdk: bool = False
    """Whether it calls the official SDK, which is imported first."""
    needs_token: bool = True
    """False only for downloads by a one-time ticket."""


sdk_route = partial(Route, uses_sdk=True)


class Routes:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_length: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        for route in routes:
            parts = route.path.split("/")
            self._by_length.setdefault((route.method, len(parts)), []).append((parts, route))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """Return the route and the decoded variable parts of the path."""
        parts = path.split("/")
        for pattern, route in self._by_length.get((method, len(parts)), ()):
            pairs = list(zip(pattern, parts, strict=True))
            if all(_is_variable(form) or form == part for form, part in pairs):
                return route, {
                    form[1:-1]: unquote(part) for form, part in pairs if _is_variable(form)
                }
        return None


def _is_variable(part: str) -> bool:
    return part.startswith("{")


def query_of(request: Request) -> dict[str, str]:
    """Return the parameters of the query; of a repeated one, the last."""
    return dict(parse_qsl(request.query, keep_blank_values=True))


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value as JSON; NaN and infinities are not part of JSON and become null."""
    body = msgspec.json.encode(value)
    return Response(status, [("Content-Type", "application/json; charset=utf-8")], body)


def error_answer(error: PartitaError) -> Response:
    """Return an error in the form that the pages show: code, message, hint and facts."""
    members = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "facts": {name: _plain(value) for name, value in error.facts.items()},
    }
    return json_answer({"error": members}, status_of(error))


def status_of(error: PartitaError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(status := error.facts.get("status"), int) and 400 <= status < 600:
        return status
    if found := _STATUS.get(error.code) or STATUS.get(error.code):
        return found
    return next((status for kind, status in _STATUS_OF_FAMILY if isinstance(error, kind)), 400)


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
