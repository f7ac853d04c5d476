"""The stored format of blobs and containers: a CRC-32C, then MessagePack. Pure.

    facts      crc32c, 4 bytes big-endian | MessagePack array in the order of the fields

Fields may be added at the end, with a default; their order must not change. A new field raises the
format number of the blobs (rows.py): a version that does not know the field would drop it when it
writes the blob, so it refuses. The fields of format 2 are not written while they have no value:
front ends of the version before can then read the blob.
"""

from typing import TypeVar

import msgspec
from crc32c import crc32c

from partita.blobs.rules.leases import Lease, facts_at
from partita.blobs.rules.model import Access, Blob, Container, CopyFacts, Headers, Kind
from partita.blobs.rules.names import DELETED_MARK, LIVE, snapshot_text
from partita.errors import ChecksumError, FormatVersionError
from partita.policies import Policy
from partita.ticks import TICKS_PER_DAY

T = TypeVar("T")

ARCHIVE = "Archive"
"""The tier whose blobs cannot be read."""

PLAIN, TAGGED, VERSION, DELETED, DELETED_SNAPSHOT, DELETED_VERSION = range(6)
"""The state of a row: a blob or snapshot; a blob that has tags; an earlier version; a deleted blob,
snapshot or version. Indexes and listings select by it; it follows from the facts."""


class History(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a row is besides a blob or a snapshot: a version, or deleted, or both."""

    version: int | None = None
    """The time of the version; that of an earlier version is also the `snapshot` of its row."""
    deleted_at: int | None = None
    expires_at: int | None = None
    """When it is removed; None: it is not deleted."""
    was_blob: bool = False
    """Whether it was deleted as the blob itself: it has the time of the delete in its row."""


class StoredBlob(msgspec.Struct, frozen=True, array_like=True):
    """A blob without its name and content."""

    kind: Kind
    created_at: int
    changed_at: int
    length: int = 0
    headers: Headers = Headers()
    metadata: dict[str, str] = {}
    tags: dict[str, str] = {}
    tier: str | None = None
    tier_changed_at: int | None = None
    rehydrated_at: int | None = None
    """It is archived until then; None: it is not being rehydrated."""
    lease: Lease | None = None
    copy: CopyFacts | None = None
    block_count: int = 0
    sequence_number: int = 0
    is_sealed: bool = False
    is_committed: bool = True
    rehydrate_priority: str | None = None
    encryption_scope: str | None = None
    history: History | None = None


class StoredContainer(msgspec.Struct, frozen=True, array_like=True):
    """A container without its name."""

    changed_at: int
    metadata: dict[str, str] = {}
    access: Access | None = None
    policies: list[tuple[str, str | None, str | None, str | None]] = []
    lease: Lease | None = None
    encryption_scope: str | None = None
    denies_other_scopes: bool = False
    deleted_at: int | None = None
    expires_at: int | None = None
    """When it is removed; None: it is not deleted."""


_encoder = msgspec.msgpack.Encoder()
_blob_decoder = msgspec.msgpack.Decoder(StoredBlob)
_container_decoder = msgspec.msgpack.Decoder(StoredContainer)


_FRONT_BYTES = 3
"""Of an array of 16 to 65,535 elements."""
_SHORT_FRONT = bytes([0xDC, 0, len(StoredBlob.__struct_fields__) - 2])
_UNUSED = (None, False, None)
_SHORT_CONTAINER_FRONT = bytes([0x90 | len(StoredContainer.__struct_fields__) - 4])


def encode(facts: StoredBlob | StoredContainer) -> bytes:
    raw = _encoder.encode(facts)
    if isinstance(facts, StoredBlob):
        if facts.history is None and facts.encryption_scope is None:
            raw = _SHORT_FRONT + raw[_FRONT_BYTES:-2]
    elif (facts.encryption_scope, facts.denies_other_scopes, facts.deleted_at) == _UNUSED:
        raw = _SHORT_CONTAINER_FRONT + raw[1:-4]
    return crc32c(raw).to_bytes(4) + raw


def state_of(snapshot: int, facts: StoredBlob) -> int:
    """Return the state of a row."""
    history = facts.history
    if snapshot == LIVE:
        return TAGGED if facts.tags else PLAIN
    if history is None:
        return PLAIN
    is_version = history.version is not None
    if history.deleted_at is None:
        return VERSION if is_version else PLAIN
    if history.was_blob:
        return DELETED
    return DELETED_VERSION if is_version else DELETED_SNAPSHOT


def version_of(facts: StoredBlob) -> str | None:
    """Return the identifier of a version; None if it was not written as one."""
    history = facts.history
    return None if history is None or history.version is None else snapshot_text(history.version)


def expiry_of(facts: StoredBlob) -> int | None:
    """Return when a deleted blob is removed; None if it is not deleted."""
    return None if facts.history is None else facts.history.expires_at


def decode_blob(facts: bytes) -> StoredBlob:
    return _decode(facts, _blob_decoder, len(StoredBlob.__struct_fields__))


def decode_container(facts: bytes) -> StoredContainer:
    return _decode(facts, _container_decoder, len(StoredContainer.__struct_fields__))


def _decode(facts: bytes, decoder: msgspec.msgpack.Decoder[T], fields_max: int) -> T:
    raw = facts[4:]
    if len(facts) < 5 or crc32c(raw) != int.from_bytes(facts[:4]):
        raise _damaged()
    if _count_fields(raw) > fields_max:
        raise FormatVersionError(
            "FormatVersion",
            "The stored properties of a blob or container were written by a newer version.",
            hint="Open the account with the version of Partita that wrote it, or with a newer one.",
        )
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise _damaged() from error


def _count_fields(raw: bytes) -> int:
    """Return the length of a MessagePack array: in its first byte, or in the next two."""
    return raw[0] & 0x0F if raw[0] < 0xA0 else int.from_bytes(raw[1:3])


def blob_of(name: str, snapshot: int, stored: StoredBlob, now: int) -> Blob:
    """Return the blob with the current state of its lease and tier."""
    is_on_its_way = stored.rehydrated_at is not None and now < stored.rehydrated_at
    history = stored.history
    blob = Blob(
        name=name,
        snapshot=None if snapshot == LIVE else snapshot_text(snapshot),
        kind=stored.kind,
        created_at=stored.created_at,
        changed_at=stored.changed_at,
        length=stored.length,
        headers=stored.headers,
        metadata=stored.metadata,
        tags=stored.tags,
        tier=ARCHIVE if is_on_its_way else stored.tier,
        tier_changed_at=stored.tier_changed_at,
        rehydrates_to=stored.tier if is_on_its_way else None,
        rehydrate_priority=stored.rehydrate_priority if is_on_its_way else None,
        lease=facts_at(stored.lease, now),
        copy=stored.copy,
        block_count=stored.block_count,
        sequence_number=stored.sequence_number,
        is_sealed=stored.is_sealed,
        is_committed=stored.is_committed,
        encryption_scope=stored.encryption_scope,
        is_current=snapshot == LIVE,
    )
    if history is None:
        return blob
    return msgspec.structs.replace(
        blob,
        snapshot=blob.snapshot if history.version is None else None,
        version=version_of(stored),
        deleted_at=history.deleted_at,
        days_left=days_left(history.expires_at, now),
    )


def days_left(expires_at: int | None, now: int) -> int | None:
    """Return how many days something deleted is kept, rounded."""
    if expires_at is None:
        return None
    return max((expires_at - now + TICKS_PER_DAY // 2) // TICKS_PER_DAY, 0)


def container_of(name: str, stored: StoredContainer, now: int) -> Container:
    shown, _, version = name.partition(DELETED_MARK)
    return Container(
        name=shown,
        version=version or None,
        deleted_at=stored.deleted_at,
        days_left=days_left(stored.expires_at, now),
        encryption_scope=stored.encryption_scope,
        denies_other_scopes=stored.denies_other_scopes,
        changed_at=stored.changed_at,
        metadata=stored.metadata,
        access=stored.access,
        policies=[Policy(*fields) for fields in stored.policies],
        lease=facts_at(stored.lease, now),
    )


def _damaged() -> ChecksumError:
    return ChecksumError(
        "BlobDamaged",
        "The stored properties of a blob or container are damaged.",
        hint="Restore a backup.",
    )
