"""Log records: encode, decode, check. One record holds the transactions of one group commit.

    record     crc32c of the rest, 4 bytes big-endian | MessagePack array
    array      [format, epoch, sequence, previous, ticks, primary, entries]
    entry      [transaction id, [operation, ...]]
    operation  [tag, collection, ...] as the classes below

`previous` is the hash of the record before, so that a log cannot be cut, mixed or reordered
unseen. A record with a `primary` and no entries opens the epoch of that replica. Old formats
are read for ever; a newer one is refused.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from crc32c import crc32c

from partita.errors import ChecksumError, DamageError, FormatVersionError

FORMAT = 1
HASH_BYTES = 16
NO_HASH = bytes(HASH_BYTES)
"""What the first record continues."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Write one key."""

    collection: int
    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Remove one key, which exists."""

    collection: int
    key: bytes


class Clear(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Remove all keys."""

    collection: int


class Enqueue(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Write at the next position of a queue, which applying it decides."""

    collection: int
    value: bytes


class Create(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Make a collection; `description` is its encoded Description."""

    collection: int
    description: bytes


class Alter(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Give a collection another description."""

    collection: int
    description: bytes


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Remove a collection with all that is in it."""

    collection: int


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Remember the encoded result of an idempotent transaction until a time in ticks."""

    key: str
    result: bytes
    expires: int


Operation = Put | Delete | Clear | Enqueue | Create | Alter | Drop | Outcome


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One transaction as the log holds it."""

    transaction_id: str
    operations: Sequence[Operation]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One position of the log."""

    format: int
    epoch: int
    sequence: int
    previous: bytes
    ticks: int
    """Wall clock of the primary: for people and expiry, never for order."""
    primary: str
    """The replica that opens this epoch; empty for commits."""
    entries: Sequence[Entry]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, checksum first."""
    body = _encoder.encode(record)
    return crc32c(body).to_bytes(4) + body


def decode_record(raw: bytes) -> Record:
    """Return the record, or say what is wrong with the bytes."""
    if len(raw) < 5 or crc32c(memoryview(raw)[4:]) != int.from_bytes(raw[:4]):
        raise ChecksumError("ChecksumMismatch", "A record does not match its checksum.")
    try:
        record = _decoder.decode(memoryview(raw)[4:])
    except msgspec.MsgspecError as error:
        raise _unreadable(raw) from error
    if record.format != FORMAT:
        raise _newer(record.format)
    return record


def record_hash(raw: bytes) -> bytes:
    """Return what the next record must name as `previous`."""
    return hashlib.blake2b(raw, digest_size=HASH_BYTES).digest()


def _unreadable(raw: bytes) -> DamageError:
    """Tell a record of a newer Partita from damage: both passed the checksum."""
    try:
        match msgspec.msgpack.decode(memoryview(raw)[4:]):
            case [int(number), *_] if number > FORMAT:
                return _newer(number)
            case _:
                pass
    except msgspec.MsgspecError:
        pass
    return DamageError("RecordUnreadable", "A record has a right checksum and no meaning.")


def _newer(number: int) -> FormatVersionError:
    return FormatVersionError(
        "FormatVersion",
        f"The log was written in format {number}; this version reads {FORMAT}.",
        facts={"format": number},
        hint="Open it with the version of Partita that wrote it, or with a newer one.",
    )
