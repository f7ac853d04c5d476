import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import CatalogMismatchError
from partita.scaleout.catalog.ranges import Range, RangeMap

KEYS = st.text(max_size=3)


def ranges_at(bounds: list[str]) -> list[Range]:
    ends = [*bounds[1:], None]
    return [Range(n, lo, hi, n) for n, (lo, hi) in enumerate(zip(bounds, ends, strict=True))]


@st.composite
def range_lists(draw: st.DrawFn) -> list[Range]:
    return ranges_at(sorted({"", *draw(st.lists(KEYS, max_size=6))}))


def has(found: Range, key: str) -> bool:
    return found.lo <= key and (found.hi is None or key < found.hi)


@given(range_lists(), KEYS)
def test_a_key_is_in_the_range_that_is_found(ranges: list[Range], key: str) -> None:
    (expected,) = [each for each in ranges if has(each, key)]

    assert RangeMap(ranges[::-1]).find(key) == expected


@given(range_lists(), KEYS, st.none() | KEYS)
def test_an_interval_has_the_ranges_with_some_of_its_keys(
    ranges: list[Range], start: str, end: str | None
) -> None:
    found = list(RangeMap(ranges).between(start, end))

    if end is None or start < end:
        assert found == [
            each
            for each in ranges
            if (each.hi is None or start < each.hi) and (end is None or each.lo < end)
        ]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [Range(1, "a", None, 1)],
        [Range(1, "", "m", 1)],
        [Range(1, "", "m", 1), Range(2, "n", None, 2)],
        [Range(1, "", "m", 1), Range(2, "k", None, 2)],
    ],
)
def test_ranges_with_a_gap_or_an_overlap_are_refused(ranges: list[Range]) -> None:
    with pytest.raises(CatalogMismatchError) as caught:
        RangeMap(ranges)

    assert caught.value.code == "StoreRangesBroken"
