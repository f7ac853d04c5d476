"""`partita state`: its verbs and flags.

`inspect`, `verify`, `export` and `status` change nothing; `backup` opens the state as a program
does; `restore` writes one; `promote` and `step-down` move the primary of a partition on NATS.
"""

import click

from partita.cli.kit import numbers
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


NATS = (
    Argument("[URL]", "nats://host:4222, as --connect.", required=False),
    option("--connect URL", "nats://host:4222 ($PARTITA_CONNECT)."),
)
PARTITION = option("--partition NAME", "The partition.", required=True)


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
    "A reliable state: its folder, or its partition on NATS.",
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
    Verb(
        "status",
        "Print primary, replicas, log, checkpoint and backup of partitions on NATS; the status is"
        " 1 if a partition has no primary.",
        *NATS,
        option("--partition NAME", "Only this partition.  [default: all]"),
        option(
            "--watch SECONDS",
            "Print again after each pause, until Ctrl-C.",
            type=numbers.POSITIVE,
        ),
        JSON,
        runs=lazily("partita.cli.state.primaries:status"),
        example="partita state status nats://127.0.0.1:4222 --partition orders",
    ),
    Verb(
        "promote",
        "Make another replica of a partition on NATS the primary.",
        *NATS,
        PARTITION,
        option("--replica ID", "Its id or address, as `status` prints them.", required=True),
        JSON,
        runs=lazily("partita.cli.state.primaries:promote"),
        example="partita state promote nats://127.0.0.1:4222 --partition orders"
        " --replica app2:8000",
    ),
    Verb(
        "step-down",
        "Let the primary of a partition on NATS hand over to any other replica.",
        *NATS,
        PARTITION,
        JSON,
        runs=lazily("partita.cli.state.primaries:step_down"),
        example="partita state step-down nats://127.0.0.1:4222 --partition orders",
    ),
)
