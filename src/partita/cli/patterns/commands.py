"""`partita patterns`: work for the outbox, look after indexes, check definitions, explain queries.

The modules of the application are named on the command line and imported; what they declare is
what there is. Each verb returns facts, which are printed as text or, with --json, as one line.
Progress is drawn on standard error, and only for people. The official SDK is imported when a verb
runs. Rule: no connection string is printed, nor a key of one.
"""

import argparse
import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import partita
from partita.cli.kit import numbers
from partita.cli.patterns.secrets import CONNECT_VARIABLE, clear
from partita.clock import SystemClock
from partita.errors import ConfigurationError, PartitaError

if TYPE_CHECKING:
    from partita.cli.patterns.facts import Facts, Started

HINTS = {
    "IndexNotReadable": "`partita patterns create` makes it; `rebuild` brings older entities in.",
    "KeyringMissing": "Give --keyring MODULE:NAME.",
    "EntryUnknown": "Name all modules; `partita patterns forget` drops what is declared no more.",
    "QueueNotFound": "`partita patterns worker` makes its queues.",
    "TableNotFound": "`partita patterns create` makes the tables.",
    "UnknownType": "Name the module of that type, too.",
    "TransactionUnknown": "Name the module of that transaction, too.",
}
"""What to do about an error here, where its own hint speaks of a program."""


# The command line


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verbs of `partita patterns` to the command line."""
    patterns = verbs.add_parser(
        "patterns", help="typed entities, their indexes and workers", allow_abbrev=False
    )
    actions = _Actions(patterns.add_subparsers(required=True, metavar="VERB"))
    _add_definition_verbs(actions)
    _add_table_verbs(actions)
    _add_outbox_verbs(actions)
    _add_worker(actions)


class _Actions:
    """Adds verbs with the flags that they share."""

    def __init__(self, actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        self._actions = actions

    def add(self, action: str, text: str, example: str) -> argparse.ArgumentParser:
        """Add a verb that connects to nothing."""
        added = self._actions.add_parser(
            action,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example: partita patterns {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(verb="patterns", action=action)
        added.add_argument("--json", action="store_true", help="print the facts as one JSON line")
        return added

    def connecting(self, action: str, text: str, example: str) -> argparse.ArgumentParser:
        """Add a verb that works on stored entities."""
        added = self.add(action, text, example)
        for flag, options in _CONNECTING.items():
            added.add_argument(flag, **options)
        return added


_CONNECTING: dict[str, dict[str, Any]] = {
    "--connect": {
        "metavar": "WHERE",
        "help": f"partita:FOLDER or a connection string (${CONNECT_VARIABLE})",
    },
    "--keyring": {"metavar": "MODULE:NAME", "help": "a Keyring, or a function that returns one"},
    "--queue": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "queue of the outbox, may be repeated (partita-outbox)",
    },
    "--poison-queue": {"metavar": "NAME", "help": "where failing work goes (partita-poison)"},
    "--quiet": {"action": "store_true", "help": "draw no progress"},
}


def _add_modules(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "modules", nargs="+", metavar="MODULE", help="of the application, with its entity classes"
    )


def _add_targets(
    verb: argparse.ArgumentParser, text: str = "a type, or all types of a module"
) -> None:
    verb.add_argument("targets", nargs="+", metavar="MODULE[:CLASS]", help=text)


def _add_definition_verbs(actions: _Actions) -> None:
    checking = actions.add(
        "check",
        "plan the declared access patterns, lint the keys; the status is 1 for a refused scan",
        "check app.models --lock partita.lock",
    )
    _add_modules(checking)
    checking.add_argument(
        "--lock", metavar="FILE", help="compare with how entities were stored; written if missing"
    )
    checking.add_argument("--update", action="store_true", help="write the lock anew")
    checking.add_argument("--strict", action="store_true", help="status 1 for lints, too")
    explaining = actions.add(
        "explain",
        "say how a query would be read, and what would help; the status is 1 if it is refused",
        "explain app.models:Employee 'age > 40' --given dept=Sales",
    )
    explaining.add_argument("target", metavar="MODULE:CLASS", help="the entity class")
    explaining.add_argument(
        "condition", nargs="?", metavar="CONDITION", help="fields compared with literals"
    )
    explaining.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the keys, may be repeated",
    )
    explaining.add_argument("--via", metavar="INDEX", help="its variable or its name")
    explaining.add_argument("--allow-scan", action="store_true", help="as .allow_scan() does")


def _add_table_verbs(actions: _Actions) -> None:
    _add_modules(
        actions.connecting(
            "create", "create what is missing of the tables", "create app.models --connect WHERE"
        )
    )
    for action, text in (
        ("rebuild", "bring every stored entity into an index, then let it be read; it resumes"),
        ("disable", "stop an index and remove its rows"),
    ):
        added = actions.connecting(action, text, f"{action} app.models:by_email")
        added.add_argument("index", metavar="MODULE:INDEX", help="its variable or its name")
    verifying = actions.connecting(
        "verify",
        "compare indexes and derived fields with their entities; the status is 1 if they differ",
        "verify app.models:Employee --repair",
    )
    _add_targets(verifying)
    verifying.add_argument("--repair", action="store_true", help="put right what is wrong")
    rotating = actions.connecting(
        "rotate",
        "wrap the content keys of encrypted entities with the keyring's current key",
        "rotate app.models:Employee --keyring app.keys:keyring",
    )
    _add_targets(rotating, "a type, a series of tables by period, or all of a module")
    collecting = actions.connecting(
        "collect-blobs",
        "remove blobs of large values that no entity names",
        "collect-blobs app.models",
    )
    _add_modules(collecting)
    collecting.add_argument(
        "--container",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one, may be repeated (those of the types)",
    )
    collecting.add_argument(
        "--grace",
        type=numbers.positive,
        metavar="SECONDS",
        help="leave blobs alone that are younger (3600)",
    )


def _add_outbox_verbs(actions: _Actions) -> None:
    _add_modules(
        actions.connecting("drain", "do everything that waits, then end", "drain app.models")
    )
    sweeping = actions.connecting(
        "sweep",
        "do outbox entries whose hints were lost; it reads whole tables",
        "sweep app.models",
    )
    _add_modules(sweeping)
    sweeping.add_argument(
        "--age", type=numbers.seconds, default=60.0, metavar="SECONDS", help="only older ones (60)"
    )
    forgetting = actions.connecting(
        "forget",
        "take what is declared no more out of waiting entries; what the modules know stays",
        "forget app.models --name view:Order@totals",
    )
    _add_modules(forgetting)
    forgetting.add_argument(
        "--name",
        action="append",
        required=True,
        metavar="KIND:NAME",
        help="as `status` tells it, may be repeated",
    )
    telling = actions.connecting(
        "status",
        "say how far indexes, outbox and queues are; the status is 1 if one is not well",
        "status app.models",
    )
    _add_modules(telling)
    telling.add_argument(
        "--late",
        type=numbers.seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long an entry may wait (300)",
    )
    telling.add_argument(
        "--quick", action="store_true", help="do not look for entries: that reads whole tables"
    )
    poisoned = actions.connecting(
        "poison", "show work that failed too often; the status is 1 if there is any", "poison"
    )
    poisoned.add_argument("--retry", action="store_true", help="put it back on the queues")


def _add_worker(actions: _Actions) -> None:
    working = actions.connecting(
        "worker",
        "keep indexes, views and copies up to date, and run transactions, until a signal comes",
        "worker app.models --connect UseDevelopmentStorage=true",
    )
    _add_modules(working)
    working.add_argument(
        "--tasks",
        type=numbers.positive_count,
        default=4,
        metavar="N",
        help="messages at a time (4)",
    )
    working.add_argument(
        "--visibility",
        type=numbers.positive,
        metavar="SECONDS",
        help="a message is claimed for so long, and again while it is worked on (30)",
    )
    working.add_argument(
        "--deliveries",
        type=numbers.positive_count,
        metavar="N",
        help="tries of a message before it is put aside (5)",
    )
    working.add_argument(
        "--poll",
        type=numbers.positive,
        default=1.0,
        metavar="SECONDS",
        help="between looks at empty queues (1)",
    )
    working.add_argument(
        "--sweep-every",
        type=numbers.seconds,
        default=300.0,
        metavar="SECONDS",
        help="between sweeps, which read whole tables; 0: never (300)",
    )
    working.add_argument(
        "--sweep-age",
        type=numbers.seconds,
        default=60.0,
        metavar="SECONDS",
        help="a sweep leaves younger entries to the queue (60)",
    )
    working.add_argument("--once", action="store_true", help="do what waits, then end")
    working.add_argument(
        "--no-create",
        dest="create",
        action="store_false",
        help="make no tables: who connects may not",
    )


# Running a verb


def run(given: Mapping[str, object]) -> int:
    """Run one of the verbs and return the exit status: 1 for what somebody must look at."""
    asked = argparse.Namespace(**given)
    with _in_one_line(asked):
        facts = _facts(asked)
    from partita.cli.patterns.facts import exit_status  # noqa: PLC0415 - see the module

    _print(facts, as_json=asked.json)
    is_stopped = asked.action == "worker" and not asked.once
    return 0 if is_stopped else exit_status(facts)


def _print(facts: "Facts | Started", *, as_json: bool) -> None:
    from partita.cli.patterns.text import as_text  # noqa: PLC0415

    # Whoever started a worker waits for its first line.
    print(msgspec.json.encode(facts).decode() if as_json else as_text(facts), flush=True)


def _facts(asked: argparse.Namespace) -> "Facts":
    try:
        from partita.cli.patterns import definitions  # noqa: PLC0415

        if asked.action == "check":
            return definitions.check(asked)
        if asked.action == "explain":
            return definitions.explain(asked)
        import azure.data.tables  # noqa: F401, PLC0415 - an extra; say so if it is not there
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "NotInstalled",
            f"The package {error.name} is not installed.",
            hint='Install what patterns need: pip install "partita[patterns]".',
        ) from error
    return asyncio.run(_connected(asked))


async def _connected(asked: argparse.Namespace) -> "Facts":
    from partita.cli.patterns import verbs as patterns_verbs  # noqa: PLC0415
    from partita.cli.patterns.application import Application, load  # noqa: PLC0415
    from partita.cli.patterns.opening import opened  # noqa: PLC0415
    from partita.cli.patterns.worker import run_worker  # noqa: PLC0415

    verbs: dict[str, Callable[..., Any]] = {
        "create": patterns_verbs.create,
        "rebuild": patterns_verbs.rebuild,
        "disable": patterns_verbs.disable,
        "verify": patterns_verbs.verify,
        "rotate": patterns_verbs.rotate,
        "collect-blobs": patterns_verbs.collect_blobs,
        "drain": patterns_verbs.drain,
        "sweep": patterns_verbs.sweep,
        "forget": patterns_verbs.forget,
        "status": patterns_verbs.status,
        "poison": patterns_verbs.poison,
    }
    named = _named(asked)
    application = load(named) if named else Application({}, {})
    async with opened(asked, application) as session:
        if asked.action == "worker":

            def announce(started: "Started") -> None:
                _print(started, as_json=asked.json)

            worked: Facts = await run_worker(session, asked, SystemClock(), announce)
            return worked
        found: Facts = await verbs[asked.action](session, asked)
        return found


def _named(asked: argparse.Namespace) -> list[str]:
    index = getattr(asked, "index", None)
    named: list[str] = getattr(asked, "modules", None) or getattr(asked, "targets", None) or []
    return [*named, *([index] if index else [])]


# Errors, in one line and without secrets


@contextlib.contextmanager
def _in_one_line(asked: argparse.Namespace) -> Iterator[None]:
    """Say what to do in the words of the command line; keep keys out of what is said."""
    try:
        yield
    except PartitaError as error:
        error.hint = HINTS.get(error.code, error.hint)
        clear(error, _given_texts(asked))
        raise
    except Exception as error:
        translated = _of_function(error)
        if translated is None:
            raise
        raise clear(translated, _given_texts(asked)) from error


def _of_function(error: Exception) -> PartitaError | None:
    """Return what a function of the application raised; None if it was raised by ours."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    if Path(place.filename).is_relative_to(Path(partita.__file__).parent):
        return None
    told = " ".join(str(error).split())
    return ConfigurationError(
        "FunctionFailed",
        f"{type(error).__name__}{f': {told}' if told else ''}, in line {place.lineno} of "
        f"{Path(place.filename).name}.",
        hint="Correct the function; what it was called for is still waiting.",
    )


def _given_texts(asked: argparse.Namespace) -> list[str]:
    texts: list[object] = [os.environ.get(CONNECT_VARIABLE)]
    for value in vars(asked).values():
        texts += value if isinstance(value, list) else [value]
    return [text for text in texts if isinstance(text, str)]
