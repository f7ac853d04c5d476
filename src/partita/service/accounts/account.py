"""Accounts: a name, its keys, its tables, queues and blobs; and the set of accounts."""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from partita.blobs.engine.engine import BlobEngine
from partita.errors import ConfigurationError
from partita.heat.meter import Meter
from partita.queues.engine import QueueEngine
from partita.service.accounts import development
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.rate_targets import Targets
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.accounts.stores import Backing, Stores
from partita.service.accounts.system_places import make_places
from partita.service.accounts.throttled_tables import ThrottledTables
from partita.service.auth.shared_key import SigningKey
from partita.tables.engine import TableEngine
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.heat.recorder import Heat
    from partita.service.accounts.blob_events import BlobEvents
    from partita.service.auth.bearer import TokenIssuer

DEVELOPMENT_ACCOUNT = development.DEVELOPMENT_ACCOUNT
DEVELOPMENT_KEY = development.DEVELOPMENT_KEY

_NAME = re.compile(r"[a-z0-9]{3,24}")
_PROPERTIES = {
    "t": "service properties",
    "q": "queue service properties",
    "b": "blob service properties",
}
"""The names of the settings that store the properties of each service."""


class Account:
    """One namespace with its own keys and data. Build it with `open`."""

    backing: Backing
    tables: TableEngine
    queues: QueueEngine
    blobs: BlobEngine
    _opened: contextlib.AsyncExitStack

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.name = name
        self.set_keys(keys)
        self.properties = dict.fromkeys(_PROPERTIES, ServiceProperties())
        """By letter of the service; a copy of what is stored."""
        self.on_properties: list[Callable[[], None]] = []
        """Called after they were read or set."""
        self.meter = Meter(None)
        """Samples the load of its tables, if `heat` is not None."""
        self.heat: Heat | None = None
        """Where this is kept: one object for all accounts of a process."""

    def set_keys(self, keys: Sequence[str]) -> None:
        """Replace the keys; requests that are already authenticated continue."""
        self.keys = [SigningKey.from_base64(key) for key in keys]
        self.is_guarded = DEVELOPMENT_KEY in keys
        """A web page can sign with the well-known key, so browsers get stricter rules."""

    @classmethod
    async def open(
        cls, name: str, keys: Sequence[str], stores: Stores, *, targets: Targets | None = None
    ) -> "Account":
        """Open an account on its stores, which it closes, also if it cannot be opened.

        With `targets`, its tables refuse requests above them.
        """
        async with contextlib.AsyncExitStack() as opened:
            opened.push_async_callback(stores.tables.close)
            opened.push_async_callback(stores.queues.close)
            opened.push_async_callback(stores.blobs.close)
            account = cls(check_account_name(name), keys)
            account.backing = stores.backing
            account.tables = (
                TableEngine(stores.tables)
                if targets is None
                else ThrottledTables(stores.tables, name, targets)
            )
            account.queues = QueueEngine(stores.queues)
            account.blobs = BlobEngine(stores.blobs)
            await account.refresh_properties()
            account._opened = opened.pop_all()
        return account

    async def close(self) -> None:
        """Finish accepted requests and close the stores."""
        await self._opened.aclose()

    async def refresh_properties(self) -> None:
        """Read the stored service properties: another process may have changed them."""
        for letter, setting in _PROPERTIES.items():
            stored = await self.tables.store.get_setting(setting)
            self.properties[letter] = (
                ServiceProperties() if stored is None else xml_wire.decode(stored)
            )
        self._tell_properties()

    async def set_properties(self, letter: str, properties: ServiceProperties) -> None:
        """Store the properties of a service, after what Storage Analytics needs for them exists."""
        await make_places(self.tables.store, self.blobs, letter, properties)
        await self.tables.store.set_setting(_PROPERTIES[letter], xml_wire.encode(properties))
        self.properties[letter] = properties
        self._tell_properties()

    def _tell_properties(self) -> None:
        self.blobs.keeper.retention = self.properties["b"].retention
        for listener in self.on_properties:
            listener()


class Accounts(dict[str, Account]):
    """The accounts of one server, by name."""

    def __init__(
        self,
        accounts: Iterable[Account],
        clock: Clock,
        *,
        allows_old_sas: bool = False,
        copy_hosts: Iterable[str] = (),
    ) -> None:
        super().__init__((account.name, account) for account in accounts)
        self.allows_old_sas = allows_old_sas
        """Whether service SAS are accepted that do not name their service."""
        self.copy_hosts = frozenset(copy_hosts)
        """Other servers from which blobs may be copied: hosts, or hosts with a port."""
        self.allows_empty = False
        """Whether accounts with keys of their own may be emptied by a request."""
        self.blob_events: BlobEvents | None = None
        """Told about blobs that were created or deleted."""
        self.issuer: TokenIssuer | None = None
        """Checks bearer tokens; without it they are refused."""
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
