"""Opens the accounts of a process: in a folder, in memory, or on PostgreSQL.

On PostgreSQL all accounts share one fleet: the connections of this process to the database, and its
copy of the catalog.
"""

import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from partita.addresses import without_secrets
from partita.errors import ConfigurationError, PartitaError
from partita.heat.recorder import Heat
from partita.heat.sqlite_heat import SqliteHeat
from partita.service.accounts.account import Account
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.accounts.rate_targets import Targets
from partita.service.accounts.stores import Stores
from partita.storage.durability import Durability
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.heat.kept import KeptHeat
    from partita.scaleout.fleet import Fleet  # it needs an extra

logger = logging.getLogger("partita.heat")


class Place(msgspec.Struct, frozen=True):
    """Where accounts are kept, and how."""

    where: Path | str | None
    """The folder of the data, the URL of a PostgreSQL database, or None for memory."""
    durability: Durability = Durability.FULL
    blob_store: str | None = None
    """The URL of the object store of larger blobs; for PostgreSQL only."""
    checks_clock: bool = True
    """Whether a process is not ready if its clock is wrong; for PostgreSQL only."""
    measures_heat: bool = False
    """Whether the load of the tables is sampled and kept."""

    def __repr__(self) -> str:
        shown = without_secrets(self.where) if isinstance(self.where, str) else self.where
        return f"Place({shown!r})"


@contextlib.asynccontextmanager
async def open_accounts(
    keys: Mapping[str, Sequence[str]], place: Place, clock: Clock, *, enforces_targets: bool = False
) -> AsyncIterator[list[Account]]:
    """Open accounts, given as keys by name; close them, and what they share, at the end."""
    async with contextlib.AsyncExitStack() as opened:
        fleet: Fleet | None = None
        if isinstance(place.where, str):
            fleet = await _open_fleet(place, clock)
            opened.push_async_callback(fleet.close)
        targets = Targets(clock, front_ends=lambda: 1 if fleet is None else fleet.front_ends)
        accounts: list[Account] = []
        for name, signing in keys.items():
            stores = await _open_stores(name, place, clock, fleet)
            account = await Account.open(
                name, signing, stores, targets=targets if enforces_targets else None
            )
            opened.push_async_callback(account.close)
            accounts.append(account)
            if fleet is not None:
                fleet.on_change.append(account.refresh_properties)
        if place.measures_heat:
            heat = Heat(clock, None if fleet is None else fleet.heat)
            opened.push_async_callback(heat.close)
            for account in accounts:
                await _measure(account, heat, place, fleet)
            heat.start()
        yield accounts


async def _measure(account: Account, heat: Heat, place: Place, fleet: "Fleet | None") -> None:
    """Let an account sample its load; without a usable file it is served without."""
    try:
        if fleet is not None:
            kept: KeptHeat = await fleet.heat.of_account(account.name)
        else:
            assert not isinstance(place.where, str)
            folder = None if place.where is None else place.where / account.name
            kept = await SqliteHeat.open(folder)
    except PartitaError as error:
        logger.warning(
            "heat of account %s is not measured: %s %s", account.name, error.message, error.hint
        )
        return
    account.meter = heat.add(account.name, kept)
    account.heat = heat


async def _open_fleet(place: Place, clock: Clock) -> "Fleet":
    fleet: Fleet = await import_scaleout("fleet").Fleet.open(
        place.where,
        durability=place.durability,
        blob_store=place.blob_store,
        clock=clock,
        checks_clock=place.checks_clock,
    )
    return fleet


async def _open_stores(name: str, place: Place, clock: Clock, fleet: "Fleet | None") -> Stores:
    if fleet is not None:
        found = await fleet.stores(name)
        return Stores(found.tables, found.queues, found.blobs, fleet)
    assert not isinstance(place.where, str)
    return await open_folder_stores(name, place.where, durability=place.durability, clock=clock)


def import_scaleout(name: str) -> Any:
    """Import a module of `partita.scaleout`, which needs an extra."""
    try:
        return importlib.import_module(f"partita.scaleout.{name}")
    except ImportError as error:
        raise ConfigurationError(
            "Configuration",
            "PostgreSQL as the store needs packages that are not installed.",
            facts={"package": error.name or ""},
            hint="Run: pip install './partita[scaleout]', or 'partita[fleet]' for --local.",
        ) from error
