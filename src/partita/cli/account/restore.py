"""`partita restore`: make an account from a backup, or only check the backup.

Everything is verified before the account has its name; an account that exists is never touched.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.account.backup import Bar, add_verb, show
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.backup.restoring import check_backup, restore

if TYPE_CHECKING:
    import argparse


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `restore` to the command line."""
    restoring = add_verb(
        verbs,
        "restore",
        "make an account from a backup, every byte verified",
        "partita restore /mnt/backups/monday --to ./partita-data",
    )
    restoring.add_argument("path", metavar="BACKUP", help="folder that `partita backup` made")
    restoring.add_argument("--to", metavar="DATA", help="folder of the data, as serve --path")
    restoring.add_argument("--account", metavar="NAME", help="another name for the account")
    restoring.add_argument(
        "--check", action="store_true", help="verify only; the status is 1 for damage"
    )


def run(given: Mapping[str, object]) -> int:
    """Restore or check, and say what the backup holds."""
    backup, to = Path(str(given["path"])), given["to"]
    account = None if given["account"] is None else str(given["account"])
    if (to is None) != bool(given["check"]):
        raise ConfigurationError(
            "Configuration",
            "A restore needs the folder of the data, a check does not.",
            hint="Give either --to DATA or --check.",
        )
    with contextlib.closing(Bar(is_hidden=bool(given["json"] or given["quiet"]))) as bar:
        if to is None:
            manifest, path = check_backup(backup, progress=bar.progress), backup
        else:
            manifest, path = restore(
                backup,
                Path(str(to)),
                account=account,
                clock=SystemClock(),
                progress=bar.progress,
            )
    done = "Sound: the backup of" if to is None else "Restored"
    show(done, path, manifest, as_json=bool(given["json"]), account=account)
    return 0
