"""Runs `partita console` until a signal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partita.addresses import is_loopback, is_postgresql
from partita.bulk.connecting import parse_where
from partita.cli.kit.commands import Given
from partita.cli.kit.target import find_target, get_target
from partita.clock import SystemClock
from partita.console.hosting import ConsoleSettings, address_of, open_console
from partita.console.services import Sources
from partita.console.sources.catalogs import ShardCatalog
from partita.console.sources.fleets import ShardFleet
from partita.console.sources.operations import RemoteOperations
from partita.console.sources.states import States
from partita.console.token_file import new_token, read_or_create
from partita.errors import ConfigurationError
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.hosting.locations import Remote
from partita.service.hosting.server import TlsFiles, serve_until_stopped
from partita.service.hosting.server import run as run_loop

if TYPE_CHECKING:
    from partita.console.sources.types import EntityTypes

_FORMS = "'CONNECTION STRING'"


def run(given: Given) -> int:
    """Serve the console until a signal stops it."""
    has_sources = bool(given.state or given.shards or given.fleet)
    target = find_target(given.connect)
    # In the variable there may be the catalog, for the verbs of `partita fleet`.
    is_without_account = has_sources and (target is None or is_postgresql(target))
    where = None if is_without_account else _account(given)
    settings = _settings(given)
    _check(settings, where)
    sources = _sources(given)
    return run_loop(lambda: _serve(where, settings, sources, as_json=given.json))


def _account(given: Given) -> Remote:
    where = parse_where(get_target(given.connect, subject="The account", forms=_FORMS))
    if not isinstance(where, Remote):
        raise ConfigurationError(
            "Configuration",
            "A console shows an account that is served.",
            hint="Run `partita serve --console --path FOLDER` for a folder.",
        )
    return where


def _sources(given: Given) -> Sources:
    """Return what the console shows besides the account."""
    if given.metrics_token_file and not given.metrics:
        raise ConfigurationError(
            "Configuration",
            "A token of an operations endpoint is given, and no endpoint.",
            hint="Give --metrics URL.",
        )
    return Sources(
        RemoteOperations(given.metrics, _token(given)) if given.metrics else None,
        States(given.state, SystemClock()) if given.state else None,
        ShardCatalog(given.shards) if given.shards else None,
        ShardFleet(given.fleet, SystemClock()) if given.fleet else None,
        _types(given.types) if given.types else None,
    )


def _types(names: Sequence[str]) -> "EntityTypes":
    from partita.cli.kit.application import choose_models, load  # noqa: PLC0415 - an extra
    from partita.console.sources.types import EntityTypes  # noqa: PLC0415 - an extra

    return EntityTypes(choose_models(names, load(names)))


def _token(given: Given) -> str:
    path = given.metrics_token_file
    if not path:
        raise ConfigurationError(
            "Configuration",
            "The token of the operations endpoint is not given.",
            hint="Give --metrics-token-file FILE: operations.token in the data folder of the"
            " server.",
        )
    try:
        return Path(path).expanduser().read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "Configuration",
            f"The token file {path} cannot be read.",
            hint="Check the path and its permissions.",
        ) from error


def _settings(given: Given) -> ConsoleSettings:
    clock = SystemClock()
    if bool(given.tls_cert) != bool(given.tls_key):
        raise ConfigurationError(
            "Configuration",
            "TLS needs a certificate and a key.",
            hint="Give --tls-cert and --tls-key.",
        )
    return ConsoleSettings(
        token=read_or_create(Path(given.token_file).expanduser(), clock)
        if given.token_file
        else new_token(clock),
        host=given.host,
        port=given.port,
        tls=TlsFiles(Path(given.tls_cert), Path(given.tls_key)) if given.tls_cert else None,
        allowed_hosts=tuple(given.allowed_host),
        is_read_only=given.read_only,
    )


def _check(settings: ConsoleSettings, where: Remote | None) -> None:
    """Refuse a console that other machines could read along with, or whose key is public."""
    if is_loopback(settings.host):
        return
    if settings.tls is None:
        raise ConfigurationError(
            "Configuration",
            f"The console must not be served on {settings.host} without TLS.",
            hint="Give --tls-cert and --tls-key, or serve it on 127.0.0.1 (--host).",
        )
    if where is not None and where.key == DEVELOPMENT_KEY:
        raise ConfigurationError(
            "Configuration",
            f"The console must not serve the well-known account on {settings.host}.",
            hint="Serve it on 127.0.0.1 (--host).",
        )


async def _serve(
    where: Remote | None, settings: ConsoleSettings, sources: Sources, *, as_json: bool
) -> int:
    remotes = [] if where is None else [where]
    async with open_console(remotes, settings, sources) as server:
        await server.start()
        address = address_of(server, settings)
        if as_json:
            print(
                json.dumps({"console": address, "accounts": [each.account for each in remotes]}),
                flush=True,
            )
        else:
            print(f"The console is at\n\n  {address}\n\nCtrl-C stops it.", flush=True)
        return await serve_until_stopped(server)
