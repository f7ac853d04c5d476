"""WHERE → an open client: a connection string, a SAS URL, an address, or a folder in this process.

A folder is opened through the same services as with `partita serve`, without a socket. Only one
process can have it open, so a folder that a server holds is refused.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

from partita.addresses import is_postgresql
from partita.bulk.http_client import HttpSender
from partita.bulk.identity import TokenSource, default_credential
from partita.bulk.wire import Credential, TableClient
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.accounts.development import (
    DEVELOPMENT_ACCOUNT,
    DEVELOPMENT_KEY,
    ENDPOINTS,
)
from partita.service.auth.shared_key import SigningKey
from partita.service.hosting.locations import SCHEME, Folder, Remote, parse
from partita.ticks import Clock

FORMS = (
    "partita:./folder, UseDevelopmentStorage=true, a connection string, a SAS URL or the https "
    "address of an account"
)


def parse_where(text: str, service: str = "tables") -> Folder | Remote:
    """Parse WHERE; a text without `partita:` that is not a connection string is a folder."""
    bare = text.removeprefix(SCHEME)
    if is_postgresql(bare):
        raise ConfigurationError(
            "Configuration",
            "Bulk verbs do not open a PostgreSQL database themselves.",
            hint="Run `partita serve --store postgresql://...` and give --connect "
            "'UseDevelopmentStorage=true' or the connection string of that server.",
        )
    is_path = not text.startswith(SCHEME) and "://" not in text
    if is_path and ("=" not in text or text.startswith((".", "/", "~"))):
        text = SCHEME + text
    return parse(text, service, may_have_identity=True)


def place_text(where: str, service: str = "tables") -> str:
    """Return where an account is, without credentials."""
    place = parse_where(where, service)
    if isinstance(place, Folder):
        return "memory" if place.path is None else place.path
    parts = urlsplit(place.endpoints[service])
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextlib.asynccontextmanager
async def connected(
    where: str,
    *,
    clock: Clock | None = None,
    on_wait: Callable[[float], None] | None = None,
    is_new_allowed: bool = False,
) -> AsyncIterator[TableClient]:
    """Open the tables of an account; a folder without one is an error unless it may be new."""
    own_clock = clock or SystemClock()
    place = parse_where(where)
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(place, Remote):
            client = remote_client(place, own_clock, on_wait=on_wait)
        else:
            path = await asyncio.to_thread(_folder, place, is_new_allowed=is_new_allowed)
            from partita.bulk.folder import open_sender  # noqa: PLC0415 - the whole service

            sender = await stack.enter_async_context(open_sender(path, own_clock))
            credential = Credential(DEVELOPMENT_ACCOUNT, SigningKey.from_base64(DEVELOPMENT_KEY))
            client = TableClient(ENDPOINTS["tables"], credential, sender, own_clock)
        yield await stack.enter_async_context(client)


def remote_client(
    remote: Remote,
    clock: Clock,
    *,
    on_wait: Callable[[float], None] | None = None,
    agent: str = "",
) -> TableClient:
    """Return a client of a remote account; no connection is opened yet.

    `agent` is its User-Agent, by which logs of the server name it.
    """
    endpoint = remote.endpoints["tables"]
    account = remote.account or _account_of(endpoint)
    key = SigningKey.from_base64(remote.key) if remote.key else None
    tokens = TokenSource(default_credential(), clock) if remote.has_identity else None
    credential = Credential(account, key, remote.sas, tokens)
    return TableClient(
        endpoint, credential, HttpSender(endpoint), clock, on_wait=on_wait, agent=agent
    )


def _folder(place: Folder, *, is_new_allowed: bool) -> Path | None:
    if place.path is None:
        return None
    from partita.local_postgres import has_local_store  # noqa: PLC0415 - for folders only

    path = Path(place.path).expanduser()
    if not is_new_allowed or has_local_store(path):
        check_folder(path)
    return path


def check_folder(path: Path) -> None:
    """Raise unless a folder has the development account: a wrong path must not become one."""
    from partita.local_postgres import has_local_store  # noqa: PLC0415 - for folders only
    from partita.storage.database import DATABASE_FILE  # noqa: PLC0415 - SQLite, for folders only

    if (path / DEVELOPMENT_ACCOUNT / DATABASE_FILE).exists():
        return
    if (path / DATABASE_FILE).exists():
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} is the folder of an account.",
            hint=f"Give its parent folder: {path.parent}",
        )
    if has_local_store(path):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} holds the PostgreSQL database of serve --local, and no folder of"
            " an account.",
            hint="Start serve and give --connect the connection string that it prints; or make a"
            f" folder of the account: stop serve, then run partita account copy local:{path} --to"
            " FOLDER.",
        )
    raise ConfigurationError(
        "FolderUnusable",
        f"The folder {path} has no account {DEVELOPMENT_ACCOUNT}.",
        facts={"folder": str(path)},
        hint="Check the path: it is the folder of `partita serve --path`.",
    )


def _account_of(endpoint: str) -> str:
    """Return the name of the account of an endpoint: the first label, or the path."""
    parts = urlsplit(endpoint)
    return parts.path.strip("/").partition("/")[0] or (parts.hostname or "").partition(".")[0]
