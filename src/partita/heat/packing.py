"""An axis as bytes.

    version        1 byte: 1
    zlib of        number of buckets
                   first and last key of each bucket, in order: bytes shared with the key before,
                   further bytes, these bytes in UTF-8
                   the counters in the order of `axes.COUNTERS`, each for all buckets

Numbers are unsigned LEB128: 7 bits per byte, the lowest first, the high bit if more follow.
"""

import zlib

from partita.errors import DamageError
from partita.heat.axes import COUNTERS, Axis, Bucket
from partita.heat.limits import BUCKETS_MAX, UNPACKED_BYTES_MAX

VERSION = 1
NUMBER_BITS_MAX = 128
"""A longer number is refused as damaged: no counter is so large."""


def pack(axis: Axis) -> bytes:
    written = bytearray()
    _put(written, len(axis))
    before = b""
    for key in (key for first, last, _counts in axis for key in (first, last)):
        encoded = key.encode("utf-8", "surrogatepass")
        shared = _shared(before, encoded)
        _put(written, shared)
        _put(written, len(encoded) - shared)
        written += encoded[shared:]
        before = encoded
    for counter in range(len(COUNTERS)):
        for _first, _last, counts in axis:
            _put(written, counts[counter])
    return bytes([VERSION]) + zlib.compress(written)


def unpack(packed: bytes) -> Axis:
    """Read what `pack` wrote; raise DamageError for anything else."""
    if packed[:1] != bytes([VERSION]):
        raise _damaged()
    try:
        inflating = zlib.decompressobj()
        unpacked = inflating.decompress(packed[1:], UNPACKED_BYTES_MAX)
        if not inflating.eof:
            raise _damaged()
        return _read(unpacked)
    except (zlib.error, IndexError, UnicodeDecodeError) as error:
        raise _damaged() from error


def _read(unpacked: bytes) -> Axis:
    numbers = _Numbers(unpacked)
    count = numbers.next()
    if count > BUCKETS_MAX:
        raise _damaged()
    keys: list[str] = []
    before = b""
    for _ in range(2 * count):
        shared = numbers.next()
        before = before[:shared] + numbers.bytes(numbers.next())
        keys.append(before.decode("utf-8", "surrogatepass"))
    columns = [[numbers.next() for _ in range(count)] for _ in COUNTERS]
    return [
        Bucket(first, last, counts)
        for first, last, counts in zip(
            keys[::2], keys[1::2], zip(*columns, strict=True), strict=True
        )
    ]


class _Numbers:
    def __init__(self, unpacked: bytes) -> None:
        self._unpacked = unpacked
        self._place = 0

    def next(self) -> int:
        number = shift = 0
        while True:
            byte = self._unpacked[self._place]
            self._place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > NUMBER_BITS_MAX:
                raise IndexError

    def bytes(self, count: int) -> bytes:
        found = self._unpacked[self._place : self._place + count]
        if len(found) < count:
            raise IndexError
        self._place += count
        return found


def _put(written: bytearray, number: int) -> None:
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)


def _shared(one: bytes, other: bytes) -> int:
    """Return how many bytes two keys share at their start."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _damaged() -> DamageError:
    return DamageError(
        "HeatDamaged",
        "A stored heat axis is damaged.",
        hint="Restart the server, which puts a damaged file aside; only heat is lost.",
    )
