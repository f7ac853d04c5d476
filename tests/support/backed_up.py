"""A PostgreSQL server with a base backup, which is lost and restored from it and from its log.

The log is copied from the lost server: what an archive has that is up to date.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from partita.local_postgres import CLUSTER_FOLDER, HOST, LocalPostgres

PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05
SETTINGS = {"max_connections": "100", "wal_keep_size": "1GB", "restore_command": "false"}
"""`restore_command` is required in a recovery; here the log is where the server reads it first."""


class BackedUpPostgres(LocalPostgres):
    """One server; `back_up`, then `lose`, then `restore`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, settings=SETTINGS)
        self._backup = folder / "backup"

    def back_up(self) -> None:
        """Take a base backup, with the log that it needs."""
        self._backup.mkdir(mode=0o700)
        self._own(self._backup)
        with self._opened(self._backup) as (path, inherited):
            place = ("-h", HOST, "-p", str(self.port), "-U", self.superuser, "-D", str(path))
            flags = (*place, "--checkpoint=fast", "--wal-method=stream")
            done = self._call(self._programs() / "pg_basebackup", *flags, pass_fds=inherited)
        assert done.returncode == 0, done.stderr

    def lose(self) -> None:
        """Stop at once; the data is gone, the log is not."""
        self.stop(immediately=True)
        (self.folder / CLUSTER_FOLDER).rename(self.folder / "lost")

    def restore(self, target: str | None = None, *, with_log: bool = True) -> None:
        """Restore to a restore point, to the end of the log, or without the log since the backup.

        Return when the server accepts writes, at the same address if it is free.
        """
        cluster = self.folder / CLUSTER_FOLDER
        shutil.copytree(self._backup, cluster, symlinks=True)
        if with_log:
            for segment in (self.folder / "lost" / "pg_wal").glob("*"):
                if segment.is_file():
                    shutil.copy(segment, cluster / "pg_wal")
        (cluster / "recovery.signal").touch()
        with (cluster / "postgresql.auto.conf").open("a") as settings:
            settings.write("recovery_target_action = promote\n")
            if target is not None:
                settings.write(f"recovery_target_name = '{target}'\n")
        for place, folders, files in os.walk(cluster):
            for name in (".", *folders, *files):
                self._own(Path(place, name))
        cluster.chmod(0o700)
        self.start()
        self._wait_for_writes()

    def _wait_for_writes(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with psycopg.connect(self.url()) as connection:
                row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
            if row == (False,):
                return
            assert time.monotonic() < deadline, "the recovery does not end"
            time.sleep(POLL_SECONDS)

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid, follow_symlinks=False)


@contextmanager
def backed_up_servers(folder: Path, *names: str) -> Iterator[list[BackedUpPostgres]]:
    """Start servers in folders of these names; stop them at the end."""
    servers = [BackedUpPostgres(folder / name) for name in names]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop(immediately=True)
