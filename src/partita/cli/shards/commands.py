"""`partita shards`: its verbs and flags, and how one of them runs.

SQLAlchemy is imported when a verb runs. Rule: no URL is printed as it was given.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click

from partita.cli.kit import numbers
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
from partita.cli.kit.text import first_line
from partita.errors import ConfigurationError, PartitaError, UnavailableError

_logger = logging.getLogger("partita.shards")
HINTS = {
    "CatalogNotFound": "Make one with `partita shards init --connect URL`.",
    "MappingNotFound": "`partita shards mappings` lists what is mapped.",
    "MoveNotFound": "`partita shards jobs` lists the moves that are not finished.",
    "MoveSwitched": "Finish it with `partita shards resume`, then move the range back.",
    "MoveInterrupted": "The job is paused: `partita shards resume` continues it, `cancel` undoes "
    "it.",
    "MoveFenceFailed": "The job is paused, and the source is open: `partita shards resume`.",
    "MoveTableBusy": "End the transaction, or: `partita shards resume --terminate-blockers`.",
    "MoveOutrun": "Try `partita shards resume` when there are fewer writers.",
    "SchemaNotVersioned": "Give --alembic FOLDER.",
    "ShardMapExists": "Choose another name; `partita shards maps` lists the existing maps.",
    "ShardMapNotFound": "`partita shards maps` lists the existing maps.",
    "DatabaseNotEmpty": "Add --adopt for a database with rows in it, or give an empty one.",
    "ShardHasMappings": "Give --moving-to SHARD, or move or delete its mappings first.",
    "ShardMapHasShards": "Remove its shards first: `partita shards remove-shard SHARD`.",
    "MappingOnline": "Take it offline first: `partita shards offline KEY`.",
    "MappingInUse": "The mapping is offline. Run the command again to wait longer, or without "
    "--no-terminate to end the transactions.",
    "MappingLocked": "Give --token TOKEN of its owner, or wait: a move may hold it "
    "(`partita shards jobs`).",
    "MappingNotLocked": "Leave out --token, or give the one that `partita shards lookup` shows.",
    "TransactionPooler": "Give --credentials MODULE:NAME of a function that returns the URL of the "
    "server itself, or use a pooler in session mode.",
    "RevisionNewer": "Name this revision or a newer one: an upgrade does not go back.",
    "LocalCatalogDiffers": "Compare with `partita shards recover`, then choose a side with --keep.",
}
"""What to do about an error on the command line, where its own hint speaks of a program."""


# Running a verb


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log errors only: a program that reads JSON takes other output for a failure."""
    level = _logger.level
    _logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _logger.setLevel(level)


def run(given: Given, verb: str) -> int:
    """Run the function that `verb` names as `module:name`; return the exit status."""
    with in_one_line(given, HINTS, _translated):
        try:
            from partita.cli.shards import opening  # noqa: PLC0415 - SQLAlchemy is an extra

            function = load(f"partita.cli.shards.{verb}")
        except ModuleNotFoundError as error:
            hint = 'Install what shards need: pip install "./partita[shards]".'
            raise not_installed(error, hint) from error
        with _without_warnings() if given.json else nullcontext():
            facts, names = opening.run(function, given)
    show(facts, is_json=given.json, lines=names.shorten(facts.lines()))
    return facts.exit_status


def _translated(error: Exception) -> PartitaError | None:
    if isinstance(error, ExceptionGroup):
        return _first(error)
    if isinstance(error, ModuleNotFoundError):
        hint = "Install the driver of the database, or name another in the URL."
        return not_installed(error, hint)
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError  # noqa: PLC0415

    if isinstance(error, ArgumentError):
        return ConfigurationError(
            "InvalidLocation",
            "The URL of a database cannot be read, or its dialect is not known.",
            hint="Write dialect+driver://host:port/database, or sqlite:///file.db.",
        )
    if isinstance(error, DBAPIError):
        return UnavailableError(
            "DatabaseFailed",
            f"A database refused or failed: {first_line(error.orig or error)}",
            hint="Check that it runs, and check the URL and the credentials.",
        )
    if isinstance(error, SQLAlchemyError):
        return UnavailableError("DatabaseFailed", f"SQLAlchemy failed: {first_line(error)}")
    return None


def _first(group: ExceptionGroup[Exception]) -> PartitaError:
    """Return the first error of a group, with the number of the others."""
    first = group.exceptions[0]
    more = len(group.exceptions) - 1
    cause = getattr(getattr(first, "cause", None), "orig", None)
    message = getattr(first, "message", first_line(first))
    return UnavailableError(
        getattr(first, "code", "ShardFailed"),
        message if cause is None else f"The shard failed: {first_line(cause)}",
        facts=getattr(first, "facts", {}),
        hint=f"{more} more shards failed; --partial shows the rows of the others." if more else "",
    )


# Flags that verbs share

MAP = option("--map NAME", "The shard map; needed if there are several.")
METADATA = option(
    "--metadata MODULE:NAME",
    "The application's MetaData or declarative base, also looked for in this folder.",
)
ALEMBIC = option("--alembic FOLDER", "Folder with env.py of Alembic, or its ini file.")
TOKEN = option("--token TOKEN", "The token that the mapping is locked with.")
DRY_RUN = flag("--dry-run", "Print what would be done and change nothing.")
GRACE = option(
    "--grace SECONDS",
    "How long open transactions may take to end.",
    type=numbers.SECONDS,
    default=2.0,
)
TERMINATE_BLOCKERS = flag(
    "--terminate-blockers",
    "End sessions whose open transaction delays the move for longer than the grace.",
)
TABLES = (
    option(
        "--sharded TABLE=COLUMN",
        "A sharded table and its sharding column; may be repeated.",
        multiple=True,
    ),
    option(
        "--reference TABLE",
        "A table that is the same on every shard; may be repeated.",
        multiple=True,
    ),
)
KEY = Argument("KEY", "A key of the mapping.")
SHARD = Argument("SHARD", "Short name, location or id of the shard.")
SHARED = (
    option("--connect WHERE", "URL of the catalog's database ($PARTITA_CONNECT)."),
    OldOption("--catalog", "connect", "`--connect URL`"),
    option(
        "--credentials MODULE:NAME",
        "Function that returns a URL with user and password for a location.",
    ),
    JSON,
    QUIET,
)


def _verb(name: str, text: str, *params: click.Parameter, runs: str, example: str) -> Verb:
    return Verb(
        name,
        text,
        *params,
        *SHARED,
        runs=lambda given: run(given, runs),
        example=f"partita shards {example}",
    )


# The verbs

_CATALOG = (
    _verb(
        "init",
        "Make a catalog; an existing one is kept.",
        OldArgument("connect", "`--connect URL`"),
        runs="opening:initialize",
        example="init --connect sqlite:///catalog.db",
    ),
    _verb(
        "create-map",
        "Make a shard map.",
        Argument("NAME", "Its name."),
        option(
            "--key-type TYPE",
            "int, str, bytes, uuid, date, datetime, timedelta, decimal, or several with commas.",
            required=True,
        ),
        option(
            "--kind",
            "How keys are mapped.",
            type=click.Choice(("range", "list", "hash")),
            default="range",
        ),
        option("--buckets N", "Buckets of a hash map.  [default: 1024]", type=int),
        *TABLES,
        METADATA,
        runs="mappings:create_map",
        example="create-map tenants --key-type int --metadata app:Base --sharded blog=tenant_id",
    ),
    _verb(
        "delete-map",
        "Delete a map that has no shards.",
        Argument("NAME", "Its name."),
        runs="changes:delete_map",
        example="delete-map tenants",
    ),
    _verb(
        "set-schema",
        "Store which tables of a map are sharded, and by which column.",
        *TABLES,
        flag("--none", "Store that no table is sharded."),
        MAP,
        METADATA,
        runs="changes:set_schema",
        example="set-schema --metadata app:Base --sharded blog=tenant_id --reference region",
    ),
    _verb(
        "maps",
        "List the shard maps.",
        runs="mappings:list_maps",
        example="maps --connect sqlite:///catalog.db",
    ),
    _verb(
        "list",
        "List the shards of one map or of all.",
        MAP,
        runs="mappings:list_shards",
        example="list --map tenants",
    ),
    _verb(
        "add-shard",
        "Register an empty database, deploy the schema, verify it, then map keys to it.",
        Argument("URL", "The database."),
        option(
            "--range LOW:HIGH",
            "Keys that the shard gets, may be repeated; leave out a bound that is not needed.",
            multiple=True,
        ),
        option("--key KEY", "A key of a list map; may be repeated.", multiple=True),
        flag("--adopt", "Take a database that has tables and rows as it is."),
        MAP,
        METADATA,
        ALEMBIC,
        DRY_RUN,
        runs="mappings:add_shard",
        example="add-shard postgresql+psycopg://host/two --range 100:200 --alembic migrations",
    ),
    _verb(
        "remove-shard",
        "Remove a shard from its map; the database itself stays.",
        SHARD,
        option("--moving-to SHARD", "Move its mappings and their rows to this shard first."),
        MAP,
        DRY_RUN,
        runs="changes:remove_shard",
        example="remove-shard two --moving-to one",
    ),
    _verb(
        "mark-shard",
        "Set whether a shard may get more mappings; those that it has stay in use.",
        SHARD,
        Argument(
            "online|offline",
            "Online: it may.",
            name="status",
            type=click.Choice(("online", "offline")),
        ),
        MAP,
        runs="changes:mark_shard",
        example="mark-shard two offline",
    ),
    _verb(
        "create-database",
        "Create an empty database for a shard; nothing is registered.",
        Argument("URL", "The URL of the database."),
        runs="changes:create_database",
        example="create-database sqlite:///three.db",
    ),
    _verb(
        "drop-database",
        "Drop a database that is not a shard, with everything in it.",
        Argument("URL", "The URL of the database."),
        runs="changes:drop_database",
        example="drop-database sqlite:///three.db",
    ),
    _verb(
        "upgrade-catalogs",
        "Upgrade the global catalog and those of the shards to this version of Partita.",
        runs="changes:upgrade_catalogs",
        example="upgrade-catalogs",
    ),
)

_MAPPINGS = (
    _verb(
        "mappings",
        "List which keys are on which shard.",
        option("--shard SHARD", "Only mappings of this shard."),
        option("--range LOW:HIGH", "Only mappings that hold keys of this range."),
        MAP,
        runs="mappings:list_mappings",
        example="mappings --range 0:100",
    ),
    _verb(
        "lookup",
        "Print which shard holds a key.",
        Argument("KEY", "The sharding key."),
        MAP,
        runs="mappings:look_up",
        example="lookup 42",
    ),
    _verb(
        "split",
        "Split a mapping in two on its shard; no row moves.",
        option("--at KEY", "First key of the upper half.", required=True),
        MAP,
        TOKEN,
        DRY_RUN,
        runs="mappings:split",
        example="split --at 40",
    ),
    _verb(
        "merge",
        "Merge two mappings of one shard; no row moves.",
        option("--at KEY", "Where one ends and the other begins.", required=True),
        MAP,
        TOKEN,
        DRY_RUN,
        runs="mappings:merge",
        example="merge --at 40",
    ),
    _verb(
        "offline",
        "Refuse new transactions of the mapping that holds a key, and end the open ones.",
        KEY,
        GRACE,
        flag("--no-terminate", "Do not end transactions that take longer than the grace."),
        MAP,
        TOKEN,
        runs="mappings:set_offline",
        example="offline 42",
    ),
    _verb(
        "online",
        "Admit transactions of the mapping that holds a key.",
        KEY,
        MAP,
        TOKEN,
        runs="mappings:set_online",
        example="online 42",
    ),
    _verb(
        "create-mapping",
        "Map keys that are not mapped to a shard; no row moves.",
        Argument(
            "RANGE|KEY...",
            "Ranges, or keys of a list map; all or none.",
            name="keys",
            nargs=-1,
            required=True,
        ),
        option("--shard SHARD", "The shard that gets the keys.", required=True),
        flag("--offline", "Admit no transactions yet."),
        MAP,
        DRY_RUN,
        runs="changes:create_mapping",
        example="create-mapping 200:300 --shard two",
    ),
    _verb(
        "delete-mapping",
        "Delete the offline mapping that holds a key; its rows stay where they are.",
        KEY,
        MAP,
        TOKEN,
        DRY_RUN,
        runs="changes:delete_mapping",
        example="delete-mapping 42",
    ),
    _verb(
        "assign",
        "Assign the offline mapping that holds a key to another shard; no row moves.",
        KEY,
        option("--to SHARD", "The shard that gets the mapping.", required=True),
        MAP,
        TOKEN,
        runs="changes:assign",
        example="assign 42 --to two",
    ),
    _verb(
        "lock",
        "Lock the mapping that holds a key against changes; readers and writers continue.",
        KEY,
        option("--token TOKEN", "The token to lock it with.  [default: a new one]"),
        MAP,
        runs="changes:lock",
        example="lock 42 --token nightly",
    ),
    _verb(
        "unlock",
        "Release the mappings that a token locked, or one mapping by force.",
        Argument("[KEY]", "A key of the mapping, with --force.", required=False),
        flag("--force", "Release the mapping of KEY, whichever token locked it."),
        MAP,
        TOKEN,
        runs="changes:unlock",
        example="unlock --token nightly",
    ),
)

_MOVES = (
    _verb(
        "move",
        "Move one key, or the mappings of a range, with their rows to another shard while readers "
        "and writers continue.",
        Argument(
            "KEY|RANGE",
            "A key, whose mapping is split as needed, or a range of whole mappings.",
            name="keys",
        ),
        option("--to SHARD", "The shard that gets the rows.", required=True),
        option("--rate ROWS", "Move at most this many per second.", type=numbers.POSITIVE),
        flag("--yes", "Do not ask before more than one key is moved."),
        GRACE,
        TERMINATE_BLOCKERS,
        MAP,
        DRY_RUN,
        runs="moves:move",
        example="move 42 --to two",
    ),
    _verb(
        "jobs",
        "List moves and other work that is not finished.",
        flag("--all", "List finished jobs too."),
        runs="moves:list_jobs",
        example="jobs",
    ),
    _verb(
        "resume",
        "Continue the moves that were stopped.",
        TERMINATE_BLOCKERS,
        runs="moves:resume",
        example="resume",
    ),
    _verb(
        "cancel",
        "Undo a move that has not switched yet.",
        Argument("JOB", "Its id, as `jobs` lists it."),
        runs="moves:cancel",
        example="cancel JOB",
    ),
)

_CANARY = option(
    "--canary SHARD",
    "Visit this one first, and stop if it fails; may be repeated.",
    multiple=True,
)
_STOP_AFTER = option(
    "--stop-after N",
    "Start no further shard after this many failures; 0 never stops.",
    type=numbers.COUNT,
    default=1,
)
_PARALLEL = option(
    "--parallel N", "Number of shards at a time.", type=numbers.POSITIVE_COUNT, default=1
)
_FLEET = (
    _verb(
        "upgrade",
        "Upgrade every shard to a revision; the status is 1 if one is not upgraded.",
        Argument("[REVISION]", "A revision of Alembic (head).", default="head"),
        _CANARY,
        _STOP_AFTER,
        _PARALLEL,
        option(
            "--sql-folder DIR", "Run nothing: write the SQL to this folder, one file per shard."
        ),
        METADATA,
        ALEMBIC,
        DRY_RUN,
        runs="fleet:upgrade",
        example="upgrade --alembic migrations --canary one --parallel 4",
    ),
    _verb(
        "downgrade",
        "Downgrade every shard to a revision; the status is 1 if one is not downgraded.",
        Argument("REVISION", "A revision of Alembic, or base."),
        _CANARY,
        _STOP_AFTER,
        ALEMBIC,
        runs="fleet:downgrade",
        example="downgrade one --alembic migrations",
    ),
    _verb(
        "execute",
        "Execute one statement on every shard; the status is 1 if a shard failed.",
        Argument("SQL", "DDL or maintenance, executed on each shard in its own transaction."),
        option("--name NAME", "Remember the shards that executed it, and continue by this name."),
        flag("--autocommit", "Begin no transaction, as VACUUM needs it."),
        _CANARY,
        _STOP_AFTER,
        _PARALLEL,
        runs="fleet:execute",
        example='execute "ANALYZE" --parallel 4',
    ),
    _verb(
        "status",
        "Print revision, drift and size of each shard; the status is 1 if one is not healthy.",
        MAP,
        METADATA,
        ALEMBIC,
        runs="fleet:status",
        example="status --alembic migrations",
    ),
    _verb(
        "drift",
        "List what differs from the schema; the status is 1 if anything does.",
        MAP,
        METADATA,
        ALEMBIC,
        runs="fleet:drift",
        example="drift --metadata app.models:Base.metadata",
    ),
    _verb(
        "fan-out",
        "Run one SELECT on all shards.",
        Argument("SQL", "A SELECT, run on each shard by itself."),
        option("--shard SHARD", "Only this one; may be repeated.", multiple=True),
        option(
            "--limit N", "Print at most this many rows.", type=numbers.POSITIVE_COUNT, default=1000
        ),
        option(
            "--timeout SECONDS",
            "Time limit for all shards together.",
            type=numbers.POSITIVE,
            default=30.0,
        ),
        flag("--partial", "Print the rows of the other shards if a shard fails."),
        MAP,
        runs="fleet:fan_out",
        example='fan-out "select count(*) from blog"',
    ),
    _verb(
        "recover",
        "Finish interrupted changes, and compare the global catalog with those of the shards.",
        Argument("[SHARD]", "Only this shard (all).", required=False),
        option(
            "--keep",
            "Write what this side says to the other.",
            type=click.Choice(("global", "local")),
        ),
        option("--only RANGE|KEY", "Only for these keys; may be repeated.", multiple=True),
        MAP,
        DRY_RUN,
        runs="recovery:recover",
        example="recover one --keep global",
    ),
    _verb(
        "attach",
        "Register a database that has a local catalog at its present location.",
        Argument("URL", "The database."),
        MAP,
        runs="recovery:attach",
        example="attach postgresql+psycopg://standby/two",
    ),
    _verb(
        "detach",
        "Remove a lost shard and its mappings from the global catalog.",
        SHARD,
        MAP,
        runs="recovery:detach",
        example="detach two",
    ),
    _verb(
        "rebuild-catalog",
        "Write the mappings of the global catalog anew from the catalogs of the shards.",
        Argument("URL...", "The database of each shard.", name="urls", nargs=-1, required=True),
        runs="recovery:rebuild_catalog",
        example="rebuild-catalog sqlite:///one.db sqlite:///two.db",
    ),
)

shards = Family(
    "shards",
    "Shard maps over SQL databases.",
    *_CATALOG,
    *_MAPPINGS,
    *_MOVES,
    *_FLEET,
    old={"shards": "list"},
)
