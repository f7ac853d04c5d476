"""Verification of the backup of an account, and restoring of the account.

The one rule: a backup is not trusted. Nothing in it names a path, a link in it is damage, and the
account gets its name after every byte is verified.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from partita.service.accounts.account import check_account_name
from partita.service.backup.chain import (
    PAGES_FILE,
    Backup,
    opened_part,
    read_chain,
    read_contents,
    read_database,
    stored_contents,
)
from partita.service.backup.files import (
    Progress,
    arriving_folder,
    check_database,
    copy_content,
    copy_hashed,
    in_threads,
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
from partita.ticks import Clock


def check_backup(backup: Path, *, progress: Progress = silent) -> Manifest:
    """Verify every byte of a backup and its increments; return the newest manifest.

    Raises BackupOrderError if the backup or an increment is missing, ChecksumError if a
    file is damaged.
    """
    with translating(backup):
        chain = read_chain(backup)
        _check_files(chain)
        _take_database(chain, None)
        files = stored_contents(chain)
        _take_contents(files.items(), None, progress)
        check_database(backup / DATABASE_FILE, read_contents(chain[0]), progress)
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
    if (root / DATABASE_FILE).exists():
        message = f"The folder {root} is the folder of an account."
        raise unusable(message, f"Give its parent folder: {root.parent}")
    with translating(backup):
        chain = read_chain(backup, up_to=up_to)
        manifest = chain[-1].manifest
        folder = root / check_account_name(manifest.account if account is None else account)
        with arriving_folder(folder, clock) as arriving:
            _take_database(chain, arriving)
            stored = stored_contents(chain)
            contents = read_contents(chain[-1])
            _take_contents(((each, stored[each]) for each in contents), arriving, progress)
            check_database(arriving / DATABASE_FILE, contents, progress)
    return manifest, folder


def _take_database(chain: Sequence[Backup], arriving: Path | None) -> None:
    """Verify the newest database of a chain, and copy it if a target is given."""
    if arriving is not None:
        write_new(arriving / DATABASE_FILE, read_database(chain))
        return
    for _ in read_database(chain):
        pass


def _check_files(chain: Sequence[Backup]) -> None:
    """Verify the database and the pages of each backup."""
    for folder, manifest, _ in chain:
        name, facts = DATABASE_FILE, manifest.database
        if isinstance(manifest, Increment):
            name, facts = PAGES_FILE, manifest.pages
        with opened_part(folder, (name,)) as descriptor:
            if FileFacts(*copy_hashed(descriptor, None)) != facts:
                raise backup_damaged(name)


def _take_contents(
    files: Iterable[tuple[Content, Path]], arriving: Path | None, progress: Progress
) -> None:
    """Verify content files, and copy them if a target is given."""
    listed = list(files)
    total, done = sum(content.size for content, _ in listed), 0

    def take(item: tuple[Content, Path]) -> Content:
        content, folder = item
        with opened_part(folder, content.parts) as descriptor:
            if not copy_content(content, descriptor, arriving):
                raise backup_damaged("/".join(content.parts))
        return content

    for content in in_threads(take, listed):
        done += content.size
        progress("contents", done, total)
