"""Containers and blobs: list, create, drop; browse; upload, download, preview; properties.

Contents are bytes of strangers. A download is saved by the browser and never shown; a preview is
text, or an image whose first bytes are those of a raster format.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec

from partita.console.api.sdk_errors import sdk_errors
from partita.console.calls import Answer, Call, Confirmation, NewName, sdk_route
from partita.console.errors import check_name, invalid
from partita.console.transfers.uploads import BLOCK_BYTES_MAX
from partita.errors import LimitExceededError
from partita.service.http.request import Response

if TYPE_CHECKING:
    from azure.storage.blob import BlobProperties
    from azure.storage.blob.aio import BlobClient, ContainerClient

CONTAINERS_MAX: Final = 500
"""The most containers that are listed; a prefix finds the others."""
PAGE_BLOBS: Final = 200
PAGE_BLOBS_MAX: Final = 1000
SNAPSHOTS_MAX: Final = 200
PREVIEW_TEXT_BYTES: Final = 256 * 1024
PREVIEW_IMAGE_BYTES_MAX: Final = 4 * 1024 * 1024
BLOCKS_MAX: Final = 50_000
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    snapshot: str | None = None


class Removal(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    etag: str
    snapshot: str | None = None


class Commit(msgspec.Struct, forbid_unknown_fields=True):
    """The blocks of an upload become the blob."""

    name: str
    upload: str
    blocks: int
    content_type: str = "application/octet-stream"
    replaces: bool = False
    """Whether an existing blob is replaced; otherwise it is a conflict."""


class Values(msgspec.Struct, forbid_unknown_fields=True):
    """Metadata or tags, which replace the present ones."""

    name: str
    values: dict[str, str]


class Tier(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    tier: Literal["Hot", "Cool", "Cold", "Archive"]


class LeaseChange(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    action: Literal["acquire", "break"]
    seconds: int = -1
    """Of a new lease: 15 to 60, or -1 for one without an end."""


# Containers


async def list_containers(call: Call) -> Answer:
    found: list[dict[str, Any]] = []
    has_more = False
    with sdk_errors():
        listed = call.account.blobs.list_containers(
            name_starts_with=call.query.get("prefix") or None
        )
        async for each in listed:
            if len(found) == CONTAINERS_MAX:
                has_more = True
                break
            found.append(
                {
                    "name": each.name,
                    "modified": _time(each.last_modified),
                    "public": each.public_access or "",
                    "lease": each.lease.state or "",
                }
            )
    return {"containers": found, "has_more": has_more}


async def create_container(call: Call) -> Answer:
    name = call.decode(NewName).name
    with sdk_errors():
        await call.account.blobs.create_container(name)
    return {"name": name}


async def drop_container(call: Call) -> Answer:
    call.confirmed("container", Confirmation)
    with sdk_errors():
        await _container(call).delete_container()
    return {}


async def browse(call: Call) -> Answer:
    """Return one page below a prefix: the next parts of the names, and the blobs."""
    from azure.storage.blob import BlobProperties  # noqa: PLC0415 - an extra

    prefix = call.query.get("prefix", "")
    top = call.whole("top", PAGE_BLOBS, PAGE_BLOBS_MAX)
    with sdk_errors():
        pages: Any = (
            _container(call)
            .walk_blobs(name_starts_with=prefix or None, delimiter="/", results_per_page=top)
            .by_page(call.query.get("marker"))
        )
        async for page in pages:
            entries = [each async for each in page]
            break
        else:
            entries = []
    return {
        "prefixes": [each.name for each in entries if not isinstance(each, BlobProperties)],
        "blobs": [_listed(each) for each in entries if isinstance(each, BlobProperties)],
        "next": pages.continuation_token or None,
    }


# One blob


async def show_blob(call: Call) -> Answer:
    """Return everything about a blob but its contents."""
    name, snapshot = call.query.get("name", ""), call.query.get("snapshot")
    blob = _blob(call, name, snapshot)
    with sdk_errors():
        found = await blob.get_blob_properties()
        tags = await blob.get_blob_tags() if found.tag_count else {}
        snapshots = [] if snapshot else await _snapshots(call, name)
    settings = found.content_settings
    return {
        **_listed(found),
        "created": _time(found.creation_time),
        "md5": base64.b64encode(settings.content_md5).decode() if settings.content_md5 else None,
        "encoding": settings.content_encoding,
        "cache_control": settings.cache_control,
        "metadata": found.metadata or {},
        "tags": tags,
        "lease": {"state": found.lease.state, "duration": found.lease.duration},
        "snapshots": snapshots,
    }


async def _snapshots(call: Call, name: str) -> list[str]:
    found: list[str] = []
    async for each in _container(call).list_blobs(name_starts_with=name, include=["snapshots"]):
        if each.name != name or len(found) == SNAPSHOTS_MAX:
            break  # names are in order: the blob itself is after its snapshots
        if each.snapshot:
            found.append(each.snapshot)
    return found


async def delete_blob(call: Call) -> Answer:
    """Delete a blob with its snapshots, or one snapshot, if it is still the one that was shown."""
    removal = call.decode(Removal)
    with sdk_errors():
        blob = _blob(call, removal.name, removal.snapshot)
        if removal.snapshot:
            await blob.delete_blob()
        else:
            await blob.delete_blob(delete_snapshots="include", **_unchanged(removal.etag))
    return {}


async def take_snapshot(call: Call) -> Answer:
    named = call.decode(Named)
    with sdk_errors():
        made = await _blob(call, named.name).create_snapshot()
    return {"snapshot": made["snapshot"]}


async def set_metadata(call: Call) -> Answer:
    given = call.decode(Values)
    with sdk_errors():
        await _blob(call, given.name).set_blob_metadata(given.values)
    return {}


async def set_tags(call: Call) -> Answer:
    given = call.decode(Values)
    with sdk_errors():
        await _blob(call, given.name).set_blob_tags(given.values)
    return {}


async def set_tier(call: Call) -> Answer:
    given = call.decode(Tier)
    with sdk_errors():
        await _blob(call, given.name).set_standard_blob_tier(given.tier)
    return {}


async def change_lease(call: Call) -> Answer:
    """Acquire a lease, or break the present one."""
    from azure.storage.blob.aio import BlobLeaseClient  # noqa: PLC0415 - an extra

    given = call.decode(LeaseChange)
    with sdk_errors():
        blob = _blob(call, given.name)
        if given.action == "acquire":
            lease = await blob.acquire_lease(given.seconds)
            return {"lease": lease.id}
        await BlobLeaseClient(blob).break_lease(lease_break_period=0)
    return {}


# Contents


async def put_block(call: Call) -> Answer:
    """Store one block of an upload; it becomes part of a blob by `commit_blocks` only."""
    query = call.query
    number = call.whole("number", 1, BLOCKS_MAX) - 1
    block = await _read_block(call)
    identity = query.get("upload", "")
    await asyncio.to_thread(
        call.services.uploads.add, identity, number, block, query.get("sha256", "")
    )
    with sdk_errors():
        await _blob(call, query.get("name", "")).stage_block(
            _block_id(identity, number), block, validate_content=True
        )
    return {}


async def _read_block(call: Call) -> bytes:
    request = call.request
    if request.upload is None:
        return request.body
    pieces, length = [], 0
    async for piece in request.upload:
        length += len(piece)
        if length > BLOCK_BYTES_MAX:
            raise LimitExceededError("RequestBodyTooLarge", "The block is longer than the limit.")
        pieces.append(piece)
    return b"".join(pieces)


async def commit_blocks(call: Call) -> Answer:
    """Make the blocks of an upload a blob."""
    from azure.core import MatchConditions  # noqa: PLC0415 - an extra
    from azure.storage.blob import BlobBlock, ContentSettings  # noqa: PLC0415 - an extra

    given = call.decode(Commit)
    if not 0 <= given.blocks <= BLOCKS_MAX:
        message = f"blocks must be from 0 to {BLOCKS_MAX}."
        raise invalid(message)
    md5 = call.services.uploads.finish(given.upload, given.blocks)
    blocks = [BlobBlock(_block_id(given.upload, number)) for number in range(given.blocks)]
    condition: dict[str, Any] = (
        {} if given.replaces else {"match_condition": MatchConditions.IfMissing}
    )
    with sdk_errors():
        stored = await _blob(call, given.name).commit_block_list(
            blocks,
            content_settings=ContentSettings(
                content_type=given.content_type, content_md5=bytearray(md5) if md5 else None
            ),
            **({} if given.replaces else condition),
        )
    return {"etag": stored["etag"], "md5": base64.b64encode(md5).decode() if md5 else None}


async def start_download(call: Call) -> Answer:
    """Return a ticket for the bytes of a blob."""
    named = call.decode(Named)
    blob = _blob(call, named.name, named.snapshot)
    with sdk_errors():
        await blob.get_blob_properties()

    async def open_download() -> Response:
        with sdk_errors():
            # As stored: the length of an expanded stream is not known.
            stream = await blob.download_blob(max_concurrency=1, decompress=False)
        shown = quote(named.name.rpartition("/")[2] or "blob", safe="")
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("Content-Disposition", f"attachment; filename*=UTF-8''{shown}"),
        ]
        return Response(200, headers, download=_Download(stream))

    return {"ticket": call.services.tickets.issue(open_download)}


class _Download:
    """A blob as it arrives from the service."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def length(self) -> int:
        return int(self._stream.size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream.chunks():
            yield piece

    async def close(self) -> None:
        """Nothing is held: the client closes its connections itself."""


async def preview(call: Call) -> Answer:
    """Return the beginning of a text, or a small raster image; nothing else is shown."""
    blob = _blob(call, call.query.get("name", ""), call.query.get("snapshot"))
    with sdk_errors():
        found = await blob.get_blob_properties()
        if not found.size:
            return {"kind": "text", "text": "", "is_cut": False}
        first = await _read_range(blob, min(found.size, PREVIEW_TEXT_BYTES))
        kind = _image_kind(first)
        if kind is not None:
            if found.size > PREVIEW_IMAGE_BYTES_MAX:
                return {"kind": "none", "why": "The image is too large for a preview."}
            whole = first if len(first) == found.size else await _read_range(blob, found.size)
            return {"kind": "image", "type": kind, "data": base64.b64encode(whole).decode()}
    is_cut = found.size > len(first)
    text = _text_of(first, is_cut=is_cut)
    if text is None:
        return {"kind": "none", "why": "The contents are not text, and no image that is shown."}
    return {"kind": "text", "text": text, "is_cut": is_cut}


async def _read_range(blob: "BlobClient", length: int) -> bytes:
    stream = await blob.download_blob(offset=0, length=length, max_concurrency=1, decompress=False)
    read: bytes = await stream.readall()
    return read


def _image_kind(first: bytes) -> str | None:
    if first[:4] == b"RIFF" and first[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if first.startswith(start)), None)


def _text_of(first: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text; a cut may have split the last character."""
    for dropped in range(4 if is_cut else 1):
        try:
            text = first[: len(first) - dropped].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _block_id(upload: str, number: int) -> str:
    """Return an identifier that two uploads of the same blob do not share."""
    if not (upload.isascii() and upload.isalnum() and len(upload) == 16):
        raise invalid("The upload has no valid identifier.")
    return f"{upload}{number:06d}"


def _container(call: Call) -> "ContainerClient":
    return call.account.blobs.get_container_client(_container_name(call))


def _container_name(call: Call) -> str:
    return check_name("container", call.arguments["container"])


def _blob(call: Call, name: str, snapshot: str | None = None) -> "BlobClient":
    if not name:
        raise invalid("The name of the blob is missing.")
    check_name("blob", name, has_slashes=True)
    return call.account.blobs.get_blob_client(_container_name(call), name, snapshot)


def _unchanged(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions  # noqa: PLC0415 - an extra

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _listed(blob: "BlobProperties") -> dict[str, Any]:
    return {
        "name": blob.name,
        "size": blob.size,
        "type": blob.blob_type and str(getattr(blob.blob_type, "value", blob.blob_type)),
        "modified": _time(blob.last_modified),
        "etag": blob.etag,
        "tier": blob.blob_tier and str(getattr(blob.blob_tier, "value", blob.blob_tier)),
        "content_type": blob.content_settings.content_type,
        "is_leased": blob.lease.state == "leased",
    }


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat()


_CONTAINER: Final = "/api/v1/a/{account}/containers/{container}"
ROUTES = (
    sdk_route("GET", "/api/v1/a/{account}/containers", list_containers),
    sdk_route("POST", "/api/v1/a/{account}/containers", create_container, writes=True),
    sdk_route("POST", f"{_CONTAINER}/drop", drop_container, writes=True),
    sdk_route("GET", f"{_CONTAINER}/blobs", browse),
    sdk_route("GET", f"{_CONTAINER}/blob", show_blob),
    sdk_route("GET", f"{_CONTAINER}/preview", preview),
    sdk_route("POST", f"{_CONTAINER}/download", start_download),
    sdk_route("POST", f"{_CONTAINER}/block", put_block, writes=True, streams=True),
    sdk_route("POST", f"{_CONTAINER}/commit", commit_blocks, writes=True),
    sdk_route("POST", f"{_CONTAINER}/delete", delete_blob, writes=True),
    sdk_route("POST", f"{_CONTAINER}/snapshot", take_snapshot, writes=True),
    sdk_route("POST", f"{_CONTAINER}/metadata", set_metadata, writes=True),
    sdk_route("POST", f"{_CONTAINER}/tags", set_tags, writes=True),
    sdk_route("POST", f"{_CONTAINER}/tier", set_tier, writes=True),
    sdk_route("POST", f"{_CONTAINER}/lease", change_lease, writes=True),
)
