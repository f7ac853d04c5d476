"""Databases that many tests share: what they held at first comes back after each.

Making a map takes a hundred times longer than putting its rows back. Tests that change tables on
PostgreSQL need databases of their own.
"""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
from sqlalchemy import make_url

from support import postgres

KEEP = """
DO $$ DECLARE name text; BEGIN
  CREATE SCHEMA kept;
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('CREATE TABLE kept.%I AS TABLE public.%I', name, name);
  END LOOP;
END $$
"""
RESTORE = """
DO $$ DECLARE name text; BEGIN
  SET LOCAL session_replication_role = replica; -- no foreign key decides about the order
  FOR name IN SELECT viewname FROM pg_views WHERE schemaname = 'public' LOOP
    EXECUTE format('DROP VIEW public.%I', name);
  END LOOP;
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'kept' LOOP
    EXECUTE format('DELETE FROM public.%I', name);
    EXECUTE format('INSERT INTO public.%I SELECT * FROM kept.%I', name, name);
  END LOOP;
END $$
"""
END_OTHER_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


class SharedDatabases(Protocol):
    """The databases of one map."""

    def new(self, name: str) -> str:
        """Make one more and return its URL."""

    def keep(self) -> None:
        """Remember what the databases hold now."""

    @contextmanager
    def lent(self) -> Iterator[list[str]]:
        """Give the URLs to one test, and put everything back after it."""


def shared_databases(driver: str) -> SharedDatabases:
    """Return new ones on SQLite, or on PostgreSQL by one of its drivers."""
    return SharedFiles() if driver == "sqlite" else SharedOnServer(driver)


class SharedFiles:
    """Files of SQLite. They live as long as the process."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="partita-shared-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)

    def new(self, name: str) -> str:
        self.urls.append(f"sqlite:///{self._folder / 'used' / name}.db")
        (self._folder / "used").mkdir(exist_ok=True)
        return self.urls[-1]

    def keep(self) -> None:
        shutil.copytree(self._folder / "used", self._folder / "kept")

    @contextmanager
    def lent(self) -> Iterator[list[str]]:
        try:
            yield self.urls
        finally:
            shutil.rmtree(self._folder / "used")
            shutil.copytree(self._folder / "kept", self._folder / "used")


class SharedOnServer:
    """Databases of PostgreSQL. They live as long as the server."""

    def __init__(self, driver: str) -> None:
        self.urls: list[str] = []
        self._driver = driver

    def new(self, name: str) -> str:
        url = postgres.postgres_url(name).replace("+psycopg", f"+{self._driver}")
        self.urls.append(url)
        return url

    def keep(self) -> None:
        self._run(KEEP)

    @contextmanager
    def lent(self) -> Iterator[list[str]]:
        try:
            yield self.urls
        finally:
            self._run(END_OTHER_SESSIONS, RESTORE)

    def _run(self, *statements: str) -> None:
        for url in self.urls:
            parsed = make_url(url)
            with psycopg.connect(
                host=parsed.host, port=parsed.port, dbname=parsed.database, autocommit=True
            ) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
