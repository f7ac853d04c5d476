"""Checksums of content: MD5 and CRC-64 of the protocol, CRC-32C of stored chunks. Pure.

The CRC-64 is CRC-64/NVME, 8 bytes little-endian. Each chunk of stored content has a CRC-32C that
is seeded with the chunk's number, so that a misplaced chunk is detected, too.
"""

import hashlib
from base64 import b64encode

from azure.storage.extensions.checksums import crc64
from crc32c import crc32c

from partita.blobs.rules import limits
from partita.blobs.rules.model import Declared
from partita.errors import ChecksumError, InvalidRequestError, LimitExceededError
from partita.refusals import out_of_range

CHECK_BYTES = 4


class Sums:
    """The checksums of content that arrives in parts."""

    def __init__(self, *, wants_md5: bool) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False) if wants_md5 else None
        self._crc64 = 0

    def update(self, part: bytes) -> None:
        if self._md5 is not None:
            self._md5.update(part)
        self._crc64 = crc64.compute(part, self._crc64)

    def digest(self) -> Declared:
        md5 = None if self._md5 is None else self._md5.digest()
        return Declared(md5, self._crc64.to_bytes(8, "little"))


def sums_of(content: bytes, *, wants_md5: bool) -> Declared:
    """Return the checksums of content in memory."""
    sums = Sums(wants_md5=wants_md5)
    sums.update(content)
    return sums.digest()


def verify(declared: Declared, computed: Declared) -> None:
    """Refuse content that does not match its declared checksums."""
    if declared.md5 is not None and declared.md5 != computed.md5:
        assert computed.md5 is not None
        raise InvalidRequestError(
            "Md5Mismatch",
            "The MD5 value specified in the request did not match with the MD5 value calculated "
            "by the server.",
            facts={
                "elements": [
                    ("UserSpecifiedMd5", b64encode(declared.md5).decode()),
                    ("ServerCalculatedMd5", b64encode(computed.md5).decode()),
                ]
            },
            hint="Send the content again, with the checksum of this content.",
        )
    if declared.crc64 is not None and declared.crc64 != computed.crc64:
        assert computed.crc64 is not None
        raise InvalidRequestError(
            "Crc64Mismatch",
            "The CRC64 value specified in the request did not match with the CRC64 value "
            "calculated by the server.",
            facts={
                "elements": [
                    ("UserSpecifiedCrc64", b64encode(declared.crc64).decode()),
                    ("ServerCalculatedCrc64", b64encode(computed.crc64).decode()),
                ]
            },
            hint="Send the content again, with the checksum of this content.",
        )


def checks_of(content: bytes, first_chunk: int = 0) -> bytes:
    """Return the checks of the chunks of content that starts at a chunk boundary."""
    view = memoryview(content)
    return b"".join(
        crc32c(view[place : place + limits.CHUNK_BYTES], first_chunk + number).to_bytes(CHECK_BYTES)
        for number, place in enumerate(range(0, len(view), limits.CHUNK_BYTES))
    )


def check_chunks(content: bytes, checks: bytes, first_chunk: int = 0) -> None:
    """Raise ChecksumError unless the content matches its checks."""
    if checks_of(content, first_chunk) != checks:
        raise damaged("its bytes do not match their checksums")


def damaged(what: str) -> ChecksumError:
    return ChecksumError(
        "BlobDamaged",
        f"The stored content of a blob is damaged: {what}.",
        hint="Restore a backup; only blobs with the same content are affected.",
    )


def too_long_for_checksum() -> LimitExceededError:
    return out_of_range(
        LimitExceededError,
        f"Ask for the checksum of at most {limits.RANGE_MD5_BYTES_MAX} bytes.",
    )
