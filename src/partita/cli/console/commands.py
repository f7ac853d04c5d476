"""`partita console`: serve the console of an account that another program serves."""

from partita.cli.kit.commands import JSON, Verb, flag, lazily, option

console = Verb(
    "console",
    "Serve the console of any account: Azure, Azurite or Partita.",
    option(
        "--connect WHERE",
        "Connection string of the account, or UseDevelopmentStorage=true ($PARTITA_CONNECT).",
    ),
    option("--metrics URL", "Operations endpoint of the server (http://127.0.0.1:10004)."),
    option("--metrics-token-file FILE", "File of its token: operations.token of the server."),
    option("--state WHERE", "Reliable state to show: FOLDER or nats://HOST:4222."),
    option("--shards URL", "Catalog of shard maps to show."),
    option("--fleet URL", "Catalog of a fleet to show and change: postgresql://..."),
    option(
        "--types MODULE[:CLASS]",
        "Entity types to compare with their indexes; may be repeated.",
        multiple=True,
    ),
    option("--host ADDRESS", "Address to bind; not loopback: with TLS.", default="127.0.0.1"),
    option("--port N", "Port; 0: a free one.", default=10003, type=int),
    option(
        "--allowed-host HOST",
        "Another Host that requests may name; may be repeated.",
        multiple=True,
    ),
    flag("--read-only", "Change nothing; pages cannot unlock it."),
    option("--token-file FILE", "File of the token; created if missing (a new one each start)."),
    option("--tls-cert FILE", "Certificate chain in PEM."),
    option("--tls-key FILE", "Its private key in PEM."),
    JSON,
    runs=lazily("partita.cli.console.verbs:run"),
    example="partita console --connect UseDevelopmentStorage=true",
)
