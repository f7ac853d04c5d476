"""The file with the token of the console: readable by its owner only, kept between starts."""

import base64
import contextlib
import os
import re
import stat
from pathlib import Path

from partita.console.guard import TOKEN_BYTES
from partita.errors import ConfigurationError
from partita.ticks import Clock

TOKEN_FILE = "console.token"  # noqa: S105 - the name of a file
_OWNER_ONLY = 0o600
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43,}")


def new_token(clock: Clock) -> str:
    """Return a random token."""
    return base64.urlsafe_b64encode(clock.random_bytes(TOKEN_BYTES)).rstrip(b"=").decode()


def read_or_create(path: Path, clock: Clock) -> str:
    """Return the token of a file; create the file if it is missing."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        token = new_token(clock)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            "The file with the token of the console cannot be used.",
            facts={"path": str(path), "reason": error.strerror or str(error)},
            hint="Check the path and its permissions, or name another file.",
        ) from error
    return token


def _read(path: Path) -> str:
    with path.open(encoding="ascii", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        token = file.read(1024).strip()
    if mode & 0o077:
        raise _unusable(path, "Other users can read it.", f"Run: chmod 600 {path}")
    if not _TOKEN.fullmatch(token):
        raise _unusable(path, "It is not 32 bytes in base64url.", "Remove it: a start makes one.")
    return token


def _unusable(path: Path, why: str, hint: str) -> ConfigurationError:
    message = f"The file with the token of the console cannot be used. {why}"
    return ConfigurationError("Configuration", message, facts={"path": str(path)}, hint=hint)
