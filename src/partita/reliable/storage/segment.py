r"""The files of the local log: heading, frames and marks, and how damaged ones are read.

    segment   heading | frame | frame | …
    heading   "PARTLOG\n" | format 4 | first 8 | epoch 8 | hash 16 | crc32c 4        48 bytes
    mark      sequence 8 | hash 16 | crc32c 4                                        28 bytes

Numbers are big-endian; records.py has the format of a frame. `first` is the sequence of the first
record, `hash` and `epoch` are those of the record before it, so that a log whose beginning was
truncated can be verified. The `synced` of a frame proves that the records up to that sequence
were synced, so that damage before it is detected. The checksum of a frame's head starts from the
heading's checksum, so that a copy of a frame inside a value of another log is not valid here. A
mark says that the log was synced up to a record; marks are in a file of their own.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from partita.errors import ChecksumError, FormatVersionError
from partita.reliable.state.records import (
    FRAME_START,
    HEAD_BYTES,
    Tip,
    find_frame_head,
    has_valid_checksum,
)

FORMAT = 1
MAGIC = b"PARTLOG\n"
CHUNK_BYTES = 1024 * 1024
"""Bytes per read; a larger frame is read in one piece."""

_HEADING = struct.Struct(">8sIQQ16s")
_MARK = struct.Struct(">Q16s")
_CHECKSUM = struct.Struct(">I")
HEADING_BYTES = _HEADING.size + 4
MARK_BYTES = _MARK.size + 4

Read = Callable[[int, int], bytes]
"""Called with (start, count); returns these bytes of the segment, fewer at its end."""


class SegmentHeading(NamedTuple):
    """The heading of a segment; `seed` is its checksum, from which those of its frames start."""

    before: Tip
    seed: int


class Frame(NamedTuple):
    """One complete frame; `end` is where the next one starts."""

    sequence: int
    synced: int
    raw: bytes
    end: int


def encode_heading(before: Tip) -> bytes:
    """Return the heading of the segment that starts after a record."""
    body = _HEADING.pack(MAGIC, FORMAT, before.sequence + 1, before.epoch, before.hash)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_heading(name: str, raw: bytes) -> SegmentHeading:
    """Return the heading; raise DamageError if the file is not a readable segment."""
    if raw[: len(MAGIC)] != MAGIC or len(raw) < HEADING_BYTES:
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
            hint="Install a version of Partita at least as new as the one that wrote it: "
            "pip install --upgrade partita. Nothing was changed.",
        )
    return SegmentHeading(Tip(first - 1, before, epoch), checksum)


def read_frames(read: Read, seed: int, start: int, end: int) -> Iterator[Frame]:
    """Yield frames up to the first incomplete one, which starts at the last frame's `end`."""
    chunk, at, place = b"", 0, start
    while place + HEAD_BYTES <= end:
        if len(chunk) - at < HEAD_BYTES:
            chunk, at = read(place, min(CHUNK_BYTES, end - place)), 0
        head = find_frame_head(chunk, at, seed)
        if head is None:
            return
        frame_bytes = HEAD_BYTES + head.length
        if place + frame_bytes > end:
            return
        if len(chunk) - at < frame_bytes:
            chunk, at = read(place, min(max(CHUNK_BYTES, frame_bytes), end - place)), 0
        raw = chunk[at + HEAD_BYTES : at + frame_bytes]
        if not has_valid_checksum(raw):
            return
        at += frame_bytes
        place += frame_bytes
        yield Frame(head.sequence, head.synced, raw, place)


def synced_after(read: Read, seed: int, start: int, end: int) -> int:
    """Return the newest sequence that a frame after a damaged place proves to be synced.

    A value may contain copies of older frames of its own segment, never of later ones, so a copy
    proves nothing about the place where it is.
    """
    newest, place = 0, start
    while place + HEAD_BYTES <= end:
        chunk = read(place, min(CHUNK_BYTES, end - place))
        at = chunk.find(FRAME_START)
        while at >= 0:
            head = find_frame_head(chunk, at, seed)
            newest = max(newest, head.synced if head else 0)
            at = chunk.find(FRAME_START, at + 1)
        place += max(len(chunk) - HEAD_BYTES + 1, 1)
    return newest


def encode_mark(tip: Tip) -> bytes:
    body = _MARK.pack(tip.sequence, tip.hash)
    return body + _CHECKSUM.pack(crc32c(body))


def newest_mark(raw: bytes) -> tuple[int, bytes] | None:
    """Return the mark with the highest sequence; torn and damaged marks are ignored."""
    marks: list[tuple[int, bytes]] = []
    for at in range(0, len(raw) - MARK_BYTES + 1, MARK_BYTES):
        body = raw[at : at + _MARK.size]
        if crc32c(body) == _CHECKSUM.unpack_from(raw, at + _MARK.size)[0]:
            marks.append(_MARK.unpack(body))
    return max(marks, default=None)


def damaged(name: str, place: int, sequence: int | None) -> ChecksumError:
    """Return the error for synced bytes that are not what was written."""
    return ChecksumError(
        "LogDamaged",
        f"The log is damaged in {name} at byte {place}: acknowledged records are not readable.",
        facts={"file": name, "offset": place, "sequence": sequence},
        hint="No file was changed. Copy the folder, run `partita state verify`, check the disk, "
        "and restore a backup; empty the folder of a replica to copy the state from another.",
    )
