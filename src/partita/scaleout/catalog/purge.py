"""Reclaims the space of dropped tables, in intervals of keys, and of notes on removed entities.

Any front end may run it; an advisory lock lets one statement of one of them run at a time.
"""

import asyncio

from partita.scaleout.connections.pool import Pool
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND

PURGE_ENTITIES = 200
"""Entities that one statement removes."""
PURGE_PAUSE_SECONDS = 0.005
FORGET_TICKS = TICKS_PER_DAY
"""How long the number of a purged table is kept for front ends that were away."""
REMOVED_KEPT_TICKS = 10 * TICKS_PER_SECOND
"""How long the ticks of each removed entity are kept. Then one number per table has to do: the
greatest. A front end whose stamps are so late is refused once for each key that it inserts."""

_DROPPED = "SELECT tid FROM partita.dropped_table WHERE purged_at IS NULL ORDER BY tid"
_PURGE = "SELECT last_pk, last_rk FROM partita.purge_table_1($1, $2, $3, $4)"
_FORGET = "DELETE FROM partita.dropped_table WHERE purged_at < partita.ticks_1() - $1"
_FOLD = "SELECT partita.fold_removed_1($1)"


async def fold_removed(pool: Pool) -> None:
    """Keep one number per table of the entities that were removed some time ago."""
    await pool.write(_FOLD, REMOVED_KEPT_TICKS)


async def purge_tables(pool: Pool) -> None:
    """Remove the entities of all tables that were dropped."""
    for row in await pool.read(_DROPPED):
        start = ("", "")
        while rows := await pool.write(_PURGE, row["tid"], *start, PURGE_ENTITIES):
            start = rows[0]["last_pk"], rows[0]["last_rk"]
            await asyncio.sleep(PURGE_PAUSE_SECONDS)
    await pool.write(_FORGET, FORGET_TICKS)
