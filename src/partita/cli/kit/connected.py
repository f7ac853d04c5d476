"""Verbs on an account that `--connect` names, and how those of queues and blobs run.

Queues and blobs are reached by the official clients, whose errors are translated.
"""

from collections.abc import Callable

import click

from partita.cli.kit.commands import JSON, QUIET, Given, Verb, load, option
from partita.cli.kit.errors import in_one_line
from partita.cli.kit.facts import show

CONNECT = option(
    "--connect WHERE",
    "Connection string, SAS URL, address of an account, UseDevelopmentStorage=true or "
    "partita:FOLDER ($PARTITA_CONNECT).",
)


def companion_verbs(family: str, module: str) -> Callable[..., Verb]:
    """Return a function that makes the verbs of a family; `module` has what they run."""

    def run(given: Given, function: str) -> int:
        with in_one_line(given, {}, load("partita.cli.kit.companions:sdk_error")):
            facts = load(f"{module}:{function}")(given)
        show(facts, is_json=given.json)
        return int(facts.exit_status)

    def verb(name: str, text: str, *params: click.Parameter, runs: str, example: str) -> Verb:
        return Verb(
            name,
            text,
            *params,
            CONNECT,
            JSON,
            QUIET,
            runs=lambda given: run(given, runs),
            example=f"partita {family} {name} {example}".rstrip(),
        )

    return verb
