"""A database file is refused unless its schema is the one that Partita creates."""

from pathlib import Path

import apsw
import pytest

from partita.errors import DamageError
from partita.storage.database import DATABASE_FILE, FORMAT_SCHEMA, Database
from partita.storage.schema import check_all, schema_of

NOTES = """
CREATE TABLE note (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, day INTEGER);
CREATE INDEX note_day ON note (day);
"""
PLANTED = {
    "trigger 'planted'": "CREATE TRIGGER planted AFTER INSERT ON note BEGIN DELETE FROM note; END",
    "trigger 'other'": "CREATE TRIGGER other AFTER INSERT ON format BEGIN DELETE FROM note; END",
    "index 'on_text'": "CREATE INDEX on_text ON note (abs(day))",
    "table 'note'": "ALTER TABLE note ADD COLUMN hash AS (hex(zeroblob(1000000)))",
    "index 'note_day'": "DROP INDEX note_day",
}


async def a_folder(folder: Path, planted: str) -> None:
    database = await Database.open(folder)
    database.prepare("notes", 1, NOTES)
    await database.close()
    with apsw.Connection(str(folder / DATABASE_FILE)) as connection:
        connection.execute(planted)
    connection.close()


@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_object_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    await a_folder(tmp_path, PLANTED[name])
    database = await Database.open(tmp_path)

    with pytest.raises(DamageError) as refused:
        database.prepare("notes", 1, NOTES)

    assert (refused.value.code, refused.value.message) == (
        "StoreDamaged",
        f"The schema of the database is not that of Partita: {name}.",
    )
    await database.close()


async def test_the_connections_of_an_account_run_no_trigger_and_no_view(tmp_path: Path) -> None:
    await a_folder(tmp_path, PLANTED["trigger 'planted'"])
    database = await Database.open(tmp_path)

    async with database.change() as connection:
        connection.execute("INSERT INTO note (text) VALUES ('kept')")
        connection.execute("CREATE VIEW planted_view AS SELECT * FROM note")

    assert database.reader.execute("SELECT text FROM note").get == "kept"
    with pytest.raises(apsw.SQLError, match="access to view"):
        database.reader.execute("SELECT * FROM planted_view")
    await database.close()


async def test_another_table_does_not_matter_to_a_server(tmp_path: Path) -> None:
    await a_folder(tmp_path, "CREATE TABLE of_a_newer_version (id)")
    database = await Database.open(tmp_path)

    database.prepare("notes", 1, NOTES)

    await database.close()


def test_all_objects_of_a_file_are_compared() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(FORMAT_SCHEMA.replace("(", " (\n").replace(",", " , "))
    connection.execute("ANALYZE")
    check_all(connection, schema_of(FORMAT_SCHEMA, NOTES), {})

    connection.execute("CREATE TABLE more (id)")
    connection.execute("CREATE VIEW seen AS SELECT 1")

    with pytest.raises(DamageError, match=r"not that of Partita: table 'more', view 'seen'\."):
        check_all(connection, schema_of(FORMAT_SCHEMA, NOTES), {})
    connection.close()
