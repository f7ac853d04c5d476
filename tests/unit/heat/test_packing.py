"""An axis that was packed is read back as it was; anything else is refused."""

import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError
from partita.heat.axes import COUNTERS, Axis, Bucket
from partita.heat.limits import BUCKETS_MAX, KEY_CHARACTERS_MAX, UNPACKED_BYTES_MAX
from partita.heat.packing import VERSION, pack, unpack

ANY_TEXT = st.text(st.characters(), max_size=40)
"""All characters, also surrogates that are not in a pair."""


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    keys = sorted(draw(st.sets(ANY_TEXT, max_size=40)))
    counts = st.tuples(*[st.integers(0, 2**70)] * len(COUNTERS))
    return [Bucket(key, key + draw(ANY_TEXT), draw(counts)) for key in keys]


@given(axes())
def test_a_packed_axis_is_read_as_it_was(axis: Axis) -> None:
    assert unpack(pack(axis)) == axis


@given(st.binary(max_size=200))
def test_other_bytes_are_damage_or_an_axis(found: bytes) -> None:
    for packed in (found, bytes([VERSION]) + found, bytes([VERSION]) + zlib.compress(found)):
        with contextlib.suppress(DamageError):
            unpack(packed)


@given(axes(), st.data())
def test_a_cut_axis_is_damaged(axis: Axis, drawn: st.DataObject) -> None:
    packed = pack(axis)
    cut = drawn.draw(st.integers(0, len(packed) - 1))

    with pytest.raises(DamageError):
        unpack(packed[:cut])


def test_an_axis_that_inflates_beyond_the_limit_is_refused() -> None:
    bomb = bytes([VERSION]) + zlib.compress(bytes(UNPACKED_BYTES_MAX + 1))

    with pytest.raises(DamageError):
        unpack(bomb)


def test_a_number_without_an_end_is_refused() -> None:
    endless = bytes([VERSION]) + zlib.compress(b"\xff" * (UNPACKED_BYTES_MAX - 1))

    with pytest.raises(DamageError):
        unpack(endless)


def test_the_largest_axis_can_be_read() -> None:
    keys = [chr(0x1F600 + number % 64) * (KEY_CHARACTERS_MAX - 1) for number in range(BUCKETS_MAX)]
    counts = (2**63,) * len(COUNTERS)
    axis = [
        Bucket(chr(number + 256) + key, chr(number + 256) + key, counts)
        for number, key in enumerate(keys)
    ]

    assert unpack(pack(axis)) == axis


def test_an_axis_of_a_busy_minute_is_small() -> None:
    counts = (3500, 0, 12, 3_500_000, 12_000)
    axis = [
        Bucket(
            f"tenant{number:04}\0order-{number * 977:08}",
            f"tenant{number:04}\0order-{number * 977 + 900:08}",
            counts,
        )
        for number in range(BUCKETS_MAX)
    ]

    assert len(pack(axis)) < 5000
