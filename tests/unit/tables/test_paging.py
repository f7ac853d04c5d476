from hypothesis import given
from hypothesis import strategies as st

from partita.tables.entity import EntityKey
from partita.tables.paging import KeyRange, after

TEXTS = st.text(st.sampled_from("\x01ab\uffff\U00010000"), max_size=3)
KEYS = st.builds(EntityKey, TEXTS, TEXTS)
ENDS = st.one_of(
    st.none(),
    KEYS,
    st.builds(lambda text: EntityKey(after(text), ""), TEXTS),
    KEYS.map(lambda key: EntityKey(key.partition_key, after(key.row_key))),
)
RANGES = st.builds(KeyRange, KEYS, ENDS)


@given(TEXTS, TEXTS)
def test_nothing_lies_between_a_text_and_the_one_after_it(text: str, other: str) -> None:
    assert text < after(text)
    assert not text < other < after(text)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_texts_order_as_their_utf8_bytes(first: str, second: str) -> None:
    assert (first < second) == (first.encode() < second.encode())


@given(RANGES, KEYS)
def test_a_range_has_its_lower_end_and_not_its_upper(span: KeyRange, key: EntityKey) -> None:
    assert span.contains(key) == (
        (span.lower.partition_key, span.lower.row_key) <= (key.partition_key, key.row_key)
        and (span.upper is None or tuple(key) < tuple(span.upper))
    )


@given(RANGES, KEYS)
def test_an_empty_range_holds_no_key(span: KeyRange, key: EntityKey) -> None:
    assert not (span.is_empty and span.contains(key))
    assert span.is_empty or span.contains(span.lower)


@given(RANGES, RANGES, KEYS)
def test_a_clipped_range_holds_what_both_hold(
    first: KeyRange, second: KeyRange, key: EntityKey
) -> None:
    assert first.clip(second).contains(key) == (first.contains(key) and second.contains(key))


@given(RANGES, KEYS, KEYS)
def test_starting_later_drops_what_lies_before(
    span: KeyRange, start: EntityKey, key: EntityKey
) -> None:
    assert span.starting_at(start).contains(key) == (span.contains(key) and key >= start)


@given(TEXTS, KEYS)
def test_the_range_of_a_partition_holds_its_keys_and_no_other(
    partition_key: str, key: EntityKey
) -> None:
    span = KeyRange.of_partition(partition_key)

    assert span.contains(key) == (key.partition_key == partition_key)
    assert span.single_partition() == partition_key


@given(RANGES, KEYS)
def test_a_single_partition_is_the_only_one_in_its_range(span: KeyRange, key: EntityKey) -> None:
    single = span.single_partition()

    if single is not None and span.contains(key):
        assert key.partition_key == single


def test_a_range_over_partitions_has_no_single_one() -> None:
    assert KeyRange().single_partition() is None
    assert KeyRange(EntityKey("a", "x"), EntityKey("b", "x")).single_partition() is None
    assert KeyRange(EntityKey("a", "x"), EntityKey("a", "y")).single_partition() == "a"
