"""Blocks behave as a sorted dict under any sequence of writes, and every block stays small."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.blocks import FULL_BYTES, FULL_ROWS, Blocks

KEYS = st.integers(0, 60).map(lambda number: b"%03d" % number)
WRITES = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 90).map(lambda size: b"v" * size))),
    max_size=120,
)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 4)
    monkeypatch.setattr(blocks_module, "FULL_BYTES", 200)
    monkeypatch.setattr(blocks_module, "SPARSE_ROWS", 2)


def written(writes: list[tuple[bytes, bytes | None]], blocks: Blocks) -> dict[bytes, bytes]:
    """Do the writes to blocks and return what a dict contains after them."""
    rows = dict(blocks)
    for sequence, (key, value) in enumerate(writes, start=1):
        if value is not None:
            blocks.put(key, value, sequence)
            rows[key] = value
        elif rows.pop(key, None) is not None:
            blocks.remove(key, sequence)
        assert blocks.get(key) == rows.get(key)
    return {key: rows[key] for key in sorted(rows)}


def ranges(blocks: Blocks) -> Iterator[tuple[bytes, bytes | None, int, dict[bytes, bytes]]]:
    """Yield bound, next bound, sequence and rows of every block."""
    lower: bytes | None = b""
    while lower is not None:
        block, bound, after = blocks.block_at(lower)
        assert bound == lower
        yield bound, after, block.changed, block.rows
        lower = after


@pytest.mark.usefixtures("_small_blocks")
class TestBlocks:
    @given(WRITES, st.sets(KEYS))
    def test_they_contain_what_a_sorted_dict_contains(
        self, writes: list[tuple[bytes, bytes | None]], loaded: set[bytes]
    ) -> None:
        blocks = Blocks((key, b"0") for key in loaded)
        rows = written(writes, blocks)

        assert list(blocks.items()) == list(rows.items())
        assert (list(blocks), list(blocks.values())) == (list(rows), list(rows.values()))
        assert len(blocks) == len(rows)
        assert blocks == rows

    @given(WRITES, KEYS, st.none() | KEYS, st.integers(1, 9), st.booleans())
    def test_a_range_is_that_of_the_sorted_keys(
        self,
        writes: list[tuple[bytes, bytes | None]],
        lower: bytes,
        upper: bytes | None,
        limit: int,
        reverse: bool,
    ) -> None:
        blocks = Blocks()
        rows = written(writes, blocks)

        found = blocks.between(lower, upper, limit=limit, reverse=reverse)

        within = [one for one in rows.items() if lower <= one[0] and (not upper or one[0] < upper)]
        assert found == (within[::-1] if reverse else within)[:limit]

    @given(WRITES, st.sets(KEYS))
    def test_every_block_is_small_and_knows_the_last_write_in_its_range(
        self, writes: list[tuple[bytes, bytes | None]], loaded: set[bytes]
    ) -> None:
        blocks = Blocks((key, b"0") for key in loaded)
        present, last = set(loaded), dict.fromkeys(loaded, 0)
        for sequence, (key, value) in enumerate(writes, start=1):
            if value is not None or key in present:
                last[key] = sequence
            (present.add if value is not None else present.discard)(key)
        written(writes, blocks)

        found = list(ranges(blocks))
        for bound, after, changed, rows in found:
            assert rows or len(found) == 1
            assert all(bound <= key and (after is None or key < after) for key in rows)
            size = sum(len(key) + len(value) for key, value in rows.items())
            assert len(rows) <= 8
            assert size <= 400 or len(rows) == 1
            inside = [key for key in last if bound <= key and (after is None or key < after)]
            assert changed >= max((last[key] for key in inside), default=0)

    @given(st.sets(KEYS))
    def test_rows_are_removed_from_the_end_one_by_one(self, keys: set[bytes]) -> None:
        blocks = Blocks((key, b"0") for key in keys)

        assert {blocks.popitem()[0] for _ in keys} == keys
        assert (len(blocks), list(blocks)) == (0, [])


def test_rows_that_are_added_in_order_fill_their_blocks() -> None:
    blocks = Blocks()
    for number in range(10 * FULL_ROWS):
        blocks.put(number.to_bytes(8), b"1", 1)

    assert [len(rows) for *_, rows in ranges(blocks)] == [FULL_ROWS] * 10


def test_large_values_have_blocks_of_few_rows() -> None:
    blocks = Blocks()
    for number in range(20):
        blocks.put(number.to_bytes(8), bytes(FULL_BYTES // 2), 1)

    assert max(len(rows) for *_, rows in ranges(blocks)) == 2


def test_blocks_that_lose_rows_are_merged() -> None:
    count = 20 * FULL_ROWS
    blocks = Blocks((number.to_bytes(8), b"1") for number in range(count))
    for number in sorted(range(count), key=lambda number: number * 7919 % count):
        if number % FULL_ROWS:
            blocks.remove(number.to_bytes(8), 1)

    assert len(blocks) == 20
    assert len(list(ranges(blocks))) <= 2
