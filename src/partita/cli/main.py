"""The command `partita`: finds the verb, runs it, turns errors into one line.

The exit status is 0; 2 for what was refused; 1 for what an operator must look at: damage, drift,
a server that failed after its start.
"""

import os
import sys
from collections.abc import Sequence

import click

import partita
from partita.cli.kit.commands import Family
from partita.cli.kit.secrets import without_logins
from partita.cli.kit.terminal import has_colours
from partita.errors import ConfigurationError, DamageError, PartitaError

INTERRUPTED = 130
"""The status that shells give a program that Ctrl-C ended."""
HELP_COLUMNS_MAX = 100
COMPLETE_VARIABLE = "_PARTITA_COMPLETE"
"""Set by the completion scripts of shells; see docs/cli.md."""

FAMILIES = {
    "serve": "partita.cli.settings:serve",
    "config": "partita.cli.settings:config",
    "console": "partita.cli.console.commands:console",
    "certificate": "partita.cli.certificate.commands:certificate",
    "reload": "partita.cli.settings:reload",
    "verify": "partita.cli.account.commands:verify",
    "import": "partita.cli.bulk.commands:import_",
    "export": "partita.cli.bulk.commands:export",
    "copy": "partita.cli.bulk.commands:copy",
    "query": "partita.cli.bulk.commands:query",
    "count": "partita.cli.bulk.commands:count",
    "delete-where": "partita.cli.bulk.commands:delete_where",
    "sas": "partita.cli.bulk.commands:sas",
    "messages": "partita.cli.messages.commands:messages",
    "blobs": "partita.cli.blobs.commands:blobs",
    "account": "partita.cli.account.commands:account",
    "heat": "partita.cli.heat.commands:heat",
    "tables": "partita.cli.space.commands:tables",
    "compact": "partita.cli.space.commands:compact",
    "fleet": "partita.cli.fleet.commands:fleet",
    "state": "partita.cli.state.commands:state",
    "shards": "partita.cli.shards.commands:shards",
    "patterns": "partita.cli.patterns.commands:patterns",
    "nats": "partita.cli.nats.commands:nats",
    "top": "partita.cli.top.commands:top",
}
"""Each verb or family of verbs is imported when it is used."""
_MAY_FIND_DAMAGE = {"account", "backup", "compact", "restore", "state", "patterns", "verify"}
"""Verbs that end with status 1 if what was stored is damaged."""


def command() -> Family:
    """Return the tree of all verbs."""
    return Family(
        "partita",
        "Partitioned, transactional state for Python.",
        lazy=FAMILIES,
        old={"backup": "account backup", "restore": "account restore"},
        params=[_version()],
        epilog="`partita VERB --help` lists the flags of a verb.",
    )


def _version() -> click.Option:
    def show(ctx: click.Context, _param: click.Parameter, value: object) -> None:
        if value and not ctx.resilient_parsing:
            print(f"partita {partita.__version__}")
            ctx.exit()

    return click.Option(
        ["-V", "--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version and exit.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    root = command()
    if os.environ.get(COMPLETE_VARIABLE):
        return _complete(root)
    try:
        return run(root, words)
    except PartitaError as error:
        _print_error(error_text(error))
        is_damage = isinstance(error, DamageError) and words[0] in _MAY_FIND_DAMAGE
        return 1 if is_damage else 2
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it; the rest must not be written again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run(root: click.Command, words: list[str]) -> int:
    """Run a command line; a wrong one raises ConfigurationError."""
    try:
        with root.make_context("partita", words, max_content_width=HELP_COLUMNS_MAX) as ctx:
            return int(root.invoke(ctx) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.UsageError as error:
        path = "partita" if error.ctx is None else error.ctx.command_path
        raise ConfigurationError(
            "Configuration", error.format_message(), hint=f"See `{path} --help`."
        ) from error


def _complete(root: click.Command) -> int:
    """Answer the completion script of a shell, or print it."""
    from click.shell_completion import shell_complete  # noqa: PLC0415 - only for shells

    instruction = os.environ[COMPLETE_VARIABLE]
    return shell_complete(root, {}, "partita", COMPLETE_VARIABLE, instruction)


def error_text(error: PartitaError) -> str:
    """Return what failed, on what, and what to do, in one line."""
    facts = ", ".join(
        f"{name}: {value}" for name, value in error.facts.items() if str(value) not in error.message
    )
    parts = (error.message, f"({facts})" if facts else "", error.hint)
    return without_logins(" ".join(part for part in parts if part).replace("\n", " "))


def _print_error(text: str) -> None:
    name = "\033[1;31mpartita:\033[0m" if has_colours(sys.stderr) else "partita:"
    print(name, text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
