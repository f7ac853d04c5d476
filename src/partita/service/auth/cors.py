"""Cross-origin rules (CORS) for requests from pages of other origins.

The first rule that matches origin and method decides. An actual request never fails here:
without a matching rule its answer only lacks the headers.
"""

from collections.abc import Sequence

import msgspec

from partita.errors import InvalidRequestError, NotAuthorizedError
from partita.service.http.request import Request, Response

HEADERS_ASKED_MAX = 128
"""Headers that a preflight may ask for: each is compared with all headers of a rule."""
SETTING = "CORS rules"
"""The setting that resolves these refusals: one of the service properties."""


class CorsRule(msgspec.Struct, frozen=True, gc=False):
    """Which origins may use which methods and headers; `*` matches all."""

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    allowed_headers: tuple[str, ...] = ()
    exposed_headers: tuple[str, ...] = ()
    max_age_seconds: int = 0

    def allows_origin(self, origin: str) -> bool:
        return any(_origin_matches(allowed, origin) for allowed in self.origins)

    def allows_header(self, name: str) -> bool:
        wanted = name.lower()
        return any(_name_matches(allowed.lower(), wanted) for allowed in self.allowed_headers)


def find_rule(rules: Sequence[CorsRule], origin: str, method: str) -> CorsRule | None:
    """Find the first rule for an origin (case-sensitive) and a method."""
    for rule in rules:
        if method in rule.methods and rule.allows_origin(origin):
            return rule
    return None


def preflight(rules: Sequence[CorsRule], request: Request) -> Response:
    """Answer an OPTIONS request, which needs no authorization."""
    origin = _required(request, "origin")
    method = _required(request, "access-control-request-method")
    asked = request.headers.get("access-control-request-headers", "")
    rule = find_rule(rules, origin, method)
    names = [name.strip() for name in asked.split(",") if name.strip()]
    is_bounded = len(names) <= HEADERS_ASKED_MAX
    if rule is None or not is_bounded or not all(rule.allows_header(name) for name in names):
        raise NotAuthorizedError(
            "CorsPreflightFailure",
            "CORS not enabled or no matching rule found for this request.",
            facts={"origin": origin, "method": method},
            hint="Add a CORS rule for this origin, method and headers to the properties of the"
            " service.",
            setting=SETTING,
        )
    headers = [
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Allow-Methods", method),
        ("Access-Control-Max-Age", str(rule.max_age_seconds)),
        ("Access-Control-Allow-Credentials", "true"),
        ("Vary", "Origin"),
    ]
    if names:
        headers.insert(2, ("Access-Control-Allow-Headers", asked))
    return Response(200, headers)


def response_headers(rules: Sequence[CorsRule], request: Request) -> list[tuple[str, str]]:
    """Return the headers of the answer to an actual request.

    With any rule the answer depends on Origin, so Vary is sent even if the request has none.
    """
    if not rules:
        return []
    vary = ("Vary", "Origin")
    origin = request.headers.get("origin")
    rule = find_rule(rules, origin, request.method) if origin else None
    if origin is None or rule is None:
        return [vary]
    headers = [("Access-Control-Allow-Origin", origin)]
    if rule.exposed_headers:
        headers.append(("Access-Control-Expose-Headers", ",".join(rule.exposed_headers)))
    return [*headers, ("Access-Control-Allow-Credentials", "true"), vary]


def _required(request: Request, name: str) -> str:
    value = request.headers.get(name)
    if not value or name in request.repeated:
        raise InvalidRequestError(
            "MissingRequiredHeader",
            "An HTTP header that's mandatory for this request is not specified.",
            facts={"header": name},
        )
    return value


def _origin_matches(allowed: str, origin: str) -> bool:
    if allowed in ("*", origin):
        return True
    before, star, after = allowed.partition("*.")
    if not star:
        return False
    # The star needs at least one label: *.example.com does not match example.com.
    label = origin[len(before) : -len(after) - 1]
    return (
        origin == f"{before}{label}.{after}"
        and bool(label)
        and all(character.isalnum() or character in "-." for character in label)
    )


def _name_matches(allowed: str, wanted: str) -> bool:
    if allowed.endswith("*"):
        return wanted.startswith(allowed[:-1])
    return allowed == wanted
