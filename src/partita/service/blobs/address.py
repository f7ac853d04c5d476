"""Which container or blob a path names. Pure.

A path is split at its first slash into container and blob, then percent-decoded once; the name
of a blob may contain further slashes. Names are checked by `partita.blobs`.
"""

from urllib.parse import urlsplit

import msgspec

from partita.blobs.rules.names import DELETED_MARK, check_container_name
from partita.errors import InvalidRequestError
from partita.refusals import invalid_header
from partita.service.formats.address import invalid_uri, split_container

ROOT_CONTAINER = "$root"
"""The container of a blob whose path has only one segment."""


class OneContainer(msgspec.Struct, frozen=True, gc=False):
    """`/C?restype=container`."""

    name: str


class OneBlob(msgspec.Struct, frozen=True, gc=False):
    """`/C/B`, or `/B` in the root container."""

    container: str
    name: str


class BlobServiceRoot(msgspec.Struct, frozen=True, gc=False):
    """`/`: the service itself."""


BlobResource = BlobServiceRoot | OneContainer | OneBlob


def parse_blob_resource(path: str, *, is_container: bool) -> BlobResource:
    """Parse the path after the account, as it was sent."""
    container, blob = split_container(path)
    if DELETED_MARK in container:
        # It is the name of a deleted container: no request reaches it.
        check_container_name(container)
    if is_container:
        if blob:
            raise invalid_uri("Use one path segment for a container.")
        return OneContainer(container)
    if not container:
        return BlobServiceRoot()
    if blob:
        return OneBlob(container, blob)
    if path.endswith("/"):
        raise invalid_uri("Name a blob, or add restype=container.")
    return OneBlob(ROOT_CONTAINER, container)


def parse_copy_source(source: str) -> tuple[str, str, str]:
    """Split the address of a copy's source into host, path and query, all as sent."""
    try:
        parts = urlsplit(source)
    except ValueError:
        raise _bad_source() from None
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.fragment:
        raise _bad_source()
    return parts.netloc, parts.path, parts.query


def _bad_source() -> InvalidRequestError:
    return invalid_header(
        "x-ms-copy-source", hint="Use the complete, percent-encoded address of a blob."
    )
