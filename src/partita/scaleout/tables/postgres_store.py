"""The table store of any number of front ends on PostgreSQL; see partita.tables.store.

A change is decided on what it expects to find, and the database writes it if that is so: one round
trip, shared with others. A change that must read, or that was refused, is decided on the entities
as they are, and written if they still have the ticks that were read; else it is decided again.

Stamps are made here, because they stand in the document, and compared in the database: a stored
entity that is not older makes the clock go on behind it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, cast

from partita.errors import LimitExceededError
from partita.policies import Policy
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.catalog.ranges import Range
from partita.scaleout.catalog.staleness import STALE, Patience, Stale
from partita.scaleout.connections.link import Link
from partita.scaleout.tables import throttles
from partita.scaleout.tables.bounds import numbered, where_of
from partita.scaleout.tables.learned import PartitionIndexes
from partita.scaleout.tables.places import Places
from partita.scaleout.tables.scan import (
    CANDIDATES_MIN,
    Budget,
    LookEnds,
    Part,
    Selection,
    read_learned,
    read_part,
)
from partita.scaleout.tables.throttles import Throttles
from partita.scaleout.tables.trips import Change, Found, Read, Refused, Row
from partita.scaleout.tables.turns import Turns
from partita.tables import limits
from partita.tables.engine import table_not_found
from partita.tables.entity import (
    Entity,
    EntityKey,
    pack_document,
    replaceable_entity,
    stored_entity,
)
from partita.tables.expectations import ANYTHING, NOTHING, SOMETHING, assumed
from partita.tables.filters import Filter
from partita.tables.paging import FIRST, KeyRange, Page
from partita.tables.pushdown import columns_of
from partita.tables.store import Decide, Expected, Statistics, Table

KEY_BYTES_MAX = 2600
"""Both keys together, in UTF-8: a row of the index holds 2,704 bytes."""
UNCOUNTED_SECONDS_MAX = 0.02
"""A filtered page that took longer counts what it has examined."""

_COUNT = """
SELECT n.* FROM partita.range_own r CROSS JOIN LATERAL (
  SELECT count(*) AS entities, coalesce(sum(octet_length(document)
      - CASE WHEN get_byte(document, octet_length(document) - 1) = 2 THEN 5 ELSE 0 END), 0)::bigint
      AS bytes FROM partita.entity WHERE tid = ? AND {where}
) n WHERE r.id = ? AND r.epoch = ? AND r.state = 'o'
"""
"""Without the checksums of the documents."""


T = TypeVar("T")


class PostgresTableStore:
    """A TableStore of one account."""

    def __init__(
        self,
        account_id: int,
        catalog: Catalog,
        clock: FleetClock,
        places: Places,
        *,
        front_ends: Callable[[], int] = lambda: 1,
    ) -> None:
        self._throttles = Throttles(clock.clock, front_ends)
        self._account_id = account_id
        self._catalog = catalog
        self._clock = clock
        self._places = places
        self._turns = Turns()
        self._look_ends = LookEnds(clock.clock)
        self._indexes = PartitionIndexes()

    async def close(self) -> None:
        """Do nothing: the connections belong to the fleet."""

    # Tables, policies and settings

    async def find_table(self, name: str) -> Table | None:
        return await self._catalog.find_table(self._account_id, name)

    def known_table(self, name: str) -> Table | None:
        """Find a table without asking the database; it may have been dropped."""
        return self._catalog.known_table(self._account_id, name)

    async def create_table(self, name: str) -> Table:
        return await self._catalog.create_table(self._account_id, name)

    async def delete_table(self, name: str) -> None:
        await self._catalog.delete_table(self._account_id, name)

    async def list_tables(self, start: str, limit: int) -> list[Table]:
        # No name has a character below U+0001, so that it is as good a bound as U+0000.
        start = start.replace("\x00", "\x01")
        return await self._catalog.list_tables(self._account_id, start, limit)

    async def get_policies(self, table: Table) -> list[Policy]:
        return await self._catalog.get_policies(table)

    async def set_policies(self, table: Table, policies: Sequence[Policy]) -> None:
        await self._catalog.set_policies(table, policies)

    async def get_setting(self, name: str) -> bytes | None:
        return await self._catalog.get_setting(self._account_id, name)

    async def set_setting(self, name: str, value: bytes) -> None:
        await self._catalog.set_setting(self._account_id, name, value)

    # Entities

    def _charge(self, table: Table, partition_key: str, entities: int) -> None:
        """Raise ServerBusy if an operator has limited the partition, and it is above that."""
        value = self._catalog.known_setting(self._account_id, throttles.SETTING)
        if value is not None:
            self._throttles.charge(value, table.name, partition_key, entities)

    async def get(self, table: Table, key: EntityKey) -> Entity | None:
        partition_key, row_key = key
        self._charge(table, partition_key, 1)
        range_ = self._catalog.range_of(table.id, partition_key)
        answer: Found | Stale = STALE
        if range_ is not None:
            item = Read(range_, table.id, partition_key, (row_key,))
            answer = await self._places.of(range_).trips.read(item)
        if answer is STALE:
            answer = await self._read(table, partition_key, (row_key,))
        (found,) = answer
        return None if found is None else stored_entity(partition_key, row_key, *found)

    async def change(  # noqa: PLR0913 - see TableStore
        self,
        table: Table,
        partition_key: str,
        row_keys: Sequence[str],
        decide: Decide,
        *,
        expected: Expected | None = None,
        frees_space: bool = False,  # noqa: ARG002 - the disk is the server's
        is_long: bool = False,
    ) -> Sequence[Entity | None]:
        for row_key in row_keys:
            _check_key_bytes(partition_key, row_key)
        self._charge(table, partition_key, len(row_keys))
        draft = _Draft(table, partition_key, row_keys, decide, is_long=is_long)
        expectations = expected() if expected is not None else [None]
        if None not in expectations:
            done = await self._change_unread(draft, cast("Sequence[int]", expectations))
            if done is not None:
                return done
        async with self._turns.take(draft.keys):
            return await self._change_read(draft)

    async def _change_unread(
        self, draft: "_Draft", expectations: Sequence[int]
    ) -> Sequence[Entity | None] | None:
        """Try a change on what it expects to find; None if it must be decided on what is there."""
        before = draft.assumed(expectations)
        patience = Patience()
        while True:
            stamp = self._clock.stamp(*draft.keys)
            try:
                entities, rows = (
                    await asyncio.to_thread(draft.decide, before, expectations, stamp)
                    if draft.is_long
                    else draft.decide(before, expectations, stamp)
                )
            except Exception:  # noqa: BLE001 - whatever it refuses, it must refuse what is stored
                return None
            refused = await self._write(draft, stamp, rows)
            if refused is None:
                return entities
            self._observe(draft, refused)
            if not draft.is_met(expectations, refused):
                return None
            await patience.wait("contention")

    async def _change_read(self, draft: "_Draft") -> Sequence[Entity | None]:
        """Decide a change on the entities as they are, until they still are so when it writes."""
        patience = Patience()
        while True:
            found = await self._read(draft.table, draft.partition_key, draft.row_keys)
            before = draft.read(found)
            expectations = [NOTHING if each is None else each[0] for each in found]
            stamp = self._clock.stamp(*draft.keys)
            if stamp <= max(expectations):
                self._observe(draft, dict(zip(draft.row_keys, expectations, strict=True)))
                stamp = self._clock.stamp(*draft.keys)
            entities, rows = (
                await asyncio.to_thread(draft.decide, before, expectations, stamp)
                if draft.is_long
                else draft.decide(before, expectations, stamp)
            )
            refused = await self._write(draft, stamp, rows)
            if refused is None:
                return entities
            self._observe(draft, refused)
            await patience.wait("contention")

    async def _read(self, table: Table, partition_key: str, row_keys: Sequence[str]) -> Found:
        patience = Patience()
        range_ = self._catalog.range_of(table.id, partition_key)
        if range_ is None:
            range_ = await self._renewed(table, partition_key, patience)
        while True:
            found = await self._places.of(range_).trips.read(
                Read(range_, table.id, partition_key, row_keys)
            )
            if found is not STALE:
                return found
            range_ = await self._renewed(table, partition_key, patience)

    async def _write(self, draft: "_Draft", stamp: int, rows: Sequence[Row]) -> Refused | None:
        table, partition_key = draft.table, draft.partition_key
        patience = Patience()
        range_ = self._catalog.range_of(table.id, partition_key)
        if range_ is None:
            range_ = await self._renewed(table, partition_key, patience)
        while True:
            change = Change(range_, table.id, partition_key, stamp, rows)
            refused = await self._places.of(range_).trips.write(change, draft.keys)
            if refused is not STALE:
                return refused
            range_ = await self._renewed(table, partition_key, patience)

    def _observe(self, draft: "_Draft", found: Refused) -> None:
        """Make the next stamp later than what was found."""
        for key in draft.keys:
            if (ticks := found.get(key[2])) is not None:
                self._clock.observe(ticks, key)

    # Ranges of keys

    async def _renewed(self, table: Table, partition_key: str, patience: Patience) -> Range:
        """Ask the catalog which range has a key now; raise if the table was dropped."""
        await patience.wait("stale")
        found = await self._catalog.renewed(self._account_id, table)
        if found is None or found.id != table.id:
            raise table_not_found(table.name)
        range_ = self._catalog.range_of(table.id, partition_key)
        if range_ is None:
            raise table_not_found(table.name)
        return range_

    # Scans

    async def scan(self, table: Table, span: KeyRange, residual: Filter | None, limit: int) -> Page:
        if span.is_empty or limit <= 0:
            # Another front end may have dropped the table: the database must be asked.
            await self._scan_part(table, KeyRange(), Budget(1, limits.PAGE_BYTES_MAX), None)
            return Page([])
        only = span.single_partition()
        if only is not None:
            self._charge(table, only, 1)
        selection = None if residual is None else Selection(residual)
        started = self._clock.clock.monotonic()
        deadline = started + limits.PAGE_SECONDS_MAX
        found: list[Entity] = []
        room, examined = limits.PAGE_BYTES_MAX, 0
        uncounted: list[Part] = []
        index = ""
        rest: KeyRange | None = span
        wanted = limit + 1
        while rest is not None:
            part, rest = await self._scan_part(table, rest, Budget(wanted, room), selection)
            found += part.entities
            examined += part.examined
            index = index or part.learned
            if part.uncounted is not None:
                uncounted.append(part)
            room -= sum([len(entity.document) for entity in part.entities])
            if len(found) > limit or room <= 0 or self._clock.clock.monotonic() > deadline:
                break
            wanted = limit + 1 - len(found)
            if selection is not None:
                wanted = max(wanted, CANDIDATES_MIN)
        if only is not None:
            self._throttles.owe(table.name, only, len(found))
        if uncounted and self._clock.clock.monotonic() - started > UNCOUNTED_SECONDS_MAX:
            examined += await self._count(table, uncounted)
            uncounted = []
        is_counted = not uncounted
        if len(found) > limit:
            examined = examined if selection else limit
            return Page(found[:limit], found[limit].key, examined, is_counted, index)
        return Page(found, None if rest is None else rest.lower, examined, is_counted, index)

    async def _count(self, table: Table, parts: Sequence[Part]) -> int:
        """Return how many entities were looked at that `examined` of these parts leaves out."""
        counted = 0
        for part in parts:
            assert part.uncounted is not None
            found = await self.statistics(table, part.uncounted)
            counted += max(found.entities - part.examined, 0)
        return counted

    async def _scan_part(
        self, table: Table, span: KeyRange, budget: Budget, selection: Selection | None
    ) -> tuple[Part, KeyRange | None]:
        """Read a part of a page from the range where it starts; return also what is left."""

        async def read(link: Link, range_: Range, here: KeyRange) -> Part | Stale:
            if selection is None:
                return await read_part(link, table.id, range_, here, budget)
            return await read_learned(
                link,
                table.id,
                range_,
                here,
                budget,
                selection=selection,
                ends=self._look_ends,
                indexes=self._indexes,
            )

        part, rest = await self._in_first_range(table, span, read)
        if part.rest is not None:
            rest = KeyRange(part.rest.lower, span.upper)
        return part, rest

    def places(self, table: Table, span: KeyRange) -> Sequence[str]:
        ranges = self._catalog.ranges_of(table.id)
        if ranges is None or span.is_empty or len(self._catalog.shards) == 1:
            return ()
        last = None if span.upper is None else span.upper.partition_key
        has_last = span.upper is not None and span.upper.row_key != ""
        return [
            f"{each.id}@{self._catalog.shards.name_of(each.shard)}"
            for each in ranges.between(span.lower.partition_key, last, has_end=has_last)
        ]

    async def statistics(self, table: Table, span: KeyRange) -> Statistics:
        async def count(link: Link, range_: Range, here: KeyRange) -> Statistics | Stale:
            where, values = where_of(here)
            statement = numbered(_COUNT.format(where=where))
            rows = await link.read(statement, table.id, *values, range_.id, range_.epoch)
            return Statistics(*rows[0]) if rows else STALE

        entities = size = 0
        rest = None if span.is_empty else span
        while rest is not None:
            found, rest = await self._in_first_range(table, rest, count)
            entities += found.entities
            size += found.document_bytes
        return Statistics(entities, size)

    async def _in_first_range(
        self,
        table: Table,
        span: KeyRange,
        read: Callable[[Link, Range, KeyRange], Awaitable[T | Stale]],
    ) -> tuple[T, KeyRange | None]:
        """Read within the range that has the start of a span; return also the span behind it."""
        partition_key = span.lower.partition_key
        patience = Patience()
        range_ = self._catalog.range_of(table.id, partition_key)
        if range_ is None:
            range_ = await self._renewed(table, partition_key, patience)
        while True:
            end = None if range_.hi is None else EntityKey(range_.hi, "")
            async with self._places.of(range_).pool.link() as link:
                found = await read(link, range_, KeyRange(span.lower, end).clip(span))
            if found is not STALE:
                rest = KeyRange(end or FIRST, span.upper)
                return found, None if end is None or rest.is_empty else rest
            range_ = await self._renewed(table, partition_key, patience)


class _Draft:
    """A change of one partition: what it decides, and what is then to write."""

    def __init__(
        self,
        table: Table,
        partition_key: str,
        row_keys: Sequence[str],
        decide: Decide,
        *,
        is_long: bool,
    ) -> None:
        self.table = table
        self.partition_key = partition_key
        self.row_keys = row_keys
        self.keys = [(table.id, partition_key, row_key) for row_key in row_keys]
        self._decide = decide
        self.is_long = is_long
        """Whether it is decided in a thread."""

    def assumed(self, expectations: Sequence[int]) -> dict[str, Entity]:
        """Return stand-ins for what is expected."""
        before: dict[str, Entity] = {}
        for row_key, expectation in zip(self.row_keys, expectations, strict=True):
            if expectation not in (ANYTHING, NOTHING):
                entity = assumed(EntityKey(self.partition_key, row_key), expectation)
                assert entity is not None
                before[row_key] = entity
        return before

    def read(self, found: Found) -> dict[str, Entity]:
        """Return the entities that were read; a damaged one can be replaced or removed."""
        before: dict[str, Entity] = {}
        size = 0
        for row_key, each in zip(self.row_keys, found, strict=True):
            if each is not None:
                before[row_key] = replaceable_entity(self.partition_key, row_key, *each)
                size += len(each[1])
        self.is_long = self.is_long or size > limits.TURN_BYTES_MAX
        return before

    def is_met(self, expectations: Sequence[int], refused: Refused) -> bool:
        """Return whether a change was refused only because its stamp was too early."""
        for row_key, expectation in zip(self.row_keys, expectations, strict=True):
            if row_key in refused:
                found = refused[row_key]
                if found is None or expectation not in (ANYTHING, SOMETHING, found):
                    return False
        return True

    def decide(
        self, before: Mapping[str, Entity], expectations: Sequence[int], stamp: int
    ) -> tuple[Sequence[Entity | None], list[Row]]:
        entities = self._decide(before, stamp)
        rows: list[Row] = []
        for row_key, expectation, entity in zip(self.row_keys, expectations, entities, strict=True):
            if entity is None:
                rows.append(Row(row_key, expectation, 0, None, None))
                continue
            marks, short = columns_of(entity.properties())
            document = pack_document(entity.ticks, entity.document)
            rows.append(Row(row_key, expectation, marks, short, document))
        return entities, rows


def _check_key_bytes(partition_key: str, row_key: str) -> None:
    if len(partition_key) + len(row_key) <= KEY_BYTES_MAX // 4:
        return
    if len(partition_key.encode()) + len(row_key.encode()) > KEY_BYTES_MAX:
        raise LimitExceededError(
            "PropertyValueTooLarge",
            "The property value exceeds the maximum allowed size (64KB). If the property value is"
            " a string, it is UTF-16 encoded and the maximum number of characters should be 32K"
            " or less.",
            hint=f"Use at most {KEY_BYTES_MAX} bytes of UTF-8 in both keys together.",
        )
