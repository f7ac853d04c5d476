"""What all transactions of a front end share: the clock, numbers of contents, room for blocks."""

from typing import NamedTuple

from partita.blobs.rules import limits
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.connections.link import Link
from partita.scaleout.schema.blobs import NUMBERS_TAKEN

FRONT_ENDS_STAGING = 16
"""How many front ends may stage blocks of one blob at a time without exceeding the limit of
blocks: each uses at most this part of the room that it saw before it counts again."""
ROOMS_MAX = 1024
"""Blobs whose room is remembered; more are counted again."""

_TAKE = "SELECT nextval('partita.content_id')"


class Numbers:
    """Numbers for contents and extents, taken from the database by ranges."""

    def __init__(self) -> None:
        self._next = self._end = 0

    async def take(self, link: Link) -> int:
        while self._next == self._end:
            ((first,),) = await link.read(_TAKE)
            self._next, self._end = first, first + NUMBERS_TAKEN
        self._next += 1
        return self._next - 1


class Rooms:
    """How many blocks may still be staged for a blob before they must be counted again."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, str], int] = {}

    def take(self, key: tuple[int, str]) -> bool:
        """Return whether there is room for one more block, as far as is known."""
        left = self._left.get(key, 0)
        if left:
            self._left[key] = left - 1
        return left > 0

    def counted(self, key: tuple[int, str], count: int) -> None:
        """Note how many blocks there are, before one more is staged."""
        if len(self._left) >= ROOMS_MAX:
            self._left.clear()
        self._left[key] = (limits.BLOCKS_STAGED_MAX - count) // FRONT_ENDS_STAGING


class Shared(NamedTuple):
    """One for each front end."""

    clock: FleetClock
    numbers: Numbers
    rooms: Rooms
