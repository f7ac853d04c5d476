"""The headers of a blob request, as values of `partita.blobs`. Pure.

A header that cannot be read is refused by its name, never ignored.
"""

import binascii
import re
from urllib.parse import parse_qsl

from partita.blobs.rules import limits
from partita.blobs.rules.model import (
    ANY,
    Conditions,
    Declared,
    Headers,
    LeaseRequest,
    Properties,
    SequenceConditions,
    Terms,
)
from partita.blobs.rules.tags import duplicate_tag, too_many_tags
from partita.errors import InvalidRequestError
from partita.refusals import body_too_large, invalid_header, missing_header
from partita.service.auth.shared_key import parse_http_date
from partita.service.formats.metadata_wire import metadata_of
from partita.service.http.request import Request

MD5_BYTES = 16
STORED_MD5_BYTES_MAX = 64
CRC64_BYTES = 8
NUMBER_DIGITS_MAX = 19
SOURCE = "x-ms-source-"
"""The prefix of conditions on the source of a copy."""
OF_TAGS = "x-ms-blob-"
"""The prefix of conditions on the blob in requests for its tags."""
REHYDRATE_PRIORITIES = ("High", "Standard")

_NUMBER = re.compile(rf"\d{{1,{NUMBER_DIGITS_MAX}}}", re.ASCII)
_GUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", re.ASCII)
_LEASE_ACTIONS = ("acquire", "renew", "change", "release", "break")
_CONTENT_HEADERS = {
    "content_type": "content-type",
    "content_encoding": "content-encoding",
    "content_language": "content-language",
    "cache_control": "cache-control",
}
_BLOB_HEADERS = {
    **{field: f"x-ms-blob-{header}" for field, header in _CONTENT_HEADERS.items()},
    "content_disposition": "x-ms-blob-content-disposition",
}
_CONDITION_NAMES = frozenset(
    f"{front}if-{name}"
    for front in ("", "x-ms-", "x-ms-blob-", SOURCE, "x-ms-access-tier-")
    for name in ("match", "none-match", "modified-since", "unmodified-since", "tags")
)


def required(request: Request, name: str) -> str:
    value = request.headers.get(name)
    if not value:
        raise missing_header(name)
    return value


def number_of(request: Request, name: str) -> int | None:
    """Return the whole number that a header holds; None if it is absent or empty."""
    text = request.given(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise invalid_header(name, text, "Use a whole number.")
    return int(text)


def flag_of(request: Request, name: str) -> bool | None:
    """Return the value of a true or false header; None if it is absent or empty."""
    text = request.given(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise invalid_header(name, text, "Use true or false.")
    return text.lower() == "true"


def lease_id_of(request: Request, name: str = "x-ms-lease-id") -> str | None:
    return _guid(request, name)


def _guid(request: Request, name: str) -> str | None:
    text = request.given(name)
    if text is None:
        return None
    if not _GUID.fullmatch(text):
        raise invalid_header(name, text, "Use the GUID of a lease.")
    return text.lower()


# Conditions


def terms_of(request: Request, front: str = "") -> Terms:
    """Return the lease and the conditions of a request; `front` as in `conditions_of`."""
    return Terms(lease_id_of(request), conditions_of(request, front))


def conditions_of(request: Request, front: str = "") -> Conditions:
    """Return the conditional headers; an empty one sets no condition.

    `front` is `x-ms-source-` for those of a copy's source, and `x-ms-blob-` for those of tags.
    """
    if _CONDITION_NAMES.isdisjoint(request.headers):
        return ANY
    return Conditions(
        if_match=_etags(request.given(f"{front}if-match")),
        if_none_match=_etags(request.given(f"{front}if-none-match")),
        if_modified_since=_date(request, f"{front}if-modified-since"),
        if_unmodified_since=_date(request, f"{front}if-unmodified-since"),
        if_tags=request.given(f"{front if front == SOURCE else 'x-ms-'}if-tags"),
        if_tier_modified_since=_date(request, "x-ms-access-tier-if-modified-since"),
        if_tier_unmodified_since=_date(request, "x-ms-access-tier-if-unmodified-since"),
    )


def _etags(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    return tuple(etag.strip().strip('"') for etag in text.split(","))


def _date(request: Request, name: str) -> int | None:
    text = request.given(name)
    if text is None:
        return None
    ticks = parse_http_date(text)
    if ticks is None:
        raise invalid_header(name, text, "Use a date in RFC 1123 format.")
    return ticks


def sequence_conditions_of(request: Request) -> SequenceConditions:
    return SequenceConditions(
        number_of(request, "x-ms-if-sequence-number-le"),
        number_of(request, "x-ms-if-sequence-number-lt"),
        number_of(request, "x-ms-if-sequence-number-eq"),
    )


# Content headers, metadata, tags


def content_headers_of(request: Request) -> Headers:
    """Return the content headers of a whole write: x-ms-blob-*, or else those of HTTP."""
    given = {
        field: request.headers.get(name) or request.headers.get(_CONTENT_HEADERS.get(field, ""))
        for field, name in _BLOB_HEADERS.items()
    }
    return Headers(**given, content_md5=_stored_md5(request))


def blob_headers_of(request: Request) -> Headers | None:
    """Return the x-ms-blob-* headers that a request sets; None if it sets none."""
    names = (*_BLOB_HEADERS.values(), "x-ms-blob-content-md5")
    if not any(name in request.headers for name in names):
        return None
    given = {field: request.headers.get(name) or None for field, name in _BLOB_HEADERS.items()}
    return Headers(**given, content_md5=_stored_md5(request))


def _stored_md5(request: Request) -> bytes | None:
    """Return the MD5 to store; it is not verified and may have another length."""
    text = request.headers.get("x-ms-blob-content-md5")
    if not text:
        return None
    try:
        digest = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        digest = b""
    if not 0 < len(digest) <= STORED_MD5_BYTES_MAX:
        raise _invalid_md5("x-ms-blob-content-md5")
    return digest


def properties_of(request: Request, headers: Headers) -> Properties:
    """Return headers, metadata, tags and tier of a request that writes a whole blob."""
    return Properties(
        headers=headers,
        metadata=metadata_of(request),
        tags=tags_of(request),
        tier=request.given("x-ms-access-tier"),
        encryption_scope=request.given("x-ms-encryption-scope"),
    )


def tags_of(request: Request) -> dict[str, str]:
    """Return the tags of the `x-ms-tags` header, which is a query string."""
    text = request.headers.get("x-ms-tags")
    if not text:
        return {}
    if text.count("&") >= limits.TAGS_MAX:
        raise too_many_tags()
    pairs = parse_qsl(text, keep_blank_values=True)
    tags = dict(pairs)
    if len(tags) < len(pairs):
        raise duplicate_tag()
    return tags


# Checksums


def declared_of(request: Request) -> Declared:
    """Return the checksums that the sender declares for a body."""
    declared = Declared(
        md5=_digest(request, "content-md5", MD5_BYTES),
        crc64=_digest(request, "x-ms-content-crc64", CRC64_BYTES),
    )
    if declared.md5 is not None and declared.crc64 is not None:
        raise invalid_header(
            "x-ms-content-crc64",
            request.headers["x-ms-content-crc64"],
            "Send one checksum: MD5 or CRC64.",
        )
    return declared


def source_declared_of(request: Request) -> Declared:
    """Return the checksums that the sender declares for the source of a copy."""
    return Declared(
        md5=_digest(request, "x-ms-source-content-md5", MD5_BYTES),
        crc64=_digest(request, "x-ms-source-content-crc64", CRC64_BYTES),
    )


def _digest(request: Request, name: str, size: int) -> bytes | None:
    text = request.headers.get(name)
    if not text:
        return None
    try:
        digest = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        digest = b""
    if len(digest) == size:
        return digest
    if size == MD5_BYTES:
        raise _invalid_md5(name)
    raise invalid_header(name, text, f"Use the base64 of {size} bytes.")


def _invalid_md5(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidMd5",
        "The MD5 value specified in the request is invalid. MD5 value must be 128 bits and"
        " base64-encoded.",
        facts={"elements": [("HeaderName", name)]},
    )


def base64(digest: bytes) -> str:
    return binascii.b2a_base64(digest, newline=False).decode()


def rehydrate_priority_of(request: Request) -> str | None:
    """Return the priority of rehydrating an archived blob."""
    text = request.given("x-ms-rehydrate-priority")
    if text is None:
        return None
    for priority in REHYDRATE_PRIORITIES:
        if text.lower() == priority.lower():
            return priority
    raise invalid_header(
        "x-ms-rehydrate-priority", text, f"Use one of {', '.join(REHYDRATE_PRIORITIES)}."
    )


# Leases


def lease_request_of(request: Request) -> LeaseRequest:
    """Return the lease action of a request."""
    action = required(request, "x-ms-lease-action").lower()
    if action not in _LEASE_ACTIONS:
        raise invalid_header(
            "x-ms-lease-action", action, f"Use one of {', '.join(_LEASE_ACTIONS)}."
        )
    lease_id = lease_id_of(request)
    proposed_id = _guid(request, "x-ms-proposed-lease-id")
    if action in ("renew", "change", "release") and lease_id is None:
        raise missing_header("x-ms-lease-id")
    if action == "change" and proposed_id is None:
        raise missing_header("x-ms-proposed-lease-id")
    return LeaseRequest(
        action=action,  # type: ignore[arg-type]  # checked above
        lease_id=lease_id,
        proposed_id=proposed_id,
        duration=_duration(request) if action == "acquire" else None,
        break_period=_break_period(request) if action == "break" else None,
    )


def _duration(request: Request) -> int:
    text = required(request, "x-ms-lease-duration")
    low, high = limits.LEASE_SECONDS_MIN, limits.LEASE_SECONDS_MAX
    if text == str(limits.LEASE_INFINITE):
        return limits.LEASE_INFINITE
    if _NUMBER.fullmatch(text) and low <= int(text) <= high:
        return int(text)
    raise invalid_header("x-ms-lease-duration", text, f"Use {low} to {high} seconds, or -1.")


def _break_period(request: Request) -> int | None:
    period = number_of(request, "x-ms-lease-break-period")
    if period is not None and period > limits.LEASE_BREAK_SECONDS_MAX:
        raise invalid_header(
            "x-ms-lease-break-period",
            str(period),
            f"Use 0 to {limits.LEASE_BREAK_SECONDS_MAX} seconds.",
        )
    return period


# Sizes


def check_body_size(request: Request, bytes_max: int) -> None:
    """Refuse a body whose declared length exceeds the limit."""
    length = body_length(request)
    if length is not None and length > bytes_max:
        raise body_too_large(bytes_max)


def body_length(request: Request) -> int | None:
    """Return the length of a body; None for a stream without a declared length."""
    return len(request.body) if request.upload is None else request.upload.length
