r"""The bytes of the local log: segments of frames, and what can be told from damaged ones.

    segment   heading | frame | frame | …
    heading   "PARTLOG\n" | format 4 | first 8 | epoch 8 | hash 16 | crc32c 4        48 bytes
    frame     "\xf6REC" | length 4 | sequence 8 | synced 8 | crc32c 4 | record       28 + length
    mark      sequence 8 | hash 16 | crc32c 4                                        28 bytes

Numbers are big-endian. `first` is the sequence of the first record, `hash` and `epoch` those of
the record before it: a log whose beginning was truncated is verified all the same. `synced` is
the newest sequence that had survived a sync when the frame was written: a witness against damage
before it. The checksum of a frame's head starts from the heading's, so that a frame copied into
a value of another log is none here; the record (records.py) begins with a checksum of its own.
A mark says that the log was synced up to a record; marks lie in a file of their own.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from partita.errors import ChainBrokenError, ChecksumError, FormatVersionError
from partita.reliable.state.records import FORMAT as RECORD_FORMAT
from partita.reliable.state.records import decode_record, record_hash

FORMAT = 1
MAGIC = b"PARTLOG\n"
FRAME_START = b"\xf6REC"
CHUNK_BYTES = 1024 * 1024
"""Read at once; a frame that is larger is read whole."""

_HEADING = struct.Struct(">8sIQQ16s")
_HEAD = struct.Struct(">4sIQQ")
_MARK = struct.Struct(">Q16s")
_CHECKSUM = struct.Struct(">I")
HEADING_BYTES = _HEADING.size + 4
HEAD_BYTES = _HEAD.size + 4
MARK_BYTES = _MARK.size + 4

Read = Callable[[int, int], bytes]
"""Return so many bytes from a place of the segment; fewer at its end."""


class Tip(NamedTuple):
    """The record that the next one must continue."""

    sequence: int
    hash: bytes
    epoch: int


class Heading(NamedTuple):
    """How a segment begins; `seed` is its checksum, from which those of its frames start."""

    before: Tip
    seed: int


class Frame(NamedTuple):
    """One whole frame and the place of the next."""

    sequence: int
    synced: int
    raw: bytes
    end: int


class _Opening(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a record: all that the chain needs."""

    format: int
    epoch: int
    sequence: int
    previous: bytes


_opening_decoder = msgspec.msgpack.Decoder(_Opening)


def encode_heading(before: Tip) -> bytes:
    """Return the heading of the segment that begins after a record."""
    body = _HEADING.pack(MAGIC, FORMAT, before.sequence + 1, before.epoch, before.hash)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_heading(name: str, raw: bytes) -> Heading:
    """Return the heading, or say why the file is not a segment that can be read."""
    if raw[: len(MAGIC)] != MAGIC:
        raise FormatVersionError(
            "FormatVersion",
            f"{name} is not a segment of a log of Partita, or its first bytes are damaged.",
            facts={"file": name},
            hint="Choose another folder, or restore a backup.",
        )
    if len(raw) < HEADING_BYTES:
        raise damaged(name, 0, None)
    _, number, first, epoch, before = _HEADING.unpack_from(raw)
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADING.size)
    if crc32c(memoryview(raw)[: _HEADING.size]) != checksum:
        raise damaged(name, 0, None)
    if number != FORMAT:
        raise FormatVersionError(
            "FormatVersion",
            f"{name} was written in format {number}; this version reads {FORMAT}.",
            facts={"file": name, "format": number},
            hint="Open it with the version of Partita that wrote it, or with a newer one.",
        )
    return Heading(Tip(first - 1, before, epoch), checksum)


def encode_frame(seed: int, sequence: int, synced: int, raw: bytes) -> bytes:
    head = _HEAD.pack(FRAME_START, len(raw), sequence, synced)
    return b"".join((head, _CHECKSUM.pack(crc32c(head, seed)), raw))


def read_frames(read: Read, seed: int, start: int, end: int) -> Iterator[Frame]:
    """Yield whole frames until one is not; the last frame's `end` is where reading stopped."""
    chunk, at, place = b"", 0, start
    while place + HEAD_BYTES <= end:
        if len(chunk) - at < HEAD_BYTES:
            chunk, at = read(place, min(CHUNK_BYTES, end - place)), 0
        head = _find_head(chunk, at, seed)
        if head is None:
            return
        length, sequence, synced = head
        frame_bytes = HEAD_BYTES + length
        if place + frame_bytes > end:
            return
        if len(chunk) - at < frame_bytes:
            chunk, at = read(place, min(max(CHUNK_BYTES, frame_bytes), end - place)), 0
        raw = chunk[at + HEAD_BYTES : at + frame_bytes]
        if not is_whole(raw):
            return
        at += frame_bytes
        place += frame_bytes
        yield Frame(sequence, synced, raw, place)


def synced_after(read: Read, seed: int, start: int, end: int) -> int:
    """Return the newest sequence that any frame after a damaged place is witness for.

    A value may hold a copy of older frames of its own segment, never of later ones: none of
    those is witness for the place where it lies.
    """
    newest, place = 0, start
    while place + HEAD_BYTES <= end:
        chunk = read(place, min(CHUNK_BYTES, end - place))
        at = chunk.find(FRAME_START)
        while at >= 0:
            head = _find_head(chunk, at, seed)
            newest = max(newest, head[2] if head else 0)
            at = chunk.find(FRAME_START, at + 1)
        place += max(len(chunk) - HEAD_BYTES + 1, 1)
    return newest


def is_whole(raw: bytes) -> bool:
    """Whether a record matches its own checksum."""
    return len(raw) > 4 and crc32c(memoryview(raw)[4:]) == int.from_bytes(raw[:4])


def tip_after(tip: Tip, sequence: int, raw: bytes) -> Tip:
    """Return the new tip, or say how the record fails to continue the old one.

    `raw` matches its checksum: what is wrong here was written wrong, or put in another place.
    """
    try:
        opening = _opening_decoder.decode(memoryview(raw)[4:])
    except msgspec.MsgspecError:
        opening = None
    if opening is None or opening.format != RECORD_FORMAT:
        decode_record(raw)  # which says what is wrong, and for whom
    assert opening is not None
    if opening.sequence != sequence or sequence != tip.sequence + 1:
        raise _broken(sequence, f"{opening.sequence} stands where {tip.sequence + 1} belongs")
    if opening.previous != tip.hash:
        raise _broken(sequence, "it continues another record than the one before it")
    if opening.epoch < tip.epoch:
        raise _broken(sequence, f"epoch {opening.epoch} comes after epoch {tip.epoch}")
    return Tip(sequence, record_hash(raw), opening.epoch)


def encode_mark(tip: Tip) -> bytes:
    body = _MARK.pack(tip.sequence, tip.hash)
    return body + _CHECKSUM.pack(crc32c(body))


def newest_mark(raw: bytes) -> tuple[int, bytes] | None:
    """Return the mark that reaches furthest; a torn or damaged one says nothing."""
    marks: list[tuple[int, bytes]] = []
    for at in range(0, len(raw) - MARK_BYTES + 1, MARK_BYTES):
        body = raw[at : at + _MARK.size]
        if crc32c(body) == _CHECKSUM.unpack_from(raw, at + _MARK.size)[0]:
            marks.append(_MARK.unpack(body))
    return max(marks, default=None)


def damaged(name: str, place: int, sequence: int | None) -> ChecksumError:
    """Return the error for bytes that were synced once and are not what was written."""
    return ChecksumError(
        "LogDamaged",
        f"The log is damaged in {name} at byte {place}: what was acknowledged is not readable.",
        facts={"file": name, "offset": place, "sequence": sequence},
        hint="Nothing was changed. Copy the folder, look with `partita state verify`, check the "
        "disk, and restore a backup; a replica may be emptied and copied from another.",
    )


def _find_head(chunk: bytes, at: int, seed: int) -> tuple[int, int, int] | None:
    """Return length, sequence and synced of the frame there, if there is one."""
    if len(chunk) - at < HEAD_BYTES or chunk[at : at + 4] != FRAME_START:
        return None
    (checksum,) = _CHECKSUM.unpack_from(chunk, at + _HEAD.size)
    if crc32c(chunk[at : at + _HEAD.size], seed) != checksum:
        return None
    _, length, sequence, synced = _HEAD.unpack_from(chunk, at)
    return length, sequence, synced


def _broken(sequence: int, reason: str) -> ChainBrokenError:
    return ChainBrokenError(
        "LogChainBroken",
        f"Record {sequence} does not continue the log: {reason}.",
        facts={"sequence": sequence},
        hint="Files of two logs were mixed, or one is missing. Restore a backup, or copy the "
        "state from another replica.",
    )
