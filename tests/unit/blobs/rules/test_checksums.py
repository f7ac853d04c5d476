from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import Sums, check_chunks, checks_of, sums_of
from partita.errors import ChecksumError


@pytest.mark.parametrize(
    ("content", "crc64"),
    [(b"hello world", "vo7q9sPVKY0="), (b"AAA", "Cc/2Kr4DuKg="), (b"", "AAAAAAAAAAA=")],
)
def test_the_crc64_is_the_service_s(content: bytes, crc64: str) -> None:
    computed = sums_of(content, wants_md5=False)

    assert computed.crc64 is not None
    assert b64encode(computed.crc64).decode() == crc64
    assert computed.md5 is None


@given(st.lists(st.binary(max_size=50)))
def test_parts_sum_up_to_the_whole(parts: list[bytes]) -> None:
    sums = Sums(wants_md5=True)
    for part in parts:
        sums.update(part)

    assert sums.digest() == sums_of(b"".join(parts), wants_md5=True)


def test_a_chunk_is_bound_to_its_place() -> None:
    one, other = b"a" * limits.CHUNK_BYTES, b"b" * limits.CHUNK_BYTES
    checks = checks_of(one + other)

    check_chunks(one + other, checks)
    check_chunks(other, checks[4:], 1)
    for content, first in ((other + one, 0), (one, 1), (one[:-1], 0)):
        with pytest.raises(ChecksumError):
            check_chunks(content, checks[first * 4 : first * 4 + 4], first)
