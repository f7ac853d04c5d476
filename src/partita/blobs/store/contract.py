"""The contract of a blob store: containers, blobs, their content; durable when a call returns.

Every store runs the same suite, tests/conformance/blob_store.py. All calls that read or write
are coroutines: a networked store suspends, the embedded one does not on point reads. A store
keeps the clock of its writes: the stamps of a blob or container rise with every change and never
repeat, also after a restart. The number of a content is never used again. Names, leases and
conditions are checked by the engine.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from partita.blobs.rules.listing import FoundPlace, Place
from partita.blobs.rules.model import Blob, BlobPrefix, Block, Content, Declared, Download, Include
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import StoredBlob, StoredContainer

EMPTY = 0
"""The content of blobs without bytes."""

T = TypeVar("T")


class ContainerRow(msgspec.Struct, frozen=True):
    """A container as it is stored. `id` is never used again after the container is dropped."""

    id: int
    name: str
    facts: StoredContainer


class BlobRow(msgspec.Struct, frozen=True):
    """A blob or a blob snapshot as it is stored. `content` numbers its bytes."""

    container: int
    name: str
    snapshot: int
    content: int
    facts: StoredBlob


class BlockRow(NamedTuple):
    """A staged or a committed block; `start` and `extent` are the store's own."""

    id: str
    size: int
    start: int
    extent: int


class PieceRow(NamedTuple):
    """Some bytes of a content by their place in it; `start` and `extent` are the store's own."""

    place: int
    size: int
    start: int
    extent: int


class TaggedRow(NamedTuple):
    """A blob with tags, of a container that is not deleted."""

    container: str
    place: tuple[int, str]
    """The number of the container, and the name of the blob."""
    tags: Mapping[str, str]
    version: str | None


class Scan(msgspec.Struct, frozen=True):
    """A listing: at most `limit` items of a container from `start` on."""

    container: int
    prefix: str
    delimiter: str
    start: Place
    limit: int
    include: AbstractSet[Include]
    now: int


Choose = Callable[[int | None, BlobRow | None], tuple[int, int]]
"""Checks the container id and the blob that were found; returns the byte range to read."""


class Received(Protocol):
    """Content that has arrived complete."""

    size: int
    sums: Declared


class Receipt(Protocol):
    """An upload that was received."""

    @property
    def received(self) -> Received: ...

    async def settle(self) -> None:
        """Make the content durable; from then on a change can use it."""
        ...


class LongChangeError(Exception):
    """A change touches more rows than one turn of the loop allows: see `BlobStore.run`."""


class BlobReads(Protocol):
    """Short reads: of the committed state, or of a transaction."""

    async def find_container(self, name: str) -> ContainerRow | None: ...

    async def find_blob(
        self, container: str, name: str, snapshot: int = LIVE
    ) -> tuple[int | None, BlobRow | None]:
        """Return the container's id and the blob's row, each None if it does not exist."""
        ...


class BlobChange(BlobReads, Protocol):
    """A transaction on the blobs of an account."""

    def stamp(self) -> int:
        """Return a new stamp: it numbers versions and blob snapshots."""
        ...

    def touch(self, count: int) -> None:
        """Declare that the change reads or writes this many rows: see `BlobStore.run`."""
        ...

    async def committed_blocks(self, content: int) -> list[BlockRow]: ...

    async def staged_blocks(self, container: int, name: str) -> list[BlockRow]: ...

    async def put_container(self, name: str, facts: StoredContainer) -> None: ...

    async def drop_container(self, row: ContainerRow) -> None:
        """Drop a container with its blobs; their space is reclaimed afterwards."""
        ...

    async def rename_container(self, row: ContainerRow, name: str, facts: StoredContainer) -> None:
        """Give a container another name, once no other transaction changes its blobs."""
        ...

    async def put_blob(self, row: BlobRow, before: BlobRow | None = None) -> None:
        """Write a row; `before` is the row that it replaces."""
        ...

    async def remove_blob(self, row: BlobRow) -> None: ...

    async def snapshots(self, container: int, name: str) -> list[BlobRow]:
        """Return the snapshots of a blob, oldest first: no versions, and no deleted ones."""
        ...

    async def deleted_blobs(self, container: int, name: str) -> list[BlobRow]:
        """Return what is deleted of a blob, in the order of the rows."""
        ...

    async def new_content(self) -> int:
        """Return the number of a new content without bytes that will be written in place."""
        ...

    async def add_content(self, received: Received) -> int: ...

    async def write_content(self, content: int, place: int, received: Received) -> None:
        """Write received bytes at a place of a content, over what is there."""
        ...

    async def cut(self, content: int, first: int, end: int) -> None:
        """Remove a range of bytes from a content: it reads as zeros afterwards."""
        ...

    async def fork(self, row: BlobRow) -> int:
        """Return a new content with the same bytes, to be changed independently."""
        ...

    async def add_blocks(self, blocks: Iterable[BlockRow]) -> tuple[int, int]:
        """Make a content of blocks, in order; return it and its length."""
        ...

    async def some_block_id(self, row: BlobRow) -> str | None:
        """Return an id of any block of the blob, staged or committed."""
        ...

    async def has_room_for_block(self, row: BlobRow) -> bool:
        """Return whether one more block may be staged."""
        ...

    async def put_block(self, row: BlobRow, block_id: str, received: Received) -> None:
        """Stage a block; replace a staged block with the same id."""
        ...

    async def discard_blocks(self, container: int, name: str) -> None:
        """Remove the staged blocks of a blob."""
        ...


class BlobStore(Protocol):
    """Where containers, blobs and their content are kept."""

    def now(self) -> int:
        """Return the time by which leases are judged; it does not go back."""
        ...

    def new_id(self) -> str: ...

    def reads(self) -> BlobReads:
        """Return the committed state."""
        ...

    async def list_containers(
        self, start: str, end: str | None, limit: int, *, with_deleted: bool = False
    ) -> Sequence[ContainerRow]:
        """List containers by name from `start` (inclusive) to `end` (exclusive)."""
        ...

    async def list_tagged(
        self, container: int | None, start: FoundPlace, limit: int
    ) -> list[TaggedRow]:
        """List the blobs that have tags, of one container or of all, from a place on."""
        ...

    async def list_blobs(self, scan: Scan) -> tuple[list[Blob | BlobPrefix], Place | None]:
        """Return the items of a listing, and where the next page starts."""
        ...

    async def read_pages(
        self,
        container: str,
        name: str,
        snapshot: int,
        choose: Choose,
        use: Callable[[BlobRow, list[PieceRow]], T],
    ) -> T:
        """Call `use` with a page blob's row and its pieces in the chosen range, from one state.

        There may be many pieces: `use` runs where they are read, which may be a thread.
        """
        ...

    async def read_blocks(
        self, container: str, name: str, snapshot: int, check: Callable[..., object]
    ) -> tuple[BlobRow, list[Block], list[Block]]:
        """Return a blob's row, its committed and its staged blocks, from one state.

        `check` gets the container id and the row that were found, as a `Choose` does.
        """
        ...

    async def open_blob(
        self, container: str, name: str, snapshot: int, choose: Choose
    ) -> tuple[BlobRow, Download]:
        """Open the chosen range of a blob; row and bytes are of the same version."""
        ...

    def change(self, *, frees_space: bool = False) -> AbstractAsyncContextManager[BlobChange]:
        """Open a transaction; leaving the block commits and returns when it is durable.

        The block awaits nothing but the transaction's own calls: an embedded store shares one
        transaction among all blocks. `frees_space` marks a block that only deletes: it may use
        the reserve of a full disk.
        """
        ...

    async def run(
        self, work: Callable[[BlobChange], Coroutine[Any, Any, T]], *, frees_space: bool = False
    ) -> T:
        """Run a change that may be of many rows, without holding the event loop.

        `work` is as the block of `change`. It may run twice, the second time in a thread: it
        must not change anything but the transaction.
        """
        ...

    def receive(
        self, content: Content, *, bytes_max: int, wants_md5: bool
    ) -> AbstractAsyncContextManager[Receipt]:
        """Receive an upload; content that no change in the block used is discarded."""
        ...

    async def quarantine(self, digest: bytes) -> bool:
        """Move a damaged content file aside; return False if an upload has replaced it."""
        ...

    async def sums_of(self, content: bytes, *, wants_md5: bool) -> Declared:
        """Compute checksums without blocking the event loop."""
        ...

    async def close(self) -> None:
        """Finish the work in the background. The database belongs to the account."""
        ...
