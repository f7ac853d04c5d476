"""The table service: decode → authorize → perform → answer.

A call is decoded, checked against the grant and performed on the tables of the account; so is
each part of a batch.
"""

import asyncio
from collections.abc import Sequence
from types import MappingProxyType
from typing import assert_never

import msgspec

from partita.errors import (
    ConflictError,
    DamageError,
    EntityNotFoundError,
    InvalidRequestError,
    NotAuthorizedError,
    PartitaError,
    TableNotFoundError,
    UnavailableError,
    UsageError,
)
from partita.heat.meter import END as HEAT_END
from partita.heat.meter import READ as HEAT_READ
from partita.heat.meter import SCAN as HEAT_SCAN
from partita.heat.meter import WRITE as HEAT_WRITE
from partita.heat.meter import Key, Meter
from partita.policies import Policy
from partita.refusals import body_too_large, invalid_input, not_found
from partita.service.accounts import service_documents
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.account import Account, Accounts
from partita.service.accounts.respond import AuthorizedRequest, Target, locate, read_only
from partita.service.auth.sas import READ, Grant, Sas
from partita.service.formats.address import parse_query
from partita.service.formats.error_wire import encode_json, encode_xml, status_of
from partita.service.formats.multipart import batch_content_type, print_batch, read_batch
from partita.service.http.observed import UNOBSERVED, Observed, Queried
from partita.service.http.request import Request, Response
from partita.service.http.turns import computed
from partita.service.tables import answers
from partita.service.tables.calls import (
    CONTENT,
    WRITES,
    Call,
    Change,
    CreateTable,
    DeleteTable,
    GetEntity,
    GetTable,
    GetTablePolicies,
    GetTableProperties,
    GetTableStatistics,
    Level,
    QueryEntities,
    QueryTables,
    SetTablePolicies,
    SetTableProperties,
)
from partita.service.tables.point_reads import read_point
from partita.service.tables.usual_writes import begin_write
from partita.service.tables.wire import (
    Batch,
    Resource,
    check_encoding,
    decode,
    decode_like,
    is_xml,
    level_of,
    options_of,
    parse_resource,
    preference_of,
)
from partita.tables import limits, plan
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert
from partita.tables.paging import FIRST, KeyRange, Page
from partita.ticks import Clock

DEFAULT_VERSION = "2019-02-02"
"""The API version of requests without one: the version of the current Python SDK."""
QUERY_CHARACTERS_PER_TURN = 4096
"""A longer query is decoded in a thread: its filter may have hundreds of comparisons."""
BODY_BYTES_PER_TURN = 128 * 1024
"""Bytes of the parts of a batch that are decoded in one turn of the event loop."""
PARTS_PRINTED_PER_TURN = 50
EXPLAINED_RANGES_MAX = 20
"""Ranges of a fleet that the explanation of a query names."""
_SCANS = frozenset({plan.PlanKind.MULTI_PARTITION, plan.PlanKind.TABLE})
_BATCH = "EntityGroupTransaction"
_XML = ("Content-Type", "application/xml")
_PREFERRING = frozenset({"POST", "PUT", "PATCH", "MERGE"})
"""Methods whose answers may contain the entity."""


class TableService:
    """Answers requests for the tables of an account."""

    letter = "t"
    name = "table"
    default_version = DEFAULT_VERSION
    allows_anonymous = False
    usual = MappingProxyType({"GET": read_point, "POST": begin_write, "PUT": begin_write})

    def __init__(self, accounts: Accounts, clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock

    async def policies(self, account: Account, sas: Sas) -> Sequence[Policy]:
        table = await account.tables.store.find_table(sas.table)
        return [] if table is None else await account.tables.store.get_policies(table)

    async def answer(self, authorized: AuthorizedRequest) -> Response:
        request, target, grant = authorized.request, authorized.target, authorized.grant
        if len(request.body) > limits.GROUP_BYTES_MAX:
            raise body_too_large(None)
        check_encoding(request)
        try:
            resource = parse_resource(target.path, target.account)
            if isinstance(resource, Batch) and request.method == "POST":
                observed = request.observed
                observed.account, observed.operation = authorized.account.name, _BATCH
                return await self._answer_batch(authorized)
            options = options_of(authorized.pairs) if authorized.pairs else {}
            if len(request.query) <= QUERY_CHARACTERS_PER_TURN:
                call = decode(request, resource, options)
            else:
                call = await asyncio.to_thread(decode, request, resource, options)
        except UsageError as error:
            # The service reports a missing table before invalid keys.
            table = error.facts.get("table")
            if isinstance(table, str) and grant.everything:
                await authorized.account.tables.require_table(table)
            raise
        if not grant.everything or not isinstance(call, GetEntity):
            _note(request, authorized.account, call)
        if target.is_secondary and isinstance(call, WRITES):
            raise read_only()
        if not grant.everything:
            check_needs(call, grant)
            if isinstance(call, Change):
                call = _as_granted(call, grant)
        try:
            return await self._perform(call, authorized)
        except PartitaError as error:
            _note(request, authorized.account, call)
            if isinstance(error, ConflictError):
                _count_refused(authorized.account.meter, call, error)
            raise

    async def _perform(  # noqa: PLR0911, PLR0912, PLR0915 - one honest switch over the calls
        self, call: Call, authorized: AuthorizedRequest
    ) -> Response:
        tables, root, name = (
            authorized.account.tables,
            authorized.target.root,
            authorized.account.name,
        )
        grant, meter = authorized.grant, authorized.account.meter
        match call:
            case GetEntity():
                if not (grant.everything or grant.span.contains(call.key)):
                    raise not_found(NotAuthorizedError)
                entity = await tables.get(call.table, call.key)
                response = answers.entity_answer(entity, call, root, name)
                meter.left -= 1
                if meter.left <= 0:
                    meter.take(call.table, call.key, HEAT_READ, len(response.body))
                return response
            case QueryEntities():
                chosen, page = await tables.query(
                    call.table, call.filter, within=grant.span, start=call.start, limit=call.top
                )
                authorized.request.observe().query = Queried(
                    chosen, page.examined, len(page.entities), page.is_counted
                )
                count = answers.items_to_print(page, call)
                response = await computed(count, answers.page_answer, page, call, root, name)
                if authorized.request.headers.get("x-partita-explain") == "true":
                    examined = await _examined(tables, call, chosen, page)
                    described = plan.describe(chosen) + (page.index and f" index: {page.index}")
                    response.headers.append(("x-partita-plan", described))
                    response.headers.append(("x-partita-examined", str(examined)))
                    if places := await _places(tables, call.table, chosen):
                        response.headers.append(("x-partita-ranges", places))
                kind = HEAT_SCAN if chosen.kind in _SCANS else HEAT_READ
                first, last = _read_range(chosen, call.start, page)
                entities = max(len(page.entities), page.examined)
                meter.span(call.table, first, last, kind, entities, len(response.body))
                return response
            case Change():
                outcome = await tables.run(call.table, EntityGroup([call.operation]))
                meter.left -= 1
                if meter.left <= 0:
                    size = len(authorized.request.body)
                    meter.take(call.table, call.operation.key, HEAT_WRITE, size)
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
            case GetTablePolicies():
                policies = await tables.get_policies(call.table)
                return Response(200, [_XML], xml_wire.print_policies(policies))
            case SetTablePolicies():
                await tables.set_policies(call.table, xml_wire.parse_policies(call.body))
                return Response(204)
            case GetTableProperties():
                return await service_documents.get_properties(authorized, self.letter)
            case SetTableProperties():
                return await service_documents.set_properties(authorized, self.letter, call.body)
            case GetTableStatistics():
                return service_documents.get_statistics(authorized)
            case _:
                assert_never(call)

    # Batches

    async def _answer_batch(self, authorized: AuthorizedRequest) -> Response:
        request, target, account = authorized.request, authorized.target, authorized.account
        if target.is_secondary:
            raise read_only()
        content_type = request.headers.get("content-type", "")
        root_path = f"/{target.account}" if target.root.endswith(f"/{target.account}") else ""
        batch = read_batch(request.body, content_type, root_path)
        if batch.is_query:
            part = await self._answer_query(batch.parts[0], authorized)
            return self._multipart([part], None)
        if not batch.parts:
            return self._multipart([], self._clock.new_id())
        try:
            calls = await self._decode_changes(batch.parts, target, authorized.grant)
            request.observed.call = calls
            outcome = await account.tables.run(
                calls[0].table, EntityGroup([call.operation for call in calls])
            )
        except (NotAuthorizedError, UnavailableError, DamageError):
            raise  # not an error of one operation: clients retry the answer of the whole batch
        except PartitaError as error:
            observed = request.observed
            observed.code, observed.hint = error.code, error.hint
            index = error.facts.get("index", 0)
            failing = batch.parts[index if isinstance(index, int) else 0]
            part = answers.part_of_error(
                error,
                preference_of(failing),
                authorized.request_id,
                self._clock.ticks(),
                is_prefixed=len(batch.parts) > 1,
            )
            return self._multipart([part], self._clock.new_id())
        if account.heat is not None:
            keys = [call.operation.key for call in calls]
            account.meter.span(
                calls[0].table, min(keys), max(keys), HEAT_WRITE, len(keys), len(request.body)
            )
        parts: list[Response | bytes] = []
        for call, entity in zip(calls, outcome.entities, strict=True):
            parts.append(answers.part_of_change(entity, call, target.root, account.name))
            if len(parts) % PARTS_PRINTED_PER_TURN == 0:
                await asyncio.sleep(0)
        return self._multipart(parts, self._clock.new_id())

    async def _decode_changes(
        self, parts: Sequence[Request], target: Target, grant: Grant
    ) -> list[Change]:
        """Decode and authorize the parts; an error names the index of its part."""
        calls: list[Change] = []
        known: dict[str, Resource] = {}
        headers: dict[str, str] | None = None
        """Those of the last part if it is an insert; equal heads have the same object."""
        size = 0
        for index, part in enumerate(parts):
            size += len(part.body)
            if size > BODY_BYTES_PER_TURN:
                size = 0
                await asyncio.sleep(0)
            try:
                call: Call
                if part.headers is headers:
                    call = decode_like(calls[-1], part.body)
                else:
                    call = self._decode_part(part, target, known)
                    if not isinstance(call, Change):
                        raise _bad_batch("Use only writes of entities in a change set.")
                    if calls and call.table.lower() != calls[0].table.lower():
                        raise _bad_batch("Use one table for all operations of a batch.")
                    headers = part.headers if isinstance(call.operation, Insert) else None
                check_needs(call, grant)
            except PartitaError as error:
                error.facts["index"] = index
                raise
            calls.append(_as_granted(call, grant))
        return calls

    def _decode_part(self, part: Request, target: Target, known: dict[str, Resource]) -> Call:
        """Decode a part; `known` caches resources by path, because inserts have the same path."""
        resource = known.get(part.path)
        if resource is None:
            here = locate("http", target.root.split("/")[2], part.path, self._accounts, self.name)
            if here.account != target.account:
                raise _bad_batch("Use the account of the batch in all its parts.")
            resource = known[part.path] = parse_resource(here.path, here.account)
        options = options_of(parse_query(part.query)) if part.query else {}
        return decode(part, resource, options)

    async def _answer_query(self, part: Request, authorized: AuthorizedRequest) -> Response:
        try:
            call = await asyncio.to_thread(self._decode_part, part, authorized.target, {})
            if not isinstance(call, GetEntity | QueryEntities):
                raise _bad_batch("Use a query of entities in a batch.")
            observed = _note(authorized.request, authorized.account, call)
            check_needs(call, authorized.grant)
            part = msgspec.structs.replace(part, observed=observed)
            answer = await self._perform(call, msgspec.structs.replace(authorized, request=part))
        except UnavailableError:
            raise  # clients retry the answer of the whole batch
        except PartitaError as error:
            authorized.request.observed.code = error.code
            authorized.request.observed.hint = error.hint
            return answers.part_of_error(
                error, None, authorized.request_id, self._clock.ticks(), is_prefixed=True
            )
        return answers.part_of_query(answer)

    def _multipart(self, parts: Sequence[Response | bytes], changeset_id: str | None) -> Response:
        batch_id = self._clock.new_id()
        body = print_batch(parts, batch_id, changeset_id)
        return Response(202, [("Content-Type", batch_content_type(batch_id))], body)

    # Errors

    def is_cacheable(self, request: Request) -> bool:
        return "comp=" in request.query

    def refuse(
        self, error: PartitaError, message: str, request: Request, extra: list[tuple[str, str]]
    ) -> Response:
        if _wants_xml(request):
            return encode_xml(error, message, extra=extra)
        preference = preference_of(request)
        if preference is not None and request.method in _PREFERRING:
            extra.append(("Preference-Applied", preference))
        return encode_json(error, message, _error_content_type(error, request), extra=extra)


async def _examined(tables: TableEngine, call: QueryEntities, chosen: plan.Plan, page: Page) -> int:
    """Return how many entities a query has read, counted: for an explanation."""
    span = chosen.span if call.start is None else chosen.span.starting_at(call.start)
    span = KeyRange(span.lower, page.continuation or span.upper)
    if page.index:
        return page.examined
    if chosen.residual is None or span.is_empty:
        return len(page.entities)
    table = await tables.require_table(call.table)
    return (await tables.store.statistics(table, span)).entities


async def _places(tables: TableEngine, name: str, chosen: plan.Plan) -> str:
    """Return which ranges of a fleet a query reads, and their shards: for an explanation."""
    table = await tables.require_table(name)
    places = tables.store.places(table, chosen.span)
    more = len(places) - EXPLAINED_RANGES_MAX
    return ", ".join(places[:EXPLAINED_RANGES_MAX]) + (f", {more} more" if more > 0 else "")


def _note(request: Request, account: Account, call: Call) -> Observed:
    """Note what a request asks for; of a point read that succeeds, the answer tells it."""
    observed = request.observed
    if observed is UNOBSERVED:
        observed = request.observe()
    observed.account, observed.call, observed.operation = account.name, call, call.logged_as
    return observed


def _wants_xml(request: Request) -> bool:
    if request.headers.get("accept") == "application/xml":
        return True
    try:
        return is_xml(dict(parse_query(request.query)))
    except PartitaError:
        return False


def _error_content_type(error: PartitaError, request: Request) -> str:
    if status_of(error) in (401, 403):
        return "application/json"  # an unauthorized request does not choose the metadata level
    try:
        return level_of(request, dict(parse_query(request.query))).content_type
    except PartitaError:
        return Level.MINIMAL.content_type


def check_needs(call: Call, grant: Grant) -> None:
    """Raise unless the grant covers all needs of a call."""
    if not grant.everything:
        for need in call.needs():
            grant.check(need)


def _as_granted(call: Change, grant: Grant) -> Change:
    """Return the write, without the entity in its answer if the token may not read.

    The answer to a merge contains properties that the request did not send; that of an insert
    does not.
    """
    if grant.everything or READ[0] in grant.permissions or call.preference != CONTENT:
        return call
    if isinstance(call.operation, Insert):
        return call
    return msgspec.structs.replace(call, preference=None)


def _read_range(chosen: plan.Plan, start: EntityKey | None, page: Page) -> tuple[Key, Key]:
    """Return the first and the last key that a page was read from, as far as they are known."""
    first = start or chosen.span.lower
    if chosen.kind in _SCANS and len(page.entities) <= 1:
        # What it found, if anything, is not where it has read.
        return first, page.continuation or chosen.span.upper or HEAT_END
    if first == FIRST and page.entities:
        first = page.entities[0].key
    if page.continuation is not None:
        return first, max(first, page.continuation)
    return first, page.entities[-1].key if page.entities else first


def _count_refused(meter: Meter, call: Call, error: ConflictError) -> None:
    """Measure a request for an entity that does not exist, exists already, or has changed."""
    if isinstance(call, GetEntity) and isinstance(error, EntityNotFoundError):
        meter.count(call.table, call.key, HEAT_READ)
    elif isinstance(call, Change) and not isinstance(error, TableNotFoundError):
        meter.count(call.table, call.operation.key, HEAT_WRITE)


def _bad_batch(hint: str) -> InvalidRequestError:
    return invalid_input(InvalidRequestError, hint)
