"""Metadata headers, `x-ms-meta-<name>: value`, of queues, containers and blobs. Pure.

Names keep the case they were sent with and are compared without it. A header called exactly
`x-ms-meta` is nobody's metadata: old clients send it.
"""

import re
from collections.abc import Mapping

from partita.errors import InvalidRequestError, LimitExceededError
from partita.service.http.request import Request

PREFIX = "x-ms-meta-"
METADATA_BYTES_MAX = 8 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def metadata_of(request: Request) -> dict[str, str]:
    """Return the metadata that a request brings, checked."""
    found: dict[str, str] = {}
    size = 0
    for header, value in request.headers.items():
        if not header.startswith(PREFIX):
            continue
        if header in request.repeated:
            raise _invalid("A name is given twice.")
        name = request.spelled.get(header, header)[len(PREFIX) :]
        _check(name, value)
        found[name] = value.strip(" \t")
        size += len(name) + len(found[name])
    if size > METADATA_BYTES_MAX:
        raise LimitExceededError(
            "MetadataTooLarge",
            "The size of the specified metadata exceeds the maximum size permitted.",
            facts={"elements": [("MaxLimit", str(METADATA_BYTES_MAX))]},
            hint=f"Names and values together have at most {METADATA_BYTES_MAX} bytes.",
        )
    return found


def has_metadata(request: Request) -> bool:
    return any(header.startswith(PREFIX) for header in request.headers)


def metadata_headers(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers that say metadata again."""
    return [(f"{PREFIX}{name}", value) for name, value in metadata.items()]


def _check(name: str, value: str) -> None:
    if not name:
        raise InvalidRequestError(
            "EmptyMetadataKey", "The key for one of the metadata key-value pairs is empty."
        )
    if not _NAME.fullmatch(name):
        raise _invalid("A name has letters, digits and '_', and begins with no digit.")
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise _invalid("A value is printable ASCII.")


def _invalid(hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidMetadata",
        "The metadata specified is invalid. It has characters that are not permitted.",
        hint=hint,
    )
