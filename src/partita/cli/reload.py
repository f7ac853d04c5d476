"""`partita reload`, and the server's side of it: keys and certificates are read again.

A server that has a folder keeps the file `serve.json` there and holds a lock on it: the process id
that gets SIGHUP, and the result of the last reload. The one rule: a reload is applied as a whole,
or nothing is changed.
"""

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from partita.cli.config import Config, check
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, show
from partita.cli.kit.target import get_folder
from partita.clock import SystemClock
from partita.errors import ConfigurationError, UnavailableError
from partita.service.accounts.account import Accounts
from partita.service.auth.shared_key import SigningKey
from partita.service.hosting.server import Server, TlsFiles, tls_context

SERVE_FILE = "serve.json"
RELOAD_SECONDS_MAX = 30.0
"""How long `partita reload` waits for the server."""
_LOOK_SECONDS = 0.02
_RELOADED = frozenset({"accounts", "tls_cert", "tls_key", "sources"})
"""The settings that a reload applies, and what is not a setting."""


class Served(msgspec.Struct, frozen=True):
    """The content of the file `serve.json`."""

    pid: int
    host: str
    reloads: int = 0
    error: str = ""
    """Why the last reload changed nothing."""
    restart: list[str] = []
    """What has changed and needs a restart."""


class Reloaded(Facts, frozen=True):
    """A server that has read its keys and certificates again."""

    pid: int
    restart: list[str]

    def lines(self) -> Iterator[str]:
        yield f"Reloaded: process {self.pid} uses the present keys and certificates."
        if self.restart:
            yield f"  Restart the server to apply: {', '.join(self.restart)}"


# The server's side


class ServeFile:
    """The file by which a running server is found."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._served = Served(os.getpid(), socket.gethostname())
        self._write()

    def note(self, error: str, restart: list[str]) -> None:
        """Write the result of a reload."""
        self._served = Served(
            self._served.pid, self._served.host, self._served.reloads + 1, error, restart
        )
        self._write()

    def _write(self) -> None:
        content = msgspec.json.encode(self._served)
        with contextlib.suppress(OSError):  # on a full disk the server serves all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)


@contextlib.contextmanager
def serve_file(folder: Path | None) -> Iterator[ServeFile | None]:
    """Have the file of a folder; None without a folder, or if another server has the file."""
    if folder is None:
        yield None
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / SERVE_FILE, flags, 0o600)
    try:
        if not _is_locked(descriptor, fcntl.LOCK_EX):
            yield ServeFile(descriptor)
        else:
            yield None
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, kind: int) -> bool:
    """Lock a file; return whether another process has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def reload(
    config: Config,
    read: Callable[[], Config],
    accounts: Accounts,
    servers: Mapping[str, Server],
) -> list[str]:
    """Use the present keys and certificates; return what has changed and needs a restart.

    Requests and connections in progress continue. Raises ConfigurationError, and changes nothing,
    if the configuration, a key or a certificate cannot be used.
    """
    new = read()
    check(new)
    context = None
    if config.tls_cert is not None and new.tls_cert is not None and new.tls_key is not None:
        context = tls_context(TlsFiles(new.tls_cert, new.tls_key))
    for key in itertools.chain.from_iterable(each.keys for each in new.accounts):
        SigningKey.from_base64(key)  # raises before anything is changed
    for each in new.accounts:
        if each.name in accounts:
            accounts[each.name].set_keys(each.keys)
    if context is not None:
        for server in servers.values():
            server.set_context(context)
    return _restart_for(config, new)


def _restart_for(old: Config, new: Config) -> list[str]:
    names = [
        name
        for name in Config.__struct_fields__
        if name not in _RELOADED and getattr(old, name) != getattr(new, name)
    ]
    if (old.tls_cert is None) != (new.tls_cert is None):
        names.append("tls_cert")
    if {each.name for each in old.accounts} != {each.name for each in new.accounts}:
        names.append("accounts")
    return names


# The verb


def run(given: Given) -> int:
    """Run `partita reload`."""
    folder = get_folder(
        given.connect, "The folder of the data", on_database="Send SIGHUP to the server."
    )
    served = request_reload(folder)
    if served.error:
        raise ConfigurationError("Configuration", f"Nothing was reloaded. {served.error}")
    show(Reloaded(served.pid, served.restart), is_json=given.json)
    return 0


def request_reload(folder: Path) -> Served:
    """Let the server of a folder reload, and return the result."""
    try:
        descriptor = os.open(folder / SERVE_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _not_served(folder) from None
    with os.fdopen(descriptor, "rb") as file:
        if not _is_locked(descriptor, fcntl.LOCK_SH):
            raise _not_served(folder)
        before = _read(file.fileno())
        if before.host != socket.gethostname():
            raise ConfigurationError(
                "Configuration",
                f"The folder {folder} is served on another machine or container: {before.host}.",
                hint="Run `partita reload` there.",
            )
        os.kill(before.pid, signal.SIGHUP)
        clock = SystemClock()
        deadline = clock.monotonic() + RELOAD_SECONDS_MAX
        while clock.monotonic() < deadline:
            after = _read(file.fileno())
            if after.reloads > before.reloads:
                return after
            time.sleep(_LOOK_SECONDS)
    raise UnavailableError(
        "OperationTimedOut",
        f"Process {before.pid} did not reload within {RELOAD_SECONDS_MAX:.0f} seconds.",
        hint="Look at the log of the server, and run the command again.",
    )


def _read(descriptor: int) -> Served:
    while True:
        with contextlib.suppress(msgspec.DecodeError):  # it is being written
            return msgspec.json.decode(os.pread(descriptor, 65_536, 0), type=Served)
        time.sleep(_LOOK_SECONDS)


def _not_served(folder: Path) -> ConfigurationError:
    return ConfigurationError(
        "Configuration",
        f"No server serves the folder {folder}.",
        hint="Give --connect the folder that serve --path names; send SIGHUP to a server that"
        " runs with --in-memory or on a database.",
    )
