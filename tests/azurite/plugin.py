"""Run tests on Azurite: every account that they open is one of an Azurite process.

Loaded by `make azurite`, with `-p azurite.plugin`. A test that never opened an account proves
nothing about Azurite and is reported as skipped.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NoReturn, TypeVar

import pytest

from azurite.emulator import EmulatedAccount, Emulator
from azurite.gaps import GAPS, NOT_APPLICABLE
from partita.clock import ManualClock
from partita.patterns.ports import connecting
from partita.service.hosting import in_process
from partita.ticks import Clock
from support.fake_world import FakeWorld
from support.live import LiveServer

T = TypeVar("T")

_emulator: Emulator | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Take the places where accounts come from, before any test module imports them."""
    config.addinivalue_line("markers", "azurite: runs on Azurite only")
    taken = pytest.MonkeyPatch()
    taken.setattr(in_process, "open_account", _open_account)
    taken.setattr(connecting, "open_account", _open_account)
    for direct in ("DirectPort", "DirectSyncPort"):
        taken.setattr(connecting, direct, _go_by_the_sdk)
    taken.setattr(LiveServer, "start", _start_no_server)
    taken.setattr(FakeWorld, "__init__", _simulate_no_world)
    config.add_cleanup(taken.undo)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _found(NOT_APPLICABLE, item):
            item.add_marker(pytest.mark.skip(reason=reason))
        if "[direct" in item.name:
            item.add_marker(pytest.mark.skip(reason="would go by the SDK, as its twin does"))
        if reason := _found(GAPS, item):
            item.add_marker(pytest.mark.xfail(reason=f"Azurite: {reason}", strict=True))


def _found(reasons: dict[str, str], item: pytest.Item) -> str | None:
    return next(
        (reason for pattern, reason in reasons.items() if fnmatchcase(item.nodeid, pattern)), None
    )


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The one Azurite of this process."""
    global _emulator  # noqa: PLW0603 - open_account has no fixtures
    _emulator = Emulator(tmp_path_factory.mktemp("azurite") / "store")
    yield _emulator
    _emulator.stop()
    _emulator = None


@pytest.fixture(autouse=True)
def _emptied(emulator: Emulator, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    request.node.stash[_IS_USED] = emulator.is_used
    emulator.empty()


_IS_USED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Let a pass without an account count as a skip."""
    report: pytest.TestReport = yield  # type: ignore[assignment, misc]
    is_passed = call.when == "call" and report.passed and not hasattr(report, "wasxfail")
    if is_passed and _emulator is not None and not _emulator.is_used:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, "Skipped: opens no account")
    return report  # type: ignore[return-value]


def _open_account(
    path: str | os.PathLike[str] | None,
    *,
    durability: str = "full",
    clock: Clock | None = None,
    enforce_targets: bool = False,
) -> EmulatedAccount:
    assert _emulator is not None, "an account is opened outside of a test"
    if enforce_targets:
        pytest.skip("asks for --enforce-targets, which Azurite has not")
    if isinstance(clock, ManualClock):
        setattr(clock, "advance", _move_no_clock)  # noqa: B010 - this one instance
        setattr(clock, "jump", _move_no_clock)  # noqa: B010
    return _emulator.open(path)


def _move_no_clock(_seconds: float) -> NoReturn:
    pytest.skip("moves the clock of its account")


def _go_by_the_sdk(_account: object, port: T) -> T:
    return port


def _start_no_server(_self: LiveServer) -> NoReturn:
    pytest.skip("starts `partita serve`")


def _simulate_no_world(_self: FakeWorld, *_: object, **_options: object) -> NoReturn:
    pytest.skip("simulates its services")


def pytest_report_header() -> str:
    return "accounts: of Azurite"
