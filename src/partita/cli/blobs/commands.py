"""`partita blobs`: its verbs and flags. A blob is written `blob:CONTAINER/NAME`."""

import click

from partita.cli.kit.commands import Argument, Family, flag, option
from partita.cli.kit.connected import companion_verbs

RETENTION_DAYS_MAX = 365
"""As in the service properties."""

_ON_OFF = click.Choice(["on", "off"])
_DAYS = click.IntRange(0, RETENTION_DAYS_MAX)
_verb = companion_verbs("blobs", "partita.cli.blobs.verbs")

blobs = Family(
    "blobs",
    "Blobs: list them, copy them from and to files.",
    _verb(
        "ls",
        "List the containers, or the blobs of one.",
        Argument("[CONTAINER/PREFIX]", "Container and prefix.", name="place", required=False),
        runs="list_blobs",
        example="photos/2024/",
    ),
    _verb(
        "cp",
        "Copy a file to a blob, or a blob to a file.",
        Argument("FROM", "A file, or blob:CONTAINER/NAME.", name="source"),
        Argument("TO", "A file, or blob:CONTAINER/NAME.", name="target"),
        runs="copy",
        example="report.pdf blob:reports/2024/report.pdf",
    ),
    _verb(
        "sync",
        "Copy the files of a folder, or the blobs below a prefix, that are new or differ.",
        Argument("FROM", "A folder, or blob:CONTAINER/PREFIX.", name="source"),
        Argument("TO", "A folder, or blob:CONTAINER/PREFIX.", name="target"),
        flag("--delete", "Delete what the source does not have."),
        flag("--dry-run", "Print what would be done; change nothing."),
        runs="sync",
        example="./site blob:web/site --delete",
    ),
    _verb(
        "keep",
        "Show or set what is kept of blobs and containers that are replaced or deleted.",
        option("--versions on|off", "Keep each version of a blob.", type=_ON_OFF),
        option(
            "--deleted-days N",
            "Keep deleted blobs so long, 1 to 365 days; 0: do not keep them.",
            type=_DAYS,
        ),
        option(
            "--deleted-containers-days N",
            "Keep deleted containers so long, 1 to 365 days; 0: do not keep them.",
            type=_DAYS,
        ),
        runs="keep",
        example="--versions on --deleted-days 7",
    ),
)
