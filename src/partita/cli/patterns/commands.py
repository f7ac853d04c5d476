"""`partita patterns`: its verbs and flags, and how one of them runs.

The modules of the application are named on the command line and imported; a verb works with what
they declare. The official SDK is imported when a verb runs. Rule: no connection string is printed,
nor a key of one.
"""

import traceback
from pathlib import Path

import click

import partita
from partita.cli.kit import numbers
from partita.cli.kit.commands import JSON, QUIET, Argument, Family, Given, Verb, flag, load, option
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import show
from partita.errors import ConfigurationError, PartitaError

HINTS = {
    "IndexNotReadable": "Make it with `partita patterns create`; `rebuild` adds older entities.",
    "KeyringMissing": "Give --keyring MODULE:NAME.",
    "EntryUnknown": "Name all modules; `partita patterns forget` removes undeclared names.",
    "QueueNotFound": "Run `partita patterns worker`, which makes its queues.",
    "TableNotFound": "Make the tables with `partita patterns create`.",
    "UnknownType": "Name the module of that type, too.",
    "TransactionUnknown": "Name the module of that transaction, too.",
}
"""What to do about an error on the command line, where its own hint speaks of a program."""
HINTS_OF = {"adopt": {"TableNotFound": "Check the name: `partita query` lists the tables."}}
"""The same for one verb: `adopt` reads tables that another program made."""


# Running a verb


def run(given: Given, verb: str) -> int:
    """Run the function that `verb` names as `module:name`; return the exit status."""
    with in_one_line(given, HINTS | HINTS_OF.get(given.verb, {}), _translated):
        try:
            facts = load("partita.cli.patterns.opening:run")(given, verb)
        except ModuleNotFoundError as error:
            hint = 'Install what patterns need: pip install "./partita[patterns]".'
            raise not_installed(error, hint) from error
    show(facts, is_json=given.json)
    is_stopped = given.verb == "worker" and not given.once
    return 0 if is_stopped else int(facts.exit_status)


def _translated(error: Exception) -> PartitaError | None:
    """Return what a function of the application raised; None if Partita raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    if Path(place.filename).is_relative_to(Path(partita.__file__).parent):
        return None
    message = " ".join(str(error).split())
    return ConfigurationError(
        "FunctionFailed",
        f"{type(error).__name__}{f': {message}' if message else ''}, in line {place.lineno} of "
        f"{Path(place.filename).name}.",
        hint="Correct the function; the work that called it still waits.",
    )


# Arguments and flags that verbs share

MODULES = Argument(
    "MODULE...",
    "Modules of the application with its classes.",
    name="modules",
    nargs=-1,
    required=True,
)
TARGETS = Argument(
    "MODULE[:CLASS]...",
    "A type, or all types of a module.",
    name="targets",
    nargs=-1,
    required=True,
)
INDEX = Argument("MODULE:INDEX", "Variable or name of the index.", name="index")
CONNECT = option(
    "--connect WHERE", "Folder, partita:FOLDER or a connection string ($PARTITA_CONNECT)."
)
SHARED = (
    CONNECT,
    option("--keyring MODULE:NAME", "A Keyring, or a function that returns one."),
    option(
        "--queue NAME",
        "Queue of the outbox; may be repeated.  [default: partita-outbox]",
        multiple=True,
    ),
    option(
        "--poison-queue NAME", "Queue for work that failed too often.  [default: partita-poison]"
    ),
    JSON,
    QUIET,
)


def _seconds(name: str, default: float, text: str) -> click.Option:
    return option(f"{name} SECONDS", text, type=numbers.SECONDS, default=default)


def _verb(name: str, text: str, *params: click.Parameter, runs: str, example: str) -> Verb:
    return Verb(
        name,
        text,
        *params,
        runs=lambda given: run(given, runs),
        example=f"partita patterns {name} {example}".rstrip(),
    )


# The verbs

_DEFINITIONS = (
    _verb(
        "check",
        "Plan the declared access patterns and lint the keys; the status is 1 for a refused scan.",
        MODULES,
        option("--lock FILE", "Compare with how entities were stored; a missing file is written."),
        flag("--update", "Write the lock file anew."),
        flag("--strict", "Exit with status 1 for lints, too."),
        JSON,
        runs="definitions:check",
        example="app.models --lock partita.lock",
    ),
    _verb(
        "explain",
        "Print how a query would be read and what would help; the status is 1 if it is refused.",
        Argument("MODULE:CLASS", "The entity class.", name="target"),
        Argument("[CONDITION]", "Fields compared with literals.", required=False),
        option("--given FIELD=VALUE", "A field of the keys; may be repeated.", multiple=True),
        option("--via INDEX", "Read by this index: its variable or its name."),
        flag("--allow-scan", "Allow a scan, as .allow_scan() does."),
        JSON,
        runs="definitions:explain",
        example="app.models:Employee 'age > 40' --given dept=Sales",
    ),
)

_DESIGN = (
    _verb(
        "design",
        "Compute load, size and cost of types from their accesses, and propose keys; the status "
        "is 1 above a target of the service.",
        TARGETS,
        option("--loads FILE", "Entities, writes and rates of each type, in TOML.", required=True),
        option("--prices FILE", "Prices with their date, in TOML.  [default: example prices]"),
        option("--html FILE", "Write a page with plots."),
        JSON,
        runs="definitions:design",
        example="app.models:Employee --loads loads.toml --html design.html",
    ),
)

_TABLES = (
    _verb(
        "adopt",
        "Print entity classes for a table of another program; the status is 1 if a row does not "
        "fit.",
        Argument("TABLE", "The table.", name="table"),
        option(
            "--rows N",
            "Rows to read at most.  [default: 10000]",
            type=numbers.POSITIVE_COUNT,
            default=10_000,
        ),
        CONNECT,
        JSON,
        QUIET,
        runs="verbs:adopt",
        example="staff --connect WHERE > staff.py",
    ),
    _verb(
        "create",
        "Create the tables that are missing.",
        MODULES,
        *SHARED,
        runs="verbs:create",
        example="app.models --connect WHERE",
    ),
    _verb(
        "rebuild",
        "Add every stored entity to an index, then make it readable; run it again to resume.",
        INDEX,
        *SHARED,
        runs="verbs:rebuild",
        example="app.models:by_email",
    ),
    _verb(
        "disable",
        "Stop an index and remove its rows.",
        INDEX,
        *SHARED,
        runs="verbs:disable",
        example="app.models:by_email",
    ),
    _verb(
        "verify",
        "Compare indexes and derived fields with their entities; the status is 1 if they differ.",
        TARGETS,
        flag("--repair", "Repair the differences."),
        *SHARED,
        runs="verbs:verify",
        example="app.models:Employee --repair",
    ),
    _verb(
        "rotate",
        "Wrap the content keys of encrypted entities with the keyring's current key.",
        Argument(
            "MODULE[:CLASS]...",
            "A type, a series of tables by period, or all of a module.",
            name="targets",
            nargs=-1,
            required=True,
        ),
        *SHARED,
        runs="verbs:rotate",
        example="app.models:Employee --keyring app.keys:keyring",
    ),
    _verb(
        "collect-blobs",
        "Remove blobs of large values that no entity names.",
        MODULES,
        option(
            "--container NAME",
            "Only this container; may be repeated.  [default: those of the types]",
            multiple=True,
        ),
        option(
            "--grace SECONDS",
            "Keep blobs that are younger.  [default: 3600]",
            type=numbers.POSITIVE,
        ),
        *SHARED,
        runs="verbs:collect_blobs",
        example="app.models",
    ),
)

_OUTBOX = (
    _verb(
        "drain",
        "Do all waiting work, then exit.",
        MODULES,
        *SHARED,
        runs="verbs:drain",
        example="app.models",
    ),
    _verb(
        "sweep",
        "Do outbox entries whose hints were lost; reads whole tables.",
        MODULES,
        _seconds("--age", 60.0, "Only entries that are older."),
        *SHARED,
        runs="verbs:sweep",
        example="app.models",
    ),
    _verb(
        "forget",
        "Remove names that are no longer declared from waiting entries.",
        MODULES,
        option(
            "--name KIND:NAME",
            "A name as `status` prints it; may be repeated.",
            multiple=True,
            required=True,
        ),
        *SHARED,
        runs="verbs:forget",
        example="app.models --name view:Order@totals",
    ),
    _verb(
        "status",
        "Print the state of indexes, outbox and queues; the status is 1 if one is not healthy.",
        MODULES,
        _seconds("--late", 300.0, "How long an entry may wait."),
        flag("--quick", "Do not look for entries, which reads whole tables."),
        *SHARED,
        runs="verbs:status",
        example="app.models",
    ),
    _verb(
        "poison",
        "Print work that failed too often; the status is 1 if there is any.",
        flag("--retry", "Put it back on the queues."),
        *SHARED,
        runs="verbs:poison",
        example="",
    ),
    _verb(
        "worker",
        "Keep indexes, views and copies up to date, and run transactions, until a signal comes.",
        MODULES,
        option(
            "--tasks N", "Number of messages at a time.", type=numbers.POSITIVE_COUNT, default=4
        ),
        option(
            "--visibility SECONDS",
            "How long a message is claimed; renewed while it is worked on.  [default: 30]",
            type=numbers.POSITIVE,
        ),
        option(
            "--deliveries N",
            "Attempts before a message goes to the poison queue.  [default: 5]",
            type=numbers.POSITIVE_COUNT,
        ),
        option(
            "--poll SECONDS",
            "Pause between polls of empty queues.",
            type=numbers.POSITIVE,
            default=1.0,
        ),
        _seconds(
            "--sweep-every", 300.0, "Pause between sweeps, which read whole tables; 0: never."
        ),
        _seconds("--sweep-age", 60.0, "A sweep leaves younger entries to the queue."),
        _seconds(
            "--report-every", 10.0, "Pause between lines about rate, backlog and age; 0: never."
        ),
        option(
            "--health-port N",
            "Port for /healthz, /readyz and /metrics; 0 picks a free one.  [default: none]",
            type=click.IntRange(0, 65535),
        ),
        option("--health-host H", "Address of the health port.", default="127.0.0.1"),
        option(
            "--health-token-file FILE",
            "Token that /metrics needs if other machines can reach the health port.",
        ),
        flag("--once", "Do all waiting work, then exit."),
        click.Option(
            ["create", "--no-create"],
            flag_value=False,
            default=True,
            help="Create no tables: the credential may not.",
        ),
        *SHARED,
        runs="worker:run_worker",
        example="app.models --connect UseDevelopmentStorage=true",
    ),
)

patterns = Family(
    "patterns",
    "Typed entities, their indexes and workers.",
    *_DEFINITIONS,
    *_DESIGN,
    *_TABLES,
    *_OUTBOX,
)
