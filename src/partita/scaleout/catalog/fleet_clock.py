"""The clock of one front end: stamps that no other front end makes, and the catalog's time.

A stamp has the number of the front end's slot in its lowest bits, and the catalog's time above
them, estimated from the last comparison and monotonic time. So wall clocks that are wrong do not
matter to stamps, not even when an entity is deleted here and inserted again elsewhere:

    63                      13 12           0
    +-------------------------+-------------+
    | ticks / 8192 (quantum)  |    slot     |
    +-------------------------+-------------+

So two front ends never make the same stamp. Within a front end a key gets each quantum once, and
quanta do not go back: while the time is behind, they go on at half speed until it has caught up.
The database refuses a stamp that is not later than the stored one; `observe` then moves the key
ahead, and the whole front end too if the difference is within `CLOSE_SECONDS_MAX`. More is the
fault of one clock, or of copied entities: other keys do not follow it.
"""

from collections.abc import Hashable

import msgspec

from partita.errors import StoreStoppedError
from partita.ticks import TICKS_PER_SECOND, Clock

SLOT_BITS = 13
SLOTS_MAX = 1 << SLOT_BITS
CLOSE_SECONDS_MAX = 1.0
"""A front end whose clock is further from the catalog's is not ready."""
KEYS_KEPT = 4096
"""Keys whose last quantum is remembered before those in the past are dropped."""
KEYS_AHEAD_MAX = 65_536
"""Above this many keys with stamps in the future, the whole clock moves ahead of them."""

_HALF_SPEED = TICKS_PER_SECOND // 2
_CLOSE_QUANTA = int(CLOSE_SECONDS_MAX * TICKS_PER_SECOND) >> SLOT_BITS


class Lease(msgspec.Struct, frozen=True):
    """A slot that this front end has: no other front end gets it until a day after its end."""

    slot: int
    floor: int
    """No earlier holder made a later stamp."""
    ends: float
    """By monotonic time, and ..."""
    ends_at: int
    """... by the wall clock: monotonic time stops while a machine is suspended."""


class Comparison(msgspec.Struct, frozen=True):
    """The catalog's clock and this one, read at the same moment."""

    catalog: int
    wall: int
    monotonic: float


class FleetClock:
    """One for each front end. `lease_clock` judges leases, by default the same clock."""

    def __init__(
        self, clock: Clock, *, lease_clock: Clock | None = None, checks_clock: bool = True
    ) -> None:
        self.clock = clock
        """The source of time and randomness."""
        self.lease_clock = lease_clock or clock
        self.checks_clock = checks_clock
        self.lease: Lease | None = None
        self._lead = 0
        """The latest quantum of the time, or that others were ahead, ..."""
        self._lead_since = clock.monotonic()
        """... and when that was."""
        self._last = 0
        """The latest quantum of any stamp."""
        self._stamped: dict[Hashable, int] = {}
        """The last quantum of each key whose quantum may not have passed."""
        self._stamped_max = KEYS_KEPT
        self._comparison: Comparison | None = None
        self._last_now = 0

    # Stamps

    def use(self, lease: Lease | None) -> None:
        """Make stamps with a slot, after all stamps of its earlier holders; None: no stamps."""
        if lease is not None and (self.lease is None or self.lease.slot != lease.slot):
            self._move_ahead(lease.floor >> SLOT_BITS)
        self.lease = lease

    @property
    def has_slot(self) -> bool:
        lease, clock = self.lease, self.lease_clock
        return (
            lease is not None and clock.monotonic() < lease.ends and clock.ticks() < lease.ends_at
        )

    def stamp(self, *keys: Hashable) -> int:
        """Return the ticks of a change: later than those of all earlier changes of its keys here.

        Raise StoreStoppedError if the slot was lost.
        """
        lease, clock = self.lease, self.lease_clock
        if (  # as has_slot, without its call: this is the hot path of every write
            lease is None or clock.monotonic() >= lease.ends or clock.ticks() >= lease.ends_at
        ):
            raise _slot_lost()
        quantum = self._quantum()
        stamped = self._stamped
        if quantum > self._last:
            stamped.clear()
            self._last = quantum
        elif stamped:
            for key in keys:
                if (last := stamped.get(key)) is not None and last >= quantum:
                    quantum = last + 1
        for key in keys:
            stamped[key] = quantum
        self._remembered(quantum)
        return quantum << SLOT_BITS | lease.slot

    def observe(self, ticks: int, key: Hashable = None) -> None:
        """Make later stamps of a key later than the ticks found; without a key, all stamps."""
        found = ticks >> SLOT_BITS
        if key is None or 0 <= found - self._quantum() <= _CLOSE_QUANTA:
            self._move_ahead(found)
        elif found > self._stamped.get(key, -1):
            self._stamped[key] = found
            self._remembered(found)

    @property
    def last_stamp(self) -> int:
        """No stamp made so far is later."""
        return ((max(self._last, self._quantum()) + 1) << SLOT_BITS) - 1

    def _quantum(self) -> int:
        """Return the present quantum; it never goes back."""
        monotonic = self.clock.monotonic()
        now = self._time(monotonic) >> SLOT_BITS
        elapsed = int((monotonic - self._lead_since) * _HALF_SPEED)
        ahead = self._lead + (elapsed >> SLOT_BITS)
        if now < ahead:
            return ahead
        self._lead, self._lead_since = now, monotonic
        return now

    def _move_ahead(self, quantum: int) -> None:
        """Make all later stamps later than a quantum."""
        if quantum >= self._quantum():
            self._lead, self._lead_since = quantum + 1, self.clock.monotonic()

    def _remembered(self, quantum: int) -> None:
        """Note the quantum of keys that were stamped; drop those in the past if there are many."""
        self._last = max(self._last, quantum)
        if len(self._stamped) > self._stamped_max:
            now = self._quantum()
            self._stamped = {key: last for key, last in self._stamped.items() if last >= now}
            if len(self._stamped) > KEYS_AHEAD_MAX:
                self._move_ahead(self._last)
                self._stamped.clear()
            self._stamped_max = max(KEYS_KEPT, 2 * len(self._stamped))

    # The catalog's time

    def compare(self, before: Comparison, after: Comparison) -> None:
        """Take the catalog's clock, read between two readings of this one (with catalog 0).

        A slow answer tells too little.
        """
        if after.monotonic - before.monotonic <= CLOSE_SECONDS_MAX or self._comparison is None:
            self._comparison = Comparison(
                after.catalog,
                (before.wall + after.wall) // 2,
                (before.monotonic + after.monotonic) / 2,
            )

    def reading(self, catalog: int = 0) -> Comparison:
        """Read this clock, for `compare`."""
        return Comparison(catalog, self.clock.ticks(), self.clock.monotonic())

    def now(self) -> int:
        """Return the catalog's time; it does not go back. Without a comparison, the wall clock."""
        self._last_now = max(self._last_now, self._time(self.clock.monotonic()))
        return self._last_now

    def _time(self, monotonic: float) -> int:
        """Return the catalog's time as it is known now; a comparison may set it back."""
        if (last := self._comparison) is None:
            return self.clock.ticks()
        return last.catalog + int((monotonic - last.monotonic) * TICKS_PER_SECOND)

    @property
    def seconds_apart(self) -> float:
        """How far this wall clock was ahead of the catalog's at the last comparison."""
        last = self._comparison
        return 0.0 if last is None else (last.wall - last.catalog) / TICKS_PER_SECOND

    @property
    def is_close(self) -> bool:
        return not self.checks_clock or abs(self.seconds_apart) <= CLOSE_SECONDS_MAX


def _slot_lost() -> StoreStoppedError:
    return StoreStoppedError(
        "StoreSlotLost",
        "This front end has no slot: it makes no stamps until it has one.",
        hint="The database was away for a day, or this process was stopped. It asks for another"
        " slot by itself; else restart it.",
    )
