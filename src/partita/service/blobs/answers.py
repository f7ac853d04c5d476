"""Blob, Container → headers of an answer. Pure; names and order are those of the service."""

from partita.blobs.rules.model import (
    Blob,
    Container,
    CopyFacts,
    Headers,
    LeaseFacts,
    Opened,
    Written,
)
from partita.service.blobs.headers import base64
from partita.service.blobs.xml import (
    ENCRYPTION_SCOPE,
    INFERRED_TIER,
    SMART_TIER,
    archive_status,
)
from partita.service.formats.metadata_wire import metadata_headers
from partita.service.http.message_bytes import http_date

Lines = list[tuple[str, str]]
Overrides = tuple[tuple[str, str], ...]
"""Content headers that a SAS puts in the place of the blob's own."""

_CONTENT_NAMES = (
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Content-Disposition",
    "Cache-Control",
)
ENCRYPTED = ("x-ms-request-server-encrypted", "true")


def version_lines(etag: str, changed_at: int) -> Lines:
    return [("ETag", f'"{etag}"'), ("Last-Modified", http_date(changed_at))]


def container_lines(container: Container) -> Lines:
    """Return everything about a container that its properties show."""
    lines = version_lines(container.etag, container.changed_at)
    lines += metadata_headers(container.metadata)
    lines += _lease_lines(container.lease)
    lines += access_lines(container)
    return [
        *lines,
        ("x-ms-has-immutability-policy", "false"),
        ("x-ms-has-legal-hold", "false"),
        ("x-ms-immutable-storage-with-versioning-enabled", "false"),
        ("x-ms-default-encryption-scope", ENCRYPTION_SCOPE),
        ("x-ms-deny-encryption-scope-override", "false"),
    ]


def access_lines(container: Container) -> Lines:
    return [] if container.access is None else [("x-ms-blob-public-access", container.access)]


def written_lines(written: Written, *, is_encrypted: bool = True) -> Lines:
    """Return what the answer to a write says."""
    lines = version_lines(written.etag, written.changed_at)
    return [*lines, ENCRYPTED] if is_encrypted else lines


def checksum_lines(md5: bytes | None, crc64: bytes | None) -> Lines:
    """Return the checksums that were computed: of a body, or of the range that was asked for."""
    lines = [] if md5 is None else [("Content-MD5", base64(md5))]
    return lines if crc64 is None else [*lines, ("x-ms-content-crc64", base64(crc64))]


def download_lines(opened: Opened, overrides: Overrides, *, is_range: bool) -> Lines:
    """Return the headers in front of a blob's bytes."""
    blob = opened.blob
    lines = blob_lines(blob, overrides)
    stored_md5 = blob.headers.content_md5
    if is_range:
        lines.append(("Content-Range", f"bytes {opened.first}-{opened.last}/{opened.total}"))
        if stored_md5 is not None:
            lines.append(("x-ms-blob-content-md5", base64(stored_md5)))
        lines += checksum_lines(opened.md5, opened.crc64)
    elif stored_md5 is not None:
        lines.append(("Content-MD5", base64(stored_md5)))
    return lines


def property_lines(blob: Blob, overrides: Overrides) -> Lines:
    """Return everything that is known about a blob, as the answer to HEAD."""
    lines = blob_lines(blob, overrides)
    if blob.headers.content_md5 is not None:
        lines.append(("Content-MD5", base64(blob.headers.content_md5)))
    if blob.kind == "BlockBlob" and blob.tier is None:
        lines.append(("x-ms-access-tier", INFERRED_TIER))
        if blob.snapshot is None:
            lines.append(("x-ms-access-tier-inferred", "true"))
    return lines


def blob_lines(blob: Blob, overrides: Overrides) -> Lines:
    """Return what GET and HEAD share."""
    lines = version_lines(blob.etag, blob.changed_at)
    lines += _content_lines(blob.headers, overrides)
    lines += [
        ("Accept-Ranges", "bytes"),
        ("x-ms-blob-type", blob.kind),
        ("x-ms-creation-time", http_date(blob.created_at)),
        ("x-ms-server-encrypted", "true"),
    ]
    if blob.snapshot is None:
        lines += _lease_lines(blob.lease)
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
