"""Front ends behind PgBouncer in transaction mode, as Debian installs it."""

import asyncio
import uuid

import pytest

from partita.scaleout.catalog import catalog as catalogs
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema.install import install
from support import postgres
from support.catalog_databases import empty_url, url_of
from support.pgbouncer import pgbouncer
from support.weak_server import run_sql


async def test_a_front_end_works_behind_pgbouncer_with_the_settings_of_its_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogs, "POLL_SECONDS", 0.05)
    url, role = empty_url(), f"pooled_{uuid.uuid4().hex[:8]}"
    await install(url, role=role)
    run_sql(url, f"ALTER ROLE {role} LOGIN")
    port = postgres.server().port
    with pgbouncer(port, [role]) as pooled:
        as_role = url_of(url.rpartition("/")[2], role).replace(f":{port}/", f":{pooled}/")
        direct, fleet = await Fleet.open(url), await Fleet.open(as_role)
        assert fleet.is_ready
        account = await fleet.catalog.account_id("dev")
        table = await direct.catalog.create_table(account, "Staff")
        async with asyncio.timeout(60.0):
            while fleet.catalog.range_of(table.id, "") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await fleet.catalog.delete_table(account, "staff")

        async def ask(number: int) -> int:
            rows = await fleet.pool.read("SELECT $1::int AS n", number)
            return int(rows[0]["n"])

        assert await asyncio.gather(*(ask(n) for n in range(200))) == list(range(200))
        rows = await fleet.pool.read("SELECT current_setting('plan_cache_mode') AS found")
        assert rows[0]["found"] == "force_generic_plan"
        await fleet.close()
        await direct.close()


async def test_more_front_ends_than_sessions_take_turns() -> None:
    url = empty_url()
    port = postgres.server().port
    with pgbouncer(port, sessions=3) as pooled:
        location = Location.parse(url.replace(f":{port}/", f":{pooled}/"))
        pools = [Pool(Connector(location)) for _ in range(10)]

        async def ask(pool: Pool) -> set[int]:
            rows = [await pool.write("SELECT pg_backend_pid() AS pid") for _ in range(20)]
            return {int(row[0]["pid"]) for row in rows}

        sessions = set.union(*await asyncio.gather(*(ask(pool) for pool in pools)))
        for pool in pools:
            await pool.close()

    assert len(sessions) <= 3
