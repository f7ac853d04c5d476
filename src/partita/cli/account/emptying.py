"""`partita account empty`: remove everything of an account, for the next test.

A running server is asked by a request that the account key signs; an account in a folder that is
not served is emptied directly. The name is an argument, so that a wrong target is noticed.
"""

import asyncio
import binascii
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from partita.bulk.connecting import FORMS, parse_where
from partita.bulk.http_client import HttpSender
from partita.bulk.service_errors import error_of
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.cli.kit.target import get_target
from partita.cli.kit.text import count_text
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.accounts.account import Account, check_account_name
from partita.service.accounts.development import DEVELOPMENT_ACCOUNT
from partita.service.accounts.emptying import EMPTY_SETTING, Emptied, empty
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.auth.shared_key import SigningKey, string_to_sign
from partita.service.hosting.locations import Folder, Remote
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request
from partita.storage.database import DATABASE_FILE

QUERY = "restype=account&comp=empty"
VERSION = "2020-12-06"


class AccountEmptied(Facts, frozen=True):
    """What was removed from an account."""

    account: str
    tables: int
    queues: int
    containers: int

    def lines(self) -> Iterator[Line]:
        removed = (
            count_text(self.tables, "table"),
            count_text(self.queues, "queue"),
            count_text(self.containers, "container"),
        )
        yield f"Emptied account {self.account}: {', '.join(removed)} removed."


def empty_account(given: Given) -> AccountEmptied:
    """Run `partita account empty`."""
    name = check_account_name(given.account)
    where = get_target(given.connect, subject="The account", forms=FORMS)
    place = parse_where(where)
    if isinstance(place, Remote):
        done = asyncio.run(_empty_remote(place, name))
    else:
        root = _folder_of(place, name, is_allowed=given.allow_empty)
        done = asyncio.run(_empty_folder(root, name))
    return AccountEmptied(done.account, done.tables, done.queues, done.containers)


async def _empty_remote(place: Remote, name: str) -> Emptied:
    if not place.key:
        raise ConfigurationError(
            "Configuration",
            "Only a key of the account empties it.",
            hint="Give --connect a connection string with AccountKey.",
        )
    if place.account != name:
        raise _other_account(name)
    service, endpoint = next(iter(place.endpoints.items()))
    path = f"{urlsplit(endpoint).path.rstrip('/')}/"
    headers = {"x-ms-date": http_date(SystemClock().ticks()), "x-ms-version": VERSION}
    request = Request("POST", path, QUERY, headers)
    text = string_to_sign(request, name, service[0])
    signature = SigningKey.from_base64(place.key).signature(text)
    encoded = binascii.b2a_base64(signature, newline=False).decode()
    headers["authorization"] = f"SharedKey {name}:{encoded}"
    sender = HttpSender(endpoint)
    try:
        answer = await sender.respond(request)
    finally:
        await sender.close()
    if answer.status != 200:
        named = {key.lower(): value for key, value in answer.headers}
        raise error_of(answer.status, named, answer.body, {"account": name})
    return msgspec.json.decode(answer.body, type=Emptied)


def _folder_of(place: Folder, name: str, *, is_allowed: bool) -> Path:
    """Return the folder of the data; raise unless its account may be emptied."""
    if place.path is None:
        raise ConfigurationError(
            "Configuration", "An account in memory is empty.", hint="Give --connect a folder."
        )
    root = Path(place.path).expanduser()
    if not (root / name / DATABASE_FILE).exists():
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {root} has no account {name}.",
            hint="Check the path: it is the folder of `partita serve --path`.",
        )
    if name != DEVELOPMENT_ACCOUNT and not is_allowed:
        raise ConfigurationError(
            "Configuration",
            f"The account {name} is not the development account.",
            hint=f"Add {EMPTY_SETTING} to remove all its data.",
        )
    return root


async def _empty_folder(root: Path, name: str) -> Emptied:
    stores = await open_folder_stores(name, root, clock=SystemClock())
    account = await Account.open(name, [], stores)
    try:
        return await empty(account)
    finally:
        await account.close()


def _other_account(name: str) -> ConfigurationError:
    return ConfigurationError(
        "Configuration",
        f"The connection string names another account than {name}.",
        hint="Give the name of the account that --connect names.",
    )
