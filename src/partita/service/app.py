"""The one request path: from a Request to a Response, socket or not.

locate → authenticate → decode → authorise → perform → encode. Everything before `perform` is
pure over values; the first PartitaError on the way becomes the answer.
"""

import logging
import re
from collections.abc import Container, Sequence
from functools import lru_cache
from typing import assert_never

from partita.clock import Clock
from partita.errors import (
    DamageError,
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    PartitaError,
    UnavailableError,
    UsageError,
)
from partita.service import bearer, browsers, cors, shared_key, xml_wire
from partita.service import table_answers as answers
from partita.service.account import Account, Accounts
from partita.service.address import Batch, Resource, Target, locate, parse_query, parse_resource
from partita.service.batch_wire import batch_content_type, print_batch, read_batch
from partita.service.error_wire import encode_json, encode_xml, message_of, status_of
from partita.service.policy import check_policies
from partita.service.render import Level
from partita.service.request import Request, Response
from partita.service.sas import FULL, Grant, Sas, check_single_credential, evaluate, parse_sas
from partita.service.table_wire import (
    WRITES,
    Call,
    Change,
    CreateTable,
    DeleteTable,
    GetEntity,
    GetPolicies,
    GetProperties,
    GetStatistics,
    GetTable,
    QueryEntities,
    QueryTables,
    SetPolicies,
    SetProperties,
    check_encoding,
    decode,
    is_xml,
    level_of,
    options_of,
    preference_of,
)
from partita.tables import limits, plan
from partita.tables.group import EntityGroup

logger = logging.getLogger("partita.service")

DEFAULT_VERSION = "2019-02-02"
"""The API version of requests that name none: what the current Python SDK sends."""
TABLE_SERVICE = "t"

_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_API_VERSION = re.compile(r"(?:^|&)api-version=(\d{4}-\d\d-\d\d)(?:&|$)", re.ASCII)
"""Old .NET clients name the version so beside a SAS."""
_CLIENT_REQUEST_ID = re.compile(r"[\x20-\x7e]{1,1024}")
_XML = ("Content-Type", "application/xml")


class App:
    """Answers requests of the table service for a set of accounts."""

    def __init__(
        self,
        accounts: Accounts,
        clock: Clock,
        *,
        allowed_hosts: Container[str] = (),
        skew_seconds: int | None = shared_key.SKEW_SECONDS,
    ) -> None:
        self.accounts = accounts
        self._clock = clock
        self._allowed_hosts = allowed_hosts
        self._skew_seconds = skew_seconds
        self._request_ids = _RequestIds(clock)

    async def respond(self, request: Request) -> Response:
        """Answer one request; whatever is wrong with it is an answer too."""
        request_id = self._request_ids.take()
        account: Account | None = None
        try:
            host = request.headers.get("host", "")
            target = locate(request.scheme, host, request.path, self.accounts)
            account = self.accounts.find(target.account)
            response = await self._answer(request, target, account, request_id)
        except PartitaError as error:
            response = self._refuse(error, request, request_id)
            if isinstance(error, NotAuthorizedError):
                # A stranger must not learn from the answer which part was wrong.
                logger.info("%s refused: %s %s", request_id, error.code, error.hint)
            elif error.hint:
                response.headers.append(("x-partita-hint", error.hint))
        self._add_headers(response, request, account, request_id)
        return response

    async def _answer(
        self, request: Request, target: Target, account: Account, request_id: str
    ) -> Response:
        if account.is_guarded:
            browsers.guard(request, account.properties.cors, self._allowed_hosts)
        check_version(request)
        if request.method == "OPTIONS":
            return cors.preflight(account.properties.cors, request)
        now = self._clock.ticks()
        pairs = parse_query(request.query)
        sas = parse_sas(pairs) if pairs else None
        if sas is None:
            self._check_signature(request, account, now)
            grant = FULL
        else:
            grant = await self._evaluate(sas, request, account, now)
        if len(request.body) > limits.GROUP_BYTES_MAX:
            raise LimitExceededError(
                "RequestBodyTooLarge",
                "The request body is too large and exceeds the maximum permissible limit.",
            )
        check_encoding(request)
        try:
            resource = parse_resource(target.path, target.account)
            if isinstance(resource, Batch) and request.method == "POST":
                return await self._answer_batch(request, target, account, grant, request_id)
            options = options_of(pairs) if pairs else {}
            call = decode(request, resource, options)
        except UsageError as error:
            # The service misses a table before it finds fault with the keys of its entities.
            table = error.facts.get("table")
            if isinstance(table, str) and grant.everything:
                await account.tables.require_table(table)
            raise
        if target.is_secondary and isinstance(call, WRITES):
            raise _read_only()
        if not grant.everything:
            check_needs(call, grant)
        return await self._perform(call, request, target, account, grant)

    def _check_signature(self, request: Request, account: Account, now: int) -> None:
        authorization = request.headers.get("authorization")
        if authorization is None:
            raise NotAuthorizedError(
                "NoAuthenticationInformation",
                "Server failed to authenticate the request. Please refer to the information"
                " in the www-authenticate header.",
                hint="Sign the request with an account key, or use a SAS.",
            )
        if authorization.startswith("Bearer "):
            raise bearer.challenge(request)
        shared_key.authenticate(request, account.name, account.keys, now, self._skew_seconds)

    async def _evaluate(self, sas: Sas, request: Request, account: Account, now: int) -> Grant:
        check_single_credential(request, sas)
        policies = []
        if sas.policy_id and account.name:
            table = await account.tables.store.find_table(sas.table)
            policies = [] if table is None else await account.tables.store.get_policies(table)
        return evaluate(
            sas,
            service=TABLE_SERVICE,
            account=account.name,
            keys=account.keys,
            policies=policies,
            now=now,
            peer=request.peer,
            scheme=request.scheme,
        )

    async def _perform(  # noqa: PLR0911, PLR0912 - one honest switch over the calls
        self, call: Call, request: Request, target: Target, account: Account, grant: Grant
    ) -> Response:
        tables, root, name = account.tables, target.root, account.name
        match call:
            case GetEntity():
                if not (grant.everything or grant.span.contains(call.key)):
                    raise NotAuthorizedError(
                        "ResourceNotFound", "The specified resource does not exist."
                    )
                entity = await tables.get(call.table, call.key)
                return answers.entity_answer(entity, call, root, name)
            case QueryEntities():
                chosen, page = await tables.query(
                    call.table, call.filter, within=grant.span, start=call.start, limit=call.top
                )
                response = answers.page_answer(page, call, root, name)
                if request.headers.get("x-partita-explain") == "true":
                    response.headers.append(("x-partita-plan", plan.describe(chosen)))
                return response
            case Change():
                outcome = await tables.run(call.table, EntityGroup([call.operation]))
                return answers.change_answer(outcome.entities[0], call, root, name)
            case QueryTables():
                found = await tables.list_tables(call.filter, start=call.start, limit=call.top)
                return answers.table_page_answer(found, call, root, name)
            case GetTable():
                return answers.table_answer(await tables.get_table(call.name), call, root, name)
            case CreateTable():
                created = await tables.create_table(call.name)
                return answers.created_table_answer(created, call, root, name)
            case DeleteTable():
                await tables.delete_table(call.name)
                return Response(204)
            case GetPolicies():
                policies = await tables.get_policies(call.table)
                return Response(200, [_XML], xml_wire.print_policies(policies))
            case SetPolicies():
                wanted = xml_wire.parse_policies(call.body) if call.body.strip() else []
                check_policies(wanted)
                await tables.set_policies(call.table, wanted)
                return Response(204)
            case GetProperties():
                text = xml_wire.print_properties(account.properties, version_of(request))
                return Response(200, [_XML], text)
            case SetProperties():
                properties = xml_wire.parse_properties(
                    call.body, account.properties, version_of(request)
                )
                await account.set_properties(properties)
                return Response(202)
            case GetStatistics():
                if not target.is_secondary:
                    raise InvalidRequestError(
                        "InvalidQueryParameterValue",
                        "Value for one of the query parameters specified in the request URI is"
                        " invalid.",
                        hint="Statistics are served by the secondary endpoint.",
                    )
                return Response(200, [_XML], xml_wire.print_stats("live", self._clock.ticks()))
            case _:
                assert_never(call)

    # Batches

    async def _answer_batch(
        self, request: Request, target: Target, account: Account, grant: Grant, request_id: str
    ) -> Response:
        if target.is_secondary:
            raise _read_only()
        content_type = request.headers.get("content-type", "")
        root_path = f"/{target.account}" if target.root.endswith(f"/{target.account}") else ""
        batch = read_batch(request.body, content_type, root_path)
        if batch.is_query:
            part = await self._answer_query(batch.parts[0], target, account, grant, request_id)
            return self._multipart([part], None)
        try:
            calls = self._decode_changes(batch.parts, target, grant)
            outcome = await account.tables.run(
                calls[0].table, EntityGroup([call.operation for call in calls])
            )
        except (NotAuthorizedError, UnavailableError, DamageError):
            raise  # not about one operation: clients retry what they see as the answer itself
        except PartitaError as error:
            index = error.facts.get("index", 0)
            failing = batch.parts[index if isinstance(index, int) else 0]
            part = answers.part_of_error(
                error,
                preference_of(failing),
                request_id,
                self._clock.ticks(),
                is_prefixed=len(batch.parts) > 1,
            )
            return self._multipart([part], self._clock.new_id())
        parts = [
            answers.part_of_change(entity, call, target.root, account.name)
            for call, entity in zip(calls, outcome.entities, strict=True)
        ]
        return self._multipart(parts, self._clock.new_id())

    def _decode_changes(
        self, parts: Sequence[Request], target: Target, grant: Grant
    ) -> list[Change]:
        """Decode and authorise the parts; an error names the index of its part."""
        calls: list[Change] = []
        known: dict[str, Resource] = {}
        for index, part in enumerate(parts):
            try:
                call = self._decode_part(part, target, known)
                if not isinstance(call, Change):
                    raise _bad_batch("A change set holds writes of entities only.")
                if calls and call.table.lower() != calls[0].table.lower():
                    raise _bad_batch("All operations of a batch are on one table.")
                check_needs(call, grant)
            except PartitaError as error:
                error.facts["index"] = index
                raise
            calls.append(call)
        return calls

    def _decode_part(self, part: Request, target: Target, known: dict[str, Resource]) -> Call:
        """Decode a part; `known` keeps what its path names, since inserts share theirs."""
        resource = known.get(part.path)
        if resource is None:
            here = locate("http", target.root.split("/")[2], part.path, self.accounts)
            if here.account != target.account:
                raise _bad_batch("A part of the batch names another account.")
            resource = known[part.path] = parse_resource(here.path, here.account)
        options = options_of(parse_query(part.query)) if part.query else {}
        return decode(part, resource, options)

    async def _answer_query(
        self, part: Request, target: Target, account: Account, grant: Grant, request_id: str
    ) -> Response:
        try:
            call = self._decode_part(part, target, {})
            if not isinstance(call, GetEntity | QueryEntities):
                raise _bad_batch("The query of a batch reads entities.")
            check_needs(call, grant)
            answer = await self._perform(call, part, target, account, grant)
        except PartitaError as error:
            return answers.part_of_error(
                error, None, request_id, self._clock.ticks(), is_prefixed=True
            )
        return answers.part_of_query(answer)

    def _multipart(self, parts: Sequence[Response], changeset_id: str | None) -> Response:
        batch_id = self._clock.new_id()
        body = print_batch(parts, batch_id, changeset_id)
        return Response(202, [("Content-Type", batch_content_type(batch_id))], body)

    # Errors and headers

    def _refuse(self, error: PartitaError, request: Request, request_id: str) -> Response:
        message = message_of(error, request_id, self._clock.ticks(), index=None)
        extra: list[tuple[str, str]] = []
        challenge = error.facts.get("www_authenticate")
        if isinstance(challenge, str):
            extra.append(("WWW-Authenticate", challenge))
        if error.code in ("ServerBusy", "StoreFull"):
            extra.append(("Retry-After", "1"))
        if _wants_xml(request):
            return encode_xml(error, message, extra=extra)
        preference = preference_of(request)
        if preference is not None and request.method == "POST":
            extra.append(("Preference-Applied", preference))
        return encode_json(error, message, _error_content_type(error, request), extra=extra)

    def _add_headers(
        self, response: Response, request: Request, account: Account | None, request_id: str
    ) -> None:
        headers = response.headers
        headers += (
            ("x-ms-request-id", request_id),
            ("x-ms-version", version_of(request)),
            ("X-Content-Type-Options", "nosniff"),
        )
        if "comp=" not in request.query:
            headers.append(("Cache-Control", "no-cache"))
        client_request_id = request.headers.get("x-ms-client-request-id")
        if client_request_id is not None and _CLIENT_REQUEST_ID.fullmatch(client_request_id):
            headers.append(("x-ms-client-request-id", client_request_id))
        if account is not None and account.properties.cors and request.method != "OPTIONS":
            headers.extend(cors.response_headers(account.properties.cors, request))


class _RequestIds:
    """Identifiers in the form of a GUID: random once, then counted, so that they cost little."""

    def __init__(self, clock: Clock) -> None:
        self._front = clock.new_id()[:24]
        self._count = int.from_bytes(clock.random_bytes(4), "big")

    def take(self) -> str:
        self._count += 1
        return f"{self._front}{self._count:012x}"


def version_of(request: Request) -> str:
    """Return the API version of a request; newer ones than we know are served."""
    named = request.headers.get("x-ms-version")
    if named is not None:
        return named if is_version(named) else DEFAULT_VERSION
    if "api-version=" not in request.query:
        return DEFAULT_VERSION
    in_query = _API_VERSION.search(request.query)
    return DEFAULT_VERSION if in_query is None else in_query[1]


def check_version(request: Request) -> None:
    """Refuse a version that is no date: its place among the known ones cannot be told."""
    if not is_version(request.headers.get("x-ms-version", DEFAULT_VERSION)):
        raise InvalidRequestError(
            "InvalidHeaderValue",
            "The value for one of the HTTP headers is not in the correct format.",
            hint="x-ms-version is a date such as 2019-02-02.",
        )


@lru_cache(maxsize=256)
def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def _wants_xml(request: Request) -> bool:
    if request.headers.get("accept") == "application/xml":
        return True
    try:
        return is_xml(dict(parse_query(request.query)))
    except PartitaError:
        return False


def _error_content_type(error: PartitaError, request: Request) -> str:
    if status_of(error) in (401, 403):
        return "application/json"  # who is not let in is not asked for a level
    try:
        return level_of(request, dict(parse_query(request.query))).content_type
    except PartitaError:
        return Level.MINIMAL.content_type


def check_needs(call: Call, grant: Grant) -> None:
    """Raise unless everything that a call needs is granted."""
    if not grant.everything:
        for need in call.needs():
            grant.check(need)


def _read_only() -> InvalidRequestError:
    return InvalidRequestError(
        "InsufficientAccountPermissions",
        "Write operations are not allowed.",
        hint="The secondary endpoint only reads.",
    )


def _bad_batch(hint: str) -> InvalidRequestError:
    return InvalidRequestError("InvalidInput", "One of the request inputs is not valid.", hint=hint)
