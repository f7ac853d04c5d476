"""A picture in a terminal: half blocks in 24-bit or 256 colours, or plain characters; pure.

The greatest keys are at the top, as in a chart; time goes to the right.
"""

import enum
from collections.abc import Iterator

from partita.heat.drawing.colours import Colour, colour, level, ticks
from partita.heat.drawing.labels import key_text, rate_text, time_marks
from partita.heat.drawing.picture import Picture

LABEL_COLUMNS = 24
"""The width of the keys on the left."""
SHADES = " .:-=+*#%@"
"""Without colours, from nothing to the peak."""
_RESET = "\x1b[0m"
_UPPER = "▀"


class Colours(enum.Enum):
    """What a terminal can show."""

    NONE = "none"
    SOME = "256"
    ALL = "24-bit"


def colours_of(*, has_colours: bool, colorterm: str) -> Colours:
    """Return what a terminal can show; `colorterm` is its variable COLORTERM."""
    if not has_colours:
        return Colours.NONE
    return Colours.ALL if colorterm in ("truecolor", "24bit") else Colours.SOME


def size_of(columns: int, lines: int, colours: Colours) -> tuple[int, int]:
    """Return the rows and columns of a picture that fits into a terminal of this size."""
    height = max(8, min(lines - 12, 32))
    return height if colours is Colours.NONE else 2 * height, max(20, columns - LABEL_COLUMNS - 2)


def print_picture(picture: Picture, colours: Colours) -> list[str]:
    """Return the lines of a picture with its keys, times and scale."""
    levels = [[level(rate, picture.peak) for rate in reversed(column)] for column in picture.cells]
    rows = list(reversed(picture.rows))
    per_line = 1 if colours is Colours.NONE else 2
    lines = []
    for top in range(0, len(rows), per_line):
        label = key_text(rows[top].first, LABEL_COLUMNS) if (top // per_line) % 3 == 0 else ""
        lines.append(f"{label:>{LABEL_COLUMNS}} " + "".join(_line(levels, top, colours)))
    lines.append(" " * (LABEL_COLUMNS + 1) + _times(picture))
    lines.append(" " * (LABEL_COLUMNS + 1) + _scale(picture, colours))
    return lines


def _line(levels: list[list[float]], top: int, colours: Colours) -> Iterator[str]:
    if colours is Colours.NONE:
        for column in levels:
            place = round(column[top] * (len(SHADES) - 1))
            yield SHADES[max(1, place) if column[top] else 0]
        return
    before = None
    for column in levels:
        upper = colour(column[top])
        lower = colour(column[top + 1]) if top + 1 < len(column) else (0, 0, 0)
        if (upper, lower) != before:
            yield _escape(38, upper, colours) + _escape(48, lower, colours)
            before = upper, lower
        yield _UPPER
    yield _RESET


def _escape(place: int, found: Colour, colours: Colours) -> str:
    if colours is Colours.ALL:
        return f"\x1b[{place};2;{found[0]};{found[1]};{found[2]}m"
    red, green, blue = (round(part / 255 * 5) for part in found)
    return f"\x1b[{place};5;{16 + 36 * red + 6 * green + blue}m"


def _times(picture: Picture) -> str:
    line = ""
    for place, text in time_marks(picture, max(1, len(picture.cells) // 14)):
        if len(line) <= round(place):
            line = f"{line:<{round(place)}}└{text} "
    return line.rstrip()


def _scale(picture: Picture, colours: Colours) -> str:
    parts = []
    for found, rate in reversed(ticks(picture.peak)):
        if colours is Colours.NONE:
            shade = SHADES[max(1, round(max(0.02, found) * (len(SHADES) - 1)))]
        else:
            shade = _escape(38, colour(max(0.02, found)), colours) + "██" + _RESET
        parts.append(f"{shade} {rate_text(rate)}")
    return "  ".join([*parts, picture.unit])
