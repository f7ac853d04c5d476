"""The catalog as a front end knows it: accounts, tables and queues with their ranges, settings.

What it knows is in memory, and stays in use while the database is away. Changes by other front
ends arrive by NOTIFY and by polling; a name that is not known is looked up each time. Lists and
stored access policies are read each time. Whether a transaction may act on a range is decided by
the database (`range_own`), so knowledge that is too old is refused there: `refresh`, then repeat.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from partita.errors import (
    ConfigurationError,
    PartitaError,
    StoreBusyError,
    TableExistsError,
    TableNotFoundError,
    UnavailableError,
)
from partita.policies import Policy
from partita.refusals import not_found
from partita.scaleout.catalog.kinds import STATEMENTS, Kind, Named, folded_name
from partita.scaleout.catalog.ranges import Range, RangeMap
from partita.scaleout.catalog.shards import Shards, read_shards
from partita.scaleout.connections.link import Connector, Link, Rows
from partita.scaleout.connections.pool import Pool, is_queueing
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.schema import versions
from partita.tables.store import Table

logger = logging.getLogger("partita.scaleout.catalog")

POLL_SECONDS = 2.0
RELOAD_SECONDS = 12 * 3600.0
"""A catalog that was not read for longer is read anew: drops of that time may be forgotten."""
LOOKS_MAX = 8
"""How often a name is looked up that loses its ranges each time before they are read."""
CHANNEL = "partita_catalog"

_VERSION = "SELECT version FROM partita.catalog_version"
_RANGES = (
    "SELECT id, tid, lo, hi, epoch, shard FROM partita.range WHERE tid = ANY ($1) AND state <> 'd'"
)
_LIST = (
    "SELECT id, name FROM partita.tables WHERE account_id = $1 AND folded >= $2"
    " ORDER BY folded LIMIT $3"
)
_SETTING = "SELECT value FROM partita.setting WHERE account_id = $1 AND name = $2"
_POLICIES = "SELECT policies FROM partita.tables WHERE id = $1"
_NEW_RANGE = "SELECT tid, range_id, range_epoch FROM partita.new_range_1()"
_OWN_RANGE = "SELECT partita.own_range_2($1, $2, '', NULL, $3, $4::text::\"char\")"
_DISOWN_RANGE = "DELETE FROM partita.range_own WHERE id = $1"
_CLEAR_QUEUE = """
SELECT tid, at_version, shard
  FROM partita.clear_queue_1($1, $2, $3, $4, $5, $6, $7, coalesce($8::bigint, partita.ticks_1()))
"""
_DROPPED_RANGES = """
SELECT DISTINCT tid, shard, kind::text AS kind FROM partita.range WHERE state = 'd' ORDER BY tid
"""
_CLOSE_RANGES = """
SELECT partita.close_ranges_1($1, $2::text::"char", coalesce($3::bigint, partita.ticks_1()))
"""
_FORGET_RANGES = "DELETE FROM partita.range WHERE tid = $1 AND shard = $2 AND state = 'd'"
_SETTINGS = "SELECT account_id, name, value FROM partita.setting WHERE version > $1"
_ADD_ACCOUNT = "INSERT INTO partita.account (name) VALUES ($1) ON CONFLICT DO NOTHING"
_ACCOUNT = """
SELECT a.id, EXISTS (SELECT FROM partita.copy c WHERE c.account_id = a.id) AS is_copied
  FROM partita.account a WHERE a.name = $1
"""

_decode_policies = msgspec.json.Decoder(list[Policy]).decode
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class Catalog:
    """What one front end knows of the catalog; `start` it, or build it with `open`."""

    def __init__(self, connector: Connector, pool: Pool, shards: Shards | None = None) -> None:
        self._connector = connector
        self._pool = pool
        self.shards = Shards(connector, pool) if shards is None else shards
        """The databases that have the ranges."""
        self.on_change: list[Callable[[], Awaitable[None]]] = []
        """Called after tables, ranges or settings were changed by another front end."""
        self._version = 0
        """Everything up to this version is known."""
        self._accounts: dict[str, int] = {}
        self._named: dict[Kind, dict[tuple[int, str], Named]] = {kind: {} for kind in Kind}
        """By kind, account and folded name."""
        self._tables = self._named[Kind.TABLE]
        self._places: dict[int, tuple[Kind, int, str]] = {}
        """The kind, account and folded name of each table and queue, by its number."""
        self._ranges: dict[int, RangeMap] = {}
        """By the number of the table or queue."""
        self._settings: dict[tuple[int, str], bytes] = {}
        self._policies: dict[int, list[Policy]] = {}
        """As they were read last, by the id of the table: for when the catalog is away."""
        self._read_at = asyncio.get_running_loop().time()
        self._refreshing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.is_away = False
        """Whether the connection on which changes are announced is lost."""

    @classmethod
    async def open(cls, connector: Connector, pool: Pool) -> "Catalog":
        """Read the catalog, and begin to follow its changes."""
        catalog = cls(connector, pool)
        await catalog.start()
        return catalog

    async def start(self) -> None:
        """Check the version of the schema, read the catalog, and begin to follow its changes."""
        ((major, minor),) = await self._pool.read("SELECT major, minor FROM partita.schema_version")
        if not versions.is_usable((major, minor)):
            raise versions.unknown_version((major, minor))
        await self.refresh()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        tasks = [task for task in (self._following, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Accounts and settings

    async def account_id(self, name: str) -> int:
        """Return the number of an account; an account gets one when it is first used.

        Raise ConfigurationError while the account is being copied to this database.
        """
        if (found := self._accounts.get(name)) is None:
            rows = await self._pool.read(_ACCOUNT, name)
            if not rows:
                await self._pool.write(_ADD_ACCOUNT, name)
                rows = await self._pool.read(_ACCOUNT, name)
            if rows[0]["is_copied"]:
                raise copy_incomplete(name)
            found = self._accounts[name] = int(rows[0]["id"])
        return found

    async def get_setting(self, account_id: int, name: str) -> bytes | None:
        """Read an account-wide setting from the database; if it is away, as it was known last."""
        try:
            rows = await self._pool.read(_SETTING, account_id, name)
        except StoreBusyError as error:
            if is_queueing(error):
                raise
            return self.known_setting(account_id, name)
        return bytes(rows[0]["value"]) if rows else None

    def known_setting(self, account_id: int, name: str) -> bytes | None:
        """Return a setting as it was when the catalog last changed."""
        return self._settings.get((account_id, name))

    async def set_setting(self, account_id: int, name: str, value: bytes) -> None:
        await _unbroken(self._set_setting(account_id, name, value))

    async def _set_setting(self, account_id: int, name: str, value: bytes) -> None:
        ((version,),) = await self._pool.write(
            "SELECT partita.set_setting_1($1, $2, $3)", account_id, name, value
        )
        self._settings[account_id, name] = value
        self._changed_here(version)

    # Tables

    def known_table(self, account_id: int, name: str) -> Table | None:
        """Find a table by name, as the catalog was known last."""
        return self._tables.get((account_id, folded_name(name)))

    async def find_table(self, account_id: int, name: str) -> Table | None:
        """Find a table by name; one that is not known is looked up in the database."""
        folded = folded_name(name)
        if (known := self._tables.get((account_id, folded))) is not None:
            return known
        return await self._look_up(Kind.TABLE, account_id, folded)

    async def find_queue(self, account_id: int, name: str) -> Named | None:
        """Find a queue by name; one that is not known is looked up in the database."""
        if (known := self._named[Kind.QUEUE].get((account_id, name))) is not None:
            return known
        return await self._look_up(Kind.QUEUE, account_id, name)

    async def renewed(self, account_id: int, named: Named, kind: Kind = Kind.TABLE) -> Named | None:
        """Find what has the name of something whose ranges are refused as stale.

        It is the same with its present ranges, or something else that was created since.
        """
        await self.refresh()
        found = await self._look_up(kind, account_id, _folded(kind, named.name))
        if found is None:
            self._remove(named.id)
        return found

    async def create_table(self, account_id: int, name: str) -> Table:
        """Raise TableExistsError if a table has this name in any case."""
        return await _unbroken(self._create_table(account_id, name))

    async def _create_table(self, account_id: int, name: str) -> Table:
        folded = folded_name(name)
        if await self._look_up(Kind.TABLE, account_id, folded) is not None:
            raise _table_exists(name)
        table = await self._create(Kind.TABLE, account_id, name, folded, name)
        if table is None:
            raise _table_exists(name)
        return table

    async def create_queue(self, account_id: int, name: str, metadata: bytes) -> bool:
        """Create a queue; return False if the name is taken."""
        created = await _unbroken(self._create(Kind.QUEUE, account_id, name, name, metadata))
        return created is not None

    async def _create(
        self, kind: Kind, account_id: int, name: str, *facts: str | bytes
    ) -> Named | None:
        """Create something with one range; return None if the name is taken."""
        shard = self.shards.choose(Counter(each.shard for each in self._all_ranges()))
        tid, range_ = await self._open_range(kind, shard.id)
        values = account_id, *facts, tid, range_.id, range_.epoch, shard.id
        rows = await self._pool.write(STATEMENTS[kind].add, *values)
        if not rows:
            await self.shards.pool(shard.id).write(_DISOWN_RANGE, range_.id)
            return None
        named = Named(tid, name)
        self._add(kind, account_id, named, RangeMap([range_]))
        self._changed_here(rows[0]["at_version"])
        return named

    async def _open_range(self, kind: Kind, shard_id: int) -> tuple[int, Range]:
        """Give a shard the only range of something new; return the number of that.

        The shard comes first: no front end finds the range before. What a failure leaves there has
        a number that nothing gets.
        """
        ((tid, range_id, epoch),) = await self._pool.write(_NEW_RANGE)
        await self.shards.pool(shard_id).write(_OWN_RANGE, range_id, tid, epoch, kind)
        return tid, Range(range_id, "", None, epoch, shard_id)

    async def delete_table(self, account_id: int, name: str) -> None:
        """Drop a table; its space is reclaimed later. Raise TableNotFoundError if missing."""
        folded = folded_name(name)
        if not await _unbroken(self._delete(Kind.TABLE, account_id, folded)):
            raise not_found(TableNotFoundError, {"table": name})

    async def delete_queue(self, account_id: int, name: str, now: int | None) -> bool:
        """Drop a queue; its space is reclaimed later. Return False if it does not exist."""
        return await _unbroken(self._delete(Kind.QUEUE, account_id, name, now))

    async def clear_queue(self, account_id: int, name: str, now: int | None) -> bool:
        """Give a queue another number, and drop the former. Return False if it does not exist."""
        return await _unbroken(self._clear_queue(account_id, name, now))

    async def _clear_queue(self, account_id: int, name: str, now: int | None) -> bool:
        while True:
            former = await self._look_up(Kind.QUEUE, account_id, name)
            present = None if former is None else self.range_of(former.id, "")
            if former is None or present is None:
                return False
            tid, range_ = await self._open_range(Kind.QUEUE, present.shard)
            new = tid, range_.id, range_.epoch, range_.shard
            rows = await self._pool.write(_CLEAR_QUEUE, account_id, name, former.id, *new, now)
            if rows:
                self._add(Kind.QUEUE, account_id, Named(tid, name), RangeMap([range_]))
                await self._dropped(Kind.QUEUE, rows, now)
                return True
            # Another front end has cleared or dropped it meanwhile.
            await self.shards.pool(range_.shard).write(_DISOWN_RANGE, range_.id)

    async def _delete(self, kind: Kind, account_id: int, folded: str, *now: int | None) -> bool:
        rows = await self._pool.write(STATEMENTS[kind].drop, account_id, folded, *now)
        if rows:
            await self._dropped(kind, rows, *now)
        return bool(rows)

    async def _dropped(self, kind: Kind, rows: Rows, now: int | None = None) -> None:
        """Forget what was dropped, and close its ranges on other shards."""
        tid = rows[0]["tid"]
        self._remove(tid)
        self._changed_here(rows[0]["at_version"])
        for row in rows:
            if row["shard"] is not None:
                await self._close(kind, tid, row["shard"], now)

    async def close_dropped(self) -> None:
        """Close ranges of what was dropped on shards that were away then."""
        for row in await self._pool.read(_DROPPED_RANGES):
            await self._close(Kind(row["kind"]), row["tid"], row["shard"])

    async def _close(self, kind: Kind, tid: int, shard_id: int, now: int | None = None) -> None:
        """Let no transaction write to what was dropped on a shard; later, if the shard is away."""
        if shard_id not in self.shards:
            return
        try:
            await self.shards.pool(shard_id).write(_CLOSE_RANGES, tid, kind, now)
        except UnavailableError as error:
            logger.info("dropped ranges are closed later on %s: %s", shard_id, error)
            return
        await self._pool.write(_FORGET_RANGES, tid, shard_id)

    async def list_tables(self, account_id: int, start: str, limit: int) -> list[Table]:
        """List tables by folded name from `start` on (inclusive)."""
        # No name has U+0000, which PostgreSQL refuses, or half a surrogate pair.
        bound = start.replace("\0", "\1").encode(errors="replace").decode()
        return [Table(*row) for row in await self._pool.read(_LIST, account_id, bound, limit)]

    async def get_policies(self, table: Table) -> list[Policy]:
        """Read the policies from the database; if it is away, return those that were read last."""
        try:
            rows = await self._pool.read(_POLICIES, table.id)
        except StoreBusyError as error:
            if is_queueing(error) or table.id not in self._policies:
                raise
            return self._policies[table.id]
        found = _decode_policies(rows[0]["policies"]) if rows else []
        self._policies[table.id] = found
        return found

    async def set_policies(self, table: Table, policies: Sequence[Policy]) -> None:
        await self._pool.write(
            "UPDATE partita.tables SET policies = $2 WHERE id = $1", table.id, _encode(policies)
        )

    # Ranges

    def range_of(self, tid: int, partition_key: str) -> Range | None:
        """Return the range of a table or queue that has a key; None if it is not known.

        The only range of a queue has the empty key.
        """
        ranges = self._ranges.get(tid)
        return None if ranges is None else ranges.find(partition_key)

    def _all_ranges(self) -> Iterator[Range]:
        for ranges in self._ranges.values():
            yield from ranges.ranges

    def ranges_of(self, tid: int) -> RangeMap | None:
        """Return all ranges of a table; None if the table is not known."""
        return self._ranges.get(tid)

    # Changes

    async def refresh(self) -> None:
        """Read what changed. Calls that arrive during a read share the next one."""
        if (running := self._refreshing) is not None:
            await asyncio.wait((running,))
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        async with self._pool.link() as link:
            # The version is read first: what changes during the other reads is read again later.
            ((version,),) = await link.read(_VERSION)
            since, read_at = self._version, asyncio.get_running_loop().time()
            if version < since or read_at - self._read_at > RELOAD_SECONDS:
                # Also if an earlier state of the database was restored.
                self._forget()
                since = 0
            self._read_at = read_at
            if version != since:
                await self._read_changes(link, since)
                self._version = version
        if version != since:
            for follow in self.on_change:
                try:
                    await follow()
                except PartitaError as error:
                    logger.warning("a change of the catalog was not followed: %s", error)

    async def _read_changes(self, link: Link, since: int) -> None:
        self.shards.know(await read_shards(link, since))
        for kind, statements in STATEMENTS.items():
            rows = await link.read(statements.changed, since)
            ranges = await self._read_ranges(link, [row["id"] for row in rows])
            for row in rows:
                if (found := ranges.get(row["id"])) is not None:
                    self._add(kind, row["account_id"], Named(row["id"], row["name"]), found)
        for row in await link.read(_SETTINGS, since):
            self._settings[row["account_id"], row["name"]] = row["value"]
        # What was dropped last: a number is never used again.
        for statements in STATEMENTS.values():
            for row in await link.read(statements.dropped, since):
                self._remove(row["tid"])

    async def _look_up(self, kind: Kind, account_id: int, folded: str) -> Named | None:
        async with self._pool.link() as link:
            for _ in range(LOOKS_MAX):
                rows = await link.read(STATEMENTS[kind].find, account_id, folded)
                if not rows:
                    return None
                named = Named(rows[0]["id"], rows[0]["name"])
                ranges = (await self._read_ranges(link, [named.id])).get(named.id)
                if ranges is not None:
                    self._add(kind, account_id, named, ranges)
                    return named
                # It was dropped, or cleared, between the two statements.
        return None

    async def _read_ranges(self, link: Link, tids: Sequence[int]) -> dict[int, RangeMap]:
        found: dict[int, list[Range]] = {}
        if tids:
            for row in await link.read(_RANGES, tids):
                each = Range(row["id"], row["lo"], row["hi"], row["epoch"], row["shard"])
                found.setdefault(row["tid"], []).append(each)
        if any(each.shard not in self.shards for ranges in found.values() for each in ranges):
            self.shards.know(await read_shards(link))
        return {tid: RangeMap(ranges) for tid, ranges in found.items()}

    def _add(self, kind: Kind, account_id: int, named: Named, ranges: RangeMap) -> None:
        place = account_id, _folded(kind, named.name)
        known = self._named[kind]
        if (earlier := known.get(place)) is not None:
            if earlier.id > named.id:
                return  # a late answer: the name was given to something newer since
            if earlier.id != named.id:
                self._remove(earlier.id)
        known[place] = named
        self._places[named.id] = kind, *place
        self._ranges[named.id] = ranges

    def _remove(self, tid: int) -> None:
        self._ranges.pop(tid, None)
        self._policies.pop(tid, None)
        found = self._places.pop(tid, None)
        if found is not None:
            kind, account_id, folded = found
            known = self._named[kind]
            if known[account_id, folded].id == tid:
                del known[account_id, folded]

    def _forget(self) -> None:
        for names in self._named.values():
            names.clear()
        for known in (self._places, self._ranges, self._settings, self._accounts):
            known.clear()

    def _changed_here(self, version: int) -> None:
        """Note a change that is already applied, unless others came before it."""
        if version == self._version + 1:
            self._version = version

    # The connection on which changes are announced

    async def _follow(self) -> None:
        while True:
            try:
                link = await self._connector.connect()
                try:
                    await self._follow_by(link)
                finally:
                    link.terminate()
            except PartitaError as error:
                if not self.is_away:
                    logger.warning("the catalog is away: %s", error)
                self.is_away = True
                await asyncio.sleep(POLL_SECONDS)

    async def _follow_by(self, link: Link) -> None:
        """Read changes when they are announced, at the latest after POLL_SECONDS."""
        if not link.is_pooled:  # a pooler does not pass on announcements
            try:
                await link.connection.add_listener(CHANNEL, lambda *_: self._wake.set())
            except DriverError as error:
                raise translated(error) from error
        while True:
            self._wake.clear()
            ((version,),) = await link.read(_VERSION)
            if version != self._version:
                await self.refresh()
            if self.is_away:
                logger.warning("the catalog is back")
                self.is_away = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()


def copy_incomplete(account: str) -> ConfigurationError:
    return ConfigurationError(
        "CopyIncomplete",
        f"The account {account} is being copied to this database, and the copy is not complete.",
        facts={"account": account},
        hint="Run the same `partita account copy` again: it continues, or says what differs.",
    )


def _table_exists(name: str) -> TableExistsError:
    return TableExistsError(
        "TableAlreadyExists", "The table specified already exists.", facts={"table": name}
    )


def _folded(kind: Kind, name: str) -> str:
    return folded_name(name) if kind is Kind.TABLE else name


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled: what is known follows every commit."""
    return await asyncio.shield(asyncio.ensure_future(work))
