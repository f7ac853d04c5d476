"""`partita account`: back up a whole account, make one from a backup, verify it, rotate keys.

`partita verify` reads everything of an account itself.
"""

import click

from partita.cli.kit.commands import (
    JSON,
    QUIET,
    Argument,
    Family,
    Given,
    OldArgument,
    OldOption,
    Verb,
    flag,
    load,
    option,
)
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import show
from partita.cli.kit.numbers import POSITIVE_COUNT

CONNECT = option(
    "--connect WHERE", "Folder of the data, as serve --path names it ($PARTITA_CONNECT)."
)
ACCOUNT = option("--account NAME", "The account; needed if there are several.")
BACKUP = Argument("BACKUP", "Folder that `partita account backup` made.")


def _run(given: Given, verb: str) -> int:
    facts = load(f"partita.cli.account.{verb}")(given)
    show(facts, is_json=given.json)
    return int(facts.exit_status)


def _copy(given: Given) -> int:
    hints = {
        "BlobStoreMissing": "Give --blob-store URL (file://, s3://, az:// or gs://), where the"
        " database keeps contents above 64 KiB."
    }
    with in_one_line(given, hints, lambda _error: None):
        try:
            copy_account = load("partita.cli.account.copying:copy_account")
        except ModuleNotFoundError as error:
            hint = 'Install what PostgreSQL stores need: pip install "./partita[scaleout]".'
            raise not_installed(error, hint) from error
        facts = copy_account(given)
    show(facts, is_json=given.json)
    return int(facts.exit_status)


def _rotate(given: Given) -> int:
    show(load("partita.cli.account.keys:rotate_key")(given), is_json=given.json)
    return 0


account = Family(
    "account",
    "Back up, restore, verify, copy and empty a whole account; rotate its keys.",
    Family(
        "keys",
        "The keys of an account.",
        Verb(
            "rotate",
            "Replace one of the two keys in a key file; the other one stays valid.",
            option("--account-key-file FILE", "File with the keys of the account.", required=True),
            option(
                "--key 1|2",
                "Which key, by its line in the file.",
                required=True,
                type=click.Choice(["1", "2"]),
            ),
            JSON,
            runs=_rotate,
            example="partita account keys rotate --account-key-file orders.key --key 2",
        ),
    ),
    Verb(
        "empty",
        "Remove all tables, queues, containers and service properties, for the next test.",
        Argument("ACCOUNT", "Name of the account."),
        option(
            "--connect WHERE",
            "Connection string of a running server, or the folder of the data ($PARTITA_CONNECT).",
        ),
        flag("--allow-empty", "In a folder, also another account than devstoreaccount1."),
        JSON,
        runs=lambda given: _run(given, "emptying:empty_account"),
        example="partita account empty devstoreaccount1 --connect UseDevelopmentStorage=true",
    ),
    Verb(
        "backup",
        "Back up a whole account, also while it is served.",
        CONNECT,
        OldArgument("connect", "`--connect FOLDER`"),
        option("--to DIR", "Folder of the backups; a full backup creates it.", required=True),
        flag("--incremental", "Only what is new since the newest backup there."),
        ACCOUNT,
        flag("--all", "All accounts, each in a folder of its name below DIR."),
        option(
            "--keep N",
            "Take the backup in a new folder below DIR; then remove all but the newest N.",
            type=POSITIVE_COUNT,
        ),
        flag("--compress", "Compress with zstd if zstandard is installed, else with gzip."),
        JSON,
        QUIET,
        runs=lambda given: _run(given, "backups:back_up_account"),
        example="partita account backup --connect ./partita-data --to /mnt/backups/monday",
    ),
    Verb(
        "restore",
        "Make an account from a backup; every byte is verified.",
        BACKUP,
        option("--to DATA", "Folder of the data, as serve --path names it."),
        option("--account NAME", "Another name for the account."),
        option("--up-to NUMBER", "Restore this backup of the chain instead of the newest."),
        option("--table NAME", "Restore only this table, into an account that is not served."),
        click.Option(["--as", "new_name"], metavar="NAME", help="Another name for the table."),
        OldOption("--check", "check", "`partita account verify BACKUP`", is_flag=True),
        JSON,
        QUIET,
        runs=lambda given: _run(given, "backups:restore_account"),
        example="partita account restore /mnt/backups/monday --to ./partita-data",
    ),
    Verb(
        "verify",
        "Check every byte of a backup and its increments; the status is 1 for damage.",
        BACKUP,
        JSON,
        QUIET,
        runs=lambda given: _run(given, "backups:verify_backup"),
        example="partita account verify /mnt/backups/monday",
    ),
    Verb(
        "copy",
        "Copy a whole account between a folder and PostgreSQL; continue a copy that was ended.",
        Argument("SOURCE", "Folder of the data, postgresql://USER@HOST/DATABASE, or local:FOLDER."),
        option("--to WHERE", "The same for the target.", required=True),
        ACCOUNT,
        option("--blob-store URL", "Objects of the database: file://, s3://, az:// or gs://."),
        option(
            "--durability full|fast",
            "fast: accept a database that can lose acknowledged writes (full).",
            type=click.Choice(["full", "fast"]),
            default="full",
        ),
        flag("--dry-run", "Print what would be copied."),
        flag("--abandon", "Remove what a copy that is not complete has left in the target."),
        JSON,
        QUIET,
        runs=_copy,
        example="partita account copy ./partita-data --to postgresql://partita@db1/partita",
    ),
)

verify = Verb(
    "verify",
    "Read everything of an account, also while it is served; the status is 1 for damage.",
    CONNECT,
    ACCOUNT,
    option("--rate MIB", "MiB to read per second at most (64)."),
    JSON,
    QUIET,
    runs=lambda given: _run(given, "verifying:verify_account_files"),
    example="partita verify --connect ./partita-data",
)
