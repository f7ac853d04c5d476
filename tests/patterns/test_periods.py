"""What may be done in the table of one period (the guide's high volume delete pattern).

The table is dropped with all that is in it. So nothing waits in it for a worker, and nothing
lies in it that belongs to another period, where its readers look for it.
"""

import datetime as dt
from collections.abc import Awaitable, Callable

import pytest

from partita.errors import UsageError
from partita.patterns import entity, evolve
from partita.patterns.aio import Database, PeriodTables, Table
from partita.patterns.protocol.calls import QueryRows, ask
from partita.patterns.protocol.utc import utc_now
from partita.patterns.types.table_series import TableSeries

DAY = dt.timedelta(days=1)
SERIES = TableSeries("logins", "day", keep=5)


@entity(table="logins", partition="{user}", row="{at:desc}_{number:04d}")
class Login:
    user: str
    at: dt.datetime
    number: int = 0
    note: str = ""


@entity(table="logins", partition="{user}", row="{at:desc}_{number:04d}")
class FailedLogin(Login):
    reason: str = ""


def logins_of(db: Database) -> PeriodTables[Login]:
    return db.periods(Login, SERIES, at="at")


def noon(db: Database) -> dt.datetime:
    return utc_now(db.context.clock).replace(hour=12, minute=0, second=0, microsecond=0)


async def stored(db: Database, moment: dt.datetime) -> list[tuple[str, str]]:
    """Return the keys of all rows in the table of a period, hidden ones too."""
    page = await db.run(ask(QueryRows(SERIES.table_for(moment))))
    return [(row.key.partition, row.key.row) for row in page.rows]


async def test_an_entity_moves_inside_its_partition_and_period(db: Database) -> None:
    logins, at = logins_of(db), noon(db)
    saved = await logins.save(Login(user="jun", at=at, number=1))

    moved = await logins.table(at).move(saved, number=2)

    assert await logins.get(user="jun", at=at, number=2) == moved
    assert await logins.get_or_none(user="jun", at=at, number=1) is None


async def test_a_move_to_another_partition_of_a_period_is_refused_before_anything_is_written(
    db: Database,
) -> None:
    logins, at = logins_of(db), noon(db)
    saved = await logins.save(Login(user="jun", at=at))
    before = await stored(db, at)

    with pytest.raises(UsageError) as caught:
        await logins.table(at).move(saved, user="ken")

    assert caught.value.code == "PeriodHasNoOutbox"
    assert await stored(db, at) == before
    changed = await logins.table(at).patch(saved, note="still here")
    assert (await logins.get(user="jun", at=at, number=0)).note == changed.note


@pytest.mark.parametrize("is_known", [False, True], ids=["periods only", "a table too"])
async def test_a_move_to_another_period_is_refused_before_anything_is_written(
    db: Database, *, is_known: bool
) -> None:
    logins, at = logins_of(db), noon(db)
    if is_known:
        db.table(Login)
    saved = await logins.save(Login(user="jun", at=at))

    with pytest.raises(UsageError) as caught:
        await logins.table(at).move(saved, at=at - DAY)

    assert caught.value.code == "WrongPeriod"
    assert caught.value.facts["wanted"] == SERIES.table_for(at - DAY)
    assert await logins.get(user="jun", at=at, number=0) == saved


async def test_what_the_error_advises_carries_an_entity_to_another_period(db: Database) -> None:
    logins, at = logins_of(db), noon(db)
    saved = await logins.save(Login(user="jun", at=at, note="kept"))

    await logins.save(Login(user="ken", at=at - DAY, note=saved.note))
    await logins.table(at).delete(saved)

    assert (await logins.get(user="ken", at=at - DAY, number=0)).note == "kept"
    assert await logins.get_or_none(user="jun", at=at, number=0) is None


async def save_in_group(table: Table[Login], login: Login) -> None:
    async with table.partition(user=login.user).atomic() as group:
        group.save(login)


async def save_all(table: Table[Login], login: Login) -> None:
    outcome = await table.save_all([login])
    for failure in outcome.failures:
        raise failure.error


WAYS: dict[str, Callable[[Table[Login], Login], Awaitable[object]]] = {
    "save": lambda table, login: table.save(login),
    "force": lambda table, login: table.save(login, force=True),
    "upsert": lambda table, login: table.upsert(login),
    "save_all": save_all,
    "group": save_in_group,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Login, FailedLogin])
async def test_the_table_of_a_period_takes_no_entity_of_another(
    db: Database, way: str, kind: type[Login]
) -> None:
    logins, at = logins_of(db), noon(db)
    await logins.ensure()

    with pytest.raises(UsageError) as caught:
        await WAYS[way](logins.table(at), kind(user="jun", at=at - DAY))

    assert caught.value.code == "WrongPeriod"
    assert await stored(db, at) == []


async def test_the_moment_of_a_stored_entity_may_change_within_its_period(db: Database) -> None:
    readings = db.periods(Reading, TableSeries("readings", "day"), at="at")
    at = noon(db)
    saved = await readings.save(Reading(sensor="s", number=1, at=at))
    today = readings.table(at)

    saved = await today.save(evolve(saved, at=at + dt.timedelta(hours=3)))
    with pytest.raises(UsageError) as caught:
        await today.patch(saved, at=at - DAY)

    assert caught.value.code == "WrongPeriod"
    assert (await readings.get(at, sensor="s", number=1)).at == at + dt.timedelta(hours=3)


@entity(table="readings", partition="{sensor}", row="{number:04d}")
class Reading:
    sensor: str
    number: int
    at: dt.datetime


async def test_each_series_of_a_type_has_tables_of_its_own(db: Database) -> None:
    days = db.periods(Reading, TableSeries("readings", "day"), at="at")
    months = db.periods(Reading, TableSeries("monthlyreadings", "month"), at="at")
    at = noon(db)

    await days.save(Reading(sensor="s", number=1, at=at))
    await months.save(Reading(sensor="s", number=2, at=at))

    assert (await days.get(at, sensor="s", number=1)).number == 1
    assert (await months.get(at, sensor="s", number=2)).number == 2


async def test_the_own_table_of_a_type_in_periods_takes_every_moment(db: Database) -> None:
    logins_of(db)
    own = db.table(Login)
    await db.create_tables()

    saved = await own.save(Login(user="jun", at=noon(db) - 900 * DAY))
    moved = await own.move(saved, user="ken")

    assert moved.user == "ken"


@entity(table="points", partition="{day:asc}", allow_hot=True, row="{number:04d}")
class Point:
    day: dt.date
    number: int


async def test_the_same_object_twice_in_a_save_of_periods_fails_once(db: Database) -> None:
    points = db.periods(Point, TableSeries("points", "day"), at="day")
    await points.ensure()
    today = utc_now(db.context.clock).date()
    one, two = Point(day=today, number=1), Point(day=today, number=2)

    outcome = await points.save_all([one, one, two])

    assert [each.number for each in outcome.entities] == [1, 2]
    assert len(outcome.failures) == 1
