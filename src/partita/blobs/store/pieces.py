"""Arithmetic of pieces: the bytes of a content, by their places. Pure."""

from collections import deque
from collections.abc import Iterator, Sequence

from partita.blobs.store.contract import PieceRow


def pieces_within(pieces: Sequence[PieceRow], first: int, end: int) -> deque[PieceRow]:
    """Return the pieces that contain bytes of a range: maybe many, so call it in a thread."""
    return deque(each for each in pieces if each.place < end and each.place + each.size > first)


def needed(piece: PieceRow, first: int, end: int) -> tuple[int, int, int]:
    """Return the bytes of a piece in a range: place in the blob, start and end in the extent."""
    place = max(piece.place, first)
    start = piece.start + place - piece.place
    return place, start, piece.start + min(piece.size, end - piece.place)


def remains(piece: PieceRow, first: int, end: int) -> Iterator[PieceRow]:
    """Return what is left of a piece when a range is cut out of it."""
    before, behind = first - piece.place, piece.place + piece.size - end
    if before > 0:
        yield piece._replace(size=before)
    if behind > 0:
        yield PieceRow(end, behind, piece.start + piece.size - behind, piece.extent)
