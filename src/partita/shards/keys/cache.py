"""The mappings of a shard map that this process has read, by key.

Readers take no lock: they search lists that are never changed, only replaced. The mappings are
sorted, disjoint and divided into chunks, so that a change copies one chunk and the list of chunks.
A cached mapping may be stale; validation on the shard detects that.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import isqrt
from threading import Lock

from partita.errors import CatalogMismatchError
from partita.shards.keys.mapping import Mapping
from partita.shards.keys.ranges import KeyRange

CHUNK_MAX = 128
"""The maximum number of mappings in a chunk, or the square root of their total if greater."""

NUMBER_BYTES = 8
"""Keys of this length, such as integers, can be searched as numbers."""
NUMBERS_FROM = 100_000
"""With at least this many mappings, such keys are searched as numbers: an array of numbers is
contiguous in memory. With fewer, comparing bytes is faster."""

_Chunk = tuple[list[bytes], list[Mapping | None], "array[int]"]
"""Bounds, the owner of the keys from each bound to the next (None: not cached), and the bounds as
numbers.

The first bound is the low end of a mapping. The last owner extends to the next chunk.
"""


class MappingCache:
    """The cached mappings of one shard map."""

    def __init__(self) -> None:
        self._chunks: tuple[list[bytes], list[_Chunk], array[int]] = ([], [], array("Q"))
        """The first bound of every chunk, the chunks, and the first bounds as numbers (empty while
        there are few mappings). Replaced as a whole, under the lock."""
        self._by_id: dict[str, Mapping] = {}
        """Used only under the lock."""
        self._lock = Lock()
        self.hits = 0
        """Counted without a lock, so threads may lose a few."""
        self.misses = 0
        self.adds = 0
        self.removes = 0

    def find(self, key: bytes) -> Mapping | None:
        """Return the mapping that holds an encoded key."""
        firsts, chunks, numbers = self._chunks
        mapping = None
        if numbers and len(key) == NUMBER_BYTES:
            number = int.from_bytes(key)
            if index := bisect_right(numbers, number):
                _, owners, numbers = chunks[index - 1]
                mapping = owners[bisect_right(numbers, number) - 1]
        elif index := bisect_right(firsts, key):
            bounds, owners, _ = chunks[index - 1]
            mapping = owners[bisect_right(bounds, key) - 1]
        if mapping is None:
            self.misses += 1
        else:
            self.hits += 1
        return mapping

    def add(self, mapping: Mapping) -> None:
        """Add a mapping; overlapping cached mappings are stale and removed."""
        with self._lock:
            self._replace(mapping.key_range, [mapping])
            self.adds += 1

    def remove(self, mapping_id: str) -> bool:
        """Remove a mapping; return whether it was cached."""
        with self._lock:
            mapping = self._by_id.get(mapping_id)
            if mapping is None:
                return False
            self._replace(mapping.key_range, [])
            return True

    def load(self, mappings: Iterable[Mapping]) -> None:
        """Replace the content of the cache by all mappings of a map."""
        ordered = sorted(mappings, key=_low)
        _check_disjoint(ordered)
        with self._lock:
            self.removes += len(self._by_id)
            self._by_id = {mapping.id: mapping for mapping in ordered}
            firsts, chunks = _cut(ordered, len(ordered))
            self._chunks = firsts, chunks, self._first_numbers(firsts)
            self.adds += len(ordered)

    def clear(self) -> None:
        self.load([])

    def mappings(self) -> list[Mapping]:
        """Return the cached mappings in the order of their keys."""
        return _mappings_of(self._chunks[1])

    def counters(self) -> dict[str, int]:
        return {
            "hits": self.hits,
            "misses": self.misses,
            "adds": self.adds,
            "removes": self.removes,
        }

    def __len__(self) -> int:
        return len(self._by_id)

    def _replace(self, key_range: KeyRange, added: list[Mapping]) -> None:
        """Remove mappings that overlap the range, and add `added`, which are inside it."""
        firsts, chunks, numbers = self._chunks
        start = max(bisect_right(firsts, key_range.low) - 1, 0)
        end = len(firsts) if key_range.high is None else bisect_left(firsts, key_range.high)
        # A range before all chunks is added to the first one.
        end = max(end, min(start + 1, len(firsts)))
        touched = _mappings_of(chunks[start:end])
        first, last = _overlap(touched, key_range)
        for mapping in touched[first:last]:
            del self._by_id[mapping.id]
        self.removes += last - first
        self._by_id.update((mapping.id, mapping) for mapping in added)
        changed = touched[:first] + added + touched[last:]
        fresh_firsts, fresh = _cut(changed, len(self._by_id))
        firsts = firsts[:start] + fresh_firsts + firsts[end:]
        if numbers and len(self._by_id) >= NUMBERS_FROM:
            numbers = numbers[:start] + _numbers(fresh_firsts) + numbers[end:]
        else:
            numbers = self._first_numbers(firsts)
        self._chunks = firsts, chunks[:start] + fresh + chunks[end:], numbers

    def _first_numbers(self, firsts: list[bytes]) -> "array[int]":
        return _numbers(firsts) if len(self._by_id) >= NUMBERS_FROM else array("Q")


def _low(mapping: Mapping) -> bytes:
    return mapping.key_range.low


def _mappings_of(chunks: list[_Chunk]) -> list[Mapping]:
    return [owner for _, owners, _ in chunks for owner in owners if owner is not None]


def _overlap(ordered: list[Mapping], key_range: KeyRange) -> tuple[int, int]:
    """Return the first and the last index, exclusive, of the mappings that overlap the range."""
    first = bisect_right(ordered, key_range.low, key=_low)
    if first and ordered[first - 1].key_range.intersects(key_range):
        first -= 1
    if key_range.high is None:
        return first, len(ordered)
    return first, bisect_left(ordered, key_range.high, lo=first, key=_low)


def _cut(ordered: list[Mapping], total: int) -> tuple[list[bytes], list[_Chunk]]:
    """Divide sorted mappings into chunks; if several are needed, each is half full."""
    most = max(CHUNK_MAX, isqrt(total))
    size = most if len(ordered) <= most else most // 2
    chunks = [_chunk(ordered[start : start + size]) for start in range(0, len(ordered), size)]
    return [bounds[0] for bounds, _, _ in chunks], chunks


def _chunk(ordered: list[Mapping]) -> _Chunk:
    bounds: list[bytes] = []
    owners: list[Mapping | None] = []
    end: bytes | None = b""
    for mapping in ordered:
        key_range = mapping.key_range
        if owners and end is not None and end != key_range.low:
            bounds.append(end)
            owners.append(None)
        bounds.append(key_range.low)
        owners.append(mapping)
        end = key_range.high
    if end is not None:
        bounds.append(end)
        owners.append(None)
    return bounds, owners, _numbers(bounds)


def _numbers(bounds: list[bytes]) -> "array[int]":
    """Return for each bound the least number whose eight bytes are not less than it."""
    least = [
        int.from_bytes(bound[:NUMBER_BYTES].ljust(NUMBER_BYTES, b"\0"))
        + (len(bound) > NUMBER_BYTES)
        for bound in bounds
    ]
    # Bounds greater than all numbers are the last ones; no key of eight bytes reaches them.
    return array("Q", (number for number in least if number < 2 ** (8 * NUMBER_BYTES)))


def _check_disjoint(ordered: list[Mapping]) -> None:
    for left, right in pairwise(ordered):
        if left.key_range.intersects(right.key_range):
            raise CatalogMismatchError(
                "MappingsOverlap",
                "Two mappings of the shard map overlap.",
                facts={"map": left.map_name, "mappings": (left.id, right.id)},
                hint="Compare the catalogs with `partita shards recover`.",
            )
