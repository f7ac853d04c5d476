"""`partita fleet`: many PostgreSQL shards under one catalog, and their front ends."""

import click

from partita.cli.kit.commands import (
    JSON,
    QUIET,
    Argument,
    Family,
    Given,
    Verb,
    flag,
    lazily,
    load,
    option,
)
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import show

LOCAL_FOLDER = "partita-fleet"
CHILDREN_MAX = 16
"""Shards, and front ends, of a fleet on one machine."""
CAPACITY = 20_000.0
"""As `scaleout.balancing.limits.CAPACITY`, which is not imported to print the help."""

URL = Argument(
    "[URL]",
    "The catalog: postgresql://USER@HOST:PORT/DATABASE, by default --connect.",
    required=False,
)
CONNECT = option("--connect URL", "The catalog, by default $PARTITA_CONNECT.")
DURABILITY = option(
    "--durability full|fast",
    "fast: accept servers that may lose the last writes in a power cut.",
    type=click.Choice(["full", "fast"]),
    default="full",
)
ACCOUNT = option("--account NAME", "The account of the table, if several have one of this name.")
ON_CATALOG = CONNECT, DURABILITY, JSON


def _run(given: Given, name: str) -> int:
    with in_one_line(given, {}, lambda _error: None):
        try:
            function = load(f"partita.cli.fleet.{name}")
        except ModuleNotFoundError as error:
            hint = 'Install what PostgreSQL stores need: pip install "./partita[scaleout]".'
            raise not_installed(error, hint) from error
        facts = function(given)
    show(facts, is_json=given.json)
    return int(facts.exit_status)


def _verb(module: str, name: str, text: str, *params: click.Parameter, example: str) -> Verb:
    """Return a verb whose function has the same name."""
    runs = f"{module}:{name}"
    return Verb(
        name, text, *params, *ON_CATALOG, runs=lambda given: _run(given, runs), example=example
    )


def _range(name: str, text: str) -> Argument:
    return Argument("RANGE_ID", text, name=name, type=click.IntRange(1))


SHARD = Argument("SHARD", "The name of the shard, as `partita fleet status` lists it.")
CAPACITY_OPTION = option(
    "--capacity N",
    "What a shard can do, in point reads per second.",
    type=click.FloatRange(1),
    default=CAPACITY,
)

fleet = Family(
    "fleet",
    "The PostgreSQL shards of a fleet, and its front ends.",
    Verb(
        "up",
        "Run a whole fleet on this machine, for development.",
        option(
            "--shards N",
            "Shards: one PostgreSQL server each.",
            type=click.IntRange(1, CHILDREN_MAX),
            default=2,
        ),
        option(
            "--front-ends N",
            "Processes that serve.",
            type=click.IntRange(1, CHILDREN_MAX),
            default=2,
        ),
        option("--path DIR", "The folder of everything.", default=LOCAL_FOLDER),
        flag("--json", "Print the start as one JSON line."),
        runs=lazily("partita.cli.fleet.up:run_up"),
        example="partita fleet up --shards 2",
    ),
    _verb(
        "verbs",
        "init",
        "Create the schema of a catalog or upgrade it; add shards.",
        URL,
        option("--shard URL", "A database that becomes a shard; may be repeated.", multiple=True),
        option(
            "--role NAME", "Role of front ends: created if missing, granted what it needs only."
        ),
        example="partita fleet init postgresql://postgres@db1/partita --role partita",
    ),
    _verb(
        "verbs",
        "status",
        "Show the version, the checks, the shards, the front ends and the jobs of a fleet.",
        URL,
        example="partita fleet status postgresql://partita@db1/partita",
    ),
    _verb(
        "changes",
        "ranges",
        "List the ranges of keys of tables, and queues, with their shards.",
        Argument("[TABLE]", "Only those of this table.", required=False),
        ACCOUNT,
        example="partita fleet ranges Staff",
    ),
    _verb(
        "changes",
        "split",
        "Divide a range in two; no entity is moved.",
        Argument("TABLE", "The table."),
        option("--at KEY", "The first partition key of the second range.", required=True),
        ACCOUNT,
        example="partita fleet split Staff --at m",
    ),
    _verb(
        "changes",
        "merge",
        "Join two neighbouring ranges that are on one shard.",
        _range("first", "The number of a range."),
        _range("second", "The number of its neighbour."),
        example="partita fleet merge 7 8",
    ),
    _verb(
        "changes",
        "move",
        "Carry a range to another shard, while clients work.",
        _range("range_id", "The number of the range, as `partita fleet ranges` lists it."),
        option("--to SHARD", "The shard that gets it.", required=True),
        QUIET,
        example="partita fleet move 7 --to shard-2",
    ),
    _verb(
        "changes",
        "add",
        "Make a database a shard of the fleet.",
        Argument("SHARD_URL", "postgresql://USER@HOST:PORT/DATABASE", name="shard"),
        option("--name NAME", "The name of the shard, by default one of a host and database."),
        example="partita fleet add postgresql://partita@db3/partita --name east",
    ),
    _verb(
        "changes",
        "drain",
        "Move all ranges of a shard to the others; it gets no new ones.",
        SHARD,
        QUIET,
        example="partita fleet drain shard-2",
    ),
    _verb(
        "changes",
        "remove",
        "Remove a shard that has no ranges.",
        SHARD,
        example="partita fleet remove shard-2",
    ),
    _verb(
        "changes",
        "resume",
        "Complete or take back what commands that were killed have left.",
        example="partita fleet resume",
    ),
    _verb(
        "changes",
        "upgrade",
        "Upgrade the schema of the catalog and of all shards.",
        option("--role NAME", "Role of front ends, which gets what it needs."),
        QUIET,
        example="partita fleet upgrade --role partita",
    ),
    _verb(
        "changes",
        "mark",
        "Make a restore point on the catalog and all shards, with moves stopped.",
        Argument("NAME", "The name of the restore point."),
        example="partita fleet mark before-release-7",
    ),
    _verb(
        "changes",
        "verify",
        "Check that each key has exactly one owner; count entities and messages.",
        example="partita fleet verify",
    ),
    _verb(
        "changes",
        "reconcile",
        "Let the catalog and the shards agree again, after a restore or a failover.",
        Argument("[SHARD]", "Only the tables of this shard.", required=False),
        example="partita fleet reconcile shard-2",
    ),
    _verb(
        "balancing",
        "balance",
        "Show what a round of the balancer would do, and why.",
        flag("--apply", "Do it."),
        CAPACITY_OPTION,
        example="partita fleet balance --apply",
    ),
    Verb(
        "control",
        "Balance the fleet until a signal comes; of several processes, one is elected.",
        CAPACITY_OPTION,
        *ON_CATALOG,
        runs=lazily("partita.cli.fleet.balancing:control"),
        example="partita fleet control --connect postgresql://partita@db1/partita",
    ),
    _verb(
        "balancing",
        "hot",
        "List the partitions that have much of the load of a shard.",
        CAPACITY_OPTION,
        example="partita fleet hot",
    ),
    _verb(
        "changes",
        "throttle",
        "Limit the rate of one hot partition, which cannot be divided.",
        Argument("TABLE", "The table."),
        option("--partition KEY", "The partition key.", required=True),
        option("--rate N", "Entities per second.", type=click.FloatRange(0, min_open=True)),
        flag("--off", "End the limit."),
        ACCOUNT,
        example="partita fleet throttle Staff --partition Sales --rate 500",
    ),
)
