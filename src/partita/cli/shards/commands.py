"""`partita shards`: look at shard maps, change mappings, move rows, upgrade and repair shards.

Each verb returns facts, which are printed as tables or, with --json, as one line. Progress is
drawn on standard error, and only for people. SQLAlchemy is imported when a verb runs: the command
line itself does not need it. Rule: no URL is printed as it was given.
"""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from partita.cli.kit import numbers
from partita.cli.shards.facts import Facts, exit_status
from partita.cli.shards.secrets import CATALOG_VARIABLE, clear
from partita.cli.shards.text import as_text
from partita.errors import ConfigurationError, PartitaError, UnavailableError

if TYPE_CHECKING:
    from partita.shards.maps.manager import ShardMapManager

Verb = Callable[["ShardMapManager", argparse.Namespace], Facts]

HINTS = {
    "CatalogNotFound": "Make one with `partita shards init URL`.",
    "MappingNotFound": "`partita shards mappings` lists what is mapped.",
    "MoveNotFound": "`partita shards jobs` lists the moves that are not finished.",
    "MoveSwitched": "Finish it with `partita shards resume`; move the range back if you want to.",
    "MoveInterrupted": "The job is paused: `partita shards resume` goes on, `cancel` undoes it.",
    "MoveFenceFailed": "The job is paused, and the source is open: `partita shards resume`.",
    "MoveTableBusy": "End the transaction, or: `partita shards resume --terminate-blockers`.",
    "MoveOutrun": "Try `partita shards resume` when there are fewer writers.",
    "SchemaNotVersioned": "Give --alembic FOLDER.",
    "ShardMapExists": "`partita shards maps` lists those that there are; choose another name.",
    "ShardMapNotFound": "`partita shards maps` lists those that there are.",
    "DatabaseNotEmpty": "Add --adopt for a database with rows in it, or give an empty one.",
    "ShardHasMappings": "Give --moving-to SHARD, or move or delete its mappings first.",
    "ShardMapHasShards": "Remove its shards first: `partita shards remove-shard SHARD`.",
    "MappingOnline": "Take it offline first: `partita shards offline KEY`.",
    "MappingInUse": "The mapping is offline. The same command waits again; without --no-terminate "
    "it ends them.",
    "MappingLocked": "Give --token TOKEN of its owner, or wait: a move is at work on it, perhaps "
    "(`partita shards jobs`).",
    "MappingNotLocked": "Leave out --token, or give the one that `partita shards lookup` shows.",
    "RevisionNewer": "Name this revision or a newer one: an upgrade does not go back.",
    "LocalCatalogDiffers": "Look with `partita shards recover`, then choose a side with --keep.",
}
"""What to do about an error here, where its own hint speaks of a program."""

# The command line


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verbs of `partita shards` to the command line."""
    shards = verbs.add_parser("shards", help="shard maps over SQL databases", allow_abbrev=False)
    actions = _Actions(shards.add_subparsers(required=True, metavar="VERB"))
    _add_catalog_verbs(actions)
    _add_mapping_verbs(actions)
    _add_move_verbs(actions)
    _add_fleet_verbs(actions)


class _Actions:
    """Adds verbs with the flags that they share."""

    def __init__(self, actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        self._actions = actions

    def add(self, action: str, text: str, example: str, *shared: str) -> argparse.ArgumentParser:
        """Add a verb; `shared` names flags of _SHARED, besides those that all verbs have."""
        added = self._actions.add_parser(
            action,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example: partita shards {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(verb="shards", action=action)
        for flag in ("--catalog", "--credentials", *shared, "--json", "--quiet"):
            added.add_argument(flag, **_SHARED[flag])
        return added


_SHARED: dict[str, dict[str, Any]] = {
    "--catalog": {"metavar": "URL", "help": "database of the catalog ($PARTITA_CATALOG)"},
    "--credentials": {
        "metavar": "MODULE:NAME",
        "help": "function that returns a URL with user and password for a location",
    },
    "--map": {"metavar": "NAME", "help": "the shard map; may be left out if there is one"},
    "--metadata": {
        "metavar": "MODULE:NAME",
        "help": "the application's MetaData, looked for in this folder too",
    },
    "--alembic": {"metavar": "FOLDER", "help": "folder with Alembic's env.py, or its ini file"},
    "--token": {"metavar": "TOKEN", "help": "the token that the mapping is locked with"},
    "--dry-run": {"action": "store_true", "help": "say what would be done and change nothing"},
    "--json": {"action": "store_true", "help": "print the facts as one JSON line"},
    "--quiet": {"action": "store_true", "help": "draw no progress"},
}


def _add_catalog_verbs(actions: _Actions) -> None:
    initializing = actions.add(
        "init", "make a catalog; one that is there is kept", "init sqlite:///catalog.db"
    )
    initializing.add_argument(
        "url", nargs="?", metavar="CATALOG", help="its database ($PARTITA_CATALOG)"
    )
    creating = actions.add(
        "create-map",
        "make a shard map",
        "create-map tenants --key-type int --metadata app:Base --sharded blog=tenant_id",
        "--metadata",
    )
    creating.add_argument("name", metavar="NAME", help="its name")
    creating.add_argument(
        "--key-type",
        required=True,
        metavar="TYPE",
        help="int, str, bytes, uuid, date, datetime, timedelta, decimal, or several with commas",
    )
    creating.add_argument(
        "--kind", choices=("range", "list", "hash"), default="range", help="(range)"
    )
    creating.add_argument("--buckets", type=int, metavar="N", help="of a hash map (1024)")
    _add_tables(creating)
    deleting = actions.add("delete-map", "delete a map without shards", "delete-map tenants")
    deleting.add_argument("name", metavar="NAME", help="its name")
    describing = actions.add(
        "set-schema",
        "store which tables of a map are sharded, by which column",
        "set-schema --metadata app:Base --sharded blog=tenant_id --reference region",
        "--map",
        "--metadata",
    )
    _add_tables(describing)
    describing.add_argument("--none", action="store_true", help="store that none is")
    actions.add("maps", "list the shard maps", "maps --catalog sqlite:///catalog.db")
    actions.add("shards", "list the shards of one map or of all", "shards --map tenants", "--map")
    adding = actions.add(
        "add-shard",
        "register an empty database, deploy the schema, verify it, then map keys to it",
        "add-shard postgresql+psycopg://host/two --range 100:200 --alembic migrations",
        "--map",
        "--metadata",
        "--alembic",
        "--dry-run",
    )
    adding.add_argument("url", metavar="URL", help="the database")
    adding.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="LOW:HIGH",
        help="keys that it gets, may be repeated; nothing is no bound",
    )
    adding.add_argument(
        "--key", action="append", default=[], metavar="KEY", help="of a list map, may be repeated"
    )
    adding.add_argument(
        "--adopt", action="store_true", help="take a database with tables and rows as it is"
    )
    removing = actions.add(
        "remove-shard",
        "take a shard out of its map; the database itself stays",
        "remove-shard two --moving-to one",
        "--map",
        "--dry-run",
    )
    removing.add_argument("shard", metavar="SHARD", help="URL, id or database")
    removing.add_argument(
        "--moving-to", metavar="SHARD", help="the shard that its mappings and rows are moved to"
    )
    marking = actions.add(
        "mark-shard",
        "say whether a shard gets more mappings; those that it has go on",
        "mark-shard two offline",
        "--map",
    )
    marking.add_argument("shard", metavar="SHARD", help="URL, id or database")
    marking.add_argument("status", choices=("online", "offline"), help="online: it does")
    actions.add(
        "upgrade-catalogs",
        "bring the global catalog and those of the shards to this version of Partita",
        "upgrade-catalogs",
    )


def _add_tables(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--sharded",
        action="append",
        default=[],
        metavar="TABLE=COLUMN",
        help="a sharded table and its sharding column, may be repeated",
    )
    verb.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="TABLE",
        help="a table that is the same on every shard, may be repeated",
    )


def _add_mapping_verbs(actions: _Actions) -> None:
    listing = actions.add(
        "mappings", "list which keys are where", "mappings --range 0:100", "--map"
    )
    listing.add_argument("--shard", metavar="SHARD", help="only those of this shard")
    listing.add_argument("--range", metavar="LOW:HIGH", help="only those that hold keys of this")
    looking = actions.add("lookup", "say which shard holds a key", "lookup 42", "--map")
    looking.add_argument("key", metavar="KEY", help="the sharding key")
    splitting = actions.add(
        "split",
        "cut a mapping in two on its shard; no row moves",
        "split --at 40",
        "--map",
        "--token",
        "--dry-run",
    )
    splitting.add_argument("--at", required=True, metavar="KEY", help="first key of the upper half")
    merging = actions.add(
        "merge",
        "join two mappings of one shard; no row moves",
        "merge --at 40",
        "--map",
        "--token",
        "--dry-run",
    )
    merging.add_argument(
        "--at", required=True, metavar="KEY", help="where one ends and the other begins"
    )
    closing = actions.add(
        "offline",
        "refuse new transactions of the mapping that holds a key, end the open ones",
        "offline 42",
        "--map",
        "--token",
    )
    closing.add_argument("key", metavar="KEY", help="a key of the mapping")
    _add_grace(closing)
    closing.add_argument(
        "--no-terminate", action="store_true", help="leave transactions that outlive it alone"
    )
    opening = actions.add(
        "online",
        "admit transactions of the mapping that holds a key",
        "online 42",
        "--map",
        "--token",
    )
    opening.add_argument("key", metavar="KEY", help="a key of the mapping")
    _add_ownership_verbs(actions)
    _add_lock_verbs(actions)


def _add_ownership_verbs(actions: _Actions) -> None:
    creating = actions.add(
        "create-mapping",
        "give keys that are not mapped to a shard; no row moves",
        "create-mapping 200:300 --shard two",
        "--map",
        "--dry-run",
    )
    creating.add_argument(
        "keys", nargs="+", metavar="RANGE|KEY", help="ranges, or keys of a list map; all or none"
    )
    creating.add_argument("--shard", required=True, metavar="SHARD", help="URL, id or database")
    creating.add_argument("--offline", action="store_true", help="admit no transactions yet")
    deleting = actions.add(
        "delete-mapping",
        "delete the offline mapping that holds a key; its rows stay where they are",
        "delete-mapping 42",
        "--map",
        "--token",
        "--dry-run",
    )
    deleting.add_argument("key", metavar="KEY", help="a key of the mapping")
    assigning = actions.add(
        "assign",
        "give the offline mapping that holds a key to another shard; no row moves",
        "assign 42 --to two",
        "--map",
        "--token",
    )
    assigning.add_argument("key", metavar="KEY", help="a key of the mapping")
    assigning.add_argument("--to", required=True, metavar="SHARD", help="URL, id or database")


def _add_lock_verbs(actions: _Actions) -> None:
    locking = actions.add(
        "lock",
        "lock the mapping that holds a key against changes by others; readers and writers go on",
        "lock 42 --token nightly",
        "--map",
    )
    locking.add_argument("key", metavar="KEY", help="a key of the mapping")
    locking.add_argument("--token", metavar="TOKEN", help="to lock it with (a new one)")
    unlocking = actions.add(
        "unlock",
        "release the mappings that a token locked, or one mapping by force",
        "unlock --token nightly",
        "--map",
        "--token",
    )
    unlocking.add_argument("key", nargs="?", metavar="KEY", help="a key of the mapping")
    unlocking.add_argument(
        "--force", action="store_true", help="release the mapping of KEY, whichever token locked it"
    )


def _add_move_verbs(actions: _Actions) -> None:
    moving = actions.add(
        "move",
        "carry mappings and their rows to another shard while readers and writers go on",
        "move 40:100 --to two",
        "--map",
        "--dry-run",
    )
    moving.add_argument(
        "keys", metavar="RANGE|KEY", help="mappings of this range, or the one that holds the key"
    )
    moving.add_argument("--to", required=True, metavar="SHARD", help="URL, id or database")
    moving.add_argument(
        "--rate", type=numbers.positive, metavar="ROWS", help="at most so many rows a second"
    )
    _add_grace(moving)
    _add_terminate_blockers(moving)
    jobs = actions.add("jobs", "list moves and other work that is not finished", "jobs")
    jobs.add_argument("--all", action="store_true", help="those that ended too")
    resuming = actions.add("resume", "go on with the moves that were stopped", "resume")
    _add_terminate_blockers(resuming)
    cancelling = actions.add("cancel", "take a move back that has not switched yet", "cancel JOB")
    cancelling.add_argument("job", metavar="JOB", help="its id, as `jobs` lists it")


def _add_fleet_verbs(actions: _Actions) -> None:
    upgrading = actions.add(
        "upgrade",
        "bring every shard to a revision; the status is 1 if one is not there",
        "upgrade --alembic migrations --canary one --parallel 4",
        "--metadata",
        "--alembic",
        "--dry-run",
    )
    upgrading.add_argument(
        "revision", nargs="?", default="head", metavar="REVISION", help="of Alembic (head)"
    )
    upgrading.add_argument(
        "--canary",
        action="append",
        default=[],
        metavar="SHARD",
        help="goes first, and nobody follows if it fails; may be repeated",
    )
    upgrading.add_argument(
        "--stop-after",
        type=numbers.count,
        default=1,
        metavar="N",
        help="begin no further shard after so many failures; 0: never stop (1)",
    )
    upgrading.add_argument(
        "--parallel",
        type=numbers.positive_count,
        default=1,
        metavar="N",
        help="shards at a time (1)",
    )
    upgrading.add_argument(
        "--sql-folder", metavar="DIR", help="run nothing: write the SQL there, a file a shard"
    )
    schema = ("--map", "--metadata", "--alembic")
    actions.add(
        "status",
        "say how each shard is; the status is 1 if one is not well",
        "status --alembic migrations",
        *schema,
    )
    actions.add(
        "drift",
        "name what differs from the schema; the status is 1 if anything does",
        "drift --metadata app.models:Base.metadata",
        *schema,
    )
    asking = actions.add(
        "fan-out",
        "run one SELECT on all shards",
        'fan-out "select count(*) from blog"',
        "--map",
    )
    asking.add_argument("sql", metavar="SQL", help="a SELECT, run on each shard by itself")
    asking.add_argument(
        "--shard", action="append", default=[], metavar="SHARD", help="only this, may be repeated"
    )
    asking.add_argument(
        "--limit",
        type=numbers.positive_count,
        default=1000,
        metavar="N",
        help="rows at most (1000)",
    )
    asking.add_argument(
        "--timeout",
        type=numbers.positive,
        default=30.0,
        metavar="SECONDS",
        help="for all of it (30)",
    )
    asking.add_argument(
        "--partial", action="store_true", help="show what came, though a shard failed"
    )
    recovering = actions.add(
        "recover",
        "end unfinished changes, compare the global catalog with those of the shards",
        "recover one --keep global",
        "--map",
        "--dry-run",
    )
    recovering.add_argument("shard", nargs="?", metavar="SHARD", help="only this one (all)")
    recovering.add_argument(
        "--keep", choices=("global", "local"), help="make both say what this side says"
    )
    recovering.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="RANGE|KEY",
        help="about these keys, may be repeated",
    )
    attaching = actions.add(
        "attach",
        "register a database that has a local catalog, where it is now",
        "attach postgresql+psycopg://standby/two",
        "--map",
    )
    attaching.add_argument("url", metavar="URL", help="the database")
    detaching = actions.add(
        "detach",
        "take a shard that is lost, and its mappings, out of the global catalog",
        "detach two",
        "--map",
    )
    detaching.add_argument("shard", metavar="SHARD", help="URL, id or database")
    rebuilding = actions.add(
        "rebuild-catalog",
        "write the global catalog's mappings anew from what shards say they own",
        "rebuild-catalog sqlite:///one.db sqlite:///two.db",
    )
    rebuilding.add_argument("urls", nargs="+", metavar="URL", help="a database of the shards")


def _add_grace(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--grace",
        type=numbers.seconds,
        default=2.0,
        metavar="SECONDS",
        help="how long open transactions may take to end (2)",
    )


def _add_terminate_blockers(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--terminate-blockers",
        action="store_true",
        help="end sessions whose open transaction keeps the move waiting longer than the grace",
    )


# Running a verb


def run(given: Mapping[str, object]) -> int:
    """Run one of the verbs and return the exit status: 1 for what somebody must look at."""
    asked = argparse.Namespace(**given)
    with _in_one_line(asked):
        facts = _facts(asked)
    # Columns of a fan-out may hold anything: what JSON has not is written as text.
    print(msgspec.json.encode(facts, enc_hook=str).decode() if asked.json else as_text(facts))
    return exit_status(facts)


def _facts(asked: argparse.Namespace) -> Facts:
    try:
        from partita.cli.shards import changes, fleet, mappings, moves  # noqa: PLC0415
        from partita.cli.shards.opening import open_catalog  # noqa: PLC0415
    except ModuleNotFoundError as error:
        hint = 'Install what shards need: pip install "partita[shards]".'
        raise _not_installed(error, hint) from error
    if asked.action == "init":
        return mappings.initialize(asked)
    verbs: dict[str, Verb] = {
        "create-map": mappings.create_map,
        "maps": mappings.list_maps,
        "shards": mappings.list_shards,
        "add-shard": mappings.add_shard,
        "mappings": mappings.list_mappings,
        "lookup": mappings.look_up,
        "split": mappings.split,
        "merge": mappings.merge,
        "offline": mappings.set_offline,
        "online": mappings.set_online,
        "delete-map": changes.delete_map,
        "set-schema": changes.set_schema,
        "remove-shard": changes.remove_shard,
        "mark-shard": changes.mark_shard,
        "upgrade-catalogs": changes.upgrade_catalogs,
        "create-mapping": changes.create_mapping,
        "delete-mapping": changes.delete_mapping,
        "assign": changes.assign,
        "lock": changes.lock,
        "unlock": changes.unlock,
        "attach": changes.attach,
        "detach": changes.detach,
        "rebuild-catalog": changes.rebuild_catalog,
        "move": moves.move,
        "jobs": moves.list_jobs,
        "resume": moves.resume,
        "cancel": moves.cancel,
        "upgrade": fleet.upgrade,
        "status": fleet.status,
        "drift": fleet.drift,
        "fan-out": fleet.fan_out,
        "recover": fleet.recover,
    }
    with open_catalog(asked) as manager:
        return verbs[asked.action](manager, asked)


# Errors, in one line and without secrets


@contextlib.contextmanager
def _in_one_line(asked: argparse.Namespace) -> Iterator[None]:
    """Turn what SQLAlchemy and drivers raise into errors of Partita; keep passwords out of all."""
    try:
        yield
    except PartitaError as error:
        error.hint = HINTS.get(error.code, error.hint)
        clear(error, _given_urls(asked))
        raise
    except Exception as error:
        translated = _translated(error)
        if translated is None:
            raise
        raise clear(translated, _given_urls(asked)) from error


def _first(group: ExceptionGroup[Exception]) -> PartitaError:
    """Return the first error of a group, with how many more there are."""
    first = group.exceptions[0]
    more = len(group.exceptions) - 1
    facts = getattr(first, "facts", {})
    said = getattr(getattr(first, "cause", None), "orig", None)
    told = getattr(first, "message", _first_line(first))
    return UnavailableError(
        getattr(first, "code", "ShardFailed"),
        told if said is None else f"The shard failed: {_first_line(said)}",
        facts=facts,
        hint=f"{more} more shards failed; --partial shows what came." if more else "",
    )


def _translated(error: Exception) -> PartitaError | None:
    if isinstance(error, ExceptionGroup):
        return _first(error)
    if isinstance(error, ModuleNotFoundError):
        hint = "Install the driver of the database, or name another in the URL."
        return _not_installed(error, hint)
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
            f"A database refused or failed: {_first_line(error.orig or error)}",
            hint="See whether it runs, and whether the URL and the credentials are right.",
        )
    if isinstance(error, SQLAlchemyError):
        return UnavailableError(
            "DatabaseFailed", f"SQLAlchemy failed: {_first_line(error)}", hint="See its message."
        )
    return None


def _not_installed(error: ModuleNotFoundError, hint: str) -> ConfigurationError:
    return ConfigurationError(
        "NotInstalled", f"The package {error.name} is not installed.", hint=hint
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _given_urls(asked: argparse.Namespace) -> list[str]:
    texts: list[object] = [os.environ.get(CATALOG_VARIABLE)]
    for value in vars(asked).values():
        texts += value if isinstance(value, list) else [value]
    return [text for text in texts if isinstance(text, str) and "://" in text]
