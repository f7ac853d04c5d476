"""Start, watch and stop the servers that the benchmarks compare.

Each server is one process with its own folder and port. Only processes started here are
stopped, each by its own handle. Figures about processes come from /proc, so this is for
Linux.
"""

import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.tables.connection import BlockingConnection, BrokenExchangeError

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
AZURITE_FOLDER = CACHE / "azurite"
AZURITE_MAIN = AZURITE_FOLDER / "node_modules/azurite/dist/src/table/main.js"
BARE_HTTP = PROJECT / "bench" / "bare_http.py"

_JIFFIES_PER_SECOND = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)
"""A process that ends before its file in /proc is opened, or before it is read."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SetUpError(Exception):
    """Something the benchmark needs is missing and could not be installed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One running server; `command` names {path} and {port}."""

    name: str
    command: str
    folder: Path
    port: int = field(default_factory=free_port)
    quiet_seconds: float = 0.75  # idle for so long means idle
    started_at: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self.folder.with_suffix(".log")

    def start(self, *, wait: bool = True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = shlex.split(self.command.format(path=self.folder, port=self.port))
        with self.log_path.open("ab") as log:
            self.started_at = time.perf_counter()
            # A group of its own: a launcher may start the server as its child.
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, cwd=PROJECT, start_new_session=True
            )
        if wait:
            self.wait_until(self._answers, timeout=60)

    def wait_until(self, question: Callable[[], bool], timeout: float) -> float:
        """Ask until the answer is yes; return the seconds since the process was started."""
        assert self._process is not None
        while not question():
            if self._process.poll() is not None:
                message = f"{self.name} ended with {self._process.returncode}: {self._last_words()}"
                raise SetUpError(message)
            if time.perf_counter() - self.started_at > timeout:
                message = f"{self.name} did not answer within {timeout} s: {self._last_words()}"
                raise SetUpError(message)
            time.sleep(0.002)
        return time.perf_counter() - self.started_at

    def stop(self) -> None:
        """Ask for a clean stop; after 30 s end the process."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        assert self._process is not None
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far by the process, its children and its database."""
        return family_cpu_seconds(self.pid) + self.store_cpu_seconds()

    def store_cpu_seconds(self) -> float:
        """Return the part of it that a database of its own processes used."""
        return 0.0

    def rss_bytes(self) -> int:
        return sum(_rss_bytes(pid) for pid in _family(self.pid))

    def peak_rss_bytes(self) -> int:
        return sum(_status_bytes(pid, "VmHWM") for pid in _family(self.pid))

    def disk_bytes(self, suffix: str = "") -> int:
        """Return the size of the files of the store, or of those that end with `suffix`."""
        total = 0
        for path in self.folder.rglob(f"*{suffix}"):
            with suppress(FileNotFoundError):  # the server may remove a file while we look
                total += path.stat().st_size if path.is_file() else 0
        return total

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until the server stays idle: one that saves its files would slow down the next."""
        deadline = time.perf_counter() + timeout
        before, quiet_since = self.cpu_seconds(), time.perf_counter()
        while time.perf_counter() < min(deadline, quiet_since + self.quiet_seconds):
            time.sleep(0.25)
            now = self.cpu_seconds()
            if now - before > 0.03:
                quiet_since = time.perf_counter()
            before = now

    def _answers(self) -> bool:
        request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()
        try:
            with BlockingConnection(self.port, timeout=5) as connection:
                return connection.exchange(request).status > 0
        except (OSError, BrokenExchangeError):
            return False

    def _last_words(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]


@contextmanager
def workspace(name: str) -> Iterator[Path]:
    """Give a new folder on the disk of the project for the stores of one run, and remove it."""
    (CACHE / "bench").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE / "bench", prefix=f"{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def azurite(folder: Path) -> Server:
    """Return Azurite with its store on disk, as most people run it; start it yourself."""
    install_azurite()
    command = (
        f"{_node()} {AZURITE_MAIN} --silent --skipApiVersionCheck --disableTelemetry"
        " --tableHost 127.0.0.1 --tablePort {port} --location {path}"
    )
    # It saves all its entities every five seconds if something changed.
    return Server("azurite", command, folder, quiet_seconds=6.0)


def azurite_in_memory(folder: Path, blob_port: int, queue_port: int) -> Server:
    """Return Azurite with all three services and nothing on disk; start it yourself."""
    install_azurite()
    main = AZURITE_FOLDER / "node_modules/azurite/dist/src/azurite.js"
    command = (
        f"{_node()} {main} --silent --skipApiVersionCheck --disableTelemetry --inMemoryPersistence"
        f" --blobHost 127.0.0.1 --blobPort {blob_port}"
        f" --queueHost 127.0.0.1 --queuePort {queue_port}"
        " --tableHost 127.0.0.1 --tablePort {port}"
    )
    return Server("azurite", command, folder)


def partita(folder: Path, command: str = "") -> Server:
    """Return Partita as `partita serve` runs it by default: every answer after its fsync."""
    # A server that we do not know may save late, as Azurite does.
    quiet_seconds = 6.0 if command else 0.75
    return Server("partita", command or _partita_command(), folder, quiet_seconds=quiet_seconds)


def bare_http(folder: Path) -> Server | None:
    """Return the HTTP loop without a table service behind it, or None while it is missing."""
    if not BARE_HTTP.exists():
        return None
    return Server("bare", f"{sys.executable} {BARE_HTTP} {{port}}", folder)


def install_azurite() -> None:
    """Install the pinned Azurite under .cache, once for each lock file."""
    lock = Path(__file__).with_name("package-lock.json")
    mark = AZURITE_FOLDER / "installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if AZURITE_MAIN.exists() and mark.exists() and mark.read_text() == digest:
        return
    npm = _beside_python("npm")
    if npm is None:
        raise SetUpError("npm is missing: install Node.js 20 or newer, or the dev extra of partita")
    AZURITE_FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(Path(__file__).with_name(name), AZURITE_FOLDER / name)
    print("installing Azurite under .cache/azurite (once)")
    words = [npm, "ci", "--prefix", str(AZURITE_FOLDER), "--no-audit", "--no-fund"]
    subprocess.run(words, check=True, cwd=AZURITE_FOLDER, stdout=subprocess.DEVNULL)
    mark.write_text(digest)


def wrk() -> str:
    """Return the path of wrk; SetUpError if it is not installed."""
    found = shutil.which("wrk")
    if found is None:
        raise SetUpError("wrk is missing: install it (Debian: apt-get install wrk) and try again")
    return found


def azurite_version() -> str:
    package = json.loads(Path(__file__).with_name("package.json").read_text())
    return str(package["dependencies"]["azurite"])


def machine_cpu_seconds() -> float:
    """Return the CPU time that the whole machine has used, without idle and waiting."""
    with Path("/proc/stat").open() as file:
        jiffies = [int(word) for word in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, soft_irq, _steal = jiffies
    return (user + nice + system + irq + soft_irq) / _JIFFIES_PER_SECOND


def _partita_command() -> str:
    script = Path(sys.executable).with_name("partita")
    if not script.exists():
        message = f"{script} is missing: install the project, or give --ours-command"
        raise SetUpError(message)
    return f"{script} serve --path {{path}} --table-port {{port}} --no-blobs --no-queues"


def _node() -> str:
    node = _beside_python("node")
    if node is None:
        raise SetUpError(
            "node is missing: install Node.js 20 or newer, or the dev extra of partita"
        )
    return node


def _beside_python(name: str) -> str | None:
    """Find a program on the PATH or beside this Python, where the nodejs wheel puts it."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def _family(pid: int) -> list[int]:
    """Return the process and its descendants."""
    children: list[int] = []
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_GONE):
                children += [int(word) for word in (task / "children").read_text().split()]
    return [pid] + [member for child in children for member in _family(child)]


def family_cpu_seconds(pid: int) -> float:
    """Return the CPU time used so far by a process and all its descendants, ended ones too.

    The time of a child that has ended moves to the `cutime` and `cstime` of the parent that waited
    for it, so the sum of all four fields over the others misses nothing; unless a child ends while
    they are read, so they are read again then.
    """
    members = _family(pid)
    while True:
        found = sum(_cpu_seconds(member) for member in members)
        before, members = members, _family(pid)
        if members == before:
            return found


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except _GONE:
        return 0.0
    return sum(int(jiffies) for jiffies in fields[11:15]) / _JIFFIES_PER_SECOND


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except _GONE:
        return 0


def _status_bytes(pid: int, name: str) -> int:
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0
