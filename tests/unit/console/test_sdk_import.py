import asyncio
import threading

import pytest

from partita.console import accounts
from partita.console.accounts import SdkImport
from partita.errors import ConfigurationError


async def test_the_loop_goes_on_while_the_sdk_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(accounts, "_import_sdk", may_end.wait)
    sdk = SdkImport()

    sdk.begin()
    waiting = [asyncio.create_task(sdk.finish()) for _ in range(2)]
    await asyncio.sleep(0)
    has_ended = any(task.done() for task in waiting)
    may_end.set()
    await asyncio.gather(*waiting)
    await sdk.close()

    assert not has_ended


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_SDK_MODULES", ("azure_that_is_not_installed",))
    sdk = SdkImport()

    with pytest.raises(ConfigurationError) as raised:
        await sdk.finish()
    await sdk.close()

    assert "partita[console]" in raised.value.hint
