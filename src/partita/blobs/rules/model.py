"""The values of the blob service: arguments and results of the engine. Pure.

Times are ticks of 100 ns since 1970. An etag is the time of the last change.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from partita.keys import DOTNET_EPOCH_TICKS
from partita.policies import Policy

Kind = Literal["BlockBlob", "AppendBlob", "PageBlob"]
Access = Literal["blob", "container"]
"""The public access of a container, for requests without credentials."""
Which = Literal["Committed", "Uncommitted", "Latest"]
LeaseAction = Literal["acquire", "renew", "change", "release", "break"]
LeaseState = Literal["available", "leased", "expired", "breaking", "broken"]
DeleteSnapshots = Literal["include", "only"]
SequenceAction = Literal["max", "update", "increment"]
Include = Literal["snapshots", "uncommittedblobs", "versions", "deleted", "deletedwithversions"]
"""Items of a listing in addition to committed blobs."""

Content = bytes | AsyncIterable[bytes]
"""The bytes of an upload: in memory, or still arriving."""


def etag_of(ticks: int) -> str:
    """Return the etag of a version, without quotes: ticks since the year 1, in hexadecimal.

    >>> etag_of(17_000_000_000_000_000)
    '0x8DBE55EE8E40000'
    """
    return f"0x{ticks + DOTNET_EPOCH_TICKS:X}"


class BlobName(msgspec.Struct, frozen=True, gc=False):
    """The name of a blob, of a blob snapshot or of a version, as in the request."""

    container: str
    name: str
    snapshot: str | None = None
    version: str | None = None


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """The conditions of a request. Etags are without quotes, or `*`."""

    if_match: tuple[str, ...] = ()
    if_none_match: tuple[str, ...] = ()
    if_modified_since: int | None = None
    if_unmodified_since: int | None = None
    if_tags: str | None = None
    if_tier_modified_since: int | None = None
    """Compared with the time of the last tier change; only for deletes."""
    if_tier_unmodified_since: int | None = None


ANY = Conditions()


class Terms(msgspec.Struct, frozen=True, gc=False):
    """The lease that a request proves, and the conditions that it sets."""

    lease_id: str | None = None
    conditions: Conditions = ANY


NO_TERMS = Terms()


class SequenceConditions(msgspec.Struct, frozen=True, gc=False):
    """Conditions on the sequence number of a page blob."""

    at_most: int | None = None
    below: int | None = None
    equal: int | None = None


ANY_SEQUENCE = SequenceConditions()


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The HTTP headers of the content; stored and returned unchanged."""

    content_type: str | None = None
    content_encoding: str | None = None
    content_language: str | None = None
    content_disposition: str | None = None
    cache_control: str | None = None
    content_md5: bytes | None = None


class Properties(msgspec.Struct, frozen=True):
    """Headers, metadata, tags and tier of a request that writes a whole blob."""

    headers: Headers = Headers()
    metadata: Mapping[str, str] = {}
    """Names keep their case and match without it."""
    tags: Mapping[str, str] = {}
    tier: str | None = None
    encryption_scope: str | None = None


PLAIN = Properties()


class Retention(msgspec.Struct, frozen=True, gc=False):
    """What an account keeps of the blobs and containers that are replaced or deleted.

    >>> Retention(blob_days=7).keeps_replaced
    True
    """

    keeps_versions: bool = False
    """Each write of a whole blob and each delete keep the previous version."""
    blob_days: int | None = None
    """How long deleted blobs can be restored; None: they are not kept."""
    container_days: int | None = None
    allows_permanent_delete: bool = False
    """Whether what is kept can be deleted before its time."""

    @property
    def keeps_replaced(self) -> bool:
        return self.keeps_versions or self.blob_days is not None


NO_RETENTION = Retention()


class Declared(msgspec.Struct, frozen=True, gc=False):
    """The checksums that the sender of content declares."""

    md5: bytes | None = None
    crc64: bytes | None = None


UNDECLARED = Declared()


class LeaseFacts(msgspec.Struct, frozen=True, gc=False):
    """The current state of a lease."""

    state: LeaseState = "available"
    duration: Literal["infinite", "fixed"] | None = None
    """Only while it is leased."""

    @property
    def status(self) -> Literal["locked", "unlocked"]:
        return "locked" if self.state in ("leased", "breaking") else "unlocked"


class CopyFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The copy that wrote a blob, until its content is written again."""

    id: str
    source: str
    """The address in the request."""
    status: Literal["success", "pending", "aborted", "failed"]
    bytes_copied: int
    bytes_total: int
    completed_at: int


class Blob(msgspec.Struct, frozen=True):
    """A blob or a blob snapshot, without its content."""

    name: str
    snapshot: str | None
    kind: Kind
    created_at: int
    changed_at: int
    length: int
    headers: Headers = Headers()
    metadata: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}
    tier: str | None = None
    """None: never set; the answer then shows an inferred one."""
    tier_changed_at: int | None = None
    rehydrates_to: str | None = None
    """The target tier of a blob that is being rehydrated."""
    rehydrate_priority: str | None = None
    """The requested priority; it has no effect here."""
    lease: LeaseFacts = LeaseFacts()
    """Blob snapshots have none: the answer omits it."""
    copy: CopyFacts | None = None
    block_count: int = 0
    """Committed blocks of an append blob."""
    sequence_number: int = 0
    is_sealed: bool = False
    is_committed: bool = True
    """False: it has only staged blocks, and cannot be read."""
    version: str | None = None
    """The identifier of the version; None: it was written while versions were not kept."""
    is_current: bool = True
    """False: a snapshot or an earlier version."""
    deleted_at: int | None = None
    """None: it is not deleted."""
    days_left: int | None = None
    """How long it can be restored, if it is deleted."""
    has_only_versions: bool = False
    """A deleted blob of which a listing shows that it has versions."""
    encryption_scope: str | None = None

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class BlobPrefix(msgspec.Struct, frozen=True, gc=False):
    """All blobs of a listing with the same prefix up to a delimiter."""

    name: str


class Container(msgspec.Struct, frozen=True):
    """A container, with its stored policies."""

    name: str
    changed_at: int
    metadata: Mapping[str, str] = {}
    access: Access | None = None
    policies: Sequence[Policy] = ()
    lease: LeaseFacts = LeaseFacts()
    version: str | None = None
    """Of a deleted container: it identifies the container to restore."""
    deleted_at: int | None = None
    days_left: int | None = None
    encryption_scope: str | None = None
    """The default scope of its blobs."""
    denies_other_scopes: bool = False

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class Written(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a change: the new version, and the checksums of the received content.

    `md5` is None if it was not computed: for blocks and pages only on demand.
    """

    changed_at: int
    md5: bytes | None = None
    crc64: bytes | None = None
    sequence_number: int = 0
    version: str | None = None
    encryption_scope: str | None = None

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an append: the offset of the bytes, and the number of blocks."""

    written: Written
    offset: int
    block_count: int


class Copied(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a copy."""

    written: Written
    copy: CopyFacts


class LeaseRequest(msgspec.Struct, frozen=True, gc=False):
    """A lease action. Times are seconds."""

    action: LeaseAction
    lease_id: str | None = None
    proposed_id: str | None = None
    duration: int | None = None
    break_period: int | None = None


class LeaseOutcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a lease action; the blob or container itself is unchanged."""

    changed_at: int
    lease_id: str | None
    seconds_left: int | None = None
    """Only of a break: how long the lease stays valid."""

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class Block(msgspec.Struct, frozen=True, gc=False):
    """A block of a list; the id is the base64 text of the request."""

    id: str
    size: int


class BlockChoice(msgspec.Struct, frozen=True, gc=False):
    """One entry of a block list to commit."""

    which: Which
    id: str


class BlockList(msgspec.Struct, frozen=True):
    """The blocks of a blob: committed ones in order, staged ones by id."""

    blob: Blob
    committed: Sequence[Block]
    uncommitted: Sequence[Block]


class PageRange(msgspec.Struct, frozen=True, gc=False):
    """Pages that were written, or cleared since a snapshot: first and last byte."""

    first: int
    last: int
    is_cleared: bool = False


class PageRanges(msgspec.Struct, frozen=True):
    """The written ranges of a page blob, in order; the next ones begin at `next_first`."""

    blob: Blob
    ranges: Sequence[PageRange]
    next_first: int | None = None


class Download(Protocol):
    """Content that is read in pieces; deleting the blob does not affect it."""

    length: int

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in order, verified; raise ChecksumError if they are damaged."""
        ...

    async def close(self) -> None:
        """Release the content; call it once, also if nothing was read."""
        ...


class BytesDownload:
    """A download whose content is in memory."""

    def __init__(self, content: bytes) -> None:
        self.length = len(content)
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.content:
            yield self.content

    async def close(self) -> None: ...


class Opened(msgspec.Struct, frozen=True):
    """A blob and its bytes, of the same version."""

    blob: Blob
    content: Download
    first: int
    last: int
    """The range of the bytes, inclusive; `last` is `first` - 1 if it is empty."""
    total: int
    md5: bytes | None = None
    """Of the range, if it was requested."""
    crc64: bytes | None = None


class Listing(msgspec.Struct, frozen=True):
    """Blobs and prefixes in the order of their names, and the next marker."""

    items: Sequence[Blob | BlobPrefix]
    next_marker: str | None = None


class Found(msgspec.Struct, frozen=True):
    """A blob that was found by its tags, and the tags that the search names."""

    container: str
    name: str
    tags: Mapping[str, str]
    version: str | None = None


class FoundBlobs(msgspec.Struct, frozen=True):
    """Blobs that were found by their tags, and the next marker.

    A page may have fewer items than requested, or none, and yet a marker.
    """

    items: Sequence[Found]
    next_marker: str | None = None


class ContainerListing(msgspec.Struct, frozen=True):
    """Containers in the order of their names, and the next marker."""

    items: Sequence[Container]
    next_marker: str | None = None
