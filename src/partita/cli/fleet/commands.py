"""`partita fleet`: prepare the PostgreSQL database of a fleet, and show its state."""

from partita.cli.kit.commands import JSON, Argument, Family, Given, Verb, load, option
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import show

URL = Argument(
    "[URL]", "postgresql://USER@HOST:PORT/DATABASE, by default $PARTITA_CONNECT.", required=False
)


def _run(given: Given, verb: str) -> int:
    with in_one_line(given, {}, lambda _error: None):
        try:
            function = load(f"partita.cli.fleet.verbs:{verb}")
        except ModuleNotFoundError as error:
            hint = 'Install what PostgreSQL stores need: pip install "partita[scaleout]".'
            raise not_installed(error, hint) from error
        facts = function(given)
    show(facts, is_json=given.json)
    return int(facts.exit_status)


fleet = Family(
    "fleet",
    "The PostgreSQL store of several front ends.",
    Verb(
        "init",
        "Create the schema of a database, or upgrade it.",
        URL,
        option(
            "--role NAME", "Role of front ends: created if missing, granted what it needs only."
        ),
        JSON,
        runs=lambda given: _run(given, "init"),
        example="partita fleet init postgresql://postgres@db1/partita --role partita",
    ),
    Verb(
        "status",
        "Show the version, the checks, the front ends and the tables of a database.",
        URL,
        JSON,
        runs=lambda given: _run(given, "status"),
        example="partita fleet status postgresql://partita@db1/partita",
    ),
)
