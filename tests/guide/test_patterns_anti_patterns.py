"""The guide's prepend/append anti-pattern, and the log data anti-pattern as far as keys show it.

What the guide calls bad is found in the declaration; what it proposes instead is found good.
"""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

import partita
from guide.stored import keys_in, opened
from partita.clock import ManualClock, SystemClock
from partita.patterns import (
    Database,
    Table,
    ThrottledError,
    at_least,
    connect,
    entity,
    entity_type,
    index,
    lint,
)
from partita.patterns.planning.requests import QueryKind

START = datetime(2014, 7, 31, 18, tzinfo=UTC)
FAT = "x" * 10_000
"""Text whose entity counts for 20 of one KiB: a hundred of them are a partition's second."""


def codes(cls: type[Any]) -> list[str]:
    return [each.code for each in lint(entity_type(cls))]


def hints(cls: type[Any]) -> str:
    return " ".join(each.hint for each in lint(entity_type(cls)))


# ---------------------------------------------------------------------------------------------
# The guide's own designs


@entity(table="AccessByHour", partition="{hour:asc}", row="{user:esc}_{event:06d}")
class AccessByHour:
    """The structure that the guide warns of: the partition is the current hour."""

    hour: datetime
    user: str
    event: int
    resource_bytes: int = 0
    resource: str = ""


@entity(table="AccessByUser", partition="{dept:esc}_{user}", row="{at:asc}_{event:06d}")
class AccessByUser:
    """The structure that the guide proposes: department and employee spread the inserts."""

    dept: str
    user: str
    at: datetime
    event: int
    resource_bytes: int = 0
    resource: str = ""


class TestPrependAppendAntiPattern:
    def test_a_partition_that_is_the_current_hour_is_found(self) -> None:
        assert "MonotonePartition" in codes(AccessByHour)

    def test_the_structure_of_the_guide_that_spreads_inserts_is_not(self) -> None:
        assert codes(AccessByUser) == []

    def test_the_advice_is_a_template_that_is_proven_and_not_hot(self) -> None:
        assert 'partition="{user:esc}", row="{hour:asc}_{event:06d}"' in hints(AccessByHour)

    @pytest.mark.parametrize(
        ("partition", "row", "annotation"),
        [
            ("{at:asc}", "{id:06d}", datetime),
            ("{at:desc}", "{id:06d}", datetime),
            ("day_{at:asc}", "{id:06d}", date),
            ("{at:desc}", "{id:06d}", date),
        ],
        ids=["append", "prepend", "a day at a time", "a day at a time, newest first"],
    )
    def test_prepending_is_as_bad_as_appending(
        self, partition: str, row: str, annotation: Any
    ) -> None:
        @entity(table="Events", partition=partition, row=row)
        class Event:
            at: annotation
            id: int
            size: int = 0

        assert "MonotonePartition" in codes(Event)

    def test_a_sequence_number_in_front_is_found_too(self) -> None:
        @entity(table="Invoices", partition="{number:08d}", row="{line:04d}")
        class Invoice:
            number: int
            line: int
            amount: int = 0

        assert "MonotonePartition" in codes(Invoice)

    def test_time_behind_somebody_who_writes_is_good(self) -> None:
        @entity(table="Claims", partition="{employee:06d}", row="{at:desc}")
        class Claim:
            employee: int
            at: datetime
            amount: int = 0

        assert codes(Claim) == []

    def test_an_index_can_be_hot_where_its_entity_is_not(self) -> None:
        @entity(table="Orders", partition="{customer}", row="{id:06d}")
        class Order:
            customer: str
            id: int
            placed: datetime

        index(Order, table="OrdersByTime", partition="{placed:asc}", row="{customer:esc}_{id:06d}")

        assert codes(Order) == ["MonotonePartition"]

    def test_everything_in_one_partition_is_found(self) -> None:
        @entity(table="Settings", partition="all", row="{name}")
        class Setting:
            name: str
            value: str = ""

        assert "SinglePartition" in codes(Setting)

    def test_a_small_table_may_say_that_it_is_meant(self) -> None:
        @entity(table="Holidays", partition="{day:asc}", row="holiday", allow_hot=True)
        class Holiday:
            day: date
            name: str = ""

        assert codes(Holiday) == []

    async def test_at_the_target_the_hot_design_is_throttled_and_the_spread_one_is_not(
        self,
    ) -> None:
        clock = ManualClock(SystemClock().ticks())  # everything in one moment
        with partita.open_account(None, clock=clock, enforce_targets=True) as account:
            account.client_options = {"retry_total": 0}
            async with connect(account) as db:
                await opened(db, AccessByHour, AccessByUser)
                hot, spread = db.table(AccessByHour), db.table(AccessByUser)
                await hot.save_all(
                    AccessByHour(hour=START, user=f"u{n}", event=n, resource=FAT)
                    for n in range(100)
                )
                await spread.save_all(
                    AccessByUser(dept="Sales", user=f"u{n}", at=START, event=n, resource=FAT)
                    for n in range(100)
                )

                await spread.save(AccessByUser(dept="Sales", user="u0", at=START, event=100))
                with pytest.raises(ThrottledError):
                    await hot.save(AccessByHour(hour=START, user="u0", event=100))

    async def test_the_new_structure_answers_the_query_that_the_old_one_was_made_for(
        self, partita_db: Database
    ) -> None:
        accesses = (await opened(partita_db, AccessByUser)).table(AccessByUser)
        for number in range(6):
            at = START + timedelta(minutes=30 * number)
            await accesses.save(AccessByUser(dept="Sales", user="jun", at=at, event=number))

        query = accesses.partition(dept="Sales", user="jun").range(
            at=at_least(START + timedelta(hours=1))
        )

        assert query.plan.kind is QueryKind.RANGE
        assert [each.event async for each in query] == [2, 3, 4, 5]


# ---------------------------------------------------------------------------------------------
# Spreading what has nobody to spread by


@entity(table="Ticks", partition="{id:hash16}", row="{at:asc}_{id:06d}")
class Tick:
    at: datetime
    id: int


@pytest.fixture
async def ticks(partita_db: Database) -> Table[Tick]:
    table = (await opened(partita_db, Tick)).table(Tick)
    await table.save_all(Tick(at=START + timedelta(seconds=n), id=n) for n in range(400))
    return table


class TestSpreadingAHotPartition:
    async def test_inserts_go_evenly_to_sixteen_partitions(
        self, partita_db: Database, ticks: Table[Tick]
    ) -> None:
        counts = Counter(key.split("/")[0] for key in await keys_in(partita_db, "Ticks"))

        assert len(counts) == 16
        # Chi-square with 15 degrees of freedom: above 37.7 once in a thousand.
        assert sum((each - 25) ** 2 / 25 for each in counts.values()) < 37.7

    async def test_a_reader_fans_in_and_keeps_the_order_of_time(
        self, partita_db: Database, ticks: Table[Tick]
    ) -> None:
        query = ticks.partition().range(at=at_least(START + timedelta(seconds=300)))

        assert query.plan.kind is QueryKind.SPREAD
        assert [each.id async for each in query] == list(range(300, 400))

    async def test_one_entity_is_still_a_point_query(
        self, partita_db: Database, ticks: Table[Tick]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await ticks.get(at=START + timedelta(seconds=17), id=17)

        assert (found.id, cost.requests) == (17, 1)

    async def test_the_price_is_a_request_for_each_place(
        self, partita_db: Database, ticks: Table[Tick]
    ) -> None:
        with partita_db.measuring() as cost:
            await ticks.partition().range(at=at_least(START + timedelta(seconds=390))).list()

        assert cost.requests == 16


# ---------------------------------------------------------------------------------------------
# Log data


@entity(table="LogByHour", partition="{hour:asc}", row="{at:asc}_{message_id}")
class LogByHour:
    """The guide's first schema: a hot partition."""

    hour: datetime
    at: datetime
    message_id: str
    severity: str
    message: str


@entity(table="LogBySource", partition="{source}", row="{at:asc}_{message_id}")
class LogBySource:
    """The guide's second schema: every partition must be searched for a span of time."""

    source: str
    at: datetime
    message_id: str
    severity: str
    message: str


class TestLogDataAntiPattern:
    def test_the_first_schema_of_the_guide_is_hot_and_log_data(self) -> None:
        assert codes(LogByHour) == ["LogData", "MonotonePartition"]

    def test_the_second_schema_of_the_guide_is_log_data_too(self) -> None:
        assert codes(LogBySource) == ["LogData"]

    def test_the_advice_is_to_use_blobs(self) -> None:
        assert "blob" in hints(LogBySource)

    async def test_a_span_of_time_in_the_second_schema_is_a_scan(
        self, partita_db: Database
    ) -> None:
        logs = partita_db.table(LogBySource)

        query = logs.where((logs.c.at >= START) & (logs.c.at < START + timedelta(minutes=2)))

        assert query.plan.is_refused

    def test_numbers_and_times_that_somebody_looks_up_are_no_log(self) -> None:
        @entity(table="Payments", partition="{account}", row="{at:desc}")
        class Payment:
            account: str
            at: datetime
            amount: int
            message: str

        assert codes(Payment) == []
