"""Compaction: the database of an account is written again without free pages.

The copy is written beside the database, verified and synced, and takes its place by a rename. The
one rule: the log is empty and removed before the rename, because SQLite would apply it to any file
of that name. A process that is killed leaves the database as it was, or the compact one, and at
most a file that the next compaction removes.
"""

import contextlib
import os
from pathlib import Path

import apsw
import msgspec

from partita.blobs.store.files import CONTENT_FOLDER
from partita.errors import ConfigurationError
from partita.service.backup.files import (
    Progress,
    check_database,
    named_contents,
    silent,
    sync_file,
    translating,
)
from partita.service.backup.taking import refuse_unless_account
from partita.storage.database import DATABASE_FILE, PAGE_BYTES, check_sqlite, refuse_unfinished_copy
from partita.storage.disk_reserve import DiskReserve
from partita.storage.folder import FolderLock, keep_private, make_private, sync_names
from partita.storage.format_numbers import refuse_foreign
from partita.storage.schema import distrust
from partita.storage.vacuum import INCREMENTAL
from partita.ticks import Clock

COMPACT_FILE = f"{DATABASE_FILE}.compact"
"""The copy while it is written, followed by a random id."""
PROGRESS_INSTRUCTIONS = 200_000
"""Instructions of SQLite between two reports of progress."""


class Compacted(msgspec.Struct, frozen=True):
    """One account that was compacted."""

    account: str
    before_bytes: int
    after_bytes: int
    is_converted: bool
    """Whether the file can be vacuumed in the background only now."""
    folders: int
    """Empty folders of content files that were removed."""


def compact(folder: Path, clock: Clock, progress: Progress = silent) -> Compacted:
    """Compact the database of an account; StoreLockedError if a process has it open."""
    refuse_unless_account(folder)
    check_sqlite()
    with translating(folder):
        lock = FolderLock(folder, "account")
        try:
            return _compact(folder, clock, progress)
        finally:
            lock.release()


def _compact(folder: Path, clock: Clock, progress: Progress) -> Compacted:
    for left in folder.glob(f"{COMPACT_FILE}-*"):
        left.unlink()
    path = folder / DATABASE_FILE
    copy = folder / f"{COMPACT_FILE}-{clock.new_id()[:8]}"
    try:
        with contextlib.closing(apsw.Connection(str(path))) as database:
            distrust(database)
            refuse_foreign(database)
            refuse_unfinished_copy(database, folder)
            is_converted = database.pragma("auto_vacuum") != INCREMENTAL
            database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            before = path.stat().st_size
            _refuse_if_short(folder, before - database.pragma("freelist_count") * PAGE_BYTES)
            contents = named_contents(database)
            _write_copy(database, copy, before, progress)
        check_database(copy, contents, progress)
        sync_file(copy)
        for end in ("-wal", "-shm"):
            (folder / f"{DATABASE_FILE}{end}").unlink(missing_ok=True)
        sync_names(folder)
        copy.rename(path)
        sync_names(folder)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return Compacted(
        account=folder.absolute().name,
        before_bytes=before,
        after_bytes=path.stat().st_size,
        is_converted=is_converted,
        folders=_remove_empty_folders(folder / CONTENT_FOLDER),
    )


def _write_copy(database: apsw.Connection, copy: Path, total: int, progress: Progress) -> None:
    make_private(copy)

    def report() -> bool:
        progress("compact", min(copy.stat().st_size, total), total)
        return False

    database.set_progress_handler(report, PROGRESS_INSTRUCTIONS)
    # The copy takes the mode of this connection; its log is switched on when it is opened.
    database.pragma("auto_vacuum", INCREMENTAL)
    database.execute("VACUUM INTO ?", (str(copy),))
    database.set_progress_handler(None)
    keep_private(copy)


def _refuse_if_short(folder: Path, needed: int) -> None:
    free = DiskReserve(folder).free_bytes()
    if free < needed:
        raise ConfigurationError(
            "FolderUnusable",
            f"A compaction of {folder} needs {needed:,} bytes of free space; {free:,} are free.",
            hint="Free space on the disk, or back up the account and restore it on another disk.",
        )


def _remove_empty_folders(contents: Path) -> int:
    """Remove the folders of content files that have become empty."""
    removed = 0
    for folder, _, _ in os.walk(contents, topdown=False):
        place = Path(folder)
        if place.parent == contents.parent or len(place.name) != 2:
            continue  # the folder of all contents, of incomplete uploads, or of damaged files
        with contextlib.suppress(OSError):  # it is not empty
            place.rmdir()
            removed += 1
    return removed
