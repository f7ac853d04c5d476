"""Verification of the backup of an account, and restoring of the account.

The one rule: a backup is not trusted. Nothing in it names a path, a link in it is damage, and the
account gets its name after every byte is verified.
"""

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from partita.service.accounts.account import check_account_name
from partita.service.backup.chain import (
    PAGES_FILE,
    Backup,
    opened_stream,
    read_chain,
    read_contents,
    read_database,
    stored_contents,
)
from partita.service.backup.compression import Compression
from partita.service.backup.files import (
    Progress,
    arriving_folder,
    check_database,
    copy_content,
    copy_hashed,
    in_threads,
    pieces_of,
    silent,
    translating,
    unusable,
    write_new,
)
from partita.service.backup.manifest import (
    Content,
    FileFacts,
    Increment,
    Manifest,
    backup_damaged,
)
from partita.storage.database import DATABASE_FILE
from partita.storage.folder import FolderLock, is_locked
from partita.ticks import Clock

EXPANDED_FOLDER = "verifying-"
"""The database of a compressed backup while it is checked, in the folder of the backup."""


def check_backup(backup: Path, *, progress: Progress = silent) -> Manifest:
    """Verify every byte of a backup and its increments; return the newest manifest.

    Raises BackupOrderError if the backup or an increment is missing, ChecksumError if a
    file is damaged.
    """
    with translating(backup):
        chain = read_chain(backup)
        _check_files(chain)
        take_database(chain, None)
        files = stored_contents(chain)
        _take_contents(files.items(), None, progress)
        with _plain_database(chain[0]) as database:
            check_database(database, read_contents(chain[0]), progress)
    return chain[-1].manifest


def restore(
    backup: Path,
    root: Path,
    *,
    account: str | None = None,
    up_to: int | None = None,
    clock: Clock,
    progress: Progress = silent,
) -> tuple[Manifest, Path]:
    """Restore an account below `root`, under its own or another name.

    Restore the newest backup of the chain, or the one with the number `up_to`. Return its
    manifest and the folder. An existing account is never changed.
    """
    refuse_account_folder(root)
    with translating(backup):
        chain = read_chain(backup, up_to=up_to)
        manifest = chain[-1].manifest
        folder = root / check_account_name(manifest.account if account is None else account)
        with arriving_folder(folder, clock) as arriving:
            take_database(chain, arriving)
            stored = stored_contents(chain)
            contents = read_contents(chain[-1])
            _take_contents(((each, stored[each]) for each in contents), arriving, progress)
            check_database(arriving / DATABASE_FILE, contents, progress)
    return manifest, folder


def refuse_account_folder(root: Path) -> None:
    """Raise if a folder of an account is given where its parent is needed."""
    if (root / DATABASE_FILE).exists():
        message = f"The folder {root} is the folder of an account."
        raise unusable(message, f"Give its parent folder: {root.parent}")


@contextlib.contextmanager
def _plain_database(full: Backup) -> Iterator[Path]:
    """Yield the database of a full backup; a compressed one is expanded to a temporary file."""
    if full.manifest.compression is Compression.NONE:
        yield full.folder / DATABASE_FILE
        return
    _remove_left(full.folder)
    folder = _make_scratch(full.folder)
    lock = FolderLock(folder, "verification")
    try:
        _check_space(folder, full.manifest.database.bytes)
        take_database([full], folder)
        yield folder / DATABASE_FILE
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _remove_left(folder: Path) -> None:
    """Remove what killed verifications left."""
    for left in folder.glob(f"{EXPANDED_FOLDER}*"):
        if not left.is_symlink() and not is_locked(left):
            shutil.rmtree(left, ignore_errors=True)


def _make_scratch(backup: Path) -> Path:
    """Create a temporary folder beside the files of a backup, or elsewhere if it is read-only."""
    try:
        return Path(tempfile.mkdtemp(prefix=EXPANDED_FOLDER, dir=backup))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return Path(tempfile.mkdtemp(prefix="partita-"))


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        message = (
            f"The database of the backup is expanded to be checked: {needed:,} bytes, but only "
            f"{free:,} are free in {folder.parent}."
        )
        hint = "Free space there, or copy the backup to another disk and verify it there."
        raise unusable(message, hint)


def take_database(chain: Sequence[Backup], arriving: Path | None) -> None:
    """Verify the newest database of a chain, and copy it if a target is given."""
    if arriving is not None:
        write_new(arriving / DATABASE_FILE, read_database(chain))
        return
    for _ in read_database(chain):
        pass


def _check_files(chain: Sequence[Backup]) -> None:
    """Verify the database and the pages of each backup."""
    for backup in chain:
        name, facts = DATABASE_FILE, backup.manifest.database
        if isinstance(backup.manifest, Increment):
            name, facts = PAGES_FILE, backup.manifest.pages
        with opened_stream(backup, (name,)) as stream:
            if FileFacts(*copy_hashed(pieces_of(stream, facts.bytes), None)) != facts:
                raise backup_damaged(name)


def _take_contents(
    files: Iterable[tuple[Content, Backup]], arriving: Path | None, progress: Progress
) -> None:
    """Verify content files, and copy them if a target is given."""
    listed = list(files)
    total, done = sum(content.size for content, _ in listed), 0

    def take(item: tuple[Content, Backup]) -> Content:
        content, backup = item
        with opened_stream(backup, content.parts) as stream:
            if not copy_content(content, stream, arriving):
                raise backup_damaged("/".join(content.parts))
        return content

    for content in in_threads(take, listed):
        done += content.size
        progress("contents", done, total)
