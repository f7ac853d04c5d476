"""The table service: decode → authorize → perform → answer.

A call is decoded, checked against the grant and performed on the tables of the account; so is
each part of a batch.
"""

import asyncio
from collections.abc import Sequence
from typing import assert_never

import msgspec

from partita.errors import (
    DamageError,
    InvalidRequestError,
    NotAuthorizedError,
    PartitaError,
    UnavailableError,
    UsageError,
)
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
from partita.service.tables.wire import (
    Batch,
    Resource,
    check_encoding,
    decode,
    is_xml,
    level_of,
    options_of,
    parse_resource,
    preference_of,
)
from partita.tables import limits, plan
from partita.tables.operations import EntityGroup, Insert
from partita.ticks import Clock

DEFAULT_VERSION = "2019-02-02"
"""The API version of requests without one: the version of the current Python SDK."""
QUERY_CHARACTERS_PER_TURN = 4096
"""A longer query is decoded in a thread: its filter may have hundreds of comparisons."""
BODY_BYTES_PER_TURN = 128 * 1024
"""Bytes of the parts of a batch that are decoded in one turn of the event loop."""
PARTS_PRINTED_PER_TURN = 50
_XML = ("Content-Type", "application/xml")
_PREFERRING = frozenset({"POST", "PUT", "PATCH", "MERGE"})
"""Methods whose answers may contain the entity."""


class TableService:
    """Answers requests for the tables of an account."""

    letter = "t"
    name = "table"
    default_version = DEFAULT_VERSION
    allows_anonymous = False

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
        if target.is_secondary and isinstance(call, WRITES):
            raise read_only()
        if not grant.everything:
            check_needs(call, grant)
            if isinstance(call, Change):
                call = _as_granted(call, grant)
        return await self._perform(call, authorized)

    async def _perform(  # noqa: PLR0911, PLR0912 - one honest switch over the calls
        self, call: Call, authorized: AuthorizedRequest
    ) -> Response:
        tables, root, name = (
            authorized.account.tables,
            authorized.target.root,
            authorized.account.name,
        )
        grant = authorized.grant
        match call:
            case GetEntity():
                if not (grant.everything or grant.span.contains(call.key)):
                    raise not_found(NotAuthorizedError)
                entity = await tables.get(call.table, call.key)
                return answers.entity_answer(entity, call, root, name)
            case QueryEntities():
                chosen, page = await tables.query(
                    call.table, call.filter, within=grant.span, start=call.start, limit=call.top
                )
                is_copied = call.level is Level.MINIMAL and call.select is None
                count = 0 if is_copied else sum(len(each.document) for each in page.entities) // 64
                response = await computed(count, answers.page_answer, page, call, root, name)
                if authorized.request.headers.get("x-partita-explain") == "true":
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
            outcome = await account.tables.run(
                calls[0].table, EntityGroup([call.operation for call in calls])
            )
        except (NotAuthorizedError, UnavailableError, DamageError):
            raise  # not an error of one operation: clients retry the answer of the whole batch
        except PartitaError as error:
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
        parts: list[Response] = []
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
        size = 0
        for index, part in enumerate(parts):
            size += len(part.body)
            if size > BODY_BYTES_PER_TURN:
                size = 0
                await asyncio.sleep(0)
            try:
                call = self._decode_part(part, target, known)
                if not isinstance(call, Change):
                    raise _bad_batch("Use only writes of entities in a change set.")
                if calls and call.table.lower() != calls[0].table.lower():
                    raise _bad_batch("Use one table for all operations of a batch.")
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
            check_needs(call, authorized.grant)
            answer = await self._perform(call, msgspec.structs.replace(authorized, request=part))
        except UnavailableError:
            raise  # clients retry the answer of the whole batch
        except PartitaError as error:
            return answers.part_of_error(
                error, None, authorized.request_id, self._clock.ticks(), is_prefixed=True
            )
        return answers.part_of_query(answer)

    def _multipart(self, parts: Sequence[Response], changeset_id: str | None) -> Response:
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


def _bad_batch(hint: str) -> InvalidRequestError:
    return invalid_input(InvalidRequestError, hint)
