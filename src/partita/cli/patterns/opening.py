"""The database of `partita patterns`: asynchronous and synchronous, with the declared types.

Asynchronous functions of the application get the asynchronous database; plain ones get the
synchronous one, in a thread, so that they may block. Rule: of a connection string only addresses
are printed.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from partita.addresses import is_postgresql, without_secrets
from partita.cli.kit.application import Application, import_keyring, is_awaited
from partita.cli.kit.application import load as load_application
from partita.cli.kit.commands import Given, load
from partita.cli.kit.facts import Facts
from partita.cli.kit.target import get_target, is_connection_string
from partita.patterns import aio, sync
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following.eventual_transactions import EventualTransaction
from partita.patterns.ports.connecting import Where
from partita.patterns.protocol.calls import Steps
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex
from partita.patterns.types.views import View
from partita.patterns.writing.context import Context
from partita.service.hosting.in_process import LocalAccount, open_account
from partita.service.hosting.locations import Folder, parse

T = TypeVar("T")


class Session:
    """An open database and the application that uses it."""

    def __init__(self, db: aio.Database, place: str, application: Application) -> None:
        self.db = db
        self.place = place
        self.application = application

    @property
    def context(self) -> Context:
        return self.db.context

    @property
    def models(self) -> list[EntityType[Any]]:
        """The types of the modules, and related types."""
        return list(self.context.models.values())

    @property
    def indexes(self) -> list[AnyIndex]:
        return [index for model in self.models for index in model.indexes]

    async def run(self, steps: Steps[T]) -> T:
        return await self.db.run(steps)

    async def read_states(self) -> None:
        """Read the states of the indexes again: another process may have changed them."""
        for index in self.indexes:
            await self.run(lifecycle.read_state(self.context, index))


def run(given: Given, verb: str) -> Facts:
    """Run the function that `verb` names as `module:name`, in a database if it needs one."""
    function = load(f"partita.cli.patterns.{verb}")
    if verb.startswith("definitions:"):
        found: Facts = function(given)
        return found
    import azure.data.tables  # noqa: F401, PLC0415 - an extra; raise now if it is not installed

    return asyncio.run(_run_connected(given, function))


async def _run_connected(given: Given, function: Callable[..., Any]) -> Facts:
    index = getattr(given, "index", None)
    named = [*(getattr(given, "modules", None) or getattr(given, "targets", None) or ())]
    named += [index] if index else []
    application = load_application(named) if named else Application({}, {})
    async with opened(given, application) as session:
        found: Facts = await function(session, given)
        return found


def connect_text(given: Given) -> str:
    """Return what the flag or the variable names, a bare folder or database with `partita:`."""
    text = get_target(
        given.connect,
        subject="The account",
        forms="partita:./folder, UseDevelopmentStorage=true, or a connection string",
    )
    if is_postgresql(text):
        return f"partita:{text}"
    is_folder = not text.startswith("partita:") and not is_connection_string(text)
    return f"partita:{text}" if is_folder and "://" not in text else text


def place_text(where: str) -> str:
    """Return where a database is, without credentials."""
    place = parse(where)
    if isinstance(place, Folder):
        return "memory" if place.path is None else _shown(place.path)
    parts = urlsplit(place.endpoints["tables"])
    host = parts.hostname or ""
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


@asynccontextmanager
async def opened(given: Given, application: Application) -> AsyncIterator[Session]:
    """Open the database that the flags name, for the types of an application."""
    text = connect_text(given)
    place = place_text(text)
    keyring = import_keyring(getattr(given, "keyring", None))
    options = _options(given)
    async with AsyncExitStack() as stack:
        where = await _account(stack, text)
        db = await stack.enter_async_context(aio.connect(where, keyring=keyring, **options))

        @_once
        def synchronous() -> sync.Database:
            twin = stack.enter_context(sync.connect(where, keyring=keyring, **options))
            _declare(twin, application)
            return twin

        _declare(db, application)
        for name, transaction in application.transactions.items():
            steps = tuple(_threaded(step, synchronous) for step in transaction.steps)
            db.context.transactions[name] = EventualTransaction(name, steps)
        for model in db.context.models.values():
            stack.callback(model.declare, views=model.views)
            threaded = (_threaded(view.function, synchronous) for view in model.views)
            model.declare(views=map(View, (view.name for view in model.views), threaded))
        yield Session(db, place, application)


def _options(given: Given) -> dict[str, Any]:
    options = {
        "queues": tuple(getattr(given, "queue", ())),
        "poison_queue": getattr(given, "poison_queue", None),
        "visibility": getattr(given, "visibility", None),
        "deliveries_max": getattr(given, "deliveries", None),
        "blob_grace": getattr(given, "grace", None),
    }
    return {name: value for name, value in options.items() if value}


async def _account(stack: AsyncExitStack, text: str) -> Where:
    """Open a folder once for both databases: a folder has one holder."""
    place = parse(text)
    if not isinstance(place, Folder):
        return text
    account = await asyncio.to_thread(_open_folder, place)
    stack.push_async_callback(asyncio.to_thread, account.close)
    return account


def _open_folder(folder: Folder) -> LocalAccount:
    if folder.path is None or is_postgresql(folder.path):
        return open_account(folder.path)
    return open_account(Path(folder.path).expanduser())


def _shown(path: str) -> str:
    return without_secrets(path) if is_postgresql(path) else path


def _declare(db: Any, application: Application) -> None:
    for model in application.models.values():
        db.table(model.cls)
    for transaction in application.transactions.values():
        db.know(transaction)


def _threaded(function: Callable[..., Any], twin: Callable[[], Any]) -> Callable[..., Any]:
    """Return an asynchronous function that calls a plain one in a thread."""
    if is_awaited(function):
        return function

    async def call(_db: object, *arguments: Any) -> Any:
        return await asyncio.to_thread(lambda: function(twin(), *arguments))

    return call


def _once(make: Callable[[], T]) -> Callable[[], T]:
    made: list[T] = []
    making = threading.Lock()

    def get() -> T:
        with making:
            if not made:
                made.append(make())
        return made[0]

    return get
