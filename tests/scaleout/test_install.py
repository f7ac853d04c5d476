"""The schema of a database: created, upgraded, refused, and used by a role without more."""

import asyncio
import uuid
from pathlib import Path

import asyncpg
import pytest

from partita.blobs.rules.model import BlobName, Properties, Retention
from partita.errors import ConfigurationError, FormatVersionError, PartitaError
from partita.scaleout.connections.session import SETTINGS
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema import versions
from partita.scaleout.schema.install import install
from support.catalog_databases import TO_1_2, TO_1_3, TO_1_5, empty_url, url_of
from support.postgres_blobs import folder_url
from support.weak_server import run_sql
from support.whole_accounts import postgres_account

VERSION = (versions.MAJOR, versions.MINOR)
OBJECTS = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'partita' ORDER BY 1
"""


async def test_two_installations_at_once_run_one_after_the_other() -> None:
    url = empty_url()
    first, second = await asyncio.gather(install(url), install(url))

    assert {first.previous, second.previous} == {None, VERSION}
    assert first.version == second.version == VERSION


async def test_an_installation_is_idempotent_and_tells_its_steps() -> None:
    url, steps = empty_url(), list[str]()
    await install(url, progress=steps.append)
    assert steps[0] == "creating the schema"
    before = run_sql(url, OBJECTS)

    assert (await install(url)).previous == VERSION
    assert run_sql(url, OBJECTS) == before


async def test_an_upgrade_is_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    url = empty_url()
    await install(url)
    monkeypatch.setattr(versions, "MINOR", versions.MINOR + 2)
    steps = {VERSION[1]: "CREATE TABLE partita.added (n int)", VERSION[1] + 1: "SELECT 1 / 0"}
    monkeypatch.setattr(versions, "UPGRADES", steps)

    with pytest.raises(PartitaError):
        await install(url)
    assert ("added",) not in run_sql(url, OBJECTS)
    assert run_sql(url, "SELECT major, minor FROM partita.schema_version") == [VERSION]

    steps[VERSION[1] + 1] = "ALTER TABLE partita.added ADD more int"
    done = await install(url)
    assert (done.previous, done.version) == (VERSION, (VERSION[0], VERSION[1] + 2))
    assert ("added",) in run_sql(url, OBJECTS)


async def test_a_database_of_version_1_1_is_upgraded_with_its_role() -> None:
    url, role = empty_url(), f"front_end_{uuid.uuid4().hex[:8]}"
    await install(url)
    run_sql(url, *TO_1_2, "DROP TABLE partita.removed")
    run_sql(url, "UPDATE partita.schema_version SET minor = 1")

    done = await install(url, role=role)

    assert (done.previous, done.version) == ((1, 1), VERSION)
    assert run_sql(
        url, f"SELECT has_table_privilege('{role}', 'partita.removed', 'SELECT, INSERT, DELETE')"
    ) == [(True,)]


async def test_blobs_with_tags_are_found_after_an_upgrade_from_1_3(tmp_path: Path) -> None:
    url, account = empty_url(), "tagged"
    await install(url)
    objects = folder_url(tmp_path)
    name = BlobName("photos", "a")
    async with postgres_account(url, account, objects) as engines:
        await engines.blobs.containers.create_container("photos")
        await engines.blobs.put_blob(name, b"1", properties=Properties(tags={"t": "1"}))
        await engines.blobs.put_blob(BlobName("photos", "b"), b"2")
    run_sql(url, *TO_1_3, "UPDATE partita.schema_version SET minor = 3")

    await install(url)

    async with postgres_account(url, account, objects) as engines:
        found = await engines.blobs.searches.find_blobs("t = '1'")
        assert [each.name for each in found.items] == ["a"]
        engines.blobs.keeper.retention = Retention(blob_days=1)
        await engines.blobs.delete_blob(name)
        await engines.blobs.undelete_blob(name)


async def test_queues_keep_their_messages_in_an_upgrade_from_1_5() -> None:
    url, account = empty_url(), "queues"
    await install(url)
    async with postgres_account(url, account, None) as engines:
        await engines.queues.create_queue("work", {})
        await engines.queues.put("work", "before")
    run_sql(url, *TO_1_5, "UPDATE partita.schema_version SET minor = 5")

    assert (await install(url)).previous == (1, 5)

    async with postgres_account(url, account, None) as engines:
        await engines.queues.put("work", "after")
        messages = await engines.queues.get("work", limit=5)
        assert [message.text for message in messages] == ["before", "after"]
    assert run_sql(url, "SELECT kind::text, shard FROM partita.range") == [("q", 0)]


async def test_a_newer_database_is_refused_by_init_and_by_an_older_front_end() -> None:
    url = empty_url()
    await install(url)
    run_sql(url, "UPDATE partita.schema_version SET major = major + 1")

    with pytest.raises(FormatVersionError):
        await install(url)
    with pytest.raises(FormatVersionError):
        await Fleet.open(url)


async def test_a_front_end_refuses_a_database_without_the_schema() -> None:
    with pytest.raises(ConfigurationError) as caught:
        await Fleet.open(empty_url())

    assert caught.value.code == "StoreNotInstalled"


async def test_a_schema_that_is_not_ours_is_refused_and_an_empty_one_is_used() -> None:
    url = empty_url()
    run_sql(url, "CREATE SCHEMA partita", "CREATE TABLE partita.theirs (n int)")
    with pytest.raises(ConfigurationError) as caught:
        await install(url)
    assert caught.value.code == "StoreUnfit"

    run_sql(url, "DROP TABLE partita.theirs")
    assert (await install(url)).previous is None


async def test_a_role_has_what_a_front_end_needs_and_nothing_else() -> None:
    url, role = empty_url(), f'front "end" {uuid.uuid4().hex[:8]}'
    done = await install(url, role=role)
    assert done.is_role_new
    assert not (await install(url, role=role)).is_role_new
    quoted = '"' + role.replace('"', '""') + '"'
    run_sql(url, f"ALTER ROLE {quoted} LOGIN")
    # A URL with this name would have to be quoted: the same role under another name.
    name = f"front_end_{uuid.uuid4().hex[:8]}"
    run_sql(url, f"ALTER ROLE {quoted} RENAME TO {name}")
    as_role = url_of(url.rpartition("/")[2], name)

    fleet = await Fleet.open(as_role)
    account = await fleet.catalog.account_id("dev")
    await fleet.catalog.create_table(account, "Staff")
    await fleet.catalog.set_setting(account, "properties", b"{}")
    await fleet.catalog.delete_table(account, "Staff")
    await fleet._slots.renew()
    await fleet.close()

    connection = await asyncpg.connect(as_role)
    for row_name, value in SETTINGS.items():
        found = await connection.fetchval("SELECT current_setting($1)", row_name)
        assert found == value, row_name
    for refused in (
        "CREATE TABLE partita.mine (n int)",
        "DROP TABLE partita.entity",
        "TRUNCATE partita.entity",
        "ALTER TABLE partita.entity ADD more int",
        "UPDATE partita.schema_version SET minor = 7",
        "DELETE FROM partita.account",
        "CREATE SCHEMA another",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(refused)
    await connection.close()


async def test_other_roles_may_do_nothing() -> None:
    url, role = empty_url(), f"other_{uuid.uuid4().hex[:8]}"
    await install(url)
    run_sql(url, f"CREATE ROLE {role} LOGIN")
    connection = await asyncpg.connect(url_of(url.rpartition("/")[2], role))
    for refused in ("SELECT partita.ticks_1()", "SELECT FROM partita.entity"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(refused)
    await connection.close()
    grants = """
    SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = 'partita' AND has_function_privilege('public', p.oid, 'EXECUTE')
    """
    assert run_sql(url, grants) == []


@pytest.mark.parametrize("role", ["", "r" * 64])
async def test_a_role_without_a_name_or_with_a_long_one_is_refused(role: str) -> None:
    with pytest.raises(ConfigurationError):
        await install(empty_url(), role=role)


async def test_ticks_are_those_of_the_wall_clock() -> None:
    url = empty_url()
    await install(url)
    difference = "abs(partita.ticks_1() / 10000000.0 - extract(epoch FROM clock_timestamp()))"

    assert run_sql(url, f"SELECT {difference} < 1") == [(True,)]
