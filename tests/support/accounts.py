"""Accounts in a folder or in memory, and their database."""

from collections.abc import Sequence
from pathlib import Path

from partita.service.accounts.account import Account
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.accounts.rate_targets import Targets
from partita.storage.database import Database
from partita.ticks import Clock


async def open_folder_account(
    name: str,
    keys: Sequence[str],
    *,
    root: Path | None,
    clock: Clock,
    targets: Targets | None = None,
) -> Account:
    stores = await open_folder_stores(name, root, clock=clock)
    return await Account.open(name, keys, stores, targets=targets)


def database_of(account: Account) -> Database:
    assert isinstance(account.backing, Database)
    return account.backing
