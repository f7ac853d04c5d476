"""Format numbers of a database: damage is told from another version of Partita."""

import apsw
import pytest

from partita.errors import DamageError, FormatVersionError
from partita.storage.database import Database
from partita.storage.format_numbers import guarded_numbers, refuse_foreign


async def a_database(**numbers: int) -> Database:
    database = await Database.open(None)
    for system, number in numbers.items():
        database.prepare(system, number, f"CREATE TABLE {system} (x)")
    return database


def change(database: Database, statement: str) -> None:
    """Change the file as damage does."""
    database._writer.execute(statement)


async def test_numbers_that_were_written_are_accepted() -> None:
    database = await a_database(tables=1, queues=2)

    database.prepare("tables", 1, "")
    database.prepare("queues", 2, "")

    await database.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE format SET version = 3 WHERE system = 'tables'",
        "UPDATE format SET version = 0 WHERE system = 'queues'",
        "UPDATE format SET system = 'tablez' WHERE system = 'tables'",
        "DELETE FROM format WHERE system = 'queues'",
        "PRAGMA user_version = 17",
    ],
)
async def test_a_damaged_number_is_not_taken_for_another_version(damage: str) -> None:
    database = await a_database(tables=1, queues=2)
    change(database, damage)

    with pytest.raises(DamageError) as caught:
        database.prepare("tables", 1, "CREATE TABLE tables (x)")

    assert caught.value.code == "StoreDamaged"
    await database.close()


async def test_a_number_of_a_newer_version_says_what_to_do() -> None:
    database = await a_database(tables=2)

    with pytest.raises(FormatVersionError) as caught:
        database.prepare("tables", 1, "")

    assert caught.value.message == "The folder has format 2 of tables; this Partita reads 1."
    assert "pip install --upgrade partita" in caught.value.hint
    await database.close()


@pytest.mark.parametrize(("number", "is_refused"), [(1, False), (3, True)])
async def test_a_database_from_before_the_checksum_has_the_first_formats(
    number: int, is_refused: bool
) -> None:
    database = await a_database(tables=1)
    change(database, "PRAGMA user_version = 0")
    change(database, f"UPDATE format SET version = {number}")

    if is_refused:
        with pytest.raises(DamageError, match="StoreDamaged"):
            database.prepare("tables", 1, "")
    else:
        database.prepare("tables", 1, "")
        change(database, "UPDATE format SET version = 2")
        with pytest.raises(DamageError, match="StoreDamaged"):
            database.prepare("tables", 1, "")
    await database.close()


def test_a_block_that_fails_leaves_the_checksum_as_it_was() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE format (system, version)")

    with pytest.raises(apsw.SQLError), connection, guarded_numbers(connection):
        connection.execute("INSERT INTO format VALUES ('tables', 1); SELECT nonsense")

    assert connection.pragma("user_version") == 0


def test_a_damaged_application_id_is_not_taken_for_another_program() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE format (system, version)")

    with pytest.raises(DamageError) as caught:
        refuse_foreign(connection)

    assert caught.value.code == "StoreDamaged"


def test_a_database_of_another_program_is_refused_as_such() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE mine (x)")

    with pytest.raises(FormatVersionError, match="not written by Partita"):
        refuse_foreign(connection)
