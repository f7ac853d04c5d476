"""The clock of one account's database: it does not go back, also across restarts.

A mark later than all stamps is written ahead, in the database's own transactions; after a restart
the clock continues from it. While the wall clock is behind (it was set back), this clock runs at
half speed until the wall clock has caught up.
"""

import apsw

from partita.storage.database import Database
from partita.ticks import TICKS_PER_SECOND, Clock

FORMAT_VERSION = 1
SCHEMA = "CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), mark INTEGER NOT NULL)"

TICKS_RESERVED = TICKS_PER_SECOND
"""How far ahead the mark is written."""
TICKS_PER_SECOND_AHEAD = TICKS_PER_SECOND // 2
"""The speed while the wall clock is behind."""

_SET = "INSERT INTO clock VALUES (1, ?) ON CONFLICT DO UPDATE SET mark = max(mark, excluded.mark)"


class StoreClock:
    """One for each database, shared by all stores on it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.clock = clock
        """The source of time and randomness."""
        database.prepare("clock", FORMAT_VERSION, SCHEMA)
        self._last: int = database.reader.execute("SELECT mark FROM clock").get or 0
        """The last stamp; at start, the stored mark."""
        self._reserved = 0
        """Stamps stay below this mark until a later one is written."""
        self._lead = self._last
        """The latest time of the wall clock, ..."""
        self._lead_since = clock.monotonic()
        """... and when that was."""
        database.on_begin.append(self._reserve)
        database.on_rollback.append(self._forget_reserve)

    def not_before(self, mark: int) -> None:
        """Continue from this time if it is later: a mark that was stored elsewhere."""
        self._last = max(self._last, mark)
        self._lead = max(self._lead, mark)

    def now(self) -> int:
        """Return the ticks for a read: not before any earlier stamp or read.

        A restart may go back behind earlier reads, but not behind stamps.
        """
        monotonic = self.clock.monotonic()
        ahead = self._lead + int((monotonic - self._lead_since) * TICKS_PER_SECOND_AHEAD)
        wall = self.clock.ticks()
        if wall < ahead:
            return max(ahead, self._last)
        self._lead, self._lead_since = wall, monotonic
        return max(wall, self._last)

    def next(self) -> int:
        """Return the stamp of a change, in its transaction: later than all earlier ones."""
        # A wall clock that jumped ahead must not move the stamp past the mark.
        self._last = max(min(self.now(), self._reserved), self._last + 1)
        return self._last

    def _reserve(self, connection: apsw.Connection) -> None:
        upcoming = self.now() + TICKS_RESERVED // 2
        if upcoming > self._reserved:
            self._reserved = upcoming + TICKS_RESERVED // 2
            connection.execute(_SET, (self._reserved,))

    def _forget_reserve(self) -> None:
        self._reserved = 0
