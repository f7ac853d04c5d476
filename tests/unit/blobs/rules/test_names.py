import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.blobs.rules.listing import end_of, marker_of, place_of, shared_prefix
from partita.blobs.rules.names import LIVE, snapshot_text, snapshot_ticks
from partita.errors import PartitaError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TICKS_OF_9999 = 2534022143999999999 // 10


@given(st.integers(0, TICKS_OF_9999))
def test_the_time_of_a_snapshot_is_read_as_it_is_written(ticks: int) -> None:
    assert snapshot_ticks(snapshot_text(ticks)) == ticks


@given(st.integers(0, TICKS_OF_9999), st.integers(0, TICKS_OF_9999))
def test_times_of_snapshots_sort_as_texts(one: int, other: int) -> None:
    assert (one < other) == (snapshot_text(one) < snapshot_text(other))


def test_no_snapshot_sorts_behind_all() -> None:
    assert snapshot_ticks(None) == LIVE > TICKS_OF_9999
    assert snapshot_ticks("2022-08-12T20:49:56.0317382Z") < LIVE


@pytest.mark.parametrize(
    "text", ["", "2022-08-12", "2022-08-12T20:49:56.03173821Z", "2022-02-30T00:00:00Z", "\u0662"]
)
def test_other_texts_are_no_snapshot(text: str) -> None:
    with pytest.raises(PartitaError) as refused:
        snapshot_ticks(text)

    assert refused.value.code == "InvalidQueryParameterValue"


@given(TEXTS, st.integers(0, LIVE))
def test_a_marker_is_read_as_it_is_written(name: str, snapshot: int) -> None:
    marker = marker_of((name, snapshot))

    assert place_of(marker) == (name, snapshot)
    assert marker.replace("-", "").replace("_", "").rstrip("=").isalnum()


@given(st.text(max_size=40))
def test_any_other_marker_is_refused_or_read(marker: str) -> None:
    try:
        place_of(marker)
    except PartitaError as error:
        assert error.code == "InvalidQueryParameterValue"  # noqa: PT017 - both may happen


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it(prefix: str, rest: str) -> None:
    end = end_of(prefix)

    assert end is None or (prefix + rest).encode() < end.encode()
    assert end is None or not end.startswith(prefix) or not prefix


@pytest.mark.parametrize(
    ("name", "prefix", "delimiter", "shared"),
    [
        ("a/b/c", "", "/", "a/"),
        ("a/b/c", "a/", "/", "a/b/"),
        ("a/b", "a/", "/", None),
        ("a/b", "a", "/", "a/"),
        ("a--b", "", "--", "a--"),
        ("abc", "", "", None),
    ],
)
def test_a_name_is_listed_by_what_it_shares(
    name: str, prefix: str, delimiter: str, shared: str | None
) -> None:
    assert shared_prefix(name, prefix, delimiter) == shared
