"""`partita account keys rotate`: replace one of the two keys in a key file.

The other key stays valid, so that clients change from one to the other without an interruption.
"""

import base64
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.errors import ConfigurationError
from partita.storage.folder import sync_names

KEYS_MAX = 2
"""The keys of an account that are rotated."""
KEY_BYTES = 64


class KeyRotated(Facts, frozen=True):
    """A key file with a new key; the key itself is not printed."""

    path: str
    key: int
    keys: int

    def lines(self) -> Iterator[Line]:
        yield f"Rotated: line {self.key} of {self.path} is a new key."
        yield "  Run `partita reload`, then give the new key to the clients."


def rotate_key(given: Given) -> KeyRotated:
    path = Path(given.account_key_file).expanduser().resolve()
    number = int(given.key)
    try:
        keys = path.read_text("utf-8").split()
    except (OSError, ValueError) as error:
        message = f"The key file {path} cannot be read."
        raise ConfigurationError("Configuration", message) from error
    new = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    rotated = with_key(keys, number, new)
    _replace(path, "".join(f"{key}\n" for key in rotated))
    return KeyRotated(str(path), number, len(rotated))


def with_key(keys: list[str], number: int, new: str) -> list[str]:
    """Return the keys with another first or second one; a missing second one is added.

    >>> with_key(["a"], 2, "n"), with_key(["a", "b"], 1, "n")
    (['a', 'n'], ['n', 'b'])
    """
    if number == 1 and len(keys) == 1:
        raise ConfigurationError(
            "Configuration",
            "The file has one key: without it no client could sign a request.",
            hint="Run it with --key 2 first, and give that key to the clients.",
        )
    if not keys:
        raise ConfigurationError(
            "Configuration", "The key file has no key.", hint="Check --account-key-file."
        )
    return [*keys[: number - 1], new, *keys[number:]]


def _replace(path: Path, content: str) -> None:
    """Replace a file at once; its owner, its group and its mode stay."""
    before = path.stat()
    made = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, before.st_mode & 0o7777)
            os.fsync(descriptor)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_names(path.parent)
