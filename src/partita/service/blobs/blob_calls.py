"""The calls on blobs: headers → engine → answer. Copies and From-URL writes are in copy_calls."""

import re
from typing import get_args

from partita.blobs.engine.engine import too_long_for_checksum
from partita.blobs.rules import limits
from partita.blobs.rules.checksums import sums_of, verify
from partita.blobs.rules.model import (
    Appended,
    Conditions,
    Content,
    Declared,
    DeleteSnapshots,
    Kind,
    SequenceAction,
    Written,
)
from partita.blobs.store.download import BytesDownload
from partita.errors import ConflictError
from partita.service.auth.sas import no_credentials
from partita.service.blobs.answers import (
    ENCRYPTED,
    Lines,
    checksum_lines,
    download_lines,
    property_lines,
    version_lines,
    written_lines,
)
from partita.service.blobs.asked import (
    BlobAsked,
    not_implemented,
    whole_body,
)
from partita.service.blobs.container_calls import XML, lease_answer
from partita.service.blobs.headers import (
    NUMBER_DIGITS_MAX,
    OF_TAGS,
    blob_headers_of,
    body_length,
    check_body_size,
    conditions_of,
    content_headers_of,
    declared_of,
    flag_of,
    invalid_header,
    lease_id_of,
    lease_request_of,
    missing_header,
    number_of,
    properties_of,
    rehydrate_priority_of,
    required,
    sequence_conditions_of,
)
from partita.service.blobs.xml import (
    BLOCK_LIST_BYTES_MAX,
    TAGS_BYTES_MAX,
    parse_block_list,
    parse_tags,
    print_block_list,
    print_page_list,
    print_tags,
)
from partita.service.formats.byte_ranges import ByteRange, parse_range, range_of
from partita.service.formats.metadata_wire import has_metadata, metadata_headers, metadata_of
from partita.service.formats.query_options import invalid_parameter, missing_parameter
from partita.service.http.request import Request, Response

MIB = 1024 * 1024
PUT_BLOB_BYTES_MAX = (("2019-12-12", limits.PUT_BLOB_BYTES_MAX), ("2016-05-31", 256 * MIB))
PUT_BLOB_BYTES_MAX_OLD = 64 * MIB
BLOCK_BYTES_MAX = (("2019-12-12", limits.BLOCK_BYTES_MAX), ("2016-05-31", 100 * MIB))
BLOCK_BYTES_MAX_OLD = 4 * MIB
APPEND_BYTES_MAX = (("2022-11-02", limits.APPEND_BYTES_MAX),)
APPEND_BYTES_MAX_OLD = 4 * MIB

RANGE_MD5 = "x-ms-range-get-content-md5"
RANGE_CRC64 = "x-ms-range-get-content-crc64"

_PAGE_MARKER = re.compile(rf"\d{{1,{NUMBER_DIGITS_MAX}}}", re.ASCII)
_NOT_BUILT = (
    "x-ms-encryption-key",
    "x-ms-encryption-scope",
    "x-ms-immutability-policy-until-date",
    "x-ms-legal-hold",
    "x-ms-structured-body",
    "x-ms-copy-source-authorization",
)
"""Headers that ask for something that is not built: silently ignoring them would be a lie."""


def refuse_unbuilt(request: Request) -> None:
    """Refuse a request that asks for a feature that is not here."""
    for name in _NOT_BUILT:
        if request.given(name) is not None:
            raise not_implemented("A header asks for what is not supported: " + name)


def content_of(request: Request) -> Content:
    """Return the body: at hand, or still arriving."""
    return request.body if request.upload is None else request.upload


def _bytes_max(version: str, steps: tuple[tuple[str, int], ...], old: int) -> int:
    return next((size for since, size in steps if version >= since), old)


# Whole blobs


async def put_blob(asked: BlobAsked) -> Response:
    kind = required(asked.request, "x-ms-blob-type")
    if kind not in get_args(Kind):
        raise invalid_header("x-ms-blob-type", kind, f"One of {', '.join(get_args(Kind))}.")
    if kind == "BlockBlob":
        return await _put_block_blob(asked)
    if body_length(asked.request):
        raise invalid_header(
            "content-length", "", "An append or page blob is created without content."
        )
    written = await (_create_page_blob if kind == "PageBlob" else _create_append_blob)(asked)
    return Response(201, written_lines(written))


async def _put_block_blob(asked: BlobAsked) -> Response:
    request = asked.request
    bytes_max = _bytes_max(asked.front.version, PUT_BLOB_BYTES_MAX, PUT_BLOB_BYTES_MAX_OLD)
    check_body_size(request, bytes_max)
    written = await asked.front.account.blobs.put_blob(
        asked.name,
        content_of(request),
        properties=properties_of(request, content_headers_of(request)),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
        declared=declared_of(request),
    )
    return Response(201, [*written_lines(written), *checksum_lines(written.md5, written.crc64)])


async def _create_append_blob(asked: BlobAsked) -> Written:
    request = asked.request
    return await asked.front.account.blobs.create_append_blob(
        asked.name,
        properties=properties_of(request, content_headers_of(request)),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )


async def _create_page_blob(asked: BlobAsked) -> Written:
    request = asked.request
    length = number_of(request, "x-ms-blob-content-length")
    if length is None:
        raise missing_header("x-ms-blob-content-length")
    return await asked.front.account.blobs.create_page_blob(
        asked.name,
        length,
        sequence_number=number_of(request, "x-ms-blob-sequence-number") or 0,
        properties=properties_of(request, content_headers_of(request)),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )


async def get_blob(asked: BlobAsked) -> Response:
    request = asked.request
    wanted = range_of(request.headers)
    wants_md5, wants_crc64 = _checksums_of_range(request, wanted)
    opened = await asked.front.account.blobs.open_blob(
        asked.name,
        first=None if wanted is None else wanted.first,
        last=None if wanted is None else wanted.last,
        wants_md5=wants_md5,
        wants_crc64=wants_crc64,
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    overrides = asked.front.grant.overrides
    lines = download_lines(opened, overrides, is_range=wanted is not None)
    status, content = 200 if wanted is None else 206, opened.content
    if isinstance(content, BytesDownload):
        return Response(status, lines, content.content)
    return Response(status, lines, download=content)


def _checksums_of_range(request: Request, wanted: ByteRange | None) -> tuple[bool, bool]:
    """Return whether MD5 and CRC64 of the range are asked for: at most one of them is.

    A header that says false counts as present, as the reference of the service has it.
    """
    present = [name for name in (RANGE_MD5, RANGE_CRC64) if request.given(name) is not None]
    if not present:
        return False, False
    wants_md5, wants_crc64 = flag_of(request, RANGE_MD5), flag_of(request, RANGE_CRC64)
    if wanted is None:
        hint = "Send Range or x-ms-range: bytes=first-last."
        raise invalid_header(present[0], request.headers[present[0]], hint)
    if len(present) > 1:
        hint = f"Send {RANGE_MD5} or {RANGE_CRC64}, not both."
        raise invalid_header(RANGE_CRC64, request.headers[RANGE_CRC64], hint)
    if (wants_md5 or wants_crc64) and (wanted.length or 0) > limits.RANGE_MD5_BYTES_MAX:
        raise too_long_for_checksum()
    return wants_md5 is True, wants_crc64 is True


async def get_blob_properties(asked: BlobAsked) -> Response:
    blob = await asked.front.account.blobs.get_blob(
        asked.name, lease_id=lease_id_of(asked.request), conditions=conditions_of(asked.request)
    )
    lines = property_lines(blob, asked.front.grant.overrides)
    return Response(200, lines, download=NoContent(blob.length))


class NoContent:
    """The body of an answer to HEAD: a length, and bytes that nobody asks for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __aiter__(self) -> "NoContent":
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration

    async def close(self) -> None:
        """There is nothing to let go of."""


async def get_blob_metadata(asked: BlobAsked) -> Response:
    blob = await asked.front.account.blobs.get_blob(
        asked.name, lease_id=lease_id_of(asked.request), conditions=conditions_of(asked.request)
    )
    lines = version_lines(blob.etag, blob.changed_at)
    return Response(200, lines + metadata_headers(blob.metadata))


async def set_blob_metadata(asked: BlobAsked) -> Response:
    written = await asked.front.account.blobs.set_metadata(
        asked.name,
        metadata_of(asked.request),
        lease_id=lease_id_of(asked.request),
        conditions=conditions_of(asked.request),
    )
    return Response(200, written_lines(written))


async def set_blob_properties(asked: BlobAsked) -> Response:
    """Replace the headers when one is given; resize or number a page blob when told to."""
    request, blobs = asked.request, asked.front.account.blobs
    lease_id, conditions = lease_id_of(request), conditions_of(request)
    length = number_of(request, "x-ms-blob-content-length")
    action = _sequence_action(request)
    headers = blob_headers_of(request)
    written: Written | None = None
    if length is not None:
        written = await blobs.resize(asked.name, length, lease_id=lease_id, conditions=conditions)
        conditions = Conditions()
    if action is not None:
        number = number_of(request, "x-ms-blob-sequence-number")
        written = await blobs.set_sequence_number(
            asked.name, action, number, lease_id=lease_id, conditions=conditions
        )
        conditions = Conditions()
    if headers is not None or written is None:
        written = await blobs.set_headers(
            asked.name,
            headers or content_headers_of(Request(request.method, request.path)),
            lease_id=lease_id,
            conditions=conditions,
        )
    lines = version_lines(written.etag, written.changed_at)
    if length is not None or action is not None:
        lines.append(("x-ms-blob-sequence-number", str(written.sequence_number)))
    return Response(200, lines)


def _sequence_action(request: Request) -> SequenceAction | None:
    text = request.given("x-ms-sequence-number-action")
    if text is None:
        return None
    actions: tuple[SequenceAction, ...] = get_args(SequenceAction)
    for action in actions:
        if text.lower() == action:
            return action
    raise invalid_header("x-ms-sequence-number-action", text, f"One of {', '.join(actions)}.")


async def delete_blob(asked: BlobAsked) -> Response:
    await asked.front.account.blobs.delete_blob(
        asked.name,
        snapshots=_delete_snapshots(asked),
        lease_id=lease_id_of(asked.request),
        conditions=conditions_of(asked.request),
    )
    return Response(202, [("x-ms-delete-type-permanent", "true")])


def _delete_snapshots(asked: BlobAsked) -> DeleteSnapshots | None:
    text = asked.request.given("x-ms-delete-snapshots")
    if text is None:
        return None
    if asked.name.snapshot is not None:
        raise invalid_parameter("snapshot", asked.name.snapshot)
    options: tuple[DeleteSnapshots, ...] = get_args(DeleteSnapshots)
    for option in options:
        if text.lower() == option:
            return option
    raise invalid_header("x-ms-delete-snapshots", text, "It is include or only.")


async def set_tier(asked: BlobAsked) -> Response:
    request = asked.request
    is_rehydrating = await asked.front.account.blobs.set_tier(
        asked.name,
        required(request, "x-ms-access-tier"),
        priority=rehydrate_priority_of(request),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    return Response(202 if is_rehydrating else 200)


async def get_tags(asked: BlobAsked) -> Response:
    try:
        tags = await asked.front.account.blobs.get_tags(
            asked.name, lease_id=lease_id_of(asked.request), conditions=_tag_conditions(asked)
        )
    except ConflictError as error:
        # It is the blob that did not change: of its tags that says nothing, so this is no 304.
        raise ConflictError(error.code, error.message, hint=error.hint) from error
    return Response(200, [XML], print_tags(tags))


async def set_tags(asked: BlobAsked) -> Response:
    body, _ = await _verified_body(asked.request, TAGS_BYTES_MAX)
    await asked.front.account.blobs.set_tags(
        asked.name,
        parse_tags(body),
        lease_id=lease_id_of(asked.request),
        conditions=_tag_conditions(asked),
    )
    return Response(204)


def _tag_conditions(asked: BlobAsked) -> Conditions:
    return conditions_of(asked.request, OF_TAGS)


async def lease_blob(asked: BlobAsked) -> Response:
    wanted = lease_request_of(asked.request)
    outcome = await asked.front.account.blobs.lease_blob(
        asked.name, wanted, conditions=conditions_of(asked.request)
    )
    return lease_answer(outcome, wanted.action)


async def snapshot_blob(asked: BlobAsked) -> Response:
    request = asked.request
    snapshot = await asked.front.account.blobs.snapshot(
        asked.name,
        metadata=metadata_of(request) if has_metadata(request) else None,
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    lines = version_lines(snapshot.etag, snapshot.changed_at)
    return Response(201, [("x-ms-snapshot", snapshot.snapshot or ""), *lines, ENCRYPTED])


async def abort_copy(asked: BlobAsked) -> Response:
    if required(asked.request, "x-ms-copy-action").lower() != "abort":
        raise invalid_header(
            "x-ms-copy-action", asked.request.headers["x-ms-copy-action"], "It is abort."
        )
    await asked.front.account.blobs.abort_copy(
        asked.name, _required_option(asked, "copyid"), lease_id=lease_id_of(asked.request)
    )
    return Response(204)


# Blocks and appends


def block_id_of(asked: BlobAsked) -> str:
    return _required_option(asked, "blockid")


def _required_option(asked: BlobAsked, name: str) -> str:
    value = asked.options.get(name)
    if not value:
        raise missing_parameter(name)
    return value


async def put_block(asked: BlobAsked) -> Response:
    request = asked.request
    bytes_max = _bytes_max(asked.front.version, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX_OLD)
    check_body_size(request, bytes_max)
    _check_not_empty(request)
    found = await asked.front.account.blobs.put_block(
        asked.name,
        block_id_of(asked),
        content_of(request),
        lease_id=lease_id_of(request),
        declared=declared_of(request),
    )
    return Response(201, [*checksum_lines(found.md5, found.crc64), ENCRYPTED])


def _check_not_empty(request: Request) -> None:
    if body_length(request) == 0:
        raise invalid_header("Content-Length", "0", "The body is empty.")


async def _verified_body(request: Request, bytes_max: int) -> tuple[bytes, Declared]:
    """Return a short body and its checksums; one of them is wrong: refuse it."""
    body = await whole_body(request, bytes_max)
    declared = declared_of(request)
    sums = sums_of(body, wants_md5=declared.md5 is not None)
    verify(declared, sums)
    return body, sums


async def put_block_list(asked: BlobAsked) -> Response:
    request = asked.request
    body, sums = await _verified_body(request, BLOCK_LIST_BYTES_MAX)
    written = await asked.front.account.blobs.put_block_list(
        asked.name,
        parse_block_list(body),
        properties=properties_of(request, blob_headers_of(request) or content_headers_of(_BARE)),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    return Response(201, [*written_lines(written), *checksum_lines(sums.md5, sums.crc64)])


_BARE = Request("PUT", "")


async def get_block_list(asked: BlobAsked) -> Response:
    wanted = asked.options.get("blocklisttype", "committed").lower()
    if wanted not in ("committed", "uncommitted", "all"):
        raise invalid_parameter("blocklisttype", wanted)
    if wanted != "committed" and asked.front.grant.is_anonymous:
        raise no_credentials()  # because what is staged is not public yet
    blocks = await asked.front.account.blobs.get_block_list(
        asked.name, lease_id=lease_id_of(asked.request), conditions=conditions_of(asked.request)
    )
    lines: Lines = [XML]
    if blocks.blob.is_committed:
        lines += version_lines(blocks.blob.etag, blocks.blob.changed_at)
        lines.append(("x-ms-blob-content-length", str(blocks.blob.length)))
    return Response(200, lines, print_block_list(blocks, wanted))


async def append_block(asked: BlobAsked) -> Response:
    request = asked.request
    bytes_max = _bytes_max(asked.front.version, APPEND_BYTES_MAX, APPEND_BYTES_MAX_OLD)
    check_body_size(request, bytes_max)
    _check_not_empty(request)
    appended = await asked.front.account.blobs.append_block(
        asked.name,
        content_of(request),
        position=number_of(request, "x-ms-blob-condition-appendpos"),
        size_max=number_of(request, "x-ms-blob-condition-maxsize"),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
        declared=declared_of(request),
    )
    return append_answer(appended)


def append_answer(appended: Appended) -> Response:
    """Answer an append, of a body or of another blob."""
    written = appended.written
    lines = [
        *written_lines(written),
        *checksum_lines(written.md5, written.crc64),
        ("x-ms-blob-append-offset", str(appended.offset)),
        ("x-ms-blob-committed-block-count", str(appended.block_count)),
    ]
    return Response(201, lines)


async def seal_blob(asked: BlobAsked) -> Response:
    request = asked.request
    written = await asked.front.account.blobs.seal(
        asked.name,
        position=number_of(request, "x-ms-blob-condition-appendpos"),
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    lines = version_lines(written.etag, written.changed_at)
    return Response(200, [*lines, ("x-ms-blob-sealed", "true")])


# Pages


def page_range_of(request: Request, name: str) -> ByteRange:
    """Return the pages that a request names; a page blob is never written without a range."""
    text = request.headers.get(name) or request.headers.get(name.removeprefix("x-ms-"))
    if not text:
        raise missing_header(name)
    pages = parse_range(text)
    if pages is None or pages.last is None:
        raise invalid_header(name, text, "It is bytes=first-last.")
    return pages


async def put_pages(asked: BlobAsked) -> Response:
    request = asked.request
    pages = page_range_of(request, "x-ms-range")
    assert pages.last is not None
    action = required(request, "x-ms-page-write").lower()
    if action not in ("update", "clear"):
        raise invalid_header("x-ms-page-write", action, "It is update or clear.")
    blobs = asked.front.account.blobs
    if action == "clear":
        written = await blobs.clear_pages(
            asked.name,
            pages.first,
            pages.last,
            sequence=sequence_conditions_of(request),
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
        )
    else:
        check_body_size(request, limits.PUT_PAGES_BYTES_MAX)
        written = await blobs.put_pages(
            asked.name,
            pages.first,
            content_of(request),
            last=pages.last,
            sequence=sequence_conditions_of(request),
            lease_id=lease_id_of(request),
            conditions=conditions_of(request),
            declared=declared_of(request),
        )
    return pages_answer(written)


def pages_answer(written: Written) -> Response:
    """Answer a write of pages, of a body or of another blob."""
    lines = [
        *written_lines(written),
        *checksum_lines(written.md5, written.crc64),
        ("x-ms-blob-sequence-number", str(written.sequence_number)),
    ]
    return Response(201, lines)


async def get_page_ranges(asked: BlobAsked) -> Response:
    request = asked.request
    if "prevsnapshot" in asked.options or "x-ms-previous-snapshot-url" in request.headers:
        raise not_implemented("Differences of page ranges are not kept.")
    wanted = range_of(request.headers) or ByteRange(0, None)
    marker = asked.options.get("marker", "")
    if marker and not _PAGE_MARKER.fullmatch(marker):
        raise invalid_parameter("marker", marker[:64])
    pages = await asked.front.account.blobs.page_ranges(
        asked.name,
        first=max(wanted.first, int(marker or 0)),
        last=wanted.last,
        limit=asked.limit() if "maxresults" in asked.options else None,
        lease_id=lease_id_of(request),
        conditions=conditions_of(request),
    )
    lines: Lines = [XML, *version_lines(pages.blob.etag, pages.blob.changed_at)]
    lines.append(("x-ms-blob-content-length", str(pages.blob.length)))
    return Response(200, lines, print_page_list(pages))
