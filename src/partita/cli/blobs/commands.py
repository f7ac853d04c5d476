"""`partita blobs`: its verbs and flags. A blob is written `blob:CONTAINER/NAME`."""

from partita.cli.kit.commands import Argument, Family, flag
from partita.cli.kit.connected import companion_verbs

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
)
