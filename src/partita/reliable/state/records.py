r"""Log records and their frames: encode, decode, verify the chain.

    record     crc32c of the rest, 4 bytes big-endian | MessagePack array
    array      [format, epoch, sequence, previous, ticks, primary, entries]
    entry      [transaction id, [operation, ...]]
    operation  [tag, collection, ...] as the classes below
    frame      "\xf6REC" | length 4 | sequence 8 | synced 8 | crc32c 4 | record       28 + length

A record holds the transactions of one group commit. `previous` is the hash of the previous
record, so that a removed, mixed or reordered record is detected. A record with a `primary` and
no entries opens the epoch of that replica. All older formats can be read; a newer one is
refused. A frame is a record in a file of the local log (segment.py): `synced` is the newest
sequence that was synced when the frame was written, and the checksum of the frame's head starts
from the checksum of the segment's heading.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from partita.errors import ChainBrokenError, ChecksumError, DamageError, FormatVersionError

FORMAT = 1
HASH_BYTES = 16
NO_HASH = bytes(HASH_BYTES)
"""The `previous` of the first record."""
FRAME_START = b"\xf6REC"

_HEAD = struct.Struct(">4sIQQ")
_CHECKSUM = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class Put(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Write one key."""

    collection: int
    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Remove one existing key."""

    collection: int
    key: bytes


class Clear(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Remove all keys."""

    collection: int


class Enqueue(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Write at the next position of a queue, which is assigned when the record is applied."""

    collection: int
    value: bytes


class Create(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Create a collection; `description` is its encoded Description."""

    collection: int
    description: bytes


class Alter(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Replace the description of a collection."""

    collection: int
    description: bytes


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Remove a collection and its content."""

    collection: int


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Remember the encoded result of an idempotent transaction until a time in ticks."""

    key: str
    result: bytes
    expires: int


Operation = Put | Delete | Clear | Enqueue | Create | Alter | Drop | Outcome


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One transaction in a record."""

    transaction_id: str
    operations: Sequence[Operation]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One position of the log."""

    format: int
    epoch: int
    sequence: int
    previous: bytes
    ticks: int
    """Wall clock of the primary: used for display and expiry, never for order."""
    primary: str
    """The replica that opens this epoch; empty for commits."""
    entries: Sequence[Entry]


class Tip(NamedTuple):
    """The last record of a log: the next one must continue it."""

    sequence: int
    hash: bytes
    epoch: int


class FrameHead(NamedTuple):
    """The fields of a frame before its record."""

    length: int
    sequence: int
    synced: int


class _ChainFields(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a record: all that the chain needs."""

    format: int
    epoch: int
    sequence: int
    previous: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_chain_decoder = msgspec.msgpack.Decoder(_ChainFields)


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, checksum first."""
    body = _encoder.encode(record)
    return crc32c(body).to_bytes(4) + body


def decode_record(raw: bytes) -> Record:
    """Return the record; raise DamageError if the bytes are damaged or in an unknown format."""
    if not has_valid_checksum(raw):
        raise ChecksumError("ChecksumMismatch", "A record does not match its checksum.")
    try:
        record = _decoder.decode(memoryview(raw)[4:])
    except msgspec.MsgspecError as error:
        raise _unreadable(raw) from error
    if record.format != FORMAT:
        raise _newer(record.format)
    return record


def record_hash(raw: bytes) -> bytes:
    """Return the value that the next record has as `previous`."""
    return hashlib.blake2b(raw, digest_size=HASH_BYTES).digest()


def has_valid_checksum(raw: bytes) -> bool:
    """Return whether a record matches its own checksum."""
    return len(raw) > 4 and crc32c(memoryview(raw)[4:]) == int.from_bytes(raw[:4])


def tip_after(tip: Tip, sequence: int, raw: bytes) -> Tip:
    """Return the tip after a record; raise ChainBrokenError if it does not continue `tip`.

    `raw` matches its checksum: an error here means that it was written wrong or misplaced.
    """
    try:
        fields = _chain_decoder.decode(memoryview(raw)[4:])
    except msgspec.MsgspecError:
        fields = None
    if fields is None or fields.format != FORMAT:
        decode_record(raw)  # raises the precise error
    assert fields is not None
    if fields.sequence != sequence or sequence != tip.sequence + 1:
        raise _broken(sequence, f"found record {fields.sequence}, expected {tip.sequence + 1}")
    if fields.previous != tip.hash:
        raise _broken(sequence, "its hash of the previous record does not match that record")
    if fields.epoch < tip.epoch:
        raise _broken(sequence, f"its epoch {fields.epoch} is lower than the epoch {tip.epoch}")
    return Tip(sequence, record_hash(raw), fields.epoch)


def encode_frame(seed: int, sequence: int, synced: int, raw: bytes) -> bytes:
    """Return the frame of a record in the segment whose heading has the checksum `seed`."""
    head = _HEAD.pack(FRAME_START, len(raw), sequence, synced)
    return b"".join((head, _CHECKSUM.pack(crc32c(head, seed)), raw))


def find_frame_head(chunk: bytes, at: int, seed: int) -> FrameHead | None:
    """Return the head of the frame at a place of a chunk, None if there is no valid one."""
    if len(chunk) - at < HEAD_BYTES or chunk[at : at + 4] != FRAME_START:
        return None
    (checksum,) = _CHECKSUM.unpack_from(chunk, at + _HEAD.size)
    if crc32c(chunk[at : at + _HEAD.size], seed) != checksum:
        return None
    return FrameHead(*_HEAD.unpack_from(chunk, at)[1:])


def _broken(sequence: int, reason: str) -> ChainBrokenError:
    return ChainBrokenError(
        "LogChainBroken",
        f"Record {sequence} does not continue the log: {reason}.",
        facts={"sequence": sequence},
        hint="Files of two logs were mixed, or one is missing. Restore a backup, or copy the "
        "state from another replica.",
    )


def _unreadable(raw: bytes) -> DamageError:
    """Distinguish a record of a newer format from damage: both have a valid checksum."""
    try:
        match msgspec.msgpack.decode(memoryview(raw)[4:]):
            case [int(number), *_] if number > FORMAT:
                return _newer(number)
            case _:
                pass
    except msgspec.MsgspecError:
        pass
    return DamageError(
        "RecordUnreadable", "A record has a valid checksum but its content cannot be decoded."
    )


def _newer(number: int) -> FormatVersionError:
    return FormatVersionError(
        "FormatVersion",
        f"The log was written in format {number}; this version reads {FORMAT}.",
        facts={"format": number},
        hint="Install a version of Partita at least as new as the one that wrote it: pip install "
        "--upgrade partita. Nothing was changed.",
    )
