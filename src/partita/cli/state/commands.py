"""`partita state`: its verbs and flags.

`inspect`, `verify` and `export` change nothing; `backup` opens the state as a program does;
`restore` writes one.
"""

import click

from partita.cli.kit.commands import (
    JSON,
    QUIET,
    Argument,
    Family,
    OldArgument,
    Verb,
    flag,
    lazily,
    option,
)

TARGET = (
    option("--connect WHERE", "Folder of the state ($PARTITA_CONNECT)."),
    OldArgument("connect", "`--connect FOLDER`"),
)


def _verb(name: str, text: str, *params: click.Parameter, example: str) -> Verb:
    return Verb(
        name,
        text,
        *params,
        JSON,
        QUIET,
        runs=lazily("partita.cli.state.verbs:run"),
        example=f"partita state {name} {example}",
    )


state = Family(
    "state",
    "The folder of a reliable state.",
    _verb("inspect", "Print what a state holds.", *TARGET, example="--connect ./state"),
    _verb(
        "verify",
        "Check every byte of a state; the status is 1 for damage.",
        *TARGET,
        example="--connect ./state --json",
    ),
    _verb(
        "backup",
        "Back up a state that is not open.",
        *TARGET,
        option("--to DIR", "Folder of the backups.", required=True),
        flag("--incremental", "Only what is new since the newest backup there."),
        example="--connect ./state --to /mnt/backups/orders --incremental",
    ),
    _verb(
        "restore",
        "Make a state from a folder of backups.",
        Argument("BACKUPS", "Folder of the backups."),
        option("--to PATH|URL", "Folder of the state, or nats://host:4222.", required=True),
        option("--partition NAME", "Name of the new partition, on NATS."),
        flag("--force", "Replace the existing state, even if it is newer."),
        option("--up-to SEQUENCE", "Stop at this record instead of the newest."),
        example="/mnt/backups/orders --to ./state",
    ),
    _verb(
        "export",
        "Write the rows as lines of JSON.",
        *TARGET,
        option("--collection NAME", "Only this collection; may be repeated.", multiple=True),
        option("--out FILE", "Where to write.  [default: standard output]"),
        example="--connect ./state --collection users --out users.jsonl",
    ),
)
