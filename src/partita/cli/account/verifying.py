"""`partita verify`: everything of an account is read."""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from partita.blobs.store.files import FolderFiles
from partita.cli.kit.accounts import account_folder
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.cli.kit.progress import Bar
from partita.cli.kit.target import get_folder
from partita.clock import SystemClock
from partita.errors import ConfigurationError, StoreLockedError
from partita.service.backup.taking import refuse_unless_account
from partita.service.backup.verifying import Damage, Pace, stored_bytes, verify_account
from partita.storage.folder import FolderLock

MIB = 1024 * 1024
RATE_MIB, RATE_MIB_MAX = 64, 10_000
"""How much `partita verify` reads per second, and the most that can be set."""

_COPY = "`partita account copy` makes a folder of an account."
_VERIFY_DATABASE = f"Verify the database with pg_amcheck and data_checksums; {_COPY}"


class AccountVerified(Facts, frozen=True):
    """What was read of an account, and what of it is damaged."""

    path: str
    account: str
    is_sound: bool
    is_served: bool
    """Another process has the account open: nothing was moved to quarantine."""
    files: int
    file_bytes: int
    rows: int
    database_bytes: int
    damage: list[Damage]

    @property
    def exit_status(self) -> int:
        return 0 if self.is_sound else 1

    def lines(self) -> Iterator[Line]:
        yield f"{'Sound' if self.is_sound else 'Damaged'}: {self.account} in {self.path}"
        yield f"  database  {self.database_bytes:,} bytes, {self.rows:,} rows"
        yield f"  contents  {self.files:,} files, {self.file_bytes:,} bytes"
        for each in self.damage:
            yield f"  damaged   {each.text}"
        if self.damage and self.is_served:
            yield "  The account is served: the server moves damaged files (serve --scrub-days)."
        if self.damage:
            yield "  Restore a backup, or upload the blobs again: equal content replaces the file."


def verify_account_files(given: Given) -> AccountVerified:
    root = get_folder(given.connect, "The folder of the data", on_database=_VERIFY_DATABASE)
    folder = account_folder(root, given.account)
    refuse_unless_account(folder)
    pace = Pace(_rate(given.rate), SystemClock().monotonic, threading.Event().wait)
    with _locked(folder) as is_locked, _bar(given) as bar:
        bar.begin(stored_bytes(folder), "B")
        found = verify_account(
            folder,
            pace,
            partial(_quarantine, folder) if is_locked else _keep,
            reached=lambda content: bar.advance(content.size),
        )
    return AccountVerified(
        path=str(folder.absolute()),
        account=folder.absolute().name,
        is_sound=not found.damage,
        is_served=not is_locked,
        files=found.files,
        file_bytes=found.file_bytes,
        rows=found.rows,
        database_bytes=found.database_bytes,
        damage=found.damage,
    )


def _quarantine(folder: Path, digest: bytes) -> bool:
    return FolderFiles(folder).quarantine(digest)


def _keep(_digest: bytes) -> bool:
    """Leave a damaged file to the process that has the account open."""
    return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock the folder if no other process has it; yield whether it is locked."""
    try:
        lock = FolderLock(folder, "account")
    except StoreLockedError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _rate(text: str | None) -> int:
    """Return the bytes per second."""
    if text is None:
        return RATE_MIB * MIB
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= RATE_MIB_MAX:
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not a rate.",
            hint=f"Give --rate a whole number of MiB per second, from 1 to {RATE_MIB_MAX}.",
        )
    return int(text) * MIB


def _bar(given: Given) -> Bar:
    return Bar(given.verb, is_hidden=given.json or given.quiet)
