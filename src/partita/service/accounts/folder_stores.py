"""The stores of an account in a folder or in memory, on one SQLite database."""

import contextlib
from pathlib import Path

from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.errors import ConfigurationError
from partita.queues.sqlite_store import SqliteQueueStore
from partita.service.accounts.account import check_account_name
from partita.service.accounts.stores import Stores
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock
from partita.tables.sqlite_store import SqliteTableStore
from partita.ticks import Clock


async def open_folder_stores(
    name: str, root: Path | None, *, clock: Clock, durability: Durability = Durability.FULL
) -> Stores:
    """Open the stores of an account in its folder below `root`; None keeps them in memory.

    The table store closes the database.
    """
    folder = None if root is None else root / check_account_name(name)
    if root is not None and (root / DATABASE_FILE).exists():
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {root} is the folder of an account.",
            hint=f"Give its parent folder: {root.parent}",
        )
    database = await Database.open(folder, durability=durability)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(database.close)
        store_clock = StoreClock(database, clock)
        tables = await SqliteTableStore.open(database, store_clock=store_clock)
        opened.push_async_callback(tables.close)
        queues = await SqliteQueueStore.open(database, store_clock)
        opened.push_async_callback(queues.close)
        blobs = await SqliteBlobStore.open(database, store_clock)
        opened.pop_all()
    return Stores(tables, queues, blobs, database)
