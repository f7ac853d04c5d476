"""Where heat is read from: a folder, a PostgreSQL database, or a running server."""

import asyncio
import http.client
import importlib
import json
import uuid
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from partita.addresses import is_postgresql
from partita.cli.kit.accounts import account_folder
from partita.cli.kit.commands import Given
from partita.cli.kit.errors import not_installed
from partita.cli.kit.target import find_target, is_connection_string
from partita.errors import ConfigurationError, UnavailableError
from partita.heat.answers import decode
from partita.heat.kept import KeptHeat
from partita.heat.recorder import Reading
from partita.heat.sqlite_heat import HEAT_FILE, SqliteHeat
from partita.storage.durability import Durability

DEFAULT_FOLDER = Path("partita-data")
TOKEN_FILE = "operations.token"  # noqa: S105 - the name of the file
ANSWER_SECONDS_MAX = 30
DEVELOPMENT_ACCOUNT = "devstoreaccount1"


def read(given: Given, since: int, to: int) -> Reading:
    """Return the heat of the table that is given, or which tables have load."""
    if given.metrics is not None:
        return _from_server(given, since, to)
    target = given.path or find_target(given.connect) or str(DEFAULT_FOLDER)
    if is_postgresql(target.removeprefix("partita:")):
        return asyncio.run(_from_database(target.removeprefix("partita:"), given, since, to))
    if is_connection_string(target):
        raise ConfigurationError(
            "Configuration",
            "Heat is not read over a connection string.",
            hint="Give --path FOLDER, --connect postgresql://USER@HOST/DATABASE, or --metrics URL.",
        )
    root = Path(target.removeprefix("partita:")).expanduser()
    return asyncio.run(_from_folder(root, given, since, to))


async def _from_folder(root: Path, given: Given, since: int, to: int) -> Reading:
    folder = account_folder(root, given.account)
    if not (folder / HEAT_FILE).exists():
        raise ConfigurationError(
            "HeatMissing",
            f"The folder {folder} has no {HEAT_FILE}.",
            hint="Start the server without --no-heat, and wait for a minute.",
        )
    kept = SqliteHeat.beside(folder)
    try:
        return await _read(kept, folder.name, given.table, since, to)
    finally:
        await kept.close()


async def _from_database(url: str, given: Given, since: int, to: int) -> Reading:
    try:
        heat, link, location, pool = (
            importlib.import_module(f"partita.scaleout.{name}")
            for name in (
                "catalog.heat",
                "connections.link",
                "connections.location",
                "connections.pool",
            )
        )
    except ModuleNotFoundError as error:
        hint = 'Install what PostgreSQL stores need: pip install "./partita[scaleout]".'
        raise not_installed(error, hint) from error
    links = pool.Pool(link.Connector(location.Location.parse(url), Durability.FAST))
    account = given.account or DEVELOPMENT_ACCOUNT
    try:
        kept = await heat.FleetHeat(links, uuid.UUID(int=0)).of_account(account)
        return await _read(kept, account, given.table, since, to)
    finally:
        await links.close()


async def _read(kept: KeptHeat, account: str, table: str | None, since: int, to: int) -> Reading:
    if table is None:
        return Reading(account, None, since, to, await kept.tables(since, to), [])
    return Reading(account, table, since, to, [], await kept.read(table.lower(), since, to))


def _from_server(given: Given, since: int, to: int) -> Reading:
    address = urlsplit(given.metrics)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigurationError(
            "Configuration",
            "--metrics is not the URL of an operations endpoint.",
            hint="Give --metrics http://127.0.0.1:10004.",
        )
    parameters = {"from": since, "to": to}
    for name in ("account", "table"):
        if getattr(given, name) is not None:
            parameters[name] = getattr(given, name)
    headers = {"Authorization": f"Bearer {_token(given)}"}
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    connection = kinds[address.scheme](address.hostname, address.port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", f"/api/v1/heat?{urlencode(parameters)}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            "HeatUnavailable",
            f"The server at {given.metrics} does not answer: {error}.",
            hint="Start it with --metrics-port, and give its address with --metrics.",
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise _refused(answer.status, body)
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise UnavailableError(
            "HeatUnavailable",
            f"The answer of {given.metrics} is not heat.",
            hint="Give the address of the operations endpoint of a Partita server.",
        ) from error


def _refused(status: int, body: bytes) -> ConfigurationError:
    message, hint = f"The server refuses the request with status {status}.", ""
    try:
        found = json.loads(body)["error"]
        message, hint = str(found["message"]), str(found["hint"])
    except (ValueError, KeyError, TypeError):
        pass  # it is another program that answers, and the status says enough
    return ConfigurationError("Configuration", message, hint=hint or "Check --metrics.")


def _token(given: Given) -> str:
    target = given.path or find_target(given.connect) or str(DEFAULT_FOLDER)
    is_folder = not is_connection_string(target) and not is_postgresql(target)
    root = Path(target.removeprefix("partita:")) if is_folder else DEFAULT_FOLDER
    path = Path(given.token_file) if given.token_file else root / TOKEN_FILE
    try:
        return path.expanduser().read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "Configuration",
            f"The token file {path} cannot be read.",
            hint="Give --token-file FILE: the file operations.token in the folder of the server's"
            " data, or the one that serve --metrics-token-file names.",
        ) from error
