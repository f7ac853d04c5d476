"""The guard of the console: which requests are served at all. Pure.

A page of another site can send requests to this machine, and a name that its owner resolves to
127.0.0.1 makes them look local (DNS rebinding). The one rule: `check_sender` runs before anything
else looks at a request, and the token is never read from a query or a cookie, because browsers
send cookies to every port of a host.
"""

import hmac
from collections import deque
from collections.abc import Container
from typing import Final

from partita.errors import NotAuthorizedError, PartitaError, UnavailableError
from partita.service.auth.browser_guard import names_this_machine
from partita.service.http.request import Request, Response

TOKEN_BYTES: Final = 32
FAILURES_PER_MINUTE_MAX: Final = 10
"""Wrong tokens in a minute; further ones get 429."""
FAILURE_SECONDS: Final = 60.0

BODY_TYPES: Final = frozenset({"application/json", "application/octet-stream"})
"""Content types that a page of another origin cannot send without a preflight request."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' blob: data:; font-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SANDBOX: Final = "sandbox"
"""The policy of downloads, whose bytes are not ours."""
_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


def with_headers(response: Response) -> Response:
    """Add the headers that every answer has; an answer may have a policy of its own."""
    own = {name.lower() for name, _ in response.headers}
    added = (("Content-Security-Policy", POLICY), *_HEADERS)
    missing = [pair for pair in added if pair[0].lower() not in own]
    return Response(
        response.status, [*response.headers, *missing], response.body, response.download
    )


def check_sender(request: Request, allowed_hosts: Container[str]) -> None:
    """Refuse what the page of another origin could have sent."""
    headers = request.headers
    host = headers.get("host", "").lower()
    if not names_this_machine(host) and _name_of(host) not in allowed_hosts:
        raise NotAuthorizedError(
            "ConsoleHostRefused",
            "The console does not answer requests for this host name.",
            facts={"host": _name_of(host)},
            hint="Open the console by its address, or start it with --allowed-host HOST.",
        )
    site = headers.get("sec-fetch-site", "none")
    origin = headers.get("origin")
    if site not in _OWN_SITES or (origin is not None and origin not in _own_origins(request, host)):
        raise NotAuthorizedError(
            "ConsoleOriginRefused",
            "The console answers only requests of its own pages.",
            facts={"origin": origin or "", "site": site},
            hint="Open the address of the console in the browser's address bar.",
        )
    if request.method not in _SAFE_METHODS and _type_of(request) not in BODY_TYPES:
        raise NotAuthorizedError(
            "ConsoleContentType",
            "The content type of this request is not accepted.",
            facts={"content_type": _type_of(request)},
            hint="Send application/json, or application/octet-stream for the bytes of a file.",
        )


def _own_origins(request: Request, host: str) -> tuple[str, ...]:
    """Return the origins of our own pages; a TLS proxy may be in front of an allowed host."""
    own = f"{request.scheme}://{host}"
    return (own,) if names_this_machine(host) else (own, f"https://{host}")


def _name_of(host: str) -> str:
    return host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class TokenCheck:
    """Compares tokens and counts the wrong ones.

    The right token is accepted even after too many failures, so that another program cannot lock
    the user out; 256 bits cannot be guessed at any rate.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._failures: deque[float] = deque(maxlen=FAILURES_PER_MINUTE_MAX)
        """Monotonic times of the last failures."""

    def check(self, request: Request, now: float) -> None:
        """Refuse a request without the token in its Authorization header."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and is_right:
            return
        raise self._failure(now)

    def _failure(self, now: float) -> PartitaError:
        oldest = self._failures[0] if len(self._failures) == FAILURES_PER_MINUTE_MAX else None
        if oldest is not None and now - oldest < FAILURE_SECONDS:
            return UnavailableError(
                "ConsoleTokenAttempts",
                f"More than {FAILURES_PER_MINUTE_MAX} requests in a minute had a wrong token.",
                hint="Open the address that the console printed when it started.",
            )
        self._failures.append(now)
        return NotAuthorizedError(
            "ConsoleTokenInvalid",
            "The token of the console is missing or wrong.",
            hint="Open the address that the console printed when it started: it ends with the"
            " token.",
        )
