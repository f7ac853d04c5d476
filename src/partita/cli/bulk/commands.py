"""The bulk verbs on tables: their flags, and how one of them runs.

Rule: no connection string is printed, nor a key or signature of one, except by `sas`.
"""

import asyncio
import sys

import click

from partita.cli.kit import numbers
from partita.cli.kit.commands import JSON, QUIET, Argument, Given, Verb, flag, load, option
from partita.cli.kit.connected import CONNECT
from partita.cli.kit.errors import in_one_line
from partita.cli.kit.facts import show

HINTS = {
    "InvalidResourceName": "A table name has 3 to 63 letters and digits and starts with a letter.",
    "TableNotFound": "Check the name: `partita query` without a table lists them.",
}
"""What to do about an error on the command line, where its own hint speaks of a program."""

TABLE = Argument("TABLE", "Name of the table.")
WHERE = option("--where FILTER", 'Only entities that this filter selects: "Age gt 40".')
SELECT = option("--select NAMES", "Only these properties, separated by commas.")
CONCURRENCY = option(
    "--concurrency N", "Requests at the same time.", type=numbers.POSITIVE_COUNT, default=8
)
MAX_RATE = option("--max-rate N", "At most N entities per second.", type=numbers.POSITIVE)
DRY_RUN = flag("--dry-run", "Check and count only; change nothing.")
RESTART = flag("--restart", "Begin again instead of continuing a run that was ended.")
YES = flag("--yes", "Do not ask.")
FORMAT = option(
    "--format NAME",
    "jsonl, csv, parquet or json.  [default: by the name of the file]",
    type=click.Choice(["jsonl", "csv", "parquet", "json"]),
)
ON_EXISTING = option(
    "--on-existing MODE",
    "What happens to an entity that exists: replace, merge, skip or fail.",
    type=click.Choice(["replace", "merge", "skip", "fail"]),
    default="replace",
)


def run(given: Given, function: str) -> int:
    """Run the function that is named as `module:name`; return the exit status."""
    with in_one_line(given, HINTS, lambda _error: None):
        try:
            facts = asyncio.run(load(f"partita.cli.bulk.{function}")(given))
        except KeyboardInterrupt:
            if hasattr(given, "restart"):
                print("Interrupted: the same command continues it.", file=sys.stderr)
            raise
    if facts is None:  # the verb has printed its result itself
        return 0
    show(facts, is_json=given.json)
    return int(facts.exit_status)


def _verb(name: str, text: str, *params: click.Parameter, runs: str, example: str) -> Verb:
    return Verb(
        name,
        text,
        *params,
        JSON,
        QUIET,
        runs=lambda given: run(given, runs),
        example=f"partita {name} {example}",
    )


import_ = _verb(
    "import",
    "Load files into a table: JSON lines, CSV, Parquet, or AzCopy's JSON.",
    TABLE,
    Argument("FILE...", "The files; - is standard input.", name="files", nargs=-1, required=True),
    CONNECT,
    FORMAT,
    ON_EXISTING,
    option(
        "--types NAME=TYPE",
        "Types of columns: String, Int32, Int64, Double, Boolean, DateTime, Guid or Binary; "
        "separated by commas, may be repeated.",
        multiple=True,
    ),
    option(
        "--rename COLUMN=NAME",
        "The property that a column becomes; may be repeated.",
        multiple=True,
    ),
    flag("--infer", "Guess the types that are not given from all rows, and show them first."),
    option("--partition-key COLUMN", "Column of the partition key.", default="PartitionKey"),
    option("--row-key COLUMN", "Column of the row key.", default="RowKey"),
    option("--rejects FILE", "Where bad rows go.  [default: FILE.rejects.jsonl]"),
    CONCURRENCY,
    MAX_RATE,
    DRY_RUN,
    RESTART,
    YES,
    runs="writing:import_files",
    example="Customers customers.csv --infer --partition-key country --row-key id",
)

export = _verb(
    "export",
    "Write the entities of a table to a file: JSON lines, CSV or Parquet.",
    TABLE,
    option("--to FILE", "The file; - is standard output.", required=True),
    CONNECT,
    FORMAT,
    WHERE,
    SELECT,
    option("--columns NAMES", "Columns of a CSV or Parquet file, in this order."),
    flag("--spreadsheet-safe", "Put a quote before cells that a spreadsheet would run."),
    flag("--replace", "Replace the file if it exists."),
    option(
        "--concurrency N",
        "Ranges of keys that are read at the same time; 1 keeps the order of keys.",
        type=numbers.POSITIVE_COUNT,
        default=4,
    ),
    DRY_RUN,
    RESTART,
    runs="reading:export",
    example="Customers --to customers.jsonl.gz --where \"PartitionKey eq 'PT'\"",
)

copy = _verb(
    "copy",
    "Copy tables from one account to another; --verify compares them afterwards.",
    Argument("[TABLE]...", "The tables.", name="names", nargs=-1),
    option("--from WHERE", "The source, as --connect of other verbs.", required=True),
    option("--to WHERE", "The target; a folder is created.", required=True),
    click.Option(
        ["pattern", "--tables"], metavar="PATTERN", help="All tables that match, such as 'log*'."
    ),
    option("--to-table NAME", "Another name in the target; for one table only."),
    WHERE,
    ON_EXISTING,
    flag(
        "--with-settings",
        "Copy the access policies of the tables and the properties of the service, too.",
    ),
    flag("--verify", "Compare source and target afterwards, entity by entity."),
    flag("--verify-only", "Compare only; copy nothing."),
    option(
        "--progress-file FILE",
        "Where the progress is kept.  [default: TABLE.copy.partita-progress here]",
    ),
    CONCURRENCY,
    MAX_RATE,
    DRY_RUN,
    RESTART,
    runs="writing:copy",
    example="Customers --from 'DefaultEndpointsProtocol=https;...' --to partita:./data --verify",
)

query = _verb(
    "query",
    "Print the entities that a filter selects, or how they would be read.",
    Argument("[TABLE]", "Name of the table; without it the tables are listed.", required=False),
    CONNECT,
    WHERE,
    SELECT,
    option("--top N", "At most N entities; 0 for all.", type=numbers.COUNT, default=100),
    option(
        "--format NAME",
        "table, jsonl or csv.  [default: table on a terminal, else jsonl]",
        type=click.Choice(["table", "jsonl", "csv"]),
    ),
    flag("--explain", "Print the plan, and what would make it cheaper; read nothing."),
    runs="reading:query",
    example="Customers --where \"PartitionKey eq 'PT' and Age gt 40\" --select Name,Age",
)

count = _verb(
    "count",
    "Count the entities of a table, or those that a filter selects.",
    TABLE,
    CONNECT,
    WHERE,
    option(
        "--concurrency N",
        "Ranges of keys that are read at the same time.",
        type=numbers.POSITIVE_COUNT,
        default=4,
    ),
    runs="reading:count",
    example='Customers --where "Age gt 40"',
)

delete_where = _verb(
    "delete-where",
    "Delete the entities that a filter selects, after it was shown how many.",
    TABLE,
    Argument("[FILTER]", "The filter.", name="where", required=False),
    CONNECT,
    flag("--all", "Allow a filter that reads the whole table, or none."),
    flag("--force", "Delete entities that were changed after they were read, too."),
    CONCURRENCY,
    MAX_RATE,
    DRY_RUN,
    YES,
    runs="writing:delete_where",
    example="Sessions \"PartitionKey eq 'web' and Expires lt datetime'2026-01-01T00:00:00Z'\"",
)

sas = _verb(
    "sas",
    "Make a shared access signature, and say what it permits.",
    Argument("[TABLE]", "The table; without it the signature is for the account.", required=False),
    CONNECT,
    option("--queue NAME", "For this queue instead of a table."),
    option("--container NAME", "For this blob container instead of a table."),
    option("--permissions LETTERS", "Such as r, raud, rwdl.", default="r"),
    option(
        "--expires WHEN", "After a time (90m, 12h, 7d) or at 2026-12-31T00:00:00Z.", default="1h"
    ),
    option("--starts WHEN", "At this time.  [default: five minutes ago]"),
    option("--from-partition KEY", "First partition key."),
    option("--from-row KEY", "First row key in the first partition."),
    option("--to-partition KEY", "Last partition key."),
    option("--to-row KEY", "Last row key in the last partition."),
    option("--ip RANGE", "Only from this address or range: 10.0.0.1-10.0.0.9."),
    flag("--https-only", "Only over https."),
    option("--policy NAME", "Take permissions and times from this stored access policy."),
    option("--services LETTERS", "Of an account signature: t, q and b.", default="t"),
    option("--resource-types LETTERS", "Of an account signature: s, c and o.", default="co"),
    flag("--connection-string", "Print a connection string instead of a URL."),
    runs="signing:sas",
    example="Customers --permissions r --from-partition PT --to-partition PT --expires 7d",
)
