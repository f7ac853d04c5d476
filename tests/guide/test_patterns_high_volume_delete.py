"""The guide's high volume delete pattern: a table a day, dropped when it is 60 days old.

Time is a clock that the tests move; the tables are those of an account in this process.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest

from partita.clock import ManualClock
from partita.errors import (
    ConflictError,
    DefinitionError,
    LimitExceededError,
    TableNotFoundError,
    UsageError,
)
from partita.patterns import (
    Database,
    EntityExistsError,
    EntityNotFoundError,
    InBlob,
    PeriodTables,
    ScanRefusedError,
    TableSeries,
    connect,
    entity,
    entity_type,
    evolve,
    index,
    lint,
)
from partita.patterns.faults import Faults
from partita.patterns.sync import connect as connect_sync
from partita.patterns.types import table_series
from partita.service.hosting.in_process import LocalAccount

NOON = datetime(2014, 7, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LOGINS = TableSeries("logins", period="day", keep=60)


@entity(table="logins", partition="{user}", row="{at:desc}_{number:04d}")
class Login:
    user: str
    at: datetime
    number: int = 0
    is_refused: bool = False


class Calendar(ManualClock):
    """A clock that says what day it is."""

    def __init__(self, now: datetime = NOON) -> None:
        super().__init__(int(now.timestamp()) * 10_000_000)

    @property
    def now(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.ticks() // 10)


@pytest.fixture
def clock() -> Calendar:
    return Calendar()


@pytest.fixture
async def db(partita_account: LocalAccount, clock: Calendar) -> AsyncIterator[Database]:
    async with connect(partita_account, clock=clock) as opened:
        yield opened


@pytest.fixture
async def logins(db: Database) -> PeriodTables[Login]:
    tables = db.periods(Login, LOGINS, at="at")
    await tables.ensure()
    return tables


def tables_of(account: LocalAccount) -> list[str]:
    return sorted(table.name for table in account.tables.list_tables())


class TestHighVolumeDeletePattern:
    async def test_each_day_has_a_table_of_its_own(
        self, partita_account: LocalAccount, logins: PeriodTables[Login]
    ) -> None:
        await logins.save(Login(user="jun", at=NOON))
        await logins.save(Login(user="jun", at=NOON - DAY))

        assert tables_of(partita_account) == ["logins20140730", "logins20140731", "logins20140801"]

    async def test_deleting_a_days_logins_is_one_storage_operation(
        self,
        partita_account: LocalAccount,
        clock: Calendar,
        logins: PeriodTables[Login],
        partita_faults: Faults,
    ) -> None:
        await logins.save_all(
            Login(user=f"user{number % 7}", at=NOON, number=number) for number in range(300)
        )
        clock.advance(61 * 86_400)
        partita_faults.requests.clear()

        assert await logins.sweep() == ("logins20140731",)

        deletions = [line for line in partita_faults.requests if line.startswith("DELETE")]
        assert len(deletions) == 1
        assert tables_of(partita_account) == ["logins20140801"]

    async def test_the_retention_holds_every_day_for_200_days(
        self, partita_account: LocalAccount, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        kept: dict[str, datetime] = {}
        for _ in range(200):
            await logins.ensure()
            await logins.save(Login(user="jun", at=clock.now))
            kept[LOGINS.table_for(clock.now)] = clock.now
            for table in await logins.sweep():
                # Nothing younger than the retention is ever dropped.
                assert clock.now - kept.pop(table) > 60 * DAY
            assert all(clock.now - at <= 61 * DAY for at in kept.values())
            clock.advance(86_400)

        there = [table for table in tables_of(partita_account) if table in kept]
        assert there == sorted(kept)
        assert len(kept) == 61
        newest = await logins.latest(3, user="jun")
        assert [each.at for each in newest] == sorted(kept.values(), reverse=True)[:3]

    async def test_a_day_on_which_nobody_made_tables_is_written_too(
        self, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        clock.advance(10 * 86_400)

        await logins.save(Login(user="jun", at=clock.now))

        assert (await logins.get(user="jun", at=clock.now, number=0)).user == "jun"

    async def test_the_table_of_tomorrow_is_made_ahead(
        self,
        db: Database,
        clock: Calendar,
        logins: PeriodTables[Login],
        partita_faults: Faults,
    ) -> None:
        clock.advance(12 * 3600 + 1)  # just after midnight
        partita_faults.requests.clear()

        await logins.save(Login(user="jun", at=clock.now))

        assert len(partita_faults.requests) == 1

    async def test_writers_on_both_sides_of_midnight_lose_nothing(
        self, partita_account: LocalAccount, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        midnight = datetime(2014, 8, 1, tzinfo=UTC)
        clock.advance(12 * 3600)
        moments = [midnight + timedelta(seconds=seconds) for seconds in range(-5, 5)]

        await asyncio.gather(
            *(logins.save(Login(user=f"u{n}", at=at)) for n, at in enumerate(moments)),
            logins.ensure(),
            logins.sweep(),
        )

        found = [each async for each in logins.between(moments[0], moments[-1], allow_scan=True)]
        assert sorted(each.at for each in found) == moments

    async def test_a_name_is_never_used_again(
        self, partita_account: LocalAccount, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        old = Login(user="jun", at=NOON)
        await logins.save(old)
        clock.advance(62 * 86_400)
        await logins.sweep()

        with pytest.raises(LimitExceededError) as refused:
            await logins.save(Login(user="ken", at=NOON))

        assert refused.value.code == "EventTooLate"
        assert "logins20140731" not in tables_of(partita_account)

    async def test_a_clock_that_is_wrong_makes_no_table_of_the_far_future(
        self, logins: PeriodTables[Login]
    ) -> None:
        with pytest.raises(LimitExceededError) as refused:
            await logins.save(Login(user="jun", at=NOON + 30 * DAY))

        assert refused.value.code == "EventTooEarly"

    async def test_a_table_is_dropped_only_after_a_grace(
        self, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        await logins.save(Login(user="jun", at=NOON))
        clock.advance(60 * 86_400 + 12 * 3600 + 60)  # a minute after its last day

        assert await logins.sweep() == ()
        clock.advance(15 * 60)
        assert await logins.sweep() == ("logins20140731",)

    async def test_a_specific_login_is_looked_up_by_one_request(
        self, db: Database, logins: PeriodTables[Login]
    ) -> None:
        await logins.save(Login(user="jun", at=NOON - 3 * DAY, number=7))

        with db.measuring() as cost:
            found = await logins.get(user="jun", at=NOON - 3 * DAY, number=7)

        assert (found.number, cost.requests) == (7, 1)
        with pytest.raises(EntityNotFoundError):
            await logins.get(user="jun", at=NOON - 5 * DAY, number=7)

    async def test_the_latest_logins_of_a_user_are_read_from_the_newest_table_on(
        self, db: Database, logins: PeriodTables[Login]
    ) -> None:
        for number in range(6):
            await logins.save(Login(user="jun", at=NOON - number * DAY / 2, number=number))

        with db.measuring() as cost:
            found = await logins.latest(4, user="jun")

        assert [each.number for each in found] == [0, 1, 2, 3]
        assert cost.requests == 3  # tomorrow's, today's and yesterday's

    async def test_a_range_of_time_reads_the_tables_of_its_days_and_no_others(
        self, db: Database, logins: PeriodTables[Login]
    ) -> None:
        for number in range(10):
            await logins.save(Login(user="jun", at=NOON - number * DAY, number=number))
            await logins.save(Login(user="ken", at=NOON - number * DAY, number=number))

        with db.measuring() as cost:
            span = logins.between(NOON - 4 * DAY, NOON - 2 * DAY, user="jun")
            found = [each.number async for each in span]

        assert found == [2, 3, 4]
        assert (cost.requests, cost.entities) == (3, 3)

    async def test_a_day_that_has_no_table_is_an_empty_day(
        self, logins: PeriodTables[Login]
    ) -> None:
        span = logins.between(NOON - 20 * DAY, NOON, user="jun")

        assert [each async for each in span] == []

    async def test_reading_all_partitions_of_a_range_must_be_asked_for(
        self, logins: PeriodTables[Login]
    ) -> None:
        with pytest.raises(ScanRefusedError):
            async for _ in logins.between(NOON - DAY, NOON):
                pass

    async def test_the_table_of_a_day_answers_every_other_query(
        self, logins: PeriodTables[Login]
    ) -> None:
        outcome = await logins.save_all(
            Login(user=f"u{n % 3}", at=NOON - n * DAY / 10, number=n, is_refused=n % 2 == 0)
            for n in range(10)
        )
        assert len(outcome.entities) == 10
        day = logins.table(NOON)

        refused = await day.where(day.c.is_refused == True).allow_scan().count()  # noqa: E712
        assert refused == 3
        async with day.partition(user="u1").atomic() as group:
            (first, *_) = await day.partition(user="u1").all().list()
            group.save(evolve(first, is_refused=True))
        (again, *_) = await day.partition(user="u1").all().list()
        assert again.is_refused
        assert (await day.partition(user="u0").all().delete()).failures == []

    async def test_many_logins_of_several_days_are_saved_in_groups(
        self, db: Database, logins: PeriodTables[Login]
    ) -> None:
        many = [Login(user="jun", at=NOON - (n % 2) * DAY, number=n) for n in range(60)]
        await logins.save(Login(user="ken", at=NOON - DAY))
        late = Login(user="jun", at=NOON - 90 * DAY)

        with db.measuring() as cost:
            outcome = await logins.save_all([*many, late])

        assert outcome.entities == many
        assert [failure.entity for failure in outcome.failures] == [late]
        assert cost.requests == 2

    async def test_saving_is_conditional_as_everywhere(self, logins: PeriodTables[Login]) -> None:
        await logins.save(Login(user="jun", at=NOON))

        with pytest.raises(EntityExistsError):
            await logins.save(Login(user="jun", at=NOON))

    async def test_inserts_go_to_a_partition_for_each_user(self) -> None:
        assert lint(entity_type(Login)) == []

    async def test_no_two_days_share_a_name(self) -> None:
        names = {LOGINS.table_for(NOON + number * DAY) for number in range(5_000)}

        assert len(names) == 5_000

    async def test_a_name_that_is_still_being_deleted_is_waited_for(
        self,
        logins: PeriodTables[Login],
        partita_faults: Faults,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(table_series, "BEING_DELETED_SECONDS", 0.0)
        for _ in range(3):
            partita_faults.fail_next(
                "POST /devstoreaccount1/Tables",
                error=ConflictError("TableBeingDeleted", "The table is being deleted."),
            )

        await logins.save(Login(user="jun", at=NOON - DAY))

        assert len(await logins.latest(1, user="jun")) == 1

    async def test_throttling_of_a_new_table_is_waited_out(
        self, logins: PeriodTables[Login], partita_faults: Faults
    ) -> None:
        partita_faults.answer_503(times=2, match="POST /devstoreaccount1/logins20140731")

        saved = await logins.save(Login(user="jun", at=NOON))

        assert (await logins.get(user="jun", at=NOON, number=0)) == saved

    async def test_what_would_outlive_its_table_is_refused(self, db: Database) -> None:
        @entity(table="photos", partition="{user}", row="{at:desc}")
        class Photo:
            user: str
            at: datetime
            image: Annotated[bytes | None, InBlob] = None

        @entity(table="visits", partition="{user}", row="v_{at:desc}")
        class Visit:
            user: str
            at: datetime
            place: str

        index(Visit, row="p_{place:esc}_{at:desc}")

        for cls in (Photo, Visit):
            with pytest.raises(DefinitionError) as refused:
                db.periods(cls, TableSeries("things"), at="at")
            assert refused.value.code == "PeriodsRefused"

    async def test_latest_needs_row_keys_that_begin_with_the_newest(self, db: Database) -> None:
        @entity(table="steps", partition="{user}", row="{at:asc}")
        class Step:
            user: str
            at: datetime

        steps = db.periods(Step, TableSeries("steps"), at="at")
        for hour in range(3):
            await steps.save(Step(user="jun", at=NOON - timedelta(hours=hour * 20)))

        with pytest.raises(UsageError):
            await steps.latest(3, user="jun")
        oldest_first = [each.at async for each in steps.between(NOON - 3 * DAY, NOON, user="jun")]
        assert oldest_first == sorted(oldest_first)

    async def test_periods_may_be_hours_and_months(
        self, partita_account: LocalAccount, db: Database
    ) -> None:
        for period in ("hour", "month"):
            series = TableSeries(f"logins{period}", period=period, keep=3)
            await db.periods(Login, series, at="at").ensure()

        assert tables_of(partita_account) == [
            "loginshour2014073112",
            "loginshour2014073113",
            "loginsmonth201407",
            "loginsmonth201408",
        ]

    async def test_a_dropped_table_is_gone_for_its_readers_as_well(
        self, clock: Calendar, logins: PeriodTables[Login]
    ) -> None:
        await logins.save(Login(user="jun", at=NOON))
        day = logins.table(NOON)
        clock.advance(62 * 86_400)
        await logins.sweep()

        assert await logins.latest(10, user="jun") == []
        with pytest.raises(TableNotFoundError):
            await day.get(user="jun", at=NOON, number=0)


class TestHighVolumeDeleteInASynchronousProgram:
    def test_the_same_names_without_a_loop(self, partita_account: LocalAccount) -> None:
        clock = Calendar()
        with connect_sync(partita_account, clock=clock) as db:
            logins = db.periods(Login, LOGINS, at="at")
            logins.ensure()
            logins.save(Login(user="jun", at=NOON))

            assert [each.at for each in logins.latest(5, user="jun")] == [NOON]
            assert [each.at for each in logins.between(NOON, NOON, user="jun")] == [NOON]
            clock.advance(62 * 86_400)
            assert logins.sweep() == ("logins20140731", "logins20140801")
