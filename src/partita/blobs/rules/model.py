"""The values of the blob service: what the engine takes and gives. Pure.

Times are ticks of 100 ns since 1970. An etag is the time of the last change, so that it is new
with every change that the service counts as one.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from partita.keys import DOTNET_EPOCH_TICKS
from partita.policies import Policy

Kind = Literal["BlockBlob", "AppendBlob", "PageBlob"]
Access = Literal["blob", "container"]
"""What a container shows to readers without credentials."""
Which = Literal["Committed", "Uncommitted", "Latest"]
LeaseAction = Literal["acquire", "renew", "change", "release", "break"]
LeaseState = Literal["available", "leased", "expired", "breaking", "broken"]
DeleteSnapshots = Literal["include", "only"]
SequenceAction = Literal["max", "update", "increment"]
Include = Literal["snapshots", "uncommittedblobs"]
"""What a listing shows beside committed blobs; everything else about a blob is in its value."""

Content = bytes | AsyncIterable[bytes]
"""The bytes of an upload: at hand, or still arriving."""


def etag_of(ticks: int) -> str:
    """Return the etag of a version, without quotes: ticks since the year 1, as the service's.

    >>> etag_of(17_000_000_000_000_000)
    '0x8DBE55EE8E40000'
    """
    return f"0x{ticks + DOTNET_EPOCH_TICKS:X}"


class BlobName(msgspec.Struct, frozen=True, gc=False):
    """A blob, or one of its snapshots, by the texts of the request."""

    container: str
    name: str
    snapshot: str | None = None


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """What must be so for a request to be done. Etags are without quotes, or `*`."""

    if_match: tuple[str, ...] = ()
    if_none_match: tuple[str, ...] = ()
    if_modified_since: int | None = None
    if_unmodified_since: int | None = None
    if_tags: str | None = None
    if_tier_modified_since: int | None = None
    """Compared with the time of the last tier change; only deletes have these two."""
    if_tier_unmodified_since: int | None = None


ANY = Conditions()


class Terms(msgspec.Struct, frozen=True, gc=False):
    """The lease that a request proves, and the conditions that it sets."""

    lease_id: str | None = None
    conditions: Conditions = ANY


NO_TERMS = Terms()


class SequenceConditions(msgspec.Struct, frozen=True, gc=False):
    """What the sequence number of a page blob must be for its pages to be written."""

    at_most: int | None = None
    below: int | None = None
    equal: int | None = None


ANY_SEQUENCE = SequenceConditions()


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What HTTP tells about the content; kept and given back as it came."""

    content_type: str | None = None
    content_encoding: str | None = None
    content_language: str | None = None
    content_disposition: str | None = None
    cache_control: str | None = None
    content_md5: bytes | None = None


class Properties(msgspec.Struct, frozen=True):
    """What a request that writes a whole blob says beside its content."""

    headers: Headers = Headers()
    metadata: Mapping[str, str] = {}
    """Names keep their case and match without it."""
    tags: Mapping[str, str] = {}
    tier: str | None = None


PLAIN = Properties()


class Declared(msgspec.Struct, frozen=True, gc=False):
    """The checksums that the sender of some content claims."""

    md5: bytes | None = None
    crc64: bytes | None = None


UNDECLARED = Declared()


class LeaseFacts(msgspec.Struct, frozen=True, gc=False):
    """A lease as it is seen now."""

    state: LeaseState = "available"
    duration: Literal["infinite", "fixed"] | None = None
    """Only while it is leased."""

    @property
    def status(self) -> Literal["locked", "unlocked"]:
        return "locked" if self.state in ("leased", "breaking") else "unlocked"


class CopyFacts(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How a blob came here, until its content is written anew."""

    id: str
    source: str
    """The address that the request named."""
    status: Literal["success", "pending", "aborted", "failed"]
    bytes_copied: int
    bytes_total: int
    completed_at: int


class Blob(msgspec.Struct, frozen=True):
    """A blob or a snapshot, with all that is known about it but its content."""

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
    """None: never set; the service then shows an inferred one."""
    tier_changed_at: int | None = None
    rehydrates_to: str | None = None
    """The tier that an archived blob is on its way to."""
    rehydrate_priority: str | None = None
    """How soon it was asked to be there; here it makes no difference."""
    lease: LeaseFacts = LeaseFacts()
    """Snapshots have none: the wire leaves it out."""
    copy: CopyFacts | None = None
    block_count: int = 0
    """Committed blocks of an append blob."""
    sequence_number: int = 0
    is_sealed: bool = False
    is_committed: bool = True
    """False: only staged blocks are here, and nobody can read it."""

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class BlobPrefix(msgspec.Struct, frozen=True, gc=False):
    """All blobs of a listing whose names go on behind a delimiter."""

    name: str


class Container(msgspec.Struct, frozen=True):
    """A container, with its stored policies."""

    name: str
    changed_at: int
    metadata: Mapping[str, str] = {}
    access: Access | None = None
    policies: Sequence[Policy] = ()
    lease: LeaseFacts = LeaseFacts()

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class Written(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a change: the new version, and the checksums of what was sent.

    `md5` is None when it was not computed: of blocks and pages it is only on demand.
    """

    changed_at: int
    md5: bytes | None = None
    crc64: bytes | None = None
    sequence_number: int = 0

    @property
    def etag(self) -> str:
        return etag_of(self.changed_at)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The outcome of an append: where the bytes begin, and how many blocks there are now."""

    written: Written
    offset: int
    block_count: int


class Copied(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a copy."""

    written: Written
    copy: CopyFacts


class LeaseRequest(msgspec.Struct, frozen=True, gc=False):
    """What is asked of a lease. Times are seconds."""

    action: LeaseAction
    lease_id: str | None = None
    proposed_id: str | None = None
    duration: int | None = None
    break_period: int | None = None


class LeaseOutcome(msgspec.Struct, frozen=True, gc=False):
    """What became of a lease; the blob or container itself is unchanged."""

    changed_at: int
    lease_id: str | None
    seconds_left: int | None = None
    """Only of a break: how long the lease still holds."""

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
    """Pages that were written: first and last byte."""

    first: int
    last: int


class PageRanges(msgspec.Struct, frozen=True):
    """The written ranges of a page blob, in order; the next ones begin at `next_first`."""

    blob: Blob
    ranges: Sequence[PageRange]
    next_first: int | None = None


class Download(Protocol):
    """Content on its way to a reader; deleting the blob does not end it."""

    length: int

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in order, verified; ChecksumError where they are damaged."""
        ...

    async def close(self) -> None:
        """Let go of the content; call it once, also when nothing was read."""
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
    """A blob and bytes of it that belong together, whatever happens to it meanwhile."""

    blob: Blob
    content: Download
    first: int
    last: int
    """The bytes given, both inclusive; `last` is `first` - 1 when there are none."""
    total: int
    md5: bytes | None = None
    """Of the range, when it was asked for."""
    crc64: bytes | None = None


class Listing(msgspec.Struct, frozen=True):
    """Blobs and prefixes in the order of their names, and where to go on."""

    items: Sequence[Blob | BlobPrefix]
    next_marker: str | None = None


class ContainerListing(msgspec.Struct, frozen=True):
    """Containers in the order of their names, and where to go on."""

    items: Sequence[Container]
    next_marker: str | None = None
