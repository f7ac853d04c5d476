"""The folders of accounts below the folder of the data."""

from pathlib import Path

from partita.errors import ConfigurationError
from partita.local_postgres import has_local_store
from partita.storage.database import DATABASE_FILE


def account_folders(path: Path, account: str | None = None) -> list[Path]:
    """Return the folders of all accounts, or of one; the given folder may be the only one."""
    if account is not None:
        return [path / account]
    if (path / DATABASE_FILE).exists():
        return [path]
    found = sorted(each.parent for each in path.glob(f"*/{DATABASE_FILE}"))
    if not found and has_local_store(path):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} holds the PostgreSQL database of serve --local, and no folder of"
            " an account.",
            hint="Give --store, or --connect, the URL that serve prints; or make a folder of the"
            f" account: stop serve, then run partita account copy local:{path} --to FOLDER.",
        )
    if not found:
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} holds no account.",
            hint="Give the folder that serve --path names.",
        )
    return found


def account_folder(path: Path, account: str | None) -> Path:
    """Return the folder of the account: the named one, the only one, or the given folder."""
    found = account_folders(path, account)
    if len(found) == 1:
        return found[0]
    names = ", ".join(folder.name for folder in found)
    raise ConfigurationError(
        "FolderUnusable",
        f"The folder {path} holds several accounts: {names}.",
        hint="Name one with --account.",
    )
