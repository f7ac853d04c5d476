from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, InvalidKeyError
from partita.keys import Key, decode_key, encode_key, inverted_ticks, pad, prefix_range

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.integers() | st.integers(-(2**70), 2**70) | st.integers(-300, 300)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-3, 3, places=2)
MOMENTS = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
)
TYPES: list[st.SearchStrategy[Key]] = [
    st.booleans(),
    INTEGERS,
    DECIMALS,
    TEXTS,
    st.binary() | st.binary(max_size=3).map(lambda raw: b"\x00" + raw),
    st.uuids(),
    st.dates(),
    MOMENTS,
    st.floats(allow_nan=False),
    st.timedeltas(),
    st.times(),
    st.datetimes(),
    st.tuples(TEXTS, INTEGERS),
    st.lists(INTEGERS, max_size=3).map(tuple),
    st.lists(TEXTS, max_size=3).map(tuple),
]
PAIRS = st.sampled_from(TYPES).flatmap(lambda one: st.tuples(one, one))
KEYS = st.one_of(*TYPES, st.tuples(*TYPES))


@given(PAIRS)
def test_bytes_order_as_values_do(pair: tuple[Key, Key]) -> None:
    first, second = pair

    assert (encode_key(first) < encode_key(second)) == (first < second)  # type: ignore[operator]
    assert (encode_key(first) == encode_key(second)) == (first == second)


@given(KEYS)
def test_a_key_reads_back_as_it_was(key: Key) -> None:
    decoded = decode_key(encode_key(key))

    assert decoded == key
    assert type(decoded) is type(key)


@given(KEYS, KEYS)
def test_no_encoding_is_the_prefix_of_another(first: Key, second: Key) -> None:
    if encode_key(first) != encode_key(second):
        assert not encode_key(second).startswith(encode_key(first))


@pytest.mark.parametrize("exponent", [7, 8, 63, 64, 1007, 1008, 1016, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_order_around_every_change_of_length(exponent: int, sign: int) -> None:
    numbers = sorted(sign * (2**exponent + step) for step in (-1, 0, 1))

    encoded = [encode_key(number) for number in numbers]

    assert encoded == sorted(encoded)
    assert [decode_key(key) for key in encoded] == numbers


def test_a_shorter_tuple_comes_before_the_longer_one_it_begins() -> None:
    assert encode_key(("a",)) < encode_key(("a", 0)) < encode_key(("a\x00",))


def test_a_nested_tuple_ends_before_what_follows_it() -> None:
    assert encode_key((("a",), "z")) < encode_key((("a", "b"), "a"))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (False, "0400"),
        (0, "0880"),
        (258, "08820102"),
        (-1, "087efe"),
        ("a\x00", "106100ff0000"),
        (b"", "140000"),
        (UUID(int=1), "1800000000000000000000000000000001"),
        (date(1, 1, 1), "1c00000001"),
        (datetime(1970, 1, 1, tzinfo=UTC), "2080"),
        (Decimal("1.50"), "0cc080313500"),
        ((True,), "24040100"),
        (1.5, "28bff8000000000000"),
        (-1.5, "284007ffffffffffff"),
        (-0.0, "288000000000000000"),
        (timedelta(seconds=1), "2c830f4240"),
        (time(0, 0, 1), "30830f4240"),
        (datetime(1970, 1, 1, 0, 0, 1), "34830f4240"),  # noqa: DTZ001 - the naive one is the point
    ],
)
def test_the_stored_form_does_not_change(value: Key, encoded: str) -> None:
    assert encode_key(value).hex() == encoded


@pytest.mark.parametrize(
    "value",
    [
        None,
        float("nan"),
        Decimal("NaN"),
        Decimal("Infinity"),
        time(1, tzinfo=UTC),
        "\ud800",
        ("a", None),
        [1],
    ],
)
def test_a_value_without_an_order_is_refused(value: Key) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        encode_key(value)

    assert caught.value.code == "InvalidInput"


@given(st.binary(max_size=12))
def test_any_bytes_decode_to_a_key_or_are_called_damage(raw: bytes) -> None:
    try:
        decoded = decode_key(raw)
    except DamageError:
        return
    assert decode_key(encode_key(decoded)) == decoded


@given(KEYS, st.data())
def test_a_cut_key_is_called_damage(key: Key, data: st.DataObject) -> None:
    encoded = encode_key(key)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]

    with pytest.raises(DamageError):
        decode_key(cut)


@given(st.integers(0, 99_999), st.integers(0, 99_999))
def test_padded_numbers_order_as_text(first: int, second: int) -> None:
    assert (pad(first, 5) < pad(second, 5)) == (first < second)


@pytest.mark.parametrize("number", [-1, 1000])
def test_a_number_wider_than_its_key_is_refused(number: int) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        pad(number, 3)

    assert caught.value.code == "OutOfRangeInput"


def test_inverted_ticks_are_those_of_dotnet() -> None:
    assert inverted_ticks(0) == "2534023007999999999"
    assert inverted_ticks(17_040_672_000_000_000) == "2516982335999999999"  # 2024-01-01


@given(st.integers(0, 10**17), st.integers(1, 10**17))
def test_the_later_time_comes_first(ticks: int, later: int) -> None:
    assert inverted_ticks(ticks + later) < inverted_ticks(ticks)


@given(TEXTS, TEXTS)
def test_a_prefix_range_holds_what_starts_with_the_prefix(prefix: str, text: str) -> None:
    lower, upper = prefix_range(prefix)

    for candidate in (text, prefix + text):
        inside = lower <= candidate and (upper is None or candidate < upper)
        assert inside == candidate.startswith(prefix)


def test_a_prefix_range_steps_over_surrogates_and_the_last_character() -> None:
    assert prefix_range("a") == ("a", "b")
    assert prefix_range("a\ud7ff") == ("a\ud7ff", "a\ue000")
    assert prefix_range("a\U0010ffff") == ("a\U0010ffff", "b")
    assert prefix_range("") == ("", None)
