"""The command `partita`: reads the arguments, calls the verb, turns errors into one line.

The exit status is 0; 2 for what was refused at the start; 1 for a server that failed later and
for a state, an account or a backup that is damaged.
"""

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import partita
from partita.cli import config
from partita.errors import ConfigurationError, DamageError, PartitaError

INTERRUPTED = 130
"""The status that shells give a program that Ctrl-C ended."""


FAMILIES = {
    "backup": "back a whole account up, also while it is served",
    "restore": "make an account from a backup, every byte verified",
    "state": "the folder of a reliable state",
    "nats": "the NATS cluster under a state",
    "shards": "shard maps over SQL databases",
    "patterns": "typed entities, their indexes and workers",
}
"""Verbs that serve nothing, each in the module of its name; most have verbs of their own."""
_MODULES = {
    "backup": "account.backup",
    "restore": "account.restore",
    "state": "state.commands",
    "nats": "nats",
    "shards": "shards.commands",
    "patterns": "patterns.commands",
}
_ON_FILES = ("backup", "restore", "state", "patterns")
"""Verbs that may find damage in what was stored."""

_LOGIN = re.compile(
    r"(?<=://)[^\s@/]*(:[^\s@]*)?@|(?<=[?&])(password|passwd|pwd)=[^&\s]*"
    r"|(?i:(?<=AccountKey=)|(?<=SharedAccessSignature=)|(?<=\bsig=))(?!\.{3}[\s;'\"])[^\s;'\"]+"
)
"""Logins of a URL, keys of a connection string: whatever is said about a wrong command line, they
are not."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(
            "Configuration",
            message.capitalize().rstrip(".") + ".",
            hint="See `partita --help`; `partita VERB --help` lists the flags of a verb."
            if self.prog == "partita"
            else f"See `{self.prog} --help`.",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    verb = ""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        given = vars(parser(words[:1]).parse_args(words))
        verb = given.pop("verb")
        return _run(verb, given)
    except PartitaError as error:
        print("partita:", _told(error), file=sys.stderr)
        return 1 if verb in _ON_FILES and isinstance(error, DamageError) else 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is left of it must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(verb: str, given: dict[str, object]) -> int:
    if verb in FAMILIES:
        return int(_family(verb).run(given))
    as_json = bool(given.pop("json", False))
    settings = config.load(_flags(given), os.environ)
    if verb == "show":
        print(_show(settings, as_json=as_json))
        return 0
    from partita.cli.serve import serve  # noqa: PLC0415 - the other verbs need no server

    return serve(settings, as_json=as_json)


def _family(name: str) -> ModuleType:
    """Import the module of a verb family: `serve` need not wait for what it does not use."""
    return importlib.import_module(f"partita.cli.{_MODULES[name]}")


def parser(families: Sequence[str] = tuple(FAMILIES)) -> argparse.ArgumentParser:
    """Build the parser of all verbs; the flags of a family only if it is among those named."""
    root: argparse.ArgumentParser = _Parser(
        prog="partita",
        description="Partitioned, transactional state for Python.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"partita {partita.__version__}")
    verbs = root.add_subparsers(required=True, metavar="VERB")
    serving = verbs.add_parser(
        "serve", help="serve blobs, queues and tables to the official SDKs", allow_abbrev=False
    )
    serving.set_defaults(verb="serve")
    _add_settings(serving)
    serving.add_argument("--json", action="store_true", help="announce the start as one JSON line")
    for name, text in FAMILIES.items():
        if name in families:
            _family(name).add_verbs(verbs)
        else:
            verbs.add_parser(name, help=text)
    configuring = verbs.add_parser("config", help="look at the configuration", allow_abbrev=False)
    subjects = configuring.add_subparsers(required=True, metavar="show")
    showing = subjects.add_parser(
        "show", help="print each setting and where it came from", allow_abbrev=False
    )
    showing.set_defaults(verb="show")
    _add_settings(showing)
    showing.add_argument("--json", action="store_true", help="print JSON")
    return root


def _add_settings(verb: argparse.ArgumentParser) -> None:
    """Add the flags; an absent flag leaves no trace, so that other sources may speak."""

    def add(flag: str, text: str, **options: object) -> None:
        verb.add_argument(flag, help=text, default=argparse.SUPPRESS, **options)  # type: ignore[arg-type]

    add("--config", "TOML file (./partita.toml if it is there)", metavar="FILE")
    add("--path", "folder of the data (./partita-data)", metavar="DIR")
    add("--in-memory", "keep everything in memory; nothing survives", action="store_true")
    add("--host", "address to bind, may be repeated (127.0.0.1)", action="append")
    for name, port in (("blob", 10000), ("queue", 10001), ("table", 10002)):
        add(f"--{name}-port", f"port of the {name} service; 0 a free one ({port})", metavar="N")
    for name in ("blobs", "queues", "tables"):
        add(f"--{name}", f"serve {name} (on)", action=argparse.BooleanOptionalAction)
    add("--durability", "full: on disk before the answer; fast: soon after", metavar="full|fast")
    add("--account", "name of the only account (devstoreaccount1)", metavar="NAME")
    add("--account-key-file", "file with its key, one key a line", metavar="FILE")
    add("--allowed-host", "further Host that requests may name, may be repeated", action="append")
    add(
        "--allow-development-key-on-network",
        "serve the well-known key beyond this machine: everyone knows it",
        action="store_true",
    )
    add("--tls-cert", "certificate chain in PEM", metavar="FILE")
    add("--tls-key", "its private key in PEM", metavar="FILE")
    add(
        "--request-log",
        "one line a request on standard error (off)",
        action=argparse.BooleanOptionalAction,
    )
    add(
        "--enforce-targets",
        "answer 503 above the cloud's 2,000 entities a second in a partition, 20,000 in an"
        " account (off)",
        action=argparse.BooleanOptionalAction,
    )


def _flags(given: dict[str, object]) -> dict[str, object]:
    """Turn --account and --account-key-file into the setting `accounts`."""
    flags = dict(given)
    name, key_file = flags.pop("account", None), flags.pop("account_key_file", None)
    if (name is None) != (key_file is None):
        raise ConfigurationError(
            "Configuration",
            "An account on the command line needs its key.",
            hint="Give --account NAME and --account-key-file FILE together.",
        )
    if name is not None:
        flags["accounts"] = [{"name": name, "key_file": key_file}]
    return flags


def _told(error: PartitaError) -> str:
    """Say what is wrong, about what, and what to do, in one line."""
    facts = ", ".join(
        f"{name}: {value}" for name, value in error.facts.items() if str(value) not in error.message
    )
    parts = (error.message, f"({facts})" if facts else "", error.hint)
    told = " ".join(part for part in parts if part).replace("\n", " ")
    return _LOGIN.sub("", told)


def _show(settings: config.Config, *, as_json: bool) -> str:
    shown = settings.shown()
    if as_json:
        return json.dumps(
            {name: {"value": shown[name], "source": settings.sources[name]} for name in shown}
        )
    rows = [(name, _as_text(shown[name]), settings.sources[name]) for name in shown]
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    return "\n".join(
        f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in rows
    )


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
