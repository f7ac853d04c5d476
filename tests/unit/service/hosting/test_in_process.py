"""The account in this process: what it says without the official clients."""

import sys

import pytest

import partita
from partita.errors import ConfigurationError
from partita.service.hosting import in_process


@pytest.mark.parametrize("missing", ["azure.data.tables", "azure.storage.queue"])
def test_an_account_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(ConfigurationError, match="SDK is not installed") as refused:
        partita.open_account(None)

    assert "[azure]" in refused.value.hint


def test_an_account_without_any_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "_CLIENTS", ("azure.not_installed.tables",))

    with pytest.raises(ConfigurationError, match="SDK is not installed"):
        partita.open_account(None)
