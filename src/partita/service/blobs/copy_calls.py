"""Writes whose content is another blob: Copy Blob, Copy From URL, and the From-URL calls.

The source is a blob of this server, of the same account or of another. Whoever holds the key of
its account may read it; everybody else shows a SAS in the address, or it must be public.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from partita.blobs.engine.preconditions import missing_blob
from partita.blobs.rules.checksums import Sums, verify
from partita.blobs.rules.conditions import source_error
from partita.blobs.rules.model import (
    UNDECLARED,
    BlobName,
    Conditions,
    Copied,
    Declared,
    Headers,
    Opened,
    Properties,
)
from partita.errors import ConflictError, NotAuthorizedError, PartitaError
from partita.service.accounts.account import Account, Accounts
from partita.service.auth.sas import (
    ANONYMOUS,
    OBJECT,
    READ,
    BlobScope,
    Need,
    Sas,
    evaluate,
    parse_sas,
)
from partita.service.blobs.address import OneBlob, parse_blob_resource, parse_copy_source
from partita.service.blobs.answers import (
    ENCRYPTED,
    Lines,
    checksum_lines,
    version_lines,
    written_lines,
)
from partita.service.blobs.asked import BlobAsked, not_implemented
from partita.service.blobs.blob_calls import (
    append_answer,
    block_id_of,
    page_range_of,
    pages_answer,
    refuse_unbuilt,
)
from partita.service.blobs.headers import (
    SOURCE,
    blob_headers_of,
    conditions_of,
    flag_of,
    invalid_header,
    lease_id_of,
    number_of,
    properties_of,
    required,
    sequence_conditions_of,
    source_declared_of,
)
from partita.service.formats.address import locate, parse_query
from partita.service.formats.byte_ranges import parse_range
from partita.service.formats.query_options import options_of
from partita.service.http.request import Request, Response

COPY_SOURCE = "x-ms-copy-source"
_NO_HEADERS = Headers()


class Source(msgspec.Struct, frozen=True):
    """A blob of this server, and the address that named it."""

    account: Account
    name: BlobName
    address: str


def is_copy(request: Request) -> bool:
    return COPY_SOURCE in request.headers


async def copy_blob(asked: BlobAsked, accounts: Accounts) -> Response:
    """Answer a PUT with a source: three calls that differ in a header."""
    refuse_unbuilt(asked.request)
    request = asked.request
    is_sync = flag_of(request, "x-ms-requires-sync") is True
    is_put = not is_sync and request.headers.get("x-ms-blob-type") == "BlockBlob"
    source = await _find_source(asked, accounts, is_trusted=not (is_sync or is_put))
    if not (is_sync or is_put):
        copied = await _copy(asked, source, conditions_of(request, SOURCE))
        return Response(202, _copied_lines(copied))
    with_sums = source_declared_of(request)
    async with _opened(asked, source) as opened:
        if is_put:
            written = await asked.front.account.blobs.put_blob(
                asked.name,
                opened.content,
                properties=_put_properties(request, opened),
                lease_id=lease_id_of(request),
                conditions=conditions_of(request),
                declared=with_sums,
            )
            lines = [*written_lines(written), *checksum_lines(with_sums.md5, written.crc64)]
            return Response(201, lines)
        wanted = await _verified(opened, with_sums, conditions_of(request, SOURCE))
    try:
        copied = await _copy(asked, source, wanted)
    except PartitaError as error:
        raise _unverified(error) from error
    sums = checksum_lines(with_sums.md5, copied.written.crc64)
    return Response(202, [*_copied_lines(copied), *sums, ENCRYPTED])


async def _verified(opened: Opened, declared: Declared, wanted: Conditions) -> Conditions:
    """Read the source if its checksum is given; return the conditions that hold the copy to it."""
    if declared == UNDECLARED:
        return wanted
    sums = Sums(wants_md5=declared.md5 is not None)
    async for part in opened.content:
        sums.update(part)
    verify(declared, sums.digest())
    return msgspec.structs.replace(wanted, if_match=(opened.blob.etag,))


def _copied_lines(copied: Copied) -> Lines:
    lines = version_lines(copied.written.etag, copied.written.changed_at)
    return [*lines, ("x-ms-copy-id", copied.copy.id), ("x-ms-copy-status", copied.copy.status)]


async def _copy(asked: BlobAsked, source: Source, wanted: Conditions) -> Copied:
    request, blobs = asked.request, asked.front.account.blobs
    properties = properties_of(request, blob_headers_of(request) or _NO_HEADERS)
    if source.account is asked.front.account:
        return await blobs.copy_blob(
            source.name,
            asked.name,
            source_address=source.address,
            properties=properties,
            copies_tags=request.headers.get("x-ms-copy-source-tag-option", "").upper() == "COPY",
            seals=flag_of(request, "x-ms-seal-blob"),
            source_lease_id=lease_id_of(request, "x-ms-source-lease-id"),
            source_conditions=wanted,
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
        )
    try:
        opened = await source.account.blobs.open_blob(source.name, conditions=wanted)
    except ConflictError as error:
        if error.code != "ConditionNotMet":
            raise
        raise source_error(error) from error
    try:
        return await blobs.put_copy(
            opened,
            asked.name,
            source_address=source.address,
            properties=properties,
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
        )
    finally:
        await opened.content.close()


def _put_properties(request: Request, opened: Opened) -> Properties:
    """Take the source's headers unless told otherwise; metadata and tags only as given."""
    headers = blob_headers_of(request)
    if headers is None and flag_of(request, "x-ms-copy-source-blob-properties") is not False:
        headers = opened.blob.headers
    properties = properties_of(request, headers or _NO_HEADERS)
    if request.headers.get("x-ms-copy-source-tag-option", "").upper() == "COPY":
        return msgspec.structs.replace(properties, tags=opened.blob.tags)
    return properties


# Blocks, appends and pages from elsewhere


async def put_block_from_url(asked: BlobAsked, accounts: Accounts) -> Response:
    request = asked.request
    refuse_unbuilt(request)
    declared = source_declared_of(request)
    async with _opened(asked, await _find_source(asked, accounts)) as opened:
        found = await asked.front.account.blobs.put_block(
            asked.name,
            block_id_of(asked),
            opened.content,
            lease_id=lease_id_of(request),
            declared=declared,
        )
    return Response(201, [*checksum_lines(found.md5, found.crc64), ENCRYPTED])


async def append_block_from_url(asked: BlobAsked, accounts: Accounts) -> Response:
    request = asked.request
    refuse_unbuilt(request)
    async with _opened(asked, await _find_source(asked, accounts)) as opened:
        appended = await asked.front.account.blobs.append_block(
            asked.name,
            opened.content,
            position=number_of(request, "x-ms-blob-condition-appendpos"),
            size_max=number_of(request, "x-ms-blob-condition-maxsize"),
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
            declared=source_declared_of(request),
        )
    return append_answer(appended)


async def put_pages_from_url(asked: BlobAsked, accounts: Accounts) -> Response:
    request = asked.request
    refuse_unbuilt(request)
    pages = page_range_of(request, "x-ms-range")
    assert pages.last is not None
    async with _opened(asked, await _find_source(asked, accounts)) as opened:
        written = await asked.front.account.blobs.put_pages(
            asked.name,
            pages.first,
            opened.content,
            last=pages.last,
            sequence=sequence_conditions_of(request),
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
            declared=source_declared_of(request),
        )
    return pages_answer(written)


# The source


async def _find_source(asked: BlobAsked, accounts: Accounts, *, is_trusted: bool = False) -> Source:
    """Find the blob that a request copies from, and whether it may.

    `is_trusted`: whoever holds the account's key needs no SAS for a blob of the same account.
    """
    address = required(asked.request, COPY_SOURCE)
    host, path, query = parse_copy_source(address)
    if not _is_here(host, asked.request.headers.get("host", ""), accounts):
        raise not_implemented("Copies come from blobs of this server.")
    target = locate(asked.request.scheme, host, path, accounts, "blob")
    pairs = parse_query(query)
    options = options_of(pairs)
    resource = parse_blob_resource(target.path, is_container=False)
    if not isinstance(resource, OneBlob):
        raise invalid_header(COPY_SOURCE, address, "It is the address of a blob.")
    account = accounts.find(target.account)
    name = BlobName(resource.container, resource.name, options.get("snapshot") or None)
    is_own = account is asked.front.account and asked.front.grant.everything
    if not (is_trusted and is_own):
        await _check_source(asked, account, target.path, pairs, name)
    if options.get("versionid"):
        # Never taken for the blob itself: the copy would be of something else.
        raise missing_blob(name)
    return Source(account, name, address.partition("?")[0])


def _is_here(host: str, asked_host: str, accounts: Accounts) -> bool:
    account, _, rest = host.lower().partition(".")
    if host.lower() == asked_host.lower() or (rest.startswith("blob.") and account in accounts):
        return True
    # The port is ours: another name of this server, such as localhost or an account's own.
    return host.rpartition(":")[2] == asked_host.rpartition(":")[2] and ":" in host


async def _check_source(
    asked: BlobAsked, account: Account, path: str, pairs: list[tuple[str, str]], name: BlobName
) -> None:
    need = Need(OBJECT, READ, BlobScope(name.container, name.name, name.snapshot))
    sas: Sas | None = None
    try:
        sas = parse_sas(pairs, "b", path)
        container = await account.blobs.find_container(name.container) if account.name else None
        if sas is None:
            ANONYMOUS.opened(None if container is None else container.access).check(need)
            return
        grant = evaluate(
            sas,
            service="b",
            account=account.name,
            keys=account.keys,
            policies=() if container is None else container.policies,
            now=asked.front.now,
            peer=asked.request.peer,
            scheme=asked.request.scheme,
        )
        grant.check(need)
    except NotAuthorizedError as error:
        raise NotAuthorizedError(
            "CannotVerifyCopySource",
            "Server failed to authenticate the request. Please refer to the information in the"
            " www-authenticate header.",
            facts={"status": 401 if sas is None else 403, "source": _source_code(sas, error)},
            hint="Add a SAS of the source to x-ms-copy-source, or make its container public.",
            setting="public access",
        ) from error


def _source_code(sas: Sas | None, error: PartitaError) -> str:
    return "NoAuthenticationInformation" if sas is None else error.code


@asynccontextmanager
async def _opened(asked: BlobAsked, source: Source) -> AsyncIterator[Opened]:
    """Open the source for reading; what goes wrong with it has a code of its own."""
    request = asked.request
    text = request.headers.get("x-ms-source-range")
    wanted = None if text is None else parse_range(text)
    if text is not None and wanted is None:
        # A reader gets the whole blob then, and sees that; a writer would not.
        raise invalid_header("x-ms-source-range", text, "It is bytes=first-last.")
    try:
        opened = await source.account.blobs.open_blob(
            source.name,
            first=None if wanted is None else wanted.first,
            last=None if wanted is None else wanted.last,
            lease_id=lease_id_of(request, "x-ms-source-lease-id"),
            conditions=_source_conditions(request),
        )
    except PartitaError as error:
        raise _unverified(error) from error
    try:
        yield opened
    finally:
        await opened.content.close()


def _source_conditions(request: Request) -> Conditions:
    return conditions_of(request, SOURCE)


def _unverified(error: PartitaError) -> PartitaError:
    statuses = {"BlobNotFound": 404, "ContainerNotFound": 404, "ResourceNotFound": 404}
    status = statuses.get(error.code)
    if error.code in ("ConditionNotMet", "SourceConditionNotMet"):
        status = 304 if error.facts.get("unchanged") else 412
    if status is None:
        return error
    return type(error)(
        "CannotVerifyCopySource",
        "Could not verify the copy source within the specified time."
        if status == 404
        else "The source condition specified using HTTP conditional header(s) is not met.",
        facts={**error.facts, "status": status},
        hint=error.hint,
    )
