"""A picture as PNG; Pillow draws it (extra `ops`)."""

import io

from PIL import Image, ImageDraw, ImageFont

from partita.heat.drawing.colours import colour, level, ticks
from partita.heat.drawing.frame import BACKGROUND, FONT_PIXELS, GRID, INK, QUIET, Frame, frame_of
from partita.heat.drawing.labels import rate_text
from partita.heat.drawing.picture import Picture

COLOURS = 128
"""Colours of the file."""


def png(picture: Picture, title: str) -> bytes:
    """Return the file."""
    frame = frame_of(picture)
    image = Image.new("RGB", (frame.width, frame.height), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    image.paste(_cells(picture, frame), (frame.left, frame.top))
    font, large = ImageFont.load_default(FONT_PIXELS), ImageFont.load_default(16)
    canvas.text((frame.left, 12), title, INK, large)
    for y, text in frame.keys:
        canvas.text((frame.left - 8, y), text, INK, font, anchor="rm")
    bottom = frame.top + frame.inner_height
    for x, text in frame.times:
        canvas.line((x, bottom, x, bottom + 5), GRID)
        canvas.text((x, bottom + 8), text, INK, font, anchor="ma")
    _scale(canvas, font, picture, frame)
    file = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def _cells(picture: Picture, frame: Frame) -> Image.Image:
    columns, rows = max(1, len(picture.cells)), max(1, len(picture.rows))
    small = Image.new("RGB", (columns, rows))
    small.putdata(
        [
            colour(level(column[row], picture.peak))
            for row in range(len(picture.rows) - 1, -1, -1)
            for column in picture.cells
        ]
        or [(0, 0, 0)]
    )
    return small.resize((frame.inner_width, frame.inner_height), Image.Resampling.NEAREST)


def _scale(
    canvas: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    picture: Picture,
    frame: Frame,
) -> None:
    x = frame.scale_left
    for step in range(frame.inner_height):
        y = frame.top + frame.inner_height - 1 - step
        canvas.line((x, y, x + 12, y), colour(max(0.01, step / frame.inner_height)))
    for found, rate in ticks(picture.peak):
        place = frame.top + frame.inner_height * (1 - found)
        canvas.text((x + 18, place), rate_text(rate), INK, font, anchor="lm")
    canvas.text((x, frame.top - 8), picture.unit, QUIET, font, anchor="ls")
