"""The record of a service: damaged ones, and those of earlier and newer versions."""

import msgspec
import pytest
from crc32c import crc32c

from partita.errors import ChecksumError, FormatVersionError
from partita.reliable.service.membership import ServiceRecord, decode_record, encode_record

RECORD = ServiceRecord(1, 2, 1, ("a",), ((0,), (0,)))


def with_checksum(fields: dict[str, object]) -> bytes:
    body = msgspec.msgpack.encode(fields | {"crc32c": bytes(4)})[:-4]
    return body + crc32c(body).to_bytes(4)


def test_record_is_read() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD


def test_record_without_a_checksum_is_read() -> None:
    assert decode_record(msgspec.msgpack.encode(RECORD)) == RECORD


def test_an_earlier_version_reads_a_record_with_a_checksum() -> None:
    assert msgspec.msgpack.decode(encode_record(RECORD), type=ServiceRecord) == RECORD


def test_a_flipped_bit_is_damage_or_changes_nothing() -> None:
    """A bit of the name of the checksum makes a record without one; its fields stay."""
    raw = encode_record(RECORD)
    accepted = 0
    for place in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[place // 8] ^= 1 << place % 8
        try:
            assert decode_record(bytes(flipped)) == RECORD
            accepted += 1
        except ChecksumError:
            continue
    assert accepted <= 8 * len(b"\xa6crc32c\xc4\x04")


def test_a_flipped_bit_of_a_record_without_a_checksum_is_not_a_format_version() -> None:
    raw = msgspec.msgpack.encode(RECORD)
    place = raw.index(b"format") + len(b"format")
    for bit in range(8):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << bit

        with pytest.raises(ChecksumError, match="ChecksumMismatch"):
            decode_record(bytes(flipped))


def test_record_of_a_newer_version_is_refused_because_a_write_would_lose_its_fields() -> None:
    newer = with_checksum({"format": 2, "shape": {"partitions": 2}})

    with pytest.raises(FormatVersionError, match="has format 2; this version reads 1"):
        decode_record(newer)
