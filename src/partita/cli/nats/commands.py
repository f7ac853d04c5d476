"""`partita nats`: write the configuration of a cluster, or run one of three nodes here.

`config` writes one file per node and prints how to start it. `up` runs a cluster for development
in the foreground and restarts a node that dies; its nodes end when it ends, by a signal or by
`down`. `status` asks the nodes of this or of any other cluster.
"""

import click

from partita.cli.kit.commands import JSON, Family, Verb, flag, lazily, option

LOCAL_FOLDER = "partita-nats"
NODES_FOLDER = "/var/lib/partita-nats"
CLIENT_PORT = 4222
"""The port that NATS clients use by default."""

nats = Family(
    "nats",
    "The NATS cluster of a replicated state.",
    Verb(
        "config",
        "Write the configuration of a cluster.",
        option("--nodes HOST,HOST,HOST", "Three or five nodes: host[:port].", required=True),
        option(
            "--folder DIR",
            "Where each node keeps its streams, on its own machine.",
            default=NODES_FOLDER,
        ),
        option("--out DIR", "Where to write the files.", default="."),
        JSON,
        runs=lazily("partita.cli.nats.verbs:write"),
        example="partita nats config --nodes db1,db2,db3 --out ./nats",
    ),
    Verb(
        "up",
        "Run three nodes on this machine, for development.",
        option("--path DIR", "Their folder.", default=LOCAL_FOLDER),
        option(
            "--port N",
            "Client port of the first node; the others follow.",
            default=CLIENT_PORT,
            type=click.IntRange(0, 65535),
        ),
        flag("--json", "Print the start as one JSON line."),
        runs=lazily("partita.cli.nats.verbs:run_up"),
        example="partita nats up --port 4222",
    ),
    Verb(
        "status",
        "Print the nodes of a cluster; the status is 1 if one is down or does not sync.",
        option("--path DIR", "Folder of a cluster of `up`.", default=LOCAL_FOLDER),
        option("--connect URL", "Another cluster: nats://host:4222 instead of --path."),
        option(
            "--monitor URL",
            "Monitoring address of a node; may be repeated.  [default: client port + 4000]",
            multiple=True,
        ),
        JSON,
        runs=lazily("partita.cli.nats.running:status"),
        example="partita nats status --connect nats://db1:4222,db2:4222,db3:4222",
    ),
    Verb(
        "down",
        "Stop the cluster that `up` runs in a folder.",
        option("--path DIR", "Its folder.", default=LOCAL_FOLDER),
        JSON,
        runs=lazily("partita.cli.nats.running:down"),
        example="partita nats down",
    ),
)
