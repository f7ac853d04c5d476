"""The stored format of blobs and containers: a CRC-32C, then MessagePack. Pure.

    facts      crc32c, 4 bytes big-endian | MessagePack array in the order of the fields

Fields may be added at the end, with a default; their order must not change. A new field raises the
format number of the blobs (rows.py): a version that does not know the field would drop it when it
writes the blob, so it refuses.
"""

from typing import TypeVar

import msgspec
from crc32c import crc32c

from partita.blobs.rules.leases import Lease, facts_at
from partita.blobs.rules.model import Access, Blob, Container, CopyFacts, Headers, Kind
from partita.blobs.rules.names import LIVE, snapshot_text
from partita.errors import ChecksumError, FormatVersionError
from partita.policies import Policy

T = TypeVar("T")

ARCHIVE = "Archive"
"""The tier whose blobs cannot be read."""


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


class StoredContainer(msgspec.Struct, frozen=True, array_like=True):
    """A container without its name."""

    changed_at: int
    metadata: dict[str, str] = {}
    access: Access | None = None
    policies: list[tuple[str, str | None, str | None, str | None]] = []
    lease: Lease | None = None


_encoder = msgspec.msgpack.Encoder()
_blob_decoder = msgspec.msgpack.Decoder(StoredBlob)
_container_decoder = msgspec.msgpack.Decoder(StoredContainer)


def encode(facts: StoredBlob | StoredContainer) -> bytes:
    raw = _encoder.encode(facts)
    return crc32c(raw).to_bytes(4) + raw


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
    return Blob(
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
    )


def container_of(name: str, stored: StoredContainer, now: int) -> Container:
    return Container(
        name=name,
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
