"""Where the parts of a drawn picture are: cells, keys, times, scale; pure."""

import msgspec

from partita.heat.drawing.labels import key_text, time_marks
from partita.heat.drawing.picture import Picture

WIDTH, HEIGHT = 1000, 560
"""Pixels of a drawing."""
LEFT, TOP, RIGHT, BOTTOM = 220, 48, 110, 46
FONT_PIXELS = 12
KEYS_SHOWN, TIMES_SHOWN = 14, 9
KEY_COLUMNS = 30
BACKGROUND, INK, QUIET, GRID = (22, 24, 29), (222, 226, 230), (150, 156, 165), (110, 116, 125)


class Frame(msgspec.Struct, frozen=True):
    """The places of the parts, in pixels."""

    width: int
    height: int
    left: int
    top: int
    inner_width: int
    inner_height: int
    scale_left: int
    keys: list[tuple[float, str]]
    """The middle of a row, and its first key."""
    times: list[tuple[float, str]]
    """The left edge of a column, and its time."""


def frame_of(picture: Picture) -> Frame:
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    rows, columns = len(picture.rows), len(picture.cells)
    count = min(KEYS_SHOWN, rows)
    shown = sorted({round(place * (rows - 1) / max(1, count - 1)) for place in range(count)})
    keys = [
        (
            TOP + inner_height - (row + 0.5) * inner_height / rows,
            key_text(picture.rows[row].first, KEY_COLUMNS),
        )
        for row in shown
    ]
    times = [
        (LEFT + place * inner_width / columns, text)
        for place, text in time_marks(picture, TIMES_SHOWN)
    ]
    return Frame(
        WIDTH, HEIGHT, LEFT, TOP, inner_width, inner_height, WIDTH - RIGHT + 24, keys, times
    )
