"""PgBouncer of the operating system in transaction mode; tests skip where it is not installed."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

HOST = "127.0.0.1"
START_SECONDS = 20.0
PATHS = os.environ.get("PATH", "") + ":/usr/sbin"
CONFIGURATION = """
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
server_reset_query =
logfile = {folder}/log
"""


@contextmanager
def pgbouncer(server_port: int, users: Sequence[str] = (), sessions: int = 5) -> Iterator[int]:
    """Run PgBouncer before a server; yield its port."""
    program = shutil.which("pgbouncer", path=PATHS)
    if program is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="partita-pgbouncer-", dir="/tmp"))
    folder.chmod(0o777)
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
    text = CONFIGURATION.format(
        host=HOST, port=port, server_port=server_port, folder=folder, sessions=sessions
    )
    (folder / "pgbouncer.ini").write_text(text)
    names = (getpass.getuser(), *users)
    (folder / "users").write_text("".join(f'"{name}" ""\n' for name in names))
    as_other = ("-u", "nobody") if os.getuid() == 0 else ()
    process = subprocess.Popen([program, "-q", *as_other, folder / "pgbouncer.ini"])
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
