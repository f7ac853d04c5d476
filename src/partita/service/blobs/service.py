"""The blob service behind the front: one table from what is asked to the call that does it.

A row says what the asker must be allowed, then the call reads its headers, runs on the account's
blobs and answers. What is not built has its rows too, and answers 501.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from partita.blobs.engine.preconditions import missing_blob
from partita.errors import ConflictError, InvalidRequestError, NotAuthorizedError, PartitaError
from partita.policies import Policy
from partita.service.accounts import service_documents
from partita.service.accounts.account import Account, Accounts
from partita.service.accounts.respond import Asked, Front, read_only
from partita.service.auth import shared_key
from partita.service.auth.browser_guard import EVERY_HOST
from partita.service.auth.sas import (
    APPEND,
    BREAK_LEASE,
    CONTAINER,
    CREATE,
    DELETE,
    LIST,
    OBJECT,
    READ,
    SERVICE,
    TAGS,
    WRITE,
    Need,
    Sas,
)
from partita.service.blobs import blob_calls, container_calls, copy_calls
from partita.service.blobs.address import OneBlob, OneContainer, parse_blob_resource
from partita.service.blobs.asked import (
    BlobAsked,
    not_implemented,
    whole_body,
)
from partita.service.blobs.batch import answer_batch
from partita.service.formats.error_wire import encode_error
from partita.service.formats.query_options import invalid_parameter, options_of, unsupported_verb
from partita.service.formats.xml_text import XML_BYTES_MAX
from partita.service.http.request import Request, Response
from partita.ticks import Clock

DEFAULT_VERSION = "2021-08-06"
"""The API version of requests that name none, as anonymous readers do."""

_TAG_HEADERS = ("x-ms-tags", "x-ms-if-tags")
"""They write tags or tell of them, whatever the operation."""

Perform = Callable[[BlobAsked], Awaitable[Response]]


class Operation(msgspec.Struct, frozen=True):
    """One row: what it needs and who does it."""

    resource: str
    permissions: tuple[str, ...]
    perform: Perform
    by_key_only: bool = False
    no_service_sas: bool = False
    """A service SAS never does, whatever its letters: what changes a container itself."""


async def _not_built(asked: BlobAsked) -> Response:
    raise not_implemented("Not supported: comp=" + asked.comp)


class BlobService:
    """Answers requests for the containers and blobs of an account."""

    letter = "b"
    name = "blob"
    default_version = DEFAULT_VERSION
    allows_anonymous = True

    def __init__(
        self,
        accounts: Accounts,
        clock: Clock,
        *,
        skew_seconds: int | None = shared_key.SKEW_SECONDS,
    ) -> None:
        self._accounts = accounts
        self._clock = clock
        # The parts of a batch come in by the same door as everybody.
        self._parts = Front(
            self, accounts, clock, allowed_hosts=EVERY_HOST, skew_seconds=skew_seconds
        )
        self._rows = {**_ROWS, **self._own_rows()}

    def _own_rows(self) -> dict[tuple[str, str, str], Operation]:
        """Return the rows of calls that look beyond their own account, or at this service."""
        return {
            ("service", "GET", "properties"): Operation(SERVICE, READ, self._get_properties),
            ("service", "PUT", "properties"): Operation(SERVICE, WRITE, self._set_properties),
            ("root", "POST", "batch"): Operation(OBJECT, ("",), self._answer_batch),
            ("container", "POST", "batch"): Operation(OBJECT, ("",), self._answer_batch),
            ("blob", "PUT", ""): Operation(OBJECT, CREATE, self._put_blob),
            ("blob", "PUT", "block"): Operation(OBJECT, WRITE, self._put_block),
            ("blob", "PUT", "appendblock"): Operation(OBJECT, APPEND, self._append_block),
            ("blob", "PUT", "page"): Operation(OBJECT, WRITE, self._put_pages),
        }

    async def policies(self, account: Account, sas: Sas) -> Sequence[Policy]:
        container = await account.blobs.find_container(sas.container)
        return () if container is None else container.policies

    def is_cacheable(self, request: Request) -> bool:
        return "comp=" not in request.query

    def refuse(
        self, error: PartitaError, message: str, request: Request, extra: list[tuple[str, str]]
    ) -> Response:
        if error.code == "InvalidRange":
            extra.append(("Content-Range", f"bytes */{error.facts.get('length', 0)}"))
        if "source" in error.facts:
            extra.append(("x-ms-copy-source-status-code", str(error.facts["status"])))
            extra.append(("x-ms-copy-source-error-code", str(error.facts["source"])))
        return encode_error(error, message, request, extra)

    async def answer(self, asked: Asked) -> Response:
        kind, found = _locate(asked)
        method = (
            "GET" if asked.request.method == "HEAD" and kind != "blob" else asked.request.method
        )
        operation = self._rows.get((kind, method, found.comp))
        if operation is None:
            raise self._unknown(kind, found)
        if asked.target.is_secondary and method not in ("GET", "HEAD"):
            raise read_only()
        await self._authorise(operation, found)
        if found.blob and found.options.get("versionid"):
            # Never taken for the blob itself: a delete of an old version must not hit the new.
            raise missing_blob(found.name)
        if method == "PUT" and found.blob and found.name.snapshot and found.comp != "tier":
            raise invalid_parameter("snapshot", found.name.snapshot)
        return await operation.perform(found)

    def _unknown(self, kind: str, asked: BlobAsked) -> InvalidRequestError:
        if any(row[0] == kind and row[2] == asked.comp for row in self._rows):
            return unsupported_verb()
        return invalid_parameter("comp", asked.comp)

    async def _authorise(self, operation: Operation, asked: BlobAsked) -> None:
        grant = asked.front.grant
        if grant.everything:
            return
        if operation.permissions == ("",):
            return  # each part of a batch shows its own credentials
        if operation.perform is container_calls.account_information and not grant.is_anonymous:
            # Every SAS that reads something may know what kind of account it reads from.
            grant.check(Need(grant.resource_types[:1] or OBJECT, READ, grant.scope))
            return
        if grant.is_anonymous and asked.container:
            container = await asked.front.account.blobs.find_container(asked.container)
            grant = grant.opened(None if container is None else container.access)
        scope = asked.scope
        if operation.permissions == LIST:
            scope = container_calls.listing_scope(asked)
        is_closed = operation.no_service_sas and grant.scope is not None
        permissions = operation.permissions
        if asked.comp == "lease" and _is_break(asked.request):
            permissions = BREAK_LEASE
        grant.check(
            Need(
                operation.resource,
                permissions,
                None if is_closed else scope,
                by_key_only=operation.by_key_only,
            )
        )
        if asked.blob and any(map(asked.request.given, _TAG_HEADERS)):
            grant.check(Need(OBJECT, TAGS, scope))

    # Calls that look further

    async def _get_properties(self, asked: BlobAsked) -> Response:
        return service_documents.get_properties(asked.front, self.letter)

    async def _set_properties(self, asked: BlobAsked) -> Response:
        body = await whole_body(asked.request, XML_BYTES_MAX)
        whole = msgspec.structs.replace(asked.request, body=body, upload=None)
        return await service_documents.set_properties(
            msgspec.structs.replace(asked.front, request=whole), self.letter
        )

    async def _answer_batch(self, asked: BlobAsked) -> Response:
        return await answer_batch(asked, self._parts.respond, self._clock)

    async def _put_blob(self, asked: BlobAsked) -> Response:
        grant = asked.front.grant
        if grant.everything or "w" in grant.permissions:
            return await self._write_blob(asked)
        try:
            return await self._write_blob(_only_if_new(asked))
        except ConflictError as error:
            if error.code != "BlobAlreadyExists":
                raise
            raise NotAuthorizedError(
                "UnauthorizedBlobOverwrite",
                "This request is not authorized to perform blob overwrites.",
                hint="The SAS has c, which creates; writing over a blob needs w.",
            ) from error

    async def _write_blob(self, asked: BlobAsked) -> Response:
        if copy_calls.is_copy(asked.request):
            return await copy_calls.copy_blob(asked, self._accounts)
        blob_calls.refuse_unbuilt(asked.request)
        return await blob_calls.put_blob(asked)

    async def _put_block(self, asked: BlobAsked) -> Response:
        if copy_calls.is_copy(asked.request):
            return await copy_calls.put_block_from_url(asked, self._accounts)
        blob_calls.refuse_unbuilt(asked.request)
        return await blob_calls.put_block(asked)

    async def _append_block(self, asked: BlobAsked) -> Response:
        if copy_calls.is_copy(asked.request):
            return await copy_calls.append_block_from_url(asked, self._accounts)
        blob_calls.refuse_unbuilt(asked.request)
        return await blob_calls.append_block(asked)

    async def _put_pages(self, asked: BlobAsked) -> Response:
        if copy_calls.is_copy(asked.request):
            return await copy_calls.put_pages_from_url(asked, self._accounts)
        blob_calls.refuse_unbuilt(asked.request)
        return await blob_calls.put_pages(asked)


def _locate(asked: Asked) -> tuple[str, BlobAsked]:
    """Return what kind of resource is asked for, and the request with its names."""
    options = options_of(asked.pairs)
    comp, restype = options.get("comp", "").lower(), options.get("restype", "").lower()
    if restype == "account" and comp == "properties":
        return "account", BlobAsked(asked, options, comp)
    if restype == "service":
        return "service", BlobAsked(asked, options, comp)
    resource = parse_blob_resource(asked.target.path, is_container=restype == "container")
    if isinstance(resource, OneBlob):
        return "blob", BlobAsked(asked, options, comp, resource.container, resource.name)
    if isinstance(resource, OneContainer):
        return "container", BlobAsked(asked, options, comp, resource.name)
    return "root", BlobAsked(asked, options, comp)


def _is_break(request: Request) -> bool:
    return request.headers.get("x-ms-lease-action", "").lower() == "break"


def _only_if_new(asked: BlobAsked) -> BlobAsked:
    """Return the request with the condition that nothing is overwritten, whatever it said."""
    headers = {
        name: value
        for name, value in asked.request.headers.items()
        if not name.startswith("if-") and name != "x-ms-lease-id"
    }
    request = msgspec.structs.replace(asked.request, headers={**headers, "if-none-match": "*"})
    return msgspec.structs.replace(
        asked, front=msgspec.structs.replace(asked.front, request=request)
    )


async def _get_statistics(asked: BlobAsked) -> Response:
    return service_documents.get_statistics(asked.front)


async def _refuse_delegation(_asked: BlobAsked) -> Response:
    raise NotAuthorizedError(
        "AuthenticationFailed",
        "Server failed to authenticate the request. Make sure the value of Authorization header"
        " is formed correctly including the signature.",
        hint="User delegation keys are not supported: make the SAS with an account key.",
        setting="credential",
    )


_calls, _containers = blob_calls, container_calls
_ROWS: dict[tuple[str, str, str], Operation] = {
    ("account", "GET", "properties"): Operation(OBJECT, READ, _containers.account_information),
    ("service", "GET", "stats"): Operation(SERVICE, READ, _get_statistics),
    ("service", "POST", "userdelegationkey"): Operation(SERVICE, READ, _refuse_delegation),
    ("root", "GET", "list"): Operation(SERVICE, LIST, _containers.list_containers),
    ("root", "GET", "blobs"): Operation(SERVICE, ("f",), _not_built),
    # Containers
    ("container", "PUT", ""): Operation(
        CONTAINER, CREATE, _containers.create_container, no_service_sas=True
    ),
    ("container", "GET", ""): Operation(
        CONTAINER, READ, _containers.get_container, no_service_sas=True
    ),
    ("container", "GET", "metadata"): Operation(
        CONTAINER, READ, _containers.get_container_metadata, no_service_sas=True
    ),
    ("container", "PUT", "metadata"): Operation(
        CONTAINER, WRITE, _containers.set_container_metadata, no_service_sas=True
    ),
    ("container", "GET", "acl"): Operation(
        CONTAINER, READ, _containers.get_container_policies, by_key_only=True
    ),
    ("container", "PUT", "acl"): Operation(
        CONTAINER, WRITE, _containers.set_container_policies, by_key_only=True
    ),
    ("container", "DELETE", ""): Operation(
        CONTAINER, DELETE, _containers.delete_container, no_service_sas=True
    ),
    ("container", "PUT", "lease"): Operation(
        CONTAINER, WRITE, _containers.lease_container, no_service_sas=True
    ),
    ("container", "GET", "list"): Operation(CONTAINER, LIST, _containers.list_blobs),
    ("container", "GET", "blobs"): Operation(CONTAINER, ("f",), _not_built),
    ("container", "PUT", "undelete"): Operation(CONTAINER, WRITE, _not_built),
    ("container", "PUT", "rename"): Operation(CONTAINER, WRITE, _not_built),
    # Blobs
    ("blob", "GET", ""): Operation(OBJECT, READ, _calls.get_blob),
    ("blob", "HEAD", ""): Operation(OBJECT, READ, _calls.get_blob_properties),
    ("blob", "DELETE", ""): Operation(OBJECT, DELETE, _calls.delete_blob),
    ("blob", "GET", "metadata"): Operation(OBJECT, READ, _calls.get_blob_metadata),
    ("blob", "HEAD", "metadata"): Operation(OBJECT, READ, _calls.get_blob_metadata),
    ("blob", "PUT", "metadata"): Operation(OBJECT, WRITE, _calls.set_blob_metadata),
    ("blob", "PUT", "properties"): Operation(OBJECT, WRITE, _calls.set_blob_properties),
    ("blob", "PUT", "tier"): Operation(OBJECT, WRITE, _calls.set_tier),
    ("blob", "GET", "tags"): Operation(OBJECT, TAGS, _calls.get_tags),
    ("blob", "PUT", "tags"): Operation(OBJECT, TAGS, _calls.set_tags),
    ("blob", "PUT", "lease"): Operation(OBJECT, WRITE, _calls.lease_blob),
    ("blob", "PUT", "snapshot"): Operation(OBJECT, CREATE, _calls.snapshot_blob),
    ("blob", "PUT", "copy"): Operation(OBJECT, WRITE, _calls.abort_copy),
    ("blob", "PUT", "blocklist"): Operation(OBJECT, WRITE, _calls.put_block_list),
    ("blob", "GET", "blocklist"): Operation(OBJECT, READ, _calls.get_block_list),
    ("blob", "PUT", "seal"): Operation(OBJECT, APPEND, _calls.seal_blob),
    ("blob", "GET", "pagelist"): Operation(OBJECT, READ, _calls.get_page_ranges),
    **{
        ("blob", method, comp): Operation(OBJECT, WRITE, _not_built)
        for method, comp in (
            ("PUT", "undelete"),
            ("PUT", "expiry"),
            ("PUT", "incrementalcopy"),
            ("PUT", "immutabilitypolicies"),
            ("DELETE", "immutabilitypolicies"),
            ("PUT", "legalhold"),
            ("POST", "query"),
        )
    },
}
