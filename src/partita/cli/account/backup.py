"""`partita backup`: copy a whole account, whoever has it open, and verify the copy.

Facts are printed as text or, with --json, as one line. Progress is drawn on standard error, and
only for people.
"""

import argparse
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
from tqdm import tqdm

from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.backup.manifest import Manifest
from partita.service.backup.taking import back_up
from partita.storage.database import DATABASE_FILE


class Shown(msgspec.Struct, frozen=True):
    """What is said about a backup that was taken, checked or restored."""

    path: str
    account: str
    made_at: str
    database_bytes: int
    files: int
    file_bytes: int


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `backup` to the command line."""
    backing_up = add_verb(
        verbs,
        "backup",
        "back a whole account up, also while it is served",
        "partita backup ./partita-data --to /mnt/backups/monday",
    )
    backing_up.add_argument("path", metavar="DATA", help="folder of the data, as serve --path")
    backing_up.add_argument("--to", required=True, metavar="DIR", help="folder to make")
    backing_up.add_argument("--account", metavar="NAME", help="which, if there are several")


def add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", verb: str, text: str, example: str
) -> argparse.ArgumentParser:
    added = verbs.add_parser(
        verb,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added.set_defaults(verb=verb)
    added.add_argument("--json", action="store_true", help="print the facts as one JSON line")
    added.add_argument("--quiet", action="store_true", help="draw no progress")
    return added


def run(given: Mapping[str, object]) -> int:
    """Back up, and say what is in the backup."""
    account = given["account"]
    folder = account_folder(Path(str(given["path"])), None if account is None else str(account))
    target = Path(str(given["to"]))
    with contextlib.closing(Bar(is_hidden=bool(given["json"] or given["quiet"]))) as bar:
        manifest = back_up(folder, target, clock=SystemClock(), progress=bar.progress)
    show("Backed up", target, manifest, as_json=bool(given["json"]))
    return 0


def account_folder(path: Path, account: str | None) -> Path:
    """Find the folder of the account: the named one, the only one, or the given folder itself."""
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
        hint="Name one with --account." if found else "Give the folder that serve --path has.",
    )


def show(
    done: str, path: Path, manifest: Manifest, *, as_json: bool, account: str | None = None
) -> None:
    """Print what was done."""
    shown = Shown(
        path=str(path.absolute()),
        account=account or manifest.account,
        made_at=manifest.made_at,
        database_bytes=manifest.database.bytes,
        files=manifest.contents.files,
        file_bytes=manifest.contents.bytes,
    )
    if as_json:
        print(msgspec.json.encode(shown).decode())
        return
    print(f"{done} {shown.account} of {shown.made_at}: {shown.path}")
    print(f"  database  {shown.database_bytes:,} bytes, every page checked")
    print(f"  contents  {shown.files:,} files, {shown.file_bytes:,} bytes, every hash checked")


class Bar:
    """Progress for people: nothing unless standard error is a terminal."""

    def __init__(self, *, is_hidden: bool) -> None:
        self._is_hidden = is_hidden or not sys.stderr.isatty()
        self._step = ""
        self._bar: tqdm[NoReturn] | None = None

    def progress(self, step: str, done: int, total: int) -> None:
        """Go on; a new step has a bar of its own."""
        if self._is_hidden:
            return
        if self._bar is None or step != self._step:
            self.close()
            self._step = step
            self._bar = tqdm(
                desc=step,
                total=total,
                unit="B",
                unit_scale=True,
                leave=False,
                file=sys.stderr,
            )
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
