"""Heat of several front ends on one database: merged, retained, upgraded, with few privileges."""

import asyncio
import contextlib
import io
import json
import uuid
from typing import Any

import pytest

from partita.cli.main import main
from partita.clock import ManualClock, SystemClock
from partita.errors import ConfigurationError
from partita.heat.axes import READS, Bucket, total
from partita.heat.limits import LIVE_KEPT_SECONDS, LIVE_SECONDS
from partita.heat.meter import READ
from partita.heat.minutes import TableAxis
from partita.heat.recorder import Heat
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema import heat as heat_schema
from partita.scaleout.schema import versions
from partita.scaleout.schema.install import install
from partita.ticks import TICKS_PER_SECOND
from support.catalog_databases import TO_1_2, empty_url, shared_url, url_of
from support.weak_server import run_sql

MINUTE = 60 * TICKS_PER_SECOND


async def front_end(url: str, clock: ManualClock) -> tuple[Fleet, Heat]:
    fleet = await Fleet.open(url)
    await fleet.catalog.account_id("dev")
    heat = Heat(clock, fleet.heat)
    heat.add("dev", await fleet.heat.of_account("dev"))
    return fleet, heat


def whole_minute() -> ManualClock:
    now = SystemClock().ticks()
    return ManualClock(now - now % MINUTE)


async def read_count(heat: Heat, now: int) -> list[int]:
    reading = await heat.read("dev", "Staff", now - 3600, now + 120)
    assert reading is not None
    return [total(column.axis)[READS] for column in reading.columns]


async def test_the_load_of_all_front_ends_is_one_picture() -> None:
    url, clock = await shared_url(), whole_minute()
    now = clock.ticks() // TICKS_PER_SECOND
    ends = [await front_end(url, clock), await front_end(url, clock)]
    opened: list[int] = []
    for _minute in range(2):
        for number, (_fleet, heat) in enumerate(ends):
            for _ in range(3 + number):
                heat._accounts["dev"].meter.count("Staff", ("p", str(number)), READ)
        clock.advance(LIVE_SECONDS)
        for _fleet, heat in ends:
            await heat.tick()
        opened = await read_count(ends[0][1], now)
        clock.advance(60 - LIVE_SECONDS)
        for _fleet, heat in ends:
            await heat.tick()

    found = [await read_count(heat, now) for _fleet, heat in ends]
    listed = await ends[0][1].read("dev", None, now - 3600, now + 120)

    assert opened == [7, 7]
    assert found == [[7, 7], [7, 7]]
    assert listed is not None
    assert [(table.name, table.counts[READS]) for table in listed.tables] == [("Staff", 14)]
    assert run_sql(url, "SELECT count(DISTINCT front_end) FROM partita.heat_live") == [(2,)]
    for fleet, heat in ends:
        await heat.close()
        await fleet.close()


async def test_rows_of_the_last_seconds_are_forgotten() -> None:
    url = await shared_url()
    fleet = await Fleet.open(url)
    axes = {"dev": {"staff": TableAxis("Staff", [Bucket("a", "a", (1, 0, 0, 0, 0))])}}
    for at in (0, LIVE_SECONDS, LIVE_KEPT_SECONDS + 1):
        await fleet.heat.write(axes, 5.0, 1000 + at)

    kept = run_sql(url, "SELECT at FROM partita.heat_live ORDER BY at")

    assert kept == [(1000 + LIVE_SECONDS,), (1000 + LIVE_KEPT_SECONDS + 1,)]
    await fleet.close()


async def test_a_database_of_the_first_version_is_upgraded() -> None:
    url = empty_url()
    await install(url)
    run_sql(
        url,
        *TO_1_2,
        "DROP TABLE partita.heat, partita.heat_live, partita.removed",
        "UPDATE partita.schema_version SET minor = 0",
    )

    done = await install(url)

    assert done.previous == (1, 0)
    assert done.version == (versions.MAJOR, versions.MINOR)
    assert run_sql(url, "SELECT count(*) FROM partita.heat") == [(0,)]


async def test_the_role_of_front_ends_may_write_heat() -> None:
    url, role = empty_url(), f"front_end_{uuid.uuid4().hex[:8]}"
    await install(url, role=role)
    run_sql(url, f"ALTER ROLE {role} LOGIN")
    clock = whole_minute()
    fleet, heat = await front_end(url_of(url.rpartition("/")[2], role), clock)
    heat._accounts["dev"].meter.count("Staff", ("p", "1"), READ)
    clock.advance(LIVE_SECONDS)
    await heat.tick()
    clock.advance(60)
    await heat.tick()

    for table in heat_schema.PRIVILEGES:
        assert run_sql(url, f"SELECT count(*) > 0 FROM partita.{table}") == [(True,)]
    await heat.close()
    await fleet.close()


async def test_an_account_that_no_server_has_used_has_no_heat() -> None:
    fleet = await Fleet.open(await shared_url())

    with pytest.raises(ConfigurationError) as caught:
        await fleet.heat.of_account("absent")

    assert caught.value.code == "AccountNotFound"
    await fleet.close()


async def test_the_verb_reads_a_database() -> None:
    url, clock = await shared_url(), whole_minute()
    fleet, heat = await front_end(url, clock)
    heat._accounts["dev"].meter.count("Staff", ("p", "1"), READ)
    await heat.close()
    await fleet.close()

    read = await _printed("Staff", "--connect", url, "--account", "dev", "--json")
    listed = await _printed("--connect", url, "--account", "dev", "--json")

    assert [bucket[:2] for column in read["columns"] for bucket in column["axis"]] == [
        ["p\0001"] * 2
    ]
    assert [table["name"] for table in listed["tables"]] == ["Staff"]


async def _printed(*words: str) -> Any:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert await asyncio.to_thread(main, ["heat", *words]) == 0
    return json.loads(printed.getvalue())
