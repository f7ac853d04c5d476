"""The colours of a picture: a logarithmic scale from black (nothing) to bright; pure."""

import math

STOPS = (
    (12, 8, 38),
    (59, 15, 112),
    (140, 41, 129),
    (222, 73, 104),
    (254, 159, 109),
    (252, 253, 191),
)
"""From little to much."""
NOTHING = (0, 0, 0)
DECADES = 3
"""The scale ends at the peak and begins at a thousandth of it."""

Colour = tuple[int, int, int]


def level(rate: float, peak: float) -> float:
    """Return where a rate is on the scale: 0 to 1; 0 only for nothing."""
    if rate <= 0 or peak <= 0:
        return 0.0
    return max(0.02, 1 + math.log10(rate / peak) / DECADES)


def colour(found: float) -> Colour:
    """Return the colour of a level."""
    if found <= 0:
        return NOTHING
    place = min(found, 1.0) * (len(STOPS) - 1)
    start = min(int(place), len(STOPS) - 2)
    low, high, part = STOPS[start], STOPS[start + 1], place - start
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue


def ticks(peak: float) -> list[tuple[float, float]]:
    """Return levels and rates of the marks of the scale, from the peak down."""
    return [(1 - step / DECADES, peak / 10**step) for step in range(DECADES + 1) if peak > 0]
