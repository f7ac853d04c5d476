"""A stand-in for the test helpers of the SDKs, which are not published: tests run against a server.

It has the names that the suites import. Recordings, sanitizers and their settings do nothing.
"""

import functools
import hashlib
import inspect
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from devtools_testutils.credentials import AsyncDevelopmentCredential, DevelopmentCredential
from devtools_testutils.fake_credentials import ACCOUNTS, KEYS, FakeTokenCredential

__all__ = [
    "AzureRecordedTestCase",
    "EnvironmentVariableLoader",
    "EnvironmentVariableOptions",
    "FakeTokenCredential",
    "PowerShellPreparer",
    "ResponseCallback",
    "RetryCounter",
    "get_credential",
    "is_live",
    "recorded_by_proxy",
    "test_proxy",
]
SLEEPS = os.environ.get("SUITE_SLEEPS", "") == "1"
"""Whether the tests wait as they do in the cloud; tables wait for nothing else."""


def __getattr__(name: str) -> Callable[..., None]:
    """Return a function that does nothing, for the settings of recordings."""
    if name.startswith(("add_", "remove_", "set_")):
        return lambda *_, **__: None
    raise AttributeError(name)


def is_live() -> bool:
    return True


def get_credential(*, is_async: bool = False, **_: Any) -> Any:
    return AsyncDevelopmentCredential() if is_async else DevelopmentCredential()


@pytest.fixture(scope="session")
def test_proxy() -> None:
    return None


def recorded_by_proxy(test: Any) -> Any:
    return test


class RetryCounter:
    def __init__(self) -> None:
        self.count = 0

    def simple_count(self, _: Any) -> None:
        self.count += 1


class ResponseCallback:
    """Replaces the status of answers."""

    def __init__(self, status: int | None = None, new_status: int | None = None) -> None:
        self.status, self.new_status = status, new_status
        self.first, self.count = True, 0

    def override_first_status(self, response: Any) -> None:
        if self.first and response.http_response.status_code == self.status:
            response.http_response.status_code = self.new_status
            self.first = False
        self.count += 1

    def override_status(self, response: Any) -> None:
        if response.http_response.status_code == self.status:
            response.http_response.status_code = self.new_status
        self.count += 1


class AzureRecordedTestCase:
    is_live: ClassVar[bool] = True
    is_playback: ClassVar[bool] = False
    in_recording: ClassVar[bool] = False

    @property
    def qualified_test_name(self) -> str:
        return os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds if SLEEPS else min(seconds, 0.05))

    def get_resource_name(self, prefix: str) -> str:
        return prefix + hashlib.sha256(self.qualified_test_name.encode()).hexdigest()[:12]

    create_random_name = get_resource_name

    def generate_sas(self, make: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        kwargs.pop("fake_value", None)
        return make(*args, **kwargs)

    def get_credential(self, _client: Any = None, *, is_async: bool = False, **__: Any) -> Any:
        return get_credential(is_async=is_async)

    def create_client_from_credential(self, client: Any, credential: Any, **kwargs: Any) -> Any:
        return client(credential=credential, **kwargs)

    def get_settings_value(self, name: str) -> str:
        return os.environ.get(f"AZURE_{name}", "")


class Secret(str):
    """A value that some suites read by `secret`."""

    __slots__ = ()

    @property
    def secret(self) -> str:
        return str(self)


class EnvironmentVariableOptions:
    def __init__(self, **_: Any) -> None: ...


class EnvironmentVariableLoader:
    """Calls a test with the names and keys of the accounts that it asks for."""

    def __init__(self, _directory: str, *, options: Any = None, **names: str) -> None:
        self._values = {name: _value(name) for name in names}

    def __call__(self, test: Any) -> Any:
        values = _accepted(test, self._values)
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def asynchronous(*args: Any, **kwargs: Any) -> Any:
                return await test(*args, **kwargs, **values)

            wrapper: Any = asynchronous
        else:

            @functools.wraps(test)
            def synchronous(*args: Any, **kwargs: Any) -> Any:
                return test(*args, **kwargs, **values)

            wrapper = synchronous
        wrapper.__signature__ = inspect.Signature(_asked_of_pytest(test, values))
        return wrapper


PowerShellPreparer = EnvironmentVariableLoader


def _accepted(test: Any, values: dict[str, Secret]) -> dict[str, Secret]:
    given = inspect.signature(test).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in given.values())
    return {name: value for name, value in values.items() if takes_all or name in given}


def _asked_of_pytest(test: Any, values: dict[str, Secret]) -> list[inspect.Parameter]:
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = inspect.signature(test).parameters.values()
    wanted = [each for each in given if each.kind is named and each.name not in values]
    return wanted or [inspect.Parameter("self", named)]


def _value(name: str) -> Secret:
    account = ACCOUNTS.get(name.removesuffix("_account_key").removesuffix("_account_name"), "")
    if name.startswith("tables_"):
        account = ACCOUNTS["tables"]
    return Secret(KEYS.get(account, name) if name.endswith("_key") else account or name)
