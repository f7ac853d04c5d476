"""Outcome → Response for the blob protocol. Pure; names and order are those of the service."""

from collections.abc import Mapping

from partita.blobs.rules.model import (
    Appended,
    Blob,
    BlockList,
    BytesDownload,
    Container,
    ContainerListing,
    Copied,
    CopyFacts,
    Declared,
    FoundBlobs,
    Headers,
    LeaseFacts,
    LeaseOutcome,
    Listing,
    Opened,
    PageRanges,
    Written,
)
from partita.service.blobs.headers import base64
from partita.service.blobs.xml import (
    ENCRYPTION_SCOPE,
    INFERRED_TIER,
    SMART_TIER,
    archive_status,
    print_blobs,
    print_block_list,
    print_containers,
    print_found,
    print_page_list,
    print_tags,
)
from partita.service.formats.metadata_wire import metadata_headers
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Response

Lines = list[tuple[str, str]]
Overrides = tuple[tuple[str, str], ...]
"""Content headers that a SAS sets in place of the blob's."""

_CONTENT_NAMES = (
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Content-Disposition",
    "Cache-Control",
)
XML = ("Content-Type", "application/xml")
ENCRYPTED = ("x-ms-request-server-encrypted", "true")


_ACCOUNT = [
    ("x-ms-sku-name", "Standard_LRS"),
    ("x-ms-account-kind", "StorageV2"),
    ("x-ms-is-hns-enabled", "false"),
]
_LEASE_STATUS = {"acquire": 201, "renew": 200, "change": 200, "release": 200, "break": 202}


class NoContent:
    """The body of an answer to HEAD: it has a length, and its bytes are never read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __aiter__(self) -> "NoContent":
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration

    async def close(self) -> None: ...


# Answers


def account_answer() -> Response:
    return Response(200, list(_ACCOUNT))


def containers_answer(
    listing: ContainerListing, root: str, options: Mapping[str, str], account: str
) -> Response:
    marker = container_marker(account, listing.next_marker) if listing.next_marker else ""
    return Response(200, [XML], print_containers(listing, root, options, marker))


def container_marker(account: str, name: str) -> str:
    return f"/{account}/{name}"


def container_answer(container: Container) -> Response:
    """Answer with everything about a container that its properties show."""
    lines = version_lines(container.etag, container.changed_at)
    lines += metadata_headers(container.metadata)
    lines += _lease_lines(container.lease)
    lines += access_lines(container)
    lines += (
        ("x-ms-has-immutability-policy", "false"),
        ("x-ms-has-legal-hold", "false"),
        ("x-ms-immutable-storage-with-versioning-enabled", "false"),
        ("x-ms-default-encryption-scope", container.encryption_scope or ENCRYPTION_SCOPE),
        ("x-ms-deny-encryption-scope-override", str(container.denies_other_scopes).lower()),
    )
    return Response(200, lines)


def policies_answer(container: Container, document: bytes) -> Response:
    lines = version_lines(container.etag, container.changed_at) + access_lines(container)
    return Response(200, [XML, *lines], document)


def metadata_answer(found: Container | Blob) -> Response:
    lines = version_lines(found.etag, found.changed_at)
    return Response(200, lines + metadata_headers(found.metadata))


def version_answer(status: int, changed: Container | Written, *more: tuple[str, str]) -> Response:
    lines = version_lines(changed.etag, changed.changed_at)
    if isinstance(changed, Written):
        lines += kept_lines(changed)
    return Response(status, [*lines, *more])


def deleted_answer(*, is_permanent: bool) -> Response:
    return Response(202, [("x-ms-delete-type-permanent", str(is_permanent).lower())])


def lease_answer(outcome: LeaseOutcome, action: str) -> Response:
    """Answer a change of a lease, of a container or of a blob."""
    lines = version_lines(outcome.etag, outcome.changed_at)
    if outcome.lease_id is not None and action in ("acquire", "renew", "change"):
        lines.append(("x-ms-lease-id", outcome.lease_id))
    if action == "break":
        lines.append(("x-ms-lease-time", str(outcome.seconds_left or 0)))
    return Response(_LEASE_STATUS[action], lines)


def listing_answer(
    listing: Listing, root: str, container: str, options: Mapping[str, str]
) -> Response:
    return Response(200, [XML], print_blobs(listing, root, container, options))


def written_answer(
    written: Written, sums: Declared | Written | None = None, *more: tuple[str, str]
) -> Response:
    """Answer a write of content; `sums` are the checksums to show."""
    lines = [*version_lines(written.etag, written.changed_at), ENCRYPTED, *kept_lines(written)]
    if sums is not None:
        lines += checksum_lines(sums.md5, sums.crc64)
    return Response(201, [*lines, *more])


def block_answer(sums: Declared) -> Response:
    return Response(201, [*checksum_lines(sums.md5, sums.crc64), ENCRYPTED])


def appended_answer(appended: Appended) -> Response:
    return written_answer(
        appended.written,
        appended.written,
        ("x-ms-blob-append-offset", str(appended.offset)),
        ("x-ms-blob-committed-block-count", str(appended.block_count)),
    )


def pages_answer(written: Written) -> Response:
    number = ("x-ms-blob-sequence-number", str(written.sequence_number))
    return written_answer(written, written, number)


def copied_answer(copied: Copied, sums: Declared | None = None) -> Response:
    """Answer a copy; `sums` are those of a synchronous one."""
    lines = version_lines(copied.written.etag, copied.written.changed_at)
    lines += (("x-ms-copy-id", copied.copy.id), ("x-ms-copy-status", copied.copy.status))
    lines += kept_lines(copied.written)
    if sums is not None:
        lines += [*checksum_lines(sums.md5, sums.crc64), ENCRYPTED]
    return Response(202, lines)


def snapshot_answer(snapshot: Blob) -> Response:
    lines = version_lines(snapshot.etag, snapshot.changed_at)
    if snapshot.version is not None:
        lines.append(("x-ms-version-id", snapshot.version))
    return Response(201, [("x-ms-snapshot", snapshot.snapshot or ""), *lines, ENCRYPTED])


def found_answer(found: FoundBlobs, root: str, options: Mapping[str, str]) -> Response:
    return Response(200, [XML], print_found(found, root, options))


def tags_answer(tags: Mapping[str, str]) -> Response:
    return Response(200, [XML], print_tags(tags))


def block_list_answer(blocks: BlockList, which: str) -> Response:
    lines: Lines = [XML]
    if blocks.blob.is_committed:
        lines += version_lines(blocks.blob.etag, blocks.blob.changed_at)
        lines.append(("x-ms-blob-content-length", str(blocks.blob.length)))
    return Response(200, lines, print_block_list(blocks, which))


def page_ranges_answer(pages: PageRanges) -> Response:
    lines: Lines = [XML, *version_lines(pages.blob.etag, pages.blob.changed_at)]
    lines.append(("x-ms-blob-content-length", str(pages.blob.length)))
    return Response(200, lines, print_page_list(pages))


def download_answer(opened: Opened, overrides: Overrides, *, is_range: bool) -> Response:
    blob, content = opened.blob, opened.content
    lines = blob_lines(blob, overrides)
    stored_md5 = blob.headers.content_md5
    if is_range:
        lines.append(("Content-Range", f"bytes {opened.first}-{opened.last}/{opened.total}"))
        if stored_md5 is not None:
            lines.append(("x-ms-blob-content-md5", base64(stored_md5)))
        lines += checksum_lines(opened.md5, opened.crc64)
    elif stored_md5 is not None:
        lines.append(("Content-MD5", base64(stored_md5)))
    status = 206 if is_range else 200
    if isinstance(content, BytesDownload):
        return Response(status, lines, content.content)
    return Response(status, lines, download=content)


def properties_answer(blob: Blob, overrides: Overrides) -> Response:
    """Answer HEAD with everything that is known about a blob."""
    lines = blob_lines(blob, overrides)
    if blob.headers.content_md5 is not None:
        lines.append(("Content-MD5", base64(blob.headers.content_md5)))
    if blob.kind == "BlockBlob" and blob.tier is None:
        lines.append(("x-ms-access-tier", INFERRED_TIER))
        if blob.is_current:
            lines.append(("x-ms-access-tier-inferred", "true"))
    return Response(200, lines, download=NoContent(blob.length))


# Lines


def version_lines(etag: str, changed_at: int) -> Lines:
    return [("ETag", f'"{etag}"'), ("Last-Modified", http_date(changed_at))]


def kept_lines(written: Written) -> Lines:
    """Return the version and the encryption scope that a write has, if any."""
    lines: Lines = []
    if written.version is not None:
        lines.append(("x-ms-version-id", written.version))
    if written.encryption_scope is not None:
        lines.append(("x-ms-encryption-scope", written.encryption_scope))
    return lines


def access_lines(container: Container) -> Lines:
    return [] if container.access is None else [("x-ms-blob-public-access", container.access)]


def checksum_lines(md5: bytes | None, crc64: bytes | None) -> Lines:
    """Return the checksums that were computed, of a body or of the requested range."""
    lines = [] if md5 is None else [("Content-MD5", base64(md5))]
    return lines if crc64 is None else [*lines, ("x-ms-content-crc64", base64(crc64))]


def blob_lines(blob: Blob, overrides: Overrides) -> Lines:
    """Return the lines that GET and HEAD have in common."""
    lines = version_lines(blob.etag, blob.changed_at)
    lines += _content_lines(blob.headers, overrides)
    lines += [
        ("Accept-Ranges", "bytes"),
        ("x-ms-blob-type", blob.kind),
        ("x-ms-creation-time", http_date(blob.created_at)),
        ("x-ms-server-encrypted", "true"),
    ]
    if blob.is_current:
        lines += _lease_lines(blob.lease)
    if blob.version is not None:
        lines.append(("x-ms-version-id", blob.version))
        if blob.is_current:
            lines.append(("x-ms-is-current-version", "true"))
    if blob.encryption_scope is not None:
        lines.append(("x-ms-encryption-scope", blob.encryption_scope))
    lines += metadata_headers(blob.metadata)
    if blob.kind == "AppendBlob":
        lines.append(("x-ms-blob-committed-block-count", str(blob.block_count)))
    if blob.kind == "PageBlob":
        lines.append(("x-ms-blob-sequence-number", str(blob.sequence_number)))
    if blob.is_sealed:
        lines.append(("x-ms-blob-sealed", "true"))
    if blob.tier is not None:
        lines += _tier_lines(blob, blob.tier)
    if blob.copy is not None:
        lines += _copy_lines(blob.copy)
    if blob.tags:
        lines.append(("x-ms-tag-count", str(len(blob.tags))))
    return lines


def _content_lines(headers: Headers, overrides: Overrides) -> Lines:
    given = (
        headers.content_type or "application/octet-stream",
        headers.content_encoding,
        headers.content_language,
        headers.content_disposition,
        headers.cache_control,
    )
    lines = [(name, value) for name, value in zip(_CONTENT_NAMES, given, strict=True) if value]
    if not overrides:
        return lines
    return [(name, value) for name, value in {**dict(lines), **dict(overrides)}.items() if value]


def _tier_lines(blob: Blob, tier: str) -> Lines:
    lines = [("x-ms-access-tier", tier)]
    if tier == SMART_TIER:
        lines.append(("x-ms-smart-access-tier", INFERRED_TIER))
    if blob.tier_changed_at is not None:
        lines.append(("x-ms-access-tier-change-time", http_date(blob.tier_changed_at)))
    if blob.rehydrates_to is not None:
        lines.append(("x-ms-archive-status", archive_status(blob.rehydrates_to)))
        lines.append(("x-ms-rehydrate-priority", blob.rehydrate_priority or ""))
    return lines


def _lease_lines(lease: LeaseFacts) -> Lines:
    lines: Lines = [("x-ms-lease-status", lease.status), ("x-ms-lease-state", lease.state)]
    return lines if lease.duration is None else [*lines, ("x-ms-lease-duration", lease.duration)]


def _copy_lines(copy: CopyFacts) -> Lines:
    return [
        ("x-ms-copy-id", copy.id),
        ("x-ms-copy-source", copy.source),
        ("x-ms-copy-status", copy.status),
        ("x-ms-copy-progress", f"{copy.bytes_copied}/{copy.bytes_total}"),
        ("x-ms-copy-completion-time", http_date(copy.completed_at)),
    ]
