"""The blob service: locate → authorize → decode → perform → answer."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

import msgspec

from partita.blobs.rules.checksums import Sums, verify
from partita.blobs.rules.conditions import source_error
from partita.blobs.rules.model import (
    UNDECLARED,
    BlobName,
    BlobPrefix,
    Conditions,
    ContainerListing,
    Content,
    Copied,
    Declared,
    Download,
    Headers,
    Listing,
    Opened,
    Terms,
    Written,
)
from partita.blobs.rules.names import LOGS
from partita.errors import ConflictError, NotAuthorizedError, PartitaError
from partita.policies import Policy
from partita.refusals import (
    body_too_large,
    invalid_parameter,
    not_implemented,
    written_by_analytics,
)
from partita.service.accounts import service_documents
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.account import Account, Accounts
from partita.service.accounts.blob_events import CREATED, DELETED, BlobEvent
from partita.service.accounts.respond import NOTHING_USUAL, AuthorizedRequest, Front, read_only
from partita.service.auth import sas as permissions
from partita.service.auth import shared_key
from partita.service.auth.browser_guard import EVERY_HOST
from partita.service.auth.sas import Need, Sas, no_credentials
from partita.service.blobs import answers, copy_source, events, wire
from partita.service.blobs.batch import run_batch
from partita.service.blobs.external_source import ExternalSource
from partita.service.blobs.operation_names import name_of
from partita.service.blobs.wire import BlobCall, BlobOperation, BlobRequest, CopySource
from partita.service.blobs.xml import parse_block_list
from partita.service.formats.error_wire import encode_error
from partita.service.http.request import Request, Response
from partita.service.http.turns import collected, computed
from partita.ticks import Clock

DEFAULT_VERSION = "2021-08-06"
"""The API version of requests that name none, such as anonymous ones."""

replace = msgspec.structs.replace


class BlobService:
    """Answers requests for the containers and blobs of an account."""

    letter = "b"
    name = "blob"
    default_version = DEFAULT_VERSION
    allows_anonymous = True
    usual = NOTHING_USUAL

    def __init__(
        self,
        accounts: Accounts,
        clock: Clock,
        *,
        skew_seconds: int | None = shared_key.SKEW_SECONDS,
    ) -> None:
        self._accounts = accounts
        self._clock = clock
        # The parts of a batch are authenticated like requests.
        self._parts = Front(
            self, accounts, clock, allowed_hosts=EVERY_HOST, skew_seconds=skew_seconds
        )

    async def policies(self, account: Account, sas: Sas) -> Sequence[Policy]:
        container = await account.blobs.containers.find_container(sas.container)
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

    async def answer(self, authorized: AuthorizedRequest) -> Response:
        request, target = authorized.request, authorized.target
        asked = wire.locate(request, target.path, authorized.pairs, authorized.version)
        observed = request.observe()
        observed.account, observed.operation = authorized.account.name, name_of(asked)
        observed.object = f"{asked.container}/{asked.blob}" if asked.blob else asked.container
        operation = wire.operation_of(asked)
        if target.is_secondary and asked.method not in ("GET", "HEAD"):
            raise read_only()
        if not authorized.grant.everything:
            await _authorize(operation, asked, authorized)
        if asked.container == LOGS and not _is_open_in_logs(asked):
            raise written_by_analytics("Read the blobs of this container, or delete them.")
        if asked.blob and asked.name.snapshot and asked.name.version:
            raise invalid_parameter(
                "versionid", asked.name.version, "Name a snapshot or a version."
            )
        if asked.method == "PUT" and asked.blob and asked.name.snapshot and asked.comp != "tier":
            raise invalid_parameter("snapshot", asked.name.snapshot)
        if operation.body_bytes_max:
            body = await _whole_body(request, operation.body_bytes_max)
            asked = replace(asked, request=replace(request, body=body, upload=None))
        call = operation.decode(asked)
        grant = authorized.grant
        only_creates = not (grant.everything or "w" in grant.permissions)
        if only_creates and isinstance(call, wire.BlobWrite):
            response = await self._create_only(call, asked, authorized)
        else:
            if only_creates and isinstance(call, wire.PutBlock):
                await _check_new(authorized.account, call.name)
            response = await self._perform(call, asked, authorized)
        if self._accounts.blob_events is not None:
            event = _event_of(call, authorized, response, self._clock.ticks())
            if event is not None:
                self._accounts.blob_events.changed(event)
        return response

    async def _create_only(
        self, call: wire.BlobWrite, asked: BlobRequest, authorized: AuthorizedRequest
    ) -> Response:
        """Write a blob with a SAS that only creates: nothing is overwritten."""
        conditions = Conditions(if_none_match=("*",), if_tags=call.terms.conditions.if_tags)
        try:
            call = replace(call, terms=Terms(conditions=conditions))
            return await self._perform(call, asked, authorized)
        except ConflictError as error:
            if error.code != "BlobAlreadyExists":
                raise
            raise _overwrites() from error

    async def _perform(  # noqa: PLR0911, PLR0912, PLR0915 - one flat switch over the calls
        self, call: BlobCall, asked: BlobRequest, authorized: AuthorizedRequest
    ) -> Response:
        blobs, grant, root = authorized.account.blobs, authorized.grant, authorized.target.root
        containers = blobs.containers
        match call:
            case wire.GetBlob():
                opened = await blobs.open_blob(
                    call.name,
                    first=None if call.range is None else call.range.first,
                    last=None if call.range is None else call.range.last,
                    wants_md5=call.wants_md5,
                    wants_crc64=call.wants_crc64,
                    terms=call.terms,
                )
                is_range = call.range is not None
                return answers.download_answer(opened, grant.overrides, is_range=is_range)
            case wire.GetBlobProperties():
                blob = await blobs.get_blob(call.name, terms=call.terms)
                return answers.properties_answer(blob, grant.overrides)
            case wire.PutBlob():
                written = await blobs.put_blob(
                    call.name,
                    call.content,
                    properties=call.properties,
                    terms=call.terms,
                    declared=call.declared,
                )
                return answers.written_answer(written, written)
            case wire.CreateAppendBlob():
                written = await blobs.append_blobs.create_append_blob(
                    call.name, properties=call.properties, terms=call.terms
                )
                return answers.written_answer(written)
            case wire.CreatePageBlob():
                written = await blobs.page_blobs.create_page_blob(
                    call.name,
                    call.length,
                    sequence_number=call.sequence_number,
                    properties=call.properties,
                    terms=call.terms,
                )
                return answers.written_answer(written)
            case wire.PutBlobFromUrl():
                return await self._put_blob_from_url(call, authorized)
            case wire.CopyBlob():
                return await self._copy_blob(call, authorized)
            case wire.GetBlobMetadata():
                return answers.metadata_answer(await blobs.get_blob(call.name, terms=call.terms))
            case wire.SetBlobMetadata():
                written = await blobs.set_metadata(call.name, call.metadata, terms=call.terms)
                return answers.version_answer(200, written, answers.ENCRYPTED)
            case wire.SetBlobHeaders():
                return await _set_blob_headers(call, authorized.account)
            case wire.DeleteBlob():
                is_final = await blobs.delete_blob(
                    call.name,
                    snapshots=call.snapshots,
                    is_permanent=call.is_permanent,
                    terms=call.terms,
                )
                return answers.deleted_answer(is_permanent=is_final)
            case wire.UndeleteBlob():
                await blobs.undelete_blob(call.name)
                return Response(200)
            case wire.SetTier():
                rehydrates = await blobs.set_tier(
                    call.name, call.tier, priority=call.priority, terms=call.terms
                )
                return Response(202 if rehydrates else 200)
            case wire.GetTags():
                try:
                    tags = await blobs.get_tags(call.name, terms=call.terms)
                except ConflictError as error:
                    # An unchanged blob may have changed tags: this is not a 304.
                    raise ConflictError(error.code, error.message, hint=error.hint) from error
                return answers.tags_answer(tags)
            case wire.SetTags():
                await blobs.set_tags(call.name, call.tags, terms=call.terms)
                return Response(204)
            case wire.LeaseBlob():
                outcome = await blobs.lease_blob(call.name, call.lease, conditions=call.conditions)
                return answers.lease_answer(outcome, call.lease.action)
            case wire.SnapshotBlob():
                snapshot = await blobs.snapshot(call.name, metadata=call.metadata, terms=call.terms)
                return answers.snapshot_answer(snapshot)
            case wire.AbortCopy():
                await blobs.copies.abort_copy(call.name, call.copy_id, lease_id=call.lease_id)
                return Response(204)
            case wire.PutBlock():
                async with self._content(call.content, authorized) as content:
                    sums = await blobs.block_blobs.put_block(
                        call.name,
                        call.block_id,
                        content,
                        lease_id=call.lease_id,
                        declared=call.declared,
                    )
                return answers.block_answer(sums)
            case wire.PutBlockList():
                chosen = await collected(parse_block_list(call.body))
                written = await blobs.block_blobs.put_block_list(
                    call.name, chosen, properties=call.properties, terms=call.terms
                )
                return answers.written_answer(written, call.sums)
            case wire.GetBlockList():
                if call.which != "committed" and grant.is_anonymous:
                    raise no_credentials()  # because staged blocks are not public
                blocks = await blobs.block_blobs.get_block_list(call.name, terms=call.terms)
                count = len(blocks.committed) + len(blocks.uncommitted)
                return await computed(count, answers.block_list_answer, blocks, call.which)
            case wire.AppendBlock():
                async with self._content(call.content, authorized) as content:
                    appended = await blobs.append_blobs.append_block(
                        call.name,
                        content,
                        position=call.position,
                        size_max=call.size_max,
                        terms=call.terms,
                        declared=call.declared,
                    )
                return answers.appended_answer(appended)
            case wire.SealBlob():
                written = await blobs.append_blobs.seal(
                    call.name, position=call.position, terms=call.terms
                )
                return answers.version_answer(200, written, ("x-ms-blob-sealed", "true"))
            case wire.PutPages():
                async with self._content(call.content, authorized) as content:
                    written = await blobs.page_blobs.put_pages(
                        call.name,
                        call.first,
                        content,
                        last=call.last,
                        sequence=call.sequence,
                        terms=call.terms,
                        declared=call.declared,
                    )
                return answers.pages_answer(written)
            case wire.ClearPages():
                written = await blobs.page_blobs.clear_pages(
                    call.name, call.first, call.last, sequence=call.sequence, terms=call.terms
                )
                return answers.pages_answer(written)
            case wire.GetPageRanges():
                pages = await blobs.page_blobs.page_ranges(
                    call.name,
                    first=call.first,
                    last=call.last,
                    limit=call.limit,
                    since=call.since,
                    terms=call.terms,
                )
                return await computed(len(pages.ranges), answers.page_ranges_answer, pages)
            case wire.ListBlobs():
                listing = await containers.list_blobs(
                    call.container,
                    prefix=call.prefix,
                    delimiter=call.delimiter,
                    marker=call.marker,
                    start_from=call.start_from,
                    limit=call.limit,
                    include=call.include,
                )
                return await computed(
                    _lines_of(listing),
                    answers.listing_answer,
                    listing,
                    root,
                    call.container,
                    asked.options,
                )
            case wire.ListContainers():
                account = authorized.account.name
                marker = call.marker.removeprefix(answers.container_marker(account, ""))
                found = await containers.list_containers(
                    prefix=call.prefix,
                    marker=marker,
                    limit=call.limit,
                    with_system=call.with_system,
                    with_deleted=call.with_deleted,
                )
                return await computed(
                    _lines_of(found), answers.containers_answer, found, root, asked.options, account
                )
            case wire.FindBlobs():
                matches = await blobs.searches.find_blobs(
                    call.where, container=call.container, marker=call.marker, limit=call.limit
                )
                return await computed(
                    10 * len(matches.items), answers.found_answer, matches, root, asked.options
                )
            case wire.RestoreContainer():
                container = await containers.restore_container(call.container, call.version)
                return answers.version_answer(201, container)
            case wire.CreateContainer():
                container = await containers.create_container(
                    call.container,
                    metadata=call.metadata,
                    access=call.access,
                    encryption_scope=call.encryption_scope,
                    denies_other_scopes=call.denies_other_scopes,
                )
                return answers.version_answer(201, container)
            case wire.GetContainer():
                container = await containers.get_container(call.container, lease_id=call.lease_id)
                if call.part == "acl":
                    return answers.policies_answer(
                        container, xml_wire.print_policies(container.policies)
                    )
                if call.part == "metadata":
                    return answers.metadata_answer(container)
                return answers.container_answer(container)
            case wire.SetContainerMetadata():
                container = await containers.set_container_metadata(
                    call.container, call.metadata, terms=call.terms
                )
                return answers.version_answer(200, container)
            case wire.SetContainerPolicies():
                policies = xml_wire.parse_policies(call.body, self.letter)
                container = await containers.set_policies(
                    call.container, policies, access=call.access, terms=call.terms
                )
                return answers.version_answer(200, container)
            case wire.DeleteContainer():
                await containers.delete_container(call.container, terms=call.terms)
                return Response(202)
            case wire.LeaseContainer():
                outcome = await containers.lease_container(
                    call.container, call.lease, conditions=call.conditions
                )
                return answers.lease_answer(outcome, call.lease.action)
            case wire.GetAccountInformation():
                return answers.account_answer()
            case wire.GetBlobServiceProperties():
                return await service_documents.get_properties(authorized, self.letter)
            case wire.SetBlobServiceProperties():
                return await service_documents.set_properties(authorized, self.letter, call.body)
            case wire.GetBlobServiceStatistics():
                return service_documents.get_statistics(authorized)
            case wire.GetBlobDelegationKey():
                return service_documents.get_user_delegation_key(authorized, call.key, self.letter)
            case wire.RunBatch():
                return await run_batch(authorized, call.body, self._parts.respond, self._clock)
            case _:
                assert_never(call)

    # Writes whose content is another blob

    @asynccontextmanager
    async def _content(
        self, content: wire.Uploaded, authorized: AuthorizedRequest
    ) -> AsyncIterator[Content]:
        """Open the content of a write: the body, or the bytes of another blob."""
        if not isinstance(content, CopySource):
            yield content
            return
        source = await copy_source.find_source(authorized, self._accounts, content)
        async with copy_source.opened(source, content) as opened:
            yield opened.content

    async def _put_blob_from_url(
        self, call: wire.PutBlobFromUrl, authorized: AuthorizedRequest
    ) -> Response:
        source = await copy_source.find_source(
            authorized, self._accounts, call.source, copies_tags=call.copies_tags
        )
        async with copy_source.opened(source, call.source) as opened:
            properties = call.properties
            if call.headers is None and call.keeps_headers:
                properties = replace(properties, headers=opened.blob.headers)
            if call.copies_tags:
                if isinstance(source, ExternalSource):
                    raise not_implemented("Give the tags of the blob: they are not copied.")
                properties = replace(properties, tags=opened.blob.tags)
            written = await authorized.account.blobs.put_blob(
                call.name,
                opened.content,
                properties=properties,
                terms=call.terms,
                declared=call.declared,
            )
        return answers.written_answer(written, Declared(call.declared.md5, written.crc64))

    async def _copy_blob(self, call: wire.CopyBlob, authorized: AuthorizedRequest) -> Response:
        source = await copy_source.find_source(
            authorized,
            self._accounts,
            call.source,
            is_trusted=not call.is_sync,
            copies_tags=call.copies_tags,
        )
        if isinstance(source, ExternalSource):
            return await _copy_from_elsewhere(call, source, authorized.account)
        if not call.is_sync:
            return answers.copied_answer(await _copy(call, source, authorized.account))
        async with copy_source.opened(source, call.source) as opened:
            conditions = await _verified(opened, call)
        try:
            terms = Terms(call.source.terms.lease_id, conditions)
            call = replace(call, source=replace(call.source, terms=terms))
            copied = await _copy(call, source, authorized.account)
        except PartitaError as error:
            raise copy_source.unverified(error) from error
        return answers.copied_answer(copied, Declared(call.declared.md5, copied.written.crc64))


def _event_of(
    call: BlobCall, authorized: AuthorizedRequest, response: Response, now: int
) -> BlobEvent | None:
    """Return the event of a call that has created or deleted a blob; None for other calls."""
    api = events.api_of(call)
    if not api or not isinstance(call, wire.BlobWrite | wire.PutBlockList | wire.DeleteBlob):
        return None
    return BlobEvent(
        kind=DELETED if api == "DeleteBlob" else CREATED,
        api=api,
        account=authorized.account.name,
        name=call.name,
        url=events.url_of(authorized.target.root, call.name),
        at=now,
        request_id=authorized.request_id,
        client_request_id=authorized.request.headers.get("x-ms-client-request-id", ""),
        etag=response.header("ETag") or "",
    )


def _is_open_in_logs(asked: BlobRequest) -> bool:
    """Return whether clients may do this in the container of Storage Analytics."""
    is_delete = asked.method == "DELETE" and bool(asked.blob)
    return is_delete or asked.method in ("GET", "HEAD") or asked.comp == "batch"


async def _check_new(account: Account, name: BlobName) -> None:
    """Raise if a blob exists: a SAS that only creates stages no blocks for it."""
    try:
        await account.blobs.get_blob(name)
    except ConflictError as error:
        if error.code != "BlobNotFound":
            raise
        return
    raise _overwrites()


def _overwrites() -> NotAuthorizedError:
    return NotAuthorizedError(
        "UnauthorizedBlobOverwrite",
        "This request is not authorized to perform blob overwrites.",
        hint="Use a SAS with w: c only creates new blobs.",
    )


async def _authorize(
    operation: BlobOperation, asked: BlobRequest, authorized: AuthorizedRequest
) -> None:
    """Check the grant of a request that is not signed with the account key."""
    grant, account = authorized.grant, authorized.account
    if operation.permissions == ("",):
        # The parts of a batch have their own credentials; the batch must have some, too, or
        # anybody could let the server verify 256 signatures with one request.
        if grant.is_anonymous:
            raise no_credentials()
        return
    if asked.kind == "account" and not grant.is_anonymous:
        # Every SAS that reads something may read the kind of its account.
        types = grant.resource_types[:1] or permissions.OBJECT
        grant.check(Need(types, permissions.READ, grant.scope))
        return
    if grant.is_anonymous and asked.container:
        container = await account.blobs.containers.find_container(asked.container)
        grant = grant.opened(None if container is None else container.access)
    is_closed = operation.no_service_sas and grant.scope is not None
    grant.check(
        Need(
            operation.resource,
            wire.permissions_of(operation, asked),
            None if is_closed else asked.scope,
            by_key_only=operation.by_key_only,
        )
    )
    if wire.uses_tags(asked):
        grant.check(Need(operation.resource, permissions.TAGS, asked.scope))


def _lines_of(listing: Listing | ContainerListing) -> int:
    """Return how long the document of a listing will be: an item has about 20 elements."""
    return sum(
        20 if isinstance(item, BlobPrefix) else 20 + len(item.metadata) for item in listing.items
    )


async def _whole_body(request: Request, bytes_max: int) -> bytes:
    """Return a body that must be short, also when it streams."""
    if request.upload is None:
        if len(request.body) > bytes_max:
            raise body_too_large(bytes_max)
        return request.body
    pieces: list[bytes] = []
    size = 0
    async for piece in request.upload:
        size += len(piece)
        if size > bytes_max:
            raise body_too_large(bytes_max)
        pieces.append(piece)
    return b"".join(pieces)


async def _set_blob_headers(call: wire.SetBlobHeaders, account: Account) -> Response:
    """Replace the headers if one is given; resize or number a page blob if asked to."""
    blobs, terms = account.blobs, call.terms
    unconditional = Terms(terms.lease_id)
    written: Written | None = None
    if call.length is not None:
        written = await blobs.page_blobs.resize(call.name, call.length, terms=terms)
        terms = unconditional
    if call.action is not None:
        written = await blobs.page_blobs.set_sequence_number(
            call.name, call.action, call.number, terms=terms
        )
        terms = unconditional
    if call.headers is not None or written is None:
        written = await blobs.set_headers(call.name, call.headers or Headers(), terms=terms)
    if call.length is None and call.action is None:
        return answers.version_answer(200, written)
    number = ("x-ms-blob-sequence-number", str(written.sequence_number))
    return answers.version_answer(200, written, number)


async def _verified(opened: Opened, call: wire.CopyBlob) -> Conditions:
    """Verify a declared checksum of the source; return conditions that pin its version."""
    conditions = call.source.terms.conditions
    if call.declared == UNDECLARED:
        return conditions
    sums = Sums(wants_md5=call.declared.md5 is not None)
    async for part in opened.content:
        sums.update(part)
    verify(call.declared, sums.digest())
    return replace(conditions, if_match=(opened.blob.etag,))


async def _copy_from_elsewhere(
    call: wire.CopyBlob, source: ExternalSource, account: Account
) -> Response:
    """Copy from another server: the copy is complete when it is answered."""
    if call.copies_tags:
        raise not_implemented("Give the tags: those of a blob on another server are not copied.")
    async with copy_source.opened(source, call.source) as opened:
        content = _verifying(opened.content, call.declared)
        copied = await account.blobs.copies.put_copy(
            replace(opened, content=content),
            call.name,
            source_address=source.address,
            properties=call.properties,
            terms=call.terms,
        )
    sums = Declared(call.declared.md5, copied.written.crc64) if call.is_sync else None
    return answers.copied_answer(copied, sums)


class _Verifying:
    """A download that ends with an error if its content has other checksums."""

    def __init__(self, content: Download, declared: Declared) -> None:
        self.length = content.length
        self._content = content
        self._declared = declared

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sums = Sums(wants_md5=self._declared.md5 is not None)
        async for part in self._content:
            sums.update(part)
            yield part
        verify(self._declared, sums.digest())

    async def close(self) -> None:
        await self._content.close()


def _verifying(content: Download, declared: Declared) -> Download:
    return content if declared == UNDECLARED else _Verifying(content, declared)


async def _copy(call: wire.CopyBlob, source: copy_source.Source, account: Account) -> Copied:
    copies = account.blobs.copies
    if source.account is account:
        return await copies.copy_blob(
            source.name,
            call.name,
            source_address=source.address,
            properties=call.properties,
            copies_tags=call.copies_tags,
            seals=call.seals,
            source_terms=call.source.terms,
            terms=call.terms,
        )
    try:
        opened = await source.account.blobs.open_blob(
            source.name, terms=Terms(conditions=call.source.terms.conditions)
        )
    except ConflictError as error:
        if error.code != "ConditionNotMet":
            raise
        raise source_error(error) from error
    try:
        return await copies.put_copy(
            opened,
            call.name,
            source_address=source.address,
            properties=call.properties,
            terms=call.terms,
        )
    finally:
        await opened.content.close()
