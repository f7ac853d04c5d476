"""The fixture itself: fresh, empty databases, real settings, room for two of the same name."""

from collections.abc import Callable

from sqlalchemy import create_engine, text


def test_every_new_database_is_empty_and_its_own(database_urls: Callable[[str], str]) -> None:
    for url in (database_urls("one"), database_urls("two")):
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE only_here (id integer)"))
        engine.dispose()


def test_postgresql_syncs_to_disk_as_in_production(new_postgres: Callable[[str], str]) -> None:
    engine = create_engine(new_postgres("settings"))
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW fsync")) == "on"
    engine.dispose()
