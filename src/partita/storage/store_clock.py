"""The clock of one account's database: it does not go back, also across restarts.

A mark later than all stamps is written ahead, in the database's own transactions; after a restart
the clock continues from it. While the wall clock is behind (it was set back), this clock runs at
half speed until the wall clock has caught up.

A forward leap of the wall clock would expire everything for good, because this clock does not go
back. So a leap is not followed until it is confirmed: until it has lasted for some time, or the
process was restarted. Periods that begin and end in one run (leases, hidden messages) are measured
with `steady`, which no leap changes.
"""

import apsw

from partita.clock import LeapCheckedClock
from partita.storage.database import Database
from partita.ticks import TICKS_PER_SECOND, Clock

FORMAT_VERSION = 1
SCHEMA = "CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), mark INTEGER NOT NULL)"

STEADY_FORMAT_VERSION = 1
STEADY_SCHEMA = (
    "CREATE TABLE steady_clock (id INTEGER PRIMARY KEY CHECK (id = 1), mark INTEGER NOT NULL)"
)

TICKS_RESERVED = TICKS_PER_SECOND
"""How far ahead the mark is written."""
TICKS_PER_SECOND_AHEAD = TICKS_PER_SECOND // 2
"""The speed while the wall clock is behind."""

_SET = "INSERT INTO clock VALUES (1, ?) ON CONFLICT DO UPDATE SET mark = max(mark, excluded.mark)"
_SET_STEADY = _SET.replace("clock", "steady_clock")


class StoreClock:
    """One for each database, shared by all stores on it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.clock = clock
        """The source of time and randomness."""
        self._checked = LeapCheckedClock(clock)
        database.prepare("clock", FORMAT_VERSION, SCHEMA)
        self._last: int = database.reader.execute("SELECT mark FROM clock").get or 0
        """The last stamp; at start, the stored mark."""
        self._reserved = 0
        """Stamps stay below this mark until a later one is written."""
        self._lead = max(self._last, clock.ticks())
        """The latest time of the wall clock, ..."""
        self._lead_since = clock.monotonic()
        """... and when that was."""
        database.prepare("steady clock", STEADY_FORMAT_VERSION, STEADY_SCHEMA)
        steady: int = database.reader.execute("SELECT mark FROM steady_clock").get or 0
        self._steady = max(self._lead, steady)
        """The steady time when this clock was opened, ..."""
        self._steady_since = self._lead_since
        """... and when that was."""
        self._last_steady = 0
        self._steady_reserved = 0
        database.on_begin.append(self._reserve)
        database.on_rollback.append(self._forget_reserve)

    def not_before(self, mark: int) -> None:
        """Continue from this time if it is later: a mark that was stored elsewhere."""
        self._last = max(self._last, mark)
        self._lead = max(self._lead, mark)
        self._steady = max(self._steady, mark)

    def now(self) -> int:
        """Return the ticks for a read: not before any earlier stamp or read.

        A restart may go back behind earlier reads, but not behind stamps.
        """
        monotonic = self.clock.monotonic()
        elapsed = monotonic - self._lead_since
        ahead = self._lead + int(elapsed * TICKS_PER_SECOND_AHEAD)
        wall = self._checked.ticks()
        if wall < ahead:
            return max(ahead, self._last)
        self._lead, self._lead_since = wall, monotonic
        last = self._last
        return wall if wall > last else last  # noqa: FURB136 - a call costs as much as the rest

    def steady(self) -> int:
        """Return the ticks by which leases and hidden messages end: only monotonic time counts.

        A restart continues after everything that was measured before, or from the wall clock.
        """
        elapsed = self.clock.monotonic() - self._steady_since
        return max(self._steady + int(elapsed * TICKS_PER_SECOND), self._last_steady)

    def next_steady(self) -> int:
        """Return the steady time of a change, later than that of all earlier changes."""
        self._last_steady = max(self.steady(), self._last_steady + 1)
        return self._last_steady

    def next(self) -> int:
        """Return the stamp of a change, in its transaction: later than all earlier ones."""
        now, last = self.now(), self._last
        if now > self._reserved:  # noqa: PLR1730 - as above
            now = self._reserved  # a wall clock that jumped ahead must not move it past the mark
        self._last = now = now if now > last else last + 1
        return now

    def _reserve(self, connection: apsw.Connection) -> None:
        upcoming = self.now() + TICKS_RESERVED // 2
        if upcoming > self._reserved:
            self._reserved = upcoming + TICKS_RESERVED // 2
            connection.execute(_SET, (self._reserved,))
        upcoming = self.steady() + TICKS_RESERVED // 2
        if upcoming > self._steady_reserved:
            self._steady_reserved = upcoming + TICKS_RESERVED // 2
            connection.execute(_SET_STEADY, (self._steady_reserved,))

    def _forget_reserve(self) -> None:
        self._reserved = self._steady_reserved = 0
