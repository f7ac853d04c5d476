"""Metadata headers, `x-ms-meta-<name>: value`, of queues, containers and blobs. Pure.

Names keep their case and are compared without it. A header named exactly `x-ms-meta` is not
metadata: old clients send it.
"""

import re
from collections.abc import Mapping

from partita.errors import InvalidRequestError, LimitExceededError
from partita.service.http.request import Request

PREFIX = "x-ms-meta-"
METADATA_BYTES_MAX = 8 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def metadata_of(request: Request) -> dict[str, str]:
    """Return the metadata of a request, checked."""
    found: dict[str, str] = {}
    size = 0
    for header, value in request.headers.items():
        if not header.startswith(PREFIX):
            continue
        if header in request.repeated:
            raise _invalid("Give each name only once.")
        name = request.spelled.get(header, header)[len(PREFIX) :]
        _check(name, value)
        found[name] = value.strip(" \t")
        size += len(name) + len(found[name])
    if size > METADATA_BYTES_MAX:
        raise LimitExceededError(
            "MetadataTooLarge",
            "The size of the specified metadata exceeds the maximum size permitted.",
            facts={"elements": [("MaxLimit", str(METADATA_BYTES_MAX))]},
            hint=f"Use at most {METADATA_BYTES_MAX} bytes for names and values together.",
        )
    return found


def has_metadata(request: Request) -> bool:
    return any(header.startswith(PREFIX) for header in request.headers)


def metadata_headers(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return metadata as headers."""
    return [(f"{PREFIX}{name}", value) for name, value in metadata.items()]


def _check(name: str, value: str) -> None:
    if not name:
        raise InvalidRequestError(
            "EmptyMetadataKey", "The key for one of the metadata key-value pairs is empty."
        )
    if not _NAME.fullmatch(name):
        raise _invalid("Use letters, digits and '_' in a name, and do not start it with a digit.")
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise _invalid("Use printable ASCII in a value.")


def _invalid(hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidMetadata",
        "The metadata specified is invalid. It has characters that are not permitted.",
        hint=hint,
    )
