"""A real PostgreSQL for the tests: one server per process, started by the first `server()`.

PARTITA_TEST_POSTGRES names the folder of the programs of another PostgreSQL than that of the wheel,
for example /usr/lib/postgresql/17/bin. Every local user may connect without a password, as any role
but `PASSWORD_ROLE`. The server is stopped at exit.
"""

import atexit
import getpass
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from partita.local_postgres import HOST, LocalPostgres

PASSWORD_ROLE = "with_password"
"""The one role that must show a password; tests of credentials create it."""

SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
}
ACCESS = f"""
host  all {PASSWORD_ROLE} 127.0.0.1/32 scram-sha-256
host  all all 127.0.0.1/32 trust
"""
CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
DO_NOT_WAIT = sql.SQL("ALTER DATABASE {} SET synchronous_commit = off")
END_SESSIONS = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")


PROGRAMS = os.environ.get("PARTITA_TEST_POSTGRES", "")


class Installed(LocalPostgres):
    """The PostgreSQL of PARTITA_TEST_POSTGRES."""

    def _programs(self) -> Path:
        return Path(PROGRAMS)


class PostgresServer:
    """A server in a temporary folder, and its databases."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="partita-postgres-"))
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        server = Installed if PROGRAMS else LocalPostgres
        self._server = server(self._folder, settings=SETTINGS, access=ACCESS)
        try:
            self._server.start()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        return self._server.port

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database whose name starts with `name`, a copy of another; return its name."""
        unique = f"{re.sub('[^a-z0-9_]', '_', name.lower())[:40]}_{next(self._numbers)}"
        self.execute(CREATE.format(sql.Identifier(unique), sql.Identifier(template)))
        return unique

    def take_database(self, name: str) -> str:
        """Return an empty database: a returned one, since creating and dropping one is slow."""
        if self._free:
            return self._free.pop()
        made = self.create_database(name)
        # Tests kill clients, never the server: commits need not wait for the disk.
        self.execute(DO_NOT_WAIT.format(sql.Identifier(made)))
        return made

    def give_back(self, name: str) -> None:
        """End all sessions of the database, empty it and keep it for `take_database`."""
        self.execute(END_SESSIONS.format(sql.Literal(name)))
        with self._connect(name) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def execute(self, statement: sql.Composed | sql.SQL) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{HOST}:{self.port}/{database}"

    def stop(self) -> None:
        # At once and without a checkpoint: these files are not read again.
        self._server.stop(immediately=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host=HOST,
            port=self.port,
            dbname=database,
            user=getpass.getuser(),
            autocommit=True,
            connect_timeout=30,
        )


_server: PostgresServer | None = None


def server() -> PostgresServer:
    """Return the server of this process; start it on first use."""
    global _server  # noqa: PLW0603 - one server per process
    if _server is None:
        _server = PostgresServer()
        atexit.register(stop_server)
    return _server


def stop_server() -> None:
    global _server
    running, _server = _server, None
    if running is not None:
        running.stop()


def postgres_url(name: str) -> str:
    """Create a fresh, empty database and return its SQLAlchemy URL."""
    running = server()
    return running.url(running.create_database(name))
