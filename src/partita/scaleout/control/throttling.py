"""Limits of the rate of single partitions: a setting of the account, which front ends follow."""

import msgspec

from partita.errors import ConfigurationError, UnavailableError
from partita.scaleout.connections.pool import Pool
from partita.scaleout.control.states import ThrottleState
from partita.scaleout.tables.throttles import SETTING, PartitionRate, decoded

THROTTLES_MAX = 1000
"""Limited partitions of one account."""

_ALONE = "LOCK TABLE partita.setting IN SHARE ROW EXCLUSIVE MODE"
_TABLE = """
SELECT t.account_id, t.name AS "table", s.value FROM partita.tables t
  LEFT JOIN partita.setting s ON s.account_id = t.account_id AND s.name = $2 WHERE t.id = $1
"""
_SET = "SELECT partita.set_setting_1($1, $2, $3)"
_ALL = """
SELECT a.name AS account, s.value FROM partita.setting s
  JOIN partita.account a ON a.id = s.account_id WHERE s.name = $1 ORDER BY a.name
"""


async def set_throttle(catalog: Pool, tid: int, partition_key: str, rate: float | None) -> None:
    """Limit a partition; None: not any more."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigurationError(
            "Configuration",
            "A rate is a number of entities per second above zero.",
            facts={"rate": rate},
            hint="Give --off to end the limit.",
        )
    async with catalog.link() as link, link.transaction():
        await link.read(_ALONE)
        rows = await link.read(_TABLE, tid, SETTING)
        if not rows:
            return  # it was dropped just now
        table = rows[0]["table"]
        kept = [each for each in decoded(rows[0]["value"]) if not each.is_of(table, partition_key)]
        if rate is not None:
            kept.append(PartitionRate(table, partition_key, rate))
        if len(kept) > THROTTLES_MAX:
            raise UnavailableError(
                "ThrottlesFull",
                f"The account has {THROTTLES_MAX} limited partitions.",
                facts={"table": table},
                hint="End limits that are not needed with `partita fleet throttle --off`.",
            )
        await link.read(_SET, rows[0]["account_id"], SETTING, msgspec.json.encode(kept))


async def read_throttles(catalog: Pool) -> list[ThrottleState]:
    """Return the limits of all accounts."""
    return [
        ThrottleState(row["account"], each.table, each.partition_key, each.rate)
        for row in await catalog.read(_ALL, SETTING)
        for each in decoded(row["value"])
    ]
