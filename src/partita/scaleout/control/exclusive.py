"""Steps under the exclusive lock of a range, and the sessions that keep it from them.

A transaction that writes holds the shared lock of its range to its end. While the exclusive lock
waits, new writers are refused and try again, so it waits for LOCK_TIMEOUT_MS only, then lets them
pass for a moment. A session whose transaction has kept the lock for longer than
BLOCKER_SECONDS_MAX is ended: exactly that one, after such an attempt.
"""

import asyncio
import logging

from partita.errors import UnavailableError
from partita.scaleout.connections.link import Link, Rows
from partita.scaleout.connections.session import DriverError, sqlstate_of, translated
from partita.scaleout.schema.locks import RANGE_LOCKS

logger = logging.getLogger("partita.scaleout.control")

BLOCKER_SECONDS_MAX = 2.0
"""How long a transaction may keep the lock of a range from a job. Requests are done in less."""
BLOCKED_SECONDS_MAX = 30.0
"""After this time the job is given up."""
PAUSE_SECONDS = 0.1

_LOCK_NOT_AVAILABLE = "55P03"
_BLOCKERS = """
SELECT a.pid, coalesce(a.application_name, '') AS name, coalesce(a.state, '') AS state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
       CASE WHEN clock_timestamp() - a.xact_start > make_interval(secs => $3)
            THEN pg_terminate_backend(a.pid) ELSE false END AS is_ended
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.classid = $1::bigint::oid AND l.objid::bigint = ANY ($2)
   AND l.objsubid = 2 AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
"""


class Exclusive:
    """Runs statements that take the exclusive lock of ranges, on one session of a shard."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.terminated = 0
        """Sessions that were ended so far."""

    async def run(self, range_ids: list[int], statement: str, *values: object) -> Rows:
        """Run one statement in a transaction of its own, as soon as no transaction blocks it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + BLOCKED_SECONDS_MAX
        while True:
            try:
                return await self._link.write(statement, *values)
            except DriverError as error:
                if sqlstate_of(error) != _LOCK_NOT_AVAILABLE:
                    raise translated(error) from error
                blockers = await self._end_blockers(range_ids)
                if loop.time() >= until:
                    raise _blocked(range_ids, blockers) from error
            await asyncio.sleep(PAUSE_SECONDS)

    async def _end_blockers(self, range_ids: list[int]) -> str:
        """End the sessions that are too late; return what is known of all that block."""
        rows = await self._link.read(_BLOCKERS, RANGE_LOCKS, range_ids, BLOCKER_SECONDS_MAX)
        for row in rows:
            if row["is_ended"]:
                self.terminated += 1
                logger.warning(
                    "session %s (%s, %s) was ended: its transaction kept range %s for %.1f s",
                    *(row["pid"], row["name"], row["state"], range_ids, row["seconds"]),
                )
        return "; ".join(
            f"pid {row['pid']}, {row['name'] or 'without a name'}, {row['state']},"
            f" {row['seconds'] or 0:.1f} s"
            for row in rows
        )


def _blocked(range_ids: list[int], blockers: str) -> UnavailableError:
    return UnavailableError(
        "MoveTableBusy",
        f"A transaction keeps the lock of a range: {blockers or 'its session is not known'}.",
        facts={"ranges": range_ids},
        hint="End that session, then try again. The role of the job must be a member of the role of"
        " that session, or of pg_signal_backend, to end it by itself.",
    )
