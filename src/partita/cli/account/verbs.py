"""The verbs of `partita account`; an existing account or backup is never overwritten."""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from partita.blobs.store.files import FolderFiles
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.cli.kit.progress import Bar
from partita.cli.kit.target import get_folder, refuse_database
from partita.clock import SystemClock
from partita.errors import ConfigurationError, StoreLockedError
from partita.service.backup.manifest import Increment, Manifest
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.taking import back_up, back_up_changes, refuse_unless_account
from partita.service.backup.verifying import Damage, Pace, stored_bytes, verify_account
from partita.storage.database import DATABASE_FILE
from partita.storage.folder import FolderLock

MIB = 1024 * 1024
RATE_MIB, RATE_MIB_MAX = 64, 10_000
"""How much `partita verify` reads per second, and the most that can be set."""

_COPY = "`partita account copy` makes a folder of an account."
_BACK_UP_DATABASE = f"Back up the database with pg_basebackup and its archived log; {_COPY}"
_RESTORE_DATABASE = (
    "Restore the backup to a folder, then run `partita account copy FOLDER --to postgresql://...`."
)
_VERIFY_DATABASE = f"Verify the database with pg_amcheck and data_checksums; {_COPY}"


class BackupFacts(Facts, frozen=True):
    """A backup that was verified."""

    done: ClassVar[str] = "Sound: the backup of"

    path: str
    account: str
    made_at: str
    kind: str
    number: int
    """The position in the chain of backups."""
    stored_bytes: int
    """The bytes of the database that this backup stores: all of them, or the changed pages."""
    database_bytes: int
    files: int
    file_bytes: int

    def lines(self) -> Iterator[Line]:
        yield f"{self.done} {self.account} of {self.made_at}: {self.path}"
        if self.kind == "incremental":
            yield f"  backup    {self.number} (incremental), {self.stored_bytes:,} bytes of pages"
        yield f"  database  {self.database_bytes:,} bytes, every page checked"
        yield f"  contents  {self.files:,} files, {self.file_bytes:,} bytes, every hash checked"


class AccountBackedUp(BackupFacts, frozen=True):
    """A backup that was taken."""

    done: ClassVar[str] = "Backed up"


class Restored(BackupFacts, frozen=True):
    """A backup that was restored; `path` is the folder of the account."""

    done: ClassVar[str] = "Restored"


def back_up_account(given: Given) -> BackupFacts:
    refuse_database(given.to, "The folder of the backups", "Give --to a folder.")
    root = get_folder(given.connect, "The folder of the data", on_database=_BACK_UP_DATABASE)
    folder = account_folder(root, given.account)
    target = Path(given.to)
    with _bar(given) as bar:
        take = back_up_changes if given.incremental else back_up
        manifest = take(folder, target, clock=SystemClock(), progress=bar.step)
    return _facts(AccountBackedUp, target, manifest)


def restore_account(given: Given) -> BackupFacts:
    if (given.to is None) != bool(given.check):
        raise ConfigurationError(
            "Configuration",
            "A restore needs the folder of the data.",
            hint="Give --to DATA; to verify a backup only, run `partita account verify`.",
        )
    if given.check:
        return verify_backup(given)
    refuse_database(given.to, "The folder of the data", _RESTORE_DATABASE)
    with _bar(given) as bar:
        manifest, path = restore(
            Path(given.backup),
            Path(given.to),
            account=given.account,
            up_to=_number(given.up_to),
            clock=SystemClock(),
            progress=bar.step,
        )
    return _facts(Restored, path, manifest, given.account)


def verify_backup(given: Given) -> BackupFacts:
    refuse_database(given.backup, "The backup", _VERIFY_DATABASE)
    with _bar(given) as bar:
        manifest = check_backup(Path(given.backup), progress=bar.step)
    return _facts(BackupFacts, Path(given.backup), manifest)


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


def account_folder(path: Path, account: str | None) -> Path:
    """Return the folder of the account: the named one, the only one, or the given folder."""
    if account is not None:
        return path / account
    if (path / DATABASE_FILE).exists():
        return path
    found = sorted(each.parent for each in path.glob(f"*/{DATABASE_FILE}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(folder.name for folder in found)
    raise ConfigurationError(
        "FolderUnusable",
        f"The folder {path} holds {f'several accounts: {names}' if found else 'no account'}.",
        hint="Name one with --account." if found else "Give the folder that serve --path names.",
    )


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not the number of a backup.",
            hint="Give --up-to a whole number; `partita account verify` prints the newest.",
        )
    return int(text)


def _bar(given: Given) -> Bar:
    return Bar(given.verb, is_hidden=given.json or given.quiet)


def _facts(
    kind: type[BackupFacts], path: Path, manifest: Manifest, account: str | None = None
) -> BackupFacts:
    return kind(
        path=str(path.absolute()),
        account=account or manifest.account,
        made_at=manifest.made_at,
        kind="incremental" if isinstance(manifest, Increment) else "full",
        number=manifest.number if isinstance(manifest, Increment) else 1,
        stored_bytes=(
            manifest.pages.bytes if isinstance(manifest, Increment) else manifest.database.bytes
        ),
        database_bytes=manifest.database.bytes,
        files=manifest.contents.files,
        file_bytes=manifest.contents.bytes,
    )
