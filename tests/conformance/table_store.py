"""The contract of partita.tables.store as a suite that every TableStore subclasses.

Nothing here knows how a store keeps things. A subclass says how to open one, whether a second
opening finds what the first one left, and how exact its statistics and its ticks are.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from partita.clock import ManualClock
from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    PartitaError,
    TableExistsError,
    TableNotFoundError,
)
from partita.policies import Policy
from partita.tables import limits
from partita.tables.edm import Members
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey, build, etag_of
from partita.tables.expectations import ANYTHING, NOTHING, SOMETHING
from partita.tables.filters import Filter, compile_filter, parse
from partita.tables.operations import (
    ANY_ETAG,
    Delete,
    EntityGroup,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Outcome,
    Replace,
)
from partita.tables.paging import KeyRange, after
from partita.tables.store import Decide, Statistics, Table, TableStore

EVERYTHING = KeyRange()

# In the order of the service: bytes of UTF-8, so that U+FFFD stands before U+10000.
ORDERED_TEXTS = [
    "",
    " ",
    "  ",
    "!",
    '"',
    "%",
    "%25",
    "'",
    "''",
    "0",
    "10",
    "2",
    "A",
    "B",
    "_",
    "a",
    "a ",
    "a'b",
    "aa",
    "b",
    "e\u0301",
    "\u00e9",
    "\u0416",
    "\u4e2d",
    "\ud7ff",
    "\ue000",
    "\uf8ff",
    "\ufffd",
    "\uffff",
    "\U00010000",
    "\U0001f600",
    "\U0010ffff",
]


class LeapingClock(ManualClock):
    """Time that leaps whenever somebody asks for it: a machine under heavy load."""

    seconds_a_look = 0.0

    def monotonic(self) -> float:
        self.advance(self.seconds_a_look)
        return super().monotonic()


def condition(text: str) -> Filter:
    parsed = parse(text)
    assert parsed is not None
    return parsed


def keys_of(entities: Iterable[Entity]) -> list[tuple[str, str]]:
    return [(entity.partition_key, entity.row_key) for entity in entities]


def row_keys_of(entities: Iterable[Entity]) -> list[str]:
    return [entity.row_key for entity in entities]


def putting(
    partition_key: str, row_keys: Sequence[str], **properties: str | int | float | bool
) -> Decide:
    """Return the decision to write these entities, whatever exists."""
    return lambda _, now: [build((partition_key, each), now, properties) for each in row_keys]


class RefusedError(Exception):
    """What a test refuses a change with."""


class TableStoreConformance(ABC):
    is_durable: ClassVar[bool] = True
    """Whether what was written is there after close and open."""
    has_exact_statistics: ClassVar[bool] = True
    """Whether `statistics` counts; a store that estimates also implements `space_is_reclaimed`."""
    ticks_precision: ClassVar[int] = 1
    """The ticks of a change differ from the wall clock by less than this."""
    folder: Path
    clock: LeapingClock
    store: TableStore

    @abstractmethod
    async def open_store(self) -> TableStore:
        """Open the store of this test, with `self.clock` as its clock."""

    @pytest.fixture(autouse=True)
    async def opened(self, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path
        self.clock = LeapingClock()
        self.store = await self.open_store()
        yield
        await self.store.close()

    # What the tests are written with

    async def reopen(self) -> None:
        if not self.is_durable:
            pytest.skip("this store forgets on close")
        await self.store.close()
        self.store = await self.open_store()

    async def again(self, table: Table) -> Table:
        found = await self.store.find_table(table.name)
        assert found is not None
        return found

    async def put(
        self, table: Table, *keys: tuple[str, str], **properties: str | int | float | bool
    ) -> None:
        for partition_key in dict.fromkeys(key[0] for key in keys):
            row_keys = [key[1] for key in keys if key[0] == partition_key]
            await self.store.change(
                table, partition_key, row_keys, putting(partition_key, row_keys, **properties)
            )

    async def remove(self, table: Table, key: tuple[str, str]) -> None:
        await self.store.change(table, key[0], [key[1]], lambda *_: [None], frees_space=True)

    async def properties_of(self, table: Table, row_key: str) -> Members | None:
        entity = await self.store.get(table, EntityKey("p", row_key))
        return None if entity is None else entity.properties()

    async def pages(
        self, table: Table, span: KeyRange, residual: Filter | None, limit: int
    ) -> list[list[Entity]]:
        """Follow continuations to the end; a page that makes no progress fails."""
        found: list[list[Entity]] = []
        while True:
            page = await self.store.scan(table, span, residual, limit)
            found.append(list(page.entities))
            if page.continuation is None:
                return found
            assert page.continuation > span.lower or found[-1]
            assert page.continuation >= span.lower
            span = span.starting_at(page.continuation)

    async def scan_all(
        self, table: Table, span: KeyRange = EVERYTHING, residual: Filter | None = None
    ) -> list[Entity]:
        pages = await self.pages(table, span, residual, limits.PAGE_ENTITIES_MAX)
        return [entity for page in pages for entity in page]

    # Tables

    async def test_a_new_store_has_no_tables(self) -> None:
        assert await self.store.list_tables("", 10) == []
        assert await self.store.find_table("Staff") is None

    async def test_a_table_is_found_in_any_case_and_keeps_its_own(self) -> None:
        created = await self.store.create_table("StaffMembers")

        assert created.name == "StaffMembers"
        assert await self.store.find_table("staffmembers") == created
        assert await self.store.find_table("STAFFMEMBERS") == created

    async def test_a_table_name_that_begins_like_another_is_another(self) -> None:
        await self.store.create_table("Staff")

        assert await self.store.find_table("Staf") is None
        assert await self.store.find_table("Staff1") is None

    async def test_letters_outside_ascii_never_match_a_name(self) -> None:
        await self.store.create_table("Kinds")

        assert await self.store.find_table("\N{KELVIN SIGN}inds") is None
        with pytest.raises(TableNotFoundError):
            await self.store.delete_table("\N{KELVIN SIGN}inds")

    async def test_a_name_that_exists_in_any_case_is_refused(self) -> None:
        created = await self.store.create_table("Staff")

        with pytest.raises(TableExistsError) as refused:
            await self.store.create_table("sTAFF")

        assert refused.value.code == "TableAlreadyExists"
        assert await self.store.list_tables("", 10) == [created]

    async def test_only_one_of_many_creators_wins(self) -> None:
        outcomes = await asyncio.gather(
            *(self.store.create_table("Staff") for _ in range(20)), return_exceptions=True
        )

        winners = [outcome for outcome in outcomes if isinstance(outcome, Table)]
        assert len(winners) == 1
        assert all(isinstance(o, Table | TableExistsError) for o in outcomes)
        assert await self.store.find_table("Staff") == winners[0]

    async def test_a_dropped_table_is_gone(self) -> None:
        await self.store.create_table("Staff")

        await self.store.delete_table("STAFF")

        assert await self.store.find_table("Staff") is None
        assert await self.store.list_tables("", 10) == []

    async def test_a_missing_table_cannot_be_dropped(self) -> None:
        with pytest.raises(TableNotFoundError) as refused:
            await self.store.delete_table("Staff")

        assert refused.value.code == "ResourceNotFound"

    async def test_only_one_of_many_droppers_wins(self) -> None:
        await self.store.create_table("Staff")

        outcomes = await asyncio.gather(
            *(self.store.delete_table("Staff") for _ in range(20)), return_exceptions=True
        )

        assert outcomes.count(None) == 1
        assert all(o is None or isinstance(o, TableNotFoundError) for o in outcomes)

    async def test_a_recreated_table_shows_nothing_of_the_old_one(self) -> None:
        old = await self.store.create_table("Staff")
        await self.put(old, *(("p", f"{n:03}") for n in range(300)))
        await self.store.set_policies(old, [Policy("reader")])

        await self.store.delete_table("Staff")
        new = await self.store.create_table("staff")

        assert new.id != old.id
        assert new.name == "staff"
        assert await self.store.get(new, EntityKey("p", "000")) is None
        assert await self.scan_all(new) == []
        assert await self.store.get_policies(new) == []
        if self.has_exact_statistics:
            assert await self.store.statistics(new, EVERYTHING) == Statistics(0, 0)

    async def test_a_late_write_to_a_dropped_table_stays_out_of_the_new_one(self) -> None:
        old = await self.store.create_table("Staff")
        await self.store.delete_table("Staff")
        new = await self.store.create_table("Staff")

        with contextlib.suppress(PartitaError):  # refusing it is as good
            await self.put(old, ("p", "late"))

        assert await self.scan_all(new) == []

    async def test_the_identity_of_a_dropped_table_is_never_used_again(self) -> None:
        seen = set()
        for _ in range(3):
            table = await self.store.create_table("Staff")
            assert table.id not in seen
            seen.add(table.id)
            await self.store.delete_table("Staff")

        await self.reopen()

        assert (await self.store.create_table("Staff")).id not in seen

    async def test_a_drop_leaves_other_tables_alone(self) -> None:
        first, second, third = [
            await self.store.create_table(name) for name in ("Staff", "Staff1", "Staf")
        ]
        for table in (first, second, third):
            await self.put(table, ("p", "r"), Name=table.name)

        await self.store.delete_table("Staff")
        await self.space_is_reclaimed(first)

        for table in (second, third):
            entity = await self.store.get(table, EntityKey("p", "r"))
            assert entity is not None
            assert entity.properties() == {"Name": table.name}

    async def test_the_space_of_a_dropped_table_is_reclaimed_behind_it(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *((f"p{n % 7}", f"{n:04}") for n in range(1000)))

        await self.store.delete_table("Staff")

        await self.space_is_reclaimed(table)

    async def test_a_reopened_store_goes_on_reclaiming(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", f"{n:04}") for n in range(2000)))
        await self.store.delete_table("Staff")

        await self.reopen()

        assert await self.store.find_table("Staff") is None
        await self.space_is_reclaimed(table)

    async def space_is_reclaimed(self, table: Table) -> None:
        """Return when nothing is stored of a dropped table."""
        assert self.has_exact_statistics
        async with asyncio.timeout(60):
            while await self.store.statistics(table, EVERYTHING) != Statistics(0, 0):  # noqa: ASYNC110 - a store tells nobody
                await asyncio.sleep(0.005)

    async def test_tables_are_listed_by_lower_cased_name(self) -> None:
        for name in ("beta", "Alpha", "ALPHA2", "alpha1", "Gamma"):
            await self.store.create_table(name)

        listed = [table.name for table in await self.store.list_tables("", 10)]

        assert listed == ["Alpha", "alpha1", "ALPHA2", "beta", "Gamma"]

    async def test_a_list_of_tables_starts_inside_and_ends_at_its_limit(self) -> None:
        for name in ("Alpha", "Beta", "Delta", "Gamma"):
            await self.store.create_table(name)

        async def names(start: str, limit: int) -> list[str]:
            return [table.name for table in await self.store.list_tables(start, limit)]

        assert await names("beta", 10) == ["Beta", "Delta", "Gamma"]
        assert await names("beta", 2) == ["Beta", "Delta"]
        assert await names(after("beta"), 1) == ["Delta"]
        assert await names("zeta", 10) == []

    async def test_tables_survive_reopening(self) -> None:
        created = [await self.store.create_table(name) for name in ("Staff", "Sales", "Other")]
        await self.store.delete_table("Other")

        await self.reopen()

        assert await self.store.list_tables("", 10) == [created[1], created[0]]

    @pytest.mark.parametrize("steps", range(6))
    async def test_a_cancelled_create_is_wholly_there_or_not(self, steps: int) -> None:
        await self.cancel_after(steps, self.store.create_table("Staff"))

        found = await self.store.find_table("Staff")

        if found is None:
            assert (await self.store.create_table("Staff")).name == "Staff"
        else:
            with pytest.raises(TableExistsError):
                await self.store.create_table("Staff")
        assert await self.store.find_table("Staff") is not None

    @pytest.mark.parametrize("steps", range(6))
    async def test_a_cancelled_drop_is_wholly_done_or_not(self, steps: int) -> None:
        await self.store.create_table("Staff")

        await self.cancel_after(steps, self.store.delete_table("Staff"))

        if await self.store.find_table("Staff") is None:
            await self.store.create_table("Staff")
        else:
            with pytest.raises(TableExistsError):
                await self.store.create_table("Staff")

    async def cancel_after(self, steps: int, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # What was begun may end behind the cancelled call: one more change waits for it.
        await self.store.set_setting("after-cancel", b"")
        await asyncio.sleep(0)

    # Entities

    async def test_a_missing_entity_is_none(self) -> None:
        table = await self.store.create_table("Staff")

        assert await self.store.get(table, EntityKey("p", "r")) is None

    async def test_an_entity_is_read_as_it_was_written(self) -> None:
        table = await self.store.create_table("Staff")
        properties: Members = {
            "Text": "x\x00\u00e9\U0001f600",
            "Whole": -5,
            "Half": 0.5,
            "Yes": True,
            "Big@odata.type": "Edm.Int64",
            "Big": "9223372036854775807",
            "No@odata.type": "Edm.Double",
            "No": "NaN",
        }
        [written] = await self.store.change(table, "p", ["r"], putting("p", ["r"], **properties))
        assert written is not None

        read = await self.store.get(table, EntityKey("p", "r"))

        assert read is not None
        assert (read.key, read.ticks, read.etag) == (written.key, written.ticks, written.etag)
        assert read.document == written.document
        assert read.properties() == written.properties()
        assert [e.document for e in await self.scan_all(table)] == [written.document]

    async def test_an_entity_is_of_one_table_only(self) -> None:
        first = await self.store.create_table("First")
        second = await self.store.create_table("Second")
        await self.put(first, ("p", "r"))

        assert await self.store.get(second, EntityKey("p", "r")) is None
        assert await self.scan_all(second) == []

    async def test_a_written_entity_replaces_the_one_before(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "r"), Age=1, Name="Ann")

        await self.put(table, ("p", "r"), Age=2)

        [entity] = await self.scan_all(table)
        assert entity.properties() == {"Age": 2}

    async def test_a_removed_entity_is_gone(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"))

        await self.remove(table, ("p", "a"))

        assert await self.store.get(table, EntityKey("p", "a")) is None
        assert keys_of(await self.scan_all(table)) == [("p", "b")]

    async def test_keys_match_exactly(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("Pk", "\u00e9"))

        for key in [("pk", "\u00e9"), ("Pk ", "\u00e9"), ("Pk", "e\u0301"), ("Pk", "\u00c9")]:
            assert await self.store.get(table, EntityKey(*key)) is None

    @pytest.mark.parametrize("text", [*ORDERED_TEXTS, "k" * 512, "\U0001f600" * 256])
    async def test_every_key_finds_its_own_entity(self, text: str) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "other"), (text, text), Name="mine")

        entity = await self.store.get(table, EntityKey(text, text))

        assert entity is not None
        assert entity.key == (text, text)
        assert entity.properties() == {"Name": "mine"}
        assert entity in await self.scan_all(table, KeyRange.of_partition(text))

    # Order and ranges

    async def test_row_keys_come_in_the_order_of_their_utf8_bytes(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in reversed(ORDERED_TEXTS)))

        assert row_keys_of(await self.scan_all(table)) == ORDERED_TEXTS

    async def test_partitions_come_in_the_order_of_their_utf8_bytes(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *((text, "r") for text in reversed(ORDERED_TEXTS)))

        assert [e.partition_key for e in await self.scan_all(table)] == ORDERED_TEXTS

    async def test_partition_key_goes_before_row_key(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("b", "1"), ("a", "2"), ("ab", "0"), ("a", "10"))

        assert keys_of(await self.scan_all(table)) == [
            ("a", "10"),
            ("a", "2"),
            ("ab", "0"),
            ("b", "1"),
        ]

    async def test_a_range_has_its_lower_end_and_not_its_upper(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "abcd"))

        span = KeyRange(EntityKey("p", "b"), EntityKey("p", "d"))

        assert row_keys_of(await self.scan_all(table, span)) == ["b", "c"]

    async def test_a_partition_is_exactly_its_entities(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("o", "z"), ("p", ""), ("p", "\U0010ffff"), ("p ", ""), ("pp", "a"))

        found = await self.scan_all(table, KeyRange.of_partition("p"))

        assert keys_of(found) == [("p", ""), ("p", "\U0010ffff")]

    async def test_an_empty_range_has_no_entities(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"))

        for span in (
            KeyRange(EntityKey("p", "a"), EntityKey("p", "a")),
            KeyRange(EntityKey("p", "b"), EntityKey("p", "a")),
            KeyRange(EntityKey("q", ""), EntityKey("p", "z")),
        ):
            page = await self.store.scan(table, span, None, 10)
            assert (page.entities, page.continuation) == ([], None)

    async def test_every_range_holds_what_it_says(self) -> None:
        table = await self.store.create_table("Staff")
        texts = ["", "'", "a", "b", "\uffff", "\U00010000"]
        keys = [EntityKey(pk, rk) for pk in texts for rk in texts]
        await self.put(table, *keys, Name="x")
        ends = [*keys[::2], *(EntityKey(after(text), "") for text in texts)]

        for lower in ends:
            for upper in [*ends, None]:
                span = KeyRange(lower, upper)
                expected = [key for key in keys if span.contains(key)]
                assert keys_of(await self.scan_all(table, span)) == expected

    # Filters

    async def test_a_residual_chooses_inside_a_range(self) -> None:
        table = await self.store.create_table("Staff")
        for number in range(20):
            await self.put(table, (f"p{number % 2}", f"{number:02}"), Age=number)

        found = await self.scan_all(
            table, KeyRange.of_partition("p1"), condition("Age gt 6 and Age le 13")
        )

        assert row_keys_of(found) == ["07", "09", "11", "13"]

    @pytest.mark.parametrize(
        "text",
        [
            "Name eq 'Ann'",
            "Name ne 'Ann'",
            "Name lt 'B'",
            "not (Name eq 'Ann')",
            "Age lt 10L",
            "Age ge 5.5",
            "Missing eq 1",
            "not (Missing eq 1)",
            "Yes",
            "not Yes",
            "Yes or Age gt 17",
            "RowKey ge '05' and RowKey lt '1'",
            "PartitionKey eq 'p1' and (RowKey eq '01' or Age eq 3)",
            "Long eq 'x'",
            "Long gt 'x'",
            "Born ge datetime'2000-01-11T00:00:00Z'",
            "Timestamp gt datetime'1999-01-01T00:00:00Z'",
            "Timestamp lt datetime'1999-01-01T00:00:00Z'",
            "true",
            "false",
        ],
    )
    async def test_a_residual_chooses_as_the_filter_decides(self, text: str) -> None:
        table = await self.store.create_table("Staff")
        for number in range(20):
            properties: dict[str, str | int | float | bool] = {
                "Name": ["Ann", "Bob", "", "\u00c9va"][number % 4],
                "Age": number if number % 3 else number + 0.5,
                "Yes": number % 2 == 0,
                "Long": "x" * (number * 20),
                "Born@odata.type": "Edm.DateTime",
                "Born": f"2000-01-{number + 1:02}T00:00:00Z",
            }
            if number % 5 == 0:
                properties["Missing"] = number
            await self.put(table, (f"p{number % 3}", f"{number:02}"), **properties)
        matches = compile_filter(condition(text))

        everything = await self.scan_all(table)
        found = await self.scan_all(table, residual=condition(text))

        expected = [
            entity
            for entity in everything
            if matches(
                {
                    "PartitionKey": entity.partition_key,
                    "RowKey": entity.row_key,
                    "Timestamp": etag_of(entity.ticks)[12:-2].replace("%3A", ":"),
                    **entity.properties(),
                }
            )
        ]
        assert keys_of(found) == keys_of(expected)

    # Limits and continuations

    async def test_a_limit_of_nothing_gives_nothing(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"))

        page = await self.store.scan(table, EVERYTHING, None, 0)

        assert (page.entities, page.continuation) == ([], None)

    async def test_a_page_that_ends_the_range_has_no_continuation(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "abc"))

        for span in (EVERYTHING, KeyRange.of_partition("p")):
            page = await self.store.scan(table, span, None, 3)
            assert row_keys_of(page.entities) == ["a", "b", "c"]
            assert page.continuation is None

    async def test_a_continuation_names_the_next_entity(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "abc"))

        for span in (EVERYTHING, KeyRange.of_partition("p")):
            page = await self.store.scan(table, span, None, 2)
            assert row_keys_of(page.entities) == ["a", "b"]
            assert page.continuation == ("p", "c")

    async def test_a_continuation_of_a_filter_names_the_next_match(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", f"{n:03}") for n in range(400)), Age=1)
        await self.put(table, ("p", "007"), ("p", "301"), Age=2)

        for span in (EVERYTHING, KeyRange.of_partition("p")):
            first = await self.store.scan(table, span, condition("Age eq 2"), 1)
            assert row_keys_of(first.entities) == ["007"]
            assert first.continuation == ("p", "301")
            rest = span.starting_at(first.continuation)
            second = await self.store.scan(table, rest, condition("Age eq 2"), 1)
            assert row_keys_of(second.entities) == ["301"]
            assert second.continuation is None

    @pytest.mark.parametrize("limit", [1, 2, 7, 1000])
    async def test_pages_together_are_the_whole_range_once(self, limit: int) -> None:
        table = await self.store.create_table("Staff")
        keys = [(f"p{n // 60}", f"{n:03}") for n in range(150)]
        await self.put(table, *keys)

        for span, expected in (
            (EVERYTHING, keys),
            (KeyRange.of_partition("p1"), keys[60:120]),
            (KeyRange(EntityKey("p0", "050"), EntityKey("p2", "121")), keys[50:121]),
        ):
            pages = await self.pages(table, span, None, limit)
            assert keys_of(entity for page in pages for entity in page) == expected
            assert len(pages) == -(-len(expected) // limit)

    @pytest.mark.parametrize("limit", [1, 2, 7, 1000])
    async def test_pages_of_a_filter_are_all_matches_once(self, limit: int) -> None:
        table = await self.store.create_table("Staff")
        for remainder in range(3):
            await self.put(
                table, *(("p", f"{n:03}") for n in range(remainder, 60, 3)), Age=remainder
            )

        pages = await self.pages(table, EVERYTHING, condition("Age eq 1"), limit)

        expected = [f"{n:03}" for n in range(1, 60, 3)]
        assert row_keys_of(entity for page in pages for entity in page) == expected
        assert len(pages) == -(-len(expected) // limit)

    async def test_more_entities_than_a_page_are_paged_without_loss(self) -> None:
        table = await self.store.create_table("Staff")
        keys = [("p", f"{n:05}") for n in range(2500)]
        await self.put(table, *keys)

        pages = await self.pages(table, KeyRange.of_partition("p"), None, 1000)

        assert [len(page) for page in pages] == [1000, 1000, 500]
        assert keys_of(entity for page in pages for entity in page) == keys

    async def test_a_continuation_survives_the_removal_of_its_entity(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "abcd"))
        page = await self.store.scan(table, EVERYTHING, None, 2)
        assert page.continuation == ("p", "c")

        await self.remove(table, ("p", "c"))

        rest = await self.scan_all(table, EVERYTHING.starting_at(page.continuation))
        assert row_keys_of(rest) == ["d"]

    async def test_a_later_page_sees_only_what_came_behind_the_continuation(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "bdfh"))
        page = await self.store.scan(table, EVERYTHING, None, 2)
        assert page.continuation == ("p", "f")

        await self.put(table, ("p", "a"), ("p", "c"), ("p", "e"), ("p", "g"), ("a", "z"))

        rest = await self.scan_all(table, EVERYTHING.starting_at(page.continuation))
        assert row_keys_of(rest) == ["f", "g", "h"]

    async def test_a_continuation_works_after_reopening(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in "abcd"))
        page = await self.store.scan(table, EVERYTHING, None, 2)
        assert page.continuation is not None

        await self.reopen()

        rest = await self.scan_all(
            await self.again(table), EVERYTHING.starting_at(page.continuation)
        )
        assert row_keys_of(rest) == ["c", "d"]

    @pytest.mark.parametrize("text", [None, "Size gt 0"])
    @pytest.mark.parametrize("partitions", [1, 3])
    async def test_a_page_ends_early_by_its_bytes(self, text: str | None, partitions: int) -> None:
        table = await self.store.create_table("Staff")
        large = {f"Text{n}": "x" * 32_000 for n in range(15)}
        keys = sorted((f"p{n % partitions}", f"{n:02}") for n in range(12))
        for key in keys:
            await self.put(table, key, Size=1, **large)
        largest = await self.store.get(table, EntityKey(*keys[0]))
        assert largest is not None
        span = KeyRange.of_partition("p0") if partitions == 1 else EVERYTHING

        pages = await self.pages(table, span, condition(text) if text else None, 1000)

        assert keys_of(entity for page in pages for entity in page) == keys
        for page in pages:
            size = sum(len(entity.document) for entity in page)
            assert size < limits.PAGE_BYTES_MAX + len(largest.document) + 1000

    @pytest.mark.parametrize("limit", [1, 1000])
    async def test_large_entities_that_do_not_match_hide_nothing(self, limit: int) -> None:
        table = await self.store.create_table("Staff")
        large = {f"Text{n}": "x" * 32_000 for n in range(15)}
        for number in range(12):
            await self.put(table, ("p", f"a{number:02}"), **large)
        await self.put(table, *(("p", f"b{n:02}") for n in range(60)), Age=1)
        await self.put(table, ("p", "c"), Text14="x" * 32_000 + "y")

        # Texts that begin alike: a store that compares prefixes must look at each of them.
        residual = condition(f"Text14 gt '{'x' * 200}' and Text14 ne '{'x' * 32_000}'")
        found = await self.pages(table, EVERYTHING, residual, limit)

        assert row_keys_of(entity for page in found for entity in page) == ["c"]
        await self.remove(table, ("p", "c"))
        assert await self.scan_all(table, EVERYTHING, residual) == []

    @pytest.mark.parametrize("text", [None, "Age eq 7", "Age gt 100"])
    async def test_a_page_ends_early_by_its_time_and_always_gets_on(self, text: str | None) -> None:
        table = await self.store.create_table("Staff")
        for number in range(30):
            await self.put(table, (f"p{number // 10}", f"{number:02}"), Age=number % 10)
        residual = condition(text) if text else None
        expected = keys_of(await self.scan_all(table, EVERYTHING, residual))

        self.clock.seconds_a_look = limits.PAGE_SECONDS_MAX * 2
        async with asyncio.timeout(60):
            found = keys_of(await self.scan_all(table, EVERYTHING, residual))

        assert found == expected

    # Changes of one partition

    async def test_a_change_is_decided_on_the_entities_that_exist(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"), ("q", "c"), Age=1)
        seen: list[Mapping[str, Entity]] = []

        def look(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
            seen.append(before)
            raise RefusedError

        with pytest.raises(RefusedError):
            await self.store.change(table, "p", ["a", "c", "x", "b"], look)

        found = seen[-1]
        assert sorted(found) == ["a", "b"]
        assert found["a"].key == ("p", "a")
        assert found["a"].properties() == {"Age": 1}

    async def test_a_change_writes_and_removes_together(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"))

        changed = await self.store.change(
            table,
            "p",
            ["c", "a", "x", "b"],
            lambda _, now: [
                build(("p", "c"), now, {}),
                None,
                None,
                build(("p", "b"), now, {"N": 1}),
            ],
        )

        stored = await self.scan_all(table)
        assert [(e.row_key, e.properties()) for e in stored] == [("b", {"N": 1}), ("c", {})]
        assert [each and each.etag for each in changed] == [
            stored[1].etag,
            None,
            None,
            stored[0].etag,
        ]

    @pytest.mark.parametrize("is_long", [False, True])
    async def test_a_refusal_changes_nothing(self, is_long: bool) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"), Age=1)
        before = await self.scan_all(table)

        def refuse(_: Mapping[str, Entity], now: int) -> list[Entity | None]:
            raise RefusedError

        with pytest.raises(RefusedError):
            await self.store.change(table, "p", ["a", "b", "c"], refuse, is_long=is_long)

        assert await self.scan_all(table) == before

    async def test_a_long_change_is_a_change(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"), Age=1)
        row_keys = [f"{n:03}" for n in range(99)]

        changed = await self.store.change(
            table,
            "p",
            ["a", *row_keys],
            lambda before, now: [None, *putting("p", row_keys, Of=len(before))(before, now)],
            is_long=True,
        )

        assert changed[0] is None
        assert row_keys_of(await self.scan_all(table)) == [*row_keys, "b"]
        assert await self.properties_of(table, "098") == {"Of": 1}

    async def test_a_refusal_undoes_its_own_change_only(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), Age=1)

        def refuse(_: Mapping[str, Entity], now: int) -> list[Entity | None]:
            raise RefusedError

        outcomes = await asyncio.gather(
            self.put(table, ("p", "before")),
            self.store.change(table, "p", ["a", "b"], refuse),
            self.put(table, ("p", "after")),
            return_exceptions=True,
        )

        assert [type(outcome) for outcome in outcomes] == [type(None), RefusedError, type(None)]
        assert row_keys_of(await self.scan_all(table)) == ["a", "after", "before"]
        assert await self.properties_of(table, "a") == {"Age": 1}

    async def test_a_refusal_leaves_when_what_it_saw_is_readable(self) -> None:
        table = await self.store.create_table("Staff")

        def refuse_if_there(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
            if before:
                raise RefusedError
            return [None]

        async def judge() -> bool:
            try:
                await self.store.change(table, "p", ["a"], refuse_if_there)
            except RefusedError:
                return await self.store.get(table, EntityKey("p", "a")) is not None
            return True

        # A judge that saw no entity must not remove one that was written in the meantime.
        _, *verdicts = await asyncio.gather(
            self.put(table, ("p", "a")), *(judge() for _ in range(10))
        )

        assert all(verdicts)
        assert await self.properties_of(table, "a") == {}

    async def test_changes_of_one_entity_happen_one_after_the_other(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "count"), Value=0)

        def increment(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
            value = int(before["count"].properties()["Value"])
            return [build(("p", "count"), now, {"Value": value + 1})]

        await asyncio.gather(
            *(self.store.change(table, "p", ["count"], increment) for _ in range(300))
        )

        assert await self.properties_of(table, "count") == {"Value": 300}

    async def test_a_decision_is_made_again_when_its_entities_have_changed(self) -> None:
        """Each change carries one from an entity to another, so that each sees those before it."""
        table = await self.store.create_table("Staff")
        names = ["a", "b", "c"]
        await self.put(table, *(("p", name) for name in names), Value=10)

        async def carry(source: str, target: str) -> bool:
            def decide(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
                left, held = (int(before[n].properties()["Value"]) for n in (source, target))
                if left == 0:
                    raise RefusedError
                return [
                    build(("p", source), now, {"Value": left - 1}),
                    build(("p", target), now, {"Value": held + 1}),
                ]

            try:
                await self.store.change(table, "p", [source, target], decide)
            except RefusedError:
                return False
            return True

        pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")] * 20
        carried = await asyncio.gather(*(carry(*pair) for pair in pairs))

        expected = dict.fromkeys(names, 10)
        for (source, target), is_done in zip(pairs, carried, strict=True):
            expected[source] -= is_done
            expected[target] += is_done
        found = {each.row_key: each.properties()["Value"] for each in await self.scan_all(table)}
        assert found == expected

    async def test_many_changes_at_once_keep_what_succeeded_and_nothing_else(self) -> None:
        table = await self.store.create_table("Staff")

        async def change(number: int) -> None:
            partition_key, row_keys = f"p{number % 5}", [f"{number:03}a", f"{number:03}b"]

            def decide(before: Mapping[str, Entity], now: int) -> Sequence[Entity | None]:
                if number % 3 == 0:
                    raise RefusedError
                return putting(partition_key, row_keys)(before, now)

            await self.store.change(table, partition_key, row_keys, decide)

        outcomes = await asyncio.gather(
            *(change(number) for number in range(200)), return_exceptions=True
        )

        succeeded = [number for number, outcome in enumerate(outcomes) if outcome is None]
        assert succeeded == [number for number in range(200) if number % 3]
        expected = sorted(f"{number:03}{half}" for number in succeeded for half in "ab")
        assert sorted(row_keys_of(await self.scan_all(table))) == expected

    @pytest.mark.parametrize("expectation", [None, NOTHING])
    async def test_only_one_of_many_inserts_of_a_key_wins(self, expectation: int | None) -> None:
        table = await self.store.create_table("Staff")

        async def insert(number: int) -> bool:
            def decide(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
                if before:
                    raise RefusedError
                return [build(("p", "a"), now, {"Who": number})]

            try:
                await self.store.change(table, "p", ["a"], decide, expected=lambda: [expectation])
            except RefusedError:
                return False
            return True

        outcomes = await asyncio.gather(*(insert(number) for number in range(50)))

        assert outcomes.count(True) == 1
        [entity] = await self.scan_all(table)
        assert entity.properties() == {"Who": outcomes.index(True)}

    # Expectations: a store may try a change on what is expected before it reads

    async def engine_with(self, *row_keys: str) -> tuple[TableEngine, Table]:
        table = await self.store.create_table("Staff")
        if row_keys:
            await self.put(table, *(("p", row_key) for row_key in row_keys), Age=1)
        return TableEngine(self.store), table

    @pytest.mark.parametrize(
        ("exists", "expectation"),
        [(False, SOMETHING), (False, 1), (False, None), (True, NOTHING), (True, 1), (True, None)],
    )
    async def test_a_wrong_expectation_has_the_outcome_of_the_stored_entity(
        self, exists: bool, expectation: int | None
    ) -> None:
        _, table = await self.engine_with(*(["a"] if exists else []))

        def describe(before: Mapping[str, Entity], now: int) -> list[Entity | None]:
            found = before.get("a")
            return [build(("p", "a"), now, {"Was": found.properties()["Age"] if found else "new"})]

        await self.store.change(table, "p", ["a"], describe, expected=lambda: [expectation])

        assert await self.properties_of(table, "a") == {"Was": 1 if exists else "new"}

    async def test_an_insert_of_an_existing_entity_is_refused(self) -> None:
        engine, table = await self.engine_with("a")

        with pytest.raises(EntityExistsError):
            await engine.run("Staff", EntityGroup([Insert(EntityKey("p", "a"), {})]))

        assert await self.properties_of(table, "a") == {"Age": 1}

    @pytest.mark.parametrize("etag", [ANY_ETAG, etag_of(17_000_000_000_000_001)])
    @pytest.mark.parametrize("is_delete", [False, True])
    async def test_a_condition_on_a_missing_entity_is_refused(
        self, etag: str, is_delete: bool
    ) -> None:
        engine, table = await self.engine_with()
        key = EntityKey("p", "a")

        with pytest.raises(EntityNotFoundError):
            await engine.run(
                "Staff", EntityGroup([Delete(key, etag) if is_delete else Replace(key, {}, etag)])
            )

        assert await self.scan_all(table) == []

    @pytest.mark.parametrize(
        "wrong",
        [
            etag_of(17_000_000_000_000_001),
            etag_of(0),  # the ticks of these three are the constants of expectations
            etag_of(-1),
            etag_of(-2),
            "W/\"datetime'x'\"",
            "",
        ],
    )
    @pytest.mark.parametrize("is_delete", [False, True])
    async def test_another_etag_is_refused(self, wrong: str, is_delete: bool) -> None:
        engine, table = await self.engine_with("a")
        key = EntityKey("p", "a")

        with pytest.raises(ETagMismatchError):
            await engine.run(
                "Staff", EntityGroup([Delete(key, wrong) if is_delete else Replace(key, {}, wrong)])
            )

        assert await self.properties_of(table, "a") == {"Age": 1}

    async def test_another_spelling_of_the_etag_is_refused(self) -> None:
        engine, table = await self.engine_with("a")
        found = await self.store.get(table, EntityKey("p", "a"))
        assert found is not None

        for wrong in (found.etag.replace("%3A", ":"), found.etag.replace("Z", "+00%3A00")):
            with pytest.raises(ETagMismatchError):
                await engine.run("Staff", EntityGroup([Delete(found.key, wrong)]))

        await engine.run("Staff", EntityGroup([Delete(found.key, found.etag)]))
        assert await self.scan_all(table) == []

    @pytest.mark.parametrize("etag", [ANY_ETAG, None])
    async def test_the_current_etag_is_a_condition_that_holds(self, etag: str | None) -> None:
        engine, table = await self.engine_with("a", "b")
        a, b = await self.scan_all(table)

        outcome = await engine.run(
            "Staff",
            EntityGroup(
                [Replace(a.key, {"Age": 2}, etag or a.etag), Delete(b.key, etag or b.etag)]
            ),
        )

        [stored] = await self.scan_all(table)
        assert (stored.row_key, stored.properties()) == ("a", {"Age": 2})
        assert [each and each.etag for each in outcome.entities] == [stored.etag, None]

    @pytest.mark.parametrize("exists", [False, True])
    async def test_a_change_that_expects_anything_writes_over_what_is_stored(
        self, exists: bool
    ) -> None:
        _, table = await self.engine_with(*(["a"] if exists else []))

        await self.store.change(
            table, "p", ["a"], putting("p", "a", New=1), expected=lambda: [ANYTHING]
        )

        assert await self.properties_of(table, "a") == {"New": 1}

    async def test_an_upsert_replaces_and_inserts(self) -> None:
        engine, table = await self.engine_with("a")
        upserts = [InsertOrReplace(EntityKey("p", row_key), {"New": row_key}) for row_key in "ab"]

        await engine.run("Staff", EntityGroup(upserts))

        assert [each.properties() for each in await self.scan_all(table)] == [
            {"New": "a"},
            {"New": "b"},
        ]

    async def test_a_merge_keeps_what_is_stored(self) -> None:
        engine, table = await self.engine_with("a")
        merges = [InsertOrMerge(EntityKey("p", row_key), {"New": row_key}) for row_key in "ab"]

        await engine.run("Staff", EntityGroup(merges))
        await engine.run("Staff", EntityGroup([Merge(EntityKey("p", "b"), {"Age": 2})]))

        assert [each.properties() for each in await self.scan_all(table)] == [
            {"Age": 1, "New": "a"},
            {"New": "b", "Age": 2},
        ]

    async def test_a_group_is_refused_by_its_first_operation_that_fails(self) -> None:
        engine, table = await self.engine_with("a", "b", "c")
        before = await self.scan_all(table)
        group = EntityGroup(
            [
                InsertOrReplace(EntityKey("p", "a"), {}),
                Insert(EntityKey("p", "new"), {}),
                Insert(EntityKey("p", "b"), {}),
                Delete(EntityKey("p", "c"), etag_of(17_000_000_000_000_001)),
            ]
        )

        with pytest.raises(EntityExistsError) as refused:
            await engine.run("Staff", group)

        assert refused.value.facts["index"] == 2
        assert await self.scan_all(table) == before

    async def test_only_one_of_many_changes_with_an_etag_wins(self) -> None:
        engine, table = await self.engine_with("a")
        [found] = await self.scan_all(table)

        outcomes = await asyncio.gather(
            *(
                engine.run("Staff", EntityGroup([Replace(found.key, {"Who": n}, found.etag)]))
                for n in range(50)
            ),
            return_exceptions=True,
        )

        winners = [n for n, each in enumerate(outcomes) if isinstance(each, Outcome)]
        assert len(winners) == 1
        assert all(isinstance(each, Outcome | ETagMismatchError) for each in outcomes)
        assert await self.properties_of(table, "a") == {"Who": winners[0]}

    # Changes and readers

    async def test_readers_see_a_change_wholly_or_not_at_all(self) -> None:
        table = await self.store.create_table("Staff")
        keys = [("p", f"{n:02}") for n in range(40)]
        await self.put(table, *keys, Round=0)
        is_over = False

        async def read(residual: Filter | None) -> int:
            looks = 0
            while not is_over:
                entities = await self.scan_all(table, KeyRange.of_partition("p"), residual)
                assert len(entities) == 40
                assert len({entity.properties()["Round"] for entity in entities}) == 1
                assert len({entity.ticks for entity in entities}) == 1
                looks += 1
                await asyncio.sleep(0)
            return looks

        async def write() -> None:
            nonlocal is_over
            for number in range(1, 40):
                await self.put(table, *keys, Round=number)
                await asyncio.sleep(0)
            is_over = True

        _, *looks = await asyncio.gather(write(), read(None), read(condition("Round ge 0")))

        assert min(looks) > 0

    async def test_what_a_change_wrote_is_readable_when_it_returns(self) -> None:
        table = await self.store.create_table("Staff")

        async def write_and_read(number: int) -> bool:
            key = EntityKey(f"p{number % 3}", str(number))
            await self.put(table, key)
            return await self.store.get(table, key) is not None

        assert all(await asyncio.gather(*(write_and_read(number) for number in range(60))))

    @pytest.mark.parametrize("steps", range(6))
    async def test_a_cancelled_change_is_wholly_there_or_not(self, steps: int) -> None:
        table = await self.store.create_table("Staff")

        await self.cancel_after(steps, self.put(table, ("p", "a"), ("p", "b")))

        assert row_keys_of(await self.scan_all(table)) in ([], ["a", "b"])
        await self.put(table, ("p", "c"))
        assert await self.store.get(table, EntityKey("p", "c")) is not None

    # The store's clock

    async def next_ticks(self, table: Table, partition_key: str = "p") -> int:
        [entity] = await self.store.change(table, partition_key, ["r"], putting(partition_key, "r"))
        assert entity is not None
        return entity.ticks

    async def test_a_change_has_the_time_of_the_wall_clock(self) -> None:
        table = await self.store.create_table("Staff")
        await self.next_ticks(table)
        self.clock.advance(100)

        assert abs(await self.next_ticks(table) - self.clock.ticks()) < self.ticks_precision

    async def test_the_entities_of_a_change_have_the_same_ticks(self) -> None:
        table = await self.store.create_table("Staff")

        await self.put(table, ("p", "a"), ("p", "b"), ("p", "c"))

        assert len({entity.ticks for entity in await self.scan_all(table)}) == 1

    async def test_ticks_of_a_key_rise_while_the_wall_clock_stands(self) -> None:
        tables = [await self.store.create_table(name) for name in ("First", "Second")]
        keys = [(table, partition_key) for table in tables for partition_key in ("p", "q")]

        rounds = [[await self.next_ticks(*key) for key in keys] for _ in range(10)]

        for seen in zip(*rounds, strict=True):
            assert list(seen) == sorted(set(seen))

    async def test_ticks_of_a_key_changed_at_once_are_all_different(self) -> None:
        table = await self.store.create_table("Staff")

        seen = await asyncio.gather(*(self.next_ticks(table, f"p{n % 3}") for n in range(99)))

        for remainder in range(3):
            assert len(set(seen[remainder::3])) == 33

    async def test_ticks_of_a_key_rise_in_groups_that_overlap(self) -> None:
        table = await self.store.create_table("Staff")
        last: dict[str, int] = {}
        for row_keys in ("ab", "bc", "c", "ca", "abc"):
            for entity in await self.store.change(table, "p", row_keys, putting("p", row_keys)):
                assert entity is not None
                assert entity.ticks > last.get(entity.row_key, 0)
                last[entity.row_key] = entity.ticks

    @pytest.mark.parametrize("jump", [0, -3600])
    async def test_ticks_of_a_key_rise_over_its_removal(self, jump: int) -> None:
        table = await self.store.create_table("Staff")
        before = await self.next_ticks(table)
        await self.remove(table, ("p", "r"))

        self.clock.jump(jump)

        assert await self.next_ticks(table) > before

    async def test_ticks_rise_though_the_wall_clock_goes_back(self) -> None:
        table = await self.store.create_table("Staff")
        before = await self.next_ticks(table)

        self.clock.jump(-3600)

        assert await self.next_ticks(table) > before

    async def test_ticks_rise_over_a_restart_that_sets_the_clock_back(self) -> None:
        table = await self.store.create_table("Staff")
        self.clock.advance(10_000)
        before = [await self.next_ticks(table) for _ in range(5)]

        self.clock.jump(-20_000)
        await self.reopen()

        assert await self.next_ticks(await self.again(table)) > before[-1]

    async def test_ticks_rise_after_a_leap_in_the_middle_of_a_change(self) -> None:
        table = await self.store.create_table("Staff")
        clock, now = self.clock, self.clock.ticks
        looks = 0

        def leaping() -> int:
            nonlocal looks
            looks += 1
            if looks == 2:
                clock.jump(7200)
            return now()

        clock.ticks = leaping  # type: ignore[method-assign]  # a leap between two looks
        before = await self.next_ticks(table)
        clock.ticks = now  # type: ignore[method-assign]
        clock.jump(-20_000)
        await self.reopen()

        assert await self.next_ticks(await self.again(table)) > before

    async def test_a_failed_change_does_not_hold_the_clock(self) -> None:
        table = await self.store.create_table("Staff")
        seen: list[int] = []

        def fail(_: Mapping[str, Entity], now: int) -> list[Entity | None]:
            seen.append(now)
            raise RefusedError

        with pytest.raises(RefusedError):
            await self.store.change(table, "p", ["r"], fail)

        assert await self.next_ticks(table) > seen[-1]

    # Policies, settings, statistics

    async def test_a_table_starts_without_policies(self) -> None:
        table = await self.store.create_table("Staff")

        assert await self.store.get_policies(table) == []

    async def test_policies_come_back_as_they_were_set(self) -> None:
        table = await self.store.create_table("Staff")
        other = await self.store.create_table("Other")
        policies = [
            Policy("z", "2024-01-01", "2030-01-01T00:00:00Z", "raud"),
            Policy("a", None, None, ""),
            Policy("\u00e9'\"<", permission="r"),
        ]

        await self.store.set_policies(table, policies)

        assert await self.store.get_policies(table) == policies
        assert await self.store.get_policies(other) == []

    async def test_setting_policies_replaces_all_of_them(self) -> None:
        table = await self.store.create_table("Staff")
        await self.store.set_policies(table, [Policy("a"), Policy("b")])

        await self.store.set_policies(table, [Policy("c")])
        assert await self.store.get_policies(table) == [Policy("c")]

        await self.store.set_policies(table, [])
        assert await self.store.get_policies(table) == []

    async def test_policies_survive_reopening(self) -> None:
        table = await self.store.create_table("Staff")
        await self.store.set_policies(table, [Policy("a", expiry="2030-01-01")])

        await self.reopen()

        assert await self.store.get_policies(await self.again(table)) == [
            Policy("a", expiry="2030-01-01")
        ]

    async def test_settings_are_kept_by_name(self) -> None:
        assert await self.store.get_setting("service") is None

        await self.store.set_setting("service", b"one")
        await self.store.set_setting("other", b"\x00\xff")
        await self.store.set_setting("service", b"two")

        assert await self.store.get_setting("service") == b"two"
        assert await self.store.get_setting("other") == b"\x00\xff"

    async def test_settings_survive_reopening(self) -> None:
        await self.store.set_setting("service", b"one")

        await self.reopen()

        assert await self.store.get_setting("service") == b"one"

    async def test_statistics_count_a_range(self) -> None:
        if not self.has_exact_statistics:
            pytest.skip("this store estimates statistics")
        table = await self.store.create_table("Staff")
        await self.put(table, ("p", "a"), ("p", "b"), ("q", "c"), Name="x" * 100)
        documents = [len(entity.document) for entity in await self.scan_all(table)]

        assert await self.store.statistics(table, EVERYTHING) == Statistics(3, sum(documents))
        assert await self.store.statistics(table, KeyRange.of_partition("q")) == Statistics(
            1, documents[2]
        )
        assert await self.store.statistics(table, KeyRange.of_partition("x")) == Statistics(0, 0)

    # Closing

    async def test_entities_survive_reopening(self) -> None:
        table = await self.store.create_table("Staff")
        await self.put(table, *(("p", text) for text in ORDERED_TEXTS), Age=1)
        await self.remove(table, ("p", "a"))
        before = await self.scan_all(table)

        await self.reopen()

        after_ = await self.scan_all(await self.again(table))
        assert [(e.key, e.ticks, e.document) for e in after_] == [
            (e.key, e.ticks, e.document) for e in before
        ]

    async def test_closing_finishes_what_was_accepted(self) -> None:
        table = await self.store.create_table("Staff")
        writes = [
            asyncio.ensure_future(self.put(table, ("p", f"{number:03}"))) for number in range(50)
        ]
        await asyncio.sleep(0)

        await self.reopen()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*writes, return_exceptions=True)

        assert all(o is None or isinstance(o, PartitaError) for o in outcomes)
        acknowledged = {f"{n:03}" for n, outcome in enumerate(outcomes) if outcome is None}
        found = set(row_keys_of(await self.scan_all(await self.again(table))))
        assert acknowledged <= found

    async def test_closing_twice_is_closing_once(self) -> None:
        await self.store.close()
        await self.store.close()
