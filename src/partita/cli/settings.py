"""`partita serve` and `partita config show`: the flags of the settings that a server has.

A flag that is not given leaves no value, so that variables, the file and defaults count.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from partita.cli.kit.commands import JSON, Family, Given, Verb, flag, lazily, option
from partita.cli.kit.facts import Table, print_lines
from partita.errors import ConfigurationError

if TYPE_CHECKING:
    from partita.cli.config import Config


def _switch(name: str, text: str) -> click.Option:
    return flag(f"--{name}/--no-{name}", text, default=None)


SETTINGS = (
    option("--config FILE", "TOML file (./partita.toml if it exists)."),
    option("--path DIR", "Folder of the data (./partita-data)."),
    flag("--in-memory", "Keep everything in memory; nothing is stored.", default=None),
    option(
        "--store WHERE",
        "sqlite: in the folder; postgresql://USER@HOST/DATABASE: in this database; postgres: with "
        "--local (sqlite).",
    ),
    flag("--local", "With --store postgres: start a PostgreSQL in the data folder.", default=None),
    option(
        "--blob-store URL",
        "With PostgreSQL, blobs above 64 KiB: file:///DIR, s3://, az:// or gs://.",
    ),
    _switch(
        "clock-check",
        "With PostgreSQL, be not ready while the clock is more than a second wrong (on).",
    ),
    option("--host ADDRESS", "Address to bind; may be repeated (127.0.0.1).", multiple=True),
    *(
        option(f"--{name}-port N", f"Port of the {name} service; 0: a free one ({port}).")
        for name, port in (("blob", 10000), ("queue", 10001), ("table", 10002))
    ),
    *(_switch(name, f"Serve {name} (on).") for name in ("blobs", "queues", "tables")),
    option("--durability full|fast", "full: on disk before the answer; fast: soon after (full)."),
    option("--account NAME", "Name of the only account (devstoreaccount1)."),
    option("--account-key-file FILE", "File with its keys, one key per line."),
    option(
        "--allowed-host HOST",
        "Another Host that requests may name; may be repeated.",
        multiple=True,
    ),
    flag(
        "--allow-development-key-on-network",
        "Serve the well-known key to other machines: everyone knows it.",
        default=None,
    ),
    flag(
        "--allow-old-sas",
        "Accept service SAS of versions before 2015-02-21: a SAS of a queue is also one of a "
        "container with the same name.",
        default=None,
    ),
    option(
        "--copy-from-host HOST",
        "Another server from which blobs may be copied, HOST or HOST:PORT; may be repeated.",
        multiple=True,
    ),
    option(
        "--create KIND:NAME",
        "Create table:NAME, queue:NAME or container:NAME in the first account at the start; may be"
        " repeated.",
        multiple=True,
    ),
    option("--seed DIR", "Create and fill at the start what the first account does not have."),
    flag("--allow-empty", "Let accounts with own keys be emptied by a request.", default=None),
    option(
        "--blob-events URL",
        "Send notices of changed blobs to a webhook, or to nats://HOST:4222/SUBJECT (none).",
    ),
    option(
        "--oauth off|development",
        "development: accept tokens of every issuer, on loopback by https only (off).",
    ),
    option("--oauth-issuer URL", "Accept bearer tokens of this issuer (none)."),
    option(
        "--oauth-audience TEXT",
        "Audience that tokens must name; may be repeated (https://storage.azure.com).",
        multiple=True,
    ),
    option(
        "--oauth-jwks URL|FILE",
        "Public keys of the issuer (as it describes itself at /.well-known/openid-configuration).",
    ),
    option("--oauth-roles-claim NAME", "Claim with the roles of a token (roles)."),
    option(
        "--oauth-role VALUE=ROLE[@ACCOUNT]",
        "Azure data role that a value of that claim stands for; may be repeated.",
        multiple=True,
    ),
    option("--oauth-skew-seconds N", "How far the clock of the issuer may differ (300)."),
    option("--tls-cert FILE", "Certificate chain in PEM."),
    option("--tls-key FILE", "Its private key in PEM."),
    option("--connections-max N", "Connections of each service (4096)."),
    option(
        "--connections-per-peer-max N",
        "Of them, from one IPv4 address or one IPv6 /64 network (2048).",
    ),
    option("--metrics-port N", "Port of the operations endpoint, usually 10004 (none)."),
    option("--metrics-host ADDRESS", "Its address; beyond loopback it needs a token (127.0.0.1)."),
    option(
        "--metrics-token-file FILE",
        "File of its token, created if it is missing (operations.token in the data folder).",
    ),
    _switch("request-log", "Print one line per request on standard error (off)."),
    option(
        "--access-log FILE",
        "Write one JSON object per request to a file; -: to standard error (none).",
    ),
    option("--log-format text|json", "Lines of text, or one JSON object a line (text)."),
    _switch("otel", "Export traces by OpenTelemetry, as OTEL_EXPORTER_OTLP_* configure it (off)."),
    option(
        "--otel-one-in N",
        "Trace one in N of the requests whose client does not decide; 0: none (0).",
    ),
    option("--slow-ms N", "Log requests that take longer, with plan and advice; 0: never (100)."),
    _switch(
        "enforce-targets",
        "Answer 503 above the targets of the cloud: 2,000 entities per second in a partition, "
        "20,000 in an account (off).",
    ),
    option("--scrub-days N", "Read everything once in N days to find damage; 0: never (7)."),
    _switch("console", "Serve the console for browsers, and print its address (off)."),
    option("--console-host ADDRESS", "Address of the console; not loopback: with TLS (127.0.0.1)."),
    option("--console-port N", "Port of the console; 0: a free one (10003)."),
    _switch("console-read-only", "Let the console change nothing (off)."),
    option(
        "--console-token-file FILE",
        "File of the console's token (console.token in the data folder; elsewhere a new one for"
        " each start).",
    ),
    _switch("heat", "Sample the load of tables by key ranges, for `partita heat` (on)."),
)


def _serve(given: Given) -> int:
    from partita.cli.serve import serve as run  # noqa: PLC0415 - other verbs need no server

    return run(_config(), as_json=given.json, read=_config)


def _show(given: Given) -> int:
    config = _config()
    shown = config.shown()
    if given.json:
        values = {name: {"value": shown[name], "source": config.sources[name]} for name in shown}
        print(msgspec.json.encode(values).decode())
        return 0
    rows = [(name, _as_text(shown[name]), config.sources[name]) for name in shown]
    print_lines([Table(("setting", "value", "source"), rows)], sys.stdout)
    return 0


def _config() -> "Config":
    """Read all settings: flags, variables, the file, defaults."""
    from partita.cli.config import load  # noqa: PLC0415 - it imports the stores

    ctx = click.get_current_context()
    given: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if name != "json" and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return load(_with_accounts(given), os.environ)


def _with_accounts(flags: dict[str, object]) -> dict[str, object]:
    """Turn --account and --account-key-file into the setting `accounts`."""
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


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


serve = Verb(
    "serve",
    "Serve blobs, queues and tables to the official SDKs.",
    *SETTINGS,
    flag("--json", "Print the start as one JSON line."),
    runs=_serve,
    example="partita serve --path ./partita-data",
)
reload = Verb(
    "reload",
    "Let a server read its account keys and TLS certificate again.",
    option("--connect WHERE", "Folder of the data, as serve --path names it ($PARTITA_CONNECT)."),
    JSON,
    runs=lazily("partita.cli.reload:run"),
    example="partita reload --connect ./partita-data",
)
config = Family(
    "config",
    "Print the configuration of a server.",
    Verb(
        "show",
        "Print each setting and where its value came from.",
        *SETTINGS,
        JSON,
        runs=_show,
        example="partita config show --table-port 0",
    ),
)
