"""Accounts: a name, its keys, its tables, queues and blobs; and the set of accounts."""

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.errors import ConfigurationError
from partita.queues.engine import QueueEngine
from partita.queues.sqlite_store import SqliteQueueStore
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.rate_targets import Targets
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.accounts.throttled_tables import ThrottledTables
from partita.service.auth.shared_key import SigningKey
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.durability import Durability
from partita.storage.store_clock import StoreClock
from partita.tables.engine import TableEngine
from partita.tables.sqlite_store import SqliteTableStore
from partita.ticks import Clock

DEVELOPMENT_ACCOUNT = "devstoreaccount1"
DEVELOPMENT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The public key of every emulator and SDK."""

_NAME = re.compile(r"[a-z0-9]{3,24}")
_PROPERTIES = {
    "t": "service properties",
    "q": "queue service properties",
    "b": "blob service properties",
}
"""The names of the settings that store the properties of each service."""


class Account:
    """One namespace with its own keys and data. Build it with `open`."""

    database: Database
    tables: TableEngine
    queues: QueueEngine
    blobs: BlobEngine
    _opened: contextlib.AsyncExitStack

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.name = name
        self.set_keys(keys)
        self.properties = dict.fromkeys(_PROPERTIES, ServiceProperties())
        """By letter of the service; stored, and changed only by `set_properties`."""

    def set_keys(self, keys: Sequence[str]) -> None:
        """Replace the keys; requests that are already authenticated continue."""
        self.keys = [SigningKey.from_base64(key) for key in keys]
        self.is_guarded = DEVELOPMENT_KEY in keys
        """A web page can sign with the well-known key, so browsers get stricter rules."""

    @classmethod
    async def open(
        cls,
        name: str,
        keys: Sequence[str],
        *,
        root: Path | None,
        durability: Durability = Durability.FULL,
        clock: Clock,
        targets: Targets | None = None,
    ) -> "Account":
        """Open an account in its folder below `root`; None keeps it in memory.

        With `targets`, its tables refuse requests above them.
        """
        account = cls(check_account_name(name), keys)
        folder = None if root is None else root / name
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
            account.tables = (
                TableEngine(tables) if targets is None else ThrottledTables(tables, name, targets)
            )
            opened.push_async_callback(tables.close)
            account.queues = QueueEngine(await SqliteQueueStore.open(database, store_clock))
            opened.push_async_callback(account.queues.close)
            account.blobs = BlobEngine(await SqliteBlobStore.open(database, store_clock))
            opened.push_async_callback(account.blobs.close)
            await account._read_properties()
            account.database = database
            account._opened = opened.pop_all()
        return account

    async def close(self) -> None:
        """Finish accepted requests and release the folder."""
        await self._opened.aclose()

    async def _read_properties(self) -> None:
        for letter, setting in _PROPERTIES.items():
            stored = await self.tables.store.get_setting(setting)
            if stored is not None:
                self.properties[letter] = xml_wire.decode(stored)

    async def set_properties(self, letter: str, properties: ServiceProperties) -> None:
        await self.tables.store.set_setting(_PROPERTIES[letter], xml_wire.encode(properties))
        self.properties[letter] = properties


class Accounts(dict[str, Account]):
    """The accounts of one server, by name."""

    def __init__(
        self, accounts: Iterable[Account], clock: Clock, *, allows_old_sas: bool = False
    ) -> None:
        super().__init__((account.name, account) for account in accounts)
        self.allows_old_sas = allows_old_sas
        """Whether service SAS are accepted that do not name their service."""
        # It has keys but no tables: no request can be signed with its key.
        self._unknown = Account("", [])
        self._unknown.keys = [SigningKey(clock.random_bytes(64))]

    def __missing__(self, name: str) -> Account:
        """Return an account with a random key: an unknown name is refused in the same time."""
        return self._unknown

    async def close(self) -> None:
        for account in self.values():
            await account.close()


def check_account_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "Configuration",
            f"{name!r} is not a valid account name.",
            hint="Use 3 to 24 lower-case letters and digits.",
        )
    return name
