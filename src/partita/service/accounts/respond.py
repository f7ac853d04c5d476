"""The request path of the three services, from a Request to a Response.

locate → guard → version → preflight → authenticate, then the service decodes, authorizes,
performs and answers. The first PartitaError becomes the answer.
"""

import logging
import re
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from partita.errors import InvalidRequestError, NotAuthorizedError, PartitaError
from partita.policies import Policy
from partita.refusals import invalid_header, invalid_syntax
from partita.service.accounts import emptying
from partita.service.accounts.account import Account, Accounts
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.auth import bearer, cors, shared_key
from partita.service.auth import browser_guard as browsers
from partita.service.auth.policy import parse_time
from partita.service.auth.sas import (
    ANONYMOUS,
    FULL,
    OBJECT,
    READ,
    WRITE,
    Grant,
    Need,
    Sas,
    check_single_credential,
    evaluate,
    no_credentials,
    parse_sas,
)
from partita.service.formats.address import parse_query
from partita.service.formats.error_wire import ACCOUNT_SETTING, is_told, message_of
from partita.service.http.message_bytes import STREAM_ABOVE_BYTES
from partita.service.http.observed import ANONYMOUSLY, BY_SAS, UNOBSERVED
from partita.service.http.request import Request, Response
from partita.service.http.streams import with_whole_body
from partita.tables import edm
from partita.ticks import TICKS_PER_DAY, Clock

logger = logging.getLogger("partita.service")

VERSION_DAYS_AHEAD_MAX = 5 * 366
"""A version later than this is refused; an earlier one is served as the newest known one."""

CLIENT_REQUEST_ID_MAX = 1024
NAME_CHARACTERS_SHOWN = 64
"""How much of an unknown account name is logged."""
WARNING_SECONDS = 60
"""How often refusals that the same setting resolves are logged as warnings."""

_NO_PROPERTIES = ServiceProperties()
_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_API_VERSION = re.compile(r"(?:^|&)api-version=(\d{4}-\d\d-\d\d)(?:&|$)", re.ASCII)
"""Old .NET clients send the version this way with a SAS."""
_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?|[A-Za-z0-9._-]{1,253}(?::[0-9]{1,5})?")
_IPV4 = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_SECONDARY = "-secondary"


class Target(msgspec.Struct, frozen=True):
    """The account that a request is addressed to."""

    account: str
    """Without `-secondary`; it may not exist."""
    is_secondary: bool
    root: str
    """The start of printed addresses: `http://127.0.0.1:10002/acct`, without a final slash."""
    path: str
    """The path after the account, as sent; it is parsed after authentication."""


class AuthorizedRequest(msgspec.Struct, frozen=True, gc=False):
    """An authenticated request: its account and its grant."""

    request: Request
    target: Target
    account: Account
    pairs: list[tuple[str, str]]
    """The query parameters, decoded; order and repetition are kept."""
    grant: Grant
    request_id: str
    version: str
    now: int


Begun = Response | Coroutine[Any, Any, Response]
"""An answer, or the coroutine that returns it."""
BeginUsual = Mapping[str, "Callable[[Front, Request], Begun | None]"]
"""By method: begins some requests without a query as `Front.respond`, in fewer steps."""
NOTHING_USUAL: BeginUsual = MappingProxyType({})


class Service(Protocol):
    """The interface of a service to the request path."""

    letter: str
    """Its letter in `ss` of an account SAS: t, q or b."""
    name: str
    """Its label in host names and in the string to sign of a service SAS: table, queue or blob."""
    default_version: str
    """The version of requests without a version header."""
    allows_anonymous: bool
    """Whether requests without credentials are passed on, with an empty grant."""

    @property
    def usual(self) -> BeginUsual: ...

    async def policies(self, account: Account, sas: Sas) -> Sequence[Policy]:
        """Return the stored policies of the scope of a service SAS; none if it does not exist."""
        ...

    async def answer(self, authorized: AuthorizedRequest) -> Response:
        """Answer an authenticated request: decode, authorize, perform, answer.

        It notes the account and the operation (`Request.observe`), except of a point read that
        succeeds: its answer has them.
        """
        ...

    def is_cacheable(self, request: Request) -> bool:
        """Return whether the answer may be cached; otherwise it gets Cache-Control: no-cache."""
        ...

    def refuse(
        self, error: PartitaError, message: str, request: Request, extra: list[tuple[str, str]]
    ) -> Response:
        """Return the answer of an error in the format of this service."""
        ...


class Front:
    """Answers the requests of one service for a set of accounts."""

    def __init__(
        self,
        service: Service,
        accounts: Accounts,
        clock: Clock,
        *,
        allowed_hosts: Container[str] = (),
        skew_seconds: int | None = shared_key.SKEW_SECONDS,
    ) -> None:
        self.service = service
        self.accounts = accounts
        self.clock = clock
        self._allowed_hosts = allowed_hosts
        self._skew_seconds = skew_seconds
        self._bounds_versions = service.letter != "t"
        """The table service accepts any version; the others refuse invalid ones."""
        self._streams = service.letter == "b"
        """Whether the service reads long bodies piece by piece."""
        self.request_ids = _RequestIds(clock)
        self._usual = service.usual
        self._warn_again_at: dict[str, float] = {}
        """By setting: until then, refusals that it resolves are not logged as warnings."""

    def begin(self, request: Request) -> Begun:
        """Return the answer of a request that needs few steps, or the coroutine that answers it."""
        is_general = request.query or request.path.endswith("/$batch")
        begin_usual = None if is_general else self._usual.get(request.method)
        if begin_usual is not None:
            try:
                begun = begin_usual(self, request)
            except PartitaError:
                begun = None  # it has an answer, too
            if begun is not None:
                return begun
        return self.respond(request)

    async def respond(self, request: Request) -> Response:
        """Answer one request; its errors are answers, too."""
        service, request_id = self.service, self.request_ids.take()
        now, properties, located = self.clock.ticks(), _NO_PROPERTIES, ("", "")
        version = request.headers.get("x-ms-version")
        today = now // TICKS_PER_DAY if self._bounds_versions else None
        is_versioned = version is not None and is_served(version, today)
        if version is None or not is_versioned:
            version = _unnamed_version(request, service.default_version)
        try:
            host = request.headers.get("host", "")
            target = locate(request.scheme, host, request.path, self.accounts, service.name)
            account = self.accounts[target.account]
            properties = account.properties[service.letter]
            located = account.name, target.account
            # A request to this machine that names no origin is not from a web page.
            if account.is_guarded and not (
                browsers.names_this_machine(host)
                and browsers.ORIGIN_HEADERS.isdisjoint(request.headers)
            ):
                browsers.guard(request, properties.cors, self._allowed_hosts)
            if not is_versioned:
                _check_unversioned(request)
                version = _unnamed_version(request, properties.default_version or version)
            if request.method == "OPTIONS":
                response = self._preflight(request, account, properties)
            else:
                pairs = parse_query(request.query) if request.query else []
                sas = (
                    parse_sas(
                        pairs,
                        service.letter,
                        target.path,
                        allows_old=self.accounts.allows_old_sas,
                    )
                    if pairs
                    else None
                )
                grant = (
                    self.check_signature(request, account, now)
                    if sas is None
                    else await self._evaluate(sas, request, account, now)
                ) or await self._check_token(request, account, now)
                if grant is not ANONYMOUS and (request.stranger or request.upload):
                    request = await self._admit(request)
                authorized = AuthorizedRequest(
                    request, target, account, pairs, grant, request_id, version, now
                )
                response = (
                    await self._empty(authorized)
                    if request.method == "POST" and not target.path and _asks_to_empty(pairs)
                    else await service.answer(authorized)
                )
        except PartitaError as error:
            response = self._refuse(error, request, request_id, located)
        headers = response.headers
        self._complete(headers, request, request_id, version)
        if properties.cors and request.method != "OPTIONS":
            headers.extend(cors.response_headers(properties.cors, request))
        return response

    def refused(self, error: PartitaError, request: Request, account: str) -> Response:
        """Answer an error as `respond` does; the request has a version, the account no CORS."""
        request_id = self.request_ids.take()
        response = self._refuse(error, request, request_id, (account, account))
        self._complete(response.headers, request, request_id, request.headers["x-ms-version"])
        return response

    def _complete(
        self, headers: list[tuple[str, str]], request: Request, request_id: str, version: str
    ) -> None:
        """Add the headers that every answer has."""
        headers += (
            ("x-ms-request-id", request_id),
            ("x-ms-version", version),
            ("X-Content-Type-Options", "nosniff"),
        )
        if not self.service.is_cacheable(request):
            headers.append(("Cache-Control", "no-cache"))
        client_request_id = request.headers.get("x-ms-client-request-id")
        if client_request_id is not None and is_client_request_id(client_request_id):
            headers.append(("x-ms-client-request-id", client_request_id))

    def _preflight(
        self, request: Request, account: Account, properties: ServiceProperties
    ) -> Response:
        observed = request.observe()
        observed.account = account.name
        observed.operation = f"{self.service.name.capitalize()}PreflightRequest"
        observed.credentials = ANONYMOUSLY
        return cors.preflight(properties.cors, request)

    async def _empty(self, authorized: AuthorizedRequest) -> Response:
        """Empty the account; only its key permits that, no SAS and no role."""
        account, observed = authorized.account, authorized.request.observe()
        observed.account, observed.operation = account.name, "EmptyAccount"
        if not authorized.grant.everything:
            raise emptying.only_by_key()
        if authorized.target.is_secondary:
            raise read_only()
        emptying.check_guard(account, allows_all=self.accounts.allows_empty)
        emptied = await emptying.empty(account)
        logger.warning("%s emptied account %s", authorized.request_id, account.name)
        return Response(200, [("Content-Type", "application/json")], msgspec.json.encode(emptied))

    async def _admit(self, request: Request) -> Request:
        """Read the body of an authenticated request, except a long one of a blob."""
        if request.stranger is not None:
            request.stranger.authenticated()
        upload = request.upload
        if upload is None:
            return request
        if request.observed is UNOBSERVED:
            request.observe()  # the request with its body shares it
        is_long = upload.length is None or upload.length > STREAM_ABOVE_BYTES
        return request if self._streams and is_long else await with_whole_body(request)

    def check_signature(self, request: Request, account: Account, now: int) -> Grant | None:
        """Return the grant of a request without a SAS; None if it has a bearer token."""
        authorization = request.headers.get("authorization")
        if authorization is None:
            request.observe().credentials = ANONYMOUSLY
            if not self.service.allows_anonymous:
                raise no_credentials(self._challenge)
            if not account.name:
                # An unknown account: the answer is that of a container that is not public.
                looks = request.method in ("GET", "HEAD")
                ANONYMOUS.check(Need(OBJECT, READ if looks else WRITE))
            return ANONYMOUS
        if authorization.startswith("Bearer "):
            return None
        shared_key.authenticate(
            request, account.name, account.keys, now, self._skew_seconds, self.service.letter
        )
        return FULL

    async def _check_token(self, request: Request, account: Account, now: int) -> Grant:
        """Return the grant of a bearer token."""
        accepted = await self._accept(request, account, now)
        letter = self.service.letter
        return Grant.of_token(accepted.identity, accepted.rights_in(letter), letter)

    async def _accept(self, request: Request, account: Account, now: int) -> bearer.Bearer:
        issuer = self.accounts.issuer
        if issuer is None:
            raise bearer.challenge(request)
        if "authorization" in request.repeated:
            raise shared_key.malformed(hint="Send one Authorization header.")
        token = request.headers["authorization"].removeprefix("Bearer ").strip()
        try:
            bearer.check_transport(request, issuer)
            accepted = await issuer.accept(token, account.name, self.service.name, now)
        except bearer.TokenRefusedError as error:
            raise bearer.challenge(request, issuer, str(error)) from error
        if not account.name:
            raise shared_key.authentication_failed(hint="The account is not served.")
        return accepted

    @property
    def _challenge(self) -> str:
        issuer = self.accounts.issuer
        return "" if issuer is None else issuer.challenge

    async def _evaluate(self, sas: Sas, request: Request, account: Account, now: int) -> Grant:
        request.observe().credentials = BY_SAS
        check_single_credential(request, sas)
        policies: Sequence[Policy] = ()
        if sas.policy_id and account.name:
            policies = await self.service.policies(account, sas)
        user = None
        if sas.user is not None and request.headers.get("authorization", "").startswith("Bearer "):
            user = (await self._accept(request, account, now)).identity
        return evaluate(
            sas,
            service=self.service.letter,
            account=account.name,
            keys=account.keys,
            policies=policies,
            now=now,
            peer=request.peer,
            scheme=request.scheme,
            allows_delegation=self.accounts.issuer is not None,
            user=user,
        )

    def _refuse(
        self, error: PartitaError, request: Request, request_id: str, located: tuple[str, str]
    ) -> Response:
        """Return the answer of an error.

        `located` has the name of the account, empty if it is unknown, and the addressed name.
        """
        account, addressed = located
        if not account and addressed and error.code == "AuthenticationFailed" and not error.setting:
            error = _not_served(addressed)
        observed = request.observe()
        observed.account = account
        observed.code, observed.hint = error.code, error.hint
        message = message_of(error, request_id, self.clock.ticks(), index=None)
        extra: list[tuple[str, str]] = []
        challenge = error.facts.get("www_authenticate")
        if isinstance(challenge, str):
            extra.append(("WWW-Authenticate", challenge))
        if error.code in ("ServerBusy", "StoreFull"):
            extra.append(("Retry-After", str(error.facts.get("retry_after", 1))))
        self._log(error, request_id)
        # The answer must not reveal which part of the credentials was wrong.
        if error.hint and (is_told(error) or not isinstance(error, NotAuthorizedError)):
            extra.append(("x-partita-hint", error.hint))
        return self.service.refuse(error, message, request, extra)

    def _log(self, error: PartitaError, request_id: str) -> None:
        """Log refused credentials; warn, at limited rate, if a setting resolves the error."""
        setting = error.setting
        if not setting and not isinstance(error, NotAuthorizedError):
            return
        level, now = logging.INFO, self.clock.monotonic()
        if setting and now >= self._warn_again_at.get(setting, now):
            self._warn_again_at[setting] = now + WARNING_SECONDS
            level = logging.WARNING
        logger.log(level, "%s refused: %s %s", request_id, error.code, error.hint)


class _RequestIds:
    """Identifiers in the format of a GUID: a random prefix and a counter, which is cheap."""

    def __init__(self, clock: Clock) -> None:
        self._front = clock.new_id()[:24]
        self._count = int.from_bytes(clock.random_bytes(4), "big")
        self._stem = ""
        """All but the last two digits, which change with each request."""

    def take(self) -> str:
        self._count = count = self._count + 1
        last = count & 0xFF
        if not last or not self._stem:
            self._stem = f"{self._front}{count >> 8:010x}"
        return self._stem + _TWO_DIGITS[last]


_TWO_DIGITS = [f"{number:02x}" for number in range(256)]


def _asks_to_empty(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether a request asks for `restype=account&comp=empty`, which Azure does not have."""
    return ("comp", "empty") in pairs and ("restype", "account") in pairs


def is_client_request_id(text: str) -> bool:
    """Return whether an answer repeats this text: it is printable ASCII, and not too long."""
    return 0 < len(text) <= CLIENT_REQUEST_ID_MAX and text.isascii() and text.isprintable()


def _unnamed_version(request: Request, default: str) -> str:
    """Return the API version of a request without a valid version header."""
    if "api-version=" not in request.query:
        return default
    in_query = _API_VERSION.search(request.query)
    return default if in_query is None else in_query[1]


def _check_unversioned(request: Request) -> None:
    """Refuse a version header that is not a date, or too late a date."""
    named = request.headers.get("x-ms-version")
    if named is None:
        return
    raise invalid_header(
        "x-ms-version",
        named,
        "Set the api_version of the client to a date such as 2019-02-02, at most five years ahead.",
        setting="api_version",
    )


@lru_cache(maxsize=256)
def is_served(version: str, today: int | None) -> bool:
    """Return whether a version is a date that is not too late."""
    if _VERSION.fullmatch(version) is None or parse_time(version) is None:
        return False
    return (
        today is None
        or version <= edm.text_of((today + VERSION_DAYS_AHEAD_MAX) * TICKS_PER_DAY)[:10]
    )


def _not_served(account: str) -> NotAuthorizedError:
    """Return the answer of a wrong signature, with the reason for the log."""
    return shared_key.authentication_failed(
        hint=f"No account {account[:NAME_CHARACTERS_SHOWN]!r} is served: start the server with"
        f" {ACCOUNT_SETTING}, or correct the account name of the client.",
        setting=ACCOUNT_SETTING,
    )


def read_only() -> InvalidRequestError:
    """Return the refusal of a write that was sent to the secondary endpoint."""
    return InvalidRequestError(
        "InsufficientAccountPermissions",
        "Write operations are not allowed.",
        hint="Send writes to the primary endpoint.",
    )


# Locating the account


def locate(
    scheme: str, host: str, path: str, account_names: Container[str], service: str = "table"
) -> Target:
    """Find the account that a request is addressed to, in host style or in path style.

    Host style is `acct.table.…`, or any dotted name whose first label is a known account; in
    path style the first segment of the path names the account. `service` is the second label.
    """
    label, is_service_host = _host_form(host, service)
    if label and (is_service_host or label.removesuffix(_SECONDARY) in account_names):
        account, is_secondary = _without_suffix(label)
        return Target(account, is_secondary, f"{scheme}://{host}", path)
    named, _, rest = path.lstrip("/").partition("/")
    account, is_secondary, root = _account_in_path(scheme, host, named)
    if is_secondary:
        # In path style the Python SDK puts the secondary before the whole path of the primary.
        rest = rest.removeprefix(f"{account}/")
    return Target(account, is_secondary, root, rest)


def _without_suffix(named: str) -> tuple[str, bool]:
    account = named.removesuffix(_SECONDARY)
    return account, len(account) < len(named)


@lru_cache(maxsize=256)
def _account_in_path(scheme: str, host: str, named: str) -> tuple[str, bool, str]:
    _check_account_segment(named)
    return *_without_suffix(named), f"{scheme}://{host}/{named}"


@lru_cache(maxsize=256)
def _host_form(host: str, service: str) -> tuple[str, bool]:
    """Return the label that may be an account, and whether the service label follows it."""
    if not _HOST.fullmatch(host):
        raise invalid_header(hint="Send a Host header with a host name.")
    name = host.partition(":")[0].lower()
    if name.startswith("[") or "." not in name or _IPV4.fullmatch(name):
        return "", False
    labels = name.split(".")
    return labels[0], labels[1] == service


def _check_account_segment(segment: str) -> None:
    # The segment is part of every printed address, so it must not need escaping.
    if not segment.replace("-", "").isalnum() or not segment.isascii():
        raise invalid_syntax(
            InvalidRequestError, "Name the account in the first segment of the path."
        )
