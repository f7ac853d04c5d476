"""Verification of the backup of an account, and restoring of the account.

The one rule: a backup is not trusted. Nothing in it names a path, a link in it is damage, and the
account gets its name after every byte is verified.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from partita.errors import BackupOrderError
from partita.service.accounts.account import check_account_name
from partita.service.backup.files import (
    Progress,
    arriving_folder,
    check_database,
    copy_content,
    copy_hashed,
    in_threads,
    opened_beneath,
    silent,
    translating,
    unusable,
)
from partita.service.backup.manifest import (
    CONTENTS_FILE,
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    Content,
    Manifest,
    backup_damaged,
    decode,
    decode_contents,
)
from partita.storage.database import DATABASE_FILE
from partita.ticks import Clock

_NOT_WHAT_WAS_WRITTEN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR)
"""The file is missing, or is a link, a folder or a pipe."""


def check_backup(backup: Path, *, progress: Progress = silent) -> Manifest:
    """Verify every byte of a backup.

    Raises BackupOrderError if there is no backup, ChecksumError if it is damaged.
    """
    with translating(backup):
        manifest = _read_manifest(backup)
        _take_database(backup, manifest, None)
        contents = _take_contents(backup, manifest, None, progress)
        check_database(backup / DATABASE_FILE, contents, progress)
    return manifest


def restore(
    backup: Path,
    root: Path,
    *,
    account: str | None = None,
    clock: Clock,
    progress: Progress = silent,
) -> tuple[Manifest, Path]:
    """Restore an account below `root`, under its own or another name.

    Return the manifest and the folder. An existing account is never changed.
    """
    if (root / DATABASE_FILE).exists():
        message = f"The folder {root} is the folder of an account."
        raise unusable(message, f"Give its parent folder: {root.parent}")
    with translating(backup):
        manifest = _read_manifest(backup)
        folder = root / check_account_name(manifest.account if account is None else account)
        with arriving_folder(folder, clock) as arriving:
            _take_database(backup, manifest, arriving)
            contents = _take_contents(backup, manifest, arriving, progress)
            check_database(arriving / DATABASE_FILE, contents, progress)
    return manifest, folder


def _read_manifest(backup: Path) -> Manifest:
    if not os.path.lexists(backup / MANIFEST_FILE):
        raise BackupOrderError(
            "BackupNotFound",
            f"The folder {backup} does not contain a backup of an account.",
            hint="Give a folder that `partita account backup` created.",
        )
    with _opened(backup, (MANIFEST_FILE,)) as descriptor:
        return decode(os.read(descriptor, MANIFEST_BYTES_MAX))


def _take_database(backup: Path, manifest: Manifest, arriving: Path | None) -> None:
    """Verify the database, and copy it if a target is given."""
    target = None if arriving is None else arriving / DATABASE_FILE
    with _opened(backup, (DATABASE_FILE,)) as descriptor:
        found = copy_hashed(descriptor, target)
    if found != (manifest.database.bytes, manifest.database.sha256):
        raise backup_damaged(DATABASE_FILE)


def _take_contents(
    backup: Path, manifest: Manifest, arriving: Path | None, progress: Progress
) -> list[Content]:
    """Verify the list of contents and its files, and copy the files if a target is given."""
    contents = _read_contents(backup, manifest)
    total, done = manifest.contents.bytes, 0

    def take(content: Content) -> Content:
        with _opened(backup, content.parts) as descriptor:
            if not copy_content(content, descriptor, arriving):
                raise backup_damaged("/".join(content.parts))
        return content

    for content in in_threads(take, contents):
        done += content.size
        progress("contents", done, total)
    return contents


def _read_contents(backup: Path, manifest: Manifest) -> list[Content]:
    with _opened(backup, (CONTENTS_FILE,)) as descriptor:
        _, sha256 = copy_hashed(descriptor, None)
        if sha256 != manifest.contents.sha256:
            raise backup_damaged(CONTENTS_FILE)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb", closefd=False) as lines:
            contents = decode_contents(lines)
    total = sum(content.size for content in contents)
    if (len(contents), total) != (manifest.contents.files, manifest.contents.bytes):
        raise backup_damaged(CONTENTS_FILE)
    return contents


@contextlib.contextmanager
def _opened(backup: Path, parts: Sequence[str]) -> Iterator[int]:
    with contextlib.ExitStack() as opened:
        try:
            descriptor = opened.enter_context(opened_beneath(backup, parts))
        except OSError as error:
            if error.errno not in _NOT_WHAT_WAS_WRITTEN:
                raise
            raise backup_damaged("/".join(parts)) from error
        yield descriptor
