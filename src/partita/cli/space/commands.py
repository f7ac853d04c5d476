"""`partita tables list|size`: what accounts have and how much it takes; `partita compact`."""

from partita.cli.kit.commands import JSON, QUIET, Argument, Family, Given, Verb, flag, load, option
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import show

PLACE = (
    option("--path DIR", "Folder of the data, as serve --path names it (./partita-data)."),
    option("--store URL", "postgresql://USER@HOST/DATABASE instead of a folder."),
    option("--account NAME", "Only this account."),
    flag("--exact", "Count everything: takes as long as reading it."),
    JSON,
    QUIET,
)


def _run(given: Given, verb: str) -> int:
    with in_one_line(given, {}, lambda _error: None):
        try:
            facts = load(f"partita.cli.space.verbs:{verb}")(given)
        except ModuleNotFoundError as error:
            hint = 'Install what PostgreSQL stores need: pip install "./partita[scaleout]".'
            raise not_installed(error, hint) from error
    show(facts, is_json=given.json)
    return int(facts.exit_status)


tables = Family(
    "tables",
    "The tables of accounts, and the space that they take.",
    Verb(
        "list",
        "List the tables with their entities, also while they are served.",
        *PLACE,
        runs=lambda given: _run(given, "list_tables"),
        example="partita tables list --path ./partita-data",
    ),
    Verb(
        "size",
        "Show the sizes of tables, queues and containers, and of the files.",
        *PLACE,
        runs=lambda given: _run(given, "show_sizes"),
        example="partita tables size --path ./partita-data --exact",
    ),
)

compact = Verb(
    "compact",
    "Write the database of accounts again without free space; no server may run.",
    Argument("FOLDER", "Folder of the data, as serve --path names it."),
    option("--account NAME", "Only this account."),
    JSON,
    QUIET,
    runs=lambda given: _run(given, "compact_accounts"),
    example="partita compact ./partita-data",
)
