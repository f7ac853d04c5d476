"""Which container or blob a request names. Pure.

A path is percent-decoded once, after its first slash has parted container and blob: everything
behind it is the blob's name, further slashes included. Names are checked by `partita.blobs`.
"""

from urllib.parse import urlsplit

import msgspec

from partita.errors import InvalidRequestError
from partita.service.formats.address import invalid_uri, split_container

ROOT_CONTAINER = "$root"
"""Where a blob lies whose path has one segment only."""


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
    """Read the path behind the account, as it was sent."""
    container, blob = split_container(path)
    if is_container:
        if blob:
            raise invalid_uri("A container has one segment of the path.")
        return OneContainer(container)
    if not container:
        return BlobServiceRoot()
    if blob:
        return OneBlob(container, blob)
    if path.endswith("/"):
        raise invalid_uri("The path names no blob; a container is asked for with restype.")
    return OneBlob(ROOT_CONTAINER, container)


def parse_copy_source(source: str) -> tuple[str, str, str]:
    """Cut the address of a copy's source into host, path and query, all as sent."""
    try:
        parts = urlsplit(source)
    except ValueError:
        raise _bad_source() from None
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.fragment:
        raise _bad_source()
    return parts.netloc, parts.path, parts.query


def _bad_source() -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidHeaderValue",
        "The value for one of the HTTP headers is not in the correct format.",
        facts={"elements": [("HeaderName", "x-ms-copy-source")]},
        hint="x-ms-copy-source is the whole, percent-encoded address of a blob.",
    )
