"""The sizes of what an account on PostgreSQL has, on all shards of its fleet.

Up to a number of rows they are counted. Beyond it the number is the one that the planner expects
by the statistics of the database (ANALYZE, autovacuum), and the bytes are those of the rows that
were counted, in proportion.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from partita.scaleout.catalog.shards import HOME, connector_of, read_shards
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.schema import versions
from partita.storage.durability import Durability
from partita.storage.sizes import COUNTED_MAX, AccountSize, PartSize

_ACCOUNTS = """
SELECT id, name FROM partita.account WHERE $1::text IS NULL OR name = $1 ORDER BY name
"""
_RELATIONS = """
SELECT c.relname, pg_catalog.pg_total_relation_size(c.oid)
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'partita' AND c.relkind = 'r' ORDER BY 2 DESC, 1
"""
_NAMES = {
    "table": "SELECT id, name FROM partita.tables WHERE account_id = $1 ORDER BY name",
    "queue": "SELECT tid, name FROM partita.queue WHERE account_id = $1 ORDER BY name",
    "container": "SELECT id, name FROM partita.container WHERE account_id = $1 ORDER BY name",
}
_ROWS = {
    "table": "SELECT octet_length(pk) + octet_length(rk) + coalesce(pg_column_size(short), 0)"
    " + octet_length(document) AS bytes FROM partita.entity WHERE tid = {}",
    "queue": "SELECT octet_length(text) AS bytes FROM partita.message WHERE queue_id = {}",
    "container": "SELECT (SELECT coalesce(sum(p.size), 0) FROM partita.piece p"
    " WHERE p.content = b.content) AS bytes FROM partita.blob b WHERE container = {}",
}
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NO_LIMITS = "SELECT pg_catalog.set_config('statement_timeout', '0', true)"
_STAGED = "SELECT coalesce(sum(size), 0)::bigint FROM partita.block WHERE container = $1"


class DatabaseSize(msgspec.Struct, frozen=True):
    """The accounts of a database, and the bytes of its relations with their indexes."""

    accounts: list[AccountSize]
    relations: dict[str, int]


async def measure(
    url: str,
    account: str | None = None,
    *,
    is_exact: bool = False,
    begins: Callable[[str], None] | None = None,
) -> DatabaseSize:
    """Return the sizes of all accounts of a fleet, or of one; `url` is that of its catalog."""
    async with contextlib.AsyncExitStack() as stack:
        home = Connector(Location.parse(url), Durability.FAST)
        link = await _open(stack, home)
        shards = await read_shards(link)
        others = [
            await _open(stack, connector_of(shard, home)) for shard in shards if shard.id != HOME
        ]
        accounts = []
        for identity, name in await _read(link, _ACCOUNTS, account):
            parts = []
            for kind, names in _NAMES.items():
                for part, shown in await _read(link, names, identity):
                    if begins is not None:
                        begins(f"{kind} {shown}")
                    found = [
                        await _part(each, kind, part, shown, is_exact=is_exact)
                        for each in ([link] if kind == "container" else [link, *others])
                    ]
                    parts.append(_total(found))
            accounts.append(AccountSize(name, parts))
        relations = Counter[str]()
        for each in [link, *others]:
            relations.update(dict(await _read(each, _RELATIONS)))
    return DatabaseSize(accounts, dict(relations.most_common()))


async def _open(stack: contextlib.AsyncExitStack, connector: Connector) -> Link:
    """Open a connection to a shard, with a snapshot of its rows."""
    link = await connector.connect_unchecked()
    stack.push_async_callback(link.close)
    ((major, minor),) = await _read(link, "SELECT major, minor FROM partita.schema_version")
    if not versions.is_usable((major, minor)):
        raise versions.unknown_version((major, minor))
    await _read(link, _SNAPSHOT)
    await _read(link, _NO_LIMITS)
    return link


def _total(parts: Sequence[PartSize]) -> PartSize:
    """Return the size of a part that has rows on several shards."""
    return PartSize(
        parts[0].kind,
        parts[0].name,
        sum(part.items for part in parts),
        sum(part.bytes for part in parts),
        is_exact=all(part.is_exact for part in parts),
    )


async def _part(link: Link, kind: str, identity: int, name: str, *, is_exact: bool) -> PartSize:
    rows = _ROWS[kind].format(int(identity))
    limit = "ALL" if is_exact else COUNTED_MAX
    ((count, size),) = await _read(
        link,
        f"SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM ({rows} LIMIT {limit}) counted",  # noqa: S608
    )
    staged = (await _read(link, _STAGED, identity))[0][0] if kind == "container" else 0
    if count != limit:
        return PartSize(kind, name, count, size + staged, is_exact=True)
    ((plan,),) = await _read(link, f"EXPLAIN (FORMAT JSON) {rows}")
    expected = max(json.loads(plan)[0]["Plan"]["Plan Rows"], count)
    return PartSize(kind, name, expected, round(size * expected / count) + staged, is_exact=False)


async def _read(link: Link, statement: str, *values: object) -> list[Any]:
    """Run a statement without a time limit: no request waits for it."""
    try:
        rows: list[Any] = await link.connection.fetch(statement, *values)
    except DriverError as error:
        raise translated(error) from error
    return rows
