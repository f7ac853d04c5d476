"""Accounts: a name, its keys, its tables and service properties; and the set of them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from partita.clock import Clock
from partita.database import DATABASE_FILE, Database, Durability
from partita.errors import ConfigurationError
from partita.service import xml_wire
from partita.service.shared_key import SigningKey
from partita.service.xml_wire import ServiceProperties
from partita.tables.engine import TableEngine
from partita.tables.sqlite_store import SqliteTableStore

DEVELOPMENT_ACCOUNT = "devstoreaccount1"
DEVELOPMENT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The key that every emulator and SDK knows, and so does everybody else."""

_NAME = re.compile(r"[a-z0-9]{3,24}")
_PROPERTIES = "service properties"


class Account:
    """One namespace with its own keys and data. Build it with `open`."""

    database: Database
    tables: TableEngine

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.name = name
        self.keys = [SigningKey.from_base64(key) for key in keys]
        self.properties = ServiceProperties()
        """Kept in the store; moved only by `set_properties`."""
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
    ) -> "Account":
        """Open an account in its folder below `root`; None keeps it in memory."""
        account = cls(check_account_name(name), keys)
        folder = None if root is None else root / name
        if root is not None and (root / DATABASE_FILE).exists():
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {root} is that of an account.",
                hint=f"Give the folder above it: {root.parent}",
            )
        database = await Database.open(folder, durability=durability)
        try:
            account.tables = TableEngine(await SqliteTableStore.open(database, clock))
            stored = await account.tables.store.get_setting(_PROPERTIES)
            if stored is not None:
                account.properties = xml_wire.decode(stored)
        except BaseException:
            await database.close()
            raise
        account.database = database
        return account

    async def set_properties(self, properties: ServiceProperties) -> None:
        await self.tables.store.set_setting(_PROPERTIES, xml_wire.encode(properties))
        self.properties = properties


class Accounts:
    """The accounts of one server, by name."""

    def __init__(self, accounts: Iterable[Account], clock: Clock) -> None:
        self._by_name = {account.name: account for account in accounts}
        # It has keys but no tables: nobody passes its authentication.
        self._nobody = Account("", [])
        self._nobody.keys = [SigningKey(clock.random_bytes(64))]

    def find(self, name: str) -> Account:
        """Return the account, or one whose key nobody has: both refuse in the same time."""
        return self._by_name.get(name, self._nobody)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_name.values())

    async def close(self) -> None:
        for account in self:
            await account.tables.close()


def check_account_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "Configuration",
            f"{name!r} cannot be an account name.",
            hint="Use 3 to 24 lower-case letters and digits.",
        )
    return name
