import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from partita.errors import CatalogMismatchError
from partita.shards.keys import cache as cache_module
from partita.shards.keys.cache import CHUNK_MAX, MappingCache
from partita.shards.keys.mapping import Location, Mapping, Shard
from partita.shards.keys.ranges import FULL, KeyRange, Range, encode_range
from partita.shards.keys.shard_key import key_type

INT = key_type(int)
SHARD = Shard("s", "tenants", Location("sqlite", database="/one.db"))


def a_mapping(low: int | None, high: int | None, mapping_id: str = "") -> Mapping:
    range_ = Range(low, high)
    key_range = encode_range(range_, INT)
    return Mapping(mapping_id or f"{low}-{high}", "tenants", SHARD, key_range, range_)


def found(cache: MappingCache, key: int) -> str | None:
    mapping = cache.find(INT.encode(key))
    return None if mapping is None else mapping.id


def test_an_empty_cache_finds_nothing() -> None:
    cache = MappingCache()

    assert found(cache, 1) is None
    assert len(cache) == 0
    assert cache.mappings() == []


def test_a_key_is_found_in_its_half_open_range() -> None:
    cache = MappingCache()
    cache.add(a_mapping(10, 20))

    assert [found(cache, key) for key in (9, 10, 19, 20)] == [None, "10-20", "10-20", None]


def test_ranges_without_a_bound_are_found() -> None:
    cache = MappingCache()
    cache.add(a_mapping(None, 0))
    cache.add(a_mapping(100, None))

    assert found(cache, -(2**63)) == "None-0"
    assert found(cache, 0) is None
    assert found(cache, 100) == found(cache, 2**63 - 1) == "100-None"


def test_points_are_found_alone() -> None:
    cache = MappingCache()
    for number in (1, 2, 4):
        cache.add(
            Mapping(str(number), "tenants", SHARD, KeyRange.point(INT.encode(number)), Range())
        )

    assert [found(cache, key) for key in range(6)] == [None, "1", "2", None, "4", None]


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [
        (10, 20, ["0-10", "20-30"]),
        (5, 25, []),
        (12, 15, ["0-10", "20-30"]),
        (20, 21, ["0-10", "10-20"]),
        (9, 10, ["10-20", "20-30"]),
        (None, None, []),
        (30, 40, ["0-10", "10-20", "20-30"]),
        (-5, 0, ["0-10", "10-20", "20-30"]),
        (None, 11, ["20-30"]),
    ],
)
def test_adding_evicts_exactly_what_overlaps(
    low: int | None, high: int | None, left: list[str]
) -> None:
    cache = MappingCache()
    cache.load([a_mapping(0, 10), a_mapping(10, 20), a_mapping(20, 30)])
    cache.add(a_mapping(low, high, "new"))

    assert [mapping.id for mapping in cache.mappings() if mapping.id != "new"] == left
    assert "new" in {mapping.id for mapping in cache.mappings()}
    assert len(cache) == len(left) + 1


def test_a_mapping_replaces_its_older_self() -> None:
    cache = MappingCache()
    cache.add(a_mapping(0, 10, "old"))
    cache.add(a_mapping(0, 10, "new"))

    assert found(cache, 5) == "new"
    assert not cache.remove("old")


def test_removing_leaves_the_neighbours() -> None:
    cache = MappingCache()
    cache.load([a_mapping(0, 10), a_mapping(10, 20), a_mapping(20, 30)])

    assert cache.remove("10-20")
    assert not cache.remove("10-20")
    assert [found(cache, key) for key in (9, 10, 19, 20)] == ["0-10", None, None, "20-30"]


def test_loading_replaces_everything() -> None:
    cache = MappingCache()
    cache.add(a_mapping(0, 10))
    cache.load([a_mapping(30, 40), a_mapping(20, 30)])

    assert [mapping.id for mapping in cache.mappings()] == ["20-30", "30-40"]
    assert found(cache, 5) is None


def test_clearing_forgets_everything() -> None:
    cache = MappingCache()
    cache.add(a_mapping(None, None))
    cache.clear()

    assert found(cache, 5) is None
    assert len(cache) == 0


def test_overlapping_mappings_are_not_loaded() -> None:
    cache = MappingCache()
    cache.add(a_mapping(0, 10))

    with pytest.raises(CatalogMismatchError) as caught:
        cache.load([a_mapping(20, 30), a_mapping(25, 35)])

    assert caught.value.code == "MappingsOverlap"
    assert caught.value.facts["mappings"] == ("20-30", "25-35")
    assert found(cache, 5) == "0-10"


def test_counters_tell_what_happened() -> None:
    cache = MappingCache()
    cache.load([a_mapping(0, 10), a_mapping(10, 20)])
    cache.add(a_mapping(5, 15))
    cache.add(a_mapping(30, 40))
    cache.remove("30-40")
    cache.remove("unknown")
    for key in (5, 6, 7, 99):
        cache.find(INT.encode(key))

    assert cache.counters() == {"hits": 3, "misses": 1, "adds": 4, "removes": 3}
    assert (cache.hits, cache.misses, cache.adds, cache.removes) == (3, 1, 4, 3)


def test_many_mappings_stay_in_small_chunks() -> None:
    cache = MappingCache()
    count = 6 * CHUNK_MAX
    order = list(range(count))
    random.Random(4).shuffle(order)
    for number in order:
        cache.add(a_mapping(number, number + 1))

    _, chunks, _ = cache._chunks
    sizes = [sum(owner is not None for owner in owners) for _, owners, _ in chunks]
    assert max(sizes) <= CHUNK_MAX
    assert sum(sizes) == count == len(cache)
    assert len(chunks) < 24
    assert [found(cache, key) for key in (0, 17, count - 1)] == [
        "0-1",
        "17-18",
        f"{count - 1}-{count}",
    ]
    assert found(cache, count) is None


@pytest.mark.parametrize("step", [1, -1])
def test_mappings_added_in_order_do_not_become_chunks_of_one(step: int) -> None:
    cache = MappingCache()
    for number in range(1000)[::step]:
        cache.add(a_mapping(number * 2, number * 2 + 1))

    assert len(cache._chunks[1]) <= 2 * 1000 // (CHUNK_MAX // 2)
    assert [mapping.range.low for mapping in cache.mappings()] == list(range(0, 2000, 2))


def test_one_mapping_may_evict_many_chunks() -> None:
    cache = MappingCache()
    cache.load(a_mapping(number, number + 1) for number in range(5 * CHUNK_MAX))
    cache.add(a_mapping(3, 5 * CHUNK_MAX - 3, "wide"))

    assert [mapping.id for mapping in cache.mappings()][2:4] == ["2-3", "wide"]
    assert len(cache) == 7
    assert cache.removes == 5 * CHUNK_MAX - 6
    cache.add(Mapping("all", "tenants", SHARD, FULL, Range()))
    assert [mapping.id for mapping in cache.mappings()] == ["all"]


def test_readers_never_miss_what_is_there_while_others_write() -> None:
    cache = MappingCache()
    cache.load(a_mapping(number * 10, number * 10 + 10) for number in range(400))
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        numbers = random.Random(1)
        while not stop.is_set():
            key = numbers.randrange(0, 4000, 20) + 5
            mapping = cache.find(INT.encode(key))
            if mapping is None or not mapping.key_range.contains(INT.encode(key)):
                wrong.append(key)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    numbers = random.Random(2)
    for turn in range(1000):
        low = numbers.randrange(0, 4000, 20)
        cache.add(a_mapping(low, low + 10, f"again-{turn}"))
        cache.add(a_mapping(low + 10, low + 20, f"other-{turn}"))
        cache.remove(f"other-{turn}")
    stop.set()
    for reader in readers:
        reader.join()

    assert wrong == []


def test_writers_in_many_threads_lose_nothing() -> None:
    cache = MappingCache()

    def write(part: int) -> None:
        for number in range(part, 1200, 4):
            cache.add(a_mapping(number, number + 1))

    writers = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [mapping.range.low for mapping in cache.mappings()] == list(range(1200))
    assert cache.adds == 1200


BOUNDS = st.integers(0, 40)


class CacheAgainstAList(RuleBasedStateMachine):
    """The cache against a plain list of mappings, with chunks so small that they split."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = MappingCache()
        self.model: list[Mapping] = []
        self.turn = 0

    @rule(low=BOUNDS, width=st.integers(1, 12), is_last=st.booleans())
    def add(self, low: int, width: int, is_last: bool) -> None:
        self.turn += 1
        high = None if is_last and width == 1 else low + width
        mapping = a_mapping(low, high, str(self.turn))
        self.model = [
            one for one in self.model if not one.key_range.intersects(mapping.key_range)
        ] + [mapping]
        self.cache.add(mapping)

    @rule(key=BOUNDS)
    def remove(self, key: int) -> None:
        mapping = self.cache.find(INT.encode(key))
        if mapping is not None:
            assert self.cache.remove(mapping.id)
            self.model.remove(mapping)

    @rule(cuts=st.sets(BOUNDS, max_size=20))
    def load(self, cuts: set[int]) -> None:
        self.turn += 1
        ends = sorted(cuts)
        self.model = [
            a_mapping(low, high, f"{self.turn}-{low}")
            for low, high in pairwise(ends)
            if (low + high) % 3
        ]
        self.cache.load(self.model)

    @invariant()
    def finds_the_same(self) -> None:
        for key in range(54):
            encoded = INT.encode(key)
            expected = [one for one in self.model if one.key_range.contains(encoded)]
            actual = self.cache.find(encoded)
            assert expected == ([] if actual is None else [actual])

    @invariant()
    def holds_the_same(self) -> None:
        assert self.cache.mappings() == sorted(self.model, key=lambda one: one.key_range)
        assert len(self.cache) == len(self.model)


@pytest.mark.parametrize("numbers_from", [1, 9, 100_000])
def test_the_cache_agrees_with_a_plain_list(
    monkeypatch: pytest.MonkeyPatch, numbers_from: int
) -> None:
    monkeypatch.setattr(cache_module, "CHUNK_MAX", 4)
    monkeypatch.setattr(cache_module, "NUMBERS_FROM", numbers_from)

    CacheAgainstAList.TestCase.settings = settings(
        max_examples=30, stateful_step_count=25, deadline=None
    )
    CacheAgainstAList.TestCase("runTest").runTest()


@given(st.lists(st.binary(max_size=3), unique=True, max_size=30), st.binary(max_size=4))
def test_points_of_any_bytes_are_found(keys: list[bytes], other: bytes) -> None:
    cache = MappingCache()
    cache.load(Mapping(key.hex(), "m", SHARD, KeyRange.point(key), Range()) for key in keys)

    for key in [*keys, other]:
        mapping = cache.find(key)
        assert (mapping is not None) == (key in keys)
        assert mapping is None or mapping.id == key.hex()


EIGHT_BYTES = st.lists(st.sampled_from(b"\x00\x01\xff"), min_size=8, max_size=8).map(bytes)


@given(st.lists(EIGHT_BYTES | st.binary(max_size=10), unique=True, max_size=30), EIGHT_BYTES)
def test_keys_of_eight_bytes_are_found_as_numbers_among_bounds_of_any_length(
    keys: list[bytes], other: bytes
) -> None:
    points = [Mapping(key.hex(), "m", SHARD, KeyRange.point(key), Range()) for key in keys]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "NUMBERS_FROM", 1)
        patch.setattr(cache_module, "CHUNK_MAX", 4)
        cache = MappingCache()
        cache.load(points)

        for key in [*keys, other]:
            mapping = cache.find(key)
            assert (mapping is not None) == (key in keys)
            assert mapping is None or mapping.id == key.hex()


@given(st.lists(st.binary(max_size=10), unique=True, min_size=1, max_size=20), EIGHT_BYTES)
def test_ranges_between_bounds_of_any_length_are_found_by_number(
    bounds: list[bytes], key: bytes
) -> None:
    cuts = sorted(bounds)
    ranges = [KeyRange(low, high) for low, high in zip(cuts, [*cuts[1:], None], strict=True)]
    held = [Mapping(str(n), "m", SHARD, each, Range()) for n, each in enumerate(ranges) if n % 3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "NUMBERS_FROM", 1)
        patch.setattr(cache_module, "CHUNK_MAX", 4)
        cache = MappingCache()
        for mapping in held:
            cache.add(mapping)

        expected = [mapping for mapping in held if mapping.key_range.contains(key)]
        assert cache.find(key) == (expected[0] if expected else None)
