"""Pictures keep the load, and are drawn in every form from any keys."""

import io
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from partita.heat.axes import Bucket, fold
from partita.heat.drawing.colours import NOTHING, colour, level, ticks
from partita.heat.drawing.labels import key_text, range_text, rate_text, time_marks, title_text
from partita.heat.drawing.picture import KINDS, Picture, draw, hottest
from partita.heat.drawing.png import png
from partita.heat.drawing.svg import svg
from partita.heat.drawing.terminal import Colours, colours_of, print_picture, size_of
from partita.heat.kept import Column

START = 1_768_471_200
PARTS = st.tuples(st.text(max_size=5), st.text(max_size=5), st.integers(0, 1000))


@st.composite
def columns(draw_: st.DrawFn) -> list[Column]:
    minutes = draw_(st.lists(st.lists(PARTS, max_size=12), max_size=8))
    return [
        Column(
            START + 60 * number,
            60,
            fold(
                [
                    Bucket(min(a, b), max(a, b), (count, count // 3, count // 2, count, count))
                    for a, b, count in parts
                ]
            ),
        )
        for number, parts in enumerate(minutes)
    ]


def total_of(picture: Picture) -> float:
    return sum(map(sum, picture.cells)) * picture.step


@given(columns(), st.sampled_from([*KINDS]), st.integers(1, 30), st.integers(1, 9))
def test_a_picture_keeps_the_load_and_its_size(
    found: list[Column], kind: str, rows_max: int, columns_max: int
) -> None:
    picture = draw(found, kind, rows_max=rows_max, columns_max=columns_max)

    counts = [bucket.counts for column in found for bucket in column.axis]
    load = sum(each[place] for each in counts for place in KINDS[kind])
    assert total_of(picture) == pytest.approx(load)
    assert len(picture.rows) <= rows_max
    assert len(picture.cells) <= columns_max
    assert all(row.first <= row.last for row in picture.rows)


@given(columns())
def test_any_picture_can_be_drawn(found: list[Column]) -> None:
    picture = draw(found, "all", rows_max=20, columns_max=20)

    for colours in Colours:
        for line in print_picture(picture, colours):
            assert "\n" not in line
    ET.fromstring(svg(picture, "a < title"))
    assert Image.open(io.BytesIO(png(picture, "title"))).size == (1000, 560)


def test_old_tens_are_as_bright_as_young_minutes() -> None:
    old = Column(START, 600, [Bucket("a", "a", (600, 0, 0, 0, 0))])
    young = Column(START + 600, 60, [Bucket("a", "a", (60, 0, 0, 0, 0))])

    picture = draw([old, young], "reads", rows_max=10, columns_max=100)

    assert [column[0] for column in picture.cells] == [1.0] * 11


def test_the_hottest_ranges_are_partitions_with_their_share() -> None:
    axis = fold(
        [
            Bucket(f"p{n % 3}\0{n}", f"p{n % 3}\0{n}", (1 + 8 * (n % 3 == 1), 0, 0, 0, 0))
            for n in range(30)
        ]
    )

    first, *_rest = hottest([Column(START, 60, axis)], "all", 3)

    assert (first.first[:2], first.last[:2]) == ("p1", "p1")
    assert first.share == pytest.approx(90 / 110)
    assert first.rate == pytest.approx(1.5)


def test_colours_go_from_black_for_nothing_to_bright() -> None:
    assert colour(level(0, 100)) == NOTHING
    assert colour(level(0.0001, 100)) != NOTHING
    brightness = [sum(colour(level(rate, 1000))) for rate in (1, 3, 10, 30, 100, 300, 1000)]
    assert brightness == sorted(brightness)
    assert [rate for _level, rate in ticks(1000)] == [1000, 100, 10, 1]
    assert ticks(0) == []


def test_terminals_get_what_they_can_show() -> None:
    assert colours_of(has_colours=False, colorterm="truecolor") is Colours.NONE
    assert colours_of(has_colours=True, colorterm="truecolor") is Colours.ALL
    assert colours_of(has_colours=True, colorterm="") is Colours.SOME
    assert size_of(100, 40, Colours.NONE) == (28, 74)
    assert size_of(100, 40, Colours.ALL) == (56, 74)


def test_plain_pictures_have_no_control_characters() -> None:
    column = Column(START, 60, [Bucket("a\x1b[31m\0b", "a\x1b[31m\0b", (9, 0, 0, 0, 0))])

    lines = print_picture(draw([column], "all", rows_max=9, columns_max=9), Colours.NONE)

    assert all(line.isprintable() for line in lines)


def test_texts_are_short_and_tell_what_they_are() -> None:
    assert key_text("pk\0rk") == "pk / rk"
    assert len(key_text("x" * 1000, 30)) == 30
    assert range_text("a\x001", "a\x009") == "a / 1 … 9"
    assert range_text("a\x001", "b\x009") == "a / 1 … b / 9"
    assert [rate_text(rate) for rate in (0, 0.001, 2.34, 12_345, 5.6e6)] == [
        "0",
        "0.001",
        "2.34",
        "12.3 k",
        "5.6 M",
    ]
    picture = draw(
        [Column(START, 600, [Bucket("a", "a", (9, 0, 0, 0, 0))])], "all", rows_max=1, columns_max=10
    )
    assert title_text("Staff", picture) == "Staff: entities/s, 2026-01-15 10:00 to 10:10 UTC"
    assert [text for _place, text in time_marks(picture, 5)] == [
        "10:00",
        "10:02",
        "10:04",
        "10:06",
        "10:08",
    ]
