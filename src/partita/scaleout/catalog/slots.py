"""Leases of slots, one for each front end: the lowest bits of all its stamps.

A lease lasts a day and is renewed each hour; for another day after its end no other front end gets
the slot. A graceful stop gives it back at once, with a floor: the next holder's stamps are later.
While a lease lasts, the stored floor is its end, because a crash leaves no other.
"""

import uuid

from partita.errors import UnavailableError
from partita.scaleout.catalog.fleet_clock import CLOSE_SECONDS_MAX, SLOTS_MAX, FleetClock, Lease
from partita.scaleout.connections.pool import Pool
from partita.ticks import SECONDS_PER_DAY, TICKS_PER_DAY, TICKS_PER_SECOND

LEASE_SECONDS = SECONDS_PER_DAY
QUARANTINE_TICKS = TICKS_PER_DAY
RENEW_SECONDS = 3600.0

_LEASE_TICKS = LEASE_SECONDS * TICKS_PER_SECOND
_TAKE = "SELECT slot, floor FROM partita.take_slot_1($1, $2, $3, $4, $5, $6)"
_RENEW = """
UPDATE partita.slot
   SET expires_at = partita.ticks_1() + $3, free_at = partita.ticks_1() + $3 + $4,
       floor = greatest(floor, $5)
 WHERE id = $1 AND holder = $2 RETURNING id
"""
_GIVE_BACK = """
UPDATE partita.slot SET holder = NULL, expires_at = 0, free_at = 0, floor = $3
 WHERE id = $1 AND holder = $2
"""


class Slots:
    """The slot of one front end; it moves the lease of its clock."""

    def __init__(self, pool: Pool, clock: FleetClock, holder: uuid.UUID) -> None:
        self._pool = pool
        self._clock = clock
        self._holder = holder
        self._renewed = float("-inf")
        """When the lease was taken or renewed, by monotonic time."""

    @property
    def must_renew(self) -> bool:
        return self._clock.lease_clock.monotonic() - self._renewed >= RENEW_SECONDS

    async def take(self) -> None:
        """Lease a slot; raise UnavailableError if there is none."""
        ends, ends_at = self._end()
        rows = await self._pool.write(
            _TAKE,
            self._holder,
            SLOTS_MAX,
            _LEASE_TICKS,
            QUARANTINE_TICKS,
            self._clock.last_stamp + _LEASE_TICKS,
            int(CLOSE_SECONDS_MAX * TICKS_PER_SECOND),
        )
        if not rows:
            raise UnavailableError(
                "StoreSlotsTaken",
                f"All {SLOTS_MAX} slots of the fleet are taken.",
                facts={"slots": SLOTS_MAX},
                hint="A front end that was killed keeps its slot for two days. Stop front ends with"
                " SIGTERM, and find out why some restart so often.",
            )
        self._use(Lease(rows[0]["slot"], rows[0]["floor"], ends, ends_at))

    async def renew(self) -> None:
        """Renew the lease; take another slot if this one was given to another front end."""
        lease = self._clock.lease
        if lease is not None:
            ends, ends_at = self._end()
            floor = self._clock.last_stamp + _LEASE_TICKS
            rows = await self._pool.write(
                _RENEW, lease.slot, self._holder, _LEASE_TICKS, QUARANTINE_TICKS, floor
            )
            if rows:
                self._use(Lease(lease.slot, lease.floor, ends, ends_at))
                return
            self._clock.use(None)
        await self.take()

    async def give_back(self) -> None:
        """Let another front end have the slot; no stamps are made afterwards."""
        lease = self._clock.lease
        self._clock.use(None)
        if lease is not None:
            floor = max(lease.floor, self._clock.last_stamp)
            await self._pool.write(_GIVE_BACK, lease.slot, self._holder, floor)

    def _end(self) -> tuple[float, int]:
        # Read before the database is asked: its lease ends later than this one.
        clock = self._clock.lease_clock
        return clock.monotonic() + LEASE_SECONDS, clock.ticks() + _LEASE_TICKS

    def _use(self, lease: Lease) -> None:
        self._clock.use(lease)
        self._renewed = self._clock.lease_clock.monotonic()
