"""Accounts on stores that are handed in: what they close, and what another process changes."""

import asyncio
from pathlib import Path

import pytest

from partita.clock import ManualClock
from partita.errors import ConfigurationError
from partita.service.accounts import service_properties_xml
from partita.service.accounts.account import DEVELOPMENT_KEY, Account
from partita.service.accounts.folder_stores import open_folder_stores
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.hosting.opening import Place, open_accounts
from support.accounts import database_of

KEYS = {"first": [DEVELOPMENT_KEY], "second": [DEVELOPMENT_KEY]}


async def test_properties_that_another_process_stored_are_read_again() -> None:
    stores = await open_folder_stores("mine", None, clock=ManualClock())
    one = await Account.open("mine", [DEVELOPMENT_KEY], stores)
    other = await Account.open("mine", [DEVELOPMENT_KEY], stores)
    changed = service_properties_xml.decode(
        service_properties_xml.encode(ServiceProperties(default_version="2020-12-06"))
    )

    await one.set_properties("b", changed)
    assert other.properties["b"] == ServiceProperties()
    await other.refresh_properties()

    assert other.properties["b"] == changed
    assert other.properties["t"] == ServiceProperties()
    await one.close()


async def test_an_account_that_cannot_be_opened_closes_its_stores(tmp_path: Path) -> None:
    stores = await open_folder_stores("mine", tmp_path, clock=ManualClock())

    with pytest.raises(ConfigurationError):
        await Account.open("Not A Name", [DEVELOPMENT_KEY], stores)

    again = await open_folder_stores("mine", tmp_path, clock=ManualClock())
    await again.tables.close()


def test_a_folder_is_not_made_outside_of_the_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        asyncio.run(open_folder_stores("../outside", tmp_path / "root", clock=ManualClock()))

    assert list(tmp_path.iterdir()) == []


async def test_accounts_are_opened_together_and_closed_together(tmp_path: Path) -> None:
    async with open_accounts(KEYS, Place(tmp_path), ManualClock()) as accounts:
        assert [account.name for account in accounts] == ["first", "second"]
        assert [account.backing.why_not_ready for account in accounts] == ["", ""]

    assert [account.backing.why_not_ready for account in accounts] == [
        "The database is closing."
    ] * 2


async def test_a_database_that_failed_says_why_it_is_not_ready(tmp_path: Path) -> None:
    async with open_accounts(KEYS, Place(tmp_path), ManualClock()) as [account, _]:
        told: list[BaseException] = []
        account.backing.on_failure = told.append

        database_of(account).failed(OSError(5, "Input/output error"))

        assert account.backing.why_not_ready == "A write to the disk failed: restart the server."
        assert len(told) == 1


async def test_a_place_does_not_show_its_password() -> None:
    assert repr(Place("postgresql://ada:hush@db/orders")) == "Place('postgresql://***@db/orders')"
