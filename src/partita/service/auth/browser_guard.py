"""Protection of the development account, whose key is public, against web pages. Pure.

A page can sign with the well-known key and send simple requests to this machine, so that for
this account a signature does not prove who sent the request.
"""

from collections.abc import Container, Sequence
from functools import lru_cache

from partita.errors import NotAuthorizedError
from partita.refusals import invalid_header
from partita.service.auth import cors
from partita.service.auth.cors import CorsRule, find_rule
from partita.service.http.request import Request

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


class _EveryHost:
    def __contains__(self, _name: object) -> bool:
        return True


EVERY_HOST: Container[str] = _EveryHost()
"""For the parts of a batch: the batch itself was checked."""

ORIGIN_HEADERS = frozenset({"origin", "sec-fetch-site"})
"""Headers that a browser adds to the request of a page."""


def guard(request: Request, rules: Sequence[CorsRule], allowed_hosts: Container[str]) -> None:
    """Refuse requests that a web page of another origin could send.

    The page's origin must be allowed by a CORS rule of the account, and the Host header must
    name this machine (a host name that an attacker resolves to it does not).
    """
    headers = request.headers
    host = headers.get("host", "")
    name = _name_of(host)
    if not names_this_machine(host) and name not in allowed_hosts:
        raise invalid_header(
            "Host",
            host,
            f"Host {name!r} is not allowed for the development account: start the server with"
            f" --allowed-host {name}, or serve an account with a key of its own.",
            setting="--allowed-host",
        )
    if "origin" in headers or "cross-site" in headers.get("sec-fetch-site", ""):
        _check_origin(request, rules)


@lru_cache(maxsize=256)
def names_this_machine(host: str) -> bool:
    """Return whether a Host header names this machine."""
    name = _name_of(host)
    return name in _LOOPBACK or name.endswith(".localhost")


def _name_of(host: str) -> str:
    """Return the host without its port."""
    host = host.rpartition("@")[2].lower()
    return host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _check_origin(request: Request, rules: Sequence[CorsRule]) -> None:
    origin = request.headers.get("origin")
    method = request.headers.get("access-control-request-method", request.method)
    if origin is None or find_rule(rules, origin, method) is None:
        raise NotAuthorizedError(
            "CorsPreflightFailure" if request.method == "OPTIONS" else "AuthorizationFailure",
            "This request is not authorized to perform this operation.",
            hint="A browser's request to the development account needs a CORS rule for its origin"
            " and method: add one to the properties of the service.",
            setting=cors.SETTING,
        )
