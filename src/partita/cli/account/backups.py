"""The verbs of `partita account` on backups; an existing account or backup is never overwritten."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from partita.cli.kit.accounts import account_folder, account_folders
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.cli.kit.progress import Bar
from partita.cli.kit.target import get_folder, refuse_database
from partita.clock import SystemClock
from partita.errors import ConfigurationError, PartitaError, StoreLockedError
from partita.service.backup.compression import Compression, best_compression
from partita.service.backup.manifest import Increment, Manifest
from partita.service.backup.one_table import TableWanted, restore_table
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.retention import (
    chain_to_continue,
    new_chain,
    newest_chain,
    opened_chains,
    remove_old_chains,
)
from partita.service.backup.taking import back_up, back_up_changes

_COPY = "`partita account copy` makes a folder of an account."
_BACK_UP_DATABASE = (
    "Back up the database with pg_dump, or with pg_basebackup and its archived log for a restore"
    f" to any point in time; {_COPY}"
)
_RESTORE_DATABASE = (
    "Restore the backup to a folder, then run `partita account copy FOLDER --to postgresql://...`."
)
_RESTORE_TO_SERVED = (
    "Stop the server, or restore the table to another data folder and copy it from there to the"
    " server with `partita copy`."
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
    compression: str

    def lines(self) -> Iterator[Line]:
        yield f"{self.done} {self.account} of {self.made_at}: {self.path}"
        if self.kind == "incremental":
            yield f"  backup    {self.number} (incremental), {self.stored_bytes:,} bytes of pages"
        yield f"  database  {self.database_bytes:,} bytes, every page checked"
        yield f"  contents  {self.files:,} files, {self.file_bytes:,} bytes, every hash checked"
        if self.compression != Compression.NONE:
            yield f"  compressed with {self.compression}"


class AccountBackedUp(BackupFacts, frozen=True):
    """A backup that was taken."""

    done: ClassVar[str] = "Backed up"


class ChainExtended(AccountBackedUp, frozen=True):
    """A backup that was taken in a folder of several chains."""

    removed: list[str]
    """The chains that were removed, the oldest first."""

    def lines(self) -> Iterator[Line]:
        yield from super().lines()
        for path in self.removed:
            yield f"  removed   {path}"


class BackupFailed(msgspec.Struct, frozen=True):
    account: str
    code: str
    message: str


class AccountsBackedUp(Facts, frozen=True):
    """The outcome of `--all`."""

    backups: list[BackupFacts]
    failures: list[BackupFailed]

    @property
    def exit_status(self) -> int:
        return 1 if self.failures else 0

    def lines(self) -> Iterator[Line]:
        for each in self.backups:
            yield from each.lines()
        for failure in self.failures:
            yield f"Failed: {failure.account}: {failure.message} ({failure.code})"


class TableBack(Facts, frozen=True):
    """A table that was restored; `path` is the folder of the account."""

    path: str
    account: str
    made_at: str
    number: int
    table: str
    restored_as: str
    entities: int

    def lines(self) -> Iterator[Line]:
        yield f"Restored {self.table} of {self.made_at} as {self.restored_as}: {self.path}"
        yield f"  entities  {self.entities:,}, every checksum checked"


class Restored(BackupFacts, frozen=True):
    """A backup that was restored; `path` is the folder of the account."""

    done: ClassVar[str] = "Restored"


def back_up_account(given: Given) -> Facts:
    refuse_database(given.to, "The folder of the backups", "Give --to a folder.")
    root = get_folder(given.connect, "The folder of the data", on_database=_BACK_UP_DATABASE)
    if not given.all:
        return _back_up(given, account_folder(root, given.account), Path(given.to))
    if given.account is not None:
        raise ConfigurationError(
            "Configuration",
            "--all means all accounts.",
            hint="Give --all or --account NAME, not both.",
        )
    backups: list[BackupFacts] = []
    failures: list[BackupFailed] = []
    for folder in account_folders(root):
        # The backups of other accounts do not depend on this one.
        try:
            backups.append(_back_up(given, folder, Path(given.to) / folder.name))
        except PartitaError as error:
            failures.append(BackupFailed(folder.name, error.code, error.message))
    return AccountsBackedUp(backups, failures)


def _back_up(given: Given, folder: Path, target: Path) -> BackupFacts:
    how = best_compression() if given.compress else Compression.NONE
    clock = SystemClock()
    take = back_up_changes if given.incremental else back_up
    with _bar(given) as bar:
        if given.keep is None:
            done = take(folder, target, clock=clock, progress=bar.step, compression=how)
            return _facts(AccountBackedUp, target, done)
        with opened_chains(target):
            chain = chain_to_continue(target) if given.incremental else new_chain(target, clock)
            done = take(folder, chain, clock=clock, progress=bar.step, compression=how)
            removed = remove_old_chains(target, int(given.keep), progress=bar.step)
    taken = _facts(AccountBackedUp, chain, done)
    names = [str(path.absolute()) for path in removed]
    return ChainExtended(**msgspec.structs.asdict(taken), removed=names)


def restore_account(given: Given) -> Facts:
    if (given.to is None) != bool(given.check):
        raise ConfigurationError(
            "Configuration",
            "A restore needs the folder of the data.",
            hint="Give --to DATA; to verify a backup only, run `partita account verify`.",
        )
    if given.check:
        return verify_backup(given)
    refuse_database(given.to, "The folder of the data", _RESTORE_DATABASE)
    if given.table is not None:
        return _restore_table(given)
    if given.new_name is not None:
        raise ConfigurationError(
            "Configuration",
            "--as is the new name of a table.",
            hint="Give --table NAME too; --account NAME restores an account under another name.",
        )
    with _bar(given) as bar:
        manifest, path = restore(
            newest_chain(Path(given.backup)),
            Path(given.to),
            account=given.account,
            up_to=_number(given.up_to),
            clock=SystemClock(),
            progress=bar.step,
        )
    return _facts(Restored, path, manifest, given.account)


def _restore_table(given: Given) -> TableBack:
    new_name = given.new_name or given.table
    wanted = TableWanted(given.table, new_name, given.account, _number(given.up_to))
    with _bar(given) as bar:
        try:
            done = restore_table(
                newest_chain(Path(given.backup)),
                Path(given.to),
                wanted,
                clock=SystemClock(),
                progress=partial(_progress, bar),
            )
        except StoreLockedError as error:
            error.hint = _RESTORE_TO_SERVED
            raise
    manifest = done.manifest
    return TableBack(
        path=str(done.folder.absolute()),
        account=done.folder.name,
        made_at=manifest.made_at,
        number=manifest.number if isinstance(manifest, Increment) else 1,
        table=given.table,
        restored_as=new_name,
        entities=done.entities,
    )


def _progress(bar: Bar, step: str, done: int, total: int) -> None:
    bar.step(step, done, total, "" if step == "entities" else "B")


def verify_backup(given: Given) -> BackupFacts:
    refuse_database(given.backup, "The backup", _VERIFY_DATABASE)
    path = newest_chain(Path(given.backup))
    with _bar(given) as bar:
        manifest = check_backup(path, progress=bar.step)
    return _facts(BackupFacts, path, manifest)


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
        compression=manifest.compression,
    )
