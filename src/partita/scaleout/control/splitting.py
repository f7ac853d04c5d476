"""Split and merge: other rows for the same keys on the same shard. No entity is touched.

    begun     the shard replaces its rows in one transaction, under the exclusive lock
    (end)     the catalog replaces its rows and removes the record: the commit point for front ends

Until the catalog follows, requests of the range are refused as stale, and front ends ask again. A
job that was left is completed if the shard has taken its step, and forgotten if not.
"""

import msgspec

from partita.scaleout.control.exclusive import Exclusive
from partita.scaleout.control.jobs import HeldJob

BEGUN = "begun"
COMMITTED = "committed"

_REPLACE = "SELECT partita.replace_own_1($1, $2, $3, $4, $5, $6, $7) AS is_done"
_CHANGE = "SELECT partita.change_ranges_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS version"
_COUNT = "SELECT count(*) AS rows FROM partita.range_own WHERE id = ANY ($1)"


class Replacement(msgspec.Struct, frozen=True):
    """What a split or a merge does; `ranges` are replaced by `new`."""

    ranges: list[int]
    epochs: list[int]
    shards: list[int]
    tid: int
    new: list[int]
    new_epochs: list[int]
    lowers: list[str]
    uppers: list[str | None]


async def replace_ranges(held: HeldJob) -> bool:
    """Run a split or merge that was recorded; return False if the table was dropped."""
    facts = msgspec.convert(held.job.facts, Replacement)
    link = held.shard(facts.shards[0])
    new = facts.new, facts.lowers, facts.uppers, facts.new_epochs
    ((is_done,),) = await Exclusive(link).run(
        facts.ranges, _REPLACE, facts.tid, facts.ranges, facts.epochs, *new
    )
    return bool(is_done) and await _commit(held, facts)


async def settle_replacement(held: HeldJob) -> bool:
    """Complete or forget a split or merge that was left; return whether it is complete."""
    facts = msgspec.convert(held.job.facts, Replacement)
    if held.job.step == COMMITTED:
        await held.finish()
        return True
    link = held.shard(facts.shards[0])
    rows = await link.read(_COUNT, facts.new)
    if rows[0]["rows"] == len(facts.new):
        return await _commit(held, facts)
    await held.finish()
    return False


async def _commit(held: HeldJob, facts: Replacement) -> bool:
    new = facts.new, facts.lowers, facts.uppers, facts.new_epochs
    rows = await held.write(
        _CHANGE,
        *(held.job.id, held.job.version, COMMITTED, facts.tid, facts.ranges, *new),
        facts.shards[0],
    )
    version = rows[0]["version"]
    if version is not None:
        held.went_on(COMMITTED, version)
    # The table was dropped: closing it on the shard removes the new rows with the others.
    await held.finish()
    return version is not None
