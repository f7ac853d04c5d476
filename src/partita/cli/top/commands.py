"""`partita top`: its flags."""

import click

from partita.cli.kit.commands import Verb, flag, lazily, option

METRICS_URL = "http://127.0.0.1:10004"
TOKEN_VARIABLE = "PARTITA_METRICS_TOKEN"  # noqa: S105 - the name of a variable

top = Verb(
    "top",
    "Show rates, latencies, hot keys and slow requests of a server, live.",
    option("--metrics URL", "The operations endpoint (serve --metrics-port).", default=METRICS_URL),
    option("--path DIR", "Folder of the data: its operations.token is used (./partita-data)."),
    option("--token-file FILE", "File of the token."),
    option("--token TEXT", f"The token; unlike ${TOKEN_VARIABLE}, it is in the list of processes."),
    option(
        "--interval SECONDS",
        "Time between two readings.",
        default=2.0,
        type=click.FloatRange(0.2, 3600),
    ),
    flag("--once", "Print one reading and exit; needs no extra."),
    flag("--json", "With --once: as one JSON line."),
    runs=lazily("partita.cli.top.verbs:run"),
    example="partita top --path ./partita-data",
)
