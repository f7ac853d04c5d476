"""A picture as SVG, written by hand; pure."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from partita.heat.drawing.colours import colour, level, ticks
from partita.heat.drawing.frame import BACKGROUND, FONT_PIXELS, GRID, INK, QUIET, Frame, frame_of
from partita.heat.drawing.labels import rate_text
from partita.heat.drawing.picture import Picture

LEVELS = 40
"""Colours that are told apart: neighbours of one colour are one rectangle."""


def svg(picture: Picture, title: str) -> str:
    """Return the document."""
    frame = frame_of(picture)
    size = f'width="{frame.width}" height="{frame.height}"'
    inner = f'width="{frame.inner_width}" height="{frame.inner_height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" fill="{_hex(BACKGROUND)}"/>',
        _text(frame.left, 22, title, anchor="start", size=16),
        f'<rect x="{frame.left}" y="{frame.top}" {inner} fill="#000"/>',
        *_cells(picture, frame),
        *(_text(frame.left - 8, y + 4, text) for y, text in frame.keys),
        *(_time(frame, x, text) for x, text in frame.times),
        *_scale(picture, frame),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _cells(picture: Picture, frame: Frame) -> Iterator[str]:
    width = frame.inner_width / max(1, len(picture.cells))
    height = frame.inner_height / max(1, len(picture.rows))
    for row in range(len(picture.rows)):
        y = frame.top + frame.inner_height - (row + 1) * height
        start, before = 0, 0
        for place in range(len(picture.cells) + 1):
            here = (
                round(level(picture.cells[place][row], picture.peak) * LEVELS)
                if place < len(picture.cells)
                else 0
            )
            if here == before:
                continue
            if before:
                yield (
                    f'<rect x="{frame.left + start * width:.1f}" y="{y:.1f}"'
                    f' width="{(place - start) * width + 0.3:.1f}" height="{height + 0.3:.1f}"'
                    f' fill="{_hex(colour(before / LEVELS))}"/>'
                )
            start, before = place, here


def _time(frame: Frame, x: float, text: str) -> str:
    bottom = frame.top + frame.inner_height
    mark = (
        f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="{_hex(GRID)}"/>'
    )
    return mark + _text(x, bottom + 18, text, anchor="middle")


def _scale(picture: Picture, frame: Frame) -> Iterator[str]:
    steps = 48
    height = frame.inner_height / steps
    for step in range(steps):
        y = frame.top + frame.inner_height - (step + 1) * height
        yield (
            f'<rect x="{frame.scale_left}" y="{y:.1f}" width="12" height="{height + 0.3:.1f}"'
            f' fill="{_hex(colour((step + 1) / steps))}"/>'
        )
    for found, rate in ticks(picture.peak):
        y = frame.top + frame.inner_height * (1 - found)
        yield _text(frame.scale_left + 18, y + 4, rate_text(rate), anchor="start")
    yield _text(frame.scale_left, frame.top - 8, picture.unit, anchor="start", ink=QUIET)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "end",
    size: int = FONT_PIXELS,
    ink: tuple[int, int, int] = INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        f' fill="{_hex(ink)}">{escape(text)}</text>'
    )


def _hex(found: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*found)
