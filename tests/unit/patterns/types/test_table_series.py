"""A table for each period: guide, "High volume delete pattern"."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.errors import (
    DefinitionError,
    InvalidPropertyError,
    LimitExceededError,
    PartitaError,
    TableNotFoundError,
    UnavailableError,
)
from partita.patterns.protocol.calls import (
    Call,
    CreateTable,
    DeleteTable,
    QueryRows,
    RowOperation,
    Sleep,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.utc import utc_now
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.table_series import (
    BEING_DELETED_ATTEMPTS_MAX,
    PERIODS_MAX,
    Period,
    TableSeries,
    read_each,
    read_first,
)
from support.fake_world import CRASHES, EPOCH, FakeWorld, each_fault

NOON = datetime(2014, 7, 31, 12, tzinfo=UTC)
LOGINS = TableSeries("logins")
DAY = timedelta(days=1)


def a_world(now: datetime = NOON, **options: Any) -> FakeWorld:
    clock = ManualClock(int((now - EPOCH).total_seconds()) * 10_000_000)
    return FakeWorld(clock=clock, **options)


def insert(row: str, partition: str = "p") -> Callable[[str], Steps[tuple[str, ...]]]:
    operation = RowOperation(Verb.INSERT, Row(RowKey(partition, row), {}))
    return lambda table: ask(WriteRows(table, (operation,)))


def rows_in(world: FakeWorld) -> dict[str, list[str]]:
    return {
        world.table_names[name]: [row.key.row for row in world.rows(name)]
        for name in sorted(world.tables)
    }


# ---------------------------------------------------------------------------------------------
# Names


@pytest.mark.parametrize(
    ("period", "table"),
    [("hour", "logins2014073112"), ("day", "logins20140731"), ("month", "logins201407")],
)
def test_a_table_is_named_by_its_period(period: Period, table: str) -> None:
    series = TableSeries("logins", period)

    assert series.table_for(NOON) == table


def test_periods_are_those_of_utc() -> None:
    local = datetime(2014, 8, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    assert LOGINS.table_for(local) == "logins20140731"


def test_a_date_names_its_table() -> None:
    assert LOGINS.table_for(date(2014, 7, 31)) == "logins20140731"
    assert TableSeries("logins", "hour").table_for(date(2014, 7, 31)) == "logins2014073100"


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidPropertyError) as refused:
        LOGINS.table_for(NOON.replace(tzinfo=None))

    assert refused.value.code == "NaiveDatetime"


@pytest.mark.parametrize("name", ["", "2logins", "log-ins", "logins2", "é", "x" * 56])
def test_a_name_that_could_be_another_series_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        TableSeries(name)

    assert refused.value.code == "InvalidTableSeries"


@pytest.mark.parametrize(
    "options",
    [{"period": "week"}, {"keep": 0}, {"keep": PERIODS_MAX + 1}, {"ahead": -1}, {"ahead": 61}],
)
def test_a_series_that_cannot_be_kept_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        TableSeries("logins", **options)


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from(["hour", "day", "month"]),
)
def test_the_name_of_a_table_tells_its_period(moment: datetime, period: Period) -> None:
    series = TableSeries("Logins", period)

    start = series.start_of(series.table_for(moment).upper())

    assert start is not None
    assert start <= moment
    assert series.table_for(start) == series.table_for(moment)


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_names_sort_as_periods_do(one: datetime, other: datetime) -> None:
    tables = LOGINS.table_for(one), LOGINS.table_for(other)

    assert (tables[0] <= tables[1]) == (one.date() <= other.date())


@pytest.mark.parametrize(
    "table",
    [
        "logins",
        "logins201407",
        "logins2014073112",
        "logins20141301",
        "logins20140732",
        "logins2014073x",
        "logins\uff120140731",
        "other20140731",
        "loginsx20140731",
        "logins00000101",
    ],
)
def test_other_tables_are_not_of_the_series(table: str) -> None:
    assert LOGINS.start_of(table) is None


def test_a_range_names_its_tables_in_either_order() -> None:
    tables = LOGINS.tables_between(NOON - DAY, NOON + DAY)

    assert tables == ("logins20140730", "logins20140731", "logins20140801")
    assert LOGINS.tables_between(NOON - DAY, NOON + DAY, newest_first=True) == tables[::-1]
    assert LOGINS.tables_between(NOON, NOON) == ("logins20140731",)
    assert LOGINS.tables_between(NOON, NOON - DAY) == ()


def test_months_have_their_own_lengths() -> None:
    series = TableSeries("logins", "month")
    start, end = datetime(2015, 11, 30, tzinfo=UTC), datetime(2016, 2, 1, tzinfo=UTC)

    names = ("logins201511", "logins201512", "logins201601", "logins201602")
    assert series.tables_between(start, end) == names


def test_a_range_over_too_many_tables_is_refused() -> None:
    series = TableSeries("logins", "hour")

    with pytest.raises(LimitExceededError) as refused:
        series.tables_between(NOON - timedelta(hours=PERIODS_MAX), NOON)

    assert refused.value.code == "TooManyPeriods"


def test_kept_tables_are_those_that_may_be_written() -> None:
    series = TableSeries("logins", keep=2)

    assert series.kept_tables(NOON) == (
        "logins20140801",
        "logins20140731",
        "logins20140730",
        "logins20140729",
    )
    for table in series.kept_tables(NOON, newest_first=False):
        start = series.start_of(table)
        assert start is not None
        assert series.check_writable(start, NOON) == table


def test_time_has_an_end() -> None:
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)

    assert LOGINS.kept_tables(last)[0] == "logins99991231"
    assert a_world(last).run(LOGINS.ensure(last)) == ("logins99991231",)


# ---------------------------------------------------------------------------------------------
# What may be written, what may be dropped


def test_an_event_older_than_what_is_kept_is_refused() -> None:
    oldest = datetime(2014, 6, 1, tzinfo=UTC)

    assert LOGINS.check_writable(oldest, NOON) == "logins20140601"
    with pytest.raises(LimitExceededError) as refused:
        LOGINS.check_writable(oldest - timedelta(microseconds=1), NOON)

    assert refused.value.code == "EventTooLate"
    assert refused.value.facts == {"series": "logins", "table": "logins20140531", "keep": 60}


def test_an_event_from_a_clock_that_runs_ahead_is_refused() -> None:
    assert LOGINS.check_writable(NOON + DAY, NOON) == "logins20140801"
    with pytest.raises(LimitExceededError) as refused:
        LOGINS.check_writable(NOON + 2 * DAY, NOON)

    assert refused.value.code == "EventTooEarly"


def test_a_table_expires_when_its_last_moment_is_older_than_what_is_kept() -> None:
    series = TableSeries("logins", keep=2, grace=timedelta())
    tables = ["logins20140728", "other", "logins20140729", "LOGINS20140701", "logins20990101"]

    assert series.expired(tables, NOON) == ("LOGINS20140701", "logins20140728")
    assert series.expired(tables, NOON.replace(hour=0)) == ("LOGINS20140701", "logins20140728")
    assert series.expired(tables, NOON - DAY) == ("LOGINS20140701",)


def test_a_table_is_dropped_some_time_after_it_can_no_longer_be_written() -> None:
    series = TableSeries("logins", keep=2)
    midnight = datetime(2014, 8, 1, tzinfo=UTC)
    table, last = "logins20140729", midnight - 2 * DAY - timedelta(seconds=1)

    with pytest.raises(LimitExceededError):
        series.check_writable(last, midnight)
    assert series.expired([table], midnight + timedelta(minutes=14, seconds=59)) == ()
    assert series.expired([table], midnight + timedelta(minutes=15)) == (table,)


@given(
    moment=st.datetimes(
        datetime(2014, 1, 1),  # noqa: DTZ001 - the zone is said below
        datetime(2015, 1, 1),  # noqa: DTZ001
        timezones=st.just(UTC),
    ),
    age=st.timedeltas(timedelta(), timedelta(days=100)),
    period=st.sampled_from(["hour", "day", "month"]),
    keep=st.integers(1, 70),
)
def test_what_may_be_written_is_never_dropped(
    moment: datetime, age: timedelta, period: Period, keep: int
) -> None:
    series = TableSeries("logins", period, keep)
    now = moment + age
    try:
        table = series.check_writable(moment, now)
    except LimitExceededError:
        return

    assert series.expired([table], now + series.grace - timedelta(microseconds=1)) == ()


# ---------------------------------------------------------------------------------------------
# Steps


def test_tables_are_made_ahead() -> None:
    world = a_world()

    assert world.run(LOGINS.ensure(NOON)) == ("logins20140731", "logins20140801")
    assert world.run(LOGINS.ensure(NOON)) == ()
    assert world.run(LOGINS.ensure(NOON + DAY)) == ("logins20140802",)


def test_sweeping_drops_whole_tables_and_only_those_of_the_series() -> None:
    world = a_world()
    for table in ("logins20140101", "logins20140601", "loginsold20140101", "logins201401"):
        world.perform(CreateTable(table))

    assert world.run(LOGINS.sweep(NOON)) == ("logins20140101",)
    assert world.run(LOGINS.sweep(NOON)) == ()
    assert sorted(rows_in(world)) == ["logins201401", "logins20140601", "loginsold20140101"]


def test_a_sweep_of_sixty_tables_is_one_request_a_table() -> None:
    world = a_world()
    for table in LOGINS.tables_between(NOON - 120 * DAY, NOON - 61 * DAY):
        world.perform(CreateTable(table))
    world.history.clear()

    dropped = world.run(LOGINS.sweep(NOON))

    assert (len(dropped), world.requests()) == (60, 61)


def test_a_sweep_may_be_stopped_anywhere_and_repeated() -> None:
    def build() -> FakeWorld:
        world = a_world()
        for table in LOGINS.tables_between(NOON - 64 * DAY, NOON):
            world.perform(CreateTable(table))
        return world

    def scenario(world: FakeWorld) -> None:
        world.run(LOGINS.sweep(NOON))

    for world, where in each_fault(scenario, faults=CRASHES, build=build):
        world.run(LOGINS.sweep(NOON))
        assert sorted(rows_in(world)) == [*LOGINS.tables_between(NOON - 60 * DAY, NOON)], where


def test_two_sweepers_do_not_disturb_each_other() -> None:
    for seed in range(10):
        world = a_world(seed=seed)
        for table in LOGINS.tables_between(NOON - 64 * DAY, NOON):
            world.perform(CreateTable(table))

        dropped = world.run_all(LOGINS.sweep(NOON), LOGINS.sweep(NOON))

        assert sorted(dropped[0] + dropped[1]) == [
            *LOGINS.tables_between(NOON - 64 * DAY, NOON - 61 * DAY)
        ]


def test_a_late_event_makes_the_table_of_its_day() -> None:
    world = a_world()

    world.run(LOGINS.write(NOON - 30 * DAY, world.clock, insert("late")))

    assert rows_in(world) == {"logins20140701": ["late"]}
    assert [type(call) for call in world.history] == [WriteRows, CreateTable, WriteRows]


def test_an_event_that_is_too_late_makes_no_table() -> None:
    world = a_world()

    with pytest.raises(LimitExceededError):
        world.run(LOGINS.write(NOON - 61 * DAY, world.clock, insert("late")))

    assert world.history == []


def test_a_name_that_is_being_deleted_is_waited_for() -> None:
    world = a_world()
    world.deletion_seconds = 45
    world.perform(CreateTable("logins20140731"))
    world.perform(DeleteTable("logins20140731"))

    world.run(LOGINS.write(NOON, world.clock, insert("1")))

    assert rows_in(world) == {"logins20140731": ["1"]}
    assert 45 <= world.clock.monotonic() <= 60


def test_a_name_that_stays_in_deletion_is_given_up() -> None:
    world = a_world()
    world.deletion_seconds = 1e9
    world.perform(CreateTable("logins20140731"))
    world.perform(DeleteTable("logins20140731"))

    with pytest.raises(UnavailableError) as refused:
        world.run(LOGINS.write(NOON, world.clock, insert("1")))

    assert refused.value.code == "TableBeingDeleted"
    assert world.clock.monotonic() == pytest.approx(10.0 * (BEING_DELETED_ATTEMPTS_MAX - 1))


def test_an_event_that_grows_too_late_while_waiting_is_refused() -> None:
    almost = datetime(2014, 7, 31, 23, 59, 50, tzinfo=UTC)
    world = a_world(almost)
    world.deletion_seconds = 45
    world.perform(CreateTable("logins20140601"))
    world.perform(DeleteTable("logins20140601"))

    with pytest.raises(LimitExceededError) as refused:
        world.run(LOGINS.write(date(2014, 6, 1), world.clock, insert("1")))

    assert refused.value.code == "EventTooLate"
    assert rows_in(world) == {}


def test_making_tables_ahead_does_not_wait_for_a_name_in_deletion() -> None:
    world = a_world()
    world.deletion_seconds = 45
    world.perform(CreateTable("logins20140801"))
    world.perform(DeleteTable("logins20140801"))

    assert world.run(LOGINS.ensure(NOON)) == ("logins20140731",)
    with pytest.raises(UnavailableError):
        world.run(LOGINS.ensure(NOON + DAY))


def test_another_missing_table_is_told() -> None:
    world = a_world()

    with pytest.raises(TableNotFoundError):
        world.run(LOGINS.write(NOON, world.clock, lambda _: insert("1")("elsewhere")))


def test_other_refusals_of_a_write_are_told() -> None:
    world = a_world()
    world.run(LOGINS.write(NOON, world.clock, insert("1")))

    with pytest.raises(PartitaError) as refused:
        world.run(LOGINS.write(NOON, world.clock, insert("1")))

    assert refused.value.code == "EntityAlreadyExists"


# ---------------------------------------------------------------------------------------------
# Reading


def rows_of(table: str) -> Steps[list[str]]:
    page = yield from ask(QueryRows(table))
    return [row.key.row for row in page.rows]


def some_rows_of(table: str, /, *, count: int) -> Steps[list[str]]:
    page = yield from ask(QueryRows(table, size=count))
    return [row.key.row for row in page.rows]


def a_filled_world() -> FakeWorld:
    world = a_world()
    for days in (0, 1, 3):
        for row in range(3):
            world.run(LOGINS.write(NOON - days * DAY, world.clock, insert(f"{days}_{row}")))
    world.history.clear()
    return world


def test_reading_fans_out_over_the_tables_that_are_there() -> None:
    world = a_filled_world()
    tables = LOGINS.tables_between(NOON - 5 * DAY, NOON, newest_first=True)

    found = world.run(read_each(tables, rows_of))

    assert [rows[0] for rows in found] == ["0_0", "1_0", "3_0"]


def test_the_latest_are_read_from_as_few_tables_as_hold_them() -> None:
    world = a_filled_world()

    found = world.run(read_first(LOGINS.kept_tables(NOON), some_rows_of, 4))

    assert found == ("0_0", "0_1", "0_2", "1_0")
    assert world.history == [
        QueryRows("logins20140801", size=4),
        QueryRows("logins20140731", size=4),
        QueryRows("logins20140730", size=1),
    ]


def test_less_than_was_asked_for_is_all_there_is() -> None:
    world = a_filled_world()

    assert len(world.run(read_first(LOGINS.kept_tables(NOON), some_rows_of, 100))) == 9
    assert world.run(read_first(LOGINS.kept_tables(NOON), some_rows_of, 0)) == ()


@pytest.mark.parametrize("code", ["TableBeingDeleted", "ServerBusy"])
def test_a_table_that_is_dropped_while_it_is_read_is_left_out(code: str) -> None:
    world = a_filled_world()

    def refuse(call: Call[Any]) -> PartitaError | None:
        is_hit = isinstance(call, QueryRows) and call.table == "logins20140730"
        return UnavailableError(code, "No.") if is_hit else None

    world.refuse = refuse
    reading = read_each(LOGINS.tables_between(NOON - DAY, NOON), rows_of)

    if code == "TableBeingDeleted":
        assert world.run(reading) == (["0_0", "0_1", "0_2"],)
    else:
        with pytest.raises(UnavailableError):
            world.run(reading)


# ---------------------------------------------------------------------------------------------
# Two hundred days, and midnight


def test_after_two_hundred_days_exactly_what_is_kept_is_there() -> None:
    series = TableSeries("logins", keep=60)
    world = a_world()
    world.deletion_seconds = 40
    written: dict[str, datetime] = {}
    refused = 0
    for day in range(200):
        world.run(series.ensure(utc_now(world.clock)))
        for number, days_late in enumerate((0, 0.4, 1, 17, 59, 60, 60.4, 61, 75)):
            now = utc_now(world.clock)
            moment = now - days_late * DAY
            row = f"{day:03d}_{number}"
            try:
                world.run(series.write(moment, world.clock, insert(row)))
                written[row] = moment
            except LimitExceededError:
                refused += 1
            world.clock.advance(3600)
        world.run(series.sweep(utc_now(world.clock)))
        world.clock.advance(15 * 3600)

        present = {row for rows in rows_in(world).values() for row in rows}
        today = utc_now(world.clock).date()
        for row, moment in written.items():
            age = (today - moment.date()).days
            if age <= 60:
                assert row in present, f"{row} was lost on day {day}"
            elif age > 61:  # the sweep of the day was made before the last hours of it
                assert row not in present, f"{row} is still there on day {day}"
    made = [call.table for call in world.history if isinstance(call, CreateTable)]
    dropped = [call.table for call in world.history if isinstance(call, DeleteTable)]
    assert refused > 300
    assert made_again(world) == []
    assert len(rows_in(world)) <= 60 + 3
    assert set(dropped) < set(made)


def made_again(world: FakeWorld) -> list[str]:
    """Return the names of tables that were asked for after they had been dropped."""
    dropped: set[str] = set()
    found = []
    for call in world.history:
        if isinstance(call, DeleteTable):
            dropped.add(call.table)
        elif isinstance(call, CreateTable) and call.table in dropped:
            found.append(call.table)
    return found


@pytest.mark.parametrize("grace", [timedelta(), timedelta(seconds=1), timedelta(minutes=15)])
@pytest.mark.parametrize("seed", range(15))
def test_writers_at_midnight_lose_nothing_to_the_sweeper(seed: int, grace: timedelta) -> None:
    series = TableSeries("logins", keep=1, grace=grace)
    world = a_world(datetime(2014, 7, 31, 23, 59, 59, tzinfo=UTC), seed=seed, latency=0.3)
    world.run(series.ensure(utc_now(world.clock)))
    accepted: list[tuple[str, datetime]] = []
    refused: list[datetime] = []

    def writer(name: str) -> Steps[None]:
        for number in range(12):
            now = utc_now(world.clock)
            for days_late in (0, 1, 1.000003):
                moment, row = now - days_late * DAY, f"{name}_{number}_{days_late}"
                try:
                    yield from series.write(moment, world.clock, insert(row))
                except LimitExceededError:
                    refused.append(moment)
                else:
                    accepted.append((row, moment))
            yield from ask(Sleep(0.1))

    def sweeper() -> Steps[None]:
        for _ in range(20):
            now = utc_now(world.clock)
            yield from series.ensure(now)
            yield from series.sweep(now)
            yield from ask(Sleep(0.2))

    outcomes = world.run_all(writer("a"), writer("b"), sweeper())

    assert outcomes == [None] * 3
    tables, kept = rows_in(world), series.kept_tables(utc_now(world.clock))
    for row, moment in accepted:
        table = series.table_for(moment)
        assert row in tables.get(table, ()) or table not in kept
        assert row in tables.get(table, ()) or grace < timedelta(minutes=15)
    assert refused
    assert made_again(world) == []
    world.clock.advance(16 * 60)
    world.run(series.sweep(utc_now(world.clock)))
    assert sorted(rows_in(world)) == ["logins20140731", "logins20140801", "logins20140802"]
