"""Where the target of a verb is: `--connect WHERE`, or the variable PARTITA_CONNECT."""

import os
from pathlib import Path

from partita.addresses import is_postgresql
from partita.errors import ConfigurationError

CONNECT_VARIABLE = "PARTITA_CONNECT"
"""Unlike a flag, a variable does not appear in the list of processes."""

_IN_FOLDER = "partita:"


def find_target(connect: str | None) -> str | None:
    """Return WHERE as the flag says, else as the variable says."""
    return connect or os.environ.get(CONNECT_VARIABLE) or None


def get_target(connect: str | None, *, subject: str, forms: str) -> str:
    """Return WHERE; ConfigurationError names the forms that the verb can use."""
    found = find_target(connect)
    if found is None:
        raise ConfigurationError(
            "ConnectionNotGiven",
            f"{subject} is not named.",
            hint=f"Give --connect {forms}, or set {CONNECT_VARIABLE}.",
        )
    return found


def get_folder(connect: str | None, subject: str, *, on_database: str = "") -> Path:
    """Return WHERE as a folder: with or without `partita:` before it.

    `on_database` is what to do if a PostgreSQL database is named.
    """
    text = get_target(connect, subject=subject, forms="FOLDER").removeprefix(_IN_FOLDER)
    refuse_database(text, subject, on_database)
    if not text or "://" in text or is_connection_string(text):
        raise ConfigurationError(
            "Configuration", f"{subject} must be a folder here.", hint="Give --connect FOLDER."
        )
    return Path(text).expanduser()


def refuse_database(text: str | None, subject: str, hint: str) -> None:
    """Raise if a PostgreSQL database is named where a folder is needed."""
    if text is not None and is_postgresql(text):
        message = f"{subject} must be a folder here, not a PostgreSQL database."
        raise ConfigurationError("Configuration", message, hint=hint or "Give --connect FOLDER.")


def is_connection_string(text: str) -> bool:
    """Return whether a text is written as a connection string: name=value."""
    return "=" in text and not text.startswith((".", "/", "~"))
