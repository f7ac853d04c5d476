"""The recorder closes minutes, shows the open one, and survives errors of its store."""

import logging
from collections.abc import Mapping

import pytest

from partita.clock import ManualClock
from partita.errors import StoreBusyError, UnavailableError
from partita.heat.answers import decode, route
from partita.heat.kept import Column, KeptHeat, TableTotal
from partita.heat.limits import LIVE_SECONDS
from partita.heat.meter import READ, Meter
from partita.heat.minutes import Axes
from partita.heat.recorder import Heat
from partita.heat.sqlite_heat import SqliteHeat

START = 1_768_471_200
EVER = (0, START + 10**8)


class BrokenHeat:
    """A store whose disk is full, or whose database is away."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.is_broken = True
        self.added = 0

    async def add(self, _start: int, _axes: Axes, _now: int) -> None:
        if self.is_broken:
            raise UnavailableError("HeatUnavailable", "The disk is full.")
        self.added += 1

    async def read(self, _folded: str, _since: int, _to: int) -> list[Column]:
        return []

    async def tables(self, _since: int, _to: int) -> list[TableTotal]:
        return []

    async def close(self) -> None: ...


class LiveRows:
    def __init__(self) -> None:
        self.rows: list[tuple[Mapping[str, Axes], float]] = []
        self.error: Exception | None = None

    async def write(self, axes: Mapping[str, Axes], seconds: float, now: int) -> None:
        if self.error is not None:
            raise self.error
        assert now
        self.rows.append((axes, seconds))


def new_clock() -> ManualClock:
    return ManualClock(START * 10_000_000)


async def heat_of(clock: ManualClock, kept: KeptHeat | None = None) -> tuple[Heat, Meter]:
    heat = Heat(clock)
    return heat, heat.add("mine", kept or await SqliteHeat.open(None))


async def test_the_open_minute_is_read_too() -> None:
    clock = new_clock()
    heat, meter = await heat_of(clock)
    meter.count("Staff", ("a", "1"), READ)
    clock.advance(60)
    await heat.tick()
    meter.count("staff", ("a", "2"), READ)

    reading = await heat.read("mine", "STAFF", *EVER)
    tables = await heat.read("mine", None, *EVER)

    assert reading is not None
    assert tables is not None
    assert [(each.start - START, each.is_open) for each in reading.columns] == [
        (0, False),
        (60, True),
    ]
    assert [(each.name, each.counts[0]) for each in tables.tables] == [("staff", 2)]
    await heat.close()


async def test_closing_keeps_the_open_minute() -> None:
    kept = BrokenHeat(is_shared=False)
    kept.is_broken = False
    heat, meter = await heat_of(new_clock(), kept)
    meter.count("Staff", ("a", "1"), READ)

    await heat.close()

    assert kept.added == 1


async def test_a_clock_that_goes_back_loses_nothing() -> None:
    clock = new_clock()
    heat, meter = await heat_of(clock)
    for seconds in (60, -3600, 7200, -60, 60):
        meter.count("Staff", ("a", "1"), READ)
        clock.jump(seconds)
        clock.advance(1)
        await heat.tick()

    reading = await heat.read("mine", None, *EVER)

    assert reading is not None
    assert [each.counts[0] for each in reading.tables] == [5]
    await heat.close()


async def test_a_full_disk_stops_heat_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock = new_clock()
    heat, meter = await heat_of(clock, BrokenHeat(is_shared=False))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            meter.count("Staff", ("a", "1"), READ)
            clock.advance(60)
            await heat.tick()

    assert len(caplog.records) == 1
    assert "The disk is full" in caplog.text
    assert meter.samples == []
    assert await heat.read("mine", None, *EVER) is None
    await heat.close()


async def test_a_damaged_axis_stops_heat_when_it_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = new_clock()
    kept = await SqliteHeat.open(None)
    heat, meter = await heat_of(clock, kept)
    meter.count("Staff", ("a", "1"), READ)
    clock.advance(60)
    await heat.tick()
    kept._connection.execute("UPDATE heat SET axis = x'00'")

    with caplog.at_level(logging.WARNING):
        assert await heat.read("mine", "Staff", *EVER) is None
        assert await heat.read("mine", "Staff", *EVER) is None

    assert len(caplog.records) == 1
    await heat.close()


async def test_a_database_that_is_away_costs_minutes_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = new_clock()
    kept = BrokenHeat(is_shared=True)
    heat, meter = await heat_of(clock, kept)
    with caplog.at_level(logging.WARNING):
        for minute in range(5):
            kept.is_broken = minute < 3
            meter.count("Staff", ("a", "1"), READ)
            clock.advance(60)
            await heat.tick()

    assert len(caplog.records) == 1
    assert kept.added == 2
    await heat.close()


async def test_a_front_end_stores_the_load_of_the_last_seconds_once() -> None:
    clock, live = new_clock(), LiveRows()
    heat = Heat(clock, live)
    meter = heat.add("mine", await SqliteHeat.open(None))
    for _ in range(3):
        meter.count("Staff", ("a", "1"), READ)
        clock.advance(LIVE_SECONDS)
        await heat.tick()
    live.error = StoreBusyError("ServerBusy", "The server is busy.")
    clock.advance(LIVE_SECONDS)
    await heat.tick()

    assert [axes["mine"]["staff"].total[0] for axes, _seconds in live.rows] == [1, 1, 1]
    assert [seconds for _axes, seconds in live.rows] == [LIVE_SECONDS] * 3
    await heat.close()


async def test_the_route_answers_with_json_that_is_read_again() -> None:
    clock = new_clock()
    heat, meter = await heat_of(clock)
    meter.count("Staff", ("\U0001f600", "1"), READ)
    clock.advance(60)
    await heat.tick()
    answer = route(heat, "mine", clock)

    reading = decode(bytes(await answer({"table": "Staff"})))
    tables = decode(bytes(await answer({"account": "mine", "from": "0", "to": str(START + 120)})))

    assert reading == await heat.read("mine", "Staff", START + 61 - 3600, START + 61)
    assert [table.name for table in tables.tables] == ["Staff"]
    await heat.close()


@pytest.mark.parametrize(
    "parameters", [{"account": "other"}, {"from": "x"}, {"to": "-1"}, {"to": "9" * 13}]
)
async def test_parameters_that_are_not_valid_are_refused(parameters: dict[str, str]) -> None:
    clock = new_clock()
    heat, _meter = await heat_of(clock)

    with pytest.raises(ValueError, match=r"measured|seconds since 1970"):
        await route(heat, "mine", clock)(parameters)
    with pytest.raises(ValueError, match="measured"):
        await route(None, "mine", clock)({})
    await heat.close()
