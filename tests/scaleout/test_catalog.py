"""What front ends know of tables, ranges and settings, and how they notice changes of others."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from partita.errors import TableExistsError, TableNotFoundError, UnavailableError
from partita.policies import Policy
from partita.scaleout.catalog import catalog as catalogs
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.purge import PURGE_ENTITIES, purge_tables
from partita.scaleout.catalog.ranges import Range
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema.locks import JOB_LOCKS, PURGE_TABLES_JOB, RANGE_LOCKS
from support import postgres
from support.catalog_databases import shared_url
from support.pooler import TransactionPooler
from support.weak_server import run_sql


class Opened:
    """The catalog of one front end, and its connections."""

    def __init__(self, url: str) -> None:
        connector = Connector(Location.parse(url))
        self.pool = Pool(connector)
        self.catalog = Catalog(connector, self.pool)

    async def close(self) -> None:
        await self.catalog.close()
        await self.pool.close()


@pytest.fixture
async def url() -> str:
    return await shared_url()


@pytest.fixture
async def ours(url: str) -> AsyncIterator[Opened]:
    opened = Opened(url)
    await opened.catalog.start()
    yield opened
    await opened.close()


@pytest.fixture
async def theirs(url: str) -> AsyncIterator[Opened]:
    opened = Opened(url)
    await opened.catalog.start()
    yield opened
    await opened.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_tables_are_found_in_any_case_and_listed_by_folded_name(ours: Opened) -> None:
    catalog = ours.catalog
    dev, other = await catalog.account_id("dev"), await catalog.account_id("other")
    for name in ("Staff", "apples", "Zoo"):
        await catalog.create_table(dev, name)

    found = await catalog.find_table(dev, "sTAFF")
    assert found is not None
    assert found.name == "Staff"
    assert await catalog.find_table(other, "staff") is None
    assert [table.name for table in await catalog.list_tables(dev, "", 9)] == [
        *("apples", "Staff", "Zoo")
    ]
    assert [table.name for table in await catalog.list_tables(dev, "b", 1)] == ["Staff"]
    with pytest.raises(TableExistsError) as caught:
        await catalog.create_table(dev, "STAFF")
    assert caught.value.code == "TableAlreadyExists"


async def test_an_account_keeps_its_number(ours: Opened, theirs: Opened) -> None:
    numbers = await asyncio.gather(
        *(opened.catalog.account_id("dev") for opened in (ours, theirs, ours, theirs))
    )

    assert len(set(numbers)) == 1


async def test_a_new_table_has_one_range_in_the_catalog_and_on_the_shard(
    ours: Opened, url: str
) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")

    found = ours.catalog.range_of(table.id, "any")
    assert found is not None
    assert (found.lo, found.hi) == ("", None)
    rows = "SELECT id, tid, lo, hi, epoch, state::text, capture FROM partita.range_own"
    assert run_sql(url, rows) == [(found.id, table.id, "", None, found.epoch, "o", False)]
    assert ours.catalog.range_of(table.id + 1, "any") is None


async def test_a_dropped_table_is_gone_for_all_and_its_name_is_free(
    ours: Opened, theirs: Opened, url: str
) -> None:
    account = await ours.catalog.account_id("dev")
    first = await ours.catalog.create_table(account, "Staff")
    assert await theirs.catalog.find_table(account, "staff") == first

    await ours.catalog.delete_table(account, "staff")

    assert run_sql(url, "SELECT FROM partita.range_own UNION ALL SELECT FROM partita.range") == []
    assert await ours.catalog.find_table(account, "staff") is None
    assert await theirs.catalog.renewed(account, first) is None
    assert theirs.catalog.range_of(first.id, "x") is None
    with pytest.raises(TableNotFoundError):
        await ours.catalog.delete_table(account, "staff")
    again = await ours.catalog.create_table(account, "STAFF")
    assert again.id > first.id
    assert await theirs.catalog.renewed(account, first) == again


async def test_a_table_is_not_dropped_while_a_transaction_writes_to_it(ours: Opened) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    found = ours.catalog.range_of(table.id, "")
    assert found is not None
    async with ours.pool.link() as writer, writer.transaction():
        locked = "SELECT pg_try_advisory_xact_lock_shared($1, $2) AS ok"
        assert (await writer.read(locked, RANGE_LOCKS, found.id))[0]["ok"]
        with pytest.raises(UnavailableError):  # after the lock timeout
            await ours.catalog.delete_table(account, "Staff")
        assert await ours.catalog.find_table(account, "Staff") == table
        dropping = asyncio.ensure_future(ours.catalog.delete_table(account, "Staff"))
        await asyncio.sleep(0.1)
        assert not dropping.done()
    await dropping


async def test_changes_of_others_are_noticed_by_notify(
    ours: Opened, theirs: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "POLL_SECONDS", 3600.0)
    account = await ours.catalog.account_id("dev")
    await theirs.catalog.set_setting(account, "first", b"")  # the next wait is the long one
    await until(lambda: ours.catalog.known_setting(account, "first") == b"")
    noticed: list[bool] = []

    async def notice() -> None:
        noticed.append(True)

    ours.catalog.on_change.append(notice)

    table = await theirs.catalog.create_table(account, "Staff")
    await until(lambda: ours.catalog.range_of(table.id, "") is not None)
    await theirs.catalog.set_setting(account, "properties", b"{}")
    await until(lambda: ours.catalog.known_setting(account, "properties") == b"{}")
    await theirs.catalog.delete_table(account, "Staff")
    await until(lambda: ours.catalog.range_of(table.id, "") is None)

    assert noticed
    assert await ours.catalog.get_setting(account, "properties") == b"{}"
    assert await ours.catalog.get_setting(account, "other") is None


async def test_behind_a_pooler_changes_are_noticed_by_polling(
    url: str, theirs: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "POLL_SECONDS", 0.05)
    port = postgres.server().port
    with TransactionPooler(port, rotates=True) as pooler:
        ours = Opened(url.replace(f":{port}/", f":{pooler.port}/"))
        await ours.catalog.start()
        account = await ours.catalog.account_id("dev")
        table = await theirs.catalog.create_table(account, "Staff")
        await until(lambda: ours.catalog.range_of(table.id, "") is not None)
        await ours.catalog.delete_table(account, "Staff")
        await ours.close()


async def test_own_changes_are_not_read_again(
    ours: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await ours.catalog.account_id("dev")
    reads: list[int] = []
    whole = ours.catalog._read_changes

    async def counted(link: object, since: int) -> None:
        reads.append(since)
        await whole(link, since)  # type: ignore[arg-type]

    monkeypatch.setattr(ours.catalog, "_read_changes", counted)
    for number in range(5):
        await ours.catalog.create_table(account, f"Table{number}")
    await ours.catalog.refresh()

    assert reads == []


async def test_what_is_known_stays_in_use_while_the_database_is_away(
    ours: Opened, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "POLL_SECONDS", 0.05)
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    name = url.rpartition("/")[2]
    admin = url.removesuffix(name) + "postgres"
    run_sql(
        admin,
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    await until(lambda: ours.catalog.is_away)

    assert await ours.catalog.find_table(account, "staff") == table
    assert ours.catalog.range_of(table.id, "x") is not None
    with pytest.raises(Exception, match=r"ServerBusy|StoreNotPermitted"):
        await ours.catalog.find_table(account, "unknown")

    run_sql(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await until(lambda: not ours.catalog.is_away)
    assert await ours.catalog.find_table(account, "unknown") is None


async def test_policies_are_read_each_time(ours: Opened, theirs: Opened) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    assert await theirs.catalog.get_policies(table) == []
    policies = [Policy("readers", permission="r")]
    await ours.catalog.set_policies(table, policies)

    assert await theirs.catalog.get_policies(table) == policies


async def test_a_table_may_have_several_ranges(ours: Opened, theirs: Opened, url: str) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    split = """
    WITH removed AS (DELETE FROM partita.range RETURNING tid),
    two AS (INSERT INTO partita.range (tid, lo, hi, epoch)
            SELECT tid, lo, hi, nextval('partita.epoch') FROM removed,
                   (VALUES ('', 'm'), ('m', NULL)) AS v (lo, hi))
    UPDATE partita.tables SET version = (SELECT version FROM partita.catalog_version) + 1
    """
    run_sql(url, split, "SELECT partita.catalog_changed_1()")
    await theirs.catalog.refresh()

    ranges = theirs.catalog.ranges_of(table.id)
    assert ranges is not None
    assert [(each.lo, each.hi) for each in ranges.ranges] == [("", "m"), ("m", None)]
    assert theirs.catalog.range_of(table.id, "n") == ranges.ranges[1]
    assert isinstance(ranges.ranges[0], Range)


async def test_a_restored_database_is_read_anew(ours: Opened, url: str) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    run_sql(url, "DELETE FROM partita.tables", "UPDATE partita.catalog_version SET version = 1")
    await ours.catalog.refresh()

    assert ours.catalog.range_of(table.id, "") is None


async def test_a_catalog_that_was_not_read_for_long_is_read_anew(
    ours: Opened, theirs: Opened, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await ours.catalog.account_id("dev")
    table = await ours.catalog.create_table(account, "Staff")
    await ours.catalog.close()
    await theirs.catalog.delete_table(account, "Staff")
    run_sql(url, "DELETE FROM partita.dropped_table")
    monkeypatch.setattr(catalogs, "RELOAD_SECONDS", -1.0)
    await ours.catalog.refresh()

    assert ours.catalog.range_of(table.id, "") is None


# Space of dropped tables


async def filled(opened: Opened, name: str, entities: int) -> int:
    account = await opened.catalog.account_id("dev")
    table = await opened.catalog.create_table(account, name)
    await opened.pool.write(
        "INSERT INTO partita.entity SELECT $1, (i / 3)::text, (i % 3)::text, 1, 0, NULL, ''"
        " FROM pg_catalog.generate_series(1, $2) i",
        table.id,
        entities,
    )
    await opened.pool.write(
        "INSERT INTO partita.entity VALUES ($1, '', '', 1, 0, NULL, '')", table.id
    )
    return table.id


async def test_the_space_of_dropped_tables_is_reclaimed(ours: Opened, url: str) -> None:
    await filled(ours, "Dropped", 3 * PURGE_ENTITIES)
    kept = await filled(ours, "Kept", 10)
    await ours.catalog.delete_table(await ours.catalog.account_id("dev"), "Dropped")

    await purge_tables(ours.pool)

    assert run_sql(url, "SELECT DISTINCT tid FROM partita.entity") == [(kept,)]
    assert run_sql(url, "SELECT purged_at IS NOT NULL FROM partita.dropped_table") == [(True,)]
    run_sql(url, "UPDATE partita.dropped_table SET purged_at = 1")
    await purge_tables(ours.pool)
    assert run_sql(url, "SELECT FROM partita.dropped_table") == []


async def test_one_front_end_purges_at_a_time(ours: Opened, url: str) -> None:
    tid = await filled(ours, "Dropped", 10)
    await ours.catalog.delete_table(await ours.catalog.account_id("dev"), "Dropped")
    async with ours.pool.link() as other, other.transaction():
        lock = "SELECT pg_advisory_xact_lock($1, $2)"
        await other.read(lock, JOB_LOCKS, PURGE_TABLES_JOB)
        await purge_tables(ours.pool)
        assert run_sql(url, f"SELECT count(*) FROM partita.entity WHERE tid = {tid}") == [(11,)]
    await purge_tables(ours.pool)

    assert run_sql(url, "SELECT count(*) FROM partita.entity") == [(0,)]
