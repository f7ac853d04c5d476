"""Texts longer than one property can hold, split over several properties of one row."""

from collections.abc import Mapping

from partita.patterns.protocol.values import Value
from partita.tables import limits

CHUNK_CHARACTERS = limits.PROPERTY_BYTES_MAX // 4
"""Characters per piece: a piece fits even if each character takes two UTF-16 units."""


def cut(name: str, text: str) -> dict[str, Value]:
    """Return the properties `name0`, `name1`, ... that hold a text.

    >>> join("Ids", cut("Ids", "1,2,3"))
    '1,2,3'
    """
    starts = range(0, max(len(text), 1), CHUNK_CHARACTERS)
    return {
        f"{name}{place}": text[start : start + CHUNK_CHARACTERS]
        for place, start in enumerate(starts)
    }


def join(name: str, properties: Mapping[str, Value]) -> str:
    """Return the text that `cut` split."""
    pieces: list[str] = []
    while isinstance(piece := properties.get(f"{name}{len(pieces)}"), str):
        pieces.append(piece)
    return "".join(pieces)


def is_piece(name: str, property_name: str) -> bool:
    """Return whether a property is one of those that `cut` makes.

    >>> is_piece("Ids", "Ids0"), is_piece("Ids", "Idsizes")
    (True, False)
    """
    return property_name.startswith(name) and property_name.removeprefix(name).isdecimal()
