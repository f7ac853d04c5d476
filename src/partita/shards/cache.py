"""Mappings by key, as far as this process has seen them: one cache for each shard map.

Readers take no lock: they search lists that are never changed, only replaced. The mappings lie
sorted and disjoint in chunks, so that a change copies one chunk and the list of chunks. What is
found may be stale; validation on the shard tells.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import isqrt
from threading import Lock

from partita.errors import CatalogMismatchError
from partita.shards.mapping import Mapping
from partita.shards.ranges import KeyRange

CHUNK_MAX = 128
"""The most mappings of one chunk; the root of their number if that is more."""

_Chunk = tuple[list[bytes], list[Mapping | None]]
"""Bounds, and what owns the keys from each bound to the next: a mapping, or nothing cached.

The first bound is the low end of a mapping. The last owner holds up to the next chunk.
"""


class MappingCache:
    """The mappings of one shard map that were looked up or loaded."""

    def __init__(self) -> None:
        self._chunks: tuple[list[bytes], list[_Chunk]] = ([], [])
        """The first bound of every chunk, and the chunks. Replaced as a whole, under the lock."""
        self._by_id: dict[str, Mapping] = {}
        """Touched only under the lock."""
        self._lock = Lock()
        self.hits = 0
        """Counted without a lock: threads may lose a few."""
        self.misses = 0
        self.adds = 0
        self.removes = 0

    def find(self, key: bytes) -> Mapping | None:
        """Return the mapping that holds an encoded key."""
        firsts, chunks = self._chunks
        index = bisect_right(firsts, key) - 1
        if index >= 0:
            bounds, owners = chunks[index]
            mapping = owners[bisect_right(bounds, key) - 1]
            if mapping is not None:
                self.hits += 1
                return mapping
        self.misses += 1
        return None

    def add(self, mapping: Mapping) -> None:
        """Put a mapping in; cached mappings that overlap it are stale and go."""
        with self._lock:
            self._replace(mapping.key_range, [mapping])
            self.adds += 1

    def remove(self, mapping_id: str) -> bool:
        """Take a mapping out; say whether it was there."""
        with self._lock:
            mapping = self._by_id.get(mapping_id)
            if mapping is None:
                return False
            self._replace(mapping.key_range, [])
            return True

    def load(self, mappings: Iterable[Mapping]) -> None:
        """Replace everything by the mappings of a whole map, in one go."""
        ordered = sorted(mappings, key=_low)
        _check_disjoint(ordered)
        with self._lock:
            self.removes += len(self._by_id)
            self._by_id = {mapping.id: mapping for mapping in ordered}
            self._chunks = _cut(ordered, len(ordered))
            self.adds += len(ordered)

    def clear(self) -> None:
        self.load([])

    def mappings(self) -> list[Mapping]:
        """Return what is cached now, in the order of the keys."""
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
        """Drop what overlaps the range and put `added`, which lies inside it, there."""
        firsts, chunks = self._chunks
        start = max(bisect_right(firsts, key_range.low) - 1, 0)
        end = len(firsts) if key_range.high is None else bisect_left(firsts, key_range.high)
        # A range before all chunks joins the first one, rather than become a chunk of its own.
        end = max(end, min(start + 1, len(firsts)))
        touched = _mappings_of(chunks[start:end])
        first, last = _overlap(touched, key_range)
        for mapping in touched[first:last]:
            del self._by_id[mapping.id]
        self.removes += last - first
        self._by_id.update((mapping.id, mapping) for mapping in added)
        changed = touched[:first] + added + touched[last:]
        fresh_firsts, fresh = _cut(changed, len(self._by_id))
        self._chunks = (
            firsts[:start] + fresh_firsts + firsts[end:],
            chunks[:start] + fresh + chunks[end:],
        )


def _low(mapping: Mapping) -> bytes:
    return mapping.key_range.low


def _mappings_of(chunks: list[_Chunk]) -> list[Mapping]:
    return [owner for _, owners in chunks for owner in owners if owner is not None]


def _overlap(ordered: list[Mapping], key_range: KeyRange) -> tuple[int, int]:
    """Return from where to where the sorted mappings overlap the range."""
    first = bisect_right(ordered, key_range.low, key=_low)
    if first and ordered[first - 1].key_range.intersects(key_range):
        first -= 1
    if key_range.high is None:
        return first, len(ordered)
    return first, bisect_left(ordered, key_range.high, lo=first, key=_low)


def _cut(ordered: list[Mapping], total: int) -> tuple[list[bytes], list[_Chunk]]:
    """Cut sorted mappings into chunks, all with room to grow if there are more than one."""
    most = max(CHUNK_MAX, isqrt(total))
    size = most if len(ordered) <= most else most // 2
    chunks = [_chunk(ordered[start : start + size]) for start in range(0, len(ordered), size)]
    return [bounds[0] for bounds, _ in chunks], chunks


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
    # Copied, so that they lie side by side: among a million, a search waits for memory.
    return [bytes(memoryview(bound)) for bound in bounds], owners


def _check_disjoint(ordered: list[Mapping]) -> None:
    for left, right in pairwise(ordered):
        if left.key_range.intersects(right.key_range):
            raise CatalogMismatchError(
                "MappingsOverlap",
                "Two mappings of one shard map hold the same keys.",
                facts={"map": left.map_name, "mappings": (left.id, right.id)},
                hint="Compare the catalogs: partita shards recover.",
            )
