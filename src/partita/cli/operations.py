"""The operations endpoint of `partita serve`: its token and its server."""

import base64
import os
from pathlib import Path

from partita.cli.config import Config, refuse_if_shared
from partita.errors import ConfigurationError
from partita.service.observing.operations import TOKEN_BYTES
from partita.ticks import Clock

TOKEN_FILE = "operations.token"  # noqa: S105 - the name of the file
TOKEN_CHARACTERS_MIN = 32
"""A shorter token in a file is refused: it could be guessed."""


def token_of(config: Config, clock: Clock) -> tuple[str, Path | None]:
    """Return the token of the endpoint, and the file that has it; create a missing file.

    Without a folder and without --metrics-token-file the token is in no file.
    """
    path = config.metrics_token_file
    if path is None and config.folder is not None:
        path = config.folder / TOKEN_FILE
    fresh = base64.urlsafe_b64encode(clock.random_bytes(TOKEN_BYTES)).decode().rstrip("=")
    if path is None:
        return fresh, None
    try:
        return _kept(path, fresh), path
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"The token file {path} cannot be used: {error.strerror or error}.",
            hint="Check the path and its permissions, or give --metrics-token-file.",
        ) from error


def read_token(path: Path) -> str:
    """Read a token; raises OSError or ConfigurationError."""
    with path.open(encoding="utf-8") as file:
        refuse_if_shared(path, os.fstat(file.fileno()))
        token = file.read().strip()
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or " " in token:
        raise ConfigurationError(
            "Configuration",
            f"The file {path} has no token of at least {TOKEN_CHARACTERS_MIN} characters.",
            hint="Remove the file: the server creates it again.",
        )
    return token


def _kept(path: Path, fresh: str) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_token(path)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        file.write(fresh + "\n")
    return fresh
