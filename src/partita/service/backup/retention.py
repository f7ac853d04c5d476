"""A folder with several chains of backups of one account: the newest are kept.

    <folder>/20261118T031500Z/           a chain: a full backup and its increments
    <folder>/20261118T031500Z.leaving    a chain that is being removed
    <folder>/lock                        held while a backup is taken or chains are removed

The one rule: chains are removed, whole and oldest first, only after the newest one was read again
and found sound. A chain is renamed before it is removed, so that a killed process leaves no chain
that lacks files.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from partita.errors import BackupOrderError, PartitaError
from partita.service.backup.chain import read_chain
from partita.service.backup.files import Progress, silent, translating, unusable
from partita.service.backup.manifest import MANIFEST_FILE
from partita.service.backup.restoring import check_backup
from partita.storage.folder import FolderLock, make_folder, sync_names
from partita.ticks import TICKS_PER_SECOND, Clock

_NAME = re.compile(r"\d{8}T\d{6}Z")
_LEFT = re.compile(r"\d{8}T\d{6}Z\.(leaving|incomplete-[0-9a-f]{8})")
_FORMAT = "%Y%m%dT%H%M%SZ"


def chains_in(folder: Path) -> list[Path]:
    """Return the folders of all chains, the oldest first."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted(path for path in found if (path / MANIFEST_FILE).is_file())


def newest_chain(folder: Path) -> Path:
    """Return the folder itself if it is a chain, else its newest chain, else the folder."""
    if (folder / MANIFEST_FILE).exists():
        return folder
    return (chains_in(folder) or [folder])[-1]


@contextlib.contextmanager
def opened_chains(folder: Path) -> Iterator[None]:
    """Lock the folder and remove what a killed process left in it."""
    if (folder / MANIFEST_FILE).exists():
        message = f"The folder {folder} is itself a backup, so it cannot hold several of them."
        raise unusable(message, "Give --to another folder, or leave out --keep.")
    with translating(folder):
        make_folder(folder)
        lock = FolderLock(folder, "folder of backups")
        try:
            for path in folder.iterdir():
                if _LEFT.fullmatch(path.name):
                    shutil.rmtree(path)
            yield
        finally:
            lock.release()


def new_chain(folder: Path, clock: Clock) -> Path:
    """Return the folder of the next chain: its name is the time, and later than all others."""
    now = datetime.fromtimestamp(clock.ticks() // TICKS_PER_SECOND, UTC)
    names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    if names and f"{now:{_FORMAT}}" <= names[-1]:
        now = datetime.strptime(names[-1], _FORMAT).replace(tzinfo=UTC) + timedelta(seconds=1)
    return folder / f"{now:{_FORMAT}}"


def chain_to_continue(folder: Path) -> Path:
    """Return the newest chain, to which an increment is added."""
    found = chains_in(folder)
    if not found:
        raise BackupOrderError(
            "FullBackupNeeded",
            f"An incremental backup in {folder} is not possible: it contains no backup.",
            hint="Take a full backup, then continue with incremental ones.",
        )
    return found[-1]


def remove_old_chains(folder: Path, keep: int, *, progress: Progress = silent) -> list[Path]:
    """Verify the newest chain, then remove all but the newest `keep`; return what was removed.

    Nothing is removed if the newest chain is damaged. A chain that cannot be read, or that is of
    another account, is neither counted nor removed.
    """
    newest = chains_in(folder)[-1]
    account = check_backup(newest, progress=progress).account
    readable = [path for path in chains_in(folder) if _account_of(path) == account]
    leaving: Sequence[Path] = readable[: -max(keep, 1)]
    with translating(folder):
        for path in leaving:
            hidden = path.rename(path.with_name(f"{path.name}.leaving"))
            sync_names(folder)
            shutil.rmtree(hidden)
    return list(leaving)


def _account_of(chain: Path) -> str | None:
    try:
        return read_chain(chain)[-1].manifest.account
    except (PartitaError, OSError):
        return None  # because a chain that cannot be read is left to the operator
