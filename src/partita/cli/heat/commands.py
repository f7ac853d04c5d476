"""`partita heat`: draw the load of a table in the terminal, as PNG or as SVG."""

import click

from partita.cli.kit.commands import JSON, Argument, Verb, lazily, option
from partita.heat.drawing.picture import KINDS

heat = Verb(
    "heat",
    "Show which ranges of keys of a table are hot, over time.",
    Argument("[TABLE]", "The table; without one, list the tables with load.", required=False),
    option(
        "--connect WHERE",
        "Folder of the data, or postgresql://USER@HOST/DATABASE ($PARTITA_CONNECT,"
        " ./partita-data).",
    ),
    option("--path DIR", "Folder of the data, as serve --path names it."),
    option("--account NAME", "The account, if there are several."),
    option(
        "--metrics URL", "Ask a running server: its operations endpoint (serve --metrics-port)."
    ),
    option("--token-file FILE", "Token of the operations endpoint (DIR/operations.token)."),
    option("--since TIME", "How far back: 30m, 6h, 7d.", default="1h"),
    option(
        f"--kind {'|'.join(KINDS)}",
        "What to show: entities read and written, one of both, or bytes.",
        type=click.Choice([*KINDS]),
        default="all",
    ),
    option("--png FILE", "Write a picture; needs partita[ops]."),
    option("--svg FILE", "Write a picture."),
    JSON,
    runs=lazily("partita.cli.heat.verbs:run"),
    example="partita heat Orders --path ./partita-data --since 6h --png orders.png",
)
