import pytest
from crc32c import crc32c

from partita.errors import ChecksumError
from partita.reliable.state.records import HEAD_BYTES, Tip, encode_frame
from partita.reliable.storage.segment import (
    CHUNK_BYTES,
    Frame,
    Read,
    decode_heading,
    encode_heading,
    encode_mark,
    newest_mark,
    read_frames,
    synced_after,
)

BEFORE = Tip(6, bytes(range(16)), 3)
SEED = 0xABA81DD8
GOLDEN_HEADING = bytes.fromhex(
    "504152544c4f470a"  # PARTLOG, line feed
    "00000001"  # format
    "0000000000000007"  # first
    "0000000000000003"  # epoch
    "000102030405060708090a0b0c0d0e0f"  # hash
    "aba81dd8"
)
GOLDEN_FRAME = bytes.fromhex(
    "f6524543"  # start
    "00000008"  # length
    "0000000000000007"  # sequence
    "0000000000000006"  # synced
    "89c51d1d"
    "00010203626f6479"  # record
)
GOLDEN_MARK = bytes.fromhex("0000000000000007000102030405060708090a0b0c0d0e0f85101d83")


def a_record(size: int = 10) -> bytes:
    """Return bytes with a record's checksum: a frame asks for no more."""
    body = b"x" * size
    return crc32c(body).to_bytes(4) + body


def reader(image: bytes) -> Read:
    return lambda start, count: image[start : start + count]


def frames_of(image: bytes) -> list[Frame]:
    return list(read_frames(reader(image), SEED, 0, len(image)))


def test_the_format_stays_as_it_is() -> None:
    assert encode_heading(BEFORE) == GOLDEN_HEADING
    assert encode_frame(SEED, 7, 6, b"\0\1\2\3body") == GOLDEN_FRAME
    assert encode_mark(BEFORE._replace(sequence=7)) == GOLDEN_MARK
    assert decode_heading("a", GOLDEN_HEADING) == (BEFORE, SEED)
    assert newest_mark(GOLDEN_MARK) == (7, bytes(range(16)))


@pytest.mark.parametrize("place", range(len(GOLDEN_HEADING)))
def test_a_heading_with_a_flipped_bit_is_refused(place: int) -> None:
    flipped = bytearray(GOLDEN_HEADING)
    flipped[place] ^= 1

    with pytest.raises(ChecksumError):
        decode_heading("a", bytes(flipped))


@pytest.mark.parametrize("size", range(0, len(GOLDEN_HEADING), 5))
def test_a_short_heading_is_refused(size: int) -> None:
    with pytest.raises(ChecksumError):
        decode_heading("a", GOLDEN_HEADING[:size])


def test_frames_are_read_across_the_borders_of_chunks() -> None:
    sizes = [CHUNK_BYTES - 60, 1, 3 * CHUNK_BYTES, 5, CHUNK_BYTES - 1, 100]
    image = b"".join(
        encode_frame(SEED, n, n - 1, a_record(size)) for n, size in enumerate(sizes, 1)
    )

    frames = frames_of(image)

    assert [len(frame.raw) - 4 for frame in frames] == sizes
    assert frames[-1].end == len(image)


def test_reading_stops_before_a_frame_that_is_not_whole() -> None:
    whole = encode_frame(SEED, 1, 0, a_record())
    torn = encode_frame(SEED, 2, 1, a_record())
    for size in range(len(torn)):
        assert [frame.end for frame in frames_of(whole + torn[:size])] == [len(whole)]


def test_a_frame_of_another_segment_is_none() -> None:
    assert frames_of(encode_frame(SEED ^ 1, 1, 0, a_record())) == []


@pytest.mark.parametrize("shift", [*range(-HEAD_BYTES - 1, 3), 500])
def test_a_witness_is_found_wherever_it_lies(shift: int) -> None:
    image = b"\xf6" * (CHUNK_BYTES + shift) + encode_frame(SEED, 9, 8, a_record())

    assert synced_after(reader(image), SEED, 0, len(image)) == 8
    assert synced_after(reader(image), SEED ^ 1, 0, len(image)) == 0


def test_the_witness_that_knows_most_counts() -> None:
    image = b"".join(encode_frame(SEED, n, n - 3, a_record()) for n in (5, 7, 6))

    assert synced_after(reader(image), SEED, 1, len(image)) == 4


def test_a_damaged_mark_says_nothing_and_the_others_count() -> None:
    marks = [encode_mark(BEFORE._replace(sequence=sequence)) for sequence in (1, 5, 9)]
    marks[2] = bytes([marks[2][0] ^ 128]) + marks[2][1:]

    assert newest_mark(b"".join(marks)) == (5, BEFORE.hash)
    assert newest_mark(b"".join(marks[:2]) + marks[0][:20]) == (5, BEFORE.hash)
    assert newest_mark(b"") is None
